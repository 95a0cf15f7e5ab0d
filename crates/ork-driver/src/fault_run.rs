// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many small products on an emulated board on which things go wrong, each compared with plain loops.
//!
//! What it shows: no result is wrong, no wait outlasts its bound, and what went wrong stands in the counters. The run is
//! decided by its seed, but for the order in which the cores take their jobs.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use ork_device::{
    Board, Device, DeviceOptions, DriverKind, EmuOptions, EventCounts, EventKind, Fault, FaultPlan,
    OpenError, RecoveryMode, SubmitMode, When,
};

use crate::check::VerifyMode;
use crate::driver::{Driver, DriverOptions};
use crate::execution::CompletionMode;
use crate::{DriverError, Weight};

/// What to run.
#[derive(Clone, Debug)]
pub struct FaultRun {
    /// Decides shapes, data and faults.
    pub seed: u64,
    /// Products.
    pub products: u64,
    /// Driver of the emulated board.
    pub kernel: DriverKind,
    /// Its version, for `rknpu`.
    pub driver_version: [u32; 3],
    /// How jobs are waited for.
    pub submit: SubmitMode,
    /// Cores.
    pub cores: u8,
    /// What goes wrong. Its seed is replaced by the run's.
    pub faults: FaultPlan,
}

impl Default for FaultRun {
    fn default() -> Self {
        Self {
            seed: 0,
            products: 1_000_000,
            kernel: DriverKind::Rknpu,
            driver_version: [0, 9, 8],
            submit: SubmitMode::Auto,
            cores: 3,
            faults: Self::every_fault(100),
        }
    }
}

impl FaultRun {
    /// Each fault that a product can survive, once in so many of its events on average.
    #[must_use]
    pub fn every_fault(one_in: u32) -> FaultPlan {
        let rate = |factor: u32| {
            let share =
                std::num::NonZeroU32::new(one_in.saturating_mul(factor)).unwrap_or(std::num::NonZeroU32::MIN);
            When::OneIn(share)
        };
        FaultPlan {
            dropped: rate(2),
            hang: rate(3),
            lost_interrupt: rate(3),
            late_write_back: rate(2),
            late_write_back_ms: 1,
            // Several calls for each job.
            stale_line: rate(10),
            interrupted: rate(5),
            ..FaultPlan::default()
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultTally {
    /// Products that were tried.
    pub products: u64,
    /// Results that differ from the plain loops without an error. Must be 0.
    pub wrong: u64,
    /// Products that took longer than they may. Must be 0.
    pub late: u64,
    /// Products that ended in an error, by its text without numbers.
    pub errors: BTreeMap<String, u64>,
    /// Weights that were loaded again, because their products stayed wrong.
    pub reloads: u64,
    /// The longest product, by the device's clock.
    pub longest: Duration,
    /// What it may take.
    pub bound: Duration,
    /// Faults that happened, by kind.
    pub injected: BTreeMap<Fault, u64>,
    /// What was noticed and done.
    pub events: EventCounts,
    /// Calls that were repeated after a signal.
    pub interruptions: u64,
}

impl FaultTally {
    /// Whether nothing was wrong, late or given up.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.wrong == 0 && self.late == 0 && self.errors.is_empty()
    }

    /// Faults of these kinds.
    #[must_use]
    pub fn injected(&self, kinds: &[Fault]) -> u64 {
        kinds.iter().filter_map(|kind| self.injected.get(kind)).sum()
    }
}

impl fmt::Display for FaultTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} products: {} wrong, {} later than they may", self.products, self.wrong, self.late)?;
        writeln!(
            f,
            "longest {} ms of {} ms, modelled and waited",
            self.longest.as_millis(),
            self.bound.as_millis()
        )?;
        f.write_str("injected: ")?;
        let mut separator = "";
        for (fault, count) in &self.injected {
            write!(f, "{separator}{fault}: {count}")?;
            separator = ", ";
        }
        writeln!(f)?;
        writeln!(
            f,
            "noticed: {}; {} calls repeated; {} weights loaded again",
            self.events, self.interruptions, self.reloads
        )?;
        for (error, count) in &self.errors {
            writeln!(f, "error: {error}: {count}")?;
        }
        Ok(())
    }
}

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FaultRunError {
    /// The emulated board could not be opened.
    #[error("cannot open the emulated board")]
    Open(#[from] OpenError),
    /// The driver could not be made.
    #[error("cannot make a driver")]
    Driver(#[from] DriverError),
}

/// Shapes: rows, channels, columns. One cache line of results, one and several kernel groups, several K blocks, sizes
/// that are padded.
const SHAPES: [(usize, usize, usize); 6] =
    [(1, 32, 16), (1, 64, 64), (2, 96, 33), (4, 64, 40), (3, 160, 64), (1, 33, 129)];
/// How often findings are collected, in products: fewer than the board keeps.
const COLLECT_EVERY: u64 = 64;

/// A stream of numbers: SplitMix64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    fn codes(&mut self, count: usize) -> Vec<i8> {
        (0..count).map(|_| (self.next() >> 32) as i8).collect()
    }
}

