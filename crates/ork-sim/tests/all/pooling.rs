// SPDX-License-Identifier: MIT OR Apache-2.0
//! PPU (`isa-notes.md` E, NS.5).

use crate::common;
use common::tensor::{A, OUT};
use common::*;
use half::f16;
use ork_sim::{Core, JobEnd, SimOptions};

#[test]
fn pooling_by_minimum_and_its_quirks() {
    let bus = FlatBus::new(PROGRAM, 0x40_0000);
    let mut random = Random(20);
    let (h, w, c) = (8usize, 8usize, 16usize);
    let values: Vec<f32> = (0..h * w * c).map(|_| random.below(2000) as f32 / 8.0 - 100.0).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
    bus.put(A, &bytes);
    let mut core = Core::new(0, &SimOptions::default());
    assert_clean(&run_words(&mut core, &bus, &pool_words(A, OUT, (8, 8, 16), 2), 0x60), 1);
    let half = |at: u32, index: usize| {
        let b = bus.get(at + 2 * index as u32, 2);
        f16::from_le_bytes([b[0], b[1]]).to_f32()
    };
    for surface in 0..2 {
        for pixel in 0..16 {
            for lane in 0..8 {
                let (oy, ox) = (pixel / 4, pixel % 4);
                let inputs = (0..4).map(|i| {
                    let (y, x) = (2 * oy + i / 2, 2 * ox + i % 2);
                    values[(surface * 64 + y * 8 + x) * 8 + lane]
                });
                let expected = inputs.fold(f32::INFINITY, f32::min);
                assert_eq!(half(OUT, (surface * 16 + pixel) * 8 + lane), expected);
            }
        }
    }
    // 4 x 4 read again is fine; 2 x 2 written by the PPU and read again is not (G-10); from the host it is.
    let (second, third) = (OUT + 0x1000, OUT + 0x2000);
    assert_clean(&run_words(&mut core, &bus, &pool_words(OUT, second, (4, 4, 16), 1), 0x60), 1);
    assert_wrong(
        &run_words(&mut core, &bus, &pool_words(second, third, (2, 2, 16), 1), 0x60),
        "pool-of-small-pool",
    );
    bus.put(second, &bytes[..2 * 4 * 16]);
    assert_clean(&run_words(&mut core, &bus, &pool_words(second, third, (2, 2, 16), 1), 0x60), 1);
    // Under codes 0 the bytes are taken as fp16 (G-11).
    let int8 = patched(&pool_words(A, OUT, (8, 8, 16), 1), &[(0x6084, 0x100), (0x7030, 0)]);
    assert_wrong(&run_words(&mut core, &bus, &int8, 0x60), "pool-precision");
    for (patch, check) in [
        ((0x6024, 0x13), "pool-mode"),
        ((0x6084, 0x10A), "pool-output"),
        ((0x7010, 3), "pool-size-disagrees"),
    ] {
        core.reset();
        let words = patched(&pool_words(A, OUT, (8, 8, 16), 1), &[patch]);
        assert_unmodelled(&run_words(&mut core, &bus, &words, 0x60), check);
    }
    for (patch, check) in
        [((0x701C, 0x7000_0000), "pool-read-fault"), ((0x6070, 0x7000_0000), "pool-write-fault")]
    {
        core.reset();
        let words = patched(&pool_words(A, OUT, (8, 8, 16), 1), &[patch]);
        let outcome = run_words(&mut core, &bus, &words, 0x60);
        match &outcome.end {
            JobEnd::Hang(diagnosis) => assert_eq!(diagnosis.check, check),
            end => panic!("{end:?}"),
        }
    }
}

#[test]
fn a_pool_reads_garbage_from_planes_with_a_side_below_4() {
    // isa-notes G-10: both sides count, the order of the factors decides (smallest first).
    for ((h, w), good) in
        [((8, 8), true), ((8, 16), true), ((6, 16), false), ((16, 6), false), ((4, 4), false)]
    {
        let bus = FlatBus::new(PROGRAM, 0x40_0000);
        let bytes: Vec<u8> =
            (0..h * w * 16u32).flat_map(|i| f16::from_f32((i * 7 % 251) as f32).to_le_bytes()).collect();
        bus.put(A, &bytes);
        let mut core = Core::new(0, &SimOptions::default());
        assert_clean(&run_words(&mut core, &bus, &pool_words(A, OUT, (h, w, 16), 1), 0x60), 1);
        let outcome = run_words(&mut core, &bus, &pool_words(OUT, OUT + 0x1000, (h / 2, w / 2, 16), 1), 0x60);
        if good {
            assert_clean(&outcome, 1);
        } else {
            assert_wrong(&outcome, "pool-of-small-pool");
        }
        // The host's copy of the same plane is read rightly.
        let plane = bus.get(OUT, (h / 2 * w / 2 * 16 * 2) as usize);
        let from_ppu = bus.get(OUT + 0x1000, (h / 4 * (w / 4) * 32) as usize);
        let moved = OUT + 0x4000;
        bus.put(moved, &plane);
        assert_clean(
            &run_words(&mut core, &bus, &pool_words(moved, OUT + 0x2000, (h / 2, w / 2, 16), 1), 0x60),
            1,
        );
        let from_host = bus.get(OUT + 0x2000, (h / 4 * (w / 4) * 32) as usize);
        assert_eq!(from_ppu == from_host, good, "{h} x {w}");
    }
}
