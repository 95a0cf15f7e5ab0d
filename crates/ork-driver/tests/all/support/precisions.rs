// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random products of every precision against the plain loops of the test kit.
//!
//! Integer results are compared exactly. Floats are compared in two ways, in turn. With small integers as floats every
//! product and every partial sum is exact in fp32, in whatever order the hardware adds, so the result must be right to
//! the last bit; a misplaced element shows. With real numbers of many magnitudes the bound is [`FP32_SUMS`]: the error
//! model is *exact products, sums that round to fp32 once for each K slice, K slices added in fp64 and rounded once*.
//! The order of the sums is not part of it: silicon's is not known (isa-notes NS-22).

use half::{bf16, f16};
use ork_device::DriverKind;
use ork_driver::{DriverCounters, Operands, Requantise, Values};
use ork_isa::soc::RK3588;
use ork_layout::{Format, Int4};
use ork_plan::{PlanOptions, Product, weight_layout_with};
use ork_testkit::{Boundaries, Case, Shape, Stream, compare, reference};

use super::ways::{self, Given, Way};

/// Two roundings to fp32, each half a unit in the last place of 24 bits, and the sums in fp64: relative to the sum of the
/// magnitudes of the products.
const FP32_SUMS: f64 = 2.01 / (1u64 << 24) as f64;
/// One more rounding, to the 11 bits of fp16.
const FP16_RESULTS: f64 = FP32_SUMS + 1.0 / (1u64 << 11) as f64;

/// Sizes worth meeting.
pub(crate) fn boundaries(product: Product) -> Boundaries {
    match product {
        Product::Int8 => Boundaries::INT8,
        Product::Int8ToInt8 => Boundaries::INT8_INT8,
        Product::Int4 => Boundaries::INT4,
        Product::Int16 | Product::Int16Native => Boundaries::INT16,
        Product::Fp16 | Product::Fp16ToFp16 | Product::Bf16 => Boundaries::HALF,
        Product::Tf32 => Boundaries::TF32,
    }
}

/// Runs each case on one of the ways of each kernel, and fails with every case that differs. Which way is decided by the
/// case's seed, so that each way gets its share of every kind of case.
pub(crate) fn sweep(product: Product, cases: &[Case]) {
    let options = PlanOptions::default();
    let mut sized: Vec<(usize, &Case)> = cases.iter().enumerate().collect();
    sized.sort_by_key(|(_, case)| size_class(case.shape));
    let mut wrong = Vec::new();
    // The mainline driver maintains whole buffers, and a driver's buffers stay as large as its largest product: each
    // class has devices of its own, so that one large product does not slow thousands of small ones.
    for class in sized.chunk_by(|one, other| size_class(one.1.shape) == size_class(other.1.shape)) {
        let ways = ways::all(&options);
        for (index, case) in class {
            let pick = |ways: &Vec<Way>, draw: u64| (draw % ways.len() as u64) as usize;
            let (one, other) = (pick(&ways[0], case.seed), pick(&ways[1], case.seed >> 32));
            wrong.extend(check(product, case, *index, &options, &[&ways[0][one], &ways[1][other]]));
        }
        // By chance one of few gets less than half of its share.
        let fair = (class.len() / ways[0].len()) as u32;
        let least = if fair < 20 { 0 } else { fair / 2 };
        ways.into_iter().flatten().for_each(|way| way.close(least));
    }
    assert!(wrong.is_empty(), "{} of {} runs differ:\n{}", wrong.len(), 2 * cases.len(), wrong.join("\n"));
}

/// Of the larger of features and results, in elements: three bits for each step.
fn size_class(shape: Shape) -> u32 {
    let most = (u64::from(shape.m) * u64::from(shape.k.max(shape.n))).max(1);
    most.ilog2().saturating_sub(11) / 3
}

/// Runs all cases on one core and on three with plans of these options; returns what the driver with three cores did.
pub(crate) fn sweep_with(product: Product, cases: &[Case], options: &PlanOptions) -> DriverCounters {
    let ways = [1, 3].map(|cores| Way::new(DriverKind::Rknpu, cores, Given::Blocking, options));
    let mut wrong = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        wrong.extend(check(product, case, index, options, &ways.each_ref()));
    }
    assert!(wrong.is_empty(), "{} of {} runs differ:\n{}", wrong.len(), 2 * cases.len(), wrong.join("\n"));
    let counters = ways[1].driver().counters();
    ways.into_iter().for_each(|way| way.close(cases.len() as u32));
    counters
}

