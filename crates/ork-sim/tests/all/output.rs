// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where features are read and results are written, and in which form (`isa.md` §5, `isa-notes.md` G, NS.3, NS.4).

use crate::common;
use common::bench::{Bench, Matmul, Recipe};
use common::tensor::*;
use common::*;
use ork_isa::regs::{cna, core as core_regs, dpu, dpu_rdma};
use ork_sim::{Core, Int16Output, JobEnd, Silicon, SimOptions};

fn plain() -> SimOptions {
    SimOptions::default()
}

#[test]
fn recipe_1_reads_wrong_lines_unless_rows_come_in_fours() {
    // isa.md §5.1: M/4 is an integer division, so the surface stride is too short.
    for (m, good) in [(8, true), (9, false), (10, false), (11, false), (12, true)] {
        let bench = Bench::new(Matmul::new(Recipe::One, m, 64, 32), 51);
        assert_clean(&bench.run(&mut core(), &[]), 1);
        assert_eq!(bench.right_rows().iter().all(|right| *right), good, "{m} rows");
    }
}

#[test]
fn a_tile_of_rows_keeps_the_strides_of_its_plane() {
    // isa.md §5.1: rows 4 to 7 of a plane of 8 x 5.
    let (h, w, rows) = (8u32, 5u32, 4u32);
    let spec = Spec { w: w as usize, ..Spec::matmul(Kind::Int8, Out::Int32, h as usize, 96, 32) };
    let case = Case::new(spec, 52);
    let tile = |surf_stride: u32| {
        [
            to(cna::DataSize0(0).with_datain_width(w).unwrap().with_datain_height(rows).unwrap()),
            to(cna::DataSize3(0).with_dataout_atomics(rows * w).unwrap()),
            to(cna::FeatureDataAddr(A + rows * w * 16)),
            to(cna::DmaCon2(0).with_surf_stride(surf_stride).unwrap()),
            to(core_regs::DataoutSize0(0)
                .with_dataout_height(rows - 1)
                .unwrap()
                .with_dataout_width(w - 1)
                .unwrap()),
            to(dpu::DstBaseAddr(OUT + rows * w * 16)),
            to(dpu::DataCubeHeight(0).with_height(rows - 1).unwrap()),
            to(dpu::WdmaSize1(0).with_height_wdma(rows - 1).unwrap().with_width_wdma(w - 1).unwrap()),
        ]
    };
    for (surf_stride, good) in [(w * h - 4 * w, true), (w * rows - 4 * w, false)] {
        case.bus.put(OUT, &vec![0; 8 * 5 * 32 * 4]);
        assert_clean(&case.run(&plain(), &tile(surf_stride)), 1);
        let right = case.right_rows();
        assert!(!right[..20].iter().any(|right| *right), "rows 0 to 3 are not written");
        assert_eq!(right[20..].iter().all(|right| *right), good);
    }
}

#[test]
fn row_0_is_followed_at_its_own_pitch() {
    // isa.md §5.3: N0 from the tile's columns, N1 from the row stride: row m at Nc + (m - 1) Ns.
    let (n, s) = (32usize, 96usize);
    let bench = Bench::new(Matmul { s: 96, ..Matmul::new(Recipe::Two, 4, 64, 32) }, 53);
    assert_clean(&bench.run(&mut core(), &[]), 1);
    let expected = bench.expected();
    let row_at = |at: usize| bench.bus.get_i32(bench.mm.c + 4 * at as u32, n);
    for m in 1..4 {
        assert_eq!(row_at(n + (m - 1) * s), expected[m * n..(m + 1) * n]);
        assert_ne!(row_at(m * s), expected[m * n..(m + 1) * n], "not at a uniform pitch");
    }
    // With the row stride in both halves the pitch is uniform.
    let notch = dpu::DataCubeNotchAddr(0).with_notch_addr_0(s as u32 / 4 - 1).unwrap();
    let both = to(notch.with_notch_addr_1(s as u32 / 4 - 1).unwrap());
    assert_clean(&bench.run(&mut core(), &[both]), 1);
    for m in 0..4 {
        assert_eq!(row_at(m * s), expected[m * n..(m + 1) * n]);
    }
}

