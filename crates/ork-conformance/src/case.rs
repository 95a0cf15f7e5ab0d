// SPDX-License-Identifier: MIT OR Apache-2.0
//! The description of a case, and its reader.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use ork_isa::{Cmd, Iova};
use serde::{Deserialize, Deserializer, de};

use crate::{Arrays, CaseError};

/// Bytes that a description may have; the largest recorded one has 32 KB.
const TEXT_MAX: u64 = 1 << 24;

/// Kernel interface that a case was recorded at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    /// The vendor's DRM driver.
    Rknpu,
    /// Mainline's accel driver.
    Rocket,
}

/// A recorded program with its memory and its result.
#[derive(Debug, Deserialize)]
pub struct Case {
    /// Its name, which is that of the files.
    pub name: String,
    /// Where it comes from.
    pub source: String,
    /// Kernel interface it was recorded at.
    pub driver: Driver,
    /// What it computes, for readers.
    pub op: serde_json::Value,
    /// Memory.
    pub buffers: Vec<Buffer>,
    /// Submits in order.
    pub(crate) submits: Vec<Submit>,
    /// Which elements are compared with what.
    pub output: Output,
    /// How far they may be off.
    pub tolerance: Tolerance,
    /// Remarks.
    #[serde(default)]
    pub notes: String,
    #[serde(skip)]
    pub(crate) path: PathBuf,
    #[serde(skip)]
    pub(crate) arrays: Arrays,
}

/// A buffer of device memory.
#[derive(Clone, Debug, Deserialize)]
pub struct Buffer {
    /// Name inside the case.
    pub id: String,
    /// What it is for.
    pub role: String,
    /// Device address.
    #[serde(deserialize_with = "iova")]
    pub iova: Iova,
    /// Bytes.
    pub size: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Submit {
    pub(crate) programs: Vec<Program>,
    pub(crate) cpu_writes: Vec<CpuWrite>,
    #[serde(flatten)]
    pub(crate) call: Call,
}

/// A register program that lies in memory when a submit starts.
#[derive(Debug, Deserialize)]
pub struct Program {
    /// Where it lies.
    #[serde(deserialize_with = "iova")]
    pub iova: Iova,
    /// Whether the submit runs it.
    pub submitted: bool,
    /// As many words as the driver was told of.
    #[serde(deserialize_with = "words")]
    pub body: Vec<Cmd>,
    /// The four words behind the body, where they look like a trailer.
    #[serde(deserialize_with = "words")]
    pub tail: Vec<Cmd>,
}

impl Program {
    /// Body and tail.
    pub fn words(&self) -> impl Iterator<Item = Cmd> {
        self.body.iter().chain(&self.tail).copied()
    }
}

/// What the CPU puts at the start of a buffer before the submit.
#[derive(Debug, Deserialize)]
pub(crate) struct CpuWrite {
    pub(crate) buffer: String,
    pub(crate) key: String,
}

/// The system calls of a submit.
#[derive(Debug, Deserialize)]
#[serde(tag = "driver", rename_all = "lowercase")]
pub(crate) enum Call {
    Rknpu { submit: RknpuSubmit, tasks: Vec<RknpuTask>, actions_before: Vec<(u32, u64)> },
    Rocket { jobs: Vec<RocketJob> },
}

/// Fields of the vendor driver's submit structure.
#[derive(Debug, Deserialize)]
pub(crate) struct RknpuSubmit {
    pub(crate) core_mask: u32,
    pub(crate) task_base_addr: u64,
    /// First task and number of tasks per entry.
    pub(crate) subcore_task: Vec<(u32, u32)>,
    pub(crate) task_buffer: String,
}

/// Fields of a task descriptor, which also lie in the task buffer.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct RknpuTask {
    pub(crate) flags: u32,
    pub(crate) op_idx: u32,
    #[serde(deserialize_with = "hex32")]
    pub(crate) enable_mask: u32,
    #[serde(deserialize_with = "hex32")]
    pub(crate) int_mask: u32,
    #[serde(deserialize_with = "hex32")]
    pub(crate) int_clear: u32,
    pub(crate) int_status: u32,
    pub(crate) regcfg_amount: u32,
    pub(crate) regcfg_offset: u32,
    #[serde(deserialize_with = "hex64")]
    pub(crate) regcmd_addr: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RocketJob {
    pub(crate) tasks: Vec<RocketTask>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RocketTask {
    #[serde(deserialize_with = "iova")]
    pub(crate) regcmd: Iova,
    pub(crate) regcmd_count: u32,
}

/// Where the result lies and what it must be.
#[derive(Clone, Debug, Deserialize)]
pub struct Output {
    /// Buffer that holds it.
    pub buffer: String,
    /// Type of its elements.
    pub dtype: String,
    /// Array with the places of the compared elements in the buffer.
    pub index_key: String,
    /// Array with what they must be.
    pub expected_key: String,
    /// From stored to logical value.
    pub post: Post,
}

/// From a stored element to the value that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Post {
    /// The element itself.
    #[serde(rename = "none")]
    None,
    /// The byte with its highest bit turned, unsigned.
    #[serde(rename = "logical value = (byte + 0x80) & 0xff")]
    FlipSign,
}

/// How far elements may be off.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Tolerance {
    /// Not at all.
    Exact {
        /// Remarks.
        note: String,
    },
    /// Some representable numbers.
    Ulp {
        /// How many.
        atol: f64,
        /// Remarks.
        note: String,
    },
    /// `|got - expected| <= atol + rtol * |expected|`.
    Close {
        /// Absolute part.
        atol: f64,
        /// Relative part.
        rtol: f64,
        /// Remarks.
        note: String,
    },
}

