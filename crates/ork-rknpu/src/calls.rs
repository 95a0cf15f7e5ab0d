// SPDX-License-Identifier: MIT OR Apache-2.0
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ork_drm::{Errno, Mapping, Transport};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::RknpuError;
use crate::uapi::{
    self, RknpuAction, RknpuMemCreate, RknpuMemDestroy, RknpuMemMap, RknpuMemSync, RknpuSubmit, action,
};

/// Attempts of one call before an unending `EINTR` or `EAGAIN` is reported as it is.
const INTERRUPTED_ATTEMPTS_MAX: u32 = 1000;

/// An open `rknpu` device file.
///
/// All calls may come from several threads at once.
#[derive(Debug)]
pub struct Rknpu<T> {
    transport: T,
    interruptions: AtomicU64,
}

/// What to allocate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreateRequest {
    /// Bytes; the kernel rounds up to pages.
    pub size: u64,
    /// See [`uapi::mem`].
    pub flags: u32,
    /// Domain; kernels before 0.9.6 ignore it.
    pub domain: i32,
}

/// A buffer as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// GEM handle of this file.
    pub handle: u32,
    /// Size in bytes, whole pages.
    pub size: u64,
    /// Opaque object address, for `mem_sync` and the task array of a submit.
    pub obj_addr: u64,
    /// Address for the NPU.
    pub dma_addr: u64,
    /// Bytes that lie in on-chip memory.
    pub sram_size: u64,
}

/// What a blocking submit reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmitReport {
    /// Tasks that completed.
    pub task_counter: u32,
    /// Nanoseconds from commit to interrupt; 0 before 0.9.6.
    pub hw_elapse_ns: i64,
    /// Fence, if one was asked for; else -1.
    pub fence_fd: i32,
}

impl<T: Transport> Rknpu<T> {
    /// Speaks to an open file that is known to belong to the driver (`ork_drm::probe`).
    pub fn new(transport: T) -> Self {
        Self { transport, interruptions: AtomicU64::new(0) }
    }

    /// How often a call was interrupted (`EINTR`, `EAGAIN`) and repeated.
    pub fn interruptions(&self) -> u64 {
        self.interruptions.load(Relaxed)
    }

    /// The file.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// Repeats an interrupted call with its original input, because the kernel writes the struct back in any
    /// case.
    fn call<A>(&self, request: u32, argument: &mut A) -> Result<(), Errno>
    where
        A: Copy + FromBytes + IntoBytes + Immutable,
    {
        let original = *argument;
        let mut attempts = 1;
        loop {
            *argument = original;
            // SAFETY: no struct of this driver holds a user-space address; object addresses were given out by
            // the kernel and stay opaque here.
            match unsafe { self.transport.ioctl(request, argument.as_mut_bytes()) } {
                Err(Errno::EINTR | Errno::EAGAIN) if attempts < INTERRUPTED_ATTEMPTS_MAX => {
                    attempts += 1;
                    self.interruptions.fetch_add(1, Relaxed);
                }
                result => return result,
            }
        }
    }

    /// Performs an action with an input value; returns the output value.
    ///
    /// # Errors
    /// [`RknpuError::Action`]; `EINVAL` for codes that the version or chip does not have.
    pub fn action(&self, code: u32, value: u32) -> Result<u32, RknpuError> {
        let mut argument = RknpuAction { flags: code, value };
        self.call(uapi::ACTION, &mut argument)
            .map_err(|source| RknpuError::Action { action: code, source })?;
        Ok(argument.value)
    }

    /// Hardware version word of core 0.
    ///
    /// # Errors
    /// [`RknpuError::Action`].
    pub fn hardware_version(&self) -> Result<u32, RknpuError> {
        self.action(action::GET_HW_VERSION, u32::MAX)
    }

    /// Driver version as major·10000 + minor·100 + patch.
    ///
    /// # Errors
    /// [`RknpuError::Action`].
    pub fn driver_version(&self) -> Result<u32, RknpuError> {
        self.action(action::GET_DRV_VERSION, 0)
    }

    /// Whether the NPU works behind an IOMMU.
    ///
    /// # Errors
    /// [`RknpuError::Action`].
    pub fn iommu_enabled(&self) -> Result<bool, RknpuError> {
        Ok(self.action(action::GET_IOMMU_EN, 0)? != 0)
    }

    /// On-chip SRAM in bytes: total and free.
    ///
    /// # Errors
    /// [`RknpuError::Action`].
    pub fn sram_bytes(&self) -> Result<(u32, u32), RknpuError> {
        Ok((self.action(action::GET_TOTAL_SRAM_SIZE, 0)?, self.action(action::GET_FREE_SRAM_SIZE, 0)?))
    }

