// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pooling of int8, int16 and fp16, positions of maxima, reciprocals and chains, with the register values of a public
//! program that its author ran on an RK3588 (allbilly/rk3588, docs/assumptions.md S-50, S-83, S-84).

use crate::common;
use common::tensor::{A, OUT};
use common::*;
use half::f16;
use ork_sim::{Core, JobEnd, JobOutcome, SimOptions};

#[derive(Clone, Copy, Debug)]
struct Case {
    input: (usize, usize),
    output: (usize, usize),
    channels: usize,
    method: u32,
    kernel: (usize, usize),
    stride: (usize, usize),
    pad: u32,
    /// PROC_PRECISION and storage width.
    codes: (u32, u32),
    /// For width and height.
    recip: (u32, u32),
}

const FP16: (u32, u32) = (2, 2);
const INT16: (u32, u32) = (1, 2);
const INT8: (u32, u32) = (0, 1);
const AVERAGE: u32 = 0;
const MAXIMUM: u32 = 1;
const MINIMUM: u32 = 2;

impl Case {
    /// One window over the whole input.
    fn whole(codes: (u32, u32), input: (usize, usize), channels: usize, method: u32) -> Self {
        Self {
            input,
            output: (1, 1),
            channels,
            method,
            kernel: input,
            stride: input,
            pad: 0,
            codes,
            recip: (0, 0),
        }
    }

    fn words(self) -> Words {
        let last = |n: usize| n as u32 - 1;
        let area = (self.output.0 * self.output.1) as u32;
        let mut words = vec![
            (0x6004, 0xE),
            (0x7004, 0xE),
            (0x600C, last(self.input.1)),
            (0x6010, last(self.input.0)),
            (0x6014, last(self.channels)),
            (0x6018, last(self.output.1)),
            (0x601C, last(self.output.0)),
            (0x6020, last(self.channels)),
            (0x6024, 0x10 | self.method),
            (
                0x6034,
                last(self.stride.0) << 20
                    | last(self.stride.1) << 16
                    | last(self.kernel.0) << 8
                    | last(self.kernel.1),
            ),
            (0x6040, self.pad << 12 | self.pad << 8 | self.pad << 4 | self.pad),
            (0x6044, 0),
            (0x6048, 0),
            (0x6070, OUT),
            (0x607C, area << 4),
            (0x6084, area << 4 | self.codes.0),
            (0x60DC, 3),
            (0x700C, last(self.input.1)),
            (0x7010, last(self.input.0)),
            (0x7014, last(self.channels)),
            (0x701C, A),
            (0x7024, 16 * self.input.1 as u32),
            (0x7028, 16 * (self.input.0 * self.input.1) as u32),
            (0x7030, self.codes.1),
            (0x7008, 1),
        ];
        if self.method == AVERAGE {
            words.extend([(0x6038, self.recip.0), (0x603C, self.recip.1)]);
        }
        words
    }

    fn lanes(self) -> usize {
        16 >> self.codes.1.saturating_sub(1)
    }

    fn run(self, source: &[f32], patch: Patch<'_>) -> (Vec<f32>, FlatBus, JobOutcome) {
        let lanes = self.lanes();
        let surfaces = self.channels.div_ceil(lanes);
        let pixels = self.input.0 * self.input.1;
        let mut bytes = Vec::new();
        for i in 0..surfaces * pixels * lanes {
            let (surface, pixel, lane) = (i / lanes / pixels, i / lanes % pixels, i % lanes);
            let channel = surface * lanes + lane;
            let value = if channel < self.channels { source[pixel * self.channels + channel] } else { -99.0 };
            match self.codes {
                INT8 => bytes.extend((value as i8).to_le_bytes()),
                INT16 => bytes.extend((value as i16).to_le_bytes()),
                FP16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
                _ => bytes.extend((value as i32).to_le_bytes()),
            }
        }
        let bus = FlatBus::new(PROGRAM, 0x40_0000);
        bus.put(A, &bytes);
        bus.put(OUT, &[0xEE; 0x1000]);
        let outcome =
            run_words(&mut Core::new(0, &SimOptions::default()), &bus, &patched(&self.words(), patch), 0x60);
        let got = self.unpack(&bus);
        (got, bus, outcome)
    }

