// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lookup tables (`isa-notes.md` NS.1, `isa-int4-sdp.md` §3.5, §3.6).

use crate::common;
use common::pass::*;
use common::*;
use half::f16;
use ork_sim::{
    AffineZero, Between, BnShift, LutBelow, LutIndex, LutRace, LutSelect, Silicon, SimOptions, StageWidth,
};

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

#[test]
fn relux_limits_what_a_float_table_gives() {
    // isa-int4-sdp.md §3.7: EW's ReLU with its limit in 0x407C acts behind the table, before the converter.
    for (entry, limit, expected) in [(40, 25.5, 25.5), (20, 25.5, 20.0), (-40, 25.5, 0.0)] {
        let relu = |cfg: u32| {
            let body = patched(&fp16_lut(0, 0, |_| entry), &[(0x4088, 0), (0x407C, f32::to_bits(limit))]);
            fp16_pass(&patched(&body, &[(0x4070, cfg)]), 1.0, 0.0, Silicon::default())
        };
        assert_eq!(relu(0x502), expected);
        assert_eq!(relu(0x102), f32::from(entry.max(0)), "without RELUX_EN");
        assert_eq!(relu(0x702), f32::from(entry), "without ReLU");
    }
}

#[test]
fn lo_goes_on_by_its_slope_from_lo_end() {
    // NS-34, with an end before the last entry: a slope of 2 from index 8192.
    let slope = [(0x411C, 8192), (0x4128, 2 << 16), (0x412C, 0), (0x4088, 0)];
    let body = patched(&fp16_lut(0, 0, |_| 100), &slope);
    assert_eq!(fp16_pass(&body, 8.0, 0.0, Silicon::default()), 100.0);
    assert_eq!(fp16_pass(&body, 9.0, 0.0, Silicon::default()), 100.0 + 2.0 * 1024.0);
}

/// A function as an fp16 table by the recipe of `isa-int4-sdp.md` §3.6, on `[from, to]`, all of it on LO unless the
/// range lies around 0.
#[derive(Clone, Copy)]
struct Function {
    f: fn(f64) -> f64,
    from: f64,
    to: f64,
    /// Values in units of 2^-15 of `2^log2_span` from here up.
    low: f64,
    log2_span: u32,
    /// Least entry: 1 avoids the zero of the converter.
    least: i64,
    /// Added to the converter's offset: a guard against the same zero.
    guard: i32,
}

impl Function {
    fn two_sided(&self) -> bool {
        self.from < 0.0 && self.to == -self.from
    }

    /// Index units per unit of x, as fp16.
    fn scale(&self) -> f64 {
        let range = if self.two_sided() { self.to } else { self.to - self.from };
        f16::from_f64(16384.0 / range).to_f64()
    }

    fn offset(&self) -> i32 {
        (self.low * 32768.0 / f64::from(1 << self.log2_span)).round() as i32 + self.guard
    }

    fn entry(&self, x: f64) -> i64 {
        let value = ((self.f)(x) - self.low) * 32768.0 / f64::from(1 << self.log2_span);
        (value.round() as i64).clamp(self.least, 32767)
    }

    fn body(&self) -> Words {
        let (scale, step) = (self.scale(), 32.0 / self.scale());
        let shift = if self.two_sided() { -0.0 } else { (-self.from * scale) as f32 };
        let mut body = patched(
            &fp16_lut(self.offset(), 15 - self.log2_span, |i| {
                let x = match i {
                    0..513 if self.two_sided() => -(512.0 - i as f64) * step,
                    0..513 => self.from,
                    _ if self.two_sided() => (i - 513) as f64 * step,
                    _ => self.from + (i - 513) as f64 * step,
                };
                self.entry(x) as i16
            }),
            &[(0x4064, shift.to_bits()), (0x4068, u32::from(f16::from_f64(scale).to_bits()) << 16)],
        );
        body.retain(|(offset, _)| !matches!(offset, 0x4120..=0x412C));
        body
    }

