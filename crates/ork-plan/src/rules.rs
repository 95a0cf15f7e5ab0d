// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of tiling rules.
//!
//! A rule has a stage, says where it applies, and proposes. It holds no hardware limit: each proposal goes through
//! [`crate::laws`], so a rule can be slow but not illegal. To try an idea, add one function and one row with
//! [`Status::Candidate`]; naming it in [`crate::PlanOptions::rules`] selects it.
//!
//! Stages, in order: how K is cut (once per weight), in which form a pass is computed, how columns are cut over the
//! cores, how rows are cut and the convolution buffer is split (for each column segment and K slice), and in which order
//! a core walks its tiles.

use ork_isa::Precision;
use ork_isa::soc::Soc;
use ork_layout::{ColumnSegment, FeatureForm, Format, OutputForm};

use crate::BankSplit;
use crate::form::Form;
use crate::laws::{fold, int4_rows, requantised};
pub use crate::rule::{
    Applies, ColumnQuery, FormQuery, Forms, Heights, LoopOrder, OrderQuery, Propose, RowQuery, Rule, Status,
    TileForm, WeightQuery,
};
use crate::schedule::{self, Schedule};

/// All rules. Within a stage, earlier rows win ties.
pub const TABLE: &[Rule] = &[
    Rule {
        name: "fused-output",
        idea: "results that the output stage narrows see all of K: one slice, with int8 results of at least 512 channels",
        status: Status::Default,
        source: "isa.md §7.3: the original pads smaller K with zeros; isa-int4-sdp.md §4.4: single slice",
        propose: Propose::KSlices {
            applies: |q| when(narrows(q.format), "results are sums, not rounded ones"),
            propose: |q| match q.format.output() {
                Precision::Int8 => vec![q.k.max(requantised::DEPTH_MIN)],
                _ => vec![q.k],
            },
        },
    },
    Rule {
        name: "full-k",
        idea: "K that one task reduces at a good height is one slice: no partial results for the host to add",
        status: Status::Default,
        source: "log: one submit per row tile over the full K removed the second slice's accumulation; isa.md §10.3: int8 \
                 to 4096, fp16 schedule 1 to 1024; int4 wherever a batch has two rows",
        propose: Propose::KSlices {
            applies: |q| when(in_one_slice(q), "K is deeper than one task reduces well"),
            propose: |q| vec![q.k],
        },
    },
    Rule {
        name: "slices-of-1024",
        idea: "deeper K is cut into slices of 1024 whose partial results the host adds",
        status: Status::Default,
        source: "log: of the slices 512, 896, 1024, 1184, 2048 and 4736 at K = 18944, 1024 is the fastest by 30 to 60 %; \
                 fp16 runs 5 times as fast as with 2048; isa.md §12.3, §12.4",
        propose: Propose::KSlices {
            applies: |q| {
                when(!in_one_slice(q), "K fits one slice")?;
                when(q.format.input() != Precision::Int4, "int4 slices are deeper")
            },
            propose: |q| slices(q.k, 1024),
        },
    },
    Rule {
        name: "int4-slices-of-8192",
        idea: "deeper int4 K is cut into slices of 8192 and a rest, all of which still run in batches",
        status: Status::Default,
        source: "isa-int4-sdp.md §1.6: H is to be valid as the remainder of slices of 8192; the rest is cut at 4096 where its \
                 H would be 1",
        propose: Propose::KSlices {
            applies: |q| {
                when(q.format.input() == Precision::Int4, "only int4 is cut so deep")?;
                when(!in_one_slice(q), "K fits one slice")
            },
            propose: int4_slices,
        },
    },
    Rule {
        name: "full-k-one-row",
        idea: "a weight that hardly ever meets more than one row keeps its whole K in one slice",
        status: Status::Candidate,
        source: "isa.md §10.4: M = 1 in one submit up to K = 10752; isa-int4-sdp.md §1.2. Not a default: deep K then serves \
                 other M only row by row",
        propose: Propose::KSlices { applies: |_| Ok(()), propose: |q| vec![q.k] },
    },
    Rule {
        name: "int4-slices-of-2048",
        idea: "int4 K in slices of 2048, the deepest whose batches may be wider than 64 columns",
        status: Status::Candidate,
        source: "log: slicing to 2048 to reach the wider columns pays 1.24 times; shallower slices lose",
        propose: Propose::KSlices {
            applies: |q| when(q.format.input() == Precision::Int4, "only int4 gains by it"),
            propose: |q| slices(q.k, 2048),
        },
    },
    Rule {
        name: "rows",
        idea: "row-major operands: rows are written and read as they come",
        status: Status::Default,
        source: "isa.md §4.3 and §7: every production matmul of the original",
        propose: Propose::Forms {
            applies: |q| {
                let known = matches!(q.format.input(), Precision::Int8 | Precision::Fp16 | Precision::Int16);
                when(known, "nobody ran this precision with row-major operands")
            },
            propose: |q| forms(q, FeatureForm::Rows, OutputForm::Rows, Form::Rows, q.rows, Heights::Any),
        },
    },
    Rule {
        name: "fold",
        idea: "tokens on the width axis: the weight stream hides the arithmetic of a tile of up to 36 rows",
        status: Status::Default,
        source: "isa.md §11, §12.3: at K = 3584 it takes 1 / 1.35 of the time of rows at 36 rows, 1 / 1.09 at 100, and more at \
                 128",
        propose: Propose::Forms {
            applies: |q| {
                foldable(q)?;
                when(q.k_slices == [3584], "measured at K = 3584 only")?;
                when(q.rows <= 100, "beyond 100 rows it loses")
            },
            propose: in_fold,
        },
    },
    Rule {
        name: "fold-everywhere",
        idea: "the fold at any K and up to 128 rows",
        status: Status::Candidate,
        source: "isa.md §11: nothing in the registers asks for K = 3584, but nobody ran another",
        propose: Propose::Forms { applies: foldable, propose: in_fold },
    },
    Rule {
        name: "cube",
        idea: "bf16 and tf32 as cubes, the one form in which they were run",
        status: Status::Default,
        source: "isa-notes NS-17 and NS-18, isa.md §6",
        propose: Propose::Forms {
            applies: |q| {
                let known = matches!(q.format.input(), Precision::Bf16 | Precision::Tf32);
                when(known, "this precision has a form that costs the host less")
            },
            propose: in_cube,
        },
    },
    Rule {
        name: "cube-everywhere",
        idea: "cubes for the other precisions, int4 in its dense form among them, which has no row cap",
        status: Status::Candidate,
        source: "isa.md §6: recipe 1; isa.md §4.3: the vendor's own cubes were 14 % slower than rows; isa-int4-sdp.md §1.8b: \
                 the form to probe first",
        propose: Propose::Forms { applies: |_| Ok(()), propose: in_cube },
    },
    Rule {
        name: "int4-batches",
        idea: "int4 rows in batches of H(K), one by one where H would be 1",
        status: Status::Default,
        source: "isa-int4-sdp.md §1.5 and §1.8: the production recipe",
        propose: Propose::Forms {
            applies: |q| when(q.format.input() == Precision::Int4, "only int4 runs in batches"),
            propose: |q| in_batches(q, |k| int4_rows::batch_rows(k).unwrap_or(1)),
        },
    },
    Rule {
        name: "int4-two-banks",
        idea: "int4 batches of twice the rows in two feature banks, which also lets three cores take wider columns",
        status: Status::Candidate,
        source: "isa-int4-sdp.md §1.6: K = 2048 with 320 columns takes 1707 us instead of 3626 on three cores; on one core it \
                 degenerates",
        propose: Propose::Forms {
            applies: |q| {
                when(q.format.input() == Precision::Int4, "only int4 runs in batches")?;
                when(q.rows > 1, "one row needs no batch")?;
                when(q.k_slices.iter().all(|k| *k == 2048), "measured with slices of 2048 only")
            },
            propose: |q| in_batches(q, |k| 2 * int4_rows::batch_rows(k).unwrap_or(1)),
        },
    },
    Rule {
        name: "even-columns",
        idea: "every core gets the same share of kernel groups and reads the whole A",
        status: Status::Default,
        source: "isa.md §2.7, captured: split by output columns in multiples of the kernel group",
        propose: Propose::Columns { applies: |_| Ok(()), propose: even_columns },
    },
    Rule {
        name: "one-core",
        idea: "all columns on one core",
        status: Status::Candidate,
        source: "log: small matmuls lost on three cores before the host's cache maintenance was bounded",
        propose: Propose::Columns {
            applies: |_| Ok(()),
            propose: |q| even_columns(&ColumnQuery { cores: 1, ..*q }),
        },
    },
    Rule {
        name: "four-segments",
        idea: "at least four column segments for each core",
        status: Status::Candidate,
        source: "log: each segment costs 9 to 13 us at M = 1, and 15 to 20 % of a tall product; there for the orders that \
                 keep an operand",
        propose: Propose::Columns {
            applies: |_| Ok(()),
            propose: |q| even_columns(&ColumnQuery { segments: q.segments.max(4), ..*q }),
        },
    },
    Rule {
        name: "one-row",
        idea: "decode, and the last resort for deep K: one row, one feature bank, all others for the weight stream",
        status: Status::Default,
        source: "isa.md §10.4: M = 1 works for any K tried (to 10752) with 0x1040 = 0xB1 and 0x1010 = 0x20",
        propose: Propose::Rows {
            applies: |q| when(q.tiles.form == Form::Rows, "another form"),
            propose: |_, rows, soc| (rows == 1).then(|| schedule::single_row(soc)),
        },
    },
    Rule {
        name: "schedule-1",
        idea: "tall tiles: the split gives up weight banks for each further 64 rows",
        status: Status::Default,
        source: "isa.md §10.3: always used by the original for int8 with K a multiple of 512 up to 4096, for fp16 with K a \
                 power of two from 128 to 1024",
        propose: Propose::Rows {
            applies: |q| {
                when(q.tiles.form == Form::Rows, "another form")?;
                when(scheduled(q), "int8: K is not a multiple of 512; others: not 128, 256, 512 or 1024")
            },
            propose: |q, rows, soc| Some(schedule::schedule_1(q.format, q.k, rows, soc)),
        },
    },
    Rule {
        name: "one-bank",
        idea: "floats of other K: as many rows as one feature bank holds",
        status: Status::Default,
        source: "isa.md §10.4: schedule 0, measured at K = 64, 384, 640, 768, 1536, 2048 and 3584",
        propose: Propose::Rows {
            applies: |q| {
                when(q.tiles.form == Form::Rows, "another form")?;
                when(q.format.input() != Precision::Int8, "int8 gains nothing by it")
            },
            propose: |q, rows, soc| Some(schedule::one_bank(q.tiles.form, rows, soc)),
        },
    },
    Rule {
        name: "capacity",
        idea: "other K, and cubes: just enough feature banks for the tile, the rest for weights",
        status: Status::Default,
        source: "isa.md §6 and §11: recipe 1 and the fold split this way; §10.2 for the rounding of rows",
        propose: Propose::Rows {
            applies: |q| {
                when(!streams(q.tiles.form), "int4 batches have a split of their own")?;
                when(q.tiles.form != Form::Rows || !scheduled(q) || q.k == 128, "schedule 1 speaks of this K")
            },
            propose: |q, rows, soc| schedule::by_capacity(q.format, q.tiles.form, q.k, rows, soc),
        },
    },
    Rule {
        name: "capacity-everywhere",
        idea: "the capacity split wherever schedule 1 is used: short tiles keep room for two kernel groups, so that the \
               weight stream overlaps the arithmetic",
        status: Status::Candidate,
        source: "isa.md §12.8: the two-group rule explains why the fold beats the normal form at K = 3584",
        propose: Propose::Rows {
            applies: |q| when(!streams(q.tiles.form), "int4 batches have a split of their own"),
            propose: |q, rows, soc| schedule::by_capacity(q.format, q.tiles.form, q.k, rows, soc),
        },
    },
    Rule {
        name: "vendor-splits",
        idea: "fp16 of full K as the vendor's chains run it, with full-k-one-row",
        status: Status::Candidate,
        source: "isa.md §10.2: captured, programs with these splits were checked up to 512 x 8192 x 512",
        propose: Propose::Rows {
            applies: |q| {
                when(q.tiles.form == Form::Rows && q.format.is_float(), "not a row-major float product")?;
                when([2048, 4096, 8192].contains(&q.k), "captured at K = 2048, 4096 and 8192")
            },
            propose: |q, rows, soc| {
                let data = if q.k == 2048 { 10 } else { 32_768 / q.k };
                let split = BankSplit { data, weight: soc.cbuf_banks - data };
                Some(Schedule { split, ..schedule::one_bank(q.tiles.form, rows, soc) })
            },
        },
    },
    Rule {
        name: "int4-banks",
        idea: "int4: one feature bank, or as many as taller batches need",
        status: Status::Default,
        source: "isa-int4-sdp.md §1.4 and §1.7: keep 0xB1; (12 - n) << 4 | n holds n * 16384 / K rows",
        propose: Propose::Rows {
            applies: |q| when(streams(q.tiles.form), "not an int4 batch or row"),
            propose: int4_banks,
        },
    },
    Rule {
        name: "rows-innermost",
        idea: "a core walks each segment's weights once per row tile, in rising addresses",
        status: Status::Default,
        source: "isa.md §10.6: the order of the original; keeping weights gains a few per cent at most, within noise",
        propose: Propose::Order {
            applies: |q| when(!streams(q.form), "int4 batches keep their weights"),
            order: LoopOrder::RowsInnermost,
        },
    },
    Rule {
        name: "int4-keep-weights",
        idea: "every int4 batch but the first of a column chunk takes the weights from the buffer",
        status: Status::Default,
        source: "isa-int4-sdp.md §1.7 and §1.8: 6 to 9 % faster, bit-exact at the shipped width",
        propose: Propose::Order {
            applies: |q| when(streams(q.form), "not an int4 batch or row"),
            order: LoopOrder::KeepWeights,
        },
    },
    Rule {
        name: "keep-weights",
        idea: "a tile takes the weights of the tile before it from the buffer, where all of them fit",
        status: Status::Candidate,
        source: "isa.md §10.6: exact under its law; inert on the shapes of language models, whose weights do not fit",
        propose: Propose::Order { applies: |_| Ok(()), order: LoopOrder::KeepWeights },
    },
    Rule {
        name: "keep-features",
        idea: "the transposed loop: a core walks all its segments with one row tile, whose features stay in the buffer",
        status: Status::Candidate,
        source: "log: bit-exact, twice as fast as the same loop without the bit, and never faster than the order it replaces \
                 (14 shapes); nothing at M = 1",
        propose: Propose::Order {
            applies: |q| when(!streams(q.form), "it corrupts int4 in the order of batches"),
            order: LoopOrder::KeepFeatures,
        },
    },
];

