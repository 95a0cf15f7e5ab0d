// SPDX-License-Identifier: MIT OR Apache-2.0
//! Convolutions and matmuls of every precision against loops over the tensors (`isa.md` §4, §9).
#![allow(clippy::unwrap_used, reason = "slices of a fixed length")]
mod common;

use common::*;
use half::{bf16, f16};
use ork_sim::{
    Core, FloatSums, Int4Saturation, JobEnd, JobOutcome, PointerScope, Silicon, SimOptions, WideConverter,
};

const A: u32 = PROGRAM + 0x1_0000;
const B: u32 = PROGRAM + 0x10_0000;
const OUT: u32 = PROGRAM + 0x20_0000;

/// A precision of the MAC array: code, element bits, kernels per group, channels per weight block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Int8,
    Int16,
    Fp16,
    Bf16,
    Int4,
    Tf32,
}

impl Kind {
    fn facts(self) -> (u32, usize, usize, usize) {
        match self {
            Self::Int8 => (0, 8, 32, 32),
            Self::Int16 => (1, 16, 16, 32),
            Self::Fp16 => (2, 16, 16, 32),
            Self::Bf16 => (3, 16, 16, 32),
            Self::Int4 => (6, 4, 64, 32),
            Self::Tf32 => (7, 32, 16, 16),
        }
    }

    /// A small value, exact in the precision.
    fn value(self, random: &mut Random) -> f64 {
        match self {
            Self::Int4 => random.below(16) as f64 - 8.0,
            Self::Int8 => random.below(256) as f64 - 128.0,
            Self::Int16 => random.below(2000) as f64 - 1000.0,
            _ => (random.below(257) as f64 - 128.0) / 16.0,
        }
    }

    fn store(self, value: f64, index: usize, bytes: &mut [u8]) {
        match self {
            Self::Int8 => bytes[index] = (value as i8).cast_unsigned(),
            Self::Int16 => bytes[2 * index..][..2].copy_from_slice(&(value as i16).to_le_bytes()),
            Self::Fp16 => bytes[2 * index..][..2].copy_from_slice(&f16::from_f64(value).to_le_bytes()),
            Self::Bf16 => bytes[2 * index..][..2].copy_from_slice(&bf16::from_f64(value).to_le_bytes()),
            Self::Tf32 => bytes[4 * index..][..4].copy_from_slice(&(value as f32).to_le_bytes()),
            Self::Int4 => {
                let nibble = (value as i8).cast_unsigned() & 0xF;
                bytes[index / 2] |= if index.is_multiple_of(2) { nibble } else { nibble << 4 };
            }
        }
    }
}

/// An output format: code, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Out {
    Int32,
    Int16,
    Fp32,
    Fp16,
}

impl Out {
    fn facts(self) -> (u32, usize) {
        match self {
            Self::Int32 => (4, 4),
            Self::Int16 => (1, 2),
            Self::Fp32 => (5, 4),
            Self::Fp16 => (2, 2),
        }
    }

