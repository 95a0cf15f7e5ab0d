// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks of one hardware chain.

use ork_isa::soc::Soc;

use super::{Bound, Violation, require};

/// Name of the law.
pub const NAME: &str = "chain-length";

/// A chain has at least one task and at most as many as `PC.TASK_CON.TASK_NUMBER` counts (12 bits, 4095).
/// Source: `isa.md` §2.5; a field width, so longer chains cannot be asked for. The longest chain that anybody
/// reports is shorter.
///
/// # Errors
/// The violation.
pub fn check(tasks: u64, soc: &Soc) -> Result<(), Violation> {
    require(NAME, "tasks of a chain", tasks, Bound::AtLeast(1))?;
    require(NAME, "tasks of a chain", tasks, Bound::AtMost(soc.tasks_per_chain_max.into()))
}
