// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times measured or recorded elsewhere, as data: `data/*.toml`.

use std::fmt;

use ork_isa::Precision;
use ork_isa::soc::RK3588;
use serde::Deserialize;
use thiserror::Error;

use crate::{
    Arithmetic, Conditions, Constants, CpuLoad, FeatureOrder, Model, Modelled, SubmitPath, TaskWork,
};

/// The data files by name.
pub const FILES: [(&str, &str); 7] = [
    ("int8-one-core.toml", include_str!("../data/int8-one-core.toml")),
    ("int8-fold.toml", include_str!("../data/int8-fold.toml")),
    ("int8-three-cores.toml", include_str!("../data/int8-three-cores.toml")),
    ("vendor.toml", include_str!("../data/vendor.toml")),
    ("mainline.toml", include_str!("../data/mainline.toml")),
    ("conv.toml", include_str!("../data/conv.toml")),
    ("fp16-three-cores.toml", include_str!("../data/fp16-three-cores.toml")),
];

/// A data file that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RowError {
    /// Not the expected TOML.
    #[error("{file}: {source}")]
    Parse {
        /// Which file.
        file: &'static str,
        /// What the parser says.
        source: toml::de::Error,
    },
    /// A row without series, shape, time or reason.
    #[error("{file}, row {id}: {what}")]
    Row {
        /// Which file.
        file: &'static str,
        /// Which row.
        id: String,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// What a row is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Use {
    /// Fitted, or predicted by a fit without it.
    Fit,
    /// Contains more than the model speaks of: the model must not exceed it.
    Bound,
    /// A constant was taken from it.
    Constant,
    /// Not used, for the reason given.
    Excluded,
}

/// Whether the source measured a time or recorded what the vendor's runtime printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
pub enum Mark {
    /// Measured on silicon by the source.
    M,
    /// Captured from the vendor's runtime.
    C,
}

/// What a row reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    /// Microseconds.
    TimeUs(f64),
    /// Time of the row over the time of the same product as fold.
    OverFold(f64),
}

/// One time that somebody measured on silicon. Not by us, and never printed without saying so.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name, unique over all files.
    pub id: String,
    /// Rows with the same origin, form and clocks are of one family.
    pub family: String,
    /// Where it stands.
    pub source: String,
    /// Measured or captured.
    pub mark: Mark,
    /// What the figure contains.
    pub contains: String,
    /// What it is good for.
    pub usage: Use,
    /// Why it is not fitted, or how the figure was read.
    pub remark: String,
    /// The figure.
    pub figure: Figure,
    conditions: Conditions,
    submit: SubmitPath,
    chains: Vec<Vec<TaskWork>>,
    fold: Vec<Vec<TaskWork>>,
    repeat: f64,
}

impl Row {
    /// What the model gives for the figure.
    #[must_use]
    pub fn predict(&self, constants: Constants) -> f64 {
        let model = Model { constants, conditions: self.conditions };
        let time = |chains: &[Vec<TaskWork>]| {
            (model.submit(self.submit) + model.cores(chains).total * self.repeat).us
        };
        match self.figure {
            Figure::TimeUs(_) => time(&self.chains),
            Figure::OverFold(_) => time(&self.chains) / time(&self.fold),
        }
    }

    /// The reported figure.
    #[must_use]
    pub fn reported(&self) -> f64 {
        let (Figure::TimeUs(value) | Figure::OverFold(value)) = self.figure;
        value
    }

    /// The same row with another figure, for checks of the fit.
    #[must_use]
    pub fn with_reported(mut self, value: f64) -> Self {
        let (Figure::TimeUs(figure) | Figure::OverFold(figure)) = &mut self.figure;
        *figure = value;
        self
    }

    /// Relative error of the model: 0.05 means 5 % too long.
    #[must_use]
    pub fn error(&self, constants: Constants) -> f64 {
        self.predict(constants) / self.reported() - 1.0
    }

