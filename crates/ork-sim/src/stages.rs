// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arithmetic of the DPU stages BS, OW, BN and EW (`isa-int4-sdp.md` §3.4, `isa.md` §14.3).
//!
//! Integer data are 64 bits wide between the stages, without saturation; float data round to fp32 after each
//! operation.

use std::sync::atomic::{AtomicBool, Ordering};

use half::f16;
use ork_isa::regs::dpu;

use crate::core::round_shift;
use crate::diagnosis::{RegisterValue, Site, Stop, unmodelled};
use crate::dpu_rdma::{Operand, Operands};
use crate::options::{BnShift, Order, Silicon, StageShift, StageWidth};
use crate::regs::View;
use crate::sdp_lut::{ENTRIES, Evaluation};

/// What an adder can do instead of adding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algo {
    Max,
    Min,
    Add,
    Div,
    Sub,
}

impl Algo {
    fn int(self, order: Order, a: i64, b: i64) -> i64 {
        match self {
            Self::Sub if order == Order::Reversed => b.saturating_sub(a),
            Self::Max => a.max(b),
            Self::Min => a.min(b),
            Self::Sub => a.saturating_sub(b),
            // Integer division is refused at decode.
            Self::Add | Self::Div => a.saturating_add(b),
        }
    }

    /// The main operand comes first (`isa-int4-sdp.md` §3.3 "SUB and DIV").
    fn float(self, order: Order, a: f32, b: f32) -> f32 {
        match self {
            Self::Div if order == Order::Reversed => b / a,
            Self::Sub if order == Order::Reversed => b - a,
            Self::Max => a.max(b),
            Self::Min => a.min(b),
            Self::Add => a + b,
            Self::Div => a / b,
            Self::Sub => a - b,
        }
    }
}

/// BS or BN.
#[derive(Clone, Debug)]
struct Scale {
    alu: Option<(Algo, u32, bool)>,
    mul: Option<u16>,
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
    fn int_alu(&self, value: i64, per_channel: Option<&[i32]>, channel: usize) -> i64 {
        let Some((algo, constant, from_memory)) = self.alu else { return value };
        let operand = match per_channel {
            Some(words) if from_memory => words.get(channel).copied().unwrap_or(0),
            _ => constant.cast_signed(),
        };
        algo.int(Order::MainFirst, value, i64::from(operand))
    }

    fn float_alu(&self, value: f32) -> f32 {
        self.alu.map_or(value, |(algo, constant, _)| {
            algo.float(Order::MainFirst, value, f32::from_bits(constant))
        })
    }

    fn int_mul(&self, value: i64) -> Option<i64> {
        let factor = self.mul.filter(|_| !self.prelu || value < 0)?;
        Some(value.saturating_mul(i64::from(factor.cast_signed())))
    }

