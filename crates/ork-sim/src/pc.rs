// SPDX-License-Identifier: MIT OR Apache-2.0
//! Program controller: fetches programs, hands out their words, counts tasks (`isa.md` §2).

use ork_isa::regs::pc;
use ork_isa::{Block, Cmd, CmdKind, Iova, Precision, Register, find_register};
use ork_mac::Engine;

use crate::cbuf::Cbuf;
use crate::diagnosis::{Category, Diagnosis, Site, Stop, hang, rule, unmodelled};
use crate::ppu::SmallPool;
use crate::regs::{RegisterFile, Turn, blocks_of};
use crate::sdp_lut::Tables;
use crate::{Bus, BusFault, JobEnd, JobOutcome, JobStats, PcJob, SimOptions, TaskTrace, conv, ppu, timing};

/// One NPU core. Register groups, convolution buffer and tables persist from job to job.
#[derive(Debug)]
pub struct Core {
    index: u8,
    options: SimOptions,
    engine: Engine,
    registers: RegisterFile,
    cbuf: Cbuf,
    tables: Tables,
    small_pool: Option<SmallPool>,
    job: u64,
    /// Precision of the last MAC task since reset.
    last_precision: Option<Precision>,
    /// The hang that nothing but a reset ends.
    wedged: Option<Box<Diagnosis>>,
}

/// What the units of a task share.
pub(crate) struct Machine<'a> {
    pub(crate) bus: &'a dyn Bus,
    pub(crate) options: &'a SimOptions,
    pub(crate) engine: &'a Engine,
    pub(crate) cbuf: &'a mut Cbuf,
    pub(crate) tables: &'a Tables,
    pub(crate) small_pool: &'a mut Option<SmallPool>,
    pub(crate) last_precision: &'a mut Option<Precision>,
    pub(crate) dma_base: Iova,
    /// The task is one of several of its job.
    pub(crate) chained: bool,
    /// Memory that CNA has read for the present task: reader, first address, one behind the last.
    pub(crate) inputs: Vec<(&'static str, u64, u64)>,
    pub(crate) diagnoses: &'a mut Vec<Diagnosis>,
    pub(crate) stats: &'a mut JobStats,
    pub(crate) clock: &'a mut timing::Clock,
}

impl Machine<'_> {
    /// Stores to memory.
    pub(crate) fn store(&mut self, at: Iova, data: &[u8]) -> Result<(), BusFault> {
        self.cbuf.before_store(self.bus, u64::from(at.0), data.len());
        self.bus.write(at, data)
    }
}

/// How many findings a job keeps; a job of thousands of tasks repeats itself.
const FINDINGS_MAX: usize = 64;

/// What a program's words left behind.
struct ProgramEnd {
    link: Option<Iova>,
    amount: Option<u16>,
    /// The op-enable word: its index and its mask.
    enabled: Option<(usize, u32)>,
}

impl Core {
    /// A core in reset state.
    #[must_use]
    pub fn new(index: u8, options: &SimOptions) -> Self {
        let engine =
            if options.reference_kernels { Engine::reference() } else { Engine::new(options.threads) };
        Self {
            index,
            options: options.clone(),
            engine,
            registers: RegisterFile::reset(&options.silicon),
            cbuf: Cbuf::new(),
            tables: Tables::reset(),
            small_pool: None,
            job: 0,
            last_precision: None,
            wedged: None,
        }
    }

    /// Back to reset state, as after the driver's reset action.
    pub fn reset(&mut self) {
        self.registers = RegisterFile::reset(&self.options.silicon);
        self.cbuf = Cbuf::new();
        self.tables = Tables::reset();
        self.small_pool = None;
        self.job = 0;
        self.last_precision = None;
        self.wedged = None;
    }

    /// Runs a job as the program controller does when the kernel starts it: fetches and runs exactly
    /// `job.tasks` programs, the first at `job.base`, each later one where its predecessor says.
    pub fn run(&mut self, bus: &dyn Bus, job: &PcJob) -> JobOutcome {
        self.run_traced(bus, job, &mut |_| {})
    }

