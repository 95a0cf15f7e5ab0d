// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checking a model file before llama.cpp sees it.
//!
//! llama.cpp reports bad input as a null pointer and some log lines. This reader walks the header with bounds, checks
//! that the file is long enough for every tensor, and says what is wrong in one typed value. It keeps only what a
//! summary needs.

use crate::error::FileProblem;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// Longest string accepted: a chat template or vocabulary entry is far below.
const STRING_BYTES_MAX: u64 = 16 << 20;
/// Most metadata entries and tensors accepted.
const ENTRIES_MAX: u64 = 1 << 20;
/// Most elements of one metadata array.
const ARRAY_ELEMENTS_MAX: u64 = 1 << 26;
/// Deepest nesting of arrays.
const ARRAY_DEPTH_MAX: u32 = 4;
/// ggml's limit on dimensions.
const DIMENSIONS_MAX: u32 = 4;

/// Bytes of a tensor type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeLayout {
    /// Elements per block.
    pub block_elements: u64,
    /// Bytes per block.
    pub block_bytes: u64,
    /// Name, for summaries.
    pub name: &'static str,
}

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Dimensions, the fastest first.
    pub sizes: Vec<u64>,
    /// ggml's code of its type.
    pub type_code: u32,
    /// ggml's name of its type.
    pub type_name: &'static str,
    /// First byte, from the start of the file.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What a header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Format version.
    pub version: u32,
    /// `general.architecture`.
    pub architecture: Option<String>,
    /// `general.name`.
    pub name: Option<String>,
    /// Number of tensors.
    pub tensors: u64,
    /// Number of tensors by type name.
    pub tensor_types: BTreeMap<String, u64>,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Where tensor data starts.
    pub data_offset: u64,
    /// Length of the file.
    pub file_bytes: u64,
    /// The tensors, in the order of the header.
    pub directory: Vec<TensorInfo>,
}

/// Reads and checks a file. `layout` gives the byte layout of a tensor type code, `None` if unknown.
///
/// # Errors
/// What is wrong with the file.
pub fn inspect(path: &Path, layout: &dyn Fn(u32) -> Option<TypeLayout>) -> Result<Summary, FileProblem> {
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => FileProblem::NotFound,
        _ => FileProblem::Unreadable(error),
    })?;
    let metadata = file.metadata().map_err(FileProblem::Unreadable)?;
    if metadata.is_dir() {
        return Err(FileProblem::Directory);
    }
    inspect_reader(BufReader::with_capacity(1 << 16, file), metadata.len(), layout)
}

