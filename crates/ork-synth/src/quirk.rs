// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values that programs carry although nobody can derive them.
//!
//! A literal in an emitter is derived, or it stands here with its source and the probe that would settle it.

/// A value without a derivation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirk {
    /// Register and field.
    pub field: &'static str,
    /// What programs write.
    pub value: u32,
    /// Who writes it.
    pub source: &'static str,
    /// How far it is understood.
    pub confidence: &'static str,
    /// What to run on silicon to settle it.
    pub probe: &'static str,
}

/// The feature-sum switch of the accumulator.
pub const QD_EN: Quirk = Quirk {
    field: "CORE.MISC_CFG.QD_EN",
    value: 1,
    source: "vendor matmul captures set it for int8, fp16 and int4 (isa.md §7.1); recipe 1 does not for int8, nor the \
             dense int4 form",
    confidence: "captured; without effect while BS_OW_OP is 0, by the algebra of isa.md §9.1",
    probe: "one shape with QD_EN 0 and 1, BS_OW_OP 0: same bytes?",
};

/// The CPEND stage is left on for int8, with operand 0.
pub const INT8_OD_BYPASS: Quirk = Quirk {
    field: "DPU.BS_OW_CFG.OD_BYPASS",
    value: 0,
    source: "vendor int8 matmul captures (0x7FC, 0x124); recipe 1 bypasses it (0x7FE)",
    confidence: "captured; both forms pass on silicon elsewhere",
    probe: "one int8 shape with OD_BYPASS 0 and 1: same bytes?",
};

/// The CPEND stage is bypassed for all other precisions.
pub const OTHER_OD_BYPASS: Quirk = Quirk {
    field: "DPU.BS_OW_CFG.OD_BYPASS",
    value: 1,
    source: "vendor fp16 and int4 matmul captures (0x36E, 0x126, 0x7FE), int16 programs of others (0x36E)",
    confidence: "captured",
    probe: "one fp16 and one int4 shape with OD_BYPASS 0 and 1: same bytes?",
};

/// The bypassed input converter is set to "add first".
pub const BYPASSED_CVT_TYPE: Quirk = Quirk {
    field: "CNA.CVT_CON0.CVT_TYPE",
    value: 1,
    source: "0x104C = 0xB in every known matmul and convolution program",
    confidence: "captured; the converter is bypassed, so the order should not matter",
    probe: "one shape with CVT_TYPE 0: same bytes?",
};

/// A register of CORE that no manual names.
pub const UNKNOWN_3030: Quirk = Quirk {
    field: "CORE.UNKNOWN_3030",
    value: 0,
    source: "written 0 by every known program",
    confidence: "captured; meaning unknown",
    probe: "read it back after reset and after a program that leaves it out",
};

/// A register of the DPU that no manual names.
pub const UNKNOWN_40C4: Quirk = Quirk {
    field: "DPU.UNKNOWN_40C4",
    value: 0,
    source: "written 0 by every known program",
    confidence: "captured; meaning unknown",
    probe: "read it back after reset and after a program that leaves it out",
};

/// `CBUF_CON0`, `DCOMP_REGNUM`, `DCOMP_CTRL` and twice `CONV_CON1` stand before the body that writes them again.
pub const PROLOGUE: Quirk = Quirk {
    field: "order of the words: prologue",
    value: 6,
    source: "vendor matmul captures (isa.md §7); recipe 1 has no prologue and works",
    confidence: "captured; the later copy wins, so the prologue should be redundant",
    probe: "one chain with and without the prologue: same bytes, same time?",
};

/// int4 programs carry the first four words of a program behind their op-enable word.
pub const INT4_OVERRUN: Quirk = Quirk {
    field: "order of the words: behind op-enable",
    value: 4,
    source: "vendor int4 capture (isa-int4-sdp.md §1.4), fetched as 116 words and not 108, which hung the bus",
    confidence: "captured; ordinary writes into the register group of the next program, which writes them again",
    probe: "an int4 chain fetched as 108 and as 116 words, with and without the words",
};

/// Most quirks of a matmul program; for listings.
pub const ALL: &[Quirk] = &[
    QD_EN,
    INT8_OD_BYPASS,
    OTHER_OD_BYPASS,
    BYPASSED_CVT_TYPE,
    UNKNOWN_3030,
    UNKNOWN_40C4,
    PROLOGUE,
    INT4_OVERRUN,
];
