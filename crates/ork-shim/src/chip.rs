// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a board with each chip shows of itself in files.

/// Texts about a chip and a board that carries it.
pub(crate) struct Chip {
    /// `compatible` of the device tree's root, each string with its NUL.
    pub(crate) compatible: &'static str,
    /// `model` of the device tree.
    pub(crate) model: &'static str,
    /// `compatible` of the NPU's node under the vendor driver.
    pub(crate) npu: &'static str,
    /// Address of the NPU, which names its platform device.
    pub(crate) address: &'static str,
    /// Cores.
    pub(crate) cores: u8,
    /// Steps of the NPU clock in MHz, ascending.
    pub(crate) steps_mhz: &'static [u32],
}

/// RK3588, on a Radxa ROCK 5B.
pub(crate) const RK3588: Chip = Chip {
    compatible: "radxa,rock-5b\0rockchip,rk3588\0",
    model: "Radxa ROCK 5B\0",
    npu: "rockchip,rk3588-rknpu",
    address: "fdab0000",
    cores: 3,
    steps_mhz: &[300, 400, 500, 600, 700, 800, 900, 1000],
};

/// RK3576, on a Radxa ROCK 4D. The clock steps are assumed.
pub(crate) const RK3576: Chip = Chip {
    compatible: "radxa,rock-4d\0rockchip,rk3576\0",
    model: "Radxa ROCK 4D\0",
    npu: "rockchip,rk3576-rknpu",
    address: "27700000",
    cores: 2,
    steps_mhz: &[300, 400, 500, 600, 700, 800, 900, 1000],
};

/// RK3568, on a Radxa ROCK 3A.
pub(crate) const RK3568: Chip = Chip {
    compatible: "radxa,rock3a\0rockchip,rk3568\0",
    model: "Radxa ROCK3 Model A\0",
    npu: "rockchip,rk3568-rknpu",
    address: "fde40000",
    cores: 1,
    steps_mhz: &[200, 300, 400, 600, 700, 800, 900, 1000],
};
