// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that are written once: the same results, less work for each call, and buffers of the caller in place.

use crate::support;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use half::f16;
use ork_device::{
    Board, Device, DeviceOptions, DomainId, DriverKind, EmuOptions, EventKind, FaultPlan, Purpose,
    RecoveryMode, SubmitMode,
};
use ork_driver::{Driver, DriverError, DriverOptions, InPlace, Precompiled, VerifyMode, Weight};
use ork_layout::Format;
use ork_testkit::{Case, Shape, reference};

fn driver(change: impl FnOnce(&mut DeviceOptions, &mut DriverOptions)) -> (Driver, Board) {
    let board = Board::new(&EmuOptions::default());
    let (mut device, mut options) = (DeviceOptions::default(), DriverOptions::default());
    change(&mut device, &mut options);
    (Driver::new(Device::on_board(&board, &device).unwrap(), options).unwrap(), board)
}

fn load(driver: &Driver, case: &Case) -> Weight {
    let (weights, width) = (case.weights(), case.shape.k as usize);
    let rows = |row: usize, out: &mut [i8]| out.copy_from_slice(&weights[row * width..][..width]);
    driver.load_codes("w", width, case.shape.n as usize, &rows).unwrap()
}

fn want(case: &Case) -> Vec<i32> {
    reference::fast_i8(&case.features(), &case.weights(), case.shape)
}

fn run(driver: &Driver, product: &mut Precompiled, weight: &Weight, case: &Case) -> Vec<i32> {
    let mut got = vec![i32::MIN; case.shape.m as usize * case.shape.n as usize];
    driver.run_precompiled_codes(product, weight, &case.features(), &mut got).unwrap();
    got
}

#[test]
fn programs_are_written_once_on_every_kernel() {
    for (kernel, submit) in [
        (DriverKind::Rknpu, SubmitMode::Auto),
        (DriverKind::Rknpu, SubmitMode::Polled),
        (DriverKind::Rocket, SubmitMode::Auto),
    ] {
        let (driver, board) = driver(|device, _| (device.emulated_driver, device.submit) = (kernel, submit));
        for (m, k, n) in [(1, 512, 256), (1, 2048, 2048), (5, 96, 33), (1, 8192, 64)] {
            let first = Case::new(Shape::new(m, k, n), 1);
            let weight = load(&driver, &first);
            let mut product = driver.precompile(&weight, m as usize).unwrap();
            assert_eq!(product.m(), m as usize);
            for seed in 1..5 {
                // Other rows each time, the same weight.
                let features = Case::new(first.shape, seed).features();
                let mut got = vec![i32::MIN; (m * n) as usize];
                driver.run_precompiled_codes(&mut product, &weight, &features, &mut got).unwrap();
                assert_eq!(
                    got,
                    reference::fast_i8(&features, &first.weights(), first.shape),
                    "{kernel:?} {m}x{k}x{n}"
                );
            }
            assert_eq!(product.patched_words(), 0);
        }
        assert_eq!(driver.device().event_counts().recoveries(), 0);
        drop(driver);
        support::assert_nothing_lives(&board);
    }
}

#[test]
fn a_call_flushes_its_features_and_nothing_else() {
    let (driver, _) = driver(|_, _| {});
    let case = Case::new(Shape::new(1, 2048, 2048), 1);
    let weight = load(&driver, &case);
    let mut product = driver.precompile(&weight, 1).unwrap();
    assert_eq!(run(&driver, &mut product, &weight, &case), want(&case));
    let before = driver.device().counters();
    run(&driver, &mut product, &weight, &case);
    let after = driver.device().counters();
    assert_eq!((after.flushes - before.flushes, after.bytes_flushed - before.bytes_flushed), (1, 2048));
    assert_eq!(after.bytes_invalidated - before.bytes_invalidated, 2048 * 4);
    // What a product without kept programs flushes besides: one set of programs for each core, and their descriptors.
    let mut got = vec![0; 2048];
    driver.matmul_codes(&weight, 1, &case.features(), &mut got).unwrap();
    let fresh = driver.device().counters();
    assert!(fresh.flushes - after.flushes >= 4, "{}", fresh.flushes - after.flushes);
}

