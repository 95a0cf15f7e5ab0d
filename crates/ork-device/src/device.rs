// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ork_drm::{Errno, OpenNode, RealNodes, Transport};
use ork_emu::{Board, Finding};
use ork_rknpu::uapi::{RknpuSubcoreTask, RknpuSubmit, RknpuTask, job};
use ork_rknpu::{Rknpu, RknpuError};
use parking_lot::Mutex;

use crate::buffer::{DmaBuffer, DomainId, Purpose};
use crate::counters::{CORES_MAX, Counting, DeviceCounters, add};
use crate::error::{DeviceError, OpenError, SubmitError};
use crate::found::{Found, ask, candidates, dotted, examine};
use crate::options::{DeviceKind, DeviceOptions};
use crate::submission::{Completed, Elapsed, Submission, TASKS_MAX};

/// First driver with address spaces.
const DOMAINS_SINCE: u32 = 906;
/// Bytes of a task descriptor.
const TASK_BYTES: usize = size_of::<RknpuTask>();
/// `int_clear` of every known program; the kernel does not read it.
const INT_CLEAR_ALL: u32 = 0x1_FFFF;

/// What a device says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Driver version, major·10000 + minor·100 + patch.
    pub driver_version: u32,
    /// Hardware version word.
    pub hardware_version: u32,
    /// Whether an IOMMU translates addresses.
    pub iommu: bool,
    /// On-chip SRAM for the NPU.
    pub sram_bytes: u32,
    /// What of it is free.
    pub sram_free_bytes: u32,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RK3588, rknpu {}, IOMMU {}, {} KiB SRAM",
            dotted(self.driver_version),
            if self.iommu { "on" } else { "off" },
            self.sram_bytes / 1024
        )
    }
}

/// What all buffers of a device share. The device file closes when the last of them is gone.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) npu: Rknpu<Arc<dyn Transport>>,
    pub(crate) counters: Counting,
    info: DeviceInfo,
}

impl Shared {
    pub(crate) fn check_domain(&self, domain: DomainId) -> Result<(), DeviceError> {
        let domains = self.domains();
        if domain.0 < domains {
            return Ok(());
        }
        Err(DeviceError::Domain { domain: domain.0, driver: dotted(self.info.driver_version), domains })
    }

    fn domains(&self) -> u8 {
        if self.info.driver_version >= DOMAINS_SINCE && self.info.iommu {
            ork_rknpu::uapi::DOMAINS as u8
        } else {
            1
        }
    }
}

/// The task array of one core, per domain. It grows and is reused; a core runs one job of this device at a time.
type TaskArrays = BTreeMap<DomainId, DmaBuffer>;

/// An open NPU.
#[derive(Debug)]
pub struct Device {
    // Drop order: the task arrays free their handles before the last reference to the file goes.
    task_arrays: [Mutex<TaskArrays>; CORES_MAX],
    shared: Arc<Shared>,
    board: Option<Board>,
    description: String,
    cores: u8,
    timeout_ms: u32,
}

impl Device {
    /// Opens the device that the options ask for.
    ///
    /// # Errors
    /// [`OpenError`]. With [`DeviceKind::Auto`] only for impossible options, and for a device that another program
    /// has locked: computing on a simulator instead would be a surprise.
    pub fn open(options: &DeviceOptions) -> Result<Self, OpenError> {
        Self::open_with(options, &RealNodes)
    }

    pub(crate) fn open_with(options: &DeviceOptions, opener: &dyn OpenNode) -> Result<Self, OpenError> {
        let impossible = |option, reason: &str| Err(OpenError::Option { option, reason: reason.to_owned() });
        if options.timeout_ms == 0 {
            return impossible("timeout_ms", "a job needs at least 1 ms");
        }
        if options.cores == 0 || usize::from(options.cores) > CORES_MAX {
            return impossible("cores", "an RK3588 has cores 1 to 3");
        }
        if options.kind == DeviceKind::Sim {
            return Self::emulated(options, "as configured");
        }

        let mut refused = Vec::new();
        for node in candidates(options) {
            let (found, npu) = examine(&node, opener);
            match (npu, &found.verdict) {
                (Some(npu), Ok(info)) => return Self::real(options, &found, *info, npu),
                _ => refused.push(found),
            }
        }
        if options.kind == DeviceKind::Rknpu || options.node.is_some() {
            return Err(OpenError::NoDevice { found: refused });
        }
        let why = match refused.iter().max_by_key(|found| found.nearness()) {
            Some(best) => format!("no usable rknpu device: {best}"),
            None => format!("{} has no NPU device node", options.dev_root.display()),
        };
        Self::emulated(options, &why)
    }

