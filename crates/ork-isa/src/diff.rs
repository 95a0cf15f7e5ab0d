// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two programs compared field by field.
//!
//! Words are aligned by what they write: the second `CNA.CBUF_CON0` of one program meets the second of the other.
//! What is left over is missing or added; what stands in another order is reported as moved.

use std::collections::HashMap;
use std::fmt;

use crate::regs::{cna, dpu, dpu_rdma, pc, ppu, ppu_rdma};
use crate::{Cmd, CmdKind, FieldDesc, Register, RegisterDesc, regs};

/// What is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addresses {
    /// Every bit.
    #[default]
    Compare,
    /// Memory addresses and links may differ.
    Ignore,
}

/// One difference. Word numbers count from 0; occurrences from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// A field, or bits that no field names, hold different values.
    Field {
        /// "CNA.CBUF_CON0".
        register: String,
        /// How many times the register has been written by then.
        occurrence: usize,
        /// Field name, `reserved` for bits that none names, `value` for a register that is not known.
        field: &'static str,
        /// Word and value of the first program.
        a: (usize, u32),
        /// Word and value of the second program.
        b: (usize, u32),
    },
    /// A word that only the first program has.
    Missing {
        /// Its place.
        word: usize,
        /// The word.
        cmd: Cmd,
    },
    /// A word that only the second program has.
    Added {
        /// Its place.
        word: usize,
        /// The word.
        cmd: Cmd,
    },
    /// A word that stands in another order among the words that both have.
    Moved {
        /// "CNA.CBUF_CON0".
        register: String,
        /// How many times the register has been written by then.
        occurrence: usize,
        /// Its place in the first program.
        a: usize,
        /// Its place in the second program.
        b: usize,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nth = |occurrence: usize| if occurrence > 1 { format!(" #{occurrence}") } else { String::new() };
        match self {
            Self::Field { register, occurrence, field, a, b } => write!(
                f,
                "word {} / {}: {register}{}.{field} {} -> {} ({:#x} -> {:#x})",
                a.0,
                b.0,
                nth(*occurrence),
                a.1,
                b.1,
                a.1,
                b.1
            ),
            Self::Missing { word, cmd } => write!(f, "word {word} / -: missing: {cmd}"),
            Self::Added { word, cmd } => write!(f, "word - / {word}: added: {cmd}"),
            Self::Moved { register, occurrence, a, b } => {
                write!(f, "word {a} / {b}: moved: {register}{}", nth(*occurrence))
            }
        }
    }
}

/// A word with what it is aligned by.
struct Aligned {
    word: usize,
    cmd: Cmd,
    occurrence: usize,
}

/// Every difference, in the order of the first program's words, then what was added.
#[must_use]
pub fn diff(a: &[Cmd], b: &[Cmd], addresses: Addresses) -> Vec<Difference> {
    let left = align(a);
    let right: HashMap<_, Aligned> = align(b).into_iter().collect();
    let mut found = Vec::new();
    let mut pairs = Vec::new();
    for (key, own) in &left {
        match right.get(key) {
            Some(other) => {
                compare(own, other, addresses, &mut found);
                pairs.push((own, other));
            }
            None => found.push(Difference::Missing { word: own.word, cmd: own.cmd }),
        }
    }
    let places: Vec<usize> = pairs.iter().map(|(_, other)| other.word).collect();
    let kept = in_order(&places);
    for (index, (own, other)) in pairs.iter().enumerate() {
        if !kept[index] {
            let (register, occurrence) = (label(own.cmd), own.occurrence);
            found.push(Difference::Moved { register, occurrence, a: own.word, b: other.word });
        }
    }
    let known: HashMap<_, ()> = left.iter().map(|(key, _)| (*key, ())).collect();
    let mut added: Vec<(usize, Cmd)> = right
        .iter()
        .filter(|(key, _)| !known.contains_key(*key))
        .map(|(_, other)| (other.word, other.cmd))
        .collect();
    added.sort_by_key(|(word, _)| *word);
    found.extend(added.into_iter().map(|(word, cmd)| Difference::Added { word, cmd }));
    found
}

/// Target, offset and occurrence of each word.
fn align(words: &[Cmd]) -> Vec<((u16, u16, usize), Aligned)> {
    let mut seen: HashMap<(u16, u16), usize> = HashMap::new();
    words
        .iter()
        .enumerate()
        .map(|(word, cmd)| {
            let key = (cmd.target(), cmd.offset());
            let occurrence = *seen.entry(key).and_modify(|count| *count += 1).or_insert(1);
            ((key.0, key.1, occurrence), Aligned { word, cmd: *cmd, occurrence })
        })
        .collect()
}

fn description(cmd: Cmd) -> Option<&'static RegisterDesc> {
    match cmd.kind() {
        CmdKind::OpEnable { .. } => Some(regs::global::OperationEnable::DESC),
        _ => cmd.register(),
    }
}

/// What a word writes, without its value.
fn label(cmd: Cmd) -> String {
    match (cmd.kind(), cmd.register()) {
        (CmdKind::OpEnable { .. }, _) => "op-enable".into(),
        (CmdKind::Write { block, .. }, Some(desc)) => format!("{block}.{}", desc.name),
        (CmdKind::Write { block, offset, .. }, None) => format!("{block}+{offset:#06x}"),
        (CmdKind::PreOpEnable, _) => "pre-op-enable".into(),
        (CmdKind::Nop, _) => "nop".into(),
        (CmdKind::Unknown, _) => format!("{:#06x}:{:#06x}", cmd.target(), cmd.offset()),
    }
}

