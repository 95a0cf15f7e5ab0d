// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers that files share: names, dma-bufs, the heap.

use crate::support;
use std::os::fd::{AsFd, AsRawFd};

use ork_drm::dma_buf::{self, DmaBufSync, DmaBufSyncFile, DmaHeapAllocation, sync};
use ork_drm::{Errno, Transport, export_fd, flink, import_fd, open_name, uapi as drm};
use ork_emu::{Board, Coherency, DmaBuf, EmuOptions, FindingKind, KernelFile, Live};
use ork_rknpu::CreateRequest;
use ork_rknpu::uapi::{self, RknpuMemCreate, RknpuSubmit, action, mem};
use support::*;
use zerocopy::IntoBytes;

fn allocate(board: &Board, argument: &mut DmaHeapAllocation) -> Result<i32, Errno> {
    // SAFETY: the struct holds no address.
    unsafe { board.open_heap().ioctl(dma_buf::HEAP_ALLOC, argument.as_mut_bytes()) }?;
    Ok(argument.fd as i32)
}

fn heap_buffer(board: &Board, len: u64) -> i32 {
    let fd_flags = (libc::O_RDWR | libc::O_CLOEXEC) as u32;
    allocate(board, &mut DmaHeapAllocation { len, fd_flags, ..Default::default() }).unwrap()
}

fn dma_buf(board: &Board, fd: i32) -> DmaBuf {
    match board.fds().resolve(fd).unwrap() {
        KernelFile::DmaBuf(buffer) => buffer,
        KernelFile::SyncFile(_) => panic!("a fence"),
    }
}

fn bracket(board: &Board, fd: i32, flags: u64) -> Result<(), Errno> {
    let mut argument = DmaBufSync { flags };
    // SAFETY: the struct holds no address.
    unsafe { board.fds().resolve(fd).unwrap().ioctl(board, dma_buf::SYNC, argument.as_mut_bytes()) }
}

fn query(npu: &Npu, handle: u32) -> RknpuMemCreate {
    let mut query = RknpuMemCreate { handle, size: 1, flags: 77, iommu_domain_id: 9, ..Default::default() };
    raw(npu, uapi::MEM_CREATE, query.as_mut_bytes()).unwrap();
    assert_eq!(query.handle, handle);
    query
}

#[test]
fn names() {
    let board = board();
    let (one, two) = (open(&board), open(&board));
    let (a, b) = (create(&one, 4096, mem::DATA), create(&one, 8192, mem::DATA));
    assert_eq!((flink(one.transport(), a.handle), flink(one.transport(), b.handle)), (Ok(1), Ok(2)));
    assert_eq!(flink(one.transport(), a.handle), Ok(1), "an object has one name");
    assert_eq!(open_name(two.transport(), 2), Ok((1, 8192)));
    assert_eq!(query(&two, 1).obj_addr, b.obj_addr);
    assert_eq!(flink(one.transport(), 9), Err(Errno::ENOENT));
    assert_eq!(open_name(two.transport(), 9), Err(Errno::ENOENT));
    one.mem_destroy(a.handle).unwrap();
    assert_eq!(open_name(two.transport(), 1), Err(Errno::ENOENT), "the name goes with the object");
    // The second file may map what it opened.
    two.mmap(two.mem_map(1).unwrap(), 440).unwrap();
}

#[test]
fn a_render_node_shares_by_descriptor_only() {
    let board = board();
    let npu = ork_rknpu::Rknpu::new(board.open_render());
    let buffer = create(&npu, 4096, mem::DATA);
    assert_eq!(flink(npu.transport(), buffer.handle), Err(Errno::EACCES));
    assert_eq!(open_name(npu.transport(), 1), Err(Errno::EACCES));
    let mut unique = drm::DrmUnique::default();
    assert_eq!(raw(&npu, drm::GET_UNIQUE, unique.as_mut_bytes()), Err(Errno::EACCES));
    assert_eq!(ork_drm::version(npu.transport()).unwrap().name, "rknpu");
    let fd = export_fd(npu.transport(), buffer.handle).unwrap();
    board.close_fd(fd).unwrap();
}

