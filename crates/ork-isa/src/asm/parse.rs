// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text to words.

use super::error::{Expectation, ParseError};
use super::lex::{Line, Token, quote};
use super::nearest::nearest;
use super::print::{RESERVED, STREAM};
use super::{Listing, Stream};
use crate::{Block, Cmd, CmdKind, Iova, Register, RegisterDesc, find_register, regs};

/// Words that may stand where a block name may.
const KEYWORDS: [&str; 4] = ["word", "nop", "pre-op-enable", "op-enable"];

/// Reads the text form of register programs.
///
/// # Errors
/// The first line that is no statement: where, what was expected, and the nearest valid name.
pub fn parse(text: &str) -> Result<Listing, ParseError> {
    let mut listing = Listing::default();
    for (index, line) in text.lines().enumerate() {
        let mut line = Line::new(line, index + 1);
        if line.peek() == Token::End {
            continue;
        }
        if line.accept('.') {
            listing.streams.push(stream(&mut line)?);
        } else {
            let word = word(&mut line)?;
            if listing.streams.is_empty() {
                listing.streams.push(Stream::default());
            }
            if let Some(stream) = listing.streams.last_mut() {
                stream.words.push(word);
            }
        }
        if line.peek() != Token::End {
            return Err(line.expected("the end of the line"));
        }
    }
    Ok(listing)
}

/// `.program "name" at 0xADDRESS`, both parts optional; the dot is taken.
fn stream(line: &mut Line<'_>) -> Result<Stream, ParseError> {
    let (column, token) = line.take();
    if token != Token::Name(STREAM) {
        let what =
            Expectation::Name { of: "directive".into(), found: token.quoted(), nearest: Some(".program") };
        return Err(line.error(column, what));
    }
    let mut stream = Stream::default();
    if let Token::Text(name) = line.peek() {
        line.take();
        stream.name = name.to_owned();
    }
    if line.peek() == Token::Name("at") {
        line.take();
        let address = number(line, "an address", u32::MAX.into())?;
        stream.at = Some(Iova(narrow(address)));
    }
    Ok(stream)
}

fn word(line: &mut Line<'_>) -> Result<Cmd, ParseError> {
    let (column, token) = line.take();
    let Token::Name(name) = token else {
        let what =
            Expectation::Token { expected: "a block, `word`, `nop` or `op-enable`", found: token.quoted() };
        return Err(line.error(column, what));
    };
    match name {
        "word" => Ok(Cmd(number(line, "a word", u64::MAX)?)),
        "pre-op-enable" => Ok(Cmd::PRE_OP_ENABLE),
        "op-enable" => Ok(Cmd::op_enable(value(line, regs::global::OperationEnable::DESC)?)),
        "nop" => {
            if line.peek() == Token::End {
                return Ok(Cmd(0));
            }
            let (column, _) = line.clone().take();
            let word = Cmd(number(line, "a word", u64::MAX)?);
            if word.kind() == CmdKind::Nop {
                Ok(word)
            } else {
                Err(line.error(column, Expectation::NopWord { found: word.0 }))
            }
        }
        name => register_write(line, column, name),
    }
}

fn register_write(line: &mut Line<'_>, column: usize, name: &str) -> Result<Cmd, ParseError> {
    let writable = || Block::ALL.into_iter().filter(|block| block.target().is_some());
    let found = writable().find(|block| block.name() == name);
    let Some((block, target)) = found.and_then(|block| Some((block, block.target()?))) else {
        let names = writable().map(Block::name).chain(KEYWORDS);
        let of = "block that programs reach".into();
        let what = Expectation::Name { of, found: quote(name), nearest: nearest(name, names) };
        return Err(line.error(column, what));
    };
    if line.accept('+') {
        let offset = number(line, "an offset", u16::MAX.into())?;
        if !line.accept('=') {
            return Err(line.expected("`=` and a value"));
        }
        let value = number(line, "a register value", u32::MAX.into())?;
        return Ok(Cmd::new(target, narrow(offset) as u16, narrow(value)));
    }
    if !line.accept('.') {
        return Err(line.expected("`.` and a register, or `+` and an offset"));
    }
    let (column, token) = line.take();
    let Token::Name(register) = token else {
        let what = Expectation::Token { expected: "a register", found: token.quoted() };
        return Err(line.error(column, what));
    };
    let registers = regs::of(block);
    let Some(desc) = registers.iter().find(|desc| desc.name == register) else {
        let what = Expectation::Name {
            of: format!("register of {block}"),
            found: quote(register),
            nearest: nearest(register, registers.iter().map(|desc| desc.name)),
        };
        return Err(line.error(column, what));
    };
    debug_assert_eq!(find_register(block, desc.offset), Some(*desc), "names are unique in their block");
    Ok(Cmd::new(target, desc.offset, value(line, desc)?))
}