/// As [`inspect`], for any source of `file_bytes` bytes.
///
/// # Errors
/// What is wrong with the bytes.
pub fn inspect_reader(
    source: impl Read,
    file_bytes: u64,
    layout: &dyn Fn(u32) -> Option<TypeLayout>,
) -> Result<Summary, FileProblem> {
    let mut reader = Reader { source, offset: 0, file_bytes };
    reader.magic()?;
    let version = reader.u32("version")?;
    match version {
        2 | 3 => {}
        v if matches!(v.swap_bytes(), 1..=3) => return Err(FileProblem::BigEndian),
        version => return Err(FileProblem::Version { version }),
    }
    let tensors = reader.count("number of tensors", ENTRIES_MAX)?;
    let entries = reader.count("number of metadata entries", ENTRIES_MAX)?;
    let mut alignment = 32;
    let (mut architecture, mut name) = (None, None);
    for _ in 0..entries {
        let key = reader.string("a metadata key")?;
        let kind = reader.u32("a metadata type")?;
        match (key.as_str(), kind) {
            ("general.alignment", U32) => {
                alignment = u64::from(reader.u32("general.alignment")?);
                if !alignment.is_power_of_two() || alignment > 1 << 20 {
                    return Err(reader.damaged(format!("general.alignment is {alignment}")));
                }
            }
            ("general.architecture", STRING) => architecture = Some(reader.string("general.architecture")?),
            ("general.name", STRING) => name = Some(reader.string("general.name")?),
            _ => reader.skip_value(kind, &key, 0)?,
        }
    }
    if tensors == 0 {
        return Err(FileProblem::NoTensors);
    }
    let mut end = 0u64;
    let mut parameters = 0u64;
    let mut tensor_types = BTreeMap::new();
    // Places in the file are only known once the header's length is.
    let mut directory = Vec::new();
    for _ in 0..tensors {
        let tensor = reader.tensor(alignment, layout)?;
        end = end.max(tensor.end);
        parameters = parameters.saturating_add(tensor.elements);
        *tensor_types.entry(tensor.type_name.to_owned()).or_default() += 1;
        let TensorEntry { name, sizes, type_code, type_name, offset, end, .. } = tensor;
        directory.push(TensorInfo { name, sizes, type_code, type_name, offset, bytes: end - offset });
    }
    let data_offset = reader.offset.next_multiple_of(alignment);
    let expected_bytes = data_offset.saturating_add(end);
    if expected_bytes > file_bytes {
        let is_cut = |tensor: &&TensorInfo| {
            data_offset.saturating_add(tensor.offset).saturating_add(tensor.bytes) > file_bytes
        };
        let cut = directory.iter().find(is_cut);
        let what = cut.map_or_else(String::new, |tensor| format!("tensor {} is not whole", tensor.name));
        return Err(FileProblem::Truncated {
            expected_bytes,
            missing_bytes: expected_bytes - file_bytes,
            what,
        });
    }
    directory.iter_mut().for_each(|tensor| tensor.offset += data_offset);
    Ok(Summary {
        version,
        architecture,
        name,
        tensors,
        tensor_types,
        parameters,
        data_offset,
        file_bytes,
        directory,
    })
}

// Codes of metadata types.
const U8: u32 = 0;
const I8: u32 = 1;
const U16: u32 = 2;
const I16: u32 = 3;
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;
const I64: u32 = 11;
const F64: u32 = 12;

/// Bytes of a metadata value of fixed size.
fn fixed_bytes(kind: u32) -> Option<u64> {
    match kind {
        U8 | I8 | BOOL => Some(1),
        U16 | I16 => Some(2),
        U32 | I32 | F32 => Some(4),
        U64 | I64 | F64 => Some(8),
        _ => None,
    }
}

struct TensorEntry {
    name: String,
    sizes: Vec<u64>,
    type_code: u32,
    type_name: &'static str,
    elements: u64,
    /// First byte, from the start of the data.
    offset: u64,
    /// First byte after the tensor, from the start of the data.
    end: u64,
}

struct Reader<R> {
    source: R,
    offset: u64,
    file_bytes: u64,
}

impl<R: Read> Reader<R> {
    fn damaged(&self, what: impl Into<String>) -> FileProblem {
        FileProblem::Damaged { offset: self.offset, what: what.into() }
    }

    /// Checks that `len` more bytes exist before anything is allocated for them.
    fn need(&self, len: u64, what: &str) -> Result<(), FileProblem> {
        let expected_bytes = self.offset.saturating_add(len);
        if expected_bytes <= self.file_bytes {
            return Ok(());
        }
        let missing_bytes = expected_bytes - self.file_bytes;
        Err(FileProblem::Truncated {
            expected_bytes,
            missing_bytes,
            what: format!("the header ends in {what}"),
        })
    }

    fn fill(&mut self, buffer: &mut [u8], what: &str) -> Result<(), FileProblem> {
        self.need(buffer.len() as u64, what)?;
        self.source.read_exact(buffer).map_err(FileProblem::Unreadable)?;
        self.offset += buffer.len() as u64;
        Ok(())
    }

