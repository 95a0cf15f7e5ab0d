// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel driver knows of each chip (its per-chip configuration table).

use serde::{Deserialize, Serialize};

/// Which chip the board carries. The kernel interface follows it; the NPU model behind is that of the RK3588.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Soc {
    /// RK3588, RK3588S: three cores.
    #[default]
    Rk3588,
    /// RK3576: two cores.
    Rk3576,
    /// RK3566, RK3567, RK3568: one core, one interrupt line.
    Rk3568,
}

/// Numbers that differ from chip to chip.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chip {
    pub(crate) name: &'static str,
    /// Cores, each with its interrupt line.
    pub(crate) cores: u8,
    /// Words that the program controller fetches per unit of its amount.
    pub(crate) words_per_amount: u32,
    /// Bits of the hardware's task counter.
    pub(crate) counter_bits: u32,
    /// Offset of the task counter's register.
    pub(crate) status_offset: u32,
    /// `GET_HW_VERSION`; `None` where no source has it.
    pub(crate) hardware_version: Option<u32>,
    /// Whether the bandwidth registers (actions 7 to 12) exist.
    pub(crate) bandwidth_window: bool,
    /// Whether traffic counters exist.
    pub(crate) traffic_counters: bool,
}

const RK3588: Chip = Chip {
    name: "RK3588",
    cores: 3,
    words_per_amount: 2,
    counter_bits: 12,
    status_offset: 0x3C,
    hardware_version: Some(ork_rknpu::uapi::HW_VERSION_RK3588),
    bandwidth_window: false,
    traffic_counters: false,
};

const RK3576: Chip = Chip {
    name: "RK3576",
    cores: 2,
    words_per_amount: 2,
    counter_bits: 16,
    status_offset: 0x48,
    hardware_version: None,
    bandwidth_window: false,
    traffic_counters: true,
};

const RK3568: Chip = Chip {
    name: "RK3568",
    cores: 1,
    words_per_amount: 1,
    counter_bits: 12,
    status_offset: 0x3C,
    hardware_version: None,
    bandwidth_window: true,
    traffic_counters: true,
};

impl Soc {
    pub(crate) const fn chip(self) -> &'static Chip {
        match self {
            Self::Rk3588 => &RK3588,
            Self::Rk3576 => &RK3576,
            Self::Rk3568 => &RK3568,
        }
    }

    /// NPU cores.
    #[must_use]
    pub const fn cores(self) -> u8 {
        self.chip().cores
    }

    /// Offset of the register that counts completed tasks.
    #[must_use]
    pub const fn status_offset(self) -> u32 {
        self.chip().status_offset
    }
}

impl Chip {
    /// All cores, as a mask.
    pub(crate) fn core_mask(&self) -> u32 {
        (1 << self.cores) - 1
    }

    /// Whether the driver writes the `S_POINTER` of CNA and CORE before a start.
    pub(crate) fn writes_s_pointer(&self) -> bool {
        self.cores > 1
    }

    /// What the hardware counter can hold, and the longest chain that is committed in one go.
    pub(crate) fn tasks_max(&self) -> u32 {
        (1 << self.counter_bits) - 1
    }

    /// The value of the amount register for a program of `words` body words: the trailer's four are added.
    pub(crate) fn amount(&self, words: u32) -> u32 {
        const TRAILER_WORDS: u32 = 4;
        words.saturating_add(TRAILER_WORDS).div_ceil(self.words_per_amount) - 1
    }

    /// The same in the unit of the NPU model: 16-byte beats minus 1.
    pub(crate) fn beats(&self, words: u32) -> u16 {
        const WORDS_PER_BEAT: u32 = 2;
        let fetched = self.amount(words).saturating_add(1).saturating_mul(self.words_per_amount);
        (fetched.div_ceil(WORDS_PER_BEAT) - 1) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_include_the_trailer_and_round_up() {
        for (words, amount) in [(104, 53), (108, 55), (13, 8), (12, 7), (17, 10)] {
            assert_eq!(RK3588.amount(words), amount, "{words} words");
            assert_eq!(RK3588.beats(words), amount as u16);
        }
        assert_eq!((RK3568.amount(104), RK3568.amount(13)), (107, 16), "one word per unit");
        assert_eq!((RK3568.beats(104), RK3568.beats(13)), (53, 8), "the model fetches the same words");
    }

    #[test]
    fn table() {
        let row =
            |soc: Soc| (soc.cores(), soc.chip().core_mask(), soc.chip().tasks_max(), soc.status_offset());
        assert_eq!(row(Soc::Rk3588), (3, 7, 4095, 0x3C));
        assert_eq!(row(Soc::Rk3576), (2, 3, 65535, 0x48));
        assert_eq!(row(Soc::Rk3568), (1, 1, 4095, 0x3C));
    }
}
