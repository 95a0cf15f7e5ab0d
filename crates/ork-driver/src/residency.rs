// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where weights are: in device memory for good, or in RAM and brought in when they are used.
//!
//! Streaming is for models that are larger than the address space of the NPU. The packed bytes of a streamed weight stay
//! in RAM. Two ways to bring them in ([`StreamBacking`]):
//!
//! - *copy*: into one of several slots of device memory, all of the same size, so that nothing is allocated while a
//!   model runs (what stopped the original's streaming was allocating and freeing by different sizes);
//! - *map*: the RAM is a dma-buf, and bringing it in is giving it an address: 48 to 169 us on silicon, against 0.5 to
//!   2 ms for taking the address away again, so weights stay mapped until the room is needed (measured elsewhere).
//!
//! The least recently used weight makes room. The weights of a model are used in the same order again and again, so
//! what followed a weight the last time is brought in by another thread while the NPU works with it.
//!
//! The same thread copies the tiles of a pack into device memory, and makes int8 of stored int4 there, so that loading does
//! not wait for it ([`Upload`]).

use std::collections::{HashMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use ork_device::{Device, DeviceError, DmaBuffer, DomainId, Feature, HeapBuffer, Purpose, ResidentBuffer};
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

mod pinned;
mod upload;

pub(crate) use pinned::{Pin, Pinned, Weights};

use upload::{Rest, Upload};

use crate::tiles::{FileRange, TileBytes, Unpack};

/// Which weights are streamed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamMode {
    /// None: a weight without room is an error.
    Off,
    /// Those that find no room.
    #[default]
    Auto,
    /// All.
    All,
}

/// How streamed weights are brought in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamBacking {
    /// Copied into slots.
    #[default]
    Copy,
    /// Mapped from dma-bufs, one descriptor each. For drivers that import, with a heap that this program may use.
    Map,
}

/// Where the tiles of a pack are, for the NPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TilePlace {
    /// In the file, where the device can use files: on an emulated board. Elsewhere copied.
    #[default]
    InPlace,
    /// Copied into device memory, as on a board.
    Copy,
}

/// Which weights are streamed, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResidencyOptions {
    /// Which weights are streamed.
    pub stream: StreamMode,
    /// How they are brought in.
    pub backing: StreamBacking,
    /// Device memory for streamed weights, in bytes.
    pub window_bytes: u64,
    /// Bring in the next weight while one is used, and the tiles of a pack behind its loading: with one more thread.
    pub prefetch: bool,
    /// Where the tiles of a pack are.
    pub tiles: TilePlace,
}

impl Default for ResidencyOptions {
    fn default() -> Self {
        Self {
            stream: StreamMode::Auto,
            backing: StreamBacking::Copy,
            // Fits beside the weights of an address space and its scratch memory.
            window_bytes: 512 << 20,
            prefetch: true,
            tiles: TilePlace::default(),
        }
    }
}

/// What streaming did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidencyCounters {
    /// Streamed weights that exist.
    pub weights: u64,
    /// The bytes that are kept of them; stored int4 takes half of what it is in device memory.
    pub bytes: u64,
    /// Uses that found the weight brought in.
    pub hits: u64,
    /// Of those, the ones for which it was brought in beforehand.
    pub prefetched: u64,
    /// Uses that had to wait for it.
    pub misses: u64,
    /// Weights that made room for another one.
    pub evictions: u64,
    /// Bytes of device memory that were brought in.
    pub brought_bytes: u64,
    /// Bytes that were read for that.
    pub read_bytes: u64,
}

/// Errors of residency are those of the device, with what could not be done.
pub(crate) type Result<T> = std::result::Result<T, DeviceError>;

/// Names a streamed weight.
type Id = u64;

/// Holds weights.
#[derive(Debug)]
pub(crate) struct Residency {
    inside: Arc<Inside>,
    /// Asks for weights to be brought in. Closing it ends the thread.
    ahead: Option<Sender<Ahead>>,
    thread: Option<JoinHandle<()>>,
}

/// What can be done ahead of time.
#[derive(Debug)]
enum Ahead {
    /// A streamed weight may be used soon.
    Bring(Id),
    /// A resident one lacks its bytes.
    Upload(Arc<Rest>),
}

#[derive(Debug)]
struct Inside {
    device: Arc<Device>,
    options: ResidencyOptions,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    weights: HashMap<Id, Streamed>,
    slots: Vec<Slot>,
    /// Size of the slots.
    slot_bytes: u64,
    next: Id,
    clock: u64,
    last_used: Option<Id>,
    counters: ResidencyCounters,
}

