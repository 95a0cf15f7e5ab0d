// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weights whose tiles lie ready: every tier against plain loops, what members of a group share, streaming, bad tiles.

use crate::support;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use ork_device::{
    Board, Device, DeviceKind, DeviceOptions, DriverKind, EmuOptions, Errno, OpenNode, Transport,
};
use ork_driver::{
    Driver, DriverError, DriverOptions, FileRange, MatmulGroup, ResidencyOptions, StreamBacking, StreamMode,
    TileBytes, TilePlace, Tiles, VerifyMode, Weight,
};
use ork_drm::Mapping;
use ork_emu::VirtualRknpu;
use ork_layout::{Format, WeightLayout};
use ork_quant::{Basis, Codebook, Scale, Step, Tier};
use ork_rknpu::uapi::MEM_SYNC;
use ork_testkit::{Shape, Stream, compare, reference};

/// bitsandbytes' NF4 in int8, as isa-int4-sdp.md §7.2 lists it.
const NF4: [i8; 16] = [-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127];

const UNIFORM: Tier = Tier::I4A8 { codebook: Codebook::Uniform };
const NF4_TIER: Tier = Tier::I4A8 { codebook: Codebook::Nf4 };

fn driver(kind: DriverKind, cores: u8, options: DriverOptions) -> (Driver, Board) {
    let board = Board::new(&EmuOptions::default());
    let device = DeviceOptions { cores, emulated_driver: kind, ..DeviceOptions::default() };
    (Driver::new(Device::on_board(&board, &device).unwrap(), options).unwrap(), board)
}

/// A weight in plain numbers: the codes that are multiplied, their scales, and the tiles.
struct Plain {
    codes: Vec<i64>,
    scales: Vec<f32>,
    slices: Vec<u32>,
    tiles: Tiles,
}

/// Quantises rows that are in the basis already, element by element, and puts each where the layout says.
fn plain(tier: Tier, (k, n): (usize, usize), slices: &[u32], rows: &[f32], basis: Basis) -> Plain {
    let native = tier == Tier::W4A4;
    let format = if native { Format::INT4_INT16 } else { Format::INT8_INT32 };
    let layout = WeightLayout::new(format, k as u32, n as u32, slices).unwrap();
    if tier == Tier::I4A8Group {
        return grouped(&layout, rows, basis);
    }
    let half = matches!(tier, Tier::I4A8 { .. });
    let zero = if tier == NF4_TIER { 0x77 } else { 0 };
    let mut bytes = vec![zero; layout.bytes() as usize / if half { 2 } else { 1 }];
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for (channel, row) in rows.chunks(k).enumerate() {
        let most = row.iter().fold(0f32, |most, x| most.max(x.abs()));
        let steps = if tier == Tier::W8A8 || tier == NF4_TIER { 127.0 } else { 7.0 };
        let scale = most / steps;
        scales.push(scale);
        for (place, x) in row.iter().enumerate() {
            let near = |level: &i8| (f64::from(*level) - f64::from(x / scale)).abs();
            let (code, nibble) = if tier == NF4_TIER {
                let best = (0..16).min_by(|a, b| near(&NF4[*a]).total_cmp(&near(&NF4[*b]))).unwrap();
                (NF4[best], best as u8)
            } else {
                let code = (x / scale).round_ties_even() as i8;
                (code, code.cast_unsigned() & 15)
            };
            codes.push(i64::from(code));
            let at = layout.offset(place as u32, channel as u32) as usize;
            if native {
                // Channels of a block follow each other, the even one in the low half.
                bytes[at] |= nibble << (4 * (place % 2));
            } else if half {
                let keep = if at.is_multiple_of(2) { 0xF0 } else { 0x0F };
                bytes[at / 2] = (bytes[at / 2] & keep) | nibble << (4 * (at % 2));
            } else {
                bytes[at] = code.cast_unsigned();
            }
        }
    }
    let tiles = Tiles {
        k,
        n,
        tier,
        k_slices: slices.to_vec(),
        bytes: Arc::new(bytes),
        scales: scales.iter().map(|scale| Scale::new(*scale).unwrap()).collect(),
        basis,
    };
    Plain { codes, scales, slices: slices.to_vec(), tiles }
}

