// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is to be done to the weights of a model, as a value and as text.
//!
//! Text: a tier, then steps, joined by `+`: `i4a8-nf4+imatrix`, `w4a4+smooth+rotate+gptq+clip+promote:4.9`. It is the
//! text of [`Scheme`] with the steps that concern the model as a whole behind it.

use std::fmt;
use std::str::FromStr;

use ork_quant::{BITS_PER_WEIGHT, ClipRule, Codebook, Method, Scheme, StepKind, Tier};

/// Which weights get int8 in a four-bit model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Promote {
    /// None: all weights are the same.
    #[default]
    Nothing,
    /// The weights outside layers: the output matrix.
    Output,
    /// Those, and weights of layers by the structural prior, up to so many bits per weight over all.
    Bits(f64),
}

/// What is to be done to the weights of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// What is done to a weight that is not promoted.
    pub scheme: Scheme,
    /// Which ones are.
    pub promote: Promote,
}

/// A text that is no recipe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeParseError {
    /// The tier.
    #[error(
        "there is no scheme `{0}`; schemes are w8a8, w8a8-rot, i4a8, i4a8-nf4, w4a4 and w4a4-ladder, with steps behind a +"
    )]
    Tier(String),
    /// A step.
    #[error(
        "there is no step `{0}`; steps are group, smooth, signs, rotate, gptq, stochastic, imatrix, clip, promote, promote:BITS and promote:output"
    )]
    Step(String),
    /// A step that is there already, or does what another does.
    #[error("`{0}` is there twice, or with another step of its kind")]
    Twice(String),
    /// Steps that do not go together.
    #[error("`{step}`: {why}")]
    Conflict {
        /// Which step.
        step: &'static str,
        /// Why not.
        why: &'static str,
    },
}

impl Recipe {
    /// Whether what is known of activations must include Hessians.
    pub fn needs_hessian(&self) -> bool {
        // The importance of a channel that a rotation made is on the diagonal of the rotated Hessian.
        let rotated_importance =
            self.scheme.clip == ClipRule::Importance && self.scheme.basis.contains(&StepKind::Rotate);
        self.scheme.method == Method::Gptq || rotated_importance
    }

    /// Whether anything must be known of activations.
    pub fn needs_activations(&self) -> bool {
        self.needs_hessian()
            || self.scheme.clip == ClipRule::Importance
            || self.scheme.basis.contains(&StepKind::Smooth)
    }

