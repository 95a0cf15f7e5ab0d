// SPDX-License-Identifier: MIT OR Apache-2.0
//! int8 matmuls by both recipes against three loops.

use crate::common;
use common::bench::*;
use common::*;
use ork_isa::{Iova, Link};
use ork_sim::{Core, SimOptions};

fn exact(mm: Matmul, seed: u64, options: &SimOptions) {
    let bench = Bench::new(mm, seed);
    let outcome = bench.run(&mut Core::new(0, options), &[]);
    assert_clean(&outcome, 1);
    assert!(bench.mm.get_c(&bench.bus) == bench.expected(), "{mm:?}");
    assert_eq!(outcome.stats.macs, u64::from(mm.m) * u64::from(mm.k) * u64::from(mm.n));
    assert!(outcome.modelled_us > 0.0);
    assert_eq!(outcome.int_status & 0x300, 0x100);
}

#[test]
fn worked_examples() {
    for recipe in [Recipe::One, Recipe::Two] {
        let mm = Matmul::new(recipe, 4, 64, 64);
        assert_eq!(mm.split, 0xB1);
        exact(mm, 1, &SimOptions::default());
        exact(mm, 1, &SimOptions { reference_kernels: true, threads: 1, ..SimOptions::default() });
    }
}

#[test]
fn random_shapes() {
    let mut random = Random(42);
    for seed in 0..40 {
        let k = 32 * (1 + random.below(12)) as u32;
        let n = 32 * (1 + random.below(6)) as u32;
        let quad = 4 * (1 + random.below(12)) as u32;
        exact(
            Matmul::new(Recipe::One, if seed % 5 == 0 { 1 } else { quad }, k, n),
            seed,
            &SimOptions::default(),
        );
        let mut mm = Matmul::new(Recipe::Two, 1 + random.below(40) as u32, k, n);
        if seed % 2 == 0 {
            mm.s = n + 32 * random.below(3) as u32;
        }
        exact(mm, seed, &SimOptions::default());
        if seed % 3 == 0 {
            exact(mm, seed, &SimOptions { reference_kernels: true, threads: 1, ..SimOptions::default() });
        }
    }
}

#[test]
fn requantised_to_int8() {
    let mut random = Random(7);
    for seed in 0..12 {
        let mut mm =
            Matmul::new(Recipe::Two, 1 + random.below(33) as u32, 512, 32 * (1 + random.below(4)) as u32);
        let scale = random.next() as u16;
        mm.out = Out::Int8(scale, 18 + random.below(6) as u32, random.below(40) as i32 - 20);
        exact(mm, seed, &SimOptions::default());
    }
    // Ties: scale 1, shift 1.
    let mut mm = Matmul::new(Recipe::Two, 8, 32, 32);
    mm.out = Out::Int8(1, 10, 0);
    exact(mm, 3, &SimOptions::default());
}

#[test]
fn one_row_of_great_depth() {
    exact(Matmul::new(Recipe::Two, 1, 10752, 64), 5, &SimOptions::default());
}

#[test]
fn the_converter_scales_int32_and_floors() {
    // isa.md §14.3: (x * scale) >> shift, rounded down.
    let bench = Bench::new(Matmul::new(Recipe::Two, 3, 64, 32), 9);
    let outcome = bench.run(&mut core(), &[(0x4084, 3), (0x4088, 1)]);
    assert_clean(&outcome, 1);
    let expected: Vec<i32> = bench.expected().iter().map(|x| (x * 3).div_euclid(2)).collect();
    assert_eq!(bench.mm.get_c(&bench.bus), expected);
}

