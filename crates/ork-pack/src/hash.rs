// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A BLAKE3 hash; 64 hexadecimal digits as text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// The hash of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The first digits: enough for a message.
    pub fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }
}

impl From<blake3::Hasher> for Hash {
    fn from(hasher: blake3::Hasher) -> Self {
        Self(*hasher.finalize().as_bytes())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({})", self.short())
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> Self {
        hash.to_string()
    }
}

impl FromStr for Hash {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        // Fixed length and case: one value has one text, so a flipped case bit in a header is found too.
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut hash = [0; 32];
        if pairs.len() != 32 || !rest.is_empty() {
            return Err("a hash has 64 hexadecimal digits".to_owned());
        }
        for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
            match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => *byte = high << 4 | low,
                _ => return Err("a hash has lower-case hexadecimal digits".to_owned()),
            }
        }
        Ok(Self(hash))
    }
}

impl TryFrom<String> for Hash {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}
