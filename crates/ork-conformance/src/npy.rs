// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arrays of an `.npz` file: a zip archive with one `.npy` array per member.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use half::f16;
use zip::ZipArchive;
use zip::result::ZipError;

use crate::CaseError;

/// Bytes that the arrays of one case may have together; the largest recorded case has 2 MB.
const BYTES_MAX: u64 = 1 << 28;
/// Members that an archive may have.
const MEMBERS_MAX: usize = 1 << 12;

/// Type of an element, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 8 bits, unsigned.
    U8,
    /// 8 bits, signed.
    I8,
    /// 16 bits, signed.
    I16,
    /// 32 bits, signed.
    I32,
    /// 64 bits, signed.
    I64,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
    /// IEEE double.
    F64,
}

impl Dtype {
    /// Names in `.npy` headers and in descriptions.
    const NAMES: [(Self, &'static str, &'static str); 8] = [
        (Self::U8, "|u1", "uint8"),
        (Self::I8, "|i1", "int8"),
        (Self::I16, "<i2", "int16"),
        (Self::I32, "<i4", "int32"),
        (Self::I64, "<i8", "int64"),
        (Self::F16, "<f2", "float16"),
        (Self::F32, "<f4", "float32"),
        (Self::F64, "<f8", "float64"),
    ];

    /// The type with this name, as `.npy` headers or as descriptions spell it.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, short, long)| *short == name || *long == name).map(|(dtype, ..)| *dtype)
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::I16 | Self::F16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }

    /// Element `index` of `bytes`; `None` beyond the end.
    #[must_use]
    pub fn number(self, bytes: &[u8], index: usize) -> Option<f64> {
        fn at<const N: usize>(bytes: &[u8], index: usize) -> Option<[u8; N]> {
            bytes.as_chunks::<N>().0.get(index).copied()
        }
        Some(match self {
            Self::U8 => f64::from(*bytes.get(index)?),
            Self::I8 => f64::from(bytes.get(index)?.cast_signed()),
            Self::I16 => f64::from(i16::from_le_bytes(at(bytes, index)?)),
            Self::I32 => f64::from(i32::from_le_bytes(at(bytes, index)?)),
            Self::I64 => i64::from_le_bytes(at(bytes, index)?) as f64,
            Self::F16 => f16::from_le_bytes(at(bytes, index)?).to_f64(),
            Self::F32 => f64::from(f32::from_le_bytes(at(bytes, index)?)),
            Self::F64 => f64::from_le_bytes(at(bytes, index)?),
        })
    }
}

/// An array: its shape plays no part in a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Type of its elements.
    pub dtype: Dtype,
    /// The elements, row-major.
    pub bytes: Vec<u8>,
}

impl Array {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Reads a whole `.npy` file.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(file: &[u8]) -> Result<Self, String> {
        let (header, data) = split(file).ok_or("it does not start as an .npy file does")?;
        let header = Header::parse(header).ok_or_else(|| format!("its header is {header:?}"))?;
        let dtype = Dtype::named(&header.descr)
            .ok_or_else(|| format!("elements of type {:?} are not supported", header.descr))?;
        if header.fortran && header.shape.len() > 1 {
            return Err("column-major order is not supported".to_owned());
        }
        let bytes = header.shape.iter().try_fold(dtype.size(), |size, side| size.checked_mul(*side));
        if bytes != Some(data.len()) {
            let shape = header.shape;
            return Err(format!("{} bytes do not fill shape {shape:?} of {:?}", data.len(), header.descr));
        }
        Ok(Self { dtype, bytes: data.to_vec() })
    }
}

/// Header text and data of an `.npy` file (format versions 1 to 3).
fn split(file: &[u8]) -> Option<(&str, &[u8])> {
    let rest = file.strip_prefix(b"\x93NUMPY")?;
    let (version, rest) = rest.split_first_chunk::<2>()?;
    let (len, rest) = match version[0] {
        1 => {
            let (len, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_le_bytes(*len)), rest)
        }
        2 | 3 => {
            let (len, rest) = rest.split_first_chunk()?;
            (usize::try_from(u32::from_le_bytes(*len)).ok()?, rest)
        }
        _ => return None,
    };
    let (header, data) = rest.split_at_checked(len)?;
    Some((std::str::from_utf8(header).ok()?, data))
}

/// The dictionary of an `.npy` header.
#[derive(Debug, Default, PartialEq)]
struct Header {
    descr: String,
    fortran: bool,
    shape: Vec<usize>,
}

impl Header {
    /// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`, keys in any order.
    fn parse(text: &str) -> Option<Self> {
        let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        while !rest.is_empty() {
            let (key, after) = rest.strip_prefix('\'')?.split_once('\'')?;
            let value = after.trim_start().strip_prefix(':')?.trim_start();
            rest = match key {
                "descr" => {
                    let (name, after) = value.strip_prefix('\'')?.split_once('\'')?;
                    descr = Some(name.to_owned());
                    after
                }
                "fortran_order" => {
                    let (flag, after) = [("True", true), ("False", false)]
                        .iter()
                        .find_map(|(word, flag)| Some((*flag, value.strip_prefix(word)?)))?;
                    fortran = Some(flag);
                    after
                }
                "shape" => {
                    let (sides, after) = value.strip_prefix('(')?.split_once(')')?;
                    let sides = sides.split(',').map(str::trim).filter(|side| !side.is_empty());
                    shape = Some(sides.map(|side| side.parse().ok()).collect::<Option<_>>()?);
                    after
                }
                _ => return None,
            }
            .trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        }
        Some(Self { descr: descr?, fortran: fortran?, shape: shape? })
    }
}