fn compare(a: &Aligned, b: &Aligned, addresses: Addresses, found: &mut Vec<Difference>) {
    let (left, right) = (a.cmd.value(), b.cmd.value());
    if left == right {
        return;
    }
    let mut push = |field: &'static str, values: (u32, u32)| {
        if values.0 != values.1 {
            let (register, occurrence) = (label(a.cmd), a.occurrence);
            let (a, b) = ((a.word, values.0), (b.word, values.1));
            found.push(Difference::Field { register, occurrence, field, a, b });
        }
    };
    let Some(desc) = description(a.cmd) else {
        push("value", (left, right));
        return;
    };
    for field in desc.fields {
        if addresses == Addresses::Compare || !is_address(desc, field) {
            push(field.name, (field.get(left), field.get(right)));
        }
    }
    let reserved = !desc.named_mask();
    push("reserved", (left & reserved, right & reserved));
}

/// The fields that hold addresses of memory.
fn is_address(desc: &RegisterDesc, field: &FieldDesc) -> bool {
    const ADDRESSES: [&RegisterDesc; 10] = [
        pc::BaseAddress::DESC,
        cna::FeatureDataAddr::DESC,
        cna::DcompAddr0::DESC,
        dpu::DstBaseAddr::DESC,
        dpu_rdma::RdmaSrcBaseAddr::DESC,
        dpu_rdma::RdmaBsBaseAddr::DESC,
        dpu_rdma::RdmaBnBaseAddr::DESC,
        dpu_rdma::RdmaEwBaseAddr::DESC,
        ppu::DstBaseAddr::DESC,
        ppu_rdma::RdmaSrcBaseAddr::DESC,
    ];
    ADDRESSES.contains(&desc) && field.high == 31
}

/// Marks a longest rising subsequence: the words that need not move.
fn in_order(places: &[usize]) -> Vec<bool> {
    // Last index of the best sequence of each length, and the index before each index in its sequence.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(places.len());
    for (index, place) in places.iter().enumerate() {
        let length = ends.partition_point(|end| places[*end] < *place);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        if length == ends.len() {
            ends.push(index);
        } else {
            ends[length] = index;
        }
    }
    let mut kept = vec![false; places.len()];
    let mut next = ends.last().copied();
    while let Some(index) = next {
        kept[index] = true;
        next = before[index];
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Cmd> {
        crate::asm::parse(text).unwrap().words().collect()
    }

    fn differences(a: &str, b: &str) -> Vec<String> {
        diff(&words(a), &words(b), Addresses::Compare).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn equal_programs_have_no_difference() {
        let text =
            "CNA.CBUF_CON0 = 0xB1\nCNA.CBUF_CON0 = 0xB1\nnop\nop-enable = 0xD\nword 0x0A01000000011000";
        assert_eq!(differences(text, text), [""; 0]);
    }

    #[test]
    fn fields_not_words() {
        let found = differences(
            "CNA.CBUF_CON0 = 0xB1\nCNA.CBUF_CON0 = 0xB1\nop-enable = 0xD",
            "CNA.CBUF_CON0 = 0xB1\nCNA.CBUF_CON0 = 0x40A2\nop-enable = 0x1D",
        );
        assert_eq!(
            found,
            [
                "word 1 / 1: CNA.CBUF_CON0 #2.WEIGHT_BANK 11 -> 10 (0xb -> 0xa)",
                "word 1 / 1: CNA.CBUF_CON0 #2.DATA_BANK 1 -> 2 (0x1 -> 0x2)",
                "word 1 / 1: CNA.CBUF_CON0 #2.reserved 0 -> 16384 (0x0 -> 0x4000)",
                "word 2 / 2: op-enable.DPU_RDMA_OP_EN 0 -> 1 (0x0 -> 0x1)",
            ]
        );
        assert_eq!(
            differences("CNA+0x1098 = 1", "CNA+0x1098 = 2"),
            ["word 0 / 0: CNA+0x1098.value 1 -> 2 (0x1 -> 0x2)"]
        );
    }

    #[test]
    fn missing_added_moved() {
        let found = differences(
            "CNA.CBUF_CON0 = 1\nCNA.CBUF_CON1 = 1\nCNA.CVT_CON0 = 11\nCNA.PAD_CON0 = 0",
            "CNA.CVT_CON0 = 11\nCNA.CBUF_CON0 = 1\nCNA.CBUF_CON1 = 1\nCNA.PAD_CON1 = 0",
        );
        assert_eq!(
            found,
            [
                "word 3 / -: missing: CNA.PAD_CON0 = 0x0",
                "word 2 / 0: moved: CNA.CVT_CON0",
                "word - / 3: added: CNA.PAD_CON1 = 0x0",
            ]
        );
    }

    #[test]
    fn addresses_can_be_ignored() {
        let a =
            words("CNA.FEATURE_DATA_ADDR = 0x1000\nPC.BASE_ADDRESS = 0x1000\nDPU.DATA_CUBE_NOTCH_ADDR = 1");
        let b =
            words("CNA.FEATURE_DATA_ADDR = 0x2000\nPC.BASE_ADDRESS = 0x2001\nDPU.DATA_CUBE_NOTCH_ADDR = 2");
        assert_eq!(diff(&a, &b, Addresses::Compare).len(), 4);
        let left: Vec<String> = diff(&a, &b, Addresses::Ignore).iter().map(ToString::to_string).collect();
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(left[0].contains("PC_SEL") && left[1].contains("NOTCH_ADDR_0"), "{left:?}");
    }

    #[test]
    fn longest_rising_subsequence() {
        assert_eq!(in_order(&[]), [false; 0]);
        assert_eq!(in_order(&[3, 0, 1, 2]), [false, true, true, true]);
        assert_eq!(in_order(&[2, 1, 0]).iter().filter(|kept| **kept).count(), 1);
        assert_eq!(in_order(&[0, 4, 1, 5, 2, 3]).iter().filter(|kept| **kept).count(), 4);
    }
}
