// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chains of whole plans: links, addresses, range checks.

use ork_isa::soc::RK3588;
use ork_isa::{Cmd, Iova, Link, Register, regs};
use ork_layout::Format;
use ork_plan::{Decision, PROGRAM_PITCH_BYTES, Plan, PlanOptions, Problem, decide, weight_layout};
use ork_synth::{
    Binding, Bindings, Buffer, MatmulTask, OutputStage, ProgramSet, SynthError, emit, matmul_program,
};
use proptest::prelude::*;

const A: Iova = Iova(0x1000_0000);
const B: Iova = Iova(0x2000_0000);
const C: Iova = Iova(0x5000_0000);
const REGCMD: Iova = Iova(0xF000_0000);

fn plan(m: u32, k: u32, n: u32) -> Plan {
    let weight = weight_layout(Format::INT8_INT32, k, n, &RK3588).expect("a weight");
    match decide(&Problem { m, weight }, &RK3588, &PlanOptions::default()) {
        Decision::Accept(plan) => plan,
        Decision::Decline(decline) => panic!("{decline}"),
    }
}

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
    let start = program * PROGRAM_PITCH_BYTES as usize;
    let bytes = &set.bytes()[start..start + PROGRAM_PITCH_BYTES as usize];
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
        assert_eq!(ProgramSet::BODY_WORDS, 108);
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
        rows: 1,
        k: 32,
        n: 32,
        row_stride: 32,
        split: ork_plan::BankSplit { data: 1, weight: 11 },
        grains: 2,
        a: A,
        b: B,
        c: C,
        output: OutputStage::Plain,
    };
    let program = matmul_program(&task, Link::Last).unwrap();
    assert_eq!(program.padded_bytes() as u64, PROGRAM_PITCH_BYTES);
    assert_eq!(program.body_words(), ork_plan::PROGRAM_BODY_WORDS);
    assert_eq!(program.fetch_amount(), ProgramSet::FETCH_AMOUNT);
}

/// Each buffer, one byte too short: the last byte of the extents is needed, and by whom is said.
#[test]
fn a_binding_that_is_one_byte_short_is_refused() {
    let plan = plan(100, 2048, 3000);
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
                assert_eq!((found, named, end), (buffer, core, len + 1));
            }
            other => panic!("{buffer}: {other:?}"),
        }
    }
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
    fn extents_hold_every_program(m in 1u32..600, k in 1u32..9000, n in 1u32..9000) {
        let plan = plan(m, k, n);
        for shape in plan.shapes() {
            for chain in &shape.chains {
                prop_assert!(emit(shape, chain.core, &exact(&plan, chain.core)).is_ok());
            }
        }
    }
}
