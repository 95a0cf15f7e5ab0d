// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, Release},
};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ork_drm::{Errno, NodeKind};
use ork_rknpu::uapi::DOMAINS;
use ork_sim::{Bus, Core, JobOutcome, PcJob};

use crate::CORES;
use crate::action::Meters;
use crate::bus::Owed;
use crate::busy::Clocks;
use crate::dma_buf::VirtualHeap;
use crate::domain::{AddressSpace, LiveDomain, Placement};
use crate::fault::Faults;
use crate::fd_table::{FdTable, HostFds};
use crate::finding::{Finding, FindingKind};
use crate::job::Job;
use crate::lane::Lane;
use crate::lock::{Mutex, RwLock};
use crate::memory::Dram;
use crate::object::Objects;
use crate::options::{EmuOptions, TimePolicy};
use crate::pages::Backing;
use crate::rknpu_file::VirtualRknpu;
use crate::rocket_file::VirtualRocket;

/// Findings that are kept until somebody takes them; older ones make room.
const FINDINGS_MAX: usize = 4096;
/// How long a soft reset takes.
const RESET: Duration = Duration::from_millis(100);
/// Where memory of a board without IOMMU starts.
const FIRST_PHYSICAL: u32 = 0x1000_0000;

/// What runs the programs of one core: the NPU model, or a stand-in that a test supplies.
pub trait Engine: Send {
    /// Back to the state after power-up.
    fn reset(&mut self);
    /// Runs a chain of programs to its end.
    fn run(&mut self, bus: &dyn Bus, job: &PcJob) -> JobOutcome;

    /// Whether it takes no time worth a thread: the call that submits a job runs it then, so that measurements of the
    /// host hold no hand-over between threads of the emulated kernel.
    fn is_instant(&self) -> bool {
        false
    }
}

impl Engine for Core {
    fn reset(&mut self) {
        Core::reset(self);
    }

    fn run(&mut self, bus: &dyn Bus, job: &PcJob) -> JobOutcome {
        Core::run(self, bus, job)
    }
}

/// Which driver something belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    Rknpu,
    Rocket,
}

/// An emulated board. Clones are the same board.
#[derive(Clone)]
pub struct Board(pub(crate) Arc<Inner>);

/// A counter of live things.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn up(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(crate) fn down(&self) {
        self.0.fetch_sub(1, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) files: Count,
    pub(crate) handles: Count,
    pub(crate) mappings: Count,
    pub(crate) objects: Count,
    pub(crate) jobs: Count,
    pub(crate) fences: Count,
    pub(crate) dma_bufs: Count,
    pub(crate) dram_bytes: Arc<AtomicU64>,
    pub(crate) lent_bytes: Arc<AtomicU64>,
    pub(crate) view_bytes: Arc<AtomicU64>,
    pub(crate) iova_bytes: AtomicU64,
    pub(crate) sram_bytes: AtomicU64,
}

pub(crate) struct CoreSlot {
    pub(crate) engine: Mutex<Box<dyn Engine>>,
    pub(crate) lane: Arc<Lane>,
    /// The reset lines were pulsed since the last job.
    pub(crate) reset_due: AtomicBool,
}

/// What all files of a board share.
pub(crate) struct Inner {
    pub(crate) options: EmuOptions,
    pub(crate) faults: Faults,
    pub(crate) fds: Arc<dyn FdTable>,
    /// The table, if it is the default one.
    host_fds: Option<Arc<HostFds>>,
    spaces: Vec<Arc<RwLock<AddressSpace>>>,
    pub(crate) live_domain: LiveDomain,
    pub(crate) objects: Mutex<Objects>,
    /// Held from the look at what is free to its use.
    allocating: Mutex<()>,
    /// Held while a job takes its places in the queues of its cores, from the look at the jobs that it must come after:
    /// so jobs stand in the same order in all queues, and no two wait for each other. A reset holds it too.
    pub(crate) order: Mutex<()>,
    pub(crate) cores: [CoreSlot; CORES],
    pub(crate) counts: Counts,
    pub(crate) meters: Meters,
    pub(crate) clocks: Arc<Clocks>,
    jobs: AtomicU64,
    files: AtomicU64,
    resetting: AtomicBool,
    /// Blocking jobs, which a reset wakes.
    waiting: Mutex<Vec<Weak<Job>>>,
    clock_ns: AtomicU64,
    pub(crate) owed: Owed,
    findings: Mutex<VecDeque<Finding>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for core in &self.cores {
            core.lane.close();
        }
    }
}

