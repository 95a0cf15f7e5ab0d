// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words as files hold them: bytes, or hexadecimal text.

use super::lex::quote;
use super::{Listing, Stream};
use crate::{Cmd, Iova};

/// Why a file holds no words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Words have 8 bytes.
    #[error("{bytes} bytes are no whole number of 64-bit words: {} are left over", bytes % 8)]
    Length {
        /// Bytes of the file.
        bytes: usize,
    },
    /// A word in hexadecimal was expected.
    #[error("line {line}, column {column}: expected a word of 1 to 16 hexadecimal digits, found {found}")]
    Word {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What stands there.
        found: String,
    },
    /// The header of a stream is not `stream NAME at ADDRESS body COUNT`.
    #[error("line {line}: expected `stream NAME at ADDRESS body COUNT`, found {found}")]
    Header {
        /// Line, from 1.
        line: usize,
        /// The line.
        found: String,
    },
}

/// Little-endian 64-bit words.
///
/// # Errors
/// [`SourceError::Length`] when bytes are left over.
pub fn read_bytes(bytes: &[u8]) -> Result<Listing, SourceError> {
    let (words, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(SourceError::Length { bytes: bytes.len() });
    }
    Ok(Listing::of(words.iter().map(|word| Cmd(u64::from_le_bytes(*word))).collect()))
}

/// Words in hexadecimal, separated by white space, `0x` optional; `#` and `;` start comments.
///
/// The captures of the conformance data are read as well: a line `stream NAME at ADDRESS body COUNT` opens a
/// program, and lines that start with `runtime`, `memory` or `task` describe its surroundings and are passed over.
///
/// # Errors
/// The first thing that is no word.
pub fn read_hex(text: &str) -> Result<Listing, SourceError> {
    let mut listing = Listing::default();
    for (index, line) in text.lines().enumerate() {
        let code = line.split(['#', ';']).next().unwrap_or_default();
        match code.split_whitespace().next() {
            None | Some("runtime" | "memory" | "task") => continue,
            Some("stream") => {
                listing.streams.push(
                    header(code).ok_or_else(|| SourceError::Header {
                        line: index + 1,
                        found: quote(code.trim_end()),
                    })?,
                );
                continue;
            }
            Some(_) => {}
        }
        if listing.streams.is_empty() {
            listing.streams.push(Stream::default());
        }
        let mut column = 1;
        for token in code.split(char::is_whitespace) {
            if !token.is_empty() {
                let word = hex(token).ok_or_else(|| SourceError::Word {
                    line: index + 1,
                    column,
                    found: quote(token),
                })?;
                if let Some(stream) = listing.streams.last_mut() {
                    stream.words.push(word);
                }
            }
            column += token.chars().count() + 1;
        }
    }
    Ok(listing)
}

fn hex(token: &str) -> Option<Cmd> {
    let digits = token.strip_prefix("0x").or_else(|| token.strip_prefix("0X")).unwrap_or(token);
    let plain = (1..=16).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, 16).ok().map(Cmd)).flatten()
}

/// The name is everything between `stream` and `at`.
fn header(code: &str) -> Option<Stream> {
    let rest = code.trim().strip_prefix("stream ")?;
    let (name, rest) = rest.rsplit_once(" at ")?;
    let mut rest = rest.split_whitespace();
    let address = rest.next()?.strip_prefix("0x")?;
    let at = u32::from_str_radix(address, 16).ok()?;
    if rest.next()? != "body" {
        return None;
    }
    rest.next()?.parse::<u32>().ok()?;
    let whole = rest.next().is_none();
    whole.then(|| Stream { name: name.trim().to_owned(), at: Some(Iova(at)), words: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_little_endian() {
        let listing = read_bytes(&[0x40, 0x10, 0xB1, 0, 0, 0, 0x01, 0x02]).unwrap();
        assert_eq!(listing.streams[0].words, [Cmd(0x0201_0000_00B1_1040)]);
        assert_eq!(read_bytes(&[0; 9]), Err(SourceError::Length { bytes: 9 }));
        assert!(read_bytes(&[0; 9]).unwrap_err().to_string().contains("1 are left over"));
    }

    #[test]
    fn hexadecimal_text() {
        let text = "# head\n0x1 02010000001b1040\n\tFFFFFFFFFFFFFFFF ; tail\n";
        let words = [Cmd(1), Cmd(0x0201_0000_001B_1040), Cmd(u64::MAX)];
        assert_eq!(read_hex(text).unwrap().streams[0].words, words);
        for (text, line, column, found) in [
            ("1\n 2  0xg", 2, 5, "`0xg`"),
            ("12345678123456789", 1, 1, "`12345678123456789`"),
            ("é -1", 1, 1, "`é`"),
            ("1 0x", 1, 3, "`0x`"),
            ("+1", 1, 1, "`+1`"),
        ] {
            let error = SourceError::Word { line, column, found: found.into() };
            assert_eq!(read_hex(text), Err(error), "{text}");
        }
    }

    #[test]
    fn captures() {
        let text = "memory task 0xfff 12\ntask 0 flags 0\nstream task 0 at 0x1000 body 1\n1\n2\nstream b at 0x20 body 0\n";
        let listing = read_hex(text).unwrap();
        let shape: Vec<_> = listing.streams.iter().map(|s| (s.name.as_str(), s.at, s.words.len())).collect();
        assert_eq!(shape, [("task 0", Some(Iova(0x1000)), 2), ("b", Some(Iova(0x20)), 0)]);
        let error = read_hex("stream x at 12 body 1").unwrap_err();
        assert!(matches!(error, SourceError::Header { line: 1, .. }), "{error}");
    }
}
