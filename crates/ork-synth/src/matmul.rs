// SPDX-License-Identifier: MIT OR Apache-2.0
//! One matmul program. Its words stand in the order of recipe 2 (`isa.md` §7, vendor form, measured elsewhere); the
//! other forms differ from it in the values of [`Geometry`] only.

use ork_isa::regs::{cna, core, dpu, global};
use ork_isa::{FieldOverflow, Iova, Link, Precision, Program, ProgramBuilder, TRAILER_WORDS};
use ork_layout::Format;
use ork_plan::{BankSplit, Form, PROGRAM_BODY_WORDS, Reuse};

use crate::geometry::Geometry;
use crate::quirk;

/// Everything that one program depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulTask {
    /// Precisions.
    pub format: Format,
    /// Kind of program.
    pub form: Form,
    /// Rows.
    pub rows: u32,
    /// Channels; a multiple of the channel block.
    pub k: u32,
    /// Columns; a multiple of the kernel group.
    pub n: u32,
    /// Distance of the rows of `C`, in elements. Row 0 is followed at a distance of `n`, all further rows at this
    /// distance (`isa.md` §5.3), so anything but `n` gives an uneven surface. [`Form::Rows`] only.
    pub row_stride: u32,
    /// Split of the convolution buffer.
    pub split: BankSplit,
    /// `FEATURE_GRAINS`.
    pub grains: u32,
    /// What the program takes from the buffer as the program before left it.
    pub reuse: Reuse,
    /// Address of the first row of `A`.
    pub a: Iova,
    /// Address of the first kernel group of `B`.
    pub b: Iova,
    /// Address of the first row of `C`.
    pub c: Iova,
    /// What happens to the sums.
    pub output: OutputStage,
}

/// The output converter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStage {
    /// Sums leave in the precision of the format, unscaled.
    Plain,
    /// int8 results: `clamp(round_half_even(sum * multiplier / 2^shift) + offset)` (`isa.md` §7.3, measured
    /// elsewhere with offset 0).
    Requantise {
        /// Multiplier.
        multiplier: i16,
        /// Right shift.
        shift: u32,
        /// Added after the shift.
        offset: i32,
    },
}

/// `BURST_LEN` fields: bursts of 16.
const BURST_16: u32 = 15;
/// Converters multiply by 1.
const UNIT_SCALE: u32 = 1;

impl MatmulTask {
    /// Bytes of `A` that the program reads, from [`MatmulTask::a`] to one past the last, by the address law of `isa.md`
    /// §5.1.
    #[must_use]
    pub fn a_bytes(&self) -> u64 {
        Geometry::of(self).a_bytes
    }

    /// Bytes of `B` that the program reads, from [`MatmulTask::b`]; a program that keeps the weights of the one before
    /// reads none, and is checked as if it did.
    #[must_use]
    pub fn b_bytes(&self) -> u64 {
        self.format.input_bytes(u64::from(self.n).saturating_mul(self.k.into()))
    }

    /// Distance from [`MatmulTask::c`] to one past the last byte that the program writes, by the address law of
    /// `isa.md` §5.3, or by `isa-int4-sdp.md` §1.3.
    #[must_use]
    pub fn c_bytes(&self) -> u64 {
        Geometry::of(self).c_bytes
    }
}

/// The program of a task: 108 words and the trailer, in the order of the vendor's matmul programs (`isa.md` §8.2).
///
/// # Errors
/// [`FieldOverflow`] when a size does not fit its register field.
pub fn matmul_program(task: &MatmulTask, link: Link) -> Result<Program, FieldOverflow> {
    let mut program = ProgramBuilder::with_room(PROGRAM_BODY_WORDS + TRAILER_WORDS);
    let geometry = Geometry::of(task);
    prologue(&mut program, task, &geometry)?;
    feature_and_weight_loader(&mut program, task, &geometry)?;
    multiplier_array(&mut program, task, &geometry)?;
    output_unit(&mut program, task, &geometry)?;
    let enable =
        global::OperationEnable::default().with_cna_op_en(1)?.with_core_op_en(1)?.with_dpu_op_en(1)?;
    Ok(program.finish(link, enable))
}

