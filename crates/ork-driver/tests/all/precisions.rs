// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random products of every precision, and those on the edges of the laws, in every way to compute them.

use crate::support;
use ork_plan::Product;
use support::edges::{self, Tier};
use support::precisions;

fn random_products(product: Product) {
    precisions::sweep(product, &edges::draw(product, Tier::EveryRun));
}

support::precisions::for_each!(random_products);
