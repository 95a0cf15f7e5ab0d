// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random matmul shapes that look for trouble, within a budget.
//!
//! Where programs are split, something changes by one: so half of the sizes are a [boundary](Boundaries)
//! or its neighbour, and the rest are odd, prime or plain. Each case serves one dimension first (its
//! *anchor*, in turn m, k, n), which takes the next size from a shuffled deck of all its boundaries ±1.
//! The two other dimensions are then drawn to fit the case's share of the budget. So every boundary is
//! met, whatever the budget, once there are [`CASES_TO_MEET_ALL`] cases.
#![forbid(unsafe_code)]

use std::fmt;

use crate::{Shape, Stream};

/// One of the three sizes of a matmul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// Rows.
    M,
    /// Length of the dot products.
    K,
    /// Output channels.
    N,
}

/// Sizes of k and n at which tiling rules change: group and block sizes, CBUF capacities, channel fields.
const CHANNEL_BOUNDARIES: [u32; 9] = [32, 64, 512, 1024, 1536, 2048, 3072, 4096, 8192];
/// Three neighbours for each boundary of the dimension that has most, and three dimensions in turn.
pub const CASES_TO_MEET_ALL: u32 = 3 * 3 * CHANNEL_BOUNDARIES.len() as u32;
/// The dearest anchor, alone with `1 × 1`: no case can be given less.
const MACS_PER_CASE_MIN: u64 = 8193;

/// The sizes of a precision at which something changes, by dimension: tile shapes, row caps, depths of slices, widths of
/// fields and segments. They are facts of the hardware notes, written down here once more on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundaries {
    /// Rows.
    pub m: &'static [u32],
    /// Length of the dot products.
    pub k: &'static [u32],
    /// Output channels.
    pub n: &'static [u32],
}

impl Boundaries {
    /// int8.
    pub const INT8: Self =
        Self { m: &[64, 128, 192, 320, 704], k: &CHANNEL_BOUNDARIES, n: CHANNEL_BOUNDARIES.split_at(8).0 };
    /// int8 with int8 results: the depth that small K is padded to, and the deepest that one task sees.
    pub const INT8_INT8: Self =
        Self { m: &[32, 64, 128, 320, 704], k: &[32, 64, 480, 512, 1024, 4096], n: &[32, 64, 512, 4096] };
    /// fp16 and bf16: caps of schedule 0 and 1, the depth of a slice, the hole at K = 128.
    pub const HALF: Self = Self {
        m: &[4, 8, 64, 128, 176, 256, 352, 512, 704],
        k: &[32, 64, 128, 256, 384, 512, 1024, 2048, 3072],
        n: &[16, 32, 64, 512, 1024, 2048, 4096],
    };
    /// tf32.
    pub const TF32: Self =
        Self { m: &[4, 8, 64, 80, 128, 352], k: &[16, 32, 64, 192, 1024, 2048], n: &[16, 32, 64, 512, 2048] };
    /// int4: rows of a batch, columns of a program, depths of the table and of slices.
    pub const INT4: Self = Self {
        m: &[2, 3, 4, 8, 11, 16, 22, 32, 64, 128],
        k: &[32, 128, 256, 512, 768, 1024, 1536, 2048, 2560, 4096, 6144],
        n: &[64, 128, 256, 512, 1024, 2048, 4096],
    };
    /// int16, as bytes and in its own datapath.
    pub const INT16: Self = Self {
        m: &[4, 8, 32, 64, 128, 352],
        k: &[32, 64, 256, 512, 1024, 2048],
        n: &[16, 32, 64, 512, 2048],
    };

    /// The sizes whose neighbourhoods are drawn on purpose.
    pub const fn of(&self, dim: Dim) -> &'static [u32] {
        match dim {
            Dim::M => self.m,
            Dim::K => self.k,
            Dim::N => self.n,
        }
    }

    /// Every boundary of a dimension, the size before it and the size after it.
    pub fn neighbourhoods(&self, dim: Dim) -> impl Iterator<Item = u32> + use<> {
        self.of(dim).iter().flat_map(|at| at - 1..=at + 1)
    }
}

impl Dim {
    /// All three, in the order of `m × k × n`.
    pub const ALL: [Self; 3] = [Self::M, Self::K, Self::N];

    /// The largest size that is drawn freely. Boundaries may lie a little above it.
    pub const fn max(self) -> u32 {
        match self {
            Self::M => 700,
            Self::K => 8192,
            Self::N => 4096,
        }
    }
}

