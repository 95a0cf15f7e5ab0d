// SPDX-License-Identifier: MIT OR Apache-2.0
//! The vendor's driver.

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use ork_drm::{Errno, Mapping, Transport, import_fd};
use ork_rknpu::uapi::{self, RknpuSubcoreTask, RknpuSubmit, action, job, mem};
use ork_rknpu::{CreateRequest, Rknpu, RknpuError};

use crate::buffer::DomainId;
use crate::device::DeviceInfo;
use crate::found::dotted;
use crate::kernel::{
    Direction, DriverKind, Ended, Feature, Features, Fence, Fenced, Job, Kernel, KernelError, Object,
    Request, Word,
};

/// First driver with address spaces (`uapi.md` A.14).
const DOMAINS_SINCE: u32 = 906;

/// First driver whose source is known to compare the microseconds that a job has run with its limit in milliseconds,
/// before it starts another one that nobody waits for (`uapi.md` A.9, A.11 row 12).
const MICROSECONDS_SINCE: u32 = 908;
/// From the last byte of a job's output until its interrupt is handled, with a margin.
const INTERRUPT: Duration = Duration::from_micros(100);

#[derive(Debug)]
pub(crate) struct RknpuKernel {
    npu: Rknpu<Arc<dyn Transport>>,
    features: Features,
    reaping: Reaping,
}

/// What the driver compares the time limit of a job that nobody waits for with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reaping {
    Milliseconds,
    /// Unless that was mended without another version.
    Microseconds,
}

impl Reaping {
    fn of(driver_version: u32) -> Self {
        if driver_version >= MICROSECONDS_SINCE { Self::Microseconds } else { Self::Milliseconds }
    }

    /// The time limit of a job that is lost after `patience`. One that is too small makes the driver throw away, and
    /// reset, a job that has just ended; one that is too large keeps a lost job on its core. So microseconds are given as
    /// microseconds, but never more than `timeout_ms`, after which a mended driver lets go, too.
    fn limit(self, patience: Duration, timeout_ms: u32) -> u32 {
        let whole = |units: u128| u32::try_from(units).unwrap_or(u32::MAX).max(1);
        // Rounded down: at the end of its window a job is overdue.
        let milliseconds = whole(patience.as_millis());
        match self {
            Self::Milliseconds => milliseconds,
            Self::Microseconds => whole(patience.as_micros()).min(timeout_ms).max(milliseconds),
        }
    }

    /// How long after its start such a job is overdue.
    fn overdue(self, patience: Duration, timeout_ms: u32) -> Duration {
        let limit = self.limit(patience, timeout_ms).into();
        match self {
            Self::Milliseconds => Duration::from_millis(limit),
            Self::Microseconds => Duration::from_micros(limit),
        }
    }

    fn lingers(self, flown: Duration, patience: Duration, timeout_ms: u32) -> Duration {
        let overdue = flown + INTERRUPT > self.overdue(patience, timeout_ms);
        if self == Self::Microseconds && overdue { INTERRUPT } else { Duration::ZERO }
    }
}

impl RknpuKernel {
    pub(crate) fn new(npu: Rknpu<Arc<dyn Transport>>, info: &DeviceInfo) -> Self {
        use Feature::{
            BlockingSubmit, Chains, CoreChoice, Domains, Fences, ImportDmaBuf, RangeSync, Reap, Reset, Sram,
        };
        let mut list = vec![Chains, CoreChoice, BlockingSubmit, Reap, Fences, RangeSync, Reset, ImportDmaBuf];
        let domains = if info.driver_version >= DOMAINS_SINCE && info.iommu {
            list.push(Domains);
            uapi::DOMAINS as u8
        } else {
            1
        };
        if info.sram_bytes != 0 {
            list.push(Sram);
        }
        let name = format!("{} {}", ork_rknpu::DRIVER_NAME, dotted(info.driver_version));
        let features = Features { driver: DriverKind::Rknpu, name, list, domains };
        Self { npu, features, reaping: Reaping::of(info.driver_version) }
    }

    fn request(job: &Job<'_>, flags: u32) -> RknpuSubmit {
        let count = job.tasks.len() as u32;
        let range = RknpuSubcoreTask { task_start: 0, task_number: count };
        let none = RknpuSubcoreTask::default();
        RknpuSubmit {
            flags: job::PC | flags | if job.ping_pong { job::PINGPONG } else { 0 },
            timeout: job.timeout_ms,
            task_number: count,
            task_obj_addr: job.task_array.map_or(0, |array| array.name),
            iommu_domain_id: u32::from(job.domain.0),
            core_mask: 1 << job.core,
            // A one-core job uses the entry of its core. All three are filled alike, so that no entry a kernel
            // could look at is empty.
            subcore_task: [range, range, range, none, none],
            ..RknpuSubmit::default()
        }
    }
}

impl Kernel for RknpuKernel {
    fn features(&self) -> &Features {
        &self.features
    }

    fn wants_task_array(&self) -> bool {
        true
    }

    fn alloc(&self, request: &Request) -> Result<Object, KernelError> {
        let mut flags = if request.kernel_mapping { mem::TASKS } else { mem::DATA };
        if request.sram {
            self.features.need(Feature::Sram)?;
            flags |= mem::TRY_ALLOC_SRAM;
        }
        let request = CreateRequest { size: request.len, flags, domain: i32::from(request.domain.0) };
        let buffer = self.npu.mem_create(&request)?;
        Ok(Object {
            handle: buffer.handle,
            name: buffer.obj_addr,
            dma_addr: buffer.dma_addr,
            size: buffer.size + buffer.sram_size,
            sram_bytes: buffer.sram_size,
        })
    }

