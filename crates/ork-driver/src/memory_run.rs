// SPDX-License-Identifier: MIT OR Apache-2.0
//! No memory at each allocation in turn: an error, nothing left behind, and then it works.

use std::error::Error;
use std::fmt;

use ork_device::{Errno, Fault, FaultPlan, OpenError, When};
use ork_layout::Format;

use crate::fault_run::{FaultRun, FaultRunError, NARROW, Numbers, Operand, SHAPES, ends_empty};
use crate::{Driver, DriverError, Requantise};

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryTally {
    /// Allocations that were refused, one in each attempt.
    pub refused: u64,
    /// Attempts in which the device could not be opened.
    pub not_opened: u64,
    /// Attempts in which a weight or a product ended in an error that says that there is no memory, and worked when it
    /// was tried again.
    pub errors: u64,
    /// Attempts that went on with less.
    pub survived: u64,
    /// Results that differ from the plain loops. Must be 0.
    pub wrong: u64,
    /// Errors that do not say that there is no memory, or came again without a cause. Must be 0.
    pub unclear: u64,
    /// Boards on which something stayed. Must be 0.
    pub leaks: u64,
}

impl MemoryTally {
    /// Whether nothing was wrong, unclear or left behind.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        (self.wrong, self.unclear, self.leaks) == (0, 0, 0)
    }
}

impl fmt::Display for MemoryTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no memory at each of {} allocations: {} devices not opened, {} errors, {} survived; {} wrong, {} unclear, {} \
             left something",
            self.refused, self.not_opened, self.errors, self.survived, self.wrong, self.unclear, self.leaks
        )
    }
}

/// Opens a device, loads weights and multiplies, with one refused allocation: the first, then the second, and so on until
/// none is left to refuse. What fails is tried once more, when there is memory again.
///
/// # Errors
/// [`FaultRunError`] when a device cannot be opened for another reason.
pub fn memory_run(run: &FaultRun) -> Result<MemoryTally, FaultRunError> {
    let mut tally = MemoryTally::default();
    for nth in 1.. {
        let faults = FaultPlan { out_of_memory: When::Nth(nth), ..FaultPlan::default() };
        let (board, driver) = match run.open(faults) {
            Ok(opened) => opened,
            Err(error) if cannot_open_for_want_of_memory(&error) => {
                (tally.refused, tally.not_opened) = (tally.refused + 1, tally.not_opened + 1);
                continue;
            }
            Err(error) => return Err(error),
        };
        let errors = attempt(&driver, run.seed, &mut tally);
        let refused = driver.device().injected_faults().get(&Fault::OutOfMemory).copied().unwrap_or(0);
        tally.leaks += u64::from(!ends_empty(&board, driver));
        if refused == 0 {
            tally.unclear += errors;
            break;
        }
        tally.refused += refused;
        (tally.errors, tally.survived) = (tally.errors + errors, tally.survived + u64::from(errors == 0));
    }
    Ok(tally)
}

/// How many steps failed once.
fn attempt(driver: &Driver, seed: u64, tally: &mut MemoryTally) -> u64 {
    let mut errors = 0;
    let products = SHAPES.iter().map(|shape| (*shape, Format::INT8_INT32, None));
    let by = Requantise { multiplier: 3, shift: 12, offset: -7 };
    for (shape, format, by) in products.chain([(NARROW, Format::INT8_INT8, Some(by))]) {
        let Some(operand) =
            twice(&mut errors, tally, || Operand::load(driver, shape, format, &mut Numbers(seed)))
        else {
            continue;
        };
        let a = operand.features(&mut Numbers(!seed));
        match twice(&mut errors, tally, || operand.is_right(driver, &a, by)) {
            Some(true) | None => {}
            Some(false) => tally.wrong += 1,
        }
    }
    errors
}

/// Tries something, and once more after an error that says that there is no memory.
fn twice<T>(
    errors: &mut u64,
    tally: &mut MemoryTally,
    mut step: impl FnMut() -> Result<T, DriverError>,
) -> Option<T> {
    match step() {
        Ok(done) => return Some(done),
        Err(error) if says_no_memory(&error) => *errors += 1,
        Err(_) => tally.unclear += 1,
    }
    let again = step();
    tally.unclear += u64::from(again.is_err());
    again.ok()
}

fn cannot_open_for_want_of_memory(error: &FaultRunError) -> bool {
    match error {
        // Why each node cannot be used is a list, not a cause.
        FaultRunError::Open(OpenError::NoDevice { found }) => {
            found.iter().filter_map(|found| found.verdict.as_ref().err()).any(|why| says_no_memory(why))
        }
        error => says_no_memory(error),
    }
}

/// Whether an error or one of its causes is `ENOMEM`.
fn says_no_memory(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .any(|error| error.downcast_ref::<Errno>() == Some(&Errno::ENOMEM))
}