/// How a size was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A boundary or a neighbour of one.
    Boundary,
    /// An odd number.
    Odd,
    /// A prime.
    Prime,
    /// Any number.
    Plain,
    /// A single row, as in decode; drawn for m only.
    Single,
}

/// What a set of cases may cost. Both limits are in multiply-accumulates, which is what the
/// simulator's time goes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// How many cases.
    pub cases: u32,
    /// The most any case may cost.
    pub macs_per_case_max: u64,
    /// The most all of them may cost together.
    pub macs_total: u64,
}

impl Budget {
    /// For every run: 500 cases, at most 69 billion multiply-accumulates, 1.1 billion in one case.
    pub const CI: Self = Self { cases: 500, macs_per_case_max: 1 << 30, macs_total: 1 << 36 };
    /// For every run, of one of several precisions: 200 cases, at most 0.5 billion multiply-accumulates.
    pub const CI_ONE_PRECISION: Self = Self { cases: 200, macs_per_case_max: 1 << 25, macs_total: 1 << 29 };
    /// For a slow tier, of one precision: 20,000 cases, at most 69 billion multiply-accumulates.
    pub const SLOW_ONE_PRECISION: Self =
        Self { cases: 20_000, macs_per_case_max: 1 << 28, macs_total: 1 << 36 };
    /// For a slow tier: 10,000 cases, at most 1.1 trillion multiply-accumulates, any size in one case.
    pub const SLOW: Self = Self { cases: 10_000, macs_per_case_max: 1 << 35, macs_total: 1 << 40 };
}

/// One matmul to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Position in its set.
    pub index: u32,
    /// The sizes.
    pub shape: Shape,
    /// How m, k and n were drawn.
    pub classes: [Class; 3],
    /// Seed of the data; together with the shape, all that is needed to repeat the case.
    pub seed: u64,
}

impl Case {
    /// A case by hand, to repeat a reported one.
    pub const fn new(shape: Shape, seed: u64) -> Self {
        Self { index: 0, shape, classes: [Class::Plain; 3], seed }
    }

    /// The stream of the features, for another type than [`Case::features`].
    pub fn feature_stream(&self) -> Stream {
        Stream::lane(self.seed, 0)
    }

    /// The stream of the weights.
    pub fn weight_stream(&self) -> Stream {
        Stream::lane(self.seed, 1)
    }

    /// Full-range features, `m × k`.
    pub fn features(&self) -> Vec<i8> {
        self.feature_stream().i8s(self.shape.features_len())
    }

    /// Full-range weights, `n × k`.
    pub fn weights(&self) -> Vec<i8> {
        self.weight_stream().i8s(self.shape.weights_len())
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, shape, seed, .. } = self;
        write!(f, "case {index}: {shape}, seed {seed:#018x}")
    }
}

/// Draws a set of cases. Equal arguments give equal cases, on every machine.
///
/// # Panics
/// If the budget leaves less than 8193 multiply-accumulates per case: the dearest boundary alone.
pub fn draw(seed: u64, budget: &Budget) -> Vec<Case> {
    draw_at(seed, budget, &Boundaries::INT8)
}

/// As [`draw`], with the boundaries of another precision.
///
/// # Panics
/// As [`draw`].
pub fn draw_at(seed: u64, budget: &Budget, boundaries: &Boundaries) -> Vec<Case> {
    assert!(
        budget.macs_per_case_max >= MACS_PER_CASE_MIN
            && budget.macs_total >= MACS_PER_CASE_MIN * u64::from(budget.cases),
        "{budget:?} is too small: a case needs up to {MACS_PER_CASE_MIN} multiply-accumulates",
    );
    let mut stream = Stream::new(seed);
    let mut purse = Purse::new(&mut stream, budget);
    let mut decks = [Vec::new(), Vec::new(), Vec::new()];
    (0..budget.cases)
        .map(|index| {
            let macs_max = purse.next_limit();
            let anchor = (index % 3) as usize;
            let mut sizes = [1; 3];
            let mut classes = [Class::Boundary; 3];
            sizes[anchor] = deal(&mut stream, &mut decks[anchor], Dim::ALL[anchor], boundaries);

            let mut others = [(anchor + 1) % 3, (anchor + 2) % 3];
            stream.shuffle(&mut others);
            let left = macs_max / u64::from(sizes[anchor]);
            // The first may not always take all that is left, or the second would always be small.
            let part = if stream.below(2) == 0 { left } else { stream.log_uniform(left) };
            (sizes[others[0]], classes[others[0]]) =
                size_within(&mut stream, Dim::ALL[others[0]], part, boundaries);
            let left = left / u64::from(sizes[others[0]]);
            (sizes[others[1]], classes[others[1]]) =
                size_within(&mut stream, Dim::ALL[others[1]], left, boundaries);

            let [m, k, n] = sizes;
            let shape = Shape::new(m, k, n);
            purse.spend(shape.macs());
            Case { index, shape, classes, seed: stream.next_u64() }
        })
        .collect()
}

