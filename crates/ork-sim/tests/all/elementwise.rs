// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stand-alone passes of the output stages (`isa-int4-sdp.md` §3) against plain formulas.

use crate::common;
use common::pass::*;
use common::*;
use half::f16;
use ork_sim::{JobEnd, Order, Overflow, ResetStages, Silicon, StageShift};

#[test]
fn int8_multiply() {
    // Captured constants: za 12, zb 10, zo 21, mult 0x7AA9, shift 21.
    let (m, n) = (8, 64);
    let mut random = Random(1);
    let (a, b) = (random.bytes(m * n), random.bytes(m * n));
    let body = patched(
        &int8_mul(m as u32, n as u32),
        &[(0x4044, 12), (0x4074, 10), (0x4080, 21), (0x4084, 0x7AA9), (0x4088, 21)],
    );
    let (got, outcome) = bytes_pass(&body, &a, &b, Silicon::default());
    assert_clean(&outcome, 1);
    for ((got, a), b) in got.iter().zip(&a).zip(&b) {
        let product = (i64::from(a.cast_signed()) + 12) * (i64::from(b.cast_signed()) + 10);
        let expected = (half_even(product * 0x7AA9, 21) + 21).clamp(-128, 127);
        assert_eq!(i64::from(got.cast_signed()), expected);
    }
}

#[test]
fn int8_add_with_both_scales() {
    // Captured constants: za -9, zb 15, zo -4, mult 0x57A7, shift 29; Pa 0x4000, Pb 0x766D >> 1.
    let (m, n) = (8, 64);
    let mut random = Random(2);
    let (a, b) = (random.bytes(m * n), random.bytes(m * n));
    let body = patched(
        &int8_mul(m as u32, n as u32),
        &[
            (0x4040, 0x2_0040),
            (0x4044, (-9i32).cast_unsigned()),
            (0x4048, 0x4000_0000),
            (0x4070, 0x9042_02C0),
            (0x4074, 15),
            (0x4078, 0x0001_766D),
            (0x4080, (-4i32).cast_unsigned()),
            (0x4084, 0x57A7),
            (0x4088, 29),
        ],
    );
    let (got, outcome) = bytes_pass(&body, &a, &b, Silicon::default());
    assert_clean(&outcome, 1);
    for ((got, a), b) in got.iter().zip(&a).zip(&b) {
        let left = (i64::from(a.cast_signed()) - 9) * 0x4000;
        let right = half_even((i64::from(b.cast_signed()) + 15) * 0x766D, 1);
        let expected = (half_even((left + right) * 0x57A7, 29) - 4).clamp(-128, 127);
        assert_eq!(i64::from(got.cast_signed()), expected);
    }
}

#[test]
fn int8_maximum_and_minimum() {
    let (a, b) = (Random(3).bytes(512), Random(4).bytes(512));
    for (algo, pick) in [(0, i8::max as fn(i8, i8) -> i8), (1, i8::min)] {
        let body = patched(
            &int8_mul(8, 64),
            &[
                (0x4040, 0x2_0040),
                (0x4048, 0x4000_0000),
                (0x4070, 0x9040_02C0 | algo << 16),
                (0x4078, 0x4000),
                (0x4084, 0x4000),
                (0x4088, 28),
            ],
        );
        let (got, outcome) = bytes_pass(&body, &a, &b, Silicon::default());
        assert_clean(&outcome, 1);
        for ((got, a), b) in got.iter().zip(&a).zip(&b) {
            assert_eq!(got.cast_signed(), pick(a.cast_signed(), b.cast_signed()));
        }
    }
}

#[test]
fn int8_multiply_per_channel() {
    // ERDMA_DATA_MODE 0: one contiguous value per channel.
    let (m, n) = (5usize, 48usize);
    let a = Random(5).bytes(m * n);
    let b = Random(6).bytes(n);
    let body = patched(&int8_mul(m as u32, n as u32), &[(0x5034, 4), (0x4084, 0x4000), (0x4088, 18)]);
    let bus = bus();
    bus.put(A, &a);
    bus.put(B, &b);
    assert_clean(&run_words(&mut fresh(Silicon::default()), &bus, &body, 0x18), 1);
    let got = bus.get(OUT, m * n);
    for row in 0..m {
        for (col, b) in b.iter().enumerate() {
            let at = col / 16 * 16 * m + 16 * row + col % 16;
            let product = i64::from(a[at].cast_signed()) * i64::from(b.cast_signed());
            let expected = half_even(product * 0x4000, 18).clamp(-128, 127);
            assert_eq!(i64::from(got[at].cast_signed()), expected, "row {row} column {col}");
        }
    }
}

