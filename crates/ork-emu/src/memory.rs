// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes: the DRAM of a buffer, and the CPU's view of it.
//!
//! The NPU cores read without copying, several at once and for as long as a task runs, while others write
//! elsewhere in the same buffer. So DRAM is guarded by range, not as a whole, and nobody ever waits: a write that
//! meets a range which is being read is put aside and done when the reader leaves. On silicon that is a race, of
//! which this is one legal outcome.

use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use zerocopy::IntoBytes;

use crate::lock::Mutex;
use crate::pages::{Backing, PageAccess, Pages};

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: u64 = 64;

/// What the NPU sees of a buffer.
pub(crate) struct Dram {
    pages: Pages,
    state: Mutex<Borrows>,
    /// Whether anything was ever written.
    written: AtomicBool,
}

#[derive(Default)]
struct Borrows {
    /// Ranges that are being read, each with the number of its reader.
    readers: Vec<(u64, Range<usize>)>,
    next_reader: u64,
    /// Writes that wait for readers, in order.
    deferred: Vec<(usize, Box<[u8]>)>,
    /// The CPU's side, while there is one.
    view: Weak<CpuView>,
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

fn range_of((start, data): &(usize, Box<[u8]>)) -> Range<usize> {
    *start..start + data.len()
}

impl Borrows {
    fn is_read(&self, range: &Range<usize>) -> bool {
        self.readers.iter().any(|(_, held)| overlap(held, range))
    }

    fn is_deferred(&self, range: &Range<usize>) -> bool {
        self.deferred.iter().any(|write| overlap(&range_of(write), range))
    }
}

impl Dram {
    pub(crate) fn new(backing: Backing, len: usize, total: &Arc<AtomicU64>) -> io::Result<Self> {
        let pages = Pages::new(backing, len, total)?;
        Ok(Self { pages, state: Mutex::default(), written: AtomicBool::new(false) })
    }