    /// The model's figure as text that says what it is.
    #[must_use]
    pub fn show(&self, constants: Constants) -> String {
        let value = self.predict(constants);
        match self.figure {
            Figure::TimeUs(_) => Modelled::from_us(value).to_string(),
            Figure::OverFold(_) => format!("{value:.2} modelled ratio"),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimeUs(us) => write!(f, "{us} us measured elsewhere"),
            Self::OverFold(ratio) => write!(f, "{ratio} ratio measured elsewhere"),
        }
    }
}

/// All rows, in the order of the files.
///
/// # Errors
/// [`RowError`] if a file is not as expected; a test reads them all.
pub fn all() -> Result<Vec<Row>, RowError> {
    let mut rows = Vec::new();
    for (file, text) in FILES {
        rows.extend(parse(file, text)?);
    }
    Ok(rows)
}

/// The rows of one file.
///
/// # Errors
/// [`RowError`] if it is not as expected.
pub fn parse(file: &'static str, text: &str) -> Result<Vec<Row>, RowError> {
    let data: FileData = toml::from_str(text).map_err(|source| RowError::Parse { file, source })?;
    let convert = |row: RowData| {
        let id = row.id.clone();
        let wrong = |what| RowError::Row { file, id: id.clone(), what };
        let series = data.series.iter().find(|series| series.name == row.series);
        row.into_row(series.ok_or(wrong("names no series"))?).map_err(wrong)
    };
    data.row.into_iter().map(convert).collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileData {
    series: Vec<SeriesData>,
    row: Vec<RowData>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SeriesData {
    name: String,
    family: String,
    source: String,
    mark: Mark,
    layout: LayoutData,
    dtype: DtypeData,
    output: DtypeData,
    cores: usize,
    npu_mhz: f64,
    dram_mhz: f64,
    submit: SubmitData,
    contains: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RowData {
    id: String,
    series: String,
    /// Rows of each tile, in order.
    tiles: Option<Vec<u32>>,
    k: Option<u32>,
    /// Columns of each core.
    n: Option<Vec<u32>>,
    /// How often the tiles are done with another slice of K; a shorter last slice is a fraction.
    slices: Option<f64>,
    weight_banks: Option<u64>,
    #[serde(default)]
    weights_kept: bool,
    fold_tiles: Option<Vec<u32>>,
    fold_weight_banks: Option<u64>,
    conv: Option<ConvData>,
    dtype: Option<DtypeData>,
    output: Option<DtypeData>,
    layout: Option<LayoutData>,
    time_us: Option<f64>,
    ratio: Option<f64>,
    #[serde(rename = "use")]
    usage: Use,
    reason: Option<String>,
    note: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConvData {
    channels: u64,
    kernels: Option<u64>,
    #[serde(default)]
    depthwise: bool,
    taps: u64,
    input_pixels: u64,
    output_pixels: u64,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LayoutData {
    RowMajor,
    Cube,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DtypeData {
    Int4,
    Int8,
    Int16,
    Fp16,
    Int32,
    Fp32,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SubmitData {
    Bare,
    Blocking,
    Short,
    ThreeCores,
    Profiler,
    Mainline,
    MainlineTuned,
}

impl From<LayoutData> for FeatureOrder {
    fn from(data: LayoutData) -> Self {
        match data {
            LayoutData::RowMajor => Self::RowMajor,
            LayoutData::Cube => Self::Cube,
        }
    }
}

impl From<DtypeData> for Precision {
    fn from(data: DtypeData) -> Self {
        match data {
            DtypeData::Int4 => Self::Int4,
            DtypeData::Int8 => Self::Int8,
            DtypeData::Int16 => Self::Int16,
            DtypeData::Fp16 => Self::Fp16,
            DtypeData::Int32 => Self::Int32,
            DtypeData::Fp32 => Self::Fp32,
        }
    }
}

impl From<SubmitData> for SubmitPath {
    fn from(data: SubmitData) -> Self {
        match data {
            SubmitData::Bare => Self::Bare,
            SubmitData::Blocking => Self::Blocking,
            SubmitData::Short => Self::Short,
            SubmitData::ThreeCores => Self::ThreeCores,
            SubmitData::Profiler => Self::Profiler,
            SubmitData::Mainline => Self::Mainline,
            SubmitData::MainlineTuned => Self::MainlineTuned,
        }
    }
}

impl RowData {
    fn into_row(self, series: &SeriesData) -> Result<Row, &'static str> {
        let figure = match (self.time_us, self.ratio) {
            (Some(us), None) => Figure::TimeUs(us),
            (None, Some(ratio)) => Figure::OverFold(ratio),
            _ => return Err("needs either time_us or ratio"),
        };
        if self.usage != Use::Fit && self.reason.is_none() {
            return Err("is not fitted and gives no reason");
        }
        let precisions =
            (self.dtype.unwrap_or(series.dtype).into(), self.output.unwrap_or(series.output).into());
        let order: FeatureOrder = self.layout.unwrap_or(series.layout).into();
        let chains = match self.conv {
            Some(conv) => vec![vec![conv.work(precisions, order)?]],
            None => self.chains(precisions, order, &self.tiles, self.weight_banks)?,
        };
        if chains.len() != series.cores {
            return Err("has another number of cores than its series");
        }
        let fold = match figure {
            Figure::TimeUs(_) => Vec::new(),
            Figure::OverFold(_) => {
                self.chains(precisions, FeatureOrder::Cube, &self.fold_tiles, self.fold_weight_banks)?
            }
        };
        Ok(Row {
            id: self.id,
            family: series.family.clone(),
            source: series.source.clone(),
            mark: series.mark,
            contains: series.contains.clone(),
            usage: self.usage,
            remark: self.reason.or(self.note).unwrap_or_default(),
            figure,
            conditions: Conditions { npu_mhz: series.npu_mhz, dram_mhz: series.dram_mhz, cpu: CpuLoad::Idle },
            submit: series.submit.into(),
            chains,
            fold,
            repeat: self.slices.unwrap_or(1.0),
        })
    }

    /// One chain for each core.
    fn chains(
        &self,
        precisions: (Precision, Precision),
        order: FeatureOrder,
        tiles: &Option<Vec<u32>>,
        banks: Option<u64>,
    ) -> Result<Vec<Vec<TaskWork>>, &'static str> {
        let (Some(tiles), Some(k), Some(columns), Some(banks)) = (tiles, self.k, &self.n, banks) else {
            return Err("needs conv, or tiles, k, n and weight_banks");
        };
        let chain = |&n: &u32| {
            let tile = |(index, &m): (usize, &u32)| {
                let buffer = banks * u64::from(RK3588.bank_bytes);
                let work = TaskWork::matmul((m, k, n), precisions, order, buffer);
                if self.weights_kept && index > 0 { work.weights_kept() } else { work }
            };
            tiles.iter().enumerate().map(tile).collect()
        };
        Ok(columns.iter().map(chain).collect())
    }
}

impl ConvData {
    fn work(
        self,
        (precision, output): (Precision, Precision),
        order: FeatureOrder,
    ) -> Result<TaskWork, &'static str> {
        let Self { channels, taps, input_pixels, output_pixels: pixels, .. } = self;
        let element_bytes = u64::from(precision.bits().div_ceil(8));
        let (arithmetic, outputs, weights) = match (self.depthwise, self.kernels) {
            (true, None) => (Arithmetic::Depthwise { pixels, channels, taps }, channels, channels * taps),
            (false, Some(kernels)) => {
                let direct = Arithmetic::Direct { pixels, channels, kernels, taps };
                (direct, kernels, channels * taps * kernels)
            }
            _ => return Err("is either depthwise or has kernels"),
        };
        Ok(TaskWork {
            arithmetic,
            precision,
            order,
            weight_bytes: weights * element_bytes,
            feature_bytes: input_pixels * channels * element_bytes,
            output_elements: pixels * outputs,
            output_element_bytes: output.bits().div_ceil(8),
            // The profiler does not print the split; a quarter for weights holds two kernel groups of every row.
            weight_buffer_bytes: 3 * u64::from(RK3588.bank_bytes),
        })
    }
}
