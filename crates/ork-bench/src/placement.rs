// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fast CPUs of a chip that has fast and slow ones, and running on them alone.

use std::fmt;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::Sysfs;

/// What tells the fast CPUs from the slow ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlacementBasis {
    /// The kernel's `cpu_capacity`.
    Capacity,
    /// The highest clock of each.
    Clock,
    /// Nothing: sysfs says neither, so all CPUs are used.
    Unknown,
    /// The user.
    Asked,
}

/// The CPUs that a benchmark runs on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Their numbers, ascending.
    pub cpus: Vec<u32>,
    /// CPUs that this process may use, these included.
    pub allowed: usize,
    /// How they were chosen.
    pub basis: PlacementBasis,
}

/// The CPUs of a process cannot be read or set.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} the CPUs that this process may run on")]
pub struct PlacementError {
    doing: &'static str,
    source: rustix::io::Errno,
}

/// Of the fastest CPU's speed: those of at least this much are fast, too. The two fast clusters of an RK3588 differ by
/// how their silicon came out; its slow cores have about half the capacity.
const FAST: f64 = 0.8;

impl Placement {
    /// The fast CPUs among those that this process may use.
    ///
    /// # Errors
    /// [`PlacementError`] if the kernel does not say which it may use.
    pub fn fast(sysfs: &Sysfs) -> Result<Self, PlacementError> {
        Ok(Self::fast_of(sysfs, &allowed()?))
    }

    /// The fast CPUs among these.
    #[must_use]
    pub fn fast_of(sysfs: &Sysfs, allowed: &[u32]) -> Self {
        let weigh = |file: &str| -> Option<Vec<u64>> {
            let of = |cpu: &u32| sysfs.number(&format!("devices/system/cpu/cpu{cpu}/{file}"));
            allowed.iter().map(of).collect()
        };
        let by_capacity = weigh("cpu_capacity").map(|weights| (weights, PlacementBasis::Capacity));
        let by_clock = || weigh("cpufreq/cpuinfo_max_freq").map(|weights| (weights, PlacementBasis::Clock));
        let Some((weights, basis)) = by_capacity.or_else(by_clock) else {
            return Self { cpus: allowed.to_vec(), allowed: allowed.len(), basis: PlacementBasis::Unknown };
        };
        let most = weights.iter().copied().max().unwrap_or(0) as f64;
        let fast = allowed.iter().zip(weights).filter(|(_, weight)| *weight as f64 >= FAST * most);
        Self { cpus: fast.map(|(cpu, _)| *cpu).collect(), allowed: allowed.len(), basis }
    }

    /// All CPUs that this process may use.
    ///
    /// # Errors
    /// [`PlacementError`] if the kernel does not say which these are.
    pub fn anywhere() -> Result<Self, PlacementError> {
        let cpus = allowed()?;
        Ok(Self { allowed: cpus.len(), cpus, basis: PlacementBasis::Asked })
    }

    /// Binds the calling thread, and all threads that it starts from now on, to these CPUs.
    ///
    /// # Errors
    /// [`PlacementError`] if the kernel refuses.
    pub fn bind(&self) -> Result<(), PlacementError> {
        let mut set = CpuSet::new();
        for &cpu in self.cpus.iter().filter(|cpu| (**cpu as usize) < CpuSet::MAX_CPU) {
            set.set(cpu as usize);
        }
        sched_setaffinity(None, &set).map_err(|source| PlacementError { doing: "set", source })
    }
}

fn allowed() -> Result<Vec<u32>, PlacementError> {
    let set = sched_getaffinity(None).map_err(|source| PlacementError { doing: "read", source })?;
    Ok((0..CpuSet::MAX_CPU as u32).filter(|cpu| set.is_set(*cpu as usize)).collect())
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus: Vec<String> = self.cpus.iter().map(u32::to_string).collect();
        let why = match self.basis {
            PlacementBasis::Capacity | PlacementBasis::Clock if self.cpus.len() == self.allowed => {
                "all are alike"
            }
            PlacementBasis::Capacity => "the fast ones by capacity",
            PlacementBasis::Clock => "the fast ones by highest clock",
            PlacementBasis::Unknown => "which are fast is unknown",
            PlacementBasis::Asked => "as asked",
        };
        write!(f, "CPU {} of {} ({why})", cpus.join(", "), self.allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_bound_and_its_children_inherit_that() {
        let before = Placement::anywhere().unwrap();
        let one = Placement { cpus: vec![*before.cpus.last().unwrap()], ..before.clone() };
        // A thread of its own: the affinity of the others stays.
        let inherited = std::thread::spawn(move || {
            one.bind().unwrap();
            std::thread::spawn(|| allowed().unwrap()).join().unwrap()
        });
        assert_eq!(inherited.join().unwrap(), [*before.cpus.last().unwrap()]);
        assert_eq!(Placement::anywhere().unwrap(), before);
    }
}
