// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing a pack.
//!
//! Data go to `NAME.partial` (and `NAME.002.partial` …), one journal line per complete tensor to `NAME.journal`. Nothing
//! that exists under its final name is ever changed: at the end the partial files get their headers, reach the disk and
//! are renamed, the first part last, since only it makes a pack loadable. A writer that finds a journal of the same
//! plan checks the tensors in it against their hashes and continues behind the last good one.
//!
//! Tensors are written in the order of the plan, so equal plans and weights give equal bytes, interrupted or not.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ork_quant::{Basis, Scale, Scheme, Step};
use zerocopy::IntoBytes;

use crate::census::census_of;
use crate::container::{HEADER_BYTES_MAX, Kind, PAGE, Section, first_page};
use crate::header::{
    PackPlan, PartEntry, PartHeader, Request, TensorEntry, TensorLayout, bad_name, bad_shape,
};
use crate::journal::{Journal, Record};
use crate::reader::PACK;
use crate::{Hash, PackError};

/// How to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// Largest file. A pack that needs more becomes several; a tensor is never split.
    pub part_bytes_max: u64,
}

impl Default for WriteOptions {
    /// The most that every file system takes: 4 GiB less a page.
    fn default() -> Self {
        Self { part_bytes_max: (4 << 30) - PAGE }
    }
}

/// A tensor to write.
#[derive(Clone, Copy, Debug)]
pub struct NewTensor<'a> {
    /// What was done to it; must be what was asked.
    pub scheme: &'a Scheme,
    /// How it is cut and padded.
    pub layout: &'a TensorLayout,
    /// The basis of its rows.
    pub basis: &'a Basis,
    /// Tiled codes.
    pub data: &'a [u8],
    /// One per output channel.
    pub scales: &'a [Scale],
}

/// What a finished writer has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackWritten {
    /// The files, the first part first.
    pub files: Vec<PathBuf>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Tensors in them.
    pub tensors: usize,
}

/// A pack being written.
#[derive(Debug)]
pub struct PackWriter {
    path: PathBuf,
    plan: PackPlan,
    plan_hash: Hash,
    options: WriteOptions,
    journal: Journal,
    entries: Vec<(u32, TensorEntry)>,
    /// The part being written: its file, where the next section goes, and the JSON bytes of its entries so far.
    part: u32,
    file: File,
    next: u64,
    entry_bytes: u64,
    sealed: Option<Vec<PartEntry>>,
}

/// Bytes that a header has beside its entries, generously: target, source, writer.
const HEADER_REST: u64 = 16 << 10;

impl PackWriter {
    /// Starts a pack, or continues one of the same plan that was not finished.
    ///
    /// # Errors
    /// [`PackError::Tensor`] for a plan that cannot be packed, [`PackError::Busy`] if another process writes it,
    /// [`PackError::OtherPlan`] if what is unfinished there is something else, [`PackError::Io`].
    pub fn open(path: &Path, plan: PackPlan, options: WriteOptions) -> Result<Self, PackError> {
        check_plan(&plan)?;
        let journal_path = suffixed(path, ".journal");
        let plan_hash = plan.hash().map_err(std::io::Error::from);
        let plan_hash = plan_hash.map_err(PackError::io("write", &journal_path))?;
        let (mut journal, records) = Journal::open(&journal_path)?;
        let (kept, entries, sealed) = match records.first() {
            Some((_, Record::Start { plan, part_bytes_max }))
                if (*plan, *part_bytes_max) == (plan_hash, options.part_bytes_max) =>
            {
                intact(path, &records)
            }
            Some((_, Record::Start { plan, part_bytes_max })) => {
                let name = |plan: &Hash, bytes: u64| format!("{} in parts of {bytes} bytes", plan.short());
                return Err(PackError::OtherPlan {
                    path: journal_path,
                    found: name(plan, *part_bytes_max),
                    wanted: name(&plan_hash, options.part_bytes_max),
                });
            }
            _ => (0, Vec::new(), None),
        };
        journal.truncate(kept)?;
        if kept == 0 {
            journal.append(&Record::Start { plan: plan_hash, part_bytes_max: options.part_bytes_max })?;
        }
        let part = entries.last().map_or(0, |(part, _)| *part);
        let own = entries.iter().filter(|(of, _)| *of == part).map(|(_, entry)| entry);
        let next = own.clone().next_back().and_then(end_of).unwrap_or(PAGE);
        let entry_bytes = own.map(json_bytes).sum();
        let partial = partial_path(path, part);
        let file = if sealed.is_some() {
            // The parts are complete and perhaps renamed: nothing is written any more.
            File::open(journal.path()).map_err(PackError::io("open", journal.path()))?
        } else {
            create(&partial, next)?
        };
        Ok(Self {
            path: path.to_owned(),
            plan,
            plan_hash,
            options,
            journal,
            entries,
            part,
            file,
            next,
            entry_bytes,
            sealed,
        })
    }