#[test]
fn groups_are_written_up_to_channel_not_to_orig_channel() {
    // isa.md §5.3, NS-26: 32 kernels; CHANNEL 64 writes a second group, whose values are unspecified.
    let case = Case::new(Spec::matmul(Kind::Int8, Out::Int32, 4, 32, 32), 54);
    let cube = |channel: u32, orig: u32| {
        to(dpu::DataCubeChannel(0).with_channel(channel - 1).unwrap().with_orig_channel(orig - 1).unwrap())
    };
    let behind = OUT + 4 * 32 * 4;
    for (channel, orig, touched) in [(32, 32, false), (32, 64, false), (64, 32, true)] {
        case.bus.put(behind, &[0xAA; 512]);
        assert_clean(&case.run(&plain(), &[cube(channel, orig)]), 1);
        assert_eq!(case.got(), case.expected());
        assert_eq!(
            case.bus.get(behind, 512) != [0xAA; 512],
            touched,
            "CHANNEL {channel}, ORIG_CHANNEL {orig}"
        );
    }
}

#[test]
fn a_larger_surface_add_leaves_the_groups_apart() {
    // isa.md §5.3: fp16 in rows with 0x40: groups of 16 elements at a pitch of 32.
    let (m, n) = (3usize, 48usize);
    let case = Case::new(Spec::matmul(Kind::Fp16, Out::Fp16, m, 32, n), 55);
    let pitch = 2 * n as u32 / 8 - 1;
    let rows = [
        to(dpu::DstSurfStride(0).with_dst_surf_stride(1).unwrap()),
        to(dpu::DataCubeNotchAddr(0).with_notch_addr_0(pitch).unwrap().with_notch_addr_1(pitch).unwrap()),
    ];
    let mut apart = case.row_major();
    apart.extend(rows);
    apart.push(to(dpu::SurfaceAdd(0).with_surf_add(4).unwrap()));
    assert_clean(&case.run(&plain(), &apart), 1);
    let (raw, expected) = (case.bus.get(OUT, m * 2 * n * 2), case.expected());
    let value = |row: usize, place: usize| Out::Fp16.load(&raw, row * 2 * n + place);
    for row in 0..m {
        for col in 0..n {
            assert_eq!(value(row, col / 16 * 32 + col % 16), expected[col * m + row]);
        }
        assert_eq!(value(row, 16), 0.0, "the gap is not written");
    }
    // Dense groups.
    let mut dense = case.row_major();
    dense.extend(rows);
    dense.push(to(dpu::SurfaceAdd(0).with_surf_add(2).unwrap()));
    assert_clean(&case.run(&plain(), &dense), 1);
    let raw = case.bus.get(OUT, m * 2 * n * 2);
    for row in 0..m {
        for col in 0..n {
            assert_eq!(Out::Fp16.load(&raw, row * 2 * n + col), expected[col * m + row]);
        }
    }
}

#[test]
fn the_output_plane_may_be_padded() {
    // isa.md §5.3: 49 pixels in planes of 52.
    let spec = Spec { w: 7, ..Spec::matmul(Kind::Fp16, Out::Fp32, 7, 32, 32) };
    let case = Case::new(spec, 56);
    let padded = [
        to(dpu::DstSurfStride(0).with_dst_surf_stride(52).unwrap()),
        to(dpu::SurfaceAdd(0).with_surf_add(4 * 52).unwrap()),
    ];
    assert_clean(&case.run(&plain(), &padded), 1);
    let (raw, expected) = (case.bus.get(OUT, 8 * 52 * 16), case.expected());
    for channel in 0..32 {
        for pixel in 0..52 {
            let value = Out::Fp32.load(&raw, (channel / 4 * 52 + pixel) * 4 + channel % 4);
            assert_eq!(value, if pixel < 49 { expected[channel * 49 + pixel] } else { 0.0 });
        }
    }
    // A plane of fewer pixels than there are: surfaces overlap.
    let short = [to(dpu::DstSurfStride(0).with_dst_surf_stride(48).unwrap())];
    assert_clean(&case.run(&plain(), &short), 1);
    assert_ne!(case.got(), expected);
}