/// The rules that fold.
pub(crate) const FOLDS: [&str; 2] = ["fold", "fold-everywhere"];

/// The rule of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Rule> {
    TABLE.iter().find(|rule| rule.name == name)
}

fn when(holds: bool, otherwise: &'static str) -> Applies {
    if holds { Ok(()) } else { Err(otherwise) }
}

/// Whether the output stage rounds sums to fewer bits.
fn narrows(format: Format) -> bool {
    matches!(format.output(), Precision::Int8 | Precision::Fp16)
}

fn in_one_slice(q: &WeightQuery) -> bool {
    match q.format.input() {
        Precision::Int8 => q.k <= 4096,
        Precision::Int4 => int4_rows::batch_rows(q.k).is_some(),
        _ => q.k <= 1024,
    }
}

fn slices(k: u32, len: u32) -> Vec<u32> {
    let mut lens = vec![len; (k / len) as usize];
    lens.extend((!k.is_multiple_of(len)).then_some(k % len));
    lens
}

fn int4_slices(q: &WeightQuery) -> Vec<u32> {
    let mut lens = slices(q.k, 8192);
    if let Some(rest) = lens.pop_if(|rest| int4_rows::batch_rows(*rest).is_none()) {
        lens.extend([4096, rest - 4096]);
    }
    lens
}

