// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folder that stands for the board's files: `/dev`, `/proc/device-tree`, `/sys` as far as programs look there.
//!
//! All links are relative, so that they lead to the same places from the folder as from the root.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::chip::Chip;

/// Major number of DRM nodes.
pub(crate) const DRM_MAJOR: u32 = 226;
/// Major number of accel nodes.
pub(crate) const ACCEL_MAJOR: u32 = 261;
/// Major number of dma heaps; the kernel picks a free one at boot, this is a usual one.
const DMA_HEAP_MAJOR: u32 = 251;

/// A device node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Path as programs see it.
    pub(crate) path: &'static str,
    /// Device number.
    pub(crate) number: (u32, u32),
    /// What answers.
    pub(crate) kind: NodeKind,
}

/// What a node leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    /// Primary node of the vendor driver.
    Card,
    /// Render node of the vendor driver.
    Render,
    /// Node of the mainline driver.
    Accel,
    /// A dma-buf heap.
    DmaHeap,
}

const VENDOR_NODES: &[Node] = &[
    Node { path: "/dev/dri/card1", number: (DRM_MAJOR, 1), kind: NodeKind::Card },
    Node { path: "/dev/dri/renderD129", number: (DRM_MAJOR, 129), kind: NodeKind::Render },
    Node { path: "/dev/dma_heap/system", number: (DMA_HEAP_MAJOR, 0), kind: NodeKind::DmaHeap },
];
const MAINLINE_NODES: &[Node] = &[
    Node { path: "/dev/accel/accel0", number: (ACCEL_MAJOR, 0), kind: NodeKind::Accel },
    Node { path: "/dev/dma_heap/system", number: (DMA_HEAP_MAJOR, 0), kind: NodeKind::DmaHeap },
];

/// The kernel driver whose files are shown.
pub(crate) enum Shown {
    /// The vendor's, with its version.
    Vendor([u32; 3]),
    /// The mainline one.
    Mainline,
}

/// The device nodes that a driver makes.
pub(crate) fn nodes(shown: &Shown) -> &'static [Node] {
    match shown {
        Shown::Vendor(_) => VENDOR_NODES,
        Shown::Mainline => MAINLINE_NODES,
    }
}

/// Name of the memory file that stands for an open node in the kernel.
pub(crate) fn placeholder_name(node: &Node) -> &'static str {
    node.path.trim_start_matches('/')
}

/// The node that a memory file of this name stands for, of whichever driver.
pub(crate) fn node_of_placeholder(name: &str) -> Option<&'static Node> {
    VENDOR_NODES.iter().chain(MAINLINE_NODES).find(|node| placeholder_name(node) == name)
}

/// Makes everything below `root`.
pub(crate) fn build(root: &Path, chip: &Chip, shown: &Shown) -> io::Result<()> {
    let tree = Tree { root };
    for folder in ["dev/dri", "dev/accel", "sys/class/drm", "sys/class/accel", "sys/class/devfreq"] {
        fs::create_dir_all(root.join(folder))?;
    }
    for node in nodes(shown) {
        tree.file(node.path, "")?;
    }
    tree.file("sys/firmware/devicetree/base/compatible", chip.compatible)?;
    tree.file("sys/firmware/devicetree/base/model", chip.model)?;
    tree.link("proc/device-tree", "../sys/firmware/devicetree/base")?;
    fs::create_dir_all(root.join("sys/bus/platform"))?;
    match shown {
        Shown::Vendor(version) => tree.vendor(chip, *version),
        Shown::Mainline => tree.mainline(),
    }
}

struct Tree<'a> {
    root: &'a Path,
}

