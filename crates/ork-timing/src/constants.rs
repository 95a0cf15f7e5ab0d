// SPDX-License-Identifier: MIT OR Apache-2.0
//! The constants of the model, each with the rows that it comes from. There is no other place with such a number.

/// One constant; the order is that of [`TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Constant {
    /// Bytes per microsecond that one core alone reads from memory.
    StreamOneCore,
    /// Bytes per microsecond that all cores together read from memory.
    StreamAllCores,
    /// Multiply-add cycles of the formula per clock cycle, cube layouts.
    MacRateCube,
    /// The same, row-major layouts.
    MacRateRowMajor,
    /// Output elements per clock cycle that the output stage gives out.
    WriteElements,
    /// Output bytes per clock cycle that the output stage gives out.
    WriteBytes,
    /// Microseconds of a blocking submit.
    SubmitBlocking,
    /// Microseconds of a submit in the series with short submits.
    SubmitShort,
    /// Microseconds of a blocking call on three cores, host threads included.
    SubmitThreeCores,
    /// Microseconds around a layer in the vendor's profiler.
    SubmitProfiler,
    /// Microseconds of a submit of the mainline driver.
    SubmitMainline,
    /// The same, with the interrupt on a fast CPU core.
    SubmitMainlineTuned,
    /// Microseconds of each further program of a chain.
    NextProgram,
    /// The same for a program that waits for its weights.
    NextProgramExposed,
    /// Factor on the cost of a submit while the CPU is busy.
    BusyCpuSubmit,
    /// Factor on the time of the weight stream while the CPU is busy.
    BusyCpuStream,
}

/// Where the value of a constant comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Least squares over the rows.
    Fitted,
    /// A single measurement, taken as it is.
    Taken,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Which constant.
    pub constant: Constant,
    /// Its name in reports.
    pub name: &'static str,
    /// Unit.
    pub unit: &'static str,
    /// Value.
    pub value: f64,
    /// Fitted or taken.
    pub origin: Origin,
    /// Families of rows that determine it, or where it was measured.
    pub rows: &'static str,
}

/// Number of constants.
pub const COUNT: usize = 16;

const fn fitted(
    constant: Constant,
    name: &'static str,
    unit: &'static str,
    value: f64,
    rows: &'static str,
) -> Entry {
    Entry { constant, name, unit, value, origin: Origin::Fitted, rows }
}

const fn taken(
    constant: Constant,
    name: &'static str,
    unit: &'static str,
    value: f64,
    rows: &'static str,
) -> Entry {
    Entry { constant, name, unit, value, origin: Origin::Taken, rows }
}

/// All constants. Fitted values are those of `ork model --fit` over all rows, to three digits.
pub const TABLE: [Entry; COUNT] = [
    fitted(
        Constant::StreamOneCore,
        "stream, one core",
        "bytes/us",
        11_200.0,
        "int8-one-core, int8-fold, vendor-stream",
    ),
    fitted(Constant::StreamAllCores, "stream, all cores", "bytes/us", 27_000.0, "int8-three-cores (ratios)"),
    fitted(
        Constant::MacRateCube,
        "MAC rate, cube",
        "of the formula",
        0.905,
        "int8-fold (weights kept), vendor-matmul, conv-int8",
    ),
    fitted(
        Constant::MacRateRowMajor,
        "MAC rate, row-major",
        "of the peak",
        0.542,
        "int8-one-core; whole calls, so the CPU's copies of A and C are inside",
    ),
    fitted(Constant::WriteElements, "write-back, elements", "1/cycle", 1.73, "conv-int8"),
    fitted(Constant::WriteBytes, "write-back, bytes", "bytes/cycle", 3.47, "mainline-fp16, vendor-matmul"),
    fitted(Constant::SubmitBlocking, "submit, blocking", "us", 135.0, "int8-one-core, series blocking"),
    fitted(Constant::SubmitShort, "submit, short", "us", 56.2, "int8-one-core, int8-fold, series short"),
    fitted(Constant::SubmitThreeCores, "submit, three cores, blocking", "us", 394.0, "int8-decode"),
    fitted(Constant::SubmitProfiler, "layer in the profiler", "us", 132.0, "conv-int8"),
    taken(Constant::SubmitMainline, "submit, mainline", "us", 52.5, "mainline-8x64x16: 51 to 54 measured"),
    taken(
        Constant::SubmitMainlineTuned,
        "submit, mainline, tuned",
        "us",
        27.5,
        "mainline-8x64x16-tuned: 27 to 28 measured",
    ),
    taken(Constant::NextProgram, "next program", "us", 1.27, "isa.md §12.1, measured by the log"),
    taken(
        Constant::NextProgramExposed,
        "next program, stream exposed",
        "us",
        11.0,
        "isa.md §12.1: 9 to 13 at M = 1 on three cores, measured by the log",
    ),
    taken(Constant::BusyCpuSubmit, "submit, CPU busy", "factor", 2.23, "isa.md §12.6, measured by the log"),
    taken(Constant::BusyCpuStream, "stream, CPU busy", "factor", 1.22, "isa.md §12.6, measured by the log"),
];

/// A value for every constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    values: [f64; COUNT],
}

impl Constants {
    /// The values of [`TABLE`].
    pub const TABLE: Self = {
        let mut values = [0.0; COUNT];
        let mut index = 0;
        while index < COUNT {
            values[index] = TABLE[index].value;
            index += 1;
        }
        Self { values }
    };

    /// The value of a constant.
    #[must_use]
    pub const fn get(&self, constant: Constant) -> f64 {
        self.values[constant as usize]
    }

    /// The same with one other value.
    #[must_use]
    pub const fn with(mut self, constant: Constant, value: f64) -> Self {
        self.values[constant as usize] = value;
        self
    }
}

impl Default for Constants {
    fn default() -> Self {
        Self::TABLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_is_at_its_place_in_the_table() {
        for (index, entry) in TABLE.iter().enumerate() {
            assert_eq!(entry.constant as usize, index, "{}", entry.name);
            assert!(entry.value > 0.0 && !entry.rows.is_empty());
        }
    }

    #[test]
    fn one_value_can_be_replaced() {
        let changed = Constants::TABLE.with(Constant::NextProgram, 2.0);
        assert_eq!(changed.get(Constant::NextProgram), 2.0);
        assert_eq!(changed.with(Constant::NextProgram, 1.27), Constants::TABLE);
    }
}