/// One form for all slices.
fn forms(
    q: &FormQuery<'_>,
    features: FeatureForm,
    outputs: OutputForm,
    form: Form,
    rows: u32,
    heights: Heights,
) -> Forms {
    Forms { features, outputs, slices: vec![TileForm { form, rows, heights }; q.k_slices.len()] }
}

fn in_cube(q: &FormQuery<'_>) -> Forms {
    // Four rows at least, or one.
    let rows = if q.rows == 1 { 1 } else { q.rows.next_multiple_of(4) };
    let (features, outputs) = cubes(rows);
    forms(q, features, outputs, Form::Cube { surface_rows: rows }, rows, Heights::MultiplesOf(4))
}

fn cubes(surface_rows: u32) -> (FeatureForm, OutputForm) {
    (FeatureForm::Cube { surface_rows }, OutputForm::Cube { surface_rows })
}

fn foldable(q: &FormQuery<'_>) -> Applies {
    when(q.format == Format::INT8_INT32, "only int8 with int32 results was folded")?;
    when(q.rows > 1, "one row leaves nothing to fold")?;
    when(q.rows <= fold::ROWS_MAX, "more rows than anybody folded")
}

fn in_fold(q: &FormQuery<'_>) -> Forms {
    let rows = fold_rows(q.rows);
    let (features, outputs) = cubes(rows);
    forms(q, features, outputs, Form::Fold { surface_rows: rows }, rows, Heights::OfTheFold)
}

