// SPDX-License-Identifier: MIT OR Apache-2.0
//! WEIGHT_REUSE and DATA_REUSE (`isa.md` §10.6, §10.7, `isa-notes.md` G-15).

use crate::common;
use common::bench::*;
use common::tensor::{Case, Kind, Out as Format, Spec, banks, to};
use common::*;
use ork_isa::regs::cna;
use ork_isa::{Iova, Link};
use ork_sim::{Core, JobOutcome, SimOptions};

/// Two column segments over one activation tile, or two row tiles over one weight segment.
struct Pair {
    bench: Bench,
    first: Matmul,
    second: Matmul,
}

impl Pair {
    fn columns(split: u32) -> Self {
        let bench = Bench::new(Matmul::new(Recipe::Two, 8, 512, 128), 17);
        let first = Matmul { n: 64, s: 128, split, ..bench.mm };
        // C rows lie unevenly (§5.3), so each segment gets its own output area.
        let second = Matmul { b: bench.mm.b + 512 * 64, ..first };
        Self {
            bench,
            first: Matmul { s: 64, ..first },
            second: Matmul { s: 64, c: bench_c(&first), ..second },
        }
    }

    fn run(&self, reuse: u32) -> ork_sim::JobOutcome {
        let second = Matmul { split: self.second.split | reuse, ..self.second };
        let amount = self.first.program(Link::Last, &[]).fetch_amount();
        self.bench
            .bus
            .put_program(PROGRAM, &self.first.program(Link::Next { at: Iova(PROGRAM + 0x400), amount }, &[]));
        self.bench.bus.put_program(PROGRAM + 0x400, &second.program(Link::Last, &[]));
        core().run(&self.bench.bus, &job(amount, 2))
    }

    fn right_elements(
        &self,
        part: &Matmul,
        columns: std::ops::Range<usize>,
        rows: std::ops::Range<usize>,
    ) -> usize {
        let (n, whole) = (self.bench.mm.n as usize, self.bench.expected());
        let got = part.get_c(&self.bench.bus);
        let expected = rows.flat_map(|row| columns.clone().map(move |col| row * n + col)).map(|at| whole[at]);
        got.iter().zip(expected).filter(|(got, expected)| **got == *expected).count()
    }
}

fn bench_c(mm: &Matmul) -> u32 {
    mm.c + 8 * 64 * 4
}

#[test]
fn data_reuse_is_exact_over_one_activation_tile() {
    let pair = Pair::columns(0xB1);
    let outcome = pair.run(0x1000);
    assert_clean(&outcome, 2);
    assert_eq!(pair.right_elements(&pair.second, 64..128, 0..8), 8 * 64);
    assert_eq!(outcome.stats.feature_bytes, 8 * 512, "the second task fetched none");
}

#[test]
fn data_reuse_over_another_tile_uses_the_old_one() {
    let mut pair = Pair::columns(0xB1);
    pair.second.a += 4096;
    let other = signed(Random(99).bytes(8 * 512));
    Matmul { a: pair.second.a, ..pair.second }.put_a(&pair.bench.bus, &other);
    // Restore the weights that lie behind A.
    pair.bench.mm.put_b(&pair.bench.bus, &pair.bench.b);
    let outcome = pair.run(0x1000);
    assert_wrong(&outcome, "data-reuse");
    // The values are those of the first tile: stale, and deterministic.
    assert_eq!(pair.right_elements(&pair.second, 64..128, 0..8), 8 * 64);
}

