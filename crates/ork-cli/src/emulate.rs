// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork emulate`: an unmodified program on the emulated board.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use ork_emu::{Coherency, FaultPlan, Soc, TimePolicy};

use crate::failure::Failure;
use crate::flags::Keyed;

// One definition for the command and for the library, which cannot be linked in here: it would replace our `open`.
#[path = "../../ork-shim/src/settings.rs"]
mod settings;

pub(crate) use settings::{Driver, Emulation, Settings};
use settings::{ReportLine, VARIABLE};

/// Name of the preloaded library.
const LIBRARY: &str = "libork_shim.so";
const PRELOAD: &str = "LD_PRELOAD";

#[derive(clap::Args)]
pub(crate) struct EmulateArgs {
    #[command(flatten)]
    board: BoardArgs,
    /// At the end, print what silicon would have suffered in silence
    #[arg(long)]
    explain: bool,
    /// At the end, print the modelled time that passed on the board
    #[arg(long)]
    modelled_time: bool,
    #[command(flatten)]
    program: ProgramArgs,
}

/// The board that a program sees.
#[derive(clap::Args)]
pub(crate) struct BoardArgs {
    /// Kernel driver: the vendor's or the mainline one
    #[arg(long, value_name = "DRIVER", default_value = "rknpu", value_parser = driver_parser())]
    driver: Driver,
    /// Version of the vendor's driver
    #[arg(long, value_name = "X.Y.Z", value_parser = parse_version)]
    driver_version: Option<[u32; 3]>,
    /// Chip; rk3588 if no setting says otherwise
    #[arg(long, value_name = "CHIP", value_parser = soc_parser())]
    soc: Option<Soc>,
    /// What goes wrong on purpose: a TOML file
    #[arg(long, value_name = "FILE")]
    fault_plan: Option<PathBuf>,
    /// Model the CPU's caches: only cache maintenance moves bytes between CPU and NPU
    #[arg(long)]
    strict: bool,
    /// Let time limits and resets take the time that they take on silicon
    #[arg(long)]
    real_time: bool,
    #[command(flatten)]
    settings: Keyed,
}