/// The same with levels per 32 channels: from the smallest to the largest, no search.
fn grouped(layout: &WeightLayout, rows: &[f32], basis: Basis) -> Plain {
    let k = layout.k() as usize;
    let mut bytes = vec![0; layout.bytes() as usize / 32 * 18];
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for (channel, row) in rows.chunks(k).enumerate() {
        let scale = row.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
        scales.push(scale);
        for (block, group) in row.chunks(32).enumerate() {
            let values: Vec<f32> = group.iter().map(|x| x / scale).collect();
            let (low, high) = values.iter().fold((0f32, 0f32), |(a, b), x| (a.min(*x), b.max(*x)));
            let (multiplier, offset) = (((high - low) * 8.0 / 15.0).ceil().max(1.0), low.round());
            let start = layout.offset(block as u32 * 32, channel as u32) as usize / 32 * 18;
            (bytes[start], bytes[start + 1]) = (multiplier as u8, (offset as i8).cast_unsigned());
            for (index, x) in values.iter().enumerate() {
                let nibble = ((x - offset) * 8.0 / multiplier).round().clamp(0.0, 15.0);
                bytes[start + 2 + index / 2] |= (nibble as u8) << (4 * (index % 2));
                let level = offset + (nibble * multiplier / 8.0).round_ties_even();
                codes.push(level.clamp(-127.0, 127.0) as i64);
            }
        }
    }
    let slices: Vec<u32> = layout.slices().iter().map(|slice| slice.len).collect();
    let tiles = Tiles {
        k,
        n: layout.n() as usize,
        tier: Tier::I4A8Group,
        k_slices: slices.clone(),
        bytes: Arc::new(bytes),
        scales: scales.iter().map(|scale| Scale::new(*scale).unwrap()).collect(),
        basis,
    };
    Plain { codes, scales, slices, tiles }
}

/// An activation row in plain numbers.
fn activation(row: &[f32], native: bool) -> (Vec<i64>, f32) {
    let most = row.iter().fold(0f32, |most, x| most.max(x.abs()));
    if !native {
        let scale = most / 127.0;
        return (row.iter().map(|x| (x * (1.0 / scale)).round_ties_even() as i64).collect(), scale);
    }
    let code = |x: f32, scale: f32| f64::from((x / scale).clamp(-8.0, 7.0).round_ties_even());
    let error = |scale: f32| -> f64 {
        row.iter().map(|x| (f64::from(*x) - f64::from(scale) * code(*x, scale)).powi(2)).sum()
    };
    let tried = (0..8).map(|j| most * (1.0 - j as f32 / 16.0) / 7.0);
    let scale = tried.min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap();
    (row.iter().map(|x| code(*x, scale) as i64).collect(), scale)
}

/// Codes times scales, summed in plain loops.
fn product(weight: &Plain, x: &[f32], k: usize) -> Vec<f32> {
    let native = weight.tiles.tier == Tier::W4A4;
    let mut out = Vec::new();
    for row in x.chunks(k) {
        let (a, row_scale) = activation(row, native);
        for (b, column_scale) in weight.codes.chunks(k).zip(&weight.scales) {
            let mut sum = 0i64;
            let mut from = 0;
            for slice in &weight.slices {
                let to = k.min(from + *slice as usize);
                let part: i64 = a[from..to].iter().zip(&b[from..to]).map(|(a, b)| a * b).sum();
                assert!(!native || part.abs() < 32767, "the data must not saturate");
                (sum, from) = (sum + part, to);
            }
            out.push((sum as f64 * (f64::from(row_scale) * f64::from(*column_scale))) as f32);
        }
    }
    out
}

/// Full-range activations with outliers in some channels, and weights.
fn operands(shape: Shape) -> (Vec<f32>, Vec<f32>) {
    let (m, k, n) = (shape.m as usize, shape.k as usize, shape.n as usize);
    let mut stream = Stream::new(u64::from(shape.k) * 3 + u64::from(shape.m));
    let (mut x, w) = (stream.f32s_activation(m * k), stream.f32s_unit(n * k));
    for (index, x) in x.iter_mut().enumerate() {
        if index % k % 97 == 5 {
            *x *= 7.0;
        }
    }
    (x, w)
}

fn basis(k: usize, x: &[f32], ladder: &[&str]) -> Basis {
    let steps = ladder.iter().map(|step| match *step {
        "smooth" => {
            let most = |channel: usize| {
                x.iter().skip(channel).step_by(k).fold(0f32, |most, x| most.max(x.abs())).max(1e-3)
            };
            Step::Smooth((0..k).map(|channel| most(channel).sqrt()).collect())
        }
        "signs" => Step::Signs,
        _ => Step::Rotate,
    });
    Basis::new(k, steps.collect()).unwrap()
}

fn in_basis(basis: &Basis, rows: &[f32], turn: impl Fn(&Basis, &mut [f32])) -> Vec<f32> {
    let mut rows = rows.to_vec();
    rows.chunks_exact_mut(basis.k()).for_each(|row| turn(basis, row));
    rows
}

