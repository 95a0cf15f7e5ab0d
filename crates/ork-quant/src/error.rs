// SPDX-License-Identifier: MIT OR Apache-2.0

/// Why a row could not be quantised.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The row holds a NaN or an infinity, so it has no scale. Nothing was written.
    #[error("cannot quantise {}: element {index} is {value}", place(*row))]
    NonFinite {
        /// Which row, once the caller has said so with [`QuantError::in_row`].
        row: Option<usize>,
        /// First offending element of the row.
        index: usize,
        /// What it held.
        value: f32,
    },
    /// A number that is no scale: negative, NaN or infinite.
    #[error("{value} is no scale: a scale is finite and not negative")]
    BadScale {
        /// The number.
        value: f32,
    },
}

impl QuantError {
    /// The same error, naming the row of the matrix it happened in.
    #[must_use]
    pub fn in_row(self, row: usize) -> Self {
        match self {
            Self::NonFinite { index, value, .. } => Self::NonFinite { row: Some(row), index, value },
            Self::BadScale { .. } => self,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NonFinite { .. } => {
                "a weight: the model file is damaged or was converted with an overflow; \
                 an activation: an earlier op overflowed, look at the op that produced this tensor"
            }
            Self::BadScale { .. } => "the packed weights are damaged: pack the model again",
        }
    }
}

fn place(row: Option<usize>) -> String {
    row.map_or_else(|| "a row".to_owned(), |row| format!("row {row}"))
}
