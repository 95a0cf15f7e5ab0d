// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model's constants and errors as text. Every figure of the model says that it is modelled.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::constants::{Constants, Origin, TABLE};
use crate::fit::{self, FitError, HeldOut};
use crate::rows::{Mark, Row, Use};

/// What the model's error is over one family of rows.
#[derive(Clone, Debug)]
pub struct FamilyError {
    /// Family.
    pub family: String,
    /// Rows that are fitted.
    pub fitted: usize,
    /// Rows that only bound the model.
    pub bounds: usize,
    /// Rows that are not used, and rows that are a constant.
    pub unused: usize,
    /// Root mean square of the relative error under the given constants.
    pub rms: f64,
    /// The same for rows predicted by a fit on the other half.
    pub held_out_rms: f64,
    /// The held-out row with the largest error.
    pub worst: Option<(String, f64)>,
}

/// Errors by family, in the order of the data.
///
/// # Errors
/// As [`fit::fit`].
pub fn families(rows: &[Row], constants: Constants) -> Result<Vec<FamilyError>, FitError> {
    let held_out = fit::held_out(rows)?;
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.family.as_str()) {
            names.push(&row.family);
        }
    }
    Ok(names.into_iter().map(|name| family(name, rows, &held_out, constants)).collect())
}

fn family(name: &str, rows: &[Row], held_out: &[HeldOut<'_>], constants: Constants) -> FamilyError {
    let used = |usage: Use| rows.iter().filter(move |row| row.family == name && row.usage == usage);
    let held_out = || held_out.iter().filter(|held| held.row.family == name);
    let worst = held_out().max_by(|a, b| a.error.abs().total_cmp(&b.error.abs()));
    FamilyError {
        family: name.into(),
        fitted: used(Use::Fit).count(),
        bounds: used(Use::Bound).count(),
        unused: used(Use::Excluded).count() + used(Use::Constant).count(),
        rms: fit::rms(used(Use::Fit).map(|row| row.error(constants))),
        held_out_rms: fit::rms(held_out().map(|held| held.error)),
        worst: worst.map(|held| (held.row.id.clone(), held.error)),
    }
}

/// The table of constants; a fit's values beside it if there is one.
#[must_use]
pub fn constants(fitted: Option<Constants>) -> String {
    let mut text = String::from("Constants of the model\n");
    for entry in TABLE {
        let origin = match entry.origin {
            Origin::Fitted => "fitted",
            Origin::Taken => "taken",
        };
        let now = match fitted {
            Some(fitted) if entry.origin == Origin::Fitted => {
                format!(" | {:>9} fitted now, modelled", short(fitted.get(entry.constant)))
            }
            _ => String::new(),
        };
        let value = short(entry.value);
        line(
            &mut text,
            format_args!(
                "  {:<30} {value:>9} {:<14} modelled, {origin}{now} | {}",
                entry.name, entry.unit, entry.rows
            ),
        );
    }
    text
}

/// Errors by family, and over all fitted rows.
#[must_use]
pub fn errors(families: &[FamilyError]) -> String {
    let mut text = String::from(
        "Errors of the model against times measured elsewhere (relative; held out: predicted by a fit on the other half)\n",
    );
    for family in families {
        let FamilyError { family: name, fitted, bounds, unused, .. } = family;
        let rows = format!("{fitted} fitted, {bounds} bounds, {unused} unused");
        let figures = match &family.worst {
            Some((worst, error)) => format!(
                "RMS {:.1} % modelled, held out {:.1} % modelled, worst {:+.1} % modelled ({worst})",
                100.0 * family.rms,
                100.0 * family.held_out_rms,
                100.0 * error
            ),
            None => String::from("no error: nothing to fit"),
        };
        line(&mut text, format_args!("  {name:<18} {rows:<32} {figures}"));
    }
    let all = |of: fn(&FamilyError) -> f64| {
        let (rows, squares) = families.iter().fold((0.0, 0.0), |(rows, squares), family| {
            let weight = family.fitted as f64;
            (rows + weight, squares + weight * of(family).powi(2))
        });
        100.0 * f64::sqrt(squares / f64::max(rows, 1.0))
    };
    line(
        &mut text,
        format_args!(
            "  {:<18} {:<32} RMS {:.1} % modelled, held out {:.1} % modelled",
            "all",
            format!("{} fitted", families.iter().map(|family| family.fitted).sum::<usize>()),
            all(|family| family.rms),
            all(|family| family.held_out_rms)
        ),
    );
    text
}

/// Every row with its figure and the model's.
///
/// # Errors
/// As [`fit::fit`].
pub fn rows(rows: &[Row], constants: Constants) -> Result<String, FitError> {
    let held_out: BTreeMap<_, _> =
        fit::held_out(rows)?.into_iter().map(|held| (held.row.id.as_str(), held.error)).collect();
    let mut text = String::from("Rows\n");
    for row in rows {
        let mark = match row.mark {
            Mark::M => "[M]",
            Mark::C => "[C]",
        };
        let error = match (row.usage, held_out.get(row.id.as_str())) {
            (Use::Fit, Some(held)) => format!(
                "{:+.1} % modelled, held out {:+.1} % modelled",
                100.0 * row.error(constants),
                100.0 * held
            ),
            (Use::Bound, _) => {
                format!("bound: {:.2} times the modelled time", row.reported() / row.predict(constants))
            }
            (Use::Constant, _) => String::from("taken as a constant of the modelled time"),
            _ => String::from("excluded"),
        };
        line(
            &mut text,
            format_args!(
                "  {:<34} {mark} {:<32} {:<22} {error}{}{}",
                row.id,
                row.figure.to_string(),
                row.show(constants),
                if row.remark.is_empty() { "" } else { " | " },
                row.remark
            ),
        );
    }
    Ok(text)
}

/// Four significant digits.
fn short(value: f64) -> String {
    let digits = (3 - value.abs().max(1e-3).log10().floor() as i32).clamp(0, 4) as usize;
    format!("{value:.digits$}")
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = text.write_fmt(arguments);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_with_a_figure_says_modelled() {
        let rows_found = crate::rows::all().unwrap();
        let families = families(&rows_found, Constants::TABLE).unwrap();
        let fitted = Some(Constants::TABLE);
        let texts = [
            constants(None),
            constants(fitted),
            errors(&families),
            rows(&rows_found, Constants::TABLE).unwrap(),
        ];
        for line in texts.iter().flat_map(|text| text.lines().skip(1)) {
            assert!(line.contains("modelled") || line.contains("no error"), "{line}");
        }
    }

    #[test]
    fn numbers_have_four_digits() {
        assert_eq!([11_234.5, 134.04, 1.27, 0.5431].map(short), ["11234", "134.0", "1.270", "0.5431"]);
    }
}
