// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;
use std::sync::Arc;

use ork_drm::{Node, NodeError, OpenNode, RealNodes, Transport, Version, nodes, probe};
use ork_rknpu::{Rknpu, uapi};
use ork_rocket::Rocket;

use crate::device::DeviceInfo;
use crate::kernel::{DriverKind, Kernel, KernelError, RknpuKernel, RocketKernel};
use crate::options::{DeviceKind, DeviceOptions};

/// Oldest driver that is used: older ones have other meanings for memory flags.
const DRIVER_VERSION_MIN: u32 = 800;

/// A device node and what it is good for.
#[derive(Clone, Debug)]
pub struct Found {
    /// The node.
    pub node: Node,
    /// Driver behind it, if it could be asked.
    pub driver: Option<Version>,
    /// What the device says of itself, if it can be used, or why it cannot.
    pub verdict: Result<DeviceInfo, Unusable>,
}

/// Why a node cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// It cannot be opened or asked.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// It is no NPU.
    #[error("driver {name} is not an NPU driver that ork knows")]
    OtherDriver {
        /// Name of the driver.
        name: String,
    },
    /// The options ask for the other driver.
    #[error("the options ask for a device with driver {wanted}")]
    NotWanted {
        /// The driver that is wanted.
        wanted: DriverKind,
    },
    /// The driver is too old.
    #[error("rknpu {} is too old: {} or newer is needed", dotted(*.version), dotted(DRIVER_VERSION_MIN))]
    TooOld {
        /// Version code, major·10000 + minor·100 + patch.
        version: u32,
    },
    /// Another chip.
    #[error("hardware version {version:#010x} is not the RK3588's {:#010x}", uapi::HW_VERSION_RK3588)]
    OtherChip {
        /// Hardware version word.
        version: u32,
    },
    /// The device does not answer.
    #[error("the device does not answer")]
    Call(#[from] KernelError),
}

/// A version code in the usual form.
pub(crate) fn dotted(version: u32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

impl Found {
    /// What the user can do to make it usable.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self.verdict.as_ref().err()? {
            Unusable::Node(error) => Some(error.hint()),
            Unusable::NotWanted { .. } => Some("set device.kind = \"auto\" to take either driver".to_owned()),
            Unusable::TooOld { .. } => {
                Some("install a newer vendor kernel: 6.1 brings rknpu 0.9.8".to_owned())
            }
            Unusable::Call(error) => error.hint().map(str::to_owned),
            Unusable::OtherDriver { .. } | Unusable::OtherChip { .. } => None,
        }
    }

    /// How close the node is to being usable.
    pub(crate) fn nearness(&self) -> u8 {
        match &self.verdict {
            Ok(_) => 5,
            Err(Unusable::TooOld { .. } | Unusable::OtherChip { .. } | Unusable::Call(_)) => 4,
            Err(Unusable::Node(NodeError::Permission { .. })) => 3,
            Err(Unusable::NotWanted { .. }) => 2,
            Err(Unusable::Node(_)) => 1,
            Err(Unusable::OtherDriver { .. }) => 0,
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said_by_error = matches!(&self.verdict, Err(Unusable::Node(_)));
        if !said_by_error {
            write!(f, "{}: ", self.node)?;
            if let Some(driver) = &self.driver {
                write!(f, "{driver}, ")?;
            }
        }
        match &self.verdict {
            Ok(info) => write!(f, "usable ({info})"),
            Err(reason) => {
                write!(f, "{reason}")?;
                // The last link of the chain says what the kernel said.
                match reason {
                    Unusable::Node(NodeError::Open { source, .. } | NodeError::NotDrm { source, .. }) => {
                        write!(f, ": {source}")
                    }
                    Unusable::Call(error) => match error.errno() {
                        Some(errno) => write!(f, ": {error}: {errno}"),
                        None => write!(f, ": {error}"),
                    },
                    _ => Ok(()),
                }
            }
        }
    }
}

