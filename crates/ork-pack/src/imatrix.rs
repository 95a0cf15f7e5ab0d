// SPDX-License-Identifier: MIT OR Apache-2.0
//! Importance matrices as llama.cpp's `llama-imatrix` writes them: the older binary form and GGUF.
//!
//! Binary (`.dat`), little-endian: count of entries (i32); per entry length and bytes of the name, number of calls (i32),
//! count of values (i32), the values (f32, already divided by tokens and multiplied by calls); then optionally the
//! number of chunks (i32) and length and bytes of the data set's name.
//!
//! GGUF: `general.type` is `imatrix`; for each weight the tensors `NAME.in_sum2` (sums of squared activations, one row
//! per expert) and `NAME.counts` (tokens, one per expert), both F32; newer files add `NAME.in_sum`, which is not needed
//! here. Keys: `imatrix.datasets`, `imatrix.chunk_count`, `imatrix.chunk_size`.
//!
//! Files are untrusted: every length is compared with what is left of the file before anything is reserved.

use std::collections::BTreeMap;

/// An importance matrix of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imatrix {
    /// By name of the weight.
    pub entries: BTreeMap<String, ImatrixEntry>,
    /// Texts it was made from.
    pub datasets: Vec<String>,
    /// Chunks of text.
    pub chunks: u32,
    /// Tokens per chunk; 0 where the file does not say.
    pub chunk_tokens: u32,
}

/// One weight, or one for each expert of a stacked weight.
#[derive(Clone, Debug, PartialEq)]
pub struct ImatrixEntry {
    /// Sums of squared activations, the channels of the first expert first.
    pub sums: Vec<f32>,
    /// By how much the sums of each expert are to be divided: tokens, or calls in the older form.
    pub counts: Vec<f32>,
}

impl ImatrixEntry {
    /// Input channels of one expert.
    pub fn k(&self) -> usize {
        self.sums.len() / self.counts.len().max(1)
    }

    /// Mean squares of the input channels of an expert: what the clip search is weighted by. Nothing if there is no such
    /// expert or the text never reached it; clip at the largest magnitude then.
    pub fn importance(&self, expert: usize) -> Option<Vec<f32>> {
        let count = *self.counts.get(expert).filter(|count| **count > 0.0)?;
        let k = self.k();
        Some(self.sums.get(expert * k..(expert + 1) * k)?.iter().map(|sum| sum / count).collect())
    }
}

/// Bytes that are no importance matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImatrixError {
    /// The file ends too early, or a length in it is absurd.
    #[error("the importance matrix ends inside {what}, at byte {at}")]
    Short {
        /// What was being read.
        what: &'static str,
        /// Where.
        at: usize,
    },
    /// A GGUF file of another kind or version.
    #[error("this GGUF file is {found}, not an importance matrix of version 2 or 3")]
    Kind {
        /// What it is.
        found: String,
    },
    /// An entry that contradicts itself.
    #[error("importance of `{name}`: {what}")]
    Entry {
        /// Which weight.
        name: String,
        /// What is wrong.
        what: String,
    },
}

impl Imatrix {
    /// Reads either form.
    ///
    /// # Errors
    /// [`ImatrixError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ImatrixError> {
        let mut reader = Reader { bytes, at: 0 };
        let imatrix = if bytes.starts_with(b"GGUF") { gguf(&mut reader)? } else { binary(&mut reader)? };
        for (name, entry) in &imatrix.entries {
            let numbers = || entry.sums.iter().chain(&entry.counts);
            let wrong = |what: String| ImatrixError::Entry { name: shown(name), what };
            if entry.counts.is_empty()
                || entry.sums.is_empty()
                || !entry.sums.len().is_multiple_of(entry.counts.len())
            {
                return Err(wrong(format!("{} sums for {} counts", entry.sums.len(), entry.counts.len())));
            }
            if let Some(number) = numbers().find(|number| !number.is_finite() || **number < 0.0) {
                return Err(wrong(format!("a sum or count is {number}")));
            }
        }
        Ok(imatrix)
    }
}

