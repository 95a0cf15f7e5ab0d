// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packs: which one belongs to a model, and what it holds of a weight.
//!
//! A pack that is there is used or refused, never passed over: a run that converts the model's own bytes because the pack
//! beside it is of another version would look the same and be another model.

use ork_driver::{FileRange, TileBytes, Tiles};
use ork_pack::{Expected, LAYOUT, Pack, PackError, SourceSample, info, stored_rows};
use ork_quant::StoredRows;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Extension of packs.
const EXTENSION: &str = "orkpack";

/// Which pack a model uses. As text: `auto`, `never`, `require`, `build`, or the path of a pack (`./auto` for one of that
/// name).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum PackChoice {
    /// The one beside the model, if there is one.
    #[default]
    Auto,
    /// None: weights are converted from the model's own bytes.
    Never,
    /// The one beside the model, which must be there and hold every weight that goes to the accelerator.
    Require,
    /// The one beside the model. Programs that can pack make it first if it is not there; for others it is missing then.
    Build,
    /// This one.
    Path(PathBuf),
}

impl From<String> for PackChoice {
    fn from(text: String) -> Self {
        match text.as_str() {
            "auto" => Self::Auto,
            "never" => Self::Never,
            "require" => Self::Require,
            "build" => Self::Build,
            _ => Self::Path(text.into()),
        }
    }
}

impl From<PackChoice> for String {
    fn from(choice: PackChoice) -> Self {
        match choice {
            PackChoice::Auto => "auto".to_owned(),
            PackChoice::Never => "never".to_owned(),
            PackChoice::Require => "require".to_owned(),
            PackChoice::Build => "build".to_owned(),
            PackChoice::Path(path) => path.to_string_lossy().into_owned(),
        }
    }
}

impl fmt::Display for PackChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from(self.clone()))
    }
}

/// What happens to a weight that the pack does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// Its own bytes are converted, and it is counted.
    Convert,
    /// The model is not loaded; in hosts that load it all the same, products with the weight fail.
    Refuse,
}

/// No pack where one is to be, or one that is not for this use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackUseError {
    /// A pack is required, and there is none.
    #[error("there is no pack {} for {}", wanted.display(), model.display())]
    Missing {
        /// Where it would be.
        wanted: PathBuf,
        /// The model.
        model: PathBuf,
    },
    /// It is not for this use, damaged, or cannot be read.
    #[error(transparent)]
    Pack(#[from] PackError),
}

impl PackUseError {
    /// What the user can do.
    pub fn hint(&self) -> String {
        match self {
            Self::Missing { wanted, model } => {
                format!("ork pack -m {} -o {} makes one", model.display(), wanted.display())
            }
            Self::Pack(error @ (PackError::Io { .. } | PackError::Foreign { .. })) => error.hint().to_owned(),
            Self::Pack(error) => format!("{}; `--pack never` runs without it", error.hint()),
        }
    }
}

/// Why a pack gives no tiles for a weight.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PackMiss {
    /// It does not hold it.
    #[error("the pack does not hold it")]
    Absent,
    /// It holds one of that name with another shape.
    #[error("the pack holds it as {found_k} x {found_n}")]
    Shape {
        /// Elements per row in the pack.
        found_k: u32,
        /// Rows in the pack.
        found_n: u32,
    },
    /// It holds an expert in codes that the CPU cannot multiply by.
    #[error("the pack holds it as {scheme}, and an expert cache needs i4a8 or i4a8-nf4 without a rotation")]
    Scheme {
        /// What it holds.
        scheme: String,
    },
    /// What it holds contradicts itself; a basis that is not the one that the weights were quantised in is such a case.
    #[error("{0}")]
    Damaged(Arc<PackError>),
}

/// The pack of a model, mapped.
#[derive(Debug)]
pub struct ModelPack {
    pack: Arc<Pack>,
    path: PathBuf,
    absent: Absent,
}

