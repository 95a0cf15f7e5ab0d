// SPDX-License-Identifier: MIT OR Apache-2.0
//! Products of changing precision: resets where the hardware needs them, and nowhere else.

use crate::support;
use half::f16;
use ork_device::{Board, Device, DeviceOptions, EmuOptions, EventKind, RecoveryMode};
use ork_driver::{
    CompletionMode, Driver, DriverError, DriverOptions, MatmulGroup, Operands, Queue, Requantise, Values,
    Work,
};
use ork_emu::{FaultPlan, When};
use ork_layout::{Format, Int4};

const M: usize = 3;
const K: usize = 64;
const N: usize = 70;

/// All operands are 1, so every result is K.
fn int8(driver: &Driver) -> Result<(), DriverError> {
    let ones = [1i8; N * K];
    let values = driver.product(M, K, N, &Operands::Int8 { a: &ones[..M * K], b: &ones })?;
    assert_eq!(values, Values::I32(vec![K as i32; M * N]));
    Ok(())
}

fn int4(driver: &Driver) -> Result<(), DriverError> {
    let ones = [Int4::new(1).unwrap(); N * K];
    let values = driver.product(M, K, N, &Operands::Int4 { a: &ones[..M * K], b: &ones })?;
    assert_eq!(values, Values::I32(vec![K as i32; M * N]));
    Ok(())
}

fn fp16(driver: &Driver) -> Result<(), DriverError> {
    let ones = [f16::ONE; N * K];
    let values = driver.product(M, K, N, &Operands::Fp16 { a: &ones[..M * K], b: &ones })?;
    assert_eq!(values, Values::F32(vec![K as f32; M * N]));
    Ok(())
}

/// Resets and repeated passes so far.
fn changes(driver: &Driver) -> (u64, u64) {
    let counters = driver.counters();
    (counters.resets, counters.rewarmed)
}

#[test]
fn resets_happen_where_the_datapath_changes() {
    let (driver, _board) = support::driver(3);
    for (product, expected) in [
        (int8 as fn(&Driver) -> _, (0, 0)),
        (int8, (0, 0)),
        (fp16, (0, 1)),
        (int8, (0, 1)),
        (fp16, (0, 1)),
        (int4, (1, 1)),
        (int4, (1, 1)),
        (int8, (2, 1)),
        (fp16, (2, 2)),
        (int4, (3, 2)),
        (fp16, (3, 3)),
        (int8, (4, 3)),
    ] {
        product(&driver).unwrap();
        assert_eq!(changes(&driver), expected);
    }
    assert!(
        driver.counters().to_string().contains("4 resets and 3 repeated passes"),
        "{}",
        driver.counters()
    );
}

#[test]
fn a_failed_job_leaves_the_driver_working_and_wary() {
    let emulated = EmuOptions {
        faults: FaultPlan { hang: When::Nth(2), ..FaultPlan::default() },
        ..EmuOptions::default()
    };
    let board = Board::new(&emulated);
    let options = DeviceOptions { cores: 1, timeout_ms: 200, ..DeviceOptions::default() };
    let driver = Driver::new(Device::on_board(&board, &options).unwrap(), DriverOptions::default()).unwrap();
    int4(&driver).unwrap();
    let error = int4(&driver).unwrap_err();
    assert!(matches!(error, DriverError::Submit { .. }), "{error:?}");
    // The kernel may have reset the NPU after the failure or not: int8 does not trust it.
    int8(&driver).unwrap();
    assert_eq!(changes(&driver), (2, 0));
    int8(&driver).unwrap();
    int4(&driver).unwrap();
    assert_eq!(changes(&driver), (3, 0));
}

