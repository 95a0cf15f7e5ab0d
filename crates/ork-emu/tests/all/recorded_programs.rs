// SPDX-License-Identifier: MIT OR Apache-2.0
//! The recorded programs of `tests/conformance`, through the calls that they made. Vendor programs use buffers without
//! caches and never synchronise: such a buffer has a single copy, so they must work with strict coherency too.

use crate::support;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::f16;
use ork_conformance::{Arrays, Dtype};
use ork_drm::Mapping;
use ork_emu::{Board, Coherency, EmuOptions, RocketOptions, SimOptions};
use ork_rknpu::uapi::{RknpuSubcoreTask, RknpuSubmit, mem};
use ork_rocket::{Job, Rocket, Task};
use serde::Deserialize;
use support::*;

#[derive(Deserialize)]
struct Case {
    driver: String,
    buffers: Vec<BufferSpec>,
    submits: Vec<SubmitSpec>,
    output: Output,
    tolerance: Tolerance,
    #[serde(skip)]
    arrays: Arrays,
}

#[derive(Deserialize)]
struct BufferSpec {
    id: String,
    iova: String,
    size: u64,
    alloc_flags: u32,
}

impl BufferSpec {
    fn at(&self) -> u64 {
        hex(&self.iova)
    }
}

#[derive(Deserialize)]
struct SubmitSpec {
    cpu_writes: Vec<CpuWrite>,
    #[serde(default)]
    actions_before: Vec<(u32, u32)>,
    submit: Option<VendorSubmit>,
    #[serde(default)]
    jobs: Vec<MainlineJob>,
}

#[derive(Deserialize)]
struct CpuWrite {
    buffer: String,
    key: String,
}

#[derive(Deserialize)]
struct VendorSubmit {
    flags: u32,
    timeout: u32,
    task_start: u32,
    task_number: u32,
    core_mask: u32,
    fence_fd: i32,
    task_base_addr: u64,
    subcore_task: Vec<(u32, u32)>,
    task_buffer: String,
}

#[derive(Deserialize)]
struct MainlineJob {
    in_buffers: Vec<String>,
    out_buffers: Vec<String>,
    tasks: Vec<MainlineTask>,
}

#[derive(Deserialize)]
struct MainlineTask {
    regcmd: String,
    regcmd_count: u32,
}

#[derive(Deserialize)]
struct Output {
    buffer: String,
    dtype: String,
    index_key: String,
    expected_key: String,
    post: String,
}

#[derive(Deserialize)]
struct Tolerance {
    kind: String,
    #[serde(default)]
    atol: f64,
    #[serde(default)]
    rtol: f64,
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance")
}

fn cases(driver: &str) -> Vec<(String, Case)> {
    let read = |name: &String| {
        let text = std::fs::read_to_string(folder().join(name).with_extension("json")).unwrap();
        let mut case: Case = serde_json::from_str(&text).unwrap();
        case.arrays = Arrays::read(&folder().join(name).with_extension("npz")).unwrap();
        (name.clone(), case)
    };
    let names = ork_conformance::case_names(&folder()).unwrap();
    names.iter().map(read).filter(|(_, case)| case.driver == driver).collect()
}

impl Case {
    fn write(&self, writes: &[CpuWrite], mappings: &mut BTreeMap<String, Mapping>) {
        for write in writes {
            let bytes = &self.arrays.get(&write.key).unwrap().bytes;
            put(mappings.get_mut(&write.buffer).unwrap(), 0, bytes);
        }
    }

    /// How many values are wrong.
    fn wrong(&self, mapping: &Mapping) -> usize {
        // SAFETY: no job is in flight.
        let bytes = unsafe { mapping.bytes() };
        let dtype = Dtype::named(&self.output.dtype).unwrap();
        let flip = self.output.post != "none";
        let (index, expected) = (
            self.arrays.get(&self.output.index_key).unwrap(),
            self.arrays.get(&self.output.expected_key).unwrap(),
        );
        let is_wrong = |i: &usize| {
            let place = index.dtype.number(&index.bytes, *i).unwrap() as usize;
            let got = if flip { f64::from(bytes[place] ^ 0x80) } else { dtype.number(bytes, place).unwrap() };
            !self.tolerance.accepts(got, expected.dtype.number(&expected.bytes, *i).unwrap())
        };
        (0..index.len()).filter(is_wrong).count()
    }
}

impl Tolerance {
    fn accepts(&self, got: f64, expected: f64) -> bool {
        let rank = |value: f64| {
            let bits = i32::from(f16::from_f64(value).to_bits());
            if bits & 0x8000 == 0 { bits } else { -(bits & 0x7FFF) }
        };
        let equal = got == expected || (got.is_nan() && expected.is_nan());
        equal
            || match self.kind.as_str() {
                "close" => (got - expected).abs() <= self.atol + self.rtol * expected.abs(),
                "ulp" => f64::from((rank(got) - rank(expected)).abs()) <= self.atol,
                _ => false,
            }
    }
}

fn board_for(coherency: Coherency) -> Board {
    let rocket = RocketOptions { pooling_completes: true, ..Default::default() };
    let sim = SimOptions { threads: 1, ..Default::default() };
    Board::new(&EmuOptions { coherency, rocket, sim, ..Default::default() })
}

