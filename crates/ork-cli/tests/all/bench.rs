// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork bench` on tiny random models and made-up boards: arms, verdicts, refusals, formats. No test here is about speed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ork_bench::{PlacementBasis, Provenance, Report, TestKind};
use ork_engine::tiny::TinyModel;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        TinyModel::default().write(&folder.path("tiny.gguf")).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Runs in the folder, where `sys` stands for sysfs; empty unless a test writes to it.
    fn bench(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ork"));
        command.env_clear().stdin(Stdio::null()).current_dir(self.0.path());
        command.args(["bench", "--sysfs", "sys", "--device", "sim"]).args(args).output().unwrap()
    }
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn error(output: &Output) -> String {
    assert!(!output.status.success() && output.stdout.is_empty());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{said}");
    errors[0].to_owned()
}

const SHORT: [&str; 10] = ["-m", "tiny.gguf", "-p", "40,33", "-n", "3", "-r2", "--route", "npu", "-t1"];

#[test]
fn cpu_and_npu_in_one_run() {
    let folder = Folder::new();
    let output = folder.bench(&[&SHORT[..], &["-o", "json", "--plot", "runs.svg"]].concat());
    std::fs::write(folder.path("old.json"), text(&output)).unwrap();
    let report = Report::read(&folder.path("old.json")).unwrap();
    let rows: Vec<(String, String, Provenance)> =
        report.rows.iter().map(|row| (row.arm.clone(), row.test.to_string(), row.provenance)).collect();
    let row = |arm: &str, test: &str, provenance| (arm.to_owned(), test.to_owned(), provenance);
    use Provenance::{Measured, Simulated};
    assert_eq!(
        rows,
        [
            row("CPU", "pp40", Measured),
            row("NPU", "pp40", Simulated),
            row("CPU", "pp33", Measured),
            row("NPU", "pp33", Simulated),
            row("CPU", "tg3", Measured),
            row("NPU", "tg3", Simulated),
        ]
    );
    for row in &report.rows {
        assert_eq!((row.seconds_a.len(), row.seconds_b.len()), (2, 2));
        assert!(row.seconds().iter().all(|seconds| *seconds > 0.0) && row.null.is_some());
        assert_eq!((row.model.as_str(), row.parameters > 0), ("tiny.gguf", true));
        let Some(npu) = row.npu else {
            assert!(row.provenance == Measured && row.overhead().is_none());
            continue;
        };
        // Four runs, in which every matrix has one part of each evaluation.
        let evaluations = if row.test.kind == TestKind::Prefill { 4 } else { 4 * 3 };
        assert_eq!(npu.products, evaluations * TinyModel::default().matmuls_per_evaluation());
        assert!(npu.programs >= npu.products && npu.modelled_us > 0.0);
        assert!(npu.npu_s > 0.0 && npu.npu_s <= npu.submit_s && npu.submit_s <= npu.backend_s, "{npu:?}");
        assert!(npu.npu_s <= npu.below_ioctl_s && npu.below_ioctl_s <= npu.backend_s, "{npu:?}");
        assert!(npu.backend_s <= row.seconds().iter().sum::<f64>());
        assert!((0.0..1.0).contains(&row.overhead().unwrap()));
    }
    assert_eq!(report.comparisons.len(), 3);
    assert!(report.comparisons.iter().all(|one| one.arm == "NPU" && one.baseline == "CPU"));
    assert_eq!((report.host.placement.basis, report.objections.len()), (PlacementBasis::Unknown, 0));

    let plot = std::fs::read_to_string(folder.path("runs.svg")).unwrap();
    assert!(plot.starts_with("<svg") && plot.trim_end().ends_with("</svg>"));
    assert_eq!(plot.matches("<circle").count(), 6 * 4, "one mark for each run");
    for heading in ["pp40, measured", "pp40, with simulated NPU", "tg3, with simulated NPU"] {
        assert_eq!(plot.matches(heading).count(), 1, "{heading}");
    }

    // The same again, against that: a row for a row, in words.
    let again = text(&folder.bench(&[&SHORT[..], &["--against", "old.json"]].concat()));
    let against = again.split_once("against the earlier report").unwrap().1;
    assert_eq!(against.matches("the earlier run (A/A null").count(), 6, "{again}");
    for word in ["measured", "with simulated NPU", "modelled", "A/A null", "DRAM clock: unknown", "backend"] {
        assert!(again.contains(word), "{word}: {again}");
    }
    assert!(!against.contains("settings now"), "{again}");
    let other = ["--set", "driver.verify=product", "--against", "old.json"];
    let other = text(&folder.bench(&[&SHORT[..], &other].concat()));
    assert!(other.contains("NPU: settings now") && other.contains("driver.verify=\"product\""), "{other}");
    let error = error(&folder.bench(&[&SHORT[..], &["--against", "tiny.gguf"]].concat()));
    assert!(error.contains("tiny.gguf"), "{error}");
}