    /// As [`run`](Self::run), and tells `sink` of every task that completed, in order.
    pub fn run_traced(
        &mut self,
        bus: &dyn Bus,
        job: &PcJob,
        sink: &mut dyn FnMut(&TaskTrace<'_>),
    ) -> JobOutcome {
        self.job += 1;
        self.tables.begin_job();
        let mut diagnoses = Vec::new();
        let mut stats = JobStats::default();
        let mut clock = timing::Clock::default();
        let mut tasks_done = 0;
        let mut int_status = 0;
        let stop = if let Some(earlier) = &self.wedged {
            let site = Site { core: self.index, job: self.job, task: 0, word: 0 };
            Some(hang(
                site,
                Category::InvalidProgram,
                "core-wedged",
                Vec::new(),
                rule(format!("an earlier job hung and no reset followed: {}", earlier.check)),
                "the job is never taken up",
                "isa-notes G-2",
            ))
        } else {
            self.registers.begin_job(job.s_pointer);
            // The register holds bits 31:4 of the address.
            let mut next = (Some(Iova(job.base.0 & !0xF)), Some(job.amount));
            let mut stop = slave_mode(Site { core: self.index, job: self.job, task: 0, word: 0 }, job);
            let tasks = if stop.is_none() { job.tasks } else { 0 };
            for task in 0..tasks {
                let (before, findings) = (stats, diagnoses.len());
                let address = next.0;
                let result = self.run_task(
                    bus,
                    job,
                    task,
                    next,
                    &mut diagnoses,
                    &mut stats,
                    &mut clock,
                    &mut int_status,
                );
                match result {
                    Ok(_) if self.options.strict && !diagnoses.is_empty() => {
                        stop = Some(Stop::Unmodelled(Box::new(diagnoses.remove(0))));
                        break;
                    }
                    Ok(end) => {
                        sink(&TaskTrace {
                            task,
                            program: address.unwrap_or_default(),
                            stats: stats.since(&before),
                            findings: &diagnoses[findings..],
                        });
                        next = (end.link, end.amount);
                    }
                    Err(error) => {
                        stop = Some(error);
                        break;
                    }
                }
                tasks_done += 1;
            }
            if stop.is_none() && job.tasks > 0 && int_status & job.int_mask == 0 {
                let site = Site { core: self.index, job: self.job, task: job.tasks - 1, word: 0 };
                stop = Some(hang(
                    site,
                    Category::InvalidProgram,
                    "interrupt-masked",
                    Vec::new(),
                    rule(format!("the interrupt mask is {:#x}", job.int_mask)),
                    format!("the last task raised {int_status:#x}: no interrupt reaches the driver"),
                    "isa.md §2.4",
                ));
            }
            stop
        };
        // Between jobs the CPU may write to memory.
        self.cbuf.settle(bus);
        diagnoses.truncate(FINDINGS_MAX);
        let end = match stop {
            None => JobEnd::Done,
            Some(Stop::Hang(diagnosis)) => {
                self.wedged.get_or_insert_with(|| diagnosis.clone());
                JobEnd::Hang(*diagnosis)
            }
            Some(Stop::Unmodelled(diagnosis)) => {
                // The state of the core is not known any more.
                self.wedged.get_or_insert_with(|| diagnosis.clone());
                JobEnd::Unmodelled(*diagnosis)
            }
        };
        JobOutcome { tasks_done, int_status, end, diagnoses, modelled_us: clock.micros(), stats }
    }

    #[expect(clippy::too_many_arguments, reason = "the running totals of one job")]
    fn run_task(
        &mut self,
        bus: &dyn Bus,
        job: &PcJob,
        task: u16,
        next: (Option<Iova>, Option<u16>),
        diagnoses: &mut Vec<Diagnosis>,
        stats: &mut JobStats,
        clock: &mut timing::Clock,
        int_status: &mut u32,
    ) -> Result<ProgramEnd, Stop> {
        let mut site = Site { core: self.index, job: self.job, task, word: 0 };
        let (base, amount) = match next {
            (Some(base), Some(amount)) if task == 0 || amount > 0 => (base, amount),
            (base, amount) => {
                let missing = match (base, amount) {
                    (None, _) => "no program wrote PC.BASE_ADDRESS".to_owned(),
                    (_, None) => "no program wrote PC.REGISTER_AMOUNTS".to_owned(),
                    (_, Some(_)) => "PC.REGISTER_AMOUNTS is 0, which ends the chain".to_owned(),
                };
                return Err(hang(
                    Site { task: task.saturating_sub(1), ..site },
                    Category::InvalidProgram,
                    "chain-short",
                    Vec::new(),
                    rule(format!("{} tasks were started", job.tasks)),
                    format!("after {task} of them {missing}"),
                    "isa.md §2.5, §13 row 18",
                ));
            }
        };
        let words = fetch(bus, site, base, amount)?;
        if task == 0 && job.tasks > 1 {
            check_linked(site, job, &words)?;
        }
        // Wherever a wrong link leads: what starts no block never completes, whatever else its words may do.
        if task > 0 && !words.iter().any(|word| matches!(word.kind(), CmdKind::OpEnable { .. })) {
            return Err(no_op_enable(site, base, amount));
        }
        self.registers.begin_program(task);
        let mut end = ProgramEnd { link: None, amount: None, enabled: None };
        for (word, cmd) in words.into_iter().enumerate() {
            site.word = u32::try_from(word).unwrap_or(u32::MAX);
            stats.words += 1;
            match cmd.kind() {
                CmdKind::Nop | CmdKind::PreOpEnable => {}
                CmdKind::Write { block: Block::Pc, offset, value } => {
                    if offset == pc::BaseAddress::DESC.offset {
                        if pc::BaseAddress(value).pc_sel() == 1 {
                            return Err(unmodelled(
                                site,
                                "pc-slave-mode",
                                Vec::new(),
                                "programs are fetched by AXI (PC_SEL 0)",
                                format!("{cmd}"),
                                "isa.md §2.3",
                            ));
                        }
                        end.link = Some(Iova(value & !0xF));
                    } else if offset == pc::RegisterAmounts::DESC.offset {
                        // Bits 31:16 are set by multi-core vendor programs; bits 15:0 count (§2.3).
                        end.amount = Some(pc::RegisterAmounts(value).pc_data_amount() as u16);
                    } else {
                        return Err(unknown_word(site, cmd));
                    }
                }
                CmdKind::Write { block, offset, value } => {
                    if find_register(block, offset).is_none() {
                        return Err(unknown_word(site, cmd));
                    }
                    if block == Block::Dpu {
                        self.tables.port(offset, value, site);
                    }
                    self.registers.write(block, offset, value, site.origin());
                }
                CmdKind::OpEnable { mask } => {
                    if let Some((first, started)) = end.enabled {
                        // A program of an odd length leaves half a beat, where an older program's word may lie (S-86).
                        if mask == started && word == first + 1 && word % 2 == 1 {
                            continue;
                        }
                        return Err(unmodelled(
                            site,
                            "second-op-enable",
                            Vec::new(),
                            "a program has one op-enable word",
                            format!("{cmd} is the second one of the fetched beats"),
                            "isa.md §2.3",
                        ));
                    }
                    end.enabled = Some((word, mask));
                    let (blocks, rest) = blocks_of(mask);
                    let turn = self.registers.op_enable(&blocks);
                    let mut machine = Machine {
                        bus,
                        options: &self.options,
                        engine: &self.engine,
                        cbuf: &mut self.cbuf,
                        tables: &self.tables,
                        small_pool: &mut self.small_pool,
                        last_precision: &mut self.last_precision,
                        dma_base: job.dma_base,
                        chained: job.tasks > 1,
                        inputs: Vec::new(),
                        diagnoses: &mut *diagnoses,
                        stats: &mut *stats,
                        clock: &mut *clock,
                    };
                    let view = self.registers.view(turn);
                    execute(&mut machine, site, view, &blocks, mask, rest)?;
                    if turn.repeats {
                        machine.diagnoses.push(repeated(site));
                    }
                    *int_status = events(&blocks, turn);
                }
                CmdKind::Unknown => return Err(unknown_word(site, cmd)),
            }
        }
        if end.enabled.is_none() {
            return Err(no_op_enable(site, base, amount));
        }
        Ok(end)
    }
}

fn no_op_enable(site: Site, base: Iova, amount: u16) -> Stop {
    let words = (u64::from(amount) + 1) * 2;
    hang(
        site,
        Category::InvalidProgram,
        "no-op-enable",
        Vec::new(),
        site.here(format!("{words} words were fetched from {base}")),
        "none of them starts a block",
        "isa.md §2.5, §13 rows 16, 17",
    )
}

/// A driver that sets `PC_SEL` leaves the program controller in slave mode (`isa.md` §2.3, `uapi.md` A.9).
fn slave_mode(site: Site, job: &PcJob) -> Option<Stop> {
    (pc::BaseAddress(job.base.0).pc_sel() == 1).then(|| {
        hang(
            site,
            Category::InvalidProgram,
            "pc-slave-mode",
            Vec::new(),
            rule("programs are fetched by AXI (PC_SEL 0); addresses are multiples of 16"),
            format!("the first address is {}, whose bit 0 is PC_SEL: no program is fetched", job.base),
            "isa.md §2.3",
        )
    })
}

/// Several tasks behind a first program that has no chain words: none of them is dispatched. With an amount but
/// no address the first one runs (`isa-notes.md` F.3).
fn check_linked(site: Site, job: &PcJob, words: &[Cmd]) -> Result<(), Stop> {
    let last = |wanted: u16| {
        let value = |word: &Cmd| match word.kind() {
            CmdKind::Write { block: Block::Pc, offset, value } if offset == wanted => Some(value),
            _ => None,
        };
        words.iter().rev().find_map(value).unwrap_or(0)
    };
    let amount = pc::RegisterAmounts(last(pc::RegisterAmounts::DESC.offset)).pc_data_amount();
    if amount != 0 || last(pc::BaseAddress::DESC.offset) != 0 {
        return Ok(());
    }
    Err(hang(
        site,
        Category::InvalidProgram,
        "chain-missing",
        Vec::new(),
        rule(format!("{} tasks were started", job.tasks)),
        "the first program names no next one: nothing is dispatched",
        "uapi.md A.9, A.11 row 1",
    ))
}

/// Fetches the words of a program: `amount` + 1 beats of 16 bytes (`isa.md` §2.3).
fn fetch(bus: &dyn Bus, site: Site, base: Iova, amount: u16) -> Result<Vec<Cmd>, Stop> {
    let len = (u64::from(amount) + 1) * 16;
    let bytes = bus.read(base, len).map_err(|fault| {
        hang(
            site,
            Category::Resource,
            "fetch-fault",
            Vec::new(),
            site.here(format!("the program lies at {base}, {len} bytes")),
            fault.to_string(),
            "isa.md §2.5, §14.1",
        )
    })?;
    Ok(bytes.as_chunks::<8>().0.iter().map(|word| Cmd(u64::from_le_bytes(*word))).collect())
}

fn unknown_word(site: Site, cmd: Cmd) -> Stop {
    unmodelled(
        site,
        "unknown-word",
        Vec::new(),
        "the register map names every register of a known program",
        format!("{cmd}"),
        "isa.md §1.2, §2.1",
    )
}

fn repeated(site: Site) -> Diagnosis {
    use crate::diagnosis::{Effect, Finding};
    site.finding(Finding {
        category: Category::Hazard,
        effect: Effect::Wrong,
        check: "pointer-not-rearmed",
        registers: Vec::new(),
        first: rule("ping-pong is on: each later program of a job must write S_POINTER = 0xE"),
        second: site.here("this program does not write S_POINTER: the last group runs again"),
        source: "isa.md §2.6, §13 row 19",
    })
}

/// The interrupt bits that a completed op-enable raises (`isa.md` §2.4).
fn events(blocks: &[Block], turn: Turn) -> u32 {
    blocks.iter().fold(0, |status, block| {
        let bits = match block {
            Block::Cna => 0b01_0101,
            Block::Core => 1 << 6,
            Block::Dpu => 1 << 8,
            Block::Ppu => 1 << 10,
            _ => 0,
        };
        status | bits << turn.group(*block)
    })
}

/// The blocks through which data run from memory to memory.
const PATHS: [&[Block]; 3] =
    [&[Block::Cna, Block::Core, Block::Dpu], &[Block::Dpu, Block::DpuRdma], &[Block::Ppu, Block::PpuRdma]];

fn execute(
    machine: &mut Machine<'_>,
    site: Site,
    view: crate::regs::View<'_>,
    blocks: &[Block],
    mask: u32,
    rest: u32,
) -> Result<(), Stop> {
    use Block::{Cna, Core, Dpu, DpuRdma, Ppu, PpuRdma};
    let before = *machine.stats;
    let result = match blocks {
        [Cna, Core, Dpu] if rest == 0 => conv::run(machine, site, view, false),
        [Cna, Core, Dpu, DpuRdma] if rest == 0 => conv::run(machine, site, view, true),
        [Dpu, DpuRdma] if rest == 0 => conv::run_flying(machine, site, view),
        [Ppu, PpuRdma] if rest == 0 => ppu::run(machine, site, view),
        _ if rest == 0 && !PATHS.iter().any(|path| path.iter().all(|block| blocks.contains(block))) => {
            Err(hang(
                site,
                Category::InvalidProgram,
                "op-enable-mask",
                Vec::new(),
                rule("a task completes where data can run from memory through its blocks to memory"),
                format!("op-enable {mask:#x} starts no such set of blocks"),
                "isa-notes G-27",
            ))
        }
        _ => Err(unmodelled(
            site,
            "op-enable-mask",
            Vec::new(),
            "known programs start 0x0d, 0x1d, 0x18 or 0x60",
            format!("op-enable {mask:#x}"),
            "isa.md §2.2",
        )),
    };
    if !blocks.contains(&Cna) {
        let moved = machine.stats.since(&before);
        // Pooling is fp16.
        let element_bytes = if blocks.contains(&Ppu) { 2 } else { timing::output_bytes(view) };
        let work = timing::stream_work(element_bytes, moved.operand_bytes, moved.written_bytes);
        machine.clock.run(&work);
    }
    result
}