#[test]
fn a_stride_of_zero_reads_the_first_atom_everywhere() {
    // isa-notes G-18.
    let (m, n) = (16usize, 32usize);
    let (a, b) = (vec![1; m * n], Random(7).bytes(m * n));
    let body = patched(&int8_mul(m as u32, n as u32), &[(0x5040, 0)]);
    let (got, _) = bytes_pass(&body, &a, &b, Silicon::default());
    assert_eq!(got[..16 * m], b[..16 * m]);
    assert_eq!(got[16 * m..], b[..16 * m], "the second surface repeats the first");
}

fn int16_add(shift: u32, shift_neg: u32) -> Words {
    patched(
        &int8_mul(8, 32),
        &[
            (0x4010, 0x2400_0001 | shift_neg << 4),
            (0x4040, 0x2_0040),
            (0x4048, 0x4000_0000 | shift << 8),
            (0x4070, 0x9082_02C0),
            (0x4078, 0x4000),
            (0x4084, 0x4000),
            (0x4088, 28),
            (0x5034, 0x4000_0008),
            (0x5044, 0xF821),
        ],
    )
}

#[test]
fn a_forgotten_negative_shift_halves_negative_inputs() {
    // isa-int4-sdp.md §3.4 "int16 add halves negatives": for a = b < 0 the result is 0.75 (a + b).
    let a: Vec<u8> = (0..256i16).flat_map(|i| (i * 100 - 12_800).to_le_bytes()).collect();
    let sums = |body: &[(u16, u32)]| {
        let (got, outcome) = bytes_pass(body, &a, &a, Silicon::default());
        assert_clean(&outcome, 1);
        got.as_chunks::<2>().0.iter().map(|b| i64::from(i16::from_le_bytes(*b))).collect::<Vec<_>>()
    };
    let right = sums(&int16_add(0, 0));
    let halved = sums(&int16_add(0, 1));
    for i in 0..256i64 {
        let x = i * 100 - 12_800;
        assert_eq!(right[i as usize], 2 * x);
        assert_eq!(halved[i as usize], if x < 0 { x + x / 2 } else { 2 * x });
    }
}

#[test]
fn int16_identity_gain() {
    let (a, b) = (Random(8).bytes(512), [1u8, 0].repeat(256));
    let body = patched(
        &int8_mul(8, 32),
        &[(0x4010, 0x2400_0001), (0x4070, 0x9080_02C4), (0x5034, 0x4000_0008), (0x5044, 0xF821)],
    );
    let (got, outcome) = bytes_pass(&body, &a, &b, Silicon::default());
    assert_clean(&outcome, 1);
    assert_eq!(got, a);
}

#[test]
fn a_multiplier_operand_beyond_16_bits_wraps_and_is_reported() {
    let (a, b) = (vec![3u8; 512], vec![100u8; 512]);
    let body = patched(&int8_mul(8, 64), &[(0x4074, 32_700), (0x4088, 30)]);
    let (got, outcome) = bytes_pass(&body, &a, &b, Silicon::default());
    assert_wrong(&outcome, "operand-wraps");
    let expected = half_even(3 * (32_800 - 65_536) * 0x4000, 30);
    assert!(got.iter().all(|byte| i64::from(byte.cast_signed()) == expected));
}

/// Values that pass through BS or BN: multiply, ReLU, clamp.
fn through(offset: u16, cfg: u32, mul: u32, relux: u32, a: &[u8]) -> Vec<i8> {
    let body = patched(
        &int8_mul(8, 64),
        &[
            (0x4040, 0x53),
            (0x4070, 0x383),
            (0x5034, 1),
            (offset, cfg),
            (offset + 8, mul),
            (offset + 12, relux),
            (0x4084, 1),
            (0x4088, 0),
        ],
    );
    let (got, outcome) = bytes_pass(&body, a, a, Silicon::default());
    assert_clean(&outcome, 1);
    signed(got)
}

