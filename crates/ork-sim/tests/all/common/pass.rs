// SPDX-License-Identifier: MIT OR Apache-2.0
//! Element-wise passes and tables by the captured programs (`isa-int4-sdp.md` §3.3).
use half::f16;
use ork_sim::{Core, Silicon, SimOptions};

use super::{FlatBus, PROGRAM, Patch, Words, assert_clean, patched, run_words};

pub const A: u32 = PROGRAM + 0x1_0000;
pub const B: u32 = PROGRAM + 0x2_0000;
pub const OUT: u32 = PROGRAM + 0x3_0000;

/// The 69 registers of `isa-int4-sdp.md` §3.3 that matter here, column "int8 MUL", for `m` rows and `n` columns.
pub fn int8_mul(m: u32, n: u32) -> Words {
    vec![
        (0x4004, 0xE),
        (0x5004, 0xE),
        (0x400C, 0x1E5),
        (0x4010, 0),
        (0x4014, 0),
        (0x4020, OUT),
        (0x4024, 16 * m),
        (0x4030, m - 1),
        (0x4034, 0),
        (0x4038, 0),
        (0x403C, (n - 1) << 16 | (n - 1)),
        (0x4040, 0x2_0050),
        (0x4044, 0),
        (0x4048, 0),
        (0x404C, 0),
        (0x4050, 2),
        (0x4054, 0),
        (0x4058, n - 1),
        (0x405C, m - 1),
        (0x4060, 0x53),
        (0x4064, 0),
        (0x4068, 0),
        (0x406C, 0),
        (0x4070, 0x9040_02C4),
        (0x4074, 0),
        (0x4078, 1),
        (0x407C, 0),
        (0x4080, 0),
        (0x4084, 0x4000),
        (0x4088, 14),
        (0x4090, 0),
        (0x40C0, 16 * m),
        (0x40C4, 0),
        (0x4100, 0),
        (0x4104, 0),
        (0x4108, 0),
        (0x410C, 0),
        (0x4110, 0),
        (0x4114, 0),
        (0x4118, 0),
        (0x411C, 0),
        (0x4120, 0),
        (0x4124, 0),
        (0x4128, 0),
        (0x412C, 0),
        (0x500C, m - 1),
        (0x5010, 0),
        (0x5014, n - 1),
        (0x5018, A),
        (0x501C, 0),
        (0x5020, 0),
        (0x5028, 0),
        (0x502C, 0),
        (0x5034, 0x4000_0004),
        (0x5038, B),
        (0x5040, 16 * m),
        (0x5044, 0x7801),
        (0x5048, 0),
        (0x504C, 0),
        (0x5064, 0),
        (0x5068, 0x0101_0101),
        (0x506C, 0),
    ]
}

pub fn bus() -> FlatBus {
    FlatBus::new(PROGRAM, 0x5_0000)
}

pub fn fresh(silicon: Silicon) -> Core {
    Core::new(0, &SimOptions { silicon, ..SimOptions::default() })
}

/// Runs a dense element-wise pass over bytes: every layout is the same flat one.
pub fn bytes_pass(
    body: &[(u16, u32)],
    a: &[u8],
    b: &[u8],
    silicon: Silicon,
) -> (Vec<u8>, ork_sim::JobOutcome) {
    let bus = bus();
    bus.put(A, a);
    bus.put(B, b);
    let outcome = run_words(&mut fresh(silicon), &bus, body, 0x18);
    (bus.get(OUT, a.len()), outcome)
}

/// fp16 add, `isa-int4-sdp.md` §3.3.
pub fn fp16(algo: u32, extra: Patch<'_>) -> Words {
    let mut patch = vec![
        (0x4010, 0x4800_0002),
        (0x4040, 0x53),
        (0x4070, 0x1080_02C0 | algo << 16),
        (0x4084, 0x1_0001),
        (0x4088, 0),
        (0x5034, 0x4000_0008),
        (0x5044, 0x1_7849),
    ];
    patch.extend_from_slice(extra);
    patched(&int8_mul(4, 8), &patch)
}

pub fn halves(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect()
}

pub fn fp16_pass(body: &[(u16, u32)], a: f32, b: f32, silicon: Silicon) -> f32 {
    let (got, outcome) = bytes_pass(body, &halves(&[a; 32]), &halves(&[b; 32]), silicon);
    assert_clean(&outcome, 1);
    f16::from_le_bytes([got[0], got[1]]).to_f32()
}

/// Tables for the int8 lookup: entry i of the joined view holds `f(i)`.
pub fn load_tables(body: &mut Words, f: impl Fn(usize) -> i16) {
    let mut words = Words::new();
    for table in 0..2u32 {
        words.push((0x4100, 0x2_0000 | table << 16));
        for i in 0..513 {
            let value = f(table as usize * 513 + i);
            words.push((0x4104, i32::from(value).cast_unsigned()));
        }
    }
    // Behind S_POINTER, before the rest; the plain zeros of the body write nothing.
    body.splice(2..2, words);
}

pub fn int8_lut() -> Words {
    patched(
        &int8_mul(8, 64),
        &[
            (0x4004, 0x30),
            (0x5004, 0x30),
            (0x4010, 0x2000),
            (0x4040, 0x53),
            (0x4060, 0x2_0040),
            (0x4064, (-33_336i32).cast_unsigned()),
            (0x4068, 0x411C_0800),
            (0x4070, 0x302),
            (0x4078, 1),
            (0x4084, 1),
            (0x4088, 0),
            (0x4108, 0x68),
            (0x410C, 0x5_0500),
            (0x4110, 0xFFFF_C000),
            (0x411C, 0x4000),
            (0x4128, 0x4032_0000),
            (0x412C, 0x1A0),
            (0x5034, 1),
            (0x5038, 0),
            (0x5040, 0),
        ],
    )
}

/// fp16 lookup with a two-sided table of constant `entry`, affine converter.
pub fn fp16_lut(offset: i32, minus_exp: u32, f: impl Fn(usize) -> i16) -> Words {
    let mut body = fp16(
        0,
        &[
            (0x4060, 0x2_0040),
            (0x4064, 0x8000_0000),
            (0x4068, u32::from(f16::from_f32(1024.0).to_bits()) << 16),
            (0x4070, 0x302),
            (0x4080, offset.cast_unsigned()),
            (0x4088, 0x8000_0000 | minus_exp << 12),
            (0x4108, 0x68),
            (0x410C, 0x5_0500),
            (0x4110, 0xFFFF_C000),
            (0x411C, 0x4000),
            (0x5034, 1),
        ],
    );
    load_tables(&mut body, f);
    body
}
