// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens when a program is wrong (`isa.md` §10, §13), one case on each side of every boundary.

use crate::common;
use common::bench::*;
use common::tensor::banks;
use common::*;
use ork_isa::regs::{cna, global};
use ork_isa::{Cmd, Iova, Link, ProgramBuilder};
use ork_sim::{Effect, JobEnd};

/// `CBUF_CON0` by the schedule of `isa.md` §10.3 for full-K int8.
fn schedule(m: u32, k: u32) -> u32 {
    let scale = k / 512;
    let base = 177 - 15 * (scale as i32 - 1);
    let slope = 15 * scale as i32;
    (base - slope * (m.div_ceil(64) as i32 - 1)).max(0x1B) as u32
}

fn scheduled(m: u32, k: u32, n: u32) -> Bench {
    let mut mm = Matmul::new(Recipe::Two, m, k, n);
    mm.split = schedule(m, k);
    Bench::new(mm, u64::from(m + k + n))
}

#[test]
fn row_caps_of_int8() {
    // isa.md §10.4, the table for int8.
    for (k, cap) in [(512, 704), (1024, 320), (1536, 192), (2048, 128), (3072, 64), (3584, 64), (4096, 64)] {
        for m in [1, cap - 1, cap] {
            let bench = scheduled(m, k, 64);
            assert_clean(&bench.run(&mut core(), &[]), 1);
            assert!(bench.right_rows().iter().all(|right| *right), "{m} rows at K = {k}");
        }
        let bench = scheduled(cap + 1, k, 64);
        let outcome = bench.run(&mut core(), &[]);
        assert_eq!(outcome.end, JobEnd::Done);
        assert!(outcome.diagnoses.iter().any(|d| d.effect == Effect::Wrong), "{} rows at K = {k}", cap + 1);
        assert!(!bench.right_rows().iter().all(|right| *right), "{} rows at K = {k}", cap + 1);
    }
}

#[test]
fn rows_beyond_the_feature_banks_are_wrong_from_the_cap_on() {
    // One bank, K = 512: 64 rows.
    let mut mm = Matmul::new(Recipe::Two, 70, 512, 64);
    mm.split = 0xB1;
    let bench = Bench::new(mm, 1);
    assert_wrong(&bench.run(&mut core(), &[]), "feature-capacity");
    let right = bench.right_rows();
    assert!(right[..64].iter().all(|right| *right));
    assert!(right[64..].iter().all(|right| !right));
}

#[test]
fn lines_take_whole_granules() {
    // isa-notes G-9: Mt 144 with K/32 = 7, 21, 35 needs one more bank than the bytes say.
    for groups in [7u32, 21, 35] {
        let (m, k) = (144, 32 * groups);
        let exact = (m * k).div_ceil(32768);
        for (banks, good) in [(exact, false), (exact + 1, true)] {
            let mut mm = Matmul::new(Recipe::One, m, k, 32);
            mm.split = (12 - banks) << 4 | banks;
            let bench = Bench::new(mm, 2);
            let outcome = bench.run(&mut core(), &[]);
            if good {
                assert_clean(&outcome, 1);
            } else {
                assert_wrong(&outcome, "feature-capacity");
            }
            assert_eq!(bench.right_rows().iter().all(|right| *right), good, "{m} x {k}, {banks} banks");
        }
    }
    // Neighbours fit exactly.
    for groups in [6u32, 8, 20, 22] {
        let mm = Matmul::new(Recipe::One, 144, 32 * groups, 32);
        let d = (144 * 32 * groups).div_ceil(32768);
        let bench = Bench::new(Matmul { split: (12 - d) << 4 | d, ..mm }, 3);
        assert_clean(&bench.run(&mut core(), &[]), 1);
    }
}

#[test]
fn no_weight_bank_hangs() {
    let bench = Bench::new(Matmul { split: 0x0B, ..Matmul::new(Recipe::Two, 4, 64, 64) }, 4);
    assert_hang(&bench.run(&mut core(), &[]), "no-weight-bank", 0);
    let bench = Bench::new(Matmul { split: 0x1B, ..Matmul::new(Recipe::Two, 4, 64, 64) }, 4);
    assert_clean(&bench.run(&mut core(), &[]), 1);
    assert!(bench.right_rows().iter().all(|right| *right));
}

