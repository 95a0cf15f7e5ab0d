// SPDX-License-Identifier: MIT OR Apache-2.0
//! An arm runs in a process of its own, so that arms may differ in any setting and share nothing but the machine. Orders
//! and answers are JSON, one a line.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use ork_bench::{NpuPart, Test, TestKind};
use ork_config::Config;
use ork_driver::DriverCounters;
use ork_engine::{ContextOptions, Model, ModelInfo, Stopwatch};
use serde::{Deserialize, Serialize};

use super::arms::Arm;
use crate::failure::{Failure, chain};
use crate::session::{Log, Session};

/// What an arm's process is told first.
#[derive(Serialize, Deserialize)]
struct Start {
    model: PathBuf,
    config: Box<Config>,
    /// Tokens of the longest test.
    tokens_max: u32,
}

/// What it says of itself when the model is loaded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct About {
    pub(super) info: ModelInfo,
    pub(super) device: String,
    pub(super) npu: NpuKind,
}

/// Which NPU an arm has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum NpuKind {
    None,
    Real,
    Simulated,
}

/// What it says of a run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Timed {
    pub(super) seconds: f64,
    pub(super) npu: NpuPart,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Ready(Box<About>),
    Timed(Timed),
    Failed { code: u8, message: String, hint: Option<String> },
}

/// The other end of an arm's process. It ends when this is dropped: its stdin is closed then.
pub(super) struct Process {
    name: String,
    child: Child,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    pub(super) about: About,
}

