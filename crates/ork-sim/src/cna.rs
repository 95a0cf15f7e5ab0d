// SPDX-License-Identifier: MIT OR Apache-2.0
//! CNA and CORE: what to convolve. The DMAs are in [`crate::cna_dma`], the rules of the buffer in
//! [`crate::cbuf_rules`].

use ork_isa::Precision;
use ork_isa::regs::{cna, core};

use crate::cbuf::BANK;
use crate::diagnosis::{Category, Site, Stop, hang, rule, unmodelled};
use crate::regs::View;

/// Bytes of an atom.
pub(crate) const ATOM: usize = 16;

/// A convolution as CNA and CORE see it. Field names follow the registers.
#[derive(Clone, Debug)]
pub(crate) struct Conv {
    pub(crate) precision: Precision,
    pub(crate) depthwise: bool,
    /// Input lines, pixels and channels.
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
    /// Kernel size, stride, dilation, padding.
    pub(crate) kernel: (usize, usize),
    pub(crate) stride: (usize, usize),
    pub(crate) dilation: (usize, usize),
    pub(crate) pad: (usize, usize),
    pub(crate) pad_value: u32,
    /// Output lines and pixels.
    pub(crate) out_height: usize,
    pub(crate) out_width: usize,
    /// Kernels that have weights.
    pub(crate) kernels: usize,
    pub(crate) bytes_per_kernel: usize,
    /// Feature and weight banks.
    pub(crate) split: (u32, u32),
    pub(crate) data_reuse: bool,
    pub(crate) weight_reuse: bool,
    pub(crate) truncate: core::ClipTruncate,
    pub(crate) qd_en: bool,
    /// int4 sums saturate after every pass of 128 channels (a variant of the silicon).
    pub(crate) int4_passes: bool,
}

impl Conv {
    /// Channels of an atom.
    pub(crate) fn atom_channels(&self) -> usize {
        ATOM * 8 / self.precision.bits() as usize
    }

    /// Kernels of a group (`isa.md` §3; int4: `isa-int4-sdp.md` §1.3; tf32: NS-17).
    pub(crate) fn group(&self) -> usize {
        let kernels = match self.precision {
            Precision::Int4 => 64,
            Precision::Int8 => 32,
            _ => 16,
        };
        if self.depthwise { 2 * kernels } else { kernels }
    }

    /// Channels of a weight block.
    pub(crate) fn block(&self) -> usize {
        match self.precision {
            _ if self.depthwise => self.group(),
            Precision::Tf32 => 16,
            _ => 32,
        }
    }

    /// Bytes of a pixel in the buffer: whole atoms.
    pub(crate) fn pixel_bytes(&self) -> usize {
        self.channels.div_ceil(self.atom_channels()) * ATOM
    }

    /// Bytes that the buffer gives a line: 64-byte granules (`isa.md` §10.2, `isa-notes.md` G-9a).
    pub(crate) fn line_bytes(&self) -> usize {
        (self.width * self.pixel_bytes()).next_multiple_of(64)
    }

    /// Lines that the feature banks hold.
    pub(crate) fn lines_held(&self) -> usize {
        (self.split.0 as usize * BANK).checked_div(self.line_bytes()).unwrap_or(0).min(self.height)
    }

    pub(crate) fn taps(&self) -> usize {
        self.kernel.0 * self.kernel.1
    }

    pub(crate) fn pixels(&self) -> usize {
        self.out_height * self.out_width
    }

    /// Channels per kernel, from the bytes per kernel (`isa.md` §4.1 "general form").
    pub(crate) fn kernel_channels(&self) -> usize {
        self.bytes_per_kernel * 8 / (self.taps() * self.precision.bits() as usize).max(1)
    }

    pub(crate) fn weight_bytes(&self) -> usize {
        if self.depthwise { self.bytes_per_kernel } else { self.bytes_per_kernel * self.kernels }
    }

    pub(crate) fn macs(&self) -> u64 {
        let per_pixel = if self.depthwise {
            self.taps() as u64 * self.channels as u64
        } else {
            self.kernels as u64 * self.taps() as u64 * self.channels as u64
        };
        self.pixels() as u64 * per_pixel
    }
}

