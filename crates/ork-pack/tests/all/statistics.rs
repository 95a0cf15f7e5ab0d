// SPDX-License-Identifier: MIT OR Apache-2.0
//! The statistics file.

use std::path::Path;

use ork_corpus::{Corpus, Origin};
use ork_pack::{CalibrationRun, Hash, PackError, SourceSample, StatisticsFile, save_statistics};
use ork_quant::{Collect, Statistics, TensorStatistics};
use ork_testkit::Stream;

fn rows(seed: u64, k: usize) -> Vec<f32> {
    Stream::new(seed).f32s_unit(9 * k)
}

/// K = 300 takes two bands.
fn partial(batches: u64) -> Statistics {
    let mut statistics = Statistics { position: batches, ..Statistics::default() };
    for name in ["blk.0.attn_k.weight", "blk.0.attn_v.weight"] {
        statistics.shared.insert(name.into(), "blk.0.attn_q.weight".into());
    }
    for (name, k, collect) in
        [("blk.0.attn_q.weight", 300, Collect::Hessian), ("blk.0.ffn_down.weight", 40, Collect::Sums)]
    {
        let mut tensor = TensorStatistics::new(k, collect);
        (0..batches).for_each(|batch| tensor.add_rows(&rows(batch, k)).unwrap());
        statistics.tensors.insert(name.into(), tensor);
    }
    statistics
}

fn text() -> Origin {
    Corpus::from_text("calibration.txt", "What the model reads. ".repeat(40)).unwrap().whole().origin()
}

fn run() -> CalibrationRun {
    CalibrationRun {
        model: SourceSample { bytes: 12345, hash: Hash::of(b"sample") },
        text: text(),
        window_tokens: 512,
        tokens: 5,
    }
}

fn save(statistics: &Statistics, path: &Path) {
    save_statistics(statistics, &run(), path).unwrap();
}

fn load(path: &Path) -> Result<Statistics, PackError> {
    StatisticsFile::open(path)?.all()
}

fn parse(bytes: &[u8]) -> Result<Statistics, PackError> {
    StatisticsFile::from_bytes(bytes.to_vec())?.all()
}

#[test]
fn calibration_is_resumed_to_the_same_sums() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.orkstat");
    for (collected, name) in [(0, "empty"), (3, "partial")] {
        save(&partial(collected), &path);
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
    save(&resumed, &path);
    assert_eq!(load(&path).unwrap(), partial(5));
    let file = StatisticsFile::open(&path).unwrap();
    assert_eq!((file.run(), file.position(), file.is_complete()), (&run(), 5, true));
    let (key, query) = ("blk.0.attn_v.weight", "blk.0.attn_q.weight");
    assert_eq!(file.entry(key), Some((query, 300, Collect::Hessian)));
    assert_eq!(file.tensor(key).unwrap().as_ref(), partial(5).tensors.get(query));
    assert_eq!((file.entry("output.weight"), file.tensor("output.weight").unwrap()), (None, None));
    save(&Statistics::default(), &path);
    assert_eq!(load(&path).unwrap(), Statistics::default());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no partial file is left");
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut small = partial(2);
    small.tensors.remove("blk.0.attn_q.weight");
    small.shared.clear();
    save(&small, &path);
    let file = std::fs::read(&path).unwrap();
    let mut stream = Stream::new(61);
    for place in 0..file.len() {
        let mut damaged = file.clone();
        damaged[place] ^= 1 << stream.below(8);
        assert!(parse(&damaged).is_err(), "byte {place}");
    }
    for length in (0..file.len()).step_by(97) {
        assert!(parse(&file[..length]).is_err(), "{length} bytes");
    }
    assert!(matches!(parse(b"ORKPACK\0"), Err(PackError::Foreign { .. })));
}

#[test]
fn hostile_headers_never_panic_or_reserve() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    save(&partial(1), &path);
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
        ("blk.0.attn_k.weight", "blk.0.attn_v.weight"),
        ("blk.0.attn_k.weight", "blk.0.ffn_down.weight"),
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
        assert!(matches!(parse(&new), Err(PackError::Damaged { .. })), "{from} -> {to}");
    }
}
