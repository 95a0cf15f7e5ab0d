// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calibration between runs: the state of [`Statistics`], whole or partial.
//!
//! The file is built like a pack (magic `ORKSTAT`): first page, one section per tensor, JSON header. A section holds K
//! `f32` ranges, K `f64` sums of squares and the `f64` bands of the Hessian, little-endian. A save replaces the
//! file as a whole, so what is there is always one complete state.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ork_corpus::Origin;
use ork_quant::{Collect, Statistics, TensorStatistics};
use serde::{Deserialize, Serialize};

use crate::container::{
    Bytes, Kind, PAGE, Section, Version, check_sections, first_page, open, section_bytes,
};
use crate::header::bad_name;
use crate::writer::{suffixed, sync_folder};
use crate::{Hash, PackError, SourceSample};

/// The version of the statistics file that is written; it and older minor versions are read.
pub const STATISTICS_VERSION: Version = Version { major: 1, minor: 0 };

const STATISTICS: Kind =
    Kind { magic: *b"ORKSTAT\0", name: "file of calibration statistics", version: STATISTICS_VERSION };

/// What calibration was asked to do. It goes on only with the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibrationRun {
    /// The model file.
    pub model: SourceSample,
    /// The text, and which part of it is read, from its start.
    pub text: Origin,
    /// Tokens of the model that follow each other; then the context is emptied.
    pub window_tokens: u32,
    /// Tokens of all windows together, added start tokens included: how far [`Statistics::position`] goes.
    pub tokens: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    run: CalibrationRun,
    position: u64,
    tensors: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    /// Other weights of the same activations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    also: Vec<String>,
    k: u32,
    rows: u64,
    collect: Collect,
    sums: Section,
}

/// Writes statistics to a file that replaces the one of that name: temporary file, disk, rename.
///
/// # Errors
/// [`PackError::Io`], [`PackError::Tensor`] for a name or K that no file holds.
pub fn save_statistics(statistics: &Statistics, run: &CalibrationRun, path: &Path) -> Result<(), PackError> {
    let partial: PathBuf = suffixed(path, ".partial");
    let fail = |source| PackError::Io { doing: "write", path: partial.clone(), source };
    let mut out = BufWriter::with_capacity(1 << 20, File::create(&partial).map_err(fail)?);
    out.seek(SeekFrom::Start(PAGE)).map_err(fail)?;
    let mut next = PAGE;
    let mut tensors = Vec::new();
    for (name, tensor) in &statistics.tensors {
        let k = u32::try_from(tensor.k()).ok().filter(|k| *k > 0);
        let (Some(k), None) = (k, bad_name(name)) else {
            let what = format!("a name or {} channels that no file holds", tensor.k());
            return Err(PackError::Tensor { name: name.clone(), what });
        };
        let mut hasher = blake3::Hasher::new();
        let mut bytes = 0;
        let (ranges, squares, bands) = tensor.parts();
        let mut put = |piece: &[u8]| {
            hasher.update(piece);
            bytes += piece.len() as u64;
            out.write_all(piece)
        };
        put(&ranges.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()).map_err(fail)?;
        for piece in std::iter::once(squares).chain(bands).flat_map(|band| band.chunks(1 << 16)) {
            put(&piece.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()).map_err(fail)?;
        }
        let sums = Section { offset: next, bytes, hash: hasher.into() };
        let padding = bytes.next_multiple_of(PAGE) - bytes;
        out.write_all(&vec![0; padding as usize]).map_err(fail)?;
        next += bytes + padding;
        let also = statistics.shared.iter().filter(|(_, of)| *of == name).map(|(weight, _)| weight.clone());
        let (rows, collect) = (tensor.rows(), tensor.collects());
        tensors.push(Entry { name: name.clone(), also: also.collect(), k, rows, collect, sums });
    }
    let header = Header { run: run.clone(), position: statistics.position, tensors };
    let header = serde_json::to_vec(&header).map_err(std::io::Error::from).map_err(fail)?;
    let mut set = [0; 16];
    set.copy_from_slice(&Hash::of(&header).0[..16]);
    out.write_all(&header).map_err(fail)?;
    out.seek(SeekFrom::Start(0)).map_err(fail)?;
    out.write_all(&first_page(STATISTICS, (0, 1), next, &header, set)).map_err(fail)?;
    let file = out.into_inner().map_err(|error| fail(error.into_error()))?;
    file.sync_all().map_err(fail)?;
    std::fs::rename(&partial, path).map_err(PackError::io("rename", &partial))?;
    sync_folder(path)
}

/// A file of statistics, mapped: headers are checked when it is opened, the sums of a tensor when they are asked for. So
/// the statistics of a large model are never in memory at once.
#[derive(Debug)]
pub struct StatisticsFile {
    path: PathBuf,
    bytes: Bytes,
    header: Header,
    /// Place of the entry of every weight, sharing ones included.
    places: HashMap<String, usize>,
}

impl StatisticsFile {
    /// Maps a file and checks its headers.
    ///
    /// # Errors
    /// [`PackError`]: not such a file, another version, damaged, I/O.
    pub fn open(path: &Path) -> Result<Self, PackError> {
        Self::parse(path.to_owned(), Bytes::map(path)?)
    }

