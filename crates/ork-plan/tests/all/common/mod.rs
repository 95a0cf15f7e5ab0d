// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every plan must be: complete, legal, bounded.
#![allow(unreachable_pub, reason = "shared by the files of one program")]

use std::collections::BTreeMap;

use ork_isa::soc::RK3588;
use ork_layout::{FeatureForm, Format, WeightLayout};
use ork_plan::laws;
use ork_plan::laws::reuse::{self, Placed};
use ork_plan::{
    Decision, Decline, Form, PassShape, Plan, PlanOptions, Problem, Reuse, TileProgram, decide,
    program_pitch_bytes, weight_layout,
};

/// An int8 problem.
pub fn problem(m: u32, k: u32, n: u32) -> Problem {
    problem_of(Format::INT8_INT32, m, k, n)
}

/// A problem of another format.
pub fn problem_of(format: Format, m: u32, k: u32, n: u32) -> Problem {
    Problem { m, weight: weight_layout(format, k, n, &RK3588).expect("a weight") }
}

/// Options with these rules.
pub fn naming(rules: &[&str]) -> PlanOptions {
    PlanOptions { rules: rules.iter().map(ToString::to_string).collect(), ..PlanOptions::default() }
}

/// All programs of a plan.
pub fn programs(plan: &Plan) -> impl Iterator<Item = &TileProgram> {
    plan.shapes().iter().flat_map(|shape| &shape.chains).flat_map(|chain| &chain.programs)
}

pub fn decide_with(problem: &Problem, options: &PlanOptions) -> Result<Plan, Decline> {
    match decide(problem, &RK3588, options) {
        Decision::Accept(plan) => Ok(plan),
        Decision::Decline(decline) => Err(decline),
    }
}

pub fn plan(m: u32, k: u32, n: u32) -> Plan {
    decide_with(&problem(m, k, n), &PlanOptions::default()).unwrap_or_else(|decline| panic!("{decline}"))
}

/// Everything that must hold of an accepted plan.
pub fn check(problem: &Problem, plan: &Plan, options: &PlanOptions) {
    let weight = &problem.weight;
    assert_eq!((plan.m(), plan.k(), plan.n()), (problem.m, weight.k(), weight.n()));
    let mut next = 0;
    for pass in plan.passes() {
        assert_eq!(pass.m0, next, "passes follow each other");
        next += pass.shape.rows;
    }
    assert_eq!(next, problem.m, "passes cover all rows");
    assert!(plan.shapes().len() <= 2);

    let extents = plan.extents();
    assert_eq!(extents.b_bytes, weight.bytes());
    for shape in plan.shapes() {
        check_shape(weight, shape);
        check_reuse(weight, shape);
        assert!(shape.features.bytes() <= extents.a_bytes && shape.outputs.bytes() <= extents.c_bytes);
        // One row may need more than the limit; then a pass is one row. The padding of surfaces and slices comes on top.
        let padding = match shape.features.form() {
            FeatureForm::Cube { surface_rows } => u64::from(surface_rows - shape.rows),
            FeatureForm::Rows | FeatureForm::SpacedRows => 0,
        };
        let share = |bytes: u64| bytes / (u64::from(shape.rows) + padding) * u64::from(shape.rows);
        let slack = 128 * weight.slices().len() as u64;
        let scratch = share(shape.outputs.bytes()).max(share(shape.features.bytes()));
        assert!(scratch <= options.scratch_bytes_max.saturating_add(slack) || shape.rows == 1);
        for chain in &shape.chains {
            let tasks = chain.programs.len();
            assert!(tasks <= 4095 && tasks as u32 <= extents.tasks[usize::from(chain.core)]);
            let regcmd = extents.regcmd_bytes[usize::from(chain.core)];
            assert!(tasks as u64 * program_pitch_bytes(plan.format()) <= regcmd);
        }
    }
}