fn multiply(driver: &Driver, weight: &Weight, m: usize, x: &[f32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; m * weight.n()];
    driver.matmul(&mut MatmulGroup { m, x, parts: vec![(weight, &mut out)] }).unwrap();
    out
}

fn assert_close(got: &[f32], want: &[f32], label: &str) {
    assert_eq!(got.len(), want.len());
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= 3e-7 * want.abs(), "{label}, element {index}: {got} instead of {want}");
    }
}

/// One row, odd sizes, several K slices, several passes of rows.
const SHAPES: [(Shape, &[u32]); 4] = [
    (Shape::new(1, 576, 192), &[576]),
    (Shape::new(37, 577, 33), &[608]),
    (Shape::new(3, 4608, 65), &[4096, 512]),
    (Shape::new(70, 192, 100), &[96, 96]),
];

const LADDERS: [&[&str]; 3] = [&[], &["rotate"], &["smooth", "signs", "rotate"]];

/// What a weight and its product are in plain numbers.
struct Known {
    label: String,
    shape: Shape,
    x: Vec<f32>,
    tiles: Tiles,
    product: Vec<f32>,
    /// The product of the floats, and how far from it the quantised one may be.
    floats: Vec<f32>,
    bound: f64,
    has_basis: bool,
}

fn known() -> Vec<Known> {
    let mut all = Vec::new();
    for (shape, slices) in SHAPES {
        let (k, n) = (shape.k as usize, shape.n as usize);
        let (x, w) = operands(shape);
        let floats = reference::matmul_f32(&x, &w, shape);
        for ladder in LADDERS {
            let basis = basis(k, &x, ladder);
            let turned = in_basis(&basis, &x, Basis::activation_row);
            let rows = in_basis(&basis, &w, Basis::weight_row);
            for tier in [Tier::W8A8, UNIFORM, NF4_TIER, Tier::I4A8Group, Tier::W4A4] {
                let plain = plain(tier, (k, n), slices, &rows, basis.clone());
                let product = product(&plain, &turned, k);
                // The basis cancels: it is a product of the floats, within the error of its bits.
                let bound = match (tier, ladder.is_empty()) {
                    (Tier::W8A8, _) => 0.1,
                    (Tier::W4A4, true) => 1.0,
                    _ => 0.4,
                };
                let label = format!("{shape}, {tier} {ladder:?}");
                let (x, floats, tiles, has_basis) =
                    (x.clone(), floats.clone(), plain.tiles, !ladder.is_empty());
                all.push(Known { label, shape, x, tiles, product, floats, bound, has_basis });
            }
        }
    }
    all
}

#[test]
fn every_tier_in_every_basis_is_the_plain_product_of_its_codes() {
    let all = known();
    for kind in [DriverKind::Rknpu, DriverKind::Rocket] {
        for cores in [1, 3] {
            let (driver, board) = driver(kind, cores, DriverOptions::default());
            for known in &all {
                let label = format!("{kind:?}, {cores} cores, {}", known.label);
                let weight = driver.load_tiles("w", known.tiles.clone()).unwrap();
                assert_eq!(weight.basis().is_some(), known.has_basis);
                let got = multiply(&driver, &weight, known.shape.m as usize, &known.x);
                assert_close(&got, &known.product, &label);
                let error = compare::relative_rms(&got, &known.floats);
                assert!(error < known.bound, "{label}: relative error {error}");
            }
            assert!(!driver.counters().turn.is_zero());
            assert_eq!(driver.counters().weights_ready, driver.counters().weights);
            drop(driver);
            support::assert_nothing_lives(&board);
        }
    }
}