/// [`quirk::PROLOGUE`].
fn prologue(
    program: &mut ProgramBuilder,
    task: &MatmulTask,
    geometry: &Geometry,
) -> Result<(), FieldOverflow> {
    // Writes alternate between the two register groups from task to task, and so does execution.
    let pointer =
        dpu::SPointer::default().with_pointer_pp_mode(1)?.with_executer_pp_en(1)?.with_pointer_pp_en(1)?;
    program
        .set(banks(task)?)
        .set(cna::DcompRegnum::default())
        .set(cna::DcompCtrl::default())
        .set(mode(task, geometry)?)
        .set(pointer)
        .set(mode(task, geometry)?);
    Ok(())
}

fn banks(task: &MatmulTask) -> Result<cna::CbufCon0, FieldOverflow> {
    cna::CbufCon0::default()
        .with_data_bank(task.split.data)?
        .with_weight_bank(task.split.weight)?
        .with_data_reuse(u32::from(task.reuse == Reuse::Features))?
        .with_weight_reuse(u32::from(task.reuse == Reuse::Weights))
}

fn mode(task: &MatmulTask, geometry: &Geometry) -> Result<cna::ConvCon1, FieldOverflow> {
    let input = task.format.input().code();
    cna::ConvCon1::default()
        .with_group_line_off(geometry.group_line_off)?
        .with_proc_precision(input)?
        .with_in_precision(input)
}

/// The matmul as a 1 x 1 convolution.
fn feature_and_weight_loader(
    program: &mut ProgramBuilder,
    task: &MatmulTask,
    geometry: &Geometry,
) -> Result<(), FieldOverflow> {
    let &Geometry { height, width, .. } = geometry;
    let weight_bytes = task.b_bytes();
    let weight_bytes = u32::try_from(weight_bytes).map_err(|_| too_wide(weight_bytes))?;
    let converter = cna::CvtCon0::default()
        .with_data_sign(1)?
        .with_cvt_type(quirk::BYPASSED_CVT_TYPE.value)?
        .with_cvt_bypass(1)?;
    let burst = cna::DmaCon0::default().with_weight_burst_len(BURST_16)?.with_data_burst_len(BURST_16)?;
    let channels = cna::DataSize1::default()
        .with_datain_channel_real(task.k.saturating_sub(1))?
        .with_datain_channel(task.k)?;
    let kernels = cna::WeightSize2::default()
        .with_weight_width(1)?
        .with_weight_height(1)?
        .with_weight_kernels(task.n)?;
    program
        .set(cna::ConvCon2::default().with_feature_grains(task.grains)?)
        .set(cna::ConvCon3::default().with_conv_y_stride(1)?.with_conv_x_stride(1)?)
        .set(cna::DataSize0::default().with_datain_width(width)?.with_datain_height(height)?)
        .set(channels)
        .set(cna::DataSize2::default().with_dataout_width(width)?)
        .set(cna::DataSize3::default().with_dataout_atomics(height.saturating_mul(width))?)
        .set(cna::WeightSize0::default().with_weight_bytes(weight_bytes)?)
        .set(cna::WeightSize1::default().with_weight_bytes_per_kernel(geometry.kernel_bytes)?)
        .set(kernels)
        .set(banks(task)?)
        .set(cna::CbufCon1::default().with_data_entries(geometry.entries)?)
        .set(converter)
        .set(cna::CvtCon1::default().with_cvt_scale0(UNIT_SCALE)?)
        .set(cna::CvtCon2::default().with_cvt_scale1(UNIT_SCALE)?)
        .set(cna::CvtCon3::default().with_cvt_scale2(UNIT_SCALE)?)
        .set(cna::CvtCon4::default().with_cvt_scale3(UNIT_SCALE)?)
        .set(cna::FcCon0::default())
        .set(cna::FcCon1::default())
        .set(cna::PadCon0::default())
        .set(cna::FeatureDataAddr::default().with_feature_base_addr(task.a.0)?)
        .set(cna::FcCon2::default())
        .set(burst)
        .set(cna::DmaCon1::default().with_line_stride(geometry.line_stride)?)
        .set(cna::DmaCon2::default().with_surf_stride(geometry.surface_stride)?)
        .set(cna::FcDataSize0::default().with_dma_width(width)?.with_dma_height(height)?)
        .set(cna::FcDataSize1::default().with_dma_channel(task.k)?)
        .set(cna::DcompCtrl::default())
        .set(cna::DcompRegnum::default())
        .set(cna::DcompAddr0::default().with_decompress_addr0(task.b.0)?);
    program
        .set(cna::DcompAmount0::default())
        .set(cna::DcompAmount1::default())
        .set(cna::DcompAmount2::default())
        .set(cna::DcompAmount3::default())
        .set(cna::DcompAmount4::default())
        .set(cna::DcompAmount5::default())
        .set(cna::DcompAmount6::default())
        .set(cna::DcompAmount7::default())
        .set(cna::DcompAmount8::default())
        .set(cna::DcompAmount9::default())
        .set(cna::DcompAmount10::default())
        .set(cna::DcompAmount11::default())
        .set(cna::DcompAmount12::default())
        .set(cna::DcompAmount13::default())
        .set(cna::DcompAmount14::default())
        .set(cna::DcompAmount15::default())
        .set(cna::CvtCon5::default())
        .set(cna::PadCon1::default());
    Ok(())
}

