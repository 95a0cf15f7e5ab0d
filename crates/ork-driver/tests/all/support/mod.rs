// SPDX-License-Identifier: MIT OR Apache-2.0
#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod bench;
pub(crate) mod edges;
pub(crate) mod kill;
pub(crate) mod precisions;
pub(crate) mod ways;

use std::time::{Duration, Instant};

use ork_device::{Board, Device, DeviceOptions, EmuOptions, Live};
use ork_driver::{Driver, DriverOptions};
use ork_plan::PlanOptions;
use ork_testkit::{Case, compare, reference};

/// A driver on an emulated board of its own.
pub(crate) fn driver(cores: u8) -> (Driver, Board) {
    driver_with(cores, PlanOptions::default())
}

/// A driver that plans in its own way.
pub(crate) fn driver_with(cores: u8, plan: PlanOptions) -> (Driver, Board) {
    let board = Board::new(&EmuOptions::default());
    let device = Device::on_board(&board, &DeviceOptions { cores, ..DeviceOptions::default() }).unwrap();
    (Driver::new(device, DriverOptions { plan, ..DriverOptions::default() }).unwrap(), board)
}

/// Asserts that nothing of a closed device stays in the emulated kernel.
pub(crate) fn assert_nothing_lives(board: &Board) {
    // The board's own threads let go of the last job a moment after it was waited for.
    let end = Instant::now() + Duration::from_secs(5);
    while board.live() != Live::default() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(board.live(), Live::default(), "the emulated kernel still holds something");
}

/// Multiplies the case on the NPU and by the reference.
pub(crate) fn check_case(driver: &Driver, case: &Case, want: &[i32]) -> Result<(), String> {
    let (m, k, n) = (case.shape.m as usize, case.shape.k as usize, case.shape.n as usize);
    let weights = case.weights();
    let weight = driver
        .load_codes("case", k, n, &|row, out| out.copy_from_slice(&weights[row * k..(row + 1) * k]))
        .map_err(|error| format!("{case}: {error:?}"))?;
    let mut got = vec![i32::MIN; m * n];
    driver
        .matmul_codes(&weight, m, &case.features(), &mut got)
        .map_err(|error| format!("{case}: {error:?}"))?;
    compare::exact(&got, want, case.shape).map_err(|difference| format!("{case}: {difference}"))
}

/// Runs all cases on one core and on three, and fails with every case that differs.
pub(crate) fn sweep(cases: &[Case]) {
    let drivers = [driver(1), driver(3)];
    let mut wrong = Vec::new();
    for case in cases {
        let want = reference::fast_i8(&case.features(), &case.weights(), case.shape);
        for (driver, _) in &drivers {
            if let Err(message) = check_case(driver, case, &want) {
                wrong.push(format!("{} cores: {message}", driver.device().cores()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} runs differ:\n{}", wrong.len(), 2 * cases.len(), wrong.join("\n"));
    for (driver, board) in drivers {
        drop(driver);
        assert_nothing_lives(&board);
    }
}
