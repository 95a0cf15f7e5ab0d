// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hand-made chains of one core, whatever the laws say of them.

use half::{bf16, f16};
use ork_device::{
    Board, Device, DeviceOptions, DmaBuffer, EmuOptions, Purpose, Submission, SubmitError, Task,
};
use ork_isa::{Cmd, Link};
use ork_layout::{
    ColumnSegment, Element, FeatureForm, FeatureLayout, Format, Int4, OutputForm, OutputLayout, WeightLayout,
};
use ork_plan::{BankSplit, Form, PROGRAM_BODY_WORDS, Reuse, program_pitch_bytes};
use ork_synth::{MatmulTask, OutputStage, ProgramSet, matmul_program};
use ork_testkit::Stream;

/// Fill of an output buffer.
const UNTOUCHED: u8 = 0x5B;

/// What became of a chain.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    Exact,
    /// Completed with so many wrong elements; what the simulator said.
    Wrong(usize, String),
    /// Did not complete; what the simulator said.
    Hang(String),
    /// No such program can be written: a value does not fit its field.
    NoProgram(String),
}

/// One program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    pub(crate) m0: u32,
    pub(crate) rows: u32,
    pub(crate) segment: usize,
    pub(crate) split: BankSplit,
    pub(crate) reuse: Reuse,
}

/// A product and the programs that are to compute it.
#[derive(Clone, Debug)]
pub(crate) struct Bench {
    pub(crate) format: Format,
    pub(crate) form: Form,
    pub(crate) m: u32,
    pub(crate) k: u32,
    /// Columns of each segment.
    pub(crate) columns: Vec<u32>,
    pub(crate) tiles: Vec<Tile>,
    /// K and N of the programs, where they differ from those of the operands.
    pub(crate) claims: Option<(u32, u32)>,
    /// Words to replace: register and value.
    pub(crate) patches: Vec<(u16, u32)>,
}

impl Bench {
    /// One program over everything.
    pub(crate) fn one(
        format: Format,
        form: Form,
        (m, k, n): (u32, u32, u32),
        (data, weight): (u32, u32),
    ) -> Self {
        let tile =
            Tile { m0: 0, rows: m, segment: 0, split: BankSplit { data, weight }, reuse: Reuse::Nothing };
        Self { format, form, m, k, columns: vec![n], tiles: vec![tile], claims: None, patches: Vec::new() }
    }

    /// Runs the chain. Operands are small integers, so that every precision is exact.
    pub(crate) fn run(&self) -> Outcome {
        use ork_isa::Precision as P;
        match self.format.input() {
            P::Int8 => self.run_as(|x| x as i8),
            P::Int4 => self.run_as(|x| Int4::new(x as i8).unwrap()),
            P::Int16 => self.run_as(|x| x as i16),
            P::Fp16 => self.run_as(f16::from_f32),
            P::Bf16 => self.run_as(bf16::from_f32),
            _ => self.run_as(|x| x),
        }
    }