    fn real(
        options: &DeviceOptions,
        found: &Found,
        info: DeviceInfo,
        npu: Rknpu<Arc<dyn Transport>>,
    ) -> Result<Self, OpenError> {
        let node = found.node.to_string();
        if options.exclusive {
            match npu.transport().try_lock() {
                Ok(true) => {}
                Ok(false) => return Err(OpenError::Locked { node }),
                Err(source) => return Err(OpenError::Lock { node, source }),
            }
        }
        Ok(Self::assemble(options, npu, info, None, format!("{node}: {info}")))
    }

    fn emulated(options: &DeviceOptions, why: &str) -> Result<Self, OpenError> {
        let mut device = Self::on_board(&Board::new(&options.emulated), options)?;
        device.description = format!("{} ({why})", device.description);
        Ok(device)
    }

    /// Opens an emulated board that others may have open too.
    ///
    /// # Errors
    /// [`OpenError::NoDevice`] when the board pretends to be a driver that is not supported.
    pub fn on_board(board: &Board, options: &DeviceOptions) -> Result<Self, OpenError> {
        let transport: Arc<dyn Transport> = Arc::new(board.open());
        let npu = Rknpu::new(transport);
        let info = ask(&npu).map_err(|reason| OpenError::NoDevice {
            found: vec![Found { node: ork_drm::Node::at("emulated"), driver: None, verdict: Err(reason) }],
        })?;
        let description = format!("simulated NPU, {info}");
        Ok(Self::assemble(options, npu, info, Some(board.clone()), description))
    }

    fn assemble(
        options: &DeviceOptions,
        npu: Rknpu<Arc<dyn Transport>>,
        info: DeviceInfo,
        board: Option<Board>,
        description: String,
    ) -> Self {
        tracing::info!("using {description}");
        Self {
            task_arrays: Default::default(),
            shared: Arc::new(Shared { npu, counters: Counting::default(), info }),
            board,
            description,
            cores: options.cores,
            timeout_ms: options.timeout_ms,
        }
    }

    /// Which device it is and why, in one line.
    #[must_use]
    pub fn describe(&self) -> &str {
        &self.description
    }

    /// What the device says of itself.
    #[must_use]
    pub fn info(&self) -> DeviceInfo {
        self.shared.info
    }

    /// The emulated board; `None` on a real device.
    #[must_use]
    pub fn board(&self) -> Option<&Board> {
        self.board.as_ref()
    }

    /// Cores in use: 0 to this, exclusive.
    #[must_use]
    pub fn cores(&self) -> u8 {
        self.cores
    }

    /// Address spaces of about 4 GiB each.
    #[must_use]
    pub fn domains(&self) -> u8 {
        self.shared.domains()
    }

    /// What was done since the device was opened.
    #[must_use]
    pub fn counters(&self) -> DeviceCounters {
        self.shared.counters.read()
    }

