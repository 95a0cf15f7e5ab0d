// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operands of the output stages: who reads them, where, and how far (`isa-notes.md` D.3, NS.2, `isa-int4-sdp.md` §3.4).

use crate::common;
use common::pass::{bytes_pass, fresh, int8_mul};
use common::tensor::*;
use common::*;
use half::f16;
use ork_isa::regs::{dpu, dpu_rdma};
use ork_isa::{Cmd, FieldOverflow};
use ork_sim::{Core, LongRows, PrecisionMixing, Silicon, SimOptions};

/// Where the operand lies in these tests.
const OPERAND: u32 = PROGRAM + 0x28_0000;

/// What EW does with its operand.
#[derive(Clone, Copy, PartialEq)]
enum Op {
    Add,
    Max,
    Multiply,
}

/// The words that give a matmul an EW operand: COMB_USE 5, MRDMA and ERDMA share it (NS-10, NS-12). `notch` is in atoms,
/// `code` the precision of the MAC array, `size` that of an operand element (2: 16 bits, 3: 32 bits).
fn operand_words(case: &Case, op: Op, code: u32, size: u32, notch: u32) -> Result<Words, FieldOverflow> {
    let (pixels, channels) = (case.spec.h as u32, case.spec.oc as u32);
    let ew = dpu::EwCfg(0).with_ew_data_mode(1)?.with_edata_size(size)?.with_ew_relu_bypass(1)?;
    let ew = ew.with_ew_lut_bypass(1)?.with_ew_op_src(1)?;
    let ew = match op {
        Op::Add => ew.with_ew_alu_algo(2)?,
        Op::Max => ew,
        Op::Multiply => ew.with_ew_op_type(1)?.with_ew_op_cvt_bypass(1)?,
    };
    let mode = dpu_rdma::RdmaFeatureModeCfg(0).with_burst_len(15)?.with_comb_use(5)?;
    Ok(patched(
        &case.spec.words(),
        &[
            to(ew),
            to(dpu_rdma::RdmaSPointer(0xE)),
            to(dpu_rdma::RdmaDataCubeWidth(0)),
            to(dpu_rdma::RdmaDataCubeHeight(0).with_height(pixels - 1)?),
            to(dpu_rdma::RdmaDataCubeChannel(0).with_channel(channels - 1)?),
            to(dpu_rdma::RdmaSrcBaseAddr(OPERAND)),
            to(dpu_rdma::RdmaErdmaCfg(0).with_erdma_data_mode(1)?.with_erdma_data_size(size)?),
            to(dpu_rdma::RdmaEwBaseAddr(OPERAND + 16 * pixels)),
            to(dpu_rdma::RdmaEwSurfStride(0).with_ew_surf_stride(notch)?),
            to(mode.with_in_precision(code)?.with_proc_precision(code)?),
            to(dpu_rdma::RdmaSurfNotch(0).with_surf_notch_addr(notch)?),
            to(dpu_rdma::RdmaEwSurfNotch(0).with_ew_surf_notch(notch)?),
        ],
    ))
}

/// An fp16 matmul with fp16 output, and an operand of as many values.
fn fp16_case(m: usize, n: usize) -> (Case, Vec<f64>) {
    let case = Case::new(Spec::matmul(Kind::Fp16, Out::Fp16, m, 32, n), 71);
    let mut random = Random(72);
    let operand: Vec<f64> = (0..m * n).map(|_| Kind::Fp16.value(&mut random)).collect();
    let mut bytes = vec![0; m * n * 2];
    for (i, value) in operand.iter().enumerate() {
        let (channel, pixel) = (i / m, i % m);
        Kind::Fp16.store(*value, (channel / 8 * m + pixel) * 8 + channel % 8, &mut bytes);
    }
    case.bus.put(OPERAND, &bytes);
    (case, operand)
}

