// SPDX-License-Identifier: MIT OR Apache-2.0
//! What of a running program has to be written down, and when.
//!
//! A buffer's content is recorded as differences to what the trace says already. Differences found when the CPU
//! hands a buffer over (a submit, cache maintenance towards the device) were made by the program; differences found
//! when it gets one back (a blocking submit has ended, cache maintenance from the device, PREP_BO) by the device.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use ork_drm::Errno;
use ork_drm::uapi as drm;
use ork_rknpu::uapi as rknpu;
use ork_rocket::uapi as rocket;
use zerocopy::{FromBytes, IntoBytes};

use crate::error::TraceError;
use crate::event::{Event, Header, Nested, limit};
use crate::writer::Writer;

/// Number of an open file in a trace.
pub type FileId = u32;
/// Bytes that are compared at once; differences are recorded in whole pieces.
const GRAIN: usize = 64;

/// A mapping of the recorded program.
pub trait BufferMemory: Send {
    /// Copies bytes, which the caller keeps inside the mapping.
    fn read(&self, at: usize, out: &mut [u8]);
}

/// Reads memory of the recorded program at an address that it has given to the kernel.
pub type ReadMemory = fn(u64, &mut [u8]) -> Result<(), Errno>;

/// A mapping that the recorder watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedMapping {
    buffer: u32,
    mapping: u64,
}

