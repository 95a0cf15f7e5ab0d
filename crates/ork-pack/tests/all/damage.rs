// SPDX-License-Identifier: MIT OR Apache-2.0
//! Flipped bits, cut files, hostile headers.

use crate::common;
use common::{bytes, exercise};
use ork_pack::{Hash, Pack, PackError, verify};
use ork_testkit::Stream;

/// Fields of the first page (docs/reference/orkpack.md).
const FILE_BYTES: usize = 24;
const HEADER_OFFSET: usize = 32;
const HEADER_BYTES: usize = 40;
const HEADER_HASH: usize = 48;
const OWN_HASH: usize = 96;

fn header_offset(file: &[u8]) -> usize {
    u64::from_le_bytes(file[HEADER_OFFSET..][..8].try_into().unwrap()) as usize
}

/// Puts a new header in, and every length and checksum right: what an attacker would do.
fn with_header(file: &[u8], header: &[u8]) -> Vec<u8> {
    let offset = header_offset(file);
    let mut new = file[..offset].to_vec();
    new.extend_from_slice(header);
    new[FILE_BYTES..][..8].copy_from_slice(&((offset + header.len()) as u64).to_le_bytes());
    new[HEADER_BYTES..][..8].copy_from_slice(&(header.len() as u64).to_le_bytes());
    new[HEADER_HASH..][..32].copy_from_slice(&Hash::of(header).0);
    resealed(new)
}

/// Recomputes the checksum of the first page.
fn resealed(mut file: Vec<u8>) -> Vec<u8> {
    let hash = Hash::of(&file[..OWN_HASH]);
    file[OWN_HASH..][..32].copy_from_slice(&hash.0);
    file
}

#[test]
fn a_flipped_bit_is_found_wherever_it_is() {
    let file = bytes();
    let header = header_offset(&file);
    let mut stream = Stream::new(51);
    let (mut at_load, mut at_verify) = (0, 0);
    for place in 0..file.len() {
        // Every bit of the first fields and of the header's start, one bit of every other byte.
        let bits = if place < 160 {
            0..8
        } else {
            let bit = stream.below(8) as u32;
            bit..bit + 1
        };
        for bit in bits {
            let mut damaged = file.clone();
            damaged[place] ^= 1 << bit;
            match Pack::from_bytes(vec![damaged]) {
                Err(_) => at_load += 1,
                Ok(pack) => {
                    assert!((4096..header).contains(&place), "bit {bit} of byte {place} passed a header");
                    let found = verify(&pack).damages;
                    assert_eq!(found.len(), 1, "bit {bit} of byte {place}");
                    let damage = &found[0];
                    let section = damage.offset as usize..(damage.offset + damage.bytes) as usize;
                    assert!(section.contains(&place), "byte {place} is not in {section:?}: {}", damage.what);
                    at_verify += 1;
                }
            }
        }
    }
    assert!(at_load > 4096 && at_verify == header - 4096, "{at_load}, {at_verify}");
    assert_eq!(verify(&Pack::from_bytes(vec![file]).unwrap()).damages, []);
}

#[test]
fn a_cut_or_longer_file_does_not_load() {
    let file = bytes();
    for length in (0..file.len()).step_by(61).chain([127, 128, 4095, 4096, 4097, file.len() - 1]) {
        assert!(Pack::from_bytes(vec![file[..length].to_vec()]).is_err(), "{length} bytes");
    }
    let mut longer = file;
    longer.push(0);
    assert!(matches!(Pack::from_bytes(vec![longer]), Err(PackError::Damaged { .. })));
    assert!(Pack::from_bytes(vec![]).is_err());
}

#[test]
fn fields_of_the_first_page_are_not_believed() {
    let file = bytes();
    for field in [12, 16, 20, FILE_BYTES, HEADER_OFFSET, HEADER_BYTES, 80] {
        for value in [0u64, 1, 2, 4095, 4096, 4097, 8192, 1 << 20, u64::from(u32::MAX), 1 << 62, u64::MAX] {
            let mut hostile = file.clone();
            let width = if field < 24 { 4 } else { 8 };
            if hostile[field..][..width] == value.to_le_bytes()[..width] {
                continue;
            }
            hostile[field..][..width].copy_from_slice(&value.to_le_bytes()[..width]);
            let loaded = Pack::from_bytes(vec![resealed(hostile)]);
            assert!(loaded.is_err(), "field {field} = {value}");
        }
    }
}

