// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random products on each kernel driver, on one to three cores, in each way to wait: the same results, and no recovery.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use ork_device::{Board, Device, DeviceOptions, DriverKind, EmuOptions, RecoveryMode, SubmitMode};
use ork_driver::{CompletionMode, Driver, DriverOptions, Operands, Values};
use ork_testkit::{Budget, Case, Shape, cases, reference};

const RKNPU: [[u32; 3]; 3] = [[0, 9, 2], [0, 9, 6], [0, 9, 8]];

struct Way {
    name: String,
    driver: Driver,
    board: Board,
}

fn way(
    kind: DriverKind,
    version: [u32; 3],
    cores: u8,
    submit: SubmitMode,
    completion: CompletionMode,
) -> Way {
    let board = Board::new(&EmuOptions { driver_version: version, ..EmuOptions::default() });
    let options = DeviceOptions {
        emulated_driver: kind,
        cores,
        submit,
        recovery: RecoveryMode::Forbid,
        ..DeviceOptions::default()
    };
    let device = Device::on_board(&board, &options).unwrap();
    let name = format!("{}, {cores} cores, {submit:?}, {completion:?}", device.features().name());
    let driver = Driver::new(device, DriverOptions { completion, ..DriverOptions::default() }).unwrap();
    Way { name, driver, board }
}

/// Each kernel with one to three cores.
fn kernels() -> Vec<Way> {
    let mut ways = Vec::new();
    for cores in 1..=3 {
        for version in RKNPU {
            ways.push(way(DriverKind::Rknpu, version, cores, SubmitMode::Auto, CompletionMode::Auto));
        }
        ways.push(way(DriverKind::Rocket, RKNPU[2], cores, SubmitMode::Auto, CompletionMode::Auto));
    }
    ways
}

