// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tokens of one line.

use super::error::{Expectation, ParseError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A name or keyword: letters, digits, `_` and `-`, not starting with a digit.
    Name(&'a str),
    /// Something that starts with a digit.
    Number(&'a str),
    /// Text between double quotes, without control characters, which could not be printed in one line.
    Text(&'a str),
    /// Any other character.
    Mark(char),
    /// The end of the line, or of what stands before its comment.
    End,
}

impl Token<'_> {
    /// The token as an error message quotes it; long ones are cut.
    pub(super) fn quoted(&self) -> String {
        match self {
            Self::Name(text) | Self::Number(text) => quote(text),
            Self::Text(_) => "a quoted text".to_owned(),
            Self::Mark(mark) => format!("{mark:?}"),
            Self::End => "the end of the line".to_owned(),
        }
    }
}

/// `text` in backquotes, cut to a readable length.
pub(super) fn quote(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("`{short}`")
}

/// The rest of a line.
#[derive(Clone, Debug)]
pub(super) struct Line<'a> {
    rest: &'a str,
    number: usize,
    column: usize,
}

impl<'a> Line<'a> {
    pub(super) fn new(text: &'a str, number: usize) -> Self {
        let mut line = Self { rest: text, number, column: 1 };
        line.skip_blanks();
        line
    }

    fn advance(&mut self, bytes: usize) {
        let (gone, rest) = self.rest.split_at(bytes);
        self.column += gone.chars().count();
        self.rest = rest;
    }

    fn skip_blanks(&mut self) {
        let blanks = self.rest.len() - self.rest.trim_start().len();
        self.advance(blanks);
    }

    fn look(&self) -> (Token<'a>, usize) {
        let length = |keep: fn(char) -> bool| self.rest.find(|c: char| !keep(c)).unwrap_or(self.rest.len());
        let Some(first) = self.rest.chars().next() else { return (Token::End, 0) };
        match first {
            ';' => (Token::End, 0),
            '0'..='9' => {
                let end = length(|c| c.is_ascii_alphanumeric() || c == '_');
                (Token::Number(&self.rest[..end]), end)
            }
            'a'..='z' | 'A'..='Z' | '_' => {
                let end = length(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
                (Token::Name(&self.rest[..end]), end)
            }
            '"' => match self.rest[1..].find('"') {
                Some(end) if !self.rest[1..=end].contains(char::is_control) => {
                    (Token::Text(&self.rest[1..=end]), end + 2)
                }
                _ => (Token::Mark('"'), 1),
            },
            other => (Token::Mark(other), other.len_utf8()),
        }
    }

    /// The next token, left where it is.
    pub(super) fn peek(&self) -> Token<'a> {
        self.look().0
    }

    /// The next token, taken, with its column.
    pub(super) fn take(&mut self) -> (usize, Token<'a>) {
        let (token, bytes) = self.look();
        let column = self.column;
        self.advance(bytes);
        self.skip_blanks();
        (column, token)
    }

    /// Takes `mark` if it is next.
    pub(super) fn accept(&mut self, mark: char) -> bool {
        let found = self.peek() == Token::Mark(mark);
        if found {
            self.take();
        }
        found
    }

    pub(super) fn error(&self, column: usize, what: Expectation) -> ParseError {
        ParseError { line: self.number, column, what }
    }

    /// An error at the next token.
    pub(super) fn expected(&self, expected: &'static str) -> ParseError {
        self.error(self.column, Expectation::Token { expected, found: self.peek().quoted() })
    }
}
