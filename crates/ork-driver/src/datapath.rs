// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_device::{Device, EventKind, Feature};
use ork_plan::{Datapath, DatapathState, Transition};
use parking_lot::Mutex;

use crate::DriverError;
use crate::counters::DriverCounters;

/// Submits of a pass of floats before it is an error that the NPU is reset under each.
const SUBMITS_MAX: u32 = 4;

/// Events behind which the NPU may have been reset. A kernel that hides errors does not say that it reset a core: there it
/// shows as a job that had to be submitted again.
const RESETS: [EventKind; 4] =
    [EventKind::TimedOut, EventKind::Reset, EventKind::Reaped, EventKind::Resubmitted];

/// Brings the NPU into the mode that a plan's programs need. The planner knows what a change takes; this carries it out.
#[derive(Debug, Default)]
pub(crate) struct DatapathGate {
    state: DatapathState,
}

impl DatapathGate {
    /// Where the datapath stands.
    pub(crate) fn state(&self) -> DatapathState {
        self.state
    }

    /// Whether the next programs of this mode may be those of the fold.
    pub(crate) fn may_fold(&self, datapath: Datapath) -> bool {
        self.state.may_fold(datapath)
    }

    /// Brings the NPU into a mode and submits a pass of that mode. Everything that can fail before the submit has been
    /// done by the caller: a change that no programs follow is never noted as done. The caller has no job in flight.
    ///
    /// A cold float pipeline runs the pass twice. The NPU may be reset under a pass that completes all the same: what was
    /// warm is cold then, and the first program behind a reset may give stale output (`uapi.md` A.10), so floats are
    /// submitted again, a bounded number of times.
    ///
    /// # Errors
    /// [`DriverError::Datapath`], [`DriverError::ResetAgain`], and what `submit` says; the next change trusts nothing then.
    pub(crate) fn run<T>(
        &mut self,
        (device, counters): (&Device, &Mutex<DriverCounters>),
        (datapath, name): (Datapath, &str),
        mut submit: impl FnMut() -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let transition = self.enter(device, datapath)?;
        counters.lock().resets += u64::from(transition == Transition::Reset);
        for submit_number in 1..=SUBMITS_MAX {
            counters.lock().rewarmed += u64::from(submit_number > 1);
            let before = resets(device);
            let completed = submit().inspect_err(|_| self.failed())?;
            let was_reset = resets(device) != before;
            if was_reset {
                self.failed();
            }
            let was_cold = submit_number == 1 && transition == Transition::Rewarm;
            if was_cold || was_reset && datapath == Datapath::Float {
                continue;
            }
            if !was_reset {
                // Whatever reset the NPU before: programs of this mode have run since.
                self.state.enter(datapath);
            }
            return Ok(completed);
        }
        self.failed();
        Err(DriverError::ResetAgain { name: name.to_owned(), datapath, submits: SUBMITS_MAX })
    }

    /// Resets the NPU if the change asks for it.
    ///
    /// A kernel that cannot reset on demand (the mainline one) goes on without: there, programs of all precisions ran
    /// one behind the other and were right (`isa-notes.md` M-11, measured elsewhere; docs/assumptions.md).
    fn enter(&mut self, device: &Device, datapath: Datapath) -> Result<Transition, DriverError> {
        let mut transition = self.state.transition(datapath);
        if transition == Transition::Reset && !device.features().has(Feature::Reset) {
            transition = Transition::Free;
        }
        if transition == Transition::Reset
            && let Err(source) = device.reset()
        {
            self.state = self.state.after_failure();
            return Err(DriverError::Datapath { datapath, source });
        }
        self.state.enter(datapath);
        Ok(transition)
    }

    /// A job failed, after which the kernel may have reset the NPU.
    fn failed(&mut self) {
        self.state = self.state.after_failure();
    }
}

/// How often the NPU may have been reset so far.
fn resets(device: &Device) -> [u64; RESETS.len()] {
    let counts = device.event_counts();
    RESETS.map(|kind| counts.of(kind))
}
