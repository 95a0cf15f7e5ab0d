// SPDX-License-Identifier: MIT OR Apache-2.0
//! The register programs that a trace submits, with the words that lay in memory then.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;

use ork_drm::uapi as drm;
use ork_rknpu::uapi as rknpu;
use ork_rocket::uapi as rocket;
use zerocopy::{FromBytes, IntoBytes};

use crate::error::TraceError;
use crate::event::{Event, Nested};
use crate::reader::Reader;

/// Words of one program that are looked at: all that a task descriptor can count.
const WORDS_MAX: u32 = 1 << 16;
/// Words behind a program that the vendor's driver fetches too, and does not count.
const TRAILER_WORDS: u32 = 4;
const PAGE: u64 = 4096;

/// A register program of a submit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedProgram {
    /// Number of the submit, from 0.
    pub submit: u64,
    /// The task: for `rknpu` its index in the task array, for `rocket` its number over all jobs of the submit.
    pub task: u32,
    /// Device address; `None` where the descriptor has one beyond 32 bits.
    pub address: Option<u32>,
    /// The words with their trailer; fewer than the descriptor counts where no buffer of the trace holds them.
    pub words: Vec<u64>,
}

/// The programs of all submits of a trace, in order. A program that is submitted twice is given twice.
///
/// # Errors
/// [`TraceError`] when the file cannot be read.
pub fn programs<R: Read>(reader: &mut Reader<R>) -> Result<Vec<TracedProgram>, TraceError> {
    let rocket = reader.header().driver == ork_rocket::DRIVER_NAME;
    let mut state = Memory::default();
    let mut found = Vec::new();
    let mut submits = 0;
    while let Some(event) = reader.next_event()? {
        match event {
            Event::Buffer { file, buffer, offset, .. } => {
                state.buffers.insert((file, offset), buffer);
            }
            Event::Drop { buffer } => state.drop(buffer),
            Event::Written { buffer, at, bytes } | Event::Changed { buffer, at, bytes } => {
                state.write(buffer, at, &bytes);
            }
            Event::Call { file, request, errno, input, output, nested, .. } => {
                let number = drm::number(request);
                if rocket && number == rocket::number::SUBMIT {
                    state.rocket_submit(file, submits, &input, &nested, &mut found);
                    submits += 1;
                } else if !rocket && number == rknpu::number::SUBMIT {
                    state.rknpu_submit(file, submits, &input, &mut found);
                    submits += 1;
                } else if errno == 0 {
                    state.note(file, rocket, number, &output);
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// A buffer of the device, as the calls describe it.
#[derive(Clone, Copy, Default)]
struct Object {
    address: u64,
    bytes: u64,
    object: u64,
    offset: Option<u64>,
}

#[derive(Default)]
struct Memory {
    /// By file and handle.
    objects: BTreeMap<(u32, u32), Object>,
    /// Number of a buffer by file and offset.
    buffers: HashMap<(u32, u64), u32>,
    /// Pages that were written, by buffer and page number.
    pages: HashMap<(u32, u64), Box<[u8]>>,
}

fn parse<T: FromBytes + IntoBytes>(bytes: &[u8]) -> T {
    let mut value = T::new_zeroed();
    let common = bytes.len().min(size_of::<T>());
    value.as_mut_bytes()[..common].copy_from_slice(&bytes[..common]);
    value
}

impl Memory {
    fn drop(&mut self, buffer: u32) {
        self.pages.retain(|(of, _), _| *of != buffer);
        self.buffers.retain(|_, of| *of != buffer);
    }

    fn write(&mut self, buffer: u32, at: u64, bytes: &[u8]) {
        let mut at = at;
        let mut rest = bytes;
        while !rest.is_empty() {
            let inside = (at % PAGE) as usize;
            let count = rest.len().min(PAGE as usize - inside);
            let page = self
                .pages
                .entry((buffer, at / PAGE))
                .or_insert_with(|| vec![0; PAGE as usize].into_boxed_slice());
            page[inside..inside + count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            at = at.saturating_add(count as u64);
        }
    }

    /// A byte range of an object; zeros where nothing was written, `None` where the object ends or is not mapped.
    fn read(&self, file: u32, object: &Object, at: u64, out: &mut [u8]) -> Option<()> {
        let end = at.checked_add(out.len() as u64)?;
        if end > object.bytes {
            return None;
        }
        let buffer = *self.buffers.get(&(file, object.offset?))?;
        for (index, byte) in out.iter_mut().enumerate() {
            let place = at + index as u64;
            let page = self.pages.get(&(buffer, place / PAGE));
            *byte = page.map_or(0, |page| page[(place % PAGE) as usize]);
        }
        Some(())
    }

    fn note(&mut self, file: u32, rocket: bool, number: u8, output: &[u8]) {
        if rocket {
            if number == rocket::number::CREATE_BO {
                let made: rocket::RocketCreateBo = parse(output);
                let object = Object {
                    address: made.dma_address,
                    bytes: u64::from(made.size),
                    object: 0,
                    offset: Some(made.offset),
                };
                self.objects.insert((file, made.handle), object);
            }
        } else if number == rknpu::number::MEM_CREATE {
            let made: rknpu::RknpuMemCreate = parse(output);
            let object =
                Object { address: made.dma_addr, bytes: made.size, object: made.obj_addr, offset: None };
            self.objects.insert((file, made.handle), object);
        } else if number == rknpu::number::MEM_MAP {
            let map: rknpu::RknpuMemMap = parse(output);
            if let Some(object) = self.objects.get_mut(&(file, map.handle)) {
                object.offset = Some(map.offset);
            }
        } else if number == rknpu::number::MEM_DESTROY {
            let destroy: rknpu::RknpuMemDestroy = parse(output);
            self.objects.remove(&(file, destroy.handle));
        }
        if number == drm::number(drm::GEM_CLOSE) {
            let close: drm::DrmGemClose = parse(output);
            self.objects.remove(&(file, close.handle));
        }
    }

    fn of_file(&self, file: u32) -> impl Iterator<Item = &Object> {
        self.objects.range((file, 0)..=(file, u32::MAX)).map(|(_, object)| object)
    }

    fn words(&self, file: u32, address: u64, count: u32) -> Vec<u64> {
        let count = u64::from(count.min(WORDS_MAX));
        let holder = self
            .of_file(file)
            .find(|object| address >= object.address && address - object.address < object.bytes);
        let Some(object) = holder else { return Vec::new() };
        let at = address - object.address;
        let mut bytes = vec![0; (count.min((object.bytes - at) / 8) * 8) as usize];
        if self.read(file, object, at, &mut bytes).is_none() {
            return Vec::new();
        }
        bytes
            .chunks_exact(8)
            .map(|word| word.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b)))
            .collect()
    }

    fn rknpu_submit(&self, file: u32, submit: u64, input: &[u8], found: &mut Vec<TracedProgram>) {
        let argument: rknpu::RknpuSubmit = parse(input);
        let Some(array) = self.of_file(file).find(|object| object.object == argument.task_obj_addr) else {
            return;
        };
        let mut ranges: Vec<(u32, u32)> =
            argument.subcore_task.iter().map(|range| (range.task_start, range.task_number)).collect();
        if ranges.iter().all(|(_, count)| *count == 0) {
            ranges = vec![(argument.task_start, argument.task_number)];
        }
        let capacity = u32::try_from(array.bytes / size_of::<rknpu::RknpuTask>() as u64).unwrap_or(u32::MAX);
        let tasks: BTreeSet<u32> = ranges
            .into_iter()
            .flat_map(|(start, count)| start.min(capacity)..start.saturating_add(count).min(capacity))
            .take(WORDS_MAX as usize)
            .collect();
        for task in tasks {
            let mut bytes = [0; size_of::<rknpu::RknpuTask>()];
            if self.read(file, array, u64::from(task) * bytes.len() as u64, &mut bytes).is_none() {
                continue;
            }
            let descriptor: rknpu::RknpuTask = parse(&bytes);
            // The hardware has 32 address bits.
            let address = u32::try_from(descriptor.regcmd_addr).ok();
            let count = descriptor.regcfg_amount.saturating_add(TRAILER_WORDS);
            let words = self.words(file, descriptor.regcmd_addr, count);
            found.push(TracedProgram { submit, task, address, words });
        }
    }

    fn rocket_submit(
        &self,
        file: u32,
        submit: u64,
        input: &[u8],
        nested: &[Nested],
        found: &mut Vec<TracedProgram>,
    ) {
        let argument: rocket::RocketSubmit = parse(input);
        let piece = |address: u64| nested.iter().find(|piece| piece.address == address);
        let pieces = |address: u64, stride: u32, count: u32| -> Vec<&[u8]> {
            let Some(piece) = piece(address).filter(|_| stride > 0) else { return Vec::new() };
            piece.bytes.chunks_exact(stride as usize).take(count as usize).collect()
        };
        let mut number = 0;
        for job in pieces(argument.jobs, argument.job_struct_size, argument.job_count) {
            let job: rocket::RocketJob = parse(job);
            for task in pieces(job.tasks, job.task_struct_size, job.task_count) {
                let task: rocket::RocketTask = parse(task);
                let words = self.words(file, u64::from(task.regcmd), task.regcmd_count);
                found.push(TracedProgram { submit, task: number, address: Some(task.regcmd), words });
                number += 1;
            }
        }
    }
}
