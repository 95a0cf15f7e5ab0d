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

/// The configuration lists every open point of the silicon with all of its values, the default first. That list lives in a
/// crate that builds llama.cpp, so it is read as text here.
#[test]
fn the_configuration_lists_every_open_point() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../ork-config/src/options.rs");
    let text = std::fs::read_to_string(path).expect("the configuration's options");
    let rows: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.split_once("\"device.emulated.sim.silicon."))
        .filter_map(|(_, rest)| rest.split_once("\", \""))
        .filter_map(|(key, rest)| Some((key, rest.split_once('"')?.0)))
        .collect();
    let defaults = toml::Table::try_from(Silicon::default()).expect("a table");
    assert_eq!(rows.iter().map(|(key, _)| *key).collect::<Vec<_>>(), FIELDS, "in the order of the struct");
    assert_eq!(defaults.len(), FIELDS.len());
    for (key, values) in rows {
        for (index, value) in values.split('|').enumerate() {
            let silicon: Silicon =
                toml::from_str(&format!("{key} = \"{value}\"")).expect("a value of the option");
            assert_eq!(silicon == Silicon::default(), index == 0, "{key} = {value}");
        }
        let error = toml::from_str::<Silicon>(&format!("{key} = \"?\"")).expect_err("no value");
        let known = error.to_string().matches('`').count() / 2 - 1;
        assert_eq!(known, values.split('|').count(), "{key}: {error}");
    }
}

const FIELDS: [&str; 19] = [
    "int4_saturation",
    "wide_converter",
    "stage_shift",
    "lut_between",
    "lut_below",
    "affine_zero",
    "sub_order",
    "reset_stages",
    "fp16_overflow",
    "pointer_scope",
    "feature_grains",
    "int16_output",
    "long_rows",
    "lut_index",
    "lut_select",
    "lut_race",
    "bn_shift",
    "stage_width",
    "precision_mixing",
];
