// SPDX-License-Identifier: MIT OR Apache-2.0
//! DRM core ioctls: numbers and structs, as far as they are used.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Type byte of all DRM ioctls.
pub const TYPE: u8 = b'd';
/// First driver ioctl number.
pub const COMMAND_BASE: u8 = 0x40;
/// First number behind the driver ioctls.
pub const COMMAND_END: u8 = 0xA0;

/// `DRM_IOCTL_VERSION`, [`DrmVersion`].
pub const VERSION: u32 = read_write(TYPE, 0x00, size_of::<DrmVersion>());
/// `DRM_IOCTL_GET_UNIQUE`, [`DrmUnique`].
pub const GET_UNIQUE: u32 = read_write(TYPE, 0x01, size_of::<DrmUnique>());
/// `DRM_IOCTL_GET_MAGIC`, a `u32`.
pub const GET_MAGIC: u32 = read(TYPE, 0x02, size_of::<u32>());
/// `DRM_IOCTL_SET_VERSION`, of which no struct is needed.
pub const SET_VERSION: u32 = read_write(TYPE, 0x07, 16);
/// `DRM_IOCTL_GEM_CLOSE`, [`DrmGemClose`].
pub const GEM_CLOSE: u32 = write(TYPE, 0x09, size_of::<DrmGemClose>());
/// `DRM_IOCTL_GEM_FLINK`, [`DrmGemFlink`].
pub const GEM_FLINK: u32 = read_write(TYPE, 0x0A, size_of::<DrmGemFlink>());
/// `DRM_IOCTL_GEM_OPEN`, [`DrmGemOpen`].
pub const GEM_OPEN: u32 = read_write(TYPE, 0x0B, size_of::<DrmGemOpen>());
/// `DRM_IOCTL_GET_CAP`, [`DrmGetCap`].
pub const GET_CAP: u32 = read_write(TYPE, 0x0C, size_of::<DrmGetCap>());
/// `DRM_IOCTL_SET_CLIENT_CAP`, two `u64`.
pub const SET_CLIENT_CAP: u32 = write(TYPE, 0x0D, 16);
/// `DRM_IOCTL_AUTH_MAGIC`, a `u32`.
pub const AUTH_MAGIC: u32 = write(TYPE, 0x11, size_of::<u32>());
/// `DRM_IOCTL_SET_MASTER`, without argument.
pub const SET_MASTER: u32 = bare(TYPE, 0x1E);
/// `DRM_IOCTL_DROP_MASTER`, without argument.
pub const DROP_MASTER: u32 = bare(TYPE, 0x1F);
/// `DRM_IOCTL_PRIME_HANDLE_TO_FD`, [`DrmPrimeHandle`].
pub const PRIME_HANDLE_TO_FD: u32 = read_write(TYPE, 0x2D, size_of::<DrmPrimeHandle>());
/// `DRM_IOCTL_PRIME_FD_TO_HANDLE`, [`DrmPrimeHandle`].
pub const PRIME_FD_TO_HANDLE: u32 = read_write(TYPE, 0x2E, size_of::<DrmPrimeHandle>());

/// PRIME flag "close on exec".
pub const PRIME_CLOEXEC: u32 = 0x8_0000;
/// PRIME flag "readable and writable".
pub const PRIME_RDWR: u32 = 2;

/// Capability "PRIME import and export".
pub const CAP_PRIME: u64 = 5;
/// Capability "sync objects".
pub const CAP_SYNCOBJ: u64 = 0x13;

const DIRECTION_WRITE: u32 = 1 << 30;
const DIRECTION_READ: u32 = 1 << 31;
const SIZE_MASK: u32 = (1 << 14) - 1;

/// Request of an ioctl that reads and writes a struct of `size` bytes.
#[must_use]
pub const fn read_write(kind: u8, number: u8, size: usize) -> u32 {
    DIRECTION_READ | write(kind, number, size)
}

/// Request of an ioctl without argument.
#[must_use]
pub const fn bare(kind: u8, number: u8) -> u32 {
    ((kind as u32) << 8) | number as u32
}

/// Request of an ioctl that only gets a struct of `size` bytes from the kernel.
#[must_use]
pub const fn read(kind: u8, number: u8, size: usize) -> u32 {
    (write(kind, number, size) & !DIRECTION_WRITE) | DIRECTION_READ
}

