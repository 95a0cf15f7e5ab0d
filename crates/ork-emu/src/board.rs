// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use ork_drm::Errno;
use ork_rknpu::uapi::DOMAINS;
use ork_sim::{Bus, Core, JobOutcome, PcJob};
use parking_lot::{Mutex, RwLock};

use crate::CORES;
use crate::dispatch::VirtualRknpu;
use crate::domain::{AddressSpace, LiveDomain};
use crate::finding::{Finding, FindingKind};
use crate::object::Objects;
use crate::options::{EmuOptions, TimePolicy};

/// Findings that are kept until somebody takes them; older ones make room.
const FINDINGS_MAX: usize = 4096;
/// How long a soft reset takes.
const RESET: Duration = Duration::from_millis(100);

/// What runs the programs of one core: the NPU model, or a stand-in that a test supplies.
pub trait Engine: Send {
    /// Back to the state after power-up.
    fn reset(&mut self);
    /// Runs a chain of programs to its end.
    fn run(&mut self, bus: &dyn Bus, job: &PcJob) -> JobOutcome;
}

impl Engine for Core {
    fn reset(&mut self) {
        Core::reset(self);
    }

    fn run(&mut self, bus: &dyn Bus, job: &PcJob) -> JobOutcome {
        Core::run(self, bus, job)
    }
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
    pub(crate) dram_bytes: Arc<AtomicU64>,
    pub(crate) view_bytes: Arc<AtomicU64>,
}

pub(crate) struct CoreSlot {
    pub(crate) engine: Mutex<Box<dyn Engine>>,
    /// Tasks that run or wait here.
    pub(crate) queued_tasks: AtomicU32,
    /// The reset lines were pulsed since the last job.
    pub(crate) reset_due: AtomicBool,
}

/// What all files of a board share.
pub(crate) struct Inner {
    pub(crate) options: EmuOptions,
    spaces: Vec<RwLock<AddressSpace>>,
    pub(crate) live_domain: LiveDomain,
    pub(crate) objects: Mutex<Objects>,
    pub(crate) cores: [CoreSlot; CORES],
    pub(crate) counts: Counts,
    pub(crate) jobs: AtomicU64,
    /// Resets that were asked for; a job that sees it change was woken by one.
    pub(crate) resets: AtomicU64,
    clock_ns: AtomicU64,
    findings: Mutex<VecDeque<Finding>>,
}

/// What exists on a board right now. All zero when every file and mapping is gone.
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
    /// Domains other than 0 in which something is mapped.
    pub domains: u64,
    /// Bytes of device memory.
    pub dram_bytes: u64,
    /// Bytes of CPU views of cacheable buffers.
    pub view_bytes: u64,
    /// Bytes of address space in use, all domains together.
    pub iova_bytes: u64,
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
        let engine = |index| Box::new(Core::new(index as u8, &options.sim)) as Box<dyn Engine>;
        Self::with_engines(options, std::array::from_fn(engine))
    }

    /// A board with other cores than the NPU model.
    #[must_use]
    pub fn with_engines(options: &EmuOptions, engines: [Box<dyn Engine>; CORES]) -> Self {
        let slot = |engine| CoreSlot {
            engine: Mutex::new(engine),
            queued_tasks: AtomicU32::new(0),
            reset_due: AtomicBool::new(false),
        };
        Self(Arc::new(Inner {
            options: options.clone(),
            spaces: (0..DOMAINS).map(|_| RwLock::default()).collect(),
            live_domain: LiveDomain::new(Duration::from_millis(options.domain_wait_ms.into())),
            objects: Mutex::default(),
            cores: engines.map(slot),
            counts: Counts::default(),
            jobs: AtomicU64::new(0),
            resets: AtomicU64::new(0),
            clock_ns: AtomicU64::new(0),
            findings: Mutex::default(),
        }))
    }

    /// Opens the device node.
    #[must_use]
    pub fn open(&self) -> VirtualRknpu {
        VirtualRknpu::new(Arc::clone(&self.0))
    }

    /// What exists right now.
    #[must_use]
    pub fn live(&self) -> Live {
        let counts = &self.0.counts;
        let mapped = |space: &RwLock<AddressSpace>| space.read().mapped_bytes();
        Live {
            files: counts.files.get(),
            handles: counts.handles.get(),
            mappings: counts.mappings.get(),
            objects: counts.objects.get(),
            domains: self.0.spaces.iter().skip(1).filter(|space| mapped(space) != 0).count() as u64,
            dram_bytes: counts.dram_bytes.load(Relaxed),
            view_bytes: counts.view_bytes.load(Relaxed),
            iova_bytes: self.0.spaces.iter().map(mapped).sum(),
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

    /// Uses a domain as another process would, until the hold is dropped.
    ///
    /// # Errors
    /// `EINVAL` for an id that does not exist, or when another domain stays in use.
    pub fn hold_domain(&self, domain: i32) -> Result<DomainHold, Errno> {
        self.0.live_domain.enter(self.0.domain_id(domain)?)?;
        Ok(DomainHold(Arc::clone(&self.0)))
    }
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

    /// Whether flag 0x400 means something (0.9.8).
    pub(crate) fn knows_address_packing(&self) -> bool {
        self.version_code() >= 908
    }

    /// Checks a domain id; before 0.9.6 the field does not exist.
    pub(crate) fn domain_id(&self, id: i32) -> Result<u8, Errno> {
        if !self.knows_domains() {
            return Ok(0);
        }
        if (0..DOMAINS).contains(&id) { Ok(id as u8) } else { Err(Errno::EINVAL) }
    }

    pub(crate) fn space(&self, domain: u8) -> &RwLock<AddressSpace> {
        &self.spaces[usize::from(domain)]
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

    /// Lets time pass.
    pub(crate) fn spend(&self, time: Duration) {
        self.clock_ns.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        if self.options.time == TimePolicy::Real {
            std::thread::sleep(time);
        }
    }

    /// Soft reset after a time-out: the cores forget everything. Jobs that run on other cores have long ended when
    /// the time limit of this one is reached, so they are not disturbed.
    pub(crate) fn pulse_reset_lines(&self) {
        self.spend(RESET);
        for core in &self.cores {
            core.reset_due.store(true, Relaxed);
        }
    }

    /// Soft reset on demand: also fails the jobs that are running.
    pub(crate) fn reset(&self) {
        self.resets.fetch_add(1, Relaxed);
        self.pulse_reset_lines();
    }
}
