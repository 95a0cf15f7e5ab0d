// SPDX-License-Identifier: MIT OR Apache-2.0
//! Law against mechanism: just inside a law the simulator is exact, just outside it is not silently right.

use ork_device::{Board, Device, DeviceOptions, EmuOptions, Purpose, Submission, SubmitError, Task};
use ork_isa::soc::RK3588;
use ork_isa::{Iova, Link};
use ork_layout::{FeatureLayout, Format, WeightLayout};
use ork_plan::laws::row_caps;
use ork_plan::schedule::{self, Schedule};
use ork_plan::{Decision, Form, PROGRAM_BODY_WORDS, PlanOptions, Problem, Reuse, decide, weight_layout};
use ork_synth::{MatmulTask, OutputStage, ProgramSet, matmul_program};
use ork_testkit::{Case, Shape, compare, reference};

/// What became of a hand-made program.
#[derive(Debug, PartialEq)]
enum Outcome {
    Exact,
    /// Completed with wrong values; what the simulator said.
    Wrong(String),
    /// Timed out; what the simulator said.
    Hang(String),
}

/// Runs one program over a whole product, whatever the laws say of it.
fn run_one_program(shape: Shape, schedule: Schedule, seed: u64) -> Outcome {
    let case = Case::new(shape, seed);
    let board = Board::new(&EmuOptions::default());
    let device = Device::on_board(&board, &DeviceOptions::default()).unwrap();
    let layout = WeightLayout::one_slice(Format::INT8_INT32, shape.k, shape.n).unwrap();
    let features = FeatureLayout::for_weight(&layout, shape.m);

    let mut a = device.alloc(Purpose::Data, features.bytes()).unwrap();
    for (m, row) in case.features().chunks_exact(shape.k as usize).enumerate() {
        features.write_row(m as u32, row, a.host_mut());
    }
    a.flush(0..features.bytes()).unwrap();
    let mut b = device.alloc(Purpose::Data, layout.bytes()).unwrap();
    for (n, channel) in case.weights().chunks_exact(shape.k as usize).enumerate() {
        layout.pack_channel(n as u32, channel, b.host_mut());
    }
    b.flush(0..layout.bytes()).unwrap();
    let c_bytes = u64::from(shape.m) * u64::from(shape.n) * 4;
    let mut c = device.alloc(Purpose::Data, c_bytes).unwrap();
    let mut regcmd = device.alloc(Purpose::Regcmd, 4096).unwrap();
    let task = MatmulTask {
        format: Format::INT8_INT32,
        form: Form::Rows,
        rows: shape.m,
        k: shape.k,
        n: shape.n,
        row_stride: shape.n,
        split: schedule.split,
        grains: schedule.grains,
        reuse: Reuse::Nothing,
        a: a.iova(),
        b: b.iova(),
        c: c.iova(),
        output: OutputStage::Plain,
    };
    let program = matmul_program(&task, Link::Last).unwrap();
    program.write_to(regcmd.host_mut());
    regcmd.flush(0..program.padded_bytes() as u64).unwrap();

    let Iova(at) = regcmd.iova();
    let task = Task::dpu(Iova(at), PROGRAM_BODY_WORDS as u32, ProgramSet::ENABLE_MASK);
    match device.submit(&Submission::new(0, vec![task])) {
        Ok(done) => {
            let said: Vec<String> = done.findings().iter().map(ToString::to_string).collect();
            let bytes = c.fetch(0..c_bytes, &done).unwrap();
            let got: Vec<i32> =
                bytes.chunks_exact(4).map(|word| i32::from_le_bytes(word.try_into().unwrap())).collect();
            let want = reference::fast_i8(&case.features(), &case.weights(), shape);
            match compare::exact(&got, &want, shape) {
                Ok(()) if said.is_empty() => Outcome::Exact,
                Ok(()) => panic!("{shape}: right values, and yet the simulator objects: {said:?}"),
                Err(_) => Outcome::Wrong(said.join(" | ")),
            }
        }
        Err(SubmitError::TimedOut { findings, .. }) => {
            Outcome::Hang(findings.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | "))
        }
        Err(other) => panic!("{shape}: {other:?}"),
    }
}

/// The numbers of columns that the caps are tried with: one kernel group, few, many.
const COLUMNS: [u32; 3] = [32, 64, 160];

#[test]
fn each_row_cap_is_exact_and_one_row_more_is_not_silently_right() {
    for (k, cap) in row_caps::MEASURED {
        for n in COLUMNS {
            let at = |rows| schedule::schedule_1(Format::INT8_INT32, k, rows, &RK3588);
            let inside = run_one_program(Shape::new(cap, k, n), at(cap), u64::from(k + n));
            // isa.md §10.4: with one weight bank, K = 1024 and at most two kernel groups fail; at the cap of
            // K = 512 the split has one weight bank too, but a group needs half of it.
            assert_eq!(inside, Outcome::Exact, "K = {k}, {cap} rows, N = {n}");

            let outside = run_one_program(Shape::new(cap + 1, k, n), at(cap + 1), u64::from(k + n));
            match &outside {
                Outcome::Exact => {
                    // isa.md §10.4 leaves one hole: K = 1024 with more than two kernel groups satisfies both
                    // capacity rules; the caps were measured with N = 64.
                    assert!(k == 1024 && n > 64, "K = {k}, {} rows, N = {n} is silently right", cap + 1);
                }
                Outcome::Wrong(said) | Outcome::Hang(said) => {
                    assert!(said.contains("10.2") || said.contains("10.4"), "no rule is named: {said}");
                }
            }
        }
    }
}

#[test]
fn the_planner_never_exceeds_a_cap() {
    for (k, cap) in row_caps::MEASURED {
        let weight = weight_layout(Format::INT8_INT32, k, 64, &RK3588).unwrap();
        for m in [cap - 1, cap, cap + 1, 2 * cap, 2 * cap + 1, 5000] {
            let problem = Problem { m, weight: weight.clone() };
            let options = PlanOptions { cores: 1, ..PlanOptions::default() };
            let Decision::Accept(plan) = decide(&problem, &RK3588, &options) else {
                panic!("K = {k}, M = {m}")
            };
            let rows: Vec<u32> = plan
                .shapes()
                .iter()
                .flat_map(|shape| &shape.chains)
                .flat_map(|chain| &chain.programs)
                .map(|program| program.rows)
                .collect();
            assert!(rows.iter().all(|rows| *rows <= cap), "K = {k}, M = {m}: {rows:?}");
            if m == cap {
                assert_eq!(rows, [cap], "K = {k}: the cap itself is one program");
            }
        }
    }
}

#[test]
fn other_laws_have_teeth() {
    let weights_starve = Schedule { split: ork_plan::BankSplit { data: 11, weight: 1 }, grains: 5 };
    let no_weights = Schedule { split: ork_plan::BankSplit { data: 12, weight: 0 }, grains: 5 };
    let too_many = Schedule { split: ork_plan::BankSplit { data: 8, weight: 11 }, grains: 5 };
    // isa.md §13 rows 1 and 2.
    assert!(matches!(run_one_program(Shape::new(4, 512, 64), no_weights, 1), Outcome::Hang(_)));
    let outcome = run_one_program(Shape::new(4, 1536, 64), weights_starve, 2);
    assert!(matches!(&outcome, Outcome::Wrong(said) if said.contains("10.2")), "{outcome:?}");
    // isa.md §10.2: D + W = 12 in all correct programs.
    let outcome = run_one_program(Shape::new(4, 512, 1024), too_many, 3);
    assert!(!matches!(outcome, Outcome::Exact), "{outcome:?}");
    // A control: the same shapes with a split inside the laws.
    let good = Schedule { split: ork_plan::BankSplit { data: 1, weight: 11 }, grains: 5 };
    for shape in [Shape::new(4, 512, 64), Shape::new(4, 1536, 64), Shape::new(4, 512, 1024)] {
        assert_eq!(run_one_program(shape, good, 4), Outcome::Exact, "{shape}");
    }
}
