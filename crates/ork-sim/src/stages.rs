// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arithmetic of the DPU stages BS, OW, BN and EW (`isa-int4-sdp.md` §3.4, `isa.md` §14.3).
//!
//! Integer data are 64 bits wide between the stages, without saturation; float data round to fp32 after each
//! operation.

use std::sync::atomic::{AtomicBool, Ordering};

use half::f16;
use ork_isa::Precision;
use ork_isa::regs::dpu;

use crate::alu::{Adder, Algo};
use crate::core::round_shift;
use crate::diagnosis::{RegisterValue, Site, Stop, unmodelled};
use crate::dpu_rdma::{Operand, Operands, PerChannel};
use crate::options::{BnShift, Order, Silicon, StageShift, StageWidth};
use crate::regs::View;
use crate::sdp_lut::{ENTRIES, Evaluation};

/// BS or BN.
#[derive(Clone, Debug)]
struct Scale {
    /// Operation, constant, and whether the operand comes from memory instead.
    alu: Option<(Algo, u32, bool)>,
    /// Constant, and whether the operand comes from memory instead.
    mul: Option<(u16, bool)>,
    shift: (u32, u32),
    prelu: bool,
    relu: bool,
    relux: Option<u32>,
}

fn relu_int(value: i64, limit: Option<u32>) -> i64 {
    let value = value.max(0);
    limit.map_or(value, |limit| value.min(i64::from(limit.cast_signed())))
}

/// NaN becomes 0 (`isa-int4-sdp.md` §3.4).
fn relu_float(value: f32, limit: Option<u32>) -> f32 {
    let value = if value > 0.0 { value } else { 0.0 };
    limit.map_or(value, |limit| value.min(f32::from_bits(limit)))
}

/// The shift of a stage depends on the sign before it.
fn shift_of(value: i64, (positive, negative): (u32, u32)) -> u32 {
    if value < 0 { negative } else { positive }
}

impl Scale {
    fn int_alu(&self, value: i64, memory: &PerChannel, channel: usize) -> i64 {
        self.alu.map_or(value, |(algo, constant, from_memory)| {
            let operand = if from_memory { memory.alu(channel) } else { constant };
            algo.int(Order::MainFirst, value, i64::from(operand.cast_signed()))
        })
    }

    /// Operands of the adder are fp32.
    fn float_alu(&self, value: f32, memory: &PerChannel, channel: usize) -> f32 {
        self.alu.map_or(value, |(algo, constant, from_memory)| {
            let operand = if from_memory { memory.alu(channel) } else { constant };
            algo.float(Order::MainFirst, value, f32::from_bits(operand))
        })
    }

    fn int_mul(&self, value: i64) -> Option<i64> {
        let (factor, _) = self.mul.filter(|_| !self.prelu || value < 0)?;
        Some(value.saturating_mul(i64::from(factor.cast_signed())))
    }

    /// Operands of the multiplier are fp16.
    fn float_mul(&self, value: f32, memory: &PerChannel, channel: usize) -> f32 {
        match self.mul {
            Some((factor, from_memory)) if !self.prelu || value < 0.0 => {
                let factor = if from_memory { memory.mul(channel) } else { factor };
                value * f16::from_bits(factor).to_f32()
            }
            _ => value,
        }
    }

    fn relu_of_int(&self, value: i64) -> i64 {
        if self.relu { relu_int(value, self.relux) } else { value }
    }

    fn relu_of_float(&self, value: f32) -> f32 {
        if self.relu { relu_float(value, self.relux) } else { value }
    }

    /// BS: adder, multiplier, shift to nearest even, ReLU.
    fn bs_int(&self, rounding: StageShift, value: i64, memory: &PerChannel, channel: usize) -> i64 {
        let added = self.int_alu(value, memory, channel);
        let scaled = self.int_mul(added).map_or(added, |x| rounding.apply(x, shift_of(x, self.shift)));
        self.relu_of_int(scaled)
    }

    /// BN: multiplier, adder, shift (which floors: the table index relies on it), ReLU.
    fn bn_int(&self, rounding: BnShift, value: i64, memory: &PerChannel, channel: usize) -> i64 {
        let scaled = self.int_mul(value);
        let added = self.int_alu(scaled.unwrap_or(value), memory, channel);
        let shifted =
            if scaled.is_some() { rounding.apply(added, shift_of(added, self.shift)) } else { added };
        self.relu_of_int(shifted)
    }

