// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the DPU must be programmed for: modes, precisions, sizes (`isa.md` §5.3, §7, `isa-int4-sdp.md` §1, §2).

use ork_isa::Precision;
use ork_isa::regs::{cna, core, dpu};

use crate::cna::Conv;
use crate::converter::Converter;
use crate::core::Sums;
use crate::diagnosis::{Category, Effect, Finding, Site, Stop, hang, rule, unmodelled};
use crate::dpu::Main;
use crate::options::Int16Output;
use crate::pc::Machine;
use crate::regs::View;

/// Channels of the one tile that int16 sums leave on some silicon (`isa-notes.md` C.3).
const ONE_TILE_CHANNELS: usize = 16;

/// How the write DMA places the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// By the law of `isa.md` §5.3.
    Laws,
    /// int4 rows without a write size (`isa-int4-sdp.md` §1.3); with one, only row 0 is right.
    Stream {
        /// Rows above 0 are wrong.
        rows_wrong: bool,
    },
    /// int16 sums on silicon that stores one tile of them only (`isa-notes.md` G-13).
    OneTile,
    /// int16 sums with TP_ORG_EN (`isa-notes.md` C.3).
    Transposed,
}

/// Modes of the DPU as a whole.
pub(crate) fn check_mode(site: Site, view: View<'_>, main: &Main<'_>) -> Result<(), Stop> {
    let mode: dpu::FeatureModeCfg = view.get();
    let format: dpu::DataFormat = view.get();
    let depthwise = main.conv.is_some_and(|conv| conv.depthwise);
    let flying = main.conv.is_none();
    let registers = || vec![view.show::<dpu::FeatureModeCfg>(), view.show::<dpu::DataFormat>()];
    if mode.flying_mode() != u32::from(flying) {
        return Err(unmodelled(
            site,
            "flying-disagrees",
            registers(),
            "FLYING_MODE is 1 exactly where CNA and CORE take no part",
            format!("it is {}", mode.flying_mode()),
            "isa-int4-sdp.md §3.3",
        ));
    }
    if mode.output_mode() != 2
        || mode.conv_mode() != if depthwise { 3 } else { 0 }
        || mode.nonalign() == 1
        || mode.tp_en() == 1
        || mode.comb_use() == 1
        || mode.rgp_type() != 0
        || format.mc_surf_out() == 1
        || view.get::<dpu::OffsetPend>().offset_pend() != 0
        || view.get::<dpu::DataCubeHeight>().minmax_ctl() != 0
    {
        return Err(unmodelled(
            site,
            "dpu-mode",
            registers(),
            "known programs write to memory, in atoms, with the conv mode of the CNA",
            "this one does something else",
            "isa.md §6, §9.5",
        ));
    }
    Ok(())
}