#[test]
fn a_kernel_group_that_does_not_fit_spoils_every_element() {
    // int8, K = 1536, one weight bank [M: ORK]; 1.5 banks are needed.
    for (split, good) in [(0x1B, false), (0x2A, true)] {
        let bench = Bench::new(Matmul { split, ..Matmul::new(Recipe::Two, 8, 1536, 128) }, 5);
        let outcome = bench.run(&mut core(), &[]);
        if good {
            assert_clean(&outcome, 1);
        } else {
            assert_wrong(&outcome, "weight-group");
        }
        assert_eq!(bench.right_elements(), if good { 8 * 128 } else { 0 });
    }
}

#[test]
fn one_bank_with_exactly_one_group_needs_three_groups() {
    // isa.md §10.4: W = 1, K = 1024 with at most two kernel groups.
    for (n, good) in [(32, false), (64, false), (96, true)] {
        let bench = Bench::new(Matmul { split: 0x1B, ..Matmul::new(Recipe::Two, 8, 1024, n) }, 6);
        let outcome = bench.run(&mut core(), &[]);
        if good {
            assert_clean(&outcome, 1);
        } else {
            assert_wrong(&outcome, "single-weight-bank");
        }
        assert_eq!(bench.right_elements() == 8 * n as usize, good, "N = {n}");
    }
}

#[test]
fn overlapping_sides_are_wrong_only_when_the_weights_need_the_room() {
    // D 8 + W 11 = 19 banks (0xB8).
    let narrow = Bench::new(Matmul { split: 0xB8, ..Matmul::new(Recipe::Two, 64, 128, 256) }, 7);
    assert_clean(&narrow.run(&mut core(), &[]), 1);
    assert!(narrow.right_rows().iter().all(|right| *right));
    let wide = Bench::new(Matmul { split: 0xB8, ..Matmul::new(Recipe::Two, 64, 128, 2048) }, 7);
    assert_wrong(&wide.run(&mut core(), &[]), "split-overlaps");
    assert_eq!(wide.right_elements(), 0);
    // 0xBC: all zeros.
    let zeros = Bench::new(Matmul { split: 0xBC, ..Matmul::new(Recipe::Two, 8, 64, 64) }, 7);
    assert_wrong(&zeros.run(&mut core(), &[]), "split-overlaps");
    assert!(zeros.mm.get_c(&zeros.bus).iter().all(|value| *value == 0));
}

#[test]
fn fc_data_bank_corrupts() {
    // isa-notes G-14: 64 to 75 % of the elements; 6 and 7 give the same values.
    let run = |fc: u32| {
        let split = cna::CbufCon0(banks(1, 11)).with_fc_data_bank(fc).expect("three bits");
        let bench = Bench::new(Matmul { split: split.0, ..Matmul::new(Recipe::Two, 32, 64, 128) }, 8);
        let outcome = bench.run(&mut core(), &[]);
        (outcome, bench.right_elements(), bench.mm.get_c(&bench.bus))
    };
    let (outcome, right, _) = run(0);
    assert_clean(&outcome, 1);
    assert_eq!(right, 32 * 128);
    for fc in 1..=7 {
        let (outcome, right, _) = run(fc);
        assert_wrong(&outcome, "fc-data-bank");
        let wrong = 1.0 - right as f64 / (32.0 * 128.0);
        assert!((0.64..=0.75).contains(&wrong), "{wrong}");
    }
    assert_eq!(run(6).2, run(7).2);
}

#[test]
fn sixteen_thousand_columns_do_not_fit_the_channel_field() {
    // isa.md §3, §13 row 6: N = 8192 works, 16384 is silently wrong.
    let bench = Bench::new(Matmul::new(Recipe::Two, 1, 32, 8192), 9);
    assert_clean(&bench.run(&mut core(), &[]), 1);
    assert!(bench.right_rows()[0]);
    let bench = Bench::new(Matmul::new(Recipe::Two, 1, 32, 8192), 9);
    let n = 16384;
    let outcome = bench
        .run(&mut core(), &[(0x1038, 0x0101_0000 | n), (0x3018, n - 1), (0x403C, (n - 1) << 16 | (n - 1))]);
    assert_wrong(&outcome, "no-kernels");
    assert_eq!(bench.right_elements(), 0);
}

#[test]
fn zero_skipping_alone_hangs() {
    let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 10);
    assert_hang(&bench.run(&mut core(), &[(0x1060, 1)]), "fc-skip", 0);
}

