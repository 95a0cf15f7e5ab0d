// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random int8 products through the whole path, against an independent reference, on one core and on three.

use crate::support;
use ork_testkit::{Budget, cases};

#[test]
fn five_hundred_random_products_are_exact() {
    let cases = cases::draw(0, &Budget::CI);
    assert_eq!(cases.len(), 500);
    support::sweep(&cases);
}
