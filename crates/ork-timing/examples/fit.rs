// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fits the constants and prints constants, errors and rows: what `ork model --fit --report --rows` prints, without
//! the rest of ork.
#![expect(clippy::print_stdout, reason = "an example")]

use std::error::Error;

use ork_timing::{Constants, fit, report, rows};

fn main() -> Result<(), Box<dyn Error>> {
    let rows = rows::all()?;
    println!("{}", report::constants(Some(fit::fit(&fit::fitted_rows(&rows))?)));
    println!("{}", report::errors(&report::families(&rows, Constants::TABLE)?));
    println!("{}", report::rows(&rows, Constants::TABLE)?);
    Ok(())
}
