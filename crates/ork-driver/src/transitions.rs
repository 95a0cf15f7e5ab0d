// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which operation may follow which, and how: one table.
//!
//! Two properties of an ordered pair are independent of each other (`isa-int4-sdp.md` §6.2, measured elsewhere): whether
//! both may be programs of one chain, and whether they may be two submits without anything between. A pair that is not
//! in the table is not known to do harm; it is run as two submits.

use ork_plan::Datapath;

/// An operation, as far as the table tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are those of the operations")]
pub enum Operation {
    Int8Matmul,
    Fp16Matmul,
    Int4Matmul,
    Int16Matmul,
    /// SiLU by a lookup table.
    SiluInt8,
    SiluInt16,
    GeluInt8,
    GeluInt16,
    ExpInt16,
    MulInt8,
    MulInt16,
    MulFp16,
    /// A factor for each channel.
    MulChannelsFp16,
    AddInt16,
    AddFp16,
}

/// What is known of one way to run a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Seen to be right.
    Works,
    /// Seen to hang, or worse.
    Wedges,
    /// Nothing.
    Nothing,
}

/// What is known of an ordered pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The operation that comes first.
    pub first: Operation,
    /// The one that follows.
    pub second: Operation,
    /// As programs of one chain.
    pub chained: Known,
    /// As two submits.
    pub separate: Known,
}

const fn pair(first: Operation, second: Operation, chained: Known, separate: Known) -> Pair {
    Pair { first, second, chained, separate }
}

use Known::{Nothing, Wedges, Works};
use Operation::{
    AddFp16, AddInt16, ExpInt16, Fp16Matmul, GeluInt8, GeluInt16, Int8Matmul, MulChannelsFp16, MulFp16,
    MulInt8, MulInt16, SiluInt8, SiluInt16,
};

/// All ordered pairs of these were run as two submits without a reset, and all were right.
const SEPARATE: [Operation; 7] = [Fp16Matmul, Int8Matmul, ExpInt16, SiluInt16, MulInt16, MulFp16, AddFp16];

/// The other pairs of the campaign of 2026-07-21.
const PAIRS: [Pair; 13] = [
    pair(Int8Matmul, Int8Matmul, Works, Works),
    // Safe in a chain, and a hang as two submits.
    pair(Int8Matmul, SiluInt8, Works, Wedges),
    pair(SiluInt8, Int8Matmul, Works, Nothing),
    pair(Int8Matmul, MulInt8, Works, Nothing),
    pair(MulInt8, Int8Matmul, Works, Nothing),
    pair(Fp16Matmul, MulChannelsFp16, Works, Nothing),
    pair(Fp16Matmul, GeluInt16, Nothing, Works),
    pair(Fp16Matmul, AddInt16, Nothing, Works),
    pair(Fp16Matmul, SiluInt8, Nothing, Wedges),
    // This one needed a power cycle.
    pair(Fp16Matmul, GeluInt8, Nothing, Wedges),
    // A matmul with int16 results before an int16 operation of two operands, in one chain.
    pair(Int8Matmul, MulInt16, Wedges, Works),
    pair(Int8Matmul, AddInt16, Wedges, Nothing),
    // A matmul that writes cubes behind one that writes rows.
    pair(Fp16Matmul, Fp16Matmul, Nothing, Works),
];

/// What is known of an ordered pair.
#[must_use]
pub fn known(first: Operation, second: Operation) -> Pair {
    let listed = PAIRS.iter().find(|pair| pair.first == first && pair.second == second);
    let separate = if SEPARATE.contains(&first) && SEPARATE.contains(&second) { Works } else { Nothing };
    listed.copied().unwrap_or(pair(first, second, Nothing, separate))
}

/// How an operation follows another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// In the same chain.
    Chain,
    /// In a submit of its own.
    Break,
}

/// An operation must not follow another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{second:?} must not follow {first:?}: it hangs as a submit of its own, and is not known to work in a chain"
)]
pub struct NoWay {
    /// The operation that comes first.
    pub first: Operation,
    /// The one that follows.
    pub second: Operation,
}

/// How `second` follows `first`: in the same chain where that is known to work, else by a submit of its own.
///
/// # Errors
/// [`NoWay`] for pairs that are known to hang as two submits and not known to work as one.
pub fn join(first: Operation, second: Operation) -> Result<Join, NoWay> {
    match known(first, second) {
        Pair { chained: Works, .. } => Ok(Join::Chain),
        Pair { separate: Wedges, .. } => Err(NoWay { first, second }),
        _ => Ok(Join::Break),
    }
}

impl Operation {
    /// The mode that its programs need; `None` for operations that need none (`isa-int4-sdp.md` §6.3).
    #[must_use]
    pub const fn datapath(self) -> Option<Datapath> {
        match self {
            Self::Int8Matmul => Some(Datapath::Int8),
            Self::Fp16Matmul => Some(Datapath::Float),
            Self::Int4Matmul => Some(Datapath::Int4),
            Self::Int16Matmul => Some(Datapath::Int16),
            _ => None,
        }
    }

    /// The product of matrices that runs in a mode.
    #[must_use]
    pub const fn matmul(datapath: Datapath) -> Self {
        match datapath {
            Datapath::Int8 => Self::Int8Matmul,
            Datapath::Float => Self::Fp16Matmul,
            Datapath::Int4 => Self::Int4Matmul,
            Datapath::Int16 => Self::Int16Matmul,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_campaigns_counts() {
        // §6.2: 6 pairs in one chain; 49 of the square and 2 more as two submits, of which int8 -> int8 counts as one of
        // the chains; 3 wedges as two submits.
        let chained = PAIRS.iter().filter(|pair| pair.chained == Works).count();
        assert_eq!(chained, 6);
        let all = [
            Int8Matmul,
            Fp16Matmul,
            SiluInt8,
            SiluInt16,
            GeluInt8,
            GeluInt16,
            ExpInt16,
            MulInt8,
            MulInt16,
            MulFp16,
            MulChannelsFp16,
            AddInt16,
            AddFp16,
        ];
        let pairs = || all.iter().flat_map(|first| all.iter().map(|second| known(*first, *second)));
        assert_eq!(pairs().filter(|pair| pair.separate == Works).count(), 51);
        assert_eq!(pairs().filter(|pair| pair.separate == Wedges).count(), 3);
    }

    #[test]
    fn no_pair_is_listed_twice() {
        for (index, pair) in PAIRS.iter().enumerate() {
            let again = PAIRS[index + 1..]
                .iter()
                .find(|other| other.first == pair.first && other.second == pair.second);
            assert_eq!(again, None);
        }
    }

    #[test]
    fn both_properties_decide() {
        assert_eq!(join(Int8Matmul, Int8Matmul), Ok(Join::Chain));
        assert_eq!(join(Int8Matmul, SiluInt8), Ok(Join::Chain), "two submits would hang");
        assert_eq!(join(Int8Matmul, MulInt16), Ok(Join::Break), "a chain would hang");
        assert_eq!(join(Fp16Matmul, Fp16Matmul), Ok(Join::Break));
        assert_eq!(join(MulInt8, GeluInt8), Ok(Join::Break), "unknown");
        let error = join(Fp16Matmul, GeluInt8).unwrap_err();
        assert!(error.to_string().contains("GeluInt8 must not follow Fp16Matmul"), "{error}");
    }
}