/// Each (row, column, channel) of a pass is in exactly one tile, each tile is legal and lies where the layouts say.
pub fn check_shape(weight: &WeightLayout, shape: &PassShape) {
    let format = weight.format();
    let slices = weight.slices().len() as u32;
    // Tiles by (K slice, column); inside they must follow each other from row 0 to the end.
    let mut cells: BTreeMap<(u32, u32), (u32, Vec<&TileProgram>)> = BTreeMap::new();
    let mut c_ranges = Vec::new();
    for tile in shape.chains.iter().flat_map(|chain| &chain.programs) {
        let cores = shape.chains.len() as u8;
        assert_eq!(laws::violations(&tile.geometry(format, slices, cores), &RK3588), [], "{tile:?}");
        let slice = &weight.slices()[tile.k_slice as usize];
        assert_eq!(tile.k, slice.len);
        assert_eq!(tile.row_stride, tile.n, "surfaces are dense");
        assert_eq!(tile.a_offset, shape.features.offset(tile.m0, slice.k0));
        assert_eq!(tile.b_offset, weight.offset(slice.k0, tile.n0));
        assert_eq!(tile.c_offset, shape.outputs.offset(tile.m0, tile.n0, tile.k_slice));
        let (last_row, last_k) = ((tile.m0 + tile.rows).min(shape.rows) - 1, slice.k0 + tile.k - 1);
        assert!(shape.features.offset(last_row, last_k) < shape.features.bytes());
        assert!(format.input_bytes(u64::from(tile.n) * u64::from(tile.k)) + tile.b_offset <= weight.bytes());
        let last = shape.outputs.offset(last_row, tile.n0 + tile.n - 1, tile.k_slice);
        let end = last + u64::from(format.output_bytes());
        assert!(end <= shape.outputs.bytes());
        match tile.form {
            // Cubes of several tiles are woven into each other.
            Form::Cube { .. } | Form::Fold { .. } => {}
            Form::Rows | Form::Int4Batch | Form::Int4Row => c_ranges.push(tile.c_offset..end),
        }
        let cell = cells.entry((tile.k_slice, tile.n0)).or_insert((tile.n, Vec::new()));
        assert_eq!(cell.0, tile.n);
        cell.1.push(tile);
    }
    let mut next_column = vec![0; slices as usize];
    for ((k_slice, n0), (n, mut tiles)) in cells {
        let next_column = &mut next_column[k_slice as usize];
        assert_eq!(n0, *next_column, "segments follow each other");
        *next_column += n;
        tiles.sort_by_key(|tile| tile.m0);
        let mut next_row = 0;
        for tile in tiles {
            assert_eq!(tile.m0, next_row, "rows follow each other");
            next_row += tile.rows;
        }
        // The padding of a cube is computed too.
        let complete = match shape.features.form() {
            FeatureForm::Cube { surface_rows } => surface_rows,
            FeatureForm::Rows | FeatureForm::SpacedRows => shape.rows,
        };
        assert_eq!(next_row, complete, "rows are complete");
    }
    assert_eq!(next_column, vec![weight.n_padded(); slices as usize], "columns of every slice are complete");
    c_ranges.sort_by_key(|range| range.start);
    assert!(
        c_ranges.windows(2).all(|pair| pair[0].end <= pair[1].start),
        "no two programs write the same bytes"
    );
}

/// Whatever a program keeps, the one before it on the same core left there.
pub fn check_reuse(weight: &WeightLayout, shape: &PassShape) {
    let (format, slices, cores) = (weight.format(), weight.slices().len() as u32, shape.chains.len() as u8);
    let placed = |tile: &TileProgram| Placed {
        geometry: tile.geometry(format, slices, cores),
        a_offset: tile.a_offset,
        b_offset: tile.b_offset,
    };
    for chain in &shape.chains {
        assert_eq!(chain.programs[0].reuse, Reuse::Nothing, "nothing is known of the buffer before a chain");
        for pair in chain.programs.windows(2) {
            let (before, task) = (placed(&pair[0]), placed(&pair[1]));
            match pair[1].reuse {
                Reuse::Nothing => {}
                Reuse::Weights => assert_eq!(reuse::check_weights(&before, &task, &RK3588), Ok(())),
                Reuse::Features => assert_eq!(reuse::check_features(&before, &task), Ok(())),
            }
        }
    }
}
