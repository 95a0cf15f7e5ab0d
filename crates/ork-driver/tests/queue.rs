// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues of products: batched, ordered, and right on every kernel.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use half::f16;
use ork_device::{Board, Device, DeviceOptions, DriverKind, EmuOptions, SubmitMode};
use ork_driver::{CompletionMode, Driver, DriverError, DriverOptions, Queue, VerifyMode, Weight};
use ork_layout::{Format, Int4};
use ork_testkit::{Case, Shape, reference};

fn driver(change: impl FnOnce(&mut DeviceOptions, &mut DriverOptions)) -> (Driver, Board) {
    let board = Board::new(&EmuOptions::default());
    let (mut device, mut options) = (DeviceOptions::default(), DriverOptions::default());
    change(&mut device, &mut options);
    (Driver::new(Device::on_board(&board, &device).unwrap(), options).unwrap(), board)
}

struct Int8 {
    case: Case,
    weight: Weight,
    features: Vec<i8>,
    want: Vec<i32>,
    got: Vec<i32>,
}

fn int8(driver: &Driver, m: u32, k: u32, n: u32, seed: u64) -> Int8 {
    let case = Case::new(Shape::new(m, k, n), seed);
    let (weights, features) = (case.weights(), case.features());
    let width = k as usize;
    let rows = |row: usize, out: &mut [i8]| out.copy_from_slice(&weights[row * width..][..width]);
    let weight = driver.load_codes("w", width, n as usize, &rows).unwrap();
    let want = reference::fast_i8(&features, &weights, case.shape);
    Int8 { got: vec![i32::MIN; want.len()], case, weight, features, want }
}

impl Int8 {
    fn add<'a>(&'a mut self, queue: &mut Queue<'a>) {
        let m = self.case.shape.m as usize;
        queue.int8(&self.weight, m, &self.features, &mut self.got, &[]);
    }

    fn check(&self) {
        assert_eq!(self.got, self.want, "{}", self.case);
    }
}

/// Small products of many shapes, as the experts and the projections of a model are.
const SHAPES: [(u32, u32, u32); 8] = [
    (1, 512, 256),
    (1, 512, 64),
    (3, 96, 33),
    (1, 2048, 160),
    (7, 1024, 96),
    (1, 32, 32),
    (2, 4096, 64),
    (1, 512, 1024),
];

#[test]
fn eight_int8_products_are_one_chain_on_each_core() {
    for (kernel, submit, completion) in [
        (DriverKind::Rknpu, SubmitMode::Auto, CompletionMode::Auto),
        (DriverKind::Rknpu, SubmitMode::Polled, CompletionMode::Auto),
        (DriverKind::Rknpu, SubmitMode::Fenced, CompletionMode::Seed),
        (DriverKind::Rocket, SubmitMode::Auto, CompletionMode::Auto),
    ] {
        for cores in 1..=3 {
            let (driver, board) = driver(|device, options| {
                (device.emulated_driver, device.submit, device.cores) = (kernel, submit, cores);
                options.completion = completion;
            });
            let mut products: Vec<_> =
                SHAPES.iter().zip(0..).map(|(&(m, k, n), seed)| int8(&driver, m, k, n, seed)).collect();
            for round in 0..2 {
                let before = driver.device().counters().submits();
                let mut queue = Queue::new();
                for product in &mut products {
                    product.got.fill(i32::MIN);
                    product.add(&mut queue);
                }
                let report = driver.run_queue(queue).unwrap();
                products.iter().for_each(Int8::check);
                assert_eq!((&report.batches[..], report.resets), (&[8][..], 0), "{kernel:?} {submit:?}");
                let submits = driver.device().counters().submits() - before;
                assert!(submits <= u64::from(cores), "{submits} submits on {cores} cores, round {round}");
            }
            assert_eq!(driver.device().event_counts().recoveries(), 0);
            drop((products, driver));
            support::assert_nothing_lives(&board);
        }
    }
}

