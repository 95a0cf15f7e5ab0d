// SPDX-License-Identifier: MIT OR Apache-2.0
//! Element-wise passes over int8, int16 and int32 with the register values of a public program that its author ran on
//! an RK3588 (allbilly/rk3588, docs/assumptions.md S-80), against plain arithmetic.

use crate::common;
use common::pass::*;
use common::*;
use ork_sim::Silicon;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Int8,
    Int16,
    Int32,
}

impl Type {
    const ALL: [Self; 3] = [Self::Int8, Self::Int16, Self::Int32];

    fn bytes(self) -> usize {
        match self {
            Self::Int8 => 1,
            Self::Int16 => 2,
            Self::Int32 => 4,
        }
    }

    /// Precision code and EDATA_SIZE.
    fn codes(self) -> (u32, u32) {
        match self {
            Self::Int8 => (0, 1),
            Self::Int16 => (1, 2),
            Self::Int32 => (4, 3),
        }
    }

    fn limits(self) -> (i64, i64) {
        let half = 1i64 << (8 * self.bytes() - 1);
        (-half, half - 1)
    }

    /// Places `[pixel][channel]` values as surfaces of 16-byte atoms.
    fn pack(self, values: &[i64], width: usize, channels: usize) -> Vec<u8> {
        let lanes = 16 / self.bytes();
        let mut bytes = vec![0; channels.div_ceil(lanes) * width * 16];
        for (i, value) in values.iter().enumerate() {
            let at = self.place(width, channels, i);
            bytes[at..at + self.bytes()].copy_from_slice(&value.to_le_bytes()[..self.bytes()]);
        }
        bytes
    }

    fn unpack(self, bytes: &[u8], width: usize, channels: usize) -> Vec<i64> {
        (0..width * channels)
            .map(|i| {
                let at = self.place(width, channels, i);
                let mut word = [0; 8];
                word[8 - self.bytes()..].copy_from_slice(&bytes[at..at + self.bytes()]);
                i64::from_le_bytes(word) >> (64 - 8 * self.bytes())
            })
            .collect()
    }

    fn place(self, width: usize, channels: usize, i: usize) -> usize {
        let lanes = 16 / self.bytes();
        let (pixel, channel) = (i / channels, i % channels);
        (channel / lanes * width + pixel) * 16 + channel % lanes * self.bytes()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Max,
    Min,
    Add,
    Minus,
    Abs,
    Neg,
    Mul,
}

impl Op {
    const ALL: [Self; 7] = [Self::Max, Self::Min, Self::Add, Self::Minus, Self::Abs, Self::Neg, Self::Mul];

    fn bits(self) -> u32 {
        match self {
            // EQUAL_EN is set with the extremes.
            Self::Max => 1 << 21,
            Self::Min => 1 << 21 | 1 << 16,
            Self::Add => 2 << 16,
            Self::Minus => 4 << 16,
            Self::Abs => 5 << 16,
            Self::Neg => 6 << 16,
            Self::Mul => 1 << 2,
        }
    }

