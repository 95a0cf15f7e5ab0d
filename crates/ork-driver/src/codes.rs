// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weights that somebody else has quantised.

use ork_layout::Format;
use ork_quant::Scale;

use crate::driver::Driver;
use crate::{DriverError, Weight};

impl Driver {
    /// Uploads an int8 weight whose codes and scales are there: products of floats with it are those with
    /// [`Driver::load`], by these codes. `rows(j, out)` fills `out` with row `j` and gives its scale; it is called once for
    /// each row, from several threads.
    ///
    /// # Errors
    /// As [`Driver::load`].
    pub fn load_scaled_codes(
        &self,
        name: &str,
        k: usize,
        n: usize,
        rows: &(dyn Fn(usize, &mut [i8]) -> Scale + Sync),
    ) -> Result<Weight, DriverError> {
        let layout = self.layout(name, Format::INT8_INT32, k, n)?;
        let parts = (&self.residency, self.options.verify);
        self.count_weight(Weight::from_codes(parts, layout, name, rows)?)
    }
}
