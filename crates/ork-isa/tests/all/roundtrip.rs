// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words to text and back: every register, random words, recorded programs, and text that is no program.

use crate::support;
use ork_isa::asm::{Comments, Listing, Stream, parse, print, read_bytes, read_hex, statement};
use ork_isa::{Block, Cmd, CmdKind, Iova, Register, regs};
use support::Random;

fn assert_same(words: &[Cmd]) {
    let listing = Listing::of(words.to_vec());
    for comments in [Comments::Full, Comments::Warnings] {
        let text = print(&listing, comments);
        let back = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(back, listing, "{text}");
    }
}

#[test]
fn every_register_with_every_bit() {
    let mut count = 0;
    for block in Block::ALL {
        let Some(target) = block.target() else { continue };
        for desc in regs::of(block) {
            let mut words: Vec<Cmd> = [0, u32::MAX, desc.named_mask(), !desc.named_mask()]
                .map(|v| Cmd::new(target, desc.offset, v))
                .into();
            words.extend((0..32).map(|bit| Cmd::new(target, desc.offset, 1 << bit)));
            assert_same(&words);
            assert!(
                statement(words[0]).starts_with(&format!("{block}.{} ", desc.name)),
                "named, not numbered"
            );
            for field in desc.fields {
                assert!(
                    statement(words[0]).contains(&format!("{}=", field.name)),
                    "{} {}",
                    desc.name,
                    field.name
                );
            }
            count += 1;
        }
    }
    assert!(count > 150, "{count} registers have a word");
}

#[test]
fn words_that_are_no_register() {
    let pc = Block::Pc.target().unwrap();
    let link = regs::pc::BaseAddress::DESC.offset;
    let mut words = vec![
        Cmd(0),
        Cmd::NO_NEXT,
        Cmd(u64::MAX),
        Cmd::PRE_OP_ENABLE,
        Cmd(Cmd::PRE_OP_ENABLE.0 | 1),
        Cmd::op_enable(0xD),
        Cmd::op_enable(u32::MAX),
        Cmd::new(0x0081, 0x000C, 1),
        Cmd::new(pc, link, 0xFFF8_0380),
        Cmd::new(pc, link, 0xFFFF_FFFF),
        Cmd::new(pc, regs::pc::RegisterAmounts::DESC.offset, 0x0002_0037),
    ];
    // Every target, known or not, with a known, an odd and the largest offset.
    for target in 0..=u16::MAX {
        words.extend([0x1040, 0x1041, 0xFFFF].map(|offset| Cmd::new(target, offset, 0x8000_0001)));
    }
    assert_same(&words);
}

#[test]
fn random_words() {
    let mut random = Random(1);
    let targets: Vec<u16> =
        Block::ALL.into_iter().filter_map(Block::target).chain([0x0081, 0x0041, 1, 0]).collect();
    let mut kinds = [0_u32; 3];
    let words: Vec<Cmd> = (0..60_000)
        .map(|index| {
            let bits = random.next();
            let cmd = match index % 3 {
                0 => Cmd(bits),
                1 => Cmd::new(targets[random.below(targets.len())], bits as u16, (bits >> 16) as u32),
                // Offsets that registers have.
                _ => {
                    let block = Block::ALL[random.below(7)];
                    let all = regs::of(block);
                    let desc = all[random.below(all.len())];
                    Cmd::new(block.target().unwrap(), desc.offset, (bits >> 16) as u32)
                }
            };
            match cmd.kind() {
                CmdKind::Unknown => kinds[0] += 1,
                CmdKind::Write { .. } if cmd.register().is_none() => kinds[1] += 1,
                CmdKind::Write { .. } => kinds[2] += 1,
                _ => {}
            }
            cmd
        })
        .collect();
    assert!(kinds.iter().all(|count| *count > 1000), "all kinds occur: {kinds:?}");
    assert_same(&words);
}

#[test]
fn listings_keep_names_addresses_and_empty_programs() {
    let stream = |name: &str, at: Option<u32>, words: &[Cmd]| Stream {
        name: name.into(),
        at: at.map(Iova),
        words: words.to_vec(),
    };
    for streams in [
        vec![],
        vec![stream("", None, &[])],
        vec![stream("task 0; not a comment", Some(0), &[Cmd(0)])],
        vec![stream("", None, &[Cmd(1)]), stream("at", Some(u32::MAX), &[]), stream("ä", None, &[Cmd(2)])],
    ] {
        let listing = Listing { streams };
        assert_eq!(parse(&print(&listing, Comments::Full)).unwrap(), listing);
    }
}

