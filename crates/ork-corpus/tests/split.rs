// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts that share nothing, and texts that are found to be the same.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use ork_corpus::{Corpus, CorpusError, DocumentOverlap, Origin, Part, SplitRule, Verdict};
use proptest::prelude::*;

/// Lines that do not repeat, of `lines` different numbers.
fn prose(seed: u64, lines: u64) -> String {
    let mut state = seed;
    let mut word = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 44
    };
    (0..lines).map(|_| format!("the {} of {} and {} was {}\n", word(), word(), word(), word())).collect()
}

fn origin(corpus: &Corpus, rule: SplitRule, part: Part) -> Origin {
    corpus.split(rule).unwrap().part(part).origin()
}

proptest! {
    /// Against a second statement of the rule, line by line: a block ends with the first line that fills it.
    #[test]
    fn the_rule_line_by_line(
        lines in proptest::collection::vec("[a-zä日 ]{0,40}", 1..60),
        block_bytes in 1u32..90,
        cycle in 2u32..5,
        closed in any::<bool>(),
    ) {
        let mut text = lines.join("\n");
        if closed {
            text.push('\n');
        }
        prop_assume!(!text.trim().is_empty());
        let (mut seen, mut held_out, mut block, mut filled) = (String::new(), String::new(), 0, 0);
        for line in text.split_inclusive('\n') {
            let part = if block % cycle == 0 { &mut seen } else { &mut held_out };
            part.push_str(line);
            filled += line.len();
            if filled >= block_bytes as usize {
                (block, filled) = (block + 1, 0);
            }
        }
        let blocks = block as usize + usize::from(filled > 0);
        let corpus = Corpus::from_text("t", text).unwrap();
        match corpus.split(SplitRule { block_bytes, cycle }) {
            Ok(split) => {
                prop_assert_eq!(split.blocks(), blocks);
                prop_assert_eq!(split.part(Part::Seen).text(), seen);
                prop_assert_eq!(split.part(Part::HeldOut).text(), held_out);
                prop_assert_eq!(split.part(Part::Whole).text(), corpus.text());
                let bytes = split.part(Part::Seen).bytes() + split.part(Part::HeldOut).bytes();
                prop_assert_eq!(bytes, corpus.text().len());
            }
            Err(error) => {
                let too_short = matches!(error, CorpusError::TooShort { .. });
                prop_assert!(too_short);
                prop_assert!(blocks < cycle as usize);
            }
        }
    }
}

#[test]
fn a_longer_text_is_split_alike() {
    let long = prose(1, 4000);
    let short = Corpus::from_text("short", &long[..long.len() / 2]).unwrap();
    let long = Corpus::from_text("long", long).unwrap();
    let rule = SplitRule { block_bytes: 5000, cycle: 3 };
    let seen = |corpus: &Corpus| corpus.split(rule).unwrap().part(Part::Seen).text();
    let (long, short) = (seen(&long), seen(&short));
    assert!(long.starts_with(&short) && long.len() > short.len());
}

#[test]
fn parts_of_one_text_are_disjoint_and_known_to_be() {
    let corpus = Corpus::from_text("t", prose(2, 6000)).unwrap();
    let rule = SplitRule::default();
    let (seen, held_out) = (origin(&corpus, rule, Part::Seen), origin(&corpus, rule, Part::HeldOut));
    let overlap = held_out.overlap(&seen);
    assert_eq!((overlap.document, overlap.verdict()), (DocumentOverlap::OtherPart, Verdict::Disjoint));
    assert!(overlap.first_in_second.unwrap() < 0.01, "{overlap:?}");
    assert_eq!(seen.overlap(&seen).verdict(), Verdict::Same);
    assert_eq!(held_out.overlap(&held_out).document, DocumentOverlap::SamePart);
}