#[test]
fn precisions_are_grouped_and_resets_counted() {
    let (driver, _) = driver(|_, _| {});
    let mut eights: Vec<_> = (0..4).map(|seed| int8(&driver, 1, 128, 64, seed)).collect();
    let nibbles = |seed: usize, count: usize| -> Vec<Int4> {
        (0..count).map(|index| Int4::new(((index * 7 + seed * 3) % 15) as i8 - 7).unwrap()).collect()
    };
    let b4 = nibbles(1, 64 * 64);
    let w4 = driver
        .load_elements::<Int4>("w4", Format::INT4_INT16, 64, 64, &|row, out| {
            out.copy_from_slice(&b4[row * 64..][..64])
        })
        .unwrap();
    let a4: Vec<Vec<Int4>> = (0..4).map(|seed| nibbles(seed, 64)).collect();
    let mut out4 = vec![vec![0; 64]; 4];
    let halves = |seed: usize, count: usize| -> Vec<f16> {
        (0..count).map(|index| f16::from_f32(((index * 5 + seed) % 9) as f32 - 4.0)).collect()
    };
    let b16 = halves(2, 64 * 64);
    let w16 = driver
        .load_elements::<f16>("w16", Format::FP16_FP32, 64, 64, &|row, out| {
            out.copy_from_slice(&b16[row * 64..][..64])
        })
        .unwrap();
    let a16 = halves(7, 64);
    let mut out16 = vec![0.0; 64];

    let mut queue = Queue::new();
    for ((eight, a), out) in eights.iter_mut().zip(&a4).zip(&mut out4) {
        eight.add(&mut queue);
        queue.int4(&w4, 1, a, out, &[]);
    }
    queue.fp16(&w16, 1, &a16, &mut out16, &[]);
    assert_eq!(queue.len(), 9);
    let report = driver.run_queue(queue).unwrap();
    // In the order given it would be eight.
    assert_eq!(report.resets, 1, "{report:?}");
    assert_eq!(report.batches, [4, 1, 1, 1, 1, 1]);
    eights.iter().for_each(Int8::check);
    for (a, out) in a4.iter().zip(&out4) {
        for (n, value) in out.iter().enumerate() {
            let sum: i32 = (0..64).map(|k| i32::from(a[k].get()) * i32::from(b4[n * 64 + k].get())).sum();
            assert_eq!(*value, sum);
        }
    }
    for (n, value) in out16.iter().enumerate() {
        let sum: f32 = (0..64).map(|k| a16[k].to_f32() * b16[n * 64 + k].to_f32()).sum();
        assert_eq!(*value, sum);
    }
}

#[test]
fn what_must_come_before_comes_before_and_breaks_the_batch() {
    let (driver, _) = driver(|_, _| {});
    let mut products: Vec<_> = (0..3).map(|seed| int8(&driver, 1, 64, 64, seed)).collect();
    let [one, two, three] = &mut products[..] else { unreachable!() };
    let mut queue = Queue::new();
    let first = queue.int8(&one.weight, 1, &one.features, &mut one.got, &[]);
    let second = queue.int8(&two.weight, 1, &two.features, &mut two.got, &[first]);
    let third = queue.int8(&three.weight, 1, &three.features, &mut three.got, &[]);
    let report = driver.run_queue(queue).unwrap();
    assert_eq!((report.order, report.batches), (vec![first, second, third], vec![1, 2]));
    products.iter().for_each(Int8::check);
}

#[test]
fn streamed_weights_and_other_address_spaces_break_batches() {
    let (driver, board) = driver(|device, options| {
        device.domain_bytes_max = 3 * 64 * 64;
        device.domains = 2;
        options.residency.window_bytes = 1 << 20;
        options.residency.prefetch = false;
    });
    let mut products: Vec<_> = (0..9).map(|seed| int8(&driver, 2, 64, 64, seed)).collect();
    let streamed = products.iter().filter(|product| product.weight.is_streamed()).count();
    assert_eq!(streamed, 3);
    let mut queue = Queue::new();
    products.iter_mut().for_each(|product| product.add(&mut queue));
    let report = driver.run_queue(queue).unwrap();
    assert_eq!(report.batches, [3, 3, 1, 1, 1]);
    products.iter().for_each(Int8::check);
    drop((products, driver));
    support::assert_nothing_lives(&board);
}

#[test]
fn a_queue_is_checked_before_anything_runs_and_may_be_empty() {
    let (driver, _) = driver(|_, _| {});
    assert_eq!(driver.run_queue(Queue::new()).unwrap(), ork_driver::QueueReport::default());
    let mut good = int8(&driver, 1, 64, 64, 1);
    let bad = int8(&driver, 1, 64, 64, 2);
    let mut short = vec![0; 63];
    let mut queue = Queue::new();
    good.add(&mut queue);
    queue.int8(&bad.weight, 1, &bad.features, &mut short, &[]);
    let error = driver.run_queue(queue).unwrap_err();
    assert!(matches!(error, DriverError::Shape { found: 63, needed: 64, .. }), "{error:?}");
    assert_eq!(driver.device().counters().submits(), 0);
}

#[test]
fn a_long_queue_fills_chains_to_their_limits() {
    let (driver, _) = driver(|_, options| {
        options.plan.scratch_bytes_max = 1 << 20;
        options.verify = VerifyMode::Product;
    });
    let mut products: Vec<_> = (0..12).map(|seed| int8(&driver, 64, 1024, 512, seed)).collect();
    let mut queue = Queue::new();
    products.iter_mut().for_each(|product| product.add(&mut queue));
    let report = driver.run_queue(queue).unwrap();
    assert!(report.batches.len() > 1 && report.batches.iter().sum::<usize>() == 12, "{report:?}");
    products.iter().for_each(Int8::check);
}
