// SPDX-License-Identifier: MIT OR Apache-2.0
use std::ops::Range;

use serde::Serialize;

use crate::element::stored_bytes;
use crate::{Element, Format};

/// A layout that cannot exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// K or N is 0.
    #[error("a weight of {k} x {n} has no elements")]
    Empty {
        /// Rows of `B`.
        k: u32,
        /// Columns of `B`.
        n: u32,
    },
    /// Padding K or N leaves 32 bits.
    #[error("a dimension of {value} cannot be padded to a multiple of {multiple}")]
    TooLarge {
        /// The dimension.
        value: u32,
        /// What it must become a multiple of.
        multiple: u32,
    },
    /// A K slice is empty or not a multiple of the channel block.
    #[error("K slice {index} has {len} channels, which is not a positive multiple of {multiple}")]
    SliceLength {
        /// Which slice.
        index: usize,
        /// Its length.
        len: u32,
        /// The channel block.
        multiple: u32,
    },
    /// The K slices do not hold K, or the last of them holds padding only.
    #[error("the K slices hold {found} channels and K padded is {k_padded}")]
    SliceSum {
        /// Sum of the lengths.
        found: u64,
        /// K, padded.
        k_padded: u32,
    },
}

/// A piece of K that is multiplied by its own programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct KSlice {
    /// First channel.
    pub k0: u32,
    /// Channels, padding included: a multiple of the channel block.
    pub len: u32,
    /// Channels that carry data; the rest are zeros.
    pub real: u32,
    /// Where the slice begins in the weight buffer, in bytes.
    pub offset: u64,
}

/// Where the elements of `B` (K x N) lie in one contiguous buffer.
///
/// Order, outermost first: K slices, kernel groups, channel blocks, kernels of the group, channels of the block
/// (`isa.md` §4.1, captured from the vendor runtime; slices outermost is ours). So inside a slice the columns
/// `[n0, n1)` are contiguous whenever both ends are multiples of the kernel group, and any column segmentation
/// works from the same buffer. The layout does not depend on M.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct WeightLayout {
    format: Format,
    k: u32,
    n: u32,
    n_padded: u32,
    slices: Vec<KSlice>,
    bytes: u64,
}

/// Channel blocks handled together by the packer: 128 bytes of each row, so that a row is read in whole cache
/// lines although all 32 rows may compete for the same cache set.
const BLOCKS_AT_ONCE: usize = 4;

impl WeightLayout {
    /// A layout with these K slices; `slice_lens` are multiples of the channel block that together hold K. The last may
    /// be longer than K needs: some programs want a least depth, and zeros change no sum.
    ///
    /// # Errors
    /// [`LayoutError`] when K or N is 0 or cannot be padded, or when the slices do not cover K exactly once.
    pub fn new(format: Format, k: u32, n: u32, slice_lens: &[u32]) -> Result<Self, LayoutError> {
        if k == 0 || n == 0 {
            return Err(LayoutError::Empty { k, n });
        }
        let block = format.channel_block();
        let k_padded = padded(k, block)?;
        let n_padded = padded(n, format.kernel_group())?;
        let found = slice_lens.iter().map(|&len| u64::from(len)).sum();
        let last = slice_lens.last().map_or(0, |&len| u64::from(len));
        let useless = last > 0 && found - last >= u64::from(k);
        if found < u64::from(k_padded) || useless || found > u64::from(u32::MAX) {
            return Err(LayoutError::SliceSum { found, k_padded });
        }
        let (mut k0, mut offset) = (0, 0);
        let mut slices = Vec::with_capacity(slice_lens.len());
        for (index, &len) in slice_lens.iter().enumerate() {
            if len == 0 || len % block != 0 {
                return Err(LayoutError::SliceLength { index, len, multiple: block });
            }
            slices.push(KSlice { k0, len, real: len.min(k - k0), offset });
            k0 += len;
            // A weight beyond all address space has a size that says so.
            offset = offset.saturating_add(format.input_bytes(u64::from(len) * u64::from(n_padded)));
        }
        Ok(Self { format, k, n, n_padded, slices, bytes: offset })
    }

