// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork regcmd`: round trips through files and stdin, exit codes, JSON.

use crate::folder::Folder;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use ork_isa::asm::parse;
use ork_isa::lint::lint;
use ork_isa::soc::RK3588;
use ork_layout::Format;
use ork_plan::laws::violations;
use ork_plan::{BankSplit, Form, Geometry};
use serde_json::Value;

/// A small int8 matmul, with two copies of the bank split.
const PROGRAM: &str = "\
    CNA.CBUF_CON0 { WEIGHT_BANK=11, DATA_BANK=1 }\n\
    CNA.CONV_CON1 { GROUP_LINE_OFF=1 }\n\
    CNA.CONV_CON3 { CONV_Y_STRIDE=1, CONV_X_STRIDE=1 }\n\
    CNA.DATA_SIZE0 { DATAIN_WIDTH=1, DATAIN_HEIGHT=4 }\n\
    CNA.DATA_SIZE1 { DATAIN_CHANNEL_REAL=63, DATAIN_CHANNEL=64 }\n\
    CNA.WEIGHT_SIZE1 { WEIGHT_BYTES_PER_KERNEL=64 }\n\
    CNA.WEIGHT_SIZE2 { WEIGHT_WIDTH=1, WEIGHT_HEIGHT=1, WEIGHT_KERNELS=64 }\n\
    CNA.CBUF_CON0 { WEIGHT_BANK=11, DATA_BANK=1 }\n\
    nop 0x0001000000000000\n\
    PC.REGISTER_AMOUNTS = 0\n\
    pre-op-enable\n\
    op-enable { DPU_OP_EN=1, CORE_OP_EN=1, CNA_OP_EN=1 }\n";