#[test]
fn a_constant_operand() {
    // EW_OP_SRC 0: EW_OP_VALUE_0 is multiplied with every element.
    let a = Random(13).bytes(512);
    let body = patched(&int8_mul(8, 64), &[(0x4070, 0x9040_0284), (0x4090, 3), (0x5034, 1)]);
    let (got, outcome) = bytes_pass(&body, &a, &a, Silicon::default());
    assert_clean(&outcome, 1);
    for (got, x) in got.iter().zip(&a) {
        let expected = (i64::from(x.cast_signed()) * 3).clamp(-128, 127);
        assert_eq!(i64::from(got.cast_signed()), expected);
    }
}

#[test]
fn relu_and_its_limit() {
    let a = Random(9).bytes(512);
    for stage in [0x4040, 0x4060] {
        // ALU and multiplier bypassed, ReLU on; then also RELUX_EN.
        let relu = through(stage, 0x12, 0, 0, &a);
        let relux = through(stage, 0x92, 0, 50, &a);
        for ((x, relu), relux) in a.iter().map(|x| x.cast_signed()).zip(relu).zip(relux) {
            assert_eq!(relu, x.max(0));
            assert_eq!(relux, x.clamp(0, 50));
        }
    }
}

#[test]
fn prelu_multiplies_negative_data_only() {
    let a = Random(10).bytes(512);
    // ALU bypassed, MUL_PRELU, no ReLU; multiplier 3, shift 2 on both sides of zero.
    let body = patched(
        &int8_mul(8, 64),
        &[
            (0x4010, 2 << 4),
            (0x4040, 0x62),
            (0x4048, 3 << 16 | 2 << 8),
            (0x4070, 0x383),
            (0x5034, 1),
            (0x4084, 1),
            (0x4088, 0),
        ],
    );
    let (got, outcome) = bytes_pass(&body, &a, &a, Silicon::default());
    assert_clean(&outcome, 1);
    for (got, x) in got.iter().zip(&a) {
        let x = i64::from(x.cast_signed());
        let expected = if x < 0 { half_even(x * 3, 2) } else { x };
        assert_eq!(i64::from(got.cast_signed()), expected);
    }
}

#[test]
fn readers_that_nobody_feeds_or_that_do_not_exist() {
    let a = vec![0u8; 512];
    for (patch, check) in [((0x5034, 0x8000_0004), "operand-mode"), ((0x5044, 0x7811), "mrdma-off")] {
        let (_, outcome) = bytes_pass(&patched(&int8_mul(8, 64), &[patch]), &a, &a, Silicon::default());
        assert_hang(&outcome, check, 0);
    }
    // isa-int4-sdp.md §3.8: MRDMA on while the DPU takes sums, whatever the reader's own FLYING_MODE.
    let unfed = patched(&int8_mul(8, 64), &[(0x400C, 0x1E4)]);
    assert_hang(&bytes_pass(&unfed, &a, &a, Silicon::default()).1, "mrdma-unfed", 0);
    // With MRDMA off nothing reads either.
    let off = patched(&unfed, &[(0x5044, 0x7811)]);
    assert_hang(&bytes_pass(&off, &a, &a, Silicon::default()).1, "mrdma-off", 0);
    for (patch, check) in [
        ((0x5044, 0x7800), "flying-disagrees"),
        ((0x5044, 0x7901), "comb-use"),
        ((0x5048, 1 << 12), "rdma-mode"),
        ((0x501C, 4), "per-channel-operands"),
        ((0x5034, 0x4000_0008), "operand-size"),
        ((0x4070, 0x9047_02C0), "alu-algo"),
        ((0x4070, 0x90C2_02C0), "operand-size"),
        ((0x400C, 0x1E7), "dpu-mode"),
        ((0x4010, 0x4000_0000), "output-format"),
        ((0x4030, 3), "dpu-size-disagrees"),
        ((0x5044, 0x2_7801), "main-precision"),
        ((0x4070, 0x9060_02C4), "ew-mode"),
        ((0x5034, 1), "operand-missing"),
        ((0x506C, 0x10), "operand-notch"),
        ((0x4040, 0x2_0150), "stage-operand"),
    ] {
        let (_, outcome) = bytes_pass(&patched(&int8_mul(8, 64), &[patch]), &a, &a, Silicon::default());
        assert_unmodelled(&outcome, check);
    }
    for (patch, check) in [
        ([(0x4040, 0x2_0040), (0x4048, 1)], "stage-operand"),
        ([(0x4070, 0x9040_0284), (0x4094, 1)], "ew-constants"),
    ] {
        let mut patch = patch.to_vec();
        patch.push((0x5034, 1));
        let (_, outcome) = bytes_pass(&patched(&int8_mul(8, 64), &patch), &a, &a, Silicon::default());
        assert_unmodelled(&outcome, check);
    }
    let (_, outcome) = bytes_pass(&patched(&int8_lut(), &[(0x4108, 0x69)]), &a, &a, Silicon::default());
    assert_unmodelled(&outcome, "lut-mode");
    // A 32-bit operand: multiplying is known, adding is not.
    let wide = [(0x5034, 0x4000_000C), (0x4070, 0x90C2_02C0)];
    let (_, outcome) = bytes_pass(&patched(&int8_mul(8, 64), &wide), &a, &a, Silicon::default());
    assert_unmodelled(&outcome, "integer-add-32");
}

