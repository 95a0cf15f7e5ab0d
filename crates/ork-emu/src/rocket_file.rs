// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device file of the mainline driver: its own address space, its buffers, its submits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use ork_drm::{Errno, Mapping, NodeKind, Transport, uapi as drm};
use ork_rknpu::uapi::sync;
use ork_rocket::uapi::{
    self, RocketCreateBo, RocketFiniBo, RocketJob as RawJob, RocketPrepBo, RocketSubmit, RocketTask, number,
};

use crate::board::{Driver, Inner};
use crate::bus::Space;
use crate::call::Call;
use crate::domain::{AddressSpace, Alignment, Placement};
use crate::fault::Fault;
use crate::fence::monotonic_ns;
use crate::finding::{FindingKind, Vanishing};
use crate::gem_file::{GemFile, Identity};
use crate::grant::{EmulatedFile, Grant};
use crate::lane::Work;
use crate::lock::{Mutex, RwLock};
use crate::object::{Allocation, Object};
use crate::rocket_job::{Completion, RocketJob};
use crate::user_memory;

const IDENTITY: Identity = Identity {
    version: [0, 0, 0],
    name: "rocket",
    // Drivers have no date since Linux 6.14; the ioctl answers with this in its place.
    date: "0",
    description: "rocket DRM",
};

/// An open device file of the `rocket` driver.
pub struct VirtualRocket {
    file: Arc<GemFile>,
    space: Arc<RwLock<AddressSpace>>,
    entity: Arc<Entity>,
}

/// A file's place in the scheduler: its jobs stay on one core until all are done.
#[derive(Default)]
pub(crate) struct Entity(Mutex<EntityState>);

#[derive(Default)]
struct EntityState {
    core: u8,
    pending: u32,
}

impl Entity {
    /// The core of the next job, which is pending from now on.
    fn enter(&self, idle_choice: impl FnOnce() -> u8) -> u8 {
        let mut state = self.0.lock();
        if state.pending == 0 {
            state.core = idle_choice();
        }
        state.pending += 1;
        state.core
    }

    pub(crate) fn finished(&self) {
        self.0.lock().pending -= 1;
    }
}

impl VirtualRocket {
    pub(crate) fn new(board: Arc<Inner>) -> Self {
        Self {
            file: GemFile::new(board, Driver::Rocket, NodeKind::Accel),
            space: Arc::new(RwLock::new(AddressSpace::new(Placement::BottomUp(0), Errno::ENOSPC))),
            entity: Arc::default(),
        }
    }

    fn create(&self, argument: &mut RocketCreateBo) -> Result<(), Errno> {
        let request = Allocation {
            driver: Driver::Rocket,
            size: argument.size.into(),
            alignment: Alignment::Page,
            cacheable: true,
            kernel_mapping: false,
            sram: 0,
            domain: 0,
            space: Arc::clone(&self.space),
        };
        let object = Object::allocate(&self.file.board, &request)?;
        argument.handle = self.file.insert(&object);
        argument.dma_address = object.iova.into();
        argument.offset = object.offset.ok_or(Errno::EINVAL)?;
        Ok(())
    }

    /// PREP_BO: waits for writers, then invalidates, also when the wait failed.
    fn prep(&self, argument: &mut RocketPrepBo) -> Result<(), Errno> {
        if argument.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        let object = self.file.object(argument.handle).ok_or(Errno::ENOENT)?;
        let left_ns = argument.timeout_ns.saturating_sub(i64::try_from(monotonic_ns()).unwrap_or(i64::MAX));
        let waits = argument.timeout_ns > 0 && left_ns > 0;
        // Centuries are for ever.
        const FOR_EVER_NS: i64 = i64::MAX / 4;
        let deadline = (left_ns < FOR_EVER_NS)
            .then(|| Instant::now() + Duration::from_nanos(if waits { left_ns as u64 } else { 0 }));
        let done = object
            .writers()
            .iter()
            .all(|writer| if waits { writer.wait_until(deadline) } else { writer.is_done() });
        object.maintain(sync::FROM_DEVICE, 0, object.size);
        match (done, waits) {
            (true, _) => Ok(()),
            (false, true) => Err(Errno::ETIMEDOUT),
            (false, false) => Err(Errno::EBUSY),
        }
    }

    fn fini(&self, argument: &mut RocketFiniBo) -> Result<(), Errno> {
        if argument.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        let object = self.file.object(argument.handle).ok_or(Errno::ENOENT)?;
        object.maintain(sync::TO_DEVICE, 0, object.size);
        Ok(())
    }

