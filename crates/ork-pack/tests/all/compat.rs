// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of earlier versions. A fixture is never changed; a new version adds one.

use crate::common;
use common::{bytes_of, made, plan, plan_1_1};
use ork_pack::{Expected, LAYOUT, Pack, PackError, PackPlan, VERSION, Version, verify};

const V1_0: &[u8] = include_bytes!("../fixtures/v1.0.orkpack");
const V1_1: &[u8] = include_bytes!("../fixtures/v1.1.orkpack");

fn versions() -> [(Version, &'static [u8], PackPlan); 2] {
    let version = |minor| Version { major: 1, minor };
    [(version(0), V1_0, plan(1)), (version(1), V1_1, plan_1_1(1))]
}

#[test]
fn every_version_is_read() {
    for (version, file, plan) in versions() {
        let pack = Pack::from_bytes(vec![file.to_vec()]).unwrap();
        let source = common::source().sample;
        pack.expect(&Expected { soc: "RK3588", layout: LAYOUT, source: Some(&source) }).unwrap();
        assert_eq!(pack.calibration(), Some(&common::calibration()));
        assert_eq!(pack.version(), version);
        assert_eq!(verify(&pack).damages, []);
        pack.check(&plan).unwrap();
        for request in &plan.tensors {
            let tensor = pack.tensor(&request.name).unwrap();
            let (weight, basis) = made(request);
            assert_eq!(tensor.data(), weight.data);
            assert_eq!(tensor.scales().unwrap(), weight.scales);
            assert_eq!(tensor.basis().unwrap(), basis);
        }
    }
    assert_eq!(versions().last().unwrap().0, VERSION, "a new version needs a fixture");
}

#[test]
fn the_writer_still_writes_every_version_byte_for_byte() {
    for (version, file, plan) in versions() {
        let written = bytes_of(plan);
        let fresh = std::env::temp_dir().join(format!("ork-pack-v{version}.orkpack"));
        if written != file {
            std::fs::write(&fresh, &written).unwrap();
        }
        assert!(
            written == file,
            "version {version} is written differently now. If that is a change of format, raise the version and keep \
             the fixture; the new bytes are in {}",
            fresh.display()
        );
    }
}

/// A file with another minor version in its first page, and its checksum right.
fn marked(file: &[u8], minor: u16) -> Result<Pack, PackError> {
    let mut file = file.to_vec();
    file[10..12].copy_from_slice(&minor.to_le_bytes());
    let hash = ork_pack::Hash::of(&file[..96]);
    file[96..128].copy_from_slice(&hash.0);
    Pack::from_bytes(vec![file])
}

#[test]
fn a_version_holds_what_it_has() {
    // A reader of 1.0 meets 1.1 as this one meets 1.2: before it looks at anything else.
    let refused = marked(V1_1, 2).unwrap_err();
    assert!(matches!(refused, PackError::Version { found: Version { major: 1, minor: 2 }, .. }), "{refused}");
    assert!(refused.to_string().contains("1.2") && refused.to_string().contains("1.1"), "{refused}");
    // What 1.0 does not have makes a file of 1.0 a damaged one.
    let refused = marked(V1_1, 0).unwrap_err().to_string();
    assert!(refused.contains("attn_output") && refused.contains("i4a8+group"), "{refused}");
    assert_eq!(marked(V1_0, 1).unwrap().version(), VERSION);
}
