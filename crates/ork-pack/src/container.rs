// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the files share: a page that says what the file is, page-aligned sections, a JSON header at the end.

use std::fmt;
use std::fs::File;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use memmap2::{Mmap, UncheckedAdvice};
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Hash, PackError};

/// Alignment of every section: a page, so that a section can be mapped and imported as it lies.
pub const PAGE: u64 = 4096;

/// Longest header that is read or written: hundreds of thousands of tensors.
pub(crate) const HEADER_BYTES_MAX: u64 = 256 << 20;

/// A format version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    /// Another one cannot be read.
    pub major: u16,
    /// Older ones can be read.
    pub minor: u16,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The bytes of a file.
#[derive(Debug)]
pub(crate) enum Bytes {
    Mapped(Mmap, File),
    Owned(Vec<u8>),
}

impl Bytes {
    pub(crate) fn map(path: &Path) -> Result<Self, PackError> {
        let file = File::open(path).map_err(PackError::io("open", path))?;
        // SAFETY: the mapping is read-only and private to this value. ork never changes a file under its final name: a
        // writer renames complete files over it, which leaves the mapped file alone. Another program that
        // shortens the file in place could end this process with SIGBUS, as with every mapped file.
        let map = unsafe { Mmap::map(&file) }.map_err(PackError::io("map", path))?;
        Ok(Self::Mapped(map, file))
    }

    /// The file that is mapped.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Mapped(_, file) => Some(file.as_fd()),
            Self::Owned(_) => None,
        }
    }

    /// Says that a section is not needed for now, so that its pages leave this process.
    pub(crate) fn release(&self, section: &Section) {
        let Self::Mapped(map, _) = self else { return };
        let start = section.offset.next_multiple_of(PAGE);
        let end = section.offset.saturating_add(section.bytes).min(map.len() as u64) / PAGE * PAGE;
        if start < end {
            // SAFETY: the mapping is read-only and of a file: dropped pages come back with the same bytes. A refusal only
            // means that they stay.
            _ = unsafe {
                map.unchecked_advise_range(UncheckedAdvice::DontNeed, start as usize, (end - start) as usize)
            };
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map, _) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A kind of file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) magic: [u8; 8],
    pub(crate) name: &'static str,
    pub(crate) version: Version,
}

/// Bytes of a file that have a checksum of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// From the start of the file: a multiple of [`PAGE`].
    pub offset: u64,
    /// Length; zeros follow up to the next page.
    pub bytes: u64,
    /// Of the `bytes` bytes.
    pub hash: Hash,
}

impl Section {
    /// The zeros behind it, up to the next page; their hash means nothing.
    pub(crate) fn padding(&self) -> Self {
        let offset = self.offset.saturating_add(self.bytes);
        let end = offset.checked_next_multiple_of(PAGE).unwrap_or(offset);
        Self { offset, bytes: end - offset, hash: self.hash }
    }

    /// First byte behind it and its padding.
    pub(crate) fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.bytes)?.checked_next_multiple_of(PAGE)
    }
}

/// The first 128 bytes of a file; zeros follow up to [`PAGE`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Superblock {
    magic: [u8; 8],
    major: U16,
    minor: U16,
    pub(crate) part: U32,
    pub(crate) parts: U32,
    reserved: U32,
    file_bytes: U64,
    pub(crate) header_offset: U64,
    header_bytes: U64,
    header_hash: [u8; 32],
    /// What the parts of one pack have in common.
    pub(crate) set: [u8; 16],
    hash: [u8; 32],
}

const SUPERBLOCK: usize = size_of::<Superblock>();
const _: () = assert!(SUPERBLOCK == 128);
/// Bytes of the superblock that its own hash covers.
const HASHED: usize = SUPERBLOCK - 32;

/// The first page of a file whose header lies at `header_offset`.
pub(crate) fn first_page(
    kind: Kind,
    (part, parts): (u32, u32),
    header_offset: u64,
    header: &[u8],
    set: [u8; 16],
) -> Vec<u8> {
    let mut block = Superblock {
        magic: kind.magic,
        major: kind.version.major.into(),
        minor: kind.version.minor.into(),
        part: part.into(),
        parts: parts.into(),
        reserved: 0.into(),
        file_bytes: (header_offset + header.len() as u64).into(),
        header_offset: header_offset.into(),
        header_bytes: (header.len() as u64).into(),
        header_hash: Hash::of(header).0,
        set,
        hash: [0; 32],
    };
    block.hash = Hash::of(&block.as_bytes()[..HASHED]).0;
    let mut page = block.as_bytes().to_vec();
    page.resize(PAGE as usize, 0);
    page
}

