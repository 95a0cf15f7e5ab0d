// SPDX-License-Identifier: MIT OR Apache-2.0
//! CORE: MAC array and accumulator (`isa.md` §9.1, §14.2).
//!
//! [`plain`] is the definition: one loop per dimension, weights by their place in the stream. The fast paths
//! gather feature rows in the order of the stream and hand both to `ork-mac`. Float sums follow the stream one
//! product at a time, in f64 or in f32 ([`FloatSums`]); silicon's order is not known (`isa-notes.md` NS-22).

use std::ops::Range;

use ork_isa::Precision;
use ork_mac::{
    Engine, FLOAT_LANES, FloatShape, FloatSums, GROUP_KERNELS, HALF_BLOCK, HalfKind, Kernels, Rows,
};

use crate::cna::Conv;
use crate::{SimOptions, element};

/// Sums of all pixels: `[kernel group][pixel][kernel of the group]`, full groups.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sums {
    Int(Vec<i32>),
    Float(Vec<f32>),
}

/// Feature bytes that one piece of gathered rows may take.
const GATHER_BYTES: usize = 1 << 21;
/// Depth up to which no sum of int8 products leaves int32: `128 * 128 * depth < 2^31`.
const INT32_SAFE_DEPTH: usize = (1 << 17) - 1;

/// Number of kernel groups that have weights.
pub(crate) fn groups(conv: &Conv) -> usize {
    let lanes = if conv.depthwise { conv.channels } else { conv.kernels };
    lanes.div_ceil(conv.group())
}

/// Convolves; features lie in `features` line by line as the CNA left them.
pub(crate) fn accumulate(
    engine: &Engine,
    options: &SimOptions,
    conv: &Conv,
    features: &[u8],
    weights: &[u8],
) -> Sums {
    let passes = conv.precision == Precision::Int4 && conv.int4_passes;
    if options.reference_kernels || conv.depthwise || passes {
        return plain(conv, options.float_sums, features, weights);
    }
    match conv.precision {
        Precision::Int8 if stream_depth(conv) <= INT32_SAFE_DEPTH => {
            let mut sums = vec![0i32; groups(conv) * conv.pixels() * GROUP_KERNELS];
            int8(engine, conv, features, weights, &mut sums);
            if conv.truncate.clip_truncate() != 0 {
                for sum in &mut sums {
                    *sum = truncate(conv, i64::from(*sum));
                }
            }
            Sums::Int(sums)
        }
        precision if element::is_float(precision) => {
            Sums::Float(float(engine, conv, options.float_sums, features, weights))
        }
        Precision::Int4 if stream_depth(conv) <= INT32_SAFE_DEPTH => {
            Sums::Int(int4(engine, conv, features, weights))
        }
        _ => Sums::Int(int(engine, conv, features, weights)),
    }
}

/// The accumulator's way out: a rounding shift, then 32 bits with saturation (`isa.md` §9.1).
pub(crate) fn truncate(conv: &Conv, sum: i64) -> i32 {
    let half_up = conv.truncate.round_type() == 1;
    saturate(round_shift(sum, conv.truncate.clip_truncate(), half_up))
}

fn saturate(value: i64) -> i32 {
    value.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
}

/// `value / 2^shift`, to nearest; ties up, or to even.
pub(crate) fn round_shift(value: i64, shift: u32, half_up: bool) -> i64 {
    if shift == 0 {
        return value;
    }
    if shift >= 63 {
        return 0;
    }
    let floor = value >> shift;
    let rest = value - (floor << shift);
    let half = 1i64 << (shift - 1);
    if rest > half || (rest == half && (half_up || floor & 1 == 1)) { floor + 1 } else { floor }
}

/// Elements of a gathered row: whole blocks.
fn stream_depth(conv: &Conv) -> usize {
    conv.taps() * conv.channels.next_multiple_of(conv.block())
}

