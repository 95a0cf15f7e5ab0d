// SPDX-License-Identifier: MIT OR Apache-2.0
//! int4 (`isa-int4-sdp.md` §1).

use crate::common;
use common::tensor::*;
use common::*;
use ork_isa::regs::{cna, dpu};
use ork_sim::{Int4Saturation, Silicon, SimOptions};

#[test]
fn int4_saturates_once_or_after_every_pass() {
    // isa-int4-sdp.md §1.1: K = 2048, weights 7, activations 7 then -7: 0, or -17409.
    let k = 2048;
    let a: Vec<f64> = (0..k).map(|i| if i < k / 2 { 7.0 } else { -7.0 }).collect();
    let case = Case::with(Spec::matmul(Kind::Int4, Out::Int16, 1, k, 64), a, vec![7.0; 64 * k]);
    assert_clean(&case.run(&SimOptions::default(), &[]), 1);
    assert!(case.got().iter().all(|value| *value == 0.0));
    let silicon = Silicon { int4_saturation: Int4Saturation::EveryPass, ..Silicon::default() };
    assert_clean(&case.run(&SimOptions { silicon, ..SimOptions::default() }, &[]), 1);
    assert!(case.got().iter().all(|value| *value == -17409.0));
    // 49 * 700 leaves the range for good.
    let full =
        Case::with(Spec::matmul(Kind::Int4, Out::Int16, 1, 704, 64), vec![7.0; 704], vec![7.0; 64 * 704]);
    assert_clean(&full.run(&SimOptions::default(), &[]), 1);
    assert!(full.got().iter().all(|value| *value == 32767.0));
}

#[test]
fn int4_rows_in_stream_order() {
    // isa-int4-sdp.md §1.3, §1.5: logical row j at physical line 2j, results in blocks of 64 at 4j + 4 Hg b.
    let (k, n) = (256usize, 128usize);
    for rows in [1usize, 3, 8] {
        let case = Case::new(Spec::matmul(Kind::Int4, Out::Int16, rows, k, n), 12);
        let mut lines = vec![0u8; rows * 2 * k / 2];
        for row in 0..rows {
            for i in 0..k {
                Kind::Int4.store(case.a[i * rows + row], row * 2 * k + i, &mut lines);
            }
        }
        case.bus.put(A, &lines);
        let lr = 4 * rows as u32;
        let notch = n as u32 / 4 - 1;
        let patch = [
            (0x1010, 16 * (lr + 1)),
            (0x1020, 0x1_0000 | lr),
            (0x102C, lr),
            (0x1040, 0xB1),
            (0x107C, k as u32 / 16),
            (0x1080, 0x0FFF_FFFD),
            (0x1084, 0x1_0000 | lr),
            (0x3010, 0x601),
            (0x3014, (lr - 1) << 16),
            (0x4024, 0x10),
            (0x4034, lr - 1),
            (0x4038, notch << 16 | notch),
            (0x405C, 0),
            (0x40C0, 0x80),
        ];
        assert_clean(&case.run(&SimOptions::default(), &patch), 1);
        let raw = case.bus.get(OUT, 4 * rows * n * 2);
        let expected = case.expected();
        for row in 0..rows {
            for col in 0..n {
                let at = 64 * (4 * row + 4 * rows * (col / 64)) + col % 64;
                assert_eq!(Out::Int16.load(&raw, at), expected[col * rows + row], "row {row} column {col}");
            }
        }
        // Three quarters of the slot are never written.
        let written = raw.chunks_exact(128).filter(|block| block.iter().any(|byte| *byte != 0)).count();
        assert_eq!(written, rows * n / 64);
        // A slot that ends where an operand begins touches nothing of it, whatever the notch says.
        let mut below = patch.to_vec();
        below.push((0x4020, A - (4 * rows * n * 2) as u32));
        assert_clean(&case.run(&SimOptions::default(), &below), 1);
        // With a write size rows above 0 are wrong (§1.4); with another line stride other lines are read (§1.5).
        let read = |raw: &[u8], row: usize, col: usize| {
            Out::Int16.load(raw, 64 * (4 * row + 4 * rows * (col / 64)) + col % 64)
        };
        let right = |raw: &[u8]| -> Vec<bool> {
            (0..rows).map(|row| (0..n).all(|col| read(raw, row, col) == expected[col * rows + row])).collect()
        };
        let with = |change: (u16, u32)| {
            let mut words = patch.to_vec();
            words.push(change);
            words
        };
        let sized = to(dpu::WdmaSize1(0).with_height_wdma(lr - 1).unwrap());
        assert_wrong(&case.run(&SimOptions::default(), &with(sized)), "int4-rows");
        let kept: Vec<bool> = (0..rows).map(|row| row == 0).collect();
        assert_eq!(right(&case.bus.get(OUT, 4 * rows * n * 2)), kept);
        let strided = to(cna::DmaCon1(0).with_line_stride(k as u32 / 16 + 1).unwrap());
        let outcome = case.run(&SimOptions::default(), &with(strided));
        assert_wrong(&outcome, "int4-line-stride");
        assert_eq!(right(&case.bus.get(OUT, 4 * rows * n * 2)).iter().all(|right| *right), rows == 1);
    }
}

