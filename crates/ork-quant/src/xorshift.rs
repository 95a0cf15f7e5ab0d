// SPDX-License-Identifier: MIT OR Apache-2.0
#![forbid(unsafe_code)]

/// The 32-bit xorshift generator (13, 17, 5) that stochastic rounding and random signs draw from: part of the
/// recipe (`isa-int4-sdp.md` §7.2, §7.3), so that the same weights give the same codes everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XorShift32(u32);

impl XorShift32 {
    /// The seed of both uses.
    pub const SEED: u32 = 0x2545_F491;

    /// The generator at its seed.
    pub const fn new() -> Self {
        Self(Self::SEED)
    }

    /// The next state: updated first, then used.
    pub fn next_state(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0
    }

    /// A number in [0, 1): the upper 24 bits of the next state, exact in `f32`.
    pub fn next_unit(&mut self) -> f32 {
        (self.next_state() >> 8) as f32 / 16_777_216.0
    }
}

impl Default for XorShift32 {
    fn default() -> Self {
        Self::new()
    }
}