/// The fast int8 path.
fn int8(engine: &Engine, conv: &Conv, features: &[u8], weights: &[u8], sums: &mut [i32]) {
    let expanded;
    let depth = stream_depth(conv);
    let weights = if conv.channels.is_multiple_of(32) {
        weights
    } else {
        expanded = expand(conv, weights);
        &expanded
    };
    let Some(kernels) = Kernels::new(weights, conv.kernels, depth) else { return };
    let pixels = conv.pixels();
    let pointwise = conv.taps() == 1
        && conv.stride == (1, 1)
        && conv.pad == (0, 0)
        && conv.out_width == conv.width
        && conv.out_height == conv.height
        && conv.channels.is_multiple_of(32);
    let dense = conv.width == 1 || conv.height == 1 || conv.line_bytes() == conv.width * conv.pixel_bytes();
    if pointwise && dense {
        let stride = if conv.width == 1 { conv.line_bytes() } else { conv.pixel_bytes() };
        if let Some(rows) = Rows::new(features, stride, pixels, depth) {
            return engine.int8(rows, kernels, sums);
        }
    }
    in_pieces(conv, depth, |first, count| {
        let rows = gather(conv, features, first, count);
        let Some(rows) = Rows::new(&rows, depth, count, depth) else { return };
        if count == pixels {
            return engine.int8(rows, kernels, sums);
        }
        let mut part = vec![0i32; groups(conv) * count * GROUP_KERNELS];
        engine.int8(rows, kernels, &mut part);
        let whole = sums.chunks_exact_mut(pixels * GROUP_KERNELS);
        for (whole, part) in whole.zip(part.chunks_exact(count * GROUP_KERNELS)) {
            whole[first * GROUP_KERNELS..(first + count) * GROUP_KERNELS].copy_from_slice(part);
        }
    });
}

/// Calls `work` with ranges of pixels whose gathered rows stay small.
fn in_pieces(conv: &Conv, row_bytes: usize, mut work: impl FnMut(usize, usize)) {
    let step = (GATHER_BYTES / row_bytes.max(1)).clamp(1, conv.pixels());
    for first in (0..conv.pixels()).step_by(step) {
        work(first, step.min(conv.pixels() - first));
    }
}

/// The feature bytes that output pixels meet, in stream order: block, kernel line, kernel column, channel.
fn gather(conv: &Conv, features: &[u8], first: usize, count: usize) -> Vec<u8> {
    let bits = conv.precision.bits() as usize;
    let block_bytes = conv.block() * bits / 8;
    let row_bytes = stream_depth(conv) * bits / 8;
    let channel_bytes = (conv.channels * bits).div_ceil(8);
    let pad = pad_bytes(conv, block_bytes);
    let mut rows = vec![0u8; count * row_bytes];
    for (row, pixel) in rows.chunks_exact_mut(row_bytes).zip(first..) {
        let taps: Vec<_> = tap_list(conv, pixel).collect();
        let mut blocks = row.chunks_exact_mut(block_bytes);
        for from in (0..channel_bytes).step_by(block_bytes) {
            let used = (channel_bytes - from).min(block_bytes);
            for tap in &taps {
                let Some(out) = blocks.next() else { continue };
                match tap {
                    Some(at) => {
                        if let Some(bytes) = features.get(at + from..at + from + used) {
                            out[..used].copy_from_slice(bytes);
                        }
                    }
                    None => out[..used].copy_from_slice(&pad[..used]),
                }
            }
        }
    }
    rows
}

/// A block of padding (`isa.md` §9.1; int8 in the low byte, 16-bit data in the low half).
fn pad_bytes(conv: &Conv, len: usize) -> Vec<u8> {
    let value = conv.pad_value.to_le_bytes();
    let width = (conv.precision.bits() as usize / 8).max(1);
    value[..width].iter().copied().cycle().take(len).collect()
}

