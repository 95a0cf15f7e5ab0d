// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorded programs of `tests/conformance`, and small generators.

use std::fs;
use std::path::{Path, PathBuf};

use ork_isa::asm::{Listing, Stream, read_hex};

pub(crate) fn conformance() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance")
}

fn names(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().unwrap().ends_with(ending))
        .collect();
    found.sort();
    found
}

pub(crate) fn stem(path: &Path) -> String {
    path.file_stem().unwrap().to_str().unwrap().to_owned()
}

/// Every captured file of the vendor runtime, and the list of single words.
pub(crate) fn captures() -> Vec<(String, Listing)> {
    names(&conformance().join("captures"), ".txt")
        .iter()
        .map(|path| (stem(path), read_hex(&fs::read_to_string(path).unwrap()).unwrap()))
        .collect()
}

/// A recorded case.
pub(crate) struct Case {
    pub(crate) name: String,
    /// Address and size of each buffer.
    pub(crate) buffers: Vec<(u64, u64)>,
    /// The programs of each submit, as the PC fetches them.
    pub(crate) submits: Vec<Listing>,
}

pub(crate) fn cases() -> Vec<Case> {
    let folder = conformance();
    let read = |name: &String| {
        let case = ork_conformance::Case::read(&folder, name).unwrap();
        let buffers = case.buffers.iter().map(|buffer| (buffer.iova.0.into(), buffer.size)).collect();
        let submits = case.runs().map(|programs| listing(&programs)).collect();
        Case { name: name.clone(), buffers, submits }
    };
    ork_conformance::case_names(&folder).unwrap().iter().map(read).collect()
}

fn listing(programs: &[&ork_conformance::Program]) -> Listing {
    let stream = |(task, program): (usize, &&ork_conformance::Program)| Stream {
        name: format!("task {task}"),
        at: Some(program.iova),
        words: program.words().collect(),
    };
    Listing { streams: programs.iter().enumerate().map(stream).collect() }
}

/// SplitMix64: small, and every seed is a good one.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}