/// A weight, and what it was made of.
struct Operand {
    shape: (usize, usize, usize),
    codes: Vec<i8>,
    weight: Weight,
}

fn load(driver: &Driver, shape: (usize, usize, usize), codes: &[i8]) -> Result<Weight, DriverError> {
    let (_, k, n) = shape;
    driver.load_codes("fault run", k, n, &|row, out| out.copy_from_slice(&codes[row * k..][..k]))
}

/// Sums by plain loops.
fn reference(a: &[i8], operand: &Operand) -> Vec<i32> {
    let (m, k, n) = operand.shape;
    let mut c = vec![0; m * n];
    for row in 0..m {
        for column in 0..n {
            let pairs = a[row * k..][..k].iter().zip(&operand.codes[column * k..][..k]);
            c[row * n + column] = pairs.map(|(x, y)| i32::from(*x) * i32::from(*y)).sum();
        }
    }
    c
}

/// Runs it. `watch` sees the tally now and then, and ends the run early by returning `false`.
///
/// # Errors
/// [`FaultRunError`] when it cannot begin. What goes wrong later is in the tally.
pub fn fault_run(
    run: &FaultRun,
    watch: &mut dyn FnMut(&FaultTally) -> bool,
) -> Result<FaultTally, FaultRunError> {
    let faults = FaultPlan { seed: run.seed, ..run.faults.clone() };
    let emulated = EmuOptions {
        driver_version: run.driver_version,
        // As the source of 0.9.8 does (`uapi.md` A.11 row 12).
        reap_compares_microseconds: run.driver_version >= [0, 9, 8],
        faults,
        ..EmuOptions::default()
    };
    let options = DeviceOptions {
        emulated_driver: run.kernel,
        cores: run.cores,
        submit: run.submit,
        recovery: RecoveryMode::Allow,
        // By the board's clock; a hang costs no time of the host.
        timeout_ms: 50,
        ..DeviceOptions::default()
    };
    let device = Device::on_board(&Board::new(&emulated), &options)?;
    let driver_options = DriverOptions {
        completion: CompletionMode::Seed,
        verify: VerifyMode::Product,
        ..DriverOptions::default()
    };
    let driver = Driver::new(device, driver_options)?;
    let mut numbers = Numbers(run.seed);
    let mut operands = Vec::new();
    for shape in SHAPES {
        let codes = numbers.codes(shape.1 * shape.2);
        let weight = load(&driver, shape, &codes)?;
        operands.push(Operand { shape, codes, weight });
    }
    // A product may be computed three times, and its weight loaded again.
    let mut tally = FaultTally { bound: driver.device().longest_round() * 4, ..FaultTally::default() };
    for product in 0..run.products {
        let operand = &mut operands[(numbers.next() >> 32) as usize % SHAPES.len()];
        one(&driver, operand, &mut numbers, &mut tally);
        if product % COLLECT_EVERY == COLLECT_EVERY - 1 || product + 1 == run.products {
            tally.injected = driver.device().injected_faults();
            tally.events = driver.device().event_counts();
            tally.interruptions = driver.device().counters().interruptions;
            if !watch(&tally) {
                break;
            }
        }
    }
    Ok(tally)
}

fn one(driver: &Driver, operand: &mut Operand, numbers: &mut Numbers, tally: &mut FaultTally) {
    let (m, k, n) = operand.shape;
    let a = numbers.codes(m * k);
    let clock = driver.device().clock();
    let before = clock.now();
    let mut out = vec![i32::MIN; m * n];
    let mut result = driver.matmul_codes(&operand.weight, m, &a, &mut out);
    if matches!(result, Err(DriverError::WrongProduct { .. })) {
        // What is in device memory is not what was given to it.
        tally.reloads += 1;
        result = load(driver, operand.shape, &operand.codes).and_then(|weight| {
            operand.weight = weight;
            driver.matmul_codes(&operand.weight, m, &a, &mut out)
        });
    }
    let took = clock.now().saturating_sub(before);
    tally.products += 1;
    tally.longest = tally.longest.max(took);
    tally.late += u64::from(took > tally.bound);
    match result {
        Ok(()) => tally.wrong += u64::from(out != reference(&a, operand)),
        Err(error) => {
            let text = error.to_string().replace(|c: char| c.is_ascii_digit(), "#");
            *tally.errors.entry(text).or_insert(0) += 1;
        }
    }
}

/// What must be in the counters for what happened, where jobs are waited for by calls: each job that a fault ended shows
/// as a time-out, each signal as a repeated call.
#[must_use]
pub fn is_accounted_for(tally: &FaultTally) -> bool {
    let ended = tally.injected(&[Fault::Dropped, Fault::Hang, Fault::LostInterrupt]);
    let noticed = tally.events.of(EventKind::TimedOut);
    noticed == ended && tally.interruptions == tally.injected(&[Fault::Interrupted])
}
