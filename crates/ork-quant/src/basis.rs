// SPDX-License-Identifier: MIT OR Apache-2.0
//! The basis in which both operands of a product are quantised.
#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::real::Real;
use crate::{XorShift32, hartley};

/// One invertible change of both operands that leaves their dot product alone.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Channel factors (see [`crate::smoothing`]): the weight side multiplies, the activation side divides.
    Smooth(Vec<f32>),
    /// Random signs from [`XorShift32`], −1 where bit 31 of the state is set: with [`Step::Rotate`] behind it, a
    /// randomised Hadamard transform. It and GPTQ are substitutes: worth a quarter of perplexity without
    /// GPTQ, nothing with it (measured three times elsewhere).
    Signs,
    /// The rotation R = Q ⊗ H: a Hadamard transform of each block of the largest power of two in K, then a Hartley
    /// matrix across the blocks, if there is more than one.
    Rotate,
}

/// The kind of a [`Step`], without its data: what a recipe asks for and a pack records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepKind {
    /// [`Step::Smooth`].
    Smooth,
    /// [`Step::Signs`].
    Signs,
    /// [`Step::Rotate`].
    Rotate,
}

impl Step {
    /// Its kind.
    pub const fn kind(&self) -> StepKind {
        match self {
            Self::Smooth(_) => StepKind::Smooth,
            Self::Signs => StepKind::Signs,
            Self::Rotate => StepKind::Rotate,
        }
    }
}

/// Most steps of a basis.
pub const STEPS_MAX: usize = 8;

/// Names a basis by content: two bases with one id compute the same. Shown as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BasisId([u8; 16]);

impl fmt::Display for BasisId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BasisId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BasisId({self})")
    }
}

impl From<BasisId> for String {
    fn from(id: BasisId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for BasisId {
    type Error = BasisError;
    fn try_from(text: String) -> Result<Self, BasisError> {
        text.parse()
    }
}

impl FromStr for BasisId {
    type Err = BasisError;
    fn from_str(text: &str) -> Result<Self, BasisError> {
        let bad = || BasisError::Id { text: text.chars().take(40).collect() };
        if text.len() != 32 || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(bad());
        }
        let mut id = [0; 16];
        for (byte, place) in id.iter_mut().zip((0..32).step_by(2)) {
            *byte = u8::from_str_radix(&text[place..place + 2], 16).map_err(|_| bad())?;
        }
        Ok(Self(id))
    }
}

/// A basis that cannot exist, or an operand that does not belong to it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BasisError {
    /// K is 0.
    #[error("a basis of 0 channels")]
    Empty,
    /// A list has another length than K.
    #[error("a basis of {k} channels was given {found} values")]
    Length {
        /// Channels.
        k: usize,
        /// Values.
        found: usize,
    },
    /// A channel factor that is not a positive, normal number.
    #[error("smoothing factor of channel {channel} is {factor}: factors are positive and finite")]
    Smoothing {
        /// Which channel.
        channel: usize,
        /// Its factor.
        factor: f32,
    },
    /// More than [`STEPS_MAX`] steps.
    #[error("a basis of {found} steps; at most {STEPS_MAX}")]
    Steps {
        /// How many.
        found: usize,
    },
    /// A text that is no id.
    #[error("`{text}` is no basis id: 32 hexadecimal digits, lower case")]
    Id {
        /// The text.
        text: String,
    },
}

/// A change of basis of both operands along K. It owns both directions: what [`Basis::weight_row`] does to weights and
/// [`Basis::activation_row`] to activations, ⟨weight_row(w), activation_row(a)⟩ = ⟨w, a⟩. A basis that only one operand
/// went through silently corrupts the product, so nothing offers half of one, and a pack stores its [`Basis::id`].
///
/// Dot products are preserved to 1e-4 of |a|·|w| in `f32` and 1e-12 in `f64` (tested up to K = 10752).
#[derive(Clone, PartialEq)]
pub struct Basis {
    k: usize,
    steps: Vec<Step>,
    id: BasisId,
    /// ±1 of [`Step::Signs`]; empty without.
    signs: Vec<f32>,
    cas: Vec<f64>,
    cas_f32: Vec<f32>,
}

impl fmt::Debug for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Basis")
            .field("k", &self.k)
            .field("steps", &self.kinds())
            .field("id", &self.id)
            .finish()
    }
}

impl Basis {
    /// The basis that changes nothing.
    ///
    /// # Errors
    /// [`BasisError::Empty`] if K is 0.
    pub fn identity(k: usize) -> Result<Self, BasisError> {
        Self::new(k, Vec::new())
    }