#[test]
fn size_e_3_leaves_columns_of_int32_unwritten() {
    // isa-notes G-3: integer outputs need SIZE_E 7; with the 3 of float outputs half of each group stays as it was. A
    // group with no more channels than that is whole.
    let written = |n: usize, value: u32| {
        let case = Case::new(Spec::matmul(Kind::Int8, Out::Int32, 4, 32, n), 57);
        case.bus.put(OUT, &vec![0xAA; 4 * n.next_multiple_of(32) * 4]);
        assert_clean(&case.run(&plain(), &[to(size_e(value).unwrap().with_od_bypass(1).unwrap())]), 1);
        let sentinel = f64::from(i32::from_le_bytes([0xAA; 4]));
        let got = case.got();
        (0..n).filter(|column| got[column * 4..][..4].iter().any(|value| *value != sentinel)).count()
    };
    assert_eq!([written(64, 7), written(64, 3), written(64, 1)], [64, 32, 16]);
    assert_eq!([written(16, 7), written(16, 3)], [16, 16]);
}

#[test]
fn first_middle_and_last_lines_have_their_own_size_e() {
    // The register map: SIZE_E_0 for the first line, SIZE_E_1 for those between, SIZE_E_2 for the last (S-55).
    let sizes = dpu::BsOwCfg(0).with_size_e_0(0).unwrap().with_size_e_1(2).unwrap().with_size_e_2(5).unwrap();
    let sizes = to(sizes.with_od_bypass(1).unwrap());
    let sentinel = f64::from(i32::from_le_bytes([0xAA; 4]));
    for m in [4usize, 2] {
        for rows in [false, true] {
            let case = Case::new(Spec::matmul(Kind::Int8, Out::Int32, m, 32, 64), 66);
            case.bus.put(OUT, &vec![0xAA; m * 64 * 4]);
            let mut words = vec![sizes];
            if rows {
                let notch = dpu::DataCubeNotchAddr(0).with_notch_addr_0(15).unwrap();
                words.push(to(notch.with_notch_addr_1(15).unwrap()));
                words.push(to(dpu::DstSurfStride(0).with_dst_surf_stride(1).unwrap()));
                words.push(to(dpu::SurfaceAdd(0).with_surf_add(8).unwrap()));
            }
            assert_clean(&case.run(&plain(), &words), 1);
            let raw = case.bus.get(OUT, m * 64 * 4);
            for (i, expected) in case.expected().into_iter().enumerate() {
                let (channel, row) = (i / m, i % m);
                let at = if rows { row * 64 + channel } else { (channel / 4 * m + row) * 4 + channel % 4 };
                let atoms = if row == 0 {
                    1
                } else if row + 1 == m {
                    6
                } else {
                    3
                };
                let written = channel % 32 / 4 < atoms;
                assert_eq!(Out::Int32.load(&raw, at), if written { expected } else { sentinel });
            }
        }
    }
    let one = Case::new(Spec::matmul(Kind::Int8, Out::Int32, 1, 32, 64), 66);
    assert_unmodelled(&one.run(&plain(), &[sizes]), "size-e");
}

#[test]
fn int16_sums_leave_one_tile_by_variant() {
    // isa-notes G-13, M-22: by the write law, or row 0 and channels 0 to 15 only.
    let one_tile = SimOptions {
        silicon: Silicon { int16_output: Int16Output::OneTile, ..Silicon::default() },
        ..SimOptions::default()
    };
    let case = Case::new(Spec::matmul(Kind::Int16, Out::Int32, 4, 32, 32), 58);
    assert_clean(&case.run(&plain(), &[]), 1);
    assert_eq!(case.got(), case.expected());
    case.bus.put(OUT, &[0xAA; 4 * 32 * 4]);
    assert_wrong(&case.run(&one_tile, &[]), "int16-one-tile");
    let sentinel = f64::from(i32::from_le_bytes([0xAA; 4]));
    for (i, (got, expected)) in case.got().iter().zip(case.expected()).enumerate() {
        let (channel, row) = (i / 4, i % 4);
        assert_eq!(*got, if row == 0 && channel < 16 { expected } else { sentinel }, "{channel} {row}");
    }
    // One row of 16 channels is one tile.
    let tile = Case::new(Spec::matmul(Kind::Int16, Out::Int32, 1, 32, 16), 58);
    assert_clean(&tile.run(&one_tile, &[]), 1);
    assert_eq!(tile.got(), tile.expected());
}

