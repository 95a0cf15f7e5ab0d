// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device file: DRM's rules of dispatch, and the calls.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ork_drm::uapi::{self as drm, DrmGemClose, DrmGetCap, DrmUnique, DrmVersion};
use ork_drm::{Errno, Mapping, Transport};
use ork_rknpu::uapi::{
    HW_VERSION_RK3588, RknpuAction, RknpuMemCreate, RknpuMemDestroy, RknpuMemMap, RknpuMemSync, RknpuSubmit,
    action, number,
};
use parking_lot::Mutex;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::board::Inner;
use crate::domain::PAGE_BYTES;
use crate::finding::FindingKind;
use crate::job;
use crate::object::Object;

const FREQUENCY_HZ: u32 = 1_000_000_000;
const SUPPLY_MICROVOLTS: u32 = 800_000;
/// How often freeing a buffer tries to make its domain live.
const DESTROY_ATTEMPTS: usize = 3;

/// An open device file of an emulated board.
pub struct VirtualRknpu {
    file: Arc<OpenFile>,
}

/// Lives until the file is closed and all its mappings are gone; only then its handles are dropped.
struct OpenFile {
    // Drop order: handles, then the count.
    handles: Mutex<BTreeMap<u32, Arc<Object>>>,
    board: Arc<Inner>,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let handles = std::mem::take(self.handles.get_mut());
        for object in handles.into_values() {
            drop(object);
            self.board.counts.handles.down();
        }
        self.board.counts.files.down();
    }
}

/// A mapping's share in its file.
struct MappedFile(Arc<OpenFile>);

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.0.board.counts.mappings.down();
    }
}

impl VirtualRknpu {
    pub(crate) fn new(board: Arc<Inner>) -> Self {
        board.counts.files.up();
        Self { file: Arc::new(OpenFile { handles: Mutex::default(), board }) }
    }
}

impl fmt::Debug for VirtualRknpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VirtualRknpu({} handles)", self.file.handles.lock().len())
    }
}

impl Transport for VirtualRknpu {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let Some(argument) = argument.get_mut(..drm::argument_size(request)) else {
            return Err(Errno::EFAULT);
        };
        if drm::kind(request) != drm::TYPE {
            return Err(Errno::ENOTTY);
        }
        let call = Call { request, argument };
        let file = &*self.file;
        match drm::number(request) {
            // SAFETY: the caller vouches for the addresses inside the struct.
            0x00 => call.with(|version| unsafe { file.version(version) }),
            // A platform device that never called SET_VERSION has no unique name.
            0x01 => call.with(|unique: &mut DrmUnique| {
                unique.len = 0;
                Ok(())
            }),
            0x09 => call.with(|close: &mut DrmGemClose| file.drop_handle(close.handle)),
            0x0C => call.with(capability),
            0x0A | 0x0B | 0x2D | 0x2E => {
                file.board.report(
                    None,
                    0,
                    FindingKind::NotEmulated { what: "sharing of buffers (PRIME, FLINK)" },
                );
                Err(Errno::EOPNOTSUPP)
            }
            // Sync objects.
            0xBF..=0xC5 => Err(Errno::EOPNOTSUPP),
            number::ACTION => call.with(|argument| file.action(argument)),
            number::SUBMIT => call.with(|submit: &mut RknpuSubmit| job::submit(&file.board, submit)),
            number::MEM_CREATE => call.with(|create| file.create(create)),
            number::MEM_MAP => call.with(|map| file.map_offset(map)),
            number::MEM_DESTROY => call.with(|destroy| file.destroy(destroy)),
            number::MEM_SYNC => call.with(|sync| file.sync(sync)),
            _ => Err(Errno::EINVAL),
        }
    }

    fn mmap(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        let file = &self.file;
        let pages = (len as u64).checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::EINVAL)?;
        let object = file.board.objects.lock().at_offset(offset);
        let object = object.ok_or(Errno::EINVAL)?;
        if pages == 0 || pages > object.size {
            return Err(Errno::EINVAL);
        }
        if !file.handles.lock().values().any(|own| Arc::ptr_eq(own, &object)) {
            return Err(Errno::EACCES);
        }
        file.board.counts.mappings.up();
        object.map(len, MappedFile(Arc::clone(file)))
    }
}

/// One ioctl's argument.
struct Call<'a> {
    request: u32,
    argument: &'a mut [u8],
}

impl Call<'_> {
    /// DRM's rule: as many bytes as the caller's size field says are copied in, the rest of the kernel's struct is
    /// zero; as many are copied out, also when the handler fails.
    fn with<A>(self, handler: impl FnOnce(&mut A) -> Result<(), Errno>) -> Result<(), Errno>
    where
        A: FromBytes + IntoBytes + Immutable,
    {
        let mut own = A::new_zeroed();
        let common = self.argument.len().min(size_of::<A>());
        if drm::copies_in(self.request) {
            own.as_mut_bytes()[..common].copy_from_slice(&self.argument[..common]);
        }
        let result = handler(&mut own);
        if drm::copies_out(self.request) {
            self.argument[..common].copy_from_slice(&own.as_bytes()[..common]);
        }
        result
    }
}

fn capability(argument: &mut DrmGetCap) -> Result<(), Errno> {
    argument.value = match argument.capability {
        drm::CAP_PRIME => 3,
        drm::CAP_SYNCOBJ => 0,
        _ => return Err(Errno::EOPNOTSUPP),
    };
    Ok(())
}

