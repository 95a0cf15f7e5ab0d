// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clocks, governors and temperatures of a board, and what makes them unfit for a measurement.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Sysfs;

/// What a clock drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClockKind {
    /// CPUs that share a policy of cpufreq.
    Cpu,
    /// The NPU, a devfreq device: `fdab0000.npu` on an RK3588.
    Npu,
    /// The memory controller, a devfreq device: `dmc`.
    Dram,
}

/// One clock as sysfs shows it. `None` is unknown: there is no such file, or it cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// What it drives.
    pub kind: ClockKind,
    /// The folder that it was read from, relative to sysfs.
    pub source: String,
    /// CPUs that it drives; empty for other kinds.
    pub cpus: Vec<u32>,
    /// Who sets it.
    pub governor: Option<String>,
    /// The cpufreq driver below the governor, which may give its name another meaning; `None` for other kinds.
    pub driver: Option<String>,
    /// Now, in Hz.
    pub current_hz: Option<u64>,
    /// Most that the governor may set, in Hz.
    pub limit_hz: Option<u64>,
    /// Most that the hardware can do, in Hz.
    pub hardware_hz: Option<u64>,
}

/// One temperature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Temperature {
    /// Name of the thermal zone.
    pub zone: String,
    /// Degrees Celsius.
    pub celsius: f64,
}

/// All of it at one moment. What is not listed could not be read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BoardState {
    /// Clocks: those of the CPUs by policy, then NPU and DRAM.
    pub clocks: Vec<Clock>,
    /// Thermal zones.
    pub temperatures: Vec<Temperature>,
}

/// Which units a benchmark uses, beside the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Units {
    /// The CPUs that it runs on; empty if that is not known, and then all count.
    pub cpus: Vec<u32>,
    /// Whether it uses a real NPU.
    pub npu: bool,
}

/// Why a clock is unfit for a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Objection {
    /// Its governor keeps it low.
    Parked {
        /// The clock, in words.
        clock: String,
        /// The governor.
        governor: String,
        /// What sets it to the maximum.
        remedy: String,
    },
    /// Its governor may not use what the hardware can do.
    Limited {
        /// The clock, in words.
        clock: String,
        /// Most that it may, in Hz.
        limit_hz: u64,
        /// Most that it could, in Hz.
        hardware_hz: u64,
        /// What sets it to the maximum.
        remedy: String,
    },
    /// It is below its maximum now.
    Below {
        /// The clock, in words.
        clock: String,
        /// The governor, if it is known.
        governor: Option<String>,
        /// Now, in Hz.
        current_hz: u64,
        /// Most that it could, in Hz.
        hardware_hz: u64,
        /// What sets it to the maximum.
        remedy: String,
    },
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parked { clock, governor, .. } => {
                write!(f, "the {clock} is parked by its governor {governor}")
            }
            Self::Limited { clock, limit_hz, hardware_hz, .. } => {
                write!(f, "the {clock} is limited to {} of {}", mhz(*limit_hz), mhz(*hardware_hz))
            }
            Self::Below { clock, governor, current_hz, hardware_hz, .. } => {
                let governor = governor.as_deref().unwrap_or("unknown");
                let (now, most) = (mhz(*current_hz), mhz(*hardware_hz));
                write!(f, "the {clock} is at {now} of {most} (governor {governor})")
            }
        }
    }
}

impl Objection {
    /// A command that sets the clock to its maximum.
    #[must_use]
    pub fn remedy(&self) -> &str {
        match self {
            Self::Parked { remedy, .. } | Self::Limited { remedy, .. } | Self::Below { remedy, .. } => remedy,
        }
    }
}

/// Governors that keep a clock at its minimum whatever the load.
const PARKING: [&str; 1] = ["powersave"];
/// Drivers whose own governor of that name follows the load (kernel documentation, admin-guide/pm/intel_pstate and
/// amd-pstate, active mode).
const FOLLOWING: [&str; 2] = ["intel_pstate", "amd-pstate-epp"];
/// A clock within 2 % of its maximum is at it: drivers report what the divider gives.
const AT_MAXIMUM: f64 = 0.98;

