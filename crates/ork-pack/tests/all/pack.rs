// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing, reading, continuing, refusing.

use crate::common;
use std::path::Path;

use common::{K, SMALL_PARTS, made, plan, source, write_all, write_next};
use ork_layout::{Format, WeightLayout};
use ork_pack::{
    Difference, Discrepancy, Expected, LAYOUT, NewTensor, Pack, PackError, PackWriter, WriteOptions, census,
    diff, info, verify,
};
use ork_quant::{Codebook, Scheme, StepKind, inflate, quantise_row};
use ork_testkit::Stream;

fn expected<'a>() -> Expected<'a> {
    Expected { soc: "RK3588", layout: LAYOUT, source: None }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn what_is_written_is_read() {
    for (options, files) in [(WriteOptions::default(), 1), (SMALL_PARTS, 4)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.orkpack");
        let plan = plan(3);
        let written = write_all(&path, plan.clone(), options);
        assert_eq!((written.files.len(), written.tensors), (files, 9));
        assert_eq!(names(folder.path()).len(), files, "nothing else is left: {:?}", names(folder.path()));
        for file in &written.files {
            assert!(std::fs::metadata(file).unwrap().len() <= options.part_bytes_max);
        }
        let sample = source().sample;
        let pack = Pack::open(&path, &Expected { source: Some(&sample), ..expected() }).unwrap();
        assert_eq!((pack.version(), pack.writer(), pack.source()), (plan.version(), "test 1", &source()));
        assert_eq!(pack.plan(), plan.hash().unwrap());
        assert_eq!(pack.files().map(|(_, bytes)| bytes).sum::<u64>(), written.bytes);
        assert_eq!(census(&plan, &pack), []);
        pack.check(&plan).unwrap();
        for (request, tensor) in plan.tensors.iter().zip(pack.tensors()) {
            let (weight, basis) = made(request);
            let entry = tensor.entry();
            assert_eq!(
                (&entry.name, entry.k, entry.n, &entry.scheme),
                (&request.name, K, request.n, &request.scheme)
            );
            assert_eq!(tensor.data(), weight.data);
            assert_eq!(tensor.data().as_ptr().addr() % 4096, 0, "page-aligned in memory");
            assert_eq!(tensor.scales().unwrap(), weight.scales);
            assert_eq!(tensor.basis().unwrap(), basis);
            assert_eq!(entry.is_plain(), request.scheme.basis.is_empty());
            let (file, offset, bytes) = tensor.place();
            let file = std::fs::read(file).unwrap();
            assert_eq!(file[offset as usize..][..bytes as usize], weight.data);
            assert_eq!(pack.tensor(&request.name).unwrap().entry(), entry);
        }
        assert!(pack.tensor("blk.9.attn_q.weight").is_none());
        let verification = verify(&pack);
        assert_eq!(
            (verification.tensors, verification.bytes, &verification.damages[..]),
            (9, written.bytes, &[][..])
        );
        let info = info(&pack);
        assert_eq!((info.tensors, info.weights), (9, 3 * u64::from(K) * (64 + 65 + 66)));
        let schemes: Vec<_> = info.schemes.keys().map(String::as_str).collect();
        assert_eq!(schemes, ["i4a8-nf4+imatrix", "w4a4+smooth+signs+rotate+clip", "w8a8"]);
        assert!(info.bits_per_weight > 5.0 && info.bits_per_weight < 10.0, "{}", info.bits_per_weight);
    }
}

#[test]
fn tiles_hold_the_codes() {
    let layout = WeightLayout::new(Format::INT8_INT32, 150, 70, &[64, 96]).unwrap();
    let row = |n: usize| Stream::lane(5, n as u32).f32s_unit(150);
    let rows = |n: usize, out: &mut [f32]| out.copy_from_slice(&row(n));
    let weight = ork_pack::tile_w8a8(&layout, &rows).unwrap();
    let mut codes = [0i8; 150];
    let mut back = [0i8; 150];
    for n in 0..70 {
        let scale = quantise_row(&row(n), &mut codes).unwrap();
        layout.unpack_channel(n as u32, &weight.data, &mut back);
        assert_eq!((back, weight.scales[n]), (codes, scale), "channel {n}");
    }
    let codes: Vec<i8> = (0..70)
        .flat_map(|n| {
            let mut codes = vec![0i8; 150];
            quantise_row(&row(n), &mut codes).unwrap();
            codes
        })
        .collect();
    assert_eq!(ork_pack::tile_codes(&layout, &codes), weight.data);
    // Stored int4 inflates to tiles whose padding is zero, also where the nibble of zero is 7.
    for codebook in [Codebook::Uniform, Codebook::Nf4] {
        for method in [ork_quant::Method::Nearest, ork_quant::Method::Stochastic] {
            let weight = ork_pack::tile_i4a8(&layout, codebook, method, None, &rows).unwrap();
            let mut tiles = vec![0i8; layout.bytes() as usize];
            inflate(&weight.data, codebook, &mut tiles);
            let tiles: Vec<u8> = tiles.iter().map(|code| code.cast_unsigned()).collect();
            let mut draws = ork_quant::XorShift32::new();
            let mut nibbles = [0u8; 150];
            let mut cleared = tiles.clone();
            layout.clear_padding(&mut cleared);
            assert_eq!(cleared, tiles);
            let total: usize = tiles.iter().filter(|byte| **byte != 0).count();
            let mut real = 0;
            for n in 0..70 {
                let mut rounding = match method {
                    ork_quant::Method::Stochastic => ork_quant::Rounding::Stochastic(&mut draws),
                    _ => ork_quant::Rounding::Nearest,
                };
                ork_quant::quantise_stored_row(
                    &row(n),
                    codebook,
                    ork_quant::StoredClip::AbsMax,
                    &mut rounding,
                    &mut nibbles,
                )
                .unwrap();
                layout.unpack_channel(n as u32, &tiles, &mut back);
                let wanted = nibbles.map(|nibble| codebook.int8()[usize::from(nibble)]);
                assert_eq!(back, wanted, "channel {n}");
                real += wanted.iter().filter(|code| **code != 0).count();
            }
            assert_eq!(total, real, "padding inflates to zero");
        }
    }
    // And so do groups, of which the last of a row is not full and channels beyond N have empty ones.
    let grouped = ork_pack::tile_grouped(&layout, None, &rows).unwrap();
    let mut tiles = vec![0i8; layout.bytes() as usize];
    ork_quant::inflate_groups(&grouped.data, &mut tiles);
    let tiles: Vec<u8> = tiles.iter().map(|code| code.cast_unsigned()).collect();
    let mut packed = vec![0u8; tiles.len()];
    for n in 0..70 {
        let mut groups = [[0; ork_quant::GROUP_BYTES]; 5];
        let scale = ork_quant::quantise_grouped_row(&row(n), None, &mut groups).unwrap();
        assert_eq!(grouped.scales[n], scale);
        let mut codes = [0i8; 160];
        ork_quant::inflate_groups(groups.as_flattened(), &mut codes);
        layout.pack_channel(n as u32, &codes[..150], &mut packed);
    }
    assert!(tiles == packed, "the tiles of the inflated codes");
    assert!(ork_pack::tile_i4a8(&layout, Codebook::Nf4, ork_quant::Method::Gptq, None, &rows).is_err());
    let poisoned = |n: usize, out: &mut [f32]| {
        rows(n, out);
        if n == 33 {
            out[7] = f32::NAN;
        }
    };
    let error = ork_pack::tile_w8a8(&layout, &poisoned).unwrap_err();
    assert!(error.to_string().contains("row 33"), "{error}");
}

#[test]
fn an_unfinished_pack_is_continued_to_the_same_bytes() {
    for options in [WriteOptions::default(), SMALL_PARTS] {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join("whole.orkpack");
        let broken = folder.path().join("broken.orkpack");
        write_all(&whole, plan(2), options);
        for stops in 0..=6 {
            for steps in 0..7 {
                let mut writer = PackWriter::open(&broken, plan(2), options).unwrap();
                if writer.tensors_written() > stops {
                    drop(writer);
                    break;
                }
                if steps == 0 {
                    assert_eq!(writer.tensors_written(), stops.saturating_sub(1));
                }
                if writer.tensors_written() == stops || writer.next_request().is_none() {
                    drop(writer);
                    break;
                }
                write_next(&mut writer);
                drop(writer);
                assert!(Pack::open_any(&broken).is_err(), "half-written");
                for name in names(folder.path()).iter().filter(|name| name.contains("partial")) {
                    assert!(Pack::open_any(&folder.path().join(name)).is_err(), "{name}");
                }
            }
        }
        let written = PackWriter::open(&broken, plan(2), options).unwrap().finish().unwrap();
        for (index, file) in written.files.iter().enumerate() {
            let same = if index == 0 {
                whole.clone()
            } else {
                folder.path().join(format!("whole.orkpack.{:03}", index + 1))
            };
            assert_eq!(std::fs::read(file).unwrap(), std::fs::read(same).unwrap(), "part {index}");
        }
    }
}

#[test]
fn a_damaged_partial_file_loses_only_what_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.orkpack");
    let mut writer = PackWriter::open(&path, plan(2), WriteOptions::default()).unwrap();
    (0..4).for_each(|_| write_next(&mut writer));
    drop(writer);
    let partial = folder.path().join("m.orkpack.partial");
    let mut bytes = std::fs::read(&partial).unwrap();
    // The third tensor, somewhere in its data: tensors one and two stay.
    let third = bytes.len() / 2;
    bytes[third] ^= 1;
    std::fs::write(&partial, &bytes).unwrap();
    let writer = PackWriter::open(&path, plan(2), WriteOptions::default()).unwrap();
    let kept = writer.tensors_written();
    assert!((1..4).contains(&kept), "{kept}");
    drop(writer);
    // A torn journal line counts as not written.
    let journal = folder.path().join("m.orkpack.journal");
    let text = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, &text[..text.len() - 3]).unwrap();
    let mut writer = PackWriter::open(&path, plan(2), WriteOptions::default()).unwrap();
    assert_eq!(writer.tensors_written(), kept - 1);
    while writer.next_request().is_some() {
        write_next(&mut writer);
    }
    writer.finish().unwrap();
    let pack = Pack::open(&path, &expected()).unwrap();
    assert_eq!(verify(&pack).damages, []);
    pack.check(&plan(2)).unwrap();
}