    fn expected(self, ty: Type, a: i64, b: i64) -> i64 {
        let (low, high) = ty.limits();
        let wide = ty == Type::Int32;
        match self {
            Self::Max => a.max(b),
            Self::Min => a.min(b),
            Self::Add => (a + b).clamp(low, high),
            // The smallest int32 is its own negative.
            Self::Minus if wide && b == low => (a + low).clamp(low, high),
            Self::Minus => (a - b).clamp(low, high),
            Self::Abs | Self::Neg if wide && a == low => low,
            Self::Abs => a.abs().clamp(low, high),
            Self::Neg => (-a).clamp(low, high),
            Self::Mul => (a * i64::from(b as i16)).clamp(low, high),
        }
    }
}

fn words(ty: Type, op: Op, width: usize, channels: usize) -> Words {
    let (code, size) = ty.codes();
    let (width, last, stride) = (width as u32 - 1, channels as u32 - 1, 16 * width as u32);
    let bypass = u32::from(ty == Type::Int32) << 8;
    vec![
        (0x4004, 0xE),
        (0x5004, 0xE),
        (0x501C, 1),
        (0x5028, 1),
        (0x400C, 0x1E5),
        (0x4010, code << 29 | code << 26 | code),
        (0x4024, stride),
        (0x4030, width),
        (0x4034, 0),
        (0x4038, 0),
        (0x403C, last << 16 | last),
        (0x4040, 0x53),
        (0x4044, 0),
        (0x4048, 0),
        (0x4050, 2),
        (0x4058, last),
        (0x405C, width),
        (0x4060, 0x53),
        (0x4064, 0),
        (0x4068, 0),
        (0x4070, 1 << 28 | size << 22 | 0x2C0 | bypass | op.bits()),
        (0x4078, 1),
        (0x40C0, stride),
        (0x500C, width),
        (0x5010, 0),
        (0x5014, last),
        (0x5034, 1 << 30 | size << 2),
        (0x5040, stride),
        (0x5048, 0),
        (0x504C, 0),
        (0x506C, 0),
        (0x4020, OUT),
        (0x5018, A),
        (0x5038, B),
        (0x5044, code << 15 | 15 << 11 | code << 5 | 1),
        (0x5068, 0x0101_0101),
    ]
}

fn run(
    ty: Type,
    op: Op,
    (width, channels): (usize, usize),
    a: &[i64],
    b: &[i64],
) -> (Vec<i64>, ork_sim::JobOutcome) {
    let bus = bus();
    bus.put(A, &ty.pack(a, width, channels));
    bus.put(B, &ty.pack(b, width, channels));
    let outcome = run_words(&mut fresh(Silicon::default()), &bus, &words(ty, op, width, channels), 0x18);
    let bytes = bus.get(OUT, ty.pack(a, width, channels).len());
    (ty.unpack(&bytes, width, channels), outcome)
}

#[track_caller]
fn check(ty: Type, op: Op, shape: (usize, usize), a: &[i64], b: &[i64]) {
    let (got, outcome) = run(ty, op, shape, a, b);
    if op == Op::Mul && b.iter().any(|b| i64::from(*b as i16) != *b) {
        assert_wrong(&outcome, "operand-wraps");
    } else {
        assert_clean(&outcome, 1);
    }
    for (i, got) in got.iter().enumerate() {
        assert_eq!(*got, op.expected(ty, a[i], b[i]), "{ty:?} {op:?} {shape:?}: {} and {}", a[i], b[i]);
    }
}

#[test]
fn every_operation_on_whole_and_short_surfaces() {
    for ty in Type::ALL {
        for op in Op::ALL {
            for width in 1..=3 {
                for channels in [3, 7, 8, 9, 15, 16, 17, 31, 32, 33] {
                    let count = (width * channels) as i64;
                    let a: Vec<i64> = (0..count).map(|i| (i * 17 + 3) % 101 - 50).collect();
                    let b: Vec<i64> = (0..count).map(|i| (i * 11 + 7) % 31 - 15).collect();
                    check(ty, op, (width, channels), &a, &b);
                }
            }
        }
    }
}

#[test]
fn int32_operands_are_whole_except_in_products() {
    let a = [-1000, -2000, -7, -1, 0, 1, 2000, 1000];
    let b = [50_000, -50_000, 2, -1, 1, 2, -50_000, 50_000];
    for op in Op::ALL {
        check(Type::Int32, op, (2, 4), &a, &b);
    }
    // 50000 is -15536 to the multiplier.
    let (got, _) = run(Type::Int32, Op::Mul, (2, 4), &a, &b);
    assert_eq!(got[0], -1000 * -15_536);
}

#[test]
fn operations_at_the_ends_of_the_range() {
    for ty in Type::ALL {
        let (low, high) = ty.limits();
        let a = [high, low, high, low, -1, 0, 1, high / 2];
        let b = [1, -1, high, low, low, high, -1, 3];
        for op in Op::ALL {
            check(ty, op, (1, 8), &a, &b);
        }
    }
    let (low, _) = Type::Int32.limits();
    let edge = |op, a, b| run(Type::Int32, op, (1, 4), &[a; 4], &[b; 4]).0[0];
    assert_eq!(edge(Op::Abs, low, 1), low);
    assert_eq!(edge(Op::Neg, low, 1), low);
    for a in [low, -1, 0] {
        assert_eq!(edge(Op::Minus, a, low), low, "{a}");
    }
}

#[test]
fn int16_sums_stored_as_int32() {
    // Two surfaces of four lanes with SIZE_E 1; CVT_TYPE and CVT_ROUND of the operand converter are set.
    let a: [i16; 8] = [-30_000, -1200, -7, -1, 0, 1, 1200, 30_000];
    let b: [i16; 8] = [-30_000, -30, 2, -1, 1, 2, -30, 30_000];
    let body = patched(
        &words(Type::Int16, Op::Add, 1, 8),
        &[
            (0x4010, 4 << 29 | 1 << 26 | 1),
            (0x4024, 16),
            (0x4050, 1 << 8 | 1 << 5 | 1 << 2 | 2),
            (0x4070, 3 << 30 | 1 << 28 | 2 << 22 | 2 << 16 | 0x2C0),
            (0x40C0, 32),
        ],
    );
    let bus = bus();
    bus.put(A, &a.map(i16::to_le_bytes).concat());
    bus.put(B, &b.map(i16::to_le_bytes).concat());
    assert_clean(&run_words(&mut fresh(Silicon::default()), &bus, &body, 0x18), 1);
    for (i, got) in bus.get_i32(OUT, 8).into_iter().enumerate() {
        assert_eq!(got, i32::from(a[i]) + i32::from(b[i]));
    }
}

#[test]
fn what_is_refused() {
    let int32 = words(Type::Int32, Op::Add, 1, 4);
    let refused = |body: &Words, patch: Patch<'_>, check: &str| {
        let outcome = run_words(&mut fresh(Silicon::default()), &bus(), &patched(body, patch), 0x18);
        assert_unmodelled(&outcome, check);
    };
    // The operand converter on, or other operations than the known ones.
    refused(&int32, &[(0x4070, 0x10C2_02C0)], "integer-add-32");
    for algo in [3, 7, 8] {
        refused(&int32, &[(0x4070, 0x10C0_03C0 | algo << 16)], "alu-algo");
    }
    // EQUAL_EN with a sum, BINARY_EN with a maximum.
    refused(&int32, &[(0x4070, 0x10E2_03C0)], "ew-mode");
    refused(&int32, &[(0x4070, 0x10D0_03C0)], "ew-mode");
    // int32 goes out as int32 only; BS has no absolute value.
    refused(&int32, &[(0x4010, 1 << 29 | 4 << 26 | 4)], "output-format");
    refused(&int32, &[(0x4040, 0x5_0050)], "alu-algo");
}
