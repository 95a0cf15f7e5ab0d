// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_plan::Form;

use crate::MatmulTask;

/// One atom, in bytes.
const ATOM: u64 = 16;
/// Unit of `DATA_ENTRIES`, in bytes.
const ENTRY: u64 = 64;
/// Lines that the feature loader groups unless told otherwise (`isa.md` §5.1).
const GROUP_LINES: u32 = 4;
/// `SURF_STRIDE` is a signed number of so many bits.
const SURF_STRIDE_BITS: u32 = 28;
/// Columns of an int4 output block, and its bytes.
const BLOCK_COLUMNS: u64 = 64;
const BLOCK_BYTES: u64 = 128;
/// The line stride of the fold is at most this; it has no effect on addresses (`isa.md` §11).
const FOLD_LINE_STRIDE_MAX: u32 = 128;

/// Sizes and strides of a task as the registers want them. Values too large for 32 bits become the largest 32-bit value,
/// which no field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Lines, and pixels of a line.
    pub(crate) height: u32,
    pub(crate) width: u32,
    pub(crate) group_line_off: u32,
    /// CNA strides, in atoms; the second is a signed number in its 28 bits.
    pub(crate) line_stride: u32,
    pub(crate) surface_stride: u32,
    /// `DATA_ENTRIES`.
    pub(crate) entries: u32,
    pub(crate) kernel_bytes: u32,
    /// Distance of the atoms of a kernel group, and of kernel groups, in atoms.
    pub(crate) atom_distance: u32,
    pub(crate) group_distance: u32,
    /// Gaps behind the first and behind every later line, in atoms.
    pub(crate) notch: (u32, u32),
    /// Bytes from the operand addresses to one past the last byte touched.
    pub(crate) a_bytes: u64,
    pub(crate) c_bytes: u64,
}

impl Geometry {
    pub(crate) fn of(task: &MatmulTask) -> Self {
        let &MatmulTask { format, form, rows, k, n, row_stride, .. } = task;
        let (height, width) = form.height_and_width(rows);
        let line = format.input_bytes(k.into());
        let group_atoms = format.group_atoms();
        let (m, columns) = (u64::from(rows), u64::from(n));
        let further_rows = m.saturating_sub(1);
        let output = u64::from(format.output_bytes());
        let atoms_less_one = |columns: u32, per_atom: u32| (columns / per_atom).saturating_sub(1);
        // A cube reaches from its first atom to this row of its last surface.
        let cube_bytes = |elements: u64, per_atom: u32, surface_rows: u32| {
            let surfaces = elements.div_ceil(per_atom.into());
            (surfaces.saturating_sub(1).saturating_mul(surface_rows.into()) + m).saturating_mul(ATOM)
        };
        let cube = |surface_rows: u32| {
            (
                cube_bytes(k.into(), format.input_per_atom(), surface_rows),
                cube_bytes(columns, format.output_per_atom(), surface_rows),
            )
        };
        let common = Self {
            height,
            width,
            group_line_off: 0,
            line_stride: GROUP_LINES,
            surface_stride: 0,
            entries: narrow(line.saturating_mul(width.into()).div_ceil(ENTRY)),
            kernel_bytes: narrow(line),
            atom_distance: 1,
            group_distance: group_atoms,
            notch: (0, 0),
            a_bytes: 0,
            c_bytes: 0,
        };
        match form {
            // The next row begins K elements on; the next atom of a row is the next in memory. Atoms and kernel groups
            // of an output row lie behind each other.
            Form::Rows => Self {
                group_line_off: 1,
                line_stride: narrow(line / ATOM),
                notch: (
                    atoms_less_one(n, format.output_per_atom()),
                    atoms_less_one(row_stride, format.output_per_atom()),
                ),
                a_bytes: m.saturating_mul(line),
                c_bytes: further_rows
                    .saturating_mul(row_stride.into())
                    .saturating_add(columns)
                    .saturating_mul(output),
                ..common
            },
            // Lines follow each other in groups of four; surfaces are `surface_rows` atoms apart.
            Form::Cube { surface_rows } => Self {
                surface_stride: signed(i64::from(surface_rows) - i64::from(GROUP_LINES)),
                atom_distance: surface_rows,
                group_distance: surface_rows.saturating_mul(group_atoms),
                a_bytes: cube(surface_rows).0,
                c_bytes: cube(surface_rows).1,
                ..common
            },
            // One line of rows; surfaces are `surface_rows` atoms apart.
            Form::Fold { surface_rows } => Self {
                group_line_off: 1,
                line_stride: surface_rows.min(FOLD_LINE_STRIDE_MAX),
                surface_stride: signed(i64::from(surface_rows) - i64::from(rows)),
                atom_distance: surface_rows,
                group_distance: surface_rows.saturating_mul(group_atoms),
                a_bytes: cube(surface_rows).0,
                c_bytes: cube(surface_rows).1,
                ..common
            },
            // Line 4 j is row j, two rows of bytes on each; the three lines behind it begin one atom later each. Blocks
            // are written in the order kernel group, line, and of the lines only each fourth.
            Form::Int4Batch => Self {
                line_stride: narrow(2 * line / ATOM),
                surface_stride: signed(1 - i64::from(GROUP_LINES)),
                notch: (atoms_less_one(n, 4), atoms_less_one(n, 4)),
                a_bytes: further_rows.saturating_mul(2 * line) + (u64::from(GROUP_LINES) - 1) * ATOM + line,
                c_bytes: (4 * (further_rows + m * (columns / BLOCK_COLUMNS).saturating_sub(1)) + 1)
                    .saturating_mul(BLOCK_BYTES),
                ..common
            },
            Form::Int4Row => Self {
                surface_stride: signed(1 - i64::from(GROUP_LINES)),
                a_bytes: line,
                c_bytes: columns.saturating_mul(output),
                ..common
            },
        }
    }
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// A number in the signed field of `SURF_STRIDE`.
fn signed(value: i64) -> u32 {
    let half = 1i64 << (SURF_STRIDE_BITS - 1);
    if value >= half || value < -half { u32::MAX } else { value as u32 & ((1 << SURF_STRIDE_BITS) - 1) }
}
