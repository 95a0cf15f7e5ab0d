// SPDX-License-Identifier: MIT OR Apache-2.0
//! Structs and numbers of dma-heap, dma-buf and sync_file.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::uapi::{read_write, write};

const HEAP_TYPE: u8 = b'H';
const BUFFER_TYPE: u8 = b'b';
const FENCE_TYPE: u8 = b'>';

/// `DMA_HEAP_IOCTL_ALLOC`, [`DmaHeapAllocation`].
pub const HEAP_ALLOC: u32 = read_write(HEAP_TYPE, 0, size_of::<DmaHeapAllocation>());
/// `fd_flags` of an allocation that reads, writes and closes on exec.
pub const HEAP_FD_FLAGS: u32 = (libc::O_RDWR | libc::O_CLOEXEC) as u32;
/// `DMA_BUF_IOCTL_SYNC`, [`DmaBufSync`].
pub const SYNC: u32 = write(BUFFER_TYPE, 0, size_of::<DmaBufSync>());
/// `DMA_BUF_SET_NAME_A`: the argument is the address of a string.
pub const SET_NAME_A: u32 = write(BUFFER_TYPE, 1, 4);
/// `DMA_BUF_SET_NAME_B`: the argument is the address of a string.
pub const SET_NAME_B: u32 = write(BUFFER_TYPE, 1, 8);
/// `DMA_BUF_IOCTL_EXPORT_SYNC_FILE`, [`DmaBufSyncFile`].
pub const EXPORT_SYNC_FILE: u32 = read_write(BUFFER_TYPE, 2, size_of::<DmaBufSyncFile>());
/// `DMA_BUF_IOCTL_IMPORT_SYNC_FILE`, [`DmaBufSyncFile`].
pub const IMPORT_SYNC_FILE: u32 = write(BUFFER_TYPE, 3, size_of::<DmaBufSyncFile>());
/// `SYNC_IOC_MERGE`, [`SyncMerge`].
pub const FENCE_MERGE: u32 = read_write(FENCE_TYPE, 3, size_of::<SyncMerge>());
/// `SYNC_IOC_FILE_INFO`, [`SyncFileInfo`].
pub const FENCE_INFO: u32 = read_write(FENCE_TYPE, 4, size_of::<SyncFileInfo>());

/// Bits of [`DmaBufSync`].
pub mod sync {
    /// The CPU reads.
    pub const READ: u64 = 1;
    /// The CPU writes.
    pub const WRITE: u64 = 2;
    /// The access ends; without it, it starts.
    pub const END: u64 = 4;
}

/// `struct dma_heap_allocation_data`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaHeapAllocation {
    /// Bytes; rounded up to pages.
    pub len: u64,
    /// In: 0. Out: the dma-buf.
    pub fd: u32,
    /// `O_RDWR`, `O_CLOEXEC`.
    pub fd_flags: u32,
    /// 0.
    pub heap_flags: u64,
}

/// `struct dma_buf_sync`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaBufSync {
    /// See [`sync`].
    pub flags: u64,
}

/// `struct dma_buf_export_sync_file` and `struct dma_buf_import_sync_file`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaBufSyncFile {
    /// [`sync::READ`], [`sync::WRITE`].
    pub flags: u32,
    /// The sync_file.
    pub fd: i32,
}

/// `struct sync_merge_data`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SyncMerge {
    /// A name for the new one.
    pub name: [u8; 32],
    /// The second sync_file.
    pub fd2: i32,
    /// Out: the new one.
    pub fence: i32,
    /// 0.
    pub flags: u32,
    /// Padding.
    pub pad: u32,
}

/// `struct sync_file_info`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SyncFileInfo {
    /// Out: its name.
    pub name: [u8; 32],
    /// Out: 1 signalled, 0 active, negative on error.
    pub status: i32,
    /// 0.
    pub flags: u32,
    /// In: room at `sync_fence_info`. Out: fences.
    pub num_fences: u32,
    /// Padding.
    pub pad: u32,
    /// Address of an array of [`SyncFenceInfo`].
    pub sync_fence_info: u64,
}

/// `struct sync_fence_info`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SyncFenceInfo {
    /// Timeline.
    pub obj_name: [u8; 32],
    /// Driver.
    pub driver_name: [u8; 32],
    /// As in [`SyncFileInfo`].
    pub status: i32,
    /// 0.
    pub flags: u32,
    /// When it was signalled.
    pub timestamp_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn numbers() {
        assert_eq!(HEAP_ALLOC, 0xC018_4800);
        assert_eq!(SYNC, 0x4008_6200);
        assert_eq!((SET_NAME_A, SET_NAME_B), (0x4004_6201, 0x4008_6201));
        assert_eq!((EXPORT_SYNC_FILE, IMPORT_SYNC_FILE), (0xC008_6202, 0x4008_6203));
        assert_eq!((FENCE_MERGE, FENCE_INFO), (0xC030_3E03, 0xC038_3E04));
    }

    #[test]
    fn layouts() {
        assert_eq!(size_of::<DmaHeapAllocation>(), 24);
        assert_eq!((offset_of!(DmaHeapAllocation, fd), offset_of!(DmaHeapAllocation, heap_flags)), (8, 16));
        assert_eq!((size_of::<SyncMerge>(), offset_of!(SyncMerge, fd2)), (48, 32));
        assert_eq!((size_of::<SyncFileInfo>(), offset_of!(SyncFileInfo, sync_fence_info)), (56, 48));
        assert_eq!((size_of::<SyncFenceInfo>(), offset_of!(SyncFenceInfo, timestamp_ns)), (80, 72));
    }
}