/// A streamed weight.
#[derive(Debug)]
struct Streamed {
    store: Arc<Store>,
    /// The slot that holds it.
    slot: Option<usize>,
    /// What was used after it the last time.
    then: Option<Id>,
    /// Used since it was brought in ahead of time.
    ahead: bool,
}

/// Where the bytes are.
#[derive(Debug)]
enum Store {
    Ram(Vec<u8>),
    /// In a file that is mapped, for example.
    Tiles {
        bytes: Arc<dyn TileBytes>,
        unpack: Unpack,
    },
    DmaBuf {
        fd: OwnedFd,
        bytes: u64,
    },
}

impl Store {
    /// Bytes that are kept.
    fn bytes(&self) -> u64 {
        match self {
            Self::Ram(bytes) => bytes.len() as u64,
            Self::Tiles { bytes, .. } => bytes.bytes().len() as u64,
            Self::DmaBuf { bytes, .. } => *bytes,
        }
    }

    /// Bytes that the NPU reads.
    fn device_bytes(&self) -> u64 {
        match self {
            Self::Tiles { unpack, .. } => unpack.device_bytes(self.bytes()),
            Self::Ram(_) | Self::DmaBuf { .. } => self.bytes(),
        }
    }
}

/// Room for one streamed weight.
#[derive(Debug)]
struct Slot {
    memory: Arc<Mutex<Memory>>,
    holds: Option<Id>,
    /// Products that use it now.
    users: u32,
    /// Being filled.
    filling: bool,
    used_at: u64,
}

/// The device memory of a slot; none before its first use.
#[derive(Debug)]
pub(crate) enum Memory {
    Copied(Option<DmaBuffer>),
    Mapped(Option<ResidentBuffer>),
}

impl Residency {
    /// For this device.
    ///
    /// # Errors
    /// [`DeviceError`] when the driver cannot do what the options ask for.
    pub(crate) fn new(device: &Arc<Device>, options: &ResidencyOptions) -> Result<Self> {
        if options.backing == StreamBacking::Map && options.stream != StreamMode::Off {
            device.features().need(Feature::ImportDmaBuf).map_err(|source| DeviceError::Call {
                doing: "cannot map streamed weights".to_owned(),
                source: source.into(),
            })?;
        }
        let inside = Arc::new(Inside {
            device: Arc::clone(device),
            options: options.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        Ok(Self { inside, ahead: None, thread: None })
    }

    /// Starts the thread that brings weights in ahead of time.
    pub(crate) fn with_prefetch(mut self) -> Self {
        if !self.inside.options.prefetch {
            return self;
        }
        let (ahead, asked) = channel();
        let inside = Arc::clone(&self.inside);
        let thread = std::thread::Builder::new().name("npu-weights".to_owned());
        // Without a thread weights come in when they are used.
        if let Ok(thread) = thread.spawn(move || bring_ahead(&inside, &asked)) {
            (self.ahead, self.thread) = (Some(ahead), Some(thread));
        }
        self
    }

    pub(crate) fn counters(&self) -> ResidencyCounters {
        self.inside.state.lock().counters
    }

    /// Room for the packed bytes of a weight.
    pub(crate) fn room(&self, bytes: u64) -> Result<Room> {
        let Inside { device, options, .. } = &*self.inside;
        if options.stream != StreamMode::All {
            match device.alloc_weight(bytes) {
                Ok(buffer) => return Ok(Room::Resident(buffer)),
                Err(error) if error.is_full() && options.stream == StreamMode::Auto => {
                    tracing::debug!(bytes, %error, "a weight is streamed");
                }
                Err(error) => return Err(error),
            }
        }
        if bytes > options.window_bytes {
            let (domains, limit) = (1, options.window_bytes);
            return Err(DeviceError::NoRoom { bytes, held: 0, domains, limit });
        }
        match options.backing {
            StreamBacking::Copy => {
                // A length that the layout gave fits the host.
                Ok(Room::Ram(vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)]))
            }
            StreamBacking::Map => {
                let buffer = device.allocate_heap(bytes)?;
                Ok(Room::DmaBuf { bytes, buffer })
            }
        }
    }

