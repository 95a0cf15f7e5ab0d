// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mainline driver.
//!
//! What makes it different (`uapi.md` B.2): cache maintenance of whole buffers only, which also is the wait; each
//! program is a start of its own; a job that failed looks finished. So nothing that this driver says about a job is
//! believed further up without a proof from the job's output.

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use ork_drm::{Errno, Mapping, Transport, monotonic_ns};
use ork_isa::TRAILER_WORDS;
use ork_rocket::{Job as RocketJob, Rocket, RocketError, Task as RocketTask};

use crate::buffer::DomainId;
use crate::kernel::{
    Direction, DriverKind, Ended, Feature, Features, Fence, Fenced, Job, Kernel, KernelError, Object,
    Request, Unsupported, Word,
};

/// Programs of one kernel job. The driver gives a job 500 ms for all its programs; the longest program that plans
/// contain takes a few milliseconds (`isa.md` §12), so that this many fit several times over.
const TASKS_PER_JOB: usize = 32;

#[derive(Debug)]
pub(crate) struct RocketKernel {
    npu: Rocket<Arc<dyn Transport>>,
    features: Features,
    /// Holds address 0, which the driver would give to the first buffer: a program with an address that nobody
    /// filled in must not find somebody's data there.
    guard: Option<u32>,
}

impl RocketKernel {
    pub(crate) fn new(npu: Rocket<Arc<dyn Transport>>) -> Result<Self, RocketError> {
        let first = npu.create_bo(4096)?;
        let guard = (first.dma_address == 0).then_some(first.handle);
        if guard.is_none() {
            npu.close_bo(first.handle)?;
        }
        let features = Features {
            driver: DriverKind::Rocket,
            name: ork_rocket::DRIVER_NAME.to_owned(),
            list: vec![Feature::HiddenErrors],
            domains: 1,
        };
        Ok(Self { npu, features, guard })
    }

    fn unsupported(&self, feature: Feature) -> KernelError {
        Unsupported { feature, driver: self.features.name.clone() }.into()
    }
}

impl Drop for RocketKernel {
    fn drop(&mut self) {
        if let Some(handle) = self.guard {
            // The file closes right after.
            let _ = self.npu.close_bo(handle);
        }
    }
}

impl Kernel for RocketKernel {
    fn features(&self) -> &Features {
        &self.features
    }

    fn wants_task_array(&self) -> bool {
        false
    }

    fn alloc(&self, request: &Request) -> Result<Object, KernelError> {
        if request.sram {
            return Err(self.unsupported(Feature::Sram));
        }
        // The call takes 32 bits; all of the window cannot be had anyway.
        let size = u32::try_from(request.len).unwrap_or(u32::MAX);
        let bo = self.npu.create_bo(size)?;
        Ok(Object {
            handle: bo.handle,
            name: bo.offset,
            dma_addr: bo.dma_address,
            size: u64::from(size).next_multiple_of(4096),
            sram_bytes: 0,
        })
    }

    fn map(&self, object: &Object, len: usize) -> Result<Mapping, KernelError> {
        Ok(self.npu.mmap(object.name, len)?)
    }

    fn free(&self, object: &Object) -> Result<(), KernelError> {
        Ok(self.npu.close_bo(object.handle)?)
    }

    unsafe fn sync(
        &self,
        object: &Object,
        _range: Range<u64>,
        direction: Direction,
    ) -> Result<u64, KernelError> {
        match direction {
            Direction::ToDevice => self.npu.fini_bo(object.handle)?,
            // Whoever syncs knows that no job runs; a time in the past looks once.
            Direction::FromDevice => self.npu.prep_bo(object.handle, 1)?,
        }
        Ok(object.size)
    }

    fn import(&self, _fd: RawFd, _domain: DomainId) -> Result<Object, KernelError> {
        Err(self.unsupported(Feature::ImportDmaBuf))
    }

    unsafe fn run(&self, _job: &Job<'_>) -> Result<Ended, KernelError> {
        Err(self.unsupported(Feature::BlockingSubmit))
    }

    unsafe fn start(&self, job: &Job<'_>, fenced: Fenced) -> Result<Option<Fence>, KernelError> {
        if fenced == Fenced::Yes {
            return Err(self.unsupported(Feature::Fences));
        }
        let writes: Vec<u32> = job.output.iter().map(|output| output.handle).collect();
        let task = |task: &crate::Task| RocketTask {
            regcmd: task.regcmd.0,
            // With the trailer, which the vendor's driver does not count.
            regcmd_count: task.body_words + TRAILER_WORDS as u32,
        };
        let jobs: Vec<RocketJob> = job
            .tasks
            .chunks(TASKS_PER_JOB)
            .map(|tasks| RocketJob {
                tasks: tasks.iter().map(task).collect(),
                // Inputs need no listing: the CPU wrote them, and no job does.
                reads: Vec::new(),
                writes: writes.clone(),
            })
            .collect();
        debug_assert!(jobs.iter().all(|job| job.flaw().is_none()), "the kernel would drop it silently");
        // SAFETY: the caller's promise.
        unsafe { self.npu.submit(&jobs) }?;
        Ok(None)
    }

    unsafe fn wait(&self, object: &Object, limit: Duration) -> Result<(Word, u64), KernelError> {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        // 0 would be a time in the past as well, but says less.
        let deadline = monotonic_ns().saturating_add(limit_ns).max(1);
        let word = match self.npu.prep_bo(object.handle, i64::try_from(deadline).unwrap_or(i64::MAX)) {
            Ok(()) => Word::Ended,
            Err(RocketError::PrepBo { source: Errno::EBUSY | Errno::ETIMEDOUT, .. }) => Word::Busy,
            Err(error) => return Err(error.into()),
        };
        Ok((word, object.size))
    }

    fn reset(&self) -> Result<(), KernelError> {
        Err(self.unsupported(Feature::Reset))
    }

    fn live_domain(&self) -> Option<u32> {
        None
    }

    fn try_lock(&self) -> Result<bool, Errno> {
        self.npu.transport().try_lock()
    }

    fn interruptions(&self) -> u64 {
        self.npu.interruptions()
    }
}