fn too_wide(bytes: u64) -> FieldOverflow {
    let value = u32::try_from(bytes).unwrap_or(u32::MAX);
    FieldOverflow { register: "WEIGHT_SIZE0", field: "WEIGHT_BYTES", value, max: u32::MAX }
}

fn multiplier_array(
    program: &mut ProgramBuilder,
    task: &MatmulTask,
    geometry: &Geometry,
) -> Result<(), FieldOverflow> {
    let size = core::DataoutSize0::default()
        .with_dataout_height(geometry.height.saturating_sub(1))?
        .with_dataout_width(geometry.width.saturating_sub(1))?;
    let precision = core::MiscCfg::default()
        .with_proc_precision(task.format.input().code())?
        .with_qd_en(quirk::QD_EN.value)?;
    program
        .set(precision)
        .set(size)
        .set(core::DataoutSize1::default().with_dataout_channel(task.n.saturating_sub(1))?)
        .set(core::ClipTruncate::default())
        .set(core::Unknown3030::default().with_value(quirk::UNKNOWN_3030.value)?);
    Ok(())
}

fn output_unit(
    program: &mut ProgramBuilder,
    task: &MatmulTask,
    geometry: &Geometry,
) -> Result<(), FieldOverflow> {
    const TO_MEMORY: u32 = 2;
    let (height, width) = (geometry.height.saturating_sub(1), geometry.width.saturating_sub(1));
    let width_channels = task.n.saturating_sub(1);
    // The DPU has no tf32: it gets the fp32 sums (isa-notes C.1, NS-17).
    let input = match task.format.input() {
        Precision::Tf32 => Precision::Fp32.code(),
        input => input.code(),
    };
    let format = dpu::DataFormat::default()
        .with_out_precision(task.format.output().code())?
        .with_in_precision(input)?
        .with_proc_precision(input)?;
    let notch = dpu::DataCubeNotchAddr::default()
        .with_notch_addr_1(geometry.notch.1)?
        .with_notch_addr_0(geometry.notch.0)?;
    let channels = dpu::DataCubeChannel::default()
        .with_orig_channel(task.row_stride.saturating_sub(1))?
        .with_channel(width_channels)?;
    program
        .set(dpu::FeatureModeCfg::default().with_burst_len(BURST_16)?.with_output_mode(TO_MEMORY)?)
        .set(format)
        .set(dpu::OffsetPend::default())
        .set(dpu::DstBaseAddr::default().with_dst_base_addr(task.c.0)?)
        .set(dpu::DstSurfStride::default().with_dst_surf_stride(geometry.atom_distance)?)
        .set(dpu::DataCubeWidth::default().with_width(width)?)
        .set(dpu::DataCubeHeight::default().with_height(height)?)
        .set(notch)
        .set(channels);
    bypassed_bias_stage(program)?;
    let size_e = task.format.group_atoms() - 1;
    let od_bypass = match task.format.input() {
        Precision::Int8 => quirk::INT8_OD_BYPASS,
        _ => quirk::OTHER_OD_BYPASS,
    };
    let atoms_per_group = dpu::BsOwCfg::default()
        .with_size_e_2(size_e)?
        .with_size_e_1(size_e)?
        .with_size_e_0(size_e)?
        .with_od_bypass(od_bypass.value)?;
    program
        .set(atoms_per_group)
        .set(dpu::BsOwOp::default())
        .set(dpu::WdmaSize0::default().with_channel_wdma(width_channels)?)
        .set(wdma_size(task.form, height, width)?);
    bypassed_norm_and_element_wise_stages(program)?;
    output_converter(program, task)?;
    program
        .set(dpu::EwOpValue0::default())
        .set(dpu::EwOpValue1::default())
        .set(dpu::EwOpValue2::default())
        .set(dpu::EwOpValue3::default())
        .set(dpu::EwOpValue4::default())
        .set(dpu::EwOpValue5::default())
        .set(dpu::EwOpValue6::default())
        .set(dpu::EwOpValue7::default())
        .set(dpu::SurfaceAdd::default().with_surf_add(geometry.group_distance)?)
        .set(dpu::Unknown40c4::default().with_value(quirk::UNKNOWN_40C4.value)?)
        .set(dpu::LutAccessCfg::default())
        .set(dpu::LutAccessData::default())
        .set(dpu::LutCfg::default())
        .set(dpu::LutInfo::default())
        .set(dpu::LutLeStart::default())
        .set(dpu::LutLeEnd::default())
        .set(dpu::LutLoStart::default())
        .set(dpu::LutLoEnd::default())
        .set(dpu::LutLeSlopeScale::default())
        .set(dpu::LutLeSlopeShift::default())
        .set(dpu::LutLoSlopeScale::default())
        .set(dpu::LutLoSlopeShift::default());
    Ok(())
}

