// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who uses the NPU, across processes, and what a process that was killed left behind.
//!
//! Two programs on one NPU can crash the vendor's kernel (`uapi.md` A.11 row 18), and a program that is killed with
//! buffers in several domains leaves their addresses taken until the next boot (row 10). So each user holds a lock on
//! one file for each driver, whatever node it opened, and writes there what it holds. A clean end empties the file;
//! whoever finds it filled and unlocked knows that its writer did not get that far.
//!
//! The folder should be one that a boot empties, because a boot also clears what the file tells of: `/run/lock`.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ork_drm::Errno;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::kernel::DriverKind;

/// How often a waiting program looks whether the lock is free.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Bytes of a record in the file; four numbers of 20 digits and their names are shorter.
const RECORD_BYTES: usize = 128;

/// What a user of the NPU says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Its process.
    pub pid: u32,
    /// Address spaces in which it had buffers.
    pub domains: u32,
    /// Buffer objects that it had at its last note.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Record {
    /// Of somebody whose notes make no sense: not a clean end either.
    pub const UNREADABLE: Self = Self { pid: 0, domains: 0, objects: 0, bytes: 0 };
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::UNREADABLE {
            return f.write_str(
                "a process ended without closing the NPU, and what it held cannot be read from the lock file",
            );
        }
        write!(
            f,
            "process {} ended without closing the NPU; it held {} buffers ({} MiB) in {} address spaces",
            self.pid,
            self.objects,
            self.bytes >> 20,
            self.domains
        )
    }
}

/// Why the NPU cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum OccupancyError {
    /// Another process has it.
    #[error("the NPU is in use by process {}", .holder.map_or_else(|| "?".to_owned(), |record| record.pid.to_string()))]
    Held {
        /// What that process says of itself, if it could be read.
        holder: Option<Record>,
    },
    /// The lock file cannot be used.
    #[error("cannot use the lock file {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Errno,
    },
}

/// The exclusive use of an NPU. Dropping it is a clean end.
#[derive(Debug)]
pub struct Occupancy {
    file: Mutex<File>,
    left_behind: Option<Record>,
}

impl Occupancy {
    /// Takes the NPU of a driver, after waiting for its user at most so long.
    ///
    /// # Errors
    /// [`OccupancyError`].
    pub fn take(folder: &Path, driver: DriverKind, wait: Duration) -> Result<Self, OccupancyError> {
        let path = folder.join(format!("ork-{driver}.lock"));
        let io = |error: std::io::Error| OccupancyError::File {
            path: path.clone(),
            source: Errno::from_io(&error),
        };
        // No truncation: it may tell of somebody who was killed. Others may be other users.
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o666)
            .open(&path)
            .map_err(io)?;
        let deadline = Instant::now() + wait;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(LOOK_EVERY.min(wait))
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(OccupancyError::Held { holder: read(&mut file) });
                }
                Err(TryLockError::Error(error)) => return Err(io(error)),
            }
        }
        let left_behind = read(&mut file);
        // What an ork with longer records wrote must not stand behind ours. Nothing is held yet.
        file.set_len(0).map_err(io)?;
        let occupancy = Self { file: Mutex::new(file), left_behind };
        occupancy.note(&Record { pid: std::process::id(), ..Record::default() }).map_err(io)?;
        Ok(occupancy)
    }

    /// What the last user left behind, if it did not end cleanly.
    #[must_use]
    pub fn left_behind(&self) -> Option<Record> {
        self.left_behind
    }

    /// Writes down what this process holds.
    ///
    /// # Errors
    /// What the file system says.
    pub fn note(&self, record: &Record) -> std::io::Result<()> {
        let mut text = toml::to_string(record).map_err(std::io::Error::other)?;
        // Records of one length, each written by one call: a kill meets the old one or the new one.
        debug_assert!(text.len() <= RECORD_BYTES, "{text}");
        text.extend(std::iter::repeat_n('\n', RECORD_BYTES.saturating_sub(text.len())));
        self.file.lock().write_all_at(text.as_bytes(), 0)
    }
}

impl Drop for Occupancy {
    fn drop(&mut self) {
        // Nobody is left to be told; the next user takes what is written for the trace of a kill.
        let _ = self.file.lock().set_len(0);
    }
}

/// What the file says; nothing for an empty file, which is a clean end.
fn read(file: &mut File) -> Option<Record> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.read_to_string(&mut text).ok()?;
    if text.is_empty() {
        return None;
    }
    Some(toml::from_str(&text).unwrap_or(Record::UNREADABLE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(folder: &Path, wait_ms: u64) -> Result<Occupancy, OccupancyError> {
        Occupancy::take(folder, DriverKind::Rknpu, Duration::from_millis(wait_ms))
    }

    #[test]
    fn a_second_user_is_refused_with_the_first_ones_name() {
        let folder = tempfile::tempdir().unwrap();
        let first = take(folder.path(), 0).unwrap();
        let error = take(folder.path(), 1).unwrap_err();
        assert_eq!(error.to_string(), format!("the NPU is in use by process {}", std::process::id()));
        Occupancy::take(folder.path(), DriverKind::Rocket, Duration::ZERO).unwrap();
        drop(first);
        assert_eq!(take(folder.path(), 0).unwrap().left_behind(), None);
    }

    #[test]
    fn a_second_user_may_wait() {
        let folder = tempfile::tempdir().unwrap();
        let first = take(folder.path(), 0).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| take(folder.path(), 60_000).map(drop));
            std::thread::sleep(Duration::from_millis(20));
            drop(first);
            second.join().unwrap().unwrap();
        });
    }

    #[test]
    fn what_a_killed_user_held_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let killed = take(folder.path(), 0).unwrap();
        let record = Record { pid: 77, domains: 3, objects: 12, bytes: 5 << 20 };
        killed.note(&record).unwrap();
        // As a kill: the lock goes with the file, nothing is written any more.
        let Occupancy { file, .. } = &killed;
        file.lock().unlock().unwrap();
        let next = take(folder.path(), 0).unwrap();
        assert_eq!(next.left_behind(), Some(record));
        let said = record.to_string();
        assert!(
            said.contains("process 77") && said.contains("12 buffers (5 MiB) in 3 address spaces"),
            "{said}"
        );
        std::mem::forget(killed);
        drop(next);
        assert_eq!(take(folder.path(), 0).unwrap().left_behind(), None, "a clean end");
    }

    #[test]
    fn notes_that_make_no_sense_are_no_clean_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ork-rknpu.lock");
        for garbage in ["pid = 1\npid = 2", "\0\0\0", "?".repeat(500).as_str()] {
            std::fs::write(&path, garbage).unwrap();
            let next = take(folder.path(), 0).unwrap();
            assert_eq!(next.left_behind(), Some(Record::UNREADABLE), "{garbage:?}");
            assert!(next.left_behind().unwrap().to_string().contains("cannot be read"));
            assert_eq!(std::fs::metadata(&path).unwrap().len(), RECORD_BYTES as u64, "nothing of it stays");
            drop(next);
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        }
        // The largest record fits.
        let most = Record { pid: u32::MAX, domains: u32::MAX, objects: u64::MAX, bytes: u64::MAX };
        let text = toml::to_string(&most);
        assert!(text.is_err() || text.unwrap().len() <= RECORD_BYTES);
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let error = take(Path::new("/nowhere"), 0).unwrap_err();
        assert!(matches!(&error, OccupancyError::File { source: Errno::ENOENT, .. }), "{error:?}");
    }
}