    fn bs_float(&self, value: f32, memory: &PerChannel, channel: usize) -> f32 {
        self.relu_of_float(self.float_mul(self.float_alu(value, memory, channel), memory, channel))
    }

    fn bn_float(&self, value: f32, memory: &PerChannel, channel: usize) -> f32 {
        self.relu_of_float(self.float_alu(self.float_mul(value, memory, channel), memory, channel))
    }
}

/// What the EW stage does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EwOp {
    Nothing,
    Alu(Algo),
    Mul { prelu: bool },
    Lut,
}

/// The operand in `EW_OP_VALUE_0`, in both readings.
#[derive(Clone, Copy, Debug)]
struct Constant {
    int: i64,
    float: f32,
}

#[derive(Clone, Debug)]
struct Ew {
    op: EwOp,
    from_memory: bool,
    constant: Constant,
    /// Operand converter: offset, scale, shift, offset first, half up.
    convert: Option<(i64, i64, u32, bool, bool)>,
    truncate: (u32, u32),
    relu: bool,
    relux: Option<u32>,
}

/// A value behind the EW stage: a table's integer stays one on the way to the converter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Staged {
    Float(f32),
    Table(i64),
}

/// The stages of one task.
#[derive(Debug)]
pub(crate) struct Stages<'a> {
    bs: Option<Scale>,
    bn: Option<Scale>,
    ew: Option<Ew>,
    /// Operand of OW and the feature sums that it weighs, `[pixel][channel or one]`.
    ow: Option<(i64, Vec<i32>, usize)>,
    operands: &'a Operands,
    lut: Option<(Evaluation, &'a [[i16; ENTRIES]; 2])>,
    order: Order,
    shift: StageShift,
    bn_shift: BnShift,
    width: StageWidth,
    /// A multiplier's operand did not fit 16 bits.
    pub(crate) operand_wrapped: AtomicBool,
}

#[expect(clippy::too_many_arguments, reason = "the registers of BS or of BN, which have one layout")]
fn scale(
    site: Site,
    cfg: dpu::BsCfg,
    alu: u32,
    mul: dpu::BsMulCfg,
    relux: u32,
    shift_neg: u32,
    registers: [RegisterValue; 2],
    float: bool,
    memory: &PerChannel,
) -> Result<Option<Scale>, Stop> {
    if cfg.bs_bypass() == 1 {
        return Ok(None);
    }
    let use_alu = cfg.bs_alu_bypass() == 0;
    let use_mul = cfg.bs_mul_bypass() == 0;
    let alu_from_memory = use_alu && cfg.bs_alu_src() == 1;
    let mul_from_memory = use_mul && mul.bs_mul_src() == 1;
    if (use_mul && mul.bs_truncate_src() == 1)
        || (alu_from_memory && !memory.has_alu())
        || (mul_from_memory && !memory.has_mul())
    {
        return Err(unmodelled(
            site,
            "stage-operand",
            registers.to_vec(),
            "operands of BS and BN come from registers; the adder's, and in float the multiplier's, from BRDMA and \
             NRDMA as well",
            "another operand is to come from memory, or its reader is off",
            "isa.md §9.1, isa-notes D.6, docs/assumptions.md S-69",
        ));
    }
    let adder = if float { Adder::Float } else { Adder::IntScale };
    let algo = if use_alu { Algo::decode(site, cfg.bs_alu_algo(), adder, registers[0])? } else { Algo::Add };
    Ok(Some(Scale {
        alu: use_alu.then_some((algo, alu, alu_from_memory)),
        mul: use_mul.then_some((mul.bs_mul_operand() as u16, mul_from_memory)),
        shift: (mul.bs_mul_shift_value(), shift_neg),
        prelu: cfg.bs_mul_prelu() == 1,
        relu: cfg.bs_relu_bypass() == 0,
        relux: (cfg.bs_relux_en() == 1).then_some(relux),
    }))
}

