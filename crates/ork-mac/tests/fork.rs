// SPDX-License-Identifier: MIT OR Apache-2.0
//! A child of `fork` has none of its parent's threads: an engine that it makes must not wait for them.
#![expect(clippy::unwrap_used, reason = "test inputs fit")]

use ork_mac::{Engine, GROUP_KERNELS, Kernels, Rows, scalar};

const ROWS: usize = 67;
const KERNELS: usize = 96;
const K: usize = 160;

fn product(engine: &Engine) -> Vec<i32> {
    let features: Vec<u8> = (0..ROWS * K).map(|i| (i * 37 % 251) as u8).collect();
    let weights: Vec<u8> = (0..KERNELS * K).map(|i| (i * 101 % 257) as u8).collect();
    let rows = Rows::new(&features, K, ROWS, K).unwrap();
    let kernels = Kernels::new(&weights, KERNELS, K).unwrap();
    let mut expected = vec![0; KERNELS / GROUP_KERNELS * ROWS * GROUP_KERNELS];
    scalar::int8(rows, kernels, &mut expected);
    let mut out = vec![0; expected.len()];
    engine.int8(rows, kernels, &mut out);
    assert_eq!(out, expected);
    out
}

/// The work is cut into pieces for two threads, so that one who waits for the parent's threads waits for ever.
#[test]
fn an_engine_of_a_forked_child_has_threads_of_its_own() {
    const LIMIT_S: u32 = 60;
    let engine = Engine::new(2);
    assert_eq!(engine.threads(), 2);
    product(&engine);
    // SAFETY: the child allocates, which libc allows, and touches no lock of the threads that it has not: it ends
    // itself without running anything else.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: a plain call with a number.
        unsafe { libc::alarm(LIMIT_S) };
        let done = std::panic::catch_unwind(|| {
            let own = Engine::new(2);
            assert_eq!(own.threads(), 2);
            product(&own);
        });
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = 0;
    // SAFETY: a live number to fill.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(
        libc::WIFEXITED(status),
        "the child did not end within {LIMIT_S} s: signal {}",
        libc::WTERMSIG(status)
    );
    assert_eq!(libc::WEXITSTATUS(status), 0);
}