/// The fewest rows from `rows` on that the fewest fold tiles of one size and a rest hold: each tile streams the weights
/// anew, so an odd row more is cheaper than a tile more.
fn fold_rows(rows: u32) -> u32 {
    let tiles = rows.div_ceil(fold::TILES[0]);
    let fits = |total: &u32| {
        let sizes = fold::TILES.iter();
        sizes
            .filter(|size| total.div_ceil(**size) == tiles)
            .any(|size| total.is_multiple_of(*size) || fold::TILES.contains(&(total % size)))
    };
    (rows..=tiles * fold::TILES[0]).find(fits).unwrap_or(rows)
}

fn in_batches(q: &FormQuery<'_>, height: impl Fn(u32) -> u32) -> Forms {
    let heights: Vec<u32> = q.k_slices.iter().map(|k| if q.rows == 1 { 1 } else { height(*k) }).collect();
    let tiles = |&height: &u32| TileForm {
        form: if height == 1 { Form::Int4Row } else { Form::Int4Batch },
        rows: q.rows,
        heights: Heights::Exactly(height),
    };
    Forms {
        features: FeatureForm::SpacedRows,
        slices: heights.iter().map(tiles).collect(),
        outputs: OutputForm::Batches { rows: heights },
    }
}

/// Whether programs of this form write the int4 stream of blocks.
fn streams(form: Form) -> bool {
    matches!(form, Form::Int4Batch | Form::Int4Row)
}