impl OpenFile {
    /// # Safety
    /// Each address that is not null must be writable for the length beside it.
    unsafe fn version(&self, version: &mut DrmVersion) -> Result<(), Errno> {
        let [major, minor, patch] = self.board.options.driver_version;
        (version.major, version.minor, version.patch) = (major as i32, minor as i32, patch as i32);
        let date = match (major, minor, patch) {
            (0, 9, 6) => "20240322",
            (0, 9, 7) => "20240424",
            _ => "20240828",
        };
        let strings = [
            (&mut version.name_len, version.name, "rknpu"),
            (&mut version.date_len, version.date, date),
            (&mut version.desc_len, version.desc, "RKNPU driver"),
        ];
        for (len, address, text) in strings {
            let place = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
            let count = usize::try_from(*len).unwrap_or(usize::MAX).min(text.len());
            if !place.is_null() {
                // SAFETY: the caller vouches for `len` bytes at the address, and `count` is not more.
                unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), place, count) };
            }
            *len = text.len() as u64;
        }
        Ok(())
    }

    fn action(&self, argument: &mut RknpuAction) -> Result<(), Errno> {
        let board = &self.board;
        argument.value = match argument.flags {
            action::GET_HW_VERSION => HW_VERSION_RK3588,
            action::GET_DRV_VERSION => board.version_code(),
            action::GET_FREQ => FREQUENCY_HZ,
            action::GET_VOLT => SUPPLY_MICROVOLTS,
            action::ACT_RESET => {
                board.reset();
                argument.value
            }
            // RK3588 has no traffic counters: these succeed and change nothing. The nice value is left alone.
            action::ACT_CLR_TOTAL_RW_AMOUNT
            | action::GET_DT_WR_AMOUNT
            | action::GET_DT_RD_AMOUNT
            | action::GET_WT_RD_AMOUNT
            | action::GET_TOTAL_RW_AMOUNT
            | action::SET_PROC_NICE => argument.value,
            action::GET_IOMMU_EN => 1,
            action::GET_TOTAL_SRAM_SIZE | action::GET_FREE_SRAM_SIZE => 0,
            action::GET_IOMMU_DOMAIN_ID if board.knows_domains() => board.live_domain.current().into(),
            action::SET_IOMMU_DOMAIN_ID if board.knows_domains() => {
                board.live_domain.enter(board.domain_id(argument.value as i32)?)?;
                board.live_domain.leave();
                argument.value
            }
            _ => return Err(Errno::EINVAL),
        };
        Ok(())
    }

    fn object(&self, handle: u32) -> Option<Arc<Object>> {
        self.handles.lock().get(&handle).cloned()
    }

    fn create(&self, argument: &mut RknpuMemCreate) -> Result<(), Errno> {
        let (handle, object) = match self.object(argument.handle) {
            Some(object) => (argument.handle, object),
            None => {
                let domain = self.board.domain_id(argument.iommu_domain_id)?;
                self.board.live_domain.enter(domain)?;
                let object = Object::allocate(&self.board, argument, domain);
                self.board.live_domain.leave();
                let object = object?;
                (self.insert(&object), object)
            }
        };
        argument.handle = handle;
        argument.size = object.size;
        argument.obj_addr = object.address;
        argument.dma_addr = object.iova.into();
        argument.sram_size = 0;
        Ok(())
    }

    /// Gives an object the lowest free handle.
    fn insert(&self, object: &Arc<Object>) -> u32 {
        let mut handles = self.handles.lock();
        let free = handles.keys().zip(1..).find(|(taken, number)| *taken != number);
        let handle = free.map_or(handles.len() as u32 + 1, |(_, number)| number);
        handles.insert(handle, Arc::clone(object));
        self.board.counts.handles.up();
        handle
    }

    fn drop_handle(&self, handle: u32) -> Result<(), Errno> {
        // The lock must be free again when the object goes.
        let object = self.handles.lock().remove(&handle);
        drop(object.ok_or(Errno::EINVAL)?);
        self.board.counts.handles.down();
        Ok(())
    }

    fn map_offset(&self, argument: &mut RknpuMemMap) -> Result<(), Errno> {
        argument.offset = self.object(argument.handle).ok_or(Errno::ENOENT)?.offset;
        Ok(())
    }

    fn destroy(&self, argument: &mut RknpuMemDestroy) -> Result<(), Errno> {
        let domain = self.object(argument.handle).ok_or(Errno::EINVAL)?.domain;
        let mut live = Err(Errno::EINVAL);
        for _ in 0..DESTROY_ATTEMPTS {
            live = self.board.live_domain.enter(domain);
            if live.is_ok() {
                break;
            }
        }
        live?;
        let result = self.drop_handle(argument.handle);
        self.board.live_domain.leave();
        result
    }

    fn sync(&self, argument: &mut RknpuMemSync) -> Result<(), Errno> {
        let &mut RknpuMemSync { flags, obj_addr, offset, size, .. } = argument;
        let object = self.board.objects.lock().at_address(obj_addr);
        let Some(object) = object else {
            if obj_addr != 0 {
                self.board.report(None, 0, FindingKind::UnknownObject { obj_addr });
            }
            return Err(Errno::EINVAL);
        };
        self.board.live_domain.enter(object.domain)?;
        let result = object.sync(flags, offset, size);
        self.board.live_domain.leave();
        result
    }
}
