// SPDX-License-Identifier: MIT OR Apache-2.0
//! The JSON of a pack.

use ork_layout::WeightLayout;
use ork_quant::{Basis, BasisId, Scheme, Tier};
use serde::{Deserialize, Serialize};

use crate::container::{Section, Version};
use crate::{Calibration, Hash, SourceId};

/// The order of bytes inside a tensor that this library writes: K slices, kernel groups, channel blocks, kernels
/// of the group, channels of the block (`ork_layout::WeightLayout`), nibbles with the even element low. A change of that order
/// is another id.
pub const LAYOUT: &str = "kernel-groups-1";

/// The minor versions of the format, oldest first.
pub(crate) const VERSIONS: [Version; 2] = [Version { major: 1, minor: 0 }, Version { major: 1, minor: 1 }];

/// The first version with a tier.
pub(crate) const fn version_of(tier: Tier) -> Version {
    match tier {
        Tier::W8A8 | Tier::I4A8 { .. } | Tier::W4A4 => VERSIONS[0],
        Tier::I4A8Group => VERSIONS[1],
    }
}

/// Longest tensor name.
const NAME_MAX: usize = 255;
/// Most K slices of a tensor.
const SLICES_MAX: usize = 4096;

/// What a pack is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The SoC, as `ork_isa::soc::Soc::name` has it: `RK3588`.
    pub soc: String,
    /// The order of bytes, [`LAYOUT`].
    pub layout: String,
}

/// What is asked of one tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Its name in the model file.
    pub name: String,
    /// Input channels.
    pub k: u32,
    /// Output channels.
    pub n: u32,
    /// What is to be done to it.
    pub scheme: Scheme,
}

/// What is asked of a pack. A writer continues an unfinished file only for the same plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackPlan {
    /// What it is for.
    pub target: Target,
    /// What it is made from.
    pub source: SourceId,
    /// What tells it about activations, if the recipe asks for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
    /// Who makes it: program and version.
    pub writer: String,
    /// The tensors, in the order of the file.
    pub tensors: Vec<Request>,
}

impl PackPlan {
    /// The oldest version that can say it: what the pack's files are marked with.
    pub fn version(&self) -> Version {
        self.tensors.iter().map(|request| version_of(request.scheme.tier)).fold(VERSIONS[0], Version::max)
    }

    /// Its name.
    ///
    /// # Errors
    /// If it cannot be written as JSON, which no plan of ours does.
    pub fn hash(&self) -> Result<Hash, serde_json::Error> {
        Ok(Hash::of(&serde_json::to_vec(self)?))
    }
}

/// How a tensor's elements are cut and padded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorLayout {
    /// Channels of every K slice, padding included.
    pub k_slices: Vec<u32>,
    /// Output channels, padding included.
    pub n_padded: u32,
}

impl TensorLayout {
    /// Bytes of a tensor in this layout, or nothing if that is no number.
    pub fn bytes(&self, tier: Tier) -> Option<u64> {
        let k: u64 = self.k_slices.iter().map(|slice| u64::from(*slice)).sum();
        let elements = k.checked_mul(u64::from(self.n_padded))?;
        tier.code_bytes(elements)
    }
}

impl From<&WeightLayout> for TensorLayout {
    fn from(layout: &WeightLayout) -> Self {
        Self {
            k_slices: layout.slices().iter().map(|slice| slice.len).collect(),
            n_padded: layout.n_padded(),
        }
    }
}

/// A tensor in the pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// Its name in the model file.
    pub name: String,
    /// Input channels.
    pub k: u32,
    /// Output channels.
    pub n: u32,
    /// What was done to it.
    pub scheme: Scheme,
    /// How its elements are cut and padded.
    pub layout: TensorLayout,
    /// The basis that both operands must be in.
    pub basis: BasisId,
    /// Tiled codes.
    pub data: Section,
    /// N scales, `f32`.
    pub scales: Section,
    /// K channel factors, `f32`, if the basis smooths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smoothing: Option<Section>,
}

impl TensorEntry {
    /// All sections, in the order of the file.
    pub fn sections(&self) -> impl Iterator<Item = &Section> {
        [&self.data, &self.scales].into_iter().chain(&self.smoothing)
    }

    /// What is wrong with it, if anything is.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let (k, n) = (u64::from(self.k), u64::from(self.n));
        if let Some(what) = bad_name(&self.name).or_else(|| bad_shape(self.k, self.n)) {
            return Some(what);
        }
        let slices = &self.layout.k_slices;
        let padded: u64 = slices.iter().map(|slice| u64::from(*slice)).sum();
        if slices.is_empty() || slices.len() > SLICES_MAX || slices.contains(&0) {
            return Some(format!("{} K slices, or an empty one", slices.len()));
        }
        // Padding of more than a tile of either kind would be another shape.
        if !(k..k + 64).contains(&padded) || !(n..n + 64).contains(&u64::from(self.layout.n_padded)) {
            return Some(format!("{k} x {n} is padded to {padded} x {}", self.layout.n_padded));
        }
        if self.layout.bytes(self.scheme.tier) != Some(self.data.bytes) {
            return Some(format!("{} bytes of data do not fit its layout", self.data.bytes));
        }
        if self.scales.bytes != 4 * n {
            return Some(format!("{} bytes of scales for {n} output channels", self.scales.bytes));
        }
        let smooths = self.scheme.basis.contains(&ork_quant::StepKind::Smooth);
        if self.smoothing.map(|section| section.bytes) != smooths.then_some(4 * k) {
            return Some("its smoothing does not fit its basis".to_owned());
        }
        if self.scheme.basis.iter().filter(|kind| **kind == ork_quant::StepKind::Smooth).count() > 1 {
            return Some("a basis that smooths twice".to_owned());
        }
        None
    }

    /// True if the basis is the one that changes nothing.
    pub fn is_plain(&self) -> bool {
        Basis::identity(self.k as usize).is_ok_and(|plain| plain.id() == self.basis)
    }
}

pub(crate) fn bad_name(name: &str) -> Option<String> {
    let bad = name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control);
    bad.then(|| format!("a name has 1 to {NAME_MAX} bytes and no control characters"))
}

pub(crate) fn bad_shape(k: u32, n: u32) -> Option<String> {
    // The margin keeps padded dimensions inside 32 bits.
    let fits = |value: u32| value > 0 && value <= u32::MAX - 4096;
    (!fits(k) || !fits(n)).then(|| format!("{k} x {n} is no shape"))
}

/// What a part says of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartEntry {
    pub(crate) file_bytes: u64,
    pub(crate) header: Hash,
}

/// The header of one part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartHeader {
    pub(crate) target: Target,
    pub(crate) source: SourceId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) calibration: Option<Calibration>,
    pub(crate) writer: String,
    pub(crate) plan: Hash,
    pub(crate) tensors: Vec<TensorEntry>,
    /// Only in the first part: the others, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<PartEntry>,
}
