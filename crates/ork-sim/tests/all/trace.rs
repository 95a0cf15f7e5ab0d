// SPDX-License-Identifier: MIT OR Apache-2.0
//! Strict jobs, and what a trace tells.

use crate::common;
use common::bench::*;
use common::*;
use ork_isa::{Iova, Link};
use ork_sim::{Core, JobEnd, JobStats, SimOptions};

/// Two tasks: the first with this split of the buffer, the second a good one.
fn chain(split: u32) -> (Bench, u16) {
    let bench = Bench::new(Matmul::new(Recipe::Two, 4, 64, 64), 8);
    let second = PROGRAM + 0x1000;
    let last = bench.mm.program(Link::Last, &[]);
    let amount = last.fetch_amount();
    bench.bus.put_program(second, &last);
    let first = Matmul { split, ..bench.mm }.program(Link::Next { at: Iova(second), amount }, &[]);
    bench.bus.put_program(PROGRAM, &first);
    (bench, first.fetch_amount())
}

#[test]
fn a_strict_job_ends_at_the_first_finding() {
    let options = SimOptions { strict: true, ..SimOptions::default() };
    let (bench, amount) = chain(0x1B1);
    let lenient = core().run(&bench.bus, &job(amount, 2));
    assert_wrong(&lenient, "fc-data-bank");
    assert_eq!(lenient.tasks_done, 2);
    let strict = Core::new(0, &options).run(&bench.bus, &job(amount, 2));
    assert_unmodelled(&strict, "fc-data-bank");
    assert_eq!(strict.tasks_done, 0);
    // Without a finding nothing changes.
    let (bench, amount) = chain(0xB1);
    assert_clean(&Core::new(0, &options).run(&bench.bus, &job(amount, 2)), 2);
}

#[test]
fn a_trace_tells_of_every_task() {
    let (bench, amount) = chain(0x1B1);
    let mut seen = Vec::new();
    let outcome = core().run_traced(&bench.bus, &job(amount, 2), &mut |trace| {
        seen.push((trace.task, trace.program, trace.stats, trace.findings.len()));
    });
    assert_eq!(outcome.end, JobEnd::Done);
    let places: Vec<_> =
        seen.iter().map(|(task, program, _, findings)| (*task, program.0, *findings)).collect();
    assert_eq!(places, [(0, PROGRAM, 1), (1, PROGRAM + 0x1000, 0)]);
    for (_, _, stats, _) in &seen {
        let expected = JobStats {
            words: stats.words,
            macs: 4 * 64 * 64,
            feature_bytes: 4 * 64,
            weight_bytes: 64 * 64,
            operand_bytes: 0,
            written_bytes: 4 * 64 * 4,
        };
        assert_eq!(*stats, expected);
    }
    assert_eq!(seen.iter().map(|(_, _, stats, _)| stats.words).sum::<u64>(), outcome.stats.words);
}
