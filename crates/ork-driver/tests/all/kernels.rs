// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random products on each kernel driver, on one to three cores, in each way to wait: the same results, and no recovery.

use crate::support;
use half::f16;
use ork_device::{Board, Device, DeviceOptions, DriverKind, EmuOptions, RecoveryMode, SubmitMode};
use ork_driver::{CompletionMode, Driver, DriverOptions, Operands, Requantise, Values};
use ork_layout::Int4;
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
    let board = Board::new(&EmuOptions {
        driver_version: version,
        reap_compares_microseconds: version == RKNPU[2],
        ..EmuOptions::default()
    });
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

/// Rows of 1024 that make results saturate and be zero: the values that a seed could be mistaken for.
fn nibbles(count: usize, seed: usize) -> Vec<Int4> {
    let code = |index: usize| match (index / 1024 + seed) % 4 {
        0 => 7,
        1 => -7,
        2 => 0,
        _ => ((index * 5 + seed) % 15) as i8 - 7,
    };
    (0..count).map(|index| Int4::new(code(index)).unwrap()).collect()
}

#[test]
fn every_precision_is_right_on_every_kernel_whatever_its_results() {
    let (m, k, n) = (3, 1024, 64);
    let (a4, b4) = (nibbles(m * k, 0), nibbles(n * k, 1));
    let codes = |values: &[Int4]| values.iter().map(|code| code.get()).collect::<Vec<i8>>();
    let (a8, b8) = (codes(&a4), codes(&b4));
    let halves =
        |values: &[i8]| values.iter().map(|code| f16::from_f32(f32::from(*code))).collect::<Vec<_>>();
    let (a16, b16) = (halves(&a8), halves(&b8));
    let sums: Vec<i32> = reference::fast_i8(&a8, &b8, Shape::new(m as u32, k as u32, n as u32));
    assert!(sums.iter().any(|sum| *sum > 32767) && sums.contains(&0), "saturation and zeros");
    let ways = [
        (DriverKind::Rknpu, SubmitMode::Blocking),
        (DriverKind::Rknpu, SubmitMode::Polled),
        (DriverKind::Rknpu, SubmitMode::Fenced),
        (DriverKind::Rocket, SubmitMode::Auto),
    ];
    for (kind, submit) in ways {
        let Way { name, driver, .. } = way(kind, RKNPU[2], 3, submit, CompletionMode::Seed);
        let product = |operands: Operands<'_>| driver.product(m, k, n, &operands).unwrap();
        assert_eq!(product(Operands::Int8 { a: &a8, b: &b8 }), Values::I32(sums.clone()), "{name}");
        let Values::I32(int4) = product(Operands::Int4 { a: &a4, b: &b4 }) else { panic!("{name}") };
        assert_eq!(int4, sums.iter().map(|sum| (*sum).clamp(-32768, 32767)).collect::<Vec<_>>(), "{name}");
        let Values::F32(floats) = product(Operands::Fp16 { a: &a16, b: &b16 }) else { panic!("{name}") };
        assert_eq!(floats, sums.iter().map(|sum| *sum as f32).collect::<Vec<_>>(), "{name}");
        let Values::F16(halves) = product(Operands::Fp16ToFp16 { a: &a16, b: &b16 }) else {
            panic!("{name}")
        };
        assert_eq!(halves, sums.iter().map(|sum| f16::from_f32(*sum as f32)).collect::<Vec<_>>(), "{name}");
        let by = Requantise { multiplier: 1, shift: 3, offset: 0 };
        let Values::I8(bytes) = product(Operands::Int8ToInt8 { a: &a8, b: &b8, by }) else {
            panic!("{name}")
        };
        assert_eq!(bytes, sums.iter().map(|sum| by.apply(i64::from(*sum))).collect::<Vec<_>>(), "{name}");
        let events = driver.device().event_counts();
        assert_eq!(events.recoveries(), 0, "{name}: {events}");
    }
}