/// isa.md §13 row 24: a fold right behind a reset hangs. 35 rows are folded as 36, which shows in the bytes flushed.
#[test]
fn the_fold_waits_for_another_product_after_a_reset() {
    let (driver, _board) = support::driver(1);
    let (m, k, n) = (35, 3584, 1216);
    let ones = vec![1i8; n * k];
    let weight = driver.load_codes("w", k, n, &|_, out| out.fill(1)).unwrap();
    let flushed = || {
        let (before, programs) = (driver.device().counters(), driver.counters().programs);
        let mut out = vec![0; m * n];
        driver.matmul_codes(&weight, m, &ones[..m * k], &mut out).unwrap();
        assert_eq!(out, vec![k as i32; m * n]);
        let after = driver.device().counters();
        // Besides features and programs the descriptors, when they are other ones than before.
        let descriptors = if after.flushes - before.flushes == 3 { 40 } else { 0 };
        after.bytes_flushed - before.bytes_flushed - descriptors * (driver.counters().programs - programs)
    };
    let (first, second) = (flushed(), flushed());
    assert_eq!(first, second);
    int4(&driver).unwrap();
    let behind_reset = flushed();
    assert_eq!(behind_reset + k as u64, first, "rows, without the padding of the fold");
    assert_eq!(flushed(), first, "and the fold again");

    // A product that fails before anything of it runs stands for nothing.
    int4(&driver).unwrap();
    let (x, mut out) = (vec![f32::NAN; m * k], vec![0.0; m * n]);
    let mut group = MatmulGroup { m, x: &x, parts: vec![(&weight, &mut out[..])] };
    let refused = driver.matmul(&mut group).unwrap_err();
    assert!(matches!(refused, DriverError::Activation { .. }), "{refused:?}");
    assert_eq!(flushed(), behind_reset);
    assert_eq!(flushed(), first);
}

/// A driver whose `nth` job hangs and is submitted again.
fn recovering(hang: When, lost_interrupt: When) -> Driver {
    let faults = FaultPlan { hang, lost_interrupt, ..FaultPlan::default() };
    let board = Board::new(&EmuOptions { faults, ..EmuOptions::default() });
    let device = DeviceOptions {
        cores: 1,
        timeout_ms: 200,
        recovery: RecoveryMode::Allow,
        ..DeviceOptions::default()
    };
    let options = DriverOptions { completion: CompletionMode::Seed, ..DriverOptions::default() };
    Driver::new(Device::on_board(&board, &device).unwrap(), options).unwrap()
}

/// uapi.md A.10: the first program behind a reset may give stale output, and the kernel resets the NPU at a time-out.
#[test]
fn a_reset_under_a_pass_leaves_floats_cold() {
    // The first pass of floats runs twice. Whichever of the two is lost, a clean one follows it.
    for nth in [1, 2] {
        let driver = recovering(When::Nth(nth), When::Never);
        fp16(&driver).unwrap();
        assert_eq!(driver.device().event_counts().of(EventKind::TimedOut), 1);
        assert_eq!(changes(&driver), (0, nth), "lost job {nth}");
        assert_eq!(driver.device().counters().submits(), 1 + nth);
        fp16(&driver).unwrap();
        assert_eq!(changes(&driver), (0, nth), "warm");
    }

    // Whatever ran when the NPU was reset, floats run twice behind it.
    type Job = fn(&Driver);
    let products: [(&str, Job); 3] = [
        ("product", |driver| int8(driver).unwrap()),
        ("programs that are kept", |driver| {
            let weight = driver.load_codes("w", K, N, &|_, out| out.fill(1)).unwrap();
            let mut product = driver.precompile(&weight, M).unwrap();
            let mut out = vec![0; M * N];
            driver.run_precompiled_codes(&mut product, &weight, &[1; M * K], &mut out).unwrap();
            assert_eq!(out, [K as i32; M * N]);
        }),
        ("queue", |driver| {
            let weight = driver.load_codes("w", K, N, &|_, out| out.fill(1)).unwrap();
            let (a, mut first, mut second) = ([1; M * K], vec![0; M * N], vec![0; M * N]);
            let mut queue = Queue::new();
            queue.push(&weight, M, Work::Int8 { a: &a, out: &mut first }, &[]);
            queue.push(&weight, M, Work::Int8 { a: &a, out: &mut second }, &[]);
            assert_eq!(driver.run_queue(queue).unwrap().batches, [2]);
            assert_eq!((first, second), (vec![K as i32; M * N], vec![K as i32; M * N]));
        }),
    ];
    for (name, product) in products {
        let driver = recovering(When::Nth(3), When::Never);
        fp16(&driver).unwrap();
        product(&driver);
        assert_eq!(driver.device().event_counts().of(EventKind::TimedOut), 1, "{name}");
        assert_eq!(changes(&driver), (0, 1), "{name}");
        fp16(&driver).unwrap();
        assert_eq!(changes(&driver), (0, 2), "{name}");
    }
}

