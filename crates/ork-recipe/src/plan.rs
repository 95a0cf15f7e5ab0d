// SPDX-License-Identifier: MIT OR Apache-2.0
//! What becomes of every weight.

use std::collections::BTreeMap;
use std::fmt;

use ork_isa::soc::Soc;
use ork_layout::{Format, WeightLayout};
use ork_pack::{Calibration, LAYOUT, PackPlan, Request, SourceId, Target};
use ork_plan::{PlanOptions, admit};
use ork_quant::{Prior, Scheme, TensorSize, Tier, promote, transitions};

use crate::{Knowledge, Promote, Recipe, RecipeError, RecipeParseError, WeightInfo};

/// Why a weight is what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The recipe says so.
    Asked,
    /// It has int8: promoted by the structural prior, or because it lies outside layers.
    Promoted,
    /// It has int8: the guide gives it more bits than most.
    Guide {
        /// Its type in the guide.
        type_name: String,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => f.write_str("asked for"),
            Self::Promoted => f.write_str("promoted"),
            Self::Guide { type_name } => write!(f, "{type_name} in the guide"),
        }
    }
}

/// What becomes of one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Which weight of the source.
    pub index: usize,
    /// What is done to it.
    pub scheme: Scheme,
    /// Why.
    pub why: Why,
    /// How it lies.
    pub layout: WeightLayout,
}

/// Which weights of a model of mixed types have more bits than most: somebody's opinion on which deserve them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Guide {
    types: BTreeMap<String, (String, f64)>,
}

impl Guide {
    /// From name, type and bits per weight of every tensor.
    pub fn new(tensors: impl IntoIterator<Item = (String, String, f64)>) -> Self {
        Self { types: tensors.into_iter().map(|(name, type_name, bits)| (name, (type_name, bits))).collect() }
    }

    /// Bits per weight that most of these weights have.
    fn base(&self, weights: &[WeightInfo]) -> Result<f64, RecipeError> {
        let mut totals: BTreeMap<u64, u64> = BTreeMap::new();
        for weight in weights {
            let Some((_, bits)) = self.types.get(&weight.name) else {
                let what = "the guide does not have it: it is of another model".to_owned();
                return Err(RecipeError::Knowledge { weight: weight.name.clone(), what });
            };
            // Bits are compared as they are: equal types have equal bits.
            *totals.entry(bits.to_bits()).or_default() += (weight.k * weight.n) as u64;
        }
        let most = totals.into_iter().max_by_key(|(_, total)| *total);
        Ok(most.map_or(0.0, |(bits, _)| f64::from_bits(bits)))
    }
}

/// What becomes of every weight of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelPlan {
    /// What was asked for.
    pub recipe: Recipe,
    /// One for every weight of the source, in the order of a forward pass.
    pub choices: Vec<Choice>,
    /// Bits per weight over all, scales included, padding not.
    pub bits_per_weight: f64,
    /// Changes between the int4 and the int8 datapath in a forward pass. Each costs a reset.
    pub transitions: usize,
}

