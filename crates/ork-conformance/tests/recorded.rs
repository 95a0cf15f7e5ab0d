// SPDX-License-Identifier: MIT OR Apache-2.0
//! The recorded programs of `tests/conformance`: all of them pass, and damaged ones do not.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a case that cannot be read is a failure")]

use std::fs;
use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};

use ork_conformance::{Case, CaseError, Report, Verdict, case_names, set_variant};
use ork_sim::{FloatSums, SimOptions};

/// How many cases there are, and how many of them come with a figure for silicon.
const CASES: usize = 76;
const PUBLISHED: usize = 13;
/// The author's figure, 0.37 %, is from other inputs than the 2048 recorded ones: the same table and rule give 0.25 % on
/// these and 0.81 % on all fp16 numbers of the range, so the figure decides nothing here.
const OTHER_INPUTS: &str = "rocket_lut_elu_n2048";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance")
}

fn run(folder: &Path, name: &str, options: &SimOptions) -> Result<Report, CaseError> {
    Case::read(folder, name)?.run(options)
}

/// Every case passes, and errs as silicon does where that is known.
fn all(options: &SimOptions) {
    let names = case_names(&folder()).unwrap();
    assert_eq!(names.len(), CASES, "cases in {}", folder().display());
    let mut failures = Vec::new();
    let mut published = 0;
    for name in &names {
        match run(&folder(), name, options) {
            Ok(report) => {
                println!(
                    "{name}: {:?}, largest error {:.3e}, relative {:.3e}, here {:?} for {:?}",
                    report.verdict,
                    report.largest_error,
                    report.largest_relative_error,
                    report.against_published,
                    report.published
                );
                published += usize::from(report.like_silicon().is_some());
                let like_silicon = if name == OTHER_INPUTS {
                    let ratio = report.against_published.unwrap() / report.published.unwrap().error;
                    (0.6..1.0).contains(&ratio)
                } else {
                    report.like_silicon() != Some(false)
                };
                if report.verdict != Verdict::Pass || !like_silicon {
                    failures.push(format!("{report:?}"));
                }
            }
            Err(error) => failures.push(format!("{error:?}")),
        }
    }
    assert!(failures.is_empty(), "{} of {CASES} fail\n{}", failures.len(), failures.join("\n"));
    assert_eq!(published, PUBLISHED);
}

#[test]
fn all_pass() {
    all(&SimOptions::default());
}

#[test]
fn all_pass_with_fast_float_sums() {
    all(&SimOptions { float_sums: FloatSums::Fast, ..SimOptions::default() });
}

#[test]
fn all_pass_by_the_plain_loops() {
    for float_sums in [FloatSums::Exact, FloatSums::Fast] {
        all(&SimOptions { reference_kernels: true, threads: 1, float_sums, ..SimOptions::default() });
    }
}

/// The average of a window comes close to the bound that was published for it (0.00195 for 0.002).
#[test]
fn a_bound_is_nearly_reached() {
    let report = run(&folder(), "rocket_pool_avg_6x6_k3", &SimOptions::default()).unwrap();
    let error = report.against_published.unwrap();
    assert!(report.published.unwrap().bound);
    assert!((0.0019..0.002).contains(&error), "{error}");
}

/// The published figures decide between readings of the silicon.
#[test]
fn another_silicon_is_told_apart() {
    let options = set_variant(&SimOptions::default(), "lut_between", "nearest-entry").unwrap();
    let unlike: Vec<_> = case_names(&folder())
        .unwrap()
        .into_iter()
        .filter(|name| run(&folder(), name, &options).unwrap().like_silicon() == Some(false))
        .collect();
    assert!(unlike.contains(&"rocket_lut_exp_n1024".to_owned()), "{unlike:?}");
}