#[test]
fn arms_that_differ_in_any_setting() {
    let folder = Folder::new();
    let arms =
        ["three:route=npu", "one:route=npu,device.cores=1", "cpu:route=cpu", "idle:offload.exclude=[\"*\"]"];
    let arms = arms.map(|arm| ["--arm", arm]).concat();
    let short = ["-m", "tiny.gguf", "-p", "0", "-n", "2", "-r", "2", "--warmup", "0", "-t1", "-o"];
    let report = text(&folder.bench(&[&short[..], &["json"], &arms].concat()));
    std::fs::write(folder.path("report.json"), report).unwrap();
    let report = Report::read(&folder.path("report.json")).unwrap();
    let programs: Vec<Option<u64>> =
        report.rows.iter().map(|row| row.npu.map(|npu| npu.programs / npu.products)).collect();
    // Three cores take a segment of columns each.
    assert!(programs[0] > programs[1], "{programs:?}");
    // An arm whose NPU did nothing was measured, though it could have simulated.
    assert_eq!(programs[2..], [None, None]);
    let provenances: Vec<Provenance> = report.rows.iter().map(|row| row.provenance).collect();
    use Provenance::{Measured, Simulated};
    assert_eq!(provenances, [Simulated, Simulated, Measured, Measured]);
    assert!(report.rows.iter().all(|row| row.test.kind == TestKind::Decode && row.seconds().len() == 4));
    assert_eq!(report.rows[1].settings[0], "context.threads=1");
    assert!(report.rows[1].settings.contains(&"device.cores=1".to_owned()), "{:?}", report.rows[1].settings);
    let pairs: Vec<(&str, &str)> =
        report.comparisons.iter().map(|one| (one.arm.as_str(), one.baseline.as_str())).collect();
    assert_eq!(pairs, [("one", "three"), ("cpu", "three"), ("idle", "three")]);

    for (format, head) in
        [("md", "| arm |"), ("csv", "schema_version,"), ("jsonl", "{"), ("sql", "CREATE TABLE")]
    {
        let text = text(&folder.bench(&[&short[..], &[format, "--arm", "cpu:route=cpu"]].concat()));
        assert!(text.contains(head) && text.contains("tiny.gguf"), "{format}: {text}");
    }
}

/// A pack of the settings is for the NPU's arm, and one round has no verdict.
#[test]
fn a_pack_is_built_for_the_npu_alone() {
    let folder = Folder::new();
    let args =
        ["-m", "tiny.gguf", "-p", "40", "-n", "0", "-r", "1", "-t1", "--route", "npu", "--pack", "build"];
    let said = text(&folder.bench(&args));
    assert!(folder.path("tiny.orkpack").exists());
    assert!(said.contains("CPU") && said.contains("no verdict") && !said.contains("A/A null 0"), "{said}");
    let said = error(&folder.bench(&[&args[..], &["--arm", "cpu:route=cpu,pack=require"]].concat()));
    assert!(said.contains("route cpu uses no pack"), "{said}");
}

#[test]
fn impossible_requests_are_one_clear_line() {
    let folder = Folder::new();
    for (args, words) in [
        (&["-m", "tiny.gguf", "-p", "0", "-n", "0"][..], "nothing to measure"),
        (&[], "no model"),
        (&["-m", "missing.gguf"], "missing.gguf"),
        (&["-m", "tiny.gguf", "--route", "cpu"], "nothing to compare"),
        (&["-m", "tiny.gguf", "--arm", "a", "--compare", "a,b"], "no arm \"b\""),
        (&["-m", "tiny.gguf", "-p", "64", "-c", "32"], "arm CPU: "),
    ] {
        let said = error(&folder.bench(args));
        assert!(said.contains(words), "{words:?}: {said}");
    }
}

/// A board whose memory is parked, as kernels leave it when nobody sets the governor.
#[test]
fn a_parked_clock_is_refused_unless_forced() {
    let folder = Folder::new();
    let dmc = "sys/class/devfreq/dmc";
    folder.write(&format!("{dmc}/governor"), "powersave\n");
    folder.write(&format!("{dmc}/cur_freq"), "528000000\n");
    folder.write(&format!("{dmc}/max_freq"), "2112000000\n");
    let args = ["-m", "tiny.gguf", "-p", "8", "-n", "0", "-r", "1"];
    let said = error(&folder.bench(&args));
    for word in ["DRAM clock is parked by its governor powersave", "echo performance", "--force"] {
        assert!(said.contains(word), "{said}");
    }
    let forced = text(&folder.bench(&[&args[..], &["--force"]].concat()));
    assert!(forced.contains("FORCED although the DRAM clock is parked"), "{forced}");
    assert!(forced.contains("DRAM clock: 528 MHz of 2112 MHz, governor powersave"), "{forced}");

    folder.write(&format!("{dmc}/governor"), "dmc_ondemand\n");
    assert!(error(&folder.bench(&args)).contains("DRAM clock is at 528 MHz of 2112 MHz"));
    folder.write(&format!("{dmc}/cur_freq"), "2112000000\n");
    text(&folder.bench(&args));
}

/// Arms run on the fast CPUs alone, and have as many threads.
#[test]
fn arms_run_on_the_fast_cpus() {
    let folder = Folder::new();
    let allowed = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = allowed.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let first: u32 = allowed.trim().split([',', '-']).next().unwrap().parse().unwrap();
    for cpu in 0..4096_u32 {
        if !Path::new(&format!("/sys/devices/system/cpu/cpu{cpu}")).exists() {
            break;
        }
        let capacity = if cpu == first { 1024 } else { 400 };
        folder.write(&format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity"), &capacity.to_string());
    }
    let args = ["-m", "tiny.gguf", "-p", "8", "-n", "0", "-r", "1", "-o", "json"];
    std::fs::write(folder.path("report.json"), text(&folder.bench(&args))).unwrap();
    let report = Report::read(&folder.path("report.json")).unwrap();
    assert_eq!(
        (report.host.placement.cpus, report.host.placement.basis),
        (vec![first], PlacementBasis::Capacity)
    );
    std::fs::write(folder.path("all.json"), text(&folder.bench(&[&args[..], &["--cpus", "all"]].concat())))
        .unwrap();
    let report = Report::read(&folder.path("all.json")).unwrap();
    assert_eq!(report.host.placement.basis, PlacementBasis::Asked);
}