/// One hostile change of a header.
fn mutated(header: &[u8], stream: &mut Stream) -> Vec<u8> {
    let mut new = header.to_vec();
    for _ in 0..=stream.below(3) {
        let at = stream.below(new.len() as u64) as usize;
        match stream.below(7) {
            0 => new[at] = stream.below(256) as u8,
            1 => new[at] ^= 1 << stream.below(8),
            2 => drop(new.drain(at..(at + stream.below(40) as usize).min(new.len()))),
            3 => {
                let piece: Vec<u8> = new[at..(at + stream.below(400) as usize).min(new.len())].to_vec();
                let to = stream.below(new.len() as u64) as usize;
                new.splice(to..to, piece);
            }
            4 => new.truncate(at.max(1)),
            // A digit becomes a number that nobody wants to add to another.
            5 => {
                if let Some(digit) = new[at..].iter().position(u8::is_ascii_digit) {
                    let numbers: [&[u8]; 8] = [
                        b"18446744073709551615",
                        b"4294967295",
                        b"9223372036854775808",
                        b"0",
                        b"-1",
                        b"1e308",
                        b"4096",
                        b"4294963199",
                    ];
                    let number = numbers[stream.below(8) as usize].to_vec();
                    let end = new[at + digit..].iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(0);
                    new.splice(at + digit..at + digit + end, number);
                }
            }
            _ => {
                let nested = [b"[".repeat(500), b"{\"a\":".repeat(300)][stream.below(2) as usize].clone();
                new.splice(at..at, nested);
            }
        }
        if new.is_empty() {
            new.push(b' ');
        }
    }
    new
}

#[test]
fn hostile_headers_never_panic() {
    let file = bytes();
    let header = file[header_offset(&file)..].to_vec();
    let mut loaded = 0;
    for seed in 0..20_000 {
        let mut stream = Stream::new(seed);
        let hostile = with_header(&file, &mutated(&header, &mut stream));
        if let Ok(pack) = Pack::from_bytes(vec![hostile]) {
            exercise(&pack);
            loaded += 1;
        }
    }
    // Some changes are harmless (a letter of the writer's name): the test reaches the code behind the checks.
    assert!(loaded > 20, "{loaded}");
}

#[test]
fn a_header_cannot_ask_for_what_is_not_there() {
    let file = bytes();
    let header: serde_json::Value = serde_json::from_slice(&file[header_offset(&file)..]).unwrap();
    let changed = |path: &str, value: serde_json::Value| {
        let mut header = header.clone();
        *header.pointer_mut(path).unwrap() = value;
        Pack::from_bytes(vec![with_header(&file, &serde_json::to_vec(&header).unwrap())])
    };
    use serde_json::json;
    assert!(changed("/writer", json!("someone else")).is_ok(), "the method works");
    for (path, value) in [
        ("/tensors/0/data/bytes", json!(u64::MAX)),
        ("/tensors/0/data/offset", json!(4096 * 7)),
        ("/tensors/0/data/offset", json!(u64::MAX)),
        ("/tensors/0/k", json!(0)),
        ("/tensors/0/k", json!(u32::MAX)),
        ("/tensors/0/n", json!(1)),
        ("/tensors/0/name", json!("")),
        ("/tensors/0/name", json!("a\u{7}b")),
        ("/tensors/0/name", json!("x".repeat(256))),
        ("/tensors/0/name", header["tensors"][1]["name"].clone()),
        ("/tensors/0/layout/k_slices", json!([])),
        ("/tensors/0/layout/k_slices", json!(vec![1; 5000])),
        ("/tensors/0/layout/n_padded", json!(u32::MAX)),
        ("/tensors/0/scheme/tier", json!({"kind": "w3a3"})),
        ("/tensors/0/scheme/basis", json!(["smooth"])),
        ("/tensors/2/scheme/basis", json!(["rotate"])),
        ("/tensors/2/scheme/basis", json!(["smooth", "smooth"])),
        ("/tensors/0/basis", json!("00")),
        ("/tensors/0/data/hash", json!("AB".repeat(32))),
        ("/plan", json!(Hash::of(b"another").to_string())),
        ("/parts", json!([{"file_bytes": 1, "header": Hash::of(b"x").to_string()}])),
        ("/tensors", json!([])),
    ] {
        let mut header = header.clone();
        header.as_object_mut().unwrap().entry("parts").or_insert(json!([]));
        assert!(changed_in(&file, header, path, &value).is_err(), "{path} = {value}");
    }
    // Another basis of the same kinds loads, and is found when it is asked for and by verify.
    let pack = changed("/tensors/2/scheme/basis", json!(["smooth", "rotate", "signs"])).unwrap();
    assert!(pack.tensor("blk.0.ffn_down.weight").unwrap().basis().is_err());
    assert_eq!(verify(&pack).damages.len(), 1);
}

fn changed_in(
    file: &[u8],
    mut header: serde_json::Value,
    path: &str,
    value: &serde_json::Value,
) -> Result<Pack, PackError> {
    *header.pointer_mut(path).unwrap() = value.clone();
    Pack::from_bytes(vec![with_header(file, &serde_json::to_vec(&header).unwrap())])
}
