// SPDX-License-Identifier: MIT OR Apache-2.0
//! Structs and numbers of the `rknpu` interface, header version 0.9.8.
//!
//! Fields carry the kernel's names. Sizes, offsets and request numbers are pinned by the tests below.

use ork_drm::uapi::{COMMAND_BASE, TYPE, read_write};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Driver ioctl numbers: the low 8 bits of a request, which is all that DRM looks at.
pub mod number {
    use super::COMMAND_BASE;

    /// Query or set a property, or reset.
    pub const ACTION: u8 = COMMAND_BASE;
    /// Run tasks.
    pub const SUBMIT: u8 = COMMAND_BASE + 1;
    /// Allocate a buffer, or query one.
    pub const MEM_CREATE: u8 = COMMAND_BASE + 2;
    /// Get the offset for mmap.
    pub const MEM_MAP: u8 = COMMAND_BASE + 3;
    /// Drop a buffer's handle.
    pub const MEM_DESTROY: u8 = COMMAND_BASE + 4;
    /// Cache maintenance.
    pub const MEM_SYNC: u8 = COMMAND_BASE + 5;
}

/// `RKNPU_ACTION`, [`RknpuAction`].
pub const ACTION: u32 = read_write(TYPE, number::ACTION, size_of::<RknpuAction>());
/// `RKNPU_SUBMIT`, [`RknpuSubmit`].
pub const SUBMIT: u32 = read_write(TYPE, number::SUBMIT, size_of::<RknpuSubmit>());
/// `RKNPU_MEM_CREATE` since 0.9.6, [`RknpuMemCreate`].
pub const MEM_CREATE: u32 = read_write(TYPE, number::MEM_CREATE, size_of::<RknpuMemCreate>());
/// `RKNPU_MEM_CREATE` of older headers: the first [`MEM_CREATE_SHORT_BYTES`] of [`RknpuMemCreate`].
pub const MEM_CREATE_SHORT: u32 = read_write(TYPE, number::MEM_CREATE, MEM_CREATE_SHORT_BYTES);
/// `RKNPU_MEM_MAP`, [`RknpuMemMap`].
pub const MEM_MAP: u32 = read_write(TYPE, number::MEM_MAP, size_of::<RknpuMemMap>());
/// `RKNPU_MEM_DESTROY`, [`RknpuMemDestroy`].
pub const MEM_DESTROY: u32 = read_write(TYPE, number::MEM_DESTROY, size_of::<RknpuMemDestroy>());
/// `RKNPU_MEM_SYNC`, [`RknpuMemSync`].
pub const MEM_SYNC: u32 = read_write(TYPE, number::MEM_SYNC, size_of::<RknpuMemSync>());

/// Size of the allocation struct before 0.9.6.
pub const MEM_CREATE_SHORT_BYTES: usize = 40;

/// Memory flags.
pub mod mem {
    /// Paged memory and an IOMMU mapping; otherwise one DMA allocation.
    pub const NON_CONTIGUOUS: u32 = 1 << 0;
    /// Cached CPU mapping; makes `MEM_SYNC` legal and necessary.
    pub const CACHEABLE: u32 = 1 << 1;
    /// Write-combined CPU mapping.
    pub const WRITE_COMBINE: u32 = 1 << 2;
    /// The kernel gets an address too: required for task arrays.
    pub const KERNEL_MAPPING: u32 = 1 << 3;
    /// Accepted, without effect.
    pub const IOMMU: u32 = 1 << 4;
    /// Zero-filled.
    pub const ZEROING: u32 = 1 << 5;
    /// Accepted, without effect.
    pub const SECURE: u32 = 1 << 6;
    /// Physical pages below 4 GiB.
    pub const DMA32: u32 = 1 << 7;
    /// Try on-chip SRAM first.
    pub const TRY_ALLOC_SRAM: u32 = 1 << 8;
    /// Try the NPU's buffer memory first (other chips).
    pub const TRY_ALLOC_NBUF: u32 = 1 << 9;
    /// Since 0.9.8: do not align the device address to the size.
    pub const IOMMU_LIMIT_IOVA_ALIGNMENT: u32 = 1 << 10;

    /// The usual set for data and register programs.
    pub const DATA: u32 = NON_CONTIGUOUS | CACHEABLE | IOMMU_LIMIT_IOVA_ALIGNMENT;
    /// The usual set for task arrays.
    pub const TASKS: u32 = DATA | KERNEL_MAPPING;
}

/// Directions of `MEM_SYNC`.
pub mod sync {
    /// CPU writes become visible to the NPU.
    pub const TO_DEVICE: u32 = 1;
    /// NPU writes become visible to the CPU.
    pub const FROM_DEVICE: u32 = 2;
}

/// Job flags.
pub mod job {
    /// Program-controller mode: required.
    pub const PC: u32 = 1 << 0;
    /// Return after queueing.
    pub const NONBLOCK: u32 = 1 << 1;
    /// Ping-pong register groups.
    pub const PINGPONG: u32 = 1 << 2;
    /// Wait for `fence_fd` first.
    pub const FENCE_IN: u32 = 1 << 3;
    /// Return a fence in `fence_fd`.
    pub const FENCE_OUT: u32 = 1 << 4;
}