#[test]
fn int16_sums_are_transposed_and_saturated() {
    // isa-notes C.3: slot 4 m + na % 4 + na / 4 * 4 M + n % 4 * 16 M, with na = n / 4; 8 or 16 bits by TP_PRECISION.
    for m in [4usize, 8, 16, 32] {
        for n in [16usize, 32] {
            for wide in [0, 1] {
                let case = Case::new(Spec::matmul(Kind::Int16, Out::Int32, m, 32, n), 59);
                let transposed = [
                    to(size_e(3).unwrap().with_od_bypass(1).unwrap().with_tp_org_en(1).unwrap()),
                    to(dpu::WdmaSize0(0)
                        .with_channel_wdma(n as u32 - 1)
                        .unwrap()
                        .with_tp_precision(wide)
                        .unwrap()),
                ];
                assert_clean(&case.run(&plain(), &transposed), 1);
                let bytes = 1 + wide as usize;
                let raw = case.bus.get(OUT, 64 * m * bytes);
                for (i, sum) in case.sums().into_iter().enumerate() {
                    let (column, row) = (i / m, i % m);
                    let quad = column / 4;
                    let slot = 4 * row + quad % 4 + quad / 4 * 4 * m + column % 4 * 16 * m;
                    let (got, limit) = if wide == 1 {
                        (i16::from_le_bytes(raw[2 * slot..][..2].try_into().unwrap()).into(), 32768.0)
                    } else {
                        (f64::from(raw[slot].cast_signed()), 128.0)
                    };
                    assert_eq!(got, sum.clamp(-limit, limit - 1.0), "{m} x {n}, column {column}, row {row}");
                }
            }
        }
    }
    // Beyond 32 columns and for other row counts the places are not known.
    for (m, n) in [(4, 64), (5, 32), (64, 16)] {
        let case = Case::new(Spec::matmul(Kind::Int16, Out::Int32, m, 32, n), 59);
        let on = to(size_e(3).unwrap().with_tp_org_en(1).unwrap());
        assert_unmodelled(&case.run(&plain(), &[on]), "size-e");
    }
}

#[test]
fn depthwise_int8_sums_as_int32_lie_twice_as_far_apart() {
    // isa-notes G-20: got[2k] == ref[k].
    let spec = Spec {
        w: 6,
        k: (3, 3),
        pad: (1, 1),
        depthwise: true,
        ..Spec::matmul(Kind::Int8, Out::Int32, 5, 64, 1)
    };
    let case = Case::new(spec, 60);
    assert_wrong(&case.run(&plain(), &[]), "depthwise-int32");
    let pixels = 30;
    let (raw, expected) = (case.bus.get(OUT, 64 * pixels * 4 * 2), case.expected());
    for channel in 0..4 {
        for pixel in 0..pixels / 2 {
            let at = |pixel: usize| Out::Int32.load(&raw, pixel * 4 + channel);
            assert_eq!(at(2 * pixel), expected[channel * pixels + pixel]);
            assert_ne!(at(2 * pixel + 1), expected[channel * pixels + 2 * pixel + 1]);
        }
    }
    // fp16 has no such form (NS-25).
    let fp16 = Case::new(Spec { kind: Kind::Fp16, out: Out::Fp16, c: 32, ..spec }, 60);
    assert_clean(&fp16.run(&plain(), &[]), 1);
    assert_eq!(fp16.got(), fp16.expected());
}

#[test]
fn int8_to_fp16_of_two_groups_needs_four_atoms_each() {
    // NS-21: a SURFACE_ADD of two atoms per pixel makes the groups overlap, four do not.
    let case = Case::new(Spec::matmul(Kind::Int8, Out::Fp16, 8, 32, 64), 61);
    assert_clean(&case.run(&plain(), &[]), 1);
    assert_eq!(case.got(), case.expected());
    assert_clean(&case.run(&plain(), &[to(dpu::SurfaceAdd(0).with_surf_add(2 * 8).unwrap())]), 1);
    assert_ne!(case.got(), case.expected());
    // One group has no second one to overlap.
    let one = Case::new(Spec::matmul(Kind::Int8, Out::Fp16, 8, 32, 32), 61);
    assert_clean(&one.run(&plain(), &[to(dpu::SurfaceAdd(0).with_surf_add(2 * 8).unwrap())]), 1);
    assert_eq!(one.got(), one.expected());
}

