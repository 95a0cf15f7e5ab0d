// SPDX-License-Identifier: MIT OR Apache-2.0
//! Importance matrices, written here from the description of both forms.

use ork_pack::{Imatrix, ImatrixError};
use ork_testkit::Stream;

fn text32(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as i32).to_le_bytes());
    out.extend(text.as_bytes());
}

fn binary() -> Vec<u8> {
    let mut file = 2i32.to_le_bytes().to_vec();
    for (name, calls, values) in
        [("blk.0.attn_q.weight", 4i32, vec![4.0f32, 8.0, 12.0]), ("output.weight", 0, vec![1.0, 2.0])]
    {
        text32(&mut file, name);
        file.extend(calls.to_le_bytes());
        file.extend((values.len() as i32).to_le_bytes());
        values.iter().for_each(|value| file.extend(value.to_le_bytes()));
    }
    file.extend(7i32.to_le_bytes());
    text32(&mut file, "wiki.train.raw");
    file
}

fn text64(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn gguf(kind: &str, tensors: &[(&str, u32, &[u64], &[f32])]) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend(5u64.to_le_bytes());
    text64(&mut file, "general.type");
    file.extend(8u32.to_le_bytes());
    text64(&mut file, kind);
    text64(&mut file, "imatrix.datasets");
    file.extend(9u32.to_le_bytes());
    file.extend(8u32.to_le_bytes());
    file.extend(2u64.to_le_bytes());
    text64(&mut file, "a.txt");
    text64(&mut file, "b.txt");
    for (key, value) in [("imatrix.chunk_count", 11u32), ("imatrix.chunk_size", 512)] {
        text64(&mut file, key);
        file.extend(4u32.to_le_bytes());
        file.extend(value.to_le_bytes());
    }
    // A key of no interest, of another type.
    text64(&mut file, "some.floats");
    file.extend(9u32.to_le_bytes());
    file.extend(12u32.to_le_bytes());
    file.extend(3u64.to_le_bytes());
    file.extend([0; 24]);
    let mut offset = 0u64;
    for (name, kind, shape, values) in tensors {
        text64(&mut file, name);
        file.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|side| file.extend(side.to_le_bytes()));
        file.extend(kind.to_le_bytes());
        file.extend(offset.to_le_bytes());
        offset += (values.len() as u64 * 4).next_multiple_of(32);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    for (.., values) in tensors {
        values.iter().for_each(|value| file.extend(value.to_le_bytes()));
        file.resize(file.len().next_multiple_of(32), 0);
    }
    file
}

fn whole() -> Vec<u8> {
    gguf(
        "imatrix",
        &[
            ("blk.0.ffn_gate_exps.weight.in_sum2", 0, &[2, 3], &[2.0, 4.0, 0.0, 0.0, 9.0, 6.0]),
            ("blk.0.ffn_gate_exps.weight.counts", 0, &[1, 3], &[2.0, 0.0, 3.0]),
            ("blk.0.ffn_gate_exps.weight.in_sum", 0, &[2, 3], &[-1.0; 6]),
            ("output.weight.counts", 0, &[1, 1], &[4.0]),
            ("output.weight.in_sum2", 0, &[3, 1], &[4.0, 8.0, 12.0]),
        ],
    )
}

#[test]
fn both_forms_give_mean_squares() {
    let old = Imatrix::parse(&binary()).unwrap();
    assert_eq!((old.chunks, old.chunk_tokens, old.datasets), (7, 0, vec!["wiki.train.raw".to_owned()]));
    assert_eq!(old.entries["blk.0.attn_q.weight"].importance(0), Some(vec![1.0, 2.0, 3.0]));
    assert_eq!(old.entries["output.weight"].importance(0), None, "no calls");
    // The tail is optional.
    let entries = binary().len() - 4 - 4 - "wiki.train.raw".len();
    assert_eq!(Imatrix::parse(&binary()[..entries]).unwrap().entries.len(), 2);

    let new = Imatrix::parse(&whole()).unwrap();
    assert_eq!((new.chunks, new.chunk_tokens), (11, 512));
    assert_eq!(new.datasets, ["a.txt", "b.txt"]);
    let experts = &new.entries["blk.0.ffn_gate_exps.weight"];
    assert_eq!(experts.k(), 2);
    assert_eq!(experts.importance(0), Some(vec![1.0, 2.0]));
    assert_eq!(experts.importance(1), None, "an expert that no token reached");
    assert_eq!(experts.importance(2), Some(vec![3.0, 2.0]));
    assert_eq!(experts.importance(3), None);
    assert_eq!(new.entries["output.weight"].importance(0), Some(vec![1.0, 2.0, 3.0]));
}

#[test]
fn other_files_are_refused() {
    assert!(matches!(Imatrix::parse(&gguf("model", &[])), Err(ImatrixError::Kind { .. })));
    let mut old = whole();
    old[4] = 1;
    assert!(matches!(Imatrix::parse(&old), Err(ImatrixError::Kind { .. })));
    let bad =
        |tensors: &[(&str, u32, &[u64], &[f32])]| Imatrix::parse(&gguf("imatrix", tensors)).unwrap_err();
    let (sums, counts) =
        (("w.in_sum2", 0, &[2u64][..], &[1.0f32, 2.0][..]), ("w.counts", 0, &[1u64][..], &[1.0f32][..]));
    for tensors in [
        &[sums][..],
        &[counts],
        &[sums, ("w.counts", 0, &[3], &[1.0; 3])],
        &[("w.in_sum2", 1, &[2], &[1.0, 2.0]), counts],
        &[("w.in_sum2", 0, &[2], &[1.0, f32::NAN]), counts],
        &[("w.in_sum2", 0, &[2], &[1.0, -1.0]), counts],
    ] {
        assert!(matches!(bad(tensors), ImatrixError::Entry { .. }), "{tensors:?}");
    }
    assert!(matches!(
        bad(&[("w.in_sum2", 0, &[1 << 40, 1 << 40], &[1.0]), counts]),
        ImatrixError::Short { .. }
    ));
    // Many tensors that claim the same bytes.
    let claims: Vec<_> = (0..64).map(|_| ("w.in_sum2", 0u32, &[64u64][..], &[][..])).collect();
    assert!(matches!(bad(&claims), ImatrixError::Short { .. } | ImatrixError::Entry { .. }));
}

#[test]
fn cut_and_mutated_files_never_panic() {
    for file in [binary(), whole()] {
        for length in 0..file.len() {
            _ = Imatrix::parse(&file[..length]);
        }
        let mut read = 0;
        for seed in 0..20_000 {
            let mut stream = Stream::new(seed);
            let mut hostile = file.clone();
            for _ in 0..=stream.below(3) {
                let at = stream.below(hostile.len() as u64) as usize;
                match stream.below(3) {
                    0 => hostile[at] ^= 1 << stream.below(8),
                    1 => hostile[at] = [0xff, 0x7f, 0x80, 0][stream.below(4) as usize],
                    _ => hostile.truncate(at.max(4)),
                }
            }
            read += usize::from(Imatrix::parse(&hostile).is_ok());
        }
        assert!(read > 100, "some changes are harmless: {read}");
    }
}