/// For each tap of an output pixel the place of its input pixel; `None` in the padding.
fn tap_list(conv: &Conv, pixel: usize) -> impl Iterator<Item = Option<usize>> + '_ {
    let (oy, ox) = (pixel / conv.out_width, pixel % conv.out_width);
    (0..conv.taps()).map(move |tap| {
        let (ky, kx) = (tap / conv.kernel.1, tap % conv.kernel.1);
        let y = (oy * conv.stride.0 + ky * conv.dilation.0).checked_sub(conv.pad.0)?;
        let x = (ox * conv.stride.1 + kx * conv.dilation.1).checked_sub(conv.pad.1)?;
        (y < conv.height && x < conv.width).then(|| y * conv.line_bytes() + x * conv.pixel_bytes())
    })
}

/// int8 weights whose last channel block is short, with that block filled up with zeros.
fn expand(conv: &Conv, weights: &[u8]) -> Vec<u8> {
    let depth = stream_depth(conv);
    let mut out = vec![0u8; conv.kernels * depth];
    for kernel in 0..conv.kernels {
        let group = kernel / 32;
        let lanes = (conv.kernels - group * 32).min(32);
        for channel in 0..conv.channels {
            for tap in 0..conv.taps() {
                let from = stream_index(conv, kernel, channel, tap);
                let to = group * 32 * depth
                    + ((channel / 32) * conv.taps() + tap) * lanes * 32
                    + (kernel % 32) * 32
                    + channel % 32;
                out[to] = weights.get(from).copied().unwrap_or(0);
            }
        }
    }
    out
}

/// Place of a weight in the stream, in elements (`isa.md` §4.1 "general form"): kernel groups, channel blocks,
/// kernel line, kernel column, kernel of the group, channel of the block.
pub(crate) fn stream_index(conv: &Conv, kernel: usize, channel: usize, tap: usize) -> usize {
    let block = conv.block();
    if conv.depthwise {
        let lanes = (conv.channels - channel / block * block).min(block);
        return channel / block * block * conv.taps() + tap * lanes + channel % block;
    }
    let group = conv.group();
    let lanes = (conv.kernels - kernel / group * group).min(group);
    let depth = (conv.channels - channel / block * block).min(block);
    kernel / group * group * conv.channels * conv.taps()
        + channel / block * block * conv.taps() * lanes
        + (tap * lanes + kernel % group) * depth
        + channel % block
}

/// The weights of group `g` as `[depth][lanes]`, in the order of gathered rows. `decode` gives a run of elements.
fn group_weights<T: Copy + Default>(
    conv: &Conv,
    g: usize,
    lanes: usize,
    decode: impl Fn(Range<usize>) -> Vec<T>,
) -> Vec<T> {
    let block = conv.block();
    let used = (conv.kernels - g * conv.group()).min(conv.group());
    let start = stream_index(conv, g * conv.group(), 0, 0);
    let stream = decode(start..start + used * conv.channels * conv.taps());
    let mut out = vec![T::default(); stream_depth(conv) * lanes];
    let mut rest = stream.as_slice();
    for from in (0..conv.channels).step_by(block) {
        let channels = (conv.channels - from).min(block);
        for tap in 0..conv.taps() {
            let row = from * conv.taps() + tap * block;
            let (now, later) = rest.split_at(used * channels);
            rest = later;
            let out = &mut out[row * lanes..(row + channels) * lanes];
            for (lane, weights) in now.chunks_exact(channels).enumerate() {
                for (out, weight) in out.iter_mut().skip(lane).step_by(lanes).zip(weights) {
                    *out = *weight;
                }
            }
        }
    }
    out
}

