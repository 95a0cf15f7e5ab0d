// SPDX-License-Identifier: MIT OR Apache-2.0
//! Products on the edges of the laws, and the cases of a sweep: edges, heads of vocabularies, and random shapes.
//!
//! The sizes are those of the hardware notes, written down here once more on purpose; `tests/draw.rs` shows that every law
//! has its edges here, that each is an edge of the plans, and that the sweeps contain them.

use ork_plan::Product;
use ork_testkit::cases::{self, Dim};
use ork_testkit::{Budget, Case, Shape};

use super::precisions::boundaries;

/// An edge: at this size of this dimension, or at the next one, plans change because of a law.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) law: &'static str,
    pub(crate) products: &'static [Product],
    pub(crate) dim: Dim,
    pub(crate) at: (u32, u32, u32),
}

impl Edge {
    /// The edge and its neighbours.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = Shape> + use<> {
        let Self { dim, at, .. } = *self;
        [-1, 0, 1].into_iter().filter_map(move |step| {
            let (mut m, mut k, mut n) = at;
            let size = match dim {
                Dim::M => &mut m,
                Dim::K => &mut k,
                Dim::N => &mut n,
            };
            *size = size.checked_add_signed(step)?;
            (*size > 0).then(|| Shape::new(m, k, n))
        })
    }
}

/// Laws that no size of a product meets, and why.
pub(crate) const WITHOUT_EDGE: [(&str, &str); 5] = [
    ("bank-sum", "it speaks of the split alone, which no size of a product asks for"),
    ("form", "it speaks of the form alone"),
    ("int4-cube", "only a candidate runs that form: tests/all/rules.rs"),
    ("data-reuse", "only a candidate keeps features: tests/all/rules.rs"),
    ("address-window", "4 GiB of results: ork-plan's tests"),
];

const ALL: &[Product] = &Product::ALL;
/// All but the product whose small K is padded to 512.
const BY_BLOCKS: &[Product] = &[
    Product::Int8,
    Product::Int4,
    Product::Int16,
    Product::Int16Native,
    Product::Fp16,
    Product::Fp16ToFp16,
    Product::Bf16,
    Product::Tf32,
];
const INT8: &[Product] = &[Product::Int8];
const INT8_INT8: &[Product] = &[Product::Int8ToInt8];
const INT4: &[Product] = &[Product::Int4];
const FP16: &[Product] = &[Product::Fp16];
const FP16_FP16: &[Product] = &[Product::Fp16ToFp16];
const CUBES: &[Product] = &[Product::Bf16, Product::Tf32];
const HALVES: &[Product] = &[Product::Fp16, Product::Bf16, Product::Int16Native];
const ROWS_OF_SUMS: &[Product] = &[Product::Int8, Product::Fp16, Product::Int16Native];

const fn edge(law: &'static str, products: &'static [Product], dim: Dim, m: u32, k: u32, n: u32) -> Edge {
    Edge { law, products, dim, at: (m, k, n) }
}