    /// The tensor that is due, until all are written.
    pub fn next_request(&self) -> Option<&Request> {
        self.plan.tensors.get(self.entries.len())
    }

    /// Tensors written, those of an earlier process included.
    pub fn tensors_written(&self) -> usize {
        self.entries.len()
    }

    /// Writes the tensor that is due.
    ///
    /// # Errors
    /// [`PackError::Tensor`] if none is due or it is not what was asked, [`PackError::Io`].
    pub fn write(&mut self, tensor: &NewTensor<'_>) -> Result<(), PackError> {
        let Some(request) = self.plan.tensors.get(self.entries.len()) else {
            return Err(PackError::Tensor {
                name: String::new(),
                what: "the plan has no more tensors".to_owned(),
            });
        };
        let smoothing = tensor.basis.steps().iter().find_map(|step| match step {
            Step::Smooth(factors) => Some(floats(factors)),
            Step::Signs | Step::Rotate => None,
        });
        let scales: Vec<f32> = tensor.scales.iter().map(|scale| scale.get()).collect();
        let scales = floats(&scales);
        let pieces = [Some(tensor.data), Some(scales.as_slice()), smoothing.as_deref()];
        let mut entry = entry(request, tensor, &pieces, self.next);
        if let Some(what) = refusal(request, tensor, &entry) {
            return Err(PackError::Tensor { name: request.name.clone(), what });
        }
        let limit = self.options.part_bytes_max;
        let fits = |entry: &TensorEntry, before: u64| {
            end_of(entry).is_some_and(|end| end + before + json_bytes(entry) + HEADER_REST <= limit)
        };
        if !fits(&entry, self.entry_bytes) {
            let alone = self::entry(request, tensor, &pieces, PAGE);
            if !fits(&alone, 0) {
                let what = format!("its {} bytes do not fit a file of {limit}", tensor.data.len());
                return Err(PackError::Tensor { name: request.name.clone(), what });
            }
            self.file = create(&partial_path(&self.path, self.part + 1), PAGE)?;
            (self.part, self.next, self.entry_bytes) = (self.part + 1, PAGE, 0);
            entry = alone;
        }
        let partial = partial_path(&self.path, self.part);
        for (piece, section) in pieces.iter().flatten().zip(entry.sections()) {
            self.file.write_all_at(piece, section.offset).map_err(PackError::io("write", &partial))?;
        }
        self.next = end_of(&entry).unwrap_or(self.next);
        // Padding behind the last section becomes zeros.
        self.file.set_len(self.next).map_err(PackError::io("extend", &partial))?;
        self.entry_bytes += json_bytes(&entry);
        self.journal.append(&Record::Tensor { part: self.part, entry: Box::new(entry.clone()) })?;
        self.entries.push((self.part, entry));
        Ok(())
    }