/// Hands out the budget: a few large limits and many small ones. What a case leaves unspent
/// goes to those after it.
struct Purse {
    /// One per case to come, spanning a thousand to one.
    shares: Vec<u64>,
    shares_left: u64,
    macs_left: u64,
    macs_per_case_max: u64,
}

impl Purse {
    fn new(stream: &mut Stream, budget: &Budget) -> Self {
        let shares: Vec<_> = (0..budget.cases).map(|_| stream.log_uniform(1 << 10)).collect();
        Self {
            shares_left: shares.iter().sum(),
            shares,
            macs_left: budget.macs_total,
            macs_per_case_max: budget.macs_per_case_max,
        }
    }

    /// What the next case may cost, such that all after it still get their minimum.
    fn next_limit(&mut self) -> u64 {
        let free = u128::from(self.macs_left - MACS_PER_CASE_MIN * self.shares.len() as u64);
        let share = self.shares.pop().expect("one share per case");
        let part = free * u128::from(share) / u128::from(self.shares_left);
        self.shares_left -= share;
        let limit = MACS_PER_CASE_MIN + u64::try_from(part).expect("a part of a u64");
        limit.min(self.macs_per_case_max)
    }

    fn spend(&mut self, macs: u64) {
        self.macs_left -= macs;
    }
}

/// The next boundary of the deck, which is shuffled anew when it is used up.
fn deal(stream: &mut Stream, deck: &mut Vec<u32>, dim: Dim, boundaries: &Boundaries) -> u32 {
    if deck.is_empty() {
        deck.extend(boundaries.neighbourhoods(dim));
        stream.shuffle(deck);
    }
    deck.pop().expect("every dimension has boundaries")
}

/// A size of at most `limit`, and how it was drawn.
fn size_within(stream: &mut Stream, dim: Dim, limit: u64, boundaries: &Boundaries) -> (u32, Class) {
    let boundaries: Vec<_> =
        boundaries.neighbourhoods(dim).filter(|size| u64::from(*size) <= limit).collect();
    let max = u32::try_from(limit).unwrap_or(u32::MAX).min(dim.max());
    let kinds = if dim == Dim::M { 10 } else { 8 };
    let class = match stream.below(kinds) {
        0..4 if !boundaries.is_empty() => Class::Boundary,
        4 | 5 if max >= 2 => Class::Prime,
        6 => Class::Odd,
        8.. => return (1, Class::Single),
        _ => Class::Plain,
    };
    if class == Class::Boundary {
        // The better of two draws: the budget is there to be used.
        let mut pick = || boundaries[stream.below(boundaries.len() as u64) as usize];
        return (pick().max(pick()), class);
    }
    let any = match stream.below(2) {
        0 => stream.within(1..=max),
        _ => stream.log_uniform(u64::from(max)) as u32,
    };
    let size = match class {
        Class::Boundary | Class::Single | Class::Plain => any,
        // 1 stays, an even number loses 1: never above the limit.
        Class::Odd => any - u32::from(any.is_multiple_of(2)),
        Class::Prime => (2..=any.max(2)).rev().find(|size| is_prime(*size)).expect("2 is a prime"),
    };
    (size, class)
}

