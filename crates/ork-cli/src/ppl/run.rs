// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows, one after the other, each in a session of its own.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use ork_config::{Config, RouteKind};
use ork_corpus::{Corpus, Origin};
use ork_engine::quality::{
    Pace, ReferenceFile, ReferenceIdentity, ReferenceSource, WindowPlan, Windows, keep_reference, measure,
};
use ork_engine::{ContextOptions, Model, type_bytes};
use ork_ggml::{Absent, ModelPack, PackChoice, Route};
use ork_pack::Pack;

use super::Task;
use super::report::{Calibration, Computed, Line, Reference, Report, Size};
use super::rows::Row;
use crate::failure::Failure;
use crate::flags::Settings;
use crate::progress;
use crate::session::{Log, Session};

/// The pack that a row is run from, if it is.
pub(crate) fn pack_of(row: &Row, config: &Config) -> Option<PathBuf> {
    if config.offload.route == RouteKind::Cpu {
        return None;
    }
    match &config.offload.pack {
        PackChoice::Never => None,
        PackChoice::Path(path) => Some(path.clone()),
        PackChoice::Auto | PackChoice::Require | PackChoice::Build => {
            Some(ModelPack::beside(&row.model)).filter(|path| path.exists())
        }
    }
}

/// What the weights of a row were calibrated with.
pub(crate) fn calibration(row: &Row, config: &Config, evaluated: &Origin) -> Result<Calibration, Failure> {
    let text = |used: &Origin| Calibration::Text { text: used.to_string(), overlap: evaluated.overlap(used) };
    if let Some(path) = &row.calibrated {
        return Ok(text(&Corpus::read(path)?.whole().origin()));
    }
    let Some(path) = pack_of(row, config) else { return Ok(Calibration::None) };
    let pack = Pack::open_any(&path)?;
    Ok(match pack.calibration() {
        None => Calibration::None,
        Some(calibration) => calibration.text.as_ref().map_or(Calibration::Unrecorded, text),
    })
}

/// Evaluates rows.
pub(crate) struct Runner<'t> {
    settings: &'t Settings,
    text: &'t str,
    origin: &'t Origin,
    plan: WindowPlan,
    reference: Option<(Row, Config)>,
    file: Option<PathBuf>,
    digests: HashMap<PathBuf, String>,
}

impl<'t> Runner<'t> {
    pub(crate) fn new(
        task: &'t Task,
        settings: &'t Settings,
        text: &'t str,
        origin: &'t Origin,
        file: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let reference = task.reference.clone().map(|mut row| {
            // A reference is what the CPU makes of a model.
            row.route.get_or_insert_with(|| "cpu".to_owned());
            // A pack of the command line is meant for the rows.
            row.pack.get_or_insert_with(|| PackChoice::Never.to_string());
            let config = settings.config_with(&row.overrides()?)?;
            if config.offload.route != RouteKind::Cpu {
                return Err(Failure::usage(format!(
                    "the reference {} must be computed by the CPU",
                    row.name
                )));
            }
            Ok::<_, Failure>((row, config))
        });
        Ok(Self {
            settings,
            text,
            origin,
            plan: task.plan,
            reference: reference.transpose()?,
            file,
            digests: HashMap::new(),
        })
    }

    /// The reference's line, without its perplexity.
    pub(crate) fn reference_line(&mut self) -> Result<Option<Reference>, Failure> {
        let Some((row, _)) = self.reference.clone() else { return Ok(None) };
        let summary = ork_engine::inspect(&row.model)?;
        Ok(Some(Reference {
            name: row.name,
            model: file_name(&row.model),
            digest: self.digest(&row.model)?,
            computed: Computed::Cpu,
            size: Size::of(summary.file_bytes - summary.data_offset, summary.parameters),
            perplexity: None,
        }))
    }

    /// The row's line, if a report has it and nothing has changed since.
    pub(crate) fn finished(&mut self, row: &Row, report: &Report) -> Option<Line> {
        let config = self.settings.config_with(&row.overrides().ok()?).ok()?;
        let digest = self.digest(&row.model).ok()?;
        let line = report.finished(&self.key(row, &config, &digest).ok()?)?.clone();
        Some(Line {
            name: row.name.clone(),
            note: row.note.clone(),
            scheme: row.scheme.clone().unwrap_or(line.scheme),
            calibration: calibration(row, &config, self.origin).ok()?,
            ..line
        })
    }

