// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes of one buffer.

use super::{Bound, Violation, require};

/// Name of the law.
pub const NAME: &str = "address-window";

/// Bytes that an address register reaches.
pub const BYTES: u64 = 1 << 32;

/// A buffer is not empty and fits the 32-bit window behind the IOMMU.
/// Source: `isa.md` §2.3 and §5: every address register holds 32 bits.
///
/// # Errors
/// The violation, with `what` as the quantity.
pub fn check(what: &'static str, bytes: u64) -> Result<(), Violation> {
    require(NAME, what, bytes, Bound::AtLeast(1))?;
    require(NAME, what, bytes, Bound::AtMost(BYTES))
}