/// Weights of equal bases share one turn and one quantisation; others do not; the result is that of each alone.
#[test]
fn a_group_shares_what_one_basis_makes_of_the_activation() {
    let shape = Shape::new(33, 576, 64);
    let (m, k, n) = (33usize, 576usize, 64usize);
    let (x, w) = operands(shape);
    let (driver, _board) = driver(DriverKind::Rknpu, 3, DriverOptions::default());
    let load = |ladder: &[&str]| {
        let basis = basis(k, &x, ladder);
        let rows = in_basis(&basis, &w, Basis::weight_row);
        driver.load_tiles("w", plain(Tier::W8A8, (k, n), &[576], &rows, basis).tiles).unwrap()
    };
    let alone = |weight: &Weight| {
        let flushed = driver.device().counters().bytes_flushed;
        let out = multiply(&driver, weight, m, &x);
        (out, driver.device().counters().bytes_flushed - flushed)
    };
    let together = |weights: &[&Weight]| {
        let mut outs: Vec<Vec<f32>> = weights.iter().map(|_| vec![f32::NAN; m * n]).collect();
        let flushed = driver.device().counters().bytes_flushed;
        let parts = weights.iter().zip(&mut outs).map(|(weight, out)| (*weight, &mut out[..])).collect();
        driver.matmul(&mut MatmulGroup { m, x: &x, parts }).unwrap();
        (outs, driver.device().counters().bytes_flushed - flushed)
    };
    let (q, also_q, other) = (load(&["rotate"]), load(&["rotate"]), load(&["signs", "rotate"]));
    let smooth = load(&["smooth", "rotate"]);
    // What arrives behind the loading would be counted with the activations.
    [&q, &also_q, &other, &smooth].into_iter().for_each(|weight| weight.make_ready().unwrap());
    let basis_of = |weight: &Weight| weight.basis().unwrap().id();
    assert_eq!(basis_of(&q), basis_of(&also_q));
    assert!(basis_of(&q) != basis_of(&other) && basis_of(&q) != basis_of(&smooth));
    let activation = (m * k) as u64;
    let (one, flushed_alone) = alone(&q);
    let (outs, flushed_shared) = together(&[&q, &also_q]);
    assert_eq!(outs, [one.clone(), one.clone()]);
    assert!(flushed_shared + activation <= 2 * flushed_alone, "laid out once for both");
    for odd in [&other, &smooth] {
        let (outs, flushed) = together(&[&q, odd, &also_q]);
        assert_eq!(outs, [one.clone(), alone(odd).0, one.clone()]);
        assert!(flushed >= flushed_shared + 2 * activation, "nothing is shared with a basis between");
    }
}

#[test]
fn a_mixed_group_changes_the_datapath_once() {
    let shape = Shape::new(5, 256, 64);
    let (m, k, n) = (5usize, 256usize, 64usize);
    let (x, w) = operands(shape);
    let (driver, _board) = driver(DriverKind::Rknpu, 3, DriverOptions::default());
    let load = |tier, ladder: &[&str]| {
        let basis = basis(k, &x, ladder);
        let rows = in_basis(&basis, &w, Basis::weight_row);
        driver.load_tiles("w", plain(tier, (k, n), &[256], &rows, basis).tiles).unwrap()
    };
    let weights = [
        load(Tier::W4A4, &["rotate"]),
        load(Tier::W8A8, &[]),
        load(Tier::W4A4, &["rotate"]),
        load(UNIFORM, &["rotate"]),
        load(Tier::W4A4, &[]),
    ];
    let alone: Vec<Vec<f32>> = weights.iter().map(|weight| multiply(&driver, weight, m, &x)).collect();
    multiply(&driver, &weights[1], m, &x);
    let before = driver.counters().resets;
    let mut outs: Vec<Vec<f32>> = weights.iter().map(|_| vec![f32::NAN; m * n]).collect();
    let parts = weights.iter().zip(&mut outs).map(|(weight, out)| (weight, &mut out[..])).collect();
    driver.matmul(&mut MatmulGroup { m, x: &x, parts }).unwrap();
    assert_eq!(outs, alone);
    assert_eq!(driver.counters().resets - before, 1, "int8 first, where the NPU stands, then int4");
}

/// Streamed tiles stay where they lie; stored int4 is half of what it becomes.
#[test]
fn streamed_tiles_are_read_from_where_they_lie() {
    let shape = Shape::new(2, 512, 256);
    let (m, k, n) = (2usize, 512usize, 256usize);
    let device_bytes = (k * n) as u64;
    let (x, w) = operands(shape);
    // Two of half a byte for each weight, two of 18 bytes for 32.
    let kept_of_four = device_bytes + 2 * device_bytes / 32 * 18;
    for (backing, kept) in [(StreamBacking::Copy, kept_of_four), (StreamBacking::Map, 4 * device_bytes)] {
        let residency = ResidencyOptions {
            stream: StreamMode::All,
            backing,
            window_bytes: 2 * device_bytes,
            prefetch: false,
            ..ResidencyOptions::default()
        };
        let options = DriverOptions { residency, ..DriverOptions::default() };
        let (driver, board) = driver(DriverKind::Rknpu, 3, options);
        let loaded: Vec<(Plain, Weight)> = (0..4)
            .map(|index| {
                let rows: Vec<f32> = w.iter().map(|x| x * (index as f32 + 1.0)).collect();
                let tier = [UNIFORM, NF4_TIER, Tier::I4A8Group, Tier::I4A8Group][index];
                let plain = plain(tier, (k, n), &[512], &rows, Basis::identity(k).unwrap());
                let weight = driver.load_tiles("w", plain.tiles.clone()).unwrap();
                assert!(weight.is_streamed() && weight.device_bytes() == device_bytes);
                // The test and the driver: no copy was made of what is copied in when it is used.
                let owners = Arc::strong_count(&plain.tiles.bytes);
                assert_eq!(owners, if backing == StreamBacking::Copy { 2 } else { 1 });
                (plain, weight)
            })
            .collect();
        assert_eq!(driver.residency().bytes, kept);
        for round in 0..3 {
            for (plain, weight) in &loaded {
                let got = multiply(&driver, weight, m, &x);
                assert_close(&got, &product(plain, &x, k), &format!("{backing:?}, round {round}"));
            }
        }
        let counters = driver.residency();
        assert_eq!(counters.misses, 12, "{counters:?}");
        assert_eq!((counters.brought_bytes, counters.read_bytes), (12 * device_bytes, 3 * kept));
        drop((loaded, driver));
        support::assert_nothing_lives(&board);
    }
}