/// Runs each case on some of the ways, in turn, so that all get their share.
fn sweep(ways: Vec<Way>, cases: &[Case], turns: usize) {
    let mut wrong = Vec::new();
    let mut runs = 0;
    for (index, case) in cases.iter().enumerate() {
        let want = reference::fast_i8(&case.features(), &case.weights(), case.shape);
        for turn in 0..turns {
            let way = &ways[(index * turns + turn) % ways.len()];
            runs += 1;
            if let Err(message) = support::check_case(&way.driver, case, &want) {
                wrong.push(format!("{}: {message}", way.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {runs} runs differ:\n{}", wrong.len(), wrong.join("\n"));
    for Way { name, driver, board } in ways {
        let events = driver.device().event_counts();
        assert_eq!(events.recoveries(), 0, "{name}: {events}");
        assert_eq!(events.of(ork_device::EventKind::SecondSeed), 0, "{name}: {events}");
        assert!(driver.counters().matmuls > 0, "{name} had no turn");
        drop(driver);
        support::assert_nothing_lives(&board);
    }
}

fn small(seed: u64, cases: u32) -> Vec<Case> {
    let cases = cases::draw(seed, &Budget { cases, macs_per_case_max: 1 << 26, macs_total: 1 << 32 });
    assert!(cases.len() >= 100);
    cases
}

#[test]
fn every_kernel_and_every_number_of_cores_gives_the_same_exact_products() {
    // 240 shapes on five of the twelve each.
    sweep(kernels(), &small(41, 240), 5);
}

#[test]
fn polled_fenced_and_seeded_products_are_the_same() {
    let mut ways = Vec::new();
    for submit in [SubmitMode::Blocking, SubmitMode::Polled, SubmitMode::Fenced] {
        for cores in [1, 3] {
            ways.push(way(DriverKind::Rknpu, RKNPU[2], cores, submit, CompletionMode::Seed));
        }
    }
    ways.push(way(DriverKind::Rknpu, RKNPU[1], 3, SubmitMode::Fenced, CompletionMode::Auto));
    ways.push(way(DriverKind::Rknpu, RKNPU[0], 2, SubmitMode::Polled, CompletionMode::Auto));
    sweep(ways, &small(42, 120), 4);
}

#[test]
fn weights_in_several_address_spaces_multiply_each_in_its_own() {
    for version in &RKNPU[1..] {
        let board = Board::new(&EmuOptions { driver_version: *version, ..EmuOptions::default() });
        let options = DeviceOptions { domain_bytes_max: 100_000, ..DeviceOptions::default() };
        let device = Device::on_board(&board, &options).unwrap();
        let driver = Driver::new(device, DriverOptions::default()).unwrap();
        let case = Case::new(Shape::new(3, 256, 128), 5);
        let (weights, features) = (case.weights(), case.features());
        let want = reference::fast_i8(&features, &weights, case.shape);
        let load = || {
            driver
                .load_codes("case", 256, 128, &|row, out| out.copy_from_slice(&weights[row * 256..][..256]))
                .unwrap()
        };
        let held: Vec<_> = (0..10).map(|_| load()).collect();
        assert_eq!(board.live().domains, 3, "domains 1 to 3 besides 0");
        for round in 0..3 {
            for weight in &held {
                let mut got = vec![0; 3 * 128];
                driver.matmul_codes(weight, 3, &features, &mut got).unwrap();
                assert_eq!(got, want, "round {round}");
            }
        }
        // One change of the domain for each border, each round.
        let switches = driver.device().counters().domain_switches;
        assert!(switches < 40, "{switches}");
        drop((held, driver));
        support::assert_nothing_lives(&board);
    }
}

#[test]
fn a_group_over_two_address_spaces_loads_its_rows_in_both() {
    let board = Board::new(&EmuOptions::default());
    let options = DeviceOptions { domain_bytes_max: 70_000, ..DeviceOptions::default() };
    let driver = Driver::new(Device::on_board(&board, &options).unwrap(), DriverOptions::default()).unwrap();
    let row = |seed: usize, out: &mut [f32]| {
        out.iter_mut().enumerate().for_each(|(k, x)| *x = ((seed * 31 + k * 17) % 23) as f32 - 11.0);
    };
    let load = |seed: usize| driver.load("case", 512, 128, &|n, out| row(seed + n, out)).unwrap();
    let (one, two) = (load(1), load(1));
    let mut x = vec![0.0; 512];
    row(9, &mut x);
    let (mut first, mut second) = (vec![0.0; 128], vec![1.0; 128]);
    let parts = vec![(&one, &mut first[..]), (&two, &mut second[..])];
    driver.matmul(&mut ork_driver::MatmulGroup { m: 1, x: &x, parts }).unwrap();
    assert_eq!(board.live().domains, 1);
    assert_eq!(first, second);
    assert!(first.iter().any(|value| *value != 0.0));
}

#[test]
fn int4_needs_a_reset_that_rocket_declines_by_name() {
    let rocket = way(DriverKind::Rocket, RKNPU[2], 1, SubmitMode::Auto, CompletionMode::Auto);
    let ones = vec![ork_layout::Int4::new(1).unwrap(); 64 * 64];
    let int4 = Operands::Int4 { a: &ones[..64], b: &ones };
    let error = rocket.driver.product(1, 64, 64, &int4).unwrap_err();
    let mut chain = vec![error.to_string()];
    let mut source = std::error::Error::source(&error);
    while let Some(inner) = source {
        chain.push(inner.to_string());
        source = inner.source();
    }
    assert!(chain.iter().any(|text| text == "rocket does not offer a reset on demand"), "{chain:?}");
    for submit in [SubmitMode::Blocking, SubmitMode::Polled, SubmitMode::Fenced] {
        let vendor = way(DriverKind::Rknpu, RKNPU[2], 3, submit, CompletionMode::Auto);
        let values = vendor.driver.product(1, 64, 64, &int4).unwrap();
        assert_eq!(values, Values::I32(vec![64; 64]), "{submit:?}");
    }
}