#[test]
fn another_plan_and_another_writer_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.orkpack");
    let mut writer = PackWriter::open(&path, plan(1), WriteOptions::default()).unwrap();
    write_next(&mut writer);
    let busy = PackWriter::open(&path, plan(1), WriteOptions::default()).unwrap_err();
    assert!(matches!(busy, PackError::Busy { .. }), "{busy}");
    drop(writer);
    let other = PackWriter::open(&path, plan(2), WriteOptions::default()).unwrap_err();
    let text = other.to_string();
    assert!(
        text.contains(&plan(1).hash().unwrap().short()) && text.contains(&plan(2).hash().unwrap().short()),
        "{text}"
    );
    assert!(matches!(PackWriter::open(&path, plan(1), SMALL_PARTS), Err(PackError::OtherPlan { .. })));
    // And the same plan may still go on.
    assert_eq!(PackWriter::open(&path, plan(1), WriteOptions::default()).unwrap().tensors_written(), 1);
}

#[test]
fn only_what_was_asked_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.orkpack");
    let mut writer = PackWriter::open(&path, plan(1), WriteOptions::default()).unwrap();
    let request = writer.next_request().unwrap().clone();
    let (weight, basis) = made(&request);
    let good = NewTensor {
        scheme: &request.scheme,
        layout: &weight.layout,
        basis: &basis,
        data: &weight.data,
        scales: &weight.scales,
    };
    let gptq = Scheme { method: ork_quant::Method::Gptq, ..request.scheme.clone() };
    let rotated = ork_quant::Basis::new(K as usize, vec![ork_quant::Step::Rotate]).unwrap();
    let narrow = ork_quant::Basis::identity(32).unwrap();
    let cut = ork_pack::TensorLayout { k_slices: vec![64], ..weight.layout.clone() };
    let empty = ork_pack::TensorLayout { k_slices: vec![K, 0], ..weight.layout.clone() };
    for (what, bad) in [
        ("scheme", NewTensor { scheme: &gptq, ..good }),
        ("basis", NewTensor { basis: &rotated, ..good }),
        ("channels", NewTensor { basis: &narrow, ..good }),
        ("data", NewTensor { data: &weight.data[1..], ..good }),
        ("scales", NewTensor { scales: &weight.scales[1..], ..good }),
        ("layout", NewTensor { layout: &cut, ..good }),
        ("slices", NewTensor { layout: &empty, ..good }),
    ] {
        let error = writer.write(&bad).unwrap_err();
        assert!(matches!(&error, PackError::Tensor { name, .. } if *name == request.name), "{what}: {error}");
    }
    writer.write(&good).unwrap();
    // Not finished: the census says what is missing, nothing loads, and the writer may go on.
    let PackError::Census(missing) = writer.finish().unwrap_err() else { panic!("a census") };
    assert_eq!(missing.len(), 2);
    assert!(matches!(&missing[0], Discrepancy::Missing { name } if name == "blk.0.ffn_down.weight"));
    assert!(Pack::open_any(&path).is_err());
    let mut writer = PackWriter::open(&path, plan(1), WriteOptions::default()).unwrap();
    assert_eq!(writer.tensors_written(), 1);
    write_next(&mut writer);
    write_next(&mut writer);
    assert!(writer.write(&good).unwrap_err().to_string().contains("no more tensors"));
    writer.finish().unwrap();

    let mut twice = plan(1);
    twice.tensors.push(twice.tensors[0].clone());
    let mut nameless = plan(1);
    nameless.tensors[1].name = "a\nb".into();
    let mut flat = plan(1);
    flat.tensors[2].n = 0;
    for bad in [twice, nameless, flat] {
        let path = folder.path().join("other.orkpack");
        assert!(matches!(
            PackWriter::open(&path, bad, WriteOptions::default()),
            Err(PackError::Tensor { .. })
        ));
    }
    let path = folder.path().join("tiny.orkpack");
    let mut writer = PackWriter::open(&path, plan(1), WriteOptions { part_bytes_max: 8192 }).unwrap();
    assert!(matches!(writer.write(&good), Err(PackError::Tensor { .. })), "no file is large enough");
}

