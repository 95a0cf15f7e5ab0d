// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues of products: batched, ordered, and right on every kernel.

use crate::support;
use half::{bf16, f16};
use ork_device::{Board, Device, DeviceOptions, DriverKind, EmuOptions, SubmitMode};
use ork_driver::{
    CompletionMode, Driver, DriverError, DriverOptions, MatmulGroup, OpId, Queue, Requantise, VerifyMode,
    Weight, Work,
};
use ork_layout::{Element, Format, Int4};
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
        self.after(queue, &[]);
    }

    fn after<'a>(&'a mut self, queue: &mut Queue<'a>, before: &[OpId]) -> OpId {
        let work = Work::Int8 { a: &self.features, out: &mut self.got };
        queue.push(&self.weight, self.case.shape.m as usize, work, before)
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
                let modelled = driver.counters().modelled_ns;
                let mut queue = Queue::new();
                for product in &mut products {
                    product.got.fill(i32::MIN);
                    product.add(&mut queue);
                }
                let report = driver.run_queue(queue).unwrap();
                let in_one = driver.counters().modelled_ns - modelled;
                products.iter().for_each(Int8::check);
                assert_eq!((&report.batches[..], report.resets), (&[8][..], 0), "{kernel:?} {submit:?}");
                let submits = driver.device().counters().submits() - before;
                assert!(submits <= u64::from(cores), "{submits} submits on {cores} cores, round {round}");
                let modelled = driver.counters().modelled_ns;
                for product in &mut products {
                    let m = product.case.shape.m as usize;
                    driver.matmul_codes(&product.weight, m, &product.features, &mut product.got).unwrap();
                }
                assert_eq!(in_one, driver.counters().modelled_ns - modelled, "as if each was alone");
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
        queue.push(&w4, 1, Work::Int4 { a, out }, &[]);
    }
    queue.push(&w16, 1, Work::Fp16 { a: &a16, out: &mut out16 }, &[]);
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

/// Small integers, whose sums every precision holds exactly.
fn small(seed: usize, count: usize) -> Vec<i8> {
    (0..count).map(|index| ((index * 5 + index / 7 + seed * 3) % 7) as i8 - 3).collect()
}

#[test]
fn every_kind_of_work_in_one_queue() {
    const M: usize = 3;
    const K: usize = 512;
    const N: usize = 64;
    fn load<T: Element>(driver: &Driver, format: Format, of: impl Fn(i8) -> T) -> Weight {
        let b: Vec<T> = small(1, K * N).into_iter().map(of).collect();
        let rows = |row: usize, out: &mut [T]| out.copy_from_slice(&b[row * K..][..K]);
        driver.load_elements("w", format, K, N, &rows).unwrap()
    }
    fn rows<T>(of: impl Fn(i8) -> T) -> Vec<T> {
        small(2, M * K).into_iter().map(of).collect()
    }
    let sums: Vec<i32> = {
        let (a, b) = (small(2, M * K), small(1, N * K));
        let dot = |a: &[i8], b: &[i8]| a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum();
        a.chunks(K).flat_map(|a| b.chunks(K).map(move |b| dot(a, b))).collect()
    };
    let by = Requantise { multiplier: 3, shift: 5, offset: 0 };
    let nibble = |x: i8| Int4::new(x).unwrap();
    let half = |x: i8| f16::from_f32(x.into());
    let brain = |x: i8| bf16::from_f32(x.into());
    for (kernel, resets) in [(DriverKind::Rknpu, 1), (DriverKind::Rocket, 0)] {
        let (driver, _) = driver(|device, _| device.emulated_driver = kernel);
        let driver = &driver;
        let (w8, w8_8) = (load(driver, Format::INT8_INT32, |x| x), load(driver, Format::INT8_INT8, |x| x));
        let (w4, w16) =
            (load(driver, Format::INT4_INT16, nibble), load(driver, Format::INT16_INT32, i16::from));
        let (wf, wf_f) = (load(driver, Format::FP16_FP32, half), load(driver, Format::FP16_FP16, half));
        let (wb, wt) = (load(driver, Format::BF16_FP32, brain), load(driver, Format::TF32_FP32, f32::from));
        let (a8, a4, a16) = (rows(|x| x), rows(nibble), rows(i16::from));
        let (af, ab, at) = (rows(half), rows(brain), rows(f32::from));
        let mut o8 = vec![[0_i32; M * N]; 2];
        let (mut o8_8, mut o4, mut o16) = ([0_i8; M * N], [0_i32; M * N], [0_i64; M * N]);
        let (mut of, mut of_f) = ([0_f32; M * N], [f16::ZERO; M * N]);
        let (mut ob, mut ot) = ([0_f32; M * N], [0_f32; M * N]);

        let mut queue = Queue::new();
        let [first, last] = &mut o8[..] else { unreachable!() };
        queue.push(&w4, M, Work::Int4 { a: &a4, out: &mut o4 }, &[]);
        queue.push(&w8, M, Work::Int8 { a: &a8, out: first }, &[]);
        queue.push(&wf, M, Work::Fp16 { a: &af, out: &mut of }, &[]);
        queue.push(&w16, M, Work::Int16 { a: &a16, out: &mut o16 }, &[]);
        queue.push(&wb, M, Work::Bf16 { a: &ab, out: &mut ob }, &[]);
        queue.push(&w8_8, M, Work::Int8ToInt8 { a: &a8, by, out: &mut o8_8 }, &[]);
        queue.push(&wt, M, Work::Tf32 { a: &at, out: &mut ot }, &[]);
        queue.push(&wf_f, M, Work::Fp16ToFp16 { a: &af, out: &mut of_f }, &[]);
        queue.push(&w8, M, Work::Int8 { a: &a8, out: last }, &[]);
        let report = driver.run_queue(queue).unwrap();
        assert_eq!(report.resets, resets, "{kernel:?} {report:?}");

        let as_floats: Vec<f32> = sums.iter().map(|sum| *sum as f32).collect();
        o8.iter().for_each(|out| assert_eq!(out[..], sums));
        assert_eq!(o4[..], sums);
        assert_eq!(o16[..], sums.iter().map(|sum| i64::from(*sum)).collect::<Vec<_>>());
        let narrow = |sum: &i32| reference::requantise((*sum).into(), by.multiplier, by.shift, by.offset);
        assert_eq!(o8_8[..], sums.iter().map(narrow).collect::<Vec<_>>());
        for out in [of, ob, ot] {
            assert_eq!(out[..], as_floats);
        }
        assert_eq!(of_f[..], as_floats.iter().map(|sum| f16::from_f32(*sum)).collect::<Vec<_>>());
    }
}