impl Process {
    /// Starts one and waits until the model is loaded.
    pub(super) fn start(arm: &Arm, tokens_max: u32) -> Result<Self, Failure> {
        let failed = |doing: &str, error: &dyn std::error::Error| {
            failure(format!("arm {}: cannot {doing} its process: {}", arm.name, error))
        };
        let program = std::env::current_exe().map_err(|error| failed("find the program of", &error))?;
        let mut child = Command::new(program)
            .arg("bench-arm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed("start", &error))?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let answers = answers.ok_or_else(|| failure(format!("arm {}: no answers", arm.name)))?;
        let about = About { info: no_model(), device: String::new(), npu: NpuKind::None };
        let answers = BufReader::new(answers).lines();
        let mut process = Self { name: arm.name.clone(), child, orders, answers, about };
        let start = Start { model: arm.model.clone(), config: Box::new(arm.config.clone()), tokens_max };
        match process.ask(&start)? {
            Answer::Ready(about) => process.about = *about,
            _ => return Err(process.ended("answered something else")),
        }
        Ok(process)
    }

    /// Runs a test once.
    pub(super) fn time(&mut self, test: Test) -> Result<Timed, Failure> {
        match self.ask(&test)? {
            Answer::Timed(timed) => Ok(timed),
            _ => Err(self.ended("answered something else")),
        }
    }

    fn ask(&mut self, order: &impl Serialize) -> Result<Answer, Failure> {
        let line = serde_json::to_string(order).map_err(|error| failure(error.to_string()))? + "\n";
        let sent = self.orders.as_mut().is_some_and(|orders| orders.write_all(line.as_bytes()).is_ok());
        let answer = match self.answers.next() {
            Some(Ok(line)) if sent => {
                serde_json::from_str(&line).map_err(|error| failure(error.to_string()))?
            }
            _ => return Err(self.ended("ended early")),
        };
        match answer {
            Answer::Failed { code, message, hint } => {
                Err(Failure::Failed { code, message: format!("arm {}: {message}", self.name), hint })
            }
            answer => Ok(answer),
        }
    }

    fn ended(&mut self, what: &str) -> Failure {
        self.orders = None;
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        failure(format!("arm {}: its process {what} ({status})", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.orders = None;
        // It has nothing left to say, and ends when it sees that.
        let _ = self.child.wait();
    }
}

fn failure(message: String) -> Failure {
    Failure::Failed { code: 1, message, hint: None }
}

/// What stands for a model that is not loaded yet.
fn no_model() -> ModelInfo {
    ModelInfo {
        description: String::new(),
        architecture: None,
        name: None,
        tensor_types: Default::default(),
        layers: 0,
        embedding: 0,
        trained_context: 0,
        vocabulary: 0,
        parameters: 0,
        tensor_bytes: 0,
        file_bytes: 0,
        chat_template: false,
    }
}

/// `ork bench-arm`: the process of an arm.
pub(crate) fn arm_process() -> Result<(), Failure> {
    match serve() {
        Err(Failure::Failed { code, message, hint }) => answer(&Answer::Failed { code, message, hint }),
        other => other,
    }
}

fn answer(answer: &Answer) -> Result<(), Failure> {
    let line = serde_json::to_string(answer).map_err(|error| failure(error.to_string()))? + "\n";
    crate::failure::print(&line)
}

fn serve() -> Result<(), Failure> {
    let mut orders = std::io::stdin().lines();
    let wrong =
        |error: serde_json::Error| Failure::usage(format!("bench-arm is for ork bench: {}", chain(&error)));
    let read = |line: Option<std::io::Result<String>>| match line {
        Some(Ok(line)) => Ok(Some(line)),
        None => Ok(None),
        Some(Err(error)) => Err(Failure::usage(format!("bench-arm cannot read its orders: {error}"))),
    };
    let Some(first) = read(orders.next())? else {
        return Err(Failure::usage("bench-arm is for ork bench, which gives it orders"));
    };
    let Start { model, config, tokens_max } = serde_json::from_str(&first).map_err(wrong)?;
    let session = Session::start(&config, Log::Quiet)?;
    let model = session.load(&model, &config)?;
    let about = about(&session, &model);
    let mut arm = Serving::open(&session, &model, tokens_max, &config.context)?;
    answer(&Answer::Ready(Box::new(about)))?;
    while let Some(line) = read(orders.next())? {
        let test = serde_json::from_str(&line).map_err(wrong)?;
        answer(&Answer::Timed(arm.time(test)?))?;
    }
    Ok(())
}

fn about(session: &Session, model: &Model) -> About {
    let device = session.npu.as_ref().map(|npu| npu.driver.device());
    let npu = match device {
        None => NpuKind::None,
        Some(device) if device.board().is_some() => NpuKind::Simulated,
        Some(_) => NpuKind::Real,
    };
    let device = device.map_or("CPU", |device| device.describe()).to_owned();
    About { info: model.info().clone(), device, npu }
}

struct Serving<'s> {
    session: &'s Session,
    stopwatch: Stopwatch<'s>,
}

/// Everything that is counted from the start of a process.
#[derive(Clone, Copy, Default)]
struct Counted {
    products: u64,
    backend: Duration,
    computing: Option<Duration>,
    emulating: Option<Duration>,
    driver: DriverCounters,
}

impl<'s> Serving<'s> {
    fn open(
        session: &'s Session,
        model: &'s Model,
        tokens_max: u32,
        options: &ContextOptions,
    ) -> Result<Self, Failure> {
        Ok(Self { session, stopwatch: Stopwatch::open(model, tokens_max, options)? })
    }

    fn counted(&self) -> Counted {
        let Some(npu) = &self.session.npu else { return Counted::default() };
        let executed = npu.backend.census().executed;
        Counted {
            products: executed.on_accelerator(),
            backend: executed.time,
            computing: npu.driver.device().board().map(|board| board.computing_time()),
            emulating: npu.driver.device().board().map(|board| board.emulating_time()),
            driver: npu.driver.counters(),
        }
    }

    fn time(&mut self, test: Test) -> Result<Timed, Failure> {
        let before = self.counted();
        let time = match test.kind {
            TestKind::Prefill => self.stopwatch.prefill(test.tokens)?,
            TestKind::Decode => self.stopwatch.decode(test.tokens)?,
        };
        Ok(Timed { seconds: time.as_secs_f64(), npu: part(&before, &self.counted()) })
    }
}

/// What was done in between.
fn part(before: &Counted, after: &Counted) -> NpuPart {
    let since = |of: fn(&Counted) -> Duration| of(after).saturating_sub(of(before)).as_secs_f64();
    // Without an emulated board, all that is known is when the driver waited.
    let waited = since(|c| c.driver.submit);
    let on_board = |of: fn(&Counted) -> Option<Duration>| {
        of(after).zip(of(before)).map_or(waited, |(after, before)| after.saturating_sub(before).as_secs_f64())
    };
    NpuPart {
        products: after.products - before.products,
        programs: after.driver.programs - before.driver.programs,
        backend_s: since(|c| c.backend),
        npu_s: on_board(|c| c.computing),
        below_ioctl_s: on_board(|c| c.emulating),
        modelled_us: (after.driver.modelled_ns - before.driver.modelled_ns) as f64 / 1e3,
        quantise_s: since(|c| c.driver.turn + c.driver.quantise),
        synthesise_s: since(|c| c.driver.synthesise),
        sync_s: since(|c| c.driver.sync),
        submit_s: since(|c| c.driver.submit),
        dequantise_s: since(|c| c.driver.dequantise),
    }
}

/// The file that a model came from, as reports name it.
pub(super) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
