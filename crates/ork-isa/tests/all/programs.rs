// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs compute and where they read and write: the worked examples of `isa.md` §8 and §9.6 (`programs/`)
//! and the recorded programs, whose buffers are known.

use crate::support;
use std::fs;

use ork_isa::Precision;
use ork_isa::asm::{Comments, Listing, parse, print};
use ork_isa::explain::{Explanation, Operation, explain};
use ork_isa::lint::lint;
use ork_isa::task::{Access, extents, tasks};

fn example(name: &str) -> Listing {
    let path = format!("{}/tests/programs/{name}.rcasm", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(path).unwrap();
    let listing = parse(&text).unwrap();
    assert_eq!(print(&listing, Comments::Warnings), text, "{name} is in the printed form");
    listing
}

fn told(name: &str) -> Explanation {
    let mut all = explain(&example(name));
    assert_eq!(all.len(), 1, "{name}");
    all.remove(0)
}

fn line<'a>(told: &'a Explanation, topic: &str) -> Vec<&'a str> {
    told.lines.iter().filter(|(name, _)| *name == topic).map(|(_, text)| text.as_str()).collect()
}

#[test]
fn worked_examples_of_matmul() {
    use Precision::{Fp16, Fp32, Int8, Int32};
    for (name, words, (m, k, n), input, output, features, result, written) in [
        ("recipe1_fp16_fp32", 108, (4, 32, 16), Fp16, Fp32, "cube, 64 bytes a surface", "cube, 64", 256),
        ("recipe1_fp16_fp16", 108, (4, 32, 16), Fp16, Fp16, "cube, 64 bytes a surface", "cube, 64", 128),
        ("recipe1_int8_int32", 108, (4, 64, 64), Int8, Int32, "cube, 64 bytes a surface", "cube, 64", 1024),
        (
            "recipe2_fp16_fp32",
            112,
            (4, 32, 16),
            Fp16,
            Fp32,
            "row-major, 64 bytes a row",
            "row-major, 64",
            256,
        ),
        (
            "recipe2_fp16_fp16",
            112,
            (4, 32, 16),
            Fp16,
            Fp16,
            "row-major, 64 bytes a row",
            "row-major, 32",
            128,
        ),
        (
            "recipe2_int8_int32",
            112,
            (4, 64, 64),
            Int8,
            Int32,
            "row-major, 64 bytes a row",
            "row-major, 256",
            1024,
        ),
        (
            "recipe2_int8_int8",
            112,
            (4, 64, 64),
            Int8,
            Int8,
            "row-major, 64 bytes a row",
            "row-major, 64",
            256,
        ),
    ] {
        let told = told(name);
        assert_eq!(example(name).streams[0].words.len(), words, "{name}");
        assert_eq!(told.operation, Operation::Matmul { m, k, n }, "{name}");
        assert_eq!((told.input, told.output), (Some(input), Some(output)), "{name}");
        assert_eq!(line(&told, "features"), [features], "{name}");
        assert!(line(&told, "output")[0].starts_with(result), "{name}: {told}");
        assert_eq!(line(&told, "chain"), ["last"], "{name}");
        let a = m * k * input.bits() / 8;
        let b = k * n * input.bits() / 8;
        let memory = [
            format!("reads features 0x10000000..{:#010x} ({a} bytes)", 0x1000_0000 + a),
            format!("reads weights 0x20000000..{:#010x} ({b} bytes)", 0x2000_0000 + b),
            format!("writes output 0x30000000..{:#010x} ({written} bytes)", 0x3000_0000 + written),
        ];
        assert_eq!(line(&told, "memory"), memory, "{name}");
        assert!(lint(&example(name)).is_empty(), "{name}: {:?}", lint(&example(name)));
    }
}

#[test]
fn worked_examples_of_convolution() {
    for (name, operation) in [
        ("conv_3x3", "convolution H=8 W=8 C=16 OC=32 KH=3 KW=3 stride 1x1 pad top 1 left 1 to OH=8 OW=8"),
        (
            "depthwise_3x3",
            "depthwise convolution H=8 W=8 C=64 KH=3 KW=3 stride 1x1 pad top 1 left 1 to OH=8 OW=8",
        ),
    ] {
        let told = told(name);
        assert_eq!(told.operation.to_string(), operation);
        assert_eq!(
            line(&told, "stages"),
            ["BS: add the operand of BRDMA; converter: x 20972 >> 22, offset 0"]
        );
        assert!(lint(&example(name)).is_empty(), "{name}: {:?}", lint(&example(name)));
    }
}

#[test]
fn recorded_operations() {
    let cases = support::cases();
    for (name, submit, program, operation) in [
        ("gemm_fp16_f32_chain_440x40x384", 0, 0, "matmul M=426 K=384 N=64"),
        ("gemm_fp16_f32_chain_440x40x384", 0, 1, "matmul M=14 K=384 N=64"),
        ("mtx_int8_1x64x64", 0, 0, "matmul M=1 K=64 N=64"),
        ("ew_mul_f16_n4096", 0, 0, "element-wise multiply of H=1 W=512 C=8"),
        ("ew_add_chain3_n1536", 0, 1, "element-wise add of H=1 W=64 C=8"),
        ("silu_lut_n8", 0, 0, "lookup table of H=1 W=1 C=8"),
        ("pool_max_4x4", 0, 0, "max pooling H=4 W=4 C=8 KH=2 KW=2 stride 1x1 to OH=3 OW=3"),
        ("rocket_pool_avg_6x6_k3", 0, 0, "average pooling H=6 W=6 C=8 KH=3 KW=3 stride 1x1 to OH=4 OW=4"),
        (
            "rocket_conv_int8_i32_c32_9x9_oc32_3x3_dil2_pad2",
            0,
            0,
            "convolution H=9 W=9 C=32 OC=32 KH=3 KW=3 stride 1x1 pad top 2 left 2 dilation 2x2 to OH=9 OW=9",
        ),
    ] {
        let case = cases.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("{name}"));
        let told = explain(&case.submits[submit]);
        assert_eq!(told[program].operation.to_string(), operation, "{name}");
    }
}

