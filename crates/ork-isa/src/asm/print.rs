// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words to text.

use std::fmt::Write;

use super::{Listing, Stream};
use crate::{Cmd, CmdKind, FieldDesc, Precision, Register, RegisterDesc, regs};

/// Name under which bits are printed that no field names.
pub(super) const RESERVED: &str = "reserved";
/// The directive that opens a program.
pub(super) const STREAM: &str = "program";
/// Column at which comments start, where the statement leaves room.
const COMMENT_COLUMN: usize = 60;
/// Numbers up to this are printed in decimal.
const DECIMAL_MAX: u32 = 9999;

/// What stands behind the statements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Comments {
    /// Place and hexadecimal form of every word, what the register is for, and what its numbers mean.
    #[default]
    Full,
    /// Only what is wrong or unknown about a word.
    Warnings,
}

/// The text of a listing.
#[must_use]
pub fn print(listing: &Listing, comments: Comments) -> String {
    let mut text = String::new();
    let plain = match listing.streams.as_slice() {
        [only] => only.name.is_empty() && only.at.is_none() && !only.words.is_empty(),
        _ => false,
    };
    for (index, stream) in listing.streams.iter().enumerate() {
        if !plain {
            if index > 0 {
                text.push('\n');
            }
            push_directive(&mut text, stream);
        }
        for (place, word) in stream.words.iter().enumerate() {
            let statement = statement(*word);
            let comment = comment(*word, place, comments);
            // Writing to a string cannot fail.
            let _ = match comment.as_str() {
                "" => writeln!(text, "{statement}"),
                comment => writeln!(text, "{statement:COMMENT_COLUMN$} ; {comment}"),
            };
        }
    }
    text
}

fn push_directive(text: &mut String, stream: &Stream) {
    text.push('.');
    text.push_str(STREAM);
    if !stream.name.is_empty() {
        let name = stream.name.replace(|c: char| c == '"' || c.is_control(), "_");
        let _ = write!(text, " \"{name}\"");
    }
    if let Some(at) = stream.at {
        let _ = write!(text, " at {at}");
    }
    text.push('\n');
}

/// The statement of one word; `parse` gives the same word back.
#[must_use]
pub fn statement(word: Cmd) -> String {
    match word.kind() {
        CmdKind::Write { block, offset, value } => match word.register() {
            Some(desc) => format!("{block}.{} {}", desc.name, fields(desc, value)),
            None => format!("{block}+{offset:#06x} = {value:#010x}"),
        },
        CmdKind::OpEnable { mask } => {
            format!("op-enable {}", fields(regs::global::OperationEnable::DESC, mask))
        }
        CmdKind::PreOpEnable => "pre-op-enable".into(),
        CmdKind::Nop if word.0 == 0 => "nop".into(),
        CmdKind::Nop => format!("nop {:#018x}", word.0),
        CmdKind::Unknown => format!("word {:#018x}", word.0),
    }
}

fn fields(desc: &RegisterDesc, value: u32) -> String {
    let mut text = String::from("{ ");
    for (index, field) in desc.fields.iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let _ = write!(text, "{comma}{}={}", field.name, number(field.get(value)));
    }
    let reserved = value & !desc.named_mask();
    if reserved != 0 {
        let _ = write!(text, ", {RESERVED}={reserved:#010x}");
    }
    text.push_str(" }");
    text
}

fn number(value: u32) -> String {
    if value <= DECIMAL_MAX { value.to_string() } else { format!("{value:#x}") }
}

fn comment(word: Cmd, place: usize, comments: Comments) -> String {
    let mut text = String::new();
    if comments == Comments::Full {
        let _ = write!(text, "{place:3} {:#018x}", word.0);
    }
    let mut push = |part: &str| {
        if !text.is_empty() {
            text.push_str(" · ");
        }
        text.push_str(part);
    };
    for warning in warnings(word) {
        push(&format!("!! {warning}"));
    }
    if comments == Comments::Full {
        match word.kind() {
            CmdKind::Write { value, .. } => {
                if let Some(desc) = word.register() {
                    push(first_sentence(desc.meaning));
                    let hints: Vec<String> =
                        desc.fields.iter().filter_map(|field| hint(field, field.get(value))).collect();
                    if !hints.is_empty() {
                        push(&hints.join(", "));
                    }
                }
            }
            CmdKind::OpEnable { mask } => push(&format!("starts {}", blocks(mask))),
            CmdKind::PreOpEnable => push("stands before op-enable"),
            CmdKind::Nop => push("writes nothing"),
            CmdKind::Unknown => {}
        }
    }
    text
}

