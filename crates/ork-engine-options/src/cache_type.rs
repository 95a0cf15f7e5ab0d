// SPDX-License-Identifier: MIT OR Apache-2.0
//! Types of the key/value cache.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How keys or values are kept. f16 is the default because the log measured everything else to be slower on the board: the
/// cost of the quantised ones is dequantising inside the attention loop, and no bandwidth wall makes up for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "ggml's names")]
pub enum CacheType {
    #[serde(rename = "f32")]
    F32,
    #[default]
    #[serde(rename = "f16")]
    F16,
    #[serde(rename = "bf16")]
    Bf16,
    #[serde(rename = "q8_0")]
    Q8_0,
    #[serde(rename = "q5_1")]
    Q5_1,
    #[serde(rename = "q5_0")]
    Q5_0,
    #[serde(rename = "q4_1")]
    Q4_1,
    #[serde(rename = "q4_0")]
    Q4_0,
    #[serde(rename = "iq4_nl")]
    Iq4Nl,
}

impl CacheType {
    /// All, as llama.cpp's own tools accept them.
    pub const ALL: [Self; 9] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q5_1,
        Self::Q5_0,
        Self::Q4_1,
        Self::Q4_0,
        Self::Iq4Nl,
    ];

    /// ggml's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q5_1 => "q5_1",
            Self::Q5_0 => "q5_0",
            Self::Q4_1 => "q4_1",
            Self::Q4_0 => "q4_0",
            Self::Iq4Nl => "iq4_nl",
        }
    }

    const fn is_quantised(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Something that a user of cache types should know before a long run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheNote {
    /// At least one of them is quantised.
    Quantised {
        /// Type of the keys.
        k: CacheType,
        /// Type of the values.
        v: CacheType,
    },
    /// They differ.
    Mixed {
        /// Type of the keys.
        k: CacheType,
        /// Type of the values.
        v: CacheType,
    },
}

impl CacheNote {
    /// What there is to know of a pair.
    pub fn of(k: CacheType, v: CacheType) -> Vec<Self> {
        let quantised = (k.is_quantised() || v.is_quantised()).then_some(Self::Quantised { k, v });
        let mixed = (k != v).then_some(Self::Mixed { k, v });
        quantised.into_iter().chain(mixed).collect()
    }
}

impl fmt::Display for CacheNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quantised { k, v } => write!(
                f,
                "key/value cache {k}/{v}: a quantised cache saves memory and not time; q8_0 instead of f16 made prefill 68 % \
                 slower at 4000 tokens (measured elsewhere, on a board)"
            ),
            Self::Mixed { k, v } => write!(
                f,
                "key/value cache {k}/{v}: two different types cost about 1.7 times more on top; both mixed pairs were worse \
                 than both equal ones (measured elsewhere, on a board)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixed_and_quantised_pairs_are_told() {
        assert_eq!(CacheNote::of(CacheType::F16, CacheType::F16), []);
        let (k, v) = (CacheType::F16, CacheType::Q8_0);
        assert_eq!(CacheNote::of(k, v), [CacheNote::Quantised { k, v }, CacheNote::Mixed { k, v }]);
        assert_eq!(CacheNote::of(v, v), [CacheNote::Quantised { k: v, v }]);
        let (k, v) = (CacheType::F16, CacheType::Bf16);
        assert_eq!(CacheNote::of(k, v), [CacheNote::Mixed { k, v }]);
        assert!(CacheNote::Mixed { k, v }.to_string().contains("f16/bf16"));
    }
}
