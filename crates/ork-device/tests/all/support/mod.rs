// SPDX-License-Identifier: MIT OR Apache-2.0
//! One small matmul, by hand: int8 M=4 K=64 N=64 to int32, rows of C 64 elements apart. The program is the worked
//! example of the hardware notes (`isa.md` §8.2, column 3), the references are plain loops.
#![allow(dead_code, reason = "each test binary uses its part")]

mod bench;

#[allow(unused_imports, reason = "each test binary uses its part")]
pub(crate) use bench::*;
use ork_device::{Board, Completed, Device, DeviceKind, DeviceOptions, DmaBuffer, DomainId, Purpose};
use ork_device::{ResidentBuffer, Submission, SubmitError, Task};
use ork_isa::regs::{cna, core, dpu, global};
use ork_isa::{Iova, Link, Program, ProgramBuilder};

pub(crate) const M: usize = 4;
pub(crate) const K: usize = 64;
pub(crate) const N: usize = 64;
pub(crate) const C_BYTES: u64 = (M * N * 4) as u64;
pub(crate) const MATMUL_BLOCKS: u32 = 0xD;

pub(crate) fn options() -> DeviceOptions {
    DeviceOptions { kind: DeviceKind::Sim, ..Default::default() }
}

/// A device on its own board.
pub(crate) fn device() -> (Device, Board) {
    let device = Device::open(&options()).unwrap();
    let board = device.board().unwrap().clone();
    (device, board)
}

pub(crate) fn program(a: Iova, b: Iova, c: Iova, link: Link) -> Program {
    let mut builder = ProgramBuilder::new();
    builder
        .set(cna::CbufCon0(0xB1))
        .set(cna::DcompRegnum(0))
        .set(cna::DcompCtrl(0))
        .set(cna::ConvCon1(0x20000000))
        .set(dpu::SPointer(0xE))
        .set(cna::ConvCon1(0x20000000))
        .set(cna::ConvCon2(0x50))
        .set(cna::ConvCon3(0x9))
        .set(cna::DataSize0(0x10004))
        .set(cna::DataSize1(0x3F0040))
        .set(cna::DataSize2(0x1))
        .set(cna::DataSize3(0x4))
        .set(cna::WeightSize0(0x1000))
        .set(cna::WeightSize1(0x40))
        .set(cna::WeightSize2(0x1010040))
        .set(cna::CbufCon0(0xB1))
        .set(cna::CbufCon1(0x1))
        .set(cna::CvtCon0(0xB))
        .set(cna::CvtCon1(0x10000))
        .set(cna::CvtCon2(0x10000))
        .set(cna::CvtCon3(0x10000))
        .set(cna::CvtCon4(0x10000))
        .set(cna::FcCon0(0))
        .set(cna::FcCon1(0))
        .set(cna::PadCon0(0))
        .set(cna::FeatureDataAddr(a.0))
        .set(cna::FcCon2(0))
        .set(cna::DmaCon0(0xF000F))
        .set(cna::DmaCon1(0x4))
        .set(cna::DmaCon2(0))
        .set(cna::FcDataSize0(0x10004))
        .set(cna::FcDataSize1(0x40))
        .set(cna::DcompCtrl(0))
        .set(cna::DcompRegnum(0))
        .set(cna::DcompAddr0(b.0))
        .set(cna::DcompAmount0(0))
        .set(cna::DcompAmount1(0))
        .set(cna::DcompAmount2(0))
        .set(cna::DcompAmount3(0))
        .set(cna::DcompAmount4(0))
        .set(cna::DcompAmount5(0))
        .set(cna::DcompAmount6(0))
        .set(cna::DcompAmount7(0))
        .set(cna::DcompAmount8(0))
        .set(cna::DcompAmount9(0))
        .set(cna::DcompAmount10(0))
        .set(cna::DcompAmount11(0))
        .set(cna::DcompAmount12(0))
        .set(cna::DcompAmount13(0))
        .set(cna::DcompAmount14(0))
        .set(cna::DcompAmount15(0))
        .set(cna::CvtCon5(0))
        .set(cna::PadCon1(0))
        .set(core::MiscCfg(0x1))
        .set(core::DataoutSize0(0x30000))
        .set(core::DataoutSize1(0x3F))
        .set(core::ClipTruncate(0))
        .set(core::Unknown3030(0))
        .set(dpu::FeatureModeCfg(0x1E4))
        .set(dpu::DataFormat(0x80000000))
        .set(dpu::OffsetPend(0))
        .set(dpu::DstBaseAddr(c.0))
        .set(dpu::DstSurfStride(0x10))
        .set(dpu::DataCubeWidth(0))
        .set(dpu::DataCubeHeight(0x3))
        .set(dpu::DataCubeNotchAddr(0xF000F))
        .set(dpu::DataCubeChannel(0x3F003F))
        .set(dpu::BsCfg(0x53))
        .set(dpu::BsAluCfg(0))
        .set(dpu::BsMulCfg(0))
        .set(dpu::BsReluxCmpValue(0))
        .set(dpu::BsOwCfg(0x7FC))
        .set(dpu::BsOwOp(0))
        .set(dpu::WdmaSize0(0x3F))
        .set(dpu::WdmaSize1(0x30000))
        .set(dpu::BnCfg(0x53))
        .set(dpu::BnAluCfg(0))
        .set(dpu::BnMulCfg(0))
        .set(dpu::BnReluxCmpValue(0))
        .set(dpu::EwCfg(0x383))
        .set(dpu::EwCvtOffsetValue(0))
        .set(dpu::EwCvtScaleValue(0x1))
        .set(dpu::EwReluxCmpValue(0))
        .set(dpu::OutCvtOffset(0))
        .set(dpu::OutCvtScale(0x1))
        .set(dpu::OutCvtShift(0))
        .set(dpu::EwOpValue0(0))
        .set(dpu::EwOpValue1(0))
        .set(dpu::EwOpValue2(0))
        .set(dpu::EwOpValue3(0))
        .set(dpu::EwOpValue4(0))
        .set(dpu::EwOpValue5(0))
        .set(dpu::EwOpValue6(0))
        .set(dpu::EwOpValue7(0))
        .set(dpu::SurfaceAdd(0x80))
        .set(dpu::Unknown40c4(0))
        .set(dpu::LutAccessCfg(0))
        .set(dpu::LutAccessData(0))
        .set(dpu::LutCfg(0))
        .set(dpu::LutInfo(0))
        .set(dpu::LutLeStart(0))
        .set(dpu::LutLeEnd(0))
        .set(dpu::LutLoStart(0))
        .set(dpu::LutLoEnd(0))
        .set(dpu::LutLeSlopeScale(0))
        .set(dpu::LutLeSlopeShift(0))
        .set(dpu::LutLoSlopeScale(0))
        .set(dpu::LutLoSlopeShift(0));
    builder.finish(link, global::OperationEnable(MATMUL_BLOCKS))
}