/// The float paths.
fn float(engine: &Engine, conv: &Conv, float_sums: FloatSums, features: &[u8], weights: &[u8]) -> Vec<f32> {
    let (depth, pixels) = (stream_depth(conv), conv.pixels());
    let row_bytes = depth * conv.precision.bits() as usize / 8;
    let mut sums = vec![0f32; groups(conv) * pixels * FLOAT_LANES];
    let panel = |g: usize, out: &mut [f32]| float_panel(conv, g, weights, out);
    in_pieces(conv, row_bytes, |first, count| {
        let bytes = gather(conv, features, first, count);
        let row = |m: usize, out: &mut [f32]| {
            element::floats_into(conv.precision, &bytes[m * row_bytes..(m + 1) * row_bytes], out);
        };
        let shape = FloatShape { rows: count, depth, groups: groups(conv) };
        if count == pixels {
            return engine.float(float_sums, shape, &row, &panel, &mut sums);
        }
        let mut part = vec![0f32; groups(conv) * count * FLOAT_LANES];
        engine.float(float_sums, shape, &row, &panel, &mut part);
        let whole = sums.chunks_exact_mut(pixels * FLOAT_LANES);
        for (whole, part) in whole.zip(part.chunks_exact(count * FLOAT_LANES)) {
            whole[first * FLOAT_LANES..(first + count) * FLOAT_LANES].copy_from_slice(part);
        }
    });
    sums
}

/// The weights of group `g` as `[depth][16]` in the order of gathered rows; what a block lacks is 0.
fn float_panel(conv: &Conv, g: usize, weights: &[u8], out: &mut [f32]) {
    let size = conv.precision.bits() as usize / 8;
    let block = conv.block();
    let used = (conv.kernels - g * conv.group()).min(conv.group());
    let kind = match conv.precision {
        Precision::Fp16 => Some(HalfKind::Fp16),
        Precision::Bf16 => Some(HalfKind::Bf16),
        _ => None,
    };
    let mut from = stream_index(conv, g * conv.group(), 0, 0) * size;
    let mut stream = Vec::new();
    let mut rest = out;
    for first in (0..conv.channels).step_by(block) {
        let channels = (conv.channels - first).min(block);
        for _ in 0..conv.taps() {
            let (out, later) = std::mem::take(&mut rest).split_at_mut(block * FLOAT_LANES);
            rest = later;
            let bytes = weights.get(from..).unwrap_or(&[]);
            let bytes = &bytes[..bytes.len().min(used * channels * size)];
            from += used * channels * size;
            // The usual full block.
            if let (Some(kind), Ok(bytes), Ok(out)) =
                (kind, bytes.try_into(), <&mut [f32; HALF_BLOCK]>::try_from(&mut *out))
            {
                ork_mac::turn_half_block(kind, bytes, out);
                continue;
            }
            stream.resize(used * channels, 0.0);
            element::floats_into(conv.precision, bytes, &mut stream);
            out.fill(0.0);
            for (lane, weights) in stream.chunks_exact(channels).enumerate() {
                for (out, weight) in out.iter_mut().skip(lane).step_by(FLOAT_LANES).zip(weights) {
                    *out = *weight;
                }
            }
        }
    }
}