#[test]
fn an_operand_behind_a_matmul() {
    // NS-12: one rounding to fp16 behind the EW stage.
    let (case, operand) = fp16_case(16, 64);
    for op in [Op::Add, Op::Max, Op::Multiply] {
        let words = operand_words(&case, op, 2, 2, 16).unwrap();
        assert_clean(&run_words(&mut Core::new(0, &SimOptions::default()), &case.bus, &words, 0x1D), 1);
        let expected: Vec<f64> = case
            .sums()
            .iter()
            .zip(&operand)
            .map(|(sum, operand)| match op {
                Op::Add => f16::from_f64(sum + operand).to_f64(),
                Op::Max => f16::from_f64(sum.max(*operand)).to_f64(),
                Op::Multiply => f16::from_f64(sum * operand).to_f64(),
            })
            .collect();
        assert!(case.got() == expected);
    }
}

#[test]
fn fewer_than_12_pixels_misplace_the_upper_surfaces() {
    // isa-notes G-18, NS-11: programs write a notch of max(P, 12), so the pitch of a reader's surfaces is P + 12 where
    // 2 P is meant: surfaces 0 and 1 are right, the others not.
    for (m, good) in [(12, true), (11, false), (8, false), (16, true)] {
        let (case, operand) = fp16_case(m, 64);
        let words = operand_words(&case, Op::Add, 2, 2, m.max(12) as u32).unwrap();
        assert_clean(&run_words(&mut Core::new(0, &SimOptions::default()), &case.bus, &words, 0x1D), 1);
        let expected: Vec<f64> = case
            .sums()
            .iter()
            .zip(&operand)
            .map(|(sum, operand)| f16::from_f64(sum + operand).to_f64())
            .collect();
        let got = case.got();
        let lower = 16 * m;
        assert!(got[..lower] == expected[..lower], "surfaces 0 and 1 with {m} pixels");
        assert_eq!(got[lower..] == expected[lower..], good, "{m} pixels");
        // The exact notch is right for every number of pixels.
        let exact = operand_words(&case, Op::Add, 2, 2, m as u32).unwrap();
        assert_clean(&run_words(&mut Core::new(0, &SimOptions::default()), &case.bus, &exact, 0x1D), 1);
        assert!(case.got() == expected, "{m} pixels");
    }
}

#[test]
fn a_matmul_over_its_own_operand_corrupts() {
    // isa-notes G-18: ping-pong two buffers.
    let (case, operand) = fp16_case(16, 64);
    for (target, wrong) in
        [(OPERAND, true), (OPERAND + 16 * 64 * 2 - 16, true), (OPERAND + 16 * 64 * 2, false)]
    {
        let words = operand_words(&case, Op::Add, 2, 2, 16).unwrap();
        let words = patched(&words, &[to(dpu::DstBaseAddr(target))]);
        let (_, fresh_operand) = fp16_case(16, 64);
        assert_eq!(operand, fresh_operand);
        let outcome = run_words(&mut Core::new(0, &SimOptions::default()), &case.bus, &words, 0x1D);
        if wrong {
            assert_wrong(&outcome, "in-place");
        } else {
            assert_clean(&outcome, 1);
        }
    }
}