/// Chains row tiles of one matmul; `patch` changes the later programs.
fn chain(bench: &Bench, rows: u32, tasks: u16, patch: Patch<'_>) -> (ork_sim::JobOutcome, u32) {
    let mm = bench.mm;
    let tiles = mm.m / rows;
    let mut amount = 0;
    for tile in 0..tiles {
        let part = Matmul {
            m: rows,
            a: mm.a + tile * rows * mm.k,
            c: mm.c + tile * rows * mm.n * 4,
            split: 0xB1,
            ..mm
        };
        let at = |tile: u32| PROGRAM + tile * 0x400;
        let probe = part.program(Link::Last, &[]);
        amount = probe.fetch_amount();
        let link = if tile + 1 < tiles { Link::Next { at: Iova(at(tile + 1)), amount } } else { Link::Last };
        bench.bus.put_program(at(tile), &part.program(link, if tile == 0 { &[] } else { patch }));
    }
    (core().run(&bench.bus, &job(amount, tasks)), tiles)
}

#[test]
fn a_chain_of_row_tiles() {
    let bench = Bench::new(Matmul::new(Recipe::Two, 40, 96, 64), 11);
    let (outcome, tiles) = chain(&bench, 8, 5, &[]);
    assert_eq!(tiles, 5);
    assert_clean(&outcome, 5);
    assert_eq!(bench.mm.get_c(&bench.bus), bench.expected());
    // The turn passed four times: the last task ran group 0.
    assert_eq!(outcome.int_status & 0x300, 0x100);
}

#[test]
fn a_chain_runs_exactly_the_tasks_asked_for() {
    let bench = Bench::new(Matmul::new(Recipe::Two, 40, 96, 64), 12);
    let (outcome, _) = chain(&bench, 8, 3, &[]);
    assert_clean(&outcome, 3);
    let right = bench.right_rows();
    assert_eq!(right.iter().filter(|right| **right).count(), 24, "the last link dangles, harmlessly");
}

#[test]
fn a_later_program_that_does_not_rearm_the_pointer_repeats_task_0() {
    let bench = Bench::new(Matmul::new(Recipe::Two, 16, 96, 64), 13);
    // S_POINTER is the fifth word: writing a reserved-free register twice in its place keeps the length.
    let mm = bench.mm;
    let tile = |index: u32, link| {
        let part =
            Matmul { m: 8, a: mm.a + index * 8 * mm.k, c: mm.c + index * 8 * mm.n * 4, split: 0xB1, ..mm };
        part.program(link, &[])
    };
    let amount = tile(0, Link::Last).fetch_amount();
    bench.bus.put_program(PROGRAM, &tile(0, Link::Next { at: Iova(PROGRAM + 0x400), amount }));
    bench.bus.put_program(PROGRAM + 0x400, &tile(1, Link::Last));
    // Word 4 of recipe 2 becomes a word that writes nothing.
    bench.bus.put(PROGRAM + 0x400 + 4 * 8, &[0; 8]);
    let outcome = core().run(&bench.bus, &job(amount, 2));
    assert_wrong(&outcome, "pointer-not-rearmed");
    let right = bench.right_rows();
    assert!(right[..8].iter().all(|right| *right), "task 0's rows are there");
    assert!(right[8..].iter().all(|right| !right), "task 1's rows were never written");
}

#[test]
fn the_first_program_of_a_job_runs_what_it_writes() {
    // "Repeats" is a rule of chains. Programs of 15 words that never write S_POINTER are submitted one after the other,
    // also on a core whose DPU an earlier job has left alternating.
    for s_pointer in [None, Some(ork_sim::PcJob::s_pointer_of(0))] {
        let bench = Bench::new(Matmul::new(Recipe::Two, 16, 96, 64), 13);
        let mm = bench.mm;
        let mut core = core();
        for tile in 0..2 {
            let (a, c) = (mm.a + tile * 8 * mm.k, mm.c + tile * 8 * mm.n * 4);
            let program = Matmul { m: 8, a, c, split: 0xB1, ..mm }.program(Link::Last, &[]);
            bench.bus.put_program(PROGRAM, &program);
            if tile == 1 {
                // S_POINTER is word 4 of recipe 2.
                bench.bus.put(PROGRAM + 4 * 8, &[0; 8]);
            }
            let job = ork_sim::PcJob { s_pointer, ..job(program.fetch_amount(), 1) };
            assert_clean(&core.run(&bench.bus, &job), 1);
        }
        assert!(bench.right_rows().iter().all(|right| *right), "{s_pointer:?}");
    }
}