/// int4 as int8: a group of 64 kernels becomes two of 32.
fn int4(engine: &Engine, conv: &Conv, features: &[u8], weights: &[u8]) -> Vec<i32> {
    let (depth, pixels) = (stream_depth(conv), conv.pixels());
    // Half groups; a last group of up to 32 kernels has one.
    let halves = conv.kernels.div_ceil(GROUP_KERNELS);
    let mut wide = vec![0u8; conv.kernels * depth];
    engine.for_each_chunk(&mut wide, GROUP_KERNELS * depth, |half, out| {
        let (g, skip) = (half / 2, half % 2 * GROUP_KERNELS);
        let used = (conv.kernels - g * conv.group()).min(conv.group());
        let lanes = out.len() / depth;
        for (block, out) in out.chunks_exact_mut(lanes * 32).enumerate() {
            let (from, tap) = (block / conv.taps() * 32, block % conv.taps());
            let channels = (conv.channels - from).min(32);
            let base = stream_index(conv, g * conv.group(), from, tap);
            for (lane, out) in out.chunks_exact_mut(32).enumerate().take(used - skip) {
                let start = base + (skip + lane) * channels;
                element::unpack_nibbles(weights, start, &mut out[..channels]);
            }
        }
    });
    let Some(kernels) = Kernels::new(&wide, conv.kernels, depth) else { return Vec::new() };
    let mut sums = vec![0i32; groups(conv) * pixels * conv.group()];
    in_pieces(conv, depth, |first, count| {
        let bytes = gather(conv, features, first, count);
        let mut rows = vec![0u8; count * depth];
        element::unpack_nibbles(&bytes, 0, &mut rows);
        let Some(rows) = Rows::new(&rows, depth, count, depth) else { return };
        let mut part = vec![0i32; halves * count * GROUP_KERNELS];
        engine.int8(rows, kernels, &mut part);
        for (half, part) in part.chunks_exact(count * GROUP_KERNELS).enumerate() {
            let (g, skip) = (half / 2, half % 2 * GROUP_KERNELS);
            for (pixel, lanes) in part.as_chunks::<GROUP_KERNELS>().0.iter().enumerate() {
                let at = (g * pixels + first + pixel) * conv.group() + skip;
                if conv.truncate.clip_truncate() == 0 {
                    sums[at..at + GROUP_KERNELS].copy_from_slice(lanes);
                    continue;
                }
                for (sum, lane) in sums[at..at + GROUP_KERNELS].iter_mut().zip(lanes) {
                    *sum = truncate(conv, i64::from(*lane));
                }
            }
        }
    });
    sums
}

/// int16 and deep int8 sums in 64 bits.
fn int(engine: &Engine, conv: &Conv, features: &[u8], weights: &[u8]) -> Vec<i32> {
    let (depth, pixels, lanes) = (stream_depth(conv), conv.pixels(), conv.group());
    let mut sums = vec![0i32; groups(conv) * pixels * lanes];
    in_pieces(conv, depth * 2, |first, count| {
        let bytes = gather(conv, features, first, count);
        let rows = element::ints(conv.precision, &bytes, 0..count * depth);
        engine.for_each_chunk(&mut sums, pixels * lanes, |g, out| {
            let weights = group_weights(conv, g, lanes, |run| element::ints(conv.precision, weights, run));
            let mut wide = vec![0i64; count * lanes];
            ork_mac::int_rows(&rows, depth, &weights, lanes, &mut wide);
            for (out, sum) in out[first * lanes..].iter_mut().zip(&wide) {
                *out = truncate(conv, *sum);
            }
        });
    });
    sums
}

/// One element of a pixel at `at`, or of the padding.
fn feature_at<T>(
    conv: &Conv,
    features: &[u8],
    at: Option<usize>,
    channel: usize,
    get: fn(Precision, &[u8], usize) -> T,
) -> T {
    match at {
        Some(at) => get(conv.precision, features.get(at..).unwrap_or(&[]), channel),
        None => {
            let pad = pad_bytes(conv, 8);
            get(conv.precision, &pad, 0)
        }
    }
}