    /// Pages of a file, which nobody writes.
    pub(crate) fn of_file(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        total: &Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let pages = Pages::of_file(file, offset, len, total)?;
        Ok(Self { pages, state: Mutex::default(), written: AtomicBool::new(true) })
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether a device may write it, as its IOMMU knows.
    pub(crate) fn is_writable(&self) -> bool {
        self.pages.access() == PageAccess::ReadWrite
    }

    /// The file behind the memory, if others may map it.
    pub(crate) fn memfd(&self) -> Option<&Arc<OwnedFd>> {
        self.pages.memfd()
    }

    /// The first byte, for a CPU mapping of a buffer that is not cacheable.
    pub(crate) fn start(&self) -> NonNull<u8> {
        // The CPU may write it from now on, unseen.
        self.written.store(true, Relaxed);
        self.pages.start()
    }

    /// The bytes of a range, without copying where possible; and the CPU's side, while there is one.
    pub(crate) fn read(self: &Arc<Self>, range: Range<usize>) -> (DramSpan, Option<Arc<CpuView>>) {
        let mut state = self.state.lock();
        let view = state.view.upgrade();
        if state.is_deferred(&range) {
            let mut copy = vec![0; range.len()];
            self.copy_locked(&state, range.start, &mut copy);
            return (DramSpan::Copy(copy), view);
        }
        let reader = state.next_reader;
        state.next_reader += 1;
        state.readers.push((reader, range.clone()));
        (DramSpan::Held { dram: Arc::clone(self), range, reader }, view)
    }

    /// Makes a CPU view known, whose lines grow old when a device writes.
    pub(crate) fn attach(&self, view: &Arc<CpuView>) {
        self.state.lock().view = Arc::downgrade(view);
    }

    /// The CPU's side, while there is one.
    pub(crate) fn view(&self) -> Option<Arc<CpuView>> {
        self.state.lock().view.upgrade()
    }

    /// Copies bytes out.
    pub(crate) fn copy_to(&self, start: usize, out: &mut [u8]) {
        self.copy_locked(&self.state.lock(), start, out);
    }

    fn copy_locked(&self, state: &Borrows, start: usize, out: &mut [u8]) {
        let range = start..start + out.len();
        // SAFETY: inside the pages; no writer, because writers hold the lock.
        unsafe { std::ptr::copy_nonoverlapping(self.pages.at(&range), out.as_mut_ptr(), out.len()) };
        for write in state.deferred.iter().filter(|write| overlap(&range_of(write), &range)) {
            let common = range.start.max(write.0)..range.end.min(write.0 + write.1.len());
            out[common.start - range.start..common.end - range.start]
                .copy_from_slice(&write.1[common.start - write.0..common.end - write.0]);
        }
    }

    /// Stores bytes of a device.
    pub(crate) fn device_write(&self, start: usize, data: &[u8]) {
        self.write(start, data);
        // After the store: a load that misses the bytes comes before the mark.
        if let Some(view) = self.view() {
            view.age(start..start + data.len(), Age::Old);
        }
    }

    /// Stores bytes.
    pub(crate) fn write(&self, start: usize, data: &[u8]) {
        assert!(self.is_writable(), "who writes memory asks first whether it can be written");
        let range = start..start + data.len();
        let mut state = self.state.lock();
        self.written.store(true, Relaxed);
        if state.is_read(&range) || state.is_deferred(&range) {
            // Also behind an earlier deferred write, or the older bytes would win in the end.
            let _ = self.pages.at(&range);
            state.deferred.push((start, data.into()));
        } else {
            self.store_locked(&state, start, data);
        }
    }

    fn store_locked(&self, _exclusive: &Borrows, start: usize, data: &[u8]) {
        let range = start..start + data.len();
        // SAFETY: inside the pages; the caller holds the lock and has checked that no reader holds the range.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.pages.at(&range), data.len()) };
    }

    fn release(&self, reader: u64) {
        let mut state = self.state.lock();
        if let Some(index) = state.readers.iter().position(|(number, _)| *number == reader) {
            state.readers.swap_remove(index);
        }
        if state.deferred.is_empty() {
            return;
        }
        let mut waiting: Vec<(usize, Box<[u8]>)> = Vec::new();
        for write in std::mem::take(&mut state.deferred) {
            let range = range_of(&write);
            if state.is_read(&range) || waiting.iter().any(|earlier| overlap(&range_of(earlier), &range)) {
                waiting.push(write);
            } else {
                self.store_locked(&state, write.0, &write.1);
            }
        }
        state.deferred = waiting;
    }
}

/// Bytes of DRAM that are being read.
pub(crate) enum DramSpan {
    /// In place; nobody changes them until this is dropped.
    Held {
        /// Keeps the memory.
        dram: Arc<Dram>,
        /// Registered with it.
        range: Range<usize>,
        /// Under this number.
        reader: u64,
    },
    /// As they will be when deferred writes are done.
    Copy(Vec<u8>),
}

impl AsRef<[u8]> for DramSpan {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Held { dram, range, .. } => {
                // SAFETY: inside the pages, which live as long as `dram`; `write` changes no byte of a registered
                // range, and CPU mappings that could are the mapper's promise (`Mapping::bytes_mut`).
                unsafe { std::slice::from_raw_parts(dram.pages.at(range), range.len()) }
            }
            Self::Copy(bytes) => bytes,
        }
    }
}

impl Drop for DramSpan {
    fn drop(&mut self) {
        if let Self::Held { dram, reader, .. } = self {
            dram.release(*reader);
        }
    }
}

/// What the CPU sees of a cacheable buffer while it is mapped.
///
/// Whoever maps the buffer promises (`Mapping::bytes_mut`) not to hold a mutable slice of it during cache
/// maintenance or while the kernel reads it.
pub(crate) struct CpuView {
    pages: Pages,
    /// One bit per line: a device has written the memory since the line was last loaded or flushed, so that it may
    /// differ without anybody having forgotten to flush it.
    old: Box<[AtomicU64]>,
}

/// Whether a line of a view may lack what a device wrote.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Age {
    Old,
    Fresh,
}

/// Lines of a range that are compared, at most; spread evenly, both ends among them.
const LINES_COMPARED: usize = 16;

impl CpuView {
    /// A view that starts with what the memory holds.
    pub(crate) fn new(backing: Backing, dram: &Dram, total: &Arc<AtomicU64>) -> io::Result<Self> {
        let words = dram.len().div_ceil(LINE_BYTES as usize * 64);
        let old = (0..words).map(|_| AtomicU64::new(0)).collect();
        let view = Self { pages: Pages::new(backing, dram.len(), total)?, old };
        if dram.written.load(Relaxed) {
            view.load(dram, 0..dram.len());
        }
        Ok(view)
    }

