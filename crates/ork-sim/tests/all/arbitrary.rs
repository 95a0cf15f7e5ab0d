// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arbitrary words and arbitrary memory: the model always comes back with an outcome.

use crate::common;
use std::time::{Duration, Instant};

use common::bench::*;
use common::*;
use ork_isa::{Block, Cmd, Iova, Link};
use ork_sim::{Core, FloatSums, JobEnd, JobOutcome, PcJob, SimOptions};

/// Host time that one test may take; the number of rounds it reaches does not matter.
const BUDGET: Duration = Duration::from_millis(1500);
/// Host time that no single job may take.
const JOB_MAX: Duration = Duration::from_secs(20);

fn check(outcome: &JobOutcome, job: &PcJob) {
    assert!(outcome.tasks_done <= job.tasks);
    assert!(outcome.diagnoses.len() <= 64);
    assert!(outcome.modelled_us.is_finite() && outcome.modelled_us >= 0.0);
    match &outcome.end {
        JobEnd::Done => assert_eq!(outcome.tasks_done, job.tasks),
        JobEnd::Hang(diagnosis) | JobEnd::Unmodelled(diagnosis) => {
            // Printing a finding must not fail either.
            assert!(diagnosis.to_string().contains("(2) "));
        }
    }
    for diagnosis in &outcome.diagnoses {
        assert!(!diagnosis.to_string().is_empty());
    }
}

fn run(core: &mut Core, bus: &FlatBus, job: &PcJob, what: &str) {
    let start = Instant::now();
    let outcome = core.run(bus, job);
    assert!(start.elapsed() < JOB_MAX, "{what}: {:?} for {:?}", start.elapsed(), outcome.end);
    check(&outcome, job);
}

#[test]
fn arbitrary_memory_as_a_program() {
    let mut random = Random(0xF00D);
    let start = Instant::now();
    while start.elapsed() < BUDGET {
        let bus = FlatBus::new(PROGRAM, 0x4000);
        bus.put(PROGRAM, &random.bytes(0x4000));
        let job = PcJob {
            base: Iova(PROGRAM + 16 * random.below(0x500) as u32),
            amount: random.next() as u16,
            tasks: random.below(5) as u16,
            dma_base: Iova(if random.below(4) == 0 { random.next() as u32 } else { 0 }),
            int_mask: random.next() as u32,
            int_clear: 0,
            s_pointer: (random.below(2) == 0).then(|| random.next() as u32),
        };
        run(&mut core(), &bus, &job, "random memory");
    }
}

#[test]
fn arbitrary_values_in_known_registers() {
    let mut random = Random(0xBEEF);
    let start = Instant::now();
    let blocks = [Block::Cna, Block::Core, Block::Dpu, Block::DpuRdma, Block::Ppu, Block::PpuRdma];
    while start.elapsed() < BUDGET {
        let bus = FlatBus::new(PROGRAM, 0x1_0000);
        bus.put(PROGRAM, &random.bytes(0x1_0000));
        let mut words = Vec::new();
        for block in blocks {
            for desc in ork_isa::regs::of(block) {
                let value = match random.below(4) {
                    0 => random.next() as u32,
                    1 => random.below(64) as u32,
                    2 => PROGRAM + random.below(0x1_0000) as u32,
                    _ => 0,
                };
                words.push(Cmd::new(block.target().unwrap(), desc.offset, value));
            }
        }
        let mask = [0xD, 0x1D, 0x18, 0x60][random.below(4) as usize];
        words.push(Cmd::op_enable(mask));
        words.resize(words.len().next_multiple_of(2), Cmd(0));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.0.to_le_bytes()).collect();
        bus.put(PROGRAM, &bytes);
        let job = job((words.len() / 2 - 1) as u16, 1);
        run(&mut core(), &bus, &job, "random registers");
    }
}

/// A valid program with a few fields changed reaches deeper than noise does.
fn mutated(options: &SimOptions, seed: u64, bodies: &[(Words, u32)]) {
    let mut random = Random(seed);
    let start = Instant::now();
    let mut core = Core::new(0, options);
    let mut done = 0;
    while start.elapsed() < BUDGET {
        let (body, enable) = &bodies[random.below(bodies.len() as u64) as usize];
        let mut body = body.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(body.len() as u64) as usize;
            let (offset, value) = body[at];
            let new = match random.below(4) {
                0 => value ^ 1 << random.below(32),
                1 => value.wrapping_add(random.below(9) as u32).wrapping_sub(4),
                2 => random.next() as u32,
                _ => random.below(4096) as u32,
            };
            body[at] = (offset, new);
        }
        let bus = FlatBus::new(PROGRAM, 0x8_0000);
        bus.put(PROGRAM + 0x1_0000, &random.bytes(0x2000));
        let (bytes, amount) = assemble(&body, *enable);
        bus.put(PROGRAM, &bytes);
        let mut job = job(amount, 1);
        job.int_mask = 0xF00;
        let begin = Instant::now();
        let outcome = core.run(&bus, &job);
        assert!(begin.elapsed() < JOB_MAX, "{:?} for {body:x?}", begin.elapsed());
        check(&outcome, &job);
        done += u32::from(outcome.end == JobEnd::Done);
        if outcome.end != JobEnd::Done {
            core.reset();
        }
    }
    assert!(done > 0, "some mutations still run");
}

fn matmul_body() -> Words {
    let mm = Matmul {
        a: PROGRAM + 0x1_0000,
        b: PROGRAM + 0x2_0000,
        c: PROGRAM + 0x3_0000,
        ..Matmul::new(Recipe::Two, 4, 64, 64)
    };
    let program = mm.program(Link::Last, &[]);
    program.words()[..program.body_words()].iter().map(|word| (word.offset(), word.value())).collect()
}

