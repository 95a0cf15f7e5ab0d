// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modelled time of products that have not been computed: what a caller weighs against another engine.

use ork_layout::Format;
use ork_plan::{Decision, Plan, Problem, cost, decide};

use crate::driver::Driver;
use crate::{DriverError, Weight};

/// Modelled time of a product on the NPU, and what the host has to do for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelledProduct {
    /// Microseconds of all passes with their submits: the plan's own modelled time, and for plans on several cores what a
    /// blocking call on several cores costs beyond one on a single core.
    pub npu_us: f64,
    /// Bytes that the host reads and writes: f32 activations quantised, partial sums of every K slice read, f32 written.
    pub host_bytes: u64,
    /// Rounds of writing, submitting and reading.
    pub passes: u32,
}

impl ModelledProduct {
    fn of(plan: &Plan) -> Self {
        let further: f64 = plan
            .passes()
            .map(|pass| if pass.shape.chains.len() > 1 { cost::further_cores().us } else { 0.0 })
            .sum();
        let (m, k, n) = (u64::from(plan.m()), u64::from(plan.k()), u64::from(plan.n()));
        let quantised = m * k * (4 + 1);
        let results = m * n * 4 * (u64::from(plan.k_slices()) + 1);
        Self {
            npu_us: plan.modelled().us + further,
            host_bytes: quantised + results,
            passes: plan.pass_count(),
        }
    }
}

impl Driver {
    /// Modelled time of `m` rows with a weight, by the plan that the product would take.
    ///
    /// # Errors
    /// [`DriverError::Declined`] if there is no such plan.
    pub fn modelled(&self, weight: &Weight, m: usize) -> Result<ModelledProduct, DriverError> {
        self.plan(weight, m, true).map(|plan| ModelledProduct::of(&plan))
    }

    /// The same for an int8 weight of `n` rows with `k` elements that is not loaded.
    ///
    /// # Errors
    /// [`DriverError::Layout`], [`DriverError::Declined`].
    pub fn modelled_shape(&self, k: usize, n: usize, m: usize) -> Result<ModelledProduct, DriverError> {
        let weight = self.layout("operand", Format::INT8_INT32, k, n)?;
        let problem = Problem { m: u32::try_from(m).unwrap_or(u32::MAX), weight };
        match decide(&problem, &self.soc, &self.options.plan) {
            Decision::Accept(plan) => Ok(ModelledProduct::of(&plan)),
            Decision::Decline(decline) => Err(DriverError::Declined(decline)),
        }
    }
}