#[test]
fn a_write_size_that_disagrees_hangs() {
    let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 11);
    assert_hang(&bench.run(&mut core(), &[(0x405C, 7 << 16)]), "wdma-size", 0);
}

#[test]
fn invalid_output_formats_hang() {
    // int8 -> int16 without the words of the working form, and codes that no output has.
    for format in [0x6000_0000, 0xC000_0000, 0xE000_0000] {
        let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 12);
        assert_hang(&bench.run(&mut core(), &[(0x4010, format)]), "output-format", 0);
    }
}

#[test]
fn strides_that_leave_the_mapping_hang_and_the_core_stays_wedged() {
    for patch in [(0x40C0, 0x10_0000), (0x4038, 0x1FFF_1FFF), (0x4024, 0x20_0000)] {
        let bench = Bench::new(Matmul::new(Recipe::Two, 64, 64, 64), 13);
        let mut core = core();
        let outcome = bench.run(&mut core, &[patch]);
        assert_hang(&outcome, "write-fault", 0);
        // G-2: the next job hangs too, until a reset.
        assert_hang(&bench.run(&mut core, &[]), "core-wedged", 0);
        core.reset();
        assert_clean(&bench.run(&mut core, &[]), 1);
        assert!(bench.right_rows().iter().all(|right| *right));
    }
}

#[test]
fn strides_inside_the_mapping_write_elsewhere() {
    // §13 rows 7, 8: SURFACE_ADD of another format.
    let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 14);
    let outcome = bench.run(&mut core(), &[(0x40C0, 0x40)]);
    assert_eq!(outcome.end, JobEnd::Done);
    assert!(!bench.right_rows().iter().all(|right| *right));
}

#[test]
fn unmapped_operands_hang() {
    for (offset, check) in [(0x1070, "feature-fault"), (0x1110, "weight-fault"), (0x4020, "write-fault")] {
        let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 15);
        assert_hang(&bench.run(&mut core(), &[(offset, 0x7000_0000)]), check, 0);
        let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 15);
        assert_hang(&bench.run(&mut core(), &[(offset, 0xFFFF_FFF0)]), check, 0);
    }
}

#[test]
fn a_write_that_reaches_the_end_of_the_mapping_hangs() {
    let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 16);
    // The memory ends one page behind C.
    let last = bench.mm.c + 4096 + 4096 - 4 * 64 * 4;
    let outcome = bench.run(&mut core(), &[(0x4020, last)]);
    assert_clean(&outcome, 1);
    let mut core = core();
    assert_hang(&bench.run(&mut core, &[(0x4020, last + 16)]), "write-fault", 0);
}

#[test]
fn output_over_the_operands_of_the_same_task_is_reported() {
    for over in ["a", "b"] {
        let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 30);
        let target = if over == "a" { bench.mm.a } else { bench.mm.b };
        assert_wrong(&bench.run(&mut core(), &[(0x4020, target)]), "output-over-input");
        // Just behind it is fine.
        let behind = if over == "a" { bench.mm.a + 4 * 64 } else { bench.mm.b + 64 * 64 };
        let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 30);
        assert_clean(&bench.run(&mut core(), &[(0x4020, behind)]), 1);
    }
}

#[test]
fn chains_that_end_early_hang() {
    let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 20);
    let last = bench.mm.program(Link::Last, &[]);
    let amount = last.fetch_amount();
    let second = PROGRAM + 0x400;
    let put = |link: Link| bench.bus.put_program(PROGRAM, &bench.mm.program(link, &[]));
    bench.bus.put_program(second, &last);
    // More tasks than programs.
    put(Link::Next { at: Iova(second), amount });
    assert_hang(&core().run(&bench.bus, &job(amount, 3)), "chain-short", 2);
    assert!(bench.right_rows().iter().all(|right| *right), "the first tasks ran");
    // Amount 0 in the link.
    put(Link::Next { at: Iova(second), amount: 0 });
    assert_hang(&core().run(&bench.bus, &job(amount, 2)), "chain-short", 1);
    // A wrong next address: not mapped, and data without a program, with and without words that look like some.
    put(Link::Next { at: Iova(0x4000_0000), amount: 55 });
    assert_hang(&core().run(&bench.bus, &job(amount, 2)), "fetch-fault", 1);
    for noise in [[0u8; 8], [0xA5; 8], 0x1001_0000_0000_4FF0u64.to_le_bytes()] {
        bench.bus.put(second, &noise.repeat(112));
        put(Link::Next { at: Iova(second), amount: 55 });
        assert_hang(&core().run(&bench.bus, &job(amount, 2)), "no-op-enable", 1);
    }
    // A first program of noise stays a question to the model.
    bench.bus.put(PROGRAM, &[0xA5; 112 * 8]);
    assert_unmodelled(&core().run(&bench.bus, &job(amount, 1)), "unknown-word");
}

