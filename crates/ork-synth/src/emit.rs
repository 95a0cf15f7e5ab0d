// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_isa::{Cmd, Iova, Link, Precision, TRAILER_WORDS};
use ork_layout::Format;
use ork_plan::{PROGRAM_BODY_WORDS, PassShape, program_fetch_words, program_pitch_bytes};

use crate::error::{Buffer, SynthError};
use crate::matmul::{MatmulTask, OutputStage, matmul_program};
use crate::quirk;

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
/// `PC.REGISTER_AMOUNTS` of a program that another links to: 16-byte beats minus 1, whatever lies behind its op-enable
/// word.
const FETCH_AMOUNT: u16 = ((PROGRAM_BODY_WORDS + TRAILER_WORDS).div_ceil(2) - 1) as u16;

/// The linked programs of one core, ready to be copied to the bound register-command buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramSet {
    core: u8,
    format: Format,
    base: Iova,
    bytes: Vec<u8>,
}

impl ProgramSet {
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

    /// Words to fetch of a program, without its trailer: `regcfg_amount` of the vendor driver's task descriptor.
    #[must_use]
    pub fn fetch_words(&self) -> u32 {
        program_fetch_words(self.format) as u32
    }

    /// Number of programs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / program_pitch_bytes(self.format) as usize
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

    /// The words of a program up to its op-enable word: without the words that int4 programs carry behind it, and
    /// without the padding to the next.
    ///
    /// # Panics
    /// If there is no such program.
    pub fn words(&self, index: usize) -> impl Iterator<Item = Cmd> + '_ {
        assert!(index < self.len(), "program {index} of {}", self.len());
        let start = index * program_pitch_bytes(self.format) as usize;
        let count = PROGRAM_BODY_WORDS + TRAILER_WORDS;
        self.bytes[start..][..count * 8].as_chunks().0.iter().map(|word| Cmd(u64::from_le_bytes(*word)))
    }

    /// Device address of a program: `regcmd_addr` of its task descriptor.
    ///
    /// # Panics
    /// If there is no such program.
    #[must_use]
    pub fn program_address(&self, index: usize) -> Iova {
        assert!(index < self.len(), "program {index} of {}", self.len());
        let start = index as u64 * program_pitch_bytes(self.format);
        self.base.checked_add(start).expect("checked against the binding")
    }
}

/// Writes the programs of one core of a pass, chained in order. Sums leave unscaled.
///
/// # Errors
/// [`SynthError`] when the core has no work, a binding is too short or misaligned, or a size does not fit a field.
pub fn emit(shape: &PassShape, core: u8, bindings: &Bindings) -> Result<ProgramSet, SynthError> {
    emit_with(shape, core, bindings, OutputStage::Plain)
}

/// Writes the programs of one core of a pass, chained in order.
///
/// # Errors
/// As [`emit`], and when the output stage does not fit the precision of the results.
pub fn emit_with(
    shape: &PassShape,
    core: u8,
    bindings: &Bindings,
    output: OutputStage,
) -> Result<ProgramSet, SynthError> {
    let chain = shape.chain(core).ok_or(SynthError::NoChain { core })?;
    let format = shape.features.format();
    if output != OutputStage::Plain && format.output() != Precision::Int8 {
        return Err(SynthError::OutputStage { format });
    }
    let check = Check { core, bindings };
    check.windows()?;
    let pitch_bytes = program_pitch_bytes(format);
    let pitch = pitch_bytes as usize;
    let mut bytes = vec![0; chain.programs.len() * pitch];
    for (program, (tile, memory)) in chain.programs.iter().zip(bytes.chunks_exact_mut(pitch)).enumerate() {
        let start = program as u64 * pitch_bytes;
        check.range(program, Buffer::Regcmd, start, pitch_bytes)?;
        let link = if program + 1 == chain.programs.len() {
            Link::Last
        } else {
            let at = check.address(program, Buffer::Regcmd, start + pitch_bytes)?;
            Link::Next { at, amount: FETCH_AMOUNT }
        };
        let task = MatmulTask {
            format,
            form: tile.form,
            rows: tile.rows,
            k: tile.k,
            n: tile.n,
            row_stride: tile.row_stride,
            split: tile.split,
            grains: tile.grains,
            reuse: tile.reuse,
            a: check.address(program, Buffer::Features, tile.a_offset)?,
            b: check.address(program, Buffer::Weights, tile.b_offset)?,
            c: check.address(program, Buffer::Output, tile.c_offset)?,
            output,
        };
        check.range(program, Buffer::Features, tile.a_offset, task.a_bytes())?;
        check.range(program, Buffer::Weights, tile.b_offset, task.b_bytes())?;
        check.range(program, Buffer::Output, tile.c_offset, task.c_bytes())?;
        let field = |overflow| SynthError::Field { core, program, overflow };
        let words = matmul_program(&task, link).map_err(field)?;
        words.write_to(memory);
        if format.input() == Precision::Int4 {
            overrun(words.words(), memory);
        }
    }
    Ok(ProgramSet { core, format, base: bindings.regcmd.iova, bytes })
}

/// [`quirk::INT4_OVERRUN`](crate::quirk::INT4_OVERRUN): the program's first words again, behind its op-enable word.
fn overrun(words: &[Cmd], memory: &mut [u8]) {
    let behind = memory[words.len() * 8..].chunks_exact_mut(8);
    for (bytes, word) in behind.zip(&words[..quirk::INT4_OVERRUN.value as usize]) {
        bytes.copy_from_slice(&word.0.to_le_bytes());
    }
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