    /// A file in memory.
    ///
    /// # Errors
    /// As [`StatisticsFile::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, PackError> {
        Self::parse(PathBuf::from("(memory)"), Bytes::Owned(bytes))
    }

    fn parse(path: PathBuf, bytes: Bytes) -> Result<Self, PackError> {
        let damaged = |what: String| PackError::Damaged { path: path.clone(), what };
        let (block, header) = open(&bytes, STATISTICS, &path)?;
        let header: Header =
            serde_json::from_slice(header).map_err(|error| damaged(format!("its header: {error}")))?;
        let sections = header.tensors.iter().map(|entry| (entry.name.as_str(), &entry.sums));
        check_sections(sections, block.header_offset.get()).map_err(damaged)?;
        let mut places = HashMap::new();
        for (place, entry) in header.tensors.iter().enumerate() {
            let wrong = |what: &str| damaged(format!("tensor `{}`: {what}", entry.name.escape_debug()));
            // Lengths before memory: a section lies inside the file, so nothing larger than the file is ever reserved.
            let k = u64::from(entry.k);
            if k == 0 || Some(entry.sums.bytes) != sums_bytes(k, entry.collect) {
                return Err(wrong("its sums do not fit its channels"));
            }
            for name in std::iter::once(&entry.name).chain(&entry.also) {
                if bad_name(name).is_some() {
                    return Err(wrong("a name that no weight has"));
                }
                if places.insert(name.clone(), place).is_some() {
                    return Err(wrong("a weight is there twice"));
                }
            }
        }
        Ok(Self { path, bytes, header, places })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the calibration was asked to do.
    pub fn run(&self) -> &CalibrationRun {
        &self.header.run
    }

    /// How far it has come.
    pub fn position(&self) -> u64 {
        self.header.position
    }

    /// Whether it has read all that it was asked to.
    pub fn is_complete(&self) -> bool {
        self.header.position == self.header.run.tokens
    }

    /// What is kept for a weight: the name it is kept under (equal for weights of the same activations), K and kind.
    pub fn entry(&self, weight: &str) -> Option<(&str, u32, Collect)> {
        let entry = &self.header.tensors[*self.places.get(weight)?];
        Some((&entry.name, entry.k, entry.collect))
    }

    /// The sums of a weight, every byte against its hash; nothing if there are none.
    ///
    /// # Errors
    /// [`PackError::Damaged`].
    pub fn tensor(&self, weight: &str) -> Result<Option<TensorStatistics>, PackError> {
        self.places.get(weight).map(|place| self.read(&self.header.tensors[*place])).transpose()
    }

    /// Everything, to go on collecting.
    ///
    /// # Errors
    /// [`PackError::Damaged`].
    pub fn all(&self) -> Result<Statistics, PackError> {
        let mut statistics = Statistics { position: self.header.position, ..Statistics::default() };
        for entry in &self.header.tensors {
            statistics.tensors.insert(entry.name.clone(), self.read(entry)?);
            let shared = entry.also.iter().map(|weight| (weight.clone(), entry.name.clone()));
            statistics.shared.extend(shared);
        }
        Ok(statistics)
    }

    fn read(&self, entry: &Entry) -> Result<TensorStatistics, PackError> {
        let wrong = |what: &str| PackError::Damaged {
            path: self.path.clone(),
            what: format!("tensor `{}`: {what}", entry.name.escape_debug()),
        };
        let sums = section_bytes(&self.bytes, &entry.sums);
        if Hash::of(sums) != entry.sums.hash {
            return Err(wrong("the checksum of its sums is wrong"));
        }
        if section_bytes(&self.bytes, &entry.sums.padding()).iter().any(|byte| *byte != 0) {
            return Err(wrong("bytes behind its sums are not zero"));
        }
        let (ranges, rest) = sums.split_at(4 * entry.k as usize);
        let ranges = ranges.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let mut values = rest.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
        let squares = values.by_ref().take(entry.k as usize).collect();
        let lengths = TensorStatistics::band_lengths(entry.k as usize, entry.collect);
        let bands = lengths.into_iter().map(|length| values.by_ref().take(length).collect()).collect();
        let tensor = TensorStatistics::from_parts(entry.rows, ranges, squares, bands)
            .map_err(|error| wrong(&error.to_string()))?;
        self.bytes.release(&entry.sums);
        Ok(tensor)
    }
}

/// Bytes of the sums of K channels: 12 K, and the lower block triangle in bands of 256 rows. In closed form, so that an
/// untrusted K is compared with the file before anything of its size is made.
fn sums_bytes(k: u64, collect: Collect) -> Option<u64> {
    let own = 12 * k;
    match collect {
        Collect::Sums => Some(own),
        Collect::Hessian => {
            let (whole, rest) = (k / 256, k % 256);
            // Σ 256 · 256 · b for b = 1 … whole, and a last band of `rest` rows with all K columns.
            let triangle = (whole * (whole + 1) / 2).checked_mul(256 * 256)?.checked_add(rest * k)?;
            triangle.checked_mul(8)?.checked_add(own)
        }
    }
}
