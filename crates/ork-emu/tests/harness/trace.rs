// SPDX-License-Identifier: MIT OR Apache-2.0
//! Damaged traces: read, and replayed on a board.

use std::sync::{Arc, OnceLock};

use ork_drm::{Errno, Transport};
use ork_emu::{Board, Coherency, EmuOptions, FindingKind, SimOptions};
use ork_trace::{Event, Nested, Reader, Writer, replay};

use super::session::{self, Driver};
use super::words::Random;
use super::{Tally, all_gone};

/// Memory of the board of a replay: it compares all of what a trace makes visible.
const REPLAY_BYTES: u64 = 8 << 20;
/// Traces that are damaged.
const ORIGINALS: usize = 12;

/// Traces of random sessions.
fn originals() -> &'static [Vec<u8>] {
    static TRACES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    TRACES.get_or_init(|| {
        let seeds = (0..).flat_map(|seed| [(Driver::Rknpu, seed), (Driver::Rocket, seed)]);
        let traces = seeds.filter_map(|(driver, seed)| session::run(driver, seed).unwrap().1);
        traces.filter(|trace| trace.len() < 1 << 19).take(ORIGINALS).collect()
    })
}

fn flipped(random: &mut Random, mut bytes: Vec<u8>) -> Vec<u8> {
    for _ in 0..1 + random.below(16) {
        let at = random.below(bytes.len());
        bytes[at] = match random.below(3) {
            0 => 0,
            1 => 0xFF,
            _ => random.value() as u8,
        };
    }
    if random.one_in(4) {
        bytes.truncate(random.below(bytes.len()));
    }
    bytes
}

/// Changes some numbers of an event.
fn changed(random: &mut Random, event: &mut Event) {
    match event {
        Event::Open { file, .. } | Event::Close { file } => *file = random.value() as u32,
        Event::Buffer { file, buffer, offset, len } => match random.below(4) {
            0 => *file = random.value() as u32,
            1 => *buffer = random.value() as u32,
            2 => *offset = random.value(),
            _ => *len = random.value(),
        },
        Event::Drop { buffer } => *buffer = random.value() as u32,
        Event::Call { file, request, errno, input, output, nested, .. } => match random.below(8) {
            0 => *file = random.value() as u32,
            1 => *request = random.value() as u32,
            2 => *errno = random.below(40) as i32,
            3 => input.truncate(random.below(input.len() + 1)),
            4 => random.disturb(output),
            5 => nested.push(Nested { address: random.value(), bytes: random.bytes(64) }),
            6 => _ = nested.pop(),
            _ => random.disturb(input),
        },
        Event::Written { buffer, at, bytes } | Event::Changed { buffer, at, bytes } => {
            match random.below(3) {
                0 => *buffer = random.value() as u32,
                1 => *at = random.value(),
                _ => random.disturb(bytes),
            }
        }
        Event::Visible { buffer, at, len } => match random.below(3) {
            0 => *buffer = random.value() as u32,
            1 => *at = random.value(),
            _ => *len = random.value(),
        },
        _ => {}
    }
}

/// Events in another order, left out, doubled, with other numbers; every record is well made.
fn rearranged(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut reader = Reader::new(bytes).unwrap();
    let header = reader.header().clone();
    let mut events: Vec<Event> = reader.by_ref().map(Result::unwrap).collect();
    for _ in 0..1 + random.below(8) {
        let Some(at) = random.index(events.len()) else { break };
        match random.below(8) {
            0 => _ = events.remove(at),
            1 => {
                let other = random.below(events.len());
                events.swap(at, other);
            }
            2 => events.insert(at, events[at].clone()),
            _ => changed(random, &mut events[at]),
        }
    }
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out, &header).unwrap();
    for event in &events {
        // Lengths beyond the limits are refused.
        let _ = writer.write(event);
    }
    drop(writer);
    out
}

/// Runs one seed.
pub(super) fn execute(seed: u64) -> Result<Tally, String> {
    let mut random = Random::new(seed, 0);
    let original = &originals()[random.below(ORIGINALS)];
    let bytes = match random.below(8) {
        0 => {
            let len = random.below(4096);
            let mut bytes = original[..len.min(original.len())].to_vec();
            bytes.extend(random.bytes(len));
            bytes
        }
        1..=3 => flipped(&mut random, original.clone()),
        _ => rearranged(&mut random, original),
    };
    let mut tally = Tally::default();
    let Ok(reader) = Reader::new(&bytes[..]) else { return Ok(tally) };
    for event in reader {
        tally.calls += 1;
        tally.successes += u64::from(event.is_ok());
    }
    let options = EmuOptions {
        coherency: Coherency::Strict,
        domain_wait_ms: 1,
        memory_bytes: REPLAY_BYTES,
        sim: SimOptions { threads: 1, ..SimOptions::default() },
        ..EmuOptions::default()
    };
    let board = Board::new(&options);
    let mut reader = Reader::new(&bytes[..]).map_err(|error| format!("read a second time: {error}"))?;
    let is_rocket = reader.header().driver == ork_rocket::DRIVER_NAME;
    let open = || -> Result<Arc<dyn Transport>, Errno> {
        Ok(if is_rocket { Arc::new(board.open_rocket()) } else { Arc::new(board.open()) })
    };
    if let Ok(report) = replay(&mut reader, &open) {
        tally.jobs += report.submits;
        tally.completed += u64::from(report.complete);
    }
    all_gone(&board)?;
    let panicked = |finding: &ork_emu::Finding| finding.kind == FindingKind::ModelPanicked;
    if board.take_findings().iter().any(panicked) {
        return Err("the NPU model panicked".to_owned());
    }
    Ok(tally)
}