fn mhz(hz: u64) -> String {
    format!("{} MHz", hz / 1_000_000)
}

fn is_below(hz: u64, most: u64) -> bool {
    (hz as f64) < AT_MAXIMUM * most as f64
}

impl Clock {
    fn cpu(sysfs: &Sysfs, policy: &str) -> Self {
        let source = format!("devices/system/cpu/cpufreq/{policy}");
        let khz = |file: &str| sysfs.number(&format!("{source}/{file}")).map(|khz| khz.saturating_mul(1000));
        let cpus = sysfs.text(&format!("{source}/related_cpus")).unwrap_or_default();
        Self {
            kind: ClockKind::Cpu,
            cpus: cpus.split_whitespace().filter_map(|cpu| cpu.parse().ok()).collect(),
            governor: sysfs.text(&format!("{source}/scaling_governor")),
            driver: sysfs.text(&format!("{source}/scaling_driver")),
            // The first is what the hardware says, and often only root may read it.
            current_hz: khz("cpuinfo_cur_freq").or_else(|| khz("scaling_cur_freq")),
            limit_hz: khz("scaling_max_freq"),
            hardware_hz: khz("cpuinfo_max_freq"),
            source,
        }
    }

    fn devfreq(sysfs: &Sysfs, kind: ClockKind, name: &str) -> Self {
        let source = format!("class/devfreq/{name}");
        let hz = |file: &str| sysfs.number(&format!("{source}/{file}"));
        let steps = sysfs.text(&format!("{source}/available_frequencies")).unwrap_or_default();
        Self {
            kind,
            cpus: Vec::new(),
            governor: sysfs.text(&format!("{source}/governor")),
            driver: None,
            current_hz: hz("cur_freq"),
            limit_hz: hz("max_freq"),
            hardware_hz: steps.split_whitespace().filter_map(|step| step.parse().ok()).max(),
            source,
        }
    }

    /// The clock in words.
    #[must_use]
    pub fn name(&self) -> String {
        match self.kind {
            ClockKind::Cpu => {
                let cpus: Vec<String> = self.cpus.iter().map(u32::to_string).collect();
                format!("clock of CPU {}", cpus.join(", "))
            }
            ClockKind::Npu => "NPU clock".to_owned(),
            ClockKind::Dram => "DRAM clock".to_owned(),
        }
    }

    fn objection(&self) -> Option<Objection> {
        let (clock, kind) = (self.name(), self.kind);
        let (governor_file, limit_file) = match kind {
            ClockKind::Cpu => ("scaling_governor", "scaling_max_freq"),
            ClockKind::Npu | ClockKind::Dram => ("governor", "max_freq"),
        };
        let source = &self.source;
        let remedy = format!("echo performance | sudo tee /sys/{source}/{governor_file}");
        let follows = self.driver.as_ref().is_some_and(|driver| FOLLOWING.contains(&driver.as_str()));
        if let Some(governor) = self.governor.as_ref().filter(|g| !follows && PARKING.contains(&g.as_str())) {
            return Some(Objection::Parked { clock, governor: governor.clone(), remedy });
        }
        let hardware_hz = self.hardware_hz.or(self.limit_hz)?;
        match (self.limit_hz, self.current_hz) {
            (Some(limit_hz), _) if is_below(limit_hz, hardware_hz) => {
                let value = if kind == ClockKind::Cpu { hardware_hz / 1000 } else { hardware_hz };
                let remedy = format!("echo {value} | sudo tee /sys/{source}/{limit_file}");
                Some(Objection::Limited { clock, limit_hz, hardware_hz, remedy })
            }
            (_, Some(current_hz)) if is_below(current_hz, hardware_hz) => Some(Objection::Below {
                clock,
                governor: self.governor.clone(),
                current_hz,
                hardware_hz,
                remedy,
            }),
            _ => None,
        }
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |hz: Option<u64>| hz.map_or_else(|| "unknown".to_owned(), mhz);
        write!(
            f,
            "{}: {} of {}, governor {}",
            self.name(),
            shown(self.current_hz),
            shown(self.hardware_hz.or(self.limit_hz)),
            self.governor.as_deref().unwrap_or("unknown")
        )
    }
}

