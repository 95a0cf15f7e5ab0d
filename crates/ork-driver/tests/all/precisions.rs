// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random products of every precision, and those on the edges of the laws, in every way to compute them.

use crate::support;
use ork_plan::Product;
use support::edges::{self, Tier};
use support::precisions;

fn random_products(product: Product) {
    precisions::sweep(product, &edges::draw(product, Tier::EveryRun));
}

macro_rules! sweeps {
    ($($name:ident: $product:ident,)*) => { $(
        #[test]
        fn $name() {
            random_products(Product::$product);
        }
    )* };
}

sweeps! {
    int8: Int8,
    int8_to_int8: Int8ToInt8,
    int4: Int4,
    int16: Int16,
    int16_native: Int16Native,
    fp16: Fp16,
    fp16_to_fp16: Fp16ToFp16,
    bf16: Bf16,
    tf32: Tf32,
}
