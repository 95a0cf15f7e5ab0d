// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of the other forms and precisions against the tables of the hardware notes and recorded programs.

use std::collections::BTreeMap;
use std::path::Path;

use ork_isa::{Iova, Link};
use ork_layout::Format;
use ork_plan::{BankSplit, Form, Reuse};
use ork_synth::{MatmulTask, OutputStage, matmul_program};

const A: Iova = Iova(0x1234_5670);
const B: Iova = Iova(0x89AB_CDE0);
const C: Iova = Iova(0xFEDC_BA90);

fn task(format: Format, form: Form, rows: u32, k: u32, n: u32) -> MatmulTask {
    MatmulTask {
        format,
        form,
        rows,
        k,
        n,
        row_stride: n,
        split: BankSplit { data: 1, weight: 11 },
        grains: form.height_and_width(rows).0 + 1,
        reuse: Reuse::Nothing,
        a: A,
        b: B,
        c: C,
        output: OutputStage::Plain,
    }
}

/// The last value of every register that the program writes, by offset.
fn values(task: &MatmulTask) -> BTreeMap<u16, u32> {
    let program = matmul_program(task, Link::Last).unwrap();
    program.words()[..108].iter().map(|word| (word.offset(), word.value())).collect()
}

/// The words of a table, in order: offset and value.
fn words(task: &MatmulTask) -> Vec<(u16, u32)> {
    let program = matmul_program(task, Link::Last).unwrap();
    program.words()[..108].iter().map(|word| (word.offset(), word.value())).collect()
}

#[test]
fn the_int4_row_is_the_captured_template_word_for_word() {
    // isa-int4-sdp.md §1.4, K = N = 64, words 0 to 107.
    let template: Vec<(u16, u32)> = [
        (0x1040, 0xB1),
        (0x1104, 0),
        (0x1100, 0),
        (0x100C, 0x360),
        (0x4004, 0xE),
        (0x100C, 0x360),
        (0x1010, 0x20),
        (0x1014, 9),
        (0x1020, 0x0001_0001),
        (0x1024, 0x003F_0040),
        (0x1028, 1),
        (0x102C, 1),
        (0x1030, 0x800),
        (0x1034, 0x20),
        (0x1038, 0x0101_0040),
        (0x1040, 0xB1),
        (0x1044, 1),
        (0x104C, 0xB),
        (0x1050, 0x10000),
        (0x1054, 0x10000),
        (0x1058, 0x10000),
        (0x105C, 0x10000),
        (0x1060, 0),
        (0x1064, 0),
        (0x1068, 0),
        (0x1070, A.0),
        (0x1074, 0),
        (0x1078, 0x000F_000F),
        (0x107C, 4),
        (0x1080, 0x0FFF_FFFD),
        (0x1084, 0x0001_0001),
        (0x1088, 0x40),
        (0x1100, 0),
        (0x1104, 0),
        (0x1110, B.0),
    ]
    .into_iter()
    .chain((0x1140..=0x1184).step_by(4).map(|offset| (offset, 0)))
    .chain([
        (0x3010, 0x601),
        (0x3014, 0),
        (0x3018, 0x3F),
        (0x301C, 0),
        (0x3030, 0),
        (0x400C, 0x1E4),
        (0x4010, 0x3800_0006),
        (0x4014, 0),
        (0x4020, C.0),
        (0x4024, 0x10),
        (0x4030, 0),
        (0x4034, 0),
        (0x4038, 0),
        (0x403C, 0x003F_003F),
        (0x4040, 0x53),
        (0x4044, 0),
        (0x4048, 0),
        (0x404C, 0),
        (0x4050, 0x7FE),
        (0x4054, 0),
        (0x4058, 0x3F),
        (0x405C, 0),
        (0x4060, 0x53),
        (0x4064, 0),
        (0x4068, 0),
        (0x406C, 0),
        (0x4070, 0x383),
        (0x4074, 0),
        (0x4078, 1),
        (0x407C, 0),
        (0x4080, 0),
        (0x4084, 1),
        (0x4088, 0),
    ])
    .chain((0x4090..=0x40AC).step_by(4).map(|offset| (offset, 0)))
    .chain([(0x40C0, 0x80), (0x40C4, 0)])
    .chain((0x4100..=0x412C).step_by(4).map(|offset| (offset, 0)))
    .collect();
    assert_eq!(words(&task(Format::INT4_INT16, Form::Int4Row, 1, 64, 64)), template);
}