/// int4 batches leave it at 0: any other value corrupts rows above the first (`isa-int4-sdp.md` §1.4, measured
/// elsewhere).
fn wdma_size(form: Form, height: u32, width: u32) -> Result<dpu::WdmaSize1, FieldOverflow> {
    match form {
        Form::Int4Batch | Form::Int4Row => Ok(dpu::WdmaSize1::default()),
        Form::Rows | Form::Cube { .. } | Form::Fold { .. } => {
            dpu::WdmaSize1::default().with_height_wdma(height)?.with_width_wdma(width)
        }
    }
}

fn bypassed_bias_stage(program: &mut ProgramBuilder) -> Result<(), FieldOverflow> {
    let off = dpu::BsCfg::default()
        .with_bs_relu_bypass(1)?
        .with_bs_mul_bypass(1)?
        .with_bs_alu_bypass(1)?
        .with_bs_bypass(1)?;
    program
        .set(off)
        .set(dpu::BsAluCfg::default())
        .set(dpu::BsMulCfg::default())
        .set(dpu::BsReluxCmpValue::default());
    Ok(())
}

fn bypassed_norm_and_element_wise_stages(program: &mut ProgramBuilder) -> Result<(), FieldOverflow> {
    let norm_off = dpu::BnCfg::default()
        .with_bn_relu_bypass(1)?
        .with_bn_mul_bypass(1)?
        .with_bn_alu_bypass(1)?
        .with_bn_bypass(1)?;
    let element_wise_off = dpu::EwCfg::default()
        .with_ew_relu_bypass(1)?
        .with_ew_op_cvt_bypass(1)?
        .with_ew_lut_bypass(1)?
        .with_ew_op_bypass(1)?
        .with_ew_bypass(1)?;
    program
        .set(norm_off)
        .set(dpu::BnAluCfg::default())
        .set(dpu::BnMulCfg::default())
        .set(dpu::BnReluxCmpValue::default())
        .set(element_wise_off)
        .set(dpu::EwCvtOffsetValue::default())
        .set(dpu::EwCvtScaleValue::default().with_ew_op_cvt_scale(UNIT_SCALE)?)
        .set(dpu::EwReluxCmpValue::default());
    Ok(())
}

fn output_converter(program: &mut ProgramBuilder, task: &MatmulTask) -> Result<(), FieldOverflow> {
    let (scale, shift, offset) = match task.output {
        OutputStage::Plain => (UNIT_SCALE, 0, 0),
        OutputStage::Requantise { multiplier, shift, offset } => {
            (u32::from(multiplier.cast_unsigned()), shift, offset.cast_unsigned())
        }
    };
    // Without this bit a matmul with fp16 results hangs (isa.md §13 row 20).
    let narrows = u32::from(task.format.output() == Precision::Fp16);
    program
        .set(dpu::OutCvtOffset::default().with_out_cvt_offset(offset)?)
        .set(dpu::OutCvtScale::default().with_fp32tofp16_en(narrows)?.with_out_cvt_scale(scale)?)
        .set(dpu::OutCvtShift::default().with_out_cvt_shift(shift)?);
    Ok(())
}