    /// Completes the pack: compares what was written with what was asked, writes headers, waits for the disk, renames.
    ///
    /// # Errors
    /// [`PackError::Census`] if they differ (the pack stays unfinished, and a writer may continue it), [`PackError::Io`].
    pub fn finish(mut self) -> Result<PackWritten, PackError> {
        let discrepancies = census_of(&self.plan, self.entries.iter().map(|(_, entry)| entry));
        if !discrepancies.is_empty() {
            return Err(PackError::Census(discrepancies));
        }
        let parts = match self.sealed.take() {
            Some(parts) => parts,
            None => {
                let parts = self.seal()?;
                self.journal.append(&Record::Sealed { parts: parts.clone() })?;
                self.journal.sync()?;
                parts
            }
        };
        let files: Vec<PathBuf> = (0..parts.len() as u32).map(|part| part_path(&self.path, part)).collect();
        for (part, file) in files.iter().enumerate().rev() {
            let partial = partial_path(&self.path, part as u32);
            match std::fs::rename(&partial, file) {
                Ok(()) => {}
                // Renamed already, by the process that was killed here.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound && file.exists() => {}
                Err(error) => return Err(PackError::io("rename", partial)(error)),
            }
        }
        sync_folder(&self.path)?;
        // Parts of a larger pack that had this name before.
        for part in parts.len() as u32.. {
            if std::fs::remove_file(part_path(&self.path, part)).is_err() {
                break;
            }
        }
        self.journal.remove()?;
        let bytes = parts.iter().map(|part| part.file_bytes).sum();
        Ok(PackWritten { files, bytes, tensors: self.entries.len() })
    }

    /// Writes the headers of all parts, the first part's last, for it names the others.
    fn seal(&self) -> Result<Vec<PartEntry>, PackError> {
        let count = self.part + 1;
        let mut set = [0; 16];
        set.copy_from_slice(&self.plan_hash.0[..16]);
        let mut parts: Vec<PartEntry> = Vec::new();
        for part in (0..count).rev() {
            let tensors: Vec<TensorEntry> =
                self.entries.iter().filter(|(of, _)| *of == part).map(|(_, entry)| entry.clone()).collect();
            let offset = tensors.last().and_then(end_of).unwrap_or(PAGE);
            let others = if part == 0 { parts.iter().rev().copied().collect() } else { Vec::new() };
            let header = PartHeader {
                target: self.plan.target.clone(),
                source: self.plan.source.clone(),
                calibration: self.plan.calibration.clone(),
                writer: self.plan.writer.clone(),
                plan: self.plan_hash,
                tensors,
                parts: others,
            };
            let partial = partial_path(&self.path, part);
            let header = serde_json::to_vec(&header).map_err(std::io::Error::from);
            let header = header.map_err(PackError::io("write", &partial))?;
            if header.len() as u64 > HEADER_BYTES_MAX {
                let what = format!("the plan's header of {} bytes exceeds {HEADER_BYTES_MAX}", header.len());
                return Err(PackError::Tensor { name: String::new(), what });
            }
            let file =
                OpenOptions::new().write(true).open(&partial).map_err(PackError::io("open", &partial))?;
            let kind = Kind { version: self.plan.version(), ..PACK };
            let page = first_page(kind, (part, count), offset, &header, set);
            file.write_all_at(&header, offset)
                .and_then(|()| file.write_all_at(&page, 0))
                .and_then(|()| file.set_len(offset + header.len() as u64))
                .and_then(|()| file.sync_all())
                .map_err(PackError::io("write", &partial))?;
            parts.push(PartEntry { file_bytes: offset + header.len() as u64, header: Hash::of(&header) });
        }
        parts.reverse();
        Ok(parts)
    }
}

/// The records that the partial files still bear out: where the journal is to end, the entries, and the seal.
fn intact(path: &Path, records: &[(u64, Record)]) -> (u64, Vec<(u32, TensorEntry)>, Option<Vec<PartEntry>>) {
    let mut kept = records[0].0;
    let mut entries = Vec::new();
    if let Some((end, Record::Sealed { parts })) = records.last() {
        for (_, record) in records {
            if let Record::Tensor { part, entry } = record {
                entries.push((*part, (**entry).clone()));
            }
        }
        return (*end, entries, Some(parts.clone()));
    }
    let mut open: Option<(u32, File)> = None;
    for (end, record) in &records[1..] {
        let Record::Tensor { part, entry } = record else { break };
        if open.as_ref().is_none_or(|(of, _)| of != part) {
            open = File::open(partial_path(path, *part)).ok().map(|file| (*part, file));
        }
        let Some((_, file)) = &open else { break };
        if !entry.sections().all(|section| hash_at(file, section).is_ok_and(|hash| hash == section.hash)) {
            break;
        }
        entries.push((*part, (**entry).clone()));
        kept = *end;
    }
    (kept, entries, None)
}

