// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modelled time: what a task's registers ask of the blocks, in the terms of `ork-timing`, which has all constants.

use ork_isa::Precision;
use ork_isa::regs::{cna, dpu};
use ork_timing::{Arithmetic, ChainClock, FeatureOrder, Model, TaskWork};

use crate::cbuf::BANK;
use crate::cna::Conv;
use crate::cna_dma::surface_atoms;
use crate::regs::View;

/// Adds up the tasks of one job on one core. The fixed cost of a submit belongs to the kernel, not to the core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    model: Model,
    chain: ChainClock,
}

impl Clock {
    pub(crate) fn run(&mut self, work: &TaskWork) {
        self.chain.run(&self.model, work);
    }

    /// Microseconds of the tasks so far (*modelled*).
    pub(crate) fn micros(&self) -> f64 {
        self.chain.elapsed().us
    }
}

/// A task of CNA, CORE and DPU; `operand_bytes` is what DPU_RDMA reads for it.
pub(crate) fn mac_work(view: View<'_>, conv: &Conv, operand_bytes: u64) -> TaskWork {
    let (pixels, taps) = (conv.pixels() as u64, conv.taps() as u64);
    let channels = conv.channels as u64;
    let arithmetic = if conv.depthwise {
        Arithmetic::Depthwise { pixels, channels, taps }
    } else {
        Arithmetic::Direct { pixels, channels, kernels: conv.kernels as u64, taps }
    };
    let features = conv.lines_held() * conv.width * conv.pixel_bytes();
    let outputs = u64::from(view.get::<dpu::DataCubeChannel>().channel()) + 1;
    TaskWork {
        arithmetic,
        precision: conv.precision,
        order: feature_order(view, conv),
        weight_bytes: if conv.weight_reuse { 0 } else { conv.weight_bytes() as u64 },
        feature_bytes: operand_bytes + if conv.data_reuse { 0 } else { features as u64 },
        output_elements: pixels * outputs,
        output_element_bytes: output_bytes(view),
        weight_buffer_bytes: u64::from(conv.split.1) * BANK as u64,
    }
}

/// Rows lie closer together than planes of a cube. One pixel is both; it is timed as a row, as in the rows that the
/// model was fitted to (docs/timing-model.md).
fn feature_order(view: View<'_>, conv: &Conv) -> FeatureOrder {
    let pixels = (conv.height * conv.width) as i64;
    let packed = view.get::<cna::ConvCon1>().nonalign_dma() == 1;
    if !packed && (pixels == 1 || surface_atoms(view) < pixels) {
        FeatureOrder::RowMajor
    } else {
        FeatureOrder::Cube
    }
}

/// A task without CNA: element-wise work and pooling.
pub(crate) fn stream_work(element_bytes: u32, read: u64, written: u64) -> TaskWork {
    TaskWork {
        arithmetic: Arithmetic::None,
        // Without arithmetic the precision plays no part.
        precision: Precision::Int8,
        order: FeatureOrder::Cube,
        weight_bytes: 0,
        feature_bytes: read,
        output_elements: written / u64::from(element_bytes.max(1)),
        output_element_bytes: element_bytes,
        weight_buffer_bytes: 0,
    }
}

/// Bytes of an element that the DPU stores.
pub(crate) fn output_bytes(view: View<'_>) -> u32 {
    let precision = Precision::from_code(view.get::<dpu::DataFormat>().out_precision());
    precision.map_or(1, |precision| precision.bits().div_ceil(8))
}