#[test]
fn weight_reuse_fits_or_keeps_the_end_of_the_stream() {
    // isa.md §10.6. K = 1024, N = 96: 98304 bytes, three banks.
    for banks in [4u32, 3, 2] {
        let bench = Bench::new(Matmul::new(Recipe::Two, 16, 1024, 96), 18);
        let split = banks << 4 | (12 - banks);
        let tile = |index: u32, split| Matmul {
            m: 8,
            a: bench.mm.a + index * 8 * 1024,
            c: bench.mm.c + index * 8 * 96 * 4,
            split,
            ..bench.mm
        };
        let amount = tile(0, split).program(Link::Last, &[]).fetch_amount();
        let next = Link::Next { at: Iova(PROGRAM + 0x400), amount };
        bench.bus.put_program(PROGRAM, &tile(0, split).program(next, &[]));
        bench.bus.put_program(PROGRAM + 0x400, &tile(1, split | 0x2000).program(Link::Last, &[]));
        let outcome = core().run(&bench.bus, &job(amount, 2));
        let got = bench.mm.get_c(&bench.bus);
        let expected = bench.expected();
        let right = |row: usize, col: usize| got[row * 96 + col] == expected[row * 96 + col];
        assert!((0..8).all(|row| (0..96).all(|col| right(row, col))), "the loading tile is always right");
        // The last `banks` of three kernel groups are still there.
        let kept = 96usize.saturating_sub(32 * banks as usize);
        for row in 8..16 {
            for col in 0..96 {
                assert_eq!(right(row, col), col >= kept, "{banks} banks, row {row}, column {col}");
            }
        }
        if kept == 0 {
            assert_clean(&outcome, 2);
        } else {
            assert_wrong(&outcome, "weight-reuse");
        }
    }
}

#[test]
fn kept_weights_are_those_that_were_loaded_whoever_writes_over_them() {
    // Between loading and reuse the pooling unit writes over the weights in memory.
    let bench = Bench::new(Matmul::new(Recipe::Two, 16, 512, 32), 26);
    let mm = bench.mm;
    let tile = |index: u32, split, link| {
        let (a, c) = (mm.a + index * 8 * mm.k, mm.c + index * 8 * mm.n * 4);
        Matmul { m: 8, a, c, split, ..mm }.program(link, &[])
    };
    let (second, third) = (PROGRAM + 0x400, PROGRAM + 0x800);
    let amount = tile(0, 0xB1, Link::Last).fetch_amount();
    // A plane of 8 x 8 pixels becomes one of 4 x 4.
    let (mut pool, pool_amount) = assemble(&pool_words(mm.a, mm.b, (8, 8, 8), 1), 0x60);
    let link = pool.len() - 4 * 8;
    pool[link..link + 8].copy_from_slice(&ork_isa::Cmd::new(0x0101, 0x10, third).0.to_le_bytes());
    let next = ork_isa::Cmd::new(0x0101, 0x14, amount.into());
    pool[link + 8..link + 16].copy_from_slice(&next.0.to_le_bytes());
    let first = Link::Next { at: Iova(second), amount: pool_amount };
    bench.bus.put_program(PROGRAM, &tile(0, 0xB1, first));
    bench.bus.put(second, &pool);
    bench.bus.put_program(third, &tile(1, 0x20B1, Link::Last));
    let before = bench.bus.get(mm.b, 4 * 4 * 16);
    assert_clean(&core().run(&bench.bus, &job(amount, 3)), 3);
    assert_ne!(bench.bus.get(mm.b, 4 * 4 * 16), before);
    assert_eq!(mm.get_c(&bench.bus), bench.expected());
}

#[test]
fn weight_reuse_under_another_split_is_wrong() {
    let bench = Bench::new(Matmul::new(Recipe::Two, 16, 1024, 96), 19);
    let tile = |index: u32, split| Matmul {
        m: 8,
        a: bench.mm.a + index * 8 * 1024,
        c: bench.mm.c + index * 8 * 96 * 4,
        split,
        ..bench.mm
    };
    let amount = tile(0, 0xB1).program(Link::Last, &[]).fetch_amount();
    let next = Link::Next { at: Iova(PROGRAM + 0x400), amount };
    bench.bus.put_program(PROGRAM, &tile(0, 0x84).program(next, &[]));
    bench.bus.put_program(PROGRAM + 0x400, &tile(1, 0x2000 | 0x75).program(Link::Last, &[]));
    let outcome = core().run(&bench.bus, &job(amount, 2));
    assert_wrong(&outcome, "weight-reuse");
    let right = bench.right_rows();
    assert!(right[..8].iter().all(|right| *right) && right[8..].iter().all(|right| !right));
}

