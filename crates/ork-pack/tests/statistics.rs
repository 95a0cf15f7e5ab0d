// SPDX-License-Identifier: MIT OR Apache-2.0
//! The statistics file.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;

use ork_pack::{PackError, load_statistics, parse_statistics, save_statistics};
use ork_quant::{Collect, Statistics, TensorStatistics};
use ork_testkit::Stream;

fn rows(seed: u64, k: usize) -> Vec<f32> {
    Stream::new(seed).f32s_unit(9 * k)
}

/// K = 300 takes two bands.
fn partial(batches: u64) -> Statistics {
    let mut statistics =
        Statistics { position: batches, text: "calibration.txt".into(), ..Statistics::default() };
    for (name, k, collect) in
        [("blk.0.attn_q.weight", 300, Collect::Hessian), ("blk.0.ffn_down.weight", 40, Collect::Sums)]
    {
        let mut tensor = TensorStatistics::new(k, collect);
        (0..batches).for_each(|batch| tensor.add_rows(&rows(batch, k)).unwrap());
        statistics.tensors.insert(name.into(), tensor);
    }
    statistics
}

fn load(path: &Path) -> Result<Statistics, PackError> {
    load_statistics(path)
}

#[test]
fn calibration_is_resumed_to_the_same_sums() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.orkstat");
    for (collected, name) in [(0, "empty"), (3, "partial")] {
        save_statistics(&partial(collected), &path).unwrap();
        assert_eq!(load(&path).unwrap(), partial(collected), "{name}");
    }
    let mut resumed = load(&path).unwrap();
    for batch in resumed.position..5 {
        for tensor in resumed.tensors.values_mut() {
            tensor.add_rows(&rows(batch, tensor.k())).unwrap();
        }
        resumed.position += 1;
    }
    assert_eq!(resumed, partial(5));
    save_statistics(&resumed, &path).unwrap();
    assert_eq!(load(&path).unwrap(), partial(5));
    save_statistics(&Statistics::default(), &path).unwrap();
    assert_eq!(load(&path).unwrap(), Statistics::default());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no partial file is left");
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut small = partial(2);
    small.tensors.remove("blk.0.attn_q.weight");
    save_statistics(&small, &path).unwrap();
    let file = std::fs::read(&path).unwrap();
    let mut stream = Stream::new(61);
    for place in 0..file.len() {
        let mut damaged = file.clone();
        damaged[place] ^= 1 << stream.below(8);
        assert!(parse_statistics(&damaged).is_err(), "byte {place}");
    }
    for length in (0..file.len()).step_by(97) {
        assert!(parse_statistics(&file[..length]).is_err(), "{length} bytes");
    }
    assert!(matches!(parse_statistics(b"ORKPACK\0"), Err(PackError::Foreign { .. })));
}

#[test]
fn hostile_headers_never_panic_or_reserve() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    save_statistics(&partial(1), &path).unwrap();
    let file = std::fs::read(&path).unwrap();
    let offset = u64::from_le_bytes(file[32..40].try_into().unwrap()) as usize;
    let header = String::from_utf8(file[offset..].to_vec()).unwrap();
    for (from, to) in [
        ("\"k\":300", "\"k\":4294967295"),
        ("\"k\":300", "\"k\":0"),
        ("\"k\":300", "\"k\":301"),
        ("\"k\":40", "\"k\":18446744073709551615"),
        ("\"collect\":\"hessian\"", "\"collect\":\"sums\""),
        ("\"collect\":\"sums\"", "\"collect\":\"hessian\""),
        ("blk.0.ffn_down.weight", "blk.0.attn_q.weight"),
        ("blk.0.attn_q.weight", ""),
        ("\"position\":1", "\"position\":-1"),
        ("\"bytes\":480", "\"bytes\":481"),
        ("\"offset\":4096", "\"offset\":0"),
    ] {
        assert!(header.contains(from), "{from} is in {header}");
        let hostile = header.replacen(from, to, 1);
        let mut new = file[..offset].to_vec();
        new.extend_from_slice(hostile.as_bytes());
        let length = new.len() as u64;
        new[24..32].copy_from_slice(&length.to_le_bytes());
        new[40..48].copy_from_slice(&(hostile.len() as u64).to_le_bytes());
        new[48..80].copy_from_slice(&ork_pack::Hash::of(hostile.as_bytes()).0);
        let hash = ork_pack::Hash::of(&new[..96]);
        new[96..128].copy_from_slice(&hash.0);
        assert!(matches!(parse_statistics(&new), Err(PackError::Damaged { .. })), "{from} -> {to}");
    }
}
