// SPDX-License-Identifier: MIT OR Apache-2.0
//! llama.cpp's log lines: to the engine's sink, never to stderr, and the last complaints kept for error messages.
//!
//! llama.cpp has one log callback per process, so this is the one piece of process-wide state of the engine.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// How important a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// For developers of llama.cpp.
    Debug,
    /// Facts about the model and the context.
    Info,
    /// Something odd.
    Warn,
    /// Something failed.
    Error,
}

/// Receives log lines, without their line end. May be called from any thread, also while a model loads.
#[derive(Clone)]
pub struct LogSink(Arc<Receiver>);

type Receiver = dyn Fn(LogLevel, &str) + Send + Sync;

impl LogSink {
    /// Hands every line to `sink`.
    pub fn new(sink: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(sink))
    }

    /// Drops every line.
    pub fn discard() -> Self {
        Self::new(|_, _| ())
    }
}

impl fmt::Debug for LogSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogSink")
    }
}

/// Complaints kept for error messages.
const RECENT_MAX: usize = 4;

struct State {
    sink: Option<LogSink>,
    /// A line whose end has not come yet.
    pending: Option<(LogLevel, String)>,
    recent: VecDeque<String>,
}

static STATE: Mutex<State> = Mutex::new(State { sink: None, pending: None, recent: VecDeque::new() });

fn with<R>(action: impl FnOnce(&mut State) -> R) -> R {
    action(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Directs llama.cpp's and ggml's lines to `sink`.
pub(crate) fn install(sink: LogSink) {
    with(|state| state.sink = Some(sink));
    // SAFETY: `receive` has the required type and needs no user data.
    unsafe { llama_cpp_sys_2::llama_log_set(Some(receive), std::ptr::null_mut()) };
}

/// Drops the sink; lines are discarded from now on.
pub(crate) fn remove() {
    with(|state| {
        state.sink = None;
        state.pending = None;
        state.recent.clear();
    });
}

/// The last warnings and errors since the previous call.
pub(crate) fn take_complaints() -> Vec<String> {
    with(|state| state.recent.drain(..).collect())
}

unsafe extern "C" fn receive(level: llama_cpp_sys_2::ggml_log_level, text: *const c_char, _: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: llama.cpp passes a NUL-terminated string.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let level = match level {
        llama_cpp_sys_2::GGML_LOG_LEVEL_ERROR => Some(LogLevel::Error),
        llama_cpp_sys_2::GGML_LOG_LEVEL_WARN => Some(LogLevel::Warn),
        llama_cpp_sys_2::GGML_LOG_LEVEL_INFO => Some(LogLevel::Info),
        llama_cpp_sys_2::GGML_LOG_LEVEL_CONT => None,
        _ => Some(LogLevel::Debug),
    };
    // A sink that panics must not unwind into C++.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let (sink, lines) = with(|state| (state.sink.clone(), state.accept(level, &text)));
        if let Some(LogSink(sink)) = sink {
            for (level, line) in &lines {
                sink(*level, line);
            }
        }
    }));
}

impl State {
    /// Adds a piece of text and returns the lines it completes. `None` continues the line before.
    fn accept(&mut self, level: Option<LogLevel>, text: &str) -> Vec<(LogLevel, String)> {
        let mut lines = Vec::new();
        let (level, mut line) = match (level, self.pending.take()) {
            (None, Some(pending)) => pending,
            (None, None) => (LogLevel::Info, String::new()),
            (Some(level), Some(pending)) => {
                lines.push(pending);
                (level, String::new())
            }
            (Some(level), None) => (level, String::new()),
        };
        line.push_str(text);
        let ended = line.ends_with('\n');
        let mut parts: Vec<&str> = line.split('\n').collect();
        let rest = parts.pop().unwrap_or_default();
        lines.extend(parts.into_iter().map(|part| (level, part.to_owned())));
        if !ended {
            self.pending = Some((level, rest.to_owned()));
        }
        for (_, line) in lines.iter().filter(|(level, line)| *level >= LogLevel::Warn && !line.is_empty()) {
            if self.recent.len() == RECENT_MAX {
                self.recent.pop_front();
            }
            self.recent.push_back(line.clone());
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_assembled_and_complaints_kept() {
        let mut state = State { sink: None, pending: None, recent: VecDeque::new() };
        assert_eq!(state.accept(Some(LogLevel::Info), "one\n"), [(LogLevel::Info, "one".to_owned())]);
        assert_eq!(state.accept(Some(LogLevel::Warn), "load"), []);
        assert_eq!(state.accept(None, "ing"), []);
        assert_eq!(state.accept(None, " ..\n"), [(LogLevel::Warn, "loading ..".to_owned())]);
        assert_eq!(state.accept(Some(LogLevel::Error), "cut"), []);
        let lines = state.accept(Some(LogLevel::Info), "a\nb\n");
        assert_eq!(lines.iter().map(|(_, l)| l.as_str()).collect::<Vec<_>>(), ["cut", "a", "b"]);
        for i in 0..9 {
            state.accept(Some(LogLevel::Error), &format!("e{i}\n"));
        }
        assert_eq!(state.recent, ["e5", "e6", "e7", "e8"]);
    }
}
