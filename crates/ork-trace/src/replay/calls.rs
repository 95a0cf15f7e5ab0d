// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls, with everything in them translated that the device gives out.

use std::collections::HashMap;
use std::sync::Arc;

use ork_drm::uapi as drm;
use ork_drm::{Errno, Transport};
use ork_rknpu::uapi as rknpu;
use ork_rocket::uapi as rocket;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{DifferenceKind, Replay};
use crate::error::ReplayError;
use crate::event::{Nested, limit};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Driver {
    Rknpu,
    Rocket,
    None,
}

/// An open file of the replay: what the numbers of the trace mean here.
pub(super) struct File {
    pub(super) device: Arc<dyn Transport>,
    handles: HashMap<u32, u32>,
    objects: HashMap<u64, u64>,
    offsets: HashMap<u64, u64>,
}

impl File {
    pub(super) fn new(device: Arc<dyn Transport>) -> Self {
        Self { device, handles: HashMap::new(), objects: HashMap::new(), offsets: HashMap::new() }
    }

    pub(super) fn offset(&self, recorded: u64) -> Option<u64> {
        self.offsets.get(&recorded).copied()
    }

    /// A handle that the trace does not know stays what it is: the call failed then, and will.
    fn handle(&self, recorded: u32) -> u32 {
        self.handles.get(&recorded).copied().unwrap_or(recorded)
    }

    fn issue<A: IntoBytes + FromBytes + Immutable>(
        &self,
        request: u32,
        argument: &mut A,
    ) -> Result<(), Errno> {
        // SAFETY: of all requests that are issued only a rocket submit holds addresses; those are of arrays that
        // `Jobs` keeps alive, with the counts beside them.
        unsafe { self.device.ioctl(request, argument.as_mut_bytes()) }
    }
}

/// A call of the trace.
pub(super) struct Recorded {
    pub(super) file: u32,
    pub(super) request: u32,
    pub(super) errno: i32,
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    pub(super) nested: Vec<Nested>,
}

fn parse<T: FromBytes + IntoBytes>(bytes: &[u8]) -> T {
    let mut value = T::new_zeroed();
    let common = bytes.len().min(size_of::<T>());
    value.as_mut_bytes()[..common].copy_from_slice(&bytes[..common]);
    value
}

/// Largest filler: the whole address space.
const FILLER_BYTES_MAX: u64 = 1 << 32;

