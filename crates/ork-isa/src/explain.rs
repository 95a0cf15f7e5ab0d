// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs compute, in words: operation, shape, precisions, layouts, memory, buffer split, output stages and
//! place in the chain. Told from the registers alone; nothing is executed.

use std::fmt;

use crate::asm::{Listing, Stream, blocks};
use crate::program::fetch_amount;
use crate::regs::{dpu, dpu_rdma};
use crate::task::{Feed, Links, Mac, Next, Output, Place, Pool, Registers, Task, Trailer, extents, tasks};
use crate::{Block, Cmd, Precision};

/// What a task computes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// C = A × B.
    Matmul {
        /// Rows of A and C.
        m: u32,
        /// Columns of A, rows of B.
        k: u32,
        /// Columns of B and C.
        n: u32,
    },
    /// A convolution, direct or depthwise.
    Convolution(Box<Mac>),
    /// An element-wise operation of memory operands.
    ElementWise {
        /// "add", "multiply", …
        what: &'static str,
        /// Lines, pixels, channels.
        shape: (u32, u32, u32),
    },
    /// A pass through the lookup tables.
    Lookup {
        /// Lines, pixels, channels.
        shape: (u32, u32, u32),
    },
    /// Memory to memory through the output stages, without a second operand.
    Pass {
        /// Lines, pixels, channels.
        shape: (u32, u32, u32),
    },
    /// Pooling.
    Pooling(Pool),
    /// Blocks that no known program combines, or none.
    Other,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cube =
            |f: &mut fmt::Formatter<'_>, (h, w, c): &(u32, u32, u32)| write!(f, " of H={h} W={w} C={c}");
        match self {
            Self::Matmul { m, k, n } => write!(f, "matmul M={m} K={k} N={n}"),
            Self::Convolution(mac) => {
                let kind = if mac.depthwise { "depthwise convolution" } else { "convolution" };
                let Mac { height, width, channels, kernel, stride, dilation, pad, .. } = mac.as_ref();
                write!(f, "{kind} H={height} W={width} C={channels}")?;
                if !mac.depthwise {
                    write!(f, " OC={}", mac.kernels)?;
                }
                write!(f, " KH={} KW={} stride {}x{}", kernel.0, kernel.1, stride.0, stride.1)?;
                write!(f, " pad top {} left {}", pad.0, pad.1)?;
                if *dilation != (1, 1) {
                    write!(f, " dilation {}x{}", dilation.0, dilation.1)?;
                }
                write!(f, " to OH={} OW={}", mac.out_height, mac.out_width)
            }
            Self::ElementWise { what, shape } => {
                write!(f, "element-wise {what}")?;
                cube(f, shape)
            }
            Self::Lookup { shape } => {
                f.write_str("lookup table")?;
                cube(f, shape)
            }
            Self::Pass { shape } => {
                f.write_str("pass through the output stages")?;
                cube(f, shape)
            }
            Self::Pooling(pool) => {
                let Pool { method, input, output, channels, kernel, stride, pad, .. } = pool;
                write!(f, "{method} pooling H={} W={} C={channels}", input.0, input.1)?;
                write!(f, " KH={} KW={} stride {}x{}", kernel.0, kernel.1, stride.0, stride.1)?;
                if *pad != [0; 4] {
                    let [top, left, bottom, right] = pad;
                    write!(f, " pad top {top} left {left} bottom {bottom} right {right}")?;
                }
                write!(f, " to OH={} OW={}", output.0, output.1)
            }
            Self::Other => f.write_str("no known operation"),
        }
    }
}

/// One task, told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// Program of the listing, from 0.
    pub program: usize,
    /// The op-enable word; `None` for a program that starts nothing.
    pub start: Option<Place>,
    /// What is computed.
    pub operation: Operation,
    /// Precision of the operands of the MAC array, where it runs and its registers agree.
    pub input: Option<Precision>,
    /// Precision of what is stored.
    pub output: Option<Precision>,
    /// Topic and text, in reading order.
    pub lines: Vec<(&'static str, String)>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (topic, text)) in self.lines.iter().enumerate() {
            let indent = if index == 0 { "" } else { "  " };
            writeln!(f, "{indent}{topic:width$} {text}", width = 12 - indent.len())?;
        }
        Ok(())
    }
}

/// Explains every task of a listing, and every program that starts nothing.
#[must_use]
pub fn explain(listing: &Listing) -> Vec<Explanation> {
    let words: Vec<&[Cmd]> = listing.streams.iter().map(|stream| stream.words.as_slice()).collect();
    let all = tasks(&words);
    let links = Links::read(&listing.streams);
    let mut found = Vec::new();
    for program in 0..listing.streams.len() {
        let before = found.len();
        let own = all.iter().filter(|task| task.place.program == program);
        found.extend(own.map(|task| one(&listing.streams, &links, task)));
        if found.len() == before {
            let lines =
                vec![("program", format!("{}: no op-enable word, nothing starts", title(listing, program)))];
            let operation = Operation::Other;
            found.push(Explanation { program, start: None, operation, input: None, output: None, lines });
        }
    }
    found
}