/// What exists on a board right now. All zero when every file, mapping and descriptor is gone and no job runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Open files, counting those that only a mapping keeps.
    pub files: u64,
    /// GEM handles of all files.
    pub handles: u64,
    /// CPU mappings.
    pub mappings: u64,
    /// Buffer objects.
    pub objects: u64,
    /// Jobs that run, wait, or are stuck.
    pub jobs: u64,
    /// Fences: pending, or with an open descriptor.
    pub fences: u64,
    /// dma-bufs: with an open descriptor, or imported.
    pub dma_bufs: u64,
    /// Domains other than 0 in which something is mapped.
    pub domains: u64,
    /// Bytes of device memory.
    pub dram_bytes: u64,
    /// Bytes of files that devices see as memory ([`DmaBuf::lend`](crate::DmaBuf::lend)).
    pub lent_bytes: u64,
    /// Bytes of CPU views of cacheable buffers.
    pub view_bytes: u64,
    /// Bytes of address space in use, all domains and files together.
    pub iova_bytes: u64,
    /// Bytes of on-chip SRAM in use.
    pub sram_bytes: u64,
}

/// Keeps a domain live, as a running job of another process would.
pub struct DomainHold(Arc<Inner>);

impl Drop for DomainHold {
    fn drop(&mut self) {
        self.0.live_domain.leave();
    }
}

impl fmt::Debug for DomainHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DomainHold")
    }
}

impl Board {
    /// A board with the NPU model on all cores.
    #[must_use]
    pub fn new(options: &EmuOptions) -> Self {
        Self::assemble(options, model(options), None)
    }

    /// A board with other cores than the NPU model.
    #[must_use]
    pub fn with_engines(options: &EmuOptions, engines: [Box<dyn Engine>; CORES]) -> Self {
        Self::assemble(options, engines, None)
    }

    /// A board with other cores than the NPU model, whose files get their descriptors from the embedder.
    #[must_use]
    pub fn with_engines_and_fd_table(
        options: &EmuOptions,
        engines: [Box<dyn Engine>; CORES],
        fds: Arc<dyn FdTable>,
    ) -> Self {
        Self::assemble(options, engines, Some(fds))
    }

    /// A board with the NPU model whose files get their descriptors from the embedder.
    #[must_use]
    pub fn with_fd_table(options: &EmuOptions, fds: Arc<dyn FdTable>) -> Self {
        Self::assemble(options, model(options), Some(fds))
    }

    fn assemble(
        options: &EmuOptions,
        engines: [Box<dyn Engine>; CORES],
        fds: Option<Arc<dyn FdTable>>,
    ) -> Self {
        let clocks: Arc<Clocks> = Arc::default();
        let slot = |engine: Box<dyn Engine>| CoreSlot {
            lane: Arc::new(Lane::new(engine.is_instant(), &clocks)),
            engine: Mutex::new(engine),
            reset_due: AtomicBool::new(false),
        };
        let (fds, host_fds) = match fds {
            Some(fds) => (fds, None),
            None => {
                let host = Arc::new(HostFds::default());
                (Arc::clone(&host) as Arc<dyn FdTable>, Some(host))
            }
        };
        let [major, minor, patch] = options.driver_version;
        let version = major * 10_000 + minor * 100 + patch;
        // Early drivers report a full window as missing memory.
        let full = if version < 900 { Errno::ENOMEM } else { Errno::EFAULT };
        let placement = if options.iommu { Placement::TopDown } else { Placement::BottomUp(FIRST_PHYSICAL) };
        let wait = Duration::from_millis(options.domain_wait_ms.into());
        Self(Arc::new(Inner {
            options: options.clone(),
            faults: Faults::new(&options.faults),
            fds,
            host_fds,
            spaces: (0..DOMAINS).map(|_| Arc::new(RwLock::new(AddressSpace::new(placement, full)))).collect(),
            live_domain: LiveDomain::new(wait, version >= 908),
            objects: Mutex::default(),
            allocating: Mutex::default(),
            order: Mutex::default(),
            cores: engines.map(slot),
            counts: Counts::default(),
            meters: Meters::default(),
            clocks: Arc::clone(&clocks),
            jobs: AtomicU64::new(0),
            files: AtomicU64::new(0),
            resetting: AtomicBool::new(false),
            waiting: Mutex::default(),
            clock_ns: AtomicU64::new(0),
            owed: Owed::default(),
            findings: Mutex::default(),
        }))
    }

