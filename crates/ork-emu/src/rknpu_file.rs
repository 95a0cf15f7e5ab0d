// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device file of the vendor driver.

use std::fmt;
use std::sync::Arc;

use ork_drm::{Errno, Mapping, NodeKind, Transport, uapi as drm};
use ork_rknpu::uapi::{self, RknpuMemCreate, RknpuMemDestroy, RknpuMemMap, RknpuMemSync, mem, number};

use crate::board::{Driver, Inner};
use crate::call::Call;
use crate::domain::Alignment;
use crate::fault::Fault;
use crate::finding::FindingKind;
use crate::gem_file::{GemFile, Identity};
use crate::grant::{EmulatedFile, Grant};
use crate::object::{Allocation, Object};
use crate::submit;

/// How often freeing a buffer tries to make its domain live.
const DESTROY_ATTEMPTS: usize = 3;

/// An open device file of the `rknpu` driver.
pub struct VirtualRknpu {
    file: Arc<GemFile>,
}

impl VirtualRknpu {
    pub(crate) fn new(board: Arc<Inner>, node: NodeKind) -> Self {
        Self { file: GemFile::new(board, Driver::Rknpu, node) }
    }
}

impl fmt::Debug for VirtualRknpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VirtualRknpu({} handles)", self.file.handle_count())
    }
}

impl Transport for VirtualRknpu {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let call = Call::new(request, argument)?;
        if drm::kind(request) != drm::TYPE {
            return Err(Errno::ENOTTY);
        }
        let (file, board) = (&*self.file, &self.file.board);
        let _busy = board.clocks.call();
        let number = drm::number(request);
        if (number::ACTION..=number::MEM_SYNC).contains(&number) && board.injects(Fault::Interrupted) {
            return Err(Errno::EINTR);
        }
        match number {
            number::ACTION => call.with(uapi::ACTION, |argument| board.action(argument)),
            number::SUBMIT => call.with(uapi::SUBMIT, |argument| submit::submit(file, argument)),
            number::MEM_CREATE => {
                let known = if board.knows_domains() { uapi::MEM_CREATE } else { uapi::MEM_CREATE_SHORT };
                call.with(known, |argument| create(file, argument))
            }
            number::MEM_MAP => call.with(uapi::MEM_MAP, |argument| map_offset(file, argument)),
            number::MEM_DESTROY => call.with(uapi::MEM_DESTROY, |argument| destroy(file, argument)),
            number::MEM_SYNC => call.with(uapi::MEM_SYNC, |argument| sync(board, argument)),
            // SAFETY: the caller vouches for the addresses inside the struct.
            _ => unsafe {
                file.core_call(call, &identity(board), |buffer| {
                    // The driver maps it wherever it happens to be.
                    let live = board.space(board.live_domain.current());
                    Object::import(board, Driver::Rknpu, buffer, live)
                })
            },
        }
    }

    fn mmap(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        self.grant(offset, len).map(Grant::into_mapping)
    }
}

impl EmulatedFile for VirtualRknpu {
    fn grant(&self, offset: u64, len: usize) -> Result<Grant, Errno> {
        self.file.grant(offset, len)
    }
}

/// What the driver says of itself. The dates are those of its releases; for versions whose date no source has, that
/// of the nearest one before.
fn identity(board: &Inner) -> Identity {
    let date = match board.version_code() {
        ..905 => "20220829",
        905 => "20240226",
        906 => "20240322",
        907 => "20240424",
        _ => "20240828",
    };
    Identity { version: board.options.driver_version, name: "rknpu", date, description: "RKNPU driver" }
}

fn create(file: &GemFile, argument: &mut RknpuMemCreate) -> Result<(), Errno> {
    let board = &file.board;
    let (handle, object) = match file.object(argument.handle) {
        Some(object) => (argument.handle, object),
        None => {
            let domain = board.domain_id(argument.iommu_domain_id)?;
            board.live_domain.enter(domain)?;
            let object = Object::allocate(board, &allocation(board, argument, domain));
            board.live_domain.leave();
            // Without an IOMMU all memory is contiguous, and what fails is that allocation.
            let object = object.map_err(|errno| if board.options.iommu { errno } else { Errno::EINVAL })?;
            (file.insert(&object), object)
        }
    };
    argument.handle = handle;
    argument.size = object.size - object.sram;
    argument.obj_addr = object.address;
    argument.dma_addr = object.iova.into();
    argument.sram_size = object.sram;
    Ok(())
}

fn allocation(board: &Inner, argument: &RknpuMemCreate, domain: u8) -> Allocation {
    let has = |flag| argument.flags & flag != 0;
    let packed = board.knows_address_packing() && has(mem::IOMMU_LIMIT_IOVA_ALIGNMENT);
    Allocation {
        driver: Driver::Rknpu,
        size: argument.size,
        alignment: if packed { Alignment::Page } else { Alignment::Size },
        cacheable: has(mem::CACHEABLE),
        kernel_mapping: has(mem::KERNEL_MAPPING),
        // 0 means as much as there is.
        sram: match (has(mem::TRY_ALLOC_SRAM), argument.sram_size) {
            (false, _) => 0,
            (true, 0) => u64::MAX,
            (true, wanted) => wanted,
        },
        domain,
        space: Arc::clone(board.space(domain)),
    }
}

fn map_offset(file: &GemFile, argument: &mut RknpuMemMap) -> Result<(), Errno> {
    let object = file.object(argument.handle).ok_or(Errno::ENOENT)?;
    argument.offset = object.offset.ok_or(Errno::EINVAL)?;
    Ok(())
}

fn destroy(file: &GemFile, argument: &mut RknpuMemDestroy) -> Result<(), Errno> {
    let domain = file.object(argument.handle).ok_or(Errno::EINVAL)?.domain;
    let live_domain = &file.board.live_domain;
    let mut live = Err(Errno::EINVAL);
    for _ in 0..DESTROY_ATTEMPTS {
        live = live_domain.enter(domain);
        if live.is_ok() {
            break;
        }
    }
    live?;
    let result = file.drop_handle(argument.handle);
    live_domain.leave();
    result
}

fn sync(board: &Inner, argument: &mut RknpuMemSync) -> Result<(), Errno> {
    let &mut RknpuMemSync { flags, obj_addr, offset, size, .. } = argument;
    let object = board.objects.lock().at_address(obj_addr);
    let Some(object) = object else {
        if obj_addr != 0 {
            board.report(None, 0, FindingKind::UnknownObject { obj_addr });
        }
        return Err(Errno::EINVAL);
    };
    board.live_domain.enter(object.domain)?;
    let result = object.sync(flags, offset, size);
    board.live_domain.leave();
    result
}
