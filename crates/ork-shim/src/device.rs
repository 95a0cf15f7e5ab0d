// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open files: emulated ones, ones that the emulated kernel made, real ones that are recorded.

use std::ffi::{CStr, CString, c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, OnceLock};

use ork_drm::uapi as drm;
use ork_drm::{Errno, Transport, Version};
use ork_emu::{Board, EmulatedFile, FdTable, Grant, KernelFile};
use ork_trace::{BufferMemory, RecordedMapping, Recorder};

use crate::board::{World, world};
use crate::fds::{self, FileId, Table, Tracked};
use crate::maps::{Range, Ranges};
use crate::raw::{self, OwnFd};
use crate::tree::{self, Node, NodeKind};

/// All fds that are ours.
pub(crate) static FDS: Table<File> = Table::new();
/// All mappings that are ours.
pub(crate) static MAPS: Ranges<Hold> = Ranges::new();

/// The locked table of mappings.
pub(crate) type MapsGuard = std::sync::MutexGuard<'static, std::collections::BTreeMap<usize, Range<Hold>>>;

/// Structs up to this size need no allocation; all of both drivers are smaller.
const SMALL_BYTES: usize = 256;

/// An open file.
pub(crate) struct File {
    id: FileId,
    /// The node that was opened, if one was.
    pub(crate) node: Option<&'static Node>,
    behind: Behind,
    /// Its number in the trace.
    recorded: Option<u32>,
    /// For `flock`: the file that stands for the node, so that other processes see the lock.
    lock: OnceLock<OwnFd>,
}

enum Behind {
    /// A device of the emulated board.
    Emulated(Box<dyn EmulatedFile>),
    /// A file that the emulated kernel made.
    Made(Board, KernelFile),
    /// A real device, which is recorded.
    Real,
    /// A file of the parent process, or of the program before `exec`: its board has stayed behind.
    Boardless,
}

impl Tracked for File {
    fn id(&self) -> FileId {
        self.id
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let (Some(number), Some(recorder)) = (self.recorded, running_recorder()) {
            recorder.close(number);
            recorder.flush();
        }
    }
}

fn running_recorder() -> Option<Arc<Recorder>> {
    crate::board::known()?.running_recorder()
}

/// What a mapping holds.
pub(crate) struct Hold {
    /// What the mapping is to the board; dropped with the mapping.
    _grant: Option<Grant>,
    recorded: Option<RecordedMapping>,
    /// The mapping is the board's own memory: only giving back the grant unmaps it.
    pub(crate) is_boards: bool,
}

impl Hold {
    /// The program's mapping, or a part of it, is about to go.
    pub(crate) fn before_unmap(&self) {
        if let (Some(mapping), Some(recorder)) = (self.recorded, running_recorder()) {
            recorder.unmap(mapping);
        }
    }
}

/// Memory that the recorder reads.
struct Seen(usize);

impl BufferMemory for Seen {
    fn read(&self, at: usize, out: &mut [u8]) {
        // Device memory takes aligned accesses only; both sides of what the recorder asks for are.
        let start = self.0 + at;
        let (words, rest) = out.as_chunks_mut::<8>();
        let base = std::ptr::with_exposed_provenance::<u64>(start);
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: inside the mapping, which the recorder gives up before it is unmapped; pages are aligned, and
            // the recorder reads at multiples of 64.
            *word = unsafe { base.add(index).read_volatile() }.to_ne_bytes();
        }
        let tail = std::ptr::with_exposed_provenance::<u8>(start + words.len() * 8);
        for (index, byte) in rest.iter_mut().enumerate() {
            // SAFETY: as above.
            *byte = unsafe { tail.add(index).read_volatile() };
        }
    }
}

/// Numbers for files that the emulated kernel makes.
#[derive(Debug)]
pub(crate) struct Numbers;

impl FdTable for Numbers {
    fn install(&self, file: KernelFile, cloexec: bool) -> Result<RawFd, Errno> {
        let command = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        let own = file.as_fd().as_raw_fd();
        // SAFETY: fcntl with a number touches no memory.
        let fd = unsafe { raw::syscall(libc::SYS_fcntl, [own as usize, command as usize, 0, 0, 0, 0]) };
        let fd = raw::result(fd)? as RawFd;
        let board = world().machine.as_ref().ok_or(Errno::ENODEV)?.board();
        let id = fds::identity(fd).ok_or(Errno::EBADF)?;
        let behind = Behind::Made(board, file);
        FDS.insert(fd, Arc::new(File { id, node: None, behind, recorded: None, lock: OnceLock::new() }));
        Ok(fd)
    }

    fn resolve(&self, fd: RawFd) -> Result<KernelFile, Errno> {
        match FDS.get(fd).as_deref() {
            Some(File { behind: Behind::Made(_, file), .. }) => Ok(file.clone()),
            Some(_) => Err(Errno::EINVAL),
            None if fds::identity(fd).is_none() => Err(Errno::EBADF),
            None => Err(Errno::EINVAL),
        }
    }
}

