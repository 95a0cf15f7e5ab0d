// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that is killed at any moment, and the next one that uses the NPU.
//!
//! Both are this test's executable. Each has an emulated board of its own behind a node, opened as a real device is, so
//! what lasts beyond a kill is what lasts on a machine with a kernel that cleans up: the lock file.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ork_device::{
    Board, Device, DeviceKind, DeviceOptions, DriverKind, EmuOptions, Errno, EventKind, OpenError, OpenNode,
    SubmitMode, Transport,
};
use ork_driver::{CompletionMode, Driver, DriverOptions};
use ork_testkit::{Case, Shape, Stream};

use super::check_case;

/// One board behind every path.
struct Shelf(Board, DriverKind);

impl OpenNode for Shelf {
    fn open(&self, _: &Path) -> Result<Arc<dyn Transport>, Errno> {
        Ok(match self.1 {
            DriverKind::Rknpu => Arc::new(self.0.open()),
            DriverKind::Rocket => Arc::new(self.0.open_rocket()),
        })
    }
}

/// Kinds of use: kernel, and how jobs are waited for.
const USES: [(&str, DriverKind, SubmitMode); 3] = [
    ("blocking", DriverKind::Rknpu, SubmitMode::Blocking),
    ("polled", DriverKind::Rknpu, SubmitMode::Polled),
    ("rocket", DriverKind::Rocket, SubmitMode::Auto),
];

fn open(folder: &Path, what: usize, lock_wait_ms: u32) -> Result<Device, OpenError> {
    let (_, kernel, submit) = USES[what];
    let options = DeviceOptions {
        kind: match kernel {
            DriverKind::Rknpu => DeviceKind::Rknpu,
            DriverKind::Rocket => DeviceKind::Rocket,
        },
        node: Some(folder.join("renderD128")),
        lock_dir: folder.to_owned(),
        lock_wait_ms,
        submit,
        // Weights of several address spaces.
        domain_bytes_max: 100_000,
        ..DeviceOptions::default()
    };
    Device::open_with(&options, &Shelf(Board::new(&EmuOptions::default()), kernel))
}

/// Opens, loads, multiplies, closes.
fn use_once(device: Device, seed: u64) {
    let options = DriverOptions { completion: CompletionMode::Seed, ..DriverOptions::default() };
    let driver = Driver::new(device, options).unwrap();
    for (index, (m, k, n)) in [(1, 256, 96), (5, 512, 160), (2, 1024, 64)].into_iter().enumerate() {
        let case = Case::new(Shape::new(m, k, n), seed + index as u64);
        let want = ork_testkit::reference::fast_i8(&case.features(), &case.weights(), case.shape);
        check_case(&driver, &case, &want).unwrap();
    }
    assert_eq!(driver.device().event_counts().recoveries(), 0);
}

/// What the killed process runs, when the arguments name it: `child`, a folder, a number.
pub(crate) fn child() {
    let arguments: Vec<String> = std::env::args().collect();
    let [.., folder, what] = &arguments[..] else { return };
    let (folder, Ok(what)) = (PathBuf::from(folder), what.parse()) else { return };
    if !folder.is_absolute() {
        return;
    }
    for seed in 0.. {
        // The parent may come between two uses.
        use_once(open(&folder, what, 10_000).unwrap(), seed);
    }
}

/// Kills a process at so many points, and uses the NPU at once each time.
pub(crate) fn kill_at(points: u64, seed: u64) {
    let mut stream = Stream::new(seed);
    let (mut left, mut clean, mut refused) = (0, 0, 0);
    for point in 0..points {
        let what = (point % 3) as usize;
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join(format!("ork-{}.lock", USES[what].1));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .arg(folder.path())
            .arg(what.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        if point % 8 != 7 {
            // Once the child has come that far; else at any moment since its start.
            let start = Instant::now();
            while !lock.exists() && start.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        std::thread::sleep(Duration::from_micros(stream.below(25_000)));
        if point % 4 == 1 {
            // A second user while the first one lives: it comes between two uses, or is refused by name.
            match open(folder.path(), what, 0) {
                Ok(device) => drop(device),
                Err(error @ OpenError::Occupied { .. }) => {
                    let said = std::error::Error::source(&error).unwrap().to_string();
                    assert!(said.contains(&pid.to_string()) || said.contains("process ?"), "{said}");
                    refused += 1;
                }
                Err(other) => panic!("point {point}: {other:?}"),
            }
        }
        child.kill().unwrap();
        // The next one does not wait for anybody to collect the child; only for the kernel to let go of its lock.
        let device = open(folder.path(), what, 10_000).unwrap();
        let stale = device.event_counts().of(EventKind::StaleOwner);
        match device.left_behind() {
            Some(record) => {
                assert_eq!((record.pid, stale), (pid, 1), "point {point}: {record}");
                let said = device.describe();
                assert!(said.contains(&format!("process {pid} ended without closing the NPU")), "{said}");
                left += 1;
            }
            None => {
                assert_eq!(stale, 0);
                clean += 1;
            }
        }
        use_once(device, 1000 + point);
        let status = child.wait().unwrap();
        assert!(!status.success() && status.code().is_none(), "point {point}: the child failed: {status}");
        // What was left behind is told of once.
        let next = open(folder.path(), what, 0).unwrap();
        assert_eq!(next.left_behind(), None);
    }
    assert!(left * 2 > points, "the kills hit users: {left} left something, {clean} did not");
    assert!(refused > 0, "no second user was refused");
}
