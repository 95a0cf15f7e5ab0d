// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random input for everything that reads what a program or a file brings: the calls of both drivers, the programs that
//! jobs run, traces. The tests run it for a few seconds from fixed seeds, `examples/fuzz_calls.rs` for as long as one likes.
//!
//! One seed is one execution: a board, some dozens of calls, and the end of all files. It must not panic, on the caller's
//! thread or on a core's; it must end; and nothing may be left of it.
#![allow(dead_code, reason = "tests and example use their parts")]
#![allow(clippy::unwrap_used, reason = "a step that fails is a failed run")]

mod session;
mod trace;
mod words;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ork_emu::{Board, Live};

pub(crate) use session::Driver;

/// What is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Calls of the vendor driver, of the heap, of dma-bufs and fences.
    Rknpu,
    /// Calls of the mainline driver.
    Rocket,
    /// The reader of traces, and their replay.
    Trace,
}

impl Target {
    /// All, with the names that the example knows.
    pub(crate) const ALL: [(&'static str, Self); 3] =
        [("rknpu", Self::Rknpu), ("rocket", Self::Rocket), ("trace", Self::Trace)];
}

/// How long a run goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Budget {
    /// So many executions.
    Executions(u64),
    /// So long.
    Time(Duration),
}

/// What one execution did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Calls, or events of a trace.
    pub(crate) calls: u64,
    /// Those that succeeded.
    pub(crate) successes: u64,
    /// Jobs that were accepted.
    pub(crate) jobs: u64,
    /// Of those, jobs that ended well.
    pub(crate) completed: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.successes += other.successes;
        self.jobs += other.jobs;
        self.completed += other.completed;
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Summary {
    /// Seeds.
    pub(crate) executions: u64,
    /// What they did together.
    pub(crate) tally: Tally,
    /// The longest execution, and its seed.
    pub(crate) slowest: (Duration, u64),
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { calls, successes, jobs, completed } = self.tally;
        write!(
            f,
            "{} executions, {calls} calls ({successes} succeeded), {jobs} jobs ({completed} blocking ones ended \
             well), slowest {:?} (seed {})",
            self.executions, self.slowest.0, self.slowest.1
        )
    }
}

/// What an execution may take; none needs a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Memory of each board.
pub(crate) const MEMORY_BYTES: u64 = 64 << 20;

/// Runs seeds from `first` on, until the budget is used up or something is wrong.
///
/// # Errors
/// What went wrong, and with which seed.
pub(crate) fn run(target: Target, first: u64, budget: Budget) -> Result<Summary, String> {
    run_with(first, budget, LIMIT, move |seed| execute(target, seed))
        .map_err(|wrong| format!("{target:?}, {wrong}"))
}

/// As [`run`], of anything that takes a seed.
pub(crate) fn run_with(
    first: u64,
    budget: Budget,
    limit: Duration,
    execute: impl Fn(u64) -> Result<Tally, String> + Send + 'static,
) -> Result<Summary, String> {
    let begin = Instant::now();
    let (report, reports) = mpsc::channel();
    let wanted = move |done: u64| match budget {
        Budget::Executions(count) => done < count,
        Budget::Time(time) => begin.elapsed() < time,
    };
    let worker = std::thread::spawn(move || {
        for seed in (first..).take_while(|seed| wanted(seed - first)) {
            let start = Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| execute(seed)))
                .unwrap_or_else(|payload| Err(format!("panic: {}", text_of(&*payload))));
            let failed = result.is_err();
            if report.send((start.elapsed(), result)).is_err() || failed {
                return;
            }
        }
    });
    let mut summary = Summary::default();
    loop {
        let seed = first + summary.executions;
        match reports.recv_timeout(limit) {
            Ok((time, Ok(tally))) => {
                summary.executions += 1;
                summary.tally.add(tally);
                summary.slowest = summary.slowest.max((time, seed));
            }
            Ok((_, Err(wrong))) => return Err(format!("seed {seed}: {wrong}")),
            // The worker stays where it hangs, for whoever looks with a debugger.
            Err(mpsc::RecvTimeoutError::Timeout) => {
                return Err(format!("seed {seed}: hangs, not ended after {limit:?}"));
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    worker.join().map_err(|_| "the worker itself panicked".to_owned())?;
    Ok(summary)
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// One execution.
fn execute(target: Target, seed: u64) -> Result<Tally, String> {
    match target {
        Target::Rknpu => session::execute(Driver::Rknpu, seed),
        Target::Rocket => session::execute(Driver::Rocket, seed),
        Target::Trace => trace::execute(seed),
    }
}

/// Waits until nothing is left of a board's files.
fn all_gone(board: &Board) -> Result<(), String> {
    let begin = Instant::now();
    while board.live() != Live::default() {
        if begin.elapsed() > LIMIT / 2 {
            return Err(format!("this stays: {:?}", board.live()));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

/// Most memory that this process has had, in bytes.
pub(crate) fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = peak.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    number.unwrap_or(0) * 1024
}