/// `= NUMBER`, or fields in braces; a field that is left out is 0.
fn value(line: &mut Line<'_>, desc: &RegisterDesc) -> Result<u32, ParseError> {
    if line.accept('=') {
        return Ok(narrow(number(line, "a register value", u32::MAX.into())?));
    }
    if !line.accept('{') {
        return Err(line.expected("`{` and fields, or `=` and a value"));
    }
    let mut value = 0;
    let mut seen: Vec<&str> = Vec::new();
    while !line.accept('}') {
        let (column, token) = line.take();
        let Token::Name(name) = token else {
            let what = Expectation::Token { expected: "a field or `}`", found: token.quoted() };
            return Err(line.error(column, what));
        };
        let field = desc.fields.iter().find(|field| field.name == name);
        if field.is_none() && name != RESERVED {
            let what = Expectation::Name {
                of: format!("field of {}.{}", desc.block, desc.name),
                found: quote(name),
                nearest: nearest(name, desc.fields.iter().map(|field| field.name).chain([RESERVED])),
            };
            return Err(line.error(column, what));
        }
        if seen.contains(&name) {
            return Err(line.error(column, Expectation::FieldOnce { field: quote(name) }));
        }
        seen.push(name);
        if !line.accept('=') {
            return Err(line.expected("`=`"));
        }
        let (column, _) = line.clone().take();
        match field {
            Some(field) => value |= narrow(number(line, field.name, field.max().into())?) << field.low,
            None => {
                let bits = narrow(number(line, RESERVED, u32::MAX.into())?);
                let named = bits & desc.named_mask();
                if named != 0 {
                    let register = format!("{}.{}", desc.block, desc.name);
                    let reserved = !desc.named_mask();
                    return Err(line.error(column, Expectation::ReservedBits { register, reserved, named }));
                }
                value |= bits;
            }
        }
        if !line.accept(',') && line.peek() != Token::Mark('}') {
            return Err(line.expected("`,` or `}`"));
        }
    }
    Ok(value)
}

/// A number up to `max`, decimal or 0x-hexadecimal, `_` between digits.
fn number(line: &mut Line<'_>, of: &str, max: u64) -> Result<u64, ParseError> {
    let (column, token) = line.take();
    let wrong = || {
        let what = Expectation::Number { of: of.to_owned(), found: token.quoted(), max };
        line.error(column, what)
    };
    let Token::Number(text) = token else { return Err(wrong()) };
    let digits = text.replace('_', "");
    let value = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    value.ok().filter(|value| *value <= max).ok_or_else(wrong)
}

