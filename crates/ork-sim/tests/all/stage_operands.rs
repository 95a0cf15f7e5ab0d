// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operands of BS, BN and EW in float: constants, and one number per channel from memory, with the register values of a
//! public program that its author ran on an RK3588 (allbilly/rk3588, docs/assumptions.md S-81, S-82).

use crate::common;
use common::pass::*;
use common::*;
use half::f16;
use ork_sim::Silicon;

const BS: u32 = B;
const BN: u32 = B + 0x1000;
const EW: u32 = B + 0x2000;

/// A pass over one pixel of 8 fp16 channels with all stages bypassed, and all readers but the main one off.
fn base(width: u32, channels: u32) -> Words {
    vec![
        (0x4004, 0xE),
        (0x5004, 0xE),
        (0x501C, 1),
        (0x5028, 1),
        (0x400C, 0x1E5),
        (0x4010, 0x4800_0002),
        (0x4024, 16 * width),
        (0x4030, width - 1),
        (0x4034, 0),
        (0x4038, 0),
        (0x403C, (channels - 1) << 16 | (channels - 1)),
        (0x4040, 0x53),
        (0x4044, 0),
        (0x4048, 0),
        (0x404C, 0),
        (0x4050, 2),
        (0x4058, channels - 1),
        (0x405C, width - 1),
        (0x4060, 0x53),
        (0x4064, 0),
        (0x4068, 0),
        (0x406C, 0),
        (0x4070, 0x1080_02C1),
        (0x4078, 1),
        (0x4084, 0x1_0001),
        (0x40C0, 16 * width),
        (0x500C, width - 1),
        (0x5010, 0),
        (0x5014, channels - 1),
        (0x5020, BS),
        (0x502C, BN),
        (0x5034, 1),
        (0x5038, EW),
        (0x5048, 0),
        (0x504C, 0),
        (0x4020, OUT),
        (0x5018, A),
        (0x5044, 0x1_7849),
        (0x5068, 0x0101_0101),
    ]
}

/// All eight constants of EW.
fn constants(value: u32) -> Words {
    (0..8).map(|i| (0x4090 + 4 * i, value)).collect()
}

fn run(body: &Words, bus: &FlatBus, count: usize) -> (Vec<f32>, ork_sim::JobOutcome) {
    let outcome = run_words(&mut fresh(Silicon::default()), bus, body, 0x18);
    let got = bus.get(OUT, 2 * count);
    (got.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(), outcome)
}

const VALUES: [f32; 8] = [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0];

#[track_caller]
fn expect(body: &Words, f: impl Fn(f32) -> f32) {
    let bus = bus();
    bus.put(A, &halves(&VALUES));
    let (got, outcome) = run(body, &bus, 8);
    assert_clean(&outcome, 1);
    assert_eq!(got, VALUES.map(f));
}

fn half(value: f32) -> u32 {
    u32::from(f16::from_f32(value).to_bits())
}

#[test]
fn constants_of_ew() {
    let with = |ew: u32, value: u32| {
        let mut patch = constants(value);
        patch.push((0x4070, ew));
        patched(&base(1, 8), &patch)
    };
    // The adder takes fp32, the multiplier fp16 from the low half.
    expect(&with(0x1082_0280, 2f32.to_bits()), |x| x + 2.0);
    expect(&with(0x1084_0280, 2f32.to_bits()), |x| x - 2.0);
    expect(&with(0x1080_0284, half(1.5)), |x| x * 1.5);
    expect(&with(0x1080_0284, half(-0.25) | 0x4000_0000), |x| x * -0.25);
    // One constant alone, and all others 0.
    expect(&patched(&base(1, 8), &[(0x4070, 0x1082_0280), (0x4090, 0x4080_0000)]), |x| x + 4.0);
    // Constants that differ are not known.
    for at in [0x4094, 0x40AC] {
        let body = patched(&with(0x1082_0280, 2f32.to_bits()), &[(at, 3f32.to_bits())]);
        assert_unmodelled(&run(&body, &bus(), 8).1, "ew-constants");
    }
}