/// The output precision; `None` where nothing is written.
pub(crate) fn output_format(
    machine: &mut Machine<'_>,
    site: Site,
    view: View<'_>,
    main: &Main<'_>,
) -> Result<Option<Converter>, Stop> {
    let format: dpu::DataFormat = view.get();
    let registers =
        || vec![view.show::<dpu::DataFormat>(), view.show::<dpu::OutCvtScale>(), view.show::<dpu::BsOwCfg>()];
    let code = format.out_precision();
    let out = Precision::from_code(code);
    let refuse = |known: &str| {
        Err(unmodelled(
            site,
            "output-format",
            registers(),
            known,
            format!("output precision code {code}"),
            "isa.md §7, isa-int4-sdp.md §2, isa-notes C",
        ))
    };
    let invalid = |known: &str| {
        Err(hang(
            site,
            Category::InvalidProgram,
            "output-format",
            registers(),
            rule(known),
            format!("output precision code {code}"),
            "isa.md §7.5, §13 row 22",
        ))
    };
    let silicon = machine.options.silicon;
    let converter = |out| Converter::decode(view, out, silicon);
    let Some(conv) = main.conv else {
        let float = matches!(main.sums, Sums::Float(_));
        return match out {
            Some(out @ (Precision::Fp16 | Precision::Fp32)) if float => Ok(Some(converter(out))),
            Some(Precision::Int16) if float && converter(Precision::Int16).is_plain() => {
                Ok(Some(converter(Precision::Int16)))
            }
            Some(Precision::Int8 | Precision::Int16) if format.in_precision() == Precision::Int32.code() => {
                refuse("element-wise programs store int32 from int32")
            }
            Some(out @ (Precision::Int8 | Precision::Int16 | Precision::Int32)) if !float => {
                Ok(Some(converter(out)))
            }
            _ => refuse(
                "element-wise programs store integers from integers; fp16, fp32, or by scale 1 int16 from fp16",
            ),
        };
    };
    let expected = if conv.precision == Precision::Tf32 { Precision::Fp32 } else { conv.precision };
    if conv.precision == Precision::Tf32 && format.in_precision() == 7 {
        return nothing_written(machine, site, view);
    }
    if format.in_precision() != expected.code() || format.proc_precision() != expected.code() {
        return Err(unmodelled(
            site,
            "dpu-precision",
            registers(),
            "DPU in and proc precision are those of the MAC array (tf32: fp32)",
            format!(
                "MAC {}, DPU in {}, proc {}",
                conv.precision,
                format.in_precision(),
                format.proc_precision()
            ),
            "isa.md §7.1, isa-notes C.1, NS-17",
        ));
    }
    match (conv.precision, out) {
        (Precision::Int8, Some(Precision::Int32)) if conv.depthwise => {
            machine.diagnoses.push(site.finding(Finding {
                category: Category::InvalidProgram,
                effect: Effect::Wrong,
                check: "depthwise-int32",
                registers: registers(),
                first: rule("depthwise int8 sums go out as int8"),
                second: site.here("as int32 the pixels of a plane lie twice as far apart"),
                source: "isa-notes G-20, D.5",
            }));
            Ok(Some(converter(Precision::Int32)))
        }
        (Precision::Int8, Some(out @ (Precision::Int8 | Precision::Int32 | Precision::Fp32))) => {
            Ok(Some(converter(out)))
        }
        (Precision::Int8, Some(Precision::Int16)) => {
            if view.get::<dpu::BsOwCfg>().size_e_0() == 3 {
                return Ok(Some(converter(Precision::Int16)));
            }
            invalid("int8 to int16 works with SIZE_E 3 only; other words hang for about 61 s")
        }
        (Precision::Int8, Some(Precision::Fp16)) => {
            let converter = converter(Precision::Fp16);
            if converter.to_fp16 {
                return Ok(Some(converter));
            }
            machine.diagnoses.push(site.finding(Finding {
                category: Category::InvalidProgram,
                effect: Effect::Wrong,
                check: "int8-to-fp16",
                registers: registers(),
                first: rule("int8 to fp16 needs FP32TOFP16_EN"),
                second: site.here("it is 0: zeros are stored"),
                source: "isa.md §7.5, §13 row 21, isa-notes NS-21",
            }));
            // Scale 0 stores zeros.
            Ok(Some(converter.zero()))
        }
        (Precision::Int8, _) => {
            invalid("int8 sums go out as int8, int16, int32, fp16 or fp32; other codes hang for about 61 s")
        }
        (Precision::Int16, Some(Precision::Int32)) => Ok(Some(converter(Precision::Int32))),
        (Precision::Int4, Some(Precision::Int16)) => Ok(Some(converter(Precision::Int16))),
        (Precision::Fp16 | Precision::Bf16 | Precision::Tf32, Some(Precision::Fp32)) => {
            Ok(Some(converter(Precision::Fp32)))
        }
        (Precision::Fp16, Some(Precision::Fp16)) => {
            let converter = converter(Precision::Fp16);
            if converter.to_fp16 {
                return Ok(Some(converter));
            }
            Err(hang(
                site,
                Category::InvalidProgram,
                "fp16-narrowing",
                registers(),
                rule("a convolution that stores fp16 needs FP32TOFP16_EN"),
                "it is 0",
                "isa.md §7.2, §13 row 20",
            ))
        }
        (Precision::Bf16 | Precision::Tf32 | Precision::Fp16, Some(Precision::Tf32)) => {
            nothing_written(machine, site, view)
        }
        _ => refuse("no program is known for this pair of precisions"),
    }
}

pub(crate) fn nothing_written(
    machine: &mut Machine<'_>,
    site: Site,
    view: View<'_>,
) -> Result<Option<Converter>, Stop> {
    machine.diagnoses.push(site.finding(Finding {
        category: Category::InvalidProgram,
        effect: Effect::Wrong,
        check: "dpu-tf32",
        registers: vec![view.show::<dpu::DataFormat>()],
        first: rule("the DPU has no precision 7"),
        second: site.here("nothing is written"),
        source: "isa-notes C.1, G-12",
    }));
    Ok(None)
}