    /// These steps, first to last. The recipe's order is smooth, signs, rotate.
    ///
    /// # Errors
    /// [`BasisError`] if K is 0, there are too many steps, or factors do not fit.
    pub fn new(k: usize, steps: Vec<Step>) -> Result<Self, BasisError> {
        if k == 0 {
            return Err(BasisError::Empty);
        }
        if steps.len() > STEPS_MAX {
            return Err(BasisError::Steps { found: steps.len() });
        }
        for step in &steps {
            if let Step::Smooth(factors) = step {
                if factors.len() != k {
                    return Err(BasisError::Length { k, found: factors.len() });
                }
                if let Some(channel) = factors.iter().position(|s| !s.is_normal() || *s < 0.0) {
                    return Err(BasisError::Smoothing { channel, factor: factors[channel] });
                }
            }
        }
        let kinds: Vec<StepKind> = steps.iter().map(Step::kind).collect();
        let mut draws = XorShift32::new();
        let signs = if kinds.contains(&StepKind::Signs) {
            (0..k).map(|_| if draws.next_state() >> 31 == 1 { -1.0 } else { 1.0 }).collect()
        } else {
            Vec::new()
        };
        let m = k / block_of(k);
        let mixes = kinds.contains(&StepKind::Rotate) && m > 1;
        let (cas, cas_f32) =
            if mixes { (hartley::cas(m), hartley::cas(m)) } else { (Vec::new(), Vec::new()) };
        let id = id_of(k, &steps);
        Ok(Self { k, steps, id, signs, cas, cas_f32 })
    }

    /// Channels.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The steps, first to last.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Kinds of the steps.
    pub fn kinds(&self) -> Vec<StepKind> {
        self.steps.iter().map(Step::kind).collect()
    }

    /// Its name.
    pub fn id(&self) -> BasisId {
        self.id
    }

    /// Brings K weights of one output channel into the basis. Rows are independent: a caller may do many at once.
    ///
    /// # Panics
    /// If the row does not hold K values.
    pub fn weight_row(&self, row: &mut [f32]) {
        self.apply(row, &self.cas_f32, |x, s| x * s);
    }

    /// Brings one row of K activations into the basis.
    ///
    /// # Panics
    /// If the row does not hold K values.
    pub fn activation_row(&self, row: &mut [f32]) {
        self.apply(row, &self.cas_f32, |x, s| x / s);
    }

    /// [`Basis::weight_row`] in double precision.
    ///
    /// # Panics
    /// If the row does not hold K values.
    pub fn weight_row_f64(&self, row: &mut [f64]) {
        self.apply(row, &self.cas, |x, s| x * s);
    }

    /// [`Basis::activation_row`] in double precision.
    ///
    /// # Panics
    /// If the row does not hold K values.
    pub fn activation_row_f64(&self, row: &mut [f64]) {
        self.apply(row, &self.cas, |x, s| x / s);
    }

    fn apply<T: Real>(&self, row: &mut [T], cas: &[T], smooth: impl Fn(T, T) -> T) {
        assert_eq!(row.len(), self.k, "a row of the basis has K values");
        for step in &self.steps {
            match step {
                Step::Smooth(factors) => {
                    for (x, s) in row.iter_mut().zip(factors) {
                        *x = smooth(*x, T::from_f64(f64::from(*s)));
                    }
                }
                Step::Signs => {
                    for (x, sign) in row.iter_mut().zip(&self.signs) {
                        *x = *x * T::from_f64(f64::from(*sign));
                    }
                }
                Step::Rotate => {
                    row.chunks_exact_mut(block_of(self.k)).for_each(T::hadamard);
                    if !cas.is_empty() {
                        T::hartley(row, cas, &mut vec![T::ZERO; cas.len() * hartley::WIDTH]);
                    }
                }
            }
        }
    }
}

/// The largest power of two that divides K.
fn block_of(k: usize) -> usize {
    1 << k.trailing_zeros()
}

/// A hash of everything the two directions depend on. The text at its start stands for the transforms themselves: it
/// changes when the Hadamard order, the Hartley matrix or the generator of the signs does.
fn id_of(k: usize, steps: &[Step]) -> BasisId {
    let mut hash = blake3::Hasher::new();
    hash.update(b"ork basis 1");
    hash.update(&(k as u64).to_le_bytes());
    for step in steps {
        match step {
            Step::Smooth(factors) => {
                hash.update(b"smooth");
                factors.iter().for_each(|s| _ = hash.update(&s.to_le_bytes()));
            }
            Step::Signs => _ = hash.update(b"signs"),
            Step::Rotate => _ = hash.update(b"rotate"),
        }
    }
    let mut id = [0; 16];
    id.copy_from_slice(&hash.finalize().as_bytes()[..16]);
    BasisId(id)
}
