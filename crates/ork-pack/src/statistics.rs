// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calibration between runs: the state of [`Statistics`], whole or partial.
//!
//! The file is built like a pack (magic `ORKSTAT`): first page, one section per tensor, JSON header. A section holds K
//! `f32` ranges, K `f64` sums of squares and the `f64` bands of the Hessian, little-endian. A save replaces the
//! file as a whole, so what is there is always one complete state.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use ork_quant::{Collect, Statistics, TensorStatistics};
use serde::{Deserialize, Serialize};

use crate::container::{Kind, PAGE, Section, Version, check_sections, first_page, open, section_bytes};
use crate::header::bad_name;
use crate::writer::{suffixed, sync_folder};
use crate::{Hash, PackError};

/// The version of the statistics file that is written; it and older minor versions are read.
pub const STATISTICS_VERSION: Version = Version { major: 1, minor: 0 };

const STATISTICS: Kind =
    Kind { magic: *b"ORKSTAT\0", name: "file of calibration statistics", version: STATISTICS_VERSION };

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    position: u64,
    text: String,
    tensors: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    k: u32,
    rows: u64,
    collect: Collect,
    sums: Section,
}

/// Writes statistics to a file that replaces the one of that name: temporary file, disk, rename.
///
/// # Errors
/// [`PackError::Io`], [`PackError::Tensor`] for a name or K that no file holds.
pub fn save_statistics(statistics: &Statistics, path: &Path) -> Result<(), PackError> {
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
        tensors.push(Entry { name: name.clone(), k, rows: tensor.rows(), collect: tensor.collects(), sums });
    }
    let header = Header { position: statistics.position, text: statistics.text.clone(), tensors };
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

/// Reads statistics back, every byte against its hash: whole, or to go on from [`Statistics::position`].
///
/// # Errors
/// [`PackError`]: not such a file, another version, damaged, I/O.
pub fn load_statistics(path: &Path) -> Result<Statistics, PackError> {
    let file = File::open(path).map_err(PackError::io("open", path))?;
    // SAFETY: read-only and private to this call; a save renames a new file over this one and never changes it.
    let map = unsafe { Mmap::map(&file) }.map_err(PackError::io("map", path))?;
    read(&map, path)
}

/// [`load_statistics`] for bytes in memory.
///
/// # Errors
/// As [`load_statistics`], but for I/O.
pub fn parse_statistics(bytes: &[u8]) -> Result<Statistics, PackError> {
    read(bytes, Path::new("(memory)"))
}

fn read(bytes: &[u8], path: &Path) -> Result<Statistics, PackError> {
    let damaged = |what: String| PackError::Damaged { path: path.to_owned(), what };
    let (block, header) = open(bytes, STATISTICS, path)?;
    let header: Header =
        serde_json::from_slice(header).map_err(|error| damaged(format!("its header: {error}")))?;
    let sections = header.tensors.iter().map(|entry| (entry.name.as_str(), &entry.sums));
    check_sections(sections, block.header_offset.get()).map_err(damaged)?;
    let mut statistics = Statistics { position: header.position, text: header.text, ..Statistics::default() };
    for entry in header.tensors {
        let name = entry.name.escape_debug();
        let wrong = |what: &str| damaged(format!("tensor `{name}`: {what}"));
        // Lengths before memory: a section lies inside the file, so nothing larger than the file is ever reserved.
        let k = u64::from(entry.k);
        if bad_name(&entry.name).is_some() || k == 0 || Some(entry.sums.bytes) != sums_bytes(k, entry.collect)
        {
            return Err(wrong("its sums do not fit its channels"));
        }
        let sums = section_bytes(bytes, &entry.sums);
        if Hash::of(sums) != entry.sums.hash {
            return Err(wrong("the checksum of its sums is wrong"));
        }
        if section_bytes(bytes, &entry.sums.padding()).iter().any(|byte| *byte != 0) {
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
        if statistics.tensors.insert(entry.name.clone(), tensor).is_some() {
            return Err(wrong("it is there twice"));
        }
    }
    Ok(statistics)
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