    /// The first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.pages.start()
    }

    /// The file behind the view, if others may map it.
    pub(crate) fn memfd(&self) -> Option<&Arc<OwnedFd>> {
        self.pages.memfd()
    }

    /// A range of bytes.
    pub(crate) fn read(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: inside the pages; no writer by the mapper's promise.
        unsafe { std::slice::from_raw_parts(self.pages.at(&range), range.len()) }
    }

    /// Stores bytes.
    pub(crate) fn write(&self, start: usize, data: &[u8]) {
        let range = start..start + data.len();
        // SAFETY: inside the pages; no other access by the mapper's promise.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.pages.at(&range), data.len()) };
    }

    fn age(&self, range: Range<usize>, age: Age) {
        let line = LINE_BYTES as usize;
        for index in range.start / line..range.end.div_ceil(line) {
            let (word, bit) = (&self.old[index / 64], 1 << (index % 64));
            match age {
                Age::Old => word.fetch_or(bit, Relaxed),
                Age::Fresh => word.fetch_and(!bit, Relaxed),
            };
        }
    }

    /// Writes a range back to memory.
    pub(crate) fn flush(&self, dram: &Dram, range: Range<usize>) {
        dram.write(range.start, self.read(range.clone()));
        self.age(range, Age::Fresh);
    }

    /// The first place in `range` that the CPU has written and not flushed: where the view differs from `memory`, the
    /// bytes of that range, in a line that is not just old. Long ranges are looked at in some lines only.
    pub(crate) fn unflushed(&self, range: &Range<usize>, memory: &[u8]) -> Option<usize> {
        let line = LINE_BYTES as usize;
        let (first, last) = (range.start / line, range.end.checked_sub(1)? / line);
        let steps = (last - first).min(LINES_COMPARED - 1);
        let lines = (0..=steps).map(|step| first + (last - first) * step / steps.max(1));
        let fresh = |index: &usize| self.old[index / 64].load(Relaxed) & (1 << (index % 64)) == 0;
        let differing = |index: usize| {
            // The CPU may write at the same time, so these are volatile reads.
            let mut own = [0_u64; LINE_BYTES as usize / 8];
            let words = self.pages.at(&(index * line..(index + 1) * line)).cast::<u64>();
            for (at, word) in own.iter_mut().enumerate() {
                // SAFETY: inside the pages, which are whole lines and aligned.
                *word = unsafe { words.add(at).read_volatile() };
            }
            let bytes = (index * line).max(range.start)..((index + 1) * line).min(range.end);
            let memory = &memory[bytes.start - range.start..bytes.end - range.start];
            let own = &own.as_bytes()[bytes.start - index * line..bytes.end - index * line];
            if own == memory {
                // As nearly always: one comparison instead of one for each byte.
                return None;
            }
            let at = own.iter().zip(memory).position(|(own, memory)| own != memory)?;
            Some(bytes.start + at)
        };
        lines.filter(fresh).find_map(differing)
    }

    /// Overwrites a range with what the memory holds.
    pub(crate) fn load(&self, dram: &Dram, range: Range<usize>) {
        // First: bytes that come after this load make the lines old again.
        self.age(range.clone(), Age::Fresh);
        // SAFETY: inside the pages; no other access by the mapper's promise.
        let own = unsafe { std::slice::from_raw_parts_mut(self.pages.at(&range), range.len()) };
        dram.copy_to(range.start, own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dram(len: usize) -> Arc<Dram> {
        Arc::new(Dram::new(Backing::Private, len, &Arc::default()).unwrap())
    }

    fn read(dram: &Arc<Dram>, range: Range<usize>) -> DramSpan {
        dram.read(range).0
    }

    fn bytes(dram: &Dram, range: Range<usize>) -> Vec<u8> {
        let mut out = vec![0; range.len()];
        dram.copy_to(range.start, &mut out);
        out
    }

    #[test]
    fn a_reader_sees_the_bytes_of_its_start_and_later_readers_the_new_ones() {
        let dram = dram(4096);
        dram.write(0, &[1; 16]);
        let early = read(&dram, 0..8);
        dram.write(4, &[2; 8]);
        assert_eq!(early.as_ref(), [1; 8], "bytes under a reader stay");
        assert_eq!(read(&dram, 0..12).as_ref(), [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
        assert_eq!(bytes(&dram, 2..6), [1, 1, 2, 2]);
        drop(early);
        assert!(dram.state.lock().deferred.is_empty(), "done when the reader left");
        assert_eq!(read(&dram, 0..12).as_ref(), [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn deferred_writes_keep_their_order() {
        let dram = dram(4096);
        let first = read(&dram, 0..4);
        let second = read(&dram, 8..12);
        dram.write(0, &[1; 6]); // waits for `first`
        dram.write(4, &[2; 8]); // meets no reader of 4..8, but `second`, and the write before
        dram.write(5, &[3; 1]); // meets no reader at all, only waiting writes
        let expected = [1, 1, 1, 1, 2, 3, 2, 2, 2, 2, 2, 2];
        assert_eq!(bytes(&dram, 0..12), expected);
        drop(first);
        assert_eq!(bytes(&dram, 0..12), expected);
        drop(second);
        assert!(dram.state.lock().deferred.is_empty());
        assert_eq!(bytes(&dram, 0..12), expected);
    }

    #[test]
    fn writes_beside_readers_are_done_at_once() {
        let dram = dram(4096);
        let _reader = read(&dram, 0..64);
        dram.write(64, &[9; 64]);
        assert!(dram.state.lock().deferred.is_empty());
        assert_eq!(bytes(&dram, 63..65), [0, 9]);
    }

    #[test]
    fn a_view_starts_with_the_memory_and_then_stands_apart() {
        let dram = dram(4096);
        dram.write(100, &[5; 4]);
        let view = CpuView::new(Backing::Private, &dram, &Arc::default()).unwrap();
        assert_eq!(view.read(99..105), [0, 5, 5, 5, 5, 0]);
        view.write(100, &[6]);
        dram.write(103, &[7]);
        assert_eq!(view.read(100..104), [6, 5, 5, 5]);
        assert_eq!(bytes(&dram, 100..104), [5, 5, 5, 7]);
    }

    #[test]
    fn what_was_not_flushed_is_told_from_what_was_not_loaded() {
        let dram = dram(1 << 20);
        dram.write(0, &[1; 4096]);
        let view = Arc::new(CpuView::new(Backing::Private, &dram, &Arc::default()).unwrap());
        dram.attach(&view);
        let unflushed = |range: Range<usize>| view.unflushed(&range, read(&dram, range.clone()).as_ref());
        assert_eq!((unflushed(0..1024), unflushed(7..7)), (None, None));
        // The CPU writes one byte: only ranges with that byte are stale.
        view.write(130, &[2]);
        assert_eq!((unflushed(0..1024), unflushed(130..131)), (Some(130), Some(130)));
        assert_eq!((unflushed(0..130), unflushed(131..192)), (None, None), "other bytes of the line");
        view.flush(&dram, 128..192);
        assert_eq!(unflushed(0..1024), None);
        // A device writes: the view is old, and nobody has forgotten anything.
        dram.device_write(640, &[3; 64]);
        assert_eq!(unflushed(0..1024), None);
        view.write(64, &[4]);
        assert_eq!(unflushed(0..1024), Some(64), "the line beside it is not old");
        view.load(&dram, 0..4096);
        assert_eq!(unflushed(0..1024), None);
        view.write(640, &[5]);
        assert_eq!(unflushed(0..1024), Some(640), "loaded, then written");
        // Of a long range the ends are always looked at.
        view.write(0, &[9]);
        assert_eq!(unflushed(0..1 << 20), Some(0));
        view.load(&dram, 0..4096);
        view.write((1 << 20) - 1, &[9]);
        assert_eq!(unflushed(0..1 << 20), Some((1 << 20) - 1));
    }

    #[test]
    fn pages_are_counted_while_they_live() {
        let total = Arc::new(AtomicU64::new(0));
        let dram = Dram::new(Backing::Private, 8192, &total).unwrap();
        assert_eq!(total.load(Relaxed), 8192);
        drop(dram);
        assert_eq!(total.load(Relaxed), 0);
    }

    #[test]
    #[should_panic(expected = "of 4096 bytes")]
    fn nothing_is_stored_outside() {
        dram(4096).write(4090, &[0; 7]);
    }
}
