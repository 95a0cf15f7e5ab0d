// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weights that are larger than the address space together.

use crate::support;
use ork_device::{Board, Device, DeviceOptions, DriverKind, EmuOptions, FaultPlan, FindingKind};
use ork_driver::{Driver, DriverError, DriverOptions, ResidencyOptions, StreamBacking, StreamMode, Weight};
use ork_testkit::{Case, Shape, reference};

const SHAPE: Shape = Shape::new(2, 512, 256);
/// Packed bytes of one weight.
const BYTES: u64 = 512 * 256;

struct Model {
    cases: Vec<(Case, Vec<i32>, Weight)>,
    driver: Driver,
    board: Board,
}

/// Twelve weights, with room for `resident` of them and `slots` more.
fn model(driver: DriverKind, resident: u64, slots: u64, change: impl FnOnce(&mut ResidencyOptions)) -> Model {
    let mut residency = ResidencyOptions { window_bytes: slots * BYTES, ..ResidencyOptions::default() };
    change(&mut residency);
    // The window of the emulated kernel holds what it must, and not one weight more.
    let window = 4 * BYTES + (resident + slots) * BYTES + (2 << 20);
    let faults = FaultPlan { window_bytes: Some(window), ..FaultPlan::default() };
    let board = Board::new(&EmuOptions { faults, ..EmuOptions::default() });
    let options = DeviceOptions {
        emulated_driver: driver,
        domains: 1,
        domain_bytes_max: (resident * BYTES).max(1),
        ..DeviceOptions::default()
    };
    let device = Device::on_board(&board, &options).unwrap();
    let driver = Driver::new(device, DriverOptions { residency, ..DriverOptions::default() }).unwrap();
    let cases = (0..12)
        .map(|seed| {
            let case = Case::new(SHAPE, seed);
            let want = reference::fast_i8(&case.features(), &case.weights(), SHAPE);
            let weights = case.weights();
            let weight = driver
                .load_codes("w", 512, 256, &|row, out| out.copy_from_slice(&weights[row * 512..][..512]));
            (case, want, weight.unwrap())
        })
        .collect();
    Model { cases, driver, board }
}

impl Model {
    fn multiply(&self, index: usize) {
        let (case, want, weight) = &self.cases[index];
        let mut got = vec![0; want.len()];
        self.driver.matmul_codes(weight, 2, &case.features(), &mut got).unwrap();
        assert_eq!(got, *want, "weight {index}");
    }

    fn pass(&self) {
        (0..self.cases.len()).for_each(|index| self.multiply(index));
    }

    fn end(self) {
        let Self { cases, driver, board } = self;
        let full = |kind: &FindingKind| matches!(kind, FindingKind::Injected { .. });
        assert!(!board.take_findings().iter().any(|finding| full(&finding.kind)), "the window was full");
        drop((cases, driver));
        support::assert_nothing_lives(&board);
    }
}

#[test]
fn what_finds_no_room_is_streamed_through_slots() {
    for kernel in [DriverKind::Rknpu, DriverKind::Rocket] {
        let model = model(kernel, 4, 3, |residency| residency.prefetch = false);
        let streamed = model.cases.iter().filter(|(_, _, weight)| weight.is_streamed()).count();
        assert_eq!(streamed, 8, "four find room");
        for _ in 0..3 {
            model.pass();
        }
        let counters = model.driver.residency();
        assert_eq!((counters.weights, counters.bytes), (8, 8 * BYTES));
        // In the same order again and again, the least recently used one is always the next.
        assert_eq!((counters.hits, counters.misses, counters.evictions), (0, 24, 21), "{kernel:?}");
        assert_eq!(counters.brought_bytes, 24 * BYTES);
        model.multiply(11);
        assert_eq!(model.driver.residency().hits, 1, "the last one is still there");
        model.end();
    }
}

#[test]
fn the_next_weight_is_brought_in_ahead_of_its_use() {
    let model = model(DriverKind::Rknpu, 0, 3, |residency| residency.stream = StreamMode::All);
    for _ in 0..6 {
        model.pass();
    }
    let counters = model.driver.residency();
    // The first pass teaches the order. How many of the others come in time depends on the host; none comes wrong.
    assert_eq!(counters.hits + counters.misses, 6 * 12);
    assert!(counters.misses >= 12 && counters.prefetched > 0, "{counters:?}");
    assert!(counters.prefetched <= counters.hits);
    model.end();
}

#[test]
fn one_slot_is_enough() {
    let model = model(DriverKind::Rknpu, 0, 1, |residency| residency.stream = StreamMode::All);
    model.pass();
    model.pass();
    assert_eq!(model.driver.residency().evictions, model.driver.residency().brought_bytes / BYTES - 1);
    model.end();
}

#[test]
fn mapped_weights_are_not_copied() {
    let model = model(DriverKind::Rknpu, 0, 4, |residency| {
        residency.stream = StreamMode::All;
        residency.backing = StreamBacking::Map;
    });
    for _ in 0..3 {
        model.pass();
    }
    let counters = model.driver.residency();
    assert_eq!(counters.hits + counters.misses, 36);
    assert_eq!(model.driver.device().counters().buffers_imported, counters.brought_bytes / BYTES);
    model.end();
}