fn shown(name: &str) -> String {
    name.chars().take(80).flat_map(char::escape_debug).collect()
}

fn binary(reader: &mut Reader<'_>) -> Result<Imatrix, ImatrixError> {
    let mut imatrix = Imatrix::default();
    let count = reader.length32("the number of entries")?;
    if count == 0 {
        return Err(ImatrixError::Short { what: "the list of entries", at: reader.at });
    }
    for _ in 0..count {
        let length = reader.length32("the length of a name")?;
        let name = String::from_utf8_lossy(reader.take(length, "a name")?).into_owned();
        let calls = reader.u32("a number of calls")?.cast_signed();
        let values = reader.length32("a number of values")?;
        let sums = reader.floats(values, "the values of an entry")?;
        imatrix.entries.insert(name, ImatrixEntry { sums, counts: vec![calls as f32] });
    }
    if reader.at < reader.bytes.len() {
        imatrix.chunks = reader.u32("the number of chunks")?;
        if reader.at < reader.bytes.len() {
            let length = reader.length32("the length of a data set's name")?;
            let name = reader.take(length, "a data set's name")?;
            if length > 0 {
                imatrix.datasets.push(String::from_utf8_lossy(name).into_owned());
            }
        }
    }
    Ok(imatrix)
}

/// A tensor of a GGUF file, before its data are looked at.
struct Info {
    name: String,
    elements: u64,
    kind: u32,
    offset: u64,
}

