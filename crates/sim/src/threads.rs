//! Many runs on several threads. What comes of them does not depend on how many there are.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Does something with each number below `count`, on so many threads at most; they begin in order.
pub(crate) fn each(count: usize, threads: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        return;
                    }
                    work(at);
                }
            });
        }
    });
}

/// The same, with what comes of each, in order.
pub(crate) fn map<T: Send>(count: usize, threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let done: Mutex<Vec<Option<T>>> = Mutex::new((0..count).map(|_| None).collect());
    each(count, threads, |at| {
        let result = work(at);
        done.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(result);
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}
