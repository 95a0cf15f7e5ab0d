// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes of a chip's NPU (`isa.md` §1.1, §3).

/// What the planner, the emitters and the simulator need to know of a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Soc {
    /// Name as users know it.
    pub name: &'static str,
    /// NPU cores.
    pub cores: u8,
    /// Banks of a core's convolution buffer (silicon and every driver; the TRM's text says 8).
    pub cbuf_banks: u32,
    /// Bytes of one CBUF bank.
    pub bank_bytes: u32,
    /// Bytes of one atom: the unit of every feature and output address.
    pub atom_bytes: u32,
    /// Granule in which a feature line occupies the CBUF (`isa.md` §10.2, notes G-9a).
    pub line_granule_bytes: u32,
    /// Most tasks of one hardware chain (`PC.TASK_CON.TASK_NUMBER`, 12 bits).
    pub tasks_per_chain_max: u32,
}

/// The Rockchip RK3588 (and RK3588S).
pub const RK3588: Soc = Soc {
    name: "RK3588",
    cores: 3,
    cbuf_banks: 12,
    bank_bytes: 32 * 1024,
    atom_bytes: 16,
    line_granule_bytes: 64,
    tasks_per_chain_max: 4095,
};