    /// Uses tiles where they lie in a file, if the device can and they are what the NPU reads. Without room in the address
    /// space, or without a descriptor for a moment, they are not: any other place does without it.
    fn in_place(&self, device_bytes: u64, unpack: Unpack, tiles: &dyn TileBytes) -> Result<Option<Place>> {
        let Inside { device, options, .. } = &*self.inside;
        if unpack != Unpack::Copy
            || options.stream == StreamMode::All
            || options.tiles == TilePlace::Copy
            || !device.lends_files()
        {
            return Ok(None);
        }
        let Some(FileRange { file, range }) = tiles.file() else { return Ok(None) };
        debug_assert_eq!(
            range.end - range.start,
            device_bytes,
            "the caller has compared the tiles with their layout"
        );
        match device.lend_weight(file, range) {
            Ok(buffer) => Ok(Some(Place::Resident(buffer))),
            Err(error)
                if options.stream == StreamMode::Auto && (error.is_full() || error.is_out_of_files()) =>
            {
                tracing::debug!(device_bytes, %error, "tiles are not used in place");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives tiles that lie ready a place. Streamed ones stay where they are, unless they are to be mapped; resident ones
    /// stay there too where the device can use a file.
    pub(crate) fn place_tiles(
        self: &Arc<Self>,
        device_bytes: u64,
        unpack: Unpack,
        tiles: &Arc<dyn TileBytes>,
    ) -> Result<Place> {
        if let Some(place) = self.in_place(device_bytes, unpack, &**tiles)? {
            return Ok(place);
        }
        let room = self.room(device_bytes)?;
        if matches!(room, Room::Ram(_)) {
            // Its pages were never touched.
            return Ok(self.streamed(Store::Tiles { bytes: Arc::clone(tiles), unpack }));
        }
        match (room, &self.ahead) {
            // Where a flush is one of the whole object it must not meet who fills another part of it.
            (Room::Resident(buffer), Some(ahead))
                if self.inside.device.features().has(Feature::RangeSync) =>
            {
                let upload = Upload::new(buffer, Arc::clone(tiles), unpack);
                // Without the thread it is done when the weight is used.
                let _ = ahead.send(Ahead::Upload(upload.rest()));
                Ok(Place::Uploading(upload))
            }
            (mut room, _) => {
                unpack.write(tiles.bytes(), room.bytes_mut());
                self.settle(room)
            }
        }
    }

    /// Makes what was written into a room a weight.
    pub(crate) fn settle(self: &Arc<Self>, room: Room) -> Result<Place> {
        let store = match room {
            Room::Resident(buffer) => {
                buffer.flush(0..buffer.len())?;
                return Ok(Place::Resident(buffer.unmap_host()));
            }
            Room::Ram(bytes) => Store::Ram(bytes),
            Room::DmaBuf { bytes, buffer } => Store::DmaBuf { fd: buffer.into_fd(), bytes },
        };
        Ok(self.streamed(store))
    }

    /// A streamed weight.
    fn streamed(self: &Arc<Self>, store: Store) -> Place {
        let mut state = self.inside.state.lock();
        let (id, bytes, device_bytes) = (state.next, store.bytes(), store.device_bytes());
        state.next += 1;
        state.counters.weights += 1;
        state.counters.bytes += bytes;
        let streamed = Streamed { store: Arc::new(store), slot: None, then: None, ahead: false };
        state.weights.insert(id, streamed);
        // Slots of the new size come when they are needed.
        state.slot_bytes = state.slot_bytes.max(device_bytes.next_multiple_of(4096));
        Place::Streamed(Lease { residency: Arc::clone(self), id })
    }

    /// Brings a weight in, and keeps it until the pin is dropped.
    fn pin(&self, id: Id) -> Result<Pin<'_>> {
        let inside = &self.inside;
        let (slot, memory, next) =
            inside.bring(id, Need::Now)?.expect("the lease keeps the weight, and a use waits for room");
        if let (Some(next), Some(ahead)) = (next, &self.ahead) {
            // A thread that is gone brings nothing in.
            let _ = ahead.send(Ahead::Bring(next));
        }
        Ok(Pin { inside, slot, memory })
    }
}

impl Drop for Residency {
    fn drop(&mut self) {
        self.ahead = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn bring_ahead(inside: &Inside, asked: &Receiver<Ahead>) {
    // Of the weights that may be used soon only the newest: the others' time has come or gone.
    let (mut next, mut uploads) = (None, VecDeque::new());
    loop {
        let asked_now = if next.is_none() && uploads.is_empty() {
            asked.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            asked.try_recv()
        };
        match asked_now {
            Ok(Ahead::Bring(id)) => next = Some(id),
            Ok(Ahead::Upload(rest)) => uploads.push_back(rest),
            // What is left to do ahead of time is left.
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                let result = match next.take() {
                    Some(id) => inside.bring(id, Need::Later).map(|_| ()),
                    None => uploads.pop_front().map_or(Ok(()), |rest| rest.make()),
                };
                match result {
                    Err(DeviceError::Closed) => return,
                    // What cannot be had now is tried again when it is used, where the error goes to somebody.
                    Err(error) => tracing::debug!(%error, "cannot bring a weight in ahead of time"),
                    Ok(()) => {}
                }
            }
        }
    }
}

/// Why a weight is brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// It is used; the slot is taken for the caller.
    Now,
    /// It may be used soon.
    Later,
}

/// Where a weight is, and what was used after it.
type Brought = (usize, Arc<Mutex<Memory>>, Option<Id>);

impl Inside {
    /// Brings a weight in. For a later use `None` when all slots are in use.
    fn bring(&self, id: Id, need: Need) -> Result<Option<Brought>> {
        let mut state = self.state.lock();
        if need == Need::Now {
            let before = state.last_used.replace(id);
            if let Some(before) = before.and_then(|before| state.weights.get_mut(&before)) {
                before.then = Some(id);
            }
        }
        let mut waited = false;
        loop {
            let Some(streamed) = state.weights.get(&id) else { return Ok(None) };
            if let Some(slot) = streamed.slot {
                if state.slots[slot].filling {
                    waited = true;
                    self.changed.wait(&mut state);
                    continue;
                }
                return Ok(Some(state.found(id, slot, need, waited)));
            }
            match state.victim(&self.options) {
                Victim::Slot(slot) => {
                    state = self.fill(state, id, slot, need)?;
                    waited = true;
                }
                Victim::New => {
                    let memory = Arc::new(Mutex::new(match self.options.backing {
                        StreamBacking::Copy => Memory::Copied(None),
                        StreamBacking::Map => Memory::Mapped(None),
                    }));
                    state.slots.push(Slot { memory, holds: None, users: 0, filling: false, used_at: 0 });
                }
                Victim::None if need == Need::Later => return Ok(None),
                Victim::None => self.changed.wait(&mut state),
            }
        }
    }

    /// Fills a slot with a weight, without the lock.
    fn fill<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        id: Id,
        slot: usize,
        need: Need,
    ) -> Result<MutexGuard<'a, State>> {
        let old = state.slots[slot].holds.take();
        if let Some(old) = old.and_then(|old| state.weights.get_mut(&old)) {
            old.slot = None;
            state.counters.evictions += 1;
        }
        let store = {
            let streamed = state.weights.get_mut(&id).expect("looked up by the caller");
            streamed.slot = Some(slot);
            streamed.ahead = need == Need::Later;
            Arc::clone(&streamed.store)
        };
        let room = state.slot_bytes;
        let place = &mut state.slots[slot];
        (place.holds, place.filling) = (Some(id), true);
        let memory = Arc::clone(&place.memory);
        drop(state);
        let result = self.bring_bytes(&mut memory.lock(), &store, room);
        let mut state = self.state.lock();
        state.slots[slot].filling = false;
        self.changed.notify_all();
        match result {
            Ok(()) => {
                state.counters.brought_bytes += store.device_bytes();
                state.counters.read_bytes += store.bytes();
                Ok(state)
            }
            Err(error) => {
                state.slots[slot].holds = None;
                if let Some(streamed) = state.weights.get_mut(&id) {
                    streamed.slot = None;
                }
                Err(error)
            }
        }
    }