#[test]
fn floats_that_are_reset_every_time_are_an_error() {
    let driver = recovering(When::Never, When::Always);
    let error = fp16(&driver).unwrap_err();
    assert!(matches!(error, DriverError::ResetAgain { submits: 4, .. }), "{error:?}");
    assert!(error.to_string().contains("each of 4 submits of float programs"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("timeout_ms")));
    assert_eq!(driver.device().counters().submits(), 4);
    // Exact sums are complete, whenever the reset came.
    int8(&driver).unwrap();
}

#[test]
fn operands_that_do_not_fit_are_refused_with_numbers() {
    let (driver, board) = support::driver(3);
    let ones = [1i8; 4 * 32];
    let short = driver.product(2, 32, 3, &Operands::Int8 { a: &ones[..64], b: &ones[..64] }).unwrap_err();
    assert!(matches!(short, DriverError::Shape { what: "the weight", found: 64, needed: 96 }), "{short:?}");
    let short = driver.product(2, 32, 3, &Operands::Int8 { a: &ones[..63], b: &ones[..96] }).unwrap_err();
    assert!(matches!(short, DriverError::Shape { what: "the activation", .. }), "{short:?}");
    let empty = driver.product(2, 0, 3, &Operands::Int8 { a: &[], b: &[] }).unwrap_err();
    assert!(matches!(empty, DriverError::Layout { .. }), "{empty:?}");

    // Sums that the int16 datapath would saturate.
    let (a, b) = (vec![i16::MIN; 64], vec![i16::MAX; 64]);
    let refused = driver.product(1, 64, 1, &Operands::Int16Native { a: &a, b: &b }).unwrap_err();
    assert!(matches!(refused, DriverError::Int16Sum { k: 64, largest: 0x3FFF_8000 }), "{refused:?}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("bytes")));
    let exact = driver.product(1, 64, 1, &Operands::Int16 { a: &a, b: &b }).unwrap();
    assert_eq!(exact, Values::I64(vec![-64 * 0x3FFF_8000]));

    // A weight of one precision and elements of another.
    let halves = [f16::ONE; 32];
    let rows = |_: usize, out: &mut [f16]| out.copy_from_slice(&halves);
    let wrong = driver.load_elements("w", Format::BF16_FP32, 32, 16, &rows).unwrap_err();
    assert!(
        wrong.to_string().contains("weight w is for bf16xbf16->fp32, and was given fp16 elements"),
        "{wrong}"
    );
    drop(driver);
    support::assert_nothing_lives(&board);
}

#[test]
fn sums_beyond_32_bits_come_in_64() {
    let (driver, _board) = support::driver(3);
    let k = 140_000;
    let ones = vec![i8::MIN; 2 * k];
    let values = driver.product(1, k, 2, &Operands::Int8 { a: &ones[..k], b: &ones }).unwrap();
    assert_eq!(values, Values::I64(vec![(k as i64) << 14; 2]));
}

#[test]
fn what_the_host_rounds_is_what_the_npu_would_round() {
    let (driver, _board) = support::driver(3);
    let by = Requantise { multiplier: 77, shift: 14, offset: -3 };
    let finished = |driver: &Driver| driver.counters().host_finished;
    // The same sums: 4096 channels on the NPU, and 4128 with zeros behind them.
    let mut stream = ork_testkit::Stream::new(3);
    let (a, b) = (stream.i8s(2 * 4096), stream.i8s(33 * 4096));
    let pad = |rows: &[i8]| -> Vec<i8> {
        rows.chunks(4096).flat_map(|row| row.iter().copied().chain([0; 32])).collect()
    };
    let fused = driver.product(2, 4096, 33, &Operands::Int8ToInt8 { a: &a, b: &b, by }).unwrap();
    assert_eq!(finished(&driver), 0);
    let (a, b) = (pad(&a), pad(&b));
    let by_host = driver.product(2, 4128, 33, &Operands::Int8ToInt8 { a: &a, b: &b, by }).unwrap();
    assert_eq!(finished(&driver), 1);
    assert_eq!(fused, by_host);
}
