// SPDX-License-Identifier: MIT OR Apache-2.0
//! Convolutions and matmuls over tensors, with programs from named fields, and the same by plain loops.
use half::{bf16, f16};
use ork_isa::regs::{cna, core, dpu};
use ork_isa::{FieldOverflow, Register};
use ork_sim::{Core, JobOutcome, SimOptions};

use super::{FlatBus, PROGRAM, Patch, Random, Words, patched, run_words};

/// BS_CFG and BN_CFG with everything bypassed, and EW_CFG the same (`isa.md` §6).
pub const BYPASSED: u32 = 0x53;
pub const EW_BYPASSED: u32 = 0x383;

/// A register as a pair of offset and value.
pub fn to<R: Register>(register: R) -> (u16, u32) {
    (R::DESC.offset, register.bits())
}

/// CBUF_CON0 with so many feature and weight banks.
pub fn banks(data: u32, weight: u32) -> u32 {
    let split = cna::CbufCon0(0).with_data_bank(data).and_then(|split| split.with_weight_bank(weight));
    split.expect("bank counts of tests fit their fields").0
}

fn ping_pong() -> Result<(u16, u32), FieldOverflow> {
    let pointer = dpu::SPointer(0).with_pointer_pp_mode(1)?.with_executer_pp_en(1)?;
    Ok(to(pointer.with_pointer_pp_en(1)?))
}

/// The three fields that say how many atoms a group emits, minus 1.
pub fn size_e(value: u32) -> Result<dpu::BsOwCfg, FieldOverflow> {
    dpu::BsOwCfg(0).with_size_e_0(value)?.with_size_e_1(value)?.with_size_e_2(value)
}

pub const A: u32 = PROGRAM + 0x1_0000;
pub const B: u32 = PROGRAM + 0x10_0000;
pub const OUT: u32 = PROGRAM + 0x20_0000;

/// A precision of the MAC array: code, element bits, kernels per group, channels per weight block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Int8,
    Int16,
    Fp16,
    Bf16,
    Int4,
    Tf32,
}

impl Kind {
    pub fn facts(self) -> (u32, usize, usize, usize) {
        match self {
            Self::Int8 => (0, 8, 32, 32),
            Self::Int16 => (1, 16, 16, 32),
            Self::Fp16 => (2, 16, 16, 32),
            Self::Bf16 => (3, 16, 16, 32),
            Self::Int4 => (6, 4, 64, 32),
            Self::Tf32 => (7, 32, 16, 16),
        }
    }

    /// A small value, exact in the precision.
    pub fn value(self, random: &mut Random) -> f64 {
        match self {
            Self::Int4 => random.below(16) as f64 - 8.0,
            Self::Int8 => random.below(256) as f64 - 128.0,
            Self::Int16 => random.below(2000) as f64 - 1000.0,
            _ => (random.below(257) as f64 - 128.0) / 16.0,
        }
    }

    pub fn store(self, value: f64, index: usize, bytes: &mut [u8]) {
        match self {
            Self::Int8 => bytes[index] = (value as i8).cast_unsigned(),
            Self::Int16 => bytes[2 * index..][..2].copy_from_slice(&(value as i16).to_le_bytes()),
            Self::Fp16 => bytes[2 * index..][..2].copy_from_slice(&f16::from_f64(value).to_le_bytes()),
            Self::Bf16 => bytes[2 * index..][..2].copy_from_slice(&bf16::from_f64(value).to_le_bytes()),
            Self::Tf32 => bytes[4 * index..][..4].copy_from_slice(&(value as f32).to_le_bytes()),
            Self::Int4 => {
                let nibble = (value as i8).cast_unsigned() & 0xF;
                bytes[index / 2] |= if index.is_multiple_of(2) { nibble } else { nibble << 4 };
            }
        }
    }
}

/// An output format: code, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Out {
    Int32,
    Int16,
    Fp32,
    Fp16,
}

