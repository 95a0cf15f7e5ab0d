// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arms of a benchmark: a model file and settings, with a name.

use std::path::{Path, PathBuf};

use ork_config::{Config, Override, RouteKind};

use crate::failure::Failure;
use crate::flags::Settings;

const ROUTE: &str = "offload.route";
const PACK: &str = "offload.pack";

/// One arm.
#[derive(Clone, Debug)]
pub(super) struct Arm {
    pub(super) name: String,
    pub(super) model: PathBuf,
    pub(super) config: Config,
}

impl Arm {
    /// With these settings over the common ones. A common pack is for the NPU: an arm of the CPU has none, unless it asks.
    fn new(
        name: String,
        model: PathBuf,
        own: &[(String, String)],
        settings: &Settings,
    ) -> Result<Self, Failure> {
        let origin = format!("arm {name}");
        let with = |key: &str, value: &str| Override {
            key: key.to_owned(),
            value: value.to_owned(),
            origin: origin.clone(),
        };
        let mut replaced: Vec<Override> = own.iter().map(|(key, value)| with(key, value)).collect();
        let mut config = settings.config_with(&replaced)?;
        if config.offload.route == RouteKind::Cpu && !own.iter().any(|(key, _)| key == PACK) {
            replaced.push(with(PACK, "never"));
            config = settings.config_with(&replaced)?;
        }
        Ok(Self { name, model, config })
    }
}

/// What `--arm` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ArmText {
    name: String,
    model: Option<PathBuf>,
    settings: Vec<(String, String)>,
}

impl ArmText {
    /// From `NAME[:KEY=VALUE,...]`; the keys `model`, `route` and `pack` are short for a file and two settings.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (name, fields) = text.split_once(':').unwrap_or((text, ""));
        let name = name.trim();
        if name.is_empty() || name.contains('=') {
            return Err("an arm is NAME or NAME:KEY=VALUE,...".to_owned());
        }
        let mut arm = Self { name: name.to_owned(), ..Self::default() };
        for field in fields.split(',').map(str::trim).filter(|field| !field.is_empty()) {
            let (key, value) = field.split_once('=').ok_or_else(|| format!("{field:?} is not KEY=VALUE"))?;
            let (key, value) = (key.trim(), value.trim().to_owned());
            match key {
                "model" => arm.model = Some(value.into()),
                "route" => arm.settings.push((ROUTE.to_owned(), value)),
                "pack" => arm.settings.push((PACK.to_owned(), value)),
                key if key.contains('.') => arm.settings.push((key.to_owned(), value)),
                key => {
                    return Err(format!("there is no field {key:?}: model, route, pack, or a setting's key"));
                }
            }
        }
        Ok(arm)
    }
}

/// The arms that were asked for, and the pairs of their numbers that are compared, judged first.
#[derive(Debug)]
pub(super) struct Arms {
    pub(super) arms: Vec<Arm>,
    pub(super) pairs: Vec<(usize, usize)>,
}

/// The arms of a command line: those asked for, or the CPU and the route of the settings for each model.
pub(super) fn arms(
    models: &[PathBuf],
    asked: &[ArmText],
    pairs: &[(String, String)],
    settings: &Settings,
) -> Result<Arms, Failure> {
    let arms = if asked.is_empty() { usual(models, settings)? } else { these(models, asked, settings)? };
    for (index, arm) in arms.iter().enumerate() {
        if arms[..index].iter().any(|other| other.name == arm.name) {
            return Err(Failure::usage(format!("two arms are called {}", arm.name)));
        }
    }
    let number = |name: &String| {
        arms.iter().position(|arm| arm.name == *name).ok_or_else(|| {
            let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
            Failure::usage(format!("--compare: there is no arm {name:?}; there are {}", names.join(", ")))
        })
    };
    let pairs = if !pairs.is_empty() {
        pairs.iter().map(|(one, other)| Ok((number(one)?, number(other)?))).collect::<Result<_, Failure>>()?
    } else if asked.is_empty() {
        // Every NPU against every CPU.
        let cpu = |arm: &usize| arms[*arm].config.offload.route == RouteKind::Cpu;
        let all = 0..arms.len();
        let judged = all.clone().filter(|arm| !cpu(arm));
        judged.flat_map(|arm| all.clone().filter(cpu).map(move |baseline| (arm, baseline))).collect()
    } else {
        (1..arms.len()).map(|arm| (arm, 0)).collect()
    };
    Ok(Arms { arms, pairs })
}