/// Checks the first page and the header of a file.
pub(crate) fn open<'a>(
    bytes: &'a [u8],
    kind: Kind,
    path: &Path,
) -> Result<(Superblock, &'a [u8]), PackError> {
    let damaged = |what: String| PackError::Damaged { path: path.to_owned(), what };
    if !bytes.starts_with(&kind.magic) {
        let found = bytes[..bytes.len().min(8)].to_vec();
        return Err(PackError::Foreign { path: path.to_owned(), wanted: kind.name, found });
    }
    let Some(page) = bytes.get(..PAGE as usize) else {
        return Err(damaged(format!("{} bytes are not even its first page", bytes.len())));
    };
    let (block, rest) =
        Superblock::ref_from_prefix(page).map_err(|_| damaged("its first page is too short".to_owned()))?;
    // The version before the checksum: another version may have another first page.
    let found = Version { major: block.major.get(), minor: block.minor.get() };
    if found.major != kind.version.major || found.minor > kind.version.minor {
        return Err(PackError::Version { path: path.to_owned(), found, reads: kind.version });
    }
    if Hash::of(&page[..HASHED]).0 != block.hash || rest.iter().any(|byte| *byte != 0) {
        return Err(damaged("the checksum of its first page is wrong".to_owned()));
    }
    let (offset, length) = (block.header_offset.get(), block.header_bytes.get());
    let file_bytes = block.file_bytes.get();
    if file_bytes != bytes.len() as u64 {
        return Err(damaged(format!("it has {} bytes and should have {file_bytes}", bytes.len())));
    }
    let header = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..));
    let header = header.filter(|header| {
        offset >= PAGE
            && offset.is_multiple_of(PAGE)
            && header.len() as u64 == length
            && length <= HEADER_BYTES_MAX
    });
    let Some(header) = header else {
        return Err(damaged(format!(
            "a header of {length} bytes at {offset} does not fit {file_bytes} bytes"
        )));
    };
    if Hash::of(header).0 != block.header_hash {
        return Err(damaged("the checksum of its header is wrong".to_owned()));
    }
    if block.reserved != 0 {
        return Err(damaged(format!("its reserved word is {}", block.reserved)));
    }
    if block.part >= block.parts {
        return Err(damaged(format!("it is part {} of {}", block.part, block.parts)));
    }
    Ok((*block, header))
}

impl Superblock {
    pub(crate) fn version(&self) -> Version {
        Version { major: self.major.get(), minor: self.minor.get() }
    }

    pub(crate) fn header_hash(&self) -> Hash {
        Hash(self.header_hash)
    }
}

/// Checks that sections lie one behind the other between the first page and the header, each on its page.
pub(crate) fn check_sections<'a>(
    sections: impl Iterator<Item = (&'a str, &'a Section)>,
    header_offset: u64,
) -> Result<(), String> {
    let mut next = PAGE;
    for (name, section) in sections {
        match section.end() {
            Some(end) if section.offset == next && end <= header_offset => next = end,
            _ => {
                return Err(format!(
                    "the section of `{name}` at {} with {} bytes is not at {next} or passes the header at {header_offset}",
                    section.offset, section.bytes
                ));
            }
        }
    }
    if next == header_offset {
        Ok(())
    } else {
        Err(format!("its sections end at {next}, and its header starts at {header_offset}"))
    }
}

/// The bytes of a checked section.
pub(crate) fn section_bytes<'a>(file: &'a [u8], section: &Section) -> &'a [u8] {
    // Checked against the file's length when it was opened; an empty slice otherwise, never a panic.
    let start = usize::try_from(section.offset).unwrap_or(usize::MAX);
    let length = usize::try_from(section.bytes).unwrap_or(usize::MAX);
    start.checked_add(length).and_then(|end| file.get(start..end)).unwrap_or_default()
}
