// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modelled time of proposals: the model of `ork-timing` asked about a plan's tasks.
//!
//! It ranks proposals, it does not promise times; docs/timing-model.md has its errors, and what it does not cover:
//! K slices that the host adds, layout changes and copies by the CPU.

use ork_isa::soc::Soc;
use ork_layout::Format;
use ork_timing::{Constant, Constants, Model, SubmitPath, TaskCost, TaskWork};

pub use ork_timing::Modelled;

use crate::BankSplit;
use crate::form::{Form, Reuse};

/// What the model asks of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Work {
    /// Precisions.
    pub format: Format,
    /// Kind of program.
    pub form: Form,
    /// Rows.
    pub rows: u32,
    /// Channels.
    pub k: u32,
    /// Columns.
    pub n: u32,
    /// Split of the convolution buffer.
    pub split: BankSplit,
    /// What the task takes from the buffer.
    pub reuse: Reuse,
    /// Cores that stream weights at the same time.
    pub cores: u8,
}

/// One task, as part of a chain of tasks that compute. (A chain of tasks that all wait for their weights costs up to
/// 10 us more for each; the last few per cent of such a task.)
#[must_use]
pub fn task(work: &Work, soc: &Soc) -> Modelled {
    blocks(work, soc).total + NEXT_PROGRAM
}

/// The same by block, without the cost of a further program.
#[must_use]
pub fn blocks(work: &Work, soc: &Soc) -> TaskCost {
    let precisions = (work.format.input(), work.format.output());
    let buffer = u64::from(work.split.weight) * u64::from(soc.bank_bytes);
    let task = TaskWork::matmul((work.rows, work.k, work.n), precisions, work.form.order(), buffer);
    let task = match work.reuse {
        Reuse::Nothing => task,
        Reuse::Weights => task.weights_kept(),
        Reuse::Features => TaskWork { feature_bytes: 0, ..task },
    };
    Model::default().task_on_cores(&task, work.cores)
}

/// The soft reset that a change of the datapath can need: measured elsewhere, 105 ms on average
/// (`isa-int4-sdp.md` §1.11).
#[must_use]
pub const fn reset() -> Modelled {
    Modelled::from_us(105_000.0)
}

/// The fixed cost of handing chains to the cores and waiting for them. [`task`] has the cost of a further program in
/// it, which the first of a chain does not have.
#[must_use]
pub fn submit() -> Modelled {
    Modelled::from_us(Model::default().submit(SubmitPath::Blocking).us - NEXT_PROGRAM.us)
}

/// What a blocking call on several cores costs beyond [`submit`]: the threads that wait for the other cores. It is the same
/// for all plans on several cores, so that it does not rank them; it counts when the NPU is compared with another engine.
#[must_use]
pub const fn further_cores() -> Modelled {
    let constants = Constants::TABLE;
    Modelled::from_us(constants.get(Constant::SubmitThreeCores) - constants.get(Constant::SubmitBlocking))
}

const NEXT_PROGRAM: Modelled = Modelled::from_us(Constants::TABLE.get(Constant::NextProgram));

#[cfg(test)]
mod tests {
    use ork_isa::soc::RK3588;

    use super::*;
    use crate::schedule;

    fn work(form: Form, rows: u32, k: u32, n: u32, split: BankSplit, cores: u8) -> Work {
        Work { format: Format::INT8_INT32, form, rows, k, n, split, reuse: Reuse::Nothing, cores }
    }

    /// The tasks of an int8 call on one core with schedule 1.
    fn tasks(rows: u32, k: u32, n: u32, tile: u32) -> f64 {
        let tiles = (0..rows).step_by(tile as usize).map(|m0| tile.min(rows - m0));
        let one = |rows| {
            let split = schedule::schedule_1(Format::INT8_INT32, k, rows, &RK3588).split;
            task(&work(Form::Rows, rows, k, n, split, 1), &RK3588)
        };
        tiles.map(one).sum::<Modelled>().us - NEXT_PROGRAM.us
    }

    #[test]
    fn schedules_of_this_crate_meet_the_measured_rows() {
        // M, K, N, rows of a tile, how the series was submitted, measured elsewhere (isa.md §12.2).
        for (m, k, n, tile, path, measured) in [
            (4, 2048, 2048, 128, SubmitPath::Blocking, 493.0),
            (31, 2048, 2048, 128, SubmitPath::Blocking, 516.0),
            (4, 2048, 512, 128, SubmitPath::Blocking, 228.0),
            (4, 2048, 4096, 128, SubmitPath::Blocking, 914.0),
            (36, 3584, 1216, 64, SubmitPath::Short, 722.0),
            (72, 3584, 1216, 64, SubmitPath::Short, 1400.0),
            (100, 3584, 1216, 64, SubmitPath::Short, 1654.0),
            (128, 3584, 1216, 64, SubmitPath::Short, 1861.0),
            (512, 2048, 2048, 128, SubmitPath::Blocking, 4020.0),
        ] {
            let modelled = Model::default().submit(path).us + tasks(m, k, n, tile);
            assert!(
                (modelled / measured - 1.0).abs() <= 0.04,
                "{m} x {k} x {n}: {modelled:.0}, measured {measured}"
            );
        }
    }

    #[test]
    fn overlap_needs_room_for_two_kernel_groups() {
        let at = |weight| {
            let split = BankSplit { data: 12 - weight, weight };
            task(&work(Form::Rows, 32, 3584, 1216, split, 1), &RK3588).us
        };
        assert_eq!(at(8), at(7));
        assert!(at(6) > 1.2 * at(7));
    }

    #[test]
    fn cores_share_the_memory() {
        let split = BankSplit { data: 1, weight: 11 };
        let at = |cores| task(&work(Form::Rows, 1, 2048, 2048, split, cores), &RK3588).us;
        assert!(at(2) < 1.01 * at(1) && at(3) > 1.2 * at(1));
    }

    #[test]
    fn the_fold_meets_its_measured_rows() {
        // isa.md §12.2: K = 3584, N = 1216, one core, tiles of at most 36 rows, short submits.
        for (tiles, measured) in
            [(&[36][..], 440.0), (&[36, 36], 843.0), (&[36, 36, 28], 1236.0), (&[36, 36, 36, 20], 1639.0)]
        {
            let surface_rows = tiles.iter().sum();
            let one = |&rows: &u32| {
                let form = Form::Fold { surface_rows };
                let split =
                    schedule::by_capacity(Format::INT8_INT32, form, 3584, rows, &RK3588).unwrap().split;
                task(&work(form, rows, 3584, 1216, split, 1), &RK3588)
            };
            let modelled = Model::default().submit(SubmitPath::Short).us
                + tiles.iter().map(one).sum::<Modelled>().us
                - NEXT_PROGRAM.us;
            assert!(
                (modelled / measured - 1.0).abs() <= 0.05,
                "{tiles:?}: {modelled:.0}, measured {measured}"
            );
        }
    }

    #[test]
    fn kept_operands_are_not_read_again() {
        let split = BankSplit { data: 1, weight: 11 };
        let at = |reuse| task(&Work { reuse, ..work(Form::Rows, 16, 512, 512, split, 1) }, &RK3588).us;
        assert!(at(Reuse::Weights) < 0.8 * at(Reuse::Nothing));
        assert!(at(Reuse::Features) <= at(Reuse::Nothing));
    }
}