#[test]
fn int4_row_caps_follow_from_the_last_line_that_counts() {
    // isa-int4-sdp.md §1.6, one feature bank: lines of ceil(K / 128) granules, of which every fourth counts. This
    // gives the measured table, flat regions and odd caps included, but for K = 2816 to 3584 (6, 6, 5 against 4).
    for (k, cap) in [
        (64, 128),
        (128, 128),
        (160, 64),
        (224, 64),
        (256, 64),
        (512, 32),
        (768, 22),
        (1024, 16),
        (1536, 11),
        (2048, 8),
        (2560, 7),
        (4096, 4),
        (5120, 3),
        (6144, 3),
        (8192, 2),
    ] {
        for (rows, good) in [(cap, true), (cap + 1, false)] {
            let spec = Spec { split: 0xB1, ..Spec::matmul(Kind::Int4, Out::Int16, rows, k, 64) };
            let case = Case::with(spec, vec![1.0; rows * k], vec![1.0; 64 * k]);
            let lr = 4 * rows as u32;
            case.bus.put(A, &vec![0x11; 2 * rows * k]);
            let patch = [
                (0x1020, 0x1_0000 | lr),
                (0x102C, lr),
                (0x1044, (k as u32).div_ceil(128)),
                (0x107C, k as u32 / 16),
                (0x1080, 0x0FFF_FFFD),
                (0x1084, 0x1_0000 | lr),
                (0x3014, (lr - 1) << 16),
                (0x4024, 0x10),
                (0x4034, lr - 1),
                (0x405C, 0),
                (0x40C0, 0x80),
            ];
            let outcome = case.run(&SimOptions::default(), &patch);
            let raw = case.bus.get(OUT, 4 * rows * 128);
            let last = Out::Int16.load(&raw, 64 * 4 * (rows - 1));
            if good {
                assert_clean(&outcome, 1);
                assert_eq!(last, k as f64, "K = {k}");
            } else {
                assert_wrong(&outcome, "feature-capacity");
                assert_ne!(last, k as f64, "K = {k}");
            }
        }
    }
}

#[test]
fn a_deep_int4_stream_needs_its_split() {
    // isa-int4-sdp.md §1.6: at K >= 4096 only 0xB1 works; below, (12 - n) << 4 | n does. The cube form (§1.8b) is not
    // the stream.
    let stream = (0x405C, 0);
    let cube = |k: usize, split| Spec { split, ..Spec::matmul(Kind::Int4, Out::Int16, 1, k, 64) };
    for (k, split, patch, good) in [
        (4096, 0xB1, &[stream][..], true),
        (4096, 0x20B1, &[stream], false),
        (4096, 0xA2, &[stream], false),
        (4096, 0x84, &[stream], false),
        (4096, 0x71, &[stream], false),
        (8192, 0xA2, &[stream], false),
        (4064, 0xA2, &[stream], true),
        (2048, 0x84, &[stream], true),
    ] {
        // Weights that nothing loaded are another finding.
        let reuse = split & 0x2000 != 0;
        let case = Case::with(cube(k, split), vec![1.0; k], vec![1.0; 64 * k]);
        let outcome = case.run(&SimOptions::default(), patch);
        let right = case.got().iter().all(|value| *value == k as f64);
        if reuse {
            assert!(outcome.diagnoses.iter().all(|found| found.check == "weight-reuse"), "{outcome:?}");
        } else if good {
            assert_clean(&outcome, 1);
            assert!(right, "K = {k}, {split:#x}");
        } else {
            assert_wrong(&outcome, "int4-deep-split");
            assert!(!right, "K = {k}, {split:#x}");
        }
    }
    let case = Case::new(Spec { split: 0x84, ..Spec::matmul(Kind::Int4, Out::Int16, 4, 4096, 64) }, 19);
    assert_clean(&case.run(&SimOptions::default(), &[]), 1);
    assert_eq!(case.got(), case.expected());
}

#[test]
fn size_e_limits_the_columns_of_a_group() {
    // isa-notes G-3: int4, N = 64: SIZE_E 1 / 3 / 7 write 16 / 32 / 64 columns.
    for (size_e, columns) in [(1u32, 16), (3, 32), (7, 64)] {
        let case = Case::new(Spec::matmul(Kind::Int4, Out::Int16, 4, 64, 64), 13);
        case.bus.put(OUT, &[0xAA; 4 * 64 * 2]);
        assert_clean(&case.run(&SimOptions::default(), &[(0x4050, (size_e * 0x124) | 2)]), 1);
        let sentinel = f64::from(i16::from_le_bytes([0xAA, 0xAA]));
        let got = case.got();
        let written = (0..64).filter(|column| got[column * 4..][..4].iter().any(|v| *v != sentinel)).count();
        assert_eq!(written, columns);
    }
}

#[test]
fn int4_sums_leave_16_bits_at_669_sevens() {
    // isa-notes G-21, isa-int4-sdp.md §1.1: 49 * 668 = 32732 is kept, 49 * 669 = 32781 is not.
    for (sevens, sign, expected) in
        [(668, 1.0, 32_732.0), (669, 1.0, 32_767.0), (668, -1.0, -32_732.0), (669, -1.0, -32_768.0)]
    {
        let a = (0..672).map(|i| if i < sevens { 7.0 * sign } else { 0.0 }).collect();
        let case = Case::with(Spec::matmul(Kind::Int4, Out::Int16, 1, 672, 64), a, vec![7.0; 64 * 672]);
        assert_clean(&case.run(&SimOptions::default(), &[]), 1);
        assert!(case.got().iter().all(|value| *value == expected), "{sevens} sevens");
    }
}
