// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rounds on all kernels: chains on several cores, waited for in every way, without any trouble.

use crate::support;
use std::time::Duration;

use ork_device::{
    Cells, Device, DeviceOptions, DomainId, DriverKind, Elapsed, EventKind, FaultPlan, Feature, OpenError,
    Purpose, Seed, SramUse, Submission, SubmitError, SubmitMode,
};
use support::*;

const ZERO: DomainId = DomainId(0);

fn plain(kernel: (DriverKind, [u32; 3]), submit: SubmitMode) -> Device {
    device_on(kernel, FaultPlan::default(), |options| options.submit = submit).0
}

#[test]
fn every_kernel_runs_chains_on_one_to_three_cores() {
    for kernel in KERNELS {
        let (device, board) = device_on(kernel, FaultPlan::default(), |_| {});
        for cores in 1..=3 {
            let mut bench = Bench::new(&device, ZERO, cores, 4, 10 * u64::from(cores));
            let completed = bench.run(&device).unwrap();
            bench.assert_right();
            let tasks: Vec<_> = completed.iter().map(|done| (done.core(), done.tasks())).collect();
            assert_eq!(tasks, [(0, 4), (1, 4), (2, 4)][..usize::from(cores)], "{kernel:?}");
            assert!(completed.iter().all(|done| done.findings().is_empty()));
        }
        assert_eq!(device.event_counts().to_string(), "no events", "{kernel:?}");
        assert_eq!((device.counters().submits(), device.counters().tasks()), (6, 24));
        drop(device);
        assert_eq!(board.live(), Default::default(), "{kernel:?}");
    }
}

#[test]
fn polled_and_fenced_rounds_give_what_blocking_ones_give() {
    for submit in [SubmitMode::Blocking, SubmitMode::Polled, SubmitMode::Fenced] {
        for kernel in &KERNELS[..3] {
            let device = plain(*kernel, submit);
            for round in 0..3 {
                let mut bench = Bench::new(&device, ZERO, 3, 3, round);
                let completed = bench.run(&device).unwrap();
                bench.assert_right();
                let waited = matches!(completed[0].elapsed(), Elapsed::Waited { .. });
                assert_eq!(waited, submit != SubmitMode::Blocking, "{submit:?}");
            }
            assert_eq!(device.event_counts().recoveries(), 0, "{submit:?} {}", device.event_counts());
        }
    }
}

#[test]
fn a_fence_is_enough_without_a_seed_and_polling_is_not() {
    let device = plain(KERNELS[2], SubmitMode::Fenced);
    let mut bench = Bench::new(&device, ZERO, 2, 2, 1);
    bench.seed = None;
    bench.run(&device).unwrap();
    bench.assert_right();
    for (kernel, submit) in [(KERNELS[2], SubmitMode::Polled), (KERNELS[3], SubmitMode::Auto)] {
        let device = plain(kernel, submit);
        let mut bench = Bench::new(&device, ZERO, 1, 1, 1);
        bench.seed = None;
        let error = bench.run(&device).unwrap_err();
        assert!(matches!(error, SubmitError::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains("needs a seed"), "{error}");
    }
}

#[test]
fn rocket_declines_by_name_what_it_does_not_have() {
    let device = plain(KERNELS[3], SubmitMode::Auto);
    let features = device.features();
    for feature in [Feature::Domains, Feature::Chains, Feature::Fences, Feature::Reset, Feature::ImportDmaBuf]
    {
        let said = features.need(feature).unwrap_err().to_string();
        assert_eq!(said, format!("rocket does not offer {feature}"));
    }
    let matmul = Matmul::new(&device, ZERO, 1).flushed();
    let error = matmul.run(&device, 0).unwrap_err();
    assert!(error.to_string().contains("rocket does not offer a submit that waits"), "{error}");
    assert!(device.reset().unwrap_err().to_string().contains("reset"));
    assert_eq!(
        device.alloc_in(DomainId(1), Purpose::Data, 1).unwrap_err().to_string(),
        "domain 1 does not exist: rocket has 1"
    );
    let heap = device.files().allocate(4096).unwrap();
    // SAFETY: open until it is closed below.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(heap) };
    let error = device.import(ZERO, fd).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "rocket does not offer import of foreign dma-bufs");
    device.files().close(heap);
    let mut bench = Bench::new(&device, ZERO, 1, 4, 1);
    let error = bench.start(&device).unwrap().halt().unwrap_err();
    assert!(error.to_string().contains("rocket does not offer chains"), "{error}");

    let with = |change: fn(&mut DeviceOptions)| {
        let mut options = DeviceOptions { emulated_driver: DriverKind::Rocket, ..support::options() };
        change(&mut options);
        Device::open(&options).unwrap_err()
    };
    for error in [
        with(|options| options.submit = SubmitMode::Blocking),
        with(|options| options.submit = SubmitMode::Fenced),
        with(|options| options.sram = SramUse::Scratch),
    ] {
        assert!(matches!(error, OpenError::Unsupported { .. }), "{error:?}");
        assert!(error.hint().unwrap().contains("default"));
    }
    assert!(matches!(with(|options| options.domains = 2), OpenError::Option { option: "domains", .. }));
}

