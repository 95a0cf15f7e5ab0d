// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ork_drm::{Files, HostFiles, OpenNode, RealNodes, Transport};
use ork_emu::{Board, Fault};
use parking_lot::Mutex;

use crate::board_files::BoardFiles;
use crate::buffer::{DmaBuffer, DomainId, Purpose, ResidentBuffer};
use crate::clock::{BoardClock, Clock, HostClock};
use crate::counters::{CORES_MAX, DeviceCounters, add};
use crate::error::{DeviceError, OpenError};
use crate::events::{Event, EventCounts, EventKind};
use crate::found::{Found, Usable, ask, candidates, dotted, examine};
use crate::kernel::{DriverKind, Feature, Features};
use crate::occupancy::{Occupancy, OccupancyError, Record};
use crate::options::{DeviceKind, DeviceOptions, SramUse, SubmitMode};
use crate::placement::Placement;
use crate::pool::{Pool, Ticket};
use crate::recovery::{Limits, RecoveryMode, Windows};
use crate::shared::{Parts, Shared};
use crate::single::CoreSlot;

/// Longest time that output may lag behind the kernel's word. The lag was seen for int4, where it is microseconds
/// (`isa-int4-sdp.md` §1.10); the rest is margin.
const LATE_MAX: Duration = Duration::from_millis(20);
/// Shortest window of a job that is polled: several passes over an output and some scheduling.
const WINDOW_MIN: Duration = Duration::from_millis(5);
/// How long calls wait for jobs of another domain, at least: the model is slower than silicon.
const GATE_WAIT_MIN: Duration = Duration::from_secs(60);
/// How often the kernel waits for a job's time limit when others are queued before it (`uapi.md` A.9).
const KERNEL_ROUNDS: u32 = 3;
/// What the mainline driver gives a job, with as much again for one that waits (`uapi.md` B.2).
const ROCKET_LIMIT: Duration = Duration::from_millis(1000);

/// What a device says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The kernel driver.
    pub driver: DriverKind,
    /// Driver version, major·10000 + minor·100 + patch; 0 for `rocket`, which has none.
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
        match self.driver {
            DriverKind::Rknpu => write!(
                f,
                "RK3588, rknpu {}, IOMMU {}, {} KiB SRAM",
                dotted(self.driver_version),
                if self.iommu { "on" } else { "off" },
                self.sram_bytes / 1024
            ),
            DriverKind::Rocket => f.write_str("RK3588, rocket"),
        }
    }
}

/// An open NPU.
#[derive(Debug)]
pub struct Device {
    // Drop order: what holds buffers goes before the last reference to the file.
    pub(crate) slots: [CoreSlot; CORES_MAX],
    /// Weights, by domain.
    pools: Mutex<Vec<Option<Pool>>>,
    placement: Arc<Mutex<Placement>>,
    pub(crate) shared: Arc<Shared>,
    board: Option<Board>,
    description: String,
    pub(crate) cores: u8,
    /// Cores on which nothing completes any more.
    pub(crate) retired: [AtomicBool; CORES_MAX],
    /// Jobs that had to be moved from each core since one completed there.
    pub(crate) strikes: [AtomicU8; CORES_MAX],
    /// Faults that the emulated board injected, by kind, as far as their findings were taken.
    pub(crate) injected: Mutex<BTreeMap<Fault, u64>>,
    pub(crate) timeout_ms: u32,
    pub(crate) submit_mode: SubmitMode,
    /// The kernel refused the first job with a fence.
    pub(crate) refused_fence: AtomicBool,
    pub(crate) may_recover: bool,
    pub(crate) limits: Limits,
    pub(crate) windows: Mutex<Windows>,
    domain_bytes_max: u64,
    sram: SramUse,
    left_behind: Option<Record>,
}

/// What a device is assembled from.
struct Opened {
    usable: Usable,
    files: Arc<dyn Files>,
    clock: Arc<dyn Clock>,
    board: Option<Board>,
    occupancy: Option<Occupancy>,
    description: String,
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

    /// As [`open`](Self::open), with nodes that something else opens: how an emulated board gets behind a node and is
    /// then treated as a real device, its lock included.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_with(options: &DeviceOptions, opener: &dyn OpenNode) -> Result<Self, OpenError> {
        check(options)?;
        if options.kind == DeviceKind::Sim {
            return Self::emulated(options, "as configured");
        }

