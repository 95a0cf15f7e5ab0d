// SPDX-License-Identifier: MIT OR Apache-2.0
//! A limit of 64 open files is enough. Alone in its process, because the limit is the process's.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

use std::os::fd::AsFd;

use ork_device::{Board, Coherency, Device, DeviceOptions, DriverKind, EmuOptions};

#[test]
fn sixty_four_descriptors_hold_a_model() {
    let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: a live struct to read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    for driver in [DriverKind::Rknpu, DriverKind::Rocket] {
        // With shared memory each object of the emulated kernel is a file of the process.
        let board = Board::new(&EmuOptions { coherency: Coherency::Shared, ..EmuOptions::default() });
        let options = DeviceOptions { emulated_driver: driver, ..DeviceOptions::default() };
        let device = Device::on_board(&board, &options).unwrap();
        // A model of 28 layers with 7 matrices each, and some to spare; its memory is never touched.
        let weights: Vec<_> =
            (0..300).map(|index| device.alloc_weight(1 << (18 + index % 6)).unwrap()).collect();
        assert!(weights.iter().map(ork_device::DmaBuffer::len).sum::<u64>() > 700 << 20);
        drop(weights);
        if device.lends_files() {
            lend_a_model(&device);
        }
        drop(device);
        assert_eq!(board.live(), Default::default());
    }
}

/// Weights in a file, used in place.
fn lend_a_model(device: &Device) {
    let (weights, bytes) = (300, 8192);
    let file = tempfile::tempfile().unwrap();
    file.set_len(weights * bytes).unwrap();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let lent: Vec<_> = (0..weights)
        .map(|index| device.lend_weight(file.as_fd(), index * bytes..(index + 1) * bytes).unwrap())
        .collect();
    assert_eq!((open(), lent.len() as u64), (before, weights));
}