#[test]
fn rounds_that_cannot_be_right_are_refused_before_anything_runs() {
    let device = plain(KERNELS[2], SubmitMode::Auto);
    let mut bench = Bench::new(&device, ZERO, 2, 2, 1);
    let refusal = |bench: &mut Bench, change: &dyn Fn(&mut ork_device::Round<'_>)| {
        let mut round = bench.round();
        change(&mut round);
        device.run(round, &ork_device::Threads).unwrap_err().to_string()
    };
    let edit = |writes: &mut std::sync::Arc<[Vec<Cells>]>, change: fn(&mut Cells)| {
        let mut own = writes.to_vec();
        change(&mut own[0][0]);
        *writes = own.into();
    };
    assert!(
        refusal(&mut bench, &|round| round.chains[0].writes = vec![vec![]; 2].into())
            .contains("writes nothing")
    );
    let twice = Submission::new(0, vec![ork_device::Task::dpu(ork_isa::Iova(64), 108, 13); 2]);
    assert!(refusal(&mut bench, &|round| round.chains.clear()).contains("no chain"));
    assert!(refusal(&mut bench, &|round| round.live.end += 1).contains("leave an output"));
    assert!(
        refusal(&mut bench, &|round| round.chains[0].programs_live.end += 1).contains("leave their buffer")
    );
    assert!(
        refusal(&mut bench, &|round| round.chains[0].writes = round.chains[0].writes[..1].into())
            .contains("1 descriptions")
    );
    assert!(
        refusal(&mut bench, &|round| edit(&mut round.chains[0].writes, |cells| cells.offset += 8))
            .contains("are no cells")
    );
    assert!(
        refusal(&mut bench, &|round| edit(&mut round.chains[0].writes, |cells| cells.offset = 1 << 40))
            .contains("are no cells")
    );
    let shared = refusal(&mut bench, &|round| edit(&mut round.chains[1].writes, |cells| cells.offset = 1024));
    assert!(shared.contains("cores 0 and 1 write to the same cache lines"), "{shared}");
    let mut round = bench.round();
    round.chains[1].submission = &twice;
    let error = device.run(round, &ork_device::Threads).unwrap_err().to_string();
    assert!(error.contains("core 0 has two chains"), "{error}");
    let other = device.alloc_in(DomainId(3), Purpose::Data, 64).unwrap();
    let mut round = bench.round();
    round.inputs.push(ork_device::Input::Host(&other, 0..64));
    let error = device.run(round, &ork_device::Threads).unwrap_err().to_string();
    assert!(error.contains("a buffer of domain 3 in a round of domain 0"), "{error}");
    assert_eq!(device.counters().submits() + device.counters().failures, 0);
}

#[test]
fn cells_that_no_program_writes_stay_as_they_are() {
    for kernel in KERNELS {
        let device = plain(kernel, SubmitMode::Auto);
        let mut output = device.alloc(Purpose::Data, C_BYTES + 256).unwrap();
        output.host_mut().fill(0x77);
        output.flush(0..output.len()).unwrap();
        let mut bench = Bench::with_output(&device, output, 1, 1, 5);
        bench.run(&device).unwrap();
        bench.assert_right();
        assert!(bench.output.host()[C_BYTES as usize..].iter().all(|byte| *byte == 0x77), "{kernel:?}");
    }
}