#[test]
fn several_tasks_without_chain_words_are_not_dispatched() {
    // uapi.md A.9, A.11: with neither word of the link. isa-notes F.3: with the amount alone, task 0 runs.
    let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 24);
    let program = bench.mm.program(Link::Last, &[]);
    let amount = program.fetch_amount();
    bench.bus.put_program(PROGRAM, &program);
    assert_hang(&core().run(&bench.bus, &job(amount, 2)), "chain-missing", 0);
    assert!(bench.right_rows().iter().all(|right| !right), "nothing ran");
    let at = PROGRAM + program.body_words() as u32 * 8;
    bench.bus.put(at, &[0; 8]);
    bench.bus.put(at + 8, &Cmd::new(0x0101, 0x14, u32::from(amount)).0.to_le_bytes());
    assert_hang(&core().run(&bench.bus, &job(amount, 2)), "chain-short", 1);
    assert!(bench.right_rows().iter().all(|right| *right), "task 0 ran");
}

#[test]
fn a_job_starts_at_bits_31_to_4_of_its_address() {
    let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 25);
    let program = bench.mm.program(Link::Last, &[]);
    bench.bus.put_program(PROGRAM, &program);
    let at = |base: u32| ork_sim::PcJob { base: Iova(base), ..job(program.fetch_amount(), 1) };
    assert_clean(&core().run(&bench.bus, &at(PROGRAM + 8)), 1);
    assert!(bench.right_rows().iter().all(|right| *right));
    // Bit 0 is PC_SEL.
    assert_hang(&core().run(&bench.bus, &at(PROGRAM + 1)), "pc-slave-mode", 0);
}

#[test]
fn programs_without_op_enable_hang() {
    let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 21);
    let program = bench.mm.program(Link::Last, &[]);
    bench.bus.put_program(PROGRAM, &program);
    // A descriptor of a shorter program left in place.
    assert_hang(&core().run(&bench.bus, &job(30, 1)), "no-op-enable", 0);
    assert_hang(&core().run(&bench.bus, &job(0, 1)), "no-op-enable", 0);
}

#[test]
fn enable_bits_of_blocks_are_stored_and_start_nothing() {
    // isa-notes A.1: the op-enable word is what is needed; a block's own OPERATION_ENABLE beside it does no harm.
    let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 27);
    let program = bench.mm.program(Link::Last, &[]);
    let mut words: Vec<Cmd> = program.words().to_vec();
    let body = program.body_words();
    let own = [(0x0201, 0x1008), (0x0801, 0x3008), (0x1001, 0x4008), (0x2001, 0x5008)];
    words.splice(body..body, own.map(|(target, offset)| Cmd::new(target, offset, 1)));
    let amount = (words.len() / 2 - 1) as u16;
    let put = |words: &[Cmd]| {
        bench.bus.put(PROGRAM, &words.iter().flat_map(|word| word.0.to_le_bytes()).collect::<Vec<u8>>());
    };
    put(&words);
    assert_clean(&core().run(&bench.bus, &job(amount, 1)), 1);
    assert!(bench.right_rows().iter().all(|right| *right));
    // Alone they start nothing.
    let enable = words.iter().position(|word| word.0 >> 48 == 0x81).unwrap();
    words[enable] = Cmd(0);
    put(&words);
    assert_hang(&core().run(&bench.bus, &job(amount, 1)), "no-op-enable", 0);
}

