// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ork_drm::{Errno, Mapping, Transport};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::RocketError;
use crate::uapi::{self, RocketCreateBo, RocketFiniBo, RocketJob, RocketPrepBo, RocketSubmit, RocketTask};

/// Attempts of one call before an unending `EINTR` or `EAGAIN` is reported as it is.
const INTERRUPTED_ATTEMPTS_MAX: u32 = 1000;

/// An open `rocket` device file. It has an address space of its own.
///
/// All calls may come from several threads at once.
#[derive(Debug)]
pub struct Rocket<T> {
    transport: T,
    interruptions: AtomicU64,
}

/// A buffer as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bo {
    /// GEM handle in this file.
    pub handle: u32,
    /// Address for the NPU; 0 is a valid one.
    pub dma_address: u64,
    /// Offset for mmap.
    pub offset: u64,
}

/// One program of a job.
pub type Task = RocketTask;

/// Programs that run one after the other on one core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// The programs.
    pub tasks: Vec<Task>,
    /// Buffers that wait for earlier writers.
    pub reads: Vec<u32>,
    /// Buffers that PREP_BO waits for.
    pub writes: Vec<u32>,
}

/// Why the kernel would drop a job without a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It has no task.
    NoTasks,
    /// A task has no words.
    EmptyTask {
        /// Which one.
        index: usize,
    },
    /// A buffer is both read and written: the job counts as done, but nothing runs.
    ReadAndWritten {
        /// Which one.
        handle: u32,
    },
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTasks => f.write_str("the job has no task"),
            Self::EmptyTask { index } => write!(f, "task {index} has no words"),
            Self::ReadAndWritten { handle } => {
                write!(f, "buffer {handle} is listed as read and as written, and nothing would run")
            }
        }
    }
}

impl Job {
    /// What makes the kernel drop the job silently, as far as it can be told without the kernel (unknown handles
    /// cannot).
    #[must_use]
    pub fn flaw(&self) -> Option<Flaw> {
        if self.tasks.is_empty() {
            return Some(Flaw::NoTasks);
        }
        if let Some(index) = self.tasks.iter().position(|task| task.regcmd_count == 0) {
            return Some(Flaw::EmptyTask { index });
        }
        self.reads
            .iter()
            .find(|handle| self.writes.contains(handle))
            .map(|handle| Flaw::ReadAndWritten { handle: *handle })
    }
}

/// Address and count of an array that the kernel reads.
fn array<T>(items: &[T]) -> (u64, u32) {
    let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
    (items.as_ptr().expose_provenance() as u64, count)
}

impl<T: Transport> Rocket<T> {
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

    /// Repeats an interrupted call with its original input.
    ///
    /// # Safety
    /// Addresses inside the argument must be valid for what the request does with them.
    unsafe fn call<A>(&self, request: u32, argument: &mut A) -> Result<(), Errno>
    where
        A: Copy + FromBytes + IntoBytes + Immutable,
    {
        let original = *argument;
        let mut attempts = 1;
        loop {
            *argument = original;
            // SAFETY: the caller's promise.
            match unsafe { self.transport.ioctl(request, argument.as_mut_bytes()) } {
                Err(Errno::EINTR | Errno::EAGAIN) if attempts < INTERRUPTED_ATTEMPTS_MAX => {
                    attempts += 1;
                    self.interruptions.fetch_add(1, Relaxed);
                }
                result => return result,
            }
        }
    }

    /// Allocates a zeroed buffer with a cached CPU mapping.
    ///
    /// # Errors
    /// [`RocketError::CreateBo`].
    pub fn create_bo(&self, size: u32) -> Result<Bo, RocketError> {
        let mut argument = RocketCreateBo { size, ..Default::default() };
        // SAFETY: the struct holds no address of this process.
        unsafe { self.call(uapi::CREATE_BO, &mut argument) }
            .map_err(|source| RocketError::CreateBo { size, source })?;
        let RocketCreateBo { handle, dma_address, offset, .. } = argument;
        Ok(Bo { handle, dma_address, offset })
    }

    /// Maps the first `len` bytes of the buffer at `offset`.
    ///
    /// # Errors
    /// [`RocketError::Mmap`].
    pub fn mmap(&self, offset: u64, len: usize) -> Result<Mapping, RocketError> {
        self.transport.mmap(offset, len).map_err(|source| RocketError::Mmap { offset, len, source })
    }

    /// Drops a handle. Mappings and running jobs keep the buffer alive.
    ///
    /// # Errors
    /// [`RocketError::Close`].
    pub fn close_bo(&self, handle: u32) -> Result<(), RocketError> {
        ork_drm::close_handle(&self.transport, handle).map_err(|source| RocketError::Close { handle, source })
    }

    /// Waits until no job that lists the buffer as written is in flight, at most until the absolute
    /// `CLOCK_MONOTONIC` time, then makes the whole buffer readable for the CPU (also when the wait failed). 0 or
    /// a time in the past looks once; `i64::MAX` waits for ever.
    ///
    /// That the wait succeeds does not say that a job ran: one that timed out looks finished.
    ///
    /// # Errors
    /// [`RocketError::PrepBo`]: `EBUSY` if it looked once, `ETIMEDOUT` if it waited.
    pub fn prep_bo(&self, handle: u32, deadline_ns: i64) -> Result<(), RocketError> {
        let mut argument = RocketPrepBo { handle, reserved: 0, timeout_ns: deadline_ns };
        // SAFETY: the struct holds no address.
        unsafe { self.call(uapi::PREP_BO, &mut argument) }
            .map_err(|source| RocketError::PrepBo { handle, source })
    }