    fn bring_bytes(&self, memory: &mut Memory, store: &Store, room: u64) -> Result<()> {
        match (memory, store) {
            (Memory::Copied(slot), Store::Ram(_) | Store::Tiles { .. }) => {
                let needed = store.device_bytes();
                if slot.as_ref().is_some_and(|buffer| buffer.len() < needed) {
                    // Larger weights came since; both together may not fit.
                    *slot = None;
                }
                let buffer = match slot {
                    Some(buffer) => buffer,
                    None => slot.insert(self.device.alloc_in(DomainId(0), Purpose::Data, room)?),
                };
                let target = &mut buffer.host_mut()[..needed as usize];
                match store {
                    Store::Ram(bytes) => target.copy_from_slice(bytes),
                    Store::Tiles { bytes, unpack } => unpack.write(bytes.bytes(), target),
                    Store::DmaBuf { .. } => unreachable!("it is mapped"),
                }
                buffer.flush(0..needed)
            }
            (Memory::Mapped(mapped), Store::DmaBuf { fd, .. }) => {
                // The old one goes first: both together may not fit.
                *mapped = None;
                let fd: BorrowedFd<'_> = std::os::fd::AsFd::as_fd(fd);
                *mapped = Some(self.device.import_resident(DomainId(0), fd)?);
                Ok(())
            }
            (Memory::Copied(_) | Memory::Mapped(_), _) => unreachable!("one backing for all"),
        }
    }
}