fn is_prime(x: u32) -> bool {
    x >= 2 && (2..).take_while(|d| d * d <= x).all(|d| !x.is_multiple_of(d))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn sizes(case: &Case) -> [u32; 3] {
        [case.shape.m, case.shape.k, case.shape.n]
    }

    #[test]
    fn five_hundred_cases_meet_every_boundary_and_class() {
        for seed in 0..20 {
            let cases = draw(seed, &Budget::CI);
            assert_eq!(cases.len(), 500);
            for (i, dim) in Dim::ALL.into_iter().enumerate() {
                let met: BTreeSet<_> = cases.iter().map(|case| sizes(case)[i]).collect();
                for size in Boundaries::INT8.neighbourhoods(dim) {
                    assert!(met.contains(&size), "seed {seed}: {dim:?} = {size} is missing");
                }
                for class in [Class::Boundary, Class::Odd, Class::Prime, Class::Plain] {
                    let count = cases.iter().filter(|case| case.classes[i] == class).count();
                    assert!(count >= 10, "seed {seed}: {class:?} drawn {count} times for {dim:?}");
                }
                assert!(met.contains(&1));
                assert!(cases.iter().filter(|case| case.shape.m == 1).count() >= 50);
                assert!(met.len() >= 60, "{dim:?} takes only {} values", met.len());
            }
        }
    }

    #[test]
    fn the_fewest_cases_that_meet_all_boundaries_do() {
        let budget = Budget { cases: CASES_TO_MEET_ALL, macs_per_case_max: 8193, macs_total: 8193 * 81 };
        let cases = draw(1, &budget);
        for (i, dim) in Dim::ALL.into_iter().enumerate() {
            let met: BTreeSet<_> = cases.iter().map(|case| sizes(case)[i]).collect();
            assert!(Boundaries::INT8.neighbourhoods(dim).all(|size| met.contains(&size)));
        }
    }

    #[test]
    fn two_hundred_cases_meet_the_boundaries_of_every_precision() {
        use Boundaries as B;
        for boundaries in [B::INT8_INT8, B::HALF, B::TF32, B::INT4, B::INT16] {
            let cases = draw_at(0, &Budget::CI_ONE_PRECISION, &boundaries);
            assert_eq!(cases.len(), 200);
            for (i, dim) in Dim::ALL.into_iter().enumerate() {
                let met: BTreeSet<_> = cases.iter().map(|case| sizes(case)[i]).collect();
                for size in boundaries.neighbourhoods(dim) {
                    assert!(met.contains(&size), "{boundaries:?}: {dim:?} = {size} is missing");
                }
            }
        }
    }

    #[test]
    fn sizes_and_costs_stay_within_bounds_and_use_them() {
        for budget in [Budget::CI, Budget { cases: 2000, ..Budget::SLOW }, Budget::SLOW] {
            let cases = draw(3, &budget);
            let costs = || cases.iter().map(|case| case.shape.macs());
            assert!(costs().all(|macs| macs <= budget.macs_per_case_max));
            assert!(costs().sum::<u64>() <= budget.macs_total);
            // Not a budget that is met by never coming near it.
            assert!(costs().sum::<u64>() >= budget.macs_total / 4, "{}", costs().sum::<u64>());
            for case in &cases {
                for ((size, class), dim) in sizes(case).into_iter().zip(case.classes).zip(Dim::ALL) {
                    assert!(size >= 1);
                    match class {
                        Class::Boundary => assert!(Boundaries::INT8.neighbourhoods(dim).any(|b| b == size)),
                        Class::Odd => assert!(size % 2 == 1 && size <= dim.max()),
                        Class::Prime => assert!(is_prime(size) && size <= dim.max()),
                        Class::Plain => assert!(size <= dim.max()),
                        Class::Single => assert!(size == 1 && dim == Dim::M),
                    }
                }
            }
        }
    }

    #[test]
    fn cases_are_reproducible_and_seeds_matter() {
        assert_eq!(draw(5, &Budget::CI), draw(5, &Budget::CI));
        assert_ne!(draw(5, &Budget::CI), draw(6, &Budget::CI));
        let seeds: BTreeSet<_> = draw(5, &Budget::CI).iter().map(|case| case.seed).collect();
        assert_eq!(seeds.len(), 500);
        // Pinned, so that a reported seed keeps its meaning.
        let third = &draw(0, &Budget::CI)[2];
        assert_eq!(third.to_string(), "case 2: 123×9×2049, seed 0x44d99e005a358705");
    }

    #[test]
    fn data_is_full_range_and_repeatable() {
        let case = Case::new(Shape::new(3, 1000, 5), 9);
        let (features, weights) = (case.features(), case.weights());
        assert_eq!((features.len(), weights.len()), (3000, 5000));
        assert_eq!(features, case.features());
        assert_ne!(features[..100], weights[..100]);
        assert!(features.contains(&i8::MIN) && weights.contains(&i8::MAX));
    }

    #[test]
    #[should_panic(expected = "too small")]
    fn a_budget_that_cannot_hold_its_cases_is_refused() {
        draw(0, &Budget { cases: 500, macs_per_case_max: 1 << 20, macs_total: 1 << 20 });
    }

    #[test]
    fn primes() {
        let primes: Vec<_> = (0..30).filter(|x| is_prime(*x)).collect();
        assert_eq!(primes, [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]);
        assert!(is_prime(8191) && !is_prime(8193) && !is_prime(89 * 89));
    }
}