impl Tolerance {
    /// Remarks, among them the error published for silicon.
    #[must_use]
    pub fn note(&self) -> &str {
        let (Self::Exact { note } | Self::Ulp { note, .. } | Self::Close { note, .. }) = self;
        note
    }
}

impl Case {
    /// Reads `NAME.json` and `NAME.npz` of a folder.
    ///
    /// # Errors
    /// [`CaseError`].
    pub fn read(folder: &Path, name: &str) -> Result<Self, CaseError> {
        let path = folder.join(format!("{name}.json"));
        let io = |source| CaseError::Io { path: path.clone(), source };
        let mut text = Vec::new();
        File::open(&path).map_err(io)?.take(TEXT_MAX + 1).read_to_end(&mut text).map_err(io)?;
        if text.len() as u64 > TEXT_MAX {
            return Err(CaseError::TooLarge { path, limit: TEXT_MAX });
        }
        let mut case: Self =
            serde_json::from_slice(&text).map_err(|source| CaseError::Json { path: path.clone(), source })?;
        case.arrays = Arrays::read(&path.with_extension("npz"))?;
        case.path = path;
        case.check()?;
        Ok(case)
    }

    /// The programs that run, one list per start of the program controller: a submit of the vendor driver is a chain,
    /// tasks of the mainline driver start one by one.
    pub fn runs(&self) -> impl Iterator<Item = Vec<&Program>> {
        self.submits.iter().flat_map(|submit| {
            let programs: Vec<&Program> =
                submit.programs.iter().filter(|program| program.submitted).collect();
            match submit.call {
                Call::Rknpu { .. } => vec![programs],
                Call::Rocket { .. } => programs.into_iter().map(|program| vec![program]).collect(),
            }
        })
    }

    pub(crate) fn inconsistent(&self, what: impl Into<String>) -> CaseError {
        CaseError::Inconsistent { path: self.path.clone(), what: what.into() }
    }

    pub(crate) fn unsupported(&self, what: impl Into<String>) -> CaseError {
        CaseError::Unsupported { path: self.path.clone(), what: what.into() }
    }

    pub(crate) fn buffer(&self, id: &str) -> Result<&Buffer, CaseError> {
        self.buffers
            .iter()
            .find(|buffer| buffer.id == id)
            .ok_or_else(|| self.inconsistent(format!("there is no buffer {id}")))
    }

    pub(crate) fn array(&self, key: &str) -> Result<&crate::Array, CaseError> {
        self.arrays.get(key).ok_or_else(|| CaseError::Array {
            path: self.path.with_extension("npz"),
            array: key.to_owned(),
            what: "it is missing".to_owned(),
        })
    }

    fn check(&self) -> Result<(), CaseError> {
        if self.path.file_stem().and_then(|stem| stem.to_str()) != Some(&self.name) {
            return Err(self.inconsistent(format!("the file holds case {}", self.name)));
        }
        let mut ids = BTreeSet::new();
        for buffer in &self.buffers {
            if !ids.insert(&buffer.id) {
                return Err(self.inconsistent(format!("there are two buffers {}", buffer.id)));
            }
        }
        let output = self.buffer(&self.output.buffer)?;
        for write in self.submits.iter().flat_map(|submit| &submit.cpu_writes) {
            let (buffer, array) = (self.buffer(&write.buffer)?, self.array(&write.key)?);
            if array.bytes.len() as u64 > buffer.size {
                return Err(self.inconsistent(format!("{} does not fit buffer {}", write.key, buffer.id)));
            }
        }
        let dtype = crate::Dtype::named(&self.output.dtype)
            .ok_or_else(|| self.unsupported(format!("output of type {:?}", self.output.dtype)))?;
        let (index, expected) = (self.array(&self.output.index_key)?, self.array(&self.output.expected_key)?);
        if index.len() != expected.len() || index.is_empty() {
            let (places, values) = (index.len(), expected.len());
            return Err(self.inconsistent(format!("{places} places are compared with {values} values")));
        }
        let room = output.size / dtype.size() as u64;
        for i in 0..index.len() {
            let place = index.dtype.number(&index.bytes, i).unwrap_or(-1.0);
            if place < 0.0 || place.fract() != 0.0 || place >= room as f64 {
                return Err(self.inconsistent(format!(
                    "compared element {i} would be element {place} of buffer {}, which holds {room}",
                    output.id
                )));
            }
        }
        Ok(())
    }
}

/// Names of the cases in a folder, sorted: its `.json` files.
///
/// # Errors
/// [`CaseError::Io`].
pub fn case_names(folder: &Path) -> Result<Vec<String>, CaseError> {
    let io = |source| CaseError::Io { path: folder.to_owned(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        if let Some(name) = entry.file_name().to_str().and_then(|name| name.strip_suffix(".json")) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn parse_hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

fn hex64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_hex(&text).ok_or_else(|| de::Error::custom(format!("{text:?} is no number like 0x1f")))
}

fn hex32<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    u32::try_from(hex64(deserializer)?).map_err(|_| de::Error::custom("a number has more than 32 bits"))
}

fn iova<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Iova, D::Error> {
    hex32(deserializer).map(Iova)
}

fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Cmd>, D::Error> {
    let list = Vec::<String>::deserialize(deserializer)?;
    list.iter()
        .map(|text| parse_hex(text).map(Cmd))
        .collect::<Option<_>>()
        .ok_or_else(|| de::Error::custom("a command word is no number like 0x1f"))
}