#[test]
fn the_census_finds_every_difference() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.orkpack");
    write_all(&path, plan(1), WriteOptions::default());
    let pack = Pack::open_any(&path).unwrap();
    let mut asked = plan(1);
    asked.tensors[0].n += 1;
    asked.tensors[1].scheme = Scheme::w8a8();
    asked.tensors[2].name = "blk.7.ffn_down.weight".into();
    let found = census(&asked, &pack);
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(matches!(&found[0], Discrepancy::Shape { asked: (96, 65), found: (96, 64), .. }));
    assert!(matches!(&found[1], Discrepancy::Scheme { .. }));
    assert!(matches!(&found[2], Discrepancy::Unasked { name } if name == "blk.0.ffn_down.weight"));
    assert!(matches!(&found[3], Discrepancy::Missing { name } if name == "blk.7.ffn_down.weight"));
    let error = pack.check(&asked).unwrap_err().to_string();
    assert!(error.contains("4 of") && error.contains("96 x 64"), "{error}");
}

#[test]
fn other_uses_are_refused_with_both_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.orkpack");
    write_all(&path, plan(1), WriteOptions::default());
    let refusal = |wanted: Expected<'_>| Pack::open(&path, &wanted).unwrap_err().to_string();
    let soc = refusal(Expected { soc: "RK3576", ..expected() });
    assert!(soc.contains("SoC `RK3588`") && soc.contains("`RK3576`"), "{soc}");
    let layout = refusal(Expected { layout: "kernel-groups-2", ..expected() });
    assert!(layout.contains(LAYOUT) && layout.contains("kernel-groups-2"), "{layout}");
    let mut sample = source().sample;
    sample.bytes += 1;
    let model = refusal(Expected { source: Some(&sample), ..expected() });
    assert!(model.contains("model.gguf (12345 bytes") && model.contains("12346 bytes"), "{model}");
    // A version that is newer, in either number, before anything else of it is believed.
    let bytes = std::fs::read(&path).unwrap();
    for (place, number, version) in [(8, 2, "2.0"), (10, 2, "1.2")] {
        let mut newer = bytes.clone();
        newer[place] = number;
        let error = Pack::from_bytes(vec![newer]).unwrap_err();
        assert!(matches!(error, PackError::Version { .. }));
        let text = error.to_string();
        assert!(text.contains(version) && text.contains("reads 1.1"), "{text}");
    }
    std::fs::write(&path, b"").unwrap();
    assert!(matches!(Pack::open_any(&path), Err(PackError::Foreign { .. })));
    std::fs::write(&path, b"GGUF and so on").unwrap();
    assert!(matches!(Pack::open_any(&path), Err(PackError::Foreign { .. })));
    assert!(matches!(Pack::open_any(&folder.path().join("none")), Err(PackError::Io { .. })));
}