impl<'a> Stages<'a> {
    /// Whether the EW stage takes its operand from ERDMA.
    pub(crate) fn wants_operand(view: View<'_>) -> bool {
        let cfg: dpu::EwCfg = view.get();
        cfg.ew_bypass() == 0 && cfg.ew_lut_bypass() == 1 && cfg.ew_op_bypass() == 0 && cfg.ew_op_src() == 1
    }

    pub(crate) fn decode(
        site: Site,
        view: View<'_>,
        float: bool,
        operands: &'a Operands,
        tables: &'a [[i16; ENTRIES]; 2],
        silicon: &Silicon,
        ow: Option<(i64, Vec<i32>, usize)>,
    ) -> Result<Self, Stop> {
        let format: dpu::DataFormat = view.get();
        let bs = scale(
            site,
            view.get(),
            view.get::<dpu::BsAluCfg>().bs_alu_operand(),
            view.get(),
            view.get::<dpu::BsReluxCmpValue>().bs_relux_cmp_dat(),
            format.bs_mul_shift_value_neg(),
            [view.show::<dpu::BsCfg>(), view.show::<dpu::BsMulCfg>()],
            float,
            &operands.bs,
        )?;
        // BN has the layout of BS.
        let bn = scale(
            site,
            dpu::BsCfg(view.get::<dpu::BnCfg>().0),
            view.get::<dpu::BnAluCfg>().bn_alu_operand(),
            dpu::BsMulCfg(view.get::<dpu::BnMulCfg>().0),
            view.get::<dpu::BnReluxCmpValue>().bn_relux_cmp_dat(),
            format.bn_mul_shift_value_neg(),
            [view.show::<dpu::BnCfg>(), view.show::<dpu::BnMulCfg>()],
            float,
            &operands.bn,
        )?;
        let ew = ew(site, view, float, operands)?;
        let lut = match &ew {
            Some(ew) if ew.op == EwOp::Lut => Some((Evaluation::decode(site, view, silicon)?, tables)),
            _ => None,
        };
        Ok(Self {
            bs,
            bn,
            ew,
            ow,
            operands,
            lut,
            order: silicon.sub_order,
            shift: silicon.stage_shift,
            bn_shift: silicon.bn_shift,
            width: silicon.stage_width,
            operand_wrapped: AtomicBool::new(false),
        })
    }

    /// EW adds, or compares with, one value per channel from memory.
    pub(crate) fn adds_per_channel(&self) -> bool {
        let per_channel = self.operands.ew.as_ref().is_some_and(Operand::is_per_channel);
        self.ew.as_ref().is_some_and(|ew| matches!(ew.op, EwOp::Alu(_)) && ew.from_memory && per_channel)
    }

    pub(crate) fn uses_table(&self) -> bool {
        self.lut.is_some()
    }

    /// Nothing between the sums and the converter.
    pub(crate) fn is_empty(&self) -> bool {
        self.bs.is_none() && self.bn.is_none() && self.ew.is_none() && self.ow.is_none()
    }

    pub(crate) fn int(&self, value: i32, channel: usize, pixel: usize) -> i64 {
        let mut x = i64::from(value);
        if let Some(bs) = &self.bs {
            x = self.width.apply(bs.bs_int(self.shift, x, &self.operands.bs, channel));
        }
        if let Some((op, sums, channels)) = &self.ow {
            let at = pixel * channels + if *channels == 1 { 0 } else { channel };
            x = self.width.apply(x.saturating_add(op * i64::from(sums.get(at).copied().unwrap_or(0))));
        }
        let input = x;
        if let Some(bn) = &self.bn {
            x = self.width.apply(bn.bn_int(self.bn_shift, x, &self.operands.bn, channel));
        }
        if let Some(ew) = &self.ew {
            x = self.width.apply(self.ew_int(ew, input, x, channel, pixel));
        }
        x
    }

