// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_isa::{Iova, Link, TRAILER_WORDS};
use ork_plan::{PROGRAM_BODY_WORDS, PROGRAM_PITCH_BYTES, PassShape};

use crate::error::{Buffer, SynthError};
use crate::matmul::{MatmulTask, OutputStage, matmul_program};

/// A device buffer: where it is mapped and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Address of the first byte.
    pub iova: Iova,
    /// Bytes that belong to it.
    pub len: u64,
}

/// The buffers of one core's chain. `A`, `B` and `C` are shared by all cores; the register commands are the core's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bindings {
    /// Features, laid out by the pass's `FeatureLayout`.
    pub a: Binding,
    /// Weights, laid out by the problem's `WeightLayout`.
    pub b: Binding,
    /// Output surfaces, laid out by the pass's `OutputLayout`.
    pub c: Binding,
    /// Where the programs will lie.
    pub regcmd: Binding,
}

/// Address registers hold 16-byte atoms.
const ATOM_BYTES: u32 = 16;
/// `PC.REGISTER_AMOUNTS` of a recipe-2 program: 16-byte beats minus 1.
const FETCH_AMOUNT: u16 = ((PROGRAM_BODY_WORDS + TRAILER_WORDS).div_ceil(2) - 1) as u16;

/// The linked programs of one core, ready to be copied to the bound register-command buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramSet {
    core: u8,
    base: Iova,
    bytes: Vec<u8>,
}

impl ProgramSet {
    /// Words before the trailer: `regcfg_amount` of the vendor driver's task descriptor.
    pub const BODY_WORDS: u32 = PROGRAM_BODY_WORDS as u32;
    /// Op-enable mask of the programs: CNA, CORE and DPU (`isa.md` §2.2).
    pub const ENABLE_MASK: u32 = 0x0D;
    /// Interrupts that end a task: DPU group 0 or 1 (`isa.md` §2.4).
    pub const INTERRUPT_MASK: u32 = 0x300;
    /// Value of `PC.REGISTER_AMOUNTS` that fetches one of the programs.
    pub const FETCH_AMOUNT: u16 = FETCH_AMOUNT;

    /// The core whose chain this is.
    #[must_use]
    pub fn core(&self) -> u8 {
        self.core
    }

    /// Number of programs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / PROGRAM_PITCH_BYTES as usize
    }

    /// Whether there are no programs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All programs, at the planner's pitch: copy them to the start of the register-command buffer.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Device address of a program: `regcmd_addr` of its task descriptor.
    ///
    /// # Panics
    /// If there is no such program.
    #[must_use]
    pub fn program_address(&self, index: usize) -> Iova {
        assert!(index < self.len(), "program {index} of {}", self.len());
        self.base.checked_add(index as u64 * PROGRAM_PITCH_BYTES).expect("checked against the binding")
    }
}

/// Writes the programs of one core of a pass, chained in order.
///
/// # Errors
/// [`SynthError`] when the core has no work, a binding is too short or misaligned, or a size does not fit a field.
pub fn emit(shape: &PassShape, core: u8, bindings: &Bindings) -> Result<ProgramSet, SynthError> {
    let chain = shape.chain(core).ok_or(SynthError::NoChain { core })?;
    let check = Check { core, bindings };
    check.windows()?;
    let pitch = PROGRAM_PITCH_BYTES as usize;
    let mut bytes = vec![0; chain.programs.len() * pitch];
    for (program, (tile, memory)) in chain.programs.iter().zip(bytes.chunks_exact_mut(pitch)).enumerate() {
        let start = program as u64 * PROGRAM_PITCH_BYTES;
        check.range(program, Buffer::Regcmd, start, PROGRAM_PITCH_BYTES)?;
        let link = if program + 1 == chain.programs.len() {
            Link::Last
        } else {
            let at = check.address(program, Buffer::Regcmd, start + PROGRAM_PITCH_BYTES)?;
            Link::Next { at, amount: FETCH_AMOUNT }
        };
        let task = MatmulTask {
            format: shape.features.format(),
            rows: tile.rows,
            k: tile.k,
            n: tile.n,
            row_stride: tile.row_stride,
            split: tile.split,
            grains: tile.grains,
            a: check.address(program, Buffer::Features, tile.a_offset)?,
            b: check.address(program, Buffer::Weights, tile.b_offset)?,
            c: check.address(program, Buffer::Output, tile.c_offset)?,
            output: OutputStage::Plain,
        };
        check.range(program, Buffer::Features, tile.a_offset, task.a_bytes())?;
        check.range(program, Buffer::Weights, tile.b_offset, task.b_bytes())?;
        check.range(program, Buffer::Output, tile.c_offset, task.c_bytes())?;
        matmul_program(&task, link)
            .map_err(|overflow| SynthError::Field { core, program, overflow })?
            .write_to(memory);
    }
    Ok(ProgramSet { core, base: bindings.regcmd.iova, bytes })
}

/// Holds every address range of a chain against its binding.
struct Check<'a> {
    core: u8,
    bindings: &'a Bindings,
}

impl Check<'_> {
    fn binding(&self, buffer: Buffer) -> Binding {
        match buffer {
            Buffer::Features => self.bindings.a,
            Buffer::Weights => self.bindings.b,
            Buffer::Output => self.bindings.c,
            Buffer::Regcmd => self.bindings.regcmd,
        }
    }

    fn windows(&self) -> Result<(), SynthError> {
        for buffer in [Buffer::Features, Buffer::Weights, Buffer::Output, Buffer::Regcmd] {
            let Binding { iova, len } = self.binding(buffer);
            if u64::from(iova.0).checked_add(len).is_none_or(|end| end > 1 << 32) {
                return Err(SynthError::OutsideWindow { buffer, base: iova, len });
            }
        }
        Ok(())
    }

    fn range(&self, program: usize, buffer: Buffer, start: u64, bytes: u64) -> Result<(), SynthError> {
        let Binding { iova: base, len } = self.binding(buffer);
        match start.checked_add(bytes) {
            Some(end) if end <= len => Ok(()),
            end => Err(SynthError::OutOfBinding {
                core: self.core,
                program,
                buffer,
                start,
                end: end.unwrap_or(u64::MAX),
                base,
                len,
            }),
        }
    }

    /// The address of a byte of a buffer.
    fn address(&self, program: usize, buffer: Buffer, offset: u64) -> Result<Iova, SynthError> {
        self.range(program, buffer, offset, 1)?;
        let Binding { iova, len } = self.binding(buffer);
        let at = iova.checked_add(offset).ok_or(SynthError::OutsideWindow { buffer, base: iova, len })?;
        if at.0.is_multiple_of(ATOM_BYTES) {
            Ok(at)
        } else {
            Err(SynthError::Misaligned { core: self.core, program, buffer, at, multiple: ATOM_BYTES })
        }
    }
}