/// Records one process. All calls to devices pass through it one at a time.
pub struct Recorder {
    state: Mutex<State>,
    memory: ReadMemory,
    /// Name of the driver: one trace is of one.
    driver: String,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Driver {
    Rknpu,
    Rocket,
}

/// What a handle stands for.
#[derive(Clone, Copy)]
struct Handle {
    /// mmap offset, once known.
    offset: Option<u64>,
    obj_addr: u64,
    /// The CPU sees device writes without cache maintenance.
    uncached: bool,
}

struct Buffer {
    file: FileId,
    offset: u64,
    uncached: bool,
    obj_addr: u64,
    /// What the trace says that the buffer holds.
    content: Vec<u8>,
    mappings: Vec<(u64, Box<dyn BufferMemory>, usize)>,
    /// The handle is gone.
    orphaned: bool,
}

struct State {
    out: Writer<Box<dyn Write + Send>>,
    drivers: HashMap<FileId, Driver>,
    handles: HashMap<(FileId, u32), Handle>,
    buffers: BTreeMap<u32, Buffer>,
    threads: HashMap<i32, u32>,
    next_file: FileId,
    next_buffer: u32,
    next_mapping: u64,
    /// Rocket jobs may be running.
    outstanding: bool,
    failure: Option<TraceError>,
}

/// Who made a difference.
#[derive(Clone, Copy)]
enum Author {
    Cpu,
    Device,
}

impl Recorder {
    /// Starts a trace. `memory` reads what structs name by address.
    ///
    /// # Errors
    /// [`TraceError`] when the header cannot be written.
    pub fn new(out: Box<dyn Write + Send>, header: &Header, memory: ReadMemory) -> Result<Self, TraceError> {
        let state = State {
            out: Writer::new(out, header)?,
            drivers: HashMap::new(),
            handles: HashMap::new(),
            buffers: BTreeMap::new(),
            threads: HashMap::new(),
            next_file: 1,
            next_buffer: 1,
            next_mapping: 1,
            outstanding: false,
            failure: None,
        };
        Ok(Self { state: Mutex::new(state), memory, driver: header.driver.clone() })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A device node was opened; `None` when its driver is not the one of the trace.
    pub fn open(&self, node: &str, driver: &str) -> Option<FileId> {
        if driver != self.driver {
            return None;
        }
        let driver = match driver {
            ork_rknpu::DRIVER_NAME => Driver::Rknpu,
            ork_rocket::DRIVER_NAME => Driver::Rocket,
            _ => return None,
        };
        let state = &mut *self.state();
        let file = state.next_file;
        state.next_file += 1;
        state.drivers.insert(file, driver);
        state.write(Event::Open { file, node: node.to_owned() });
        Some(file)
    }

    /// The last fd of a file was closed.
    pub fn close(&self, file: FileId) {
        let state = &mut *self.state();
        state.handles.retain(|(of, _), _| *of != file);
        state.write(Event::Close { file });
        for buffer in state.buffers.values_mut().filter(|buffer| buffer.file == file) {
            buffer.orphaned = true;
        }
        state.drop_orphans();
    }

    /// A buffer was mapped at its offset.
    pub fn map(
        &self,
        file: FileId,
        offset: u64,
        len: usize,
        memory: Box<dyn BufferMemory>,
    ) -> RecordedMapping {
        let state = &mut *self.state();
        let known = state
            .buffers
            .iter()
            .find(|(_, buffer)| (buffer.file, buffer.offset, buffer.orphaned) == (file, offset, false))
            .map(|(number, _)| *number);
        let buffer = known.unwrap_or_else(|| state.new_buffer(file, offset));
        let mapping = state.next_mapping;
        state.next_mapping += 1;
        if let Some(entry) = state.buffers.get_mut(&buffer) {
            let grown = len > entry.content.len();
            if grown {
                entry.content.resize(len, 0);
            }
            entry.mappings.push((mapping, memory, len));
            if grown {
                state.write(Event::Buffer { file, buffer, offset, len: len as u64 });
            }
        }
        // What is there already was not written through a mapping, or not since the last one went.
        state.differences(buffer, Author::Device, 0..len);
        RecordedMapping { buffer, mapping }
    }

    /// A mapping is about to go.
    pub fn unmap(&self, mapping: RecordedMapping) {
        let state = &mut *self.state();
        state.differences(mapping.buffer, Author::Cpu, 0..usize::MAX);
        if let Some(buffer) = state.buffers.get_mut(&mapping.buffer) {
            buffer.mappings.retain(|(number, ..)| *number != mapping.mapping);
        }
        state.drop_orphans();
    }

    /// Does a call and records it. `thread` is any number that tells threads apart.
    ///
    /// # Errors
    /// What `perform` gives.
    pub fn call(
        &self,
        file: FileId,
        thread: i32,
        request: u32,
        argument: &mut [u8],
        perform: &mut dyn FnMut(&mut [u8]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let state = &mut *self.state();
        let Some(driver) = state.drivers.get(&file).copied() else { return perform(argument) };
        let threads = state.threads.len() as u32;
        let thread = *state.threads.entry(thread).or_insert(threads);
        let input = argument.to_vec();
        let nested = match driver {
            Driver::Rocket if drm::number(request) == rocket::number::SUBMIT => {
                nested_of_jobs(&input, self.memory)
            }
            _ => Vec::new(),
        };
        state.before(driver, file, request, &input);
        let result = perform(argument);
        let errno = result.err().map_or(0, |errno| errno.0);
        let output = argument.to_vec();
        state.write(Event::Call { file, thread, request, errno, input, output: output.clone(), nested });
        state.after(driver, file, request, &output, result.is_ok());
        result
    }

    /// The program ends: closes the trace.
    ///
    /// # Errors
    /// The first thing that went wrong while recording.
    pub fn finish(&self) -> Result<(), TraceError> {
        let state = &mut *self.state();
        let events = state.out.events();
        state.write(Event::End { events });
        let flushed = state.out.flush();
        match state.failure.take() {
            Some(failure) => Err(failure),
            None => flushed,
        }
    }

    /// Hands what is recorded to the file, for a program that may be killed.
    pub fn flush(&self) {
        let state = &mut *self.state();
        if let Err(failure) = state.out.flush() {
            state.failure.get_or_insert(failure);
        }
    }
}

/// The struct in front of `bytes`, the rest zero, as DRM reads it.
fn parse<T: FromBytes + IntoBytes>(bytes: &[u8]) -> T {
    let mut value = T::new_zeroed();
    let common = bytes.len().min(size_of::<T>());
    value.as_mut_bytes()[..common].copy_from_slice(&bytes[..common]);
    value
}

/// Jobs, tasks and handle lists of a rocket submit.
fn nested_of_jobs(input: &[u8], memory: ReadMemory) -> Vec<Nested> {
    let submit: rocket::RocketSubmit = parse(input);
    let mut found = Vec::new();
    let mut total = 0;
    let mut piece = |address: u64, count: u32, stride: u32| -> Option<Vec<u8>> {
        let len = u64::from(count) * u64::from(stride);
        if len == 0 || len > limit::PIECE_BYTES || found.len() as u64 >= limit::NESTED {
            return None;
        }
        // More than a record can hold: the writer will refuse it, and nothing is gained by collecting on.
        if total > limit::RECORD_BYTES {
            return None;
        }
        total += len;
        let mut bytes = vec![0; len as usize];
        memory(address, &mut bytes).ok()?;
        found.push(Nested { address, bytes: bytes.clone() });
        Some(bytes)
    };
    let stride = submit.job_struct_size;
    let jobs = piece(submit.jobs, submit.job_count, stride).unwrap_or_default();
    for job in jobs.chunks(stride.max(1) as usize) {
        let job: rocket::RocketJob = parse(job);
        piece(job.tasks, job.task_count, job.task_struct_size);
        piece(job.in_bo_handles, job.in_bo_handle_count, 4);
        piece(job.out_bo_handles, job.out_bo_handle_count, 4);
    }
    found
}

impl State {
    fn write(&mut self, event: Event) {
        if self.failure.is_none() {
            self.failure = self.out.write(&event).err();
        }
    }

    fn new_buffer(&mut self, file: FileId, offset: u64) -> u32 {
        let number = self.next_buffer;
        self.next_buffer += 1;
        let handle =
            self.handles.iter().find(|((of, _), handle)| *of == file && handle.offset == Some(offset));
        let handle = handle.map(|(_, handle)| *handle);
        let buffer = Buffer {
            file,
            offset,
            uncached: handle.is_some_and(|handle| handle.uncached),
            obj_addr: handle.map_or(0, |handle| handle.obj_addr),
            content: Vec::new(),
            mappings: Vec::new(),
            orphaned: false,
        };
        self.buffers.insert(number, buffer);
        number
    }

    /// Forgets buffers that have neither handle nor mapping.
    fn drop_orphans(&mut self) {
        let gone: Vec<u32> = self
            .buffers
            .iter()
            .filter(|(_, buffer)| buffer.orphaned && buffer.mappings.is_empty())
            .map(|(number, _)| *number)
            .collect();
        for buffer in gone {
            self.buffers.remove(&buffer);
            self.write(Event::Drop { buffer });
        }
    }

    /// Records how a range of a buffer differs from what the trace says.
    fn differences(&mut self, number: u32, author: Author, range: std::ops::Range<usize>) {
        let Some(buffer) = self.buffers.get_mut(&number) else { return };
        // The longest mapping shows the most.
        let Some((_, memory, len)) = buffer.mappings.iter().max_by_key(|(_, _, len)| *len) else { return };
        let end = range.end.min(*len);
        let mut found: Vec<(usize, Vec<u8>)> = Vec::new();
        let mut at = range.start / GRAIN * GRAIN;
        let mut now = [0; 64 * GRAIN];
        while at < end {
            let count = (end - at).min(now.len());
            memory.read(at, &mut now[..count]);
            for (index, piece) in now[..count].chunks(GRAIN).enumerate() {
                let start = at + index * GRAIN;
                let known = &mut buffer.content[start..start + piece.len()];
                if known == piece {
                    continue;
                }
                known.copy_from_slice(piece);
                match found.last_mut() {
                    Some((from, bytes))
                        if *from + bytes.len() == start
                            && (bytes.len() + GRAIN) as u64 <= limit::PIECE_BYTES =>
                    {
                        bytes.extend_from_slice(piece);
                    }
                    _ => found.push((start, piece.to_vec())),
                }
            }
            at += count;
        }
        for (at, bytes) in found {
            let at = at as u64;
            self.write(match author {
                Author::Cpu => Event::Written { buffer: number, at, bytes },
                Author::Device => Event::Changed { buffer: number, at, bytes },
            });
        }
    }

    fn numbers(&self, wanted: impl Fn(&Buffer) -> bool) -> Vec<u32> {
        self.buffers.iter().filter(|(_, buffer)| wanted(buffer)).map(|(number, _)| *number).collect()
    }

    /// The CPU hands over.
    fn before(&mut self, driver: Driver, file: FileId, request: u32, input: &[u8]) {
        let number = drm::number(request);
        match driver {
            Driver::Rknpu if number == rknpu::number::MEM_SYNC => {
                let sync: rknpu::RknpuMemSync = parse(input);
                if sync.flags & rknpu::sync::TO_DEVICE != 0 {
                    for buffer in self.numbers(|buffer| buffer.obj_addr == sync.obj_addr) {
                        self.differences(buffer, Author::Cpu, range(sync.offset, sync.size));
                    }
                }
            }
            Driver::Rknpu if number == rknpu::number::SUBMIT => {
                for buffer in self.numbers(|_| true) {
                    self.differences(buffer, Author::Cpu, 0..usize::MAX);
                }
            }
            Driver::Rocket if number == rocket::number::FINI_BO => {
                let fini: rocket::RocketFiniBo = parse(input);
                for buffer in self.of_handle(file, fini.handle) {
                    self.differences(buffer, Author::Cpu, 0..usize::MAX);
                }
            }
            Driver::Rocket if number == rocket::number::SUBMIT && !self.outstanding => {
                for buffer in self.numbers(|_| true) {
                    self.differences(buffer, Author::Cpu, 0..usize::MAX);
                }
            }
            _ => {}
        }
    }

    fn of_handle(&self, file: FileId, handle: u32) -> Vec<u32> {
        let offset = self.handles.get(&(file, handle)).and_then(|handle| handle.offset);
        self.numbers(|buffer| buffer.file == file && Some(buffer.offset) == offset && !buffer.orphaned)
    }

    /// The CPU gets back: the differences are the device's, and the program may look.
    fn visible(&mut self, buffer: u32, range: std::ops::Range<usize>) {
        self.differences(buffer, Author::Device, range.clone());
        let Some(entry) = self.buffers.get(&buffer) else { return };
        if entry.mappings.is_empty() {
            return;
        }
        let end = range.end.min(entry.content.len());
        let start = range.start.min(end);
        self.write(Event::Visible { buffer, at: start as u64, len: (end - start) as u64 });
    }

    fn after(&mut self, driver: Driver, file: FileId, request: u32, output: &[u8], done: bool) {
        let number = drm::number(request);
        if number == drm::number(drm::GEM_CLOSE) {
            let close: drm::DrmGemClose = parse(output);
            self.dropped(file, close.handle, done);
            return;
        }
        match driver {
            Driver::Rknpu => self.after_rknpu(number, file, output, done),
            Driver::Rocket => self.after_rocket(number, file, output, done),
        }
    }

    fn after_rknpu(&mut self, number: u8, file: FileId, output: &[u8], done: bool) {
        match number {
            rknpu::number::MEM_CREATE if done => {
                let made: rknpu::RknpuMemCreate = parse(output);
                let offset = self.handles.get(&(file, made.handle)).and_then(|handle| handle.offset);
                let uncached = made.flags & rknpu::mem::CACHEABLE == 0;
                self.handles
                    .insert((file, made.handle), Handle { offset, obj_addr: made.obj_addr, uncached });
            }
            rknpu::number::MEM_MAP if done => {
                let map: rknpu::RknpuMemMap = parse(output);
                if let Some(handle) = self.handles.get_mut(&(file, map.handle)) {
                    handle.offset = Some(map.offset);
                }
            }
            rknpu::number::MEM_DESTROY => {
                let destroy: rknpu::RknpuMemDestroy = parse(output);
                self.dropped(file, destroy.handle, done);
            }
            rknpu::number::MEM_SYNC if done => {
                let sync: rknpu::RknpuMemSync = parse(output);
                if sync.flags & rknpu::sync::FROM_DEVICE != 0 {
                    for buffer in self.numbers(|buffer| buffer.obj_addr == sync.obj_addr) {
                        self.visible(buffer, range(sync.offset, sync.size));
                    }
                }
            }
            rknpu::number::SUBMIT => {
                let submit: rknpu::RknpuSubmit = parse(output);
                if submit.flags & rknpu::job::NONBLOCK == 0 {
                    for buffer in self.numbers(|buffer| buffer.uncached) {
                        self.visible(buffer, 0..usize::MAX);
                    }
                }
            }
            _ => {}
        }
    }

    fn after_rocket(&mut self, number: u8, file: FileId, output: &[u8], done: bool) {
        match number {
            rocket::number::CREATE_BO if done => {
                let made: rocket::RocketCreateBo = parse(output);
                let handle = Handle { offset: Some(made.offset), obj_addr: 0, uncached: false };
                self.handles.insert((file, made.handle), handle);
            }
            rocket::number::SUBMIT => self.outstanding = true,
            rocket::number::PREP_BO if done => {
                self.outstanding = false;
                let prep: rocket::RocketPrepBo = parse(output);
                for buffer in self.of_handle(file, prep.handle) {
                    self.visible(buffer, 0..usize::MAX);
                }
            }
            _ => {}
        }
    }

    fn dropped(&mut self, file: FileId, handle: u32, done: bool) {
        if !done {
            return;
        }
        for number in self.of_handle(file, handle) {
            if let Some(buffer) = self.buffers.get_mut(&number) {
                buffer.orphaned = true;
            }
        }
        self.handles.remove(&(file, handle));
        self.drop_orphans();
    }
}

fn range(offset: u64, size: u64) -> std::ops::Range<usize> {
    let clamp = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    clamp(offset)..clamp(offset.saturating_add(size))
}
