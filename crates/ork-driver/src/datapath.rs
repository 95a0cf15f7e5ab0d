// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_device::{Device, Feature};
use ork_plan::{Datapath, DatapathState, Transition};

use crate::DriverError;

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

    /// Resets the NPU if the change asks for it. The caller has no job in flight, and runs the first pass twice when it
    /// is told to.
    ///
    /// A kernel that cannot reset on demand (the mainline one) goes on without: there, programs of all precisions ran
    /// one behind the other and were right (`isa-notes.md` M-11, measured elsewhere; docs/assumptions.md).
    ///
    /// # Errors
    /// [`DriverError::Datapath`]; the next change tries again.
    pub(crate) fn enter(&mut self, device: &Device, datapath: Datapath) -> Result<Transition, DriverError> {
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
    pub(crate) fn failed(&mut self) {
        self.state = self.state.after_failure();
    }
}
