// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work on rows that several threads share.

use parking_lot::Mutex;

/// Rows of one piece of work: some tens of kilobytes, which a second-level cache holds.
pub(crate) const ROWS: usize = 8;

/// Does pieces of work on this thread and on those of rayon's pool that come to help: the calling thread takes pieces like
/// them, and then waits until each helper has looked for a piece. On a busy pool that is a wait for what its threads do
/// first.
pub(crate) fn share<I>(pieces: I, work: impl Fn(I::Item) + Sync)
where
    I: ExactSizeIterator + Send,
    I::Item: Send,
{
    let helpers = rayon::current_num_threads().min(pieces.len()).saturating_sub(1);
    let pieces = Mutex::new(pieces);
    let run = || {
        loop {
            let piece = pieces.lock().next();
            let Some(piece) = piece else { break };
            work(piece);
        }
    };
    if helpers == 0 {
        return run();
    }
    rayon::in_place_scope(|scope| {
        for _ in 0..helpers {
            scope.spawn(|_| run());
        }
        run();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Barrier;

    fn pool(threads: usize) -> rayon::ThreadPool {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
    }

    #[test]
    fn every_piece_is_done_once() {
        for threads in [1, 4] {
            for count in [0, 1, 2, 1000] {
                let mut done = vec![0_u32; count];
                pool(threads).in_place_scope(|_| {
                    share(done.iter_mut(), |place| *place += 1);
                });
                pool(threads).install(|| share(done.iter_mut(), |place| *place += 1));
                assert_eq!(done, vec![2; count], "{threads} threads");
            }
        }
    }

    #[test]
    fn other_threads_help() {
        // Each piece waits for another one that is done at the same time.
        let (both, seen) = (Barrier::new(2), Mutex::new(HashSet::new()));
        pool(2).install(|| {
            share(0..2, |_| {
                both.wait();
                seen.lock().insert(std::thread::current().id());
            });
        });
        assert_eq!(seen.lock().len(), 2);
    }
}