    fn unpack(self, bus: &FlatBus) -> Vec<f32> {
        let lanes = self.lanes();
        let pixels = self.output.0 * self.output.1;
        let size = 16 / lanes;
        (0..pixels * self.channels)
            .map(|i| {
                let (pixel, channel) = (i / self.channels, i % self.channels);
                let at = ((channel / lanes * pixels + pixel) * lanes + channel % lanes) * size;
                let b = bus.get(OUT + at as u32, size);
                match self.codes {
                    INT8 => f32::from(b[0].cast_signed()),
                    INT16 => f32::from(i16::from_le_bytes([b[0], b[1]])),
                    FP16 => f16::from_le_bytes([b[0], b[1]]).to_f32(),
                    _ => i32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f32,
                }
            })
            .collect()
    }

    /// By the definition of pooling; `pad_value` stands around the input.
    fn expected(self, source: &[f32], pad_value: f32) -> Vec<f32> {
        let mut out = Vec::new();
        for oy in 0..self.output.0 {
            for ox in 0..self.output.1 {
                for channel in 0..self.channels {
                    let window: Vec<f32> = (0..self.kernel.0 * self.kernel.1)
                        .map(|i| {
                            let y = oy * self.stride.0 + i / self.kernel.1;
                            let x = ox * self.stride.1 + i % self.kernel.1;
                            let pad = self.pad as usize;
                            if (pad..pad + self.input.0).contains(&y)
                                && (pad..pad + self.input.1).contains(&x)
                            {
                                source[((y - pad) * self.input.1 + x - pad) * self.channels + channel]
                            } else {
                                pad_value
                            }
                        })
                        .collect();
                    out.push(match self.method {
                        AVERAGE => window.iter().sum::<f32>() / window.len() as f32,
                        MAXIMUM => window.into_iter().fold(f32::NEG_INFINITY, f32::max),
                        _ => window.into_iter().fold(f32::INFINITY, f32::min),
                    });
                }
            }
        }
        out
    }
}

#[test]
fn signed_integers_are_compared_as_what_they_are() {
    for (codes, channels) in [(INT8, 16), (INT16, 8), (INT8, 32), (INT16, 24)] {
        let source: Vec<f32> = (0..4)
            .flat_map(|pixel| {
                (0..channels).map(move |lane| {
                    let odd = if lane % 2 == 1 { -120.0 } else { 100.0 - lane as f32 };
                    [lane as f32 - 100.0, 50.0 - lane as f32, -5.0 - lane as f32, odd][pixel]
                })
            })
            .collect();
        for method in [MAXIMUM, MINIMUM] {
            let case = Case::whole(codes, (2, 2), channels, method);
            let (got, _, outcome) = case.run(&source, &[]);
            assert_clean(&outcome, 1);
            assert_eq!(got, case.expected(&source, 0.0), "{case:?}");
        }
    }
}