/// Reads the registers of CNA and CORE; refuses what is not modelled.
pub(crate) fn decode(site: Site, view: View<'_>) -> Result<Conv, Stop> {
    let con1: cna::ConvCon1 = view.get();
    let con2: cna::ConvCon2 = view.get();
    let con3: cna::ConvCon3 = view.get();
    let size0: cna::DataSize0 = view.get();
    let size1: cna::DataSize1 = view.get();
    let weights1: cna::WeightSize1 = view.get();
    let weights2: cna::WeightSize2 = view.get();
    let cbuf: cna::CbufCon0 = view.get();
    let misc: core::MiscCfg = view.get();
    let out0: core::DataoutSize0 = view.get();
    let pad: cna::PadCon0 = view.get();
    let refuse = |check, registers, known: &str, found: String, source| {
        Err(unmodelled(site, check, registers, known, found, source))
    };
    if size0.datain_width() == 0 || size0.datain_height() == 0 || size1.datain_channel() == 0 {
        return Err(hang(
            site,
            Category::InvalidProgram,
            "cna-unconfigured",
            vec![view.show::<cna::DataSize0>(), view.show::<cna::DataSize1>()],
            rule("each register group keeps only what was written to it"),
            "op-enable runs a group without input sizes: nothing is computed, nothing completes",
            "isa-notes NS-32",
        ));
    }
    if view.get::<cna::FcCon0>().fc_skip_en() == 1 {
        return Err(hang(
            site,
            Category::InvalidProgram,
            "fc-skip",
            vec![view.show::<cna::FcCon0>()],
            rule("FC_SKIP_EN = 1 alone makes submits fail"),
            "zero skipping is on",
            "isa.md §13 row 15",
        ));
    }
    let dcomp: cna::DcompCtrl = view.get();
    if dcomp.decomp_control() != 0 {
        return refuse(
            "weight-decompression",
            vec![view.show::<cna::DcompCtrl>()],
            "DECOMP_CONTROL is 0 in every working program",
            format!("it is {}", dcomp.decomp_control()),
            "isa-notes A.6",
        );
    }
    let depthwise = match con1.conv_mode() {
        0 => false,
        3 => true,
        mode => {
            return refuse(
                "conv-mode",
                vec![view.show::<cna::ConvCon1>()],
                "CONV_MODE is 0 (direct) or 3 (depthwise)",
                format!("it is {mode}"),
                "isa.md §9.5",
            );
        }
    };
    if con1.deconv() == 1 || con3.nn_mode() != 0 || con3.deconv_x_stride() != 0 || con3.deconv_y_stride() != 0
    {
        return refuse(
            "conv-variant",
            vec![view.show::<cna::ConvCon1>(), view.show::<cna::ConvCon3>()],
            "no known program uses DECONV or NN_MODE",
            "this one does".to_owned(),
            "isa.md §9.2, isa-notes L-12",
        );
    }
    if con2.kernel_group() != 0 || con2.csc_do_en() == 1 || con2.csc_wo_en() == 1 || con2.cmd_fifo_srst() == 1
    {
        return refuse(
            "sequence-controller",
            vec![view.show::<cna::ConvCon2>()],
            "KERNEL_GROUP and the CSC bits are 0 in every known program",
            "they are not".to_owned(),
            "isa.md §6",
        );
    }
    if view.get::<cna::DataSize3>().surf_mode() != 0 {
        return refuse(
            "surf-mode",
            vec![view.show::<cna::DataSize3>()],
            "SURF_MODE is 0 in every known program",
            "it is not".to_owned(),
            "isa.md §6",
        );
    }
    if usize::from(depthwise) != misc.dw_en() as usize {
        return refuse(
            "depthwise-disagrees",
            vec![view.show::<cna::ConvCon1>(), view.show::<core::MiscCfg>()],
            "CNA.CONV_MODE 3 goes with CORE.DW_EN 1",
            "CNA and CORE disagree".to_owned(),
            "isa.md §9.5",
        );
    }
    let codes = [con1.in_precision(), con1.proc_precision(), misc.proc_precision()];
    let precision = match Precision::from_code(codes[0]) {
        Some(precision)
            if codes.iter().all(|code| *code == codes[0])
                && !matches!(precision, Precision::Int32 | Precision::Fp32) =>
        {
            precision
        }
        _ => {
            return refuse(
                "mac-precision",
                vec![view.show::<cna::ConvCon1>(), view.show::<core::MiscCfg>()],
                "CNA in, CNA proc and CORE proc hold one precision: 0 int8, 1 int16, 2 fp16, 3 bf16, 6 int4, 7 tf32",
                format!("they hold {codes:?}"),
                "isa.md §3, isa-notes C.1",
            );
        }
    };
    let conv = Conv {
        precision,
        depthwise,
        height: size0.datain_height() as usize,
        width: size0.datain_width() as usize,
        channels: size1.datain_channel() as usize,
        kernel: (weights2.weight_height() as usize, weights2.weight_width() as usize),
        stride: (con3.conv_y_stride() as usize, con3.conv_x_stride() as usize),
        dilation: (con3.atrous_y_dilation() as usize + 1, con3.atrous_x_dilation() as usize + 1),
        pad: (pad.pad_top() as usize, pad.pad_left() as usize),
        pad_value: view.get::<cna::PadCon1>().pad_value(),
        out_height: out0.dataout_height() as usize + 1,
        out_width: out0.dataout_width() as usize + 1,
        kernels: weights2.weight_kernels() as usize,
        bytes_per_kernel: weights1.weight_bytes_per_kernel() as usize,
        split: (cbuf.data_bank(), cbuf.weight_bank()),
        data_reuse: cbuf.data_reuse() == 1,
        weight_reuse: cbuf.weight_reuse() == 1,
        truncate: view.get(),
        qd_en: misc.qd_en() == 1,
        int4_passes: false,
    };
    if conv.taps() == 0 || conv.stride.0 == 0 || conv.stride.1 == 0 {
        return refuse(
            "kernel-size",
            vec![view.show::<cna::WeightSize2>(), view.show::<cna::ConvCon3>()],
            "kernel size and stride count from 1",
            "one of them is 0".to_owned(),
            "isa.md §6",
        );
    }
    if conv.kernel_channels() != conv.channels {
        return refuse(
            "kernel-depth",
            vec![view.show::<cna::WeightSize1>(), view.show::<cna::DataSize1>()],
            "bytes per kernel = taps * channels * element size",
            format!("{} channels per kernel, {} channels of input", conv.kernel_channels(), conv.channels),
            "isa.md §4.1, §9.2",
        );
    }
    let (out_w, atomics) =
        (view.get::<cna::DataSize2>().dataout_width(), view.get::<cna::DataSize3>().dataout_atomics());
    if out_w as usize != conv.out_width || atomics as usize != conv.pixels() {
        return refuse(
            "output-size-disagrees",
            vec![
                view.show::<cna::DataSize2>(),
                view.show::<cna::DataSize3>(),
                view.show::<core::DataoutSize0>(),
            ],
            "CNA and CORE are programmed with one output size",
            format!("CNA: width {out_w}, {atomics} pixels; CORE: {} x {}", conv.out_width, conv.out_height),
            "isa.md §9.2",
        );
    }
    Ok(conv)
}
