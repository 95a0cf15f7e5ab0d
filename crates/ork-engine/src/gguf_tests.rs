// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::llama::type_layout;
use crate::tiny::TinyModel;

fn check(bytes: &[u8]) -> Result<Summary, FileProblem> {
    inspect_reader(bytes, bytes.len() as u64, &type_layout)
}

#[test]
fn a_good_file_is_summarised() {
    let bytes = TinyModel::default().bytes();
    let summary = check(&bytes).unwrap();
    assert_eq!((summary.version, summary.tensors, summary.file_bytes), (3, 20, bytes.len() as u64));
    assert_eq!(summary.architecture.as_deref(), Some("llama"));
    assert_eq!(summary.tensor_types, BTreeMap::from([("f32".to_owned(), 5), ("q8_0".to_owned(), 15)]));
    assert!(summary.data_offset > 0 && summary.data_offset < summary.file_bytes);
}

#[test]
fn every_cut_is_noticed() {
    let bytes = TinyModel::default().bytes();
    let data = usize::try_from(check(&bytes).unwrap().data_offset).unwrap();
    for len in (0..data).step_by(7).chain([data, data + 1, bytes.len() - 4096, bytes.len() - 1]) {
        match check(&bytes[..len]) {
            Err(FileProblem::Truncated { missing_bytes, expected_bytes, .. }) => {
                assert_eq!(expected_bytes, len as u64 + missing_bytes);
                if len >= data {
                    assert_eq!(expected_bytes, bytes.len() as u64);
                }
            }
            Err(FileProblem::Empty) => assert_eq!(len, 0),
            Err(FileProblem::NotGguf { .. }) => assert!(len < 4),
            other => panic!("cut at {len}: {other:?}"),
        }
    }
}

#[test]
fn other_files_are_named() {
    let mut safetensors = 64u64.to_le_bytes().to_vec();
    safetensors.extend(br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#);
    assert!(matches!(check(&safetensors), Err(FileProblem::Safetensors)));
    assert!(matches!(check(b""), Err(FileProblem::Empty)));
    match check(b"PK\x03\x04 a zip file") {
        Err(FileProblem::NotGguf { start }) => assert_eq!(start, "PK\\x03\\x04"),
        other => panic!("{other:?}"),
    }
    let mut version = b"GGUF".to_vec();
    version.extend(9u32.to_le_bytes());
    assert!(matches!(check(&version), Err(FileProblem::Version { version: 9 })));
    let mut big = b"GGUF".to_vec();
    big.extend(3u32.to_be_bytes());
    assert!(matches!(check(&big), Err(FileProblem::BigEndian)));
}

#[test]
fn absurd_counts_are_refused_before_memory_is_asked_for() {
    let mut bytes = TinyModel::default().bytes();
    bytes[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(check(&bytes), Err(FileProblem::Damaged { offset: 16, .. })));
    let mut bytes = TinyModel::default().bytes();
    // Length of the first key.
    bytes[24..32].copy_from_slice(&(1u64 << 40).to_le_bytes());
    assert!(matches!(check(&bytes), Err(FileProblem::Damaged { .. })));
}

#[test]
fn unknown_types_are_named() {
    let bytes = TinyModel::default().bytes();
    let only_f32 = |code: u32| type_layout(code).filter(|layout| layout.name == "f32");
    match inspect_reader(bytes.as_slice(), bytes.len() as u64, &only_f32) {
        Err(FileProblem::UnknownTensorType { tensor, type_code: 8 }) => {
            assert_eq!(tensor, "token_embd.weight")
        }
        other => panic!("{other:?}"),
    }
}

/// Random damage must end in a value, never in a panic or in memory without bound; and it must often be noticed.
#[test]
fn random_damage() {
    let good = TinyModel::default().bytes();
    let data = usize::try_from(check(&good).unwrap().data_offset).unwrap();
    let mut state = 0x1234_5678_9ABC_DEF1u64;
    let mut next = |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % bound
    };
    let mut noticed = 0;
    const ROUNDS: u32 = 3000;
    for _ in 0..ROUNDS {
        let mut bytes = good.clone();
        for _ in 0..=next(4) {
            let at = next(data);
            match next(4) {
                0 => bytes[at] ^= 1 << next(8),
                1 => bytes[at] = next(256) as u8,
                2 => bytes[at..at + 8].copy_from_slice(&(next(1 << 40) as u64).to_le_bytes()),
                _ => bytes.truncate(next(good.len())),
            }
            if bytes.len() < data + 8 {
                break;
            }
        }
        noticed += u32::from(check(&bytes).is_err());
    }
    assert!(noticed > ROUNDS / 4, "only {noticed} of {ROUNDS}");
}

#[test]
fn types_have_sizes_by_name() {
    assert_eq!(crate::type_bytes("q8_0", 64), Some(68));
    assert_eq!(crate::type_bytes("f16", 3), Some(6));
    assert_eq!(crate::type_bytes("q4_K", 512), Some(288));
    assert_eq!(crate::type_bytes("nothing", 64), None);
}
