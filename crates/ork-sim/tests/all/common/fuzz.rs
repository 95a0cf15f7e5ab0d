// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs and texts that nobody meant: recorded programs with some words changed, noise, and mutated program text.
//! One seed is one execution, on memory and cores of its own, so that it can be repeated alone.

mod overlay;

use std::fmt;
use std::path::Path;

use ork_conformance::{Case, CaseError, case_names};
use ork_isa::asm::{Comments, Listing, Stream, parse, print, read_bytes, read_hex};
use ork_isa::diff::{Addresses, diff};
use ork_isa::explain::explain;
use ork_isa::lint::lint;
use ork_isa::{Cmd, CmdKind, Iova, find_register};
use ork_sim::{Bus, Core, FloatSums, JobEnd, JobOutcome, PcJob, SimOptions};
use overlay::{Image, Overlay};

/// Findings that a job keeps.
const FINDINGS_MAX: usize = 64;
/// Products up to which an execution is repeated by the plain loops.
const PLAIN_MACS: u64 = 1 << 21;

/// Numbers from a seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// A recorded submit.
struct Recorded {
    image: Image,
    jobs: Vec<PcJob>,
    programs: Vec<(Iova, Vec<u64>)>,
    /// Where the data lie, without the programs.
    data: Vec<(u64, u64)>,
}

/// What executions start from.
pub struct Corpus {
    recorded: Vec<Recorded>,
    texts: Vec<String>,
    words: Vec<u64>,
}

impl Corpus {
    /// Every `step`-th recorded case of a folder.
    pub fn read(folder: &Path, step: usize) -> Result<Self, CaseError> {
        let mut corpus = Self { recorded: Vec::new(), texts: Vec::new(), words: Vec::new() };
        for name in case_names(folder)?.iter().step_by(step) {
            let case = Case::read(folder, name)?;
            let start = case.start()?;
            let image = Image::of(&start.memory);
            let bus = Overlay::new(&image);
            let mut programs = Vec::new();
            let mut streams = Vec::new();
            for (at, count) in &start.programs {
                let Ok(bytes) = bus.read(*at, *count as u64 * 8) else { continue };
                let words: Vec<u64> =
                    bytes.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect();
                streams.push(Stream {
                    name: name.clone(),
                    at: Some(*at),
                    words: words.iter().copied().map(Cmd).collect(),
                });
                corpus.words.extend(&words);
                programs.push((*at, words));
            }
            corpus.texts.push(print(&Listing { streams }, Comments::Warnings));
            let holds = |at: u64, len: u64| {
                programs.iter().any(|(program, _)| (at..at + len).contains(&u64::from(program.0)))
            };
            let data = start
                .memory
                .iter()
                .map(|(at, bytes)| (u64::from(at.0), bytes.len() as u64))
                .filter(|(at, len)| !holds(*at, *len))
                .collect();
            drop(bus);
            let jobs = start.jobs.iter().map(|(_, job)| *job).collect();
            corpus.recorded.push(Recorded { image, jobs, programs, data });
        }
        Ok(corpus)
    }
}

/// What is fed to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Recorded programs with a few words changed, to the simulator.
    Programs,
    /// Arbitrary memory and arbitrary values of known registers, to the simulator.
    Noise,
    /// Mutated program text and mutated words, to parser, printer, lints, explanations and comparison.
    Text,
}

impl Target {
    pub const ALL: [Self; 3] = [Self::Programs, Self::Noise, Self::Text];

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|target| target.to_string() == name)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Programs => "programs",
            Self::Noise => "noise",
            Self::Text => "text",
        })
    }
}

