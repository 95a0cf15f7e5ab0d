// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lookup tables (`isa-notes.md` NS.1, `isa-int4-sdp.md` §3.5, §3.6).
mod common;

use common::pass::*;
use common::*;
use half::f16;
use ork_sim::{AffineZero, Between, LutBelow, Silicon};

#[test]
fn int8_lookup_by_the_captured_index() {
    // isa-int4-sdp.md §3.5 "Index test values": inputs -128, -1, 0, 2, 3, 127 fall to the entries below.
    let inputs = [-128i8, -1, 0, 2, 3, 127];
    let mut a = vec![0u8; 512];
    for (byte, input) in a.iter_mut().zip(inputs) {
        *byte = input.cast_unsigned();
    }
    // A ramp of the joined view, 3 per entry below and above the captured places.
    for (base, expected) in [(247, 0), (505, 1), (507, 2), (513, 3), (515, 4), (513 + 254, 5)] {
        let mut body = int8_lut();
        load_tables(&mut body, |i| ((i as i64 - base) * 32).clamp(-3200, 3200) as i16);
        let (got, outcome) = bytes_pass(&body, &a, &a, Silicon::default());
        assert_clean(&outcome, 1);
        // The rest in 32nds: 15, 28, 29, 0, 1, 10.
        let rest = [15, 28, 29, 0, 1, 10][expected];
        assert_eq!(got[expected].cast_signed(), rest, "input {}", inputs[expected]);
    }
}

#[test]
fn a_table_survives_jobs_but_not_a_reset() {
    let a = vec![0u8; 512];
    let bus = bus();
    bus.put(A, &a);
    let mut core = fresh(Silicon::default());
    let mut body = int8_lut();
    load_tables(&mut body, |_| 77);
    assert_clean(&run_words(&mut core, &bus, &body, 0x18), 1);
    assert!(bus.get(OUT, 512).iter().all(|byte| *byte == 77));
    // Without loading: the same table.
    bus.put(OUT, &[0; 512]);
    assert_clean(&run_words(&mut core, &bus, &int8_lut(), 0x18), 1);
    assert!(bus.get(OUT, 512).iter().all(|byte| *byte == 77));
    core.reset();
    assert_clean(&run_words(&mut core, &bus, &int8_lut(), 0x18), 1);
    assert!(bus.get(OUT, 512).iter().all(|byte| *byte == 0));
}

#[test]
fn a_table_loaded_by_another_task_of_an_alternating_chain_races() {
    use ork_isa::Cmd;
    let bus = bus();
    let mut load = int8_lut();
    load_tables(&mut load, |_| 7);
    let chain = |pointer: u32| {
        let first = patched(&load, &[(0x4004, pointer), (0x5004, pointer)]);
        let second = patched(&int8_lut(), &[(0x4004, pointer), (0x5004, pointer), (0x4020, OUT + 0x1000)]);
        let (mut bytes, amount) = assemble(&first, 0x18);
        let (next, next_amount) = assemble(&second, 0x18);
        let place = first.len() * 8;
        bytes[place..place + 8].copy_from_slice(&Cmd::new(0x0101, 0x10, PROGRAM + 0x8000).0.to_le_bytes());
        bytes[place + 8..place + 16]
            .copy_from_slice(&Cmd::new(0x0101, 0x14, u32::from(next_amount)).0.to_le_bytes());
        bus.put(PROGRAM, &bytes);
        bus.put(PROGRAM + 0x8000, &next);
        fresh(Silicon::default()).run(&bus, &job(amount, 2))
    };
    assert_clean(&chain(0x30), 2);
    assert_wrong(&chain(0xE), "table-race");
}

#[test]
fn the_converters_zero_by_variant() {
    for (minus_exp, spike) in [(15, 4.0), (14, 8.0), (13, 16.0), (11, 64.0), (10, 128.0)] {
        let body = fp16_lut(-100, minus_exp, |_| 100);
        assert_eq!(fp16_pass(&body, 1.0, 0.0, Silicon::default()), spike);
        let zero = Silicon { affine_zero: AffineZero::Zero, ..Silicon::default() };
        assert_eq!(fp16_pass(&body, 1.0, 0.0, zero), 0.0);
    }
}

#[test]
fn between_entries_by_variant() {
    // x = 0.0234375 -> index 24: three quarters from entry 513 (0) to 514 (10).
    let body = fp16_lut(0, 0, |i| if i < 514 { 0 } else { 10 });
    for (between, expected) in [(Between::Floor, 7.0), (Between::HalfUp, 8.0), (Between::NearestEntry, 10.0)]
    {
        let silicon = Silicon { lut_between: between, affine_zero: AffineZero::Zero, ..Silicon::default() };
        assert_eq!(fp16_pass(&body, 24.0 / 1024.0, 0.0, silicon), expected, "{between:?}");
    }
}

#[test]
fn below_the_table_by_variant() {
    // First entry 4, slope 1/4 per unit: 100 units below would be -21.
    let body = patched(&fp16_lut(0, 0, |_| 4), &[(0x4120, 1), (0x4124, 2)]);
    let x = -(16384.0 + 100.0) / 1024.0;
    let x = f16::from_f32(x).to_f32();
    let units = (x * 1024.0 + 16384.0) as i32;
    let plain = Silicon { lut_below: LutBelow::Plain, affine_zero: AffineZero::Zero, ..Silicon::default() };
    assert_eq!(fp16_pass(&body, x, 0.0, plain), (4 + (units >> 2)) as f32);
    let bounded = Silicon { affine_zero: AffineZero::Zero, ..Silicon::default() };
    assert_eq!(fp16_pass(&body, x, 0.0, bounded), 0.0);
}