impl Folder {
    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn regcmd(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ork"))
        .env_clear()
        .arg("regcmd")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that never reads its stdin closes it; that is its right.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn said(output: &Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[test]
fn words_survive_every_form() {
    let folder = Folder::new();
    let text = folder.file("a.rcasm", PROGRAM);
    let hex = stdout(&regcmd(&["encode", &text], b""));
    assert_eq!(hex.lines().count(), 12);
    assert_eq!(hex.lines().next(), Some("0x0201000000b11040"));

    let bin = folder.path("a.bin");
    stdout(&regcmd(&["encode", &text, "-o", bin.to_str().unwrap()], b""));
    let bytes = fs::read(&bin).unwrap();
    assert_eq!((bytes.len(), &bytes[..8]), (96, &0x0201_0000_00B1_1040_u64.to_le_bytes()[..]));

    // From a file and from stdin, each form found by its content.
    let decoded = stdout(&regcmd(&["decode", bin.to_str().unwrap()], b""));
    assert_eq!(decoded, stdout(&regcmd(&["decode"], &bytes)));
    assert_eq!(decoded, stdout(&regcmd(&["decode", "-"], hex.as_bytes())));
    assert_eq!(decoded, stdout(&regcmd(&["decode"], PROGRAM.as_bytes())));
    assert!(decoded.starts_with("CNA.CBUF_CON0 { WEIGHT_REUSE=0, "), "{decoded}");
    assert_eq!(hex, stdout(&regcmd(&["encode"], decoded.as_bytes())));
    let plain = stdout(&regcmd(&["decode", "--plain"], &bytes));
    assert!(!plain.contains(';') && decoded.contains(" ; "));
    assert_eq!(bytes, regcmd(&["encode", "--to", "bin"], plain.as_bytes()).stdout);
}

#[test]
fn recorded_json_is_read_whole() {
    let case = br#"{"submits": [{"programs": [
        {"task": 0, "submitted": true, "iova": "0xfff5f000", "body": ["0x0201000000b11040"],
         "tail": ["0x0001000000000000", "0x0101000000000014", "0x0041000000000000", "0x00810000000d0008"]},
        {"task": 1, "submitted": false, "iova": "0xfff5f100", "body": ["0xffffffffffffffff"], "tail": null}]}]}"#;
    let text = stdout(&regcmd(&["decode"], case));
    assert!(text.contains(".program \"submit 0 task 0\" at 0xfff5f000"), "{text}");
    assert!(text.contains("task 1, not submitted\" at 0xfff5f100"), "{text}");
    assert!(text.contains("word 0xffffffffffffffff") && text.contains("!! UNKNOWN WORD"), "{text}");
    let hex = stdout(&regcmd(&["encode"], text.as_bytes()));
    assert_eq!(hex.lines().count(), 6);

    let capture = br#"{"streams": [{"task": 3, "iova": "0x1000", "body_count": 1,
        "words": [{"word": "0x0201000000b11040", "block": "CNA"}]}]}"#;
    let text = stdout(&regcmd(&["decode"], capture));
    assert!(text.starts_with(".program \"task 3\" at 0x00001000\nCNA.CBUF_CON0 "), "{text}");

    for (json, words) in [
        (&br#"{"a": 1}"#[..], "streams"),
        (br#"{"streams": [{"words": ["0xzz"]}]}"#, "streams[0].words[0]"),
        (br#"{"streams": [{"iova": "0x100000000", "words": []}]}"#, "32-bit"),
        (br#"{"streams": "#, "EOF"),
    ] {
        let said = said(&regcmd(&["decode"], json), 2);
        assert!(said.contains(words), "{said}");
    }
}

/// The captures in the tree, in their text form.
#[test]
fn captures_come_back_identical() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/captures");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let words: Vec<u64> = fs::read_to_string(&path)
            .unwrap()
            .lines()
            .filter(|line| line.len() == 16 && line.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .map(|line| u64::from_str_radix(line, 16).unwrap())
            .collect();
        let text = stdout(&regcmd(&["decode", path.to_str().unwrap()], b""));
        assert!(!text.contains("!! UNKNOWN"), "{}", path.display());
        let hex = stdout(&regcmd(&["encode"], text.as_bytes()));
        let back: Vec<u64> = hex.lines().map(|line| u64::from_str_radix(&line[2..], 16).unwrap()).collect();
        assert!(!words.is_empty());
        assert_eq!(back, words, "{}", path.display());
        count += 1;
    }
    assert_eq!(count, 5);
}

#[test]
fn bad_input_is_one_clear_line_and_code_2() {
    let folder = Folder::new();
    let missing = folder.path("missing.bin");
    for (args, input, words) in [
        (
            &["encode"][..],
            &b"CNA.CBUF_CON0 { WEIGHT_BANKS=1 }"[..],
            &["line 1, column 17", "did you mean WEIGHT_BANK?"][..],
        ),
        (&["encode"], b"nop\nCNA.CBUF_CON9 = 1", &["line 2, column 5", "register of CNA", "CBUF_CON"]),
        (&["decode"], b"0x12 0xgg", &["line 1, column 6", "hexadecimal"]),
        (&["decode"], b"\0\0\0", &["3 bytes", "64-bit words"]),
        (&["decode"], b"", &["stdin: no words"]),
        (&["decode", "--from", "rcasm"], b"0x12", &["line 1, column 1", "expected a block"]),
        (&["decode", "--from", "hex"], b"\xff", &["not UTF-8"]),
        (&["decode", missing.to_str().unwrap()], b"", &["cannot read", "missing.bin"]),
        (&["diff", "-", "-"], b"", &["both", "stdin"]),
        (&["encode", "-o", "/nowhere/x"], b"nop", &["cannot write", "/nowhere/x"]),
    ] {
        let output = regcmd(args, input);
        let said = said(&output, 2);
        for word in words {
            assert!(said.contains(word), "{word:?} is missing in {said}");
        }
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn diff_speaks_of_fields() {
    let folder = Folder::new();
    let a = folder.file("a.rcasm", PROGRAM);
    let b = folder.file(
        "b.rcasm",
        PROGRAM.replacen("DATA_BANK=1", "DATA_BANK=2", 1).replace("nop 0x0001000000000000\n", ""),
    );
    assert_eq!(stdout(&regcmd(&["diff", &a, &a], b"")), "");
    assert_eq!(stdout(&regcmd(&["diff", &a, "-"], PROGRAM.as_bytes())), "");
    let output = regcmd(&["diff", &a, &b], b"");
    assert!(said(&output, 1).contains("2 differences"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text,
        "word 0 / 0: CNA.CBUF_CON0.DATA_BANK 1 -> 2 (0x1 -> 0x2)\nword 8 / -: missing: nop 0x0001000000000000\n"
    );

    let twice = folder.file("twice.rcasm", PROGRAM.repeat(2));
    let output = regcmd(&["diff", &a, &twice], b"");
    assert!(said(&output, 1).contains("1 difference"));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "program 1: added, 12 words\n");

    let near = folder.file("near.rcasm", "CNA.FEATURE_DATA_ADDR = 0x1000\nop-enable = 1");
    let far = folder.file("far.rcasm", "CNA.FEATURE_DATA_ADDR = 0x2000\nop-enable = 1");
    said(&regcmd(&["diff", &near, &far], b""), 1);
    stdout(&regcmd(&["diff", "--ignore-addresses", &near, &far], b""));
}

#[test]
fn lint_names_both_words() {
    let clean = regcmd(&["lint"], PROGRAM.as_bytes());
    assert_eq!(stdout(&clean), "");

    let wrong = PROGRAM.replace("DATA_BANK=1 ", "DATA_BANK=0 ").replacen("DATA_BANK=0 ", "DATA_BANK=1 ", 1);
    let output = regcmd(&["lint"], wrong.as_bytes());
    assert!(said(&output, 1).contains("1 error"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("warning [overwritten] program 0: (1) word 0 CNA.CBUF_CON0"), "{text}");
    assert!(
        text.contains(
            "error [no-feature-bank] program 0: (1) word 7 CNA.CBUF_CON0 = 0xb0: D = 0; (2) word 3"
        ),
        "{text}"
    );

    // Warnings alone pass unless they are denied.
    let odd = PROGRAM.replace("DATA_BANK=1 ", "DATA_BANK=1, reserved=0x4000 ");
    assert!(stdout(&regcmd(&["lint"], odd.as_bytes())).contains("warning [reserved-bits]"));
    assert!(said(&regcmd(&["lint", "--deny-warnings"], odd.as_bytes()), 1).contains("2 warnings or worse"));
}

#[test]
fn lint_as_json() {
    let wrong = PROGRAM.replace("DATA_BANK=1 ", "DATA_BANK=0 ");
    let output = regcmd(&["lint", "--json"], wrong.as_bytes());
    said(&output, 1);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let finding =
        value.as_array().unwrap().iter().find(|finding| finding["lint"] == "no-feature-bank").unwrap();
    assert_eq!(finding["severity"], "error");
    assert_eq!(finding["first"]["word"], 7);
    assert_eq!(finding["first"]["cmd"], "0x0201000000b01040");
    assert_eq!(finding["second"]["register"], "CNA.DATA_SIZE0 = 0x10004");
    assert!(finding["source"].as_str().unwrap().contains("isa.md"));
    let clean = regcmd(&["lint", "--json"], PROGRAM.as_bytes());
    assert_eq!(serde_json::from_str::<Value>(&stdout(&clean)).unwrap(), Value::Array(Vec::new()));
}

#[test]
fn explain_tells_the_operation() {
    let text = stdout(&regcmd(&["explain"], PROGRAM.as_bytes()));
    assert!(text.contains("matmul M=4 K=64 N=64"), "{text}");
    // Two programs in one piece are two explanations.
    let text = stdout(&regcmd(&["explain"], PROGRAM.repeat(2).as_bytes()));
    assert_eq!(text.matches("matmul M=4 K=64 N=64").count(), 2, "{text}");
}

/// The planner's laws over a geometry and the lints over its program say the same, just inside and just outside.
#[test]
fn lints_agree_with_the_laws_of_the_planner() {
    const WEIGHT_GROUP: (&str, &[&str]) = ("weight-group", &["weight-group", "no-weight-bank"]);
    const FEATURES: (&str, &[&str]) = ("feature-capacity", &["feature-capacity", "no-feature-bank"]);
    const NARROW: (&str, &[&str]) = ("narrow-columns", &["narrow-columns"]);
    // Integers want all banks used; floats want no more than all filled.
    let int8: [(&str, &[&str]); 5] = [
        ("bank-sum", &["bank-sum", "bank-overlap", "no-weight-bank", "no-feature-bank"]),
        ("float-envelope", &[]),
        WEIGHT_GROUP,
        FEATURES,
        NARROW,
    ];
    let fp16: [(&str, &[&str]); 5] = [
        ("bank-sum", &["no-weight-bank", "no-feature-bank"]),
        ("float-envelope", &["bank-overlap"]),
        WEIGHT_GROUP,
        FEATURES,
        NARROW,
    ];
    let mut broken = [0; 5];
    let mut kept = [0; 5];
    for (format, pairs) in [(Format::INT8_INT32, int8), (Format::FP16_FP32, fp16)] {
        let (code, bytes) = (format.input().code(), format.input().bits() / 8);
        for k in [32, 96, 512, 1024, 1056, 2048, 4096] {
            for rows in [1, 31, 32, 256, 257, 704] {
                for groups in [1, 2, 3, 40] {
                    for (data, weight) in
                        [(1, 11), (11, 1), (10, 2), (4, 8), (5, 8), (3, 8), (12, 0), (0, 12)]
                    {
                        let n = groups * format.kernel_group();
                        let split = BankSplit { data, weight };
                        let geometry = Geometry {
                            format,
                            form: Form::Rows,
                            rows,
                            k,
                            n,
                            row_stride: n,
                            split,
                            grains: rows + 1,
                            k_slices: 1,
                            cores: 1,
                        };
                        let text = format!(
                            "CNA.CONV_CON1 {{ GROUP_LINE_OFF=1, PROC_PRECISION={code}, IN_PRECISION={code} }}\n\
                             CNA.CONV_CON3 {{ CONV_Y_STRIDE=1, CONV_X_STRIDE=1 }}\n\
                             CNA.DATA_SIZE0 {{ DATAIN_WIDTH=1, DATAIN_HEIGHT={rows} }}\n\
                             CNA.DATA_SIZE1 {{ DATAIN_CHANNEL={k} }}\n\
                             CNA.WEIGHT_SIZE1 {{ WEIGHT_BYTES_PER_KERNEL={} }}\n\
                             CNA.WEIGHT_SIZE2 {{ WEIGHT_WIDTH=1, WEIGHT_HEIGHT=1, WEIGHT_KERNELS={n} }}\n\
                             CNA.CBUF_CON0 {{ WEIGHT_BANK={weight}, DATA_BANK={data} }}\n\
                             CORE.MISC_CFG {{ PROC_PRECISION={code} }}\n\
                             op-enable {{ CNA_OP_EN=1, CORE_OP_EN=1 }}\n",
                            k * bytes
                        );
                        let found = lint(&parse(&text).unwrap());
                        let laws = violations(&geometry, &RK3588);
                        for (index, (law, lints)) in pairs.iter().enumerate() {
                            let by_law = laws.iter().any(|violation| violation.law == *law);
                            let by_lint = found.iter().any(|finding| lints.contains(&finding.lint.name));
                            // The planner keeps floats with one weight bank wide at any K, to be safe.
                            let stricter = *law == "narrow-columns" && format.is_float();
                            assert!(
                                by_law == by_lint || (stricter && by_law),
                                "{law} at {geometry:?}: {laws:?} {found:?}"
                            );
                            if by_law { broken[index] += 1 } else { kept[index] += 1 }
                        }
                    }
                }
            }
        }
    }
    assert!(broken.iter().chain(&kept).all(|count| *count > 10), "{broken:?} {kept:?}");
}