    /// Host time so far in which any core computed: the price of the model of the NPU. What cores do at the same time
    /// counts once.
    #[must_use]
    pub fn computing_time(&self) -> Duration {
        self.0.clocks.cores.total()
    }

    /// Host time so far in which any call was in the emulated kernel, or any core computed: the price of all that is
    /// below the ioctl, copies that stand for caches included. What happens at the same time counts once.
    #[must_use]
    pub fn emulating_time(&self) -> Duration {
        self.0.clocks.all.total()
    }

    /// Opens the primary node of the vendor driver (`/dev/dri/cardN`).
    #[must_use]
    pub fn open(&self) -> VirtualRknpu {
        VirtualRknpu::new(Arc::clone(&self.0), NodeKind::Card)
    }

    /// Opens its render node (`/dev/dri/renderDN`).
    #[must_use]
    pub fn open_render(&self) -> VirtualRknpu {
        VirtualRknpu::new(Arc::clone(&self.0), NodeKind::Render)
    }

    /// Opens the node of the mainline driver (`/dev/accel/accelN`). On a real kernel only one of the two drivers
    /// owns the cores.
    #[must_use]
    pub fn open_rocket(&self) -> VirtualRocket {
        VirtualRocket::new(Arc::clone(&self.0))
    }

    /// Opens `/dev/dma_heap/system`.
    #[must_use]
    pub fn open_heap(&self) -> VirtualHeap {
        VirtualHeap::new(self)
    }

    /// The descriptors that the board gave out.
    #[must_use]
    pub fn fds(&self) -> &dyn FdTable {
        &*self.0.fds
    }

    /// Closes a descriptor of the default table.
    ///
    /// # Errors
    /// `EBADF` for a number that the board did not give out, and for boards with another table.
    pub fn close_fd(&self, fd: RawFd) -> Result<(), Errno> {
        self.0.host_fds.as_ref().ok_or(Errno::EBADF)?.close(fd)
    }

    /// What exists right now.
    #[must_use]
    pub fn live(&self) -> Live {
        if let Some(fds) = &self.0.host_fds {
            fds.sweep();
        }
        let counts = &self.0.counts;
        let mapped = |space: &RwLock<AddressSpace>| space.read().mapped_bytes();
        Live {
            files: counts.files.get(),
            handles: counts.handles.get(),
            mappings: counts.mappings.get(),
            objects: counts.objects.get(),
            jobs: counts.jobs.get(),
            fences: counts.fences.get(),
            dma_bufs: counts.dma_bufs.get(),
            domains: self.0.spaces.iter().skip(1).filter(|space| mapped(space) != 0).count() as u64,
            dram_bytes: counts.dram_bytes.load(Relaxed),
            lent_bytes: counts.lent_bytes.load(Relaxed),
            view_bytes: counts.view_bytes.load(Relaxed),
            iova_bytes: counts.iova_bytes.load(Relaxed),
            sram_bytes: counts.sram_bytes.load(Relaxed),
        }
    }

    /// Takes all findings that nobody has taken, oldest first; the newest 4096 are kept.
    #[must_use]
    pub fn take_findings(&self) -> Vec<Finding> {
        self.0.findings.lock().drain(..).collect()
    }

    /// Takes the findings of jobs on one core.
    #[must_use]
    pub fn take_findings_of(&self, core: u8) -> Vec<Finding> {
        let mut findings = self.0.findings.lock();
        let (own, others): (Vec<_>, Vec<_>) =
            findings.drain(..).partition(|finding| finding.core == Some(core));
        *findings = others.into();
        own
    }

    /// Modelled time that has passed on the board, in nanoseconds: jobs, time limits and resets, as if they had
    /// followed each other.
    #[must_use]
    pub fn clock_ns(&self) -> u64 {
        self.0.clock_ns.load(Relaxed)
    }

    /// How it behaves.
    #[must_use]
    pub fn options(&self) -> &EmuOptions {
        &self.0.options
    }

    /// Whether a core computes, or is about to, or the host is late with output that was held back: time on the board
    /// means something only otherwise, because the model is slower than silicon. A core that is stuck does not compute,
    /// nor does what waits behind it.
    #[must_use]
    pub fn is_computing(&self) -> bool {
        self.0.cores.iter().any(|core| core.lane.is_computing()) || self.0.owed.is_overdue()
    }