#[test]
fn the_converter_acts_on_integers_and_not_on_fp32() {
    // isa-notes M-23: fp16 to fp32 with scale 0 is right; int32 with scale 0 is 0, and with 3 exactly thrice.
    let fp16 = Case::new(Spec::matmul(Kind::Fp16, Out::Fp32, 4, 32, 16), 62);
    for scale in [0, 1, 3] {
        assert_clean(&fp16.run(&plain(), &[to(dpu::OutCvtScale(scale))]), 1);
        assert_eq!(fp16.got(), fp16.expected());
    }
    for out in [Out::Int32, Out::Fp32] {
        let int8 = Case::new(Spec::matmul(Kind::Int8, out, 4, 32, 32), 62);
        for scale in [0, 1, 3] {
            assert_clean(&int8.run(&plain(), &[to(dpu::OutCvtScale(scale))]), 1);
            let expected: Vec<f64> = int8.sums().iter().map(|sum| sum * f64::from(scale)).collect();
            assert_eq!(int8.got(), expected);
        }
    }
}

#[test]
fn qd_en_does_not_change_raw_sums() {
    // isa-notes M-18.
    for kind in [Kind::Int8, Kind::Int4] {
        let out = if kind == Kind::Int8 { Out::Int32 } else { Out::Int16 };
        let case = Case::new(Spec::matmul(kind, out, 4, 64, 64), 63);
        let code = kind.facts().0;
        for qd_en in [0, 1] {
            let misc = core_regs::MiscCfg(0).with_proc_precision(code).unwrap().with_qd_en(qd_en).unwrap();
            assert_clean(&case.run(&plain(), &[to(misc)]), 1);
            assert_eq!(case.got(), case.expected());
        }
    }
}

#[test]
fn ow_has_no_effect_in_fp16() {
    // NS-25: BS_OW_OP 0x80 with OD_BYPASS 0 adds nothing.
    let case = Case::new(Spec::matmul(Kind::Fp16, Out::Fp32, 4, 32, 16), 64);
    let ow = [to(dpu::BsOwOp(0x80)), to(size_e(3).unwrap())];
    assert_clean(&case.run(&plain(), &ow), 1);
    assert_eq!(case.got(), case.expected());
}

/// A body with the words of a DPU_RDMA that feeds nothing.
fn with_idle_reader(case: &Case) -> Words {
    let pixels = case.spec.h as u32;
    let mode = dpu_rdma::RdmaFeatureModeCfg(0).with_burst_len(15).unwrap().with_mrdma_disable(1).unwrap();
    let reader = [
        to(dpu_rdma::RdmaSPointer(0xE)),
        to(dpu_rdma::RdmaDataCubeWidth(0)),
        to(dpu_rdma::RdmaDataCubeHeight(0).with_height(pixels - 1).unwrap()),
        to(dpu_rdma::RdmaDataCubeChannel(0).with_channel(case.spec.oc as u32 - 1).unwrap()),
        to(dpu_rdma::RdmaErdmaCfg(0).with_erdma_disable(1).unwrap()),
        to(mode),
    ];
    patched(&case.spec.words(), &reader)
}

#[test]
fn both_masks_of_a_convolution_complete_and_no_other() {
    // isa-notes M-17, G-27: 0x0d and 0x1d; a wrong mask hangs.
    let case = Case::new(Spec::matmul(Kind::Fp16, Out::Fp32, 4, 32, 16), 65);
    let run = |mask| {
        case.bus.put(OUT, &[0; 4 * 16 * 4]);
        run_words(&mut Core::new(0, &plain()), &case.bus, &with_idle_reader(&case), mask)
    };
    for mask in [0x0D, 0x1D] {
        assert_clean(&run(mask), 1);
        assert_eq!(case.got(), case.expected());
    }
    for mask in [0, 0x01, 0x04, 0x05, 0x08, 0x09, 0x0C, 0x10, 0x11, 0x15, 0x20, 0x25, 0x40] {
        assert_hang(&run(mask), "op-enable-mask", 0);
        assert!(case.bus.get(OUT, 256).iter().all(|byte| *byte == 0), "nothing is written");
    }
    // DPU and DPU_RDMA alone wait for sums that nobody adds up.
    assert_hang(&run(0x18), "dpu-unfed", 0);
    // Several whole paths at once, and bits of no block: nobody knows.
    for mask in [0x6D, 0x7F, 0x0F, 0x19] {
        assert!(matches!(run(mask).end, JobEnd::Unmodelled(_)), "{mask:#x}");
    }
}