/// Codes of `ACTION`.
pub mod action {
    /// Hardware version of core 0.
    pub const GET_HW_VERSION: u32 = 0;
    /// major·10000 + minor·100 + patch.
    pub const GET_DRV_VERSION: u32 = 1;
    /// Clock in Hz.
    pub const GET_FREQ: u32 = 2;
    /// Refused by all known versions.
    pub const SET_FREQ: u32 = 3;
    /// Supply in microvolts.
    pub const GET_VOLT: u32 = 4;
    /// Refused by all known versions.
    pub const SET_VOLT: u32 = 5;
    /// Soft reset.
    pub const ACT_RESET: u32 = 6;
    /// Clears the traffic counters (none on RK3588).
    pub const ACT_CLR_TOTAL_RW_AMOUNT: u32 = 13;
    /// Bytes written.
    pub const GET_DT_WR_AMOUNT: u32 = 14;
    /// Feature bytes read.
    pub const GET_DT_RD_AMOUNT: u32 = 15;
    /// Weight bytes read.
    pub const GET_WT_RD_AMOUNT: u32 = 16;
    /// Sum of the three.
    pub const GET_TOTAL_RW_AMOUNT: u32 = 17;
    /// 1 behind an IOMMU.
    pub const GET_IOMMU_EN: u32 = 18;
    /// Sets the caller's nice value.
    pub const SET_PROC_NICE: u32 = 19;
    /// Refused since 0.9.
    pub const POWER_ON: u32 = 20;
    /// Refused since 0.9.
    pub const POWER_OFF: u32 = 21;
    /// On-chip SRAM for the NPU, in bytes.
    pub const GET_TOTAL_SRAM_SIZE: u32 = 22;
    /// What of it is free.
    pub const GET_FREE_SRAM_SIZE: u32 = 23;
    /// The live IOMMU domain (since 0.9.6).
    pub const GET_IOMMU_DOMAIN_ID: u32 = 24;
    /// Makes a domain live (since 0.9.6).
    pub const SET_IOMMU_DOMAIN_ID: u32 = 25;
}

/// `GET_HW_VERSION` of RK3588.
pub const HW_VERSION_RK3588: u32 = 0x4649_5245;
/// Address spaces (since 0.9.6): ids 0..16.
pub const DOMAINS: i32 = 16;

/// `struct rknpu_action`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RknpuAction {
    /// Code, see [`action`].
    pub flags: u32,
    /// In or out.
    pub value: u32,
}

/// `struct rknpu_mem_create`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RknpuMemCreate {
    /// In: 0 allocates, a known handle queries. Out: the handle.
    pub handle: u32,
    /// See [`mem`].
    pub flags: u32,
    /// In: bytes. Out: rounded up to pages.
    pub size: u64,
    /// Out: opaque object address; what `MEM_SYNC` and `SUBMIT` name a buffer by.
    pub obj_addr: u64,
    /// Out: address for the NPU.
    pub dma_addr: u64,
    /// In: wanted on-chip bytes. Out: placed ones.
    pub sram_size: u64,
    /// Domain (since 0.9.6).
    pub iommu_domain_id: i32,
    /// Placement hint of other chips (since 0.9.7).
    pub core_mask: u32,
}

/// `struct rknpu_mem_map`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RknpuMemMap {
    /// The buffer.
    pub handle: u32,
    /// 0.
    pub reserved: u32,
    /// Out: offset for mmap.
    pub offset: u64,
}

/// `struct rknpu_mem_destroy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RknpuMemDestroy {
    /// The buffer.
    pub handle: u32,
    /// 0.
    pub reserved: u32,
    /// Ignored by the DRM build.
    pub obj_addr: u64,
}

/// `struct rknpu_mem_sync`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RknpuMemSync {
    /// See [`sync`].
    pub flags: u32,
    /// 0.
    pub reserved: u32,
    /// The buffer.
    pub obj_addr: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// `struct rknpu_task`: one entry of a task array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RknpuTask {
    /// Not read by the kernel.
    pub flags: u32,
    /// Not read by the kernel.
    pub op_idx: u32,
    /// Op-enable mask; not read by the kernel, the program carries it.
    pub enable_mask: u32,
    /// Events that end the task: whole pairs of bits.
    pub int_mask: u32,
    /// Not read by the kernel.
    pub int_clear: u32,
    /// Out, in the last task of a job.
    pub int_status: u32,
    /// Words of the program without its 4-word trailer; read in the first task of a job.
    pub regcfg_amount: u32,
    /// Not read by the kernel.
    pub regcfg_offset: u32,
    /// Device address of the program; read in the first task of a job, low 32 bits.
    pub regcmd_addr: u64,
}

/// `struct rknpu_subcore_task`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RknpuSubcoreTask {
    /// First entry of the task array.
    pub task_start: u32,
    /// Entries.
    pub task_number: u32,
}