impl Out {
    pub fn facts(self) -> (u32, usize) {
        match self {
            Self::Int32 => (4, 4),
            Self::Int16 => (1, 2),
            Self::Fp32 => (5, 4),
            Self::Fp16 => (2, 2),
        }
    }

    pub fn load(self, bytes: &[u8], index: usize) -> f64 {
        match self {
            Self::Int32 => f64::from(i32::from_le_bytes(bytes[4 * index..][..4].try_into().unwrap())),
            Self::Int16 => f64::from(i16::from_le_bytes(bytes[2 * index..][..2].try_into().unwrap())),
            Self::Fp32 => f64::from(f32::from_le_bytes(bytes[4 * index..][..4].try_into().unwrap())),
            Self::Fp16 => f16::from_le_bytes(bytes[2 * index..][..2].try_into().unwrap()).to_f64(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Spec {
    pub kind: Kind,
    pub out: Out,
    pub depthwise: bool,
    pub c: usize,
    pub h: usize,
    pub w: usize,
    pub oc: usize,
    pub k: (usize, usize),
    pub stride: (usize, usize),
    pub dilation: (usize, usize),
    pub pad: (usize, usize),
    /// Register 0x1040; 0 takes what the features need.
    pub split: u32,
}

impl Spec {
    pub fn matmul(kind: Kind, out: Out, m: usize, k: usize, n: usize) -> Self {
        Self {
            kind,
            out,
            depthwise: false,
            c: k,
            h: m,
            w: 1,
            oc: n,
            k: (1, 1),
            stride: (1, 1),
            dilation: (1, 1),
            pad: (0, 0),
            split: 0,
        }
    }

    pub fn out_size(&self) -> (usize, usize) {
        let one =
            |size: usize, k, stride, dilation, pad| (size + 2 * pad - (k - 1) * dilation - 1) / stride + 1;
        (
            one(self.h, self.k.0, self.stride.0, self.dilation.0, self.pad.0),
            one(self.w, self.k.1, self.stride.1, self.dilation.1, self.pad.1),
        )
    }

    pub fn group(&self) -> usize {
        self.kind.facts().2 * if self.depthwise { 2 } else { 1 }
    }

    pub fn channels_out(&self) -> usize {
        if self.depthwise { self.c } else { self.oc }
    }

    /// The body of the program in cube layouts, one task.
    pub fn words(&self) -> Words {
        self.registers().expect("sizes of tests fit their fields")
    }

    fn registers(&self) -> Result<Words, FieldOverflow> {
        let (code, bits, ..) = self.kind.facts();
        let (out_code, out_bytes) = self.out.facts();
        let (oh, ow) = self.out_size();
        let (h, w, c) = (self.h as u32, self.w as u32, self.c as u32);
        let (oh, ow) = (oh as u32, ow as u32);
        let taps = (self.k.0 * self.k.1) as u32;
        let per_kernel = taps * c * bits as u32 / 8;
        let kernels = if self.depthwise { 1 } else { self.oc as u32 };
        let padded = self.channels_out().next_multiple_of(self.group()) as u32;
        let line = (self.w * self.c * bits / 8).next_multiple_of(64) as u32;
        let d = (h * line).div_ceil(32768).clamp(1, 11);
        let split = if self.split == 0 { (12 - d) << 4 | d } else { self.split };
        let dpu_code = if self.kind == Kind::Tf32 { 5 } else { code };
        let atoms = (self.group() * out_bytes / 16) as u32;
        let mode = if self.depthwise { 3 } else { 0 };
        let surf = (w * h).wrapping_sub(4 * w) & 0x0FFF_FFFF;
        let dim = |value: usize| value as u32;
        let d3 = dpu::DataFormat(0).with_out_precision(out_code)?;
        Ok(vec![
            ping_pong()?,
            to(cna::CbufCon0(split)),
            to(cna::ConvCon1(0).with_proc_precision(code)?.with_in_precision(code)?.with_conv_mode(mode)?),
            to(cna::ConvCon2(0).with_feature_grains(h + 1)?),
            to(cna::ConvCon3(0)
                .with_atrous_y_dilation(dim(self.dilation.0 - 1))?
                .with_atrous_x_dilation(dim(self.dilation.1 - 1))?
                .with_conv_y_stride(dim(self.stride.0))?
                .with_conv_x_stride(dim(self.stride.1))?),
            to(cna::DataSize0(0).with_datain_width(w)?.with_datain_height(h)?),
            to(cna::DataSize1(0).with_datain_channel_real(c - 1)?.with_datain_channel(c)?),
            to(cna::DataSize2(0).with_dataout_width(ow)?),
            to(cna::DataSize3(0).with_dataout_atomics(ow * oh)?),
            to(cna::WeightSize0(per_kernel * kernels)),
            to(cna::WeightSize1(0).with_weight_bytes_per_kernel(per_kernel)?),
            to(cna::WeightSize2(0)
                .with_weight_width(dim(self.k.1))?
                .with_weight_height(dim(self.k.0))?
                .with_weight_kernels(kernels)?),
            to(cna::CbufCon1(0).with_data_entries(line / 64)?),
            to(cna::CvtCon0(0).with_data_sign(1)?.with_cvt_type(1)?.with_cvt_bypass(1)?),
            to(cna::FcCon0(0)),
            to(cna::PadCon0(0).with_pad_left(dim(self.pad.1))?.with_pad_top(dim(self.pad.0))?),
            to(cna::FeatureDataAddr(A)),
            to(cna::DmaCon0(0).with_weight_burst_len(15)?.with_data_burst_len(15)?),
            to(cna::DmaCon1(0).with_line_stride(4 * w)?),
            to(cna::DmaCon2(0).with_surf_stride(surf)?),
            to(cna::FcDataSize0(0).with_dma_width(w)?.with_dma_height(h)?),
            to(cna::FcDataSize1(0).with_dma_channel(c)?),
            to(cna::DcompAddr0(B)),
            to(cna::PadCon1(0)),
            to(core::MiscCfg(0).with_proc_precision(code)?.with_dw_en(u32::from(self.depthwise))?),
            to(core::DataoutSize0(0).with_dataout_height(oh - 1)?.with_dataout_width(ow - 1)?),
            to(core::DataoutSize1(0).with_dataout_channel(padded - 1)?),
            to(core::ClipTruncate(0)),
            to(dpu::FeatureModeCfg(0).with_burst_len(15)?.with_conv_mode(mode)?.with_output_mode(2)?),
            to(d3.with_in_precision(dpu_code)?.with_proc_precision(dpu_code)?),
            to(dpu::DstBaseAddr(OUT)),
            to(dpu::DstSurfStride(0).with_dst_surf_stride(oh * ow)?),
            to(dpu::DataCubeWidth(0).with_width(ow - 1)?),
            to(dpu::DataCubeHeight(0).with_height(oh - 1)?),
            to(dpu::DataCubeNotchAddr(0)),
            to(dpu::DataCubeChannel(0)
                .with_orig_channel(dim(self.channels_out() - 1))?
                .with_channel(padded - 1)?),
            to(dpu::BsCfg(BYPASSED)),
            // Depthwise int8 with 32-bit output has more atoms than the field counts.
            to(size_e((atoms - 1).min(7))?.with_od_bypass(1)?),
            to(dpu::BsOwOp(0)),
            to(dpu::WdmaSize0(0).with_channel_wdma(padded - 1)?),
            to(dpu::WdmaSize1(0).with_height_wdma(oh - 1)?.with_width_wdma(ow - 1)?),
            to(dpu::BnCfg(BYPASSED)),
            to(dpu::EwCfg(EW_BYPASSED)),
            to(dpu::OutCvtOffset(0)),
            to(dpu::OutCvtScale(0)
                .with_fp32tofp16_en(u32::from(self.out == Out::Fp16))?
                .with_out_cvt_scale(1)?),
            to(dpu::OutCvtShift(0)),
            to(dpu::SurfaceAdd(0).with_surf_add(oh * ow * atoms)?),
        ])
    }
}

pub struct Case {
    pub spec: Spec,
    pub bus: FlatBus,
    pub a: Vec<f64>,
    pub b: Vec<f64>,
}

impl Case {
    /// Random tensors: a as `[c][h][w]`, b as `[oc][c][ky][kx]` (depthwise `[c][ky][kx]`).
    pub fn new(spec: Spec, seed: u64) -> Self {
        let mut random = Random(seed);
        let depth = if spec.depthwise { spec.c } else { spec.oc * spec.c };
        let a = (0..spec.c * spec.h * spec.w).map(|_| spec.kind.value(&mut random)).collect();
        let b = (0..depth * spec.k.0 * spec.k.1).map(|_| spec.kind.value(&mut random)).collect();
        Self::with(spec, a, b)
    }

    pub fn with(spec: Spec, a: Vec<f64>, b: Vec<f64>) -> Self {
        let bus = FlatBus::new(PROGRAM, 0x40_0000);
        let (_, bits, group, block) = spec.kind.facts();
        let lanes = 128 / bits;
        let (h, w, c) = (spec.h, spec.w, spec.c);
        let mut bytes = vec![0u8; c.div_ceil(lanes) * h * w * 16];
        for channel in 0..c {
            for pixel in 0..h * w {
                let index = (channel / lanes * h * w + pixel) * lanes + channel % lanes;
                spec.kind.store(a[channel * h * w + pixel], index, &mut bytes);
            }
        }
        bus.put(A, &bytes);
        // The stream: groups, blocks, ky, kx, kernel, channel (isa.md §4.1), written out by counting.
        let taps = spec.k.0 * spec.k.1;
        let kernels = if spec.depthwise { 1 } else { spec.oc };
        let mut bytes = vec![0u8; (kernels * c * taps * bits).div_ceil(8)];
        let mut index = 0;
        let (group, block) = if spec.depthwise { (1, 2 * group) } else { (group, block) };
        for first in (0..kernels).step_by(group) {
            for from in (0..c).step_by(block) {
                for tap in 0..taps {
                    for kernel in first..(first + group).min(kernels) {
                        for channel in from..(from + block).min(c) {
                            let value = b[(kernel * c + channel) * taps + tap];
                            spec.kind.store(value, index, &mut bytes);
                            index += 1;
                        }
                    }
                }
            }
        }
        bus.put(B, &bytes);
        Self { spec, bus, a, b }
    }

    pub fn run(&self, options: &SimOptions, patch: Patch<'_>) -> JobOutcome {
        run_words(&mut Core::new(0, options), &self.bus, &patched(&self.spec.words(), patch), 0xD)
    }

    /// Puts the rows of a matmul as rows of channels (`isa.md` §4.3) and gives the registers that read them.
    pub fn row_major(&self) -> Vec<(u16, u32)> {
        let spec = &self.spec;
        let bits = spec.kind.facts().1;
        let mut bytes = vec![0u8; (spec.h * spec.c * bits).div_ceil(8)];
        for row in 0..spec.h {
            for channel in 0..spec.c {
                spec.kind.store(self.a[channel * spec.h + row], row * spec.c + channel, &mut bytes);
            }
        }
        self.bus.put(A, &bytes);
        let code = spec.kind.facts().0;
        let con1 = cna::ConvCon1(0).with_group_line_off(1).and_then(|con1| con1.with_in_precision(code));
        vec![
            to(con1.and_then(|con1| con1.with_proc_precision(code)).unwrap()),
            to(cna::DmaCon1(0).with_line_stride((spec.c * bits / 128) as u32).unwrap()),
            to(cna::DmaCon2(0)),
        ]
    }

    /// For each row of a matmul whether all its columns are right.
    pub fn right_rows(&self) -> Vec<bool> {
        let pixels = self.spec.h * self.spec.w;
        let (got, expected) = (self.got(), self.expected());
        let right = |pixel: usize| {
            (0..self.spec.channels_out()).all(|c| got[c * pixels + pixel] == expected[c * pixels + pixel])
        };
        (0..pixels).map(right).collect()
    }

    /// `[channel][pixel]` of the output cube.
    pub fn got(&self) -> Vec<f64> {
        let spec = &self.spec;
        let (oh, ow) = spec.out_size();
        let lanes = 16 / spec.out.facts().1;
        let pixels = oh * ow;
        let padded = spec.channels_out().next_multiple_of(spec.group());
        let bytes = self.bus.get(OUT, padded / lanes * pixels * 16);
        let place =
            |channel: usize, pixel: usize| (channel / lanes * pixels + pixel) * lanes + channel % lanes;
        (0..spec.channels_out())
            .flat_map(|channel| (0..pixels).map(move |pixel| (channel, pixel)))
            .map(|(channel, pixel)| spec.out.load(&bytes, place(channel, pixel)))
            .collect()
    }

    /// The convolution by loops over the tensors.
    pub fn sums(&self) -> Vec<f64> {
        let spec = &self.spec;
        let (oh, ow) = spec.out_size();
        let taps = spec.k.0 * spec.k.1;
        // A kernel of one tap meets one pixel: with its channels side by side the sum is one run of products.
        let single = taps == 1 && spec.pad == (0, 0) && !spec.depthwise;
        let pixels = spec.h * spec.w;
        let mut pixel_major = vec![0.0; if single { self.a.len() } else { 0 }];
        for (index, place) in pixel_major.iter_mut().enumerate() {
            *place = self.a[index % spec.c * pixels + index / spec.c];
        }
        let mut out = Vec::new();
        for channel in 0..spec.channels_out() {
            for oy in 0..oh {
                for ox in 0..ow {
                    let mut sum = 0.0;
                    if single {
                        let pixel = oy * spec.stride.0 * spec.w + ox * spec.stride.1;
                        let features = &pixel_major[pixel * spec.c..][..spec.c];
                        for (feature, weight) in features.iter().zip(&self.b[channel * spec.c..]) {
                            sum += feature * weight;
                        }
                        out.push(sum);
                        continue;
                    }
                    let inputs = if spec.depthwise { channel..channel + 1 } else { 0..spec.c };
                    for input in inputs {
                        for ky in 0..spec.k.0 {
                            for kx in 0..spec.k.1 {
                                let y = (oy * spec.stride.0 + ky * spec.dilation.0) as isize
                                    - spec.pad.0 as isize;
                                let x = (ox * spec.stride.1 + kx * spec.dilation.1) as isize
                                    - spec.pad.1 as isize;
                                if y < 0 || x < 0 || y >= spec.h as isize || x >= spec.w as isize {
                                    continue;
                                }
                                let weight = if spec.depthwise { channel } else { channel * spec.c + input };
                                sum += self.a[(input * spec.h + y as usize) * spec.w + x as usize]
                                    * self.b[weight * taps + ky * spec.k.1 + kx];
                            }
                        }
                    }
                    out.push(sum);
                }
            }
        }
        out
    }

    pub fn expected(&self) -> Vec<f64> {
        self.sums()
            .into_iter()
            .map(|sum| match self.spec.out {
                Out::Int32 => sum,
                Out::Int16 => sum.clamp(-32768.0, 32767.0),
                Out::Fp32 => f64::from(sum as f32),
                Out::Fp16 => f16::from_f64(sum).to_f64(),
            })
            .collect()
    }
}