/// Opens an emulated node; the program's fd.
pub(crate) fn open_node(world: &World, node: &'static Node, cloexec: bool) -> Result<c_int, Errno> {
    let machine = world.machine.as_ref().ok_or(Errno::ENODEV)?;
    let board = machine.board();
    let device: Box<dyn EmulatedFile> = match node.kind {
        NodeKind::Card => Box::new(board.open()),
        NodeKind::Render => Box::new(board.open_render()),
        NodeKind::Accel => Box::new(board.open_rocket()),
        NodeKind::DmaHeap => Box::new(board.open_heap()),
    };
    let recorded = match node.kind {
        NodeKind::DmaHeap => None,
        _ => start_recording(world, node.path, &*device),
    };
    let name = CString::new(tree::placeholder_name(node)).unwrap_or_default();
    let fd = raw::memfd(&name, cloexec)?;
    let Some(id) = fds::identity(fd) else {
        raw::close(fd);
        return Err(Errno::EBADF);
    };
    let behind = Behind::Emulated(device);
    FDS.insert(fd, Arc::new(File { id, node: Some(node), behind, recorded, lock: OnceLock::new() }));
    Ok(fd)
}

/// Enters an fd of the program before `exec`.
pub(crate) fn adopt(fd: c_int, node: Option<&'static Node>) {
    if let Some(id) = fds::identity(fd) {
        let behind = Behind::Boardless;
        FDS.insert(fd, Arc::new(File { id, node, behind, recorded: None, lock: OnceLock::new() }));
    }
}

/// A real node was opened: it is recorded if its driver is an NPU's.
pub(crate) fn opened_real(world: &World, fd: c_int, path: &CStr) {
    const MAJORS: [u32; 2] = [crate::tree::DRM_MAJOR, crate::tree::ACCEL_MAJOR];
    let Ok(stat) = raw::fstat(fd) else { return };
    if stat.st_mode & libc::S_IFMT != libc::S_IFCHR || !MAJORS.contains(&libc::major(stat.st_rdev)) {
        return;
    }
    let recorded = start_recording(world, &path.to_string_lossy(), &RealFile(fd));
    if recorded.is_some() {
        let id = (stat.st_dev, stat.st_ino);
        let file = File { id, node: None, behind: Behind::Real, recorded, lock: OnceLock::new() };
        FDS.insert(fd, Arc::new(file));
    }
}

fn start_recording(world: &World, node: &str, device: &dyn Transport) -> Option<u32> {
    if !world.records() {
        return None;
    }
    let Version { name, number: (major, minor, patch), .. } = ork_drm::version(device).ok()?;
    if ![ork_rknpu::DRIVER_NAME, ork_rocket::DRIVER_NAME].contains(&name.as_str()) {
        return None;
    }
    world.recorder(&name, [major, minor, patch])?.open(node, &name)
}

/// A real device, for the one question that is asked about it, and to pass calls on.
#[derive(Debug)]
struct RealFile(c_int);

impl Transport for RealFile {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        if argument.len() < drm::argument_size(request) {
            return Err(Errno::EFAULT);
        }
        let address = argument.as_mut_ptr() as usize;
        // SAFETY: the kernel touches no more than the size that the request encodes, and what the caller vouches
        // for.
        let status =
            unsafe { raw::syscall(libc::SYS_ioctl, [self.0 as usize, request as usize, address, 0, 0, 0]) };
        raw::result(status).map(|_| ())
    }

    fn mmap(&self, _offset: u64, _len: usize) -> Result<ork_drm::Mapping, Errno> {
        Err(Errno::ENODEV)
    }
}

impl File {
    /// An ioctl of the program: copied in, done, copied out.
    pub(crate) fn ioctl(&self, fd: c_int, request: u32, argument: usize) -> Result<(), Errno> {
        let size = drm::argument_size(request);
        let mut small = [0; SMALL_BYTES];
        let mut large = Vec::new();
        let bytes = match small.get_mut(..size) {
            Some(bytes) => bytes,
            None => {
                large.resize(size, 0);
                &mut large[..]
            }
        };
        if drm::copies_in(request) {
            raw::copy_in(argument, bytes)?;
        }
        let result = match (self.recorded, running_recorder()) {
            (Some(number), Some(recorder)) => {
                let thread = raw::thread();
                let mut perform = |bytes: &mut [u8]| self.perform(fd, request, bytes);
                let result = recorder.call(number, thread, request, bytes, &mut perform);
                recorder.flush();
                result
            }
            _ => self.perform(fd, request, bytes),
        };
        if drm::copies_out(request) {
            raw::copy_out(bytes, argument)?;
        }
        if let Some(world) = crate::board::known() {
            world.report_findings();
        }
        result
    }

    fn perform(&self, fd: c_int, request: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        // SAFETY, for all three: addresses inside the struct are the program's to vouch for, as they are when it
        // talks to a kernel.
        match &self.behind {
            Behind::Emulated(device) => {
                // Threads of the board start here, and must not run the program's signal handlers; a submit cannot
                // be interrupted anyway.
                let _masked =
                    (drm::number(request) == ork_rknpu::uapi::number::SUBMIT).then(raw::Masked::all);
                // SAFETY: see above.
                unsafe { device.ioctl(request, bytes) }
            }
            // SAFETY: see above.
            Behind::Made(board, file) => unsafe { file.ioctl(board, request, bytes) },
            // SAFETY: see above.
            Behind::Real => unsafe { RealFile(fd).ioctl(request, bytes) },
            Behind::Boardless => Err(Errno::ENODEV),
        }
    }