/// Request of an ioctl that only hands a struct of `size` bytes to the kernel.
///
/// # Panics
/// If `size` does not fit the 14 bits it has; requests are constants, so that shows at compile time.
#[must_use]
pub const fn write(kind: u8, number: u8, size: usize) -> u32 {
    assert!(size <= SIZE_MASK as usize);
    DIRECTION_WRITE | ((size as u32) << 16) | ((kind as u32) << 8) | number as u32
}

/// The number (low 8 bits): what DRM dispatches by.
#[must_use]
pub const fn number(request: u32) -> u8 {
    request as u8
}

/// The type byte.
#[must_use]
pub const fn kind(request: u32) -> u8 {
    (request >> 8) as u8
}

/// The size field: bytes that are copied in and out.
#[must_use]
pub const fn argument_size(request: u32) -> usize {
    ((request >> 16) & SIZE_MASK) as usize
}

/// Whether the caller's struct is copied in.
#[must_use]
pub const fn copies_in(request: u32) -> bool {
    request & DIRECTION_WRITE != 0
}

/// Whether the kernel's struct is copied out.
#[must_use]
pub const fn copies_out(request: u32) -> bool {
    request & DIRECTION_READ != 0
}

/// `struct drm_version`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DrmVersion {
    /// Major version.
    pub major: i32,
    /// Minor version.
    pub minor: i32,
    /// Patch level.
    pub patch: i32,
    /// Padding.
    pub pad: u32,
    /// In: room at `name`; out: real length, without a terminating NUL.
    pub name_len: u64,
    /// Address of the driver name.
    pub name: u64,
    /// As `name_len`.
    pub date_len: u64,
    /// Address of the date.
    pub date: u64,
    /// As `name_len`.
    pub desc_len: u64,
    /// Address of the description.
    pub desc: u64,
}

/// `struct drm_unique`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DrmUnique {
    /// In: room; out: length, 0 for a platform device.
    pub len: u64,
    /// Address of the string.
    pub unique: u64,
}

/// `struct drm_gem_close`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DrmGemClose {
    /// The handle to drop.
    pub handle: u32,
    /// Padding.
    pub pad: u32,
}

/// `struct drm_gem_flink`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DrmGemFlink {
    /// The object.
    pub handle: u32,
    /// Out: its name, the same for all files.
    pub name: u32,
}

/// `struct drm_gem_open`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DrmGemOpen {
    /// The name that FLINK gave.
    pub name: u32,
    /// Out: a handle of this file.
    pub handle: u32,
    /// Out: bytes.
    pub size: u64,
}

/// `struct drm_prime_handle`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DrmPrimeHandle {
    /// The object: in for export, out for import.
    pub handle: u32,
    /// Export: [`PRIME_CLOEXEC`], [`PRIME_RDWR`].
    pub flags: u32,
    /// The dma-buf: out for export, in for import.
    pub fd: i32,
}

/// `struct drm_get_cap`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DrmGetCap {
    /// Which capability.
    pub capability: u64,
    /// Its value.
    pub value: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn numbers() {
        assert_eq!(VERSION, 0xC040_6400);
        assert_eq!(GET_UNIQUE, 0xC010_6401);
        assert_eq!(GEM_CLOSE, 0x4008_6409);
        assert_eq!(GET_CAP, 0xC010_640C);
        assert_eq!(GEM_FLINK, 0xC008_640A);
        assert_eq!(GEM_OPEN, 0xC010_640B);
        assert_eq!(PRIME_HANDLE_TO_FD, 0xC00C_642D);
        assert_eq!(PRIME_FD_TO_HANDLE, 0xC00C_642E);
        assert_eq!((GET_MAGIC, AUTH_MAGIC), (0x8004_6402, 0x4004_6411));
        assert_eq!((SET_VERSION, SET_CLIENT_CAP), (0xC010_6407, 0x4010_640D));
        assert_eq!((SET_MASTER, DROP_MASTER), (0x641E, 0x641F));
    }

    #[test]
    fn parts_of_a_request() {
        assert_eq!(number(VERSION), 0);
        assert_eq!(kind(VERSION), b'd');
        assert_eq!(argument_size(VERSION), 64);
        assert!(copies_in(VERSION) && copies_out(VERSION));
        assert!(copies_in(GEM_CLOSE) && !copies_out(GEM_CLOSE));
    }

    #[test]
    fn version_layout() {
        assert_eq!(size_of::<DrmVersion>(), 64);
        assert_eq!(offset_of!(DrmVersion, name_len), 16);
        assert_eq!(offset_of!(DrmVersion, name), 24);
        assert_eq!(offset_of!(DrmVersion, date_len), 32);
        assert_eq!(offset_of!(DrmVersion, desc), 56);
    }
}
