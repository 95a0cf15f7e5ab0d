// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the sweeps of products draw: every law's edges, every kind of size.

use crate::support;
use std::collections::BTreeSet;

use ork_isa::soc::RK3588;
use ork_plan::laws::{TASK_LAWS, chain_length};
use ork_plan::{BankSplit, Decision, Form, PlanOptions, Problem, Product, decide, weight_layout};
use ork_testkit::Shape;
use ork_testkit::cases::Dim;
use support::edges::{self, EDGES, Edge, HEADS, Tier, WIDE_HEADS, WITHOUT_EDGE};
use support::precisions::boundaries;

#[test]
fn every_law_has_an_edge_or_a_reason_to_have_none() {
    let mut named: Vec<&str> = EDGES.iter().map(|edge| edge.law).collect();
    named.extend(WITHOUT_EDGE.iter().map(|(law, _)| *law));
    let named: BTreeSet<&str> = named.into_iter().collect();
    let mut laws: BTreeSet<&str> = TASK_LAWS.iter().map(|law| law.name).collect();
    laws.extend(["weight-reuse", "data-reuse", chain_length::NAME, "address-window"]);
    assert_eq!(named, laws);
    assert!(WITHOUT_EDGE.iter().all(|(law, _)| EDGES.iter().all(|edge| edge.law != *law)));
}

/// What of a plan does not change from size to size.
#[derive(Debug, PartialEq)]
enum Structure {
    Plan {
        slices: Vec<u32>,
        n: u32,
        /// Programs of each pass and core.
        programs: Vec<Vec<usize>>,
        kinds: BTreeSet<(String, BankSplit)>,
    },
    Declined(&'static str),
    Finished(String),
}

fn structure(product: Product, shape: Shape, cores: u8) -> Vec<Structure> {
    let lowered = product.lower(shape.k);
    let weight = weight_layout(lowered.format, shape.k, lowered.columns * shape.n, &RK3588).unwrap();
    let slices = weight.slices().iter().map(|slice| slice.len).collect();
    let n = weight.n_padded();
    let options = PlanOptions { cores, ..PlanOptions::default() };
    let plan = match decide(&Problem { m: lowered.rows * shape.m, weight }, &RK3588, &options) {
        Decision::Accept(plan) => plan,
        Decision::Decline(decline) => return vec![Structure::Declined(decline.law())],
    };
    let programs =
        plan.shapes().iter().map(|pass| pass.chains.iter().map(|chain| chain.programs.len()).collect());
    let kind = |form: Form, split| match form {
        // Its surface grows with every row.
        Form::Fold { .. } => ("Fold".to_owned(), split),
        form => (format!("{form:?}"), split),
    };
    let all = plan.shapes().iter().flat_map(|pass| &pass.chains).flat_map(|chain| &chain.programs);
    vec![
        Structure::Plan {
            slices,
            n,
            programs: programs.collect(),
            kinds: all.map(|program| kind(program.form, program.split)).collect(),
        },
        Structure::Finished(lowered.host.to_string()),
    ]
}

#[test]
fn at_every_edge_plans_change() {
    let mut dull = Vec::new();
    for edge in EDGES {
        for product in edge.products {
            let changes = |cores| {
                let all: Vec<_> = edge.shapes().map(|shape| structure(*product, shape, cores)).collect();
                all.windows(2).any(|pair| pair[0] != pair[1])
            };
            // Before a size of 1 there is no product at all.
            let first = edge.shapes().count() == 2;
            if !first && !(1..=3).any(changes) {
                dull.push(format!("{product}, {edge:?}"));
            }
        }
    }
    assert!(dull.is_empty(), "{}", dull.join("\n"));
}

#[test]
fn the_sweeps_contain_every_edge_every_head_and_every_kind_of_size() {
    for product in Product::ALL {
        for tier in [Tier::EveryRun, Tier::Slow] {
            let cases = edges::draw(product, tier);
            let drawn: BTreeSet<[u32; 3]> =
                cases.iter().map(|case| [case.shape.m, case.shape.k, case.shape.n]).collect();
            let has = |shape: Shape| drawn.contains(&[shape.m, shape.k, shape.n]);
            let of = |edge: &&Edge| edge.products.contains(&product);
            let mut laws = BTreeSet::new();
            for edge in EDGES.iter().filter(of) {
                let met = edge.shapes().filter(|shape| has(*shape)).count();
                let all = edge.shapes().count();
                if tier == Tier::Slow {
                    assert_eq!(met, all, "{product}: {edge:?}");
                }
                laws.extend((met == all).then_some(edge.law));
            }
            let expected: BTreeSet<&str> = EDGES.iter().filter(of).map(|edge| edge.law).collect();
            let left: Vec<_> = expected.difference(&laws).collect();
            // Too dear for every run.
            let dear = ["chain-length", "narrow-columns", "row-caps", "fold", "weight-group", "float-depth"];
            assert!(left.iter().all(|law| dear.contains(*law)), "{product}, {tier:?}: {left:?}");

            let heads = HEADS.iter().chain((tier == Tier::Slow).then_some(&WIDE_HEADS).into_iter().flatten());
            assert!(heads.clone().all(|&(m, k, n)| has(Shape::new(m, k, n))), "{product}, {tier:?}");
            for n in [151_936, 248_320] {
                assert!(drawn.iter().any(|sizes| sizes[2] == n));
            }
            for k in [4304, 18_944, 248_320] {
                assert!(drawn.iter().any(|sizes| sizes[1] == k));
            }

            let boundaries = boundaries(product);
            for (index, dim) in Dim::ALL.into_iter().enumerate() {
                let met: BTreeSet<u32> = drawn.iter().map(|sizes| sizes[index]).collect();
                let missing: Vec<_> =
                    boundaries.neighbourhoods(dim).filter(|size| !met.contains(size)).collect();
                assert!(missing.is_empty(), "{product}, {tier:?}: {dim:?} = {missing:?}");
                assert!(met.contains(&1));
                let odd = met.iter().filter(|size| *size % 2 == 1).count();
                let primes = met.iter().filter(|size| is_prime(**size)).count();
                assert!(odd >= 20 && primes >= 10, "{product}: {odd} odd and {primes} prime {dim:?}");
            }
            let single = cases.iter().filter(|case| case.shape.m == 1).count();
            assert!(
                single * 20 >= cases.len(),
                "{product}, {tier:?}: {single} of {} with one row",
                cases.len()
            );
            if tier == Tier::Slow {
                assert_eq!(cases.len(), 20_000);
            }
        }
    }
}

fn is_prime(x: u32) -> bool {
    x >= 2 && (2..).take_while(|d| d * d <= x).all(|d| !x.is_multiple_of(d))
}
