// SPDX-License-Identifier: MIT OR Apache-2.0
//! Convolution programs of the vendor runtime (`tests/conformance/captures`) on made-up data: strides, tile
//! offsets, weight reuse and splits over cores must add up to the convolution. The weight order is ours
//! (`isa.md` §4.1), so it is not tested here.

use crate::common;
use std::collections::BTreeMap;
use std::path::Path;

use common::*;
use half::f16;
use ork_isa::{Cmd, CmdKind, Iova};
use ork_sim::{Core, JobEnd, PcJob, SimOptions};

struct Stream {
    at: u32,
    words: Vec<Cmd>,
}

impl Stream {
    fn value(&self, offset: u16) -> Option<u32> {
        self.words.iter().rev().find_map(|word| match word.kind() {
            CmdKind::Write { offset: own, value, .. } if own == offset => Some(value),
            _ => None,
        })
    }

    fn enable(&self) -> u32 {
        self.words
            .iter()
            .find_map(|word| if let CmdKind::OpEnable { mask } = word.kind() { Some(mask) } else { None })
            .unwrap()
    }
}

struct Capture {
    regions: Vec<(u32, u32)>,
    streams: Vec<Stream>,
}

fn read(name: &str) -> Capture {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap();
    let path = path.join("../../tests/conformance/captures").join(name).with_extension("txt");
    let text = std::fs::read_to_string(path).unwrap();
    let hex = |word: &str| u32::from_str_radix(word.trim_start_matches("0x"), 16).unwrap();
    let mut capture = Capture { regions: Vec::new(), streams: Vec::new() };
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        match fields[0] {
            "memory" => capture.regions.push((hex(fields[2]), fields[3].parse().unwrap())),
            "stream" => capture.streams.push(Stream { at: hex(fields[4]), words: Vec::new() }),
            word if word.len() == 16 => {
                let word = Cmd(u64::from_str_radix(word, 16).unwrap());
                capture.streams.last_mut().unwrap().words.push(word);
            }
            _ => {}
        }
    }
    capture
}

/// A convolution of the captures: channels, input height and width, kernels, kernel side; no padding, stride 1.
fn replay(name: &str, c: usize, h: usize, w: usize, oc: usize, k: usize) {
    let capture = read(name);
    let low =
        capture.regions.iter().map(|(at, _)| *at).chain(capture.streams.iter().map(|s| s.at)).min().unwrap();
    let low = low & !0xFFF;
    let bus = FlatBus::new(low, (0x1_0000_0000u64 - u64::from(low)) as usize);
    for stream in &capture.streams {
        let bytes: Vec<u8> = stream.words.iter().flat_map(|word| word.0.to_le_bytes()).collect();
        bus.put(stream.at, &bytes);
    }
    let (oh, ow) = (h - k + 1, w - k + 1);
    let first = &capture.streams[0];
    let (src, dst, weights) =
        (first.value(0x1070).unwrap(), first.value(0x4020).unwrap(), first.value(0x1110).unwrap());
    // Small integers: all sums are exact in fp16.
    let mut random = Random(5);
    let mut small = |count: usize| (0..count).map(|_| random.below(3) as i32 - 1).collect::<Vec<_>>();
    let (a, b) = (small(c * h * w), small(oc * c * k * k));
    let mut bytes = vec![0u8; c * h * w * 2];
    for channel in 0..c {
        for pixel in 0..h * w {
            let at = ((channel / 8 * h * w + pixel) * 8 + channel % 8) * 2;
            bytes[at..at + 2]
                .copy_from_slice(&f16::from_f32(a[channel * h * w + pixel] as f32).to_le_bytes());
        }
    }
    bus.put(src, &bytes);
    let mut stream = Vec::new();
    for group in (0..oc).step_by(16) {
        for block in (0..c).step_by(32) {
            for tap in 0..k * k {
                for kernel in group..(group + 16).min(oc) {
                    for channel in block..(block + 32).min(c) {
                        let value = b[(kernel * c + channel) * k * k + tap] as f32;
                        stream.extend(f16::from_f32(value).to_le_bytes());
                    }
                }
            }
        }
    }
    bus.put(weights, &stream);
    let plane = first.value(0x4024).unwrap() as usize;
    let check = |what: &str| {
        let out = bus.get(dst, oc / 8 * plane);
        for kernel in 0..oc {
            for oy in 0..oh {
                for ox in 0..ow {
                    let mut sum = 0;
                    for channel in 0..c {
                        for tap in 0..k * k {
                            let pixel = (oy + tap / k) * w + ox + tap % k;
                            sum += a[channel * h * w + pixel] * b[(kernel * c + channel) * k * k + tap];
                        }
                    }
                    let at = kernel / 8 * plane + ((oy * ow + ox) * 8 + kernel % 8) * 2;
                    let got = f16::from_le_bytes([out[at], out[at + 1]]).to_f32();
                    assert_eq!(got, sum as f32, "{name}, {what}: kernel {kernel}, {oy}, {ox}");
                }
            }
        }
    };
    // Chains: from a program that none links to, along the links, up to the pooling separators.
    let by_address: BTreeMap<u32, &Stream> =
        capture.streams.iter().map(|stream| (stream.at, stream)).collect();
    let linked: Vec<u32> = capture.streams.iter().filter_map(|stream| stream.value(0x0010)).collect();
    let mut heads = capture.streams.iter().filter(|s| s.enable() == 0xD && !linked.contains(&s.at));
    let run = |head: &Stream| {
        let mut tasks = 1;
        let mut at = head;
        while let Some(next) =
            at.value(0x0010).and_then(|at| by_address.get(&at)).filter(|s| s.enable() == 0xD)
        {
            tasks += 1;
            at = next;
        }
        let job = PcJob {
            base: Iova(head.at),
            amount: (head.words.len().div_ceil(2) - 1) as u16,
            tasks,
            dma_base: Iova(0),
            int_mask: 0x300,
            int_clear: 0x1_FFFF,
            s_pointer: Some(PcJob::s_pointer_of(0)),
        };
        let outcome = Core::new(0, &SimOptions::default()).run(&bus, &job);
        assert_eq!(outcome.end, JobEnd::Done, "{name}: {:?}", outcome.end);
        assert!(outcome.diagnoses.is_empty(), "{name}: {}", outcome.diagnoses[0]);
    };
    run(heads.next().unwrap());
    check("one core");
    bus.put(dst, &vec![0xFF; oc / 8 * plane]);
    for head in heads {
        run(head);
    }
    check("several cores");
}

#[test]
fn pointwise_in_two_row_tiles() {
    replay("rt_conv_c64_56x56_oc128_1x1", 64, 56, 56, 128, 1);
}

#[test]
fn pointwise_14x14() {
    replay("rt_conv_c256_14x14_oc512_1x1", 256, 14, 14, 512, 1);
}

#[test]
fn three_by_three() {
    replay("rt_conv_c32_14x14_oc128_3x3", 32, 14, 14, 128, 3);
    replay("rt_conv_c160_8x8_oc320_3x3", 160, 8, 8, 320, 3);
}