    fn check(&self) -> Result<(), RecipeParseError> {
        let Scheme { tier, method, clip, basis } = &self.scheme;
        let conflict = |step, why| Err(RecipeParseError::Conflict { step, why });
        let uniform = matches!(tier, Tier::W4A4 | Tier::I4A8 { codebook: Codebook::Uniform });
        let grouped = *tier == Tier::I4A8Group;
        let has = |kind| basis.contains(&kind);
        if *method == Method::Gptq && !uniform && !grouped {
            return conflict("gptq", "works on uniform four-bit codes: w4a4 or i4a8");
        }
        if *method == Method::Stochastic && grouped {
            return conflict(
                "stochastic",
                "does not go with group, whose levels are searched for the nearest codes",
            );
        }
        if *method == Method::Stochastic && !matches!(tier, Tier::I4A8 { .. }) {
            return conflict("stochastic", "works on stored int4 only: i4a8 or i4a8-nf4");
        }
        if *clip == ClipRule::Importance && !matches!(tier, Tier::I4A8 { .. } | Tier::I4A8Group) {
            return conflict("imatrix", "weighs the clip search of stored int4 only: i4a8 or i4a8-nf4");
        }
        if *clip == ClipRule::Importance && *method == Method::Gptq {
            return conflict("imatrix", "gptq knows the activations already; use clip");
        }
        if *clip == ClipRule::SelfTuning && grouped {
            return conflict("clip", "is part of group: the levels of a group are searched anyway");
        }
        if *clip == ClipRule::SelfTuning && !uniform {
            return conflict("clip", "searches uniform four-bit codes: w4a4 or i4a8");
        }
        if *clip == ClipRule::SelfTuning && *method == Method::Stochastic {
            return conflict("clip", "does not go with stochastic");
        }
        if has(StepKind::Signs) && !has(StepKind::Rotate) {
            return conflict("signs", "changes nothing without rotate");
        }
        // Not so with int8 activations: there signs are for the activations' error, which gptq does nothing about.
        if has(StepKind::Signs) && *method == Method::Gptq && *tier == Tier::W4A4 {
            return conflict("signs", "buys nothing on top of gptq at four bits: measured null three times");
        }
        if has(StepKind::Smooth) && !has(StepKind::Rotate) && *tier == Tier::W4A4 {
            return conflict("smooth", "is worse than nothing without rotate at four bits");
        }
        match self.promote {
            Promote::Nothing => Ok(()),
            _ if *tier == Tier::W8A8 => conflict("promote", "there is nothing above w8a8"),
            Promote::Bits(bits) if !(4.0..=8.1).contains(&bits) => {
                conflict("promote", "takes 4 to 8 bits per weight, or `output`")
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for Recipe {
    type Err = RecipeParseError;
    fn from_str(text: &str) -> Result<Self, RecipeParseError> {
        let mut words = text.split('+');
        let base = words.next().unwrap_or_default();
        let steps: Vec<&str> = match base {
            "w8a8-rot" => vec!["rotate"],
            "w4a4-ladder" => vec!["smooth", "rotate", "gptq", "clip", "promote"],
            _ => Vec::new(),
        };
        let base_tier = match base {
            "w8a8" | "w8a8-rot" => Tier::W8A8,
            "i4a8" => Tier::I4A8 { codebook: Codebook::Uniform },
            "i4a8-nf4" => Tier::I4A8 { codebook: Codebook::Nf4 },
            "w4a4" | "w4a4-ladder" => Tier::W4A4,
            other => return Err(RecipeParseError::Tier(other.to_owned())),
        };
        let mut basis = Vec::new();
        let (mut group, mut method, mut clip, mut promote) = (None, None, None, None);
        for word in steps.into_iter().chain(words) {
            let twice = || RecipeParseError::Twice(word.to_owned());
            let once = |taken: bool| if taken { Err(twice()) } else { Ok(()) };
            let kind = match word {
                "smooth" => Some(StepKind::Smooth),
                "signs" => Some(StepKind::Signs),
                "rotate" => Some(StepKind::Rotate),
                _ => None,
            };
            match (kind, word) {
                (Some(kind), _) => {
                    once(basis.contains(&kind))?;
                    basis.push(kind);
                }
                (_, "group") => once(group.replace(()).is_some())?,
                (_, "gptq") => once(method.replace(Method::Gptq).is_some())?,
                (_, "stochastic") => once(method.replace(Method::Stochastic).is_some())?,
                (_, "imatrix") => once(clip.replace(ClipRule::Importance).is_some())?,
                (_, "clip") => once(clip.replace(ClipRule::SelfTuning).is_some())?,
                _ => {
                    let wrong = || RecipeParseError::Step(word.to_owned());
                    let (name, budget) = word.split_once(':').unwrap_or((word, ""));
                    if name != "promote" {
                        return Err(wrong());
                    }
                    once(promote.is_some())?;
                    promote = Some(match budget {
                        "" if name == word => Promote::Bits(BITS_PER_WEIGHT),
                        "output" => Promote::Output,
                        bits => Promote::Bits(bits.parse().map_err(|_| wrong())?),
                    });
                }
            }
        }
        let tier = match (group, base_tier) {
            (None, tier) => tier,
            (Some(()), Tier::I4A8 { codebook: Codebook::Uniform }) => Tier::I4A8Group,
            (Some(()), Tier::I4A8 { codebook: Codebook::Nf4 }) => {
                let why = "has equal steps between its levels; NF4's levels are its own: use i4a8+group";
                return Err(RecipeParseError::Conflict { step: "group", why });
            }
            (Some(()), _) => {
                let why = "gives stored int4 finer levels: i4a8+group";
                return Err(RecipeParseError::Conflict { step: "group", why });
            }
        };
        // The order of the recipe is always the same, whatever the order of the text.
        let order = [StepKind::Smooth, StepKind::Signs, StepKind::Rotate];
        let recipe = Self {
            scheme: Scheme {
                tier,
                method: method.unwrap_or(Method::Nearest),
                clip: clip.unwrap_or(ClipRule::AbsMax),
                basis: order.into_iter().filter(|kind| basis.contains(kind)).collect(),
            },
            promote: promote.unwrap_or_default(),
        };
        recipe.check()?;
        Ok(recipe)
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.scheme.fmt(f)?;
        match self.promote {
            Promote::Nothing => Ok(()),
            Promote::Output => f.write_str("+promote:output"),
            Promote::Bits(bits) => write!(f, "+promote:{bits}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_in_one_order() {
        for (text, back) in [
            ("w8a8", "w8a8"),
            ("w8a8-rot", "w8a8+rotate"),
            ("w8a8+smooth", "w8a8+smooth"),
            ("i4a8", "i4a8"),
            ("i4a8-nf4+imatrix", "i4a8-nf4+imatrix"),
            ("i4a8+stochastic+imatrix", "i4a8+stochastic+imatrix"),
            ("i4a8+group", "i4a8+group"),
            ("i4a8+group+gptq+rotate+signs", "i4a8+group+signs+rotate+gptq"),
            ("i4a8+imatrix+rotate+group", "i4a8+group+rotate+imatrix"),
            ("i4a8+group+gptq+smooth+promote", "i4a8+group+smooth+gptq+promote:4.9"),
            ("i4a8+clip+gptq+rotate", "i4a8+rotate+gptq+clip"),
            ("w4a4+rotate+signs+smooth", "w4a4+smooth+signs+rotate"),
            ("w4a4-ladder", "w4a4+smooth+rotate+gptq+clip+promote:4.9"),
            ("w4a4+promote:5.25", "w4a4+promote:5.25"),
            ("i4a8+promote:output", "i4a8+promote:output"),
        ] {
            let recipe: Recipe = text.parse().unwrap();
            assert_eq!(recipe.to_string(), back);
            assert_eq!(back.parse::<Recipe>().unwrap(), recipe, "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            "",
            "w4",
            "W8A8",
            "w8a8+",
            "w8a8+gptq",
            "w8a8+clip",
            "w8a8+imatrix",
            "w8a8+promote",
            "w8a8-rot+rotate",
            "i4a8-nf4+gptq",
            "i4a8-nf4+clip",
            "i4a8+gptq+imatrix",
            "i4a8+gptq+stochastic",
            "i4a8+clip+stochastic",
            "i4a8+group+group",
            "i4a8+group+stochastic",
            "i4a8+group+clip",
            "i4a8+group+gptq+imatrix",
            "i4a8+group:64",
            "i4a8-nf4+group",
            "w8a8+group",
            "w4a4+group",
            "i4a8+promote:",
            "i4a8+promote:x",
            "i4a8+promote:NaN",
            "i4a8+promote:3",
            "i4a8+promotion",
            "w4a4+imatrix",
            "w4a4+stochastic",
            "w4a4+smooth",
            "w4a4+signs",
            "w4a4+signs+rotate+gptq",
            "w4a4-ladder+promote",
        ] {
            assert!(text.parse::<Recipe>().is_err(), "{text}");
        }
    }

    #[test]
    fn needs() {
        let needs = |text: &str| {
            let recipe: Recipe = text.parse().unwrap();
            (recipe.needs_activations(), recipe.needs_hessian())
        };
        assert_eq!(needs("w4a4+rotate+clip"), (false, false));
        assert_eq!(needs("w8a8+smooth"), (true, false));
        assert_eq!(needs("i4a8+imatrix"), (true, false));
        assert_eq!(needs("i4a8+rotate+imatrix"), (true, true));
        assert_eq!(needs("w4a4+gptq"), (true, true));
    }
}