    /// A layout with all of K in one slice.
    ///
    /// # Errors
    /// As [`WeightLayout::new`].
    pub fn one_slice(format: Format, k: u32, n: u32) -> Result<Self, LayoutError> {
        Self::new(format, k, n, &[padded(k, format.channel_block())?])
    }

    /// Precisions.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Rows of `B`.
    #[must_use]
    pub fn k(&self) -> u32 {
        self.k
    }

    /// Columns of `B`.
    #[must_use]
    pub fn n(&self) -> u32 {
        self.n
    }

    /// Channels of all slices: K rounded up to the channel block, or to what the last slice wants.
    #[must_use]
    pub fn k_padded(&self) -> u32 {
        self.slices.last().map_or(0, |slice| slice.k0 + slice.len)
    }

    /// N rounded up to the kernel group.
    #[must_use]
    pub fn n_padded(&self) -> u32 {
        self.n_padded
    }

    /// The K slices, by rising channel.
    #[must_use]
    pub fn slices(&self) -> &[KSlice] {
        &self.slices
    }

    /// Kernel groups of a slice.
    #[must_use]
    pub fn kernel_groups(&self) -> u32 {
        self.n_padded / self.format.kernel_group()
    }

    /// Size of the whole buffer.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Byte offset of `B[k][n]`, padding included; of the byte that holds it, if it has half a byte.
    ///
    /// # Panics
    /// If `k` or `n` lies outside the padded matrix.
    #[must_use]
    pub fn offset(&self, k: u32, n: u32) -> u64 {
        let slice = &self.slices[self.slice_of(k)];
        slice.offset + self.offset_in_slice(slice, k - slice.k0, n)
    }

    /// Byte offset of the first element of column `n0` of a slice: what the weight DMA of a program starts at.
    ///
    /// # Panics
    /// If the slice does not exist or `n0` is not a multiple of the kernel group.
    #[must_use]
    pub fn segment_offset(&self, slice: usize, n0: u32) -> u64 {
        assert_eq!(n0 % self.format.kernel_group(), 0, "a segment starts at a kernel group");
        self.slices[slice].offset + self.offset_in_slice(&self.slices[slice], 0, n0)
    }

    /// Byte range of one kernel group of a slice.
    ///
    /// # Panics
    /// If the slice or the group does not exist.
    #[must_use]
    pub fn kernel_group_bytes(&self, slice: usize, group: u32) -> Range<u64> {
        assert!(group < self.kernel_groups(), "kernel group {group} of {}", self.kernel_groups());
        let start = self.segment_offset(slice, group * self.format.kernel_group());
        start..start + self.group_bytes(&self.slices[slice])
    }

    /// Writes output channel `n` (column `n` of `B`, K elements) into `packed`, zeros beyond K included.
    /// Channels may come in any order. [`WeightLayout::clear_padding`] takes care of channels beyond N.
    ///
    /// # Panics
    /// If `channel` does not hold K elements, `packed` not the whole layout, or `n` is not below N.
    pub fn pack_channel<T: Element>(&self, n: u32, channel: &[T], packed: &mut [u8]) {
        assert!(n < self.n, "channel {n} of {}", self.n);
        self.check::<T>(channel.len());
        self.check_whole(packed);
        let group = n / self.format.kernel_group();
        for (index, slice) in self.slices.iter().enumerate() {
            let range = host_range(self.kernel_group_bytes(index, group));
            self.scatter_channel(slice, n % self.format.kernel_group(), channel, &mut packed[range]);
        }
    }

    /// Reads output channel `n` back.
    ///
    /// # Panics
    /// As [`WeightLayout::pack_channel`].
    pub fn unpack_channel<T: Element>(&self, n: u32, packed: &[u8], channel: &mut [T]) {
        assert!(n < self.n, "channel {n} of {}", self.n);
        self.check::<T>(channel.len());
        self.check_whole(packed);
        let block = self.format.channel_block();
        for slice in &self.slices {
            for k in (0..slice.real).step_by(block as usize) {
                let count = block.min(slice.real - k) as usize;
                let start = host(slice.offset + self.offset_in_slice(slice, k, n));
                let target = &mut channel[(slice.k0 + k) as usize..][..count];
                T::load(&packed[start..start + stored_bytes::<T>(count)], target);
            }
        }
    }