#[test]
fn the_multiplier_takes_the_low_16_bits_of_its_operand() {
    // NS-15, G-19: sums 226, -46, 222 with operand 1 000 000 (low half 16960): 3 832 960, -780 160, 3 765 120.
    let (m, k, n) = (16usize, 32usize, 32usize);
    let sums: [f64; 3] = [226.0, -46.0, 222.0];
    let row = |m: usize| sums[m % 3];
    // One channel of 1 and weights of 1 give sums of what stands in channel 0 and 1 together.
    let mut a = vec![0.0; k * m];
    for pixel in 0..m {
        a[pixel] = row(pixel).clamp(-128.0, 127.0);
        a[m + pixel] = row(pixel) - a[pixel];
    }
    let case = Case::with(Spec::matmul(Kind::Int8, Out::Int32, m, k, n), a, vec![1.0; n * k]);
    let run = |operand: i32| {
        case.bus.put(OPERAND, &operand.to_le_bytes().repeat(m * n));
        let words = operand_words(&case, Op::Multiply, 0, 3, m as u32).unwrap();
        let outcome = run_words(&mut Core::new(0, &SimOptions::default()), &case.bus, &words, 0x1D);
        (outcome, case.got())
    };
    let (outcome, got) = run(1_000_000);
    assert_wrong(&outcome, "operand-wraps");
    for (i, value) in got.iter().enumerate() {
        assert_eq!(*value, [3_832_960.0, -780_160.0, 3_765_120.0][i % m % 3]);
    }
    // An operand of 16 bits is taken whole.
    for operand in [32_767, -32_768] {
        let (outcome, got) = run(operand);
        assert_clean(&outcome, 1);
        assert!(got.iter().enumerate().all(|(i, value)| *value == row(i % m) * f64::from(operand)));
    }
    assert_wrong(&run(32_768).0, "operand-wraps");
    // Adding a 32-bit operand gave garbage on silicon (S-29).
    let words = operand_words(&case, Op::Add, 0, 3, m as u32).unwrap();
    let outcome = run_words(&mut Core::new(0, &SimOptions::default()), &case.bus, &words, 0x1D);
    assert_unmodelled(&outcome, "integer-add-32");
}

#[test]
fn adding_a_value_per_channel_is_wrong_and_multiplying_is_right() {
    // isa-int4-sdp.md §3.4 "Per-channel multiply": with EW_DATA_MODE 1 adding does not broadcast.
    let a = Random(5).bytes(512);
    let per_channel = to(dpu_rdma::RdmaErdmaCfg(0).with_erdma_data_size(1).unwrap());
    let (_, outcome) = bytes_pass(&patched(&int8_mul(8, 64), &[per_channel]), &a, &a, Silicon::default());
    assert_clean(&outcome, 1);
    let algo = |code: u32| {
        let ew = dpu::EwCfg(0x9040_02C0).with_ew_alu_algo(code).unwrap();
        bytes_pass(&patched(&int8_mul(8, 64), &[per_channel, to(ew)]), &a, &a, Silicon::default()).1
    };
    assert_wrong(&algo(2), "per-channel-alu");
    assert_unmodelled(&algo(0), "per-channel-alu");
    // Per pixel all of them are fine.
    for code in [0, 1, 2] {
        let ew = dpu::EwCfg(0x9040_02C0).with_ew_alu_algo(code).unwrap();
        let (_, outcome) = bytes_pass(&patched(&int8_mul(8, 64), &[to(ew)]), &a, &a, Silicon::default());
        assert_clean(&outcome, 1);
    }
}