#[test]
fn parts_of_different_packs_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("one.orkpack"), folder.path().join("two.orkpack"));
    write_all(&one, plan(2), SMALL_PARTS);
    let mut second = plan(2);
    second.source.content = ork_pack::Hash::of(b"another model");
    write_all(&other, second, SMALL_PARTS);
    let swap = |name: &str| folder.path().join(name);
    let kept = std::fs::read(swap("one.orkpack.002")).unwrap();
    std::fs::copy(swap("two.orkpack.002"), swap("one.orkpack.002")).unwrap();
    let error = Pack::open_any(&one).unwrap_err();
    assert!(error.to_string().contains("does not belong to"), "{error}");
    std::fs::copy(swap("one.orkpack.003"), swap("one.orkpack.002")).unwrap();
    assert!(matches!(Pack::open_any(&one), Err(PackError::Damaged { .. })));
    std::fs::remove_file(swap("one.orkpack.002")).unwrap();
    assert!(matches!(Pack::open_any(&one), Err(PackError::Io { .. })));
    std::fs::write(swap("one.orkpack.002"), kept).unwrap();
    Pack::open_any(&one).unwrap();
    // A smaller pack of the same name takes the parts of the larger away.
    write_all(&one, plan(1), WriteOptions::default());
    assert!(!swap("one.orkpack.002").exists() && !swap("one.orkpack.003").exists());
    Pack::open_any(&one).unwrap();
}