/// `struct rknpu_submit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RknpuSubmit {
    /// See [`job`].
    pub flags: u32,
    /// Milliseconds.
    pub timeout: u32,
    /// Single-core chips only.
    pub task_start: u32,
    /// Not 0.
    pub task_number: u32,
    /// Out: tasks that completed.
    pub task_counter: u32,
    /// Ignored.
    pub priority: i32,
    /// Object address of the buffer that holds the task array.
    pub task_obj_addr: u64,
    /// Domain that must be live while the job runs (since 0.9.6).
    pub iommu_domain_id: u32,
    /// 0.
    pub reserved: u32,
    /// Added to all data addresses; 0.
    pub task_base_addr: u64,
    /// Out: nanoseconds from commit to interrupt (since 0.9.6).
    pub hw_elapse_time: i64,
    /// Cores, or 0 for a choice by the kernel.
    pub core_mask: u32,
    /// -1 without fences.
    pub fence_fd: i32,
    /// Ranges per core: entry `i` for one or two cores, entry `i + 2` for three.
    pub subcore_task: [RknpuSubcoreTask; 5],
}

impl Default for RknpuSubmit {
    fn default() -> Self {
        Self {
            flags: 0,
            timeout: 0,
            task_start: 0,
            task_number: 0,
            task_counter: 0,
            priority: 0,
            task_obj_addr: 0,
            iommu_domain_id: 0,
            reserved: 0,
            task_base_addr: 0,
            hw_elapse_time: 0,
            core_mask: 0,
            fence_fd: -1,
            subcore_task: [RknpuSubcoreTask::default(); 5],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn request_numbers() {
        assert_eq!(ACTION, 0xC008_6440);
        assert_eq!(SUBMIT, 0xC068_6441);
        assert_eq!(MEM_CREATE, 0xC030_6442);
        assert_eq!(MEM_CREATE_SHORT, 0xC028_6442);
        assert_eq!(MEM_MAP, 0xC010_6443);
        assert_eq!(MEM_DESTROY, 0xC010_6444);
        assert_eq!(MEM_SYNC, 0xC020_6445);
    }

    #[test]
    fn sizes() {
        assert_eq!(size_of::<RknpuAction>(), 8);
        assert_eq!(size_of::<RknpuMemCreate>(), 48);
        assert_eq!(size_of::<RknpuMemMap>(), 16);
        assert_eq!(size_of::<RknpuMemDestroy>(), 16);
        assert_eq!(size_of::<RknpuMemSync>(), 32);
        assert_eq!(size_of::<RknpuTask>(), 40);
        assert_eq!(size_of::<RknpuSubcoreTask>(), 8);
        assert_eq!(size_of::<RknpuSubmit>(), 104);
    }

    #[test]
    fn offsets() {
        macro_rules! offsets {
            ($type:ident { $($field:ident @ $offset:literal),* $(,)? }) => {
                $( assert_eq!(offset_of!($type, $field), $offset, stringify!($type.$field)); )*
            };
        }
        offsets!(RknpuAction { flags @ 0, value @ 4 });
        offsets!(RknpuMemCreate {
            handle @ 0, flags @ 4, size @ 8, obj_addr @ 16, dma_addr @ 24, sram_size @ 32,
            iommu_domain_id @ 40, core_mask @ 44,
        });
        assert_eq!(MEM_CREATE_SHORT_BYTES, offset_of!(RknpuMemCreate, iommu_domain_id));
        offsets!(RknpuMemMap { handle @ 0, reserved @ 4, offset @ 8 });
        offsets!(RknpuMemDestroy { handle @ 0, reserved @ 4, obj_addr @ 8 });
        offsets!(RknpuMemSync { flags @ 0, reserved @ 4, obj_addr @ 8, offset @ 16, size @ 24 });
        offsets!(RknpuTask {
            flags @ 0, op_idx @ 4, enable_mask @ 8, int_mask @ 12, int_clear @ 16, int_status @ 20,
            regcfg_amount @ 24, regcfg_offset @ 28, regcmd_addr @ 32,
        });
        offsets!(RknpuSubcoreTask { task_start @ 0, task_number @ 4 });
        offsets!(RknpuSubmit {
            flags @ 0, timeout @ 4, task_start @ 8, task_number @ 12, task_counter @ 16, priority @ 20,
            task_obj_addr @ 24, iommu_domain_id @ 32, reserved @ 36, task_base_addr @ 40,
            hw_elapse_time @ 48, core_mask @ 56, fence_fd @ 60, subcore_task @ 64,
        });
    }

    #[test]
    fn flags() {
        assert_eq!(mem::DATA, 0x403);
        assert_eq!(mem::TASKS, 0x40B);
        assert_eq!(mem::TRY_ALLOC_NBUF, 0x200);
        assert_eq!(job::PC | job::PINGPONG, 0x5);
        assert_eq!(job::FENCE_OUT, 0x10);
        assert_eq!(sync::TO_DEVICE | sync::FROM_DEVICE, 3);
        assert_eq!(action::SET_IOMMU_DOMAIN_ID, 25);
        assert_eq!(HW_VERSION_RK3588, 1_179_210_309);
    }
}