    fn grant(&self, offset: u64, len: usize) -> Result<Grant, Errno> {
        match &self.behind {
            Behind::Emulated(device) => device.grant(offset, len),
            Behind::Made(_, KernelFile::DmaBuf(buffer)) => buffer.grant(offset, len),
            Behind::Made(..) | Behind::Real | Behind::Boardless => Err(Errno::ENODEV),
        }
    }

    /// `mmap` of the program.
    ///
    /// # Safety
    /// As for `mmap`: with `MAP_FIXED` the caller gives up what is at `place`.
    pub(crate) unsafe fn mmap(&self, fd: c_int, place: usize, call: MapCall) -> Result<usize, Errno> {
        let MapCall { len, protection, flags, offset } = call;
        let kernel_mmap = |fd: c_int, offset: u64| {
            let arguments = [place, len, protection as usize, flags as usize, fd as usize, offset as usize];
            // SAFETY: the caller's promise.
            raw::result(unsafe { raw::syscall(libc::SYS_mmap, arguments) })
        };
        if let Behind::Real = self.behind {
            let start = kernel_mmap(fd, offset)?;
            self.enter(start, len, offset, None, start, false);
            return Ok(start);
        }
        if self.node.is_some_and(|node| node.kind == NodeKind::Accel)
            && flags & libc::MAP_TYPE != libc::MAP_SHARED
        {
            return Err(Errno::EINVAL);
        }
        let grant = self.grant(offset, len)?;
        let boards = grant.pointer().as_ptr().expose_provenance();
        let memfd = grant.memfd().map(|(fd, at)| (fd.as_raw_fd(), at));
        let (start, is_boards) = match memfd {
            Some((memfd, at)) => (kernel_mmap(memfd, at)?, false),
            None if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 => return Err(Errno::EINVAL),
            None => (boards, true),
        };
        self.enter(start, len, offset, Some(grant), boards, is_boards);
        Ok(start)
    }

    fn enter(
        &self,
        start: usize,
        len: usize,
        offset: u64,
        grant: Option<Grant>,
        seen: usize,
        is_boards: bool,
    ) {
        let recorder = running_recorder();
        let recorded = match (self.recorded, recorder) {
            (Some(file), Some(recorder)) => Some(recorder.map(file, offset, len, Box::new(Seen(seen)))),
            _ => None,
        };
        // `MAP_FIXED` has replaced what was there.
        let replaced = MAPS.cut(start, len);
        MAPS.insert(start, len, Arc::new(Hold { _grant: grant, recorded, is_boards }));
        drop(replaced);
    }

    /// The fd that locks on this file go to.
    pub(crate) fn lock_fd(&self) -> Option<c_int> {
        let node = self.node?;
        if let Some(own) = self.lock.get() {
            return Some(own.0);
        }
        let place = crate::board::known()?.machine.as_ref()?.node_place(node);
        let fd = raw::result(raw::openat(libc::AT_FDCWD, &place, libc::O_RDWR | libc::O_CLOEXEC, 0)).ok()?;
        Some(self.lock.get_or_init(|| OwnFd(fd as c_int)).0)
    }

    /// What a child has of it. A real device works there too.
    fn of_parent(&self) -> Self {
        let behind = if matches!(self.behind, Behind::Real) { Behind::Real } else { Behind::Boardless };
        Self { id: self.id, node: self.node, behind, recorded: None, lock: OnceLock::new() }
    }
}

/// Arguments of `mmap`.
#[derive(Clone, Copy)]
pub(crate) struct MapCall {
    pub(crate) len: usize,
    pub(crate) protection: c_int,
    pub(crate) flags: c_int,
    pub(crate) offset: u64,
}

/// The program unmaps a range in which there are mappings of ours; the raw answer.
///
/// # Safety
/// As for `munmap`.
pub(crate) unsafe fn munmap(start: *mut c_void, len: usize) -> isize {
    let first = start.addr();
    for hold in MAPS.holds(first, len) {
        hold.before_unmap();
    }
    let held = MAPS.cut(first, len);
    if held.iter().any(|hold| hold.is_boards) {
        // The board unmaps its own memory with the last reference.
        drop(held);
        return 0;
    }
    // SAFETY: the caller's promise.
    let answer = unsafe { raw::munmap(start, len) };
    drop(held);
    answer
}

/// In a child, the parent's files stay with the parent: the threads that run jobs are there. Mappings stay valid.
pub(crate) fn after_fork_in_child() {
    for fd in FDS.within(0, c_int::MAX) {
        if let Some(file) = FDS.forget(fd) {
            FDS.insert(fd, Arc::new(file.of_parent()));
            // Its end would be the end of the parent's file on a board that is not here.
            std::mem::forget(file);
        }
    }
    MAPS.clear().into_iter().for_each(std::mem::forget);
}