#[test]
fn bn_adds_a_value_per_channel_from_memory() {
    // isa-notes D.1: NRDMA reads for BN what BRDMA reads for BS.
    let a: Vec<u8> = (0..512u32).map(|i| ((i % 61) as i8 - 30).cast_unsigned()).collect();
    let biases: Vec<i32> = (0..64).map(|channel| channel - 31).collect();
    let bytes: Vec<u8> = biases.iter().flat_map(|bias| bias.to_le_bytes()).collect();
    for stage in ["BS", "BN"] {
        let bus = common::pass::bus();
        bus.put(common::pass::A, &a);
        bus.put(common::pass::B, &bytes);
        let (adds, base, reader) = if stage == "BS" {
            let cfg = dpu::BsCfg(BYPASSED).with_bs_bypass(0).unwrap().with_bs_alu_bypass(0).unwrap();
            let adds = to(cfg.with_bs_alu_src(1).unwrap().with_bs_alu_algo(2).unwrap());
            let base = to(dpu_rdma::RdmaBsBaseAddr(common::pass::B));
            (adds, base, to(dpu_rdma::RdmaBrdmaCfg(0).with_brdma_data_use(1).unwrap()))
        } else {
            let cfg = dpu::BnCfg(BYPASSED).with_bn_bypass(0).unwrap().with_bn_alu_bypass(0).unwrap();
            let adds = to(cfg.with_bn_alu_src(1).unwrap().with_bn_alu_algo(2).unwrap());
            let base = to(dpu_rdma::RdmaBnBaseAddr(common::pass::B));
            (adds, base, to(dpu_rdma::RdmaNrdmaCfg(0).with_nrdma_data_use(1).unwrap()))
        };
        let idle = [
            to(dpu::BsCfg(BYPASSED)),
            to(dpu::EwCfg(EW_BYPASSED)),
            to(dpu_rdma::RdmaErdmaCfg(1)),
            to(dpu::OutCvtScale(1)),
            to(dpu::OutCvtShift(0)),
        ];
        let mut body = patched(&int8_mul(8, 64), &idle);
        body = patched(&body, &[adds, base, reader]);
        assert_clean(&run_words(&mut fresh(Silicon::default()), &bus, &body, 0x18), 1);
        let got = bus.get(common::pass::OUT, 512);
        for (at, (got, x)) in got.iter().zip(&a).enumerate() {
            let channel = at / 128 * 16 + at % 16;
            let expected = (i32::from(x.cast_signed()) + biases[channel]).clamp(-128, 127);
            assert_eq!(i32::from(got.cast_signed()), expected, "{stage}, channel {channel}");
        }
        // Without the reader there is nothing to add, and other operands are not known.
        let unread = patched(&body, &[(reader.0, 0)]);
        assert_unmodelled(&run_words(&mut fresh(Silicon::default()), &bus, &unread, 0x18), "stage-operand");
        let other = patched(&body, &[(reader.0, 4 << 1)]);
        assert_unmodelled(
            &run_words(&mut fresh(Silicon::default()), &bus, &other, 0x18),
            "per-channel-operands",
        );
    }
}

/// An int16 addition of two tensors, which keeps the BS adder on, or an int8 multiplication.
fn two_operands(int16: bool) -> Words {
    if !int16 {
        return int8_mul(8, 64);
    }
    patched(
        &int8_mul(8, 32),
        &[
            to(dpu::DataFormat(0x2400_0001)),
            to(dpu::BsCfg(0x2_0040)),
            to(dpu::BsMulCfg(0x4000_0000)),
            to(dpu::EwCfg(0x9082_02C0)),
            to(dpu::EwCvtScaleValue(0x4000)),
            to(dpu::OutCvtShift(28)),
            to(dpu_rdma::RdmaErdmaCfg(0x4000_0008)),
            to(dpu_rdma::RdmaFeatureModeCfg(0xF821)),
        ],
    )
}

#[test]
fn two_int16_operands_hang_inside_a_chain() {
    // isa-int4-sdp.md §4.5, §6.2: alone they are exact, int8 is safe in a chain.
    for (int16, tasks, hangs) in [(true, 1, false), (true, 2, true), (false, 2, false)] {
        let bus = common::pass::bus();
        let (mut bytes, amount) = assemble(&two_operands(int16), 0x18);
        let place = two_operands(int16).len() * 8;
        let (next, next_amount) = assemble(&int8_mul(8, 64), 0x18);
        let link = [Cmd::new(0x0101, 0x10, PROGRAM + 0x8000), Cmd::new(0x0101, 0x14, u32::from(next_amount))];
        for (i, word) in link.iter().enumerate() {
            bytes[place + 8 * i..][..8].copy_from_slice(&word.0.to_le_bytes());
        }
        bus.put(PROGRAM, &bytes);
        bus.put(PROGRAM + 0x8000, &next);
        let outcome = fresh(Silicon::default()).run(&bus, &job(amount, tasks));
        if hangs {
            assert_hang(&outcome, "int16-operand-in-chain", 0);
        } else {
            assert_clean(&outcome, tasks);
        }
    }
}