    /// The table's value by integer arithmetic of its own: the index nearest to x, the line between two entries floored,
    /// and a zero that the converter turns into 2^(17 - MINUS_EXP).
    fn model(&self, x: f64) -> f64 {
        let scale = self.scale();
        let base = if self.two_sided() { 0.0 } else { f64::from((-self.from * scale) as f32) };
        let index = ((x * scale) as f32 + base as f32).round_ties_even() as i64;
        let start = if index < 0 { -16384 } else { 0 };
        let at = |i: i64| {
            let x = (start + 32 * i) as f64 / scale + if self.two_sided() { 0.0 } else { self.from };
            if index < 0 && !self.two_sided() { self.entry(self.from) } else { self.entry(x) }
        };
        let place = (index - start).clamp(0, 16384);
        let (i, rest) = (place / 32, place % 32);
        let low = at(i);
        let value = if i == 512 { low } else { low + ((at(i + 1) - low) * rest).div_euclid(32) };
        let z = value + i64::from(self.offset());
        let exponent = 15 - self.log2_span as i32;
        if z == 0 { f64::from(17 - exponent).exp2() } else { z as f64 * f64::from(-exponent).exp2() }
    }

    /// Runs inputs through the table: results as f64, eight to a row.
    fn run(&self, inputs: &[f64], silicon: Silicon) -> Vec<f64> {
        let rows = inputs.len().div_ceil(8);
        let bus = FlatBus::new(PROGRAM, 0x8_0000);
        let (input, out) = (PROGRAM + 0x1_0000, PROGRAM + 0x4_0000);
        let bytes: Vec<u8> = inputs.iter().flat_map(|x| f16::from_f64(*x).to_le_bytes()).collect();
        bus.put(input, &bytes);
        let m = rows as u32;
        let body = patched(
            &self.body(),
            &[
                (0x4020, out),
                (0x4024, 16 * m),
                (0x4030, m - 1),
                (0x405C, m - 1),
                (0x40C0, 16 * m),
                (0x500C, m - 1),
                (0x5018, input),
            ],
        );
        assert_clean(&run_words(&mut fresh(silicon), &bus, &body, 0x18), 1);
        let got = bus.get(out, inputs.len() * 2);
        got.as_chunks::<2>().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f64()).collect()
    }
}

fn fp16_of(x: f64) -> f64 {
    f16::from_f64(x).to_f64()
}

fn elu(x: f64) -> f64 {
    if x < 0.0 { x.exp_m1() } else { x }
}

fn hardswish(x: f64) -> f64 {
    x * (x + 3.0).clamp(0.0, 6.0) / 6.0
}

const ELU: Function = Function { f: elu, from: -8.0, to: 8.0, low: -1.0, log2_span: 4, least: 1, guard: 0 };

/// One-sided: the whole range on LO.
fn shifted(function: Function) -> Function {
    // A range that is not symmetric by a hair is one-sided for the recipe.
    Function { to: function.to + 1e-9, ..function }
}

#[test]
fn a_zero_result_spikes_at_97_of_4001_places() {
    // isa-notes G-6, NS-6: step 1e-5 over +-0.02, ELU on [-8, 8]; one index unit is 2^-10 wide.
    let inputs: Vec<f64> = (0..4001).map(|i| -0.02 + 1e-5 * f64::from(i)).collect();
    let elu = shifted(ELU);
    let got = elu.run(&inputs, Silicon::default());
    let spikes = got.iter().filter(|value| **value == 64.0).count();
    assert_eq!(spikes, 97);
    assert!(got.iter().all(|value| *value == 64.0 || value.abs() < 0.03));
    // The index decides, not the sign of x: two-sided, the same zero.
    assert!(ELU.run(&inputs, Silicon::default()).contains(&64.0));
    // One more in the offset and no result is zero there: no spike.
    let guarded = Function { guard: 1, ..elu };
    assert!(guarded.run(&inputs, Silicon::default()).iter().all(|value| value.abs() < 0.03));
    // With a real index half as many inputs hit the zero (NS-6).
    let real = Silicon { lut_index: LutIndex::Real, lut_between: Between::HalfUp, ..Silicon::default() };
    let count = elu.run(&inputs, real).iter().filter(|value| **value == 64.0).count();
    assert!((40..60).contains(&count), "{count}");
}