    /// `input` is what came into BN.
    fn ew_int(&self, ew: &Ew, input: i64, x: i64, channel: usize, pixel: usize) -> i64 {
        let result = match ew.op {
            EwOp::Nothing => x,
            EwOp::Lut => self.lut.as_ref().map_or(x, |(lut, tables)| lut.value(tables, input as f64, x)),
            EwOp::Alu(algo) => algo.int(self.order, x, self.operand_int(ew, channel, pixel)),
            EwOp::Mul { prelu } if prelu && x >= 0 => x,
            EwOp::Mul { .. } => {
                // The multiplier takes the low 16 bits, signed (NS-15).
                let operand = self.operand_int(ew, channel, pixel);
                let narrow = operand as i16;
                if i64::from(narrow) != operand {
                    self.operand_wrapped.store(true, Ordering::Relaxed);
                }
                x.saturating_mul(i64::from(narrow))
            }
        };
        let truncated = match ew.op {
            EwOp::Alu(_) | EwOp::Mul { .. } => self.shift.apply(result, shift_of(result, ew.truncate)),
            _ => result,
        };
        if ew.relu { relu_int(truncated, ew.relux) } else { truncated }
    }

    fn operand_int(&self, ew: &Ew, channel: usize, pixel: usize) -> i64 {
        let raw = match &self.operands.ew {
            Some(operand) if ew.from_memory => operand.int(channel, pixel),
            _ => ew.constant.int,
        };
        match ew.convert {
            None => raw,
            Some((offset, scale, shift, true, up)) => self.convert_shift((raw + offset) * scale, shift, up),
            Some((offset, scale, shift, false, up)) => self.convert_shift(raw * scale, shift, up) + offset,
        }
    }

    /// The operand converter: `EW_CVT_ROUND` chooses half up.
    fn convert_shift(&self, value: i64, shift: u32, half_up: bool) -> i64 {
        if half_up { round_shift(value, shift, true) } else { self.shift.apply(value, shift) }
    }

    pub(crate) fn float(&self, value: f32, channel: usize, pixel: usize) -> Staged {
        let mut x = value;
        if let Some(bs) = &self.bs {
            x = bs.bs_float(x, &self.operands.bs, channel);
        }
        let input = x;
        if let Some(bn) = &self.bn {
            x = bn.bn_float(x, &self.operands.bn, channel);
        }
        let Some(ew) = &self.ew else { return Staged::Float(x) };
        let operand = || match &self.operands.ew {
            Some(operand) if ew.from_memory => Operand::float(operand, channel, pixel),
            _ => ew.constant.float,
        };
        let result = match ew.op {
            EwOp::Nothing => x,
            EwOp::Alu(algo) => algo.float(self.order, x, operand()),
            EwOp::Mul { prelu } if prelu && x >= 0.0 => x,
            EwOp::Mul { .. } => x * operand(),
            EwOp::Lut => {
                let value = self.lut.as_ref().map_or(0, |(lut, tables)| lut.float_value(tables, input, x));
                let value = if ew.relu { value.max(0) } else { value };
                return match ew.relux.map(f32::from_bits) {
                    Some(limit) if ew.relu && limit < value as f32 => Staged::Float(limit),
                    _ => Staged::Table(value),
                };
            }
        };
        Staged::Float(if ew.relu { relu_float(result, ew.relux) } else { result })
    }
}