    /// Uses a domain as another process would, until the hold is dropped.
    ///
    /// # Errors
    /// `EINVAL` for an id that does not exist, or when another domain stays in use.
    pub fn hold_domain(&self, domain: i32) -> Result<DomainHold, Errno> {
        self.0.live_domain.enter(self.0.domain_id(domain)?)?;
        Ok(DomainHold(Arc::clone(&self.0)))
    }
}

fn model(options: &EmuOptions) -> [Box<dyn Engine>; CORES] {
    std::array::from_fn(|index| Box::new(Core::new(index as u8, &options.sim)) as Box<dyn Engine>)
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").field("options", &self.0.options).field("live", &self.live()).finish()
    }
}

impl Inner {
    /// Version code of the driver.
    pub(crate) fn version_code(&self) -> u32 {
        let [major, minor, patch] = self.options.driver_version;
        major * 10_000 + minor * 100 + patch
    }

    /// Whether there are domains (0.9.6).
    pub(crate) fn knows_domains(&self) -> bool {
        self.version_code() >= 906
    }

    /// Whether a switch of the domain waits for the users of the live one (0.9.8); before domains there is nothing
    /// to switch.
    pub(crate) fn counts_domain_users(&self) -> bool {
        self.version_code() >= 908 || !self.knows_domains()
    }

    /// Whether flag 0x400 means something (0.9.8).
    pub(crate) fn knows_address_packing(&self) -> bool {
        self.version_code() >= 908
    }

    /// Checks a domain id; before 0.9.6 the field does not exist.
    pub(crate) fn domain_id(&self, id: i32) -> Result<u8, Errno> {
        if !self.knows_domains() {
            return Ok(0);
        }
        let domains = if self.options.iommu { DOMAINS } else { 1 };
        if (0..domains).contains(&id) { Ok(id as u8) } else { Err(Errno::EINVAL) }
    }

    pub(crate) fn space(&self, domain: u8) -> &Arc<RwLock<AddressSpace>> {
        &self.spaces[usize::from(domain)]
    }

    pub(crate) fn next_job(&self) -> u64 {
        self.jobs.fetch_add(1, Relaxed) + 1
    }

    pub(crate) fn next_file(&self) -> u64 {
        self.files.fetch_add(1, Relaxed) + 1
    }

    /// Whether the machine has less memory than that.
    fn is_short_of(&self, bytes: u64) -> bool {
        let used = self.counts.dram_bytes.load(Relaxed);
        used.checked_add(bytes).is_none_or(|all| all > self.options.memory_bytes)
    }

    /// Lets go of what the program closed without saying so, if there is less memory than that. For who holds no lock.
    pub(crate) fn make_room(&self, bytes: u64) {
        if self.is_short_of(bytes) {
            self.fds.forget_closed();
        }
    }

    /// Memory of the machine.
    pub(crate) fn new_dram(&self, backing: Backing, len: u64) -> io::Result<Dram> {
        let no_memory = || io::Error::from_raw_os_error(libc::ENOMEM);
        let _one = self.allocating.lock();
        if self.is_short_of(len) {
            return Err(no_memory());
        }
        let len = usize::try_from(len).map_err(|_| no_memory())?;
        Dram::new(backing, len, &self.counts.dram_bytes)
    }

