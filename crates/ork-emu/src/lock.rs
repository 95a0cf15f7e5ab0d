// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks: the standard library's, without poison.
//!
//! Each of them lives in its own few bytes and waits in the kernel. Locks that keep their waiting threads in a table of
//! the process would not do: a child of `fork` inherits the table with the parent's threads in it, and a board that it
//! makes for itself would wait for them.
//!
//! A panic while a lock is held leaves data that every user of these locks can go on with: each change is complete in
//! itself, and the model's panics are caught where it runs (`lane`).

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

/// `std::sync::Mutex`, without poison.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `std::sync::RwLock`, without poison.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `std::sync::Condvar`, without poison, and without a call into the kernel when nobody waits.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    condvar: std::sync::Condvar,
    /// Threads in [`wait_while`](Self::wait_while) that found their condition to hold.
    waiting: AtomicU32,
}

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self { condvar: std::sync::Condvar::new(), waiting: AtomicU32::new(0) }
    }

    /// Wakes those who wait. What they wait for has been changed before, under their mutex: who took that mutex sooner and
    /// waits has been counted, and who takes it later finds the change.
    pub(crate) fn notify_all(&self) {
        if self.waiting.load(Relaxed) != 0 {
            self.condvar.notify_all();
        }
    }

    /// Waits as long as `condition` holds, at most until the deadline. The caller looks at the value to know which of
    /// the two came first.
    pub(crate) fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        deadline: Option<Instant>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        if !condition(&mut guard) {
            return guard;
        }
        self.waiting.fetch_add(1, Relaxed);
        let guard = match deadline {
            None => self.condvar.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let waited = self.condvar.wait_timeout_while(guard, left, condition);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        self.waiting.fetch_sub(1, Relaxed);
        guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    #[test]
    fn a_panic_leaves_the_locks_usable() {
        let (mut mutex, lock) = (Mutex::new(1), RwLock::new(1));
        let result = catch_unwind(AssertUnwindSafe(|| {
            let (_mutex, _lock) = (mutex.lock(), lock.write());
            panic!("with both locks held");
        }));
        assert!(result.is_err());
        assert_eq!((*mutex.lock(), *lock.read()), (1, 1));
        assert_eq!((*mutex.get_mut(), *lock.write()), (1, 1));
    }

    #[test]
    fn a_wait_ends_with_its_condition_or_its_deadline() {
        let (mutex, changed) = (Mutex::new(0), Condvar::new());
        let late =
            changed.wait_while(mutex.lock(), Some(Instant::now() + Duration::from_millis(1)), |value| {
                *value == 0
            });
        assert_eq!(*late, 0, "nobody has changed it");
        drop(late);
        std::thread::scope(|scope| {
            let far = Instant::now() + Duration::from_secs(3600);
            let waits = [None, Some(far)].map(|deadline| {
                scope.spawn({
                    let (mutex, changed) = (&mutex, &changed);
                    move || *changed.wait_while(mutex.lock(), deadline, |value| *value == 0)
                })
            });
            // Counted under the mutex: whoever takes that afterwards finds both asleep.
            while changed.waiting.load(Relaxed) != 2 {
                std::thread::yield_now();
            }
            *mutex.lock() = 7;
            changed.notify_all();
            assert_eq!(waits.map(|wait| wait.join().unwrap()), [7, 7]);
            assert_eq!(changed.waiting.load(Relaxed), 0);
        });
    }
}