/// Lists every node that could be an NPU, with its driver and whether it can be used. Nothing is locked or
/// changed.
#[must_use]
pub fn enumerate(options: &DeviceOptions) -> Vec<Found> {
    candidates(options).iter().map(|node| examine(node, options.kind, &RealNodes).0).collect()
}

/// The nodes to look at: the one that was named, or all.
pub(crate) fn candidates(options: &DeviceOptions) -> Vec<Node> {
    match &options.node {
        Some(path) => vec![Node::at(path)],
        None => nodes(&options.dev_root),
    }
}

/// A device that can be used.
#[derive(Debug)]
pub(crate) struct Usable {
    pub(crate) kernel: Box<dyn Kernel>,
    pub(crate) info: DeviceInfo,
}

/// Looks at one node, and keeps it open if it can be used.
pub(crate) fn examine(node: &Node, kind: DeviceKind, opener: &dyn OpenNode) -> (Found, Option<Usable>) {
    let found = |driver, verdict| Found { node: node.clone(), driver, verdict };
    let (transport, version) = match probe(node, opener) {
        Ok(opened) => opened,
        Err(error) => return (found(None, Err(error.into())), None),
    };
    let driver = match version.name.as_str() {
        ork_rknpu::DRIVER_NAME => Ok(DriverKind::Rknpu),
        ork_rocket::DRIVER_NAME => Ok(DriverKind::Rocket),
        name => Err(Unusable::OtherDriver { name: name.to_owned() }),
    };
    let wanted = match kind {
        DeviceKind::Rknpu => Some(DriverKind::Rknpu),
        DeviceKind::Rocket => Some(DriverKind::Rocket),
        DeviceKind::Auto | DeviceKind::Sim => None,
    };
    let usable = driver.and_then(|driver| match wanted {
        Some(wanted) if wanted != driver => Err(Unusable::NotWanted { wanted }),
        _ => ask(driver, transport),
    });
    match usable {
        Ok(usable) => (found(Some(version), Ok(usable.info)), Some(usable)),
        Err(reason) => (found(Some(version), Err(reason)), None),
    }
}

/// Reads what the device says of itself and refuses what is not supported.
pub(crate) fn ask(driver: DriverKind, transport: Arc<dyn Transport>) -> Result<Usable, Unusable> {
    match driver {
        DriverKind::Rknpu => ask_rknpu(Rknpu::new(transport)),
        DriverKind::Rocket => {
            let kernel = RocketKernel::new(Rocket::new(transport)).map_err(KernelError::from)?;
            // There is nothing to ask: the driver serves the RK3588 family alone, always behind an IOMMU, without
            // on-chip memory (`uapi.md` B).
            let info = DeviceInfo {
                driver,
                driver_version: 0,
                hardware_version: uapi::HW_VERSION_RK3588,
                iommu: true,
                sram_bytes: 0,
                sram_free_bytes: 0,
            };
            Ok(Usable { kernel: Box::new(kernel), info })
        }
    }
}

