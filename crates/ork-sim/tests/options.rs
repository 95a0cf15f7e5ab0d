// SPDX-License-Identifier: MIT OR Apache-2.0
//! The option tree as configuration files see it.

use ork_sim::{FloatSums, Int4Saturation, Silicon, SimOptions, StageShift};

#[test]
fn options_are_read_from_a_file() {
    let text = "threads = 2\nfloat_sums = \"fast\"\nstrict = true\n[silicon]\nint4_saturation = \"every-pass\"\nstage_shift = \"half-away\"\n";
    let options: SimOptions = toml::from_str(text).expect("known keys and values");
    let silicon = Silicon {
        int4_saturation: Int4Saturation::EveryPass,
        stage_shift: StageShift::HalfAway,
        ..Silicon::default()
    };
    let float_sums = FloatSums::Fast;
    assert_eq!(
        options,
        SimOptions { threads: 2, float_sums, strict: true, silicon, ..SimOptions::default() }
    );
}

#[test]
fn unknown_keys_and_values_are_errors() {
    for text in
        ["thread = 2\n", "[silicon]\nint4 = \"every-pass\"\n", "[silicon]\nint4_saturation = \"never\"\n"]
    {
        assert!(toml::from_str::<SimOptions>(text).is_err(), "{text}");
    }
}
