// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

use zerocopy::IntoBytes;

use crate::uapi::{self, DrmVersion};
use crate::{Errno, Transport};

/// Longest string that is read from a driver.
const STRING_BYTES_MAX: u64 = 4096;

/// What a driver says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Driver name: the only identification that counts (`rknpu`, `rocket`).
    pub name: String,
    /// Build date of the interface; empty or "0" since Linux 6.14.
    pub date: String,
    /// Description.
    pub description: String,
    /// Major, minor, patch level.
    pub number: (i32, i32, i32),
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, patch) = self.number;
        write!(f, "{} {major}.{minor}.{patch}", self.name)
    }
}

/// Asks which driver answers (`DRM_IOCTL_VERSION`): once for the lengths of its strings, once for the strings.
///
/// # Errors
/// The kernel's errno; `ENOTTY` or `EINVAL` from files that are no DRM nodes.
pub fn version(transport: &(impl Transport + ?Sized)) -> Result<Version, Errno> {
    let mut lengths = DrmVersion::default();
    // SAFETY: all three addresses are null and all lengths 0, so the kernel writes only the struct.
    unsafe { transport.ioctl(uapi::VERSION, lengths.as_mut_bytes()) }?;

    let room = |len: u64| vec![0_u8; len.min(STRING_BYTES_MAX) as usize];
    let (mut name, mut date, mut description) =
        (room(lengths.name_len), room(lengths.date_len), room(lengths.desc_len));
    let mut strings = DrmVersion {
        name_len: name.len() as u64,
        name: name.as_mut_ptr().expose_provenance() as u64,
        date_len: date.len() as u64,
        date: date.as_mut_ptr().expose_provenance() as u64,
        desc_len: description.len() as u64,
        desc: description.as_mut_ptr().expose_provenance() as u64,
        ..DrmVersion::default()
    };
    // SAFETY: each address comes with the length of a live, exclusively owned buffer; the kernel writes at most
    // that many bytes.
    unsafe { transport.ioctl(uapi::VERSION, strings.as_mut_bytes()) }?;

    let text = |bytes: &[u8], real: u64| {
        let len = bytes.len().min(usize::try_from(real).unwrap_or(usize::MAX));
        String::from_utf8_lossy(&bytes[..len]).trim_end_matches('\0').to_owned()
    };
    Ok(Version {
        name: text(&name, strings.name_len),
        date: text(&date, strings.date_len),
        description: text(&description, strings.desc_len),
        number: (strings.major, strings.minor, strings.patch),
    })
}
