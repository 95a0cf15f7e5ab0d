// SPDX-License-Identifier: MIT OR Apache-2.0
//! The emitter against the worked examples, word for word.

use ork_isa::{Block, Cmd, Iova, Link, Program};
use ork_layout::Format;
use ork_plan::{BankSplit, Form, Reuse};
use ork_synth::{MatmulTask, OutputStage, matmul_program};

const EXAMPLES: &str = include_str!("../data/recipe2.txt");
const A: Iova = Iova(0x1234_5670);
const B: Iova = Iova(0x89AB_CDE0);
const C: Iova = Iova(0xFEDC_BA90);
const MULTIPLIER: i16 = -0x1234;
const SHIFT: u32 = 0x16;

fn task(format: Format) -> MatmulTask {
    let int8 = format.input_bytes(1) == 1;
    MatmulTask {
        format,
        form: Form::Rows,
        rows: 4,
        k: if int8 { 64 } else { 32 },
        n: if int8 { 64 } else { 16 },
        row_stride: if int8 { 64 } else { 16 },
        split: BankSplit { data: 1, weight: 11 },
        grains: 5,
        reuse: Reuse::Nothing,
        a: A,
        b: B,
        c: C,
        output: if format == Format::INT8_INT8 {
            OutputStage::Requantise { multiplier: MULTIPLIER, shift: SHIFT, offset: 0 }
        } else {
            OutputStage::Plain
        },
    }
}

fn target(offset: u16) -> u16 {
    let block = match offset >> 12 {
        1 => Block::Cna,
        3 => Block::Core,
        4 => Block::Dpu,
        other => panic!("no block at {other:#x}000"),
    };
    block.target().expect("reached by programs")
}

fn number(text: &str) -> u32 {
    match text {
        "A" => A.0,
        "B" => B.0,
        "C" => C.0,
        "mult" => u32::from(MULTIPLIER.cast_unsigned()),
        "shift" => SHIFT,
        hex => u32::from_str_radix(hex.strip_prefix("0x").expect("hexadecimal"), 16).expect("a number"),
    }
}

/// The words of one column of the table.
fn example(column: usize) -> Vec<(String, Cmd)> {
    let lines = EXAMPLES.lines().filter(|line| !line.starts_with('#'));
    lines
        .enumerate()
        .map(|(index, line)| {
            let cells: Vec<_> = line.split_whitespace().collect();
            assert_eq!(cells[0].parse::<usize>(), Ok(index), "words are numbered in order");
            let word = if cells[1] == "-" {
                Cmd(u64::from_str_radix(&cells[3][2..], 16).expect("a word"))
            } else {
                let offset = u16::from_str_radix(&cells[1][2..], 16).expect("an offset");
                Cmd::new(target(offset), offset, number(cells[3 + column]))
            };
            (cells[2].to_owned(), word)
        })
        .collect()
}

fn differences(program: &Program, column: usize) -> Vec<String> {
    let expected = example(column);
    assert_eq!((program.words().len(), expected.len()), (112, 112));
    let pairs = program.words().iter().zip(&expected).enumerate();
    pairs
        .filter(|(_, (word, (_, expected)))| *word != expected)
        .map(|(index, (word, (name, expected)))| format!("word {index} ({name}): {word}, and not {expected}"))
        .collect()
}

#[test]
fn all_words_of_all_columns() {
    for (column, format) in
        [Format::FP16_FP32, Format::FP16_FP16, Format::INT8_INT32, Format::INT8_INT8].into_iter().enumerate()
    {
        let program = matmul_program(&task(format), Link::Last).unwrap();
        assert_eq!(differences(&program, column), Vec::<String>::new(), "{format}");
        assert_eq!(program.padded_bytes(), 0x380);
    }
}

#[test]
fn the_comparison_sees_a_changed_word() {
    let base = task(Format::INT8_INT32);
    let changed = MatmulTask { split: BankSplit { data: 2, weight: 10 }, ..base };
    let program = matmul_program(&changed, Link::Last).unwrap();
    // Both copies of CBUF_CON0.
    assert_eq!(differences(&program, 2).len(), 2);
    let other_format = matmul_program(&task(Format::INT8_INT8), Link::Last).unwrap();
    // DATA_FORMAT, the notch, BS_OW_CFG, the scale, the shift and SURFACE_ADD.
    assert_eq!(differences(&other_format, 2).len(), 6);
}