    /// Allocates a zeroed buffer in domain 0 and maps it.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn alloc(&self, purpose: Purpose, len: u64) -> Result<DmaBuffer, DeviceError> {
        self.alloc_in(DomainId::default(), purpose, len)
    }

    /// Allocates a zeroed buffer in a domain and maps it.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn alloc_in(&self, domain: DomainId, purpose: Purpose, len: u64) -> Result<DmaBuffer, DeviceError> {
        DmaBuffer::allocate(&self.shared, domain, purpose, len)
    }

    /// Soft-resets the NPU: about 100 ms, in which jobs of every program that uses it fail. All cores forget their
    /// registers, tables and convolution buffers.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn reset(&self) -> Result<(), DeviceError> {
        let doing = || "resetting the NPU".to_owned();
        self.shared.npu.reset().map_err(|source| DeviceError::Call { doing: doing(), source })
    }

    /// Runs a chain of programs on one core and waits for it, at most the time limit. Several threads may do so at
    /// once; jobs of one core follow each other.
    ///
    /// The programs and everything they read must have been flushed. The NPU can reach the device's own buffers
    /// only: a wrong program spoils those, never other memory.
    ///
    /// # Errors
    /// [`SubmitError`]: nothing that the job should have written may be used then.
    pub fn submit(&self, submission: &Submission) -> Result<Completed, SubmitError> {
        let &Submission { core, ref tasks, domain, timeout_ms, ping_pong } = submission;
        if core >= self.cores {
            return Err(SubmitError::Core { core, cores: self.cores });
        }
        if tasks.is_empty() || tasks.len() > TASKS_MAX {
            return Err(SubmitError::Tasks { tasks: tasks.len() });
        }
        let count = tasks.len() as u32;
        let timeout_ms = timeout_ms.unwrap_or(self.timeout_ms);

        // Held until the kernel is done with the array.
        let mut arrays = self.task_arrays[usize::from(core)].lock();
        let array = self
            .write_tasks(&mut arrays, submission)
            .map_err(|source| SubmitError::TaskArray { core, source })?;

        let range = RknpuSubcoreTask { task_start: 0, task_number: count };
        let none = RknpuSubcoreTask::default();
        let request = RknpuSubmit {
            flags: job::PC | if ping_pong { job::PINGPONG } else { 0 },
            timeout: timeout_ms,
            task_number: count,
            task_obj_addr: array.object_address(),
            iommu_domain_id: u32::from(domain.0),
            core_mask: 1 << core,
            // A one-core job uses the entry of its core. All three are filled alike, so that no entry a kernel
            // could look at is empty.
            subcore_task: [range, range, range, none, none],
            ..RknpuSubmit::default()
        };
        // SAFETY: the array has a kernel mapping, holds `count` entries and stays locked; the NPU's writes go to
        // buffers of this device, behind the CPU's caches (see `DmaBuffer`).
        let result = unsafe { self.shared.npu.submit(&request) };
        let findings = self.board.as_ref().map(|board| board.take_findings_of(core)).unwrap_or_default();
        let done = self.judge(submission, timeout_ms, result, findings);

        let counters = &self.shared.counters;
        match &done {
            Ok(completed) => {
                let of_core = &counters.cores[usize::from(core)];
                add(&of_core.submits, 1);
                add(&of_core.tasks, u64::from(count));
                let (Elapsed::Measured { ns } | Elapsed::Modelled { ns }) = completed.elapsed;
                add(&of_core.busy_ns, ns);
            }
            Err(SubmitError::TimedOut { .. }) => add(&counters.timeouts, 1),
            Err(_) => add(&counters.failures, 1),
        }
        done
    }

    /// Turns the kernel's answer into a result.
    fn judge(
        &self,
        submission: &Submission,
        timeout_ms: u32,
        result: Result<ork_rknpu::SubmitReport, RknpuError>,
        findings: Vec<Finding>,
    ) -> Result<Completed, SubmitError> {
        let core = submission.core;
        let tasks = submission.tasks.len() as u32;
        let report = match result {
            Ok(report) => report,
            Err(RknpuError::Submit { source: Errno::ETIMEDOUT, task_counter, .. }) => {
                return Err(SubmitError::TimedOut {
                    core,
                    tasks_done: task_counter,
                    tasks,
                    timeout_ms,
                    findings,
                });
            }
            Err(RknpuError::Submit { source: Errno::EOPNOTSUPP, .. }) if self.board.is_some() => {
                return Err(SubmitError::Unmodelled { core, findings });
            }
            Err(source) => return Err(SubmitError::Refused { core, source, findings }),
        };
        if report.task_counter != tasks {
            return Err(SubmitError::Dropped { core, tasks_done: report.task_counter, tasks });
        }
        let ns = u64::try_from(report.hw_elapse_ns).unwrap_or(0);
        let elapsed = if self.board.is_some() { Elapsed::Modelled { ns } } else { Elapsed::Measured { ns } };
        Ok(Completed { core, tasks, elapsed, findings })
    }

    /// Writes the descriptors of a submission into the core's task array of its domain.
    fn write_tasks<'a>(
        &self,
        arrays: &'a mut TaskArrays,
        submission: &Submission,
    ) -> Result<&'a DmaBuffer, DeviceError> {
        use std::collections::btree_map::Entry;

        let bytes = (submission.tasks.len() * TASK_BYTES) as u64;
        let room = bytes.next_power_of_two().max(4096);
        let array = match arrays.entry(submission.domain) {
            Entry::Vacant(entry) => entry.insert(self.alloc_in(submission.domain, Purpose::Tasks, room)?),
            Entry::Occupied(mut entry) => {
                if entry.get().len() < bytes {
                    entry.insert(self.alloc_in(submission.domain, Purpose::Tasks, room)?);
                }
                entry.into_mut()
            }
        };
        array.write_tasks(submission.tasks.iter().map(|task| RknpuTask {
            enable_mask: task.enable_mask,
            int_mask: task.int_mask,
            int_clear: INT_CLEAR_ALL,
            regcfg_amount: task.body_words,
            regcmd_addr: u64::from(task.regcmd.0),
            ..RknpuTask::default()
        }));
        array.flush(0..bytes)?;
        Ok(array)
    }
}