    /// Makes what the CPU wrote anywhere in the buffer visible to the NPU.
    ///
    /// # Errors
    /// [`RocketError::FiniBo`].
    pub fn fini_bo(&self, handle: u32) -> Result<(), RocketError> {
        let mut argument = RocketFiniBo { handle, reserved: 0 };
        // SAFETY: the struct holds no address.
        unsafe { self.call(uapi::FINI_BO, &mut argument) }
            .map_err(|source| RocketError::FiniBo { handle, source })
    }

    /// Queues jobs. Whether one of them runs, only its output tells.
    ///
    /// # Errors
    /// [`RocketError::Submit`], for the call as a whole only.
    ///
    /// # Safety
    /// The programs make the NPU write memory; what they write must not be borrowed until PREP_BO succeeded.
    pub unsafe fn submit(&self, jobs: &[Job]) -> Result<(), RocketError> {
        let raw: Vec<RocketJob> = jobs
            .iter()
            .map(|job| {
                let (tasks, task_count) = array(&job.tasks);
                let (in_bo_handles, in_bo_handle_count) = array(&job.reads);
                let (out_bo_handles, out_bo_handle_count) = array(&job.writes);
                RocketJob {
                    tasks,
                    in_bo_handles,
                    out_bo_handles,
                    task_count,
                    task_struct_size: size_of::<RocketTask>() as u32,
                    in_bo_handle_count,
                    out_bo_handle_count,
                }
            })
            .collect();
        let (address, job_count) = array(&raw);
        let job_struct_size = size_of::<RocketJob>() as u32;
        let mut argument = RocketSubmit { jobs: address, job_count, job_struct_size, reserved: 0 };
        // SAFETY: all addresses are those of live slices with their lengths; the kernel copies them in the call.
        unsafe { self.call(uapi::SUBMIT, &mut argument) }
            .map_err(|source| RocketError::Submit { jobs: jobs.len(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Records what it is told and answers with a list of results.
    #[derive(Debug)]
    struct Scripted {
        answers: Mutex<Vec<Result<(), Errno>>>,
        seen: Mutex<Vec<(u32, Vec<u8>)>>,
    }

    impl Scripted {
        fn new(answers: &[Result<(), Errno>]) -> Rocket<Self> {
            let answers = answers.iter().rev().copied().collect();
            Rocket::new(Self { answers: Mutex::new(answers), seen: Mutex::default() })
        }
    }

    impl Transport for Scripted {
        unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
            self.seen.lock().unwrap().push((request, argument.to_vec()));
            self.answers.lock().unwrap().pop().unwrap_or(Err(Errno::EINTR))
        }

        fn mmap(&self, _: u64, _: usize) -> Result<Mapping, Errno> {
            Err(Errno::EACCES)
        }
    }

    #[test]
    fn interrupted_calls_are_repeated_and_end() {
        let npu = Scripted::new(&[Err(Errno::EINTR), Err(Errno::EAGAIN), Ok(())]);
        npu.prep_bo(4, i64::MAX).unwrap();
        assert_eq!((npu.transport().seen.lock().unwrap().len(), npu.interruptions()), (3, 2));
        assert_eq!(npu.fini_bo(4).unwrap_err().errno(), Errno::EINTR);
    }

    #[test]
    fn each_operation_has_its_error() {
        let npu = Scripted::new(&[
            Err(Errno::ENOSPC),
            Err(Errno::EBUSY),
            Err(Errno::ENOENT),
            Err(Errno::EFAULT),
            Err(Errno::EINVAL),
        ]);
        let create = npu.create_bo(5).unwrap_err();
        assert!(matches!(create, RocketError::CreateBo { size: 5, .. }));
        assert!(create.hint().unwrap().contains("4 GiB"));
        let busy = npu.prep_bo(7, 1000).unwrap_err();
        assert!(busy.hint().unwrap().contains("absolute"));
        assert!(matches!(npu.fini_bo(8).unwrap_err(), RocketError::FiniBo { handle: 8, .. }));
        // SAFETY: the scripted transport follows no address.
        let submit = unsafe { npu.submit(&[Job::default()]) }.unwrap_err();
        assert_eq!(submit, RocketError::Submit { jobs: 1, source: Errno::EFAULT });
        assert!(matches!(npu.close_bo(3).unwrap_err(), RocketError::Close { handle: 3, .. }));
        assert!(matches!(npu.mmap(9, 10).unwrap_err(), RocketError::Mmap { offset: 9, len: 10, .. }));
    }

    #[test]
    fn a_submit_carries_strides_and_counts() {
        let npu = Scripted::new(&[Ok(())]);
        let job = Job { tasks: vec![Task { regcmd: 0, regcmd_count: 126 }], reads: vec![1], writes: vec![] };
        // SAFETY: the scripted transport follows no address.
        unsafe { npu.submit(&[job.clone(), job]) }.unwrap();
        let seen = npu.transport().seen.lock().unwrap();
        let submit = RocketSubmit::read_from_bytes(&seen[0].1).unwrap();
        assert_eq!((seen[0].0, submit.job_count, submit.job_struct_size), (uapi::SUBMIT, 2, 40));
        assert_ne!(submit.jobs, 0);
    }

    #[test]
    fn flaws_are_found_before_the_kernel_hides_them() {
        let task = Task { regcmd: 0, regcmd_count: 1 };
        let good = Job { tasks: vec![task], reads: vec![1], writes: vec![2] };
        assert_eq!(good.flaw(), None);
        assert_eq!(Job::default().flaw(), Some(Flaw::NoTasks));
        let empty = Job { tasks: vec![task, Task::default()], ..Job::default() };
        assert_eq!(empty.flaw(), Some(Flaw::EmptyTask { index: 1 }));
        let both = Job { reads: vec![1, 2], ..good };
        assert_eq!(both.flaw(), Some(Flaw::ReadAndWritten { handle: 2 }));
    }
}