#[test]
fn products_by_tiles_are_checked_in_their_basis() {
    let shape = Shape::new(3, 576, 64);
    let (x, w) = operands(shape);
    let options = DriverOptions { verify: VerifyMode::Product, ..DriverOptions::default() };
    let (driver, _board) = driver(DriverKind::Rknpu, 3, options);
    for tier in [Tier::W8A8, UNIFORM, Tier::I4A8Group] {
        let basis = basis(576, &x, &["signs", "rotate"]);
        let turned = in_basis(&basis, &x, Basis::activation_row);
        let rows = in_basis(&basis, &w, Basis::weight_row);
        let plain = plain(tier, (576, 64), &[576], &rows, basis);
        let weight = driver.load_tiles("w", plain.tiles.clone()).unwrap();
        assert_close(&multiply(&driver, &weight, 3, &x), &product(&plain, &turned, 576), "checked");
    }
}

#[test]
fn tiles_that_do_not_fit_together_are_refused() {
    let (driver, board) = driver(DriverKind::Rknpu, 3, DriverOptions::default());
    let rows = vec![1.0; 64 * 64];
    let good = || plain(Tier::W8A8, (64, 64), &[64], &rows, Basis::identity(64).unwrap()).tiles;
    let refused = |change: &dyn Fn(&mut Tiles), words: &str| {
        let mut tiles = good();
        change(&mut tiles);
        let error = driver.load_tiles("blk.0.ffn_up", tiles).unwrap_err();
        assert!(
            matches!(error, DriverError::Tiles { .. } | DriverError::Layout { .. }),
            "{words}: {error:?}"
        );
        let mut text = error.to_string();
        if let Some(source) = std::error::Error::source(&error) {
            text.push_str(&source.to_string());
        }
        assert!(text.contains("blk.0.ffn_up") && text.contains(words), "{text}");
        assert_eq!(board.live().handles, 0, "nothing stays allocated");
    };
    refused(&|tiles| tiles.bytes = Arc::new(vec![0; 4095]), "4095 bytes of w8a8");
    refused(&|tiles| tiles.tier = UNIFORM, "4096 bytes of i4a8");
    refused(&|tiles| tiles.tier = Tier::I4A8Group, "4096 bytes of i4a8+group");
    refused(
        &|tiles| (tiles.tier, tiles.bytes) = (Tier::I4A8Group, Arc::new(vec![0; 64 * 36 + 1])),
        "2305 bytes",
    );
    refused(&|tiles| tiles.tier = Tier::W4A4, "4096 bytes of w4a4");
    refused(&|tiles| tiles.scales.truncate(63), "63 scales for 64");
    refused(&|tiles| tiles.basis = Basis::identity(65).unwrap(), "a basis of 65 channels for 64");
    refused(&|tiles| tiles.k_slices = vec![32], "K slices hold 32");
    refused(&|tiles| tiles.k = 0, "no elements");
    assert_eq!(driver.counters().weights, 0);
    driver.load_tiles("w", good()).unwrap();
}

#[test]
fn an_activation_that_is_no_number_is_named_before_it_is_turned() {
    let (driver, _board) = driver(DriverKind::Rknpu, 1, DriverOptions::default());
    let basis = Basis::new(64, vec![Step::Rotate]).unwrap();
    let weight = driver.load_tiles("w", plain(Tier::W8A8, (64, 32), &[64], &[1.0; 64 * 32], basis).tiles);
    let weight = weight.unwrap();
    let mut x = vec![1.0; 128];
    x[64 + 7] = f32::NAN;
    let mut out = vec![0.0; 64];
    let error =
        driver.matmul(&mut MatmulGroup { m: 2, x: &x, parts: vec![(&weight, &mut out)] }).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("row 1: element 7"), "{source}");
}