    /// SUBMIT: errors of single jobs are thrown away.
    fn submit(&self, argument: &mut RocketSubmit) -> Result<(), Errno> {
        if argument.job_count == 0 {
            return Ok(());
        }
        if (argument.job_struct_size as usize) < size_of::<RawJob>() || argument.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        let jobs: Vec<RawJob> =
            user_memory::copy_array(argument.jobs, argument.job_count, argument.job_struct_size)?;
        for (index, job) in (0..).zip(&jobs) {
            match self.submit_one(job) {
                Ok(()) => {}
                Err(why) => self.file.board.report(None, 0, FindingKind::Vanished { index, why }),
            }
        }
        Ok(())
    }

    fn submit_one(&self, raw: &RawJob) -> Result<(), Vanishing> {
        if raw.task_count == 0 {
            return Err(Vanishing::NoTasks);
        }
        if (raw.task_struct_size as usize) < size_of::<RocketTask>() {
            return Err(Vanishing::Stride);
        }
        let tasks: Vec<RocketTask> = user_memory::copy_array(raw.tasks, raw.task_count, raw.task_struct_size)
            .map_err(|_| Vanishing::BadPointer)?;
        if tasks.iter().any(|task| task.regcmd_count == 0) {
            return Err(Vanishing::EmptyTask);
        }
        let reads = self.listed(raw.in_bo_handles, raw.in_bo_handle_count)?;
        let writes = self.listed(raw.out_bo_handles, raw.out_bo_handle_count)?;
        let board = &self.file.board;
        let number = board.next_job();
        let both = writes.iter().find(|(_, write)| reads.iter().any(|(_, read)| Arc::ptr_eq(read, write)));
        if let Some((handle, _)) = both {
            board.report(None, number, FindingKind::ReadAndWritten { handle: *handle });
        }
        let listed: Vec<Arc<Object>> =
            reads.iter().chain(&writes).map(|(_, object)| Arc::clone(object)).collect();
        let completion = Arc::new(Completion::default());
        let order = board.order.lock();
        let core = self.entity.enter(|| {
            let all = 0..board.options.soc.cores();
            all.min_by_key(|core| board.cores[usize::from(*core)].lane.load(*core)).unwrap_or(0)
        });
        board.counts.jobs.up();
        let job = Arc::new(RocketJob {
            board: Arc::clone(board),
            file: self.file.id,
            number,
            space: Space::Fixed(Arc::clone(&self.space)),
            tasks,
            waits_for: listed.iter().flat_map(|object| object.writers()).collect(),
            completion: Arc::clone(&completion),
            hollow: both.is_some(),
            listed: Mutex::new(listed),
            cancelled: AtomicBool::new(false),
            entity: Arc::clone(&self.entity),
        });
        for (_, object) in &writes {
            object.add_writer(&completion);
        }
        let work: Arc<dyn Work> = job;
        let queued = board.cores[usize::from(core)].lane.push(core, Arc::clone(&work));
        drop(order);
        if queued.is_err() {
            work.discard();
        }
        Ok(())
    }

    fn listed(&self, address: u64, count: u32) -> Result<Vec<(u32, Arc<Object>)>, Vanishing> {
        let handles: Vec<u32> =
            user_memory::copy_array(address, count, 4).map_err(|_| Vanishing::BadPointer)?;
        let object = |handle| Some((handle, self.file.object(handle)?));
        handles.into_iter().map(|handle| object(handle).ok_or(Vanishing::UnknownHandle)).collect()
    }
}

impl fmt::Debug for VirtualRocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VirtualRocket({} handles)", self.file.handle_count())
    }
}

impl Transport for VirtualRocket {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let call = Call::new(request, argument)?;
        if drm::kind(request) != drm::TYPE {
            return Err(Errno::ENOTTY);
        }
        let _busy = self.file.board.clocks.call();
        let number = drm::number(request);
        // Only the call that waits can be interrupted.
        if number == number::PREP_BO && self.file.board.injects(Fault::Interrupted) {
            return Err(Errno::EINTR);
        }
        match number {
            number::CREATE_BO => call.with(uapi::CREATE_BO, |argument| self.create(argument)),
            number::SUBMIT => call.with(uapi::SUBMIT, |argument| self.submit(argument)),
            number::PREP_BO => call.with(uapi::PREP_BO, |argument| self.prep(argument)),
            number::FINI_BO => call.with(uapi::FINI_BO, |argument| self.fini(argument)),
            // The driver imports nothing but its own exports.
            // SAFETY: the caller vouches for the addresses inside the struct.
            _ => unsafe { self.file.core_call(call, &IDENTITY, |_| Err(Errno::EINVAL)) },
        }
    }

    fn mmap(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        self.grant(offset, len).map(Grant::into_mapping)
    }
}

impl EmulatedFile for VirtualRocket {
    fn grant(&self, offset: u64, len: usize) -> Result<Grant, Errno> {
        self.file.grant(offset, len)
    }
}
