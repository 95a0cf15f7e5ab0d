// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ways to compute a product: on which kernel, on how many cores, submitted and waited for how.

use std::cell::Cell;

use half::f16;
use ork_device::{Board, Device, DeviceOptions, DriverKind, EmuOptions, RecoveryMode, SubmitMode};
use ork_driver::{CompletionMode, Driver, DriverError, DriverOptions, Operands, Queue, Values, Work};
use ork_layout::{Element, Format};
use ork_plan::{HostWork, PlanOptions};

use super::assert_nothing_lives;

/// How a product is given to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// By itself, and waited for by a call of the kernel where it has one.
    Blocking,
    /// Its rows as two operations of a queue, which become one chain on each core where they may.
    Chained,
    /// By itself, with a seed, and left alone: whoever wants it looks at the output or waits for a fence.
    NonBlocking,
}

/// A driver on a board of its own.
pub(crate) struct Way {
    pub(crate) name: String,
    pub(crate) cores: u8,
    given: Given,
    driver: Driver,
    board: Board,
    products: Cell<u32>,
}

impl Way {
    pub(crate) fn new(kernel: DriverKind, cores: u8, given: Given, plan: &PlanOptions) -> Self {
        let board = Board::new(&EmuOptions::default());
        let submit = match (kernel, given) {
            (DriverKind::Rknpu, Given::Blocking | Given::Chained) => SubmitMode::Blocking,
            (DriverKind::Rknpu, Given::NonBlocking) if cores == 2 => SubmitMode::Fenced,
            (DriverKind::Rknpu, Given::NonBlocking) => SubmitMode::Polled,
            // It has neither a call that waits nor fences; its word is never enough.
            (DriverKind::Rocket, _) => SubmitMode::Auto,
        };
        let completion = match given {
            Given::NonBlocking => CompletionMode::Seed,
            Given::Blocking | Given::Chained => CompletionMode::Auto,
        };
        let options = DeviceOptions {
            emulated_driver: kernel,
            cores,
            submit,
            recovery: RecoveryMode::Forbid,
            ..DeviceOptions::default()
        };
        let device = Device::on_board(&board, &options).unwrap();
        let options = DriverOptions { plan: plan.clone(), completion, ..DriverOptions::default() };
        Self {
            name: format!("{kernel}, {cores} cores, {given:?}"),
            cores,
            given,
            driver: Driver::new(device, options).unwrap(),
            board,
            products: Cell::new(0),
        }
    }

    /// Computes a product.
    pub(crate) fn product(
        &self,
        size: (usize, usize, usize),
        operands: &Operands<'_>,
    ) -> Result<Values, DriverError> {
        self.products.set(self.products.get() + 1);
        let (m, k, n) = size;
        let lowered = operands.product().lower(u32::try_from(k).unwrap());
        if self.given == Given::Chained && lowered.host == HostWork::Nothing {
            self.chained(size, lowered.format, operands)
        } else {
            // A product that the host finishes has no form as an operation.
            self.driver.product(m, k, n, operands)
        }
    }

    fn chained(
        &self,
        size: (usize, usize, usize),
        format: Format,
        operands: &Operands<'_>,
    ) -> Result<Values, DriverError> {
        match *operands {
            Operands::Int8 { a, b } if size.1 <= 131_071 => {
                self.in_halves(size, format, a, b, 0, |a, out| Work::Int8 { a, out }).map(Values::I32)
            }
            Operands::Int8ToInt8 { a, b, by } => self
                .in_halves(size, format, a, b, 0, |a, out| Work::Int8ToInt8 { a, by, out })
                .map(Values::I8),
            Operands::Int4 { a, b } => {
                self.in_halves(size, format, a, b, 0, |a, out| Work::Int4 { a, out }).map(Values::I32)
            }
            Operands::Int16Native { a, b } => {
                self.in_halves(size, format, a, b, 0, |a, out| Work::Int16 { a, out }).map(Values::I64)
            }
            Operands::Fp16 { a, b } => {
                self.in_halves(size, format, a, b, 0.0, |a, out| Work::Fp16 { a, out }).map(Values::F32)
            }
            Operands::Fp16ToFp16 { a, b } => self
                .in_halves(size, format, a, b, f16::ZERO, |a, out| Work::Fp16ToFp16 { a, out })
                .map(Values::F16),
            Operands::Bf16 { a, b } => {
                self.in_halves(size, format, a, b, 0.0, |a, out| Work::Bf16 { a, out }).map(Values::F32)
            }
            Operands::Tf32 { a, b } => {
                self.in_halves(size, format, a, b, 0.0, |a, out| Work::Tf32 { a, out }).map(Values::F32)
            }
            Operands::Int8 { .. } | Operands::Int16 { .. } => {
                self.driver.product(size.0, size.1, size.2, operands)
            }
        }
    }

    /// The first half of the rows and the rest; a single row goes twice, and must come out the same.
    fn in_halves<T: Element, R: Copy + PartialEq>(
        &self,
        (m, k, n): (usize, usize, usize),
        format: Format,
        a: &[T],
        b: &[T],
        unwritten: R,
        work: impl for<'w> Fn(&'w [T], &'w mut [R]) -> Work<'w>,
    ) -> Result<Vec<R>, DriverError> {
        let rows = |row: usize, out: &mut [T]| out.copy_from_slice(&b[row * k..][..k]);
        let weight = self.driver.load_elements("operand", format, k, n, &rows)?;
        let first = m.div_ceil(2);
        let rest = if m == 1 { 0..1 } else { first..m };
        let mut head = vec![unwritten; first * n];
        let mut tail = vec![unwritten; rest.len() * n];
        let mut queue = Queue::new();
        queue.push(&weight, first, work(&a[..first * k], &mut head), &[]);
        queue.push(&weight, rest.len(), work(&a[rest.start * k..rest.end * k], &mut tail), &[]);
        self.driver.run_queue(queue)?;
        if m == 1 {
            assert!(head == tail, "{}: one row, two results", self.name);
        } else {
            head.extend_from_slice(&tail);
        }
        Ok(head)
    }

    /// What the driver did.
    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Asserts that it was used at least so often, that nothing had to be made good, and that nothing stays.
    pub(crate) fn close(self, products_min: u32) {
        let Self { name, driver, board, products, given, .. } = self;
        assert!(products.get() >= products_min, "{name}: {} of {products_min} products", products.get());
        let (events, counters) = (driver.device().event_counts(), driver.device().counters());
        assert_eq!(events.recoveries(), 0, "{name}: {events}");
        if given == Given::Chained && products_min > 0 {
            assert!(counters.tasks() > counters.submits(), "{name}: no chain: {counters}");
        }
        drop(driver);
        assert_nothing_lives(&board);
    }
}

/// All of them: two kernels, one to three cores, three ways to submit.
pub(crate) fn all(plan: &PlanOptions) -> [Vec<Way>; 2] {
    [DriverKind::Rknpu, DriverKind::Rocket].map(|kernel| {
        let ways = (1..=3).flat_map(|cores| {
            [Given::Blocking, Given::Chained, Given::NonBlocking].map(|given| (cores, given))
        });
        ways.map(|(cores, given)| Way::new(kernel, cores, given, plan)).collect()
    })
}
