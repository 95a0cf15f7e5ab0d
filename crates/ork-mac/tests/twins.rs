// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each vector kernel against the plain loops, bit for bit.
#![allow(clippy::unwrap_used, reason = "test inputs fit")]

use ork_mac::{Engine, FLOAT_LANES, FloatShape, FloatSums, Isa, Kernels, Rows, float, scalar};

struct Stream(u64);

impl Stream {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.next() >> 24) as u8).collect()
    }
}

fn compare(rows: usize, stride_extra: usize, k: usize, kernels: usize, fill: Option<u8>) {
    let mut stream = Stream(0x9E37_79B9_7F4A_7C15 ^ (rows * 31 + k * 7 + kernels) as u64);
    let stride = k + stride_extra;
    let mut features = stream.bytes(rows * stride);
    let mut weights = stream.bytes(kernels * k);
    if let Some(byte) = fill {
        features.fill(byte);
        weights.fill(byte);
    }
    let rows_view = Rows::new(&features, stride, rows, k).unwrap();
    let kernels_view = Kernels::new(&weights, kernels, k).unwrap();
    let size = kernels.div_ceil(32) * rows * 32;
    let mut expected = vec![0x55; size];
    scalar::int8(rows_view, kernels_view, &mut expected);
    for isa in Isa::available() {
        for threads in [1, 3] {
            let engine = Engine::new(threads).with_isa(isa).unwrap();
            let mut got = vec![-1; size];
            engine.int8(rows_view, kernels_view, &mut got);
            assert!(got == expected, "{isa:?}, {threads} threads, {rows} rows, k {k}, {kernels} kernels");
        }
    }
}

#[test]
fn all_row_counts_and_kernel_counts() {
    for rows in (1..=14).chain([23, 24, 25, 48, 97]) {
        for kernels in [1, 2, 7, 8, 12, 31, 32, 33, 40, 64, 96] {
            compare(rows, 16 * (rows % 3), 32 * (1 + rows % 5), kernels, None);
        }
    }
}

#[test]
fn extreme_values_do_not_saturate() {
    for fill in [0x80, 0x7F, 0xFF] {
        compare(7, 0, 4096, 32, Some(fill));
        compare(1, 0, 10752, 64, Some(fill));
    }
}

#[test]
fn large_shapes_cross_the_threading_threshold() {
    compare(128, 0, 512, 256, None);
    compare(1, 0, 2048, 512, None);
    compare(200, 32, 96, 64, None);
}

#[test]
fn the_plain_loops_are_a_matrix_product() {
    // Three kernels, two rows, one block: small enough to check by hand.
    let mut features = vec![0u8; 64];
    features[0] = 2;
    features[31] = 0xFD; // -3
    features[32] = 5;
    let mut weights = vec![0u8; 96];
    weights[0] = 7; // kernel 0, channel 0
    weights[32 + 31] = 11; // kernel 1, channel 31
    weights[64] = 0xFF; // kernel 2, channel 0: -1
    let mut out = vec![9; 64];
    scalar::int8(Rows::new(&features, 32, 2, 32).unwrap(), Kernels::new(&weights, 3, 32).unwrap(), &mut out);
    assert_eq!(out[..4], [14, -33, -2, 0]);
    assert_eq!(out[32..36], [35, 0, -5, 0]);
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    assert!(Rows::new(&[0; 63], 32, 2, 32).is_none());
    assert!(Rows::new(&[0; 64], 32, 2, 32).is_some());
    assert!(Kernels::new(&[0; 64], 2, 33).is_none());
    assert!(Kernels::new(&[0; 64], 3, 32).is_none());
}

/// Numbers as half floats have them: up to 11 bits of mantissa, exponents over a wide range, some zeros.
fn halves(stream: &mut Stream, count: usize) -> Vec<f32> {
    let mut next = || {
        let bits = stream.next();
        let mantissa = (bits >> 24 & 0xFFF) as f32 - 2048.0;
        if bits >> 60 == 0 { 0.0 } else { mantissa * 2f32.powi((bits >> 40 & 0x1F) as i32 - 20) }
    };
    (0..count).map(|_| next()).collect()
}

struct FloatCase {
    shape: FloatShape,
    features: Vec<f32>,
    weights: Vec<f32>,
}

impl FloatCase {
    fn new(rows: usize, depth: usize, groups: usize) -> Self {
        let mut stream = Stream(0x1234_5678_9ABC_DEF1 ^ (rows * 31 + depth * 7 + groups) as u64);
        let features = halves(&mut stream, rows * depth);
        let weights = halves(&mut stream, groups * depth * FLOAT_LANES);
        Self { shape: FloatShape { rows, depth, groups }, features, weights }
    }