#[test]
fn what_the_driver_writes_makes_cna_and_core_alternate() {
    // uapi.md A.9 step 2, B.2: also where the DPU does not, and whatever its programs write to its own S_POINTER.
    let bench = Bench::new(Matmul::new(Recipe::Two, 4, 96, 64), 17);
    let program = bench.mm.program(Link::Last, &[(0x4004, 0)]);
    bench.bus.put_program(PROGRAM, &program);
    let driver = Some(ork_sim::PcJob::s_pointer_of(2));
    assert_eq!(driver, Some(0x2000_000E));
    for (s_pointer, second) in [(None, 0x155), (driver, 0x1AA)] {
        let mut core = core();
        let job = ork_sim::PcJob { s_pointer, ..job(program.fetch_amount(), 1) };
        for status in [0x155, second, 0x155] {
            let outcome = core.run(&bench.bus, &job);
            assert_clean(&outcome, 1);
            assert_eq!(outcome.int_status, status, "CNA, CORE and DPU events by group, {s_pointer:?}");
        }
    }
}

#[test]
fn a_chain_needs_the_pointer_of_the_dpu_only() {
    // The driver arms CNA and CORE once for the whole chain.
    let silicon = ork_sim::Silicon { pointer_scope: ork_sim::PointerScope::OwnBlock, ..Default::default() };
    let mut core = Core::new(0, &SimOptions { silicon, ..SimOptions::default() });
    let bench = Bench::new(Matmul::new(Recipe::Two, 24, 96, 64), 18);
    let mm = bench.mm;
    let tile = |index: u32, link| {
        let (a, c) = (mm.a + index * 8 * mm.k, mm.c + index * 8 * mm.n * 4);
        Matmul { m: 8, a, c, split: 0xB1, ..mm }.program(link, &[])
    };
    let amount = tile(0, Link::Last).fetch_amount();
    let at = |index: u32| PROGRAM + index * 0x400;
    for index in 0..3 {
        let link = if index < 2 { Link::Next { at: Iova(at(index + 1)), amount } } else { Link::Last };
        bench.bus.put_program(at(index), &tile(index, link));
    }
    let job = ork_sim::PcJob { s_pointer: Some(ork_sim::PcJob::s_pointer_of(0)), ..job(amount, 3) };
    let outcome = core.run(&bench.bus, &job);
    assert_clean(&outcome, 3);
    assert_eq!((outcome.int_status, bench.mm.get_c(&bench.bus)), (0x155, bench.expected()));
}

#[test]
fn a_short_program_inherits_its_groups_registers() {
    // isa-notes NS-32: full, full, delta computes; full, delta does not complete.
    let bench = Bench::new(Matmul::new(Recipe::Two, 24, 96, 64), 14);
    let mm = bench.mm;
    let at = |index: u32| PROGRAM + index * 0x400;
    let place = |index: u32| (mm.a + index * 8 * mm.k, mm.c + index * 8 * mm.n * 4);
    let full = |index: u32, link| {
        let (a, c) = place(index);
        Matmul { m: 8, a, c, split: 0xB1, ..mm }.program(link, &[])
    };
    let delta = |index: u32| {
        use ork_isa::regs::{cna, dpu, global};
        let (a, c) = place(index);
        let mut p = ork_isa::ProgramBuilder::new();
        p.set(dpu::SPointer(0xE)).set(cna::FeatureDataAddr(a)).set(dpu::DstBaseAddr(c));
        p.finish(Link::Last, global::OperationEnable(0xD))
    };
    let full_amount = full(0, Link::Last).fetch_amount();
    let delta_amount = delta(0).fetch_amount();

    bench.bus.put_program(at(0), &full(0, Link::Next { at: Iova(at(1)), amount: full_amount }));
    bench.bus.put_program(at(1), &full(1, Link::Next { at: Iova(at(2)), amount: delta_amount }));
    bench.bus.put_program(at(2), &delta(2));
    let outcome = core().run(&bench.bus, &job(full_amount, 3));
    assert_clean(&outcome, 3);
    assert_eq!(bench.mm.get_c(&bench.bus), bench.expected());

    let bench = Bench::new(Matmul::new(Recipe::Two, 24, 96, 64), 14);
    bench.bus.put_program(at(0), &full(0, Link::Next { at: Iova(at(1)), amount: delta_amount }));
    bench.bus.put_program(at(1), &delta(1));
    let outcome = core().run(&bench.bus, &job(full_amount, 2));
    assert_hang(&outcome, "cna-unconfigured", 1);
    assert!(bench.right_rows()[8..].iter().all(|right| !right));
}