/// Allocates the buffers at the recorded addresses: what lies between is filled. Gives mappings and object addresses.
fn vendor_buffers(npu: &Npu, case: &Case) -> (BTreeMap<String, Mapping>, BTreeMap<String, u64>) {
    let mut specs: Vec<&BufferSpec> = case.buffers.iter().collect();
    specs.sort_by_key(|spec| std::cmp::Reverse(spec.at()));
    let (mut mappings, mut objects, mut floor) = (BTreeMap::new(), BTreeMap::new(), 1_u64 << 32);
    for spec in specs {
        let size = spec.size.next_multiple_of(4096);
        let gap = floor - (spec.at() + size);
        if gap > 0 {
            create(npu, gap, mem::IOMMU_LIMIT_IOVA_ALIGNMENT);
        }
        assert_eq!(spec.alloc_flags & mem::CACHEABLE, 0);
        let buffer = create(npu, spec.size, mem::IOMMU_LIMIT_IOVA_ALIGNMENT | spec.alloc_flags);
        assert_eq!(buffer.dma_addr, spec.at());
        mappings.insert(spec.id.clone(), map(npu, &buffer, spec.size as usize));
        objects.insert(spec.id.clone(), buffer.obj_addr);
        floor = spec.at();
    }
    (mappings, objects)
}

/// Opens a file for a case, runs it, checks its output and closes the file.
fn run_vendor_case(board: &Board, name: &str, case: &Case) {
    let npu = open(board);
    let (mut mappings, objects) = vendor_buffers(&npu, case);
    for step in &case.submits {
        case.write(&step.cpu_writes, &mut mappings);
        for (code, value) in &step.actions_before {
            npu.action(*code, *value).unwrap();
        }
        let recorded = step.submit.as_ref().unwrap();
        let mut request = RknpuSubmit {
            flags: recorded.flags,
            timeout: recorded.timeout,
            task_start: recorded.task_start,
            task_number: recorded.task_number,
            task_obj_addr: objects[&recorded.task_buffer],
            task_base_addr: recorded.task_base_addr,
            core_mask: recorded.core_mask,
            fence_fd: recorded.fence_fd,
            ..Default::default()
        };
        for (entry, (task_start, task_number)) in request.subcore_task.iter_mut().zip(&recorded.subcore_task)
        {
            *entry = RknpuSubcoreTask { task_start: *task_start, task_number: *task_number };
        }
        if let Err(error) = submit(&npu, &request) {
            panic!("{name}: {error} ({:?})", board.take_findings());
        }
    }
    let wrong = case.wrong(&mappings[&case.output.buffer]);
    assert_eq!(wrong, 0, "{name}: {:?}", board.take_findings());
    drop((mappings, npu));
    all_gone(board);
}

fn run_vendor_cases(coherency: Coherency) {
    let cases = cases("rknpu");
    for (name, case) in &cases {
        run_vendor_case(&board_for(coherency), name, case);
    }
    assert!(cases.len() >= 28, "{}", cases.len());
}

/// Public examples run short programs one after the other, in one process or several, without a reset: some turn
/// ping-pong on, others never write S_POINTER.
#[test]
fn element_wise_programs_follow_each_other_on_a_core() {
    let cases: BTreeMap<String, Case> = cases("rknpu").into_iter().collect();
    let board = board_for(Coherency::Strict);
    for name in ["ew_add_f16_n32", "ew_add_u16_simple", "ew_add_u16_simple", "ew_add_f16_n32"] {
        run_vendor_case(&board, name, &cases[name]);
    }
    assert_eq!(kinds(&board), []);
}

#[test]
fn vendor_programs_without_caches_work_with_strict_coherency() {
    run_vendor_cases(Coherency::Strict);
}

#[test]
fn vendor_programs_work_in_shared_memory() {
    run_vendor_cases(Coherency::Shared);
}

#[test]
fn mainline_programs_work() {
    let mut count = 0;
    for (name, case) in cases("rocket") {
        let board = board_for(Coherency::Strict);
        let npu = Rocket::new(board.open_rocket());
        let mut specs: Vec<&BufferSpec> = case.buffers.iter().collect();
        specs.sort_by_key(|spec| spec.at());
        let (mut mappings, mut handles, mut ceiling) = (BTreeMap::new(), BTreeMap::new(), 0);
        for spec in specs {
            while spec.at() > ceiling {
                let gap = (spec.at() - ceiling).min(1 << 30);
                npu.create_bo(gap as u32).unwrap();
                ceiling += gap;
            }
            let bo = npu.create_bo(spec.size as u32).unwrap();
            assert_eq!(bo.dma_address, spec.at());
            mappings.insert(spec.id.clone(), npu.mmap(bo.offset, spec.size as usize).unwrap());
            handles.insert(spec.id.clone(), bo.handle);
            ceiling = spec.at() + spec.size.next_multiple_of(4096);
        }
        for step in &case.submits {
            handles.values().for_each(|handle| npu.prep_bo(*handle, i64::MAX).unwrap());
            case.write(&step.cpu_writes, &mut mappings);
            handles.values().for_each(|handle| npu.fini_bo(*handle).unwrap());
            let list = |ids: &[String]| ids.iter().map(|id| handles[id]).collect::<Vec<u32>>();
            let job = |job: &MainlineJob| Job {
                tasks: job
                    .tasks
                    .iter()
                    .map(|task| Task { regcmd: hex(&task.regcmd) as u32, regcmd_count: task.regcmd_count })
                    .collect(),
                reads: list(&job.in_buffers),
                writes: list(&job.out_buffers),
            };
            let jobs: Vec<Job> = step.jobs.iter().map(job).collect();
            // SAFETY: no mapping is borrowed.
            unsafe { npu.submit(&jobs) }.unwrap();
        }
        npu.prep_bo(handles[&case.output.buffer], i64::MAX).unwrap();
        let wrong = case.wrong(&mappings[&case.output.buffer]);
        assert_eq!(wrong, 0, "{name}: {:?}", board.take_findings());
        drop((mappings, npu));
        all_gone(&board);
        count += 1;
    }
    assert!(count >= 40, "{count}");
}