#[test]
fn integer_averages_take_q16_reciprocals() {
    for (codes, channels) in [(INT8, 16), (INT16, 8)] {
        for (input, pattern) in [
            ((2, 2), &[-40, 20, -8, 28][..]),
            ((3, 3), &[-4, -3, -2, -1, 0, 1, 2, 3, 4]),
            ((2, 3), &[-3, -2, -1, 1, 2, 3]),
        ] {
            let source: Vec<f32> = pattern
                .iter()
                .flat_map(|value| (0..channels).map(move |lane| (value + lane as i32 - 8) as f32))
                .collect();
            let q16 = |side: usize| (65_536.0 / side as f64).round() as u32;
            let case =
                Case { recip: (q16(input.1), q16(input.0)), ..Case::whole(codes, input, channels, AVERAGE) };
            let (got, _, outcome) = case.run(&source, &[]);
            assert_clean(&outcome, 1);
            assert_eq!(got, case.expected(&source, 0.0), "{case:?}");
        }
        // The bits that fp16 data take are a smaller factor to integers: 4 l * (0x7800 / 65536)^2.
        let source: Vec<f32> = [-40, 20, -8, 28]
            .iter()
            .flat_map(|value| (0..channels).map(move |lane| (value + lane as i32) as f32))
            .collect();
        let case = Case { recip: (0x7800, 0x7800), ..Case::whole(codes, (2, 2), channels, AVERAGE) };
        let (got, _, _) = case.run(&source, &[]);
        let published = [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 10, 11, 11, 12, 13];
        assert_eq!(got, published[..channels].iter().map(|x| *x as f32).collect::<Vec<_>>());
    }
}

/// The nearest number with 10 bits of fraction and an exponent of bias 31.
fn fp17(value: f64) -> u32 {
    let exponent = value.log2().floor();
    let fraction = ((value / exponent.exp2() - 1.0) * 1024.0).round() as u32;
    ((exponent as i32 + 31) << 10).cast_unsigned() + fraction
}

#[test]
fn float_averages_take_reciprocals_of_17_bits() {
    assert_eq!(fp17(0.5), 0x7800, "what isa-notes E has for 2");
    assert_eq!(fp17(1.0 / 3.0), 0x7555, "and for 3");
    // A side of 1 has a reciprocal beyond fp16.
    for input in [(2, 2), (3, 5), (1, 4), (7, 1), (1, 1)] {
        let source: Vec<f32> = (0..input.0 * input.1 * 8).map(|i| i as f32 / 8.0).collect();
        let recip = (fp17(1.0 / input.1 as f64), fp17(1.0 / input.0 as f64));
        let case = Case { recip, ..Case::whole(FP16, input, 8, AVERAGE) };
        let (got, _, outcome) = case.run(&source, &[]);
        assert_clean(&outcome, 1);
        for (got, expected) in got.iter().zip(case.expected(&source, 0.0)) {
            assert!((got - expected).abs() <= 0.002 * expected + 1e-6, "{input:?}: {got} for {expected}");
        }
    }
}

#[test]
fn data_of_32_bits_become_zeros() {
    for (proc, method) in [(4, MAXIMUM), (5, MAXIMUM), (4, MINIMUM)] {
        let case = Case::whole((proc, 3), (2, 2), 4, method);
        let (got, _, outcome) = case.run(&[7.0; 16], &[]);
        assert_wrong(&outcome, "pool-precision");
        assert_eq!(got, [0.0; 4]);
    }
    // Widths and precisions that do not belong together are not known.
    for codes in [(0, 2), (1, 1), (2, 1), (3, 2), (2, 3), (6, 0)] {
        let case = Case::whole(FP16, (2, 2), 8, MAXIMUM);
        let (_, _, outcome) = case.run(&[0.0; 32], &[(0x6084, 0x10 | codes.0), (0x7030, codes.1)]);
        assert_unmodelled(&outcome, "pool-precision");
    }
}

#[test]
fn use_cnt_has_no_effect() {
    let case = Case {
        output: (2, 2),
        kernel: (2, 2),
        stride: (1, 1),
        pad: 1,
        recip: (0x7800, 0x7800),
        ..Case::whole(FP16, (1, 1), 8, AVERAGE)
    };
    for use_cnt in 0..8 {
        let (got, _, outcome) = case.run(&[8.0; 8], &[(0x6024, 0x10 | use_cnt << 5)]);
        assert_clean(&outcome, 1);
        assert_eq!(got, [2.0; 32], "padding counts with USE_CNT {use_cnt}");
    }
}