#[test]
fn another_weight_of_the_shape_only_changes_addresses() {
    let (driver, _) = driver(|_, _| {});
    let cases: Vec<_> = (0..3).map(|seed| Case::new(Shape::new(2, 512, 320), seed)).collect();
    let weights: Vec<_> = cases.iter().map(|case| load(&driver, case)).collect();
    let mut product = driver.precompile(&weights[0], 2).unwrap();
    for round in 0..2 {
        for (case, weight) in cases.iter().zip(&weights) {
            assert_eq!(run(&driver, &mut product, weight, case), want(case), "round {round}");
        }
    }
    let programs = driver.counters().programs / 6;
    // One word of each program for each of the five changes of the weight.
    assert_eq!(product.patched_words(), 5 * programs);
    let other = load(&driver, &Case::new(Shape::new(2, 512, 352), 1));
    let mut got = vec![0; 2 * 352];
    let features = vec![0; 2 * 512];
    let error = driver.run_precompiled_codes(&mut product, &other, &features, &mut got).unwrap_err();
    assert!(error.to_string().contains("does not fit the programs"), "{error}");
}

#[test]
fn streamed_weights_are_found_where_they_are() {
    let (driver, board) = driver(|_, options| {
        options.residency.stream = ork_driver::StreamMode::All;
        options.residency.window_bytes = 2 * 512 * 256;
        options.residency.prefetch = false;
    });
    let cases: Vec<_> = (0..4).map(|seed| Case::new(Shape::new(1, 512, 256), seed)).collect();
    let weights: Vec<_> = cases.iter().map(|case| load(&driver, case)).collect();
    let mut product = driver.precompile(&weights[0], 1).unwrap();
    for _ in 0..3 {
        for (case, weight) in cases.iter().zip(&weights) {
            assert_eq!(run(&driver, &mut product, weight, case), want(case));
        }
    }
    assert!(product.patched_words() > 0);
    drop((weights, product, driver));
    support::assert_nothing_lives(&board);
}

#[test]
fn buffers_of_the_caller_are_used_in_place() {
    for kernel in [DriverKind::Rknpu, DriverKind::Rocket] {
        let (driver, _) = driver(|device, _| device.emulated_driver = kernel);
        let case = Case::new(Shape::new(3, 1024, 512), 4);
        let weight = load(&driver, &case);
        let mut product = driver.precompile(&weight, 3).unwrap();
        let device = driver.device();
        for seed in 0..3 {
            let rows = Case::new(case.shape, seed).features();
            // Three sets of buffers, each used once: the programs follow.
            let (a_bytes, c_bytes) = (product.features().bytes(), product.outputs().bytes());
            let mut features = device.alloc(Purpose::Data, a_bytes + 64).unwrap();
            let mut outputs = device.alloc(Purpose::Data, c_bytes).unwrap();
            for (row, codes) in rows.chunks_exact(1024).enumerate() {
                product.features().write_row(row as u32, codes, features.host_mut());
            }
            features.flush(0..a_bytes).unwrap();
            let before = device.counters();
            driver
                .run_in_place(&mut product, &weight, InPlace { features: &features, outputs: &mut outputs })
                .unwrap();
            let after = device.counters();
            assert_eq!(
                after.buffers_allocated - before.buffers_allocated,
                u64::from(seed == 0 && kernel == DriverKind::Rknpu) * 3
            );
            let want = reference::fast_i8(&rows, &case.weights(), case.shape);
            let layout = product.outputs();
            for (m, row) in want.chunks_exact(512).enumerate() {
                for (n, value) in row.iter().enumerate() {
                    let at = layout.offset(m as u32, n as u32, 0) as usize;
                    let got = i32::from_le_bytes(outputs.host()[at..at + 4].try_into().unwrap());
                    assert_eq!(got, *value, "{kernel:?} row {m} column {n}");
                }
            }
        }
        assert!(product.patched_words() > 0);
    }
}

#[test]
fn a_dma_buf_of_the_caller_is_used_in_place() {
    let (driver, board) = driver(|_, _| {});
    let case = Case::new(Shape::new(1, 512, 128), 4);
    let weight = load(&driver, &case);
    let mut product = driver.precompile(&weight, 1).unwrap();
    let device = driver.device();
    let heap = |bytes| {
        let fd = device.allocate_heap(bytes).unwrap().into_fd();
        device.import(DomainId(0), std::os::fd::AsFd::as_fd(&fd)).unwrap()
    };
    let (mut features, mut outputs) = (heap(product.features().bytes()), heap(product.outputs().bytes()));
    product.features().write_row(0, &case.features(), features.host_mut());
    features.flush(0..features.len()).unwrap();
    driver
        .run_in_place(&mut product, &weight, InPlace { features: &features, outputs: &mut outputs })
        .unwrap();
    for (n, value) in want(&case).iter().enumerate() {
        let at = product.outputs().offset(0, n as u32, 0) as usize;
        assert_eq!(i32::from_le_bytes(outputs.host()[at..at + 4].try_into().unwrap()), *value);
    }
    drop((features, outputs, product, weight, driver));
    support::assert_nothing_lives(&board);
}

