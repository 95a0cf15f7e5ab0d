// SPDX-License-Identifier: MIT OR Apache-2.0
//! The convolution buffer: what fits, and what happens when it does not (`isa.md` §10.2 to §10.5).
mod common;

use common::tensor::*;
use common::*;
use half::f16;
use ork_sim::SimOptions;

#[test]
fn fp16_kernel_groups_that_do_not_fit_hang() {
    // isa.md §10.2, §10.4, §10.5: K <= 1024 W; W = 1 with K = 1024 and narrow N.
    for (k, n, split, check) in [
        (1024, 64, 0x1B, None),
        (1056, 64, 0x1B, Some("weight-group")),
        (1056, 64, 0x2A, None),
        (1024, 16, 0x1B, Some("single-weight-bank")),
        (1024, 32, 0x1B, Some("single-weight-bank")),
        (1024, 16, 0x48, None),
        (64, 64, 0x0B, Some("no-weight-bank")),
    ] {
        let case = Case::new(Spec { split, ..Spec::matmul(Kind::Fp16, Out::Fp32, 4, k, n) }, 9);
        let outcome = case.run(&SimOptions::default(), &[]);
        match check {
            None => {
                assert_clean(&outcome, 1);
                assert_eq!(case.got(), case.expected(), "K {k} N {n} split {split:#x}");
            }
            Some(check) => assert_hang(&outcome, check, 0),
        }
    }
}

#[test]
fn fp16_row_caps() {
    // isa.md §10.4: 180224 / K at 11 banks, 16384 / K at one bank.
    for (k, split, cap) in
        [(256, 0x1B, 704), (512, 0x1B, 352), (384, 0xB1, 42), (640, 0xB1, 25), (1536, 0xB1, 10)]
    {
        for (m, good) in [(cap, true), (cap + 1, false)] {
            // Rows as atoms of one line each, in row-major form.
            let mut case = Case::new(Spec { split, ..Spec::matmul(Kind::Fp16, Out::Fp32, m, k, 64) }, 10);
            let row_major: Vec<u8> = (0..m)
                .flat_map(|row| (0..k).map(move |i| (row, i)))
                .flat_map(|(row, i)| f16::from_f64(case.a[i * m + row]).to_le_bytes())
                .collect();
            case.bus.put(A, &row_major);
            let patch = [(0x100C, 0x2000_0120), (0x107C, k as u32 / 8), (0x1080, 0)];
            let outcome = case.run(&SimOptions::default(), &patch);
            if good {
                assert_clean(&outcome, 1);
            } else {
                assert_wrong(&outcome, "feature-capacity");
            }
            assert_eq!(case.got() == case.expected(), good, "{m} rows at K = {k}");
            case.a.clear();
        }
    }
}

#[test]
fn captured_splits_satisfy_the_rules() {
    // isa.md §10.2: rows per task and 0x1040 of the vendor's full-K fp16 chains.
    for (k, m, split) in
        [(512, 64, 0x84), (1024, 48, 0x48), (2048, 32, 0x2A), (4096, 24, 0x48), (8192, 8, 0x84)]
    {
        let case = Case::new(Spec { split, ..Spec::matmul(Kind::Fp16, Out::Fp32, m, k, 16) }, 21);
        assert_clean(&case.run(&SimOptions::default(), &[]), 1);
        assert!(case.got() == case.expected(), "K {k}");
    }
}

#[test]
fn the_holes_of_the_halved_schedule() {
    // isa.md §10.5: K = 128, splits B8, B1, AA, A3, 9C, 95, 8E for 1 to 7 groups of 64 rows; N a third of 2048.
    for (m, split, good) in [
        (64, 0xB8, false),
        (65, 0xB1, true),
        (128, 0xB1, true),
        (144, 0xAA, false),
        (192, 0xAA, false),
        (256, 0xA3, true),
        (288, 0x9C, false),
        (320, 0x9C, false),
        (384, 0x95, true),
        (448, 0x8E, false),
    ] {
        let case = Case::new(Spec { split, ..Spec::matmul(Kind::Fp16, Out::Fp32, m, 128, 688) }, 22);
        let outcome = case.run(&SimOptions::default(), &[]);
        if good {
            assert_clean(&outcome, 1);
        } else {
            assert_wrong(&outcome, "split-overlaps");
        }
    }
}