#[test]
fn an_int16_constant_is_the_low_half() {
    let mut patch = constants(0x0007_FFFE);
    patch.extend([(0x4010, 0x2400_0001), (0x4070, 0x1082_0280), (0x4084, 1), (0x5044, 0xF821)]);
    let bus = bus();
    let values: [i16; 8] = [-30_000, -1200, -7, -1, 0, 1, 1200, 30_000];
    bus.put(A, &values.map(i16::to_le_bytes).concat());
    let outcome = run_words(&mut fresh(Silicon::default()), &bus, &patched(&base(1, 8), &patch), 0x18);
    assert_clean(&outcome, 1);
    for (got, x) in bus.get(OUT, 16).as_chunks::<2>().0.iter().zip(values) {
        assert_eq!(i16::from_le_bytes(*got), x - 2);
    }
}

#[test]
fn constants_of_three_stages_in_one_pass() {
    // BS: (x + 2) * 3; BN: x * 2 + 1; EW: x + 4.
    let mut patch = constants(4f32.to_bits());
    patch.extend([
        (0x4040, 0x2_0040),
        (0x4044, 2f32.to_bits()),
        (0x4048, half(3.0) << 16),
        (0x4060, 0x2_0040),
        (0x4064, 1f32.to_bits()),
        (0x4068, half(2.0) << 16),
        (0x4070, 0x1082_0280),
    ]);
    expect(&patched(&base(1, 8), &patch), |x| (x + 2.0) * 3.0 * 2.0 + 1.0 + 4.0);
}

#[test]
fn bs_and_bn_subtract_and_divide() {
    // isa-int4-sdp.md §3.3: the codes of EW, main data first.
    for (cfg, alu) in [(0x4040, 0x4044), (0x4060, 0x4064)] {
        let with = |algo: u32| patched(&base(1, 8), &[(cfg, algo << 16 | 0x50), (alu, 2f32.to_bits())]);
        expect(&with(4), |x| x - 2.0);
        expect(&with(3), |x| x / 2.0);
        assert_unmodelled(&run(&with(5), &bus(), 8).1, "alu-algo");
        // Integers are not divided.
        let int16 = [(0x4010, 0x2400_0001), (0x5044, 0xF821)];
        assert_unmodelled(&run(&patched(&with(3), &int16), &bus(), 8).1, "alu-algo");
    }
}

#[test]
fn relux_and_prelu_in_bs_and_bn() {
    for (cfg, mul, relux) in [(0x4040, 0x4048, 0x404C), (0x4060, 0x4068, 0x406C)] {
        expect(&patched(&base(1, 8), &[(cfg, 0x92), (relux, 2f32.to_bits())]), |x| x.clamp(0.0, 2.0));
        let slope = |x: f32| if x < 0.0 { x * 0.25 } else { x };
        expect(&patched(&base(1, 8), &[(cfg, 0x62), (mul, half(0.25) << 16)]), slope);
    }
}

#[test]
fn four_tensors_are_summed_in_one_pass() {
    // The adders of BS and BN take fp32 from BRDMA and NRDMA, EW takes fp16 from ERDMA.
    let body = patched(
        &base(1, 8),
        &[
            (0x4040, 0x2_0150),
            (0x4060, 0x2_0150),
            (0x4070, 0x1082_02C0),
            (0x501C, 2),
            (0x5028, 2),
            (0x5034, 0x4000_0008),
        ],
    );
    let bus = bus();
    let ten: Vec<f32> = (1..9).map(|i| 10.0 * i as f32).collect();
    let one: Vec<f32> = (1..9).map(|i| i as f32).collect();
    let part: Vec<f32> = (1..9).map(|i| 0.5 * i as f32).collect();
    let words = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    bus.put(A, &halves(&VALUES));
    bus.put(BS, &words(&ten));
    bus.put(BN, &words(&one));
    bus.put(EW, &halves(&part));
    let (got, outcome) = run(&body, &bus, 8);
    assert_clean(&outcome, 1);
    for (i, got) in got.iter().enumerate() {
        assert_eq!(*got, VALUES[i] + ten[i] + one[i] + part[i]);
    }
    // A reader that is off leaves its adder without an operand.
    let off = patched(&body, &[(0x5028, 1)]);
    assert_unmodelled(&run(&off, &bus, 8).1, "stage-operand");
}

