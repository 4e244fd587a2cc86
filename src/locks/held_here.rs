//! The locks that the current thread has acquired, to detect a thread that waits for itself.
//!
//! Locks that a future has acquired are not listed. Such a lock belongs to a task, and an executor may poll other tasks
//! on the same thread.

use std::cell::RefCell;
use std::ptr;
use std::sync::{Arc, Weak};

use crate::locks::lock_guard::LockGuard;
use crate::recipe::path::ZNodePath;
use crate::request::Request;

thread_local! {
    /// Some of these requests may have ended.
    static HELD: RefCell<Vec<Weak<Request>>> = const { RefCell::new(Vec::new()) };
}

/// Notes that this thread has acquired a lock.
pub(super) fn note(guard: &LockGuard) {
    let request = guard.request();
    // This fails only while the thread is ending, when it no longer waits for anything.
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        if held.len() == held.capacity() {
            held.retain(|request| request.strong_count() > 0);
        }
        held.push(Arc::downgrade(&request));
    });
}

/// Returns how many requests are noted for this thread.
#[cfg(test)]
pub(super) fn noted() -> usize {
    HELD.with_borrow(Vec::len)
}

/// Notes the guard of a downgraded lock if this thread acquired the original lock.
pub(super) fn note_downgrade(former: &Request, guard: &LockGuard) {
    let is_former = |request: &Weak<Request>| ptr::eq(request.as_ptr(), former);
    if HELD.try_with(|held| held.borrow().iter().any(is_former)).unwrap_or_default() {
        note(guard);
    }
}

/// If this thread has acquired the lock that `waiting` waits for, on the same session, and that lock is still held,
/// returns the znode of the request that holds it.
pub(super) fn held_before(waiting: &Request) -> Option<ZNodePath> {
    let live = |held: &RefCell<Vec<Weak<Request>>>| held.borrow().iter().filter_map(Weak::upgrade).collect();
    let held: Vec<Arc<Request>> = HELD.try_with(live).unwrap_or_default();
    let holder = held.iter().find(|holder| holder.is_owner() && holder.is_of_the_lock_of(waiting));
    holder.and_then(|holder| holder.znode())
}