#[test]
fn diff_names_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let one = folder.path().join("one.orkpack");
    write_all(&one, plan(1), WriteOptions::default());
    let first = Pack::open_any(&one).unwrap();
    assert_eq!(diff(&first, &first), []);
    let mut changed = plan(1);
    changed.writer = "test 2".into();
    changed.tensors[1].scheme.clip = ork_quant::ClipRule::AbsMax;
    changed.tensors.remove(0);
    changed.tensors[1].n = 63;
    let mut more = changed.tensors[0].clone();
    more.name = "output.weight".into();
    changed.tensors.push(more);
    let two = folder.path().join("two.orkpack");
    write_all(&two, changed, WriteOptions::default());
    let second = Pack::open_any(&two).unwrap();
    let found = diff(&first, &second);
    assert_eq!(found.len(), 5, "{found:?}");
    assert!(matches!(&found[0], Difference::Writer(a, b) if a == "test 1" && b == "test 2"));
    assert!(matches!(&found[1], Difference::OnlyFirst(name) if name == "blk.0.attn_q.weight"));
    assert!(matches!(&found[2], Difference::Scheme(name, ..) if name == "blk.0.ffn_up.weight"));
    assert!(matches!(&found[3], Difference::Shape(_, (96, 64), (96, 63))));
    assert!(matches!(&found[4], Difference::OnlySecond(name) if name == "output.weight"));
    for difference in &found {
        assert!(!difference.to_string().is_empty());
    }
    // Same headers otherwise, other weights: the contents differ.
    let three = folder.path().join("three.orkpack");
    let mut writer = PackWriter::open(&three, plan(1), WriteOptions::default()).unwrap();
    while let Some(request) = writer.next_request().cloned() {
        let (mut weight, basis) = made(&request);
        if request.scheme.basis.contains(&StepKind::Rotate) {
            weight.data[5] ^= 0x10;
        } else {
            weight.scales[3] = ork_quant::Scale::new(0.25).unwrap();
        }
        common::write(&mut writer, &request, &weight, &basis);
    }
    writer.finish().unwrap();
    let found = diff(&first, &Pack::open_any(&three).unwrap());
    let kinds: Vec<bool> =
        found.iter().map(|difference| matches!(difference, Difference::Codes(_))).collect();
    assert_eq!(kinds, [false, false, true], "{found:?}");
}

