// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory: pooled weights, address spaces, dma-bufs, on-chip memory, and giving everything back.

use crate::support;
use std::os::fd::BorrowedFd;

use ork_device::{
    Board, Device, DeviceError, DeviceOptions, DomainId, DriverKind, EmuOptions, FaultPlan, OpenError,
    Purpose, SramUse, SubmitMode,
};
use support::*;

const ZERO: DomainId = DomainId(0);

/// Weights of many sizes, each with its own pattern.
fn weights(device: &Device, count: usize) -> Vec<ork_device::DmaBuffer> {
    (0..count)
        .map(|index| {
            let mut weight = device.alloc_weight(1000 + (index as u64 * 7919) % 100_000).unwrap();
            weight.host_mut().fill(index as u8);
            weight.flush(0..weight.len()).unwrap();
            weight
        })
        .collect()
}

#[test]
fn weights_share_few_objects_and_keep_apart() {
    for kernel in KERNELS {
        let (device, board) = device_on(kernel, FaultPlan::default(), |_| {});
        let before = board.live().objects;
        let mut held = weights(&device, 500);
        let objects = board.live().objects - before;
        assert!(objects <= 20, "{objects} objects for 500 weights");
        for (index, weight) in held.iter().enumerate() {
            assert!(weight.host().iter().all(|byte| *byte == index as u8), "weight {index}");
            assert_eq!(weight.iova().0 % 256, 0);
        }
        let mut ranges: Vec<_> =
            held.iter().map(|w| (u64::from(w.iova().0), u64::from(w.iova().0) + w.len())).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        // Each second one goes, and its place is used again.
        let mut index = 0;
        held.retain(|_| {
            index += 1;
            index % 2 == 0
        });
        let bytes = board.live().dram_bytes;
        let more = weights(&device, 200);
        assert_eq!(board.live().dram_bytes, bytes, "{kernel:?}");
        drop((held, more));
        assert_eq!(board.live().objects, before, "empty objects are freed");
        drop(device);
        assert_eq!(board.live(), Default::default());
    }
}

#[test]
fn a_pooled_weight_works_and_cannot_be_read_back() {
    for kernel in KERNELS {
        let (device, board) = device_on(kernel, FaultPlan::default(), |_| {});
        let _other = weights(&device, 3);
        let mut weight = device.alloc_weight(4096).unwrap();
        assert_eq!(weight.domain(), ZERO);
        fill(&mut weight, 0, &[9; 4096]);
        weight.flush(0..4096).unwrap();
        let mut bench = Bench::new(&device, ZERO, 1, 1, 3);
        let completed = bench.run(&device).unwrap();
        assert!(matches!(weight.invalidate(0..64, &completed[0]), Err(DeviceError::Pooled)));
        let resident = weight.unmap_host();
        drop(bench);
        // The newest object stays mapped; a mapping of the weight is another use of it.
        let again = resident.map_host().unwrap();
        assert!(again.host().iter().all(|byte| *byte == 9));
        drop((again, device));
        drop(_other);
        assert_eq!(board.live(), Default::default(), "{kernel:?}");
    }
}

#[test]
fn address_spaces_are_filled_one_after_the_other_before_they_overflow() {
    let mib = 1 << 20;
    let (device, board) =
        device_on(KERNELS[2], FaultPlan { window_bytes: Some(12 * mib), ..Default::default() }, |options| {
            options.domain_bytes_max = 8 * mib;
            options.domains = 3;
        });
    let held: Vec<_> = (0..6).map(|_| device.alloc_weight(4 * mib).unwrap()).collect();
    let domains: Vec<u8> = held.iter().map(|weight| weight.domain().0).collect();
    assert_eq!(domains, [0, 0, 1, 1, 2, 2]);
    assert_eq!(device.weight_bytes(), [8 * mib; 3]);
    assert!(board.take_findings().is_empty(), "no window was ever full");
    let error = device.alloc_weight(4 * mib).unwrap_err();
    assert!(matches!(error, DeviceError::NoRoom { domains: 3, .. }) && error.is_full(), "{error:?}");
    assert!(error.hint().unwrap().contains("stream"));
    // Two switches of the domain, whatever the number of weights.
    let before = device.counters().domain_switches;
    for weight in &held {
        weight.flush(0..64).unwrap();
    }
    assert_eq!(device.counters().domain_switches - before, 3, "back to 0, to 1, to 2");
    drop(held);
    assert_eq!(device.weight_bytes(), [0; 3]);
    device.alloc_weight(4 * mib).unwrap();
}

#[test]
fn an_expected_total_is_spread_evenly() {
    let (device, _) =
        device_on(KERNELS[2], FaultPlan::default(), |options| options.domain_bytes_max = 10 << 20);
    device.expect_weights(12 << 20);
    let held: Vec<_> = (0..12).map(|_| device.alloc_weight(1 << 20).unwrap()).collect();
    assert_eq!(device.weight_bytes()[..3], [6 << 20, 6 << 20, 0]);
    drop(held);
}

