// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which device is opened, and what is said about the others.

use crate::support;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ork_device::{Board, Device, DeviceKind, DeviceOptions, EmuOptions, OpenError, Unusable, enumerate};
use ork_drm::{Errno, NodeError};

/// A folder that stands for `/dev`, with empty files for nodes.
fn dev(names: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for name in names {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, []).unwrap();
    }
    root
}

fn options(kind: DeviceKind, dev_root: &Path) -> DeviceOptions {
    DeviceOptions { kind, dev_root: dev_root.to_owned(), ..Default::default() }
}

/// Runs `f` without root's right to open everything; only its own thread is changed.
fn as_ordinary_user<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let ordinary = scope.spawn(|| {
            // SAFETY: changes the file-system identity of this thread only, which ends below.
            unsafe { libc::setfsuid(65534) };
            f()
        });
        ordinary.join().unwrap()
    })
}

#[test]
fn the_simulated_board_is_opened_when_asked_for() {
    let device = Device::open(&support::options()).unwrap();
    assert_eq!(device.describe(), "simulated NPU, RK3588, rknpu 0.9.8, IOMMU on, 0 KiB SRAM (as configured)");
    assert_eq!((device.cores(), device.info().driver_version), (3, 908));
    assert!(device.board().is_some());
}

#[test]
fn without_nodes_the_simulated_board_is_used_and_says_so() {
    let root = dev(&[]);
    let device = Device::open(&options(DeviceKind::Auto, root.path())).unwrap();
    let expected = format!("({} has no NPU device node)", root.path().display());
    assert!(device.describe().ends_with(&expected), "{}", device.describe());

    let error = Device::open(&options(DeviceKind::Rknpu, root.path())).unwrap_err();
    assert_eq!(error.to_string(), "no usable NPU device: no device node exists");
    assert!(error.hint().unwrap().contains("simulated"));
}

#[test]
fn a_node_that_is_no_device_is_named_with_the_reason() {
    let root = dev(&["dri/card0"]);
    let found = enumerate(&options(DeviceKind::Auto, root.path()));
    let [found] = &found[..] else { panic!("{found:?}") };
    assert!(matches!(&found.verdict, Err(Unusable::Node(NodeError::NotDrm { source: Errno::ENOTTY, .. }))));
    let line = found.to_string();
    assert!(line.contains("card0 is not a DRM device: ") && line.ends_with("(ENOTTY)"), "{line}");

    let device = Device::open(&options(DeviceKind::Auto, root.path())).unwrap();
    assert!(device.describe().contains("card0 is not a DRM device"), "{}", device.describe());
    let error = Device::open(&options(DeviceKind::Rknpu, root.path())).unwrap_err();
    assert!(error.to_string().contains("card0 is not a DRM device"), "{error}");
}

#[test]
fn a_node_without_permission_names_its_group() {
    let root = dev(&["dri/renderD129"]);
    let node = root.path().join("dri/renderD129");
    fs::set_permissions(&node, fs::Permissions::from_mode(0o000)).unwrap();
    let options = options(DeviceKind::Rknpu, root.path());
    let (found, error) = as_ordinary_user(|| (enumerate(&options), Device::open(&options).unwrap_err()));
    let line = found[0].to_string();
    assert!(line.contains("no permission to open") && line.contains(", group "), "{line}");
    assert!(line.contains("mode 0000"), "{line}");
    let hint = error.hint().unwrap();
    assert!(hint.contains("to the group render"), "{hint}");
    assert!(error.to_string().contains("no permission"), "{error}");
}

#[test]
fn a_named_node_is_never_replaced_by_the_simulator() {
    let root = dev(&["dri/card0"]);
    for kind in [DeviceKind::Auto, DeviceKind::Rknpu] {
        let node = root.path().join("dri/card7");
        let options = DeviceOptions { kind, node: Some(node), ..Default::default() };
        let error = Device::open(&options).unwrap_err();
        assert!(error.to_string().contains("card7 does not exist"), "{error}");
        assert!(error.hint().unwrap().contains("/dev/dri"), "{:?}", error.hint());
    }
}

#[test]
fn impossible_options_are_refused() {
    let with = |change: fn(&mut DeviceOptions)| {
        let mut options = support::options();
        change(&mut options);
        match Device::open(&options).unwrap_err() {
            OpenError::Option { option, .. } => option,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(with(|options| options.timeout_ms = 0), "timeout_ms");
    assert_eq!(with(|options| options.cores = 0), "cores");
    assert_eq!(with(|options| options.cores = 4), "cores");
}

#[test]
fn a_driver_that_is_too_old_is_refused_with_both_versions() {
    let board = Board::new(&EmuOptions { driver_version: [0, 7, 2], ..Default::default() });
    let error = Device::on_board(&board, &support::options()).unwrap_err();
    assert!(error.to_string().contains("rknpu 0.7.2 is too old: 0.8.0 or newer is needed"), "{error}");
    assert!(error.hint().unwrap().contains("vendor kernel"));
    assert_eq!(board.live(), Default::default(), "a refused device is closed");
}

#[test]
fn options_read_and_write_toml() {
    let text = toml::to_string(&DeviceOptions::default()).unwrap();
    assert_eq!(toml::from_str::<DeviceOptions>(&text).unwrap(), DeviceOptions::default());
    let some: DeviceOptions =
        toml::from_str("kind = \"sim\"\ntimeout_ms = 5\n[emulated]\ntime = \"real\"").unwrap();
    assert_eq!((some.kind, some.timeout_ms, some.cores), (DeviceKind::Sim, 5, 3));
    assert!(toml::from_str::<DeviceOptions>("timeout = 5").is_err(), "unknown keys are errors");
}