#[test]
fn runs_are_what_the_drivers_start() {
    let counts = |name: &str| -> Vec<usize> {
        Case::read(&folder(), name).unwrap().runs().map(|programs| programs.len()).collect()
    };
    assert_eq!(counts("ew_add_chain3_n1536"), [3]);
    assert_eq!(counts("ew_add_3separate_n768"), [1, 1, 1]);
    assert_eq!(counts("conv_fp16_pw_c64_1x1_oc128_11tasks"), [1]);
    assert_eq!(counts("rocket_kacc_chain3_fp16_16x192x32"), [1, 1, 1]);
    let case = Case::read(&folder(), "gemm_int8_9x9x9").unwrap();
    let run = case.runs().next().unwrap();
    assert_eq!((run[0].words().count(), run[0].body.len(), run[0].tail.len()), (49, 45, 4));
}

/// The state before the first submit is what a run starts from.
#[test]
fn a_start_holds_programs_and_jobs() {
    for name in ["gemm_int8_9x9x9", "ew_add_chain3_n1536", "rocket_lut_exp_n1024"] {
        let case = Case::read(&folder(), name).unwrap();
        let start = case.start().unwrap();
        let run = case.runs().next().unwrap();
        assert_eq!(start.jobs.len(), 1);
        assert_eq!((start.jobs[0].0, start.jobs[0].1.tasks as usize), (0, run.len()), "{name}");
        assert_eq!(start.jobs[0].1.base, run[0].iova);
        for program in run {
            assert!(start.programs.contains(&(program.iova, program.words().count())));
            let (at, bytes) = start
                .memory
                .iter()
                .find(|(at, bytes)| (at.0..at.0 + bytes.len() as u32).contains(&program.iova.0))
                .unwrap();
            let stored = &bytes[(program.iova.0 - at.0) as usize..];
            assert!(
                program.words().zip(stored.chunks(8)).all(|(word, bytes)| word.0.to_le_bytes() == *bytes)
            );
        }
    }
}

/// A copy of a case in a folder of its own.
struct Copy(tempfile::TempDir, &'static str);

impl Copy {
    fn of(name: &'static str) -> Self {
        let copy = Self(tempfile::tempdir().unwrap(), name);
        for end in ["json", "npz"] {
            let file = format!("{name}.{end}");
            fs::copy(folder().join(&file), copy.0.path().join(&file)).unwrap();
            // The originals may be read-only.
            let path = copy.0.path().join(&file);
            let bytes = fs::read(&path).unwrap();
            fs::remove_file(&path).unwrap();
            fs::write(path, bytes).unwrap();
        }
        copy
    }

    fn path(&self, end: &str) -> PathBuf {
        self.0.path().join(self.1).with_extension(end)
    }

    /// Writes the data file anew, with one array changed.
    fn change(&self, array: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut change = Some(change);
        let mut old = zip::ZipArchive::new(Cursor::new(fs::read(self.path("npz")).unwrap())).unwrap();
        let mut new = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for index in 0..old.len() {
            let mut member = old.by_index(index).unwrap();
            let name = member.name().unwrap().into_owned();
            let mut bytes = Vec::new();
            member.read_to_end(&mut bytes).unwrap();
            if name == format!("{array}.npy") {
                change.take().unwrap()(&mut bytes);
            }
            let stored =
                zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
            new.start_file(name, stored).unwrap();
            new.write_all(&bytes).unwrap();
        }
        assert!(change.is_none(), "no array {array}");
        fs::write(self.path("npz"), new.finish().unwrap().into_inner()).unwrap();
    }

    fn describe(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.path("json")).unwrap();
        assert!(text.contains(from), "{from}");
        fs::write(self.path("json"), text.replacen(from, to, 1)).unwrap();
    }

    fn run(&self) -> Result<Report, CaseError> {
        run(self.0.path(), self.1, &SimOptions::default())
    }

    #[track_caller]
    fn assert_refused(&self, words: &str) {
        let error = self.run().unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        let text = format!("{error}: {source}");
        assert!(text.contains(words) && text.contains(self.1), "{words:?} is missing in {text:?}");
    }
}

/// Data of an `.npy` file starts here in these files.
const HEADER: usize = 128;

