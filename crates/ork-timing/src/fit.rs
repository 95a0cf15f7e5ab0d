// SPDX-License-Identifier: MIT OR Apache-2.0
//! Least squares over the rows, and the error on rows that the fit has not seen.

use levenberg_marquardt::{LeastSquaresProblem, LevenbergMarquardt};
use nalgebra::storage::Owned;
use nalgebra::{DMatrix, DVector, Dyn};
use thiserror::Error;

use crate::constants::{Constant, Constants, Origin, TABLE};
use crate::rows::{Row, Use};

/// Why a fit gives no constants.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum FitError {
    /// The rows do not determine a constant.
    #[error("no row determines the constant `{0}`")]
    Undetermined(&'static str),
    /// The iteration did not converge.
    #[error("the fit did not converge: {0}")]
    NotConverged(String),
}

/// Where the iteration starts: round numbers, and not the table, so that a fit on half of the rows knows nothing of
/// the other half.
fn start(constant: Constant) -> f64 {
    match constant {
        Constant::StreamOneCore => 10_000.0,
        Constant::StreamAllCores => 20_000.0,
        Constant::MacRateCube | Constant::MacRateRowMajor => 0.5,
        Constant::WriteElements => 1.0,
        Constant::WriteBytes => 2.0,
        _ => 100.0,
    }
}

fn free() -> Vec<Constant> {
    TABLE.iter().filter(|entry| entry.origin == Origin::Fitted).map(|entry| entry.constant).collect()
}

/// Rows for fitting: relative errors over the logarithms of the constants, which keeps them positive.
struct Problem<'a> {
    rows: &'a [&'a Row],
    free: &'a [Constant],
    point: DVector<f64>,
}

impl Problem<'_> {
    fn constants(&self, point: &DVector<f64>) -> Constants {
        self.free.iter().zip(point).fold(Constants::TABLE, |all, (&one, log)| all.with(one, log.exp()))
    }

    fn errors(&self, point: &DVector<f64>) -> DVector<f64> {
        let constants = self.constants(point);
        DVector::from_iterator(self.rows.len(), self.rows.iter().map(|row| row.error(constants)))
    }
}

impl LeastSquaresProblem<f64, Dyn, Dyn> for Problem<'_> {
    type ParameterStorage = Owned<f64, Dyn>;
    type ResidualStorage = Owned<f64, Dyn>;
    type JacobianStorage = Owned<f64, Dyn, Dyn>;

    fn set_params(&mut self, point: &DVector<f64>) {
        self.point.copy_from(point);
    }

    fn params(&self) -> DVector<f64> {
        self.point.clone()
    }

    fn residuals(&self) -> Option<DVector<f64>> {
        Some(self.errors(&self.point))
    }

    fn jacobian(&self) -> Option<DMatrix<f64>> {
        // A thousandth of the constant: small beside the distance to the model's kinks, large beside rounding.
        const STEP: f64 = 1e-3;
        let column = |index: usize| {
            let at = |step: f64| {
                let mut point = self.point.clone();
                point[index] += step;
                self.errors(&point)
            };
            (at(STEP) - at(-STEP)) / (2.0 * STEP)
        };
        Some(DMatrix::from_columns(&(0..self.free.len()).map(column).collect::<Vec<_>>()))
    }
}

/// The constants with the least squared relative error over these rows; taken constants keep their values.
///
/// # Errors
/// [`FitError::Undetermined`] if a fitted constant has no influence on any of the rows.
pub fn fit(rows: &[&Row]) -> Result<Constants, FitError> {
    let free = free();
    let point = DVector::from_iterator(free.len(), free.iter().map(|&constant| start(constant).ln()));
    let problem = Problem { rows, free: &free, point };
    let (problem, report) = LevenbergMarquardt::new().minimize(problem);
    if !report.termination.was_successful() {
        return Err(FitError::NotConverged(format!("{:?}", report.termination)));
    }
    let slopes = problem.jacobian().unwrap_or_default();
    if let Some(index) = (0..free.len()).find(|&index| slopes.column(index).norm() < 1e-6) {
        return Err(FitError::Undetermined(TABLE[free[index] as usize].name));
    }
    Ok(problem.constants(&problem.point))
}

/// Error of one row under constants that it did not help to choose.
#[derive(Clone, Copy, Debug)]
pub struct HeldOut<'a> {
    /// The row.
    pub row: &'a Row,
    /// Relative error.
    pub error: f64,
}

/// Rows of [`Use::Fit`].
#[must_use]
pub fn fitted_rows(rows: &[Row]) -> Vec<&Row> {
    rows.iter().filter(|row| row.usage == Use::Fit).collect()
}

/// Two halves: within each family every second row.
#[must_use]
pub fn halves(rows: &[Row]) -> [Vec<&Row>; 2] {
    let mut halves = [Vec::new(), Vec::new()];
    let used = fitted_rows(rows);
    for (index, &row) in used.iter().enumerate() {
        let before = used[..index].iter().filter(|other| other.family == row.family).count();
        halves[before % 2].push(row);
    }
    halves
}

/// Fits each half and predicts the other; every used row comes once.
///
/// # Errors
/// As [`fit`].
pub fn held_out(rows: &[Row]) -> Result<Vec<HeldOut<'_>>, FitError> {
    let [first, second] = halves(rows);
    let mut found = Vec::new();
    for (seen, unseen) in [(&first, &second), (&second, &first)] {
        let constants = fit(seen)?;
        found.extend(unseen.iter().map(|&row| HeldOut { row, error: row.error(constants) }));
    }
    Ok(found)
}

/// Root of the mean square.
pub fn rms(errors: impl IntoIterator<Item = f64>) -> f64 {
    let (count, sum) = errors.into_iter().fold((0_u32, 0.0), |(n, sum), error| (n + 1, sum + error * error));
    if count == 0 { 0.0 } else { (sum / f64::from(count)).sqrt() }
}
