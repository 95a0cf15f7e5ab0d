// SPDX-License-Identifier: MIT OR Apache-2.0
//! Convolutions and matmuls of every precision against loops over the tensors (`isa.md` §4, §9).

use crate::common;
use common::tensor::*;
use common::*;
use half::f16;
use ork_sim::{Core, FloatSums, PointerScope, Silicon, SimOptions, WideConverter};

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
fn short_heights_need_a_negative_surface_stride() {
    // isa-notes G-1, NS-23: a generator that clamps SURF_STRIDE at 0 reads surfaces 4 atoms apart.
    let case = Case::new(Spec::matmul(Kind::Fp16, Out::Fp32, 1, 64, 16), 11);
    assert_clean(&case.run(&SimOptions::default(), &[]), 1);
    assert_eq!(case.got(), case.expected());
    assert_clean(&case.run(&SimOptions::default(), &[(0x1080, 0)]), 1);
    assert_ne!(case.got(), case.expected());
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
    // The same with the reader's own FLYING_MODE on; with MRDMA off the two units merely disagree.
    assert_hang(&run_words(&mut core, &case.bus, &words(1), 0x1D), "mrdma-unfed", 0);
    core.reset();
    assert_unmodelled(&run_words(&mut core, &case.bus, &words(0x7811), 0x1D), "flying-disagrees");
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