#[test]
fn a_copy_passes() {
    let report = Copy::of("gemm_int8_9x9x9").run().unwrap();
    assert_eq!((report.verdict, report.compared, report.wrong), (Verdict::Pass, 81, 0));
    assert_eq!(report.first_wrong, None);
}

#[test]
fn one_changed_byte_of_the_expected_output_is_found() {
    let copy = Copy::of("gemm_int8_9x9x9");
    copy.change("expected", |file| file[HEADER + 4 * 40] ^= 1);
    let report = copy.run().unwrap();
    assert_eq!((report.verdict, report.wrong), (Verdict::Wrong, 1));
    assert_eq!(report.largest_error, 1.0);
    let wrong = report.first_wrong.unwrap();
    assert_eq!((wrong.got - wrong.expected).abs(), 1.0);
}

#[test]
fn one_changed_byte_of_the_input_is_found() {
    let copy = Copy::of("gemm_int8_9x9x9");
    copy.change("s0_h3", |file| file[HEADER] ^= 1);
    let report = copy.run().unwrap();
    assert_eq!(report.verdict, Verdict::Wrong);
    assert!((1..=9).contains(&report.wrong), "at most a row of the product: {report:?}");
}

#[test]
fn one_changed_byte_of_a_program_is_found() {
    // In the data alone: program and description disagree.
    let copy = Copy::of("gemm_int8_9x9x9");
    copy.change("s0_h2", |file| file[HEADER + 8 * 10 + 2] ^= 1);
    copy.assert_refused("word 10 of program 0 of submit 0");
    // In both: the width of the output line is another.
    let copy = Copy::of("gemm_int8_9x9x9");
    copy.describe("0x0201000100091084", "0x0201000100081084");
    copy.assert_refused("is not the one described");
    // A program that never completes is a verdict, not an error.
    let copy = Copy::of("gemm_int8_9x9x9");
    copy.describe("0x0201000000b11040", "0x0201000000011040");
    copy.change("s0_h2", |file| {
        let word = 0x0201_0000_00b1_1040u64.to_le_bytes();
        let at = file.windows(8).position(|window| window == word).unwrap();
        file[at + 2] = 0x01;
    });
    let report = copy.run().unwrap();
    assert_eq!((report.verdict, report.compared), (Verdict::Stopped, 0));
    assert!(report.findings.iter().any(|finding| finding.contains("WEIGHT_BANK is 0")), "{report:?}");
}

#[test]
fn a_changed_task_descriptor_is_found() {
    let copy = Copy::of("gemm_int8_9x9x9");
    copy.change("s0_h1", |file| file[HEADER + 24] ^= 1);
    copy.assert_refused("task 0 in memory");
    let copy = Copy::of("rocket_gemm_fp16_f32_24x24x24");
    copy.describe("\"regcmd_count\": 45", "\"regcmd_count\": 0");
    copy.assert_refused("0 words");
}

#[test]
fn findings_of_the_simulator_are_reported() {
    let copy = Copy::of("gemm_int8_9x9x9");
    // FC_DATA_BANK in CBUF_CON0.
    copy.describe("0x0201000000b11040", "0x0201000001b11040");
    copy.change("s0_h2", |file| {
        let word = 0x0201_0000_00b1_1040u64.to_le_bytes();
        let at = file.windows(8).position(|window| window == word).unwrap();
        file[at + 3] = 0x01;
    });
    let report = copy.run().unwrap();
    assert_eq!(report.verdict, Verdict::Wrong, "{report:?}");
    assert!(report.findings.iter().any(|finding| finding.contains("fc-data-bank")), "{report:?}");
}

