// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text from a model with every weight matmul on the plain software accelerator of the tests.
//!
//! `cargo run --release -p ork-engine --example naive -- MODEL.gguf [npu|auto|cpu|compare] [PROMPT] [THREADS]`

#![allow(clippy::print_stdout, reason = "an example for the terminal")]

#[path = "../tests/support/naive.rs"]
mod naive;

use ork_engine::{
    ContextOptions, Divergence, Engine, Event, GenerateOptions, Generation, LoadOptions, LogSink, Model,
    Prompt, Sampling, Stopwatch, linked_host, logits,
};
use ork_ggml::{BackendOptions, OrkBackend, Route};
use std::error::Error;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(
        arguments.next().ok_or("usage: naive MODEL.gguf [npu|auto|cpu|compare] [PROMPT] [THREADS]")?,
    );
    let mode = arguments.next().unwrap_or_else(|| "npu".to_owned());
    let prompt = arguments.next().unwrap_or_else(|| "Why is the sky blue?".to_owned());
    let threads = arguments.next().map(|text| text.parse()).transpose()?;
    let context = ContextOptions { threads, ..ContextOptions::default() };
    let route = match mode.as_str() {
        "cpu" => Route::Cpu,
        "auto" => Route::default(),
        _ => Route::Npu,
    };
    let accelerator = Arc::new(naive::NaiveAccelerator::default());
    let options = BackendOptions { route, ..BackendOptions::default() };
    let backend = OrkBackend::new(linked_host(), accelerator, options)?;
    let engine = Engine::init(Some(Arc::clone(&backend)), LogSink::discard())?;
    let load = || Model::load(&engine, &path, &LoadOptions::default(), &mut |_| ControlFlow::Continue(()));
    let model = load()?;
    println!("{:#?}", model.info());

    if mode == "compare" {
        let text = "All human beings are born free and equal in dignity and rights. ".repeat(50);
        let tokens = model.tokenize(&text)?;
        let tokens = &tokens[..tokens.len().min(512)];
        let npu = logits(&model, tokens, &context)?;
        drop(model);
        backend.set_route(Route::Cpu);
        let cpu = logits(&load()?, tokens, &context)?;
        println!("{:#?}", Divergence::between(&cpu, &npu, 0)?);
        return Ok(());
    }
    let mut generation = Generation::new(&model, &context)?;
    let generate = GenerateOptions { max_tokens: 64, sampling: Sampling::greedy() };
    let stats = generation.run(&Prompt::user(prompt), &generate, &mut |event| {
        if let Event::Text(piece) = event {
            print!("{piece}");
            if std::io::stdout().flush().is_err() {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    println!("\n\n{stats:?}\n{}", backend.census());
    drop(generation);
    let mut stopwatch = Stopwatch::open(&model, 256, &context)?;
    stopwatch.prefill(256)?;
    let (prefill, decode) = (stopwatch.prefill(256)?, stopwatch.decode(64)?);
    println!(
        "prefill {:.1} t/s, decode {:.1} t/s",
        256.0 / prefill.as_secs_f64(),
        64.0 / decode.as_secs_f64()
    );
    Ok(())
}