/// The plain loops, which define what this unit computes.
fn plain(conv: &Conv, float_sums: FloatSums, features: &[u8], weights: &[u8]) -> Sums {
    let group = conv.group();
    let lanes = if conv.depthwise { conv.channels } else { conv.kernels };
    let count = groups(conv) * conv.pixels() * group;
    let float = element::is_float(conv.precision);
    let mut ints = vec![0i32; if float { 0 } else { count }];
    let mut floats = vec![0f32; if float { count } else { 0 }];
    for pixel in 0..conv.pixels() {
        let taps: Vec<_> = tap_list(conv, pixel).collect();
        for lane in 0..lanes {
            let place = (lane / group * conv.pixels() + pixel) * group + lane % group;
            let channels = if conv.depthwise { lane..lane + 1 } else { 0..conv.channels };
            let (mut int_sum, mut float_sum) = (0i64, FloatSum::new(float_sums));
            // The order of the stream: block, tap, channel.
            let passes = conv.precision == Precision::Int4 && conv.int4_passes;
            for from in channels.clone().step_by(conv.block()) {
                let end = (from + conv.block()).min(channels.end);
                for (tap, at) in taps.iter().enumerate() {
                    for channel in from..end {
                        let index = stream_index(conv, lane, channel, tap);
                        if float {
                            let weight = element::float(conv.precision, weights, index);
                            let feature = feature_at(conv, features, *at, channel, element::float);
                            float_sum.add(feature, weight);
                        } else {
                            let weight = element::int(conv.precision, weights, index);
                            let feature = feature_at(conv, features, *at, channel, element::int);
                            int_sum += i64::from(feature) * i64::from(weight);
                        }
                    }
                }
                if passes && end % 128 == 0 {
                    int_sum = int_sum.clamp(i64::from(i16::MIN), i64::from(i16::MAX));
                }
            }
            if float {
                floats[place] = float_sum.narrow();
            } else {
                ints[place] = truncate(conv, int_sum);
            }
        }
    }
    if float { Sums::Float(floats) } else { Sums::Int(ints) }
}

/// A float sum that grows product by product.
enum FloatSum {
    Exact(f64),
    Fast(f32),
}

impl FloatSum {
    const fn new(float_sums: FloatSums) -> Self {
        match float_sums {
            FloatSums::Exact => Self::Exact(0.0),
            FloatSums::Fast => Self::Fast(0.0),
        }
    }

    fn add(&mut self, feature: f32, weight: f32) {
        match self {
            // No product rounds in f64.
            Self::Exact(sum) => *sum += f64::from(feature) * f64::from(weight),
            Self::Fast(sum) => *sum = feature.mul_add(weight, *sum),
        }
    }

    /// As fp32. Which NaN silicon stores is not known; one is as good as another, but it should always be the same
    /// one. There is no -0.
    fn narrow(self) -> f32 {
        let sum = match self {
            Self::Exact(sum) => sum as f32,
            Self::Fast(sum) => sum,
        };
        if sum.is_nan() { f32::NAN } else { sum + 0.0 }
    }
}

/// Sums of the feature values alone, which the OW stage weighs with its operand (`isa.md` §9.1): one per pixel,
/// or in depthwise mode one per pixel and channel, `[pixel][channel]`.
pub(crate) fn feature_sums(conv: &Conv, features: &[u8]) -> Vec<i32> {
    let mut sums = Vec::new();
    for pixel in 0..conv.pixels() {
        let taps: Vec<_> = tap_list(conv, pixel).collect();
        let sum_of = |channels: Range<usize>| {
            let mut sum = 0i64;
            for at in &taps {
                for channel in channels.clone() {
                    sum += i64::from(feature_at(conv, features, *at, channel, element::int));
                }
            }
            // With a truncation both sums must be shifted, or the result would be inconsistent (§9.1).
            truncate(conv, sum)
        };
        if conv.depthwise {
            sums.extend((0..conv.channels).map(|channel| sum_of(channel..channel + 1)));
        } else {
            sums.push(sum_of(0..conv.channels));
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_shift() {
        // `isa-int4-sdp.md` §3.4: acc = 1, 3, 5, -3 with shift 1.
        for (value, even, up) in [(1, 0, 1), (3, 2, 2), (5, 2, 3), (-3, -2, -1), (-1, 0, 0)] {
            assert_eq!(round_shift(value, 1, false), even, "{value}");
            assert_eq!(round_shift(value, 1, true), up, "{value}");
        }
        assert_eq!(round_shift(i64::MAX, 62, false), 2);
        assert_eq!(round_shift(-7, 0, false), -7);
    }
}