/// Tiles that the thread for weights reads when it may.
#[derive(Debug)]
struct Gated {
    bytes: Arc<dyn TileBytes>,
    may_read: Mutex<bool>,
    changed: Condvar,
    /// Reads of that thread.
    reads: AtomicU64,
}

impl Gated {
    fn new(bytes: &Arc<dyn TileBytes>) -> Arc<Self> {
        let (may_read, changed) = (Mutex::new(false), Condvar::new());
        Arc::new(Self { bytes: Arc::clone(bytes), may_read, changed, reads: AtomicU64::new(0) })
    }

    fn open(&self) {
        *self.may_read.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }
}

impl TileBytes for Gated {
    fn bytes(&self) -> &[u8] {
        if std::thread::current().name() == Some("npu-weights") {
            self.reads.fetch_add(1, Ordering::SeqCst);
            let closed = self.changed.wait_while(self.may_read.lock().unwrap(), |may_read| !*may_read);
            drop(closed.unwrap());
        }
        self.bytes.bytes()
    }
}

/// Weights of every tier with different rows, and what each has to give.
fn gated_weights((k, n): (usize, usize)) -> (Vec<f32>, Vec<(Plain, Arc<Gated>)>) {
    let (x, w) = operands(Shape::new(2, k as u32, n as u32));
    let weights =
        [UNIFORM, Tier::I4A8Group, NF4_TIER, Tier::W8A8].into_iter().enumerate().map(|(index, tier)| {
            let rows: Vec<f32> = w.iter().map(|x| x * (index as f32 + 1.0)).collect();
            let mut plain = plain(tier, (k, n), &[k as u32], &rows, Basis::identity(k).unwrap());
            let gated = Gated::new(&plain.tiles.bytes);
            plain.tiles.bytes = Arc::<Gated>::clone(&gated);
            (plain, gated)
        });
    (x, weights.collect())
}

/// A weight that is needed before its turn is made by who needs it; the thread does the others, each once.
#[test]
fn loading_does_not_wait_for_the_bytes() {
    let (k, n) = (576usize, 96usize);
    let (x, weights) = gated_weights((k, n));
    let (driver, board) = driver(DriverKind::Rknpu, 3, DriverOptions::default());
    let loaded: Vec<Weight> =
        weights.iter().map(|(plain, _)| driver.load_tiles("w", plain.tiles.clone()).unwrap()).collect();
    // The thread is busy with the first one, or has not begun.
    for index in [1, 2, 3] {
        assert_close(&multiply(&driver, &loaded[index], 2, &x), &product(&weights[index].0, &x, k), "early");
    }
    weights[0].1.open();
    loaded[0].make_ready().unwrap();
    assert_close(&multiply(&driver, &loaded[0], 2, &x), &product(&weights[0].0, &x, k), "in turn");
    drop((loaded, driver));
    let reads: Vec<u64> = weights.iter().map(|(_, gated)| gated.reads()).collect();
    assert!(reads[0] <= 1 && reads[1..] == [0, 0, 0], "{reads:?}");
    assert_eq!(board.take_findings(), []);
    support::assert_nothing_lives(&board);

    // Without the thread loading does it all.
    let residency = ResidencyOptions { prefetch: false, ..ResidencyOptions::default() };
    let (driver, _board) =
        self::driver(DriverKind::Rknpu, 3, DriverOptions { residency, ..DriverOptions::default() });
    let weight = driver.load_tiles("w", weights[1].0.tiles.clone()).unwrap();
    assert_close(&multiply(&driver, &weight, 2, &x), &product(&weights[1].0, &x, k), "without a thread");
    assert_eq!(Arc::strong_count(&weights[1].1), 2, "what was made is not kept twice");
}