const DATA_REUSE: u32 = 1 << 12;
const WEIGHT_REUSE: u32 = 1 << 13;

/// Runs programs as one chain.
fn chain(core: &mut Core, bus: &FlatBus, tasks: &[Matmul]) -> JobOutcome {
    let at = |index: usize| PROGRAM + index as u32 * 0x400;
    let amount = tasks[0].program(Link::Last, &[]).fetch_amount();
    for (index, task) in tasks.iter().enumerate() {
        let next = Link::Next { at: Iova(at(index + 1)), amount };
        let link = if index + 1 < tasks.len() { next } else { Link::Last };
        bus.put_program(at(index), &task.program(link, &[]));
    }
    core.run(bus, &job(amount, tasks.len() as u16))
}

/// A product of 16 rows in two tiles of 8, over one set of weights.
struct Tiles {
    bench: Bench,
}

impl Tiles {
    fn new(k: u32, n: u32) -> Self {
        Self { bench: Bench::new(Matmul::new(Recipe::Two, 16, k, n), u64::from(k + n)) }
    }

    fn tile(&self, index: u32, split: u32) -> Matmul {
        let mm = self.bench.mm;
        Matmul { m: 8, a: mm.a + index * 8 * mm.k, c: mm.c + index * 8 * mm.n * 4, split, ..mm }
    }

    /// Whether each tile is right.
    fn right(&self) -> [bool; 2] {
        let rows = self.bench.right_rows();
        [rows[..8].iter().all(|right| *right), rows[8..].iter().all(|right| *right)]
    }
}

#[test]
fn weights_are_kept_up_to_the_last_byte_of_their_banks() {
    // isa.md §10.6: K segw <= W 32768, here 65536 = 2 banks; one kernel group more overwrites the first.
    for (n, good) in [(64, true), (96, false)] {
        let tiles = Tiles::new(1024, n);
        let split = banks(10, 2);
        let outcome = chain(
            &mut core(),
            &tiles.bench.bus,
            &[tiles.tile(0, split), tiles.tile(1, split | WEIGHT_REUSE)],
        );
        assert_eq!(tiles.right(), [true, good], "N = {n}");
        if good {
            assert_clean(&outcome, 2);
            assert_eq!(outcome.stats.weight_bytes, 1024 * 64, "loaded once");
        } else {
            assert_wrong(&outcome, "weight-reuse");
        }
    }
}

#[test]
fn fp16_weights_are_kept_by_the_same_law() {
    // K segw 2 <= W 32768.
    for (n, good) in [(32, true), (48, false)] {
        let spec = Spec { split: banks(10, 2), ..Spec::matmul(Kind::Fp16, Format::Fp32, 8, 1024, n) };
        let case = Case::new(spec, 9);
        let mut core = core();
        let words = case.spec.words();
        assert_clean(&run_words(&mut core, &case.bus, &words, 0xD), 1);
        let first = case.got();
        let reused = patched(&words, &[to(cna::CbufCon0(banks(10, 2) | WEIGHT_REUSE))]);
        let outcome = run_words(&mut core, &case.bus, &reused, 0xD);
        if good {
            assert_clean(&outcome, 1);
        } else {
            assert_wrong(&outcome, "weight-reuse");
        }
        assert_eq!(first, case.expected());
        // The last columns are right in any case.
        assert_eq!(case.got()[..16 * 8] == first[..16 * 8], good, "N = {n}");
        assert_eq!(case.got()[(n - 16) * 8..], first[(n - 16) * 8..]);
    }
}

