// SPDX-License-Identifier: MIT OR Apache-2.0
//! Write DMA of the DPU (`isa.md` §5.3).

use ork_isa::Iova;
use ork_isa::regs::dpu;

use crate::cna::ATOM;
use crate::diagnosis::{Category, Site, Stop, hang};
use crate::pc::Machine;
use crate::regs::View;

/// Where the atoms go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) base: u64,
    /// Distance of the atoms of a group and of the groups, in bytes.
    pub(crate) surface: u64,
    pub(crate) group: u64,
    pub(crate) notch: (u64, u64),
    /// Distance of the pixels of a line, in bytes; lines lie apart in proportion.
    pub(crate) pixel: u64,
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Atoms that a full group has in the data.
    pub(crate) atoms: usize,
    /// Atoms of a group that are written in the first line, in those between, and in the last.
    pub(crate) emitted: [usize; 3],
    /// Atoms of all groups together; the last group may be short.
    pub(crate) total_atoms: usize,
}

impl Place {
    /// Reads the write DMA's registers. `atoms` is what a group has, `total_atoms` what all groups have.
    pub(crate) fn decode(view: View<'_>, dma_base: Iova, atoms: usize, total_atoms: usize) -> Self {
        let notch: dpu::DataCubeNotchAddr = view.get();
        let ow: dpu::BsOwCfg = view.get();
        let emitted =
            [ow.size_e_0(), ow.size_e_1(), ow.size_e_2()].map(|size_e| (size_e as usize + 1).min(atoms));
        Self {
            base: u64::from(view.get::<dpu::DstBaseAddr>().dst_base_addr()) + u64::from(dma_base.0),
            surface: u64::from(view.get::<dpu::DstSurfStride>().dst_surf_stride()) * 16,
            group: u64::from(view.get::<dpu::SurfaceAdd>().surf_add()) * 16,
            notch: (u64::from(notch.notch_addr_0()), u64::from(notch.notch_addr_1())),
            pixel: ATOM as u64,
            width: view.get::<dpu::DataCubeWidth>().width() as usize + 1,
            height: view.get::<dpu::DataCubeHeight>().height() as usize + 1,
            atoms,
            emitted,
            total_atoms,
        }
    }

    /// Depthwise int8 sums as int32 (`isa-notes.md` G-20).
    pub(crate) fn with_double_pixels(self) -> Self {
        Self { pixel: 2 * self.pixel, ..self }
    }

    /// The first pixel and the first four atoms (`isa-notes.md` G-13).
    pub(crate) fn one_tile(self) -> Self {
        Self { width: 1, height: 1, total_atoms: self.atoms.min(4), ..self }
    }

    /// First address, and the one behind the last.
    pub(crate) fn extent(&self) -> (u64, u64) {
        let last_group = self.groups().saturating_sub(1);
        let last_pixel = self.line(self.height - 1).max(self.line(self.height.min(2) - 1))
            + (self.width as u64 - 1) * self.pixel;
        let atoms = self.widest().max(1) as u64 - 1;
        (self.base, self.base + last_group as u64 * self.group + atoms * self.surface + last_pixel + 16)
    }

    fn line(&self, h: usize) -> u64 {
        match h as u64 {
            0 => 0,
            h => {
                (self.width as u64 + self.notch.0 + (h - 1) * (self.width as u64 + self.notch.1)) * self.pixel
            }
        }
    }

    fn groups(&self) -> usize {
        self.total_atoms.div_ceil(self.atoms)
    }

    /// Atoms of group `g` that line `h` writes.
    fn emitted_of(&self, g: usize, h: usize) -> usize {
        let line = match h {
            0 => 0,
            h if h + 1 == self.height => 2,
            _ => 1,
        };
        self.emitted[line].min(self.total_atoms - g * self.atoms)
    }

    /// The most atoms that a line writes of a group.
    fn widest(&self) -> usize {
        match self.height {
            1 => self.emitted[0],
            2 => self.emitted[0].max(self.emitted[2]),
            _ => self.emitted.into_iter().max().unwrap_or(0),
        }
    }
}

/// Collects neighbouring atoms into one bus access.
struct Run<'a, 'b> {
    machine: &'a mut Machine<'b>,
    site: Site,
    view: View<'a>,
    start: u64,
    bytes: Vec<u8>,
}

