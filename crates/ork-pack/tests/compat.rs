// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of earlier versions. A fixture is never changed; a new version adds one.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{bytes, made, plan};
use ork_pack::{Expected, LAYOUT, Pack, VERSION, Version, verify};

const V1_0: &[u8] = include_bytes!("fixtures/v1.0.orkpack");

#[test]
fn version_1_0_is_read() {
    let pack = Pack::from_bytes(vec![V1_0.to_vec()]).unwrap();
    pack.expect(&Expected { soc: "RK3588", layout: LAYOUT, source: Some(&common::source().sample) }).unwrap();
    assert_eq!(pack.calibration(), Some(&common::calibration()));
    assert_eq!(pack.version(), Version { major: 1, minor: 0 });
    assert_eq!(verify(&pack).damages, []);
    pack.check(&plan(1)).unwrap();
    for request in &plan(1).tensors {
        let tensor = pack.tensor(&request.name).unwrap();
        let (weight, basis) = made(request);
        assert_eq!(tensor.data(), weight.data);
        assert_eq!(tensor.scales().unwrap(), weight.scales);
        assert_eq!(tensor.basis().unwrap(), basis);
    }
}

#[test]
fn the_writer_still_writes_its_version_byte_for_byte() {
    if VERSION == (Version { major: 1, minor: 0 }) {
        let written = bytes();
        let fresh = std::env::temp_dir().join("ork-pack-v1.0.orkpack");
        if written != V1_0 {
            std::fs::write(&fresh, &written).unwrap();
        }
        assert!(
            written == V1_0,
            "version 1.0 is written differently now. If that is a change of format, raise the version and keep the \
             fixture; the new bytes are in {}",
            fresh.display()
        );
    }
}