/// A value that `number` has already held against a maximum of 32 bits.
fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn statements() {
        let text = "; a comment\n\n\
                    CNA.CBUF_CON0 = 0xB1\n\
                    CNA.CBUF_CON0 { WEIGHT_BANK=11, DATA_BANK = 0x1, } ; W 11\n\
                    CNA+0x1098 = 7\n  nop\nnop 0x0001_0000_0000_0000\npre-op-enable\n\
                    op-enable { CNA_OP_EN=1, CORE_OP_EN=1, DPU_OP_EN=1 }\nword 0x1234\n";
        let words = &parse(text).unwrap().streams[0].words;
        let expected = [
            Cmd(0x0201_0000_00B1_1040),
            Cmd(0x0201_0000_00B1_1040),
            Cmd(0x0201_0000_0007_1098),
            Cmd(0),
            Cmd::NO_NEXT,
            Cmd::PRE_OP_ENABLE,
            Cmd::op_enable(0xD),
            Cmd(0x1234),
        ];
        assert_eq!(words, &expected);
    }

    #[test]
    fn directives_open_programs() {
        let listing = parse(".program \"task 0\" at 0x1000\nnop\n.program\n.program at 16\nnop\n").unwrap();
        let shape: Vec<_> = listing.streams.iter().map(|s| (s.name.as_str(), s.at, s.words.len())).collect();
        assert_eq!(shape, [("task 0", Some(Iova(0x1000)), 1), ("", None, 0), ("", Some(Iova(16)), 1)]);
    }

    #[test]
    fn errors_say_where_what_and_the_nearest_name() {
        for (text, words) in [
            ("CNB.CBUF_CON0 = 1", vec!["line 1, column 1", "block", "`CNB`", "did you mean CNA?"]),
            ("\n  CNA.CBUF_CN0 = 1", vec!["line 2, column 7", "register of CNA", "did you mean CBUF_CON0?"]),
            (
                "CNA.CBUF_CON0 { WEIGHT_BANKS=11 }",
                vec!["line 1, column 17", "field of CNA.CBUF_CON0", "did you mean WEIGHT_BANK?"],
            ),
            ("CNA.CBUF_CON0 { WEIGHT_BANK=16 }", vec!["column 29", "0 to 15 (0xf) for WEIGHT_BANK", "`16`"]),
            ("CNA.CBUF_CON0 { WEIGHT_BANK=-1 }", vec!["column 29", "0 to 15", "'-'"]),
            ("CNA.CBUF_CON0 { DATA_BANK=1, DATA_BANK=2 }", vec!["column 30", "once", "`DATA_BANK`"]),
            ("CNA.CBUF_CON0 { DATA_BANK=1 DATA_REUSE=1 }", vec!["column 29", "`,` or `}`"]),
            ("CNA.CBUF_CON0 { DATA_BANK=1", vec!["column 28", "`,` or `}`", "end of the line"]),
            ("CNA.CBUF_CON0 { reserved=0x11 }", vec!["column 26", "reserved bits", "0x00000011"]),
            ("CNA.CBUF_CON0", vec!["column 14", "`{` and fields", "end of the line"]),
            ("CNA.CBUF_CON0 = 0x1_0000_0000", vec!["column 17", "register value"]),
            ("CNA.CBUF_CON0 = 12z", vec!["`12z`"]),
            ("CNA.CBUF_CON0 = 1 2", vec!["column 19", "end of the line", "`2`"]),
            ("CNA+0x10000 = 1", vec!["column 5", "65535"]),
            ("CNA CBUF_CON0 = 1", vec!["column 5", "`.`"]),
            ("GLOBAL.OPERATION_ENABLE = 1", vec!["column 1", "block that programs reach"]),
            ("nop 0x0201_0000_0000_1040", vec!["column 5", "without a block bit", "word 0x0201000000001040"]),
            ("op-enabel = 1", vec!["did you mean op-enable?"]),
            (".pogram", vec!["column 2", ".program"]),
            (".program \"a", vec!["column 10", "end of the line"]),
            ("äö", vec!["column 1", "'ä'"]),
            ("word", vec!["column 5", "18446744073709551615"]),
        ] {
            let said = fails(text);
            for word in words {
                assert!(said.contains(word), "{text:?}: {word:?} is missing in: {said}");
            }
        }
    }

    #[test]
    fn columns_count_characters() {
        assert!(fails("CNA.ÄÖ = 1").starts_with("line 1, column 5"));
        assert!(fails("\u{a0}CNX.A = 1").starts_with("line 1, column 2"));
    }
}
