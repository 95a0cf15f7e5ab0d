// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lookup tables of the DPU: storage and write port (`isa-int4-sdp.md` §3.5, `isa-notes.md` NS.1).

use ork_isa::Register;
use ork_isa::regs::dpu;

use crate::core::round_shift;
use crate::diagnosis::{Origin, Site, Stop, unmodelled};
use crate::options::{Between, LutBelow, LutIndex, LutSelect, Silicon};
use crate::regs::View;

/// Entries of a table.
pub(crate) const ENTRIES: usize = 513;

/// Tables LE (0) and LO (1) with their access port. They are outside the register groups and survive jobs.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) entries: [[i16; ENTRIES]; 2],
    /// Which word wrote the table last.
    pub(crate) origin: [Option<Origin>; 2],
    /// The tables as they were when the present job began.
    pub(crate) before_job: [[i16; ENTRIES]; 2],
    access: dpu::LutAccessCfg,
    address: usize,
}

impl Tables {
    pub(crate) fn reset() -> Self {
        Self {
            entries: [[0; ENTRIES]; 2],
            origin: [None; 2],
            before_job: [[0; ENTRIES]; 2],
            access: dpu::LutAccessCfg(0),
            address: 0,
        }
    }

    pub(crate) fn begin_job(&mut self) {
        self.before_job = self.entries;
    }

    /// A word for the DPU passes by. Data count only after an access word with the write bit: every plain
    /// program writes 0 to both registers (`isa-int4-sdp.md` §3.3 "LUT port rule").
    pub(crate) fn port(&mut self, offset: u16, value: u32, site: Site) {
        if offset == dpu::LutAccessCfg::DESC.offset {
            self.access = dpu::LutAccessCfg(value);
            self.address = self.access.lut_addr() as usize;
        } else if offset == dpu::LutAccessData::DESC.offset && self.access.lut_access_type() == 1 {
            let table = self.access.lut_table_id() as usize;
            if let Some(entry) = self.entries[table].get_mut(self.address) {
                *entry = (value as u16).cast_signed();
                self.origin[table] = Some(site.origin());
            }
            self.address = self.address.saturating_add(1);
        }
    }
}

/// The registers that say how a table is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evaluation {
    start: [i64; 2],
    /// Index from which LO goes on by its slope.
    lo_end: i64,
    select: [u32; 2],
    uflow: (i64, u32),
    oflow: (i64, u32),
    between: Between,
    bounded: bool,
    select_by: LutSelect,
    /// Float mode rounds the index before the table is read.
    rounded: bool,
}

impl Evaluation {
    /// Reads the registers; refuses modes that no known program uses.
    pub(crate) fn decode(site: Site, view: View<'_>, silicon: &Silicon) -> Result<Self, Stop> {
        let cfg: dpu::LutCfg = view.get();
        let info: dpu::LutInfo = view.get();
        let select = [info.lut_le_index_select(), info.lut_lo_index_select()];
        // HYBRID and OFLOW priority LO, UFLOW priority LE, multiplexer 2.
        if cfg.0 != 0x68 || select.iter().any(|select| *select > 20) {
            return Err(unmodelled(
                site,
                "lut-mode",
                vec![view.show::<dpu::LutCfg>(), view.show::<dpu::LutInfo>()],
                "every known program reads its tables with LUT_CFG 0x68, linear, index select up to 5",
                "this one does not",
                "isa-int4-sdp.md §3.5",
            ));
        }
        let signed = |bits: u32| i64::from((bits as u16).cast_signed());
        let le_scale: dpu::LutLeSlopeScale = view.get();
        let le_shift: dpu::LutLeSlopeShift = view.get();
        let lo_scale: dpu::LutLoSlopeScale = view.get();
        let lo_shift: dpu::LutLoSlopeShift = view.get();
        Ok(Self {
            start: [
                i64::from(view.get::<dpu::LutLeStart>().lut_le_start().cast_signed()),
                i64::from(view.get::<dpu::LutLoStart>().lut_lo_start().cast_signed()),
            ],
            lo_end: i64::from(view.get::<dpu::LutLoEnd>().lut_lo_end().cast_signed()),
            select,
            uflow: (signed(le_scale.lut_le_slope_uflow_scale()), le_shift.lut_le_slope_uflow_shift()),
            oflow: (signed(lo_scale.lut_lo_slope_oflow_scale()), lo_shift.lut_lo_slope_oflow_shift()),
            between: silicon.lut_between,
            bounded: silicon.lut_below == LutBelow::NotNegative,
            select_by: silicon.lut_select,
            rounded: silicon.lut_index == LutIndex::Rounded,
        })
    }

    /// The value at an index: the sign of the index chooses the table, entries are joined by integer lines that
    /// floor (NS-2, NS-3); beyond the ends the slopes go on (NS-4, NS-34).
    /// `input` is what came into BN.
    pub(crate) fn value(&self, tables: &[[i16; ENTRIES]; 2], input: f64, index: i64) -> i64 {
        self.at(tables, self.side(input, index as f64), index, 0.0)
    }