/// Reused weights that nothing loaded: all zero, as the sums of the first submit would be with zero features.
#[test]
fn a_finding_fails_a_case_whose_values_are_right() {
    let copy = Copy::of("gemm_int8_9x9x9");
    copy.change("s0_h3", |file| file[HEADER..].fill(0));
    copy.change("expected", |file| file[HEADER..].fill(0));
    assert_eq!(copy.run().unwrap().verdict, Verdict::Pass);
    copy.describe("0x0201000000b11040", "0x0201000020b11040");
    copy.change("s0_h2", |file| {
        let word = 0x0201_0000_00b1_1040u64.to_le_bytes();
        let at = file.windows(8).position(|window| window == word).unwrap();
        file[at + 3] = 0x20;
    });
    let report = copy.run().unwrap();
    assert_eq!((report.verdict, report.wrong), (Verdict::Findings, 0), "{report:?}");
    assert!(report.findings[0].contains("weight-reuse"), "{report:?}");
}

#[test]
fn damaged_files_are_named() {
    let name = "gemm_int8_9x9x9";
    for (from, to, words) in [
        ("\"name\": \"gemm_int8_9x9x9\"", "\"name\": \"other\"", "holds case other"),
        ("\"driver\": \"rknpu\"", "\"driver\": \"rknn\"", "rknn"),
        ("\"iova\": \"0xfffe0000\"", "\"iova\": \"0xfff5f000\"", "overlaps"),
        ("\"iova\": \"0xfffe0000\"", "\"iova\": \"0x1fffe0000\"", "32 bits"),
        ("\"iova\": \"0xfffe0000\"", "\"iova\": \"fffe0000\"", "like 0x1f"),
        ("\"size\": 65536", "\"size\": 16", "does not fit buffer h1"),
        ("\"id\": \"h2\"", "\"id\": \"h1\"", "two buffers h1"),
        ("\"core_mask\": 1", "\"core_mask\": 5", "core mask 0x5"),
        ("\"kind\": \"exact\"", "\"kind\": \"near\"", "near"),
        ("\"post\": \"none\"", "\"post\": \"half\"", "half"),
        ("\"dtype\": \"int32\"", "\"dtype\": \"int33\"", "int33"),
        ("\"expected_key\": \"expected\"", "\"expected_key\": \"s0_h1\"", "places are compared with"),
        ("\"index_key\": \"out_index\"", "\"index_key\": \"index\"", "array index: it is missing"),
        ("\"buffer\": \"h5\"", "\"buffer\": \"h9\"", "no buffer h9"),
        ("\"output\": {", "\"outputs\": {", "output"),
        ("{", "", "column"),
    ] {
        let copy = Copy::of(name);
        copy.describe(from, to);
        copy.assert_refused(words);
    }
    let copy = Copy::of(name);
    copy.change("out_index", |file| file[HEADER + 3] = 0x7F);
    copy.assert_refused("compared element 0 would be element");
    let copy = Copy::of(name);
    copy.change("expected", |file| file.truncate(HEADER + 7));
    copy.assert_refused("array expected: 7 bytes do not fill");
    let copy = Copy::of(name);
    let bytes = fs::read(copy.path("npz")).unwrap();
    fs::write(copy.path("npz"), &bytes[..bytes.len() / 2]).unwrap();
    copy.assert_refused("not a readable archive");
    let copy = Copy::of(name);
    fs::remove_file(copy.path("npz")).unwrap();
    copy.assert_refused("cannot be read");
    assert!(matches!(case_names(Path::new("/no/such/folder")), Err(CaseError::Io { .. })));
}

/// Damaged bytes anywhere give an error or a verdict, never a panic.
#[test]
fn arbitrary_damage_does_not_panic() {
    let copy = Copy::of("rocket_pool_avg_7x7_global");
    for end in ["json", "npz"] {
        let good = fs::read(copy.path(end)).unwrap();
        for at in (0..good.len()).step_by(good.len() / 97 + 1) {
            let mut bad = good.clone();
            bad[at] ^= 0x11;
            fs::write(copy.path(end), &bad).unwrap();
            let _ = copy.run();
        }
        fs::write(copy.path(end), good).unwrap();
    }
    assert_eq!(copy.run().unwrap().verdict, Verdict::Pass);
}