    fn float_mul(&self, value: f32) -> f32 {
        match self.mul {
            Some(factor) if !self.prelu || value < 0.0 => value * f16::from_bits(factor).to_f32(),
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
    fn bs_int(&self, rounding: StageShift, value: i64, per_channel: Option<&[i32]>, channel: usize) -> i64 {
        let added = self.int_alu(value, per_channel, channel);
        let scaled = self.int_mul(added).map_or(added, |x| rounding.apply(x, shift_of(x, self.shift)));
        self.relu_of_int(scaled)
    }

    /// BN: multiplier, adder, shift (which floors: the table index relies on it), ReLU.
    fn bn_int(&self, rounding: BnShift, value: i64, per_channel: Option<&[i32]>, channel: usize) -> i64 {
        let scaled = self.int_mul(value);
        let added = self.int_alu(scaled.unwrap_or(value), per_channel, channel);
        let shifted =
            if scaled.is_some() { rounding.apply(added, shift_of(added, self.shift)) } else { added };
        self.relu_of_int(shifted)
    }

    fn bs_float(&self, value: f32) -> f32 {
        self.relu_of_float(self.float_mul(self.float_alu(value)))
    }

    fn bn_float(&self, value: f32) -> f32 {
        self.relu_of_float(self.float_alu(self.float_mul(value)))
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

#[derive(Clone, Debug)]
struct Ew {
    op: EwOp,
    from_memory: bool,
    constant: u32,
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

fn algo(site: Site, code: u32, float: bool, register: RegisterValue) -> Result<Algo, Stop> {
    Ok(match code {
        0 => Algo::Max,
        1 => Algo::Min,
        2 => Algo::Add,
        3 if float => Algo::Div,
        4 => Algo::Sub,
        _ => {
            return Err(unmodelled(
                site,
                "alu-algo",
                vec![register],
                "known programs use maximum, minimum, add, subtract, and divide in float",
                format!("the code is {code}"),
                "isa-int4-sdp.md §3.3, §3.4",
            ));
        }
    })
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
    memory_alu: bool,
) -> Result<Option<Scale>, Stop> {
    if cfg.bs_bypass() == 1 {
        return Ok(None);
    }
    let use_alu = cfg.bs_alu_bypass() == 0;
    let use_mul = cfg.bs_mul_bypass() == 0;
    let from_memory = use_alu && cfg.bs_alu_src() == 1;
    if (use_mul && (mul.bs_mul_src() == 1 || mul.bs_truncate_src() == 1))
        || (from_memory && (!memory_alu || float))
    {
        return Err(unmodelled(
            site,
            "stage-operand",
            registers.to_vec(),
            "stages take their operands from registers; only the integer BS adder is known to read memory",
            "another operand is to come from memory, or its reader is off",
            "isa.md §9.1, isa-notes D.6",
        ));
    }
    let algo = if use_alu { algo(site, cfg.bs_alu_algo(), false, registers[0])? } else { Algo::Add };
    Ok(Some(Scale {
        alu: use_alu.then_some((algo, alu, from_memory)),
        mul: use_mul.then_some(mul.bs_mul_operand() as u16),
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
            operands.bs_alu.is_some(),
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
            operands.bn_alu.is_some(),
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
            x = self.width.apply(bs.bs_int(self.shift, x, self.operands.bs_alu.as_deref(), channel));
        }
        if let Some((op, sums, channels)) = &self.ow {
            let at = pixel * channels + if *channels == 1 { 0 } else { channel };
            x = self.width.apply(x.saturating_add(op * i64::from(sums.get(at).copied().unwrap_or(0))));
        }
        let input = x;
        if let Some(bn) = &self.bn {
            let per_channel = self.operands.bn_alu.as_deref();
            x = self.width.apply(bn.bn_int(self.bn_shift, x, per_channel, channel));
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
            _ => i64::from(ew.constant.cast_signed()),
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
            x = bs.bs_float(x);
        }
        let input = x;
        if let Some(bn) = &self.bn {
            x = bn.bn_float(x);
        }
        let Some(ew) = &self.ew else { return Staged::Float(x) };
        let operand = || match &self.operands.ew {
            Some(operand) if ew.from_memory => Operand::float(operand, channel, pixel),
            _ => f32::from_bits(ew.constant),
        };
        let result = match ew.op {
            EwOp::Nothing => x,
            EwOp::Alu(algo) => algo.float(self.order, x, operand()),
            EwOp::Mul { prelu } if prelu && x >= 0.0 => x,
            EwOp::Mul { .. } => x * operand(),
            EwOp::Lut => {
                let value = self.lut.as_ref().map_or(0, |(lut, tables)| lut.float_value(tables, input, x));
                return Staged::Table(if ew.relu { relu_int(value, None) } else { value });
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
    if cfg.ew_equal_en() == 1
        || (cfg.ew_lut_bypass() == 1 && cfg.ew_binary_en() == 1)
        || cfg.ew_data_mode() > 1
    {
        return refuse(
            "ew-mode",
            "EQUAL, BINARY and EW_DATA_MODE above 1 occur in no known program",
            "one of them is set".to_owned(),
            "isa-int4-sdp.md §3.3",
        );
    }
    let scale: dpu::EwCvtScaleValue = view.get();
    let op = if cfg.ew_lut_bypass() == 0 {
        // With the table on, the ALU and the multiplier do not act (`isa-int4-sdp.md` §3.3).
        EwOp::Lut
    } else if cfg.ew_op_bypass() == 1 {
        EwOp::Nothing
    } else if cfg.ew_op_type() == 1 {
        EwOp::Mul { prelu: cfg.ew_mul_prelu() == 1 }
    } else {
        EwOp::Alu(algo(site, cfg.ew_alu_algo(), float, view.show::<dpu::EwCfg>())?)
    };
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
    if acts && !from_memory && view.get::<dpu::EwOpValue1>().0 != 0 {
        return refuse(
            "ew-constants",
            "only EW_OP_VALUE_0 is known",
            "EW_OP_VALUE_1 is set as well".to_owned(),
            "isa-int4-sdp.md §3.4",
        );
    }
    if acts && !float && from_memory && cfg.edata_size() == 3 && !matches!(op, EwOp::Mul { .. }) {
        return refuse(
            "integer-add-32",
            "adding a 32-bit integer operand gave garbage on silicon; a 16-bit one is taken as working",
            "EDATA_SIZE is 3".to_owned(),
            "isa-notes NS-15, D.2",
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
        constant: view.get::<dpu::EwOpValue0>().ew_operand_0(),
        convert,
        truncate: (scale.ew_truncate(), view.get::<dpu::DataFormat>().ew_truncate_neg()),
        relu: cfg.ew_relu_bypass() == 0,
        relux: (cfg.ew_relux_en() == 1).then_some(view.get::<dpu::EwReluxCmpValue>().ew_relux_cmp_dat()),
    }))
}
