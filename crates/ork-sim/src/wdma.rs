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
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Atoms that a full group has in the data.
    pub(crate) atoms: usize,
    /// Atoms of a group that are written.
    pub(crate) emitted: usize,
    /// Atoms of all groups together; the last group may be short.
    pub(crate) total_atoms: usize,
}

impl Place {
    /// Reads the write DMA's registers. `atoms` is what a group has, `total_atoms` what all groups have.
    pub(crate) fn decode(view: View<'_>, dma_base: Iova, atoms: usize, total_atoms: usize) -> Self {
        let notch: dpu::DataCubeNotchAddr = view.get();
        let size_e = view.get::<dpu::BsOwCfg>().size_e_0() as usize;
        Self {
            base: u64::from(view.get::<dpu::DstBaseAddr>().dst_base_addr()) + u64::from(dma_base.0),
            surface: u64::from(view.get::<dpu::DstSurfStride>().dst_surf_stride()) * 16,
            group: u64::from(view.get::<dpu::SurfaceAdd>().surf_add()) * 16,
            notch: (u64::from(notch.notch_addr_0()), u64::from(notch.notch_addr_1())),
            width: view.get::<dpu::DataCubeWidth>().width() as usize + 1,
            height: view.get::<dpu::DataCubeHeight>().height() as usize + 1,
            atoms,
            emitted: (size_e + 1).min(atoms),
            total_atoms,
        }
    }

    /// First address, and the one behind the last.
    pub(crate) fn extent(&self) -> (u64, u64) {
        let last_group = self.groups().saturating_sub(1);
        let last_pixel =
            self.line(self.height - 1).max(self.line(self.height.min(2) - 1)) + (self.width as u64 - 1) * 16;
        let atoms = self.emitted.max(1) as u64 - 1;
        (self.base, self.base + last_group as u64 * self.group + atoms * self.surface + last_pixel + 16)
    }

    fn line(&self, h: usize) -> u64 {
        match h as u64 {
            0 => 0,
            h => (self.width as u64 + self.notch.0 + (h - 1) * (self.width as u64 + self.notch.1)) * 16,
        }
    }

    fn groups(&self) -> usize {
        self.total_atoms.div_ceil(self.atoms)
    }

    fn emitted_of(&self, g: usize) -> usize {
        self.emitted.min(self.total_atoms - g * self.atoms)
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
                let at = place.base + place.line(h) + w as u64 * 16;
                for g in 0..place.groups() {
                    let from = (g * pixels + pixel) * group_bytes;
                    let len = place.emitted_of(g) * ATOM;
                    run.push(at + g as u64 * place.group, &data[from..from + len])?;
                }
            }
        }
    } else {
        for g in 0..place.groups() {
            for e in 0..place.emitted_of(g) {
                let at = place.base + g as u64 * place.group + e as u64 * place.surface;
                for h in 0..place.height {
                    for w in 0..place.width {
                        let from = (g * pixels + h * place.width + w) * group_bytes + e * ATOM;
                        run.push(at + place.line(h) + w as u64 * 16, &data[from..from + ATOM])?;
                    }
                }
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
