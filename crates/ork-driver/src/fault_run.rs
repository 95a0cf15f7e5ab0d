// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many small products on an emulated board on which things go wrong, each compared with plain loops.
//!
//! What it shows: no result is wrong, no wait outlasts its bound, and what went wrong stands in the counters. The run is
//! decided by its seed, but for the order in which the cores take their jobs.
//!
//! Most products are of int8 codes and are checked on the CPU, so that stale operands show ([`VerifyMode::Product`]). One
//! in sixteen has int8 results, whose seed results can have, on a second board: half of those products have the value of
//! the seed in every result, which only a second seed tells from a job that never ran. Nothing checks such results, so
//! that board has no stale lines.
//!
//! Now and then both devices are closed and others opened. In turn one of their cores never completes anything.

use std::time::Duration;

use ork_device::{
    Board, Device, DeviceOptions, DriverKind, EmuOptions, FaultPlan, Live, OpenError, RecoveryMode,
    SubmitMode, When,
};
use ork_layout::Format;

use crate::check::VerifyMode;
use crate::driver::{Driver, DriverOptions};
use crate::execution::CompletionMode;
use crate::fault_tally::FaultTally;
use crate::{DriverError, Requantise, Weight, Work};

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// So many products.
    Products(u64),
    /// Until so many jobs were given to the kernel ([`FaultTally::submits`]).
    Submits(u64),
}

/// Which cores never complete anything, besides what the plan says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeadCores {
    /// None.
    #[default]
    AsPlanned,
    /// On every second pair of devices one, each in turn. For drivers that let a caller choose another core.
    InTurn,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct FaultRun {
    /// Decides shapes, data and faults.
    pub seed: u64,
    /// How much.
    pub length: Length,
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
    /// Cores that are dead besides.
    pub dead_cores: DeadCores,
    /// Products of a pair of devices before it is closed and another one opened.
    pub reopen_after: u64,
}