#[test]
fn long_fp16_passes_fray_by_variant() {
    // isa-notes G-4, M-10: 8188 and 8190 rows right, 8189 and 8191 wrong at 54 positions; int16 never completes.
    let frays = Silicon { long_rows: LongRows::Fp16Frays, ..Silicon::default() };
    let (input, out) = (PROGRAM + 0x8_0000, PROGRAM + 0x18_0000);
    let run = |rows: u32, float: bool, silicon: Silicon| {
        let bus = FlatBus::new(PROGRAM, 0x30_0000);
        let halves: Vec<u8> =
            (0..rows * 8).flat_map(|i| f16::from_f32((i % 509) as f32).to_le_bytes()).collect();
        bus.put(input, &halves);
        let format = if float { 0x4800_0002 } else { 0x2400_0001 };
        let body = patched(
            &int8_mul(rows, 8),
            &[
                to(dpu::DataFormat(format)),
                to(dpu::BsCfg(BYPASSED)),
                to(dpu::EwCfg(EW_BYPASSED)),
                to(dpu::OutCvtScale(0x1_0001)),
                to(dpu::OutCvtShift(0)),
                to(dpu::DstBaseAddr(out)),
                to(dpu_rdma::RdmaSrcBaseAddr(input)),
                to(dpu_rdma::RdmaErdmaCfg(1)),
                to(dpu_rdma::RdmaFeatureModeCfg(if float { 0x1_7849 } else { 0xF821 })),
            ],
        );
        let outcome = run_words(&mut fresh(silicon), &bus, &body, 0x18);
        let got = bus.get(out, halves.len());
        let wrong =
            got.chunks_exact(16).zip(halves.chunks_exact(16)).filter(|(got, want)| got != want).count();
        (outcome, wrong)
    };
    for (rows, positions) in [(4096, 0), (8176, 0), (8188, 0), (8189, 54), (8190, 0), (8191, 54)] {
        let (outcome, wrong) = run(rows, true, frays);
        if positions == 0 {
            assert_clean(&outcome, 1);
        } else {
            assert_wrong(&outcome, "sdp-rows");
        }
        assert_eq!(wrong, positions, "{rows} rows");
    }
    assert_hang(&run(8177, false, frays).0, "sdp-rows", 0);
    assert_clean(&run(8176, false, frays).0, 1);
    assert_hang(&run(8177, true, Silicon::default()).0, "sdp-rows", 0);
    assert_clean(&run(8176, true, Silicon::default()).0, 1);
}

#[test]
fn int4_beside_other_precisions_needs_a_reset_by_variant() {
    // isa.md §13 row 23, isa-int4-sdp.md §1.11.
    let int4 = Case::new(Spec::matmul(Kind::Int4, Out::Int16, 4, 64, 64), 73);
    let int8 = Case::new(Spec::matmul(Kind::Int8, Out::Int32, 4, 64, 64), 73);
    let fp16 = Case::new(Spec::matmul(Kind::Fp16, Out::Fp32, 4, 64, 64), 73);
    let silicon = Silicon { precision_mixing: PrecisionMixing::Int4NeedsReset, ..Silicon::default() };
    let strict = SimOptions { silicon, ..SimOptions::default() };
    for options in [SimOptions::default(), strict.clone()] {
        let mut core = Core::new(0, &options);
        let mut run = |case: &Case| run_words(&mut core, &case.bus, &case.spec.words(), 0xD);
        // int8 and fp16 mix.
        for case in [&int8, &fp16, &int8] {
            assert_clean(&run(case), 1);
            assert_eq!(case.got(), case.expected());
        }
        for case in [&int4, &int8] {
            let outcome = run(case);
            if options == strict {
                assert_wrong(&outcome, "precision-mixing");
                assert!(case.right_rows().iter().all(|right| !right));
            } else {
                assert_clean(&outcome, 1);
                assert_eq!(case.got(), case.expected());
            }
        }
        core.reset();
        assert_clean(&run_words(&mut core, &int4.bus, &int4.spec.words(), 0xD), 1);
        assert_clean(&run_words(&mut core, &int4.bus, &int4.spec.words(), 0xD), 1);
    }
}