#[test]
fn rows_up_to_8176_and_no_further() {
    for (m, good) in [(8176u32, true), (8177, false)] {
        let bus = FlatBus::new(PROGRAM, 0x30_0000);
        let body = patched(
            &int8_mul(m, 16),
            &[(0x5018, PROGRAM + 0x8_0000), (0x5038, PROGRAM + 0x10_0000), (0x4020, PROGRAM + 0x18_0000)],
        );
        let outcome = run_words(&mut fresh(Silicon::default()), &bus, &body, 0x18);
        if good {
            assert_clean(&outcome, 1);
        } else {
            assert_hang(&outcome, "sdp-rows", 0);
        }
    }
}

#[test]
fn output_over_its_own_input_corrupts() {
    let (a, b) = (Random(11).bytes(512), vec![1u8; 512]);
    for (out, wrong) in [(A, true), (B + 256, true), (A + 512, false)] {
        let bus = bus();
        bus.put(A, &a);
        bus.put(B, &b);
        let body = patched(&int8_mul(8, 64), &[(0x4020, out)]);
        let outcome = run_words(&mut fresh(Silicon::default()), &bus, &body, 0x18);
        if wrong {
            assert_wrong(&outcome, "in-place");
            assert_ne!(bus.get(out, 512), a);
        } else {
            assert_clean(&outcome, 1);
            assert_eq!(bus.get(out, 512), a);
        }
    }
}

#[test]
fn a_copy_onto_itself_is_harmless() {
    // isa-int4-sdp.md §3.5: the captured load of tables passes a scratch buffer through itself, all stages bypassed.
    let a = Random(12).bytes(512);
    let copy = [(0x4040, 0x53), (0x4070, 0x383), (0x5034, 1), (0x4084, 1), (0x4088, 0), (0x4020, A)];
    for (size, patch, harmless) in [
        ((1, 16), vec![], true),
        ((8, 64), vec![], true),
        // A stage is on, the output is shifted by an atom, or its surfaces lie elsewhere.
        ((8, 64), vec![(0x4040, 0x12)], false),
        ((8, 64), vec![(0x4020, A + 16)], false),
        ((8, 64), vec![(0x40C0, 0x70)], false),
        ((8, 64), vec![(0x4038, 1)], false),
    ] {
        let bus = bus();
        bus.put(A, &a);
        let body = patched(&patched(&int8_mul(size.0, size.1), &copy), &patch);
        let outcome = run_words(&mut fresh(Silicon::default()), &bus, &body, 0x18);
        if harmless {
            assert_clean(&outcome, 1);
            assert_eq!(bus.get(A, 512), a);
        } else {
            assert_wrong(&outcome, "in-place");
        }
    }
}

#[test]
fn fp16_operations_and_the_order_of_their_operands() {
    let plain = Silicon::default();
    let reversed = Silicon { sub_order: Order::Reversed, ..plain };
    for (algo, forward, backward) in
        [(2, 9.0, 9.0), (4, 3.0, -3.0), (3, 2.0, 0.5), (0, 6.0, 6.0), (1, 3.0, 3.0)]
    {
        assert_eq!(fp16_pass(&fp16(algo, &[]), 6.0, 3.0, plain), forward);
        assert_eq!(fp16_pass(&fp16(algo, &[]), 6.0, 3.0, reversed), backward);
    }
    // Subnormals are kept: 0x0003 + 0x0005 = 0x0008.
    let tiny = |bits| f16::from_bits(bits).to_f32();
    assert_eq!(fp16_pass(&fp16(2, &[]), tiny(3), tiny(5), plain), tiny(8));
}