/// What is dropped before its turn is never made, and gives its memory back at once.
#[test]
fn weights_that_are_gone_are_not_made() {
    let (_, weights) = gated_weights((576, 96));
    let (driver, board) = driver(DriverKind::Rknpu, 3, DriverOptions::default());
    let mut loaded: Vec<Weight> =
        weights.iter().map(|(plain, _)| driver.load_tiles("w", plain.tiles.clone()).unwrap()).collect();
    while weights[0].1.reads() == 0 {
        std::thread::yield_now();
    }
    let kept = loaded[0].device_bytes() + loaded[1].device_bytes();
    loaded.truncate(2);
    assert_eq!(driver.device().weight_bytes()[0], kept, "the others waited");
    std::thread::scope(|scope| {
        // Dropping the driver waits for what the thread is at, and for nothing behind it.
        let dropping = scope.spawn(|| drop(driver));
        std::thread::sleep(std::time::Duration::from_millis(50));
        weights[0].1.open();
        dropping.join().unwrap();
    });
    let reads: Vec<u64> = weights.iter().map(|(_, gated)| gated.reads()).collect();
    assert_eq!(reads, [1, 0, 0, 0]);
    drop(loaded);
    support::assert_nothing_lives(&board);
}

/// A kernel whose next calls for cache maintenance fail.
#[derive(Clone, Debug)]
struct Flaky {
    board: Board,
    failing: Arc<AtomicU64>,
}

impl OpenNode for Flaky {
    fn open(&self, _: &Path) -> Result<Arc<dyn Transport>, Errno> {
        Ok(Arc::new(FlakyNode { node: self.board.open(), failing: Arc::clone(&self.failing) }))
    }
}

#[derive(Debug)]
struct FlakyNode {
    node: VirtualRknpu,
    failing: Arc<AtomicU64>,
}

impl Transport for FlakyNode {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let fails = request == MEM_SYNC
            && self
                .failing
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_ok();
        if fails {
            return Err(Errno::EIO);
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { self.node.ioctl(request, argument) }
    }

    fn mmap(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        self.node.mmap(offset, len)
    }
}

/// What fails behind the loading is tried again by the use, whose error it is if it fails there.
#[test]
fn bytes_that_could_not_be_made_visible_are_made_by_the_use() {
    let (k, n) = (576usize, 96usize);
    let (x, weights) = gated_weights((k, n));
    let kernel = Flaky { board: Board::new(&EmuOptions::default()), failing: Arc::default() };
    let folder = tempfile::tempdir().unwrap();
    let options = DeviceOptions {
        kind: DeviceKind::Rknpu,
        node: Some(folder.path().join("renderD128")),
        lock_dir: folder.path().to_owned(),
        ..DeviceOptions::default()
    };
    let driver =
        Driver::new(Device::open_with(&options, &kernel).unwrap(), DriverOptions::default()).unwrap();
    for (plain, gated) in &weights {
        kernel.failing.store(2, Ordering::SeqCst);
        gated.open();
        let weight = driver.load_tiles("late", plain.tiles.clone()).unwrap();
        while kernel.failing.load(Ordering::SeqCst) == 2 {
            std::thread::yield_now();
        }
        let error = weight.make_ready().unwrap_err();
        assert!(matches!(&error, DriverError::Hold { name, .. } if name == "late"), "{error}");
        assert_close(&multiply(&driver, &weight, 2, &x), &product(plain, &x, k), "the third time");
    }
    drop(driver);
    support::assert_nothing_lives(&kernel.board);
}

/// Tiles in a file, as a mapped pack has them: from the second page on, and the last page only begun.
#[derive(Debug)]
struct InFile {
    bytes: Vec<u8>,
    file: std::fs::File,
}

impl InFile {
    fn new(bytes: &[u8]) -> Self {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &[vec![0xEE; 4096], bytes.to_vec()].concat()).unwrap();
        Self { bytes: bytes.to_vec(), file }
    }
}

impl TileBytes for InFile {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn file(&self) -> Option<FileRange<'_>> {
        Some(FileRange { file: self.file.as_fd(), range: 4096..4096 + self.bytes.len() as u64 })
    }
}