    /// Zeroes the channels between N and N padded.
    ///
    /// # Panics
    /// If `packed` does not hold the whole layout.
    pub fn clear_padding(&self, packed: &mut [u8]) {
        self.check_whole(packed);
        let row = host(self.format.input_bytes(self.format.channel_block().into()));
        let first = self.n % self.format.kernel_group();
        if first == 0 {
            return;
        }
        for index in 0..self.slices.len() {
            let range = host_range(self.kernel_group_bytes(index, self.kernel_groups() - 1));
            for block in packed[range].chunks_exact_mut(row * self.format.kernel_group() as usize) {
                block[first as usize * row..].fill(0);
            }
        }
    }

    /// Cuts the buffer into its kernel groups, each with one piece of memory per K slice, so that several threads
    /// can pack different groups at once.
    ///
    /// # Panics
    /// If `packed` does not hold the whole layout.
    pub fn kernel_groups_mut<'a>(&'a self, packed: &'a mut [u8]) -> Vec<KernelGroupMut<'a>> {
        self.check_whole(packed);
        let width = self.format.kernel_group();
        let mut groups: Vec<_> = (0..self.kernel_groups())
            .map(|group| {
                let n0 = group * width;
                let columns = n0..self.n.min(n0 + width);
                KernelGroupMut { layout: self, columns, slices: Vec::with_capacity(self.slices.len()) }
            })
            .collect();
        let mut rest = packed;
        for slice in &self.slices {
            for group in &mut groups {
                let (own, behind) = rest.split_at_mut(host(self.group_bytes(slice)));
                group.slices.push(own);
                rest = behind;
            }
        }
        groups
    }

    fn check<T: Element>(&self, elements: usize) {
        assert_eq!(elements as u64, u64::from(self.k), "one channel has K elements");
        assert_eq!(T::OPERAND, self.format.input(), "elements of {}", self.format);
    }

    fn check_whole(&self, packed: &[u8]) {
        assert_eq!(packed.len() as u64, self.bytes, "the whole weight buffer");
    }

    fn slice_of(&self, k: u32) -> usize {
        assert!(k < self.k_padded(), "channel {k} of {}", self.k_padded());
        self.slices.partition_point(|slice| slice.k0 + slice.len <= k)
    }

    fn group_bytes(&self, slice: &KSlice) -> u64 {
        self.format.input_bytes(u64::from(slice.len) * u64::from(self.format.kernel_group()))
    }

    /// `isa.md` §4.1 inside one slice; `k` counts from the slice's first channel.
    fn offset_in_slice(&self, slice: &KSlice, k: u32, n: u32) -> u64 {
        assert!(n < self.n_padded, "column {n} of {}", self.n_padded);
        let (group, block) = (self.format.kernel_group(), self.format.channel_block());
        let tile = u64::from(n / group) * u64::from(slice.len / block) + u64::from(k / block);
        let element = tile * u64::from(group * block) + u64::from((n % group) * block + k % block);
        element * u64::from(self.format.input().bits()) / 8
    }

    /// Writes one channel into the group's memory of one slice.
    fn scatter_channel<T: Element>(&self, slice: &KSlice, row: u32, channel: &[T], group: &mut [u8]) {
        let block = self.format.channel_block() as usize;
        let row_bytes = stored_bytes::<T>(block);
        let tile_bytes = row_bytes * self.format.kernel_group() as usize;
        let source = &channel[slice.k0 as usize..][..slice.real as usize];
        let mut targets = group.chunks_exact_mut(tile_bytes).map(|tile| {
            let start = row as usize * row_bytes;
            &mut tile[start..start + row_bytes]
        });
        let whole = source.chunks_exact(block);
        let tail = whole.remainder();
        for (elements, target) in whole.zip(&mut targets) {
            T::store(elements, target);
        }
        for (index, target) in targets.enumerate() {
            let elements = if index == 0 { tail } else { &[] };
            let (data, zeros) = target.split_at_mut(stored_bytes::<T>(elements.len()));
            T::store(elements, data);
            zeros.fill(0);
        }
    }
}