#[test]
fn fp16_overflow_by_variant() {
    assert_eq!(fp16_pass(&fp16(2, &[]), 60_000.0, 60_000.0, Silicon::default()), f32::INFINITY);
    let clamp = Silicon { fp16_overflow: Overflow::Clamp, ..Silicon::default() };
    assert_eq!(fp16_pass(&fp16(2, &[]), 60_000.0, 60_000.0, clamp), 65_504.0);
    assert_eq!(fp16_pass(&fp16(4, &[]), -60_000.0, 60_000.0, clamp), -65_504.0);
}

#[test]
fn float_stages_take_fp32_and_fp16_operands() {
    // BS: (x - 1.5) * 2; BN: x * 3 + 0.25, clamped to 20; EW bypassed.
    let body = fp16(
        2,
        &[
            (0x4040, 0x4_0040),
            (0x4044, 1.5f32.to_bits()),
            (0x4048, u32::from(f16::from_f32(2.0).to_bits()) << 16),
            (0x4060, 0x2_0080),
            (0x4064, 0.25f32.to_bits()),
            (0x4068, u32::from(f16::from_f32(3.0).to_bits()) << 16),
            (0x406C, 20f32.to_bits()),
            (0x4070, 0x383),
            (0x5034, 1),
        ],
    );
    let silicon = Silicon::default();
    assert_eq!(fp16_pass(&body, 4.0, 0.0, silicon), 15.25);
    assert_eq!(fp16_pass(&body, 9.0, 0.0, silicon), 20.0, "RELUX");
    assert_eq!(fp16_pass(&body, -4.0, 0.0, silicon), 0.0, "ReLU");
    assert_eq!(fp16_pass(&body, f32::NAN, 0.0, silicon), 0.0, "ReLU of NaN");
}

#[test]
fn stage_shift_by_variant() {
    // BS: x * 1 >> 1 on odd values.
    let body = patched(
        &int8_mul(8, 64),
        &[
            (0x4010, 1 << 4),
            (0x4040, 0x42),
            (0x4048, 1 << 16 | 1 << 8),
            (0x4070, 0x383),
            (0x5034, 1),
            (0x4084, 1),
            (0x4088, 0),
        ],
    );
    let a: Vec<u8> = (0..512u32).map(|i| ((i % 7) as i8 - 3).cast_unsigned()).collect();
    for (shift, expected) in [
        (StageShift::HalfEven, [-2, -1, 0, 0, 0, 1, 2]),
        (StageShift::Floor, [-2, -1, -1, 0, 0, 1, 1]),
        (StageShift::HalfAway, [-2, -1, -1, 0, 1, 1, 2]),
    ] {
        let (got, _) = bytes_pass(&body, &a, &a, Silicon { stage_shift: shift, ..Silicon::default() });
        assert_eq!(signed(got)[..7], expected, "{shift:?}");
    }
}

#[test]
fn stages_that_no_program_configures() {
    // A short program leaves BS, BN and EW alone (isa.md §2.6).
    let body: Words = patched(&int8_mul(8, 64), &[(0x4084, 1), (0x4088, 0)])
        .into_iter()
        .filter(|(offset, _)| !matches!(offset, 0x4040..=0x404C | 0x4060..=0x407C))
        .map(|(offset, value)| (offset, if offset == 0x5034 { 1 } else { value }))
        .collect();
    let a = Random(12).bytes(512);
    let (got, outcome) = bytes_pass(&body, &a, &a, Silicon::default());
    assert_clean(&outcome, 1);
    assert_eq!(got, a, "passes through");
    let zero = Silicon { reset_stages: ResetStages::Zero, ..Silicon::default() };
    let (got, outcome) = bytes_pass(&body, &a, &a, zero);
    assert!(outcome.end != JobEnd::Done || got != a, "an active maximum with 0, times 0");
}

#[test]
fn unmapped_operands_hang() {
    let a = vec![0u8; 512];
    for offset in [0x5018, 0x5038] {
        let (_, outcome) =
            bytes_pass(&patched(&int8_mul(8, 64), &[(offset, 0x7000_0000)]), &a, &a, Silicon::default());
        assert_hang(&outcome, "operand-fault", 0);
    }
}