    fn map(&self, object: &Object, len: usize) -> Result<Mapping, KernelError> {
        let offset = self.npu.mem_map(object.handle)?;
        Ok(self.npu.mmap(offset, len)?)
    }

    fn free(&self, object: &Object) -> Result<(), KernelError> {
        Ok(self.npu.mem_destroy(object.handle)?)
    }

    unsafe fn sync(
        &self,
        object: &Object,
        range: Range<u64>,
        direction: Direction,
    ) -> Result<u64, KernelError> {
        let flags = match direction {
            Direction::ToDevice => uapi::sync::TO_DEVICE,
            Direction::FromDevice => uapi::sync::FROM_DEVICE,
        };
        let size = range.end - range.start;
        // SAFETY: the caller keeps the object alive.
        unsafe { self.npu.mem_sync(object.name, range.start, size, flags) }?;
        Ok(size)
    }

    fn import(&self, fd: RawFd, domain: DomainId) -> Result<Object, KernelError> {
        // The pages are mapped into whatever domain is live at this moment (`uapi.md` A.5).
        if self.features.has(Feature::Domains) {
            self.npu.action(action::SET_IOMMU_DOMAIN_ID, u32::from(domain.0))?;
        }
        let transport = self.npu.transport();
        let handle = import_fd(transport, fd)
            .map_err(|source| KernelError::File { doing: "cannot import a dma-buf", source })?;
        match self.npu.mem_query(handle) {
            Ok(buffer) => Ok(Object {
                handle: buffer.handle,
                name: buffer.obj_addr,
                dma_addr: buffer.dma_addr,
                size: buffer.size,
                sram_bytes: 0,
            }),
            Err(error) => {
                // The handle is of no use without its address.
                let _ = ork_drm::close_handle(transport, handle);
                Err(error.into())
            }
        }
    }

    unsafe fn run(&self, job: &Job<'_>) -> Result<Ended, KernelError> {
        let request = Self::request(job, 0);
        // SAFETY: the caller's promise.
        match unsafe { self.npu.submit(&request) } {
            Ok(report) => Ok(Ended::Done {
                tasks: report.task_counter,
                ns: u64::try_from(report.hw_elapse_ns).unwrap_or(0),
            }),
            Err(RknpuError::Submit { source: Errno::ETIMEDOUT, task_counter, .. }) => {
                Ok(Ended::TimedOut { tasks: task_counter })
            }
            Err(RknpuError::Submit { source: Errno::EOPNOTSUPP, .. }) => Ok(Ended::Unmodelled),
            Err(error) => Err(error.into()),
        }
    }

    unsafe fn start(&self, job: &Job<'_>, fenced: Fenced) -> Result<Option<Fence>, KernelError> {
        let fence = if fenced == Fenced::Yes { job::FENCE_OUT } else { 0 };
        let timeout = self.reaping.limit(job.patience, job.timeout_ms);
        let request = RknpuSubmit { timeout, ..Self::request(job, job::NONBLOCK | fence) };
        // SAFETY: the caller's promise.
        let report = unsafe { self.npu.submit(&request) }?;
        Ok((report.fence_fd >= 0).then_some(Fence(report.fence_fd)))
    }

    unsafe fn wait(&self, _object: &Object, _limit: Duration) -> Result<(Word, u64), KernelError> {
        Ok((Word::Silent, 0))
    }

    fn lingers(&self, flown: Duration, patience: Duration, timeout_ms: u32) -> Duration {
        self.reaping.lingers(flown, patience, timeout_ms)
    }

    fn reaps_after(&self, patience: Duration, timeout_ms: u32) -> Duration {
        self.reaping.overdue(patience, timeout_ms)
    }

    fn reset(&self) -> Result<(), KernelError> {
        Ok(self.npu.reset()?)
    }

    fn live_domain(&self) -> Option<u32> {
        self.features.has(Feature::Domains).then(|| self.npu.action(action::GET_IOMMU_DOMAIN_ID, 0).ok())?
    }

    fn try_lock(&self) -> Result<bool, Errno> {
        self.npu.transport().try_lock()
    }

    fn interruptions(&self) -> u64 {
        self.npu.interruptions()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_is_in_what_the_driver_compares_it_with() {
        let us = Duration::from_micros;
        let (old, new) = (Reaping::of(906), Reaping::of(908));
        assert_eq!((old.limit(us(2500), 6000), old.limit(us(500_000), 6000)), (2, 500));
        assert_eq!((old.limit(us(0), 6000), new.limit(us(0), 6000)), (1, 1));
        assert_eq!(new.limit(us(2500), 6000), 2500);
        assert_eq!(new.limit(us(500_000), 6000), 6000, "not for ever, should it be milliseconds");
        assert_eq!(new.limit(us(500_000), 100), 500, "and never before its window");
        for patience in [2_000, 2_999, 77_777, 500_000] {
            for reaping in [old, new] {
                assert!(reaping.overdue(us(patience), 6000) <= us(patience), "{reaping:?} {patience}");
            }
        }
    }

    #[test]
    fn only_what_looks_overdue_lingers() {
        let ms = Duration::from_millis;
        assert_eq!(Reaping::Microseconds.lingers(ms(1), ms(3), 6000), Duration::ZERO);
        assert_eq!(Reaping::Microseconds.lingers(ms(7), ms(21), 6000), INTERRUPT);
        assert_eq!(Reaping::Milliseconds.lingers(ms(7), ms(21), 6000), Duration::ZERO);
    }
}