#[test]
fn an_int4_batch_changes_what_the_notes_say() {
    // isa-int4-sdp.md §1.4, column "multi-row", and §1.5.
    let (k, n, rows) = (1024, 128, 16);
    let row = values(&task(Format::INT4_INT16, Form::Int4Row, 1, k, n));
    let batch = values(&task(Format::INT4_INT16, Form::Int4Batch, rows, k, n));
    let changed: BTreeMap<u16, u32> =
        batch.iter().filter(|(at, value)| row[at] != **value).map(|(at, value)| (*at, *value)).collect();
    let lines = 4 * rows;
    let expected = [
        (0x1010, 16 * (lines + 1)),
        (0x1020, 0x10000 | lines),
        (0x102C, lines),
        (0x107C, k / 16),
        (0x1084, 0x10000 | lines),
        (0x3014, (lines - 1) << 16),
        (0x4034, lines - 1),
        (0x4038, (n / 4 - 1) << 16 | (n / 4 - 1)),
    ];
    assert_eq!(changed, expected.into());
    // A last batch of one row keeps the form.
    let short = values(&task(Format::INT4_INT16, Form::Int4Batch, 1, k, n));
    assert_eq!((short[&0x1020], short[&0x1010], short[&0x3014], short[&0x4034]), (0x10004, 0x50, 3 << 16, 3));
}

#[test]
fn recipe_1_is_the_worked_example() {
    // isa.md §8.1: what differs from recipe 2 of the same shape.
    let cube = |format, k, n| values(&task(format, Form::Cube { surface_rows: 4 }, 4, k, n));
    let float = cube(Format::FP16_FP32, 32, 16);
    for (offset, value) in [
        (0x100C, 0x120),
        (0x1010, 0x50),
        (0x1020, 0x10004),
        (0x1028, 1),
        (0x102C, 4),
        (0x1030, 0x400),
        (0x1034, 0x40),
        (0x1044, 1),
        (0x107C, 4),
        (0x1080, 0),
        (0x3010, 0x201),
        (0x3014, 0x30000),
        (0x4010, 0xA800_0002),
        (0x4024, 0x40),
        (0x4030, 0),
        (0x4034, 3),
        (0x4038, 0),
        (0x403C, 0xF_000F),
        (0x4050, 0x36E),
        (0x4058, 0xF),
        (0x405C, 0x30000),
        (0x40C0, 0x100),
    ] {
        assert_eq!(float[&offset], value, "fp16 {offset:#x}");
    }
    let int8 = cube(Format::INT8_INT32, 64, 64);
    for (offset, value) in [(0x100C, 0), (0x4010, 0x8000_0000), (0x4024, 0x40), (0x40C0, 0x200)] {
        assert_eq!(int8[&offset], value, "int8 {offset:#x}");
    }
    // One row (§6): a surface distance of 1 atom is a stride of -3.
    let one = values(&task(Format::FP16_FP32, Form::Cube { surface_rows: 1 }, 1, 32, 16));
    assert_eq!((one[&0x1080], one[&0x107C]), (0x0FFF_FFFD, 4));
    // A tile of a larger plane has the plane's strides.
    let tile = values(&task(Format::INT8_INT32, Form::Cube { surface_rows: 100 }, 8, 64, 64));
    assert_eq!((tile[&0x1080], tile[&0x4024], tile[&0x40C0]), (96, 1600, 12_800));
}

