// SPDX-License-Identifier: MIT OR Apache-2.0
//! A flat memory and programs written by hand from the worked examples (`isa.md` §8), not by our generator.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    missing_debug_implementations,
    reason = "each test binary uses its part"
)]

pub mod bench;
pub mod pass;
pub mod tensor;

use std::ops::Range;
use std::sync::{RwLock, RwLockReadGuard};

use ork_isa::{Iova, Program};
use ork_sim::{Access, Bus, BusFault, Core, JobEnd, JobOutcome, PcJob, SimOptions, Span};

/// One mapping of whole pages.
pub struct FlatBus {
    base: u32,
    memory: RwLock<Vec<u8>>,
}

struct Part<'a>(RwLockReadGuard<'a, Vec<u8>>, Range<usize>);

impl AsRef<[u8]> for Part<'_> {
    fn as_ref(&self) -> &[u8] {
        &self.0[self.1.clone()]
    }
}

impl FlatBus {
    pub fn new(base: u32, len: usize) -> Self {
        Self { base, memory: RwLock::new(vec![0; len.next_multiple_of(4096)]) }
    }

    fn range(&self, iova: Iova, len: u64, access: Access) -> Result<Range<usize>, BusFault> {
        let fault = BusFault { iova, len, access };
        let size = self.memory.read().unwrap().len() as u64;
        let start = u64::from(iova.0).checked_sub(u64::from(self.base)).ok_or(fault)?;
        let end = start.checked_add(len).filter(|end| *end <= size).ok_or(fault)?;
        Ok(start as usize..end as usize)
    }

    pub fn get(&self, iova: u32, len: usize) -> Vec<u8> {
        let start = (iova - self.base) as usize;
        self.memory.read().unwrap()[start..start + len].to_vec()
    }

    pub fn put(&self, iova: u32, bytes: &[u8]) {
        let start = (iova - self.base) as usize;
        self.memory.write().unwrap()[start..start + bytes.len()].copy_from_slice(bytes);
    }

    pub fn put_program(&self, iova: u32, program: &Program) {
        let mut bytes = vec![0; program.padded_bytes()];
        program.write_to(&mut bytes);
        self.put(iova, &bytes);
    }

    pub fn get_i32(&self, iova: u32, count: usize) -> Vec<i32> {
        self.get(iova, count * 4).as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect()
    }
}

impl Bus for FlatBus {
    fn read(&self, iova: Iova, len: u64) -> Result<Span<'_>, BusFault> {
        let range = self.range(iova, len, Access::Read)?;
        Ok(Span::new(Part(self.memory.read().unwrap(), range)))
    }

    fn write(&self, iova: Iova, data: &[u8]) -> Result<(), BusFault> {
        let range = self.range(iova, data.len() as u64, Access::Write)?;
        self.memory.write().unwrap()[range].copy_from_slice(data);
        Ok(())
    }
}

/// A stream of bytes with a long period.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.next() >> 32) as u8).collect()
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// The changes of a test to a program: offset and value, in order of writing.
pub type Patch<'a> = &'a [(u16, u32)];

/// `value / 2^shift` to nearest, ties to even, by comparing both neighbours.
pub fn half_even(value: i64, shift: u32) -> i64 {
    let one = 1i64 << shift;
    let down = value.div_euclid(one);
    let rest = value.rem_euclid(one);
    match (2 * rest).cmp(&one) {
        std::cmp::Ordering::Less => down,
        std::cmp::Ordering::Greater => down + 1,
        std::cmp::Ordering::Equal => down + down.rem_euclid(2),
    }
}

pub fn signed(bytes: Vec<u8>) -> Vec<i8> {
    bytes.into_iter().map(u8::cast_signed).collect()
}

pub const PROGRAM: u32 = 0x10_0000;

pub fn job(amount: u16, tasks: u16) -> PcJob {
    PcJob {
        base: Iova(PROGRAM),
        amount,
        tasks,
        dma_base: Iova(0),
        int_mask: 0x300,
        int_clear: 0x1_FFFF,
        s_pointer: None,
    }
}

pub fn core() -> Core {
    Core::new(0, &SimOptions::default())
}

#[track_caller]
pub fn assert_clean(outcome: &JobOutcome, tasks: u16) {
    assert_eq!(outcome.end, JobEnd::Done, "{:?}", outcome.end);
    assert!(outcome.diagnoses.is_empty(), "{}", outcome.diagnoses[0]);
    assert_eq!(outcome.tasks_done, tasks);
}

/// The job hung, and the finding is the one named.
#[track_caller]
pub fn assert_hang(outcome: &JobOutcome, check: &str, tasks_done: u16) {
    match &outcome.end {
        JobEnd::Hang(diagnosis) => {
            assert_eq!(diagnosis.check, check, "{diagnosis}");
            assert_two_events(&diagnosis.to_string());
        }
        end => panic!("not a hang: {end:?}, findings {:?}", outcome.diagnoses),
    }
    assert_eq!(outcome.tasks_done, tasks_done);
}