/// What differs from the reference, by way.
fn check(product: Product, case: &Case, index: usize, options: &PlanOptions, ways: &[&Way]) -> Vec<String> {
    let shape = case.shape;
    let size = (shape.m as usize, shape.k as usize, shape.n as usize);
    let (mut a, mut b) = (case.feature_stream(), case.weight_stream());
    let (a_len, b_len) = (shape.features_len(), shape.weights_len());
    let run = |operands: &Operands<'_>, judge: &dyn Fn(Values) -> Result<(), String>| {
        let mut wrong = Vec::new();
        for way in ways {
            let outcome = way.product(size, operands).map_err(|error| format!("{error:?}")).and_then(judge);
            if let Err(message) = outcome {
                wrong.push(format!("{product}, {}: {case}: {message}", way.name));
            }
        }
        wrong
    };
    match product {
        Product::Int8 => {
            let (a, b) = (a.i8s(a_len), b.i8s(b_len));
            let operands = Operands::Int8 { a: &a, b: &b };
            if shape.k > reference::K_MAX_I32 {
                let want = Values::I64(reference::fast_i8_i64(&a, &b, shape));
                run(&operands, &|got| exact(&got, &want, shape))
            } else {
                let want = Values::I32(reference::fast_i8(&a, &b, shape));
                run(&operands, &|got| exact(&got, &want, shape))
            }
        }
        Product::Int8ToInt8 => {
            let by = requantisation(&mut b, shape);
            let (a, b) = (a.i8s(a_len), b.i8s(b_len));
            let sums = reference::fast_i8_i64(&a, &b, shape);
            let narrow = |sum: &i64| reference::requantise(*sum, by.multiplier, by.shift, by.offset);
            let want = Values::I8(sums.iter().map(narrow).collect());
            let operands = Operands::Int8ToInt8 { a: &a, b: &b, by };
            run(&operands, &|got| exact(&got, &want, shape))
        }
        Product::Int4 => {
            let (mut a, b) = (a.i4s(a_len), b.i4s(b_len));
            let mut b = b;
            if index % 3 == 2 {
                // Sums of one sign, so that deep slices saturate.
                a.iter_mut().chain(&mut b).for_each(|code| *code = (*code).abs().min(7));
            }
            let layout = weight_layout_with(Format::INT4_INT16, shape.k, shape.n, &RK3588, options).unwrap();
            let lens: Vec<u32> = layout.slices().iter().map(|slice| slice.len).collect();
            let want = Values::I32(reference::matmul_i4(&a, &b, shape, &lens));
            let codes = |codes: &[i8]| codes.iter().map(|code| Int4::new(*code).unwrap()).collect::<Vec<_>>();
            let (a, b) = (codes(&a), codes(&b));
            run(&Operands::Int4 { a: &a, b: &b }, &|got| exact(&got, &want, shape))
        }
        Product::Int16 => {
            let (a, b) = (a.i16s(a_len), b.i16s(b_len));
            let want = Values::I64(reference::matmul_i16(&a, &b, shape));
            run(&Operands::Int16 { a: &a, b: &b }, &|got| exact(&got, &want, shape))
        }
        Product::Int16Native => {
            // The largest magnitude whose sums cannot saturate.
            let largest = (f64::from(i32::MAX) / f64::from(shape.k)).sqrt().min(32767.0) as i16;
            let limit = |values: Vec<i16>| -> Vec<i16> {
                values
                    .into_iter()
                    .map(|x| if largest == i16::MAX { x.max(-x) } else { x % (largest + 1) })
                    .collect()
            };
            let (a, b) = (limit(a.i16s(a_len)), limit(b.i16s(b_len)));
            let want = Values::I64(reference::matmul_i16(&a, &b, shape));
            let operands = Operands::Int16Native { a: &a, b: &b };
            run(&operands, &|got| exact(&got, &want, shape))
        }
        Product::Fp16 => {
            let half = |x: Vec<f32>| x.into_iter().map(f16::from_f32).collect::<Vec<_>>();
            let (a, b) = (
                half(floats(&mut a, a_len, index, shape.k, (-24, 14))),
                half(floats(&mut b, b_len, index, shape.k, (-24, 14))),
            );
            let want = wide(&a, &b, f16::to_f32, shape);
            let operands = Operands::Fp16 { a: &a, b: &b };
            run(&operands, &|got| near(&got, &want, FP32_SUMS, index, shape))
        }
        Product::Fp16ToFp16 => {
            let half = |x: Vec<f32>| x.into_iter().map(f16::from_f32).collect::<Vec<_>>();
            let (a, b) = (
                half(floats(&mut a, a_len, index, shape.k, (-6, 0))),
                half(floats(&mut b, b_len, index, shape.k, (-6, 0))),
            );
            let want = wide(&a, &b, f16::to_f32, shape);
            let operands = Operands::Fp16ToFp16 { a: &a, b: &b };
            run(&operands, &|got| match got {
                // Integer sums are exact until they are rounded, once.
                Values::F16(got) if index.is_multiple_of(2) => {
                    let want: Vec<f16> = want.iter().map(|(sum, _)| f16::from_f64(*sum)).collect();
                    compare::exact(&got, &want, shape).map_err(|difference| difference.to_string())
                }
                Values::F16(got) => {
                    let got = Values::F32(got.into_iter().map(f16::to_f32).collect());
                    near(&got, &want, FP16_RESULTS, index, shape)
                }
                other => Err(format!("not fp16: {other:?}")),
            })
        }
        Product::Bf16 => {
            let half = |x: Vec<f32>| x.into_iter().map(bf16::from_f32).collect::<Vec<_>>();
            let (a, b) = (
                half(floats(&mut a, a_len, index, shape.k, (-55, 55))),
                half(floats(&mut b, b_len, index, shape.k, (-55, 55))),
            );
            let want = wide(&a, &b, bf16::to_f32, shape);
            let operands = Operands::Bf16 { a: &a, b: &b };
            run(&operands, &|got| near(&got, &want, FP32_SUMS, index, shape))
        }
        Product::Tf32 => {
            let (a, b) = (
                floats(&mut a, a_len, index, shape.k, (-55, 55)),
                floats(&mut b, b_len, index, shape.k, (-55, 55)),
            );
            // The array ignores the low 13 bits of the mantissa (isa-notes NS-16).
            let want = wide(&a, &b, |x| f32::from_bits(x.to_bits() >> 13 << 13), shape);
            let operands = Operands::Tf32 { a: &a, b: &b };
            run(&operands, &|got| near(&got, &want, FP32_SUMS, index, shape))
        }
    }
}