#[test]
fn a_pending_round_shows_progress_and_lands() {
    for kernel in KERNELS {
        let device = plain(kernel, SubmitMode::Auto);
        let mut bench = Bench::new(&device, ZERO, 2, 5, 3);
        let mut pending = bench.start(&device).unwrap();
        let mut last = vec![0, 0];
        while last != [5, 5] {
            let progress = pending.progress().unwrap();
            assert!(
                progress.iter().zip(&last).all(|(now, before)| now >= before),
                "{progress:?} after {last:?}"
            );
            last = progress;
        }
        pending.wait().unwrap();
        bench.assert_right();
        // Whoever does not wait lets the end come all the same.
        bench.spoil();
        drop(bench.start(&device).unwrap());
        bench.assert_right();
        assert_eq!(device.event_counts().recoveries(), 0, "{kernel:?} {}", device.event_counts());
    }
}

#[test]
fn waiting_may_be_bounded_and_resumed() {
    let device = plain(KERNELS[2], SubmitMode::Polled);
    let mut bench = Bench::new(&device, ZERO, 1, 3, 3);
    let mut pending = bench.start(&device).unwrap();
    let mut rounds = 0;
    let completed = loop {
        if let Some(completed) = pending.wait_until(Duration::ZERO).unwrap() {
            break completed;
        }
        rounds += 1;
        assert!(rounds < 1_000_000, "it never lands");
    };
    assert_eq!(completed.len(), 1);
    drop(pending);
    bench.assert_right();
}

#[test]
fn a_halted_chain_runs_a_prefix_and_the_core_works_on() {
    for kernel in &KERNELS[..3] {
        let (device, board) = device_on(*kernel, FaultPlan::default(), |_| {});
        let mut bench = Bench::new(&device, ZERO, 2, 200, 3);
        let ran = bench.start(&device).unwrap().halt().unwrap();
        let right = bench.right();
        for (lane, ran) in ran.iter().enumerate() {
            assert!((1..=200).contains(ran), "{ran}");
            assert!(right[lane * 200..lane * 200 + ran].iter().all(|right| *right), "a prefix of {ran}");
        }
        let [halted, reaped] = events(&device, [EventKind::Halted, EventKind::Reaped]);
        let cut = ran.iter().filter(|ran| **ran < 200).count() as u64;
        assert!(halted >= reaped && reaped == cut, "{} for {ran:?}", device.event_counts());
        // The links are whole again.
        bench.spoil();
        bench.run(&device).unwrap();
        bench.assert_right();
        assert_eq!(board.live().jobs, 0);
    }
}

#[test]
fn results_do_not_depend_on_the_seed_or_its_reach() {
    for kernel in KERNELS {
        let device = plain(kernel, SubmitMode::Auto);
        let mut bench = Bench::new(&device, ZERO, 3, 2, 9);
        for seed in [Seed::in_band(1), Seed::in_band(2), Seed::in_band(4), Seed::int16(100_000)] {
            bench.spoil();
            bench.seed = Some(seed);
            bench.run(&device).unwrap();
            bench.assert_right();
        }
        assert_eq!(device.event_counts().recoveries(), 0);
    }
}

#[test]
fn a_chain_of_another_domain_waits_for_the_jobs_of_this_one() {
    let device = plain(KERNELS[1], SubmitMode::Auto);
    std::thread::scope(|scope| {
        for thread in 0..3_u8 {
            let device = &device;
            scope.spawn(move || {
                for round in 0..20 {
                    let domain = DomainId(thread % 2);
                    let mut bench = Bench::new(device, domain, 1, 2, u64::from(thread) * 100 + round);
                    bench.run(device).unwrap();
                    bench.assert_right();
                }
            });
        }
    });
    assert!(device.counters().domain_switches > 0);
    assert_eq!(device.event_counts().to_string(), "no events");
    assert!(device.board().unwrap().take_findings().is_empty(), "0.9.6 would have switched under a job");
}

#[test]
fn cells_have_a_hull() {
    let cells = Cells { offset: 64, rows: 3, row_bytes: 32, pitch_bytes: 128 };
    assert_eq!((cells.hull(), cells.bytes()), (64..64 + 256 + 32, 96));
    assert_eq!(Cells::run(16, 48).hull(), 16..64);
}