fn title(listing: &Listing, program: usize) -> String {
    name(&listing.streams[program], program)
}

fn name(stream: &Stream, program: usize) -> String {
    let name = if stream.name.is_empty() { String::new() } else { format!(" \"{}\"", stream.name) };
    let at = stream.at.map(|at| format!(" at {at}")).unwrap_or_default();
    format!("{program}{name}{at}, {} words", stream.words.len())
}

fn one(programs: &[Stream], links: &Links, task: &Task) -> Explanation {
    let program = task.place.program;
    let r = &task.registers;
    let mac = task.starts(Block::Cna).then(|| Mac::read(r));
    let out = task.starts(Block::Dpu).then(|| Output::read(r, mac.as_ref()));
    let pool = (task.starts(Block::Ppu) && mac.is_none() && out.is_none()).then(|| Pool::read(r));
    let operation = operation(r, mac.as_ref(), out.as_ref(), pool);
    let mut lines = vec![
        ("program", format!("{}, starts {}", name(&programs[program], program), blocks(task.enable.0))),
        ("operation", operation.to_string()),
    ];
    let input = mac.as_ref().and_then(|mac| mac.precision);
    let stored = out.as_ref().filter(|out| out.to_memory).and_then(|out| out.precision);
    let say =
        |precision: Option<Precision>| precision.map_or_else(|| "unknown".to_owned(), |p| p.to_string());
    if let Some(mac) = &mac {
        lines.push(("precision", format!("{} operands, {} stored", say(input), say(stored))));
        let mut text = format!(
            "D = {} ({} lines of {} bytes), W = {} (groups of {} bytes, {} bytes of weights in all)",
            mac.split.0,
            mac.height,
            mac.line_bytes(),
            mac.split.1,
            mac.group_bytes(),
            mac.weight_bytes()
        );
        for (on, what) in [(mac.data_reuse, ", DATA_REUSE"), (mac.weight_reuse, ", WEIGHT_REUSE")] {
            text.push_str(if on { what } else { "" });
        }
        lines.push(("buffer", text));
        lines.push(("features", mac.layout.to_string()));
    } else if let Some(out) = &out {
        let format: dpu::DataFormat = r.get();
        let taken = Precision::from_code(format.in_precision());
        let processed = Precision::from_code(format.proc_precision());
        lines.push((
            "precision",
            format!("{} in, {} processed, {} stored", say(taken), say(processed), say(out.precision)),
        ));
    }
    if let Some(out) = &out {
        lines.push(("stages", stages(r, task)));
        if out.to_memory {
            let text = format!("{}; groups of {} atoms: {}", out.layout(), out.emitted(), out.groups());
            lines.push(("output", text));
        }
    }
    for extent in extents(task) {
        lines.push(("memory", extent.to_string()));
    }
    lines.push(("chain", chain(programs, links, program)));
    Explanation { program, start: Some(task.place), operation, input, output: stored, lines }
}

fn operation(r: &Registers, mac: Option<&Mac>, out: Option<&Output>, pool: Option<Pool>) -> Operation {
    match (mac, out, pool) {
        (Some(mac), _, _) if mac.is_matmul() => {
            Operation::Matmul { m: mac.height * mac.width, k: mac.channels, n: mac.kernels }
        }
        (Some(mac), _, _) => Operation::Convolution(Box::new(mac.clone())),
        (None, Some(out), _) if out.feed == Feed::Memory => {
            let shape = (out.height, out.width, out.channels);
            let ew: dpu::EwCfg = r.get();
            match element_wise(ew) {
                _ if uses_table(ew) => Operation::Lookup { shape },
                Some(what) => Operation::ElementWise { what, shape },
                None => Operation::Pass { shape },
            }
        }
        (None, None, Some(pool)) => Operation::Pooling(pool),
        _ => Operation::Other,
    }
}

fn uses_table(ew: dpu::EwCfg) -> bool {
    ew.ew_bypass() == 0 && ew.ew_lut_bypass() == 0
}

/// The operation of the EW stage; the tables exclude it (`isa-int4-sdp.md` §3.3).
fn element_wise(ew: dpu::EwCfg) -> Option<&'static str> {
    if ew.ew_bypass() == 1 || ew.ew_op_bypass() == 1 || uses_table(ew) {
        return None;
    }
    Some(if ew.ew_op_type() == 1 { "multiply" } else { algorithm(ew.ew_alu_algo()) })
}

/// `*_ALU_ALGO` (`isa-int4-sdp.md` §3.3).
fn algorithm(code: u32) -> &'static str {
    match code {
        0 => "max",
        1 => "min",
        2 => "add",
        3 => "divide",
        4 => "subtract",
        5 => "abs",
        6 => "negate",
        7 => "floor",
        8 => "ceil",
        _ => "unknown algorithm",
    }
}