#[test]
fn a_leaky_ramp_spikes_once_in_16385_places() {
    // isa-notes G-6: inputs over +-16, exactly one spike, at 0.0.
    let leaky = Function {
        f: |x| if x < 0.0 { 0.1 * x } else { x },
        from: -16.0,
        to: 16.0,
        low: -1.6,
        log2_span: 5,
        least: 1,
        guard: 0,
    };
    let inputs: Vec<f64> = (0..16_385).map(|i| fp16_of((f64::from(i) - 8192.0) / 512.0)).collect();
    let got = leaky.run(&inputs, Silicon::default());
    let spikes: Vec<f64> = inputs.iter().zip(&got).filter(|(_, y)| **y == 128.0).map(|(x, _)| *x).collect();
    assert_eq!(spikes, [0.0]);
    for (x, y) in inputs.iter().zip(&got).filter(|(x, _)| **x != 0.0) {
        assert!((y - (leaky.f)(*x)).abs() < 0.02, "{x}: {y}");
    }
}

#[test]
fn a_flat_run_at_zero_spikes_throughout() {
    // isa-notes G-5: hardswish is 0 for x <= -3: 16 there, right at and beyond the knees.
    let table = Function { f: hardswish, from: -4.0, to: 4.0, low: -0.375, log2_span: 3, least: 1, guard: 0 };
    let inputs: Vec<f64> = (0..801).map(|i| fp16_of(-4.0 + 0.01 * f64::from(i))).collect();
    let got = table.run(&inputs, Silicon::default());
    let spike = 32.0;
    for (x, y) in inputs.iter().zip(&got) {
        if *x <= -3.01 {
            assert_eq!(*y, spike, "{x}");
        } else if *x > -2.95 && x.abs() > 0.01 {
            assert!((y - hardswish(*x)).abs() < 2e-3 * (1.0 + x.abs()), "{x}: {y}");
        }
    }
    // A flat run that is not zero does not spike: the tail of the sigmoid.
    let sigmoid = Function {
        f: |x| 1.0 / (1.0 + (-x).exp()),
        from: -6.0,
        to: 6.0,
        low: 0.0,
        log2_span: 0,
        least: 1,
        guard: 0,
    };
    let got = sigmoid.run(&inputs, Silicon::default());
    assert!(inputs.iter().zip(&got).all(|(x, y)| (y - (sigmoid.f)(*x)).abs() < 2e-3));
}

const EXP: Function =
    Function { f: f64::exp, from: -16.0, to: 0.0, low: 0.0, log2_span: 0, least: 0, guard: 0 };

#[test]
fn an_entry_of_zero_reads_as_four() {
    // isa-notes G-7: exp on [-16, 0]; entries are 0 for x below about -11.
    let inputs: Vec<f64> = (0..321).map(|i| fp16_of(-16.0 + 0.05 * f64::from(i))).collect();
    let got = EXP.run(&inputs, Silicon::default());
    for (x, y) in inputs.iter().zip(&got) {
        if *x < -11.2 {
            assert_eq!(*y, 4.0, "{x}");
        } else if *x > -10.4 {
            assert!((y - x.exp()).abs() < 6e-4, "{x}: {y}");
        }
    }
    // Entries of at least 1 do not.
    let got = Function { least: 1, ..EXP }.run(&inputs, Silicon::default());
    assert!(inputs.iter().zip(&got).all(|(x, y)| (y - x.exp()).abs() < 6e-4));
}

