// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory as a file: buffers of the system heap, and exported buffer objects.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ork_drm::dma_buf::{DmaHeapAllocation, HEAP_ALLOC, sync};
use ork_drm::{Errno, Mapping, Transport, uapi as drm};
use ork_rknpu::uapi::sync as direction;

use crate::board::{Board, Inner};
use crate::call::Call;
use crate::domain::PAGE_BYTES;
use crate::fault::Fault;
use crate::fd_table::KernelFile;
use crate::finding::FindingKind;
use crate::grant::{EmulatedFile, Grant};
use crate::memory::{CpuView, Dram};
use crate::object::Object;
use crate::options::Coherency;
use crate::pages::{Backing, sealed_memfd};

/// A dma-buf. Clones are the same one.
#[derive(Clone)]
pub struct DmaBuf(Arc<Inside>);

pub(crate) struct Inside {
    pub(crate) content: Content,
    /// What programs hold.
    file: Arc<OwnedFd>,
    size: u64,
    board: Arc<Inner>,
}

pub(crate) enum Content {
    /// A buffer of the heap.
    Heap(Heap),
    /// A buffer object of a driver.
    Object(Arc<Object>),
    /// Pages of a file.
    Lent(Arc<Dram>),
}

pub(crate) struct Heap {
    pub(crate) dram: Arc<Dram>,
    /// The CPU's side; none where memory is shared.
    view: Option<Arc<CpuView>>,
    /// Devices that have it mapped.
    pub(crate) attached: AtomicU32,
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.board.counts.dma_bufs.down();
    }
}

impl DmaBuf {
    /// The file of a buffer object.
    pub(crate) fn of(board: &Arc<Inner>, object: &Arc<Object>) -> Result<Self, Errno> {
        let file = match object.memfd() {
            Some(memfd) => Arc::clone(memfd),
            // The bytes are private to the emulated machine; the file only stands for them.
            None => sealed_memfd(object.size as usize).map(Arc::new).map_err(|e| Errno::from_io(&e))?,
        };
        Ok(Self::new(board, Content::Object(Arc::clone(object)), file, object.size))
    }

    fn new(board: &Arc<Inner>, content: Content, file: Arc<OwnedFd>, size: u64) -> Self {
        board.counts.dma_bufs.up();
        Self(Arc::new(Inside { content, file, size, board: Arc::clone(board) }))
    }