impl ModelPlan {
    /// Decides for every weight.
    ///
    /// # Errors
    /// [`RecipeError`]: no weights, not enough known, a guide of another model, a weight that the NPU cannot have so.
    pub fn new(
        recipe: &Recipe,
        weights: &[WeightInfo],
        guide: Option<&Guide>,
        knowledge: &Knowledge,
        (soc, options): (&Soc, &PlanOptions),
    ) -> Result<Self, RecipeError> {
        if weights.is_empty() {
            return Err(RecipeError::NoWeights);
        }
        let order = forward_order(weights);
        let sizes: Vec<TensorSize> = order
            .iter()
            .map(|index| &weights[*index])
            .map(|weight| TensorSize { name: weight.name.clone(), k: weight.k as u64, n: weight.n as u64 })
            .collect();
        let base = recipe.scheme.tier;
        let tiers: Vec<(Tier, Why)> = match (guide, recipe.promote) {
            (Some(guide), Promote::Nothing) => {
                let most = guide.base(weights)?;
                let choose = |size: &TensorSize| match guide.types.get(&size.name) {
                    Some((type_name, bits)) if *bits > most => {
                        (Tier::W8A8, Why::Guide { type_name: type_name.clone() })
                    }
                    _ => (base, Why::Asked),
                };
                sizes.iter().map(choose).collect()
            }
            (None, Promote::Nothing) => vec![(base, Why::Asked); sizes.len()],
            (None, Promote::Output) => promoted(&sizes, base, 0.0),
            (None, Promote::Bits(bits)) => promoted(&sizes, base, bits),
            (Some(_), _) => {
                let why = "a guide decides which weights get more bits; leave promote away";
                return Err(RecipeParseError::Conflict { step: "promote", why }.into());
            }
        };
        let mut choices = Vec::with_capacity(order.len());
        for (index, (tier, why)) in order.into_iter().zip(tiers) {
            let weight = &weights[index];
            // A promoted weight is plain int8: in the basis of the others it measured worse.
            let scheme = if why == Why::Asked { recipe.scheme.clone() } else { Scheme::w8a8() };
            if why == Why::Asked {
                knowledge.check(recipe, weight)?;
            }
            let layout = layout_of(weight, tier, soc, options)?;
            choices.push(Choice { index, scheme, why, layout });
        }
        let tiers: Vec<Tier> = choices.iter().map(|choice| choice.scheme.tier).collect();
        let weights_all: u64 = sizes.iter().map(|size| size.k * size.n).sum();
        let bits: u64 = sizes.iter().zip(&tiers).map(|(size, tier)| tier.bits_of(size.k, size.n)).sum();
        Ok(Self {
            recipe: recipe.clone(),
            choices,
            bits_per_weight: bits as f64 / weights_all.max(1) as f64,
            transitions: transitions(&tiers),
        })
    }

    /// The same, as a pack is asked for.
    pub fn pack_plan(
        &self,
        weights: &[WeightInfo],
        soc: &Soc,
        source: SourceId,
        calibration: Option<Calibration>,
        writer: &str,
    ) -> PackPlan {
        let requests = self.choices.iter().map(|choice| Request {
            name: weights[choice.index].name.clone(),
            k: choice.layout.k(),
            n: choice.layout.n(),
            scheme: choice.scheme.clone(),
        });
        PackPlan {
            target: Target { soc: soc.name.to_owned(), layout: LAYOUT.to_owned() },
            source,
            calibration,
            writer: writer.to_owned(),
            tensors: requests.collect(),
        }
    }
}

fn promoted(sizes: &[TensorSize], base: Tier, bits: f64) -> Vec<(Tier, Why)> {
    let promotion = promote(sizes, base, Prior::for_tier(base), bits);
    let why = |tier| if tier == base { Why::Asked } else { Why::Promoted };
    promotion.tiers.into_iter().map(|tier| (tier, why(tier))).collect()
}

/// The layout of a weight in a tier. int4 that is stored only lies in the order of int8.
pub(crate) fn layout_of(
    weight: &WeightInfo,
    tier: Tier,
    soc: &Soc,
    options: &PlanOptions,
) -> Result<WeightLayout, RecipeError> {
    let format = match tier {
        Tier::W8A8 | Tier::I4A8 { .. } | Tier::I4A8Group => Format::INT8_INT32,
        Tier::W4A4 => Format::INT4_INT16,
    };
    admit(format, weight.k, weight.n, soc, options).map_err(|refusal| RecipeError::Refused {
        weight: weight.name.clone(),
        tier: tier.to_string(),
        why: refusal.to_string(),
    })
}

/// Indices of weights as a forward pass uses them: layers by number, in a layer by role, the others last.
fn forward_order(weights: &[WeightInfo]) -> Vec<usize> {
    const ROLES: [&str; 8] =
        ["attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    let place = |name: &str| {
        let (layer, role) = name.strip_prefix("blk.")?.split_once('.')?;
        let role = role.strip_suffix(".weight").unwrap_or(role);
        let rank = ROLES.iter().position(|known| *known == role).unwrap_or(ROLES.len());
        Some((layer.parse::<u32>().ok()?, rank))
    };
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|index| place(&weights[*index].name).unwrap_or((u32::MAX, 0)));
    order
}