/// The values of a register in a program, in order.
fn values(program: &Program, offset: u16) -> Vec<u32> {
    let own =
        program.words().iter().filter(|word| word.offset() == offset && word.target() == target(offset));
    own.map(|word| word.value()).collect()
}

#[test]
fn fields_follow_the_geometry() {
    let task = MatmulTask {
        rows: 320,
        k: 1024,
        n: 1216,
        row_stride: 1216,
        split: BankSplit { data: 10, weight: 2 },
        grains: 64,
        ..task(Format::INT8_INT32)
    };
    let program = matmul_program(&task, Link::Last).unwrap();
    for (offset, expected) in [
        (0x1010, 64 << 4),
        (0x1020, 1 << 16 | 320),
        (0x1024, 1023 << 16 | 1024),
        (0x102C, 320),
        (0x1030, 1024 * 1216),
        (0x1034, 1024),
        (0x1038, 0x0101_0000 | 1216),
        (0x1044, 16),
        (0x107C, 64),
        (0x1084, 1 << 16 | 320),
        (0x1088, 1024),
        (0x3014, 319 << 16),
        (0x3018, 1215),
        (0x4034, 319),
        (0x4038, 303 << 16 | 303),
        (0x403C, 1215 << 16 | 1215),
        (0x4058, 1215),
        (0x405C, 319 << 16),
    ] {
        assert_eq!(values(&program, offset), [expected], "{offset:#06x}");
    }
    assert_eq!(values(&program, 0x1040), [0x2A, 0x2A]);
}

#[test]
fn kept_operands_set_their_bit_in_both_copies() {
    let base = task(Format::INT8_INT32);
    for (reuse, word) in [(Reuse::Weights, 0x20B1), (Reuse::Features, 0x10B1)] {
        let program = matmul_program(&MatmulTask { reuse, ..base }, Link::Last).unwrap();
        assert_eq!(values(&program, 0x1040), [word, word]);
        assert_eq!(differences(&program, 2).len(), 2);
    }
}

#[test]
fn a_half_filled_entry_counts_as_a_whole_one() {
    let task = MatmulTask { k: 96, ..task(Format::INT8_INT32) };
    let program = matmul_program(&task, Link::Last).unwrap();
    assert_eq!(values(&program, 0x1044), [2]);
    assert_eq!(values(&program, 0x107C), [6]);
}

#[test]
fn a_wider_row_stride_enters_the_notch_and_the_channel_register_only() {
    let base = task(Format::INT8_INT32);
    let wide = MatmulTask { row_stride: 128, ..base };
    let words = |task| matmul_program(task, Link::Last).unwrap().words().to_vec();
    let (base, wide) = (words(&base), words(&wide));
    let changed: Vec<_> = base.iter().zip(&wide).filter(|(a, b)| a != b).map(|(a, _)| a.offset()).collect();
    assert_eq!(changed, [0x4038, 0x403C]);
}

#[test]
fn what_does_not_fit_a_field_is_an_error() {
    let base = task(Format::INT8_INT32);
    let message = |task: MatmulTask| matmul_program(&task, Link::Last).unwrap_err().to_string();
    assert!(message(MatmulTask { rows: 2048, ..base }).contains("DATAIN_HEIGHT"));
    assert!(message(MatmulTask { k: 16416, ..base }).contains("DATAIN_CHANNEL_REAL"));
    assert!(message(MatmulTask { grains: 1024, ..base }).contains("FEATURE_GRAINS"));
    assert!(message(MatmulTask { n: 8224, row_stride: 8224, ..base }).contains("CHANNEL"));
    assert!(message(MatmulTask { split: BankSplit { data: 16, weight: 1 }, ..base }).contains("DATA_BANK"));
    // 4 GiB of weights.
    assert!(message(MatmulTask { k: 524_288, n: 8192, ..base }).contains("WEIGHT_BYTES"));
    // Sizes that no unit can hold overflow a field, never the arithmetic.
    let huge = MatmulTask {
        rows: u32::MAX,
        k: u32::MAX,
        n: u32::MAX,
        row_stride: u32::MAX,
        ..task(Format::FP16_FP32)
    };
    assert!(matmul_program(&huge, Link::Last).is_err());
}