impl Run<'_, '_> {
    fn push(&mut self, address: u64, bytes: &[u8]) -> Result<(), Stop> {
        if address != self.start + self.bytes.len() as u64 {
            self.flush()?;
            self.start = address;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Stop> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let (start, len) = (self.start, self.bytes.len());
        let result = u32::try_from(start)
            .map_err(|_| "the address leaves the 32-bit window".to_owned())
            .and_then(|at| self.machine.store(Iova(at), &self.bytes).map_err(|e| e.to_string()));
        self.machine.stats.written_bytes += len as u64;
        self.bytes.clear();
        result.map_err(|what| {
            hang(
                self.site,
                Category::Resource,
                "write-fault",
                vec![
                    self.view.show::<dpu::DstBaseAddr>(),
                    self.view.show::<dpu::DstSurfStride>(),
                    self.view.show::<dpu::DataCubeNotchAddr>(),
                    self.view.show::<dpu::DataCubeChannel>(),
                    self.view.show::<dpu::SurfaceAdd>(),
                ],
                self.site.here(format!("the write DMA stores {len} bytes at {start:#010x}")),
                what,
                "isa.md §5.3, §13 rows 7 to 9",
            )
        })
    }
}

/// Writes `data`, which lies as `[group][pixel][atom of the group]`.
pub(crate) fn write(
    machine: &mut Machine<'_>,
    site: Site,
    view: View<'_>,
    place: Place,
    data: &[u8],
) -> Result<(), Stop> {
    let pixels = place.width * place.height;
    let group_bytes = place.atoms * ATOM;
    let mut run = Run { machine, site, view, start: 0, bytes: Vec::new() };
    // Atoms of a pixel are neighbours in the row-major form, pixels of a surface in the cube form.
    if place.surface == 16 {
        for h in 0..place.height {
            for w in 0..place.width {
                let pixel = h * place.width + w;
                let at = place.base + place.line(h) + w as u64 * place.pixel;
                for g in 0..place.groups() {
                    let from = (g * pixels + pixel) * group_bytes;
                    let len = place.emitted_of(g, h) * ATOM;
                    run.push(at + g as u64 * place.group, &data[from..from + len])?;
                }
            }
        }
    } else {
        for g in 0..place.groups() {
            for e in 0..place.widest() {
                let at = place.base + g as u64 * place.group + e as u64 * place.surface;
                for h in (0..place.height).filter(|h| e < place.emitted_of(g, *h)) {
                    for w in 0..place.width {
                        let from = (g * pixels + h * place.width + w) * group_bytes + e * ATOM;
                        run.push(at + place.line(h) + w as u64 * place.pixel, &data[from..from + ATOM])?;
                    }
                }
            }
        }
    }
    run.flush()
}

/// int16 sums with TP_ORG_EN: transposed, saturated to 8 or 16 bits (`isa-notes.md` C.3). `data` are int32 of groups
/// of 16 channels.
pub(crate) fn write_transposed(
    machine: &mut Machine<'_>,
    site: Site,
    view: View<'_>,
    data: &[u8],
    rows: usize,
    channels: usize,
) -> Result<(), Stop> {
    let base = u64::from(view.get::<dpu::DstBaseAddr>().dst_base_addr()) + u64::from(machine.dma_base.0);
    let wide = view.get::<dpu::WdmaSize0>().tp_precision() == 1;
    let sums = data.as_chunks::<4>().0;
    let mut run = Run { machine, site, view, start: 0, bytes: Vec::new() };
    for n in 0..channels {
        for m in 0..rows {
            let sum =
                sums.get((n / 16 * rows + m) * 16 + n % 16).map_or(0, |bytes| i32::from_le_bytes(*bytes));
            let quad = n / 4;
            let slot = (4 * m + quad % 4 + quad / 4 * 4 * rows + n % 4 * 16 * rows) as u64;
            if wide {
                let value = sum.clamp(i16::MIN.into(), i16::MAX.into()) as i16;
                run.push(base + 2 * slot, &value.to_le_bytes())?;
            } else {
                let value = sum.clamp(i8::MIN.into(), i8::MAX.into()) as i8;
                run.push(base + slot, &value.to_le_bytes())?;
            }
        }
    }
    run.flush()
}

/// int4 rows without a write size (`isa-int4-sdp.md` §1.3): the blocks of every fourth line, in the order group,
/// line.
pub(crate) fn write_stream(
    machine: &mut Machine<'_>,
    site: Site,
    view: View<'_>,
    data: &[u8],
    lines: usize,
    groups: usize,
    block_bytes: usize,
) -> Result<(), Stop> {
    let (base, _) = stream_extent(view, machine.dma_base, lines, groups, block_bytes);
    let mut run = Run { machine, site, view, start: 0, bytes: Vec::new() };
    for g in 0..groups {
        for h in (0..lines).step_by(4) {
            let from = (g * lines + h) * block_bytes;
            let at = base + ((h + lines * g) * block_bytes) as u64;
            run.push(at, &data[from..from + block_bytes])?;
        }
    }
    run.flush()
}

/// First address that [`write_stream`] stores to, and the one behind the last.
pub(crate) fn stream_extent(
    view: View<'_>,
    dma_base: Iova,
    lines: usize,
    groups: usize,
    block_bytes: usize,
) -> (u64, u64) {
    let base = u64::from(view.get::<dpu::DstBaseAddr>().dst_base_addr()) + u64::from(dma_base.0);
    let last = (lines.max(1) - 1) / 4 * 4 + lines * (groups.max(1) - 1);
    (base, base + ((last + 1) * block_bytes) as u64)
}