fn ew(site: Site, view: View<'_>, float: bool, operands: &Operands) -> Result<Option<Ew>, Stop> {
    let cfg: dpu::EwCfg = view.get();
    if cfg.ew_bypass() == 1 {
        return Ok(None);
    }
    let registers = || vec![view.show::<dpu::EwCfg>(), view.show::<dpu::EwCvtScaleValue>()];
    let refuse = |check, known: &str, found: String, source| {
        Err(unmodelled(site, check, registers(), known, found, source))
    };
    let scale: dpu::EwCvtScaleValue = view.get();
    let op = if cfg.ew_lut_bypass() == 0 {
        // With the table on, the ALU and the multiplier do not act (`isa-int4-sdp.md` §3.3).
        EwOp::Lut
    } else if cfg.ew_op_bypass() == 1 {
        EwOp::Nothing
    } else if cfg.ew_op_type() == 1 {
        EwOp::Mul { prelu: cfg.ew_mul_prelu() == 1 }
    } else {
        let adder = if float { Adder::Float } else { Adder::IntEw };
        EwOp::Alu(Algo::decode(site, cfg.ew_alu_algo(), adder, view.show::<dpu::EwCfg>())?)
    };
    // The vendor sets EQUAL_EN with maximum and minimum, where it has no effect.
    let extreme = matches!(op, EwOp::Alu(Algo::Max | Algo::Min));
    if (cfg.ew_equal_en() == 1 && !extreme)
        || (cfg.ew_lut_bypass() == 1 && cfg.ew_binary_en() == 1)
        || cfg.ew_data_mode() > 1
    {
        return refuse(
            "ew-mode",
            "EQUAL without a maximum or minimum, BINARY and EW_DATA_MODE above 1 occur in no known program",
            "one of them is set".to_owned(),
            "isa-int4-sdp.md §3.3, docs/assumptions.md S-80",
        );
    }
    let from_memory = cfg.ew_op_src() == 1;
    let acts = matches!(op, EwOp::Alu(_) | EwOp::Mul { .. });
    if acts && from_memory && operands.ew.is_none() {
        return refuse(
            "operand-missing",
            "EW_OP_SRC 1 goes with an enabled ERDMA",
            "no reader delivers the operand".to_owned(),
            "isa-notes D.3",
        );
    }
    if acts && !from_memory && !one_constant(view) {
        return refuse(
            "ew-constants",
            "the constants of EW are one number in all of EW_OP_VALUE_0 to 7, or in the first alone",
            "they differ".to_owned(),
            "isa-int4-sdp.md §3.4, docs/assumptions.md S-81",
        );
    }
    let format: dpu::DataFormat = view.get();
    let wide = acts && !float && from_memory && cfg.edata_size() == 3;
    let all_wide = format.in_precision() == Precision::Int32.code() && cfg.ew_op_cvt_bypass() == 1;
    if wide && !all_wide && !matches!(op, EwOp::Mul { .. }) {
        return refuse(
            "integer-add-32",
            "the adder takes a 32-bit integer operand with int32 main data from memory and the operand converter off",
            "the main data are narrower, or the converter is on: silicon gave garbage".to_owned(),
            "isa-notes NS-15, D.2, docs/assumptions.md S-29",
        );
    }
    let convert = (!float && cfg.ew_op_cvt_bypass() == 0).then(|| {
        (
            i64::from(view.get::<dpu::EwCvtOffsetValue>().ew_op_cvt_offset().cast_signed()),
            i64::from((scale.ew_op_cvt_scale() as u16).cast_signed()),
            scale.ew_op_cvt_shift(),
            cfg.ew_cvt_type() == 1,
            cfg.ew_cvt_round() == 1,
        )
    });
    Ok(Some(Ew {
        op,
        from_memory,
        constant: constant(view, op),
        convert,
        truncate: (scale.ew_truncate(), format.ew_truncate_neg()),
        relu: cfg.ew_relu_bypass() == 0,
        relux: (cfg.ew_relux_en() == 1).then_some(view.get::<dpu::EwReluxCmpValue>().ew_relux_cmp_dat()),
    }))
}

/// Whether one number is in all eight constants, or in the first alone.
fn one_constant(view: View<'_>) -> bool {
    let others = [
        view.get::<dpu::EwOpValue1>().0,
        view.get::<dpu::EwOpValue2>().0,
        view.get::<dpu::EwOpValue3>().0,
        view.get::<dpu::EwOpValue4>().0,
        view.get::<dpu::EwOpValue5>().0,
        view.get::<dpu::EwOpValue6>().0,
        view.get::<dpu::EwOpValue7>().0,
    ];
    let first = view.get::<dpu::EwOpValue0>().0;
    others.iter().all(|other| *other == first) || others.iter().all(|other| *other == 0)
}

/// In float the adder takes fp32 and the multiplier fp16 from the low half; int16 data take the low half, signed.
fn constant(view: View<'_>, op: EwOp) -> Constant {
    let bits = view.get::<dpu::EwOpValue0>().ew_operand_0();
    let low = bits as u16;
    let int16 = view.get::<dpu::DataFormat>().proc_precision() == Precision::Int16.code();
    Constant {
        int: if int16 { i64::from(low.cast_signed()) } else { i64::from(bits.cast_signed()) },
        float: match op {
            EwOp::Mul { .. } => f16::from_bits(low).to_f32(),
            _ => f32::from_bits(bits),
        },
    }
}