/// The arrays of an `.npz` file by name.
#[derive(Clone, Debug, Default)]
pub struct Arrays(BTreeMap<String, Array>);

impl Arrays {
    /// Reads all arrays.
    ///
    /// # Errors
    /// [`CaseError`].
    pub fn read(path: &Path) -> Result<Self, CaseError> {
        let file = File::open(path).map_err(|source| CaseError::Io { path: path.to_owned(), source })?;
        let archive_error = |source| CaseError::Archive { path: path.to_owned(), source };
        let mut archive = ZipArchive::new(BufReader::new(file)).map_err(archive_error)?;
        if archive.len() > MEMBERS_MAX {
            return Err(archive_error(ZipError::InvalidArchive("too many members".into())));
        }
        let mut arrays = BTreeMap::new();
        let mut room = BYTES_MAX;
        for index in 0..archive.len() {
            let member = archive.by_index(index).map_err(archive_error)?;
            let name = member.name().map_err(archive_error)?;
            let name = name.strip_suffix(".npy").unwrap_or(&name).to_owned();
            let mut bytes = Vec::new();
            // What the archive says of a size may be wrong: the limit counts what comes out.
            member
                .take(room + 1)
                .read_to_end(&mut bytes)
                .map_err(|source| CaseError::Io { path: path.to_owned(), source })?;
            room = room
                .checked_sub(bytes.len() as u64)
                .ok_or_else(|| CaseError::TooLarge { path: path.to_owned(), limit: BYTES_MAX })?;
            let wrong = |what| CaseError::Array { path: path.to_owned(), array: name.clone(), what };
            let array = Array::parse(&bytes).map_err(wrong)?;
            if arrays.insert(name.clone(), array).is_some() {
                return Err(wrong("it appears twice".to_owned()));
            }
        }
        Ok(Self(arrays))
    }

    /// The array with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Array> {
        self.0.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
        let mut file = b"\x93NUMPY".to_vec();
        file.extend([version, 0]);
        match version {
            1 => file.extend((header.len() as u16).to_le_bytes()),
            _ => file.extend((header.len() as u32).to_le_bytes()),
        }
        file.extend(header.as_bytes());
        file.extend(data);
        file
    }

    #[test]
    fn headers_of_all_versions() {
        for version in [1, 2, 3] {
            for header in [
                "{'descr': '<i2', 'fortran_order': False, 'shape': (3,), }          \n",
                "{'shape':(3,1,1),'descr':'<i2','fortran_order':False}",
                "{'descr': '<i2', 'fortran_order': True, 'shape': (3,)}",
            ] {
                let array = Array::parse(&npy(version, header, &[1, 0, 0xFF, 0xFF, 0, 0x80])).unwrap();
                let numbers: Vec<_> = (0..4).map(|i| array.dtype.number(&array.bytes, i)).collect();
                assert_eq!(numbers, [Some(1.0), Some(-1.0), Some(-32768.0), None], "{header}");
                assert_eq!(array.len(), 3);
            }
        }
    }

    #[test]
    fn a_scalar_has_one_element() {
        let array =
            Array::parse(&npy(1, "{'descr': '|u1', 'fortran_order': False, 'shape': ()}", &[7])).unwrap();
        assert_eq!((array.len(), array.dtype), (1, Dtype::U8));
    }

    #[test]
    fn numbers_of_each_type() {
        for (dtype, bytes, value) in [
            (Dtype::U8, vec![0x80], 128.0),
            (Dtype::I8, vec![0x80], -128.0),
            (Dtype::I32, (-5i32).to_le_bytes().to_vec(), -5.0),
            (Dtype::I64, (-5i64).to_le_bytes().to_vec(), -5.0),
            (Dtype::F16, vec![0, 0x3E], 1.5),
            (Dtype::F32, (-0.75f32).to_le_bytes().to_vec(), -0.75),
            (Dtype::F64, 0.1f64.to_le_bytes().to_vec(), 0.1),
        ] {
            assert_eq!(dtype.size(), bytes.len());
            assert_eq!(dtype.number(&bytes, 0), Some(value), "{dtype:?}");
            assert_eq!(dtype.number(&bytes, 1), None);
        }
    }

    #[test]
    fn damage_is_named() {
        let good = "{'descr': '<i2', 'fortran_order': False, 'shape': (3,), }";
        for (file, words) in [
            (npy(1, good, &[0; 5]), "5 bytes do not fill shape [3]"),
            (npy(1, &good.replace("3,", "4611686018427387904, 4"), &[]), "do not fill"),
            (npy(1, &good.replace("<i2", ">i2"), &[0; 6]), "\">i2\" are not supported"),
            (npy(1, &good.replace("False", "True").replace("3,", "3, 1"), &[0; 6]), "column-major"),
            (npy(1, &good.replace("'shape'", "'shapes'"), &[0; 6]), "header"),
            (npy(1, &good.replace("(3,)", "(-3,)"), &[0; 6]), "header"),
            (npy(1, &good.replace("'fortran_order': False,", ""), &[0; 6]), "header"),
            (npy(4, good, &[0; 6]), "does not start"),
            (b"\x93NUMPY\x01\x00\xFF\xFF{".to_vec(), "does not start"),
            (b"PK".to_vec(), "does not start"),
        ] {
            let error = Array::parse(&file).unwrap_err();
            assert!(error.contains(words), "{words:?} is missing in {error:?}");
        }
    }
}
