// SPDX-License-Identifier: MIT OR Apache-2.0
//! Feature DMA in packed-pixel mode, with the input converter (`isa.md` §5.2, §9.2).

use ork_isa::regs::cna;
use ork_isa::{Iova, Precision};

use crate::cbuf::FeatureLoad;
use crate::cna::Conv;
use crate::cna_dma::feature_fault;
use crate::core::round_shift;
use crate::diagnosis::{Site, Stop, unmodelled};
use crate::pc::Machine;
use crate::regs::View;

/// One lane of the input converter: scale, offset, right shift.
#[derive(Clone, Copy)]
struct Lane(i64, i64, u32);

/// The input converter; `None` where it is bypassed.
fn converter(
    site: Site,
    view: View<'_>,
    conv: &Conv,
) -> Result<Option<([Lane; 4], cna::CvtCon0, u32)>, Stop> {
    let con0: cna::CvtCon0 = view.get();
    if con0.cvt_bypass() == 1 {
        return Ok(None);
    }
    if conv.precision != Precision::Int8 {
        return Err(unmodelled(
            site,
            "input-converter",
            vec![view.show::<cna::CvtCon0>()],
            "the input converter is on in int8 programs with packed pixels only",
            format!("precision {}", conv.precision),
            "isa.md §9.2",
        ));
    }
    let signed = |bits: u32| i64::from((bits as u16).cast_signed());
    let (c1, c2, c3, c4): (cna::CvtCon1, cna::CvtCon2, cna::CvtCon3, cna::CvtCon4) =
        (view.get(), view.get(), view.get(), view.get());
    let lanes = [
        Lane(signed(c1.cvt_scale0()), signed(c1.cvt_offset0()), con0.cvt_truncate_0()),
        Lane(signed(c2.cvt_scale1()), signed(c2.cvt_offset1()), con0.cvt_truncate_1()),
        Lane(signed(c3.cvt_scale2()), signed(c3.cvt_offset2()), con0.cvt_truncate_2()),
        Lane(signed(c4.cvt_scale3()), signed(c4.cvt_offset3()), con0.cvt_truncate_3()),
    ];
    Ok(Some((lanes, con0, view.get::<cna::CvtCon5>().per_channel_cvt_en())))
}

pub(crate) fn load(
    machine: &mut Machine<'_>,
    site: Site,
    view: View<'_>,
    conv: &Conv,
    load: FeatureLoad,
) -> Result<(), Stop> {
    let con1: cna::ConvCon1 = view.get();
    let packed = con1.argb_in().checked_sub(7).filter(|channels| (1..=4).contains(channels));
    let (Some(channels), 1, 1) = (packed, con1.nonalign_dma(), con1.group_line_off()) else {
        return Err(unmodelled(
            site,
            "packed-pixels",
            vec![view.show::<cna::ConvCon1>()],
            "packed pixels have NONALIGN_DMA 1, GROUP_LINE_OFF 1 and ARGB_IN 8 to 11",
            "they are set differently",
            "isa.md §5.2",
        ));
    };
    let bytes = conv.precision.bits() as usize / 8;
    if bytes == 0 || channels as usize > conv.channels {
        return Err(unmodelled(
            site,
            "packed-pixels",
            vec![view.show::<cna::ConvCon1>(), view.show::<cna::DataSize1>()],
            "packed pixels hold whole bytes and no more channels than DATAIN_CHANNEL",
            format!("{channels} channels of {}", conv.precision),
            "isa.md §5.2",
        ));
    }
    let convert = converter(site, view, conv)?;
    let pixel = channels as usize * bytes;
    let width = (view.get::<cna::FcDataSize0>().dma_width() as usize).min(conv.width);
    let stride = u64::from(view.get::<cna::DmaCon1>().line_stride()) * pixel as u64;
    let base = u64::from(load.base.0) + u64::from(machine.dma_base.0);
    let bus = machine.bus;
    let (line_bytes, pixel_bytes) = (conv.line_bytes(), conv.pixel_bytes());
    let buffer = machine.cbuf.feature_bytes_mut(conv.split.0);
    for (h, line) in buffer.chunks_exact_mut(line_bytes).take(conv.lines_held()).enumerate() {
        line.fill(0);
        let address = base + h as u64 * stride;
        let len = width * pixel;
        let at = u32::try_from(address).map_err(|_| {
            feature_fault(site, view, address, len, "the address leaves the 32-bit window".to_owned())
        })?;
        let run = bus
            .read(Iova(at), len as u64)
            .map_err(|error| feature_fault(site, view, address, len, error.to_string()))?;
        for (from, to) in run.chunks_exact(pixel).zip(line.chunks_exact_mut(pixel_bytes)) {
            to[..pixel].copy_from_slice(from);
            if let Some((lanes, con0, enable)) = &convert {
                for (channel, byte) in to[..pixel].iter_mut().enumerate() {
                    if enable >> channel & 1 == 1 {
                        *byte = converted(*byte, lanes[channel % 4], *con0);
                    }
                }
            }
        }
    }
    machine.stats.feature_bytes += (conv.lines_held() * width * pixel) as u64;
    let last = base + conv.lines_held().saturating_sub(1) as u64 * stride + (width * pixel) as u64;
    machine.inputs.push(("feature DMA", base, last));
    machine.cbuf.features = Some(load);
    Ok(())
}

/// `(x * scale >> shift) + offset`, or the offset first; the result is an int8.
fn converted(byte: u8, Lane(scale, offset, shift): Lane, con0: cna::CvtCon0) -> u8 {
    let value = if con0.data_sign() == 1 { i64::from(byte.cast_signed()) } else { i64::from(byte) };
    let half_up = con0.round_type() == 1;
    let value = if con0.cvt_type() == 1 {
        round_shift((value + offset) * scale, shift, half_up)
    } else {
        round_shift(value * scale, shift, half_up) + offset
    };
    value.clamp(-128, 127) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsigned_pixels_become_signed() {
        // isa.md §9.2: shift 14, scale 16384, offset -128, unsigned.
        for (byte, value) in [(0u8, -128i8), (128, 0), (255, 127), (1, -127)] {
            let got = converted(byte, Lane(16384, -128, 14), cna::CvtCon0(0));
            assert_eq!(got.cast_signed(), value);
        }
    }
}
