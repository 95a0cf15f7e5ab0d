// SPDX-License-Identifier: MIT OR Apache-2.0
//! The errors that docs/timing-model.md states, and proof that the check notices a wrong constant.

use std::collections::BTreeSet;

use ork_timing::constants::{Origin, TABLE};
use ork_timing::rows::{self, Use};
use ork_timing::{Constant, Constants, fit, report};

/// Family, bound of the RMS error under the table, bound of the held-out RMS error.
const BOUNDS: [(&str, f64, f64); 8] = [
    ("int8-one-core", 0.038, 0.042),
    ("int8-fold", 0.024, 0.030),
    ("int8-three-cores", 0.026, 0.050),
    ("int8-decode", 0.084, 0.100),
    ("vendor-matmul", 0.084, 0.155),
    ("vendor-stream", 0.077, 0.082),
    ("mainline-fp16", 0.107, 0.100),
    ("conv-int8", 0.072, 0.095),
];

/// Families whose error is above the stated bound.
fn above_bounds(constants: Constants) -> Vec<String> {
    let rows = rows::all().expect("the data files are whole");
    let mut above = Vec::new();
    for (family, bound, _) in BOUNDS {
        let of_family = rows.iter().filter(|row| row.family == family && row.usage == Use::Fit);
        let rms = fit::rms(of_family.map(|row| row.error(constants)));
        if rms > bound {
            above.push(format!("{family}: {:.1} %", 100.0 * rms));
        }
    }
    above
}

#[test]
fn the_table_keeps_its_stated_errors() {
    assert_eq!(above_bounds(Constants::TABLE), Vec::<String>::new());
}

#[test]
fn held_out_rows_keep_their_stated_errors() {
    let rows = rows::all().unwrap();
    let families = report::families(&rows, Constants::TABLE).unwrap();
    let with_error: BTreeSet<_> =
        families.iter().filter(|family| family.fitted > 0).map(|family| family.family.as_str()).collect();
    assert_eq!(with_error, BOUNDS.iter().map(|bound| bound.0).collect());
    for (name, _, bound) in BOUNDS {
        let family = families.iter().find(|family| family.family == name).unwrap();
        assert!(family.held_out_rms <= bound, "{name}: {:.1} % held out", 100.0 * family.held_out_rms);
    }
}

#[test]
fn a_wrong_constant_is_noticed() {
    for entry in TABLE.iter().filter(|entry| entry.origin == Origin::Fitted) {
        for factor in [1.0 / 1.2, 1.2] {
            let planted = Constants::TABLE.with(entry.constant, entry.value * factor);
            assert_ne!(above_bounds(planted), Vec::<String>::new(), "{} times {factor:.2}", entry.name);
        }
    }
}

#[test]
fn the_table_is_the_fit_over_all_rows() {
    let rows = rows::all().unwrap();
    let fitted = fit::fit(&fit::fitted_rows(&rows)).unwrap();
    for entry in TABLE {
        let now = fitted.get(entry.constant);
        assert!((now / entry.value - 1.0).abs() < 0.005, "{}: {now}, table {}", entry.name, entry.value);
    }
}

#[test]
fn the_fit_finds_constants_that_made_the_rows() {
    // Each row scaled so that other constants are exact: the fit must find those, whatever the table says.
    let rows = rows::all().unwrap();
    let hidden = Constants::TABLE
        .with(Constant::StreamOneCore, 12_500.0)
        .with(Constant::StreamAllCores, 24_000.0)
        .with(Constant::MacRateRowMajor, 0.4)
        .with(Constant::SubmitShort, 80.0);
    let made: Vec<_> = rows
        .into_iter()
        .map(|row| {
            let exact = row.predict(hidden);
            row.with_reported(exact)
        })
        .collect();
    let fitted = fit::fit(&fit::fitted_rows(&made)).unwrap();
    for entry in TABLE {
        let (found, wanted) = (fitted.get(entry.constant), hidden.get(entry.constant));
        assert!((found / wanted - 1.0).abs() < 0.01, "{}: {found}, made with {wanted}", entry.name);
    }
}

#[test]
fn a_constant_without_rows_is_an_error() {
    let rows = rows::all().unwrap();
    let some: Vec<_> = fit::fitted_rows(&rows).into_iter().filter(|row| row.family != "conv-int8").collect();
    assert!(matches!(fit::fit(&some), Err(fit::FitError::Undetermined(_))));
}

#[test]
fn the_model_never_exceeds_a_call_that_contains_more() {
    let rows = rows::all().unwrap();
    let bounds: Vec<_> = rows.iter().filter(|row| row.usage == Use::Bound).collect();
    assert!(bounds.len() >= 15);
    for row in bounds {
        assert!(row.error(Constants::TABLE) <= 0.0, "{}: {}", row.id, row.show(Constants::TABLE));
    }
}

#[test]
fn the_halves_share_no_row_and_have_them_all() {
    let rows = rows::all().unwrap();
    let [first, second] =
        fit::halves(&rows).map(|half| half.iter().map(|row| row.id.clone()).collect::<BTreeSet<_>>());
    assert!(first.is_disjoint(&second));
    assert_eq!(first.len() + second.len(), fit::fitted_rows(&rows).len());
    let ids: BTreeSet<_> = rows.iter().map(|row| &row.id).collect();
    assert_eq!(ids.len(), rows.len(), "row names are unique");
    for row in &rows {
        assert!(row.usage == Use::Fit || !row.remark.is_empty(), "{} gives no reason", row.id);
        assert!(!row.source.is_empty() && !row.contains.is_empty());
    }
}

#[test]
fn a_broken_row_is_refused() {
    let series = "[[series]]\nname = \"s\"\nfamily = \"f\"\nsource = \"x\"\nmark = \"M\"\nlayout = \"cube\"\n\
                  dtype = \"int8\"\noutput = \"int32\"\ncores = 1\nnpu_mhz = 1000\ndram_mhz = 2112\n\
                  submit = \"bare\"\ncontains = \"y\"\n";
    let shape = "tiles = [4]\nk = 64\nn = [64]\nweight_banks = 8\n";
    let parse = |row: &str| rows::parse("test", &format!("{series}[[row]]\nid = \"r\"\n{row}"));
    let good = format!("series = \"s\"\n{shape}time_us = 1\nuse = \"fit\"\n");
    assert_eq!(parse(&good).unwrap().len(), 1);
    for (from, to, complaint) in [
        ("series = \"s\"", "series = \"t\"", "names no series"),
        ("time_us = 1\n", "", "needs either time_us or ratio"),
        ("use = \"fit\"", "use = \"bound\"", "is not fitted and gives no reason"),
        ("k = 64\n", "", "needs conv, or tiles, k, n and weight_banks"),
        ("n = [64]", "n = [64, 64]", "has another number of cores than its series"),
        ("k = 64", "q = 64", "unknown field"),
    ] {
        let error = parse(&good.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(complaint) && error.starts_with("test"), "{error}");
    }
}