#[test]
fn weights_of_many_sizes_share_the_slots() {
    let residency =
        ResidencyOptions { stream: StreamMode::All, window_bytes: 4 << 20, ..ResidencyOptions::default() };
    let board = Board::new(&EmuOptions::default());
    let device = Device::on_board(&board, &DeviceOptions::default()).unwrap();
    let driver = Driver::new(device, DriverOptions { residency, ..DriverOptions::default() }).unwrap();
    let shapes = [(64, 64), (1024, 512), (96, 33), (2048, 1024), (512, 100)];
    let load = |index: usize| {
        let (k, n) = shapes[index % shapes.len()];
        let case = Case::new(Shape::new(1, k, n), index as u64);
        let weights = case.weights();
        let width = k as usize;
        let rows = |row: usize, out: &mut [i8]| out.copy_from_slice(&weights[row * width..][..width]);
        let weight = driver.load_codes("w", width, n as usize, &rows).unwrap();
        let want = reference::fast_i8(&case.features(), &case.weights(), case.shape);
        (case, want, weight)
    };
    let mut held: Vec<_> = (0..10).map(load).collect();
    for round in 0..6_usize {
        for (case, want, weight) in &held {
            let mut got = vec![0; want.len()];
            driver.matmul_codes(weight, 1, &case.features(), &mut got).unwrap();
            assert_eq!(got, *want);
        }
        // Some go while their neighbours stay.
        held.remove(round % held.len());
        held.push(load(20 + round));
    }
    drop(held);
    assert_eq!(driver.residency().weights, 0);
    drop(driver);
    support::assert_nothing_lives(&board);
}

#[test]
fn without_streaming_a_full_address_space_is_an_error_with_advice() {
    let residency = ResidencyOptions { stream: StreamMode::Off, ..ResidencyOptions::default() };
    let board = Board::new(&EmuOptions::default());
    let options = DeviceOptions { domains: 1, domain_bytes_max: BYTES, ..DeviceOptions::default() };
    let device = Device::on_board(&board, &options).unwrap();
    let driver = Driver::new(device, DriverOptions { residency, ..DriverOptions::default() }).unwrap();
    let load = || driver.load_codes("w", 512, 256, &|_, out| out.fill(1));
    let _first = load().unwrap();
    let error = load().unwrap_err();
    assert!(matches!(error, DriverError::Hold { .. }));
    assert!(error.hint().unwrap().contains("driver.residency"), "{:?}", error.hint());
}

#[test]
fn what_is_larger_than_the_window_is_refused() {
    let residency =
        ResidencyOptions { stream: StreamMode::All, window_bytes: BYTES - 1, ..ResidencyOptions::default() };
    let device = Device::on_board(&Board::new(&EmuOptions::default()), &DeviceOptions::default()).unwrap();
    let driver = Driver::new(device, DriverOptions { residency, ..DriverOptions::default() }).unwrap();
    let error = driver.load_codes("w", 512, 256, &|_, out| out.fill(1)).unwrap_err();
    assert!(matches!(error, DriverError::Hold { bytes: BYTES, .. }), "{error:?}");
}

#[test]
fn rocket_does_not_map_streamed_weights() {
    let residency = ResidencyOptions { backing: StreamBacking::Map, ..ResidencyOptions::default() };
    let options = DeviceOptions { emulated_driver: DriverKind::Rocket, ..DeviceOptions::default() };
    let device = Device::on_board(&Board::new(&EmuOptions::default()), &options).unwrap();
    let error = Driver::new(device, DriverOptions { residency, ..DriverOptions::default() }).unwrap_err();
    assert!(matches!(error, DriverError::Residency { .. }), "{error:?}");
}

#[test]
fn no_memory_for_a_slot_is_an_error_and_the_next_use_works() {
    // One event for each allocation: the features, the programs of a core and the results come before the slot or after
    // it, depending on which product is the first.
    for nth in 1..8 {
        let faults = FaultPlan { out_of_memory: ork_device::When::Nth(nth), ..FaultPlan::default() };
        let board = Board::new(&EmuOptions { faults, ..EmuOptions::default() });
        let device =
            Device::on_board(&board, &DeviceOptions { cores: 1, ..DeviceOptions::default() }).unwrap();
        let residency = ResidencyOptions { stream: StreamMode::All, ..ResidencyOptions::default() };
        let driver = Driver::new(device, DriverOptions { residency, ..DriverOptions::default() }).unwrap();
        let case = Case::new(SHAPE, nth);
        let want = reference::fast_i8(&case.features(), &case.weights(), SHAPE);
        let weights = case.weights();
        let rows = |row: usize, out: &mut [i8]| out.copy_from_slice(&weights[row * 512..][..512]);
        let weight = driver.load_codes("w", 512, 256, &rows).unwrap();
        let mut got = vec![0; want.len()];
        let first = driver.matmul_codes(&weight, 2, &case.features(), &mut got);
        assert_eq!(first.is_err(), nth <= 5, "{nth}: {first:?}");
        driver.matmul_codes(&weight, 2, &case.features(), &mut got).unwrap();
        assert_eq!(got, want);
        drop((weight, driver));
        support::assert_nothing_lives(&board);
    }
}