    fn run(&self, engine: Option<&Engine>, sums: FloatSums) -> Vec<u32> {
        let FloatShape { rows, depth, groups } = self.shape;
        let features = |m: usize, out: &mut [f32]| out.copy_from_slice(&self.features[m * depth..][..depth]);
        let weights = |g: usize, out: &mut [f32]| {
            out.copy_from_slice(&self.weights[g * depth * FLOAT_LANES..][..depth * FLOAT_LANES]);
        };
        let mut out = vec![7.5; groups * rows * FLOAT_LANES];
        match engine {
            Some(engine) => engine.float(sums, self.shape, &features, &weights, &mut out),
            None => float::reference(sums, self.shape, &features, &weights, &mut out),
        }
        out.into_iter().map(f32::to_bits).collect()
    }

    fn compare(&self) {
        for sums in [FloatSums::Exact, FloatSums::Fast] {
            let expected = self.run(None, sums);
            for isa in Isa::available() {
                for threads in [1, 3] {
                    let engine = Engine::new(threads).with_isa(isa).unwrap();
                    let got = self.run(Some(&engine), sums);
                    assert!(got == expected, "{sums:?}, {isa:?}, {threads} threads, {:?}", self.shape);
                }
            }
        }
    }
}

#[test]
fn float_kernels_equal_the_definition() {
    for rows in (1..=14).chain([24, 25, 37]) {
        for groups in 1..=3 {
            FloatCase::new(rows, 1 + 13 * rows % 71, groups).compare();
        }
    }
    // Across the blocks of the depth, and across the threading threshold.
    for (rows, depth, groups) in [(5, 512, 2), (13, 1025, 3), (2, 2100, 1), (40, 96, 9), (100, 64, 1)] {
        FloatCase::new(rows, depth, groups).compare();
    }
}

#[test]
fn float_sums_differ_in_the_order_they_promise() {
    // 2^24 + 1 - 2^24: f32 loses the 1, f64 does not.
    let shape = FloatShape { rows: 1, depth: 3, groups: 1 };
    let features = |_: usize, out: &mut [f32]| out.copy_from_slice(&[4096.0, 1.0, 4096.0]);
    let weights = |_: usize, out: &mut [f32]| {
        out.fill(0.0);
        (out[0], out[16], out[32]) = (4096.0, 1.0, -4096.0);
    };
    for (sums, expected) in [(FloatSums::Exact, 1.0), (FloatSums::Fast, 0.0)] {
        for isa in Isa::available() {
            let mut out = [9f32; 16];
            let engine = Engine::new(1).with_isa(isa).unwrap();
            engine.float(sums, shape, &features, &weights, &mut out);
            assert_eq!(out[0], expected, "{sums:?} {isa:?}");
            assert_eq!(out[1..], [0.0; 15]);
        }
    }
}

#[test]
fn special_numbers_have_one_form() {
    let shape = FloatShape { rows: 1, depth: 2, groups: 1 };
    let features = |_: usize, out: &mut [f32]| out.copy_from_slice(&[f32::MIN_POSITIVE, 1.0]);
    let weights = |_: usize, out: &mut [f32]| {
        out.fill(0.0);
        // Lane 0: a product that vanishes below 0. Lane 1: infinity. Lane 2: no number.
        (out[0], out[17], out[2], out[18]) =
            (-f32::MIN_POSITIVE, f32::INFINITY, f32::INFINITY, f32::NEG_INFINITY);
    };
    for sums in [FloatSums::Exact, FloatSums::Fast] {
        for isa in Isa::available() {
            let mut out = [9f32; 16];
            let engine = Engine::new(1).with_isa(isa).unwrap();
            engine.float(sums, shape, &features, &weights, &mut out);
            let bits = out.map(f32::to_bits);
            assert_eq!(bits[..4], [0, f32::INFINITY.to_bits(), f32::NAN.to_bits(), 0], "{sums:?} {isa:?}");
        }
    }
}

#[test]
fn an_empty_depth_is_zero() {
    let mut out = [3f32; 32];
    let shape = FloatShape { rows: 2, depth: 0, groups: 1 };
    Engine::new(1).float(FloatSums::Fast, shape, &|_, _| {}, &|_, _| {}, &mut out);
    assert_eq!(out, [0.0; 32]);
}