    /// Evaluates a row, or finds it among the finished ones.
    pub(crate) fn row(&mut self, row: &Row, report: &Report) -> Result<Line, Failure> {
        if let Some(line) = self.finished(row, report) {
            eprintln!("  unchanged since an earlier run");
            return Ok(line);
        }
        let config = self.settings.config_with(&row.overrides()?)?;
        if config.offload.route != RouteKind::Cpu {
            crate::pack::build_if_asked(&row.model, &config)?;
        }
        let digest = self.digest(&row.model)?;
        let key = self.key(row, &config, &digest)?;
        self.keep_reference()?;

        let session = Session::start(&config, Log::Quiet)?;
        let model = session.load(&row.model, &config)?;
        let windows = Windows::of(&model, self.text, &self.plan)?;
        let mut kept = match (self.reference.clone(), &self.file) {
            (Some((reference, config)), Some(path)) => {
                let path = path.clone();
                Some(ReferenceFile::open(&path, &self.identity(&reference, &config, &windows)?)?)
            }
            _ => None,
        };
        let alongside = match (&self.reference, &kept) {
            (Some((reference, config)), None) => Some(self.load_reference(&session, reference, config)?),
            _ => None,
        };
        let source = match (&alongside, &self.reference, &mut kept) {
            (Some((model, windows)), Some((_, config)), _) => {
                Some(ReferenceSource::Model { model, windows, options: &config.context })
            }
            (_, _, Some(file)) => Some(ReferenceSource::File(file)),
            (_, _, None) => None,
        };
        let mut bar = Bar::new("evaluating");
        let quality = measure(&model, &windows, &config.context, source, &mut |pace| bar.show(pace))?;

        let pack =
            pack_of(row, &config).map(|path| Ok::<_, Failure>((Pack::open_any(&path)?, path))).transpose()?;
        let (computed, device, npu_products) = whereabouts(&session);
        let bytes = stored_bytes(&session, &model, pack.as_ref().map(|(pack, _)| pack));
        let mut scheme = row.scheme.clone();
        if let Some((pack, path)) = pack {
            scheme.get_or_insert_with(|| ModelPack::new(pack, path, Absent::Convert).schemes());
        }
        if config.offload.route != RouteKind::Cpu && npu_products == 0 {
            return Err(Failure::Failed {
                code: 1,
                message: format!("row {}: the NPU computed nothing, although it was asked to", row.name),
                hint: Some("`ork run --explain` says why".to_owned()),
            });
        }
        Ok(Line {
            key,
            name: row.name.clone(),
            scheme: scheme.unwrap_or_else(|| main_type(&model)),
            model: file_name(&row.model),
            digest,
            computed,
            device,
            npu_products,
            size: Size::of(bytes, model.info().parameters),
            calibration: calibration(row, &config, self.origin)?,
            note: row.note.clone(),
            quality,
        })
    }

    /// Makes the file of the reference's distributions, if one is wanted and there is none.
    fn keep_reference(&mut self) -> Result<(), Failure> {
        let (Some((row, config)), Some(path)) = (self.reference.clone(), self.file.clone()) else {
            return Ok(());
        };
        if path.exists() {
            return Ok(());
        }
        let session = Session::start(&config, Log::Quiet)?;
        let model = session.load(&row.model, &config)?;
        let windows = Windows::of(&model, self.text, &self.plan)?;
        let identity = self.identity(&row, &config, &windows)?;
        eprintln!("  keeping the reference in {}: {} MB", path.display(), identity.data_bytes() / 1_000_000);
        let mut bar = Bar::new("reference");
        keep_reference(&model, &windows, &config.context, &path, &identity, &mut |pace| bar.show(pace))?;
        Ok(())
    }

    fn identity(
        &mut self,
        reference: &Row,
        config: &Config,
        windows: &Windows,
    ) -> Result<ReferenceIdentity, Failure> {
        let digest = self.reference_digest(reference, config)?;
        Ok(ReferenceIdentity::of(file_name(&reference.model), digest, windows))
    }

    /// Of everything that a reference's distributions depend on, besides the text.
    fn reference_digest(&mut self, reference: &Row, config: &Config) -> Result<String, Failure> {
        let context = ContextOptions { threads: None, ..config.context.clone() };
        hash_of(&(self.digest(&reference.model)?, context, &config.load))
    }