#[test]
fn padding_by_infinity_and_by_seven() {
    let source: Vec<f32> = (1..33).map(|i| -(i as f32)).collect();
    let case = Case {
        output: (3, 3),
        kernel: (2, 2),
        stride: (1, 1),
        pad: 1,
        ..Case::whole(FP16, (2, 2), 8, MAXIMUM)
    };
    let (got, _, outcome) = case.run(&source, &[(0x6044, 0xFC00)]);
    assert_clean(&outcome, 1);
    assert_eq!(got, case.expected(&source, f32::NEG_INFINITY));
    let source: Vec<f32> = (1..513).map(|i| i as f32).collect();
    let case = Case { output: (15, 15), stride: (1, 1), pad: 7, ..Case::whole(FP16, (8, 8), 8, MAXIMUM) };
    let (got, _, outcome) = case.run(&source, &[]);
    assert_clean(&outcome, 1);
    assert_eq!(got, case.expected(&source, 0.0));
    // Windows of 16 with padding of 7 are not known.
    let wide = Case { pad: 7, output: (15, 15), stride: (1, 1), ..Case::whole(FP16, (16, 16), 8, MAXIMUM) };
    assert_unmodelled(&wide.run(&[0.0; 2048], &[]).2, "pool-mode");
}

#[test]
fn strides_of_the_reader_and_short_atoms() {
    // Three channels: the other lanes of an atom are pooled as well.
    let source = [1.0, 50.0, 3.0, 20.0, 2.0, 60.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
    let case = Case::whole(FP16, (2, 2), 3, MAXIMUM);
    let (got, bus, outcome) = case.run(&source, &[]);
    assert_clean(&outcome, 1);
    assert_eq!(got, [20.0, 50.0, 60.0]);
    let lane = bus.get(OUT + 6, 2);
    assert_eq!(f16::from_le_bytes([lane[0], lane[1]]).to_f32(), -99.0);
    // Lines of 80 bytes, surfaces of 256.
    let values: Vec<f32> = (0..144).map(|i| i as f32 - 40.0).collect();
    let case =
        Case { output: (2, 2), kernel: (2, 2), stride: (1, 1), ..Case::whole(FP16, (3, 3), 16, MAXIMUM) };
    let bus = FlatBus::new(PROGRAM, 0x40_0000);
    for (i, value) in values.iter().enumerate() {
        let (pixel, channel) = (i / 16, i % 16);
        let at = channel / 8 * 256 + pixel / 3 * 80 + pixel % 3 * 16 + channel % 8 * 2;
        bus.put(A + at as u32, &f16::from_f32(*value).to_le_bytes());
    }
    let body = patched(&case.words(), &[(0x7024, 80), (0x7028, 256)]);
    assert_clean(&run_words(&mut Core::new(0, &SimOptions::default()), &bus, &body, 0x60), 1);
    assert_eq!(case.unpack(&bus), case.expected(&values, 0.0));
    let notch = patched(&body, &[(0x6024, 2 << 16 | 0x11)]);
    let outcome = run_words(&mut Core::new(0, &SimOptions::default()), &bus, &notch, 0x60);
    assert_unmodelled(&outcome, "pool-mode");
}

/// Positions of maxima, which lie INDEX_ADD behind the values.
fn positions(bus: &FlatBus, distance: u32, count: usize) -> Vec<u16> {
    bus.get(OUT + distance, 2 * count).as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect()
}

#[test]
fn positions_of_maxima() {
    for (side, places) in [
        (2, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 0), (0, 1), (1, 0), (1, 1)]),
        (16, [(0, 7), (0, 8), (7, 15), (8, 0), (8, 8), (15, 7), (15, 8), (15, 15)]),
    ] {
        let mut source = vec![0.0; side * side * 8];
        for (channel, (row, column)) in places.iter().enumerate() {
            source[(row * side + column) * 8 + channel] = 100.0 + channel as f32;
        }
        let case = Case::whole(FP16, (side, side), 8, MAXIMUM);
        let on = [(0x6024, 1 << 30 | 0x11), (0x6084, 2 << 4 | 2)];
        let (got, bus, outcome) = case.run(&source, &on);
        assert_clean(&outcome, 1);
        assert_eq!(got, case.expected(&source, 0.0));
        // Three bits of row and three of column.
        let expected = places.map(|(row, column)| ((row & 7) << 3 | (column & 7)) as u16);
        assert_eq!(positions(&bus, 32, 8), expected);
        // Without INDEX_EN nothing is written there.
        assert_eq!(case.run(&source, &[on[1]]).1.get(OUT + 32, 16), [0xEE; 16]);
        // With padding, by minimum and for integers they are not known.
        for patch in [(0x6040, 1), (0x6024, 1 << 30 | 0x12), (0x6084, 0x21)] {
            let mut patches = on.to_vec();
            patches.push(patch);
            assert_unmodelled(&case.run(&source, &patches).2, "pool-index");
        }
    }
}