#[test]
fn exports() {
    let board = board();
    let npu = open(&board);
    let buffer = create(&npu, 5000, mem::DATA);
    let (first, second) = (
        export_fd(npu.transport(), buffer.handle).unwrap(),
        export_fd(npu.transport(), buffer.handle).unwrap(),
    );
    assert_ne!(first, second);
    assert_eq!(board.live().dma_bufs, 1, "two descriptors of one dma-buf");
    // SAFETY: a plain call on an open descriptor.
    assert_eq!(unsafe { libc::lseek(first, 0, libc::SEEK_END) }, 8192);
    // One's own export is the original handle.
    assert_eq!(import_fd(npu.transport(), second), Ok(buffer.handle));
    // The same object in another file of the driver.
    let other = open(&board);
    let handle = import_fd(other.transport(), first).unwrap();
    assert_eq!(query(&other, handle).dma_addr, buffer.dma_addr);
    assert_eq!(import_fd(other.transport(), second), Ok(handle));
    // The dma-buf keeps the object.
    npu.mem_destroy(buffer.handle).unwrap();
    other.mem_destroy(handle).unwrap();
    assert_eq!((board.live().objects, board.live().handles), (1, 0));
    let again = import_fd(npu.transport(), first).unwrap();
    assert_eq!(query(&npu, again).obj_addr, buffer.obj_addr);
    board.close_fd(first).unwrap();
    // Closed behind the board's back.
    // SAFETY: the descriptor belongs to this test.
    unsafe { libc::close(second) };
    drop((npu, other));
    all_gone(&board);
}

#[test]
fn errno_table_of_prime() {
    let board = board();
    let npu = open(&board);
    let buffer = create(&npu, 4096, mem::DATA);
    let mut bad = drm::DrmPrimeHandle { handle: buffer.handle, flags: 1, fd: -1 };
    assert_eq!(raw(&npu, drm::PRIME_HANDLE_TO_FD, bad.as_mut_bytes()), Err(Errno::EINVAL));
    assert_eq!(export_fd(npu.transport(), 77), Err(Errno::ENOENT));
    assert_eq!(import_fd(npu.transport(), -1), Err(Errno::EBADF));
    assert_eq!(import_fd(npu.transport(), 99_999), Err(Errno::EBADF));
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(import_fd(npu.transport(), file.as_raw_fd()), Err(Errno::EINVAL));
}

#[test]
fn errno_table_of_the_heap() {
    let board = board();
    let good = DmaHeapAllocation { len: 5000, fd_flags: libc::O_RDWR as u32, ..Default::default() };
    let bad = [
        (DmaHeapAllocation { len: 0, ..good }, Errno::EINVAL),
        (DmaHeapAllocation { fd: 3, ..good }, Errno::EINVAL),
        (DmaHeapAllocation { fd_flags: 0x8000_0000, ..good }, Errno::EINVAL),
        (DmaHeapAllocation { heap_flags: 1, ..good }, Errno::EINVAL),
        (DmaHeapAllocation { len: 1 << 40, ..good }, Errno::ENOMEM),
    ];
    for (mut argument, errno) in bad {
        assert_eq!(allocate(&board, &mut argument), Err(errno));
    }
    let fd = allocate(&board, &mut { good }).unwrap();
    assert_eq!(dma_buf(&board, fd).size(), 8192);
    for flags in [0, 4, 8, 1 << 32 | 1] {
        assert_eq!(bracket(&board, fd, flags), Err(Errno::EINVAL), "{flags:#x}");
    }
    let mut other = [0; 8];
    // SAFETY: the struct holds no address.
    assert_eq!(unsafe { board.open_heap().ioctl(dma_buf::SYNC, &mut other) }, Err(Errno::ENOTTY));
    let file = board.fds().resolve(fd).unwrap();
    // SAFETY: the struct holds no address.
    assert_eq!(unsafe { file.ioctl(&board, uapi::ACTION, &mut other) }, Err(Errno::ENOTTY));
    drop(file);
    assert_eq!(board.open_heap().mmap(0, 4096).unwrap_err(), Errno::ENODEV);
    board.close_fd(fd).unwrap();
    all_gone(&board);
}

/// A heap buffer, imported and queried.
fn imported(board: &Board, npu: &Npu) -> (i32, u32, RknpuMemCreate) {
    let fd = heap_buffer(board, 5000);
    let handle = import_fd(npu.transport(), fd).unwrap();
    assert_eq!(import_fd(npu.transport(), fd), Ok(handle), "the same dma-buf, the same handle");
    (fd, handle, query(npu, handle))
}