/// BS and BN have one layout; BN's registers are read as BS's.
fn scale_stage(
    label: &str,
    cfg: dpu::BsCfg,
    alu: u32,
    mul: dpu::BsMulCfg,
    clamp: u32,
    memory: &str,
) -> Option<String> {
    if cfg.bs_bypass() == 1 {
        return None;
    }
    let mut parts = Vec::new();
    if cfg.bs_alu_bypass() == 0 {
        let operand = if cfg.bs_alu_src() == 1 { memory.to_owned() } else { format!("{alu:#x}") };
        parts.push(format!("{} {operand}", algorithm(cfg.bs_alu_algo())));
    }
    if cfg.bs_mul_bypass() == 0 {
        let operand =
            if mul.bs_mul_src() == 1 { memory.to_owned() } else { format!("{:#x}", mul.bs_mul_operand()) };
        parts.push(format!("multiply by {operand} >> {}", mul.bs_mul_shift_value()));
    }
    if cfg.bs_relu_bypass() == 0 {
        parts.push(if cfg.bs_relux_en() == 1 { format!("ReLU up to {clamp:#x}") } else { "ReLU".to_owned() });
    }
    if parts.is_empty() { None } else { Some(format!("{label} {}", parts.join(", "))) }
}

fn stages(r: &Registers, task: &Task) -> String {
    let bn_cfg: dpu::BnCfg = r.get();
    let bn_mul: dpu::BnMulCfg = r.get();
    let ow: dpu::BsOwCfg = r.get();
    let ew: dpu::EwCfg = r.get();
    let scale: dpu::OutCvtScale = r.get();
    let shift: dpu::OutCvtShift = r.get();
    let offset = r.get::<dpu::OutCvtOffset>().out_cvt_offset().cast_signed();
    let mut parts: Vec<String> = [
        scale_stage(
            "BS:",
            r.get(),
            r.get::<dpu::BsAluCfg>().0,
            r.get(),
            r.get::<dpu::BsReluxCmpValue>().0,
            "the operand of BRDMA",
        ),
        scale_stage(
            "BN:",
            dpu::BsCfg(bn_cfg.0),
            r.get::<dpu::BnAluCfg>().0,
            dpu::BsMulCfg(bn_mul.0),
            r.get::<dpu::BnReluxCmpValue>().0,
            "the operand of NRDMA",
        ),
    ]
    .into_iter()
    .flatten()
    .collect();
    let op = r.get::<dpu::BsOwOp>().ow_op();
    if ow.od_bypass() == 0 && op != 0 {
        parts.insert(parts.len().min(1), format!("OW: {op:#x} for each unit of the feature sum"));
    }
    if uses_table(ew) {
        parts.push(format!("EW: lookup table ({} entries loaded here)", task.table_entries));
    } else if let Some(what) = element_wise(ew) {
        let operand = if ew.ew_op_src() == 0 {
            "the constants".to_owned()
        } else if r.get::<dpu_rdma::RdmaErdmaCfg>().erdma_data_mode() == 0 {
            "an operand for each channel".to_owned()
        } else {
            "an operand for each element".to_owned()
        };
        parts.push(format!("EW: {what} with {operand}"));
    }
    if ew.ew_bypass() == 0 && ew.ew_relu_bypass() == 0 {
        parts.push("EW: ReLU".to_owned());
    }
    let factor = (scale.out_cvt_scale() as u16).cast_signed();
    if (factor, shift.out_cvt_shift(), offset) != (1, 0, 0) && (factor, shift.0, offset) != (0, 0, 0) {
        let exponent = match shift.minus_exp() {
            0 => String::new(),
            minus => format!(", exponent - {minus}"),
        };
        parts.push(format!("converter: x {factor} >> {}{exponent}, offset {offset}", shift.out_cvt_shift()));
    }
    if scale.fp32tofp16_en() == 1 {
        parts.push("fp32 to fp16".to_owned());
    }
    if parts.is_empty() { "all bypassed".to_owned() } else { parts.join("; ") }
}

fn chain(programs: &[Stream], links: &Links, program: usize) -> String {
    let trailer = Trailer::read(&programs[program].words);
    let amount = trailer.next_amount();
    match links.next(program) {
        Next::End => "last".to_owned(),
        Next::Elsewhere(address) => {
            format!("next at {address:#010x}, amount {amount:#x}, not in this listing")
        }
        Next::Program(other) => {
            let words = programs[other].words.len();
            let exact = if words == 0 { 0 } else { u32::from(fetch_amount(words)) };
            let fits = match amount.cmp(&exact) {
                std::cmp::Ordering::Less => ", too small",
                std::cmp::Ordering::Equal => "",
                std::cmp::Ordering::Greater => ", more than it has",
            };
            format!("next is program {other}, amount {amount:#x}{fits}")
        }
    }
}
