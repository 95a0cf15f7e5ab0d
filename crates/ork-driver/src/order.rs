// SPDX-License-Identifier: MIT OR Apache-2.0
//! In which order operations cost the fewest resets.
//!
//! A reset takes about 105 ms, and int4 needs one on each entry and behind it (`isa-int4-sdp.md` §1.11); 221 of them
//! became 4 by putting operations of one mode beside each other. Operations wait for others only where the caller says
//! so.

use ork_plan::{Datapath, DatapathState, Transition};

/// An operation to put in order.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) datapath: Datapath,
    /// Operations that must come before, by index; all smaller than its own.
    pub(crate) after: Vec<usize>,
}

/// An order, and what it costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) order: Vec<usize>,
    pub(crate) resets: u64,
}

/// What an order costs from a state of the NPU.
pub(crate) fn resets(nodes: &[Node], order: &[usize], mut state: DatapathState) -> u64 {
    let mut resets = 0;
    for node in order {
        let next = nodes[*node].datapath;
        resets += u64::from(state.transition(next) == Transition::Reset);
        state.enter(next);
    }
    resets
}

/// Resets that are thought ahead when there is a choice of modes.
const AHEAD: u32 = 4;

/// What was done so far.
#[derive(Clone)]
struct Walk<'a> {
    nodes: &'a [Node],
    done: Vec<bool>,
    order: Vec<usize>,
    state: DatapathState,
    resets: u64,
}

impl Walk<'_> {
    fn is_ready(&self, node: usize) -> bool {
        !self.done[node] && self.nodes[node].after.iter().all(|before| self.done[*before])
    }

    fn take(&mut self, node: usize) {
        let next = self.nodes[node].datapath;
        self.resets += u64::from(self.state.transition(next) == Transition::Reset);
        self.state.enter(next);
        self.done[node] = true;
        self.order.push(node);
    }

    /// Does all that needs no reset, the present mode first: none of it is cheaper later, and it may make others ready.
    fn take_free(&mut self) {
        loop {
            let ready = || (0..self.nodes.len()).filter(|node| self.is_ready(*node));
            let stays = ready().find(|node| Some(self.nodes[*node].datapath) == self.state.mode());
            let free = |node: &usize| self.state.transition(self.nodes[*node].datapath) != Transition::Reset;
            match stays.or_else(|| ready().find(free)) {
                Some(node) => self.take(node),
                None => return,
            }
        }
    }

    /// The first ready operation of each mode that could be reset into, the mode with most of them first.
    fn choices(&self) -> Vec<usize> {
        let mut choices: Vec<(usize, usize)> = Vec::new();
        for node in (0..self.nodes.len()).filter(|node| self.is_ready(*node)) {
            let mode = self.nodes[node].datapath;
            match choices.iter_mut().find(|(other, _)| self.nodes[*other].datapath == mode) {
                Some((_, count)) => *count += 1,
                None => choices.push((node, 1)),
            }
        }
        choices.sort_by_key(|(node, count)| (std::cmp::Reverse(*count), *node));
        choices.into_iter().map(|(node, _)| node).collect()
    }

    /// The end of the walk, with some resets thought ahead.
    fn finish(mut self, ahead: u32) -> Self {
        self.take_free();
        let choices = self.choices();
        let tried = if ahead == 0 { 1 } else { choices.len() };
        let ends = choices.into_iter().take(tried).map(|node| {
            let mut walk = self.clone();
            walk.take(node);
            walk.finish(ahead.saturating_sub(1))
        });
        ends.min_by_key(|walk| walk.resets).unwrap_or(self)
    }
}

/// Does everything that needs no reset first; where only a reset helps and several modes wait for one, looks some resets
/// ahead. Among operations that are equal, the caller's order stays, and all of it is kept if no better one is found.
pub(crate) fn fewest_resets(nodes: &[Node], start: DatapathState) -> Order {
    let given: Vec<usize> = (0..nodes.len()).collect();
    let own = resets(nodes, &given, start);
    let mut walk = Walk { nodes, done: vec![false; nodes.len()], order: Vec::new(), state: start, resets: 0 };
    // One reset at a time, each with the same foresight.
    loop {
        walk.take_free();
        let taken = walk.order.len();
        if taken == nodes.len() || walk.choices().is_empty() {
            break;
        }
        let best = walk.clone().finish(AHEAD);
        walk.take(best.order[taken]);
    }
    if walk.resets < own && walk.order.len() == nodes.len() {
        Order { order: walk.order, resets: walk.resets }
    } else {
        Order { order: given, resets: own }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Datapath::{Float, Int4, Int8};

    fn node(datapath: Datapath, after: &[usize]) -> Node {
        Node { datapath, after: after.to_vec() }
    }

    fn best(nodes: &[Node]) -> Order {
        fewest_resets(nodes, DatapathState::unknown())
    }

    /// The fewest resets of any order.
    fn brute_force(nodes: &[Node], start: DatapathState) -> u64 {
        fn go(nodes: &[Node], done: u32, state: DatapathState) -> u64 {
            if done.count_ones() as usize == nodes.len() {
                return 0;
            }
            let ready = |node: &usize| {
                done & 1 << node == 0 && nodes[*node].after.iter().all(|before| done & 1 << before != 0)
            };
            let cost = |node: usize| {
                let mut after = state;
                after.enter(nodes[node].datapath);
                let reset = u64::from(state.transition(nodes[node].datapath) == Transition::Reset);
                reset + go(nodes, done | 1 << node, after)
            };
            (0..nodes.len()).filter(ready).map(cost).min().unwrap_or(0)
        }
        go(nodes, 0, start)
    }

    #[test]
    fn independent_operations_are_grouped_by_mode() {
        let nodes: Vec<Node> =
            (0..40).map(|index| node(if index % 2 == 0 { Int4 } else { Int8 }, &[])).collect();
        let order = best(&nodes);
        assert_eq!(order.resets, 1, "int8 first, then one entry into int4");
        let given: Vec<usize> = (0..40).collect();
        assert_eq!(resets(&nodes, &given, DatapathState::unknown()), 40);
        let mut all = order.order.clone();
        all.sort_unstable();
        assert_eq!(all, given, "each once");
    }

    #[test]
    fn dependencies_are_kept_and_equal_costs_keep_the_callers_order() {
        let nodes = [node(Int8, &[]), node(Int4, &[0]), node(Int8, &[1]), node(Int4, &[])];
        let order = best(&nodes);
        let place = |node| order.order.iter().position(|other| *other == node);
        assert!(place(0) < place(1) && place(1) < place(2));
        assert_eq!(order.resets, 2);
        let plain = [node(Int8, &[]), node(Float, &[]), node(Int8, &[0])];
        assert_eq!(best(&plain), Order { order: vec![0, 1, 2], resets: 0 });
    }

    #[test]
    fn no_order_is_better_in_small_graphs() {
        let modes = [Int8, Int4, Float];
        let mut state = 1_u64;
        let mut number = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let count = 2 + number(6) as usize;
            let nodes: Vec<Node> = (0..count)
                .map(|index| {
                    let after = (0..index).filter(|_| number(4) == 0).collect();
                    Node { datapath: modes[number(3) as usize], after }
                })
                .collect();
            for start in [None, Some(Int4), Some(Int8)] {
                let mut from = DatapathState::unknown();
                if let Some(mode) = start {
                    from.enter(mode);
                }
                assert_eq!(
                    fewest_resets(&nodes, from).resets,
                    brute_force(&nodes, from),
                    "{nodes:?} from {start:?}"
                );
            }
        }
    }
}