#[test]
fn recorded_programs_have_no_unknown_word_and_come_back_whole() {
    let captures = support::captures();
    assert_eq!(captures.len(), 5);
    let cases = support::cases();
    assert!(cases.len() >= 76, "{}", cases.len());
    let mut words = 0;
    let all = captures.iter().map(|(name, listing)| (name, listing));
    let recorded =
        cases.iter().flat_map(|case| case.submits.iter().map(move |listing| (&case.name, listing)));
    for (name, listing) in all.chain(recorded) {
        for cmd in listing.words() {
            let known = match cmd.kind() {
                CmdKind::Write { .. } => cmd.register().is_some(),
                CmdKind::Unknown => false,
                CmdKind::OpEnable { .. } | CmdKind::PreOpEnable | CmdKind::Nop => true,
            };
            assert!(known, "{name}: {cmd}");
            words += 1;
        }
        let text = print(listing, Comments::Full);
        assert!(!text.contains("!! UNKNOWN"), "{name}");
        assert_eq!(&parse(&text).unwrap(), listing, "{name}");
    }
    assert!(words > 20_000, "{words}");
}

/// Found by mutation: a name that cannot be printed as it is would come back as another one.
#[test]
fn names_have_no_control_characters() {
    for name in ["task\r", "\t", "a\u{85}b", "\u{0}"] {
        let error = parse(&format!(".program \"{name}\" at 0x100\nnop")).unwrap_err();
        assert_eq!((error.line, error.column), (1, 10), "{name:?}: {error}");
    }
    assert_eq!(parse(".program \"task é 1\"\nnop").unwrap().streams[0].name, "task é 1");
}

/// Lines of recorded programs with pieces cut out, doubled and put in: an error with its place, or a listing that
/// comes back whole.
#[test]
fn mutated_text_never_panics() {
    let (_, listing) = &support::captures()[1];
    let text = print(listing, Comments::Warnings);
    let lines: Vec<&str> = text.lines().collect();
    let pieces = [
        "{",
        "}",
        "=",
        ",",
        "\"",
        "0x",
        "reserved=",
        ".program ",
        " at ",
        "-",
        "é",
        "\u{0}",
        ";",
        "99999999999",
    ];
    let mut random = Random(11);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..3000 {
        let mut line = lines[random.below(lines.len())].to_owned();
        let places: Vec<usize> = line.char_indices().map(|(at, _)| at).chain([line.len()]).collect();
        let (a, b) = (places[random.below(places.len())], places[random.below(places.len())]);
        let piece = pieces[random.below(pieces.len())];
        match random.below(4) {
            0 => line.insert_str(a, piece),
            1 => line.replace_range(a.min(b)..a.max(b), piece),
            2 => line.truncate(a),
            _ => {
                let tail = line.split_off(b);
                line.insert_str(a.min(b), &tail);
                line.push_str(&tail);
            }
        }
        match parse(&line) {
            Ok(listing) => {
                assert_eq!(parse(&print(&listing, Comments::Full)).unwrap(), listing, "{line}");
                accepted += 1;
            }
            Err(error) => {
                assert!(error.line == 1 && error.column <= line.chars().count() + 1, "{error}: {line}");
                refused += 1;
            }
        }
    }
    assert!(accepted > 50 && refused > 300, "{accepted} {refused}");
}

#[test]
fn changed_text_is_a_changed_word() {
    let (_, listing) = &support::captures()[0];
    let text = print(listing, Comments::Warnings);
    let changed = text.replacen("DATA_BANK=1 ", "DATA_BANK=2 ", 1);
    assert_ne!(text, changed);
    assert_ne!(&parse(&changed).unwrap(), listing);
}

#[test]
fn random_bytes_and_text_never_panic() {
    let mut random = Random(7);
    let pieces = [
        "CNA",
        ".",
        "CBUF_CON0",
        "{",
        "}",
        "=",
        ",",
        "0x",
        "12",
        "reserved",
        "word",
        "nop",
        "op-enable",
        " ",
        "\n",
        "+",
        ";",
        "\"",
        ".program",
        "at",
        "DATA_BANK",
        "0xFFFFFFFFFFFFFFFFF",
        "é",
        "\u{0}",
        "-",
        "stream",
        "body",
    ];
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..4000 {
        let text: String = (0..random.below(24)).map(|_| pieces[random.below(pieces.len())]).collect();
        match parse(&text) {
            Ok(listing) => {
                assert_eq!(
                    parse(&print(&listing, Comments::Full)).unwrap().words().count(),
                    listing.words().count()
                );
                accepted += 1;
            }
            Err(error) => {
                assert!(error.line >= 1 && error.column >= 1 && !error.to_string().is_empty());
                refused += 1;
            }
        }
        let _ = read_hex(&text);
        let bytes: Vec<u8> = (0..random.below(64)).map(|_| random.next() as u8).collect();
        let text = String::from_utf8_lossy(&bytes);
        let _ = (parse(&text), read_hex(&text));
        if let Ok(listing) = read_bytes(&bytes) {
            assert_same(&listing.words().collect::<Vec<_>>());
        }
    }
    assert!(accepted > 100 && refused > 1000, "{accepted} {refused}");
}