fn int4_banks(q: &RowQuery, rows: u32, soc: &Soc) -> Option<Schedule> {
    let schedule = schedule::one_bank(q.tiles.form, rows, soc);
    // The nominal height, so that a short last batch keeps the split and with it the weights.
    let Heights::Exactly(height) = q.tiles.heights else { return Some(schedule) };
    if int4_rows::batch_rows(q.k).is_none_or(|most| height <= most) {
        return Some(schedule);
    }
    let data = (height * q.k).div_ceil(soc.bank_bytes / 2);
    let weight = soc.cbuf_banks.checked_sub(data).filter(|&banks| banks > 0)?;
    Some(Schedule { split: BankSplit { data, weight }, ..schedule })
}

/// Whether the original used schedule 1 at this K.
fn scheduled(q: &RowQuery) -> bool {
    match q.format.input() {
        Precision::Int8 => q.k.is_multiple_of(512),
        Precision::Fp16 => [128, 256, 512, 1024].contains(&q.k),
        _ => false,
    }
}

/// Deals kernel groups to cores, and each core's share to its segments, as evenly as whole groups allow. Cores that
/// would get nothing are left out.
fn even_columns(query: &ColumnQuery) -> Vec<Vec<ColumnSegment>> {
    let width = query.format.kernel_group();
    let mut next = 0;
    deal(query.kernel_groups, u32::from(query.cores))
        .map(|share| {
            deal(share, query.segments)
                .map(|groups| {
                    let segment = ColumnSegment { n0: next, cols: groups * width };
                    next += segment.cols;
                    segment
                })
                .collect()
        })
        .collect()
}

/// `total` in at most `parts` positive shares that differ by at most 1, larger ones first.
fn deal(total: u32, parts: u32) -> impl Iterator<Item = u32> {
    let parts = parts.clamp(1, total.max(1));
    (0..parts).map(move |part| total / parts + u32::from(part < total % parts)).filter(|&share| share > 0)
}