/// Where a weight can go.
enum Victim {
    Slot(usize),
    /// There may be one slot more.
    New,
    None,
}

impl State {
    fn victim(&self, options: &ResidencyOptions) -> Victim {
        let free = |slot: &(usize, &Slot)| slot.1.users == 0 && !slot.1.filling;
        let empty = self.slots.iter().enumerate().find(|slot| free(slot) && slot.1.holds.is_none());
        if let Some((slot, _)) = empty {
            return Victim::Slot(slot);
        }
        // Two at least: one that is used, and one that is brought in.
        let most = (options.window_bytes / self.slot_bytes.max(1)).max(1);
        if (self.slots.len() as u64) < most {
            return Victim::New;
        }
        let oldest = self.slots.iter().enumerate().filter(free).min_by_key(|(_, slot)| slot.used_at);
        oldest.map_or(Victim::None, |(slot, _)| Victim::Slot(slot))
    }

    /// A weight is in a slot.
    fn found(&mut self, id: Id, slot: usize, need: Need, waited: bool) -> Brought {
        self.clock += 1;
        let place = &mut self.slots[slot];
        let streamed = self.weights.get_mut(&id).expect("the slot holds it");
        if need == Need::Now {
            place.users += 1;
            place.used_at = self.clock;
            let ahead = std::mem::take(&mut streamed.ahead);
            if waited && !ahead {
                self.counters.misses += 1;
            } else {
                self.counters.hits += 1;
                self.counters.prefetched += u64::from(ahead);
            }
        } else {
            // Not thrown out before its use.
            place.used_at = self.clock;
        }
        (slot, Arc::clone(&place.memory), streamed.then)
    }
}

/// Room for the packed bytes of a weight.
#[derive(Debug)]
pub(crate) enum Room {
    Resident(DmaBuffer),
    Ram(Vec<u8>),
    DmaBuf { bytes: u64, buffer: HeapBuffer },
}

impl Room {
    /// The bytes to fill.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Resident(buffer) => buffer.host_mut(),
            Self::Ram(bytes) => bytes,
            Self::DmaBuf { buffer, bytes } => &mut buffer.host_mut()[..*bytes as usize],
        }
    }
}

/// Where a weight is.
#[derive(Debug)]
pub(crate) enum Place {
    Resident(ResidentBuffer),
    /// In device memory, where its bytes may still be missing.
    Uploading(Upload),
    Streamed(Lease),
}

/// The right to a streamed weight's place in RAM.
#[derive(Debug)]
pub(crate) struct Lease {
    residency: Arc<Residency>,
    id: Id,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.residency.inside.state.lock();
        // A thread may be filling a slot with it.
        while let Some(slot) = state.weights.get(&self.id).and_then(|streamed| streamed.slot)
            && state.slots[slot].filling
        {
            self.residency.inside.changed.wait(&mut state);
        }
        let Some(gone) = state.weights.remove(&self.id) else { return };
        state.counters.weights -= 1;
        state.counters.bytes -= gone.store.bytes();
        if let Some(slot) = gone.slot {
            state.slots[slot].holds = None;
        }
        if state.weights.is_empty() {
            // Nothing is streamed any more: the window goes back.
            let slots = std::mem::take(&mut state.slots);
            state.slot_bytes = 0;
            drop(state);
            drop(slots);
        }
    }
}

impl Place {
    /// Makes sure that the weight is in device memory while the pin lives.
    pub(crate) fn pin(&self) -> Result<Pinned<'_>> {
        match self {
            Self::Resident(buffer) => Ok(Pinned::Resident(buffer)),
            Self::Uploading(upload) => upload.buffer().map(Pinned::Resident),
            Self::Streamed(lease) => lease.residency.pin(lease.id).map(Pinned::Streamed),
        }
    }
}