fn hash_at(file: &File, section: &Section) -> std::io::Result<Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    while done < section.bytes {
        let length = (section.bytes - done).min(buffer.len() as u64);
        file.read_exact_at(&mut buffer[..length as usize], section.offset + done)?;
        hasher.update(&buffer[..length as usize]);
        done += length;
    }
    Ok(hasher.into())
}

fn check_plan(plan: &PackPlan) -> Result<(), PackError> {
    let mut names = std::collections::HashSet::new();
    for request in &plan.tensors {
        let twice = (!names.insert(&request.name)).then(|| "it is asked for twice".to_owned());
        if let Some(what) = bad_name(&request.name).or_else(|| bad_shape(request.k, request.n)).or(twice) {
            return Err(PackError::Tensor { name: request.name.clone(), what });
        }
    }
    Ok(())
}

fn entry(request: &Request, tensor: &NewTensor<'_>, pieces: &[Option<&[u8]>; 3], start: u64) -> TensorEntry {
    let mut offset = start;
    let mut place = |piece: &[u8]| {
        let section = Section { offset, bytes: piece.len() as u64, hash: Hash::of(piece) };
        offset = section.end().unwrap_or(u64::MAX);
        section
    };
    let [data, scales, smoothing] = pieces.map(|piece| piece.map(&mut place));
    let empty = Section { offset: start, bytes: 0, hash: Hash([0; 32]) };
    TensorEntry {
        name: request.name.clone(),
        k: request.k,
        n: request.n,
        scheme: tensor.scheme.clone(),
        layout: tensor.layout.clone(),
        basis: tensor.basis.id(),
        data: data.unwrap_or(empty),
        scales: scales.unwrap_or(empty),
        smoothing,
    }
}

/// Why a tensor is not what was asked.
fn refusal(request: &Request, tensor: &NewTensor<'_>, entry: &TensorEntry) -> Option<String> {
    if tensor.scheme != &request.scheme {
        return Some(format!("it is {}, and {} was asked for", tensor.scheme, request.scheme));
    }
    if tensor.basis.k() != request.k as usize || tensor.basis.kinds() != tensor.scheme.basis {
        return Some(format!(
            "its basis has {} channels and steps {:?}; {} and {:?} were asked for",
            tensor.basis.k(),
            tensor.basis.kinds(),
            request.k,
            tensor.scheme.basis
        ));
    }
    entry.contradiction()
}

fn end_of(entry: &TensorEntry) -> Option<u64> {
    entry.sections().last().and_then(Section::end)
}

/// Bytes of an entry in a header, its comma included.
fn json_bytes(entry: &TensorEntry) -> u64 {
    serde_json::to_vec(entry).map_or(0, |json| json.len() as u64 + 1)
}

/// `f32`s as they are in the file.
fn floats(values: &[f32]) -> Vec<u8> {
    let values: Vec<zerocopy::little_endian::F32> = values.iter().map(|value| (*value).into()).collect();
    values.as_bytes().to_vec()
}

/// A partial file that ends at `length`, for reading and writing.
fn create(path: &Path, length: u64) -> Result<File, PackError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(PackError::io("create", path))?;
    // The first page is cleared too: a process that was killed while sealing may have written it.
    file.set_len(length)
        .and_then(|()| file.write_all_at(&[0; PAGE as usize], 0))
        .map_err(PackError::io("create", path))?;
    Ok(file)
}

/// Makes renames in the folder of a file durable.
pub(crate) fn sync_folder(path: &Path) -> Result<(), PackError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(PackError::io("write", folder))
}

pub(crate) fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The name of a part: the pack's own for the first, `NAME.002` and so on for the others.
pub(crate) fn part_path(path: &Path, part: u32) -> PathBuf {
    if part == 0 { path.to_owned() } else { suffixed(path, &format!(".{:03}", part + 1)) }
}

fn partial_path(path: &Path, part: u32) -> PathBuf {
    suffixed(&part_path(path, part), ".partial")
}