impl BoardState {
    /// Reads what there is.
    #[must_use]
    pub fn read(sysfs: &Sysfs) -> Self {
        let policies = sysfs.names("devices/system/cpu/cpufreq");
        let mut clocks: Vec<Clock> = policies
            .iter()
            .filter(|name| name.starts_with("policy"))
            .map(|policy| Clock::cpu(sysfs, policy))
            .collect();
        for name in sysfs.names("class/devfreq") {
            let kind = match name.as_str() {
                "dmc" => ClockKind::Dram,
                _ if name.ends_with(".npu") => ClockKind::Npu,
                _ => continue,
            };
            clocks.push(Clock::devfreq(sysfs, kind, &name));
        }
        let temperatures = sysfs
            .names("class/thermal")
            .iter()
            .filter(|name| name.starts_with("thermal_zone"))
            .filter_map(|zone| {
                let milli: i64 = sysfs.text(&format!("class/thermal/{zone}/temp"))?.parse().ok()?;
                let name = sysfs.text(&format!("class/thermal/{zone}/type"));
                Some(Temperature { zone: name.unwrap_or_else(|| zone.clone()), celsius: milli as f64 / 1e3 })
            })
            .collect();
        Self { clocks, temperatures }
    }

    /// The clocks of a kind.
    pub fn of(&self, kind: ClockKind) -> impl Iterator<Item = &Clock> {
        self.clocks.iter().filter(move |clock| clock.kind == kind)
    }

    /// What makes the clocks of these units unfit for a measurement. A clock that cannot be read is no objection: it is
    /// recorded as unknown.
    #[must_use]
    pub fn objections(&self, units: &Units) -> Vec<Objection> {
        let used = |clock: &&Clock| match clock.kind {
            ClockKind::Cpu => units.cpus.is_empty() || clock.cpus.iter().any(|cpu| units.cpus.contains(cpu)),
            ClockKind::Npu => units.npu,
            ClockKind::Dram => true,
        };
        self.clocks.iter().filter(used).filter_map(Clock::objection).collect()
    }

    /// Clocks that are lower in this later state: somebody set them, or the board became too hot.
    #[must_use]
    pub fn fallen(&self, later: &Self) -> Vec<String> {
        let fell = |clock: &Clock| {
            let now = later.clocks.iter().find(|other| other.source == clock.source)?.current_hz?;
            let before = clock.current_hz?;
            is_below(now, before).then(|| {
                format!("the {} fell from {} to {} during the run", clock.name(), mhz(before), mhz(now))
            })
        };
        self.clocks.iter().filter_map(fell).collect()
    }
}

impl fmt::Display for BoardState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self.clocks.iter().map(Clock::to_string).collect();
        for (kind, name) in [(ClockKind::Cpu, "CPU"), (ClockKind::Npu, "NPU"), (ClockKind::Dram, "DRAM")] {
            if self.of(kind).next().is_none() {
                parts.push(format!("{name} clock: unknown"));
            }
        }
        let hottest = self.temperatures.iter().max_by(|a, b| a.celsius.total_cmp(&b.celsius));
        parts.push(match hottest {
            Some(Temperature { zone, celsius }) => format!("hottest: {celsius:.1} °C ({zone})"),
            None => "temperature: unknown".to_owned(),
        });
        f.write_str(&parts.join("; "))
    }
}