#[test]
fn an_import_is_computed_on_and_its_brackets_move_the_bytes() {
    let (board, _) = board_with(&EmuOptions::default(), adding);
    let npu = open(&board);
    let (fd, handle, info) = imported(&board, &npu);
    assert_eq!(info.size, 8192);
    let grant = dma_buf(&board, fd).grant(0, 5000).unwrap();
    let mut tasks = tasks(&npu, 1, 0x300);
    point_task_at(&mut tasks, info.dma_addr);
    // SAFETY: nothing else touches the buffer meanwhile.
    let set = |value: u8| unsafe { grant.pointer().write(value) };
    // SAFETY: as above.
    let get = |at: usize| unsafe { grant.pointer().add(at).read() };

    // Without the end of a write access the NPU sees old bytes; without the start of a read access the CPU does.
    set(40);
    submit(&npu, &request(&tasks, 1, 1)).unwrap();
    bracket(&board, fd, sync::READ).unwrap();
    assert_eq!((get(0), get(64)), (1, 1));
    assert_eq!(kinds(&board), [FindingKind::NotFlushed { iova: ork_isa::Iova(info.dma_addr as u32) }]);
    set(40);
    bracket(&board, fd, sync::END | sync::WRITE).unwrap();
    submit(&npu, &request(&tasks, 1, 1)).unwrap();
    assert_eq!((get(0), get(64)), (40, 1));
    bracket(&board, fd, sync::READ | sync::WRITE).unwrap();
    assert_eq!((get(0), get(64)), (41, 41));

    // MEM_DESTROY ends the import; the heap's memory stays.
    npu.mem_destroy(handle).unwrap();
    assert_eq!((board.live().objects, get(64)), (1, 41));
    let again = import_fd(npu.transport(), fd).unwrap();
    ork_drm::close_handle(npu.transport(), again).unwrap();
    board.close_fd(fd).unwrap();
    drop((grant, tasks, npu));
    all_gone(&board);
}

