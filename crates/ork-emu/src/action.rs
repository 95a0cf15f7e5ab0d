// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ACTION codes of `rknpu`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use ork_drm::Errno;
use ork_rknpu::uapi::{HW_VERSION_RK3588, RknpuAction, action};
use ork_sim::JobStats;

use crate::board::Inner;
use crate::finding::FindingKind;

const FREQUENCY_HZ: u32 = 1_000_000_000;
const SUPPLY_MICROVOLTS: u32 = 800_000;
/// First of the bandwidth actions: pairs of get and set.
const GET_BW_PRIORITY: u32 = 7;
const SET_BW_TW: u32 = 12;
/// Of a private kernel: the same as `SET_IOMMU_DOMAIN_ID`.
const ACT_SET_DOMAIN: u32 = 0x100;
/// First version without the power actions.
const POWER_ACTIONS_UNTIL: u32 = 900;

/// What the counters of the chip have seen, and its bandwidth registers.
#[derive(Default)]
pub(crate) struct Meters {
    written: AtomicU64,
    features: AtomicU64,
    weights: AtomicU64,
    bandwidth: [AtomicU32; 3],
}

impl Meters {
    pub(crate) fn count(&self, stats: &JobStats) {
        self.written.fetch_add(stats.written_bytes, Relaxed);
        self.features.fetch_add(stats.feature_bytes + stats.operand_bytes, Relaxed);
        self.weights.fetch_add(stats.weight_bytes, Relaxed);
    }
}

impl Inner {
    /// `RKNPU_ACTION`.
    pub(crate) fn action(&self, argument: &mut RknpuAction) -> Result<(), Errno> {
        let chip = self.options.soc.chip();
        let meters = &self.meters;
        let unchanged = argument.value;
        let counter = |counters: &[&AtomicU64]| {
            if chip.traffic_counters {
                counters.iter().map(|counter| counter.load(Relaxed)).sum::<u64>() as u32
            } else {
                unchanged
            }
        };
        argument.value = match argument.flags {
            action::GET_HW_VERSION => chip.hardware_version.unwrap_or_else(|| {
                let what = "the hardware version of this chip: no source has it; RK3588's is given";
                self.report(None, 0, FindingKind::NotEmulated { what });
                HW_VERSION_RK3588
            }),
            action::GET_DRV_VERSION => self.version_code(),
            action::GET_FREQ => FREQUENCY_HZ,
            action::GET_VOLT => SUPPLY_MICROVOLTS,
            action::ACT_RESET => {
                self.reset();
                unchanged
            }
            code @ GET_BW_PRIORITY..=SET_BW_TW if chip.bandwidth_window => {
                let register = &meters.bandwidth[((code - GET_BW_PRIORITY) / 2) as usize];
                if (code - GET_BW_PRIORITY) % 2 == 1 {
                    register.store(unchanged, Relaxed);
                }
                register.load(Relaxed)
            }
            action::ACT_CLR_TOTAL_RW_AMOUNT => {
                for counter in [&meters.written, &meters.features, &meters.weights] {
                    counter.store(0, Relaxed);
                }
                unchanged
            }
            action::GET_DT_WR_AMOUNT => counter(&[&meters.written]),
            action::GET_DT_RD_AMOUNT => counter(&[&meters.features]),
            action::GET_WT_RD_AMOUNT => counter(&[&meters.weights]),
            action::GET_TOTAL_RW_AMOUNT => counter(&[&meters.written, &meters.features, &meters.weights]),
            // The host's nice value is left alone.
            action::SET_PROC_NICE => unchanged,
            action::POWER_ON | action::POWER_OFF if self.version_code() < POWER_ACTIONS_UNTIL => unchanged,
            action::GET_IOMMU_EN => self.options.iommu.into(),
            action::GET_TOTAL_SRAM_SIZE => saturate(self.options.sram_bytes),
            action::GET_FREE_SRAM_SIZE => saturate(self.free_sram()),
            action::GET_IOMMU_DOMAIN_ID if self.knows_domains() => self.live_domain.current().into(),
            action::SET_IOMMU_DOMAIN_ID if self.knows_domains() => self.switch_domain(unchanged)?,
            ACT_SET_DOMAIN if self.options.private_actions => self.switch_domain(unchanged)?,
            _ => return Err(Errno::EINVAL),
        };
        Ok(())
    }

    /// Makes a domain live and holds no reference.
    fn switch_domain(&self, domain: u32) -> Result<u32, Errno> {
        self.live_domain.enter(self.domain_id(domain as i32)?)?;
        self.live_domain.leave();
        Ok(domain)
    }
}

fn saturate(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
