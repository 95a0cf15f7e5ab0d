// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tokens are pieces of bytes; people read characters. A decoder that never emits half a character.

/// Turns a stream of bytes into text.
#[derive(Debug, Default)]
pub(crate) struct Utf8Stream {
    tail: Vec<u8>,
}

impl Utf8Stream {
    /// Adds bytes, returns the text that is complete now. Bytes that can never become a character turn into U+FFFD.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        self.tail.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.tail.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(invalid) = error.error_len() else {
                        rest = after;
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[invalid..];
                }
            }
        }
        self.tail = rest.to_vec();
        text
    }

    /// The end of the stream: an unfinished character becomes U+FFFD.
    pub(crate) fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.tail)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::Utf8Stream;

    #[test]
    fn byte_by_byte_equals_the_whole() {
        let text = "aß→🦀 é\u{10FFFF}z";
        let mut stream = Utf8Stream::default();
        let mut out = String::new();
        for byte in text.as_bytes() {
            out.push_str(&stream.push(&[*byte]));
        }
        out.push_str(&stream.finish());
        assert_eq!(out, text);
    }

    #[test]
    fn bad_bytes_are_marked_and_do_not_swallow_good_ones() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(b"a\xffb"), "a\u{fffd}b");
        assert_eq!(stream.push(b"\xe2\x82"), "");
        assert_eq!(stream.push(b"x"), "\u{fffd}x");
        assert_eq!(stream.push(b"\xf0\x9f"), "");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.finish(), "");
    }
}
