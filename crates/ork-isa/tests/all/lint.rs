// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every lint fires where it should and is silent where it should: `lint/NAME.rcasm` has both programs,
//! `lint/NAME.txt` what is said of the first one. Recorded programs that work break no rule.

use crate::support;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use ork_isa::asm::parse;
use ork_isa::lint::{LINTS, Severity, lint};

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lint"))
}

/// The programs behind `; --- fires` and `; --- silent`.
fn sections(name: &str) -> (String, String) {
    let text = fs::read_to_string(folder().join(name).with_extension("rcasm")).unwrap();
    let (_, rest) = text.split_once("; --- fires\n").unwrap();
    let (fires, silent) = rest.split_once("; --- silent\n").unwrap();
    (fires.to_owned(), silent.to_owned())
}

fn findings(text: &str) -> String {
    lint(&parse(text).unwrap()).iter().map(|finding| format!("{finding}\n")).collect()
}

#[test]
fn every_lint_fires_and_is_silent() {
    for lint in LINTS {
        let (fires, silent) = sections(lint.name);
        let said = findings(&fires);
        let expected = fs::read_to_string(folder().join(lint.name).with_extension("txt")).unwrap();
        assert_eq!(said, expected, "{}", lint.name);
        let tag = format!("{} [{}] ", lint.severity, lint.name);
        assert!(said.contains(&tag), "{said}");
        assert!(
            said.lines().all(|line| line.contains("(1) ") && line.contains("; (2) ")),
            "both events: {said}"
        );
        let said = findings(&silent);
        assert!(!said.contains(&tag), "{said}");
    }
}

#[test]
fn files_and_lints_are_the_same_set() {
    let names: BTreeSet<String> = LINTS.iter().map(|lint| lint.name.to_owned()).collect();
    assert_eq!(names.len(), LINTS.len(), "names are unique");
    let files: BTreeSet<String> =
        fs::read_dir(folder()).unwrap().map(|entry| support::stem(&entry.unwrap().path())).collect();
    assert_eq!(files, names);
    for lint in LINTS {
        assert!(lint.source.contains("isa"), "{} has a source", lint.name);
    }
}

#[test]
fn the_reference_page_lists_every_lint() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/rcasm.md");
    let page = fs::read_to_string(page).unwrap();
    for lint in LINTS {
        let row = format!("| `{}` | {} | {} | {} |", lint.name, lint.severity, lint.rule, lint.source);
        assert!(page.contains(&row), "docs/reference/rcasm.md lacks: {row}");
    }
    let rows = page.lines().filter(|line| line.starts_with("| `") && line.contains(" | isa")).count();
    assert_eq!(rows, LINTS.len());
}

/// Programs whose results are right (or that the vendor runtime makes) must not be called wrong.
#[test]
fn recorded_programs_have_no_error() {
    let (mut checked, mut notes) = (0, 0);
    let captures = support::captures().into_iter().filter(|(name, _)| name != "words");
    let cases = support::cases().into_iter().flat_map(|case| {
        let name = case.name;
        case.submits.into_iter().map(move |listing| (name.clone(), listing))
    });
    for (name, listing) in captures.chain(cases) {
        for finding in lint(&listing) {
            assert!(finding.lint.severity < Severity::Error, "{name}: {finding}");
            notes += 1;
        }
        checked += 1;
    }
    assert!(checked > 80 && notes > 10, "{checked} listings, {notes} notes and warnings");
}

/// The same programs, one value changed each: the lints look at them.
#[test]
fn a_changed_register_of_a_recorded_program_is_found() {
    let capture =
        support::captures().into_iter().find(|(name, _)| name == "rt_conv_c32_14x14_oc128_3x3").unwrap().1;
    let text = ork_isa::asm::print(&capture, ork_isa::asm::Comments::Warnings);
    for (from, to, name) in [
        ("WEIGHT_BANK=11, DATA_BANK=1 ", "WEIGHT_BANK=11, DATA_BANK=2 ", "bank-sum"),
        ("WEIGHT_BANK=11, DATA_BANK=1 ", "WEIGHT_BANK=0, DATA_BANK=1 ", "no-weight-bank"),
        ("FP32TOFP16_EN=1", "FP32TOFP16_EN=0", "fp16-unconverted"),
        ("SIZE_E_2=1, SIZE_E_1=1, SIZE_E_0=1", "SIZE_E_2=0, SIZE_E_1=0, SIZE_E_0=0", "size-e-short"),
        ("DPU_OP_EN=1, CORE_OP_EN=1", "DPU_OP_EN=1, CORE_OP_EN=0", "enable-mask"),
        ("HEIGHT_WDMA=11", "HEIGHT_WDMA=10", "wdma-size"),
        ("PC_DATA_AMOUNT=14", "PC_DATA_AMOUNT=13", "amount-short"),
        ("DECOMP_CONTROL=0", "DECOMP_CONTROL=1", "decompression"),
        ("DATAOUT_ATOMICS=144", "DATAOUT_ATOMICS=143", "output-size"),
    ] {
        assert!(text.contains(from), "{from}");
        let said = findings(&text.replace(from, to));
        assert!(said.contains(&format!("[{name}]")), "{name}: {said}");
    }
}

/// The longest chain that the PC counts, as one file.
#[test]
fn a_full_chain_is_checked() {
    let body = "DPU.S_POINTER = 0xE\nCNA.CBUF_CON0 = 0xB1\n";
    let tail = "PC.REGISTER_AMOUNTS = 2\npre-op-enable\nop-enable { DPU_OP_EN=1, DPU_RDMA_OP_EN=1 }\n";
    let text: String = (1..=4095)
        .map(|index| {
            let (at, next) = (index * 64, if index == 4095 { 0 } else { (index + 1) * 64 });
            format!(".program at {at}\n{body}PC.BASE_ADDRESS = {next}\n{tail}")
        })
        .collect();
    let found = lint(&parse(&text).unwrap());
    assert_eq!(found.len(), 1, "{:?}", found.first());
    assert_eq!((found[0].lint.name, found[0].program), ("link-half", 4094), "the last amount has no address");
}