fn gguf(reader: &mut Reader<'_>) -> Result<Imatrix, ImatrixError> {
    reader.take(4, "the magic")?;
    let version = reader.u32("the version")?;
    if !(2..=3).contains(&version) {
        return Err(ImatrixError::Kind { found: format!("version {version}") });
    }
    let tensors = reader.u64("the number of tensors")?;
    let keys = reader.u64("the number of keys")?;
    let mut imatrix = Imatrix::default();
    let mut alignment = 32;
    let mut kind = None;
    for _ in 0..keys {
        let key = reader.string("a key")?;
        let value = reader.value()?;
        match (key.as_str(), value) {
            ("general.type", Value::Text(text)) => kind = Some(text),
            ("general.alignment", Value::Number(number)) => alignment = number,
            ("imatrix.datasets", Value::Texts(texts)) => imatrix.datasets = texts,
            ("imatrix.chunk_count", Value::Number(number)) => imatrix.chunks = narrow(number),
            ("imatrix.chunk_size", Value::Number(number)) => imatrix.chunk_tokens = narrow(number),
            _ => {}
        }
    }
    if kind.as_deref() != Some("imatrix") {
        return Err(ImatrixError::Kind { found: format!("of type `{}`", shown(&kind.unwrap_or_default())) });
    }
    let mut infos = Vec::new();
    for _ in 0..tensors {
        let name = reader.string("the name of a tensor")?;
        let mut elements = 1u64;
        for _ in 0..reader.u32("a number of dimensions")?.min(8) {
            elements = elements.saturating_mul(reader.u64("a dimension")?);
        }
        let kind = reader.u32("a type")?;
        infos.push(Info { name, elements, kind, offset: reader.u64("an offset")? });
    }
    if alignment == 0 || !alignment.is_power_of_two() || alignment > 1 << 20 {
        return Err(ImatrixError::Kind { found: format!("aligned to {alignment}") });
    }
    let data = (reader.at as u64).next_multiple_of(alignment);
    let mut counts: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    // Tensors of a real file do not overlap; without this bound a small file could name its bytes many times over.
    let mut left = reader.bytes.len() as u64;
    for info in infos {
        let (sums_of, counts_of) = (info.name.strip_suffix(".in_sum2"), info.name.strip_suffix(".counts"));
        let Some(weight) = sums_of.or(counts_of) else { continue };
        if info.kind != 0 {
            let what = format!("its sums or counts have type {}, not F32", info.kind);
            return Err(ImatrixError::Entry { name: shown(weight), what });
        }
        left = left
            .checked_sub(info.elements.saturating_mul(4))
            .ok_or(ImatrixError::Short { what: "the data of its tensors", at: reader.at })?;
        let at = data.saturating_add(info.offset);
        let mut at = Reader { bytes: reader.bytes, at: usize::try_from(at).unwrap_or(usize::MAX) };
        let values =
            at.floats(usize::try_from(info.elements).unwrap_or(usize::MAX), "the data of a tensor")?;
        if sums_of.is_some() {
            imatrix.entries.insert(weight.to_owned(), ImatrixEntry { sums: values, counts: Vec::new() });
        } else {
            counts.insert(weight.to_owned(), values);
        }
    }
    for (name, values) in counts {
        let Some(entry) = imatrix.entries.get_mut(&name) else {
            return Err(ImatrixError::Entry { name: shown(&name), what: "counts without sums".to_owned() });
        };
        entry.counts = values;
    }
    Ok(imatrix)
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

enum Value {
    Number(u64),
    Text(String),
    Texts(Vec<String>),
    Other,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], ImatrixError> {
        let piece = self.at.checked_add(length).and_then(|end| self.bytes.get(self.at..end));
        let piece = piece.ok_or(ImatrixError::Short { what, at: self.at })?;
        self.at += length;
        Ok(piece)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, ImatrixError> {
        let at = self.at;
        let piece = self.take(4, what)?;
        piece.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)).ok_or(ImatrixError::Short { what, at })
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, ImatrixError> {
        let at = self.at;
        let piece = self.take(8, what)?;
        piece.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).ok_or(ImatrixError::Short { what, at })
    }

    /// A length that is not negative.
    fn length32(&mut self, what: &'static str) -> Result<usize, ImatrixError> {
        let at = self.at;
        usize::try_from(self.u32(what)?.cast_signed()).map_err(|_| ImatrixError::Short { what, at })
    }

    fn floats(&mut self, count: usize, what: &'static str) -> Result<Vec<f32>, ImatrixError> {
        let bytes = count.checked_mul(4).ok_or(ImatrixError::Short { what, at: self.at })?;
        Ok(self
            .take(bytes, what)?
            .as_chunks::<4>()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect())
    }

    fn string(&mut self, what: &'static str) -> Result<String, ImatrixError> {
        let length = usize::try_from(self.u64(what)?).unwrap_or(usize::MAX);
        Ok(String::from_utf8_lossy(self.take(length, what)?).into_owned())
    }

    /// A value of a key: kept if it is a number or text that may matter, stepped over otherwise.
    fn value(&mut self) -> Result<Value, ImatrixError> {
        let kind = self.u32("the type of a value")?;
        if kind != 9 {
            return self.scalar(kind);
        }
        let (kind, count) = (self.u32("the type of a list")?, self.u64("the length of a list")?);
        let mut texts = Vec::new();
        for _ in 0..count {
            // Lists of lists exist in no file that anybody writes.
            if let Value::Text(text) = self.scalar(kind)? {
                texts.push(text);
            }
        }
        Ok(if kind == 8 { Value::Texts(texts) } else { Value::Other })
    }

    fn scalar(&mut self, kind: u32) -> Result<Value, ImatrixError> {
        Ok(match kind {
            0 | 1 | 7 => Value::Number(u64::from(self.take(1, "a value")?[0])),
            2 | 3 => {
                self.take(2, "a value")?;
                Value::Other
            }
            4 | 5 => Value::Number(u64::from(self.u32("a value")?)),
            6 => {
                self.take(4, "a value")?;
                Value::Other
            }
            8 => Value::Text(self.string("a value")?),
            10 | 11 => Value::Number(self.u64("a value")?),
            12 => {
                self.take(8, "a value")?;
                Value::Other
            }
            _ => return Err(ImatrixError::Short { what: "a value of unknown type", at: self.at }),
        })
    }
}
