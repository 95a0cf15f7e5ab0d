// SPDX-License-Identifier: MIT OR Apache-2.0
//! A writer that is killed at any moment leaves nothing that loads, and the next one completes it.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "all/common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{SMALL_PARTS, plan, write_all};
use ork_pack::{Pack, PackWriter, verify};

const LAYERS: u32 = 12;

/// Not a test of its own: what the killed process runs. Its folder comes as the last argument, which the test harness
/// takes for one more name to filter by; without one there is nothing to do.
#[test]
fn child() {
    let Some(path) = std::env::args().next_back().map(PathBuf::from).filter(|path| path.is_absolute()) else {
        return;
    };
    if path.extension().is_some_and(|extension| extension == "orkpack") {
        // Again and again, so that a kill may also hit sealing, renaming and a pack that is replaced.
        loop {
            write_all(&path, plan(LAYERS), SMALL_PARTS);
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_killed_writer_leaves_nothing_that_loads_and_is_continued() {
    let reference = tempfile::tempdir().unwrap();
    let wanted = write_all(&reference.path().join("m.orkpack"), plan(LAYERS), SMALL_PARTS);
    let (mut continued, mut journals) = (0, 0);
    for round in 0..12 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.orkpack");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // From the first journal line on, at moments that differ from round to round.
        let start = Instant::now();
        while files(folder.path()).is_empty() && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(3100 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let journal =
            files(folder.path()).iter().any(|file| file.extension().is_some_and(|e| e == "journal"));
        journals += usize::from(journal);
        // Under the final name there is nothing, or a whole pack (the child may have completed one).
        match Pack::open_any(&path) {
            Ok(pack) => {
                assert_eq!(verify(&pack).damages, [], "round {round}");
                pack.check(&plan(LAYERS)).unwrap();
            }
            Err(error) => assert!(journal, "round {round}: {error}"),
        }
        let mut writer = PackWriter::open(&path, plan(LAYERS), SMALL_PARTS).unwrap();
        continued += usize::from(writer.tensors_written() > 0);
        while writer.next_request().is_some() {
            common::write_next(&mut writer);
        }
        let written = writer.finish().unwrap();
        assert_eq!((written.tensors, written.bytes), (wanted.tensors, wanted.bytes));
        for (file, same) in written.files.iter().zip(&wanted.files) {
            assert_eq!(std::fs::read(file).unwrap(), std::fs::read(same).unwrap(), "round {round}");
        }
        assert_eq!(files(folder.path()).len(), wanted.files.len(), "round {round}: nothing is left over");
    }
    assert!(
        journals > 2 && continued > 1,
        "the kills hit writers: {journals} unfinished, {continued} continued"
    );
}