    /// NPU clock in Hz.
    ///
    /// # Errors
    /// [`RknpuError::Action`].
    pub fn frequency_hz(&self) -> Result<u32, RknpuError> {
        self.action(action::GET_FREQ, 0)
    }

    /// Soft reset: takes about 100 ms, fails jobs of all processes that are in flight.
    ///
    /// # Errors
    /// [`RknpuError::Action`].
    pub fn reset(&self) -> Result<(), RknpuError> {
        self.action(action::ACT_RESET, 0).map(drop)
    }

    /// Allocates a buffer.
    ///
    /// # Errors
    /// [`RknpuError::MemCreate`].
    pub fn mem_create(&self, request: &CreateRequest) -> Result<Buffer, RknpuError> {
        let &CreateRequest { size, flags, domain } = request;
        let mut argument = RknpuMemCreate { flags, size, iommu_domain_id: domain, ..Default::default() };
        self.call(uapi::MEM_CREATE, &mut argument).map_err(|source| RknpuError::MemCreate {
            size,
            domain,
            source,
        })?;
        Ok(Buffer {
            handle: argument.handle,
            size: argument.size,
            obj_addr: argument.obj_addr,
            dma_addr: argument.dma_addr,
            sram_size: argument.sram_size,
        })
    }

    /// What a buffer is that this file has a handle of, for example one that was imported. Imported buffers have no
    /// mapping and no cache maintenance of this driver.
    ///
    /// # Errors
    /// [`RknpuError::MemCreate`].
    pub fn mem_query(&self, handle: u32) -> Result<Buffer, RknpuError> {
        let mut argument = RknpuMemCreate { handle, ..Default::default() };
        self.call(uapi::MEM_CREATE, &mut argument).map_err(|source| RknpuError::MemCreate {
            size: 0,
            domain: 0,
            source,
        })?;
        let RknpuMemCreate { handle, size, obj_addr, dma_addr, sram_size, .. } = argument;
        Ok(Buffer { handle, size, obj_addr, dma_addr, sram_size })
    }

    /// The offset to map a buffer at.
    ///
    /// # Errors
    /// [`RknpuError::MemMap`].
    pub fn mem_map(&self, handle: u32) -> Result<u64, RknpuError> {
        let mut argument = RknpuMemMap { handle, ..Default::default() };
        self.call(uapi::MEM_MAP, &mut argument).map_err(|source| RknpuError::MemMap { handle, source })?;
        Ok(argument.offset)
    }

    /// Maps the first `len` bytes of the buffer at `offset`.
    ///
    /// # Errors
    /// [`RknpuError::Mmap`].
    pub fn mmap(&self, offset: u64, len: usize) -> Result<Mapping, RknpuError> {
        self.transport.mmap(offset, len).map_err(|source| RknpuError::Mmap { offset, len, source })
    }

    /// Drops a handle. Mappings keep the buffer alive.
    ///
    /// # Errors
    /// [`RknpuError::MemDestroy`].
    pub fn mem_destroy(&self, handle: u32) -> Result<(), RknpuError> {
        let mut argument = RknpuMemDestroy { handle, ..Default::default() };
        self.call(uapi::MEM_DESTROY, &mut argument)
            .map_err(|source| RknpuError::MemDestroy { handle, source })
    }

    /// Cleans (`TO_DEVICE`) or invalidates (`FROM_DEVICE`) the CPU caches for a range of a cacheable buffer.
    ///
    /// # Errors
    /// [`RknpuError::MemSync`].
    ///
    /// # Safety
    /// `obj_addr` must belong to a live buffer of this driver: the kernel follows it without a check.
    pub unsafe fn mem_sync(
        &self,
        obj_addr: u64,
        offset: u64,
        size: u64,
        direction: u32,
    ) -> Result<(), RknpuError> {
        let mut argument = RknpuMemSync { flags: direction, reserved: 0, obj_addr, offset, size };
        self.call(uapi::MEM_SYNC, &mut argument).map_err(|source| RknpuError::MemSync {
            offset,
            size,
            source,
        })
    }