/// Small integers, or magnitudes between two powers of two.
fn floats(stream: &mut Stream, len: usize, index: usize, k: u32, (low, high): (i32, i32)) -> Vec<f32> {
    if index.is_multiple_of(2) {
        // The largest magnitude up to 29 whose sums of products stay below 2²⁴: no sum rounds.
        let magnitude = (1..=29).rev().find(|x| u64::from(k) * x * x < 1 << 24).unwrap() as u32;
        stream.integers(len, magnitude)
    } else {
        stream.f32s_between(len, low, high)
    }
}

fn wide<T: Copy>(a: &[T], b: &[T], float: impl Fn(T) -> f32, shape: Shape) -> Vec<(f64, f64)> {
    let floats = |x: &[T]| x.iter().map(|x| float(*x)).collect::<Vec<_>>();
    reference::matmul_with_magnitude(&floats(a), &floats(b), shape)
}

/// Exactly what integers give, or within the error model.
fn near(got: &Values, want: &[(f64, f64)], relative: f64, index: usize, shape: Shape) -> Result<(), String> {
    let Values::F32(got) = got else { return Err(format!("not fp32: {got:?}")) };
    let relative = if index.is_multiple_of(2) { 0.0 } else { relative };
    compare::within(got, want, relative, shape).map_err(|difference| difference.to_string())
}

fn exact(got: &Values, want: &Values, shape: Shape) -> Result<(), String> {
    let differ = |difference: &dyn std::fmt::Display| difference.to_string();
    match (got, want) {
        (Values::I8(got), Values::I8(want)) => compare::exact(got, want, shape).map_err(|d| differ(&d)),
        (Values::I32(got), Values::I32(want)) => compare::exact(got, want, shape).map_err(|d| differ(&d)),
        (Values::I64(got), Values::I64(want)) => compare::exact(got, want, shape).map_err(|d| differ(&d)),
        _ => Err("the result has another type".to_owned()),
    }
}

/// A requantisation that spreads the sums of full-range codes over int8 and a little beyond.
fn requantisation(stream: &mut Stream, shape: Shape) -> Requantise {
    let multiplier = stream.i16s(1)[0] | 1;
    // The standard deviation of a sum is about 5460 √k.
    let spread = 5460.0 * f64::from(shape.k).sqrt() * f64::from(multiplier.unsigned_abs()) / 80.0;
    let shift = spread.log2().max(0.0) as u32;
    Requantise { multiplier, shift, offset: stream.below(41) as i32 - 20 }
}

/// One test for each precision, which hands its product to the named function.
#[allow(unused_macros, reason = "each test binary uses a part")]
macro_rules! for_each {
    ($random_products:ident) => {
        support::precisions::for_each! {
            $random_products,
            int8: Int8,
            int8_to_int8: Int8ToInt8,
            int4: Int4,
            int16: Int16,
            int16_native: Int16Native,
            fp16: Fp16,
            fp16_to_fp16: Fp16ToFp16,
            bf16: Bf16,
            tf32: Tf32,
        }
    };
    ($random_products:ident, $($name:ident: $product:ident,)*) => { $(
        #[test]
        fn $name() {
            $random_products(Product::$product);
        }
    )* };
}

#[allow(unused_imports, reason = "each test binary uses a part")]
pub(crate) use for_each;