#[test]
fn words_after_op_enable_go_to_the_next_group() {
    // isa.md §2.3: fold tiles carry the link behind the op-enable word.
    let bench = Bench::new(Matmul::new(Recipe::Two, 16, 96, 64), 22);
    let tile = |index: u32| Matmul {
        m: 8,
        a: bench.mm.a + index * 8 * bench.mm.k,
        c: bench.mm.c + index * 8 * bench.mm.n * 4,
        split: 0xB1,
        ..bench.mm
    };
    let second = tile(1).program(Link::Last, &[]);
    let amount = second.fetch_amount();
    let linked = tile(0).program(Link::Next { at: Iova(PROGRAM + 0x400), amount }, &[]);
    let mut words: Vec<Cmd> = linked.words().to_vec();
    let body = linked.body_words();
    let trailer: Vec<Cmd> = words.drain(body..).collect();
    // op-enable, marker, address, amount.
    words.extend([trailer[3], trailer[2], trailer[0], trailer[1]]);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.0.to_le_bytes()).collect();
    bench.bus.put(PROGRAM, &bytes);
    bench.bus.put_program(PROGRAM + 0x400, &second);
    assert_clean(&core().run(&bench.bus, &job(amount, 2)), 2);
    assert!(bench.right_rows().iter().all(|right| *right));
}

#[test]
fn a_masked_interrupt_never_reaches_the_driver() {
    let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 23);
    let program = bench.mm.program(Link::Last, &[]);
    bench.bus.put_program(PROGRAM, &program);
    let mut job = job(program.fetch_amount(), 1);
    job.int_mask = 0xC00;
    assert_hang(&core().run(&bench.bus, &job), "interrupt-masked", 1);
}

#[test]
fn what_is_not_modelled_is_said_to_be() {
    for (patch, check) in [
        ((0x1100, 1), "weight-decompression"),
        ((0x100C, 0x2001_0000), "conv-variant"),
        ((0x100C, 0x2000_0002), "conv-mode"),
        ((0x1014, 0x1000_0009), "conv-variant"),
        ((0x1034, 32), "kernel-depth"),
        ((0x1028, 2), "output-size-disagrees"),
        ((0x1044, 0), "data-entries"),
        ((0x3010, 0x401), "mac-precision"),
        ((0x4034, 7), "dpu-size-disagrees"),
        ((0x4050, 0x1000_07FC), "size-e"),
        ((0x1040, 0xB0), "no-feature-bank"),
        ((0x102C, 0x40_0004), "surf-mode"),
        ((0x1010, 0x1_0050), "sequence-controller"),
        ((0x1038, 0x0001_0040), "kernel-size"),
        ((0x100C, 0x2000_0003), "depthwise-disagrees"),
        ((0x104C, 0), "input-converter"),
        ((0x4010, 0x8400_0000), "dpu-precision"),
        ((0x3018, 31), "core-channels"),
    ] {
        let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 24);
        assert_unmodelled(&bench.run(&mut core(), &[patch]), check);
        assert!(bench.mm.get_c(&bench.bus).iter().all(|value| *value == 0), "nothing was written");
    }
}

#[test]
fn work_beyond_the_models_bounds_is_refused() {
    let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 24);
    let (m, k, n) = (64, 65_504, 16_352);
    let outcome = bench.run(
        &mut core(),
        &[
            (0x1020, 1 << 16 | m),
            (0x1024, k),
            (0x102C, m),
            (0x1034, k),
            (0x1038, 0x0101_0000 | n),
            (0x3014, (m - 1) << 16),
        ],
    );
    assert_unmodelled(&outcome, "task-too-large");
}

#[test]
fn programs_with_odd_control_words_are_not_guessed_at() {
    let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 24);
    let program = bench.mm.program(Link::Last, &[]);
    let run = |place: usize, word: Cmd| {
        bench.bus.put_program(PROGRAM, &program);
        bench.bus.put(PROGRAM + 8 * place as u32, &word.0.to_le_bytes());
        core().run(&bench.bus, &job(program.fetch_amount(), 1))
    };
    assert_unmodelled(&run(program.body_words(), Cmd::new(0x0101, 0x10, 1)), "pc-slave-mode");
    assert_unmodelled(&run(program.body_words() + 1, Cmd::op_enable(0xD)), "second-op-enable");
    let beat = PROGRAM + 8 * (program.body_words() as u32 + 2);
    bench.bus.put_program(PROGRAM, &program);
    for (place, mask) in [0xD, 0x18].into_iter().enumerate() {
        bench.bus.put(beat + 8 * place as u32, &Cmd::op_enable(mask).0.to_le_bytes());
    }
    assert_unmodelled(&core().run(&bench.bus, &job(program.fetch_amount(), 1)), "second-op-enable");
}