    /// The same for an index of float mode.
    pub(crate) fn float_value(&self, tables: &[[i16; ENTRIES]; 2], input: f32, index: f32) -> i64 {
        // Rounded, the index is an integer before the table is read (NS-1).
        let index = match index {
            nan if nan.is_nan() => 0.0,
            index if self.rounded => index.round_ties_even(),
            index => index,
        };
        let side = self.side(f64::from(input), f64::from(index));
        let part = if index.is_finite() { f64::from(index - index.floor()) } else { 0.0 };
        self.at(tables, side, index.floor() as i64, part)
    }

    fn side(&self, input: f64, index: f64) -> usize {
        usize::from(match self.select_by {
            LutSelect::IndexSign => index >= 0.0,
            LutSelect::InputSign => input >= 0.0,
        })
    }

    /// `part` is what a real index has beyond its integer.
    fn at(&self, tables: &[[i16; ENTRIES]; 2], side: usize, index: i64, part: f64) -> i64 {
        let (table, start, select) = (&tables[side], self.start[side], self.select[side]);
        let offset = index.saturating_sub(start);
        if offset < 0 {
            // Only the lower end of LE is known; the lower end of LO has no program.
            let edge = i64::from(table[0]);
            let value = edge + (offset.saturating_mul(self.uflow.0) >> self.uflow.1);
            return if edge >= 0 && self.bounded { value.max(0) } else { value };
        }
        let entry = (offset >> select) as usize;
        let last = i64::from(table[ENTRIES - 1]);
        // LE has no program beyond its last entry.
        if side == 1 && index > self.lo_end {
            return last + (index.saturating_sub(self.lo_end).saturating_mul(self.oflow.0) >> self.oflow.1);
        }
        if entry >= ENTRIES - 1 {
            return last;
        }
        let (low, high) = (i64::from(table[entry]), i64::from(table[entry + 1]));
        let rest = offset & ((1 << select) - 1);
        if part != 0.0 {
            let line = (high - low) as f64 * (rest as f64 + part) / f64::from(1u32 << select);
            return low
                + match self.between {
                    Between::Floor => line.floor() as i64,
                    Between::HalfUp => (line + 0.5).floor() as i64,
                    Between::NearestEntry if 2.0 * (rest as f64 + part) >= f64::from(1u32 << select) => {
                        high - low
                    }
                    Between::NearestEntry => 0,
                };
        }
        match self.between {
            Between::Floor => low + (((high - low) * rest) >> select),
            Between::HalfUp => low + round_shift((high - low) * rest, select, true),
            Between::NearestEntry if select > 0 && rest >= 1 << (select - 1) => high,
            Between::NearestEntry => low,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> [[i16; ENTRIES]; 2] {
        let mut tables = [[0i16; ENTRIES]; 2];
        for (i, entry) in (0i16..).zip(&mut tables[0]) {
            *entry = i;
        }
        for (i, entry) in (0i16..).zip(&mut tables[1]) {
            *entry = 1000 - i;
        }
        tables
    }

    fn plain() -> Evaluation {
        Evaluation {
            start: [-16384, 0],
            lo_end: 16384,
            select: [5, 5],
            uflow: (0, 0),
            oflow: (0x4032, 13),
            between: Between::Floor,
            bounded: true,
            select_by: LutSelect::IndexSign,
            rounded: true,
        }
    }

    #[test]
    fn index_test_values() {
        // isa-int4-sdp.md §3.5 "Index test values": int8 index -8465 lies at LE 247 + 15/32, and so on.
        let tables = tables();
        for (index, entry) in [(-8465, 247), (-196, 505), (-131, 507)] {
            assert_eq!(plain().value(&tables, 0.0, index), entry, "{index}");
        }
        // Falling table LO: the line floors.
        assert_eq!(plain().value(&tables, 0.0, 0), 1000);
        assert_eq!(plain().value(&tables, 0.0, 65), 997, "998 - 1/32, floored");
        assert_eq!(plain().value(&tables, 0.0, 16384), 1000 - 512);
    }

    #[test]
    fn beyond_the_ends() {
        let mut tables = tables();
        let steep = Evaluation { uflow: (23107, 22), ..plain() };
        assert_eq!(steep.value(&tables, 0.0, -16384 - 1000), 0, "not below 0 when the edge is not negative");
        tables[0][0] = -5;
        assert_eq!(steep.value(&tables, 0.0, -16384 - 1000), -5 + ((-1000 * 23107) >> 22));
        assert_eq!(plain().value(&tables, 0.0, 16384 + 8192), 488 + 0x4032);
        // LO_END says where the slope begins (NS-34), before the last entry or behind it.
        let early = Evaluation { lo_end: 8192, ..plain() };
        assert_eq!(early.value(&tables, 0.0, 8192), 1000 - 256);
        assert_eq!(early.value(&tables, 0.0, 16384), 488 + 0x4032);
        let late = Evaluation { lo_end: 20000, ..plain() };
        assert_eq!(late.value(&tables, 0.0, 20000), 488);
        assert_eq!(late.value(&tables, 0.0, 20000 + 8192), 488 + 0x4032);
    }
}
