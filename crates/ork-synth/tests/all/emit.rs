// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chains of whole plans: links, addresses, range checks.

use ork_isa::soc::RK3588;
use ork_isa::{Cmd, Iova, Link, Register, regs};
use ork_layout::Format;
use ork_plan::{
    Decision, Form, Plan, PlanOptions, Problem, Reuse, decide, program_fetch_words, program_pitch_bytes,
    weight_layout_with,
};
use ork_synth::{
    Binding, Bindings, Buffer, MatmulTask, OutputStage, ProgramSet, SynthError, emit, emit_with,
    matmul_program,
};
use proptest::prelude::*;

const A: Iova = Iova(0x1000_0000);
const B: Iova = Iova(0x2000_0000);
const C: Iova = Iova(0x5000_0000);
const REGCMD: Iova = Iova(0xF000_0000);

fn plan(m: u32, k: u32, n: u32) -> Plan {
    plan_of(Format::INT8_INT32, m, k, n, &[])
}

fn plan_of(format: Format, m: u32, k: u32, n: u32, rules: &[&str]) -> Plan {
    let rules = rules.iter().map(ToString::to_string).collect();
    let options = PlanOptions { rules, ..PlanOptions::default() };
    let weight = weight_layout_with(format, k, n, &RK3588, &options).expect("a weight");
    match decide(&Problem { m, weight }, &RK3588, &options) {
        Decision::Accept(plan) => plan,
        Decision::Decline(decline) => panic!("{decline}"),
    }
}

const PITCH: usize = program_pitch_bytes(Format::INT8_INT32) as usize;

/// Buffers of exactly the sizes that the plan asks for.
fn exact(plan: &Plan, core: u8) -> Bindings {
    let extents = plan.extents();
    Bindings {
        a: Binding { iova: A, len: extents.a_bytes },
        b: Binding { iova: B, len: extents.b_bytes },
        c: Binding { iova: C, len: extents.c_bytes },
        regcmd: Binding { iova: REGCMD, len: extents.regcmd_bytes[usize::from(core)] },
    }
}

fn words(set: &ProgramSet, program: usize) -> Vec<Cmd> {
    let bytes = &set.bytes()[program * PITCH..][..PITCH];
    bytes.chunks_exact(8).map(|word| Cmd(u64::from_le_bytes(word.try_into().expect("8 bytes")))).collect()
}

fn value<R: Register>(words: &[Cmd]) -> u32 {
    let own = |word: &&Cmd| word.register().is_some_and(|desc| desc == R::DESC);
    words.iter().rfind(own).expect("written").value()
}

#[test]
fn a_chain_walks_from_program_to_program_and_ends() {
    let plan = plan(700, 2048, 2048);
    for chain in &plan.shapes()[0].chains {
        let set = emit(&plan.shapes()[0], chain.core, &exact(&plan, chain.core)).unwrap();
        assert_eq!((set.len(), set.core()), (chain.programs.len(), chain.core));
        assert!(set.len() > 1);
        let mut at = REGCMD;
        for index in 0..set.len() {
            assert_eq!(set.program_address(index), at);
            let trailer = &words(&set, index)[108..];
            assert_eq!(trailer[2], Cmd::PRE_OP_ENABLE);
            assert_eq!(trailer[3], Cmd::op_enable(ProgramSet::ENABLE_MASK));
            if index + 1 == set.len() {
                assert_eq!(trailer[0], Cmd::NO_NEXT);
                assert_eq!(trailer[1].value(), 0);
            } else {
                at = at.checked_add(0x380).unwrap();
                assert_eq!(trailer[0], Cmd::new(0x0101, 0x0010, at.0));
                assert_eq!(trailer[1], Cmd::new(0x0101, 0x0014, 55));
            }
        }
        assert_eq!(ProgramSet::FETCH_AMOUNT, 55);
        assert_eq!(set.fetch_words(), 108);
    }
}

#[test]
fn programs_carry_the_tiles_of_the_plan() {
    let plan = plan(700, 5000, 2048);
    let shape = &plan.shapes()[0];
    for chain in &shape.chains {
        let set = emit(shape, chain.core, &exact(&plan, chain.core)).unwrap();
        for (index, tile) in chain.programs.iter().enumerate() {
            let words = words(&set, index);
            assert_eq!(value::<regs::cna::FeatureDataAddr>(&words), A.0 + tile.a_offset as u32);
            assert_eq!(value::<regs::cna::DcompAddr0>(&words), B.0 + tile.b_offset as u32);
            assert_eq!(value::<regs::dpu::DstBaseAddr>(&words), C.0 + tile.c_offset as u32);
            assert_eq!(
                regs::cna::DataSize0(value::<regs::cna::DataSize0>(&words)).datain_height(),
                tile.rows
            );
            assert_eq!(regs::cna::DataSize1(value::<regs::cna::DataSize1>(&words)).datain_channel(), tile.k);
            assert_eq!(
                regs::cna::WeightSize2(value::<regs::cna::WeightSize2>(&words)).weight_kernels(),
                tile.n
            );
            let banks = regs::cna::CbufCon0(value::<regs::cna::CbufCon0>(&words));
            assert_eq!((banks.data_bank(), banks.weight_bank()), (tile.split.data, tile.split.weight));
        }
    }
}

