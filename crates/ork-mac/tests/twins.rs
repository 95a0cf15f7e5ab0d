// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each vector kernel against the plain loops, bit for bit.
#![allow(clippy::unwrap_used, reason = "test inputs fit")]

use ork_mac::{Engine, Isa, Kernels, Rows, scalar};

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