#[test]
fn weights_of_another_operand_are_not_those_that_were_loaded() {
    // isa-notes G-15: the result equals the old operand's.
    let tiles = Tiles::new(512, 64);
    let split = banks(1, 11);
    let other = Matmul { b: tiles.bench.mm.b + 512 * 32, ..tiles.tile(1, split | WEIGHT_REUSE) };
    let outcome = chain(&mut core(), &tiles.bench.bus, &[tiles.tile(0, split), other]);
    assert_wrong(&outcome, "weight-reuse");
    assert_eq!(tiles.right(), [true, true], "by the weights of the first task");
}

#[test]
fn a_task_between_replaces_the_weights() {
    let tiles = Tiles::new(512, 64);
    let split = banks(1, 11);
    let between = Matmul { b: tiles.bench.mm.b + 512 * 32, n: 32, s: 32, ..tiles.tile(1, split) };
    let tasks = [tiles.tile(0, split), between, tiles.tile(1, split | WEIGHT_REUSE)];
    let outcome = chain(&mut core(), &tiles.bench.bus, &tasks);
    assert_wrong(&outcome, "weight-reuse");
    assert_eq!(tiles.right(), [true, false]);
    // A task between that itself keeps them leaves them.
    let keeps =
        [tiles.tile(0, split), tiles.tile(1, split | WEIGHT_REUSE), tiles.tile(1, split | WEIGHT_REUSE)];
    assert_clean(&chain(&mut core(), &tiles.bench.bus, &keeps), 3);
    assert_eq!(tiles.right(), [true, true]);
}

#[test]
fn another_core_has_a_buffer_of_its_own() {
    for reuse in [WEIGHT_REUSE, DATA_REUSE] {
        let tiles = Tiles::new(512, 64);
        let split = banks(1, 11);
        let (mut one, mut two) = (core(), Core::new(0, &SimOptions::default()));
        assert_clean(&chain(&mut one, &tiles.bench.bus, &[tiles.tile(0, split)]), 1);
        let again = tiles.tile(0, split | reuse);
        let outcome = chain(&mut two, &tiles.bench.bus, &[again]);
        assert_wrong(&outcome, if reuse == WEIGHT_REUSE { "weight-reuse" } else { "data-reuse" });
        assert!(!tiles.right()[0]);
        assert_clean(&chain(&mut one, &tiles.bench.bus, &[again]), 1);
        assert!(tiles.right()[0], "the core that loaded");
        // A reset empties the buffer.
        one.reset();
        let outcome = chain(&mut one, &tiles.bench.bus, &[again]);
        assert_wrong(&outcome, if reuse == WEIGHT_REUSE { "weight-reuse" } else { "data-reuse" });
    }
}

#[test]
fn features_are_kept_under_their_split_and_size_only() {
    // isa.md §10.7: the same activation tile; another number of banks or rows is not it.
    let tiles = Tiles::new(512, 64);
    for (split, rows, good) in [(banks(2, 10), 8, true), (banks(3, 9), 8, false), (banks(2, 10), 7, false)] {
        let again = Matmul { m: rows, ..tiles.tile(0, split | DATA_REUSE) };
        let outcome = chain(&mut core(), &tiles.bench.bus, &[tiles.tile(0, banks(2, 10)), again]);
        if good {
            assert_clean(&outcome, 2);
        } else {
            assert_wrong(&outcome, "data-reuse");
        }
    }
}

#[test]
fn a_task_between_replaces_the_features() {
    let tiles = Tiles::new(512, 64);
    let split = banks(1, 11);
    let tasks = [tiles.tile(0, split), tiles.tile(1, split), tiles.tile(0, split | DATA_REUSE)];
    let outcome = chain(&mut core(), &tiles.bench.bus, &tasks);
    assert_wrong(&outcome, "data-reuse");
    assert_eq!(tiles.right(), [false, true], "tile 0 was computed again, from the features of tile 1");
}
