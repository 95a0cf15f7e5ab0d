// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork selftest`: products in order of rising risk, each linted and simulated before the device gets it, and the
//! device's bytes compared with the simulator's.

use std::path::PathBuf;

use clap::Args;
use ork_device::{Device, DeviceKind, DeviceOptions};
use ork_driver::{Driver, DriverOptions, Values};
use ork_isa::Iova;
use ork_isa::asm::{Listing, Stream};
use ork_isa::lint::{Severity, lint};
use ork_isa::soc::RK3588;
use ork_plan::{Decision, PlanOptions, Problem, Product, decide, weight_layout_with};
use ork_synth::{Binding, Bindings, OutputStage, emit_with};
use serde::Serialize;

use crate::failure::{Failure, chain, print};
use crate::flags::Settings;
use crate::matmul::verdict;
use crate::trial::{Size, Trial};

#[derive(Args)]
pub(crate) struct SelftestArgs {
    /// Write a report to this file, as JSON: what to attach to a bug
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Stop after so many steps
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    #[command(flatten)]
    settings: Settings,
}

/// One product of the list.
#[derive(Clone, Copy, Debug, Serialize)]
struct Step {
    product: Product,
    m: u32,
    k: u32,
    n: u32,
    cores: u8,
    /// Why it is on the list.
    about: &'static str,
}

const fn step(product: Product, (m, k, n): (u32, u32, u32), cores: u8, about: &'static str) -> Step {
    Step { product, m, k, n, cores, about }
}

/// The least that can go wrong first: one small program of the best known kind; then more programs, more cores, then
/// the precisions, those with the fewest measurements behind them last. int4 leaves the datapath in a state that needs
/// a reset, so nothing follows it but itself.
const STEPS: &[Step] = &[
    step(Product::Int8, (4, 64, 64), 1, "one small program"),
    step(Product::Int8, (1, 64, 64), 1, "a single row"),
    step(Product::Int8, (32, 512, 64), 1, "a tile of several banks"),
    step(Product::Int8, (7, 61, 37), 1, "odd sizes, padded"),
    step(Product::Int8, (100, 1024, 256), 1, "a chain of programs"),
    step(Product::Int8, (64, 5000, 128), 1, "K slices that the host adds"),
    step(Product::Int8, (100, 1024, 300), 2, "two cores"),
    step(Product::Int8, (130, 2048, 600), 3, "three cores"),
    step(Product::Int8, (36, 3584, 1216), 3, "a wide product"),
    step(Product::Int8ToInt8, (33, 512, 128), 1, "sums requantised by the output stage"),
    step(Product::Fp16, (4, 64, 64), 1, "fp16, one small program"),
    step(Product::Fp16, (60, 512, 200), 3, "fp16 on three cores"),
    step(Product::Fp16ToFp16, (33, 512, 64), 1, "fp16 results"),
    step(Product::Int16, (9, 200, 70), 1, "int16 through bytes"),
    step(Product::Bf16, (17, 96, 64), 1, "bf16"),
    step(Product::Tf32, (17, 96, 64), 1, "tf32"),
    step(Product::Int4, (1, 512, 64), 1, "int4, one row"),
    step(Product::Int4, (40, 1024, 128), 3, "int4 on three cores"),
];

#[derive(Serialize)]
struct Report {
    ork: &'static str,
    device: String,
    driver_version: u32,
    hardware_version: u32,
    /// Whether the device is the emulated one.
    emulated: bool,
    steps: Vec<Done>,
    verdict: String,
}

#[derive(Serialize)]
struct Done {
    #[serde(flatten)]
    step: Step,
    programs: usize,
    outcome: String,
    passed: bool,
}

pub(crate) fn run(args: &SelftestArgs) -> Result<(), Failure> {
    let config = args.settings.config()?;
    let first = Device::open(&config.device)?;
    let info = first.info();
    let mut report = Report {
        ork: env!("CARGO_PKG_VERSION"),
        device: first.describe().to_owned(),
        driver_version: info.driver_version,
        hardware_version: info.hardware_version,
        emulated: first.board().is_some(),
        steps: Vec::new(),
        verdict: String::new(),
    };
    drop(first);
    print(&format!("device: {}\n", report.device))?;

    let mut failure = None;
    for step in STEPS.iter().take(args.steps.unwrap_or(usize::MAX)) {
        let (programs, result) = match programs(step, &config.driver.plan) {
            Ok(programs) => (programs.streams.len(), check(step, &programs, &config.device, &config.driver)),
            Err(trouble) => (0, Err(trouble)),
        };
        let passed = result.is_ok();
        let outcome = result.unwrap_or_else(|trouble| trouble);
        let Step { product, m, k, n, cores, about } = step;
        print(&format!(
            "{} {product:<9} {:<16} {cores} core(s), {programs:>3} programs: {outcome} ({about})\n",
            if passed { "pass" } else { "FAIL" },
            format!("{m}x{k}x{n}"),
        ))?;
        report.steps.push(Done { step: *step, programs, outcome, passed });
        if !passed {
            failure = Some(format!("{product} {m}x{k}x{n} on {cores} core(s), {about}"));
            break;
        }
    }
    report.verdict = match &failure {
        None => format!("{} of {} steps passed", report.steps.len(), STEPS.len()),
        Some(step) => format!("stopped at the first difference: {step}"),
    };
    print(&format!("{}\n", report.verdict))?;
    if let Some(path) = &args.output {
        let text =
            serde_json::to_string_pretty(&report).map_err(|error| Failure::usage(error.to_string()))?;
        std::fs::write(path, text + "\n")
            .map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display())))?;
    }
    match failure {
        None => Ok(()),
        Some(step) => Err(Failure::Failed {
            code: 1,
            message: format!("the self-test failed at {step}"),
            hint: match args.output {
                Some(_) => None,
                None => Some("--output FILE writes a report that can be attached to a bug".into()),
            },
        }),
    }
}

