// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_isa::{Register, RegisterDesc, regs};

use super::{Bound, Confidence, Geometry, Law, require};
use crate::form::Form;

const NAME: &str = "encodable";

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "every size fits the register field that holds it",
    source: "isa.md §3; the widths are those of the register database",
    confidence: Confidence::Encoding,
    check: |g, _| FIELDS.iter().try_for_each(|f| require(NAME, f.name, (f.value)(g), Bound::AtMost(f.max))),
};

/// A register field and the number that a program puts there.
struct Field {
    name: &'static str,
    max: u64,
    value: fn(&Geometry) -> u64,
}

/// The largest value of a named field; a name that the database does not know stops the build.
const fn field_max(register: &RegisterDesc, name: &str) -> u64 {
    let mut index = 0;
    while index < register.fields.len() {
        if same(register.fields[index].name, name) {
            return register.fields[index].max() as u64;
        }
        index += 1;
    }
    panic!("the register has no such field")
}

const fn same(left: &str, right: &str) -> bool {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    if left.len() != right.len() {
        return false;
    }
    let mut index = 0;
    while index < left.len() {
        if left[index] != right[index] {
            return false;
        }
        index += 1;
    }
    true
}

macro_rules! field {
    ($block:ident :: $register:ident, $name:literal, $value:expr) => {
        Field { name: $name, max: field_max(regs::$block::$register::DESC, $name), value: $value }
    };
}

const FIELDS: &[Field] = &[
    field!(cna::DataSize0, "DATAIN_WIDTH", width),
    field!(cna::DataSize0, "DATAIN_HEIGHT", height),
    field!(cna::DataSize1, "DATAIN_CHANNEL", |g| g.k.into()),
    field!(cna::DataSize1, "DATAIN_CHANNEL_REAL", |g| less_one(g.k)),
    field!(cna::DataSize3, "DATAOUT_ATOMICS", |g| height(g) * width(g)),
    field!(cna::ConvCon2, "FEATURE_GRAINS", |g| g.grains.into()),
    field!(cna::WeightSize0, "WEIGHT_BYTES", Geometry::weight_bytes),
    field!(cna::WeightSize1, "WEIGHT_BYTES_PER_KERNEL", Geometry::line_bytes),
    field!(cna::WeightSize2, "WEIGHT_KERNELS", |g| g.n.into()),
    field!(cna::CbufCon0, "DATA_BANK", |g| g.split.data.into()),
    field!(cna::CbufCon0, "WEIGHT_BANK", |g| g.split.weight.into()),
    field!(cna::CbufCon1, "DATA_ENTRIES", |g| g.line_bytes().saturating_mul(width(g)).div_ceil(64)),
    field!(cna::DmaCon1, "LINE_STRIDE", |g| g.line_bytes() / 8),
    field!(cna::DmaCon2, "SURF_STRIDE", surface_rows),
    field!(cna::FcDataSize0, "DMA_HEIGHT", height),
    field!(cna::FcDataSize1, "DMA_CHANNEL", |g| g.k.into()),
    field!(core::DataoutSize0, "DATAOUT_HEIGHT", |g| height(g).saturating_sub(1)),
    field!(core::DataoutSize0, "DATAOUT_WIDTH", |g| width(g).saturating_sub(1)),
    field!(core::DataoutSize1, "DATAOUT_CHANNEL", |g| less_one(g.n)),
    field!(dpu::DstSurfStride, "DST_SURF_STRIDE", surface_rows),
    field!(dpu::DataCubeWidth, "WIDTH", |g| width(g).saturating_sub(1)),
    field!(dpu::DataCubeHeight, "HEIGHT", |g| height(g).saturating_sub(1)),
    field!(dpu::DataCubeNotchAddr, "NOTCH_ADDR_0", |g| notch(g, g.n)),
    field!(dpu::DataCubeNotchAddr, "NOTCH_ADDR_1", |g| notch(g, g.row_stride)),
    field!(dpu::DataCubeChannel, "CHANNEL", |g| less_one(g.n)),
    field!(dpu::DataCubeChannel, "ORIG_CHANNEL", |g| less_one(g.row_stride)),
    field!(dpu::WdmaSize0, "CHANNEL_WDMA", |g| less_one(g.n)),
    field!(dpu::WdmaSize1, "HEIGHT_WDMA", |g| height(g).saturating_sub(1)),
    field!(dpu::SurfaceAdd, "SURF_ADD", |g| surface_rows(g) * u64::from(g.format.group_atoms())),
];

fn less_one(size: u32) -> u64 {
    u64::from(size).saturating_sub(1)
}

fn height(g: &Geometry) -> u64 {
    g.form.height_and_width(g.rows).0.into()
}

fn width(g: &Geometry) -> u64 {
    g.form.height_and_width(g.rows).1.into()
}

fn surface_rows(g: &Geometry) -> u64 {
    g.form.surface_rows().unwrap_or(1).into()
}

/// Gap between the lines of row-major output, in atoms; cubes have none. int4 batches count atoms of 4 elements there.
fn notch(g: &Geometry, columns: u32) -> u64 {
    match g.form {
        Form::Rows => less_one(columns / g.format.output_per_atom()),
        Form::Int4Batch => less_one(columns / 4),
        Form::Cube { .. } | Form::Fold { .. } | Form::Int4Row => 0,
    }
}
