// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

use crate::datapath::{Datapath, Transition};
use crate::form::{Form, Reuse};
use crate::plan::{Chain, PassShape, Plan, TileProgram};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slices = match self.k_slices {
            1 => String::from("full K"),
            count => format!("{count} K slices added by the host"),
        };
        writeln!(
            f,
            "matmul {}x{}x{} {}: {} pass(es), {slices}, {}",
            self.m,
            self.k,
            self.n,
            self.format,
            self.pass_count(),
            self.modelled()
        )?;
        write!(f, "datapath: {}", self.datapath())?;
        if self.datapath() == Datapath::Int4 {
            write!(f, ", entered and left for int8 by a reset of {}", Transition::Reset.modelled())?;
        }
        writeln!(f)?;
        writeln!(f, "rules: {}", self.rules().collect::<Vec<_>>().join(", "))?;
        let extents = self.extents();
        writeln!(
            f,
            "bytes: A {}, B {}, C {}, regcmd {:?}; tasks {:?}",
            extents.a_bytes, extents.b_bytes, extents.c_bytes, extents.regcmd_bytes, extents.tasks
        )?;
        self.shapes.iter().try_for_each(|shape| table(shape, f))
    }
}

/// One line for each run of programs that differ only in their rows.
fn table(shape: &PassShape, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "pass of {} rows, {}", shape.rows, shape.modelled)?;
    let reused = |chain: &Chain| chain.programs.iter().filter(|tile| tile.reuse != Reuse::Nothing).count();
    let reused: usize = shape.chains.iter().map(reused).sum();
    if reused > 0 {
        let tasks: usize = shape.chains.iter().map(|chain| chain.programs.len()).sum();
        writeln!(f, "  {reused} of {tasks} programs keep an operand in the buffer")?;
    }
    writeln!(f, "  core  columns            slice       K  row tiles")?;
    for chain in &shape.chains {
        let same = |a: &TileProgram, b: &TileProgram| (a.segment, a.k_slice) == (b.segment, b.k_slice);
        let mut runs = chain.programs.chunk_by(same).peekable();
        while let Some(run) = runs.next() {
            let tiles = row_tiles(run);
            let first = run[0];
            let mut last_slice = first.k_slice;
            while runs
                .next_if(|next| {
                    next[0].segment == first.segment
                        && (next[0].k, next[0].form) == (first.k, first.form)
                        && row_tiles(next) == tiles
                })
                .is_some()
            {
                last_slice += 1;
            }
            let columns = format!("{}..{}", first.n0, first.n0 + first.n);
            let slices = if last_slice == first.k_slice {
                first.k_slice.to_string()
            } else {
                format!("{}..={last_slice}", first.k_slice)
            };
            let form = match first.form {
                Form::Rows => String::new(),
                form => format!(", {form}"),
            };
            writeln!(f, "  {:>4}  {columns:<17} {slices:>6} {:>7}  {tiles}{form}", chain.core, first.k)?;
        }
    }
    Ok(())
}

fn row_tiles(run: &[TileProgram]) -> String {
    let same = |a: &TileProgram, b: &TileProgram| (a.rows, a.split, a.grains) == (b.rows, b.split, b.grains);
    let parts =
        run.chunk_by(same).map(|tiles| format!("{} x {} ({})", tiles.len(), tiles[0].rows, tiles[0].split));
    parts.collect::<Vec<_>>().join(" + ")
}