#[test]
fn what_an_import_cannot_do() {
    let board = board();
    let npu = open(&board);
    let (fd, handle, info) = imported(&board, &npu);
    assert_eq!(npu.mem_map(handle).unwrap_err().errno(), Errno::EINVAL);
    // SAFETY: the object is alive.
    let sync = unsafe { npu.mem_sync(info.obj_addr, 0, 64, 1) };
    assert_eq!(sync.unwrap_err().errno(), Errno::EINVAL);
    let own = tasks(&npu, 1, 0x300);
    let refused = submit(&npu, &RknpuSubmit { task_obj_addr: info.obj_addr, ..request(&own, 1, 1) });
    assert_eq!(refused.unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(kinds(&board), [FindingKind::ImportedTaskArray { obj_addr: info.obj_addr }]);
    board.close_fd(fd).unwrap();
    drop((own, npu));
    all_gone(&board);
}

#[test]
fn an_import_is_mapped_wherever_the_board_is() {
    let (board, _) = board_with(&EmuOptions::default(), adding);
    let npu = open(&board);
    let fd = heap_buffer(&board, 4096);
    npu.action(action::SET_IOMMU_DOMAIN_ID, 2).unwrap();
    let address = query(&npu, import_fd(npu.transport(), fd).unwrap()).dma_addr;
    assert_eq!(board.live().domains, 1, "in domain 2");
    let tasks = |domain| {
        let flags = mem::TASKS & !mem::CACHEABLE;
        let buffer = npu.mem_create(&CreateRequest { size: 40, flags, domain }).unwrap();
        let mapping = map(&npu, &buffer, 40);
        let mut tasks = Tasks { buffer, mapping };
        put(&mut tasks.mapping, 12, &0x300_u32.to_le_bytes());
        point_task_at(&mut tasks, address);
        tasks
    };
    let (two, zero) = (tasks(2), tasks(0));
    assert_eq!(npu.action(action::GET_IOMMU_DOMAIN_ID, 0), Ok(0));
    submit(&npu, &RknpuSubmit { iommu_domain_id: 2, ..request(&two, 1, 1) }).unwrap();
    // In domain 0, where the driver thinks it is, the address means something else or nothing.
    let dma = dma_buf(&board, fd);
    bracket(&board, fd, sync::READ).unwrap();
    let grant = dma.grant(0, 4096).unwrap();
    // SAFETY: nothing else touches the buffer meanwhile.
    let value = || unsafe { grant.pointer().read() };
    assert_eq!(value(), 1);
    let _ = submit(&npu, &request(&zero, 1, 1));
    bracket(&board, fd, sync::READ).unwrap();
    assert_eq!(value(), 1);
    // It is freed in the domain that the driver remembers.
    npu.action(action::SET_IOMMU_DOMAIN_ID, 2).unwrap();
    npu.mem_destroy(import_fd(npu.transport(), fd).unwrap()).unwrap();
    assert_eq!(npu.action(action::GET_IOMMU_DOMAIN_ID, 0), Ok(0));
    board.close_fd(fd).unwrap();
}

#[test]
fn parts_of_a_dma_buf_are_mapped_and_it_has_a_name() {
    let board = board();
    let fd = heap_buffer(&board, 8192);
    let buffer = dma_buf(&board, fd);
    let (all, second) = (buffer.grant(0, 8192).unwrap(), buffer.grant(4096, 100).unwrap());
    assert_eq!(second.pointer(), all.pointer().map_addr(|address| address.checked_add(4096).unwrap()));
    for (offset, len) in [(0, 0), (0, 8193), (4096, 4097), (64, 64), (8192, 1), (u64::MAX - 4095, 4096)] {
        assert_eq!(buffer.grant(offset, len).unwrap_err(), Errno::EINVAL, "{offset:#x}+{len}");
    }
    let file = board.fds().resolve(fd).unwrap();
    for request in [dma_buf::SET_NAME_A, dma_buf::SET_NAME_B] {
        // SAFETY: the name is not looked at.
        unsafe { file.ioctl(&board, request, &mut [0; 8]) }.unwrap();
    }
    drop((all, second, buffer, file));
    board.close_fd(fd).unwrap();
    all_gone(&board);
}

#[test]
fn shared_memory_needs_no_brackets_and_is_a_real_file() {
    let options = EmuOptions { coherency: Coherency::Shared, ..Default::default() };
    let (board, _) = board_with(&options, adding);
    let npu = open(&board);
    let (fd, _, info) = imported(&board, &npu);
    // A real mapping of the descriptor, as a program makes it.
    // SAFETY: a new mapping of 4096 of the file's 8192 bytes.
    let place = unsafe {
        libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0)
    };
    assert_ne!(place, libc::MAP_FAILED);
    let bytes = place.cast::<u8>();
    // SAFETY: inside the mapping.
    unsafe { bytes.write_volatile(40) };
    let mut tasks = tasks(&npu, 1, 0x300);
    point_task_at(&mut tasks, info.dma_addr);
    submit(&npu, &request(&tasks, 1, 1)).unwrap();
    // SAFETY: inside the mapping.
    assert_eq!(unsafe { (bytes.read_volatile(), bytes.add(64).read_volatile()) }, (41, 41));
    // SAFETY: the range that was just mapped.
    unsafe { libc::munmap(place, 4096) };
    board.close_fd(fd).unwrap();
    drop((tasks, npu));
    all_gone(&board);
}

#[test]
fn fences_of_a_dma_buf() {
    let board = board();
    let fd = heap_buffer(&board, 4096);
    let file = board.fds().resolve(fd).unwrap();
    let mut argument = DmaBufSyncFile { flags: 1, fd: -1 };
    // SAFETY: the struct holds no address.
    unsafe { file.ioctl(&board, dma_buf::EXPORT_SYNC_FILE, argument.as_mut_bytes()) }.unwrap();
    assert!(polls(argument.fd), "nothing is pending");
    // SAFETY: as above.
    unsafe { file.ioctl(&board, dma_buf::IMPORT_SYNC_FILE, argument.as_mut_bytes()) }.unwrap();
    board.close_fd(argument.fd).unwrap();
    let mut none = DmaBufSyncFile { flags: 0, fd: -1 };
    // SAFETY: as above.
    let refused = unsafe { file.ioctl(&board, dma_buf::EXPORT_SYNC_FILE, none.as_mut_bytes()) };
    assert_eq!(refused, Err(Errno::EINVAL));
    drop(file);
    board.close_fd(fd).unwrap();
    assert_eq!(board.live(), Live::default());
}

#[test]
fn a_duplicate_outlives_the_descriptor_it_was_made_of() {
    let board = board();
    let npu = open(&board);
    let fd = heap_buffer(&board, 4096);
    // SAFETY: open until it is closed below.
    let own = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().unwrap();
    let handle = import_fd(npu.transport(), fd).unwrap();
    board.close_fd(fd).unwrap();
    // The import keeps the buffer, so the duplicate still means it.
    assert_eq!(bracket(&board, own.as_raw_fd(), sync::READ), Ok(()));
    assert_eq!(import_fd(npu.transport(), own.as_raw_fd()), Ok(handle));
    npu.mem_destroy(handle).unwrap();
    drop((own, npu));
    all_gone(&board);
}