/// How an execution ended, for the tally.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ended {
    /// The job completed without a finding.
    Clean,
    /// The job completed; name of its first finding.
    Found(&'static str),
    /// Silicon would hang; the check.
    Hang(&'static str),
    /// The model refuses; the check.
    Unmodelled(&'static str),
    /// The text is a program.
    Accepted,
    /// The text is none.
    Refused,
}

/// One execution. Panics when a property does not hold.
pub fn execute(corpus: &Corpus, target: Target, seed: u64) -> Ended {
    // Seeds are small numbers; their streams must not be neighbours.
    let mut random = Random(seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ target as u64);
    match target {
        Target::Programs => programs(corpus, &mut random),
        Target::Noise => noise(&mut random),
        Target::Text => text(corpus, &mut random),
    }
}

/// What must hold for every outcome.
fn check(outcome: &JobOutcome, job: &PcJob) {
    assert!(outcome.tasks_done <= job.tasks, "more tasks than there are");
    assert!(outcome.diagnoses.len() <= FINDINGS_MAX, "findings without end");
    assert!(outcome.modelled_us.is_finite() && outcome.modelled_us >= 0.0, "time {}", outcome.modelled_us);
    match &outcome.end {
        JobEnd::Done => assert_eq!(outcome.tasks_done, job.tasks, "done early"),
        JobEnd::Hang(diagnosis) | JobEnd::Unmodelled(diagnosis) => {
            let text = diagnosis.to_string();
            assert!(text.contains("(1) ") && text.contains("(2) "), "{text}");
        }
    }
    for diagnosis in &outcome.diagnoses {
        assert!(!diagnosis.source.is_empty() && diagnosis.to_string().contains("(2) "), "{diagnosis}");
    }
}

fn ended(outcome: &JobOutcome) -> Ended {
    match &outcome.end {
        JobEnd::Hang(diagnosis) => Ended::Hang(diagnosis.check),
        JobEnd::Unmodelled(diagnosis) => Ended::Unmodelled(diagnosis.check),
        JobEnd::Done => match outcome.diagnoses.first() {
            Some(finding) => Ended::Found(finding.check),
            None => Ended::Clean,
        },
    }
}

/// Runs jobs one behind the other on a fresh core, with the sum of the traces held against the totals.
fn run(bus: &Overlay<'_>, jobs: &[PcJob], options: &SimOptions) -> Vec<JobOutcome> {
    let mut core = Core::new(0, options);
    let mut outcomes = Vec::new();
    for job in jobs {
        let (mut tasks, mut words, mut macs, mut written) = (0, 0, 0, 0);
        let outcome = core.run_traced(bus, job, &mut |trace| {
            tasks += 1;
            words += trace.stats.words;
            macs += trace.stats.macs;
            written += trace.stats.written_bytes;
        });
        check(&outcome, job);
        if outcome.end == JobEnd::Done {
            let stats = &outcome.stats;
            assert_eq!((tasks, words), (outcome.tasks_done, stats.words), "traces and totals");
            assert_eq!((macs, written), (stats.macs, stats.written_bytes), "traces and totals");
        }
        let stop = outcome.end != JobEnd::Done;
        outcomes.push(outcome);
        if stop {
            break;
        }
    }
    outcomes
}

fn options(random: &mut Random) -> SimOptions {
    let float_sums = if random.below(2) == 0 { FloatSums::Exact } else { FloatSums::Fast };
    SimOptions { threads: 1, float_sums, ..SimOptions::default() }
}

/// A value that differs in a way worth trying.
fn other_value(random: &mut Random, block_value: (Option<Cmd>, u32), corpus: &[u64]) -> u32 {
    let (word, value) = block_value;
    match random.below(9) {
        0 => value ^ 1 << random.below(32),
        1 => value.wrapping_add(1 + random.below(4) as u32),
        2 => value.wrapping_sub(1 + random.below(4) as u32),
        3 => random.next() as u32,
        4 => *random.pick(&[0, 1, 2, 3, 7, 8, 15, 16, 31, 63, 0xFFF, 0x1FFF, 0xFFFF, 1 << 31, u32::MAX]),
        5 => Cmd(*random.pick(corpus)).value(),
        // One field by its name: its ends, or anything.
        _ => match word.and_then(|word| word.register()).filter(|register| !register.fields.is_empty()) {
            None => value.wrapping_shl(1),
            Some(register) => {
                let field = random.pick(register.fields);
                let new = match random.below(4) {
                    0 => 0,
                    1 => field.max(),
                    2 => field.get(value).wrapping_add(1),
                    _ => random.next() as u32,
                };
                let mask = field.max() << field.low;
                value & !mask | (new << field.low & mask)
            }
        },
    }
}

/// Changes a few words of programs.
fn mutate(random: &mut Random, programs: &mut [(Iova, Vec<u64>)], corpus: &[u64]) {
    for _ in 0..1 + random.below(4) {
        let index = random.below(programs.len());
        let words = &mut programs[index].1;
        if words.is_empty() {
            continue;
        }
        let at = random.below(words.len());
        let word = Cmd(words[at]);
        match random.below(12) {
            0 => words.swap(at, 0),
            1 => words[at] = 0,
            2 => words[at] = *random.pick(corpus),
            3 => words[at] ^= 1 << random.below(64),
            // A register that no word of the program writes, or the same once more.
            4 => {
                let from = random.below(words.len());
                let value = other_value(random, (None, word.value()), corpus);
                words[at] = Cmd::new(Cmd(words[from]).target(), Cmd(words[from]).offset(), value).0;
            }
            5 => {
                words.remove(at);
                words.push(0);
            }
            _ => {
                let value = other_value(random, (Some(word), word.value()), corpus);
                words[at] = Cmd::new(word.target(), word.offset(), value).0;
            }
        }
    }
}

fn programs(corpus: &Corpus, random: &mut Random) -> Ended {
    let recorded = random.pick(&corpus.recorded);
    let mut programs = recorded.programs.clone();
    mutate(random, &mut programs, &corpus.words);
    let mut jobs = recorded.jobs.clone();
    if random.below(8) == 0 {
        let job = random.below(jobs.len());
        match random.below(4) {
            0 => jobs[job].tasks = random.below(6) as u16,
            1 => jobs[job].amount = random.next() as u16 >> random.below(16),
            2 => jobs[job].dma_base = Iova(random.next() as u32 >> random.below(32) & !0xF),
            _ => jobs[job].int_mask = random.next() as u32,
        }
    }
    // The same job again: registers, buffer and tables of the first run are its past.
    if random.below(6) == 0 {
        jobs.push(jobs[0]);
    }
    let noise: Option<(u64, u64)> =
        (random.below(2) == 0 && !recorded.data.is_empty()).then(|| *random.pick(&recorded.data));
    let data = random.next();
    let bus = || {
        let bus = Overlay::new(&recorded.image);
        if let Some((at, len)) = noise {
            let mut random = Random(data);
            let bytes: Vec<u8> = (0..len.min(1 << 14)).map(|_| (random.next() >> 32) as u8).collect();
            bus.write(Iova(at as u32), &bytes).expect("a recorded buffer");
        }
        for (at, words) in &programs {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            bus.write(*at, &bytes).expect("a recorded program");
        }
        bus
    };
    let options = options(random);
    let fast_bus = bus();
    let fast = run(&fast_bus, &jobs, &options);
    let macs: u64 = fast.iter().map(|outcome| outcome.stats.macs).sum();
    if macs <= PLAIN_MACS && random.below(4) == 0 {
        // The plain loops are the definition: same outcomes, findings and bytes.
        let plain_bus = bus();
        let plain = run(&plain_bus, &jobs, &SimOptions { reference_kernels: true, ..options });
        let bounded = |outcomes: &[JobOutcome]| {
            outcomes.iter().any(|outcome| ended(outcome) == Ended::Unmodelled("task-too-large"))
        };
        if !bounded(&plain) {
            assert_eq!(fast, plain, "fast and plain kernels");
            assert!(fast_bus.written() == plain_bus.written(), "memory after fast and plain kernels");
        }
    }
    fast.last().map_or(Ended::Refused, ended)
}

fn noise(random: &mut Random) -> Ended {
    const BASE: u32 = 0x10_0000;
    const SIZE: usize = 0x1_0000;
    let mut memory: Vec<u8> = (0..SIZE / 8).flat_map(|_| random.next().to_le_bytes()).collect();
    let mut job = PcJob {
        base: Iova(BASE + 16 * random.below(SIZE / 16) as u32),
        amount: random.next() as u16 >> random.below(16),
        tasks: random.below(4) as u16,
        dma_base: Iova(0),
        int_mask: random.next() as u32,
        int_clear: 0,
        s_pointer: random.next().is_multiple_of(2).then_some(random.next() as u32),
    };
    if random.below(4) > 0 {
        // Words for every register of every block, in the order of their addresses.
        let mut words = Vec::new();
        for page in [1u16, 3, 4, 5, 6, 7] {
            for offset in (0..0x200u16).step_by(4) {
                let target = [0, 0x0201, 0, 0x0801, 0x1001, 0x2001, 0x4001, 0x8001][usize::from(page)];
                let probe = Cmd::new(target, page << 12 | offset, 0);
                let CmdKind::Write { block, offset, .. } = probe.kind() else { continue };
                if find_register(block, offset).is_none() {
                    continue;
                }
                let value = match random.below(5) {
                    0 => random.next() as u32,
                    1 => random.below(64) as u32,
                    2 => BASE + random.below(SIZE) as u32,
                    _ => 0,
                };
                words.push(Cmd::new(target, offset, value));
            }
        }
        words.push(Cmd::op_enable(*random.pick(&[0x0D, 0x1D, 0x18, 0x60, 0x7F])));
        words.resize(words.len().next_multiple_of(2), Cmd(0));
        for (bytes, word) in memory.chunks_mut(8).zip(&words) {
            bytes.copy_from_slice(&word.0.to_le_bytes());
        }
        job = PcJob { base: Iova(BASE), amount: (words.len() / 2 - 1) as u16, tasks: 1, ..job };
    }
    let image = Image::of(&[(Iova(BASE), memory)]);
    let outcomes = run(&Overlay::new(&image), &[job], &options(random));
    outcomes.last().map_or(Ended::Refused, ended)
}

/// Whatever can be asked about a listing.
fn interrogate(listing: &Listing, other: &Listing) {
    for comments in [Comments::Full, Comments::Warnings] {
        let text = print(listing, comments);
        let back = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(&back, listing, "{text}");
    }
    for finding in lint(listing) {
        assert!(finding.to_string().contains("(2) "), "{finding}");
    }
    for explanation in explain(listing) {
        let _ = explanation.to_string();
    }
    let split = listing.split();
    assert!(split.words().eq(listing.words()), "cutting loses or moves words");
    let words = |listing: &Listing| listing.words().collect::<Vec<_>>();
    let (a, b) = (words(listing), words(other));
    assert!(diff(&a, &a, Addresses::Compare).is_empty(), "a program differs from itself");
    let same = diff(&a, &b, Addresses::Compare).is_empty();
    assert_eq!(same, a == b, "a difference that is none, or is not seen");
}

fn text(corpus: &Corpus, random: &mut Random) -> Ended {
    let base = random.pick(&corpus.texts);
    let Ok(original) = parse(base) else { panic!("a recorded program has no text") };
    if random.below(2) == 0 {
        // Changed words.
        let mut programs: Vec<(Iova, Vec<u64>)> = original
            .streams
            .iter()
            .map(|stream| (stream.at.unwrap_or_default(), stream.words.iter().map(|word| word.0).collect()))
            .collect();
        mutate(random, &mut programs, &corpus.words);
        let bytes: Vec<u8> =
            programs.iter().flat_map(|(_, words)| words.iter().flat_map(|word| word.to_le_bytes())).collect();
        let listing = Listing {
            streams: original
                .streams
                .iter()
                .zip(programs)
                .map(|(stream, (_, words))| Stream {
                    words: words.into_iter().map(Cmd).collect(),
                    ..stream.clone()
                })
                .collect(),
        };
        interrogate(&listing, &original);
        let whole = read_bytes(&bytes).unwrap_or_else(|error| panic!("{error}"));
        assert!(whole.words().eq(listing.words()), "bytes of words are those words");
        return Ended::Accepted;
    }
    let mutated = mutated_text(random, base, &corpus.texts);
    let _ = read_hex(&mutated);
    match parse(&mutated) {
        Ok(listing) => {
            interrogate(&listing, &original);
            Ended::Accepted
        }
        Err(error) => {
            let lines = mutated.lines().count().max(1);
            assert!((1..=lines + 1).contains(&error.line) && error.column >= 1, "{error}");
            assert!(!error.to_string().is_empty());
            Ended::Refused
        }
    }
}

/// A few lines of a text with characters, words and lines changed.
fn mutated_text(random: &mut Random, base: &str, others: &[String]) -> String {
    const PIECES: [&str; 26] = [
        "{",
        "}",
        "=",
        ",",
        ".",
        "+",
        ";",
        "\"",
        "-",
        "_",
        "0x",
        "0",
        "4294967296",
        "18446744073709551616",
        "reserved=",
        "word ",
        "nop",
        "op-enable",
        "pre-op-enable",
        ".program ",
        " at ",
        "é",
        "\0",
        "\r",
        "\n",
        " ",
    ];
    let lines: Vec<&str> = base.lines().collect();
    let from = random.below(lines.len());
    let mut chosen: Vec<String> =
        lines[from..].iter().take(1 + random.below(40)).map(|line| (*line).to_owned()).collect();
    for _ in 0..1 + random.below(4) {
        let at = random.below(chosen.len());
        let line = &mut chosen[at];
        let places: Vec<usize> = line.char_indices().map(|(at, _)| at).chain([line.len()]).collect();
        let place = *random.pick(&places);
        match random.below(7) {
            0 => line.insert_str(place, random.pick::<&str>(&PIECES)),
            1 => line.truncate(place),
            2 => {
                let end = *random.pick(&places);
                line.replace_range(place.min(end)..place.max(end), random.pick::<&str>(&PIECES));
            }
            3 => {
                let copy = line.clone();
                chosen.insert(at, copy);
            }
            4 => {
                let other = random.pick(others);
                let other: Vec<&str> = other.lines().collect();
                chosen[at] = (*random.pick(&other)).to_owned();
            }
            5 => {
                let digit = line.find(|c: char| c.is_ascii_digit()).unwrap_or(0);
                line.insert_str(digit, &random.below(100_000).to_string());
            }
            _ => {
                if let Some(c) = char::from_u32(random.next() as u32 % 0x11_0000) {
                    line.insert(place, c);
                }
            }
        }
    }
    chosen.join("\n")
}