/// Every byte of every task lies in the pages of a buffer that its recording declares.
#[test]
fn extents_of_recorded_programs_lie_in_their_buffers() {
    const PAGE: u64 = 4096;
    let mut count = 0;
    for case in support::cases() {
        for listing in &case.submits {
            let programs: Vec<_> = listing.streams.iter().map(|stream| stream.words.as_slice()).collect();
            for task in tasks(&programs) {
                let found = extents(&task);
                assert!(
                    found.iter().any(|extent| extent.access == Access::Write),
                    "{}: no output",
                    case.name
                );
                for extent in found {
                    let (start, end) =
                        (u64::try_from(extent.start).unwrap(), u64::try_from(extent.end).unwrap());
                    let inside = case
                        .buffers
                        .iter()
                        .any(|(base, size)| *base <= start && end <= (base + size).next_multiple_of(PAGE));
                    assert!(inside, "{}: {extent}", case.name);
                    count += 1;
                }
            }
        }
    }
    assert!(count > 300, "{count}");
}

/// The one-core programs of the vendor runtime touch exactly the tensors of their names.
#[test]
fn extents_of_captures_are_the_tensors() {
    for (name, listing) in support::captures().into_iter().filter(|(name, _)| name != "words") {
        // rt_conv_c64_56x56_oc128_1x1: C, H x W, OC, KH x KW; fp16, stride 1, no padding.
        let parts: Vec<u64> =
            name.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect();
        let [c, h, w, oc, kh, kw] = parts[..] else { panic!("{name}") };
        let programs: Vec<_> = listing.streams.iter().map(|stream| stream.words.as_slice()).collect();
        // Row tiles are chained; the first chain is the program for one core.
        let mut ranges: Vec<(&str, i64, i64)> = Vec::new();
        let links = ork_isa::task::Links::read(&listing.streams);
        let mut program = 0;
        loop {
            for task in tasks(&programs).into_iter().filter(|task| task.place.program == program) {
                for extent in extents(&task) {
                    match ranges.iter_mut().find(|(what, ..)| *what == extent.what) {
                        Some((_, start, end)) => {
                            *start = extent.start.min(*start);
                            *end = extent.end.max(*end);
                        }
                        None => ranges.push((extent.what, extent.start, extent.end)),
                    }
                }
            }
            match links.next(program) {
                ork_isa::task::Next::Program(next) => program = next,
                _ => break,
            }
        }
        let bytes = |what: &str| {
            ranges
                .iter()
                .find(|(found, ..)| *found == what)
                .map(|(_, start, end)| (end - start).cast_unsigned())
        };
        assert_eq!(bytes("features"), Some(c * h * w * 2), "{name}");
        assert_eq!(bytes("weights"), Some(c * oc * kh * kw * 2), "{name}");
        assert_eq!(bytes("output"), Some(oc * (h - kh + 1) * (w - kw + 1) * 2), "{name}");
    }
}

#[test]
fn programs_that_start_nothing_are_told_too() {
    let told = explain(&parse(".program \"half\"\nCNA.CBUF_CON0 = 0xB1\n.program\n").unwrap());
    assert_eq!(told.len(), 2);
    assert_eq!((told[0].start, &told[0].operation), (None, &Operation::Other));
    assert!(told[0].to_string().contains("\"half\"") && told[0].to_string().contains("nothing starts"));
}

/// Random registers: no shape is assumed to be sensible.
#[test]
fn random_programs_never_panic() {
    let mut random = support::Random(3);
    let blocks: Vec<_> = ork_isa::Block::ALL.into_iter().filter(|block| block.target().is_some()).collect();
    let mut told = 0;
    for _ in 0..400 {
        let mut listing = Listing::default();
        for _ in 0..=random.below(3) {
            let mut words = Vec::new();
            for _ in 0..random.below(160) {
                let block = blocks[random.below(blocks.len())];
                let all = ork_isa::regs::of(block);
                let desc = all[random.below(all.len())];
                let value = (random.next() as u32) >> random.below(32);
                words.push(ork_isa::Cmd::new(block.target().unwrap(), desc.offset, value));
            }
            words.push(ork_isa::Cmd::op_enable(random.next() as u32 & 0x7F));
            let at = (random.below(2) == 0).then(|| ork_isa::Iova(random.next() as u32));
            listing.streams.push(ork_isa::asm::Stream { at, words, ..Default::default() });
        }
        told += explain(&listing).iter().filter(|told| !told.to_string().is_empty()).count();
        let _ = lint(&listing).iter().map(ToString::to_string).collect::<Vec<_>>();
    }
    assert!(told >= 400);
}
