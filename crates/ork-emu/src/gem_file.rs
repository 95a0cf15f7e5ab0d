// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open DRM file: its handles, and the calls that DRM itself answers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ork_drm::uapi::{
    self as drm, DrmGemClose, DrmGemFlink, DrmGemOpen, DrmGetCap, DrmPrimeHandle, DrmUnique, DrmVersion,
};
use ork_drm::{Errno, NodeKind};

use crate::board::{Driver, Inner};
use crate::call::Call;
use crate::dma_buf::{Content, DmaBuf};
use crate::domain::PAGE_BYTES;
use crate::fd_table::KernelFile;
use crate::grant::Grant;
use crate::lock::Mutex;
use crate::object::Object;
use crate::user_memory;

/// What a driver says of itself.
pub(crate) struct Identity {
    pub(crate) version: [u32; 3],
    pub(crate) name: &'static str,
    pub(crate) date: &'static str,
    pub(crate) description: &'static str,
}

/// Lives until the file is closed and all its mappings are gone; only then its handles are dropped.
pub(crate) struct GemFile {
    pub(crate) board: Arc<Inner>,
    pub(crate) driver: Driver,
    pub(crate) id: u64,
    node: NodeKind,
    handles: Mutex<BTreeMap<u32, Arc<Object>>>,
}

impl Drop for GemFile {
    fn drop(&mut self) {
        self.board.abandon_jobs_of(self.id);
        let handles = std::mem::take(self.handles.get_mut());
        for object in handles.into_values() {
            drop(object);
            self.board.counts.handles.down();
        }
        self.board.counts.files.down();
    }
}

/// A mapping's share in its file.
struct MappedFile(Arc<GemFile>);

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.0.board.counts.mappings.down();
    }
}

impl GemFile {
    pub(crate) fn new(board: Arc<Inner>, driver: Driver, node: NodeKind) -> Arc<Self> {
        board.counts.files.up();
        let id = board.next_file();
        Arc::new(Self { board, driver, id, node, handles: Mutex::default() })
    }

    pub(crate) fn object(&self, handle: u32) -> Option<Arc<Object>> {
        self.handles.lock().get(&handle).cloned()
    }

    /// Gives an object the lowest free handle.
    pub(crate) fn insert(&self, object: &Arc<Object>) -> u32 {
        let mut handles = self.handles.lock();
        let free = handles.keys().zip(1..).find(|(taken, number)| *taken != number);
        let handle = free.map_or(handles.len() as u32 + 1, |(_, number)| number);
        handles.insert(handle, Arc::clone(object));
        self.board.counts.handles.up();
        handle
    }

    pub(crate) fn drop_handle(&self, handle: u32) -> Result<(), Errno> {
        // The lock must be free again when the object goes.
        let object = self.handles.lock().remove(&handle);
        drop(object.ok_or(Errno::EINVAL)?);
        self.board.counts.handles.down();
        Ok(())
    }

    /// The handle of an object that fits, if the file has one.
    fn handle_of(&self, fits: impl Fn(&Arc<Object>) -> bool) -> Option<u32> {
        self.handles.lock().iter().find(|(_, object)| fits(object)).map(|(handle, _)| *handle)
    }