    /// Allocates from the heap.
    fn allocate(board: &Arc<Inner>, len: u64) -> Result<Self, Errno> {
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let size = len.checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::ENOMEM)?;
        if board.injects(Fault::OutOfMemory) {
            return Err(Errno::ENOMEM);
        }
        let no_memory = |error: std::io::Error| match Errno::from_io(&error) {
            Errno::EMFILE => Errno::EMFILE,
            _ => Errno::ENOMEM,
        };
        let (backing, strict) = match board.options.coherency {
            Coherency::Shared => (Backing::Memfd, false),
            Coherency::Strict => (Backing::Private, true),
        };
        board.make_room(size);
        let dram = board.new_dram(backing, size).map_err(no_memory)?;
        let view = if strict {
            let view = CpuView::new(Backing::Memfd, &dram, &board.counts.view_bytes);
            let view = Arc::new(view.map_err(no_memory)?);
            dram.attach(&view);
            Some(view)
        } else {
            None
        };
        let file = view.as_ref().map_or(dram.memfd(), |view| view.memfd()).cloned().ok_or(Errno::ENOMEM)?;
        let heap = Heap { dram: Arc::new(dram), view, attached: AtomicU32::new(0) };
        Ok(Self::new(board, Content::Heap(heap), file, size))
    }

    /// Whole pages of a file as they lie, for devices to read; `len` is rounded up to pages. The bytes are the file's: no
    /// copy is made, and what changes them changes this. Whoever lends a file promises that nobody shortens it meanwhile: a
    /// device that reads a page that is gone is the process reading it, which SIGBUS ends.
    ///
    /// What imports this keeps the pages and no descriptor: a model has more weights than a process may have files. So the
    /// dma-buf itself lives as long as this value and the descriptors that it was installed as.
    ///
    /// **Only an emulated board can do this.** On a real one memory for the NPU comes from its driver or is a dma-buf, and
    /// no driver makes a dma-buf of a file (`udmabuf` takes sealed memfds).
    ///
    /// # Errors
    /// `EINVAL` for a range that is empty, does not start at a page or reaches beyond the file's last page; the host's
    /// errno when it cannot be mapped.
    pub fn lend(board: &Board, file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Self, Errno> {
        let board = &board.0;
        let size = len.checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::EINVAL)?;
        let end = offset.checked_add(size).ok_or(Errno::EINVAL)?;
        let own = file.try_clone_to_owned().map_err(|error| Errno::from_io(&error))?;
        let file_bytes = std::fs::File::from(own).metadata().map_err(|error| Errno::from_io(&error))?.len();
        if len == 0 || !offset.is_multiple_of(PAGE_BYTES) || end > file_bytes.next_multiple_of(PAGE_BYTES) {
            return Err(Errno::EINVAL);
        }
        if board.injects(Fault::OutOfMemory) {
            return Err(Errno::ENOMEM);
        }
        let dram = board.file_dram(file, offset, size).map_err(|error| Errno::from_io(&error))?;
        Self::of_lent(board, Arc::new(dram))
    }

    /// The file of lent pages.
    pub(crate) fn of_lent(board: &Arc<Inner>, dram: Arc<Dram>) -> Result<Self, Errno> {
        let size = dram.len() as u64;
        // Descriptors of one file are one dma-buf; so this needs a file of its own, which stands for the pages.
        let stand_in = sealed_memfd(dram.len()).map_err(|error| Errno::from_io(&error))?;
        Ok(Self::new(board, Content::Lent(dram), Arc::new(stand_in), size))
    }

    pub(crate) fn content(&self) -> &Content {
        &self.0.content
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn downgrade(&self) -> std::sync::Weak<Inside> {
        Arc::downgrade(&self.0)
    }

    pub(crate) fn upgrade(weak: &std::sync::Weak<Inside>) -> Option<Self> {
        weak.upgrade().map(Self)
    }

    /// The memory that a device of this kernel sees.
    pub(crate) fn dram(&self) -> &Arc<Dram> {
        match &self.0.content {
            Content::Heap(heap) => &heap.dram,
            Content::Object(object) => object.dram(),
            Content::Lent(dram) => dram,
        }
    }

    /// Bytes, in whole pages.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.0.size
    }

    /// A real descriptor of that size; where memory is shared, of the memory.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }

    /// Maps a part for the CPU.
    ///
    /// # Errors
    /// `EINVAL` for a part that is not inside, or does not start at a page; `EACCES` for pages of a file.
    pub fn grant(&self, offset: u64, len: usize) -> Result<Grant, Errno> {
        let end = offset.checked_add(len as u64).ok_or(Errno::EINVAL)?;
        if len == 0 || !offset.is_multiple_of(PAGE_BYTES) || end > self.0.size {
            return Err(Errno::EINVAL);
        }
        match &self.0.content {
            Content::Object(object) => object.grant(offset as usize, len, self.clone()),
            Content::Heap(heap) => {
                let start = heap.view.as_ref().map_or_else(|| heap.dram.start(), |view| view.start());
                // SAFETY: inside the pages, by the check above.
                let start = unsafe { start.add(offset as usize) };
                // SAFETY: the pages live as long as this dma-buf.
                let mapping = unsafe { Mapping::new(start, len, self.clone()) };
                Ok(Grant::new(mapping, Some((Arc::clone(&self.0.file), offset))))
            }
            // A grant can be written. Who lent the file can map it.
            Content::Lent(_) => Err(Errno::EACCES),
        }
    }

    /// `DMA_BUF_IOCTL_SYNC`: brackets CPU access. Only devices that are attached already are served.
    pub(crate) fn sync(&self, flags: u64) -> Result<(), Errno> {
        let known = sync::READ | sync::WRITE | sync::END;
        if flags & !known != 0 || flags & (sync::READ | sync::WRITE) == 0 {
            return Err(Errno::EINVAL);
        }
        let flush = flags & (sync::END | sync::WRITE) == sync::END | sync::WRITE;
        let load = flags & (sync::END | sync::READ) == sync::READ;
        match &self.0.content {
            Content::Heap(heap) => {
                let Some(view) = &heap.view else { return Ok(()) };
                if heap.attached.load(Relaxed) == 0 {
                    return Ok(());
                }
                let all = 0..heap.dram.len();
                if flush {
                    view.flush(&heap.dram, all);
                } else if load {
                    view.load(&heap.dram, all);
                }
                Ok(())
            }
            Content::Object(object) => {
                if flush {
                    object.maintain(direction::TO_DEVICE, 0, object.size);
                } else if load {
                    object.maintain(direction::FROM_DEVICE, 0, object.size);
                }
                Ok(())
            }
            // The CPU and devices see the same pages, and nobody writes them.
            Content::Lent(_) => Ok(()),
        }
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaBuf({} bytes)", self.0.size)
    }
}

/// An open `/dev/dma_heap/system`.
#[derive(Debug)]
pub struct VirtualHeap(Board);

impl VirtualHeap {
    pub(crate) fn new(board: &Board) -> Self {
        Self(board.clone())
    }

    fn allocate(&self, argument: &mut DmaHeapAllocation) -> Result<(), Errno> {
        const FLAGS: u32 = (libc::O_ACCMODE | libc::O_CLOEXEC) as u32;
        if argument.fd != 0 || argument.fd_flags & !FLAGS != 0 || argument.heap_flags != 0 {
            return Err(Errno::EINVAL);
        }
        let buffer = DmaBuf::allocate(&self.0.0, argument.len)?;
        let cloexec = argument.fd_flags & libc::O_CLOEXEC as u32 != 0;
        let fd = self.0.0.fds.install(KernelFile::DmaBuf(buffer), cloexec)?;
        argument.fd = fd as u32;
        Ok(())
    }
}

impl Transport for VirtualHeap {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let call = Call::new(request, argument)?;
        if (drm::kind(request), drm::number(request)) != (b'H', 0) {
            return Err(Errno::ENOTTY);
        }
        call.with(HEAP_ALLOC, |argument| self.allocate(argument))
    }

    fn mmap(&self, _offset: u64, _len: usize) -> Result<Mapping, Errno> {
        Err(Errno::ENODEV)
    }
}

impl EmulatedFile for VirtualHeap {
    fn grant(&self, _offset: u64, _len: usize) -> Result<Grant, Errno> {
        Err(Errno::ENODEV)
    }
}

impl Inner {
    /// Whether an allocation fails on purpose.
    pub(crate) fn injects(&self, fault: Fault) -> bool {
        let fires = self.faults.fires(fault);
        if fires {
            self.report(None, 0, FindingKind::Injected { fault });
        }
        fires
    }
}