    /// Pages of a file as memory. They take none of the machine's.
    pub(crate) fn file_dram(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<Dram> {
        let len = usize::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Dram::of_file(file, offset, len, &self.counts.lent_bytes)
    }

    pub(crate) fn free_sram(&self) -> u64 {
        self.options.sram_bytes.saturating_sub(self.counts.sram_bytes.load(Relaxed))
    }

    /// Takes as much SRAM as there is, at most `wanted`.
    pub(crate) fn take_sram(&self, wanted: u64) -> u64 {
        let total = self.options.sram_bytes / crate::domain::PAGE_BYTES * crate::domain::PAGE_BYTES;
        let mut taken = 0;
        // The closure always gives a value.
        let _ = self.counts.sram_bytes.fetch_update(Relaxed, Relaxed, |used| {
            taken = wanted.min(total.saturating_sub(used));
            Some(used + taken)
        });
        taken
    }

    pub(crate) fn give_sram(&self, bytes: u64) {
        self.counts.sram_bytes.fetch_sub(bytes, Relaxed);
    }

    /// Keeps a finding and sends it to the log.
    pub(crate) fn report(&self, core: Option<u8>, job: u64, kind: FindingKind) {
        let finding = Finding { core, job, kind };
        tracing::warn!("{finding}");
        let mut findings = self.findings.lock();
        if findings.len() == FINDINGS_MAX {
            findings.pop_front();
        }
        findings.push_back(finding);
    }

    /// Lets modelled time pass.
    pub(crate) fn pass(&self, time: Duration) {
        self.clock_ns.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Lets time pass, on the host too if that is wanted.
    pub(crate) fn spend(&self, time: Duration) {
        self.pass(time);
        if self.options.time == TimePolicy::Real {
            std::thread::sleep(time);
        }
    }

    /// Soft reset of a driver call's own accord: the cores forget everything. Jobs that run are not disturbed: before
    /// any time limit is reached they have long ended on silicon.
    pub(crate) fn pulse_reset_lines(&self) {
        self.soft_reset(|| ());
    }

    /// Soft reset after the time-out of a job: also wakes whoever else waits at this time (`uapi.md` A.9, A.10). These are
    /// the jobs in the queues of the cores that are stuck with this one, and in real time those that are stuck elsewhere.
    pub(crate) fn reset_after_timeout(&self, timed_out: &Arc<Job>) {
        self.soft_reset(|| {
            let cores = timed_out.stuck_cores();
            let real = self.options.time == TimePolicy::Real;
            let waiting: Vec<Arc<Job>> = self.waiting.lock().iter().filter_map(Weak::upgrade).collect();
            for job in waiting.iter().filter(|job| !Arc::ptr_eq(job, timed_out)) {
                if job.is_queued_on(&cores) || (real && !job.stuck_cores().is_empty()) {
                    job.wake();
                }
            }
        });
    }

    fn soft_reset(&self, wake: impl FnOnce()) {
        if self.options.bypass_soft_reset {
            return;
        }
        self.spend(RESET);
        wake();
        for core in &self.cores {
            core.reset_due.store(true, Release);
        }
    }

    /// Soft reset on demand: also wakes whoever waits for a job, and ends what the cores are doing. The queues stay
    /// as they are.
    pub(crate) fn reset(&self) {
        if self.options.bypass_soft_reset || self.resetting.swap(true, Relaxed) {
            return;
        }
        self.spend(RESET);
        // No job comes in between: whoever waits for one that is cancelled is woken.
        let order = self.order.lock();
        let waiting: Vec<Arc<Job>> = self.waiting.lock().drain(..).filter_map(|job| job.upgrade()).collect();
        for job in &waiting {
            job.wake();
        }
        for core in &self.cores {
            core.lane.cancel_running();
            core.reset_due.store(true, Release);
        }
        drop(order);
        self.resetting.store(false, Relaxed);
    }

    /// Registers a job that somebody waits for.
    pub(crate) fn expect_reset(&self, job: &Arc<Job>) {
        let mut waiting = self.waiting.lock();
        waiting.retain(|job| job.strong_count() != 0);
        waiting.push(Arc::downgrade(job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `uapi.md` A.10: a soft reset first tries a lock; while another one is under way it returns at once and does
    /// nothing.
    #[test]
    fn a_reset_during_a_reset_returns_at_once() {
        let board = Board::new(&EmuOptions::default());
        let inner = &board.0;
        let pulses = || inner.cores.iter().filter(|core| core.reset_due.load(Relaxed)).count();
        std::thread::scope(|scope| {
            // Jobs are being queued: the first reset is under way until that is over.
            let order = inner.order.lock();
            let first = scope.spawn(|| inner.reset());
            while !inner.resetting.load(Relaxed) || board.clock_ns() == 0 {
                std::thread::yield_now();
            }
            (0..3).for_each(|_| inner.reset());
            assert!(!first.is_finished());
            assert_eq!(
                (board.clock_ns(), pulses()),
                (100_000_000, 0),
                "one reset, which has not come to the lines"
            );
            drop(order);
            first.join().expect("a reset does not fail");
        });
        assert_eq!((board.clock_ns(), pulses()), (100_000_000, inner.cores.len()));
        // Afterwards the lock is free again.
        inner.reset();
        assert_eq!(board.clock_ns(), 200_000_000);
    }
}