fn ask_rknpu(npu: Rknpu<Arc<dyn Transport>>) -> Result<Usable, Unusable> {
    let driver_version = npu.driver_version().map_err(KernelError::from)?;
    if driver_version < DRIVER_VERSION_MIN {
        return Err(Unusable::TooOld { version: driver_version });
    }
    let hardware_version = npu.hardware_version().map_err(KernelError::from)?;
    if hardware_version != uapi::HW_VERSION_RK3588 {
        return Err(Unusable::OtherChip { version: hardware_version });
    }
    let iommu = npu.iommu_enabled().map_err(KernelError::from)?;
    // Drivers without SRAM support may refuse the question; then there is none.
    let (sram_bytes, sram_free_bytes) = npu.sram_bytes().unwrap_or((0, 0));
    let driver = DriverKind::Rknpu;
    let info = DeviceInfo { driver, driver_version, hardware_version, iommu, sram_bytes, sram_free_bytes };
    Ok(Usable { kernel: Box::new(RknpuKernel::new(npu, &info)), info })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::{Path, PathBuf};

    use ork_drm::{Errno, Mapping, uapi as drm};
    use ork_emu::{Board, EmuOptions, VirtualRknpu};
    use zerocopy::FromBytes;

    use super::*;
    use crate::{Device, DeviceKind, OpenError};

    /// What a test finds at a path.
    #[derive(Clone)]
    enum Thing {
        /// An emulated board.
        Npu(Board),
        /// The same, with the mainline driver.
        Rocket(Board),
        /// The same, of another chip.
        OtherChip(Board),
        /// The same, in use by another program.
        Locked(Board),
        /// The same, but it drops the last task of each job and says success.
        Lossy(Board),
        /// A DRM driver that only tells its name.
        Named(&'static str),
        /// `open` fails.
        Refused(Errno),
    }

    /// Nodes by path.
    struct Shelf(HashMap<PathBuf, Thing>);

    impl OpenNode for Shelf {
        fn open(&self, path: &Path) -> Result<Arc<dyn Transport>, Errno> {
            Ok(match self.0.get(path).cloned().unwrap_or(Thing::Refused(Errno::ENOENT)) {
                Thing::Npu(board) => Arc::new(board.open()),
                Thing::Rocket(board) => Arc::new(board.open_rocket()),
                Thing::OtherChip(board) => Arc::new(Bent { hardware: 0x3566, ..Bent::straight(&board) }),
                Thing::Locked(board) => Arc::new(Bent { locked: true, ..Bent::straight(&board) }),
                Thing::Lossy(board) => Arc::new(Bent { lossy: true, ..Bent::straight(&board) }),
                Thing::Named(name) => Arc::new(Named(name)),
                Thing::Refused(errno) => return Err(errno),
            })
        }
    }

    #[derive(Debug)]
    struct Bent {
        npu: VirtualRknpu,
        hardware: u32,
        locked: bool,
        lossy: bool,
    }

    impl Bent {
        fn straight(board: &Board) -> Self {
            Self { npu: board.open(), hardware: uapi::HW_VERSION_RK3588, locked: false, lossy: false }
        }
    }

    impl Transport for Bent {
        unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
            if request == uapi::SUBMIT && self.lossy {
                let submit = uapi::RknpuSubmit::mut_from_bytes(argument).unwrap();
                submit.task_counter = submit.task_number - 1;
                return Ok(());
            }
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.npu.ioctl(request, argument) }?;
            if request == uapi::ACTION && argument[..4] == [0; 4] {
                argument[4..8].copy_from_slice(&self.hardware.to_le_bytes());
            }
            Ok(())
        }

        fn mmap(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
            self.npu.mmap(offset, len)
        }

        fn try_lock(&self) -> Result<bool, Errno> {
            Ok(!self.locked)
        }
    }

    #[derive(Debug)]
    struct Named(&'static str);

    impl Transport for Named {
        unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
            assert_eq!(request, drm::VERSION, "nothing else may be asked of a foreign driver");
            let version = drm::DrmVersion::mut_from_bytes(argument).unwrap();
            let place = std::ptr::with_exposed_provenance_mut::<u8>(version.name as usize);
            if !place.is_null() {
                let len = self.0.len().min(version.name_len as usize);
                // SAFETY: the caller vouches for `name_len` bytes at the address.
                unsafe { std::ptr::copy_nonoverlapping(self.0.as_ptr(), place, len) };
            }
            version.name_len = self.0.len() as u64;
            Ok(())
        }

        fn mmap(&self, _: u64, _: usize) -> Result<Mapping, Errno> {
            Err(Errno::EINVAL)
        }
    }

    /// A `/dev` with these nodes.
    fn machine(things: &[(&str, Thing)]) -> (tempfile::TempDir, DeviceOptions, Shelf) {
        let root = tempfile::tempdir().unwrap();
        let mut shelf = HashMap::new();
        for (name, thing) in things {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, []).unwrap();
            shelf.insert(path, thing.clone());
        }
        let options = DeviceOptions {
            dev_root: root.path().to_owned(),
            lock_dir: root.path().to_owned(),
            ..Default::default()
        };
        (root, options, Shelf(shelf))
    }

    fn board() -> Board {
        Board::new(&EmuOptions::default())
    }

    fn lines(options: &DeviceOptions, shelf: &Shelf) -> Vec<String> {
        candidates(options)
            .iter()
            .map(|node| {
                let line = examine(node, options.kind, shelf).0.to_string();
                line.replace(&format!("{}/", options.dev_root.display()), "")
            })
            .collect()
    }

    #[test]
    fn each_node_says_what_it_is_and_why_it_cannot_be_used() {
        let old = Board::new(&EmuOptions { driver_version: [0, 7, 2], ..Default::default() });
        let (_root, options, shelf) = machine(&[
            ("accel/accel0", Thing::Rocket(board())),
            ("dri/card0", Thing::Named("panthor")),
            ("dri/card1", Thing::Npu(board())),
            ("dri/card2", Thing::Npu(old)),
            ("dri/card3", Thing::OtherChip(board())),
            ("dri/card4", Thing::Refused(Errno::ENODEV)),
            ("dri/renderD128", Thing::Refused(Errno::EACCES)),
        ]);
        let lines = lines(&options, &shelf);
        assert_eq!(lines[0], "accel/accel0: rocket 0.0.0, usable (RK3588, rocket)");
        assert!(lines[1].starts_with("no permission to open dri/renderD128 (owner uid "), "{}", lines[1]);
        assert_eq!(lines[2], "dri/card0: panthor 0.0.0, driver panthor is not an NPU driver that ork knows");
        assert_eq!(lines[3], "dri/card1: rknpu 0.9.8, usable (RK3588, rknpu 0.9.8, IOMMU on, 0 KiB SRAM)");
        assert_eq!(lines[4], "dri/card2: rknpu 0.7.2, rknpu 0.7.2 is too old: 0.8.0 or newer is needed");
        let chip = "hardware version 0x00003566 is not the RK3588's 0x46495245";
        assert_eq!(lines[5], format!("dri/card3: rknpu 0.9.8, {chip}"));
        assert_eq!(lines[6], "cannot open dri/card4: No such device (ENODEV)");
    }

    #[test]
    fn the_npu_is_found_by_name_behind_any_node() {
        let (_root, options, shelf) = machine(&[
            ("accel/accel0", Thing::Named("other")),
            ("dri/card0", Thing::Named("panthor")),
            ("dri/card1", Thing::Npu(board())),
            ("dri/renderD128", Thing::Named("panthor")),
        ]);
        for kind in [DeviceKind::Auto, DeviceKind::Rknpu] {
            let device = Device::open_with(&DeviceOptions { kind, ..options.clone() }, &shelf).unwrap();
            assert!(device.describe().ends_with("dri/card1: RK3588, rknpu 0.9.8, IOMMU on, 0 KiB SRAM"));
            assert!(device.board().is_none(), "as far as the device knows it is real");
        }
    }

    #[test]
    fn each_driver_can_be_asked_for_by_name() {
        let (_root, options, shelf) =
            machine(&[("accel/accel0", Thing::Rocket(board())), ("dri/card1", Thing::Npu(board()))]);
        let open = |kind| Device::open_with(&DeviceOptions { kind, ..options.clone() }, &shelf).unwrap();
        for (kind, driver) in [
            (DeviceKind::Auto, DriverKind::Rocket),
            (DeviceKind::Rocket, DriverKind::Rocket),
            (DeviceKind::Rknpu, DriverKind::Rknpu),
        ] {
            assert_eq!(open(kind).info().driver, driver, "{kind:?}");
        }
        let (_root, options, shelf) = machine(&[("dri/card1", Thing::Npu(board()))]);
        let rocket = DeviceOptions { kind: DeviceKind::Rocket, ..options };
        let error = Device::open_with(&rocket, &shelf).unwrap_err();
        assert!(error.to_string().contains("the options ask for a device with driver rocket"), "{error}");
        assert!(error.hint().unwrap().contains("auto"));
    }

    #[test]
    fn a_render_node_goes_before_its_card() {
        let board = board();
        let (_root, options, shelf) =
            machine(&[("dri/card1", Thing::Npu(board.clone())), ("dri/renderD129", Thing::Npu(board))]);
        let device = Device::open_with(&options, &shelf).unwrap();
        assert!(device.describe().contains("renderD129"), "{}", device.describe());
    }

    #[test]
    fn the_line_names_the_nearest_miss() {
        let (_root, options, shelf) = machine(&[
            ("accel/accel0", Thing::Named("other")),
            ("dri/card0", Thing::Named("panthor")),
            ("dri/card1", Thing::OtherChip(board())),
        ]);
        let device = Device::open_with(&options, &shelf).unwrap();
        assert!(device.board().is_some());
        assert!(device.describe().contains("hardware version 0x00003566"), "{}", device.describe());
    }

    #[test]
    fn a_locked_device_is_an_error_and_no_reason_to_simulate() {
        let (_root, options, shelf) = machine(&[("dri/card1", Thing::Locked(board()))]);
        let error = Device::open_with(&options, &shelf).unwrap_err();
        assert!(matches!(error, OpenError::Locked { .. }), "{error}");
        assert!(error.hint().unwrap().contains("exclusive"));
        let shared = DeviceOptions { exclusive: false, ..options };
        assert!(Device::open_with(&shared, &shelf).is_ok());
    }

    #[test]
    fn two_nodes_of_one_npu_have_one_lock() {
        let board = board();
        let (_root, options, shelf) =
            machine(&[("dri/card1", Thing::Npu(board.clone())), ("dri/renderD129", Thing::Npu(board))]);
        let by = |node: &str| {
            let node = Some(options.dev_root.join("dri").join(node));
            Device::open_with(&DeviceOptions { node, ..options.clone() }, &shelf)
        };
        let first = by("card1").unwrap();
        let error = by("renderD129").unwrap_err();
        assert!(matches!(&error, OpenError::Occupied { .. }), "{error:?}");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains(&format!("in use by process {}", std::process::id())), "{source}");
        assert!(error.hint().unwrap().contains("device.lock_wait_ms"));
        drop(first);
        by("renderD129").unwrap();
    }

    #[test]
    fn what_a_killed_program_left_is_said_and_counted() {
        let (_root, options, shelf) = machine(&[("dri/card1", Thing::Npu(board()))]);
        let held = "pid = 4711\ndomains = 5\nobjects = 9\nbytes = 10737418240\n";
        std::fs::write(options.lock_dir.join("ork-rknpu.lock"), held).unwrap();
        let device = Device::open_with(&options, &shelf).unwrap();
        let said =
            "process 4711 ended without closing the NPU; it held 9 buffers (10240 MiB) in 5 address spaces";
        assert!(device.describe().contains(said), "{}", device.describe());
        assert_eq!(device.left_behind().unwrap().pid, 4711);
        assert_eq!(device.event_counts().of(crate::EventKind::StaleOwner), 1);
        let _buffer = device.alloc(crate::Purpose::Data, 4096).unwrap();
        let own = std::fs::read_to_string(options.lock_dir.join("ork-rknpu.lock")).unwrap();
        assert!(
            own.contains(&format!("pid = {}", std::process::id())) && own.contains("objects = 1"),
            "{own}"
        );
        drop((_buffer, device));
        assert!(Device::open_with(&options, &shelf).unwrap().left_behind().is_none());
    }

    #[test]
    fn a_job_that_ran_in_part_is_no_success() {
        let (_root, options, shelf) = machine(&[("dri/card1", Thing::Lossy(board()))]);
        let device = Device::open_with(&options, &shelf).unwrap();
        let task = crate::Task::dpu(ork_isa::Iova(0x1000), 108, 0xD);
        let error = device.submit(&crate::Submission::new(1, vec![task; 3])).unwrap_err();
        assert!(matches!(error, crate::SubmitError::Dropped { core: 1, tasks_done: 2, tasks: 3 }), "{error}");
        assert_eq!((device.counters().submits(), device.counters().failures), (0, 1));
    }
}