    /// Loads the reference beside a row's model.
    fn load_reference(
        &self,
        session: &Session,
        row: &Row,
        config: &Config,
    ) -> Result<(Model, Windows), Failure> {
        // A model stays where it was loaded, and the row's is loaded already.
        let route = session.npu.as_ref().map(|npu| npu.backend.route());
        if let Some(npu) = &session.npu {
            npu.backend.set_route(Route::Cpu);
        }
        let model = session.load(&row.model, config);
        if let (Some(npu), Some(route)) = (&session.npu, route) {
            npu.backend.set_route(route);
        }
        let model = model?;
        let windows = Windows::of(&model, self.text, &self.plan)?;
        Ok((model, windows))
    }

    /// Of everything that a row's numbers depend on.
    fn key(&mut self, row: &Row, config: &Config, digest: &str) -> Result<String, Failure> {
        let reference = match self.reference.clone() {
            Some((row, config)) => Some(self.reference_digest(&row, &config)?),
            None => None,
        };
        let pack = pack_of(row, config).map(|path| self.digest(&path)).transpose()?;
        let Config { device, offload, driver, load, context, generate: _, calibrate: _, pack: _, plugin: _ } =
            config;
        let Origin { document, part, rule, .. } = self.origin;
        let everything = (
            (digest, pack, reference),
            (device, offload, driver, load, ContextOptions { threads: None, ..context.clone() }),
            (document, part, rule, self.plan),
            env!("CARGO_PKG_VERSION"),
        );
        hash_of(&everything)
    }

    fn digest(&mut self, path: &Path) -> Result<String, Failure> {
        if let Some(digest) = self.digests.get(path) {
            return Ok(digest.clone());
        }
        let mut hasher = blake3::Hasher::new();
        let read = File::open(path).and_then(|file| hasher.update_reader(file).map(|_| ()));
        read.map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
        let digest = hasher.finalize().to_hex().to_string();
        self.digests.insert(path.to_owned(), digest.clone());
        Ok(digest)
    }
}

fn hash_of(of: &impl serde::Serialize) -> Result<String, Failure> {
    let bytes = serde_json::to_vec(of).map_err(|error| Failure::usage(error.to_string()))?;
    Ok(blake3::hash(&bytes).to_hex().to_string())
}

/// Who computed, on what, and how many products an NPU did.
pub(crate) fn whereabouts(session: &Session) -> (Computed, String, u64) {
    let on_npu = session.npu.as_ref().map(|npu| (npu, npu.backend.census().executed.on_accelerator()));
    match on_npu {
        None | Some((_, 0)) => (Computed::Cpu, "CPU".to_owned(), 0),
        Some((npu, products)) => {
            let device = npu.driver.device();
            let computed = if device.board().is_some() { Computed::SimulatedNpu } else { Computed::Npu };
            (computed, device.describe().to_owned(), products)
        }
    }
}

/// Bytes of a model's weights as they are stored for who multiplied by them: in the pack, or else as the backend holds
/// them; the others as the model file has them.
pub(crate) fn stored_bytes(session: &Session, model: &Model, pack: Option<&Pack>) -> u64 {
    let mut bytes = model.info().tensor_bytes;
    let Some(npu) = &session.npu else { return bytes };
    let packed: HashMap<&str, u64> = pack
        .into_iter()
        .flat_map(Pack::entries)
        .map(|entry| (entry.name.as_str(), entry.sections().map(|section| section.bytes).sum()))
        .collect();
    for (name, weight) in &npu.backend.census().executed.weights {
        let Some(in_file) = type_bytes(&weight.type_name, weight.k * weight.n) else { continue };
        let held = packed.get(name.as_str()).copied().filter(|_| weight.cold == 0);
        bytes = bytes.saturating_sub(in_file) + held.unwrap_or(weight.bytes);
    }
    bytes
}

/// The type of most tensors of a model, as the file has it.
fn main_type(model: &Model) -> String {
    let types = model.info().tensor_types.iter().filter(|(name, _)| *name != "f32");
    types.max_by_key(|(_, count)| **count).map_or_else(|| "f32".to_owned(), |(name, _)| name.clone())
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Progress of an evaluation, on a terminal.
struct Bar {
    bar: Option<indicatif::ProgressBar>,
    label: &'static str,
}

impl Bar {
    fn new(label: &'static str) -> Self {
        Self { bar: None, label }
    }

    fn show(&mut self, pace: Pace) {
        let bar = self.bar.get_or_insert_with(|| progress::bar(self.label, pace.total as u64));
        if let Some(perplexity) = pace.perplexity {
            bar.set_message(format!("PPL {perplexity:.3}"));
        }
        bar.set_position(pace.done as u64);
        if pace.done == pace.total {
            bar.finish_and_clear();
        }
    }
}