/// What is out of the ordinary about a word, seen by itself.
fn warnings(word: Cmd) -> Vec<String> {
    let reserved = |desc: &RegisterDesc, value: u32| {
        let bits = value & !desc.named_mask();
        (bits != 0).then(|| format!("RESERVED BITS {bits:#010x} are set"))
    };
    match word.kind() {
        CmdKind::Write { block, value, .. } => match word.register() {
            Some(desc) => reserved(desc, value).into_iter().collect(),
            None => vec![format!("UNKNOWN REGISTER of {block}")],
        },
        CmdKind::OpEnable { mask } => {
            reserved(regs::global::OperationEnable::DESC, mask).into_iter().collect()
        }
        CmdKind::Unknown => vec![format!("UNKNOWN WORD: target {:#06x} names no block", word.target())],
        CmdKind::PreOpEnable | CmdKind::Nop => Vec::new(),
    }
}

/// The blocks that an op-enable mask starts.
pub(crate) fn blocks(mask: u32) -> String {
    let names: Vec<&str> = regs::global::OperationEnable::DESC
        .fields
        .iter()
        .rev()
        .filter(|field| field.get(mask) == 1)
        .map(|field| field.name.trim_end_matches("_OP_EN"))
        .collect();
    if names.is_empty() { "nothing".into() } else { names.join(" + ") }
}

fn first_sentence(meaning: &str) -> &str {
    let meaning = meaning.trim();
    meaning.split_once(". ").map_or(meaning, |(first, _)| first).trim_end_matches('.')
}

/// What a number stands for, where the database says how to read it.
fn hint(field: &FieldDesc, value: u32) -> Option<String> {
    let meaning = field.meaning.trim();
    let lower = meaning.to_ascii_lowercase();
    // `PROC_PRECISION` and its like hold the code of `isa.md` §3; `PPU_RDMA.IN_PRECISION` holds a width.
    if field.name.ends_with("_PRECISION") && meaning.starts_with("0 int8") {
        return Precision::from_code(value).map(|precision| format!("{} {precision}", field.name));
    }
    if lower.contains("minus 1") && !lower.contains("says minus 1") {
        return Some(format!("{} counts {}", field.name, u64::from(value) + 1));
    }
    let width = field.high - field.low + 1;
    let negative = value >> (width - 1) == 1;
    if negative && lower.contains("signed") {
        let signed = i64::from(value) - (1_i64 << width);
        return Some(format!("{} is {signed}", field.name));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(word: u64, comments: Comments) -> String {
        print(&Listing::of(vec![Cmd(word)]), comments)
    }

    #[test]
    fn a_word_is_one_line_with_every_field() {
        let line = one(0x0201_0000_20B1_1040, Comments::Warnings);
        assert_eq!(
            line,
            "CNA.CBUF_CON0 { WEIGHT_REUSE=1, DATA_REUSE=0, FC_DATA_BANK=0, WEIGHT_BANK=11, DATA_BANK=1 }\n"
        );
    }

    #[test]
    fn unknown_things_are_loud() {
        for (word, says) in [
            (0x0201_0000_40B1_1040, vec!["reserved=0x00004000", "!! RESERVED BITS 0x00004000"]),
            (0x0201_0000_0001_1098, vec!["CNA+0x1098 = 0x00000001", "!! UNKNOWN REGISTER of CNA"]),
            (0x0A01_0000_0001_100C, vec!["word 0x0a0100000001100c", "!! UNKNOWN WORD"]),
            (0x0081_0000_010D_0008, vec!["op-enable {", "reserved=0x00000100", "!! RESERVED"]),
        ] {
            let line = one(word, Comments::Warnings);
            for part in says {
                assert!(line.contains(part), "{line}");
            }
        }
        assert!(!one(0x0201_0000_00B1_1040, Comments::Full).contains("!!"));
    }

    #[test]
    fn comments_explain_numbers() {
        let line = one(0x1001_4800_0002_4010, Comments::Full);
        assert!(
            line.contains("OUT_PRECISION fp16") && line.contains("Precisions of the DPU stages"),
            "{line}"
        );
        assert!(one(0x0201_0FFF_FFFD_1080, Comments::Full).contains("SURF_STRIDE is -3"));
        assert!(one(0x1001_0000_0003_4034, Comments::Full).contains("HEIGHT counts 4"));
        assert!(one(0x0081_0000_000D_0008, Comments::Full).contains("starts CNA + CORE + DPU"));
        assert!(!one(0x8001_0000_0002_7030, Comments::Full).contains("fp16"), "a width, not a code");
    }

    #[test]
    fn names_cannot_break_the_directive() {
        let name = "a\"b\nc".to_owned();
        let listing = Listing { streams: vec![Stream { name, ..Stream::default() }] };
        let text = print(&listing, Comments::Full);
        assert_eq!(super::super::parse(&text).unwrap().streams[0].name, "a_b_c");
    }
}
