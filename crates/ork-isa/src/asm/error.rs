// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

/// Why a text is no register program. Lines and columns count from 1, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}")]
pub struct ParseError {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
    /// What was expected there.
    pub what: Expectation,
}

/// What was expected and what stands there instead.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expectation {
    /// Something else.
    Token {
        /// What.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A name out of a list.
    Name {
        /// Of what: "block", "register of CNA", "field of CNA.CBUF_CON0".
        of: String,
        /// What stands there.
        found: String,
        /// The valid name that is most like it.
        nearest: Option<&'static str>,
    },
    /// A number that fits.
    Number {
        /// Whose number.
        of: String,
        /// What stands there.
        found: String,
        /// The largest.
        max: u64,
    },
    /// A field once per word.
    FieldOnce {
        /// The field.
        field: String,
    },
    /// Bits that no field names.
    ReservedBits {
        /// The register.
        register: String,
        /// Bits that may stand there.
        reserved: u32,
        /// Those that stand there and belong to a field.
        named: u32,
    },
    /// A word without a block bit.
    NopWord {
        /// The word.
        found: u64,
    },
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token { expected, found } => write!(f, "expected {expected}, found {found}"),
            Self::Name { of, found, nearest } => {
                write!(f, "expected a {of}, found {found}")?;
                nearest.map_or(Ok(()), |name| write!(f, "; did you mean {name}?"))
            }
            Self::Number { of, found, max } => {
                write!(f, "expected a number from 0 to {max} ({max:#x}) for {of}, found {found}")
            }
            Self::FieldOnce { field } => write!(f, "expected each field once, found {field} again"),
            Self::ReservedBits { register, reserved, named } => write!(
                f,
                "expected only reserved bits of {register} ({reserved:#010x}), but {named:#010x} belongs to its fields"
            ),
            Self::NopWord { found } => write!(
                f,
                "expected a word without a block bit, but {found:#018x} does something; write it as `word {found:#018x}`"
            ),
        }
    }
}