#[test]
fn a_table_is_its_lines_and_not_the_function() {
    // isa-notes G-8: at the lower end of the reciprocal the lines are 1 % off, by the formula of the table.
    let reciprocal =
        Function { f: |x| 1.0 / x, from: 0.25, to: 32.0, low: 0.0, log2_span: 2, least: 1, guard: 0 };
    for table in [reciprocal, ELU, shifted(ELU), EXP, Function { guard: 1, ..ELU }] {
        let inputs: Vec<f64> = (0..2001)
            .map(|i| fp16_of(table.from + (table.to - table.from) * f64::from(i) / 2000.0))
            .collect();
        let got = table.run(&inputs, Silicon::default());
        for (x, y) in inputs.iter().zip(&got) {
            assert_eq!(*y, fp16_of(table.model(*x)), "{x}");
        }
    }
    let near = fp16_of(0.25 + 0.5 * 31.75 / 512.0);
    let got = reciprocal.run(&[near; 8], Silicon::default())[0];
    let error = got * near - 1.0;
    assert!((0.005..0.02).contains(&error), "{error}");
}

#[test]
fn the_index_chooses_the_table_unless_the_silicon_says_so() {
    // NS-3: all inputs are negative, the whole curve lies in LO, and LE holds one value.
    let inputs: Vec<f64> = (1..81).map(|i| fp16_of(-0.1 * f64::from(i))).collect();
    let table = Function { least: 1, ..EXP };
    let got = table.run(&inputs, Silicon::default());
    assert!(inputs.iter().zip(&got).all(|(x, y)| (y - x.exp()).abs() < 6e-4));
    let by_input = Silicon { lut_select: LutSelect::InputSign, ..Silicon::default() };
    let got = table.run(&inputs, by_input);
    assert!(got.iter().all(|y| *y == got[0]), "LE's value everywhere");
}

#[test]
fn a_real_index_is_finer_by_variant() {
    // NS-1: half a unit of the index counts only if the index is real.
    let body = fp16_lut(0, 0, |i| if i < 514 { 0 } else { 1000 });
    let x = 16.5 / 1024.0;
    let zero = AffineZero::Zero;
    let rounded = Silicon { affine_zero: zero, ..Silicon::default() };
    assert_eq!(fp16_pass(&body, x, 0.0, rounded), 500.0, "16.5 goes to 16: 16/32 of 1000");
    for (between, expected) in
        [(Between::Floor, 515.0), (Between::HalfUp, 516.0), (Between::NearestEntry, 1000.0)]
    {
        let real = Silicon { lut_index: LutIndex::Real, lut_between: between, ..rounded };
        assert_eq!(fp16_pass(&body, x, 0.0, real), expected, "{between:?}: 16.5/32 of 1000 is 515.6");
    }
}

#[test]
fn infinite_and_missing_numbers_have_a_table_value() {
    for silicon in [Silicon::default(), Silicon { lut_index: LutIndex::Real, ..Silicon::default() }] {
        let body = fp16_lut(0, 0, |i| i as i16 + 1);
        assert_eq!(fp16_pass(&body, f32::INFINITY, 0.0, silicon), 1026.0);
        assert_eq!(fp16_pass(&body, f32::NEG_INFINITY, 0.0, silicon), 1.0);
        assert_eq!(fp16_pass(&body, f32::NAN, 0.0, silicon), 514.0);
    }
}