#[test]
fn samples_tell_models_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let mut sizes = std::collections::HashSet::new();
    for length in [0, 1, 1000, (64 << 10) + 1, 3 << 20] {
        let mut model = Stream::new(9).bytes(length);
        std::fs::write(&path, &model).unwrap();
        let id = ork_pack::SourceId::of(&path).unwrap();
        assert_eq!((id.sample, id.name.as_str()), (ork_pack::SourceSample::of(&path).unwrap(), "m.gguf"));
        assert_eq!((id.sample.bytes, id.content), (length as u64, ork_pack::Hash::of(&model)));
        assert!(sizes.insert(id.sample.hash));
        for place in [0, length / 2, length.saturating_sub(1)].into_iter().filter(|_| length > 0) {
            model[place] ^= 0x40;
            std::fs::write(&path, &model).unwrap();
            let other = ork_pack::SourceId::of(&path).unwrap();
            assert_ne!(other.content, id.content);
            if place == 0 || place == length - 1 {
                assert_ne!(other.sample, id.sample, "{place} of {length}");
            }
            model[place] ^= 0x40;
        }
    }
    assert!(ork_pack::SourceId::of(&folder.path().join("none")).is_err());
}

#[test]
fn a_writer_that_ended_between_renames_is_completed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.orkpack");
    let mut writer = PackWriter::open(&path, plan(2), SMALL_PARTS).unwrap();
    while writer.next_request().is_some() {
        write_next(&mut writer);
    }
    // A folder in the way of the second part: the third is renamed, the second is not, nor the first.
    let obstacle = folder.path().join("m.orkpack.002");
    std::fs::create_dir(&obstacle).unwrap();
    assert!(matches!(writer.finish(), Err(PackError::Io { doing: "rename", .. })));
    assert!(folder.path().join("m.orkpack.003").is_file());
    assert!(matches!(Pack::open_any(&path), Err(PackError::Io { .. })));
    std::fs::remove_dir(&obstacle).unwrap();
    let mut writer = PackWriter::open(&path, plan(2), SMALL_PARTS).unwrap();
    assert_eq!((writer.tensors_written(), writer.next_request()), (6, None));
    let request = &plan(2).tensors[0];
    let (weight, basis) = made(request);
    let late = NewTensor {
        scheme: &request.scheme,
        layout: &weight.layout,
        basis: &basis,
        data: &weight.data,
        scales: &weight.scales,
    };
    assert!(writer.write(&late).is_err());
    writer.finish().unwrap();
    let pack = Pack::open(&path, &expected()).unwrap();
    pack.check(&plan(2)).unwrap();
    assert_eq!(verify(&pack).damages, []);
    assert!(names(folder.path()).iter().all(|name| !name.contains("partial") && !name.contains("journal")));
}