/// Every edge.
pub(crate) const EDGES: &[Edge] = &[
    edge("non-empty", ALL, Dim::M, 1, 33, 17),
    edge("non-empty", ALL, Dim::K, 3, 1, 17),
    edge("non-empty", ALL, Dim::N, 3, 33, 1),
    edge("k-multiple", BY_BLOCKS, Dim::K, 3, 32, 17),
    edge("k-multiple", ALL, Dim::K, 3, 1024, 17),
    edge("n-multiple", ALL, Dim::N, 3, 33, 64),
    edge("n-multiple", ALL, Dim::N, 3, 33, 192),
    edge("columns", ROWS_OF_SUMS, Dim::N, 1, 32, 8192),
    edge("columns", ROWS_OF_SUMS, Dim::N, 2, 32, 16_384),
    edge("columns", ROWS_OF_SUMS, Dim::N, 2, 32, 24_576),
    edge("encodable", INT8, Dim::M, 2047, 32, 17),
    edge("encodable", FP16, Dim::M, 2047, 32, 17),
    edge("depth", INT8, Dim::K, 3, 4096, 17),
    edge("depth", INT8, Dim::K, 1, 10_752, 17),
    edge("depth", INT4, Dim::K, 1, 8192, 17),
    edge("slice-depth", INT8, Dim::K, 2, 6144, 17),
    edge("slice-depth", HALVES, Dim::K, 2, 2048, 17),
    edge("requantised", INT8_INT8, Dim::K, 3, 512, 17),
    edge("requantised", INT8_INT8, Dim::K, 3, 4096, 17),
    edge("requantised", INT8_INT8, Dim::N, 1, 32, 4096),
    edge("requantised", INT8_INT8, Dim::N, 1, 32, 12_288),
    edge("narrowed", FP16_FP16, Dim::M, 64, 128, 17),
    edge("narrowed", FP16_FP16, Dim::K, 3, 1024, 17),
    edge("float-envelope", FP16, Dim::M, 64, 128, 160),
    edge("float-envelope", FP16, Dim::M, 64, 128, 688),
    edge("float-envelope", FP16, Dim::M, 128, 128, 2048),
    edge("float-envelope", FP16, Dim::K, 64, 128, 688),
    edge("weight-group", INT8, Dim::K, 320, 1024, 33),
    edge("weight-group", INT8, Dim::K, 128, 2048, 33),
    edge("weight-group", INT8, Dim::K, 64, 3072, 33),
    edge("feature-capacity", INT8, Dim::M, 256, 96, 33),
    edge("feature-capacity", INT8, Dim::M, 704, 480, 33),
    edge("feature-capacity", FP16, Dim::M, 256, 64, 17),
    edge("feature-capacity", FP16, Dim::M, 42, 384, 17),
    edge("feature-capacity", FP16, Dim::M, 25, 640, 17),
    edge("feature-capacity", FP16, Dim::M, 21, 768, 17),
    edge("float-depth", FP16, Dim::K, 65, 1024, 65),
    edge("narrow-columns", INT8, Dim::N, 384, 1024, 96),
    edge("narrow-columns", FP16, Dim::N, 704, 256, 64),
    edge("row-caps", INT8, Dim::M, 704, 512, 33),
    edge("row-caps", INT8, Dim::M, 320, 1024, 33),
    edge("row-caps", INT8, Dim::M, 192, 1536, 33),
    edge("row-caps", INT8, Dim::M, 128, 2048, 33),
    edge("row-caps", INT8, Dim::M, 64, 3072, 33),
    edge("row-caps", INT8, Dim::M, 64, 3584, 33),
    edge("row-caps", INT8, Dim::M, 64, 4096, 33),
    edge("cube-rows", CUBES, Dim::M, 4, 64, 17),
    edge("cube-rows", CUBES, Dim::M, 8, 64, 17),
    edge("fold", INT8, Dim::M, 36, 3584, 97),
    edge("fold", INT8, Dim::M, 100, 3584, 97),
    edge("fold", INT8, Dim::K, 36, 3584, 97),
    edge("int4-rows", INT4, Dim::M, 128, 128, 65),
    edge("int4-rows", INT4, Dim::M, 64, 256, 65),
    edge("int4-rows", INT4, Dim::M, 32, 512, 65),
    edge("int4-rows", INT4, Dim::M, 22, 768, 65),
    edge("int4-rows", INT4, Dim::M, 16, 1024, 65),
    edge("int4-rows", INT4, Dim::M, 11, 1536, 65),
    edge("int4-rows", INT4, Dim::M, 8, 2048, 65),
    edge("int4-rows", INT4, Dim::M, 4, 2560, 65),
    edge("int4-rows", INT4, Dim::M, 4, 4096, 65),
    edge("int4-rows", INT4, Dim::M, 3, 6144, 65),
    edge("int4-rows", INT4, Dim::M, 2, 8192, 65),
    edge("int4-rows", INT4, Dim::K, 9, 2048, 65),
    edge("int4-rows", INT4, Dim::K, 3, 6144, 65),
    edge("int4-columns", INT4, Dim::N, 3, 256, 512),
    edge("int4-columns", INT4, Dim::N, 3, 512, 256),
    edge("int4-columns", INT4, Dim::N, 3, 768, 128),
    edge("int4-columns", INT4, Dim::N, 3, 1024, 128),
    edge("int4-columns", INT4, Dim::N, 3, 2048, 64),
    edge("int4-columns", INT4, Dim::N, 3, 2048, 960),
    edge("weight-reuse", INT4, Dim::M, 16, 2048, 65),
    // 91 batches of two rows in each of 45 chunks of columns: the longest chain.
    edge("chain-length", INT4, Dim::M, 182, 8192, 2880),
];

/// Most multiply-accumulates of an edge in every run.
const EVERY_RUN_MACS: u64 = 1 << 22;

/// Heads of vocabularies, and the depths of real models' projections.
pub(crate) const HEADS: [(u32, u32, u32); 9] = [
    (1, 8, 151_936),
    (3, 33, 151_936),
    (1, 17, 248_320),
    (1, 18_944, 17),
    (2, 18_944, 64),
    (5, 18_944, 7),
    (3, 4304, 33),
    (1, 248_320, 5),
    (2, 248_320, 3),
];

/// The same as models have them.
pub(crate) const WIDE_HEADS: [(u32, u32, u32); 6] = [
    (1, 896, 151_936),
    (1, 1024, 248_320),
    (3, 64, 248_320),
    (7, 18_944, 3584),
    (17, 4304, 1152),
    (1, 248_320, 896),
];

/// Whether a sweep is part of every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    EveryRun,
    Slow,
}

/// All cases of a sweep. The slow one has 20,000.
pub(crate) fn draw(product: Product, tier: Tier) -> Vec<Case> {
    let edges = EDGES.iter().filter(|edge| edge.products.contains(&product)).flat_map(Edge::shapes);
    let mut shapes: Vec<Shape> = edges.collect();
    let heads =
        |heads: &[(u32, u32, u32)]| heads.iter().map(|&(m, k, n)| Shape::new(m, k, n)).collect::<Vec<_>>();
    if tier == Tier::EveryRun {
        shapes.retain(|shape| shape.macs() <= EVERY_RUN_MACS);
    }
    shapes.extend(heads(&HEADS));
    if tier == Tier::Slow {
        shapes.extend(heads(&WIDE_HEADS));
    }
    let by_hand = shapes.len() as u32;
    let mut drawn = match tier {
        Tier::EveryRun => cases::draw_at(0, &Budget::CI_ONE_PRECISION, &boundaries(product)),
        Tier::Slow => {
            let budget = Budget { cases: 20_000 - by_hand, ..Budget::SLOW_ONE_PRECISION };
            cases::draw_at(1, &budget, &boundaries(product))
        }
    };
    // Seeds that differ in all their bits: they also decide where a case is computed.
    let seed = |index: u64| (index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    drawn.extend(shapes.into_iter().zip(0..).map(|(shape, index)| Case::new(shape, seed(index))));
    drawn
}