#[test]
fn a_fold_tile_has_the_captured_values() {
    // isa.md §11, K = 3584, a tile of 24 rows in a batch of 96.
    let (k, n, rows, all) = (3584, 1216, 24, 96);
    let fold = values(&MatmulTask {
        split: BankSplit { data: 3, weight: 9 },
        ..task(Format::INT8_INT32, Form::Fold { surface_rows: all }, rows, k, n)
    });
    let form = Form::Rows;
    let normal = values(&task(Format::INT8_INT32, form, rows, k, n));
    let changed: BTreeMap<u16, u32> =
        fold.iter().filter(|(at, value)| normal[at] != **value).map(|(at, value)| (*at, *value)).collect();
    let expected = [
        (0x1010, 0x20),
        (0x1020, rows << 16 | 1),
        (0x1028, rows),
        (0x1040, 0x93),
        (0x1044, 56 * rows),
        (0x107C, 0x60),
        (0x1080, all - rows),
        (0x1084, rows << 16 | 1),
        (0x3014, rows - 1),
        (0x4024, 0x600),
        (0x4030, rows - 1),
        (0x4034, 0),
        (0x4038, 0),
        (0x405C, rows - 1),
        (0x40C0, 0x3000),
    ];
    assert_eq!(changed, expected.into());
    assert_eq!(fold[&0x102C], rows);
}

/// The last value of every register of the first program of a recorded case.
fn recorded(name: &str) -> BTreeMap<u16, u32> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance").join(format!("{name}.json"));
    let case: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let body = case["submits"][0]["programs"][0]["body"].as_array().unwrap();
    let word = |word: &serde_json::Value| {
        let word = u64::from_str_radix(&word.as_str().unwrap()[2..], 16).unwrap();
        (word as u16, (word >> 16) as u32)
    };
    body.iter().map(word).collect()
}

/// Registers whose value differs from the recorded one, addresses apart: offset, ours, recorded. Registers that one side
/// leaves out are zero; DPU_RDMA takes no part in our programs.
fn differences(task: &MatmulTask, name: &str) -> Vec<(u16, u32, u32)> {
    let (ours, theirs) = (values(task), recorded(name));
    let offsets: std::collections::BTreeSet<u16> = ours.keys().chain(theirs.keys()).copied().collect();
    let addresses = [0x1070, 0x1110, 0x4020];
    let value = |values: &BTreeMap<u16, u32>, at| values.get(&at).copied().unwrap_or(0);
    offsets
        .into_iter()
        .filter(|at| (0x1000..0x5000).contains(at) && !addresses.contains(at))
        .map(|at| (at, value(&ours, at), value(&theirs, at)))
        .filter(|(_, ours, theirs)| ours != theirs)
        .collect()
}

#[test]
fn recorded_programs_have_our_values() {
    // Precision of CNA, CORE and DPU, strides and sizes all agree; what is left is named.
    const QD_EN: u16 = 0x3010;
    let cube = |rows| Form::Cube { surface_rows: rows };
    let bf16 = task(Format::BF16_FP32, cube(16), 16, 96, 32);
    assert_eq!(differences(&bf16, "rocket_gemm_bf16_f32_16x96x32"), []);
    let tf32 = task(Format::TF32_FP32, cube(8), 8, 48, 48);
    assert_eq!(differences(&tf32, "rocket_gemm_tf32_f32_8x48x48"), []);
    let int4 = task(Format::INT4_INT16, cube(16), 16, 128, 128);
    assert_eq!(differences(&int4, "rocket_gemm_int4_i16_16x128x128"), [(QD_EN, 0x601, 0x600)]);
    // N padded to 32 there; the input converter's bypass without the other bits of 0xB, and the unused scale of EW.
    let int16 = task(Format::INT16_INT32, Form::Rows, 8, 32, 32);
    assert_eq!(differences(&int16, "gemm_int16_8x8x8"), [(0x104C, 0xB, 1), (0x4078, 1, 0)]);
    // The comparison sees a wrong stride.
    let wrong = differences(&task(Format::BF16_FP32, cube(20), 16, 96, 32), "rocket_gemm_bf16_f32_16x96x32");
    assert_eq!(wrong.iter().map(|(at, ..)| *at).collect::<Vec<_>>(), [0x1080, 0x4024, 0x40C0]);
}
