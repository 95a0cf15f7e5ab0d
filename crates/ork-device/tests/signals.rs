// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the ends of a process leave behind: a program that is told to end gives everything back, and what one leaves
//! that is killed is known to the next. Without the usual harness, because the children are this executable.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]
#![allow(clippy::print_stdout, reason = "a child talks to its parent")]

#[path = "all/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ork_device::{Device, DomainId, DriverKind, FaultPlan, Occupancy, Purpose, Record, close_all};
use signal_hook::consts::{SIGINT, SIGKILL, SIGTERM};
use support::*;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--child", "works"] => work_until_told(),
        ["--child", "holds", folder] => hold_until_killed(Path::new(folder)),
        ["--list", ..] => println!("signals: test"),
        _ => {
            for signal in [SIGTERM, SIGINT] {
                a_signal_gives_everything_back(signal);
            }
            a_kill_is_known_to_the_next_user();
            println!("test signals ... ok");
        }
    }
}

/// Runs jobs on two devices, in several domains, until a signal comes.
fn work_until_told() {
    let devices: Vec<(Device, _)> =
        [KERNELS[2], KERNELS[3]].map(|kernel| device_on(kernel, FaultPlan::default(), |_| {})).into();
    let boards: Vec<_> = devices.iter().map(|(_, board)| board.clone()).collect();
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT]).unwrap();
    std::thread::spawn(move || {
        let signal = signals.forever().next().unwrap();
        let closed = close_all(Duration::from_secs(20));
        let handles: u64 = boards.iter().map(|board| board.live().handles).sum();
        println!("freed {} leaked {} handles {handles}", closed.freed, closed.leaked);
        signal_hook::low_level::emulate_default_handler(signal).unwrap();
    });
    let mut held = Vec::new();
    for domain in [0, 3, 5] {
        held.push(devices[0].0.alloc_in(DomainId(domain), Purpose::Data, 1 << 16).unwrap());
    }
    println!("ready");
    std::io::stdout().flush().unwrap();
    // Once the devices are closed every allocation fails, which ends this thread.
    std::thread::spawn(move || {
        for round in 0.. {
            for (device, _) in &devices {
                let mut bench = Bench::new(device, DomainId(0), 2, 2, round);
                if bench.run(device).is_ok() {
                    bench.assert_right();
                }
            }
        }
    });
    std::thread::sleep(Duration::from_secs(60));
    drop(held);
}

fn hold_until_killed(folder: &Path) {
    let occupancy = Occupancy::take(folder, DriverKind::Rknpu, Duration::ZERO).unwrap();
    let record = Record { pid: std::process::id(), domains: 2, objects: 3, bytes: 4 << 20 };
    occupancy.note(&record).unwrap();
    println!("ready");
    std::io::stdout().flush().unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

/// Starts a child and waits until it says that it is ready.
fn child(arguments: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("--child")
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, output)
}

fn send(child: &Child, signal: i32) {
    // SAFETY: a child of this process that was not waited for yet.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

fn a_signal_gives_everything_back(signal: i32) {
    let (mut child, mut output) = child(&["works"]);
    std::thread::sleep(Duration::from_millis(100));
    send(&child, signal);
    let mut said = String::new();
    output.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(signal), "the signal ends it after all");
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [freed, leaked, handles] = numbers[..] else { panic!("{said}") };
    // The three of the other domains, and some of the round; rocket's first address stays with the file.
    assert!(freed >= 3, "{said}");
    assert_eq!((leaked, handles), (0, 1), "{said}");
}

fn a_kill_is_known_to_the_next_user() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, _output) = child(&["holds", folder.path().to_str().unwrap()]);
    let pid = child.id();
    let busy = Occupancy::take(folder.path(), DriverKind::Rknpu, Duration::ZERO).unwrap_err();
    assert!(busy.to_string().contains(&format!("in use by process {pid}")), "{busy}");
    send(&child, SIGKILL);
    child.wait().unwrap();
    let next = Occupancy::take(folder.path(), DriverKind::Rknpu, Duration::ZERO).unwrap();
    assert_eq!(next.left_behind(), Some(Record { pid, domains: 2, objects: 3, bytes: 4 << 20 }));
}