#[track_caller]
pub fn assert_unmodelled(outcome: &JobOutcome, check: &str) {
    match &outcome.end {
        JobEnd::Unmodelled(diagnosis) => assert_eq!(diagnosis.check, check, "{diagnosis}"),
        end => panic!("not unmodelled: {end:?}"),
    }
}

/// The job completed, with the finding named among others.
#[track_caller]
pub fn assert_wrong(outcome: &JobOutcome, check: &str) {
    assert_eq!(outcome.end, JobEnd::Done, "{:?}", outcome.end);
    let found = outcome.diagnoses.iter().find(|diagnosis| diagnosis.check == check);
    match found {
        Some(diagnosis) => assert_two_events(&diagnosis.to_string()),
        None => panic!("no {check} among {:?}", outcome.diagnoses),
    }
}

#[track_caller]
fn assert_two_events(text: &str) {
    assert!(text.contains("(1) ") && text.contains("(2) ") && text.contains("core 0 task"), "{text}");
}

/// Register offsets with their values, in order of writing.
pub type Words = Vec<(u16, u32)>;

/// The words of a body, checked against the register map, with the trailer of a last program. Returns the bytes
/// and the amount to fetch.
pub fn assemble(body: &[(u16, u32)], enable: u32) -> (Vec<u8>, u16) {
    use ork_isa::{Block, Cmd};
    let block = |offset: u16| match offset >> 12 {
        1 => Block::Cna,
        3 => Block::Core,
        4 => Block::Dpu,
        5 => Block::DpuRdma,
        6 => Block::Ppu,
        7 => Block::PpuRdma,
        page => panic!("page {page}"),
    };
    let mut words: Vec<Cmd> = body
        .iter()
        .map(|(offset, value)| {
            let block = block(*offset);
            assert!(ork_isa::find_register(block, *offset).is_some(), "{offset:#x}");
            Cmd::new(block.target().unwrap(), *offset, *value)
        })
        .collect();
    words.extend([Cmd::NO_NEXT, Cmd::new(0x0101, 0x14, 0), Cmd::PRE_OP_ENABLE, Cmd::op_enable(enable)]);
    if words.len() % 2 == 1 {
        words.push(Cmd(0));
    }
    let amount = (words.len() / 2 - 1) as u16;
    (words.iter().flat_map(|word| word.0.to_le_bytes()).collect(), amount)
}

/// Replaces the values of registers that the body writes, and adds the others in front.
pub fn patched(body: &[(u16, u32)], patch: Patch<'_>) -> Words {
    let mut out: Words =
        patch.iter().filter(|(offset, _)| !body.iter().any(|(own, _)| own == offset)).copied().collect();
    out.extend(body.iter().map(|(offset, value)| {
        (*offset, patch.iter().rev().find(|(own, _)| own == offset).map_or(*value, |(_, value)| *value))
    }));
    out
}

/// Assembles a body at [`PROGRAM`] and runs it.
pub fn run_words(core: &mut Core, bus: &FlatBus, body: &[(u16, u32)], enable: u32) -> JobOutcome {
    let (bytes, amount) = assemble(body, enable);
    bus.put(PROGRAM, &bytes);
    let mut job = job(amount, 1);
    if enable == 0x60 {
        job.int_mask = 0xC00;
    }
    core.run(bus, &job)
}

/// fp16 pooling words (isa-notes E) for one pass over `c` channels.
pub fn pool_words(src: u32, dst: u32, (h, w, c): (u32, u32, u32), method: u32) -> Words {
    let (k, recip) = (2, 0);
    let (oh, ow) = (h / k, w / k);
    vec![
        (0x6004, 0xE),
        (0x7004, 0xE),
        (0x600C, w - 1),
        (0x6010, h - 1),
        (0x6014, c - 1),
        (0x6018, ow - 1),
        (0x601C, oh - 1),
        (0x6020, c - 1),
        (0x6024, 0x10 | method),
        (0x6034, (k - 1) | (k - 1) << 8 | (k - 1) << 16 | (k - 1) << 20),
        (0x6038, recip),
        (0x603C, recip),
        (0x6040, 0),
        (0x6044, 0),
        (0x6048, 0),
        (0x6070, dst),
        (0x607C, oh * ow * 16),
        (0x6084, (oh * ow * 16) | 2),
        (0x60DC, 3),
        (0x700C, w - 1),
        (0x7010, h - 1),
        (0x7014, c - 1),
        (0x701C, src),
        (0x7024, w * 16),
        (0x7028, h * w * 16),
        (0x7030, 2),
    ]
}