fn bodies() -> Vec<(Words, u32)> {
    let matmul = matmul_body();
    let fp16 = patched(
        &matmul,
        &[
            (0x100C, 0x2000_0120),
            (0x1034, 128),
            (0x1044, 2),
            (0x107C, 8),
            (0x3010, 0x201),
            (0x4010, 0xA800_0002),
            (0x4050, 0x36E),
            (0x40C0, 0x40),
        ],
    );
    let int4 = patched(
        &matmul,
        &[
            (0x100C, 0x360),
            (0x1034, 32),
            (0x3010, 0x601),
            (0x4010, 0x3800_0006),
            (0x4024, 0x40),
            (0x40C0, 0x200),
            (0x4038, 0),
        ],
    );
    let fed = patched(
        &matmul,
        &[
            (0x5004, 0xE),
            (0x500C, 0),
            (0x5010, 3),
            (0x5014, 63),
            (0x5018, PROGRAM + 0x4_0000),
            (0x501C, 2),
            (0x5020, PROGRAM + 0x4_0000),
            (0x5034, 1),
            (0x5038, PROGRAM + 0x4_1000),
            (0x5040, 0x40),
            (0x5044, 0x7810),
            (0x4040, 0x2_0150),
            (0x4070, 0x383),
        ],
    );
    let flying = patched(
        &matmul,
        &[
            (0x400C, 0x1E5),
            (0x4010, 0),
            (0x4024, 0x40),
            (0x4050, 2),
            (0x40C0, 0x40),
            (0x4038, 0),
            (0x405C, 0),
            (0x4034, 3),
            (0x5004, 0xE),
            (0x500C, 0),
            (0x5010, 3),
            (0x5014, 63),
            (0x5018, PROGRAM + 0x1_0000),
            (0x5034, 0x4000_0004),
            (0x5038, PROGRAM + 0x4_0000),
            (0x5040, 0x40),
            (0x5044, 0x7801),
            (0x4070, 0x9040_02C4),
        ],
    );
    let flying: Words = flying.into_iter().filter(|(offset, _)| *offset >= 0x4000).collect();
    let pool = vec![
        (0x6004, 0xE),
        (0x7004, 0xE),
        (0x600C, 7),
        (0x6010, 7),
        (0x6014, 15),
        (0x6018, 3),
        (0x601C, 3),
        (0x6020, 15),
        (0x6024, 0x10),
        (0x6034, 0x11_0101),
        (0x6038, 0x7800),
        (0x603C, 0x7800),
        (0x6070, PROGRAM + 0x3_0000),
        (0x607C, 0x100),
        (0x6084, 0x102),
        (0x60DC, 3),
        (0x700C, 7),
        (0x7010, 7),
        (0x7014, 15),
        (0x701C, PROGRAM + 0x1_0000),
        (0x7024, 0x80),
        (0x7028, 0x400),
        (0x7030, 2),
    ];
    vec![(matmul, 0xD), (fp16, 0xD), (int4, 0xD), (fed, 0x1D), (flying, 0x18), (pool, 0x60)]
}

#[test]
fn the_bodies_to_mutate_are_valid() {
    for (body, enable) in bodies() {
        let bus = FlatBus::new(PROGRAM, 0x8_0000);
        let outcome = run_words(&mut core(), &bus, &body, enable);
        assert_clean(&outcome, 1);
    }
}

#[test]
fn mutated_programs() {
    mutated(&SimOptions::default(), 1, &bodies());
}

#[test]
fn mutated_programs_by_the_plain_loops() {
    mutated(&SimOptions { reference_kernels: true, ..SimOptions::default() }, 2, &bodies());
}

/// Fast and plain kernels agree on whatever the mutations produce: outcome, findings and memory.
#[test]
fn fast_and_plain_kernels_agree() {
    let bodies = bodies();
    let mut random = Random(3);
    let start = Instant::now();
    let (mut rounds, mut same) = (0u32, 0u32);
    while start.elapsed() < BUDGET {
        let (body, enable) = &bodies[random.below(bodies.len() as u64) as usize];
        let mut body = body.clone();
        for _ in 0..random.below(3) {
            let at = random.below(body.len() as u64) as usize;
            body[at].1 = body[at].1.wrapping_add(random.below(5) as u32).wrapping_sub(2);
        }
        let (bytes, amount) = assemble(&body, *enable);
        let data = random.bytes(0x6_0000);
        let mut job = job(amount, 1);
        job.int_mask = 0xF00;
        let float_sums = if rounds.is_multiple_of(2) { FloatSums::Exact } else { FloatSums::Fast };
        let fast = SimOptions { float_sums, ..SimOptions::default() };
        let plain = SimOptions { reference_kernels: true, ..fast.clone() };
        let result = [&fast, &plain].map(|options| {
            let bus = FlatBus::new(PROGRAM, 0x8_0000);
            bus.put(PROGRAM + 0x1_0000, &data);
            bus.put(PROGRAM, &bytes);
            let outcome = Core::new(0, options).run(&bus, &job);
            (outcome, bus.get(PROGRAM, 0x8_0000))
        });
        let [(fast, fast_memory), (plain, plain_memory)] = result;
        rounds += 1;
        same += u32::from(fast.end == JobEnd::Done);
        if fast.end == JobEnd::Done || plain.end == JobEnd::Done {
            assert_eq!(fast, plain, "{body:x?}");
            assert!(fast_memory == plain_memory, "{body:x?}");
        }
    }
    assert!(same > 0 && rounds > same, "{same} of {rounds} completed");
}