fn usual(models: &[PathBuf], settings: &Settings) -> Result<Vec<Arm>, Failure> {
    if models.is_empty() {
        return Err(Failure::usage("no model: give one with -m, or arms that name theirs"));
    }
    let config = settings.config()?;
    if config.offload.route == RouteKind::Cpu {
        return Err(Failure::usage(
            "bench compares the NPU with the CPU: --route cpu leaves nothing to compare; --arm names other arms",
        ));
    }
    let mut arms = Vec::new();
    for model in models {
        let name = |engine: &str| match models {
            [_] => engine.to_owned(),
            _ => format!("{engine} {}", stem(model)),
        };
        let cpu = [(ROUTE.to_owned(), "cpu".to_owned())];
        arms.push(Arm::new(name("CPU"), model.clone(), &cpu, settings)?);
        arms.push(Arm { name: name("NPU"), model: model.clone(), config: config.clone() });
    }
    Ok(arms)
}

fn these(models: &[PathBuf], asked: &[ArmText], settings: &Settings) -> Result<Vec<Arm>, Failure> {
    let arm = |text: &ArmText| {
        let model = match (&text.model, models) {
            (Some(model), _) | (None, [model]) => model.clone(),
            (None, _) => {
                let why =
                    format!("arm {}: which model? Give one with -m, or model=FILE in the arm", text.name);
                return Err(Failure::usage(why));
            }
        };
        Arm::new(text.name.clone(), model, &text.settings, settings)
    };
    asked.iter().map(arm).collect()
}

fn stem(model: &Path) -> String {
    model.file_stem().unwrap_or(model.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_of_the_command_line() {
        let arm = ArmText::parse("tall: model=m/a.gguf, route=npu,driver.plan.rule=tall,driver.verify=off")
            .unwrap();
        assert_eq!((arm.name.as_str(), arm.model), ("tall", Some("m/a.gguf".into())));
        let keys: Vec<&str> = arm.settings.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["offload.route", "driver.plan.rule", "driver.verify"]);
        assert_eq!(ArmText::parse("plain").unwrap(), ArmText { name: "plain".into(), ..ArmText::default() });
        for wrong in ["", ":route=cpu", "a:route", "a:colour=red", "route=cpu"] {
            assert!(ArmText::parse(wrong).is_err(), "{wrong}");
        }
    }

    fn names(arms: &Arms) -> Vec<&str> {
        arms.arms.iter().map(|arm| arm.name.as_str()).collect()
    }

    #[test]
    fn usual_arms_are_cpu_and_npu_of_each_model() {
        let settings = Settings::default();
        let one = arms(&["a.gguf".into()], &[], &[], &settings).unwrap();
        assert_eq!((names(&one), one.pairs.as_slice()), (vec!["CPU", "NPU"], &[(1, 0)][..]));
        let two = arms(&["a.gguf".into(), "b.gguf".into()], &[], &[], &settings).unwrap();
        assert_eq!(names(&two), ["CPU a", "NPU a", "CPU b", "NPU b"]);
        assert_eq!(two.pairs, [(1, 0), (1, 2), (3, 0), (3, 2)]);
        assert_eq!(two.arms[2].config.offload.route, RouteKind::Cpu);
        assert!(arms(&[], &[], &[], &settings).is_err());
        assert!(arms(&["a.gguf".into(), "a.gguf".into()], &[], &[], &settings).is_err(), "two of one name");
    }

    #[test]
    fn arms_that_were_asked_for_are_compared_with_the_first() {
        let asked: Vec<ArmText> = ["one", "two:device.cores=1", "three:model=b.gguf"]
            .map(|text| ArmText::parse(text).unwrap())
            .into();
        let settings = Settings::default();
        let found = arms(&["a.gguf".into()], &asked, &[], &settings).unwrap();
        assert_eq!(
            (names(&found), found.pairs.as_slice()),
            (vec!["one", "two", "three"], &[(1, 0), (2, 0)][..])
        );
        assert_eq!(
            (found.arms[1].config.device.cores, found.arms[2].model.as_path()),
            (1, Path::new("b.gguf"))
        );
        let pair = ("three".to_owned(), "two".to_owned());
        assert_eq!(arms(&["a.gguf".into()], &asked, &[pair], &settings).unwrap().pairs, [(2, 1)]);
        let pair = ("three".to_owned(), "four".to_owned());
        assert!(arms(&["a.gguf".into()], &asked, &[pair], &settings).is_err());
        assert!(arms(&[], &asked, &[], &settings).is_err(), "no model");
        let unknown = [ArmText::parse("a:driver.plam=1").unwrap()];
        assert!(arms(&["a.gguf".into()], &unknown, &[], &settings).is_err());
    }
}