#[test]
fn the_pitch_is_the_size_of_a_program() {
    let task = MatmulTask {
        format: Format::INT8_INT32,
        form: Form::Rows,
        rows: 1,
        k: 32,
        n: 32,
        row_stride: 32,
        split: ork_plan::BankSplit { data: 1, weight: 11 },
        grains: 2,
        reuse: Reuse::Nothing,
        a: A,
        b: B,
        c: C,
        output: OutputStage::Plain,
    };
    let program = matmul_program(&task, Link::Last).unwrap();
    assert_eq!((program.padded_bytes(), PITCH), (0x380, 0x380));
    assert_eq!(program.body_words(), ork_plan::PROGRAM_BODY_WORDS);
    assert_eq!(program.body_words(), program_fetch_words(Format::INT8_INT32));
    assert_eq!(program.fetch_amount(), ProgramSet::FETCH_AMOUNT);
}

/// Each buffer, one byte too short: the last byte of the extents is needed, and by whom is said. For every form of
/// program, and whichever of its programs it is.
#[test]
fn a_binding_that_is_one_byte_short_is_refused() {
    for (format, m, k, n, rules) in [
        (Format::INT8_INT32, 100, 2048, 3000, vec![]),
        (Format::INT8_INT8, 100, 300, 3000, vec![]),
        (Format::FP16_FP32, 200, 2500, 1000, vec![]),
        (Format::FP16_FP16, 100, 300, 1000, vec![]),
        (Format::BF16_FP32, 100, 3000, 1000, vec![]),
        (Format::TF32_FP32, 3, 100, 50, vec![]),
        (Format::INT16_INT32, 33, 500, 600, vec![]),
        (Format::INT8_INT32, 50, 3584, 3584, vec!["fold"]),
        (Format::INT8_INT32, 50, 96, 3584, vec!["cube-everywhere"]),
        (Format::INT4_INT16, 64, 512, 256, vec!["cube-everywhere"]),
    ] {
        let plan = plan_of(format, m, k, n, &rules);
        let shape = &plan.shapes()[0];
        let core = shape.chains.last().expect("a chain").core;
        let exact = exact(&plan, core);
        emit(shape, core, &exact).unwrap();
        let shorter = |binding: Binding| Binding { len: binding.len - 1, ..binding };
        for (buffer, bindings) in [
            (Buffer::Features, Bindings { a: shorter(exact.a), ..exact }),
            (Buffer::Weights, Bindings { b: shorter(exact.b), ..exact }),
            (Buffer::Output, Bindings { c: shorter(exact.c), ..exact }),
            (Buffer::Regcmd, Bindings { regcmd: shorter(exact.regcmd), ..exact }),
        ] {
            match emit(shape, core, &bindings) {
                Err(SynthError::OutOfBinding { core: named, buffer: found, end, len, .. }) => {
                    assert_eq!((found, named, end), (buffer, core, len + 1), "{format} {rules:?}");
                }
                other => panic!("{format} {rules:?}, {buffer}: {other:?}"),
            }
        }
    }
}

/// int4 batches leave the last three quarters of their last block's lines unwritten: of the output, the last byte that
/// is written counts.
#[test]
fn int4_batches_are_checked_to_the_last_block() {
    let plan = plan_of(Format::INT4_INT16, 13, 2048, 200, &[]);
    let shape = &plan.shapes()[0];
    let core = shape.chains.last().expect("a chain").core;
    let exact = exact(&plan, core);
    let last = shape.chain(core).and_then(|chain| chain.programs.last()).expect("a program");
    assert_eq!((last.rows, last.n, last.form), (5, 64, Form::Int4Batch));
    let needed = last.c_offset + (4 * 4 + 1) * 128;
    let bound = |len| emit(shape, core, &Bindings { c: Binding { len, ..exact.c }, ..exact });
    assert!(bound(needed).is_ok());
    assert!(matches!(bound(needed - 1), Err(SynthError::OutOfBinding { buffer: Buffer::Output, .. })));
    // A: rows at every second line of 1024 bytes, and three atoms behind the last one's.
    let needed = last.a_offset + 4 * 2048 + 1024 + 48;
    let bound = |len| emit(shape, core, &Bindings { a: Binding { len, ..exact.a }, ..exact });
    assert!(bound(needed).is_ok());
    assert!(matches!(bound(needed - 1), Err(SynthError::OutOfBinding { buffer: Buffer::Features, .. })));
}