/// The program, and how it is started.
#[derive(clap::Args)]
pub(crate) struct ProgramArgs {
    /// The library that stands in for the device; by default the one beside this command
    #[arg(long, value_name = "FILE")]
    shim: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn driver_parser() -> impl TypedValueParser<Value = Driver> {
    PossibleValuesParser::new(["rknpu", "rocket"]).map(|name| match &name[..] {
        "rocket" => Driver::Rocket,
        _ => Driver::Rknpu,
    })
}

fn soc_parser() -> impl TypedValueParser<Value = Soc> {
    PossibleValuesParser::new(["rk3588", "rk3576", "rk3568"]).map(|name| match &name[..] {
        "rk3576" => Soc::Rk3576,
        "rk3568" => Soc::Rk3568,
        _ => Soc::Rk3588,
    })
}

fn parse_version(text: &str) -> Result<[u32; 3], String> {
    let parts: Result<Vec<u32>, _> = text.split('.').map(str::parse).collect();
    let wrong = || format!("{text:?} is no version such as 0.9.8");
    parts.map_err(|_| wrong())?.try_into().map_err(|_| wrong())
}

impl BoardArgs {
    /// The board.
    pub(crate) fn emulation(&self) -> Result<Emulation, Failure> {
        let mut options = self.settings.config()?.device.emulated;
        // Programs are written for coherent hardware or clean caches with instructions that cannot be seen.
        options.coherency = if self.strict { Coherency::Strict } else { Coherency::Shared };
        if let Some(soc) = self.soc {
            options.soc = soc;
        }
        if self.real_time {
            options.time = TimePolicy::Real;
        }
        if let Some(version) = self.driver_version {
            if self.driver == Driver::Rocket {
                return Err(Failure::usage("--driver-version is the vendor driver's; rocket has none"));
            }
            options.driver_version = version;
        }
        if self.driver == Driver::Rocket && options.soc != Soc::Rk3588 {
            return Err(Failure::usage("the mainline driver knows the rk3588 only"));
        }
        if let Some(path) = &self.fault_plan {
            options.faults = fault_plan(path)?;
        }
        Ok(Emulation { driver: self.driver, options })
    }
}

fn fault_plan(path: &Path) -> Result<FaultPlan, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
    toml::from_str(&text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// Starts a program under the library and waits for its end.
pub(crate) struct Session {
    settings: Settings,
    folder: tempfile::TempDir,
}

impl Session {
    /// A session with a folder of its own for the board's files and the report.
    pub(crate) fn new(emulate: Option<Emulation>) -> Result<Self, Failure> {
        let folder =
            tempfile::Builder::new().prefix("ork-emulate-").tempdir().map_err(|error| Failure::Failed {
                code: 1,
                message: format!("no folder for the board's files: {error}"),
                hint: None,
            })?;
        let root = folder.path().join("root");
        fs::create_dir(&root).map_err(|error| Failure::Failed {
            code: 1,
            message: format!("{}: {error}", root.display()),
            hint: None,
        })?;
        let report = Some(folder.path().join("report"));
        let settings = Settings { emulate, capture: None, report, root: Some(root), program: Vec::new() };
        Ok(Self { settings, folder })
    }

    /// Records to a file.
    pub(crate) fn capture(&mut self, path: PathBuf) {
        self.settings.capture = Some(path);
    }

    /// Runs the program.
    pub(crate) fn run(&mut self, args: &ProgramArgs) -> Result<ExitStatus, Failure> {
        let library = library(args.shim.as_deref())?;
        let [program, arguments @ ..] = &args.program[..] else { return Err(Failure::usage("no program")) };
        if is_static(Path::new(program)) {
            return Err(Failure::Failed {
                code: 2,
                message: format!(
                    "{} is statically linked: no library can be preloaded",
                    program.to_string_lossy()
                ),
                hint: Some("link it dynamically, and make its calls through libc".into()),
            });
        }
        self.settings.program = args.program.iter().map(|text| text.to_string_lossy().into_owned()).collect();
        let settings = serde_json::to_string(&self.settings).map_err(|error| Failure::Failed {
            code: 1,
            message: error.to_string(),
            hint: None,
        })?;
        let mut preload = library.into_os_string();
        if let Some(others) = inherited_preload() {
            preload.push(":");
            preload.push(others);
        }
        Command::new(program).args(arguments).env(PRELOAD, preload).env(VARIABLE, settings).status().map_err(
            |error| {
                let hint =
                    (error.kind() == ErrorKind::NotFound).then(|| "give its path, or put it on PATH".into());
                Failure::Failed {
                    code: 2,
                    message: format!("cannot start {}: {error}", program.to_string_lossy()),
                    hint,
                }
            },
        )
    }

    /// What the library reported.
    fn report(&self) -> Vec<ReportLine> {
        let text = fs::read_to_string(self.folder.path().join("report")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Prints what the library reported.
    pub(crate) fn print(&self, explain: bool, modelled_time: bool) {
        let lines = self.report();
        let processes: BTreeSet<i32> = lines.iter().map(process).collect();
        let prefix = |process: i32| if processes.len() > 1 { format!("[{process}] ") } else { String::new() };
        let mut findings = 0;
        for line in &lines {
            match line {
                ReportLine::Finding { process, text } if explain => {
                    findings += 1;
                    eprintln!("ork: {}{text}", prefix(*process));
                }
                ReportLine::End { process, modelled_ns } if modelled_time => {
                    let us = *modelled_ns as f64 / 1e3;
                    eprintln!("ork: {}modelled time on the board: {us:.1} µs", prefix(*process));
                }
                ReportLine::Trouble { process, text } => eprintln!("ork: {}{text}", prefix(*process)),
                ReportLine::Finding { .. } | ReportLine::End { .. } => {}
            }
        }
        if explain && findings == 0 {
            eprintln!("ork: nothing to explain: silicon would have had no trouble that the model knows");
        }
    }
}

fn process(line: &ReportLine) -> i32 {
    match line {
        ReportLine::Finding { process, .. }
        | ReportLine::End { process, .. }
        | ReportLine::Trouble { process, .. } => *process,
    }
}

#[expect(clippy::disallowed_methods, reason = "passed on to the program, not a setting of ork")]
fn inherited_preload() -> Option<OsString> {
    std::env::var_os(PRELOAD).filter(|value| !value.is_empty())
}

/// The library: the one that was named, or the one beside this command.
fn library(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let missing = |place: &Path| Failure::Failed {
        code: 2,
        message: format!("{} does not exist", place.display()),
        hint: Some("build it with `cargo build --release -p ork-shim`, or name it with --shim".into()),
    };
    let place = match named {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()
            .ok()
            .and_then(|own| own.canonicalize().ok())
            .and_then(|own| Some(own.parent()?.join(LIBRARY)))
            .ok_or_else(|| missing(Path::new(LIBRARY)))?,
    };
    place.canonicalize().map_err(|_| missing(&place))
}

/// Whether a path leads to an ELF program that names no loader. Names without a slash are looked up on PATH later.
fn is_static(path: &Path) -> bool {
    let Ok(mut file) = fs::File::open(path) else { return false };
    let mut head = [0; 4096];
    let got = file.read(&mut head).unwrap_or(0);
    let head = &head[..got];
    // A 64-bit little-endian ELF: 56-byte program headers from e_phoff, e_phnum of them.
    if head.len() < 64 || !head.starts_with(b"\x7fELF\x02\x01") {
        return false;
    }
    let number = |at: usize, len: usize| {
        head[at..at + len].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let (first, count) = (number(32, 8) as usize, number(56, 2) as usize);
    const INTERPRETER: u64 = 3;
    const LIBRARY_OR_PIE: u64 = 2;
    let kinds: Vec<u64> = (0..count)
        .map(|index| first + index * 56)
        .take_while(|at| at + 4 <= head.len())
        .map(|at| number(at, 4))
        .collect();
    !kinds.is_empty() && !kinds.contains(&INTERPRETER) && !kinds.contains(&LIBRARY_OR_PIE)
}

/// Ends as the program ended: with its code, or 128 and the number of the signal.
#[expect(clippy::exit, reason = "the exit code is the program's, which no failure of ork carries")]
pub(crate) fn end_as(status: ExitStatus) -> Result<(), Failure> {
    match status.code().or_else(|| status.signal().map(|signal| 128 + signal)) {
        Some(0) => Ok(()),
        code => std::process::exit(code.unwrap_or(1)),
    }
}

pub(crate) fn run(args: &EmulateArgs) -> Result<(), Failure> {
    let mut session = Session::new(Some(args.board.emulation()?))?;
    let status = session.run(&args.program)?;
    session.print(args.explain, args.modelled_time);
    // The folder goes before the process may.
    drop(session);
    end_as(status)
}
