// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading a pack.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use ork_quant::{Basis, Scale, Step, StepKind};

use crate::container::{Bytes, Kind, Superblock, Version, check_sections, open, section_bytes};
use crate::header::{PackPlan, PartHeader, Target, TensorEntry, VERSIONS, version_of};
use crate::writer::part_path;
use crate::{Calibration, Hash, PackError, Section, SourceId, SourceSample, census};

/// The newest version of the format that is read and written; it and older minor versions are read. A pack is marked with the
/// oldest version that can say what it holds ([`PackPlan::version`]).
pub const VERSION: Version = VERSIONS[VERSIONS.len() - 1];

pub(crate) const PACK: Kind =
    Kind { magic: *b"ORKPACK\0", name: "pack of weights (.orkpack)", version: VERSION };

/// What a pack must be for.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The SoC.
    pub soc: &'a str,
    /// The order of bytes.
    pub layout: &'a str,
    /// The model, if it is at hand.
    pub source: Option<&'a SourceSample>,
}

/// A pack, mapped. Opening reads headers only; [`crate::verify`] reads everything.
#[derive(Debug)]
pub struct Pack {
    parts: Vec<Part>,
    places: HashMap<String, (usize, usize)>,
}

#[derive(Debug)]
pub(crate) struct Part {
    path: PathBuf,
    bytes: Bytes,
    pub(crate) block: Superblock,
    pub(crate) header: PartHeader,
}

impl Part {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn map(path: PathBuf) -> Result<Self, PackError> {
        let bytes = Bytes::map(&path)?;
        Self::parse(path, bytes)
    }

    fn parse(path: PathBuf, bytes: Bytes) -> Result<Self, PackError> {
        let (block, header) = open(&bytes, PACK, &path)?;
        let damaged = |what: String| PackError::Damaged { path: path.clone(), what };
        let header: PartHeader =
            serde_json::from_slice(header).map_err(|error| damaged(format!("its header: {error}")))?;
        if header.plan.0[..16] != block.set {
            return Err(damaged("its header and its first page name different plans".to_owned()));
        }
        for entry in &header.tensors {
            if let Some(what) = entry.contradiction() {
                return Err(damaged(format!("tensor `{}`: {what}", entry.name.escape_debug())));
            }
            let (since, version) = (version_of(entry.scheme.tier), block.version());
            if since > version {
                let (name, tier) = (entry.name.escape_debug(), entry.scheme.tier);
                return Err(damaged(format!(
                    "tensor `{name}`: version {version} has no {tier}, {since} has"
                )));
            }
        }
        let sections = header
            .tensors
            .iter()
            .flat_map(|entry| entry.sections().map(|section| (entry.name.as_str(), section)));
        check_sections(sections, block.header_offset.get()).map_err(damaged)?;
        Ok(Self { path, bytes, block, header })
    }
}

impl Pack {
    /// Maps a pack (all its parts; `path` is the first) and checks that it is for this use.
    ///
    /// # Errors
    /// [`PackError`]: not a pack, another version, damaged headers, another SoC, layout or model (both are named), I/O.
    pub fn open(path: &Path, expected: &Expected<'_>) -> Result<Self, PackError> {
        let pack = Self::open_any(path)?;
        pack.expect(expected)?;
        Ok(pack)
    }

    /// Maps a pack without asking what it is for: to look at it.
    ///
    /// # Errors
    /// As [`Pack::open`], but for the use.
    pub fn open_any(path: &Path) -> Result<Self, PackError> {
        let first = Part::map(path.to_owned())?;
        let count = first.header.parts.len() as u32;
        let mut parts = vec![first];
        for part in 1..=count {
            parts.push(Part::map(part_path(path, part))?);
        }
        Self::assemble(parts)
    }