/// The output cube must be what comes in; says how it is placed.
pub(crate) fn check_geometry(
    machine: &mut Machine<'_>,
    site: Site,
    view: View<'_>,
    main: &Main<'_>,
) -> Result<Form, Stop> {
    let width = view.get::<dpu::DataCubeWidth>().width() as usize + 1;
    let height = view.get::<dpu::DataCubeHeight>().height() as usize + 1;
    if (height, width) != main.size {
        return Err(unmodelled(
            site,
            "dpu-size-disagrees",
            vec![
                view.show::<core::DataoutSize0>(),
                view.show::<dpu::DataCubeWidth>(),
                view.show::<dpu::DataCubeHeight>(),
            ],
            "the DPU is programmed with the size of what it gets",
            format!("it gets {} x {}, and is set to {width} x {height}", main.size.1, main.size.0),
            "isa.md §6, §9.2",
        ));
    }
    let ow: dpu::BsOwCfg = view.get();
    if (height == 1 && ow.size_e_0() != ow.size_e_2())
        || (ow.tp_org_en() == 1 && !transposes(main))
        || ow.rgp_cnter() != 0
        || ow.ow_src() == 1
    {
        return Err(unmodelled(
            site,
            "size-e",
            vec![view.show::<dpu::BsOwCfg>()],
            "a single line is the first and the last; transposition is known for a few int16 shapes only, regrouping \
             and OW operands from memory for none",
            "this program asks for something else",
            "isa.md §5.3, isa-notes C.3",
        ));
    }
    let Some(conv) = main.conv else { return Ok(Form::Laws) };
    if ow.tp_org_en() == 1 {
        return Ok(Form::Transposed);
    }
    if view.get::<core::DataoutSize1>().dataout_channel() as usize + 1 < main.channels {
        return Err(unmodelled(
            site,
            "core-channels",
            vec![view.show::<core::DataoutSize1>(), view.show::<cna::WeightSize2>()],
            "CORE delivers at least as many channels as there are kernels",
            "it delivers fewer",
            "isa.md §9.2",
        ));
    }
    let size: dpu::WdmaSize1 = view.get();
    let written = (size.width_wdma() as usize + 1, size.height_wdma() as usize + 1);
    let dense = u64::from(view.get::<dpu::DstSurfStride>().dst_surf_stride()) != 1;
    if conv.precision == Precision::Int4 {
        // Two forms (`isa-int4-sdp.md` §1.3, §1.8b): a stream without a write size, or the general laws.
        if written == (1, 1) && (!dense || (width, height) != (1, 1)) {
            check_line_stride(machine, site, view, conv);
            return Ok(Form::Stream { rows_wrong: false });
        }
        if !dense {
            machine.diagnoses.push(site.finding(Finding {
                category: Category::InvalidProgram,
                effect: Effect::Wrong,
                check: "int4-rows",
                registers: vec![view.show::<dpu::WdmaSize1>(), view.show::<dpu::DstSurfStride>()],
                first: rule("int4 in rows needs WDMA_SIZE_1 = 0"),
                second: site.here("it is not 0: rows above 0 are wrong"),
                source: "isa-int4-sdp.md §1.4, §1.8b",
            }));
            return Ok(Form::Stream { rows_wrong: true });
        }
    }
    if written != (width, height) {
        return Err(hang(
            site,
            Category::InvalidProgram,
            "wdma-size",
            vec![view.show::<dpu::WdmaSize1>(), view.show::<dpu::DataCubeHeight>()],
            site.here(format!("the DPU delivers {width} x {height} pixels")),
            format!("WDMA_SIZE_1 stores {} x {}", written.0, written.1),
            "isa.md §7.1, §13 row 12",
        ));
    }
    if conv.precision == Precision::Int16 && machine.options.silicon.int16_output == Int16Output::OneTile {
        if (width, height) != (1, 1) || conv.kernels > ONE_TILE_CHANNELS {
            machine.diagnoses.push(site.finding(Finding {
                category: Category::InvalidProgram,
                effect: Effect::Wrong,
                check: "int16-one-tile",
                registers: vec![view.show::<dpu::DataFormat>(), view.show::<dpu::DataCubeHeight>()],
                first: rule("int16 sums are stored for one pixel and 16 channels on this silicon"),
                second: site.here(format!("{width} x {height} pixels, {} channels", conv.kernels)),
                source: "isa-notes C.3, G-13, M-22",
            }));
        }
        return Ok(Form::OneTile);
    }
    Ok(Form::Laws)
}

/// The shapes of which the places of transposed int16 results are known (`isa-notes.md` C.3).
pub(crate) fn transposes(main: &Main<'_>) -> bool {
    main.conv.is_some_and(|conv| {
        conv.precision == Precision::Int16
            && conv.out_width == 1
            && matches!(conv.out_height, 4 | 8 | 16 | 32)
            && conv.kernels <= 32
    })
}

/// Rows of the int4 stream lie K / 16 atoms apart; other strides compute fewer rows (`isa-int4-sdp.md` §1.5, §9).
pub(crate) fn check_line_stride(machine: &mut Machine<'_>, site: Site, view: View<'_>, conv: &Conv) {
    let stride = view.get::<cna::DmaCon1>().line_stride() as usize;
    if conv.out_height > 1 && stride * 16 != conv.channels {
        machine.diagnoses.push(site.finding(Finding {
            category: Category::InvalidProgram,
            effect: Effect::Wrong,
            check: "int4-line-stride",
            registers: vec![view.show::<cna::DmaCon1>(), view.show::<cna::DataSize1>()],
            first: rule("int4 rows in stream form have LINE_STRIDE = K / 16"),
            second: site.here(format!("it is {stride} at K = {}: other lines are read", conv.channels)),
            source: "isa-int4-sdp.md §1.5, §9",
        }));
    }
}