#[test]
fn multipliers_from_memory() {
    for (cfg, mul, reader, at) in [(0x4040, 0x4048, 0x501C, BS), (0x4060, 0x4068, 0x5028, BN)] {
        for width in 1..=3usize {
            for channels in [3usize, 7, 8, 9, 15, 16, 17, 31, 32, 33] {
                let body =
                    patched(&base(width as u32, channels as u32), &[(cfg, 0x42), (mul, 1), (reader, 8)]);
                let surfaces = channels.div_ceil(8);
                let value = |i: usize| (i % 17) as f32 - 8.0;
                let factors: Vec<f32> = (0..8 * surfaces).map(|c| (c * 3 % 9) as f32 - 4.0).collect();
                let values: Vec<f32> = (0..surfaces * width * 8).map(value).collect();
                let bus = bus();
                bus.put(A, &halves(&values));
                bus.put(at, &halves(&factors));
                let (got, outcome) = run(&body, &bus, values.len());
                if channels > 8 && !channels.is_multiple_of(8) {
                    // A short surface behind a whole one gets none.
                    assert_unmodelled(&outcome, "per-channel-operands");
                    continue;
                }
                assert_clean(&outcome, 1);
                for surface in 0..surfaces {
                    for pixel in 0..width {
                        for lane in 0..8.min(channels - 8 * surface) {
                            let i = (surface * width + pixel) * 8 + lane;
                            assert_eq!(got[i], values[i] * factors[8 * surface + lane], "{channels}: {i}");
                        }
                    }
                }
            }
        }
        // Both operands at once, other uses, and integers are not known.
        let body = patched(&base(1, 8), &[(cfg, 0x42), (mul, 1), (reader, 8)]);
        for data_use in [0xA, 4, 0x10] {
            let other = patched(&body, &[(reader, data_use)]);
            assert_unmodelled(&run(&other, &bus(), 8).1, "per-channel-operands");
        }
        let int16 = patched(&body, &[(0x4010, 0x2400_0001), (0x5044, 0xF821)]);
        assert_unmodelled(&run(&int16, &bus(), 8).1, "per-channel-operands");
        let shift = patched(&body, &[(mul, 3)]);
        assert_unmodelled(&run(&shift, &bus(), 8).1, "stage-operand");
    }
}

#[test]
fn ew_adds_a_value_per_channel_when_both_modes_say_so() {
    // 16 channels of two pixels: EW_DATA_MODE and ERDMA_DATA_MODE 0, an atom of operands for each surface.
    let body = |algo: u32, stride: u32| {
        let ew = 2 << 22 | algo << 16 | 0x2C0;
        patched(&base(2, 16), &[(0x4070, ew), (0x5034, 8), (0x5040, stride)])
    };
    let values: Vec<f32> = (0..32).map(|i| i as f32 * 0.5 - 3.0).collect();
    let operands: Vec<f32> = (1..17).map(|i| i as f32).collect();
    let bus = bus();
    bus.put(A, &halves(&values));
    bus.put(EW, &halves(&operands));
    for (algo, f) in [(2, (|a, b| a + b) as fn(f32, f32) -> f32), (4, |a, b| a - b), (0, f32::max)] {
        let (got, outcome) = run(&body(algo, 16), &bus, 32);
        assert_clean(&outcome, 1);
        for (i, got) in got.iter().enumerate() {
            assert_eq!(*got, f(values[i], operands[i / 16 * 8 + i % 8]), "{algo}: {i}");
        }
    }
    // The stride counts: 0 gives both surfaces the first atom.
    let (got, outcome) = run(&body(2, 0), &bus, 32);
    assert_clean(&outcome, 1);
    for (i, got) in got.iter().enumerate() {
        assert_eq!(*got, values[i] + operands[i % 8]);
    }
    // One mode alone is the measured fault.
    let differs = patched(&body(2, 16), &[(0x4070, 1 << 28 | 2 << 22 | 2 << 16 | 0x2C0)]);
    assert_wrong(&run(&differs, &bus, 32).1, "per-channel-alu");
}