    /// A pack from bytes in memory, the parts in order.
    ///
    /// # Errors
    /// As [`Pack::open_any`].
    pub fn from_bytes(parts: Vec<Vec<u8>>) -> Result<Self, PackError> {
        let named = parts.into_iter().enumerate();
        let parts = named.map(|(part, bytes)| {
            Part::parse(part_path(Path::new("(memory)"), part as u32), Bytes::Owned(bytes))
        });
        Self::assemble(parts.collect::<Result<_, _>>()?)
    }

    fn assemble(parts: Vec<Part>) -> Result<Self, PackError> {
        let Some(first) = parts.first() else {
            let what = "it has no parts".to_owned();
            return Err(PackError::Damaged { path: PathBuf::new(), what });
        };
        let mut places = HashMap::new();
        for (index, part) in parts.iter().enumerate() {
            let damaged = |what: String| PackError::Damaged { path: part.path.clone(), what };
            let (own, of) = (part.block.part.get() as usize, part.block.parts.get() as usize);
            if own != index || of != parts.len() {
                return Err(damaged(format!(
                    "it is part {own} of {of}, and part {index} of {} was due",
                    parts.len()
                )));
            }
            if index > 0 {
                // The first part names the others by hash, so a part of another pack cannot slip in.
                let listed = first.header.parts.get(index - 1);
                let fits = listed.is_some_and(|listed| {
                    listed.header == part.block.header_hash()
                        && listed.file_bytes == part.bytes().len() as u64
                });
                if !fits || !part.header.parts.is_empty() {
                    return Err(damaged(format!("it does not belong to {}", first.path.display())));
                }
            } else if part.header.parts.len() + 1 != parts.len() {
                return Err(damaged(format!(
                    "it lists {} other parts of {}",
                    part.header.parts.len(),
                    parts.len()
                )));
            }
            let (ours, theirs) = (&part.header, &first.header);
            if (&ours.target, &ours.source, &ours.calibration, &ours.writer, ours.plan)
                != (&theirs.target, &theirs.source, &theirs.calibration, &theirs.writer, theirs.plan)
            {
                return Err(damaged(format!("it does not belong to {}", first.path.display())));
            }
            for (place, entry) in part.header.tensors.iter().enumerate() {
                if places.insert(entry.name.clone(), (index, place)).is_some() {
                    return Err(damaged(format!("tensor `{}` is there twice", entry.name)));
                }
            }
        }
        Ok(Self { parts, places })
    }

    /// Checks what the pack is for.
    ///
    /// # Errors
    /// [`PackError::Mismatch`], which names both sides.
    pub fn expect(&self, expected: &Expected<'_>) -> Result<(), PackError> {
        let mismatch = |kind, found: String, wanted: String| {
            Err(PackError::Mismatch { path: self.parts[0].path.clone(), kind, found, wanted })
        };
        let target = self.target();
        if target.soc != expected.soc {
            return mismatch("SoC", target.soc.clone(), expected.soc.to_owned());
        }
        if target.layout != expected.layout {
            return mismatch("layout", target.layout.clone(), expected.layout.to_owned());
        }
        let source = self.source();
        match expected.source {
            Some(sample) if *sample != source.sample => mismatch(
                "model",
                format!(
                    "{} ({} bytes, sample {})",
                    source.name,
                    source.sample.bytes,
                    source.sample.hash.short()
                ),
                format!("one of {} bytes, sample {}", sample.bytes, sample.hash.short()),
            ),
            _ => Ok(()),
        }
    }

    /// Checks that the pack is what a plan asks.
    ///
    /// # Errors
    /// [`PackError::Census`].
    pub fn check(&self, plan: &PackPlan) -> Result<(), PackError> {
        let discrepancies = census(plan, self);
        if discrepancies.is_empty() { Ok(()) } else { Err(PackError::Census(discrepancies)) }
    }

    /// Version of its files.
    pub fn version(&self) -> Version {
        self.parts[0].block.version()
    }

    /// What it is for.
    pub fn target(&self) -> &Target {
        &self.parts[0].header.target
    }

