// SPDX-License-Identifier: MIT OR Apache-2.0
//! Structs and numbers of the `rocket` interface.
//!
//! Fields carry the kernel's names. Sizes, offsets and request numbers are pinned by the tests below.

use ork_drm::uapi::{COMMAND_BASE, TYPE, read_write, write};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Driver ioctl numbers: the low 8 bits of a request, which is all that DRM looks at. They are those of other
/// drivers too; only the file says which driver is meant.
pub mod number {
    use super::COMMAND_BASE;

    /// Allocate a buffer.
    pub const CREATE_BO: u8 = COMMAND_BASE;
    /// Run jobs.
    pub const SUBMIT: u8 = COMMAND_BASE + 1;
    /// Wait for a buffer and make it readable for the CPU.
    pub const PREP_BO: u8 = COMMAND_BASE + 2;
    /// Make a buffer readable for the NPU.
    pub const FINI_BO: u8 = COMMAND_BASE + 3;
}

/// `DRM_IOCTL_ROCKET_CREATE_BO`, [`RocketCreateBo`].
pub const CREATE_BO: u32 = read_write(TYPE, number::CREATE_BO, size_of::<RocketCreateBo>());
/// `DRM_IOCTL_ROCKET_SUBMIT`, [`RocketSubmit`].
pub const SUBMIT: u32 = write(TYPE, number::SUBMIT, size_of::<RocketSubmit>());
/// `DRM_IOCTL_ROCKET_PREP_BO`, [`RocketPrepBo`].
pub const PREP_BO: u32 = write(TYPE, number::PREP_BO, size_of::<RocketPrepBo>());
/// `DRM_IOCTL_ROCKET_FINI_BO`, [`RocketFiniBo`].
pub const FINI_BO: u32 = write(TYPE, number::FINI_BO, size_of::<RocketFiniBo>());

/// `struct drm_rocket_create_bo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RocketCreateBo {
    /// In: bytes.
    pub size: u32,
    /// Out: handle.
    pub handle: u32,
    /// Out: address for the NPU. The first buffer of a file has address 0.
    pub dma_address: u64,
    /// Out: offset for mmap.
    pub offset: u64,
}

/// `struct drm_rocket_prep_bo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RocketPrepBo {
    /// The buffer.
    pub handle: u32,
    /// 0.
    pub reserved: u32,
    /// When to give up: an absolute time of `CLOCK_MONOTONIC`. In the past: look once.
    pub timeout_ns: i64,
}

/// `struct drm_rocket_fini_bo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RocketFiniBo {
    /// The buffer.
    pub handle: u32,
    /// 0.
    pub reserved: u32,
}

/// `struct drm_rocket_task`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RocketTask {
    /// Address of the program for the NPU.
    pub regcmd: u32,
    /// 64-bit words of the program, *with* its trailer; not 0.
    pub regcmd_count: u32,
}

/// `struct drm_rocket_job`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RocketJob {
    /// Address of an array of [`RocketTask`].
    pub tasks: u64,
    /// Address of the handles that the job reads.
    pub in_bo_handles: u64,
    /// Address of the handles that the job writes.
    pub out_bo_handles: u64,
    /// Tasks; not 0.
    pub task_count: u32,
    /// Bytes from task to task; at least the size of [`RocketTask`].
    pub task_struct_size: u32,
    /// Handles at `in_bo_handles`.
    pub in_bo_handle_count: u32,
    /// Handles at `out_bo_handles`.
    pub out_bo_handle_count: u32,
}

/// `struct drm_rocket_submit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RocketSubmit {
    /// Address of an array of [`RocketJob`].
    pub jobs: u64,
    /// Jobs.
    pub job_count: u32,
    /// Bytes from job to job; at least the size of [`RocketJob`].
    pub job_struct_size: u32,
    /// 0.
    pub reserved: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn request_numbers() {
        assert_eq!(CREATE_BO, 0xC018_6440);
        assert_eq!(SUBMIT, 0x4018_6441);
        assert_eq!(PREP_BO, 0x4010_6442);
        assert_eq!(FINI_BO, 0x4008_6443);
    }

    #[test]
    fn sizes() {
        assert_eq!(size_of::<RocketCreateBo>(), 24);
        assert_eq!(size_of::<RocketPrepBo>(), 16);
        assert_eq!(size_of::<RocketFiniBo>(), 8);
        assert_eq!(size_of::<RocketTask>(), 8);
        assert_eq!(size_of::<RocketJob>(), 40);
        assert_eq!(size_of::<RocketSubmit>(), 24);
    }

    #[test]
    fn offsets() {
        macro_rules! offsets {
            ($type:ident { $($field:ident @ $offset:literal),* $(,)? }) => {
                $( assert_eq!(offset_of!($type, $field), $offset, stringify!($type.$field)); )*
            };
        }
        offsets!(RocketCreateBo { size @ 0, handle @ 4, dma_address @ 8, offset @ 16 });
        offsets!(RocketPrepBo { handle @ 0, reserved @ 4, timeout_ns @ 8 });
        offsets!(RocketFiniBo { handle @ 0, reserved @ 4 });
        offsets!(RocketTask { regcmd @ 0, regcmd_count @ 4 });
        offsets!(RocketJob {
            tasks @ 0, in_bo_handles @ 8, out_bo_handles @ 16, task_count @ 24, task_struct_size @ 28,
            in_bo_handle_count @ 32, out_bo_handle_count @ 36,
        });
        offsets!(RocketSubmit { jobs @ 0, job_count @ 8, job_struct_size @ 12, reserved @ 16 });
    }
}