#[test]
fn buffers_that_do_not_fit_are_refused() {
    let (driver, _) = driver(|_, _| {});
    let case = Case::new(Shape::new(1, 512, 128), 4);
    let weight = load(&driver, &case);
    let mut product = driver.precompile(&weight, 1).unwrap();
    let device = driver.device();
    let good = device.alloc(Purpose::Data, 4096).unwrap();
    let mut short = device.alloc(Purpose::Data, 128 * 4 - 1).unwrap();
    let mut elsewhere = device.alloc_in(DomainId(1), Purpose::Data, 4096).unwrap();
    for outputs in [&mut short, &mut elsewhere] {
        let error =
            driver.run_in_place(&mut product, &weight, InPlace { features: &good, outputs }).unwrap_err();
        assert!(matches!(error, DriverError::Misfit { .. }), "{error:?}");
        assert!(error.to_string().contains("are needed"), "{error}");
    }
    let long = driver.precompile(&weight, 1 << 20).unwrap_err();
    assert!(matches!(long, DriverError::NotOnePass { .. }), "{long:?}");
}

#[test]
fn floats_run_twice_when_they_are_cold() {
    let (driver, _) = driver(|_, _| {});
    let values = |seed: usize, count: usize| -> Vec<f16> {
        (0..count).map(|index| f16::from_f32(((index * 5 + seed) % 9) as f32 - 4.0)).collect()
    };
    let b = values(2, 64 * 64);
    let rows = |row: usize, out: &mut [f16]| out.copy_from_slice(&b[row * 64..][..64]);
    let weight = driver.load_elements::<f16>("w", Format::FP16_FP32, 64, 64, &rows).unwrap();
    let mut product = driver.precompile(&weight, 1).unwrap();
    let a = values(7, 64);
    let mut submits = Vec::new();
    for _ in 0..2 {
        let before = driver.device().counters().submits();
        let mut got = vec![0_f32; 64];
        driver
            .run_precompiled(&mut product, &weight, &a, &mut got, |layout, surfaces, row, out| {
                for (n, out) in (0..).zip(out) {
                    let at = layout.offset(row, n, 0) as usize;
                    *out = f32::from_le_bytes(surfaces[at..at + 4].try_into().unwrap());
                }
            })
            .unwrap();
        for (n, value) in got.iter().enumerate() {
            let sum: f32 = (0..64).map(|k| a[k].to_f32() * b[n * 64 + k].to_f32()).sum();
            assert_eq!(*value, sum);
        }
        submits.push(driver.device().counters().submits() - before);
    }
    assert_eq!(submits[0], 2 * submits[1], "{submits:?}");
}

#[test]
fn a_call_that_is_refused_leaves_floats_cold() {
    let (driver, _) = driver(|device, _| device.cores = 1);
    let ones = |_: usize, out: &mut [f16]| out.fill(f16::ONE);
    let weight = driver.load_elements::<f16>("w", Format::FP16_FP32, 64, 64, &ones).unwrap();
    let mut product = driver.precompile(&weight, 1).unwrap();
    let device = driver.device();
    let mut features = device.alloc(Purpose::Data, product.features().bytes()).unwrap();
    product.features().write_rows(&[f16::ONE; 64], features.host_mut());
    features.flush(0..features.len()).unwrap();
    for len in [16, product.outputs().bytes()] {
        let mut outputs = device.alloc(Purpose::Data, len).unwrap();
        let buffers = InPlace { features: &features, outputs: &mut outputs };
        match driver.run_in_place(&mut product, &weight, buffers) {
            Ok(()) => assert_eq!(device.counters().submits(), 2, "a cold pass, and one that counts"),
            Err(error) => assert!(matches!(error, DriverError::Misfit { .. }) && len == 16, "{error:?}"),
        }
    }
    assert_eq!((device.counters().submits(), driver.counters().rewarmed), (2, 1));
}