    /// What it was made from.
    pub fn source(&self) -> &SourceId {
        &self.parts[0].header.source
    }

    /// The calibration that its weights were quantised with, if any was used.
    pub fn calibration(&self) -> Option<&Calibration> {
        self.parts[0].header.calibration.as_ref()
    }

    /// Who made it.
    pub fn writer(&self) -> &str {
        &self.parts[0].header.writer
    }

    /// Name of the plan it was made by.
    pub fn plan(&self) -> Hash {
        self.parts[0].header.plan
    }

    /// Its files and their sizes.
    pub fn files(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.parts.iter().map(|part| (part.path(), part.bytes().len() as u64))
    }

    /// What it holds, in the order of the files.
    pub fn entries(&self) -> impl Iterator<Item = &TensorEntry> {
        self.parts.iter().flat_map(|part| &part.header.tensors)
    }

    /// All tensors, in the order of the files.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.parts.iter().flat_map(|part| part.header.tensors.iter().map(move |entry| Tensor { part, entry }))
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let (part, place) = *self.places.get(name)?;
        let part = &self.parts[part];
        Some(Tensor { part, entry: &part.header.tensors[place] })
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }
}

/// A tensor of a mapped pack.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    part: &'a Part,
    entry: &'a TensorEntry,
}

impl<'a> Tensor<'a> {
    /// What the header says of it.
    pub fn entry(&self) -> &'a TensorEntry {
        self.entry
    }

    /// The tiled codes, in the mapping: page-aligned, no copy.
    pub fn data(&self) -> &'a [u8] {
        self.section(&self.entry.data)
    }

    /// The file that holds the codes, and where.
    pub fn place(&self) -> (&'a Path, u64, u64) {
        (self.part.path(), self.entry.data.offset, self.entry.data.bytes)
    }

    /// The open file that is mapped, and where in it the codes lie, from the start of a page: for using them in place. It is the
    /// file that was checked, whatever its name means by now. `None` for a pack in memory.
    pub fn file(&self) -> Option<(BorrowedFd<'a>, Range<u64>)> {
        let file = self.part.bytes.file()?;
        let data = &self.entry.data;
        Some((file, data.offset..data.offset + data.bytes))
    }

    /// Scales of the output channels.
    ///
    /// # Errors
    /// [`PackError::Damaged`] if one is no scale.
    pub fn scales(&self) -> Result<Vec<Scale>, PackError> {
        let scales = floats(self.section(&self.entry.scales)).map(Scale::new);
        scales.collect::<Result<_, _>>().map_err(|error| self.damaged(format!("scales: {error}")))
    }

    /// The basis that activations must be brought into: rebuilt from the pack and compared with the id in it.
    ///
    /// # Errors
    /// [`PackError::Damaged`] if it cannot exist, or is another than the weights were quantised in; that is also what a
    /// change of the transforms between two versions of ork looks like.
    pub fn basis(&self) -> Result<Basis, PackError> {
        let steps = self.entry.scheme.basis.iter().map(|kind| match kind {
            StepKind::Smooth => {
                let factors = self.entry.smoothing.as_ref().map_or(&[][..], |section| self.section(section));
                Step::Smooth(floats(factors).collect())
            }
            StepKind::Signs => Step::Signs,
            StepKind::Rotate => Step::Rotate,
        });
        let basis = Basis::new(self.entry.k as usize, steps.collect())
            .map_err(|error| self.damaged(format!("basis: {error}")))?;
        if basis.id() != self.entry.basis {
            return Err(self.damaged(format!("basis {} instead of {}", basis.id(), self.entry.basis)));
        }
        Ok(basis)
    }

    fn section(&self, section: &Section) -> &'a [u8] {
        section_bytes(self.part.bytes(), section)
    }

    fn damaged(&self, what: String) -> PackError {
        let what = format!("tensor `{}`: {what}", self.entry.name);
        PackError::Damaged { path: self.part.path.clone(), what }
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}