    fn load(self, bytes: &[u8], index: usize) -> f64 {
        match self {
            Self::Int32 => f64::from(i32::from_le_bytes(bytes[4 * index..][..4].try_into().unwrap())),
            Self::Int16 => f64::from(i16::from_le_bytes(bytes[2 * index..][..2].try_into().unwrap())),
            Self::Fp32 => f64::from(f32::from_le_bytes(bytes[4 * index..][..4].try_into().unwrap())),
            Self::Fp16 => f16::from_le_bytes(bytes[2 * index..][..2].try_into().unwrap()).to_f64(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Spec {
    kind: Kind,
    out: Out,
    depthwise: bool,
    c: usize,
    h: usize,
    w: usize,
    oc: usize,
    k: (usize, usize),
    stride: (usize, usize),
    dilation: (usize, usize),
    pad: (usize, usize),
    /// Register 0x1040; 0 takes what the features need.
    split: u32,
}

impl Spec {
    fn matmul(kind: Kind, out: Out, m: usize, k: usize, n: usize) -> Self {
        Self {
            kind,
            out,
            depthwise: false,
            c: k,
            h: m,
            w: 1,
            oc: n,
            k: (1, 1),
            stride: (1, 1),
            dilation: (1, 1),
            pad: (0, 0),
            split: 0,
        }
    }

    fn out_size(&self) -> (usize, usize) {
        let one =
            |size: usize, k, stride, dilation, pad| (size + 2 * pad - (k - 1) * dilation - 1) / stride + 1;
        (
            one(self.h, self.k.0, self.stride.0, self.dilation.0, self.pad.0),
            one(self.w, self.k.1, self.stride.1, self.dilation.1, self.pad.1),
        )
    }

    fn group(&self) -> usize {
        self.kind.facts().2 * if self.depthwise { 2 } else { 1 }
    }

    fn channels_out(&self) -> usize {
        if self.depthwise { self.c } else { self.oc }
    }

    fn words(&self) -> Words {
        let (code, bits, ..) = self.kind.facts();
        let (out_code, out_bytes) = self.out.facts();
        let (oh, ow) = self.out_size();
        let (h, w, c) = (self.h as u32, self.w as u32, self.c as u32);
        let (oh, ow) = (oh as u32, ow as u32);
        let taps = (self.k.0 * self.k.1) as u32;
        let per_kernel = taps * c * bits as u32 / 8;
        let kernels = if self.depthwise { 1 } else { self.oc as u32 };
        let padded = self.channels_out().next_multiple_of(self.group()) as u32;
        let line = (self.w * self.c * bits / 8).next_multiple_of(64) as u32;
        let d = (h * line).div_ceil(32768).clamp(1, 11);
        let split = if self.split == 0 { (12 - d) << 4 | d } else { self.split };
        let dpu = if self.kind == Kind::Tf32 { 5 } else { code };
        let atoms = (self.group() * out_bytes / 16) as u32;
        let mode = if self.depthwise { 3 } else { 0 };
        let surf = (w * h).wrapping_sub(4 * w) & 0x0FFF_FFFF;
        vec![
            (0x4004, 0xE),
            (0x1040, split),
            (0x100C, code << 7 | code << 4 | mode),
            (0x1010, (h + 1) << 4),
            (
                0x1014,
                ((self.dilation.0 - 1) as u32) << 21
                    | ((self.dilation.1 - 1) as u32) << 16
                    | (self.stride.0 as u32) << 3
                    | self.stride.1 as u32,
            ),
            (0x1020, w << 16 | h),
            (0x1024, (c - 1) << 16 | c),
            (0x1028, ow),
            (0x102C, ow * oh),
            (0x1030, per_kernel * kernels),
            (0x1034, per_kernel),
            (0x1038, (self.k.1 as u32) << 24 | (self.k.0 as u32) << 16 | kernels),
            (0x1044, line / 64),
            (0x104C, 0xB),
            (0x1060, 0),
            (0x1068, (self.pad.1 as u32) << 4 | self.pad.0 as u32),
            (0x1070, A),
            (0x1078, 0xF000F),
            (0x107C, 4 * w),
            (0x1080, surf),
            (0x1084, w << 16 | h),
            (0x1088, c),
            (0x1110, B),
            (0x1184, 0),
            (0x3010, code << 8 | if self.depthwise { 2 } else { 0 }),
            (0x3014, (oh - 1) << 16 | (ow - 1)),
            (0x3018, padded - 1),
            (0x301C, 0),
            (0x400C, 0x1E4 | mode << 3),
            (0x4010, out_code << 29 | dpu << 26 | dpu),
            (0x4020, OUT),
            (0x4024, oh * ow * 16),
            (0x4030, ow - 1),
            (0x4034, oh - 1),
            (0x4038, 0),
            (0x403C, (self.channels_out() as u32 - 1) << 16 | (padded - 1)),
            (0x4040, 0x53),
            (0x4050, ((atoms - 1) * 0x124) | 2),
            (0x4054, 0),
            (0x4058, padded - 1),
            (0x405C, (oh - 1) << 16 | (ow - 1)),
            (0x4060, 0x53),
            (0x4070, 0x383),
            (0x4080, 0),
            (0x4084, if self.out == Out::Fp16 { 0x1_0001 } else { 1 }),
            (0x4088, 0),
            (0x40C0, oh * ow * 16 * atoms),
        ]
    }
}

struct Case {
    spec: Spec,
    bus: FlatBus,
    a: Vec<f64>,
    b: Vec<f64>,
}

impl Case {
    /// Random tensors: a as `[c][h][w]`, b as `[oc][c][ky][kx]` (depthwise `[c][ky][kx]`).
    fn new(spec: Spec, seed: u64) -> Self {
        let mut random = Random(seed);
        let depth = if spec.depthwise { spec.c } else { spec.oc * spec.c };
        let a = (0..spec.c * spec.h * spec.w).map(|_| spec.kind.value(&mut random)).collect();
        let b = (0..depth * spec.k.0 * spec.k.1).map(|_| spec.kind.value(&mut random)).collect();
        Self::with(spec, a, b)
    }

    fn with(spec: Spec, a: Vec<f64>, b: Vec<f64>) -> Self {
        let bus = FlatBus::new(PROGRAM, 0x40_0000);
        let (_, bits, group, block) = spec.kind.facts();
        let lanes = 128 / bits;
        let (h, w, c) = (spec.h, spec.w, spec.c);
        let mut bytes = vec![0u8; c.div_ceil(lanes) * h * w * 16];
        for channel in 0..c {
            for pixel in 0..h * w {
                let index = (channel / lanes * h * w + pixel) * lanes + channel % lanes;
                spec.kind.store(a[channel * h * w + pixel], index, &mut bytes);
            }
        }
        bus.put(A, &bytes);
        // The stream: groups, blocks, ky, kx, kernel, channel (isa.md §4.1), written out by counting.
        let taps = spec.k.0 * spec.k.1;
        let kernels = if spec.depthwise { 1 } else { spec.oc };
        let mut bytes = vec![0u8; (kernels * c * taps * bits).div_ceil(8)];
        let mut index = 0;
        let (group, block) = if spec.depthwise { (1, 2 * group) } else { (group, block) };
        for first in (0..kernels).step_by(group) {
            for from in (0..c).step_by(block) {
                for tap in 0..taps {
                    for kernel in first..(first + group).min(kernels) {
                        for channel in from..(from + block).min(c) {
                            let value = b[(kernel * c + channel) * taps + tap];
                            spec.kind.store(value, index, &mut bytes);
                            index += 1;
                        }
                    }
                }
            }
        }
        bus.put(B, &bytes);
        Self { spec, bus, a, b }
    }

    fn run(&self, options: &SimOptions, patch: Patch<'_>) -> JobOutcome {
        run_words(&mut Core::new(0, options), &self.bus, &patched(&self.spec.words(), patch), 0xD)
    }

    /// `[channel][pixel]` of the output cube.
    fn got(&self) -> Vec<f64> {
        let spec = &self.spec;
        let (oh, ow) = spec.out_size();
        let lanes = 16 / spec.out.facts().1;
        let pixels = oh * ow;
        let padded = spec.channels_out().next_multiple_of(spec.group());
        let bytes = self.bus.get(OUT, padded / lanes * pixels * 16);
        let place =
            |channel: usize, pixel: usize| (channel / lanes * pixels + pixel) * lanes + channel % lanes;
        (0..spec.channels_out())
            .flat_map(|channel| (0..pixels).map(move |pixel| (channel, pixel)))
            .map(|(channel, pixel)| spec.out.load(&bytes, place(channel, pixel)))
            .collect()
    }

    /// The convolution by loops over the tensors.
    fn sums(&self) -> Vec<f64> {
        let spec = &self.spec;
        let (oh, ow) = spec.out_size();
        let taps = spec.k.0 * spec.k.1;
        let mut out = Vec::new();
        for channel in 0..spec.channels_out() {
            for oy in 0..oh {
                for ox in 0..ow {
                    let mut sum = 0.0;
                    let inputs = if spec.depthwise { channel..channel + 1 } else { 0..spec.c };
                    for input in inputs {
                        for ky in 0..spec.k.0 {
                            for kx in 0..spec.k.1 {
                                let y = (oy * spec.stride.0 + ky * spec.dilation.0) as isize
                                    - spec.pad.0 as isize;
                                let x = (ox * spec.stride.1 + kx * spec.dilation.1) as isize
                                    - spec.pad.1 as isize;
                                if y < 0 || x < 0 || y >= spec.h as isize || x >= spec.w as isize {
                                    continue;
                                }
                                let weight = if spec.depthwise { channel } else { channel * spec.c + input };
                                sum += self.a[(input * spec.h + y as usize) * spec.w + x as usize]
                                    * self.b[weight * taps + ky * spec.k.1 + kx];
                            }
                        }
                    }
                    out.push(sum);
                }
            }
        }
        out
    }

    fn expected(&self) -> Vec<f64> {
        self.sums()
            .into_iter()
            .map(|sum| match self.spec.out {
                Out::Int32 => sum,
                Out::Int16 => sum.clamp(-32768.0, 32767.0),
                Out::Fp32 => f64::from(sum as f32),
                Out::Fp16 => f16::from_f64(sum).to_f64(),
            })
            .collect()
    }
}

fn exact(spec: Spec, seed: u64) {
    let mut fast = Vec::new();
    for reference_kernels in [false, true] {
        for float_sums in [FloatSums::Exact, FloatSums::Fast] {
            let case = Case::new(spec, seed);
            let options = SimOptions { reference_kernels, float_sums, ..SimOptions::default() };
            assert_clean(&case.run(&options, &[]), 1);
            let (got, expected) = (case.got(), case.expected());
            match float_sums {
                FloatSums::Exact => assert!(got == expected, "{spec:?}, {options:?}"),
                FloatSums::Fast => {
                    let near = |(got, expected): (&f64, &f64)| {
                        (got - expected).abs() <= 2e-3 * (1.0 + expected.abs())
                    };
                    assert!(got.iter().zip(&expected).all(near), "{spec:?}, {options:?}");
                    fast.push(got);
                }
            }
        }
    }
    assert!(fast[0] == fast[1], "{spec:?}: kernels and plain loops sum in one order");
}

#[test]
fn matmuls_of_every_precision() {
    for (kind, out) in [
        (Kind::Int8, Out::Int32),
        (Kind::Int8, Out::Fp32),
        (Kind::Int16, Out::Int32),
        (Kind::Fp16, Out::Fp32),
        (Kind::Fp16, Out::Fp16),
        (Kind::Bf16, Out::Fp32),
        (Kind::Int4, Out::Int16),
        (Kind::Tf32, Out::Fp32),
    ] {
        for (m, k, n) in [(4, 64, 64), (12, 96, 128), (8, 32, 64), (16, 160, 192)] {
            exact(Spec::matmul(kind, out, m, k, n), (m * k + n) as u64);
        }
    }
}

#[test]
fn convolutions_with_strides_padding_and_dilation() {
    let mut random = Random(77);
    for round in 0..24u64 {
        let kind = [Kind::Int8, Kind::Fp16, Kind::Int16, Kind::Bf16][round as usize % 4];
        let out = if matches!(kind, Kind::Int8 | Kind::Int16) { Out::Int32 } else { Out::Fp32 };
        let k = (1 + random.below(4) as usize, 1 + random.below(4) as usize);
        let dilation = (1 + random.below(2) as usize, 1 + random.below(2) as usize);
        let least = |k: usize, d: usize| (k - 1) * d + 1;
        let spec = Spec {
            kind,
            out,
            depthwise: false,
            c: 16 * (1 + random.below(6) as usize),
            h: least(k.0, dilation.0) + random.below(6) as usize,
            w: least(k.1, dilation.1) + random.below(6) as usize,
            oc: 2 * (1 + random.below(40) as usize),
            k,
            stride: (1 + random.below(2) as usize, 1 + random.below(3) as usize),
            dilation,
            pad: (random.below(k.0 as u64) as usize, random.below(k.1 as u64) as usize),
            split: 0,
        };
        exact(spec, round);
    }
}

#[test]
fn depthwise_convolutions() {
    for (c, h, w, k, stride, pad) in [(32, 6, 7, 3, 1, 1), (64, 8, 8, 3, 2, 0), (96, 5, 9, 5, 1, 2)] {
        let spec = Spec {
            kind: Kind::Fp16,
            out: Out::Fp16,
            depthwise: true,
            c,
            h,
            w,
            oc: 1,
            k: (k, k),
            stride: (stride, stride),
            dilation: (1, 1),
            pad: (pad, pad),
            split: 0,
        };
        exact(spec, c as u64);
    }
    // int8 sums go out as int8 only (isa-notes G-20).
    let spec = Spec { depthwise: true, ..Spec::matmul(Kind::Int8, Out::Int32, 8, 64, 1) };
    assert_unmodelled(&Case::new(spec, 1).run(&SimOptions::default(), &[]), "output-format");
}

#[test]
fn int8_to_int16_in_its_working_form_only() {
    // isa-int4-sdp.md §2.2: SIZE_E 3.
    let case = Case::new(Spec::matmul(Kind::Int8, Out::Int16, 8, 512, 64), 5);
    assert_clean(&case.run(&SimOptions::default(), &[(0x4084, 0x4000), (0x4088, 22)]), 1);
    let expected: Vec<f64> = case
        .sums()
        .iter()
        .map(|sum| half_even(*sum as i64 * 0x4000, 22).clamp(-32768, 32767) as f64)
        .collect();
    assert_eq!(case.got(), expected);
    assert_hang(&case.run(&SimOptions::default(), &[(0x4050, 0x126)]), "output-format", 0);
}

#[test]
fn int8_to_fp16_needs_the_narrowing_bit() {
    // isa-notes NS-21 and isa.md §13 row 21.
    let case = Case::new(Spec::matmul(Kind::Int8, Out::Fp16, 8, 32, 32), 6);
    assert_clean(&case.run(&SimOptions::default(), &[]), 1);
    assert_eq!(case.got(), case.expected());
    assert_wrong(&case.run(&SimOptions::default(), &[(0x4084, 1)]), "int8-to-fp16");
    assert!(case.got().iter().all(|value| *value == 0.0));
}

#[test]
fn fp16_output_without_the_narrowing_bit_hangs() {
    let case = Case::new(Spec::matmul(Kind::Fp16, Out::Fp16, 8, 32, 32), 7);
    assert_hang(&case.run(&SimOptions::default(), &[(0x4084, 1)]), "fp16-narrowing", 0);
}

#[test]
fn precision_7_in_the_dpu_writes_nothing() {
    // isa-notes C.1, G-12.
    let case = Case::new(Spec::matmul(Kind::Tf32, Out::Fp32, 8, 32, 32), 8);
    case.bus.put(OUT, &[0xAA; 64]);
    assert_wrong(&case.run(&SimOptions::default(), &[(0x4010, 0xFC00_0007)]), "dpu-tf32");
    assert_eq!(case.bus.get(OUT, 64), [0xAA; 64], "the sentinel is intact");
}

#[test]
fn fp16_kernel_groups_that_do_not_fit_hang() {
    // isa.md §10.2, §10.4, §10.5: K <= 1024 W; W = 1 with K = 1024 and narrow N.
    for (k, n, split, check) in [
        (1024, 64, 0x1B, None),
        (1056, 64, 0x1B, Some("weight-group")),
        (1056, 64, 0x2A, None),
        (1024, 16, 0x1B, Some("single-weight-bank")),
        (1024, 32, 0x1B, Some("single-weight-bank")),
        (1024, 16, 0x48, None),
        (64, 64, 0x0B, Some("no-weight-bank")),
    ] {
        let case = Case::new(Spec { split, ..Spec::matmul(Kind::Fp16, Out::Fp32, 4, k, n) }, 9);
        let outcome = case.run(&SimOptions::default(), &[]);
        match check {
            None => {
                assert_clean(&outcome, 1);
                assert_eq!(case.got(), case.expected(), "K {k} N {n} split {split:#x}");
            }
            Some(check) => assert_hang(&outcome, check, 0),
        }
    }
}

#[test]
fn fp16_row_caps() {
    // isa.md §10.4: 180224 / K at 11 banks, 16384 / K at one bank.
    for (k, split, cap) in
        [(256, 0x1B, 704), (512, 0x1B, 352), (384, 0xB1, 42), (640, 0xB1, 25), (1536, 0xB1, 10)]
    {
        for (m, good) in [(cap, true), (cap + 1, false)] {
            // Rows as atoms of one line each, in row-major form.
            let mut case = Case::new(Spec { split, ..Spec::matmul(Kind::Fp16, Out::Fp32, m, k, 64) }, 10);
            let row_major: Vec<u8> = (0..m)
                .flat_map(|row| (0..k).map(move |i| (row, i)))
                .flat_map(|(row, i)| f16::from_f64(case.a[i * m + row]).to_le_bytes())
                .collect();
            case.bus.put(A, &row_major);
            let patch = [(0x100C, 0x2000_0120), (0x107C, k as u32 / 8), (0x1080, 0)];
            let outcome = case.run(&SimOptions::default(), &patch);
            if good {
                assert_clean(&outcome, 1);
            } else {
                assert_wrong(&outcome, "feature-capacity");
            }
            assert_eq!(case.got() == case.expected(), good, "{m} rows at K = {k}");
            case.a.clear();
        }
    }
}

#[test]
fn captured_splits_satisfy_the_rules() {
    // isa.md §10.2: rows per task and 0x1040 of the vendor's full-K fp16 chains.
    for (k, m, split) in
        [(512, 64, 0x84), (1024, 48, 0x48), (2048, 32, 0x2A), (4096, 24, 0x48), (8192, 8, 0x84)]
    {
        let case = Case::new(Spec { split, ..Spec::matmul(Kind::Fp16, Out::Fp32, m, k, 16) }, 21);
        assert_clean(&case.run(&SimOptions::default(), &[]), 1);
        assert!(case.got() == case.expected(), "K {k}");
    }
}

#[test]
fn the_holes_of_the_halved_schedule() {
    // isa.md §10.5: K = 128, splits B8, B1, AA, A3, 9C, 95, 8E for 1 to 7 groups of 64 rows; N a third of 2048.
    for (m, split, good) in [
        (64, 0xB8, false),
        (65, 0xB1, true),
        (128, 0xB1, true),
        (144, 0xAA, false),
        (192, 0xAA, false),
        (256, 0xA3, true),
        (288, 0x9C, false),
        (320, 0x9C, false),
        (384, 0x95, true),
        (448, 0x8E, false),
    ] {
        let case = Case::new(Spec { split, ..Spec::matmul(Kind::Fp16, Out::Fp32, m, 128, 688) }, 22);
        let outcome = case.run(&SimOptions::default(), &[]);
        if good {
            assert_clean(&outcome, 1);
        } else {
            assert_wrong(&outcome, "split-overlaps");
        }
    }
}

#[test]
fn short_heights_need_a_negative_surface_stride() {
    // isa-notes G-1, NS-23: a generator that clamps SURF_STRIDE at 0 reads surfaces 4 atoms apart.
    let case = Case::new(Spec::matmul(Kind::Fp16, Out::Fp32, 1, 64, 16), 11);
    assert_clean(&case.run(&SimOptions::default(), &[]), 1);
    assert_eq!(case.got(), case.expected());
    assert_clean(&case.run(&SimOptions::default(), &[(0x1080, 0)]), 1);
    assert_ne!(case.got(), case.expected());
}

#[test]
fn int4_saturates_once_or_after_every_pass() {
    // isa-int4-sdp.md §1.1: K = 2048, weights 7, activations 7 then -7: 0, or -17409.
    let k = 2048;
    let a: Vec<f64> = (0..k).map(|i| if i < k / 2 { 7.0 } else { -7.0 }).collect();
    let case = Case::with(Spec::matmul(Kind::Int4, Out::Int16, 1, k, 64), a, vec![7.0; 64 * k]);
    assert_clean(&case.run(&SimOptions::default(), &[]), 1);
    assert!(case.got().iter().all(|value| *value == 0.0));
    let silicon = Silicon { int4_saturation: Int4Saturation::EveryPass, ..Silicon::default() };
    assert_clean(&case.run(&SimOptions { silicon, ..SimOptions::default() }, &[]), 1);
    assert!(case.got().iter().all(|value| *value == -17409.0));
    // 49 * 700 leaves the range for good.
    let full =
        Case::with(Spec::matmul(Kind::Int4, Out::Int16, 1, 704, 64), vec![7.0; 704], vec![7.0; 64 * 704]);
    assert_clean(&full.run(&SimOptions::default(), &[]), 1);
    assert!(full.got().iter().all(|value| *value == 32767.0));
}

#[test]
fn int4_rows_in_stream_order() {
    // isa-int4-sdp.md §1.3, §1.5: logical row j at physical line 2j, results in blocks of 64 at 4j + 4 Hg b.
    let (k, n) = (256usize, 128usize);
    for rows in [1usize, 3, 8] {
        let case = Case::new(Spec::matmul(Kind::Int4, Out::Int16, rows, k, n), 12);
        let mut lines = vec![0u8; rows * 2 * k / 2];
        for row in 0..rows {
            for i in 0..k {
                Kind::Int4.store(case.a[i * rows + row], row * 2 * k + i, &mut lines);
            }
        }
        case.bus.put(A, &lines);
        let lr = 4 * rows as u32;
        let notch = n as u32 / 4 - 1;
        let patch = [
            (0x1010, 16 * (lr + 1)),
            (0x1020, 0x1_0000 | lr),
            (0x102C, lr),
            (0x1040, 0xB1),
            (0x107C, k as u32 / 16),
            (0x1080, 0x0FFF_FFFD),
            (0x1084, 0x1_0000 | lr),
            (0x3010, 0x601),
            (0x3014, (lr - 1) << 16),
            (0x4024, 0x10),
            (0x4034, lr - 1),
            (0x4038, notch << 16 | notch),
            (0x405C, 0),
            (0x40C0, 0x80),
        ];
        assert_clean(&case.run(&SimOptions::default(), &patch), 1);
        let raw = case.bus.get(OUT, 4 * rows * n * 2);
        let expected = case.expected();
        for row in 0..rows {
            for col in 0..n {
                let at = 64 * (4 * row + 4 * rows * (col / 64)) + col % 64;
                assert_eq!(Out::Int16.load(&raw, at), expected[col * rows + row], "row {row} column {col}");
            }
        }
        // Three quarters of the slot are never written.
        let written = raw.chunks_exact(128).filter(|block| block.iter().any(|byte| *byte != 0)).count();
        assert_eq!(written, rows * n / 64);
        // A slot that ends where an operand begins touches nothing of it, whatever the notch says.
        let mut below = patch.to_vec();
        below.push((0x4020, A - (4 * rows * n * 2) as u32));
        assert_clean(&case.run(&SimOptions::default(), &below), 1);
        // Any write size is a violation in this form.
        let mut wrong = patch.to_vec();
        wrong.push((0x405C, (lr - 1) << 16));
        assert_unmodelled(&case.run(&SimOptions::default(), &wrong), "int4-rows");
    }
}

#[test]
fn int4_row_caps_follow_from_the_last_line_that_counts() {
    // isa-int4-sdp.md §1.6, one feature bank: lines of ceil(K / 128) granules, of which every fourth counts. This
    // gives the measured table, flat regions and odd caps included, but for K = 2816 to 3584 (6, 6, 5 against 4).
    for (k, cap) in [
        (64, 128),
        (128, 128),
        (160, 64),
        (224, 64),
        (256, 64),
        (512, 32),
        (768, 22),
        (1024, 16),
        (1536, 11),
        (2048, 8),
        (2560, 7),
        (4096, 4),
        (5120, 3),
        (6144, 3),
        (8192, 2),
    ] {
        for (rows, good) in [(cap, true), (cap + 1, false)] {
            let spec = Spec { split: 0xB1, ..Spec::matmul(Kind::Int4, Out::Int16, rows, k, 64) };
            let case = Case::with(spec, vec![1.0; rows * k], vec![1.0; 64 * k]);
            let lr = 4 * rows as u32;
            case.bus.put(A, &vec![0x11; 2 * rows * k]);
            let patch = [
                (0x1020, 0x1_0000 | lr),
                (0x102C, lr),
                (0x1044, (k as u32).div_ceil(128)),
                (0x107C, k as u32 / 16),
                (0x1080, 0x0FFF_FFFD),
                (0x1084, 0x1_0000 | lr),
                (0x3014, (lr - 1) << 16),
                (0x4024, 0x10),
                (0x4034, lr - 1),
                (0x405C, 0),
                (0x40C0, 0x80),
            ];
            let outcome = case.run(&SimOptions::default(), &patch);
            let raw = case.bus.get(OUT, 4 * rows * 128);
            let last = Out::Int16.load(&raw, 64 * 4 * (rows - 1));
            if good {
                assert_clean(&outcome, 1);
                assert_eq!(last, k as f64, "K = {k}");
            } else {
                assert_wrong(&outcome, "feature-capacity");
                assert_ne!(last, k as f64, "K = {k}");
            }
        }
    }
}

#[test]
fn size_e_limits_the_columns_of_a_group() {
    // isa-notes G-3: int4, N = 64: SIZE_E 1 / 3 / 7 write 16 / 32 / 64 columns.
    for (size_e, columns) in [(1u32, 16), (3, 32), (7, 64)] {
        let case = Case::new(Spec::matmul(Kind::Int4, Out::Int16, 4, 64, 64), 13);
        case.bus.put(OUT, &[0xAA; 4 * 64 * 2]);
        assert_clean(&case.run(&SimOptions::default(), &[(0x4050, (size_e * 0x124) | 2)]), 1);
        let sentinel = f64::from(i16::from_le_bytes([0xAA, 0xAA]));
        let got = case.got();
        let written = (0..64).filter(|column| got[column * 4..][..4].iter().any(|v| *v != sentinel)).count();
        assert_eq!(written, columns);
    }
}

#[test]
fn int32_converter_by_variant() {
    // isa-notes D.6: floor; the manual: half to even.
    let case = Case::new(Spec::matmul(Kind::Int8, Out::Int32, 4, 32, 32), 14);
    let patch = [(0x4084, 3), (0x4088, 2)];
    assert_clean(&case.run(&SimOptions::default(), &patch), 1);
    let floor: Vec<f64> = case.sums().iter().map(|sum| (*sum as i64 * 3).div_euclid(4) as f64).collect();
    assert_eq!(case.got(), floor);
    let silicon = Silicon { wide_converter: WideConverter::HalfEven, ..Silicon::default() };
    assert_clean(&case.run(&SimOptions { silicon, ..SimOptions::default() }, &patch), 1);
    let even: Vec<f64> = case.sums().iter().map(|sum| half_even(*sum as i64 * 3, 2) as f64).collect();
    assert_eq!(case.got(), even);
    assert_ne!(floor, even);
}

#[test]
fn clip_truncate_shifts_the_sums() {
    let case = Case::new(Spec::matmul(Kind::Int8, Out::Int32, 4, 32, 32), 15);
    for (clip, up) in [(3u32, false), (3 | 1 << 6, true)] {
        assert_clean(&case.run(&SimOptions::default(), &[(0x301C, clip)]), 1);
        let expected: Vec<f64> = case
            .sums()
            .iter()
            .map(|sum| if up { (*sum as i64 + 4).div_euclid(8) } else { half_even(*sum as i64, 3) } as f64)
            .collect();
        assert_eq!(case.got(), expected, "half up: {up}");
    }
}

#[test]
fn one_pointer_write_for_all_blocks_by_variant() {
    // Two tasks in a chain; with the DPU's pointer alone CNA keeps writing group 0, and both still compute.
    let case = Case::new(Spec::matmul(Kind::Int8, Out::Int32, 4, 32, 32), 16);
    for scope in [PointerScope::DpuCoversAll, PointerScope::OwnBlock] {
        let silicon = Silicon { pointer_scope: scope, ..Silicon::default() };
        let mut core = Core::new(0, &SimOptions { silicon, ..SimOptions::default() });
        let first = run_words(&mut core, &case.bus, &case.spec.words(), 0xD);
        assert_clean(&first, 1);
        // A program with DPU registers only: CNA's group is fresh, or still configured.
        let dpu: Words = case.spec.words().into_iter().filter(|(offset, _)| *offset >= 0x4000).collect();
        let second = run_words(&mut core, &case.bus, &dpu, 0xD);
        match scope {
            PointerScope::DpuCoversAll => assert_hang(&second, "cna-unconfigured", 0),
            PointerScope::OwnBlock => assert_clean(&second, 1),
        }
    }
}

#[test]
fn packed_pixels_with_the_input_converter() {
    // isa.md §9.2 "Single-channel input": uint8 pixels, line pitch 16, converter x - 128; 16 channels of weights.
    let (h, w, oc) = (6usize, 9usize, 32usize);
    let spec = Spec {
        kind: Kind::Int8,
        out: Out::Int32,
        depthwise: false,
        c: 16,
        h,
        w: 16,
        oc,
        k: (3, 3),
        stride: (1, 1),
        dilation: (1, 1),
        pad: (0, 0),
        split: 0xB1,
    };
    let mut case = Case::new(spec, 17);
    let image = Random(18).bytes(16 * h);
    case.bus.put(A, &image);
    let patch = [
        (0x100C, 0x6000_8000),
        (0x104C, 14 << 4 | 14 << 10 | 14 << 16 | 14 << 22),
        (0x1050, 16384 << 16 | 65408),
        (0x1054, 16384 << 16 | 65408),
        (0x1058, 16384 << 16 | 65408),
        (0x105C, 16384 << 16 | 65408),
        (0x1180, 0xFFFF),
        (0x107C, 16),
        (0x1080, 16 * (h as u32 - 1)),
    ];
    let _ = w;
    assert_clean(&case.run(&SimOptions::default(), &patch), 1);
    // Channel 0 holds x - 128, channels 1 to 15 hold 0.
    case.a = (0..16 * h * 16).map(|i| if i < h * 16 { f64::from(image[i]) - 128.0 } else { 0.0 }).collect();
    assert_eq!(case.got(), case.expected());
}

#[test]
fn packed_pixels_of_two_and_three_channels() {
    for channels in 2..=4usize {
        let (h, w) = (5usize, 8usize);
        let spec = Spec {
            kind: Kind::Fp16,
            out: Out::Fp32,
            depthwise: false,
            c: 8,
            h,
            w,
            oc: 16,
            k: (3, 3),
            stride: (1, 1),
            dilation: (1, 1),
            pad: (0, 0),
            split: 0xB1,
        };
        let mut case = Case::new(spec, channels as u64);
        for i in channels * h * w..8 * h * w {
            case.a[i] = 0.0;
        }
        let packed: Vec<u8> = (0..h * w)
            .flat_map(|pixel| (0..channels).map(move |channel| channel * h * w + pixel))
            .flat_map(|at| f16::from_f64(case.a[at]).to_le_bytes())
            .collect();
        case.bus.put(A, &packed);
        let argb = 7 + channels as u32;
        assert_clean(
            &case.run(&SimOptions::default(), &[(0x100C, 0x6000_0120 | argb << 12), (0x107C, w as u32)]),
            1,
        );
        assert_eq!(case.got(), case.expected());
        assert_unmodelled(
            &case.run(&SimOptions::default(), &[(0x100C, 0x4000_0120 | argb << 12)]),
            "packed-pixels",
        );
    }
}

#[test]
fn an_unfed_reader_hangs_until_reset() {
    // isa-notes G-2: op-enable 0x1D with 0x5044 = 0.
    let case = Case::new(Spec::matmul(Kind::Fp16, Out::Fp32, 4, 32, 16), 19);
    let plain = [(0x5004, 0xE), (0x500C, 0), (0x5010, 3), (0x5014, 15), (0x5034, 1), (0x5044, 0x7810)];
    let mut core = Core::new(0, &SimOptions::default());
    let words = |mode: u32| patched(&patched(&case.spec.words(), &plain), &[(0x5044, mode)]);
    assert_clean(&run_words(&mut core, &case.bus, &words(0x7810), 0x1D), 1);
    assert_eq!(case.got(), case.expected());
    assert_hang(&run_words(&mut core, &case.bus, &words(0), 0x1D), "mrdma-unfed", 0);
    assert_hang(&run_words(&mut core, &case.bus, &words(0x7810), 0x1D), "core-wedged", 0);
    core.reset();
    assert_clean(&run_words(&mut core, &case.bus, &words(0x7810), 0x1D), 1);
    // ERDMA on although nobody takes its operand, and an operand without COMB_USE.
    let erdma = patched(&words(0x7810), &[(0x5034, 0x4000_0008)]);
    assert_unmodelled(&run_words(&mut core, &case.bus, &erdma, 0x1D), "erdma-unused");
    core.reset();
    let operand = patched(&erdma, &[(0x4070, 0x1082_02C0)]);
    assert_hang(&run_words(&mut core, &case.bus, &operand, 0x1D), "operand-behind-matmul", 0);
}

#[test]
fn the_ow_stage_needs_the_feature_sums() {
    // isa.md §9.1: acc += OW_OP * sum of x, with QD_EN.
    let case = Case::new(Spec::matmul(Kind::Int8, Out::Int32, 4, 32, 32), 23);
    let patch = [(0x4050, 0x7FC), (0x4054, 0xFFFD)];
    assert_unmodelled(&case.run(&SimOptions::default(), &patch), "ow-without-sums");
    assert_clean(&case.run(&SimOptions::default(), &[patch[0], patch[1], (0x3010, 1)]), 1);
    let row = |pixel: usize| (0..32).map(|k| case.a[k * 4 + pixel]).sum::<f64>();
    let expected: Vec<f64> = case.sums().iter().enumerate().map(|(i, sum)| sum - 3.0 * row(i % 4)).collect();
    assert_eq!(case.got(), expected);
}

/// fp16 pooling words (isa-notes E) for one pass over `c` channels.
fn pool(src: u32, dst: u32, (h, w, c): (u32, u32, u32), method: u32) -> Words {
    let (k, recip) = (2, 0);
    let (oh, ow) = (h / k, w / k);
    vec![
        (0x6004, 0xE),
        (0x7004, 0xE),
        (0x600C, w - 1),
        (0x6010, h - 1),
        (0x6014, c - 1),
        (0x6018, ow - 1),
        (0x601C, oh - 1),
        (0x6020, c - 1),
        (0x6024, 0x10 | method),
        (0x6034, (k - 1) | (k - 1) << 8 | (k - 1) << 16 | (k - 1) << 20),
        (0x6038, recip),
        (0x603C, recip),
        (0x6040, 0),
        (0x6044, 0),
        (0x6048, 0),
        (0x6070, dst),
        (0x607C, oh * ow * 16),
        (0x6084, (oh * ow * 16) | 2),
        (0x60DC, 3),
        (0x700C, w - 1),
        (0x7010, h - 1),
        (0x7014, c - 1),
        (0x701C, src),
        (0x7024, w * 16),
        (0x7028, h * w * 16),
        (0x7030, 2),
    ]
}

#[test]
fn pooling_by_minimum_and_its_quirks() {
    let bus = FlatBus::new(PROGRAM, 0x40_0000);
    let mut random = Random(20);
    let (h, w, c) = (8usize, 8usize, 16usize);
    let values: Vec<f32> = (0..h * w * c).map(|_| random.below(2000) as f32 / 8.0 - 100.0).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
    bus.put(A, &bytes);
    let mut core = Core::new(0, &SimOptions::default());
    assert_clean(&run_words(&mut core, &bus, &pool(A, OUT, (8, 8, 16), 2), 0x60), 1);
    let half = |at: u32, index: usize| {
        let b = bus.get(at + 2 * index as u32, 2);
        f16::from_le_bytes([b[0], b[1]]).to_f32()
    };
    for surface in 0..2 {
        for pixel in 0..16 {
            for lane in 0..8 {
                let (oy, ox) = (pixel / 4, pixel % 4);
                let inputs = (0..4).map(|i| {
                    let (y, x) = (2 * oy + i / 2, 2 * ox + i % 2);
                    values[(surface * 64 + y * 8 + x) * 8 + lane]
                });
                let expected = inputs.fold(f32::INFINITY, f32::min);
                assert_eq!(half(OUT, (surface * 16 + pixel) * 8 + lane), expected);
            }
        }
    }
    // 4 x 4 read again is fine; 2 x 2 written by the PPU and read again is not (G-10); from the host it is.
    let (second, third) = (OUT + 0x1000, OUT + 0x2000);
    assert_clean(&run_words(&mut core, &bus, &pool(OUT, second, (4, 4, 16), 1), 0x60), 1);
    assert_wrong(
        &run_words(&mut core, &bus, &pool(second, third, (2, 2, 16), 1), 0x60),
        "pool-of-small-pool",
    );
    bus.put(second, &bytes[..2 * 4 * 16]);
    assert_clean(&run_words(&mut core, &bus, &pool(second, third, (2, 2, 16), 1), 0x60), 1);
    // int8 data are taken as fp16 (G-11).
    let int8 = patched(&pool(A, OUT, (8, 8, 16), 1), &[(0x6084, 0x100)]);
    assert_wrong(&run_words(&mut core, &bus, &int8, 0x60), "pool-precision");
    for (patch, check) in [
        ((0x6024, 0x13), "pool-mode"),
        ((0x6084, 0x10A), "pool-output"),
        ((0x7010, 3), "pool-size-disagrees"),
    ] {
        core.reset();
        let words = patched(&pool(A, OUT, (8, 8, 16), 1), &[patch]);
        assert_unmodelled(&run_words(&mut core, &bus, &words, 0x60), check);
    }
    for (patch, check) in
        [((0x701C, 0x7000_0000), "pool-read-fault"), ((0x6070, 0x7000_0000), "pool-write-fault")]
    {
        core.reset();
        let words = patched(&pool(A, OUT, (8, 8, 16), 1), &[patch]);
        let outcome = run_words(&mut core, &bus, &words, 0x60);
        match &outcome.end {
            JobEnd::Hang(diagnosis) => assert_eq!(diagnosis.check, check),
            end => panic!("{end:?}"),
        }
    }
}