#[test]
fn three_passes_over_one_surface() {
    // isa-notes G-10 is about half the channels: a single surface goes through sides of 2 and 1.
    let source: Vec<f32> = (0..512).map(|i| (i as f32 - 200.0) / 8.0).collect();
    for method in [AVERAGE, MAXIMUM, MINIMUM] {
        let bus = FlatBus::new(PROGRAM, 0x40_0000);
        bus.put(A, &source.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect::<Vec<u8>>());
        let mut core = Core::new(0, &SimOptions::default());
        let mut expected = source.clone();
        let places = [A, OUT + 0x1000, OUT + 0x2000, OUT];
        for (pass, side) in [8usize, 4, 2].into_iter().enumerate() {
            let case = Case {
                output: (side / 2, side / 2),
                kernel: (2, 2),
                stride: (2, 2),
                recip: (0x7800, 0x7800),
                ..Case::whole(FP16, (side, side), 8, method)
            };
            let body = patched(&case.words(), &[(0x701C, places[pass]), (0x6070, places[pass + 1])]);
            let outcome = run_words(&mut core, &bus, &body, 0x60);
            assert_eq!(outcome.end, JobEnd::Done);
            assert_clean(&outcome, 1);
            expected = case.expected(&expected, 0.0);
        }
        let case = Case::whole(FP16, (2, 2), 8, method);
        assert_eq!(case.unpack(&bus), expected);
    }
}

#[test]
fn the_separator_of_vendor_chains_is_a_plain_copy() {
    // isa.md 9.7: 26 words of a 1 x 1 x 32 maximum of int8, as captured.
    let words: Words = vec![
        (0x6004, 0xE),
        (0x7004, 0xE),
        (0x600C, 0),
        (0x6010, 0),
        (0x6014, 0x1F),
        (0x6018, 0),
        (0x601C, 0),
        (0x6020, 0x1F),
        (0x6024, 0x11),
        (0x6034, 0),
        (0x6038, 0),
        (0x603C, 0),
        (0x6040, 0),
        (0x6044, 0),
        (0x6048, 0),
        (0x6070, OUT),
        (0x607C, 0x10),
        (0x6084, 0x10),
        (0x60DC, 3),
        (0x700C, 0),
        (0x7010, 0),
        (0x7014, 0x1F),
        (0x701C, A),
        (0x7024, 0x10),
        (0x7028, 0x10),
        (0x7030, 1),
    ];
    let bus = FlatBus::new(PROGRAM, 0x40_0000);
    let token: Vec<u8> = (-16i8..16).map(i8::cast_unsigned).collect();
    bus.put(A, &token);
    assert_clean(&run_words(&mut Core::new(0, &SimOptions::default()), &bus, &words, 0x60), 1);
    assert_eq!(bus.get(OUT, 32), token);
}