impl ModelPack {
    /// Where the pack of a model lies: beside it, with the extension `orkpack` instead of `gguf`.
    pub fn beside(model: &Path) -> PathBuf {
        if model.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
            return model.with_extension(EXTENSION);
        }
        let mut name = model.as_os_str().to_owned();
        name.push(".");
        name.push(EXTENSION);
        name.into()
    }

    /// The pack that a choice means for a model on this SoC, if it means one.
    ///
    /// # Errors
    /// [`PackUseError`]: there is none and one is required, or the one there is for another model, layout, version or
    /// SoC. The same for `auto`: a pack beside the model is never ignored.
    pub fn find(model: &Path, choice: &PackChoice, soc: &str) -> Result<Option<Arc<Self>>, PackUseError> {
        let beside = Self::beside(model);
        let (path, absent) = match choice {
            PackChoice::Never => return Ok(None),
            // A link that leads nowhere is there, and is an error.
            PackChoice::Auto if beside.symlink_metadata().is_err() => return Ok(None),
            PackChoice::Require | PackChoice::Build if beside.symlink_metadata().is_err() => {
                return Err(PackUseError::Missing { wanted: beside, model: model.to_owned() });
            }
            PackChoice::Auto | PackChoice::Build => (beside, Absent::Convert),
            PackChoice::Require => (beside, Absent::Refuse),
            PackChoice::Path(path) => (path.clone(), Absent::Convert),
        };
        let source = SourceSample::of(model)?;
        let pack = Pack::open(&path, &Expected { soc, layout: LAYOUT, source: Some(&source) })?;
        Ok(Some(Arc::new(Self::new(pack, path, absent))))
    }

    /// An open pack that the caller has checked.
    pub fn new(pack: Pack, path: PathBuf, absent: Absent) -> Self {
        Self { pack: Arc::new(pack), path, absent }
    }

    /// Its first file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What happens to weights that it does not hold.
    pub fn absent(&self) -> Absent {
        self.absent
    }

    /// Its schemes, the most frequent first: `180 x w4a4+rotate, 30 x w8a8`.
    pub fn schemes(&self) -> String {
        let mut schemes: Vec<(String, usize)> =
            info(&self.pack).schemes.into_iter().map(|(scheme, total)| (scheme, total.tensors)).collect();
        schemes.sort_by_key(|(_, tensors)| std::cmp::Reverse(*tensors));
        let words: Vec<String> =
            schemes.iter().map(|(scheme, tensors)| format!("{tensors} x {scheme}")).collect();
        words.join(", ")
    }

    /// The codes of an expert for the CPU, with the scheme that they were made by.
    ///
    /// # Errors
    /// [`PackMiss`], [`PackMiss::Scheme`] among them.
    pub(crate) fn codes(&self, name: &str, k: usize, n: usize) -> Result<(StoredRows, String), PackMiss> {
        let tensor = self.pack.tensor(name).ok_or(PackMiss::Absent)?;
        let entry = tensor.entry();
        if (entry.k as usize, entry.n as usize) != (k, n) {
            return Err(PackMiss::Shape { found_k: entry.k, found_n: entry.n });
        }
        let scheme = entry.scheme.to_string();
        match stored_rows(&tensor).map_err(|error| PackMiss::Damaged(Arc::new(error)))? {
            Some(codes) => Ok((codes, scheme)),
            None => Err(PackMiss::Scheme { scheme }),
        }
    }

    /// The tiles of a weight, with the scheme they were made by. They keep the mapping alive.
    ///
    /// # Errors
    /// [`PackMiss`].
    pub fn tiles(&self, name: &str, k: usize, n: usize) -> Result<(Tiles, String), PackMiss> {
        let tensor = self.pack.tensor(name).ok_or(PackMiss::Absent)?;
        let entry = tensor.entry();
        if (entry.k as usize, entry.n as usize) != (k, n) {
            return Err(PackMiss::Shape { found_k: entry.k, found_n: entry.n });
        }
        let damaged = |error| PackMiss::Damaged(Arc::new(error));
        let tiles = Tiles {
            k,
            n,
            tier: entry.scheme.tier,
            k_slices: entry.layout.k_slices.clone(),
            bytes: Arc::new(TensorBytes { pack: Arc::clone(&self.pack), name: name.to_owned() }),
            scales: tensor.scales().map_err(damaged)?,
            basis: tensor.basis().map_err(damaged)?,
        };
        Ok((tiles, entry.scheme.to_string()))
    }
}

impl fmt::Display for ModelPack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.path.display(), self.schemes())
    }
}

/// The bytes of a tensor in the mapping.
struct TensorBytes {
    pack: Arc<Pack>,
    name: String,
}

impl TileBytes for TensorBytes {
    fn bytes(&self) -> &[u8] {
        self.pack.tensor(&self.name).map_or(&[], |tensor| tensor.data())
    }

    fn file(&self) -> Option<FileRange<'_>> {
        let (file, range) = self.pack.tensor(&self.name)?.file()?;
        Some(FileRange { file, range })
    }
}

impl fmt::Debug for TensorBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorBytes").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_lie_beside_their_models() {
        let beside = |model: &str| ModelPack::beside(Path::new(model)).display().to_string();
        assert_eq!(beside("a/m.Q4_1.gguf"), "a/m.Q4_1.orkpack");
        assert_eq!(beside("a/M.GGUF"), "a/M.orkpack");
        assert_eq!(beside("a/m.v2"), "a/m.v2.orkpack");
    }

    #[test]
    fn choices_are_words_or_paths() {
        for word in ["auto", "never", "require", "build", "./auto", "x.orkpack"] {
            let choice = PackChoice::from(word.to_owned());
            assert_eq!(choice.to_string(), word);
            assert_eq!(matches!(choice, PackChoice::Path(_)), word.contains('.'));
        }
    }
}