impl Replay<'_> {
    pub(super) fn call(&mut self, recorded: &Recorded) -> Result<(), ReplayError> {
        let no_file = self.inconsistent("a file that is not open");
        let mut file = self.files.remove(&recorded.file).ok_or(no_file)?;
        let result = match (self.driver, drm::number(recorded.request)) {
            (_, 0x09) => self.gem_close(&mut file, recorded),
            (Driver::Rknpu, number) => self.rknpu(&mut file, number, recorded),
            (Driver::Rocket, number) => self.rocket(&mut file, number, recorded),
            (Driver::None, _) => Ok(false),
        };
        self.files.insert(recorded.file, file);
        if result? {
            self.report.calls += 1;
        } else {
            self.report.skipped += 1;
        }
        Ok(())
    }

    /// Compares outcomes. `Ok(true)` when the rest of the call can be looked at.
    fn same_outcome(
        &mut self,
        recorded: &Recorded,
        call: &'static str,
        now: Result<(), Errno>,
        needed: bool,
    ) -> Result<bool, ReplayError> {
        let code = now.err().map_or(0, |errno| errno.0);
        match now {
            Err(source) if needed && recorded.errno == 0 => {
                Err(ReplayError::Call { event: self.report.events, call, source })
            }
            _ if code != recorded.errno => {
                self.report.note(DifferenceKind::Outcome { call, recorded: recorded.errno, now: code });
                Ok(false)
            }
            result => Ok(result.is_ok()),
        }
    }

    fn gem_close(&mut self, file: &mut File, recorded: &Recorded) -> Result<bool, ReplayError> {
        let mut close: drm::DrmGemClose = parse(&recorded.input);
        let name = close.handle;
        close.handle = file.handle(name);
        let result = file.issue(drm::GEM_CLOSE, &mut close);
        if self.same_outcome(recorded, "GEM_CLOSE", result, false)? {
            file.handles.remove(&name);
        }
        Ok(true)
    }

    fn rknpu(&mut self, file: &mut File, number: u8, recorded: &Recorded) -> Result<bool, ReplayError> {
        match number {
            rknpu::number::MEM_CREATE => self.rknpu_create(file, recorded)?,
            rknpu::number::MEM_MAP => {
                let mut map: rknpu::RknpuMemMap = parse(&recorded.input);
                map.handle = file.handle(map.handle);
                let result = file.issue(rknpu::MEM_MAP, &mut map);
                if self.same_outcome(recorded, "MEM_MAP", result, true)? {
                    let old: rknpu::RknpuMemMap = parse(&recorded.output);
                    file.offsets.insert(old.offset, map.offset);
                }
            }
            rknpu::number::MEM_DESTROY => {
                let mut destroy: rknpu::RknpuMemDestroy = parse(&recorded.input);
                let name = destroy.handle;
                destroy.handle = file.handle(name);
                let result = file.issue(rknpu::MEM_DESTROY, &mut destroy);
                if self.same_outcome(recorded, "MEM_DESTROY", result, false)? {
                    file.handles.remove(&name);
                }
            }
            rknpu::number::MEM_SYNC => {
                let mut sync: rknpu::RknpuMemSync = parse(&recorded.input);
                // An address that the trace does not know is none here.
                sync.obj_addr = file.objects.get(&sync.obj_addr).copied().unwrap_or(0);
                let result = file.issue(rknpu::MEM_SYNC, &mut sync);
                self.same_outcome(recorded, "MEM_SYNC", result, false)?;
            }
            rknpu::number::SUBMIT => {
                let mut submit: rknpu::RknpuSubmit = parse(&recorded.input);
                submit.task_obj_addr = file.objects.get(&submit.task_obj_addr).copied().unwrap_or(0);
                let wait = rknpu::job::NONBLOCK | rknpu::job::FENCE_IN | rknpu::job::FENCE_OUT;
                submit.flags &= !wait;
                submit.fence_fd = -1;
                let result = file.issue(rknpu::SUBMIT, &mut submit);
                self.report.submits += 1;
                self.same_outcome(recorded, "SUBMIT", result, false)?;
            }
            rknpu::number::ACTION => {
                let mut action: rknpu::RknpuAction = parse(&recorded.input);
                if action.flags == rknpu::action::SET_PROC_NICE {
                    return Ok(false);
                }
                let result = file.issue(rknpu::ACTION, &mut action);
                self.same_outcome(recorded, "ACTION", result, false)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn rknpu_create(&mut self, file: &mut File, recorded: &Recorded) -> Result<(), ReplayError> {
        let input: rknpu::RknpuMemCreate = parse(&recorded.input);
        let old: rknpu::RknpuMemCreate = parse(&recorded.output);
        let create = |file: &File, size: u64, handle: u32| {
            let mut made = rknpu::RknpuMemCreate { size, handle, ..input };
            file.issue(rknpu::MEM_CREATE, &mut made).map(|()| made)
        };
        let destroy = |file: &File, handle: u32| {
            let mut destroy = rknpu::RknpuMemDestroy { handle, ..Default::default() };
            file.issue(rknpu::MEM_DESTROY, &mut destroy)
        };
        let mut made = create(file, input.size, file.handle(input.handle));
        if let (Ok(first), 0, 0) = (&made, recorded.errno, input.handle) {
            let above = first.dma_addr.saturating_sub(old.dma_addr);
            if above != 0 && above < FILLER_BYTES_MAX && destroy(file, first.handle).is_ok() {
                // Whatever lay above on the recorded board; it stays for the rest of the replay.
                if create(file, above, 0).is_ok() {
                    made = create(file, input.size, 0);
                }
            }
        }
        let result = made.map(|_| ());
        if self.same_outcome(recorded, "MEM_CREATE", result, true)?
            && let Ok(made) = made
        {
            if made.dma_addr != old.dma_addr {
                let (event, wanted, given) = (self.report.events, old.dma_addr, made.dma_addr);
                return Err(ReplayError::Address { event, wanted, given });
            }
            file.handles.insert(old.handle, made.handle);
            file.objects.insert(old.obj_addr, made.obj_addr);
        }
        Ok(())
    }

    fn rocket(&mut self, file: &mut File, number: u8, recorded: &Recorded) -> Result<bool, ReplayError> {
        match number {
            rocket::number::CREATE_BO => {
                let mut made: rocket::RocketCreateBo = parse(&recorded.input);
                let old: rocket::RocketCreateBo = parse(&recorded.output);
                let result = file.issue(rocket::CREATE_BO, &mut made);
                if self.same_outcome(recorded, "CREATE_BO", result, true)? {
                    if made.dma_address != old.dma_address {
                        let (event, wanted, given) = (self.report.events, old.dma_address, made.dma_address);
                        return Err(ReplayError::Address { event, wanted, given });
                    }
                    file.handles.insert(old.handle, made.handle);
                    file.offsets.insert(old.offset, made.offset);
                }
            }
            rocket::number::FINI_BO => {
                let mut fini: rocket::RocketFiniBo = parse(&recorded.input);
                fini.handle = file.handle(fini.handle);
                let result = file.issue(rocket::FINI_BO, &mut fini);
                self.same_outcome(recorded, "FINI_BO", result, false)?;
            }
            rocket::number::PREP_BO => {
                // How often a program looked in vain depends on speed.
                if matches!(Errno(recorded.errno), Errno::EBUSY | Errno::ETIMEDOUT | Errno::EINTR) {
                    return Ok(false);
                }
                let mut prep: rocket::RocketPrepBo = parse(&recorded.input);
                prep.handle = file.handle(prep.handle);
                prep.timeout_ns = i64::MAX;
                let result = file.issue(rocket::PREP_BO, &mut prep);
                self.same_outcome(recorded, "PREP_BO", result, false)?;
            }
            rocket::number::SUBMIT => {
                let mut submit: rocket::RocketSubmit = parse(&recorded.input);
                let Some(jobs) = Jobs::of(&submit, &recorded.nested, file) else {
                    // The program gave addresses of nothing: there is nothing to give again.
                    return Ok(false);
                };
                submit.jobs = jobs.address();
                submit.job_struct_size =
                    if jobs.is_short { 0 } else { size_of::<rocket::RocketJob>() as u32 };
                let result = file.issue(rocket::SUBMIT, &mut submit);
                drop(jobs);
                self.report.submits += 1;
                self.same_outcome(recorded, "SUBMIT", result, false)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The arrays of a rocket submit, at their new addresses.
struct Jobs {
    jobs: Vec<rocket::RocketJob>,
    _tasks: Vec<Vec<u8>>,
    _handles: Vec<Vec<u32>>,
    /// The recorded struct size was too small, and has to be again.
    is_short: bool,
}

impl Jobs {
    fn of(submit: &rocket::RocketSubmit, nested: &[Nested], file: &File) -> Option<Self> {
        let piece = |address: u64, len: u64| -> Option<&[u8]> {
            let fits = |piece: &&Nested| piece.address == address && piece.bytes.len() as u64 >= len;
            nested.iter().find(fits).map(|piece| &piece.bytes[..len as usize])
        };
        let mut out = Self { jobs: Vec::new(), _tasks: Vec::new(), _handles: Vec::new(), is_short: false };
        let stride = submit.job_struct_size;
        out.is_short = (stride as usize) < size_of::<rocket::RocketJob>();
        if out.is_short || submit.job_count == 0 || submit.reserved != 0 {
            return Some(out);
        }
        let len = u64::from(stride) * u64::from(submit.job_count);
        if len > limit::PIECE_BYTES {
            return None;
        }
        for job in piece(submit.jobs, len)?.chunks_exact(stride as usize) {
            let mut job: rocket::RocketJob = parse(job);
            let len = u64::from(job.task_count) * u64::from(job.task_struct_size);
            let tasks = if len == 0 { Vec::new() } else { piece(job.tasks, len)?.to_vec() };
            job.tasks = tasks.as_ptr().expose_provenance() as u64;
            out._tasks.push(tasks);
            for (list, count) in [
                (&mut job.in_bo_handles, job.in_bo_handle_count),
                (&mut job.out_bo_handles, job.out_bo_handle_count),
            ] {
                let len = u64::from(count) * 4;
                let bytes = if len == 0 { &[][..] } else { piece(*list, len)? };
                let handles: Vec<u32> = bytes
                    .chunks_exact(4)
                    .map(|one| file.handle(u32::from_le_bytes([one[0], one[1], one[2], one[3]])))
                    .collect();
                *list = handles.as_ptr().expose_provenance() as u64;
                out._handles.push(handles);
            }
            out.jobs.push(job);
        }
        Some(out)
    }

    fn address(&self) -> u64 {
        self.jobs.as_ptr().expose_provenance() as u64
    }
}