#[test]
fn the_same_words_under_another_name_are_found() {
    let text = prose(3, 6000);
    let corpus = Corpus::from_text("t", text.clone()).unwrap();
    let held_out = origin(&corpus, SplitRule::default(), Part::HeldOut);
    // Rewrapped: another document to a hash, the same text to a reader.
    let rewrapped = Corpus::from_text("copy", text.replace(' ', " \n ")).unwrap();
    let overlap = held_out.overlap(&rewrapped.whole().origin());
    assert_eq!((overlap.document, overlap.verdict()), (DocumentOverlap::Unknown, Verdict::Same));
    assert!(overlap.first_in_second.unwrap() > 0.99, "{overlap:?}");
    // The whole was calibrated, a part is evaluated; and another rule, whose parts cross.
    assert_eq!(held_out.overlap(&corpus.whole().origin()).verdict(), Verdict::Same);
    let other = SplitRule { block_bytes: 10_000, cycle: 3 };
    assert_eq!(held_out.overlap(&origin(&corpus, other, Part::Seen)).verdict(), Verdict::Same);
    // A small piece of it in a large other text is found from its own side, and a large text around it from the other.
    let piece = Corpus::from_text("piece", &text[..text.len() / 20]).unwrap().whole().origin();
    let around =
        Corpus::from_text("around", prose(4, 6000) + &text[..text.len() / 20]).unwrap().whole().origin();
    assert_eq!(piece.overlap(&around).verdict(), Verdict::Same);
    assert_eq!(around.overlap(&piece).verdict(), Verdict::Same);
    // Something else.
    let stranger = Corpus::from_text("else", prose(5, 6000)).unwrap().whole().origin();
    assert_eq!(held_out.overlap(&stranger).verdict(), Verdict::Disjoint);
}

#[test]
fn a_long_text_keeps_a_small_fingerprint_that_still_compares() {
    let text = prose(6, 120_000);
    let long = Corpus::from_text("long", text.clone()).unwrap().whole().origin();
    assert!(long.fingerprint.level() > 7 && long.fingerprint.len() <= 16_384, "{}", long.fingerprint.level());
    let third = Corpus::from_text("third", &text[..text.len() / 3]).unwrap().whole().origin();
    assert!(third.fingerprint.level() < long.fingerprint.level());
    let overlap = third.overlap(&long);
    assert!(overlap.first_in_second.unwrap() > 0.99, "{overlap:?}");
    assert!((overlap.second_in_first.unwrap() - 1.0 / 3.0).abs() < 0.03, "{overlap:?}");
}

#[test]
fn texts_too_short_to_tell_are_not_called_different() {
    let one = Corpus::from_text("one", "a short text").unwrap().whole().origin();
    let two = Corpus::from_text("two", "another text").unwrap().whole().origin();
    assert!(one.fingerprint.is_empty());
    assert_eq!(one.overlap(&two).verdict(), Verdict::Unknown);
    assert_eq!(one.overlap(&one).verdict(), Verdict::Same);
}

/// Results are kept for years: what is written today must compare tomorrow.
#[test]
fn origins_survive_json_and_their_hashes_are_fixed() {
    let corpus = Corpus::from_text("t", prose(7, 400)).unwrap();
    let origin = origin(&corpus, SplitRule { block_bytes: 1000, cycle: 4 }, Part::HeldOut);
    let json = serde_json::to_string(&origin).unwrap();
    assert_eq!(serde_json::from_str::<Origin>(&json).unwrap(), origin);
    assert!(json.contains(r#""part":"held-out""#) && json.contains(r#""level":7"#), "{json}");
    let passages = serde_json::to_value(&origin.fingerprint).unwrap();
    assert_eq!(passages["passages"][0], FIRST_PASSAGE);
    assert_eq!(
        origin.to_string(),
        format!(
            "held-out part of t ({} bytes; blocks of 1000 bytes, every 4th seen; document {})",
            origin.bytes,
            &corpus.digest()[..12]
        )
    );
}

/// Computed once; a change of the hash would make old records compare as different.
const FIRST_PASSAGE: u32 = 40_819_840;

#[test]
fn bad_files_and_rules_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    assert!(matches!(Corpus::read(&path), Err(CorpusError::Read { .. })));
    std::fs::write(&path, b"ab\xFFcd").unwrap();
    assert!(matches!(Corpus::read(&path), Err(CorpusError::NotUtf8 { offset: 2, .. })));
    std::fs::write(&path, " \n").unwrap();
    assert!(matches!(Corpus::read(&path), Err(CorpusError::Empty { .. })));
    std::fs::write(&path, "abc\n".repeat(100)).unwrap();
    let corpus = Corpus::read(&path).unwrap();
    assert_eq!(corpus.name(), "text");
    for (block_bytes, cycle) in [(0, 4), (16, 1), (16, 0)] {
        assert!(matches!(corpus.split(SplitRule { block_bytes, cycle }), Err(CorpusError::Rule { .. })));
    }
    assert!(matches!(
        corpus.split(SplitRule { block_bytes: 200, cycle: 4 }),
        Err(CorpusError::TooShort { blocks: 2, .. })
    ));
    assert!(corpus.split(SplitRule { block_bytes: u32::MAX, cycle: 2 }).is_err());
}