#[test]
fn a_race_reads_the_old_table_by_variant() {
    use ork_isa::Cmd;
    let bus = bus();
    let old = SimOptions {
        silicon: Silicon { lut_race: LutRace::OldTable, ..Silicon::default() },
        ..SimOptions::default()
    };
    for (options, expected) in [(SimOptions::default(), 7), (old, 3)] {
        let mut core = ork_sim::Core::new(0, &options);
        let mut first = int8_lut();
        load_tables(&mut first, |_| 3);
        assert_clean(&run_words(&mut core, &bus, &first, 0x18), 1);
        let mut load = patched(&int8_lut(), &[(0x4004, 0xE), (0x5004, 0xE)]);
        load_tables(&mut load, |_| 7);
        let (mut bytes, amount) = assemble(&load, 0x18);
        let user = patched(&int8_lut(), &[(0x4004, 0xE), (0x5004, 0xE), (0x4020, OUT + 0x1000)]);
        let (next, next_amount) = assemble(&user, 0x18);
        let place = load.len() * 8;
        bytes[place..place + 8].copy_from_slice(&Cmd::new(0x0101, 0x10, PROGRAM + 0x8000).0.to_le_bytes());
        bytes[place + 8..place + 16]
            .copy_from_slice(&Cmd::new(0x0101, 0x14, u32::from(next_amount)).0.to_le_bytes());
        bus.put(PROGRAM, &bytes);
        bus.put(PROGRAM + 0x8000, &next);
        assert_wrong(&core.run(&bus, &job(amount, 2)), "table-race");
        assert!(bus.get(OUT + 0x1000, 512).iter().all(|byte| *byte == expected));
        assert!(bus.get(OUT, 512).iter().all(|byte| *byte == 7), "the task that loads reads its own");
    }
}

/// BN multiplies by `mul` and shifts; what comes out for small integers.
fn through_bn(mul: i16, shift: u32, silicon: Silicon) -> Vec<i8> {
    let a: Vec<u8> = (-4i8..4).map(i8::cast_unsigned).cycle().take(512).collect();
    let body = patched(
        &int8_mul(8, 64),
        &[
            (0x4010, shift << 10),
            (0x4040, 0x53),
            (0x4060, 0x42),
            (0x4068, u32::from(mul.cast_unsigned()) << 16 | shift << 8),
            (0x4070, 0x383),
            (0x5034, 1),
            (0x4084, 1),
            (0x4088, 0),
        ],
    );
    let (got, outcome) = bytes_pass(&body, &a, &a, silicon);
    assert_clean(&outcome, 1);
    signed(got)[..8].to_vec()
}

#[test]
fn the_shift_of_bn_by_variant() {
    // isa-int4-sdp.md §3.8: -4..4 times 1, shifted by 1.
    for (bn_shift, expected) in [
        (BnShift::Floor, [-2, -2, -1, -1, 0, 0, 1, 1]),
        (BnShift::HalfEven, [-2, -2, -1, 0, 0, 0, 1, 2]),
        (BnShift::HalfAway, [-2, -2, -1, -1, 0, 1, 1, 2]),
    ] {
        assert_eq!(through_bn(1, 1, Silicon { bn_shift, ..Silicon::default() }), expected, "{bn_shift:?}");
    }
}

#[test]
fn stages_saturate_to_32_bits_by_variant() {
    // BS: x * 32767 three ways beyond 2^31 is not reachable with int8 data alone; BS, then BN, then the converter.
    let a: Vec<u8> = vec![127; 512];
    let body = patched(
        &int8_mul(8, 64),
        &[
            (0x4040, 0x42),
            (0x4048, 0x7FFF_0000),
            (0x4060, 0x42),
            (0x4068, 0x7FFF_0000),
            (0x4070, 0x383),
            (0x5034, 1),
            (0x4084, 1),
            (0x4088, 31),
        ],
    );
    // 127 * 32767^2 / 2^31 = 63.496; 2^31 - 1 over 2^31 rounds to 1.
    for (stage_width, expected) in [(StageWidth::Wide, 63), (StageWidth::Saturate32, 1)] {
        let (got, outcome) = bytes_pass(&body, &a, &a, Silicon { stage_width, ..Silicon::default() });
        assert_clean(&outcome, 1);
        assert!(got.iter().all(|byte| *byte == expected), "{stage_width:?}: {}", got[0]);
    }
}