#[test]
fn a_kernel_without_domains_has_one_window() {
    for kernel in [KERNELS[0], KERNELS[3]] {
        let (device, _) =
            device_on(kernel, FaultPlan::default(), |options| options.domain_bytes_max = 1 << 20);
        let _weight = device.alloc_weight(1 << 20).unwrap();
        assert!(matches!(device.alloc_weight(1), Err(DeviceError::NoRoom { domains: 1, .. })), "{kernel:?}");
    }
}

/// A dma-buf of the board's heap.
fn heap(device: &Device, len: u64) -> i32 {
    device.files().allocate(len).unwrap()
}

#[test]
fn a_dma_buf_is_used_in_place_with_its_own_maintenance() {
    for kernel in &KERNELS[..3] {
        for domain in if kernel.1 == [0, 9, 2] { vec![ZERO] } else { vec![ZERO, DomainId(2)] } {
            let (device, board) = device_on(*kernel, FaultPlan::default(), |_| {});
            let fd = heap(&device, C_BYTES * 2);
            // SAFETY: open until it is closed below.
            let output = device.import(domain, unsafe { BorrowedFd::borrow_raw(fd) }).unwrap();
            assert_eq!((output.len(), output.domain()), (4096, domain), "whole pages");
            let mut bench = Bench::with_output(&device, output, 2, 1, 21);
            bench.run(&device).unwrap();
            bench.assert_right();
            bench.spoil();
            bench.run(&device).unwrap();
            bench.assert_right();
            assert_eq!(device.counters().buffers_imported, 1);
            drop(bench);
            device.files().close(fd);
            drop(device);
            assert_eq!(board.live(), Default::default(), "{kernel:?} domain {domain}");
        }
    }
}

#[test]
fn an_import_serves_every_way_to_wait() {
    for submit in [SubmitMode::Blocking, SubmitMode::Polled, SubmitMode::Fenced] {
        let (device, _) = device_on(KERNELS[2], FaultPlan::default(), |options| options.submit = submit);
        let fd = heap(&device, C_BYTES);
        // SAFETY: open until it is closed below.
        let output = device.import(ZERO, unsafe { BorrowedFd::borrow_raw(fd) }).unwrap();
        device.files().close(fd);
        let mut bench = Bench::with_output(&device, output, 1, 1, 5);
        bench.run(&device).unwrap();
        bench.assert_right();
    }
}

#[test]
fn what_is_no_dma_buf_is_not_imported() {
    let (device, board) = device_on(KERNELS[2], FaultPlan::default(), |_| {});
    let file = tempfile::tempfile().unwrap();
    let error = device.import(ZERO, std::os::fd::AsFd::as_fd(&file)).unwrap_err();
    assert!(error.to_string().contains("cannot import"), "{error}");
    drop(device);
    assert_eq!(board.live(), Default::default());
}

#[test]
fn scratch_may_lie_on_chip() {
    let emulated = EmuOptions { sram_bytes: 956 << 10, ..EmuOptions::default() };
    let board = Board::new(&emulated);
    let options = DeviceOptions { sram: SramUse::Scratch, ..options() };
    let device = Device::on_board(&board, &options).unwrap();
    let small = device.alloc_scratch(ZERO, C_BYTES).unwrap();
    let rest = device.alloc_scratch(ZERO, 2 << 20).unwrap();
    assert_eq!(small.sram_bytes(), 4096);
    assert_eq!(small.sram_bytes() + rest.sram_bytes(), 956 << 10);
    assert_eq!(device.counters().sram_bytes, 956 << 10);
    assert_eq!(device.alloc(Purpose::Data, 4096).unwrap().sram_bytes(), 0);
    let mut bench = Bench::with_output(&device, small, 1, 1, 5);
    bench.run(&device).unwrap();
    bench.assert_right();

    let none = Board::new(&EmuOptions::default());
    let error = Device::on_board(&none, &options).unwrap_err();
    assert!(matches!(error, OpenError::Unsupported { option: "sram", .. }), "{error}");
    assert_eq!(none.live(), Default::default());
}

#[test]
fn an_output_that_shares_its_object_is_refused() {
    let (device, _) = device_on(KERNELS[2], FaultPlan::default(), |_| {});
    let output = device.alloc_weight(C_BYTES).unwrap();
    let mut bench = Bench::with_output(&device, output, 1, 1, 5);
    let error = bench.run(&device).unwrap_err();
    assert!(error.to_string().contains("shares a kernel object"), "{error}");
}

#[test]
fn maintenance_is_of_ranges_or_says_how_much_more_it_was() {
    for kernel in KERNELS {
        let (device, _) = device_on(kernel, FaultPlan::default(), |_| {});
        let buffer = device.alloc(Purpose::Data, 1 << 20).unwrap();
        let before = device.counters();
        buffer.flush(0..64).unwrap();
        let after = device.counters();
        assert_eq!(after.bytes_flushed - before.bytes_flushed, 64);
        let maintained = after.bytes_maintained - before.bytes_maintained;
        let expected = if kernel.0 == DriverKind::Rknpu { 64 } else { 1 << 20 };
        assert_eq!(maintained, expected, "{kernel:?}");
    }
}