impl Tree<'_> {
    fn place(&self, path: &str) -> io::Result<PathBuf> {
        let path = self.root.join(path.trim_start_matches('/'));
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        Ok(path)
    }

    fn file(&self, path: &str, text: &str) -> io::Result<()> {
        fs::write(self.place(path)?, text)
    }

    fn link(&self, path: &str, target: &str) -> io::Result<()> {
        symlink(target, self.place(path)?)
    }

    /// A minor of a device: its folder below the device, and the links that lead there.
    fn minor(&self, device: &str, class: &str, name: &str, number: (u32, u32)) -> io::Result<()> {
        let (major, minor) = number;
        let folder = format!("sys/devices/platform/{device}/{class}/{name}");
        self.file(&format!("{folder}/dev"), &format!("{major}:{minor}\n"))?;
        let uevent = format!("MAJOR={major}\nMINOR={minor}\nDEVNAME={}/{name}\n", folder_in_dev(class));
        self.file(&format!("{folder}/uevent"), &uevent)?;
        self.link(&format!("{folder}/device"), &format!("../../../{device}"))?;
        self.link(&format!("{folder}/subsystem"), &format!("../../../../../class/{class}"))?;
        let target = format!("devices/platform/{device}/{class}/{name}");
        self.link(&format!("sys/class/{class}/{name}"), &format!("../../{target}"))?;
        self.link(&format!("sys/dev/char/{major}:{minor}"), &format!("../../{target}"))
    }

    fn device(&self, device: &str, driver: &str, node: &str, compatible: &str) -> io::Result<()> {
        let folder = format!("sys/devices/platform/{device}");
        let uevent = format!(
            "DRIVER={driver}\nOF_NAME=npu\nOF_FULLNAME={node}\nOF_COMPATIBLE_0={compatible}\n\
             OF_COMPATIBLE_N=1\n"
        );
        self.file(&format!("{folder}/uevent"), &uevent)?;
        self.file(&format!("{folder}/power/control"), "auto\n")?;
        self.file(&format!("{folder}/power/runtime_status"), "active\n")?;
        self.link(&format!("{folder}/subsystem"), "../../../bus/platform")?;
        fs::create_dir_all(self.root.join(format!("sys/bus/platform/drivers/{driver}")))?;
        self.link(&format!("{folder}/driver"), &format!("../../../bus/platform/drivers/{driver}"))?;
        self.link(&format!("{folder}/of_node"), &format!("../../../firmware/devicetree/base{node}"))?;
        let of = format!("sys/firmware/devicetree/base{node}");
        self.file(&format!("{of}/compatible"), &format!("{compatible}\0"))?;
        self.file(&format!("{of}/status"), "okay\0")?;
        self.file(&format!("{of}/name"), "npu\0")
    }

    fn vendor(&self, chip: &Chip, version: [u32; 3]) -> io::Result<()> {
        let device = format!("{}.npu", chip.address);
        self.device(&device, "RKNPU", &format!("/npu@{}", chip.address), chip.npu)?;
        for node in VENDOR_NODES.iter().filter(|node| node.number.0 == DRM_MAJOR) {
            let name = node.path.trim_start_matches("/dev/dri/");
            self.minor(&device, "drm", name, node.number)?;
            let kind = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == 'D');
            self.link(&format!("dev/dri/by-path/platform-{device}-{kind}"), &format!("../{name}"))?;
        }
        self.file("sys/class/drm/version", "drm 1.1.0 20060810\n")?;

        let top_hz = u64::from(*chip.steps_mhz.last().unwrap_or(&0)) * 1_000_000;
        let lowest_hz = u64::from(*chip.steps_mhz.first().unwrap_or(&0)) * 1_000_000;
        let [major, minor, patch] = version;
        let load = match chip.cores {
            1 => "NPU load:  0%\n".to_owned(),
            cores => {
                let each: String = (0..cores).map(|core| format!(" Core{core}:  0%,")).collect();
                format!("NPU load: {each}\n")
            }
        };
        let debug = "sys/kernel/debug/rknpu";
        for (name, text) in [
            ("version", format!("RKNPU driver: v{major}.{minor}.{patch}\n")),
            ("load", load),
            ("power", "on\n".to_owned()),
            ("freq", format!("{top_hz}\n")),
            ("volt", "800000\n".to_owned()),
            ("delayms", "3000\n".to_owned()),
            ("reset", "on\n".to_owned()),
        ] {
            self.file(&format!("{debug}/{name}"), &text)?;
        }

        let steps: Vec<String> = chip.steps_mhz.iter().map(|mhz| format!("{mhz}000000")).collect();
        let frequency = format!("sys/class/devfreq/{device}");
        for (name, text) in [
            ("cur_freq", format!("{top_hz}\n")),
            ("target_freq", format!("{top_hz}\n")),
            ("min_freq", format!("{lowest_hz}\n")),
            ("max_freq", format!("{top_hz}\n")),
            ("available_frequencies", format!("{}\n", steps.join(" "))),
            ("governor", "rknpu_ondemand\n".to_owned()),
            (
                "available_governors",
                "rknpu_ondemand userspace powersave performance simple_ondemand\n".to_owned(),
            ),
            ("load", format!("0@{top_hz}Hz\n")),
        ] {
            self.file(&format!("{frequency}/{name}"), &text)?;
        }
        for (name, text) in
            [("governor", "performance\n"), ("cur_freq", "2112000000\n"), ("load", "7@2112000000Hz\n")]
        {
            self.file(&format!("sys/class/devfreq/dmc/{name}"), text)?;
        }
        Ok(())
    }

    fn mainline(&self) -> io::Result<()> {
        self.device("rknn", "rocket", "/npu@fdab0000", "rockchip,rk3588-rknn-core")?;
        for core in ["fdac0000", "fdad0000"] {
            let of = format!("sys/firmware/devicetree/base/npu@{core}");
            self.file(&format!("{of}/compatible"), "rockchip,rk3588-rknn-core\0")?;
            self.file(&format!("{of}/status"), "okay\0")?;
        }
        self.minor("rknn", "accel", "accel0", (ACCEL_MAJOR, 0))
    }
}