#[test]
fn a_weight_of_another_format_is_refused() {
    let (driver, _) = driver(|_, _| {});
    let load = |format| driver.load_elements::<i8>("w", format, 512, 32, &|_, out| out.fill(1)).unwrap();
    let (exact, narrow) = (load(Format::INT8_INT32), load(Format::INT8_INT8));
    let (a, mut out) = (vec![1_i8; 512], vec![0_i32; 32]);
    let refused = |outcome: Result<(), DriverError>| {
        let error = outcome.unwrap_err();
        assert!(matches!(error, DriverError::Format { needed: Format::INT8_INT32, .. }), "{error:?}");
    };
    refused(driver.matmul_codes(&narrow, 1, &a, &mut out));
    let mut floats = [0.0; 32];
    let parts = vec![(&narrow, &mut floats[..])];
    refused(driver.matmul(&mut MatmulGroup { x: &[1.0; 512], m: 1, parts }));
    let mut precompiled = driver.precompile(&narrow, 1).unwrap();
    refused(driver.run_precompiled_codes(&mut precompiled, &narrow, &a, &mut out));
    let (mut fine, mut other) = (vec![0_i32; 32], vec![0_i32; 32]);
    let mut queue = Queue::new();
    queue.push(&exact, 1, Work::Int8 { a: &a, out: &mut fine }, &[]);
    queue.push(&narrow, 1, Work::Int8 { a: &a, out: &mut other }, &[]);
    refused(driver.run_queue(queue).map(|_| ()));
    assert_eq!(driver.device().counters().submits(), 0, "refused before anything ran");
}

#[test]
fn what_must_come_before_comes_before_and_breaks_the_batch() {
    let (driver, _) = driver(|_, _| {});
    let mut products: Vec<_> = (0..3).map(|seed| int8(&driver, 1, 64, 64, seed)).collect();
    let [one, two, three] = &mut products[..] else { unreachable!() };
    let mut queue = Queue::new();
    let first = one.after(&mut queue, &[]);
    let second = two.after(&mut queue, &[first]);
    let third = three.after(&mut queue, &[]);
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
    queue.push(&bad.weight, 1, Work::Int8 { a: &bad.features, out: &mut short }, &[]);
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