    /// mmap.
    pub(crate) fn grant(self: &Arc<Self>, offset: u64, len: usize) -> Result<Grant, Errno> {
        let pages = (len as u64).checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::EINVAL)?;
        let object = self.board.objects.lock().at_offset(offset);
        let object = object.ok_or(Errno::EINVAL)?;
        if pages == 0 || pages > object.size {
            return Err(Errno::EINVAL);
        }
        if self.handle_of(|own| Arc::ptr_eq(own, &object)).is_none() {
            return Err(Errno::EACCES);
        }
        self.board.counts.mappings.up();
        object.grant(0, len, MappedFile(Arc::clone(self)))
    }

    /// Calls that DRM answers for every driver.
    ///
    /// # Safety
    /// Addresses inside the argument must be valid for what the call does with them.
    pub(crate) unsafe fn core_call(
        &self,
        call: Call<'_>,
        identity: &Identity,
        import: impl FnOnce(&DmaBuf) -> Result<Arc<Object>, Errno>,
    ) -> Result<(), Errno> {
        let number = drm::number(call.request);
        if self.node == NodeKind::Render && !matches!(number, 0x00 | 0x09 | 0x0C | 0x2D | 0x2E | 0xBF..=0xC5)
        {
            return if (0x01..0x40).contains(&number) { Err(Errno::EACCES) } else { Err(Errno::EINVAL) };
        }
        match number {
            // SAFETY: the caller vouches for the addresses inside the struct.
            0x00 => call.with(|version| unsafe { version_call(identity, version) }),
            // A platform device that never called SET_VERSION has no unique name.
            0x01 => call.with(|unique: &mut DrmUnique| {
                unique.len = 0;
                Ok(())
            }),
            // GET_MAGIC and AUTH_MAGIC: the first opener is master and authenticates itself.
            0x02 => call.with(|magic: &mut u32| {
                *magic = 1;
                Ok(())
            }),
            0x11 => call.with(|magic: &mut u32| if *magic == 1 { Ok(()) } else { Err(Errno::EINVAL) }),
            // SET_VERSION, SET_MASTER, DROP_MASTER.
            0x07 | 0x1E | 0x1F => Ok(()),
            0x09 => call.with(|close: &mut DrmGemClose| self.drop_handle(close.handle)),
            0x0A => call.with(|flink| self.flink(flink)),
            0x0B => call.with(|open| self.open_name(open)),
            0x0C => call.with(capability),
            // SET_CLIENT_CAP is for modesetting; sync objects are not there either.
            0x0D | 0xBF..=0xC5 => Err(Errno::EOPNOTSUPP),
            0x2D => call.with(|prime| self.export(prime)),
            0x2E => call.with(|prime| self.import(prime, import)),
            _ => Err(Errno::EINVAL),
        }
    }

    fn flink(&self, argument: &mut DrmGemFlink) -> Result<(), Errno> {
        let object = self.object(argument.handle).ok_or(Errno::ENOENT)?;
        argument.name = self.board.objects.lock().name(&object);
        Ok(())
    }

    fn open_name(&self, argument: &mut DrmGemOpen) -> Result<(), Errno> {
        let object = self.board.objects.lock().at_name(argument.name);
        let object = object.filter(|object| object.driver == self.driver).ok_or(Errno::ENOENT)?;
        argument.handle = self.insert(&object);
        argument.size = object.size;
        Ok(())
    }

    fn export(&self, argument: &mut DrmPrimeHandle) -> Result<(), Errno> {
        if argument.flags & !(drm::PRIME_CLOEXEC | drm::PRIME_RDWR) != 0 {
            return Err(Errno::EINVAL);
        }
        let object = self.object(argument.handle).ok_or(Errno::ENOENT)?;
        let file = KernelFile::DmaBuf(object.export()?);
        argument.fd = self.board.fds.install(file, argument.flags & drm::PRIME_CLOEXEC != 0)?;
        Ok(())
    }

    fn import(
        &self,
        argument: &mut DrmPrimeHandle,
        foreign: impl FnOnce(&DmaBuf) -> Result<Arc<Object>, Errno>,
    ) -> Result<(), Errno> {
        let KernelFile::DmaBuf(buffer) = self.board.fds.resolve(argument.fd)? else {
            return Err(Errno::EINVAL);
        };
        let own = match buffer.content() {
            Content::Object(object) if object.driver == self.driver => Some(object),
            _ => None,
        };
        argument.handle = match own {
            Some(object) => {
                let known = self.handle_of(|handle| Arc::ptr_eq(handle, object));
                known.unwrap_or_else(|| self.insert(object))
            }
            None => match self.handle_of(|handle| handle.is_import_of(&buffer)) {
                Some(known) => known,
                None => self.insert(&foreign(&buffer)?),
            },
        };
        Ok(())
    }

    pub(crate) fn handle_count(&self) -> usize {
        self.handles.lock().len()
    }
}

impl fmt::Debug for GemFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file {} ({} handles)", self.id, self.handle_count())
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

/// # Safety
/// Each address that is not null must be writable for the length beside it.
unsafe fn version_call(identity: &Identity, version: &mut DrmVersion) -> Result<(), Errno> {
    let [major, minor, patch] = identity.version;
    (version.major, version.minor, version.patch) = (major as i32, minor as i32, patch as i32);
    let strings = [
        (&mut version.name_len, version.name, identity.name),
        (&mut version.date_len, version.date, identity.date),
        (&mut version.desc_len, version.desc, identity.description),
    ];
    for (len, address, text) in strings {
        let count = usize::try_from(*len).unwrap_or(usize::MAX).min(text.len());
        *len = text.len() as u64;
        if address != 0 {
            // SAFETY: the caller vouches for `len` bytes at the address, and `count` is not more.
            unsafe { user_memory::copy_out(address, &text.as_bytes()[..count]) }?;
        }
    }
    Ok(())
}