/// One kernel group's memory, a piece for each K slice. Groups do not overlap, so they can be packed at once.
#[derive(Debug)]
pub struct KernelGroupMut<'a> {
    layout: &'a WeightLayout,
    columns: Range<u32>,
    slices: Vec<&'a mut [u8]>,
}

impl KernelGroupMut<'_> {
    /// The channels of the group that exist (fewer than a whole group only at the end of N).
    #[must_use]
    pub fn columns(&self) -> Range<u32> {
        self.columns.clone()
    }

    /// Packs the whole group: one channel of K elements for each of [`KernelGroupMut::columns`]. Every byte of the
    /// group is written; channels beyond N become zeros.
    ///
    /// # Panics
    /// If the number of channels, their lengths or the element type do not fit the layout.
    pub fn pack<T: Element>(&mut self, channels: &[&[T]]) {
        let layout = self.layout;
        assert_eq!(channels.len(), self.columns.len(), "one channel for each column of the group");
        for channel in channels {
            layout.check::<T>(channel.len());
        }
        let (kernels, block) =
            (layout.format.kernel_group() as usize, layout.format.channel_block() as usize);
        let row_bytes = stored_bytes::<T>(block);
        let tile_bytes = kernels * row_bytes;
        for (slice, memory) in layout.slices.iter().zip(&mut self.slices) {
            let whole_blocks = slice.real as usize / block;
            let whole_bytes = whole_blocks * tile_bytes;
            let strips = memory[..whole_bytes].chunks_mut(tile_bytes * BLOCKS_AT_ONCE);
            for (strip, target) in strips.enumerate() {
                let blocks = target.len() / tile_bytes;
                let k0 = slice.k0 as usize + strip * BLOCKS_AT_ONCE * block;
                for (row, channel) in channels.iter().enumerate() {
                    let source = &channel[k0..k0 + blocks * block];
                    for (index, elements) in source.chunks_exact(block).enumerate() {
                        let start = index * tile_bytes + row * row_bytes;
                        T::store(elements, &mut target[start..start + row_bytes]);
                    }
                }
                for tile in target.chunks_exact_mut(tile_bytes) {
                    tile[channels.len() * row_bytes..].fill(0);
                }
            }
            let tail = &mut memory[whole_bytes..];
            tail.fill(0);
            let (from, to) = (slice.k0 as usize + whole_blocks * block, (slice.k0 + slice.real) as usize);
            for (row, channel) in channels.iter().enumerate().take_while(|_| from < to) {
                let elements = &channel[from..to];
                T::store(elements, &mut tail[row * row_bytes..][..stored_bytes::<T>(elements.len())]);
            }
        }
    }

    /// Packs one channel of the group; the others are left as they are.
    ///
    /// # Panics
    /// If `n` is not one of [`KernelGroupMut::columns`] or the channel does not fit the layout.
    pub fn pack_channel<T: Element>(&mut self, n: u32, channel: &[T]) {
        assert!(self.columns.contains(&n), "channel {n} is not in {:?}", self.columns);
        self.layout.check::<T>(channel.len());
        for (slice, memory) in self.layout.slices.iter().zip(&mut self.slices) {
            self.layout.scatter_channel(slice, n - self.columns.start, channel, memory);
        }
    }
}

fn padded(value: u32, multiple: u32) -> Result<u32, LayoutError> {
    value.checked_next_multiple_of(multiple).ok_or(LayoutError::TooLarge { value, multiple })
}

/// A size that indexes host memory.
pub(crate) fn host(bytes: u64) -> usize {
    usize::try_from(bytes).expect("buffers fit the address space of a 64-bit host")
}

pub(crate) fn host_range(bytes: Range<u64>) -> Range<usize> {
    host(bytes.start)..host(bytes.end)
}
