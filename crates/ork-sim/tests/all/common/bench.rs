// SPDX-License-Identifier: MIT OR Apache-2.0
//! int8 matmuls by the worked examples (`isa.md` §8), with their memory and their reference.
use ork_isa::regs::{cna, core, dpu, global};
use ork_isa::{Link, Program, ProgramBuilder};
use ork_sim::{Core, JobOutcome};

use super::{FlatBus, PROGRAM, Patch, Random, half_even, job, signed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// `isa.md` §6: cube layouts.
    One,
    /// `isa.md` §7: row-major layouts.
    Two,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Out {
    Int32,
    /// Multiplier, shift, offset.
    Int8(u16, u32, i32),
}

/// An int8 matmul program of one task.
#[derive(Clone, Copy, Debug)]
pub struct Matmul {
    pub recipe: Recipe,
    pub m: u32,
    pub k: u32,
    pub n: u32,
    pub out: Out,
    /// Register 0x1040.
    pub split: u32,
    pub a: u32,
    pub b: u32,
    pub c: u32,
    /// Row stride of C in elements (recipe 2).
    pub s: u32,
}

impl Matmul {
    pub fn new(recipe: Recipe, m: u32, k: u32, n: u32) -> Self {
        let line = k.next_multiple_of(64);
        let d = (m * line).div_ceil(32768).clamp(1, 11);
        Self { recipe, m, k, n, out: Out::Int32, split: (12 - d) << 4 | d, a: 0, b: 0, c: 0, s: n }
    }

    /// The words of `isa.md` §8.1 (first column pair) or §8.2, int8, with `patch` applied.
    pub fn program(&self, link: Link, patch: Patch<'_>) -> Program {
        let Self { m, k, n, .. } = *self;
        let two = self.recipe == Recipe::Two;
        let (out_bytes, data_format, ow, scale, shift, offset) = match self.out {
            Out::Int32 => (4, 0x8000_0000, if two { 0x7FC } else { 0x7FE }, 1, 0, 0),
            Out::Int8(scale, shift, offset) => (1, 0, 0x124, u32::from(scale), shift, offset),
        };
        let atoms = 32 * out_bytes / 16;
        let per_atom = 16 / out_bytes;
        let con1 = if two { 0x2000_0000 } else { 0 };
        let mut p = ProgramBuilder::new();
        macro_rules! set {
            ($reg:path, $value:expr) => {{
                use ork_isa::Register;
                let mut register = $reg($value);
                for (offset, value) in patch {
                    if *offset == <$reg>::DESC.offset {
                        register = $reg(*value);
                    }
                }
                p.set(register);
            }};
        }
        if two {
            set!(cna::CbufCon0, self.split);
            set!(cna::DcompRegnum, 0);
            set!(cna::DcompCtrl, 0);
            set!(cna::ConvCon1, con1);
        }
        set!(dpu::SPointer, 0xE);
        set!(cna::ConvCon1, con1);
        set!(cna::ConvCon2, (m + 1) << 4);
        set!(cna::ConvCon3, 9);
        set!(cna::DataSize0, 1 << 16 | m);
        set!(cna::DataSize1, (k - 1) << 16 | k);
        set!(cna::DataSize2, 1);
        set!(cna::DataSize3, m);
        set!(cna::WeightSize0, k * n);
        set!(cna::WeightSize1, k);
        set!(cna::WeightSize2, 0x0101_0000 | n);
        set!(cna::CbufCon0, self.split);
        set!(cna::CbufCon1, k.div_ceil(64));
        set!(cna::CvtCon0, 0xB);
        set!(cna::CvtCon1, 0x10000);
        set!(cna::CvtCon2, 0x10000);
        set!(cna::CvtCon3, 0x10000);
        set!(cna::CvtCon4, 0x10000);
        set!(cna::FcCon0, 0);
        set!(cna::FcCon1, 0);
        set!(cna::PadCon0, 0);
        set!(cna::FeatureDataAddr, self.a);
        set!(cna::FcCon2, 0);
        set!(cna::DmaCon0, 0xF000F);
        if two {
            set!(cna::DmaCon1, k / 16);
            set!(cna::DmaCon2, 0);
        } else {
            set!(cna::DmaCon1, 4);
            set!(
                cna::DmaCon2,
                if m == 1 { 0x0FFF_FFFD } else { (4 * (m / 4).wrapping_sub(1)) & 0x0FFF_FFFF }
            );
        }
        set!(cna::FcDataSize0, 1 << 16 | m);
        set!(cna::FcDataSize1, k);
        set!(cna::DcompCtrl, 0);
        set!(cna::DcompRegnum, 0);
        set!(cna::DcompAddr0, self.b);
        set!(cna::CvtCon5, 0);
        set!(cna::PadCon1, 0);
        set!(core::MiscCfg, u32::from(two));
        set!(core::DataoutSize0, (m - 1) << 16);
        set!(core::DataoutSize1, n - 1);
        set!(core::ClipTruncate, 0);
        set!(core::Unknown3030, 0);
        set!(dpu::FeatureModeCfg, 0x1E4);
        set!(dpu::DataFormat, data_format);
        set!(dpu::OffsetPend, 0);
        set!(dpu::DstBaseAddr, self.c);
        set!(dpu::DstSurfStride, if two { 0x10 } else { m << 4 });
        set!(dpu::DataCubeWidth, 0);
        set!(dpu::DataCubeHeight, m - 1);
        set!(
            dpu::DataCubeNotchAddr,
            if two { (self.s / per_atom - 1) << 16 | (n / per_atom - 1) } else { 0 }
        );
        set!(dpu::DataCubeChannel, (n - 1) << 16 | (n - 1));
        set!(dpu::BsCfg, 0x53);
        set!(dpu::BsOwCfg, ow);
        set!(dpu::BsOwOp, 0);
        set!(dpu::WdmaSize0, n - 1);
        set!(dpu::WdmaSize1, (m - 1) << 16);
        set!(dpu::BnCfg, 0x53);
        set!(dpu::EwCfg, 0x383);
        set!(dpu::EwCvtScaleValue, 1);
        set!(dpu::OutCvtOffset, offset.cast_unsigned());
        set!(dpu::OutCvtScale, scale);
        set!(dpu::OutCvtShift, shift);
        set!(dpu::SurfaceAdd, if two { atoms * 16 } else { atoms * m * 16 });
        set!(dpu::Unknown40c4, 0);
        set!(dpu::LutAccessCfg, 0);
        set!(dpu::LutAccessData, 0);
        p.finish(link, global::OperationEnable(0xD))
    }

    /// A as the recipe lays it out (`isa.md` §4.2, §4.3).
    pub fn put_a(&self, bus: &FlatBus, a: &[i8]) {
        let (m, k) = (self.m as usize, self.k as usize);
        let mut bytes = vec![0; m * k];
        for row in 0..m {
            for col in 0..k {
                let at = match self.recipe {
                    Recipe::One => (col / 16 * m + row) * 16 + col % 16,
                    Recipe::Two => row * k + col,
                };
                bytes[at] = a[row * k + col].cast_unsigned();
            }
        }
        bus.put(self.a, &bytes);
    }

    /// B as `isa.md` §4.1 says.
    pub fn put_b(&self, bus: &FlatBus, b: &[i8]) {
        let (k, n) = (self.k as usize, self.n as usize);
        let mut bytes = vec![0; k * n];
        for row in 0..k {
            for col in 0..n {
                let at = (col / 32 * (k / 32) + row / 32) * 1024 + col % 32 * 32 + row % 32;
                bytes[at] = b[row * n + col].cast_unsigned();
            }
        }
        bus.put(self.b, &bytes);
    }

    fn c_element(&self, row: usize, col: usize, per_atom: usize) -> usize {
        match (self.recipe, row) {
            (Recipe::One, _) => (col / per_atom * self.m as usize + row) * per_atom + col % per_atom,
            // Uneven row pitch (`isa.md` §5.3).
            (Recipe::Two, 0) => col,
            (Recipe::Two, _) => self.n as usize + (row - 1) * self.s as usize + col,
        }
    }

    pub fn c_elements(&self) -> usize {
        match self.recipe {
            Recipe::One => (self.m * self.n) as usize,
            Recipe::Two => (self.n + (self.m - 1) * self.s) as usize,
        }
    }

    pub fn get_c(&self, bus: &FlatBus) -> Vec<i32> {
        let (m, n) = (self.m as usize, self.n as usize);
        let wide = self.out == Out::Int32;
        let raw: Vec<i32> = if wide {
            bus.get_i32(self.c, self.c_elements())
        } else {
            bus.get(self.c, self.c_elements()).iter().map(|b| i32::from(b.cast_signed())).collect()
        };
        let per_atom = if wide { 4 } else { 16 };
        (0..m * n).map(|i| raw[self.c_element(i / n, i % n, per_atom)]).collect()
    }

    /// The product by three loops.
    pub fn reference(&self, a: &[i8], b: &[i8]) -> Vec<i32> {
        let (m, k, n) = (self.m as usize, self.k as usize, self.n as usize);
        let mut c = vec![0; m * n];
        for row in 0..m {
            let mut sums = vec![0i64; n];
            for i in 0..k {
                let feature = i64::from(a[row * k + i]);
                for (sum, weight) in sums.iter_mut().zip(&b[i * n..]) {
                    *sum += feature * i64::from(*weight);
                }
            }
            for (col, sum) in sums.into_iter().enumerate() {
                c[row * n + col] = match self.out {
                    Out::Int32 => i32::try_from(sum).unwrap(),
                    Out::Int8(scale, shift, offset) => {
                        let scaled = sum * i64::from(scale.cast_signed());
                        (half_even(scaled, shift) + i64::from(offset)).clamp(-128, 127) as i32
                    }
                };
            }
        }
        c
    }
}

/// Lays out buffers for a matmul in a fresh memory: programs, A, B, C with a page behind it.
pub struct Bench {
    pub bus: FlatBus,
    pub mm: Matmul,
    pub a: Vec<i8>,
    pub b: Vec<i8>,
}

impl Bench {
    pub fn new(mut mm: Matmul, seed: u64) -> Self {
        let page = |bytes: u32| bytes.next_multiple_of(4096);
        mm.a = PROGRAM + 0x1_0000;
        mm.b = mm.a + page(mm.m * mm.k);
        mm.c = mm.b + page(mm.k * mm.n);
        let end = mm.c + page(mm.c_elements() as u32 * 4) + 4096;
        let bus = FlatBus::new(PROGRAM, (end - PROGRAM) as usize);
        let mut random = Random(seed);
        let a = signed(random.bytes((mm.m * mm.k) as usize));
        let b = signed(random.bytes((mm.k * mm.n) as usize));
        mm.put_a(&bus, &a);
        mm.put_b(&bus, &b);
        Self { bus, mm, a, b }
    }

    pub fn run(&self, core: &mut Core, patch: Patch<'_>) -> JobOutcome {
        let program = self.mm.program(Link::Last, patch);
        self.bus.put_program(PROGRAM, &program);
        core.run(&self.bus, &job(program.fetch_amount(), 1))
    }

    pub fn expected(&self) -> Vec<i32> {
        self.mm.reference(&self.a, &self.b)
    }

    /// Rows of C that are wholly right.
    pub fn right_rows(&self) -> Vec<bool> {
        let n = self.mm.n as usize;
        let (got, expected) = (self.mm.get_c(&self.bus), self.expected());
        got.chunks_exact(n).zip(expected.chunks_exact(n)).map(|(g, e)| g == e).collect()
    }

    /// Elements of C that are right.
    pub fn right_elements(&self) -> usize {
        self.mm.get_c(&self.bus).iter().zip(self.expected()).filter(|(g, e)| **g == *e).count()
    }
}