    fn run_as<T: Element>(&self, element: impl Fn(f32) -> T) -> Outcome {
        let n: u32 = self.columns.iter().sum();
        let board = Board::new(&EmuOptions::default());
        let device = Device::on_board(&board, &DeviceOptions::default()).unwrap();
        let weight = WeightLayout::one_slice(self.format, self.k, n).unwrap();
        let (features, outputs) = self.layouts(&weight, n);

        // int4 sums must not saturate: products of at most 9, with random signs.
        let mut stream = Stream::new(u64::from(self.m) << 40 | u64::from(self.k) << 20 | u64::from(n));
        let a = stream.integers((self.m * self.k) as usize, 3);
        let b = stream.integers((n * self.k) as usize, 3);
        let as_elements = |x: &[f32]| x.iter().map(|x| element(*x)).collect::<Vec<_>>();
        let mut a_buffer = device.alloc(Purpose::Data, features.bytes()).unwrap();
        for (m, row) in a.chunks_exact(self.k as usize).enumerate() {
            features.write_row(m as u32, &as_elements(row), a_buffer.host_mut());
        }
        let mut b_buffer = device.alloc(Purpose::Data, weight.bytes()).unwrap();
        for (n, channel) in b.chunks_exact(self.k as usize).enumerate() {
            weight.pack_channel(n as u32, &as_elements(channel), b_buffer.host_mut());
        }
        let mut c_buffer = device.alloc(Purpose::Data, outputs.bytes()).unwrap();
        // What is never written must not look right, and must stay.
        c_buffer.host_mut().fill(UNTOUCHED);
        let pitch = program_pitch_bytes(self.format);
        let mut regcmd = device.alloc(Purpose::Regcmd, self.tiles.len() as u64 * pitch).unwrap();
        let mut tasks = Vec::new();
        for (index, tile) in self.tiles.iter().enumerate() {
            let n0 = self.columns[..tile.segment].iter().sum();
            let offset = |buffer: &DmaBuffer, offset| buffer.iova().checked_add(offset).unwrap();
            let (k, n) = self.claims.unwrap_or((weight.k_padded(), self.columns[tile.segment]));
            let task = MatmulTask {
                format: self.format,
                form: self.form,
                rows: tile.rows,
                k,
                n,
                row_stride: n,
                split: tile.split,
                grains: self.form.height_and_width(tile.rows).0.min(1000) + 1,
                reuse: tile.reuse,
                a: offset(&a_buffer, features.row_offset(0, tile.m0)),
                b: offset(&b_buffer, weight.segment_offset(0, n0)),
                c: offset(&c_buffer, outputs.row_offset(tile.segment, 0, tile.m0)),
                output: OutputStage::Plain,
            };
            let at = regcmd.iova().checked_add(index as u64 * pitch).unwrap();
            let next = Link::Next { at: at.checked_add(pitch).unwrap(), amount: ProgramSet::FETCH_AMOUNT };
            let link = if index + 1 == self.tiles.len() { Link::Last } else { next };
            let program = match matmul_program(&task, link) {
                Ok(program) => program,
                Err(overflow) => return Outcome::NoProgram(overflow.to_string()),
            };
            let memory = &mut regcmd.host_mut()[index * pitch as usize..];
            for (bytes, word) in memory.chunks_exact_mut(8).zip(program.words()) {
                let patch = self.patches.iter().find(|(register, _)| *register == word.offset());
                let word = patch.map_or(*word, |(at, value)| Cmd::new(word.target(), *at, *value));
                bytes.copy_from_slice(&word.0.to_le_bytes());
            }
            tasks.push(Task::dpu(at, PROGRAM_BODY_WORDS as u32, ProgramSet::ENABLE_MASK));
        }
        for buffer in [&mut a_buffer, &mut b_buffer, &mut c_buffer, &mut regcmd] {
            buffer.flush(0..buffer.len()).unwrap();
        }
        match device.submit(&Submission::new(0, tasks)) {
            Ok(done) => {
                let said: Vec<String> = done.findings().iter().map(ToString::to_string).collect();
                let bytes = c_buffer.fetch(0..outputs.bytes(), &done).unwrap();
                let wrong = self.wrong(&a, &b, &outputs, bytes);
                if self.claims.is_none() && self.patches.is_empty() {
                    self.check_untouched(&outputs, bytes);
                }
                match wrong {
                    0 if said.is_empty() => Outcome::Exact,
                    0 => panic!("right values, and yet the simulator objects: {said:?}"),
                    _ => Outcome::Wrong(wrong, said.join(" | ")),
                }
            }
            Err(SubmitError::TimedOut { findings, .. } | SubmitError::Unmodelled { findings, .. }) => {
                Outcome::Hang(findings.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | "))
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    fn layouts(&self, weight: &WeightLayout, n: u32) -> (FeatureLayout, OutputLayout) {
        let (features, outputs) = match self.form {
            Form::Rows => (FeatureForm::Rows, OutputForm::Rows),
            Form::Cube { surface_rows } | Form::Fold { surface_rows } => {
                (FeatureForm::Cube { surface_rows }, OutputForm::Cube { surface_rows })
            }
            Form::Int4Batch => {
                (FeatureForm::SpacedRows, OutputForm::Batches { rows: vec![self.tiles[0].rows.max(2)] })
            }
            Form::Int4Row => (FeatureForm::SpacedRows, OutputForm::Batches { rows: vec![1] }),
        };
        let mut n0 = 0;
        let segments = self
            .columns
            .iter()
            .map(|&cols| {
                let segment = ColumnSegment { n0, cols };
                n0 += cols;
                segment
            })
            .collect();
        (
            FeatureLayout::in_form(weight, self.m, features),
            OutputLayout::in_form(self.format, self.m, n, 1, segments, outputs),
        )
    }

    /// What the layout says that no program writes is as it was.
    fn check_untouched(&self, outputs: &OutputLayout, bytes: &[u8]) {
        let mut written = vec![false; bytes.len()];
        for tile in &self.tiles {
            for range in outputs.written(tile.segment, 0, tile.m0, tile.rows) {
                written[range.start as usize..range.end as usize].fill(true);
            }
        }
        let touched = bytes.iter().zip(&written).filter(|(byte, written)| !**written && **byte != UNTOUCHED);
        assert_eq!(touched.count(), 0, "{self:?} writes beyond its cells");
    }

    /// Elements that differ from the plain product.
    fn wrong(&self, a: &[f32], b: &[f32], outputs: &OutputLayout, bytes: &[u8]) -> usize {
        let k = self.k as usize;
        let mut wrong = 0;
        for (m, row) in a.chunks_exact(k).enumerate() {
            for (n, channel) in b.chunks_exact(k).enumerate() {
                let want: f32 = row.iter().zip(channel).map(|(a, b)| a * b).sum();
                let at = outputs.offset(m as u32, n as u32, 0) as usize;
                wrong += usize::from(load(self.format, &bytes[at..]) != want);
            }
        }
        wrong
    }
}

fn load(format: Format, bytes: &[u8]) -> f32 {
    use ork_isa::Precision as P;
    match format.output() {
        P::Int8 => f32::from(bytes[0].cast_signed()),
        P::Int16 => f32::from(i16::from_le_bytes([bytes[0], bytes[1]])),
        P::Int32 => i32::from_le_bytes(bytes[..4].try_into().unwrap()) as f32,
        P::Fp16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        _ => f32::from_le_bytes(bytes[..4].try_into().unwrap()),
    }
}