        let mut refused = Vec::new();
        for node in candidates(options) {
            match examine(&node, options.kind, opener) {
                (found, Some(usable)) => return Self::real(options, &found, usable),
                (found, None) => refused.push(found),
            }
        }
        if options.kind != DeviceKind::Auto || options.node.is_some() {
            return Err(OpenError::NoDevice { found: refused });
        }
        let why = match refused.iter().max_by_key(|found| found.nearness()) {
            Some(best) => format!("no usable NPU device: {best}"),
            None => format!("{} has no NPU device node", options.dev_root.display()),
        };
        Self::emulated(options, &why)
    }

    fn real(options: &DeviceOptions, found: &Found, usable: Usable) -> Result<Self, OpenError> {
        let node = found.node.to_string();
        let mut occupancy = None;
        if options.exclusive {
            let wait = Duration::from_millis(options.lock_wait_ms.into());
            let deadline = Instant::now() + wait;
            occupancy = match Occupancy::take(&options.lock_dir, usable.info.driver, wait) {
                Ok(occupancy) => Some(occupancy),
                // The lock of the node, below, still keeps out whoever uses the same node.
                Err(error @ OccupancyError::File { .. }) => {
                    tracing::warn!("{error}: programs that use another node of the NPU are not seen");
                    None
                }
                Err(source) => return Err(OpenError::Occupied { node, source }),
            };
            loop {
                match usable.kernel.try_lock() {
                    Ok(true) => break,
                    Ok(false) if Instant::now() < deadline => std::thread::sleep(wait / 20),
                    Ok(false) => return Err(OpenError::Locked { node }),
                    Err(source) => return Err(OpenError::Lock { node, source }),
                }
            }
        }
        let description = format!("{node}: {}", usable.info);
        Self::assemble(
            options,
            Opened {
                usable,
                files: Arc::new(HostFiles::new(&options.dev_root)),
                clock: Arc::new(HostClock::default()),
                board: None,
                occupancy,
                description,
            },
        )
    }

    fn emulated(options: &DeviceOptions, why: &str) -> Result<Self, OpenError> {
        let mut device = Self::on_board(&Board::new(&options.emulated), options)?;
        device.description = format!("{} ({why})", device.description);
        Ok(device)
    }

    /// Opens an emulated board that others may have open too, with the driver that
    /// [`DeviceOptions::emulated_driver`] says.
    ///
    /// # Errors
    /// [`OpenError::NoDevice`] when the board pretends to be a driver that is not supported.
    pub fn on_board(board: &Board, options: &DeviceOptions) -> Result<Self, OpenError> {
        Self::on_board_with(board, options, Arc::new(BoardClock::new(board)))
    }

    /// [`on_board`](Self::on_board), with waits measured by another clock than the board's.
    ///
    /// # Errors
    /// As `on_board`.
    pub fn on_board_with(
        board: &Board,
        options: &DeviceOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        check(options)?;
        let driver = options.emulated_driver;
        let transport: Arc<dyn Transport> = match driver {
            DriverKind::Rknpu => Arc::new(board.open()),
            DriverKind::Rocket => Arc::new(board.open_rocket()),
        };
        let usable = ask(driver, transport).map_err(|reason| OpenError::NoDevice {
            found: vec![Found { node: ork_drm::Node::at("emulated"), driver: None, verdict: Err(reason) }],
        })?;
        let description = format!("simulated NPU, {}", usable.info);
        Self::assemble(
            options,
            Opened {
                usable,
                files: Arc::new(BoardFiles::new(board)),
                clock,
                board: Some(board.clone()),
                occupancy: None,
                description,
            },
        )
    }

    fn assemble(options: &DeviceOptions, opened: Opened) -> Result<Self, OpenError> {
        let Opened { usable: Usable { kernel, info }, files, clock, board, occupancy, mut description } =
            opened;
        let features = kernel.features();
        let needs = |option, feature, wanted: bool| match features.need(feature) {
            Err(source) if wanted => Err(OpenError::Unsupported { option, source }),
            _ => Ok(()),
        };
        needs("sram", Feature::Sram, options.sram == SramUse::Scratch)?;
        needs("submit", Feature::BlockingSubmit, options.submit == SubmitMode::Blocking)?;
        needs("submit", Feature::Fences, options.submit == SubmitMode::Fenced)?;
        let domains = match options.domains {
            0 => features.domains(),
            wanted if wanted <= features.domains() => wanted,
            wanted => {
                let reason =
                    format!("{wanted} are asked for, {} has {}", features.name(), features.domains());
                return Err(OpenError::Option { option: "domains", reason });
            }
        };
        let may_recover = match options.recovery {
            RecoveryMode::Allow => true,
            RecoveryMode::Forbid => false,
            RecoveryMode::Auto => board.is_none(),
        };
        let limit = Duration::from_millis(options.timeout_ms.into());
        let kernel_limit = match info.driver {
            DriverKind::Rknpu => limit * KERNEL_ROUNDS,
            DriverKind::Rocket => ROCKET_LIMIT,
        };
        let limits = Limits {
            window_min: WINDOW_MIN.min(limit),
            window_max: limit,
            late: LATE_MAX,
            kernel: kernel_limit,
        };

        let left_behind = occupancy.as_ref().and_then(Occupancy::left_behind);
        if let Some(record) = left_behind {
            description = format!("{description}; {record}");
            let live = kernel.live_domain();
            tracing::warn!(live_domain = live, "{record}");
            if features.has(Feature::Reset) {
                // Whatever the cores were doing for it ends here.
                if let Err(error) = kernel.reset() {
                    tracing::warn!(%error, "cannot reset the NPU after that");
                }
            }
        }
        tracing::info!("using {description}");
        let gate_wait = (kernel_limit * 2).max(GATE_WAIT_MIN);
        let shared = Shared::new(Parts { kernel, clock, files, info, gate_wait, occupancy });
        if left_behind.is_some() {
            shared.note(None, EventKind::StaleOwner);
        }
        Ok(Self {
            slots: Default::default(),
            pools: Mutex::new((0..domains).map(|_| None).collect()),
            placement: Arc::new(Mutex::new(Placement::new(domains, options.domain_bytes_max))),
            shared,
            board,
            description,
            cores: options.cores,
            retired: Default::default(),
            strikes: Default::default(),
            injected: Mutex::default(),
            timeout_ms: options.timeout_ms,
            submit_mode: options.submit,
            refused_fence: AtomicBool::new(false),
            may_recover,
            limits,
            windows: Mutex::default(),
            domain_bytes_max: options.domain_bytes_max,
            sram: options.sram,
            left_behind,
        })
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

    /// What its kernel driver offers.
    #[must_use]
    pub fn features(&self) -> &Features {
        self.shared.kernel.features()
    }

    /// The emulated board; `None` on a real device.
    #[must_use]
    pub fn board(&self) -> Option<&Board> {
        self.board.as_ref()
    }

    /// What the device's last user left behind, if it did not end cleanly.
    #[must_use]
    pub fn left_behind(&self) -> Option<Record> {
        self.left_behind
    }

    /// Cores in use: 0 to this, exclusive. Where the driver chooses the core, the jobs that may be in flight at once.
    #[must_use]
    pub fn cores(&self) -> u8 {
        self.cores
    }

    /// Whether a core was given up.
    #[must_use]
    pub fn is_retired(&self, core: u8) -> bool {
        self.retired.get(usize::from(core)).is_some_and(|retired| retired.load(Relaxed))
    }

    /// Address spaces of about 4 GiB each.
    #[must_use]
    pub fn domains(&self) -> u8 {
        self.features().domains()
    }

    /// What was done since the device was opened.
    #[must_use]
    pub fn counters(&self) -> DeviceCounters {
        DeviceCounters {
            domain_switches: self.shared.gate.switches(),
            interruptions: self.shared.kernel.interruptions(),
            ..self.shared.counters.read()
        }
    }

    /// How often what happened that should not have to.
    #[must_use]
    pub fn event_counts(&self) -> EventCounts {
        self.shared.events.counts()
    }

    /// The newest of those events, oldest first.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.shared.events.newest()
    }

    /// How often the emulated board injected each fault. Findings that nobody took yet are taken by this call.
    #[must_use]
    pub fn injected_faults(&self) -> BTreeMap<Fault, u64> {
        if let Some(board) = &self.board {
            self.count_injected(&board.take_findings());
        }
        self.injected.lock().clone()
    }

    /// Counts an event that the caller found.
    pub fn note(&self, core: Option<u8>, kind: EventKind) {
        self.shared.note(core, kind);
    }

    /// The clock that waits are measured with.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }

    /// How jobs are submitted and waited for, as the options ask.
    #[must_use]
    pub fn submit_mode(&self) -> SubmitMode {
        self.submit_mode
    }

    /// Whether jobs that fail are tried again.
    #[must_use]
    pub fn may_recover(&self) -> bool {
        self.may_recover
    }

    /// Longest time, by the device's clock, that one round can take with everything going wrong.
    #[must_use]
    pub fn longest_round(&self) -> Duration {
        self.limits.bound(self.cores)
    }

    /// Soft-resets the NPU: about 100 ms, in which jobs of every program that uses it fail. All cores forget their
    /// registers, tables and convolution buffers.
    ///
    /// # Errors
    /// [`DeviceError::Call`]; the mainline driver has no such call.
    pub fn reset(&self) -> Result<(), DeviceError> {
        self.shared
            .kernel
            .reset()
            .map_err(|source| DeviceError::Call { doing: "cannot reset the NPU".to_owned(), source })?;
        add(&self.shared.counters.resets, 1);
        Ok(())
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

    /// Allocates a buffer for activations or results: on-chip as far as the options want it and there is room.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn alloc_scratch(&self, domain: DomainId, len: u64) -> Result<DmaBuffer, DeviceError> {
        let purpose = if self.sram == SramUse::Scratch { Purpose::OnChip } else { Purpose::Data };
        self.alloc_in(domain, purpose, len)
    }

    /// Tells how many bytes of weights are to come, so that they are spread evenly over as few address spaces as can
    /// hold them.
    pub fn expect_weights(&self, bytes: u64) {
        self.placement.lock().expect(bytes);
    }

    /// Allocates room for a weight: in the address space whose turn it is, within a kernel object that it shares with
    /// others. The buffer cannot be read back, and its old bytes are undefined.
    ///
    /// # Errors
    /// [`DeviceError::NoRoom`] when all address spaces are as full as they may be; or the allocation's.
    pub fn alloc_weight(&self, bytes: u64) -> Result<DmaBuffer, DeviceError> {
        let mut pools = self.pools.lock();
        let ticket = self.place_weight(bytes, pools.len() as u8)?;
        let domain = ticket.domain;
        let pool = pools[usize::from(domain.0)].get_or_insert_with(|| Pool::new(&self.shared, domain));
        pool.alloc(bytes, ticket)
    }

    /// Takes room for a weight in the address space whose turn it is.
    fn place_weight(&self, bytes: u64, domains: u8) -> Result<Ticket, DeviceError> {
        let limit = self.domain_bytes_max;
        let domain = self.placement.lock().place(bytes).map_err(|no_room| DeviceError::NoRoom {
            bytes,
            held: no_room.held,
            domains,
            limit,
        })?;
        Ok(Ticket { placement: Arc::clone(&self.placement), domain, bytes })
    }

    /// Whether [`lend_weight`](Self::lend_weight) can work: an emulated board whose driver imports dma-bufs. No real kernel
    /// makes a dma-buf of a file.
    #[must_use]
    pub fn lends_files(&self) -> bool {
        self.shared.files.lends() && self.features().has(Feature::ImportDmaBuf)
    }

    /// A weight that lies ready in a file, used in place: its pages become a dma-buf, and that is imported where
    /// [`alloc_weight`](Self::alloc_weight) would have placed it. The range starts at a page and ends anywhere. Nothing is
    /// copied or read. The NPU can read it and not write it, and the CPU sees it by its own mapping of the file.
    ///
    /// Nobody may shorten the file as long as the buffer lives: who reads a page that is gone is ended by SIGBUS, as with
    /// every mapped file.
    ///
    /// # Errors
    /// [`DeviceError::NoRoom`] as for `alloc_weight`; [`DeviceError::Call`] where files cannot be lent, the range is not one
    /// of the file, or there are no more descriptors.
    pub fn lend_weight(
        &self,
        file: BorrowedFd<'_>,
        range: Range<u64>,
    ) -> Result<ResidentBuffer, DeviceError> {
        let bytes = range.end.saturating_sub(range.start);
        if bytes == 0 {
            return Err(DeviceError::Length { len: 0 });
        }
        let domains = self.pools.lock().len() as u8;
        let ticket = self.place_weight(bytes, domains)?;
        ResidentBuffer::of_file(&self.shared, file, range, ticket)
    }

    /// Bytes of weights in each address space.
    #[must_use]
    pub fn weight_bytes(&self) -> Vec<u64> {
        self.placement.lock().used().to_vec()
    }

    /// Maps a dma-buf, such as one of a camera, a GPU or the system heap, for the NPU and the CPU. Its descriptor is
    /// kept open by a duplicate as long as the buffer lives.
    ///
    /// # Errors
    /// [`DeviceError`]; the mainline driver imports nothing.
    pub fn import(&self, domain: DomainId, dma_buf: BorrowedFd<'_>) -> Result<DmaBuffer, DeviceError> {
        DmaBuffer::import(&self.shared, domain, dma_buf)
    }

    /// The files of the device's kernel, to allocate dma-bufs with.
    #[must_use]
    pub fn files(&self) -> &Arc<dyn Files> {
        &self.shared.files
    }
}

fn check(options: &DeviceOptions) -> Result<(), OpenError> {
    let impossible = |option, reason: &str| Err(OpenError::Option { option, reason: reason.to_owned() });
    if options.timeout_ms == 0 {
        return impossible("timeout_ms", "a job needs at least 1 ms");
    }
    if options.cores == 0 || usize::from(options.cores) > CORES_MAX {
        return impossible("cores", "an RK3588 has cores 1 to 3");
    }
    if options.domain_bytes_max == 0 || options.domain_bytes_max > crate::buffer::WINDOW_BYTES {
        return impossible("domain_bytes_max", "an address space has 1 byte to 4 GiB");
    }
    Ok(())
}