/// In place, copied, and on a driver that imports nothing: the same bits.
#[test]
fn tiles_in_a_file_are_used_in_place_where_the_board_can() {
    for (shape, slices) in SHAPES {
        let (m, k, n) = (shape.m as usize, shape.k as usize, shape.n as usize);
        let (x, w) = operands(shape);
        for tier in [Tier::W8A8, UNIFORM, Tier::I4A8Group, Tier::W4A4] {
            let mut results = Vec::new();
            for (kind, place) in [
                (DriverKind::Rknpu, TilePlace::InPlace),
                (DriverKind::Rknpu, TilePlace::Copy),
                (DriverKind::Rocket, TilePlace::InPlace),
            ] {
                let residency = ResidencyOptions { tiles: place, ..ResidencyOptions::default() };
                let options = DriverOptions { residency, ..DriverOptions::default() };
                let (driver, board) = driver(kind, 3, options);
                let basis = basis(k, &x, &["rotate"]);
                let rows = in_basis(&basis, &w, Basis::weight_row);
                let mut tiles = plain(tier, (k, n), slices, &rows, basis).tiles;
                let stored = tiles.bytes.bytes().len() as u64;
                tiles.bytes = Arc::new(InFile::new(tiles.bytes.bytes()));
                let weight = driver.load_tiles("w", tiles).unwrap();
                let as_stored = matches!(tier, Tier::W8A8 | Tier::W4A4);
                let lent = as_stored && (kind, place) == (DriverKind::Rknpu, TilePlace::InPlace);
                assert!(!weight.is_streamed());
                assert_eq!(
                    driver.device().counters().buffers_imported,
                    u64::from(lent),
                    "{tier} {kind:?} {place:?}"
                );
                let pages = stored.next_multiple_of(4096);
                assert_eq!(board.live().lent_bytes, if lent { pages } else { 0 });
                assert_eq!(driver.device().weight_bytes()[0], weight.device_bytes());
                results.push(multiply(&driver, &weight, m, &x));
                assert_eq!(board.take_findings(), []);
                drop(weight);
                assert_eq!((board.live().lent_bytes, driver.device().weight_bytes()[0]), (0, 0));
                drop(driver);
                support::assert_nothing_lives(&board);
            }
            assert!(results.iter().all(|result| *result == results[0]), "{shape} {tier}");
        }
    }
}

/// No room in the address space: the rest is streamed from the file, as without lending. A range that is none: an error.
#[test]
fn files_are_lent_as_far_as_there_is_room() {
    let (x, w) = operands(Shape::new(2, 512, 256));
    let bytes = 512 * 256;
    let board = Board::new(&EmuOptions::default());
    let device =
        DeviceOptions { cores: 1, domains: 1, domain_bytes_max: 2 * bytes, ..DeviceOptions::default() };
    let driver = Driver::new(Device::on_board(&board, &device).unwrap(), DriverOptions::default()).unwrap();
    let load = |driver: &Driver| {
        let mut tiles = plain(Tier::W8A8, (512, 256), &[512], &w, Basis::identity(512).unwrap()).tiles;
        tiles.bytes = Arc::new(InFile::new(tiles.bytes.bytes()));
        driver.load_tiles("w", tiles).unwrap()
    };
    let weights: Vec<Weight> = (0..4).map(|_| load(&driver)).collect();
    let streamed: Vec<bool> = weights.iter().map(Weight::is_streamed).collect();
    assert_eq!(streamed, [false, false, true, true]);
    assert_eq!(board.live().lent_bytes, 2 * bytes);
    let first = multiply(&driver, &weights[0], 2, &x);
    assert!(weights.iter().all(|weight| multiply(&driver, weight, 2, &x) == first));
    drop(weights);

    let mut tiles = plain(Tier::W8A8, (512, 256), &[512], &w, Basis::identity(512).unwrap()).tiles;
    let in_file = InFile::new(tiles.bytes.bytes());
    in_file.file.set_len(4096 + bytes - 4096).unwrap();
    tiles.bytes = Arc::new(in_file);
    let refused = driver.load_tiles("blk.0.ffn_up", tiles).unwrap_err();
    assert!(matches!(refused, DriverError::Hold { .. }), "{refused:?}");
    drop(driver);
    support::assert_nothing_lives(&board);
}

/// Not a test of its own: what a process with few descriptors runs.
#[test]
fn few_files() {
    if !std::env::args().any(|argument| argument == "with-few-files") {
        return;
    }
    let (x, w) = operands(Shape::new(2, 512, 256));
    let (driver, _board) = driver(DriverKind::Rknpu, 1, DriverOptions::default());
    let tiles = || {
        let mut tiles = plain(Tier::W8A8, (512, 256), &[512], &w, Basis::identity(512).unwrap()).tiles;
        tiles.bytes = Arc::new(InFile::new(tiles.bytes.bytes()));
        tiles
    };
    let (first, second) = (tiles(), tiles());
    let all: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    let elsewhere = driver.load_tiles("w", first).unwrap();
    drop(all);
    assert_eq!(driver.device().counters().buffers_imported, 0);
    let in_place = driver.load_tiles("w", second).unwrap();
    assert_eq!(driver.device().counters().buffers_imported, 1);
    assert_eq!(multiply(&driver, &elsewhere, 2, &x), multiply(&driver, &in_place, 2, &x));
}

#[test]
fn without_a_descriptor_tiles_are_used_elsewhere() {
    let script = "ulimit -n 48; exec \"$0\" --exact tiles::few_files with-few-files";
    let child = std::process::Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}