#[test]
fn int4_programs_carry_words_behind_their_op_enable_word() {
    let plan = plan_of(Format::INT4_INT16, 40, 2048, 64, &[]);
    let shape = &plan.shapes()[0];
    let set = emit(shape, 0, &exact(&plan, 0)).unwrap();
    assert_eq!((set.len(), set.fetch_words()), (5, 116));
    for (index, bytes) in set.bytes().chunks_exact(960).enumerate() {
        let words: Vec<_> =
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        // The fetch of 120 words: program, four words, and four that write nothing.
        assert_eq!(words.len(), 120);
        assert_eq!(words[111], 0x0081_0000_000D_0008);
        assert_eq!(words[112..116], words[0..4]);
        assert_eq!(words[116..], [0; 4]);
        assert_eq!(set.program_address(index).0, REGCMD.0 + 960 * index as u32);
        if index < 4 {
            // Linked programs are fetched without them.
            assert_eq!(words[108], u64::from(set.program_address(index + 1).0) << 16 | 0x0101_0000_0000_0010);
            assert_eq!(words[109], 0x0101_0000_0037_0014);
        }
        let kept = if index == 0 { 0x0201_0000_00B1_1040 } else { 0x0201_0000_20B1_1040 };
        assert_eq!((words[0], words[15]), (kept, kept), "weights are kept from the second batch on");
    }
}

#[test]
fn only_int8_results_are_requantised() {
    let stage = OutputStage::Requantise { multiplier: 3, shift: 4, offset: 5 };
    let sums = plan(4, 64, 64);
    let refused = emit_with(&sums.shapes()[0], 0, &exact(&sums, 0), stage).unwrap_err();
    assert_eq!(refused, SynthError::OutputStage { format: Format::INT8_INT32 });
    let narrow = plan_of(Format::INT8_INT8, 4, 64, 64, &[]);
    let set = emit_with(&narrow.shapes()[0], 0, &exact(&narrow, 0), stage).unwrap();
    let words = words(&set, 0);
    assert_eq!(value::<regs::dpu::OutCvtScale>(&words), 3);
    assert_eq!(value::<regs::dpu::OutCvtShift>(&words), 4);
    assert_eq!(value::<regs::dpu::OutCvtOffset>(&words), 5);
}

#[test]
fn errors_name_the_place() {
    let plan = plan(1, 64, 64);
    let shape = &plan.shapes()[0];
    let exact = exact(&plan, 0);
    let message = |bindings: Bindings| emit(shape, 0, &bindings).unwrap_err().to_string();
    let odd = Bindings { a: Binding { iova: Iova(0x1000_0008), len: 64 }, ..exact };
    assert_eq!(
        message(odd),
        "program 0 of core 0 would start the feature buffer (A) at 0x10000008, which is not a multiple of 16 bytes"
    );
    let high = Bindings { c: Binding { iova: Iova(0xFFFF_FFF0), len: 64 }, ..exact };
    assert!(message(high).contains("leaves the 4 GiB window"));
    let short = Bindings { b: Binding { iova: B, len: 2000 }, ..exact };
    assert_eq!(
        message(short),
        "program 0 of core 0 needs bytes 0x0..0x800 of the weight buffer (B), which is bound at 0x20000000 with 0x7d0 \
         bytes"
    );
    assert_eq!(emit(shape, 2, &exact).unwrap_err(), SynthError::NoChain { core: 2 });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The planner's extents are enough for every program of every pass and core, whatever the shape.
    #[test]
    fn extents_hold_every_program(
        format in 0..Format::ALL.len(),
        m in 1u32..600,
        k in 1u32..9000,
        n in 1u32..9000,
    ) {
        let format = Format::ALL[format];
        // Rounded results see all of K.
        let k = if format == Format::INT8_INT8 { k.min(4096) } else { k };
        let plan = plan_of(format, m, k, n, &[]);
        for shape in plan.shapes() {
            for chain in &shape.chains {
                prop_assert!(emit(shape, chain.core, &exact(&plan, chain.core)).is_ok());
            }
        }
    }
}