    fn skip(&mut self, len: u64, what: &str) -> Result<(), FileProblem> {
        self.need(len, what)?;
        let copied = io::copy(&mut self.source.by_ref().take(len), &mut io::sink());
        match copied {
            Ok(copied) if copied == len => {
                self.offset += len;
                Ok(())
            }
            Ok(_) => Err(FileProblem::Unreadable(io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(FileProblem::Unreadable(error)),
        }
    }

    fn magic(&mut self) -> Result<(), FileProblem> {
        if self.file_bytes == 0 {
            return Err(FileProblem::Empty);
        }
        let mut start = Vec::new();
        self.source.by_ref().take(4).read_to_end(&mut start).map_err(FileProblem::Unreadable)?;
        self.offset = start.len() as u64;
        if start == b"GGUF" {
            return Ok(());
        }
        // safetensors: the length of a JSON header as u64, then the header.
        let mut rest = Vec::new();
        self.source.by_ref().take(5).read_to_end(&mut rest).map_err(FileProblem::Unreadable)?;
        start.append(&mut rest);
        if let Some((length, [b'{'])) = start.split_first_chunk::<8>()
            && (2..=100 << 20).contains(&u64::from_le_bytes(*length))
        {
            return Err(FileProblem::Safetensors);
        }
        start.truncate(4);
        Err(FileProblem::NotGguf { start: start.escape_ascii().to_string() })
    }

    fn u32(&mut self, what: &str) -> Result<u32, FileProblem> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes, what)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self, what: &str) -> Result<u64, FileProblem> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes, what)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn count(&mut self, what: &str, max: u64) -> Result<u64, FileProblem> {
        match self.u64(what)? {
            count if count <= max => Ok(count),
            count => Err(self.damaged(format!("{what} is {count}, more than {max}"))),
        }
    }

    fn string(&mut self, what: &str) -> Result<String, FileProblem> {
        let length = self.count(what, STRING_BYTES_MAX)?;
        self.need(length, what)?;
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.fill(&mut bytes, what)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn skip_value(&mut self, kind: u32, key: &str, depth: u32) -> Result<(), FileProblem> {
        match kind {
            STRING => {
                let length = self.count(key, STRING_BYTES_MAX)?;
                self.skip(length, key)
            }
            ARRAY if depth < ARRAY_DEPTH_MAX => {
                let element = self.u32(key)?;
                let count = self.count(key, ARRAY_ELEMENTS_MAX)?;
                if let Some(bytes) = fixed_bytes(element) {
                    return self.skip(count * bytes, key);
                }
                (0..count).try_for_each(|_| self.skip_value(element, key, depth + 1))
            }
            ARRAY => Err(self.damaged(format!("{key}: arrays nested too deep"))),
            kind => match fixed_bytes(kind) {
                Some(bytes) => self.skip(bytes, key),
                None => Err(self.damaged(format!("{key}: unknown metadata type {kind}"))),
            },
        }
    }

    fn tensor(
        &mut self,
        alignment: u64,
        layout: &dyn Fn(u32) -> Option<TypeLayout>,
    ) -> Result<TensorEntry, FileProblem> {
        let name = self.string("a tensor name")?;
        let dimensions = self.u32(&name)?;
        if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
            return Err(self.damaged(format!("tensor {name} has {dimensions} dimensions")));
        }
        let mut sizes = Vec::new();
        for _ in 0..dimensions {
            sizes.push(self.u64(&name)?);
        }
        let elements = sizes.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        let type_code = self.u32(&name)?;
        let offset = self.u64(&name)?;
        let Some(elements) = elements.filter(|&n| n > 0 && n < 1 << 48) else {
            return Err(self.damaged(format!("tensor {name} has size {sizes:?}")));
        };
        let Some(layout) = layout(type_code) else {
            return Err(FileProblem::UnknownTensorType { tensor: name, type_code });
        };
        if layout.block_elements == 0 || !sizes[0].is_multiple_of(layout.block_elements) {
            let what = format!("tensor {name}: rows of {} are not whole blocks of {}", sizes[0], layout.name);
            return Err(self.damaged(what));
        }
        let bytes = elements / layout.block_elements * layout.block_bytes;
        let Some(end) = offset.checked_add(bytes) else {
            return Err(self.damaged(format!("tensor {name} starts at {offset}")));
        };
        if !offset.is_multiple_of(alignment) {
            return Err(self.damaged(format!("tensor {name} starts at {offset}, not aligned to {alignment}")));
        }
        Ok(TensorEntry { name, sizes, type_code, type_name: layout.name, elements, offset, end })
    }
}

#[cfg(test)]
#[path = "gguf_tests.rs"]
mod tests;