#[test]
fn a_delta_job_depends_on_the_jobs_before_it() {
    // isa-notes G-16, NS-32: on a fresh core and behind one complete job it leaves its output untouched, behind two or
    // three it computes. Each program is a job of its own.
    use ork_isa::regs::{cna, dpu, global};
    for (complete, computes) in [(0, false), (1, false), (2, true), (3, true)] {
        let bench = Bench::new(Matmul::new(Recipe::Two, 32, 96, 64), 15);
        let mm = bench.mm;
        let mut core = core();
        let place = |index: u32| (mm.a + index * 8 * mm.k, mm.c + index * 8 * mm.n * 4);
        for index in 0..complete {
            let (a, c) = place(index);
            let full = Matmul { m: 8, a, c, split: 0xB1, ..mm }.program(Link::Last, &[]);
            bench.bus.put_program(PROGRAM, &full);
            assert_clean(&core.run(&bench.bus, &job(full.fetch_amount(), 1)), 1);
        }
        let (a, c) = place(3);
        let mut delta = ork_isa::ProgramBuilder::new();
        delta.set(dpu::SPointer(0xE)).set(cna::FeatureDataAddr(a)).set(dpu::DstBaseAddr(c));
        let delta = delta.finish(Link::Last, global::OperationEnable(0xD));
        bench.bus.put_program(PROGRAM, &delta);
        let outcome = core.run(&bench.bus, &job(delta.fetch_amount(), 1));
        if computes {
            assert_clean(&outcome, 1);
        } else {
            assert_hang(&outcome, "cna-unconfigured", 0);
            assert!(bench.bus.get(c, 8 * 64 * 4).iter().all(|byte| *byte == 0), "untouched");
        }
        assert_eq!(bench.right_rows()[24..].iter().all(|right| *right), computes, "{complete} before");
    }
}

#[test]
fn cores_may_run_on_other_threads() {
    fn sendable<T: Send>(_: &T) {}
    let cores: Vec<Core> = (0..3).map(|index| Core::new(index, &SimOptions::default())).collect();
    sendable(&cores);
    // Three cores at once over one bus, each its own columns.
    let bench = Bench::new(Matmul::new(Recipe::Two, 9, 512, 96), 31);
    let mm = bench.mm;
    std::thread::scope(|scope| {
        for (index, mut core) in (0u32..).zip(cores) {
            let (bus, at) = (&bench.bus, PROGRAM + index * 0x400);
            scope.spawn(move || {
                let part =
                    Matmul { n: 32, b: mm.b + index * 32 * mm.k, c: mm.c + index * 9 * 32 * 4, s: 32, ..mm };
                let program = part.program(Link::Last, &[]);
                bus.put_program(at, &program);
                let job = ork_sim::PcJob { base: Iova(at), ..job(program.fetch_amount(), 1) };
                assert_clean(&core.run(bus, &job), 1);
            });
        }
    });
    let expected = bench.expected();
    for index in 0..3usize {
        let part = Matmul { n: 32, s: 32, c: mm.c + index as u32 * 9 * 32 * 4, ..mm };
        for (i, value) in part.get_c(&bench.bus).into_iter().enumerate() {
            assert_eq!(value, expected[i / 32 * 96 + index * 32 + i % 32]);
        }
    }
}