/// Full-range bytes.
pub(crate) fn noise(seed: u64, count: usize) -> Vec<i8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as i8
    };
    (0..count).map(|_| next()).collect()
}

/// C = A · B, with A[m][k] and B[k][n] row by row.
pub(crate) fn reference(a: &[i8], b: &[i8]) -> Vec<i32> {
    let mut c = vec![0; M * N];
    for m in 0..M {
        for n in 0..N {
            for k in 0..K {
                c[m * N + n] += i32::from(a[m * K + k]) * i32::from(b[k * N + n]);
            }
        }
    }
    c
}

/// B in the order that the hardware reads weights in (`isa.md` §4.1).
pub(crate) fn weights(b: &[i8]) -> Vec<u8> {
    let mut packed = vec![0; K * N];
    for k in 0..K {
        for n in 0..N {
            let at = ((n / 32) * (K / 32) + k / 32) * 1024 + (n % 32) * 32 + k % 32;
            packed[at] = b[k * N + n] as u8;
        }
    }
    packed
}

pub(crate) fn fill(buffer: &mut DmaBuffer, at: usize, bytes: &[u8]) {
    buffer.host_mut()[at..at + bytes.len()].copy_from_slice(bytes);
}

pub(crate) fn bytes_of(values: &[i8]) -> Vec<u8> {
    values.iter().map(|value| *value as u8).collect()
}

pub(crate) fn words_of(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|word| i32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// A matmul with its buffers: everything written, nothing flushed but the weights.
pub(crate) struct Matmul {
    pub(crate) a: DmaBuffer,
    pub(crate) b: ResidentBuffer,
    pub(crate) c: DmaBuffer,
    pub(crate) regcmd: DmaBuffer,
    pub(crate) task: Task,
    pub(crate) expected: Vec<i32>,
}

impl Matmul {
    pub(crate) fn new(device: &Device, domain: DomainId, seed: u64) -> Self {
        let alloc = |purpose, len| device.alloc_in(domain, purpose, len).unwrap();
        let (a_values, b_values) = (noise(seed, M * K), noise(seed + 1000, K * N));
        let mut a = alloc(Purpose::Data, (M * K) as u64);
        let mut b = alloc(Purpose::Data, (K * N) as u64);
        let c = alloc(Purpose::Data, C_BYTES);
        fill(&mut a, 0, &bytes_of(&a_values));
        fill(&mut b, 0, &weights(&b_values));
        b.flush(0..b.len()).unwrap();
        let program = program(a.iova(), b.iova(), c.iova(), Link::Last);
        assert_eq!((program.words().len(), program.body_words()), (112, 108));
        let mut regcmd = alloc(Purpose::Regcmd, program.padded_bytes() as u64);
        program.write_to(regcmd.host_mut());
        let task = Task::dpu(regcmd.iova(), program.body_words() as u32, MATMUL_BLOCKS);
        let expected = reference(&a_values, &b_values);
        Self { a, b: b.unmap_host(), c, regcmd, task, expected }
    }

    pub(crate) fn flushed(self) -> Self {
        self.a.flush(0..self.a.len()).unwrap();
        self.regcmd.flush(0..self.regcmd.len()).unwrap();
        self
    }

    pub(crate) fn run(&self, device: &Device, core: u8) -> Result<Completed, SubmitError> {
        device.submit(&Submission::new(core, vec![self.task]).in_domain(self.a.domain()))
    }

    pub(crate) fn result(&mut self, after: &Completed) -> Vec<i32> {
        words_of(self.c.fetch(0..C_BYTES, after).unwrap())
    }
}