    /// Runs a job.
    ///
    /// # Errors
    /// [`RknpuError::Submit`], with the hardware's task counter.
    ///
    /// # Safety
    /// `task_obj_addr` must belong to a live buffer with a kernel mapping, which holds all tasks that the ranges
    /// name: the kernel follows it without a check. The programs make the NPU write memory; what they write must
    /// not be borrowed.
    pub unsafe fn submit(&self, request: &RknpuSubmit) -> Result<SubmitReport, RknpuError> {
        let mut argument = *request;
        self.call(uapi::SUBMIT, &mut argument).map_err(|source| RknpuError::Submit {
            core_mask: request.core_mask,
            task_number: request.task_number,
            task_counter: argument.task_counter,
            source,
        })?;
        Ok(SubmitReport {
            task_counter: argument.task_counter,
            hw_elapse_ns: argument.hw_elapse_time,
            fence_fd: argument.fence_fd,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Answers with a list of results and scribbles over the struct each time, as a kernel may.
    #[derive(Debug)]
    struct Scripted {
        answers: Mutex<Vec<Result<(), Errno>>>,
        seen: Mutex<Vec<(u32, Vec<u8>)>>,
    }

    impl Scripted {
        fn new(answers: &[Result<(), Errno>]) -> Rknpu<Self> {
            let answers = answers.iter().rev().copied().collect();
            Rknpu::new(Self { answers: Mutex::new(answers), seen: Mutex::default() })
        }
    }

    impl Transport for Scripted {
        unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
            self.seen.lock().unwrap().push((request, argument.to_vec()));
            argument.fill(0x11);
            self.answers.lock().unwrap().pop().unwrap_or(Err(Errno::EINTR))
        }

        fn mmap(&self, _: u64, _: usize) -> Result<Mapping, Errno> {
            Err(Errno::EACCES)
        }
    }

    #[test]
    fn interrupted_calls_are_repeated_with_their_original_input() {
        let npu = Scripted::new(&[Err(Errno::EINTR), Err(Errno::EAGAIN), Ok(())]);
        let request = RknpuSubmit { flags: 5, task_number: 3, ..Default::default() };
        // SAFETY: the scripted transport follows no address.
        let report = unsafe { npu.submit(&request) }.unwrap();
        assert_eq!((report.task_counter, npu.interruptions()), (0x1111_1111, 2));
        let seen = npu.transport().seen.lock().unwrap();
        assert_eq!(seen.len(), 3);
        assert!(seen.iter().all(|(number, bytes)| *number == uapi::SUBMIT && *bytes == request.as_bytes()));
    }

    #[test]
    fn endless_interruption_ends() {
        let npu = Scripted::new(&[]);
        assert_eq!(npu.mem_map(1).unwrap_err().errno(), Errno::EINTR);
        assert_eq!(npu.transport().seen.lock().unwrap().len(), INTERRUPTED_ATTEMPTS_MAX as usize);
    }

    #[test]
    fn a_failed_submit_carries_the_counter_that_the_kernel_wrote() {
        let npu = Scripted::new(&[Err(Errno::ETIMEDOUT)]);
        let request = RknpuSubmit { core_mask: 2, task_number: 9, ..Default::default() };
        // SAFETY: the scripted transport follows no address.
        let error = unsafe { npu.submit(&request) }.unwrap_err();
        let expected = RknpuError::Submit {
            core_mask: 2,
            task_number: 9,
            task_counter: 0x1111_1111,
            source: Errno::ETIMEDOUT,
        };
        assert_eq!(error, expected);
        assert!(error.hint().unwrap().contains("never completed"));
    }

    #[test]
    fn each_operation_has_its_error() {
        let npu = Scripted::new(&[Err(Errno::EFAULT); 6]);
        let request = CreateRequest { size: 5, flags: 0, domain: 3 };
        let create = npu.mem_create(&request).unwrap_err();
        assert_eq!(create, RknpuError::MemCreate { size: 5, domain: 3, source: Errno::EFAULT });
        assert!(create.hint().unwrap().contains("4 GiB"));
        assert!(matches!(npu.mem_destroy(7).unwrap_err(), RknpuError::MemDestroy { handle: 7, .. }));
        // SAFETY: the scripted transport follows no address.
        let sync = unsafe { npu.mem_sync(1, 64, 128, 1) }.unwrap_err();
        assert!(matches!(sync, RknpuError::MemSync { offset: 64, size: 128, .. }));
        assert!(matches!(npu.reset().unwrap_err(), RknpuError::Action { action: 6, .. }));
        assert!(matches!(npu.mmap(9, 10).unwrap_err(), RknpuError::Mmap { offset: 9, len: 10, .. }));
    }

    #[test]
    fn create_sends_the_48_byte_struct() {
        let npu = Scripted::new(&[Ok(())]);
        npu.mem_create(&CreateRequest { size: 4096, flags: 0x403, domain: 2 }).unwrap();
        let seen = npu.transport().seen.lock().unwrap();
        let (number, bytes) = &seen[0];
        assert_eq!((*number, bytes.len()), (0xC030_6442, 48));
        assert_eq!(bytes[4..8], 0x403_u32.to_le_bytes());
        assert_eq!(bytes[40..44], 2_i32.to_le_bytes());
    }
}