/// An unnamed file of `len` bytes, each its index modulo 251.
fn file(name: &str, len: usize) -> std::fs::File {
    let path = std::env::temp_dir().join(format!("ork-emu-{name}-{}", std::process::id()));
    std::fs::write(&path, (0..len).map(|index| (index % 251) as u8).collect::<Vec<u8>>()).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

#[test]
fn pages_of_a_file_are_read_in_place_and_never_written() {
    // Reads a byte of the file's second page, then tries to write there, alone and from the buffer before.
    let behaviour = |_core: u8, bus: &dyn ork_emu::Bus, job: &ork_emu::PcJob| {
        let byte = bus.read(job.base, 1).map(|span| span[0]);
        assert_eq!(byte.ok(), Some((4096 % 251) as u8));
        let last = job.base.checked_add(4096 - 2).unwrap();
        assert!(bus.write(job.base, &[1]).is_err() && bus.write(last, &[7; 2]).is_err());
        done(job)
    };
    let (board, _) = board_with(&EmuOptions::default(), behaviour);
    let npu = open(&board);
    let file = file("read", 4096 + 5000);
    let buffer = DmaBuf::lend(&board, file.as_fd(), 4096, 5000).unwrap();
    assert_eq!((buffer.size(), board.live().dma_bufs), (8192, 1));
    assert_eq!((board.live().dram_bytes, board.live().lent_bytes), (0, 8192), "no memory of the machine");
    let fd = board.fds().install(KernelFile::DmaBuf(buffer.clone()), true).unwrap();
    let handle = import_fd(npu.transport(), fd).unwrap();
    let info = query(&npu, handle);
    assert_eq!(info.size, 8192);
    let mut tasks = tasks(&npu, 1, 0x300);
    point_task_at(&mut tasks, info.dma_addr);
    submit(&npu, &request(&tasks, 1, 1)).unwrap();
    let at = ork_isa::Iova(info.dma_addr as u32);
    let wrote = |iova| FindingKind::WriteToReadOnly { iova };
    assert_eq!(kinds(&board), [wrote(at), wrote(at.checked_add(4094).unwrap())]);

    // The CPU gets no mapping of it that it could write, and a bracket moves nothing.
    assert_eq!(buffer.grant(0, 4096).unwrap_err(), Errno::EACCES);
    bracket(&board, fd, sync::READ | sync::WRITE).unwrap();
    bracket(&board, fd, sync::END | sync::READ | sync::WRITE).unwrap();
    assert_eq!(import_fd(npu.transport(), fd), Ok(handle), "the same dma-buf");
    // The import keeps the pages, not the descriptor and not the file.
    board.close_fd(fd).unwrap();
    drop((buffer, file));
    assert_eq!((board.live().dma_bufs, board.live().lent_bytes), (0, 8192));
    submit(&npu, &request(&tasks, 1, 1)).unwrap();
    // Exported again it is a dma-buf again, and one with the import.
    let again = export_fd(npu.transport(), handle).unwrap();
    assert_eq!(import_fd(npu.transport(), again), Ok(handle));
    board.close_fd(again).unwrap();
    npu.mem_destroy(handle).unwrap();
    drop((tasks, npu));
    all_gone(&board);
}

#[test]
fn only_pages_that_a_file_has_are_lent() {
    let board = board();
    let file = file("range", 5000);
    let lend = |offset, len| DmaBuf::lend(&board, file.as_fd(), offset, len).map(|buffer| buffer.size());
    assert_eq!(
        (lend(0, 1), lend(0, 5000), lend(4096, 904), lend(4096, 4096)),
        (Ok(4096), Ok(8192), Ok(4096), Ok(4096))
    );
    let bad = [
        (0, 0),
        (1, 10),
        (904, 4096),
        (0, 8193),
        (4096, 4097),
        (8192, 1),
        (u64::MAX - 4095, 4096),
        (0, u64::MAX),
    ];
    for (offset, len) in bad {
        assert_eq!(lend(offset, len), Err(Errno::EINVAL), "{offset:#x}+{len}");
    }
    assert_eq!(board.live(), Live::default());
}