#[test]
fn an_op_enable_word_left_behind_a_program_of_odd_length_does_nothing() {
    // The last beat of the shorter program ends with the op-enable word of the longer one that lay there before.
    let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 24);
    let longer = bench.mm.program(Link::Last, &[]);
    let mut words = longer.words().to_vec();
    assert!(words.len().is_multiple_of(2) && words.last() == Some(&Cmd::op_enable(0xD)));
    bench.bus.put_program(PROGRAM, &longer);
    // The second word sets a register to its reset value.
    words.remove(1);
    for (place, word) in words.iter().enumerate() {
        bench.bus.put(PROGRAM + 8 * place as u32, &word.0.to_le_bytes());
    }
    assert_clean(&core().run(&bench.bus, &job(longer.fetch_amount(), 1)), 1);
    assert!(bench.right_rows().iter().all(|right| *right));
}

#[test]
fn words_that_nobody_knows_are_said_to_be_unknown() {
    for word in [Cmd::new(0x0A01, 0x100C, 0), Cmd::new(0x0201, 0x1FF0, 0), Cmd::new(0x0101, 0x0030, 1)] {
        let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 25);
        bench.bus.put(PROGRAM, &word.0.to_le_bytes());
        assert_unmodelled(&core().run(&bench.bus, &job(7, 1)), "unknown-word");
    }
    let mut empty = ProgramBuilder::new();
    empty.set(cna::CbufCon0(0xB1));
    let program = empty.finish(Link::Last, global::OperationEnable(0x02));
    let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 25);
    bench.bus.put_program(PROGRAM, &program);
    assert_unmodelled(&core().run(&bench.bus, &job(program.fetch_amount(), 1)), "op-enable-mask");
}

#[test]
fn a_finding_names_everything() {
    let bench = Bench::new(Matmul { split: 0x1B, ..Matmul::new(Recipe::Two, 8, 1536, 128) }, 26);
    let outcome = bench.run(&mut core(), &[]);
    let text = outcome.diagnoses[0].to_string();
    for part in [
        "resource (WRONG) [weight-group]: core 0 task 0 word 15",
        "(1) a kernel group must fit the weight banks: 1 banks hold 32768 bytes",
        "(2) task 0: one group has 49152 bytes",
        "CNA.CBUF_CON0 = 0x1b {WEIGHT_REUSE=0, DATA_REUSE=0, FC_DATA_BANK=0, WEIGHT_BANK=1, DATA_BANK=11} (task 0 word 15)",
        "isa.md §10.2",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

/// The fold (`isa.md` §11): rows of the matmul along the width.
fn fold_patch(m: u32, total: u32, k: u32) -> Vec<(u16, u32)> {
    let d = (m * k).div_ceil(32768);
    vec![
        (0x100C, 0x2000_0000),
        (0x1010, 0x20),
        (0x1020, m << 16 | 1),
        (0x1084, m << 16 | 1),
        (0x1028, m),
        (0x102C, m),
        (0x1040, (12 - d) << 4 | d),
        (0x1044, (m * k).div_ceil(64)),
        (0x107C, total.min(128)),
        (0x1080, total - m),
        (0x3014, m - 1),
        (0x405C, m - 1),
        (0x4030, m - 1),
        (0x4034, 0),
        (0x4038, 0),
        (0x4024, 16 * total),
        (0x40C0, 128 * total),
    ]
}

#[test]
fn fold_tiles_of_a_batch_are_exact() {
    let bench = Bench::new(Matmul::new(Recipe::One, 60, 160, 96), 27);
    let mut core = core();
    let mut row = 0;
    for m in [36, 14, 8, 2] {
        let patch = fold_patch(m, 60, 160);
        let mm = Matmul { a: bench.mm.a + 16 * row, c: bench.mm.c + 16 * row, ..bench.mm };
        let program = mm.program(Link::Last, &patch);
        bench.bus.put_program(PROGRAM, &program);
        assert_clean(&core.run(&bench.bus, &job(program.fetch_amount(), 1)), 1);
        row += m;
    }
    assert_eq!(row, 60);
    assert_eq!(bench.mm.get_c(&bench.bus), bench.expected());
}

#[test]
fn a_fold_tile_with_its_own_surface_stride_is_wrong() {
    // §13 row 11.
    let bench = Bench::new(Matmul::new(Recipe::One, 60, 160, 96), 28);
    let mut patch = fold_patch(36, 60, 160);
    patch.retain(|(offset, _)| *offset != 0x4024);
    patch.push((0x4024, 16 * 36));
    bench.run(&mut core(), &patch);
    assert!(!bench.right_rows()[..36].iter().all(|right| *right));
}