fn folder_in_dev(class: &str) -> &str {
    if class == "drm" { "dri" } else { class }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chip::{RK3568, RK3588};

    fn text(root: &Path, path: &str) -> String {
        fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    #[test]
    fn the_vendor_board_shows_its_files() {
        let root = tempfile::tempdir().unwrap();
        build(root.path(), &RK3588, &Shown::Vendor([0, 9, 8])).unwrap();
        let root = root.path();
        assert_eq!(text(root, "proc/device-tree/compatible"), "radxa,rock-5b\0rockchip,rk3588\0");
        assert_eq!(text(root, "sys/kernel/debug/rknpu/version"), "RKNPU driver: v0.9.8\n");
        assert_eq!(
            text(root, "sys/kernel/debug/rknpu/load"),
            "NPU load:  Core0:  0%, Core1:  0%, Core2:  0%,\n"
        );
        assert!(text(root, "sys/class/drm/card1/device/uevent").contains("rockchip,rk3588-rknpu"));
        assert!(text(root, "sys/dev/char/226:129/device/uevent").starts_with("DRIVER=RKNPU\n"));
        assert_eq!(text(root, "sys/class/drm/card1/device/of_node/name"), "npu\0");
        assert_eq!(text(root, "dev/dri/by-path/platform-fdab0000.npu-render"), "");
        assert!(root.join("sys/dev/char/226:1/device/drm/card1").is_dir());
        assert!(!root.join("dev/rknpu").exists());
    }

    #[test]
    fn a_single_core_chip_has_a_load_without_names() {
        let root = tempfile::tempdir().unwrap();
        build(root.path(), &RK3568, &Shown::Vendor([0, 9, 2])).unwrap();
        assert_eq!(text(root.path(), "sys/kernel/debug/rknpu/load"), "NPU load:  0%\n");
    }

    #[test]
    fn the_mainline_board_has_an_accel_node_only() {
        let root = tempfile::tempdir().unwrap();
        build(root.path(), &RK3588, &Shown::Mainline).unwrap();
        assert_eq!(text(root.path(), "sys/class/accel/accel0/dev"), "261:0\n");
        assert_eq!(fs::read_dir(root.path().join("dev/dri")).unwrap().count(), 0);
        assert!(!root.path().join("sys/kernel/debug/rknpu").exists());
    }
}