/// Everybody takes the NPU first, and then the slot of a streamed weight.
#[test]
fn threads_with_one_streamed_weight_do_not_wait_for_each_other() {
    const WATCHDOG: Duration = Duration::from_secs(120);
    let (driver, _) = driver(|_, options| {
        options.residency.stream = ork_driver::StreamMode::All;
        options.residency.window_bytes = 512 * 256;
    });
    let case = Case::new(Shape::new(1, 512, 256), 1);
    let shared = Arc::new((load(&driver, &case), driver));
    let (ended, watch) = channel();
    for kept in [true, false] {
        let (shared, ended, case) = (Arc::clone(&shared), ended.clone(), case.clone());
        std::thread::spawn(move || {
            let (weight, driver) = &*shared;
            let mut product = driver.precompile(weight, 1).unwrap();
            for _ in 0..200 {
                if kept {
                    assert_eq!(run(driver, &mut product, weight, &case), want(&case));
                } else {
                    let mut got = vec![i32::MIN; 256];
                    driver.matmul_codes(weight, 1, &case.features(), &mut got).unwrap();
                    assert_eq!(got, want(&case));
                }
            }
            ended.send(()).unwrap();
        });
    }
    for _ in 0..2 {
        watch.recv_timeout(WATCHDOG).expect("each waits for what the other has");
    }
}

#[test]
fn the_check_watches_over_programs_that_are_kept() {
    let stale = FaultPlan { seed: 3, stale_line: "one-in:7".parse().unwrap(), ..FaultPlan::default() };
    let board = Board::new(&EmuOptions { faults: stale, ..EmuOptions::default() });
    let device = DeviceOptions { recovery: RecoveryMode::Allow, ..DeviceOptions::default() };
    let options = DriverOptions { verify: VerifyMode::Product, ..DriverOptions::default() };
    let driver = Driver::new(Device::on_board(&board, &device).unwrap(), options).unwrap();
    let (mut right, mut given_up) = (0, 0);
    for round in 0..20 {
        let cases: Vec<Case> =
            (0..10).map(|seed| Case::new(Shape::new(2, 96, 64), 10 * round + seed)).collect();
        let weight = load(&driver, &cases[0]);
        let mut product = driver.precompile(&weight, 2).unwrap();
        let (k, n) = (96, 64);
        for case in &cases {
            let (features, mut got) = (case.features(), vec![i32::MIN; 2 * n]);
            let want = reference::fast_i8(&features, &cases[0].weights(), Shape::new(2, k, n as u32));
            match driver.run_precompiled_codes(&mut product, &weight, &features, &mut got) {
                Ok(()) => {
                    assert_eq!(got, want, "{case}");
                    right += 1;
                }
                // Weights or programs never reached the memory, and must be made again. Half a program is objected to.
                Err(DriverError::WrongProduct { attempt: 3.., .. } | DriverError::Objection { .. }) => {
                    given_up += 1;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    assert!(right > 50 && right + given_up == 200, "{right} right, {given_up} given up");
    assert!(driver.device().event_counts().of(EventKind::WrongProduct) > 5);
}

#[test]
fn kernels_without_fences_give_the_same_from_one_thread() {
    let board = Board::new(&EmuOptions { fences: false, ..EmuOptions::default() });
    let device = Device::on_board(&board, &DeviceOptions::default()).unwrap();
    let driver = Driver::new(device, DriverOptions::default()).unwrap();
    let case = Case::new(Shape::new(1, 512, 320), 5);
    let weight = load(&driver, &case);
    let mut product = driver.precompile(&weight, 1).unwrap();
    for round in 0..4 {
        let before = driver.device().counters().jobs_given;
        let rows = Case::new(case.shape, 100 + round);
        let mut got = vec![i32::MIN; 320];
        driver.run_precompiled_codes(&mut product, &weight, &rows.features(), &mut got).unwrap();
        assert_eq!(got, reference::fast_i8(&rows.features(), &case.weights(), case.shape), "round {round}");
        // The first tells that there are none.
        let given = driver.device().counters().jobs_given - before;
        assert_eq!(given, if round == 0 { 4 } else { 3 });
        assert!(driver.device().lacks_fences());
    }
    assert_eq!(driver.device().event_counts().recoveries(), 0);
}
