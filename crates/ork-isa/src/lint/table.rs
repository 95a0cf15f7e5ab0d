// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every lint: name, severity, rule, source.

use super::{Lint, Severity};

macro_rules! lints {
    ($( $id:ident $name:literal $severity:ident $rule:literal $source:literal; )*) => {
        $(
            pub(super) static $id: Lint =
                Lint { name: $name, severity: Severity::$severity, rule: $rule, source: $source };
        )*

        /// All of them, in the order in which docs/reference/rcasm.md lists them.
        pub static LINTS: &[&Lint] = &[ $( &$id ),* ];
    };
}

lints! {
    UNKNOWN_WORD "unknown-word" Error
        "a word names one block, or none"
        "isa.md §2.1";
    UNKNOWN_REGISTER "unknown-register" Warning
        "a word writes a register that the database knows"
        "isa.md §1.2; the register database";
    RESERVED_BITS "reserved-bits" Warning
        "bits that no field names are 0"
        "isa.md §3; the register database";
    MULTI_CORE_BITS "multi-core-bits" Note
        "CONV_CON2 bits 31:28 and REGISTER_AMOUNTS bits 31:16 are set only in vendor programs for several cores"
        "isa.md §2.3, §9.7";
    UNDOCUMENTED "undocumented-register" Warning
        "CORE 0x3030 and DPU 0x40C4 are written 0"
        "isa.md §1.2";
    ADDRESS_UNALIGNED "address-unaligned" Warning
        "feature, weight and output addresses are multiples of 16"
        "isa.md §1.2: the TRM's address fields have bits 31:4";
    WIDTH_MAXIMUM "width-maximum" Warning
        "13-bit sizes stay below their maximum"
        "isa-notes G-4: 54 positions corrupt at the maximum; the ceiling itself is disputed";
    OVERWRITTEN "overwritten" Warning
        "a register gets one value in a program; where it gets two, the later one wins"
        "isa.md §7: code that patches a program must patch all copies";
    NO_OP_ENABLE "no-op-enable" Error
        "a program starts its blocks"
        "isa.md §2.3, §13 row 17";
    NO_MARKER "no-marker" Note
        "the word 0x0041… stands before op-enable"
        "isa.md §2.3: required by the TRM, not needed in every case on silicon";
    OP_ENABLE_AGAIN "op-enable-again" Warning
        "a program has one op-enable word"
        "isa.md §2.2: no known program has two";
    LINK_UNALIGNED "link-unaligned" Error
        "the link is a multiple of 16"
        "isa.md §2.3";
    LINK_HALF "link-half" Warning
        "a link has an address and an amount, or neither"
        "isa-notes F.3: with an amount alone task 0 runs and the chain stops; isa.md §2.5: an amount of 0 stops it";
    LINK_SELF "link-self" Error
        "a program does not link to itself"
        "isa.md §2.5: it is walked past and corrupts";
    LINK_UNRESOLVED "link-unresolved" Note
        "a link leads to a program of the listing"
        "isa.md §2.5: a wrong address is a timeout";
    AMOUNT_SHORT "amount-short" Error
        "the amount covers the next program"
        "isa-notes G-27: too small hangs";
    AMOUNT_LONG "amount-long" Note
        "the amount is the next program's words, halved, rounded up, minus 1"
        "isa.md §2.3: too large does no harm if the words behind are harmless";
    NO_S_POINTER "no-s-pointer" Error
        "every program of an alternating chain writes the S_POINTER of the blocks that it starts"
        "isa.md §2.6, §13 row 19: otherwise it repeats the result of task 0";
    ENABLE_MASK "enable-mask" Error
        "op-enable starts blocks through which data can run from memory to memory"
        "isa-notes G-27: a wrong mask hangs";
    CNA_UNCONFIGURED "cna-unconfigured" Warning
        "a program that starts CNA finds sizes in its register group"
        "isa-notes NS-32: a short program behind too few complete ones does nothing";
    DECOMPRESSION "decompression" Error
        "weight decompression is off"
        "isa-notes A.6: no known program uses it";
    FC_SKIP "fc-skip" Error
        "zero skipping is off"
        "isa.md §13 row 15: FC_SKIP_EN alone makes submits fail";
    MAC_PRECISION "mac-precision" Error
        "CNA and CORE hold one operand precision"
        "isa.md §3";
    DEPTHWISE_DISAGREES "depthwise-disagrees" Error
        "CONV_MODE 3 goes with DW_EN"
        "isa.md §9.5";
    COLUMNS "columns" Error
        "a program has at most 8192 output channels"
        "isa.md §3, §13 row 6: 16384 is silently wrong";
    FC_DATA_BANK "fc-data-bank" Error
        "FC_DATA_BANK is 0"
        "isa-notes G-14: 64 to 75 % of the elements are wrong";
    NO_WEIGHT_BANK "no-weight-bank" Error
        "there is at least one weight bank"
        "isa.md §13 row 1: hangs";
    NO_FEATURE_BANK "no-feature-bank" Error
        "there is at least one feature bank"
        "isa.md §10.1: true of every known program";
    BANK_OVERLAP "bank-overlap" Error
        "feature banks and the weight banks in use are at most 12"
        "isa.md §10.5, §13 row 5: wrong results";
    BANK_SUM "bank-sum" Warning
        "feature and weight banks are together 12"
        "isa.md §10.2: true of every correct program";
    WEIGHT_GROUP "weight-group" Error
        "one kernel group fits the weight banks"
        "isa.md §10.2, §13 row 2: hangs (fp16), wrong (int8)";
    NARROW_COLUMNS "narrow-columns" Warning
        "where one weight bank holds exactly one kernel group, there are more than two groups"
        "isa.md §10.4, §10.5, §13 row 3; for int8 inferred";
    FEATURE_CAPACITY "feature-capacity" Error
        "all feature lines fit the feature banks, each rounded up to 64 bytes"
        "isa.md §10.2, §13 row 4; the rounding is inferred, isa-notes G-9a";
    DATA_ENTRIES "data-entries" Warning
        "DATA_ENTRIES covers a feature line"
        "isa.md §6, §7.1";
    WEIGHT_REUSE "weight-reuse" Note
        "WEIGHT_REUSE needs the same weights, all in the banks, and the same split in the task before"
        "isa.md §10.6";
    WEIGHT_REUSE_STALE "weight-reuse-stale" Error
        "WEIGHT_REUSE finds the weights that it names"
        "isa.md §10.6, §13 row 13: wrong, deterministic";
    DATA_REUSE "data-reuse" Note
        "DATA_REUSE needs the same features and the same split in the task before"
        "isa.md §10.7";
    DATA_REUSE_STALE "data-reuse-stale" Error
        "DATA_REUSE finds the features that it names"
        "isa.md §10.7, §13 row 14: wrong";
    SURFACE_STRIDE "surface-stride" Warning
        "the surfaces of a feature cube neither overlap nor lie four lines apart where there are fewer"
        "isa.md §5.1; isa-notes G-1: a stride clamped at 0 is wrong below four rows, an M / 4 rounded down between them";
    KERNEL_BYTES "kernel-bytes" Warning
        "the bytes of a kernel are taps × channels × element size"
        "isa.md §4.1";
    WEIGHT_TOTAL "weight-total" Warning
        "the weight bytes are kernels × bytes of a kernel"
        "isa.md §6, §9.2";
    OUTPUT_SIZE "output-size" Warning
        "CNA, CORE and DPU hold one output size"
        "isa.md §9.2";
    WDMA_SIZE "wdma-size" Error
        "behind the MAC array WDMA_SIZE_1 is the size of the output; int4 rows leave it 0"
        "isa.md §7.1, §13 row 12: hangs";
    INT4_ROWS "int4-rows" Error
        "int4 rows that are neighbours have WDMA_SIZE_1 = 0 and LINE_STRIDE = K / 16"
        "isa-int4-sdp.md §1.4, §1.5: otherwise rows above 0 are wrong, or fewer rows are computed";
    OUTPUT_CODE "output-code" Error
        "int8 sums go out as int8, int32, fp32, fp16, or as int16 with SIZE_E 3"
        "isa.md §7.5, §13 row 22; isa-int4-sdp.md §2.2: others hang for about 61 s";
    TF32_OUTPUT "tf32-output" Error
        "the DPU has no precision 7"
        "isa-notes C.1, G-12: nothing is written";
    DEPTHWISE_INT32 "depthwise-int32" Error
        "depthwise int8 sums go out as int8"
        "isa-notes G-20: as int32 the pixels lie twice as far apart";
    FLYING_DISAGREES "flying-disagrees" Error
        "DPU and DPU_RDMA agree on where the main data come from"
        "isa-notes D.3";
    MRDMA_UNFED "mrdma-unfed" Error
        "behind the MAC array MRDMA is off, or shares the EW operand (COMB_USE 5)"
        "isa-notes G-2: the job never completes, nor does the next one";
    MRDMA_OFF "mrdma-off" Error
        "flying mode takes its main data from MRDMA"
        "isa-notes D.3";
    OPERAND_BEHIND_MAC "operand-behind-mac" Error
        "behind the MAC array an EW operand from memory needs COMB_USE 5"
        "isa-int4-sdp.md §4.5: hangs";
    OPERAND_MODE "operand-mode" Error
        "ERDMA reads an operand per channel (0) or per pixel (1)"
        "isa-int4-sdp.md §3.3: modes 2 and 3 hang";
    OPERAND_BROADCAST "operand-broadcast" Warning
        "an EW operand of several surfaces has a surface stride"
        "isa-notes G-18: with a stride of 0 the first surface is read for all";
    OPERAND_NOTCH "operand-notch" Warning
        "an EW operand behind fewer than 12 pixels has a notch of as many atoms"
        "isa-notes G-18, NS-11: with the 12 of known programs surfaces 2 and up are misplaced";
    OPERAND_WIDE "operand-wide" Error
        "the EW adder takes integers of at most 16 bits from memory"
        "isa-notes D.2, NS-15: 32-bit operands give garbage";
    PER_CHANNEL_ADD "per-channel-add" Error
        "an operand per channel is multiplied, not added"
        "isa-int4-sdp.md §3.4: 69 to 99 % of the values are wrong";
    INT16_CHAIN "int16-chain" Error
        "an int16 pass with two operands and the BS adder on is the only task of its job"
        "isa-int4-sdp.md §4.5, §6.2: hangs inside a chain";
    FP16_UNCONVERTED "fp16-unconverted" Error
        "fp16 output from the MAC array has FP32TOFP16_EN"
        "isa.md §13 row 20: hangs";
    ROWS_MAXIMUM "rows-maximum" Error
        "an element-wise pass has at most 8176 rows"
        "isa-int4-sdp.md §3.2: int16 times out at 8184, fp16 frays at 8189";
    SIZE_E_DIFFERS "size-e-differs" Warning
        "SIZE_E_0, SIZE_E_1 and SIZE_E_2 hold one number"
        "isa.md §5.3";
    SIZE_E_SHORT "size-e-short" Error
        "SIZE_E covers the atoms of a group"
        "isa-notes D.4, G-3: columns stay unwritten";
    SIZE_E_LONG "size-e-long" Note
        "SIZE_E + 1 is the number of atoms of a group"
        "isa.md §5.3; isa-notes NS-27: atoms beyond the group are not written";
    SURFACE_ADD_OVERLAP "surface-add-overlap" Error
        "SURFACE_ADD is at least the reach of a group"
        "isa.md §5.3, §13 row 8: left at the value of another format it is WILD or hangs";
    SURFACE_ADD_GAP "surface-add-gap" Warning
        "SURFACE_ADD is the size of a dense group"
        "isa.md §5.3: with a larger value the groups lie apart";
    ROWS_OVERLAP "rows-overlap" Error
        "the row pitch is at least a row"
        "isa.md §5.3";
    LUT_PING_PONG "lut-ping-pong" Warning
        "a table is loaded without ping-pong"
        "isa.md §13 row 30: races; recorded programs that load and use a table in one program work";
    LUT_ZERO "lut-zero" Warning
        "no table entry cancels the offset of the affine converter"
        "isa-notes G-7, NS-5: a zero decodes to 2^(17 - MINUS_EXP)";
    SMALL_POOL "small-pool" Error
        "no pool reads a plane with a side below 4 that the pool before it wrote"
        "isa-notes G-10: about half the channels are garbage; take the smallest factors first";
    POOL_PRECISION "pool-precision" Warning
        "pooling is fp16"
        "isa-notes E, G-11: other data are taken as fp16; vendor programs that only separate tasks do it (isa.md §9.7)";
    ADDRESS_WINDOW "address-window" Error
        "every byte lies in the 32-bit window"
        "isa.md §14.1 step 5";
    IN_PLACE "in-place" Warning
        "a task does not write what it reads"
        "isa-notes G-18; isa-int4-sdp.md §3.2: output over an input corrupts";
}