impl Default for FaultRun {
    fn default() -> Self {
        Self {
            seed: 0,
            length: Length::Submits(1_000_000),
            kernel: DriverKind::Rknpu,
            driver_version: [0, 9, 8],
            submit: SubmitMode::Auto,
            cores: 3,
            faults: Self::every_fault(100),
            dead_cores: DeadCores::AsPlanned,
            reopen_after: 5000,
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
pub(crate) const SHAPES: [(usize, usize, usize); 6] =
    [(1, 32, 16), (1, 64, 64), (2, 96, 33), (4, 64, 40), (3, 160, 64), (1, 33, 129)];
/// Of the products with int8 results.
pub(crate) const NARROW: (usize, usize, usize) = (2, 512, 96);
/// One product in so many has int8 results.
const NARROW_EVERY: u64 = 16;
/// Every result is -127: the value with which outputs of int8 results are seeded, 0x81.
const ALL_SEED: Requantise = Requantise { multiplier: 0, shift: 0, offset: -127 };
/// Spreads sums of full-range codes over int8.
const SPREAD: Requantise = Requantise { multiplier: 3, shift: 12, offset: -7 };
/// How often findings are collected, in products: fewer than the board keeps.
const COLLECT_EVERY: u64 = 64;

/// A stream of numbers: SplitMix64.
pub(crate) struct Numbers(pub(crate) u64);

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
pub(crate) struct Operand {
    shape: (usize, usize, usize),
    format: Format,
    codes: Vec<i8>,
    weight: Weight,
}

impl Operand {
    pub(crate) fn load(
        driver: &Driver,
        shape: (usize, usize, usize),
        format: Format,
        numbers: &mut Numbers,
    ) -> Result<Self, DriverError> {
        let codes = numbers.codes(shape.1 * shape.2);
        Ok(Self { shape, format, weight: load(driver, shape, format, &codes)?, codes })
    }

    /// Computes a product and compares it with plain loops: whether it is right, or the error.
    pub(crate) fn is_right(
        &self,
        driver: &Driver,
        a: &[i8],
        by: Option<Requantise>,
    ) -> Result<bool, DriverError> {
        let (m, _, n) = self.shape;
        let sums = self.sums(a);
        let Some(by) = by else {
            let mut out = vec![i32::MIN; m * n];
            driver.matmul_codes(&self.weight, m, a, &mut out)?;
            return Ok(out == sums);
        };
        let mut out = vec![0; m * n];
        driver.work(&self.weight, m, &mut Work::Int8ToInt8 { a, by, out: &mut out })?;
        Ok(out.iter().zip(sums).all(|(got, sum)| *got == by.apply(sum.into())))
    }

    pub(crate) fn features(&self, numbers: &mut Numbers) -> Vec<i8> {
        numbers.codes(self.shape.0 * self.shape.1)
    }

    /// By plain loops.
    fn sums(&self, a: &[i8]) -> Vec<i32> {
        let (m, k, n) = self.shape;
        let mut c = vec![0; m * n];
        for row in 0..m {
            for column in 0..n {
                let pairs = a[row * k..][..k].iter().zip(&self.codes[column * k..][..k]);
                c[row * n + column] = pairs.map(|(x, y)| i32::from(*x) * i32::from(*y)).sum();
            }
        }
        c
    }
}

fn load(
    driver: &Driver,
    (_, k, n): (usize, usize, usize),
    format: Format,
    codes: &[i8],
) -> Result<Weight, DriverError> {
    driver.load_elements("fault run", format, k, n, &|row, out| out.copy_from_slice(&codes[row * k..][..k]))
}

impl FaultRun {
    /// A driver on a board with these faults.
    pub(crate) fn open(&self, faults: FaultPlan) -> Result<(Board, Driver), FaultRunError> {
        let emulated = EmuOptions {
            driver_version: self.driver_version,
            // As the source of 0.9.8 does (`uapi.md` A.11 row 12).
            reap_compares_microseconds: self.driver_version >= [0, 9, 8],
            faults,
            ..EmuOptions::default()
        };
        let options = DeviceOptions {
            emulated_driver: self.kernel,
            cores: self.cores,
            submit: self.submit,
            recovery: RecoveryMode::Allow,
            // By the board's clock; a hang costs no time of the host.
            timeout_ms: 50,
            ..DeviceOptions::default()
        };
        let board = Board::new(&emulated);
        let device = Device::on_board(&board, &options)?;
        let options = DriverOptions {
            completion: CompletionMode::Seed,
            verify: VerifyMode::Product,
            ..DriverOptions::default()
        };
        Ok((board, Driver::new(device, options)?))
    }

    fn dead_core(&self, pair: u64) -> Option<u8> {
        match self.dead_cores {
            DeadCores::InTurn if pair % 2 == 1 => Some((pair / 2 % u64::from(self.cores.max(1))) as u8),
            DeadCores::InTurn | DeadCores::AsPlanned => self.faults.dead_core,
        }
    }
}

/// Two devices and their weights.
struct PairOfDevices {
    wide: (Board, Driver),
    narrow: (Board, Driver),
    operands: Vec<Operand>,
    narrow_operand: Operand,
}

impl PairOfDevices {
    fn open(run: &FaultRun, pair: u64, numbers: &mut Numbers) -> Result<Self, FaultRunError> {
        let seed = run.seed ^ pair.wrapping_mul(0x2545_F491_4F6C_DD1D);
        let faults = FaultPlan { seed, dead_core: run.dead_core(pair), ..run.faults.clone() };
        let wide = run.open(faults.clone())?;
        let narrow = run.open(FaultPlan { seed: !seed, stale_line: When::Never, ..faults })?;
        let operands = SHAPES
            .iter()
            .map(|shape| Operand::load(&wide.1, *shape, Format::INT8_INT32, numbers))
            .collect::<Result<_, _>>()?;
        let narrow_operand = Operand::load(&narrow.1, NARROW, Format::INT8_INT8, numbers)?;
        Ok(Self { wide, narrow, operands, narrow_operand })
    }

    /// What both count, added to what earlier ones counted.
    fn add_to(&self, before: &FaultTally, tally: &mut FaultTally) {
        (tally.injected, tally.events) = (before.injected.clone(), before.events);
        (tally.submits, tally.interruptions) = (before.submits, before.interruptions);
        for (_, driver) in [&self.wide, &self.narrow] {
            let device = driver.device();
            for (fault, count) in device.injected_faults() {
                *tally.injected.entry(fault).or_insert(0) += count;
            }
            tally.events = tally.events.plus(&device.event_counts());
            tally.interruptions += device.counters().interruptions;
            tally.submits += device.counters().jobs_given;
        }
    }

    /// Closes both; how many boards still hold something.
    fn close(self) -> u64 {
        let Self { wide, narrow, operands, narrow_operand } = self;
        drop((operands, narrow_operand));
        [wide, narrow].into_iter().map(|(board, driver)| u64::from(!ends_empty(&board, driver))).sum()
    }
}

/// Closes a driver; whether its board holds nothing then.
pub(crate) fn ends_empty(board: &Board, driver: Driver) -> bool {
    drop(driver);
    // The board's own threads let go of the last job a moment after it was waited for, and of late lines later.
    (0..5000).any(|_| {
        let empty = board.live() == Live::default();
        if !empty {
            std::thread::sleep(Duration::from_millis(1));
        }
        empty
    })
}

/// Runs it. `watch` sees the tally now and then, and ends the run early by returning `false`.
///
/// # Errors
/// [`FaultRunError`] when it cannot begin. What goes wrong later is in the tally.
pub fn fault_run(
    run: &FaultRun,
    watch: &mut dyn FnMut(&FaultTally) -> bool,
) -> Result<FaultTally, FaultRunError> {
    let mut numbers = Numbers(run.seed);
    let mut tally = FaultTally::default();
    let is_done = |tally: &FaultTally| match run.length {
        Length::Products(products) => tally.products >= products,
        Length::Submits(submits) => tally.submits >= submits,
    };
    let mut on = true;
    for pair in 0.. {
        if !on || is_done(&tally) {
            break;
        }
        let before = tally.clone();
        let mut devices = PairOfDevices::open(run, pair, &mut numbers)?;
        tally.devices += 2;
        // A product may be computed three times, and its weight loaded again.
        tally.bound = devices.wide.1.device().longest_round() * 4;
        for product in 1..=run.reopen_after {
            if tally.products % NARROW_EVERY == NARROW_EVERY - 1 {
                let by = if numbers.next() & 1 == 0 { ALL_SEED } else { SPREAD };
                tally.collisions += u64::from(by == ALL_SEED);
                one(&devices.narrow.1, &mut devices.narrow_operand, Some(by), &mut numbers, &mut tally);
            } else {
                let operand = &mut devices.operands[(numbers.next() >> 32) as usize % SHAPES.len()];
                one(&devices.wide.1, operand, None, &mut numbers, &mut tally);
            }
            let ends = matches!(run.length, Length::Products(_)) && is_done(&tally);
            if product % COLLECT_EVERY == 0 || product == run.reopen_after || ends {
                devices.add_to(&before, &mut tally);
                on = watch(&tally);
                if !on || is_done(&tally) {
                    break;
                }
            }
        }
        devices.add_to(&before, &mut tally);
        tally.leaks += devices.close();
    }
    Ok(tally)
}

fn one(
    driver: &Driver,
    operand: &mut Operand,
    by: Option<Requantise>,
    numbers: &mut Numbers,
    tally: &mut FaultTally,
) {
    let a = operand.features(numbers);
    let clock = driver.device().clock();
    let before = clock.now();
    let mut result = operand.is_right(driver, &a, by);
    if matches!(result, Err(DriverError::WrongProduct { .. })) {
        // What is in device memory is not what was given to it.
        tally.reloads += 1;
        result = load(driver, operand.shape, operand.format, &operand.codes).and_then(|weight| {
            operand.weight = weight;
            operand.is_right(driver, &a, by)
        });
    }
    let took = clock.now().saturating_sub(before);
    tally.products += 1;
    tally.longest = tally.longest.max(took);
    tally.late += u64::from(took > tally.bound);
    match result {
        Ok(right) => tally.wrong += u64::from(!right),
        Err(error) => {
            let causes =
                std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
            let text: Vec<String> = causes.map(ToString::to_string).collect();
            let text = text.join(": ").replace(|c: char| c.is_ascii_digit(), "#");
            *tally.errors.entry(text).or_insert(0) += 1;
        }
    }
}
