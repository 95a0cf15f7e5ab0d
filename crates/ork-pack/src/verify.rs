// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading everything again.

use std::path::PathBuf;

use rayon::prelude::*;

use crate::container::section_bytes;
use crate::reader::{Pack, Part};
use crate::{Hash, TensorEntry};

/// A place whose bytes are not those that were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Which file.
    pub path: PathBuf,
    /// Where the section starts, or the padding.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// What is wrong, with the name of the tensor.
    pub what: String,
}

/// What [`verify`] has read and found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verification {
    /// Tensors read.
    pub tensors: usize,
    /// Bytes of the files.
    pub bytes: u64,
    /// Nothing, if the pack is as it was written.
    pub damages: Vec<Damage>,
}

/// Reads every byte of a pack: hashes of all sections, zeros between them, and what the numbers mean (scales, bases). The
/// headers were checked when the pack was opened. Tensors in parallel.
pub fn verify(pack: &Pack) -> Verification {
    let pairs: Vec<(&Part, &TensorEntry)> = pack
        .parts()
        .iter()
        .flat_map(|part| part.header.tensors.iter().map(move |entry| (part, entry)))
        .collect();
    let mut damages: Vec<Damage> =
        pairs.par_iter().flat_map_iter(|(part, entry)| damages_of(part, entry)).collect();
    for tensor in pack.tensors() {
        let meaning = tensor.scales().err().into_iter().chain(tensor.basis().err());
        for error in meaning {
            let (path, offset, bytes) = tensor.place();
            // A section that is damaged already explains it.
            if damages.iter().all(|damage| !damage.what.contains(&format!("`{}`", tensor.entry().name))) {
                damages.push(Damage { path: path.to_owned(), offset, bytes, what: error.to_string() });
            }
        }
    }
    damages.sort_by(|a, b| (&a.path, a.offset).cmp(&(&b.path, b.offset)));
    Verification { tensors: pairs.len(), bytes: pack.files().map(|(_, bytes)| bytes).sum(), damages }
}

fn damages_of(part: &Part, entry: &TensorEntry) -> Vec<Damage> {
    let mut damages = Vec::new();
    let mut damage = |offset: u64, bytes: u64, what: String| {
        damages.push(Damage { path: part.path().to_owned(), offset, bytes, what });
    };
    for (kind, section) in ["data", "scales", "smoothing"].iter().zip(entry.sections()) {
        if Hash::of(section_bytes(part.bytes(), section)) != section.hash {
            damage(
                section.offset,
                section.bytes,
                format!("the {kind} of `{}` have another checksum", entry.name),
            );
        }
        let padding = section.padding();
        if section_bytes(part.bytes(), &padding).iter().any(|byte| *byte != 0) {
            damage(
                padding.offset,
                padding.bytes,
                format!("the padding behind the {kind} of `{}` is not zero", entry.name),
            );
        }
    }
    damages
}
