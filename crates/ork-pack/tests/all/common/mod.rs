// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small model of three weights, one of each tier, and its pack.
#![allow(dead_code, reason = "every test binary uses another part")]

use std::path::Path;

use ork_corpus::Corpus;
use ork_layout::{Format, WeightLayout};
use ork_pack::{
    Calibration, Hash, LAYOUT, NewTensor, Pack, PackPlan, PackWriter, PackWritten, Request, SourceId,
    SourceSample, Target, TensorLayout, TiledWeight, WriteOptions, tile_grouped, tile_i4a8, tile_w8a8,
};
use ork_quant::{
    Basis, ClipReport, ClipRule, Codebook, Method, NativeClip, Scheme, Step, StepKind, Tier, pack_nibbles,
    quantise_native_weight,
};
use ork_testkit::Stream;

pub(crate) const K: u32 = 96;

pub(crate) fn source() -> SourceId {
    SourceId {
        name: "model.gguf".into(),
        sample: SourceSample { bytes: 12345, hash: Hash::of(b"sample") },
        content: Hash::of(b"content"),
    }
}

pub(crate) fn calibration() -> Calibration {
    let text = Corpus::from_text("text.txt", "What the model reads. ".repeat(40)).unwrap().whole().origin();
    Calibration { file: "model.orkstat".into(), content: Hash::of(b"statistics"), text: Some(text) }
}

pub(crate) fn schemes() -> [Scheme; 3] {
    [
        Scheme::w8a8(),
        Scheme {
            tier: Tier::I4A8 { codebook: Codebook::Nf4 },
            method: Method::Nearest,
            clip: ClipRule::Importance,
            basis: vec![],
        },
        Scheme {
            tier: Tier::W4A4,
            method: Method::Nearest,
            clip: ClipRule::SelfTuning,
            basis: vec![StepKind::Smooth, StepKind::Signs, StepKind::Rotate],
        },
    ]
}

/// `layers` times the three tiers, N = 64 + layer.
pub(crate) fn plan(layers: u32) -> PackPlan {
    let tensors = (0..layers).flat_map(|layer| {
        schemes().into_iter().zip(["attn_q", "ffn_up", "ffn_down"]).map(move |(scheme, role)| Request {
            name: format!("blk.{layer}.{role}.weight"),
            k: K,
            n: 64 + layer,
            scheme,
        })
    });
    PackPlan {
        target: Target { soc: "RK3588".into(), layout: LAYOUT.into() },
        source: source(),
        calibration: Some(calibration()),
        writer: "test 1".into(),
        tensors: tensors.collect(),
    }
}

/// What version 1.1 can say: the three tiers, and stored int4 with levels per group.
pub(crate) fn plan_1_1(layers: u32) -> PackPlan {
    let mut plan = plan(layers);
    plan.tensors.extend((0..layers).map(|layer| Request {
        name: format!("blk.{layer}.attn_output.weight"),
        k: K,
        n: 33 + layer,
        scheme: Scheme { tier: Tier::I4A8Group, ..Scheme::w8a8() },
    }));
    plan
}

/// A tensor as a request asks for it, of weights that depend on its name.
pub(crate) fn made(request: &Request) -> (TiledWeight, Basis) {
    let seed = u64::from_le_bytes(Hash::of(request.name.as_bytes()).0[..8].try_into().unwrap());
    let weights = |row: usize| Stream::lane(seed, row as u32).f32s_unit(K as usize);
    let rows = |row: usize, out: &mut [f32]| out.copy_from_slice(&weights(row));
    let layout = WeightLayout::one_slice(Format::INT8_INT32, request.k, request.n).unwrap();
    let plain = Basis::identity(K as usize).unwrap();
    match request.scheme.tier {
        Tier::W8A8 => (tile_w8a8(&layout, &rows).unwrap(), plain),
        Tier::I4A8 { codebook } => {
            let importance = vec![1.0; K as usize];
            let method = request.scheme.method;
            (tile_i4a8(&layout, codebook, method, Some(&importance), &rows).unwrap(), plain)
        }
        Tier::I4A8Group => (tile_grouped(&layout, None, &rows).unwrap(), plain),
        Tier::W4A4 => {
            let factors = (0..K).map(|k| 0.5 + (k % 7) as f32 / 4.0).collect();
            let basis =
                Basis::new(K as usize, vec![Step::Smooth(factors), Step::Signs, Step::Rotate]).unwrap();
            // Any bytes of the right size do for a pack; the tiles of int4 are not its concern.
            let n_padded = request.n.next_multiple_of(64);
            let mut nibbles = vec![0u8; (K * n_padded) as usize];
            let mut scales = Vec::new();
            let mut codes = vec![0i8; K as usize];
            for (row, nibbles) in (0..request.n as usize).zip(nibbles.chunks_exact_mut(K as usize)) {
                let mut weights = weights(row);
                basis.weight_row(&mut weights);
                scales.push(native(&weights, &mut codes));
                nibbles.iter_mut().zip(&codes).for_each(|(nibble, code)| *nibble = code.cast_unsigned() & 15);
            }
            let mut data = vec![0; nibbles.len() / 2];
            pack_nibbles(&nibbles, &mut data);
            (TiledWeight { data, scales, layout: TensorLayout { k_slices: vec![K], n_padded } }, basis)
        }
    }
}

fn native(weights: &[f32], codes: &mut [i8]) -> ork_quant::Scale {
    quantise_native_weight(weights, codes, NativeClip::Search, &mut ClipReport::default()).unwrap()
}

/// Writes the tensor that is due, as asked.
pub(crate) fn write_next(writer: &mut PackWriter) {
    let request = writer.next_request().unwrap().clone();
    let (weight, basis) = made(&request);
    write(writer, &request, &weight, &basis);
}

/// Writes a tensor.
pub(crate) fn write(writer: &mut PackWriter, request: &Request, weight: &TiledWeight, basis: &Basis) {
    writer
        .write(&NewTensor {
            scheme: &request.scheme,
            layout: &weight.layout,
            basis,
            data: &weight.data,
            scales: &weight.scales,
        })
        .unwrap();
}

pub(crate) fn write_all(path: &Path, plan: PackPlan, options: WriteOptions) -> PackWritten {
    let mut writer = PackWriter::open(path, plan, options).unwrap();
    while writer.next_request().is_some() {
        write_next(&mut writer);
    }
    writer.finish().unwrap()
}

/// The bytes of a small pack of one file, with every tier.
pub(crate) fn bytes() -> Vec<u8> {
    bytes_of(plan_1_1(1))
}

pub(crate) fn bytes_of(plan: PackPlan) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.orkpack");
    write_all(&path, plan, WriteOptions::default());
    std::fs::read(path).unwrap()
}

/// Uses everything a pack offers; whatever its bytes, nothing of it may panic.
pub(crate) fn exercise(pack: &Pack) {
    _ = (ork_pack::info(pack), ork_pack::verify(pack), ork_pack::diff(pack, pack));
    for tensor in pack.tensors() {
        _ = (tensor.data(), tensor.scales(), tensor.basis(), tensor.place(), tensor.entry().is_plain());
    }
}

/// Small parts: two tensors or so in each.
pub(crate) const SMALL_PARTS: WriteOptions = WriteOptions { part_bytes_max: 64 << 10 };