/// The programs of a step, at made-up addresses.
fn programs(step: &Step, options: &PlanOptions) -> Result<Listing, String> {
    let lowered = step.product.lower(step.k);
    let options = PlanOptions { cores: step.cores, ..options.clone() };
    let weight = weight_layout_with(lowered.format, step.k, step.n * lowered.columns, &RK3588, &options)
        .map_err(|error| error.to_string())?;
    let b_len = weight.bytes();
    let problem = Problem { m: step.m * lowered.rows, weight };
    let plan = match decide(&problem, &RK3588, &options) {
        Decision::Accept(plan) => plan,
        Decision::Decline(decline) => return Err(format!("declined: {decline}")),
    };
    let extents = plan.extents();
    let mut next = 0x1000_0000_u64;
    let mut place = |len: u64| {
        let iova = Iova(u32::try_from(next).unwrap_or(u32::MAX));
        // A page in between: a program that runs over its buffer is not taken for one that does not.
        next += len.next_multiple_of(4096) + 4096;
        Binding { iova, len }
    };
    let (a, b, c) = (place(extents.a_bytes), place(b_len), place(extents.c_bytes));
    let mut listing = Listing::default();
    for pass in plan.passes() {
        for chain in &pass.shape.chains {
            let room = extents.regcmd_bytes.get(usize::from(chain.core)).copied().unwrap_or(0);
            let bindings = Bindings { a, b, c, regcmd: place(room) };
            let stage = match step.product {
                Product::Int8ToInt8 => OutputStage::Requantise { multiplier: 1, shift: 8, offset: 0 },
                _ => OutputStage::Plain,
            };
            let set =
                emit_with(pass.shape, chain.core, &bindings, stage).map_err(|error| error.to_string())?;
            for index in 0..set.len() {
                listing.streams.push(Stream {
                    name: format!("core {} program {index}", chain.core),
                    at: Some(set.program_address(index)),
                    words: set.words(index).collect(),
                });
            }
        }
    }
    Ok(listing)
}

/// Lints, simulates, and only then asks the device. `Ok` and `Err` both say what happened.
fn check(
    step: &Step,
    programs: &Listing,
    device: &DeviceOptions,
    driver: &DriverOptions,
) -> Result<String, String> {
    if let Some(finding) = lint(programs).into_iter().find(|finding| finding.lint.severity == Severity::Error)
    {
        return Err(format!("not submitted, the lint objects: {finding}").replace('\n', " "));
    }
    let size = Size { m: step.m as usize, k: step.k as usize, n: step.n as usize };
    let trial = Trial::new(step.product, size, 1);
    let options =
        DriverOptions { plan: PlanOptions { cores: step.cores, ..driver.plan.clone() }, ..driver.clone() };
    let on = |device: DeviceOptions| -> Result<Values, String> {
        let device = Device::open(&device).map_err(|error| chain(&error))?;
        let driver = Driver::new(device, options.clone()).map_err(|error| chain(&error))?;
        trial.run(&driver).map_err(|error| chain(&error))
    };
    // The witness is the model as it stands: no faults, no other readings, no finding passed over.
    let mut witness = DeviceOptions { kind: DeviceKind::Sim, cores: step.cores, ..Default::default() };
    witness.emulated.sim.strict = true;
    let simulated = on(witness).map_err(|trouble| format!("not submitted, the simulator: {trouble}"))?;
    let found = trial.compare(&simulated);
    if found.wrong > 0 {
        return Err(format!("not submitted, simulated wrong: {}", verdict(&found)));
    }
    let real = on(DeviceOptions { cores: step.cores, ..device.clone() })
        .map_err(|trouble| format!("device: {trouble}"))?;
    match first_difference(&simulated, &real) {
        None => Ok(verdict(&found)),
        Some(at) => Err(format!(
            "value {at} (row {}, column {}) differs from the simulator's; against plain loops: {}",
            at / size.n,
            at % size.n,
            verdict(&trial.compare(&real))
        )),
    }
}

/// Index of the first value whose bits differ.
fn first_difference(a: &Values, b: &Values) -> Option<usize> {
    fn of<T>(a: &[T], b: &[T], same: impl Fn(&T, &T) -> bool) -> Option<usize> {
        if a.len() != b.len() {
            return Some(a.len().min(b.len()));
        }
        a.iter().zip(b).position(|(x, y)| !same(x, y))
    }
    match (a, b) {
        (Values::I8(a), Values::I8(b)) => of(a, b, |x, y| x == y),
        (Values::I32(a), Values::I32(b)) => of(a, b, |x, y| x == y),
        (Values::I64(a), Values::I64(b)) => of(a, b, |x, y| x == y),
        (Values::F16(a), Values::F16(b)) => of(a, b, |x, y| x.to_bits() == y.to_bits()),
        (Values::F32(a), Values::F32(b)) => of(a, b, |x, y| x.to_bits() == y.to_bits()),
        _ => Some(0),
    }
}
