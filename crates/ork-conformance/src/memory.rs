// SPDX-License-Identifier: MIT OR Apache-2.0
//! The buffers of a case at their recorded addresses.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use ork_isa::Iova;
use ork_sim::{Access, Bus, BusFault, Span};

use crate::Buffer;

const PAGE: u64 = 4096;
/// Bytes that the buffers of one case may have together; recorded ones stay below 32 MB.
const BYTES_MAX: u64 = 1 << 30;

/// Buffers by base address. Mappings are whole pages, zero at first.
#[derive(Debug)]
pub(crate) struct Memory {
    buffers: RwLock<BTreeMap<u64, Vec<u8>>>,
}

impl Memory {
    /// Maps the buffers; says in words what is wrong with them.
    pub(crate) fn map(buffers: &[Buffer]) -> Result<Self, String> {
        let mut map: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut total = 0u64;
        for buffer in buffers {
            let (base, id) = (u64::from(buffer.iova.0), &buffer.id);
            let size = buffer
                .size
                .checked_next_multiple_of(PAGE)
                .filter(|size| *size > 0 && base + size <= 1 << 32)
                .ok_or_else(|| format!("buffer {id} does not lie inside the 32-bit window"))?;
            total += size;
            if total > BYTES_MAX {
                return Err(format!("the buffers have more than {BYTES_MAX} bytes together"));
            }
            let before = map.range(..base + size).next_back();
            if before.is_some_and(|(other, bytes)| other + bytes.len() as u64 > base) {
                return Err(format!("buffer {id} overlaps another one"));
            }
            map.insert(base, vec![0; size as usize]);
        }
        Ok(Self { buffers: RwLock::new(map) })
    }

    /// The buffers that a range touches: base, start in the buffer, length.
    fn parts(
        buffers: &BTreeMap<u64, Vec<u8>>,
        iova: Iova,
        len: u64,
        access: Access,
    ) -> Result<Vec<(u64, usize, usize)>, BusFault> {
        let mut parts = Vec::new();
        let (mut at, end) = (u64::from(iova.0), u64::from(iova.0) + len);
        while at < end {
            let fault = || BusFault { iova: Iova(at as u32), len, access };
            let (base, bytes) = buffers.range(..=at).next_back().ok_or_else(fault)?;
            let room =
                (base + bytes.len() as u64).checked_sub(at).filter(|room| *room > 0).ok_or_else(fault)?;
            let run = room.min(end - at);
            parts.push((*base, (at - base) as usize, run as usize));
            at += run;
        }
        Ok(parts)
    }
}

impl Bus for Memory {
    fn read(&self, iova: Iova, len: u64) -> Result<Span<'_>, BusFault> {
        let buffers = self.buffers.read().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Vec::new();
        for (base, start, run) in Self::parts(&buffers, iova, len, Access::Read)? {
            bytes.extend_from_slice(&buffers[&base][start..start + run]);
        }
        Ok(Span::new(bytes))
    }

    fn write(&self, iova: Iova, data: &[u8]) -> Result<(), BusFault> {
        let mut buffers = self.buffers.write().unwrap_or_else(PoisonError::into_inner);
        let mut rest = data;
        for (base, start, run) in Self::parts(&buffers, iova, data.len() as u64, Access::Write)? {
            let (now, later) = rest.split_at(run);
            if let Some(bytes) = buffers.get_mut(&base) {
                bytes[start..start + run].copy_from_slice(now);
            }
            rest = later;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(id: &str, iova: u32, size: u64) -> Buffer {
        Buffer { id: id.into(), role: String::new(), iova: Iova(iova), size }
    }

    #[test]
    fn neighbours_are_one_range_and_gaps_fault() {
        let memory =
            Memory::map(&[buffer("b", 0x2000, 4096), buffer("a", 0x1000, 100), buffer("c", 0x4000, 1)])
                .unwrap();
        memory.write(Iova(0x1FFE), &[1, 2, 3]).unwrap();
        assert_eq!(*memory.read(Iova(0x1FFD), 5).unwrap(), [0, 1, 2, 3, 0]);
        let fault = memory.write(Iova(0x2FFF), &[9, 9]).unwrap_err();
        assert_eq!((fault.iova, fault.access), (Iova(0x3000), Access::Write));
        assert_eq!(*memory.read(Iova(0x2FFF), 1).unwrap(), [0], "nothing is stored then");
        assert!(memory.read(Iova(0xFFF), 1).is_err());
        assert!(memory.read(Iova(0x4FFF), 2).is_err());
    }

    #[test]
    fn impossible_buffers_are_refused() {
        for (buffers, words) in [
            (vec![buffer("x", 0xFFFF_F000, 4097)], "32-bit window"),
            (vec![buffer("x", 0, 0)], "32-bit window"),
            (vec![buffer("x", 0, u64::MAX)], "32-bit window"),
            (vec![buffer("x", 0, 1 << 30), buffer("y", 1 << 31, 1)], "bytes together"),
            (vec![buffer("x", 0x1000, 1), buffer("y", 0x1800, 1)], "y overlaps"),
            (vec![buffer("x", 0x1800, 1), buffer("y", 0x1000, 1)], "y overlaps"),
        ] {
            let error = Memory::map(&buffers).unwrap_err();
            assert!(error.contains(words), "{words:?} is missing in {error:?}");
        }
        assert!(Memory::map(&[buffer("x", 0xFFFF_F000, 4096)]).is_ok());
    }
}
