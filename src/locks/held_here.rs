//! The locks that this thread has acquired, to find a thread that waits for itself.
//!
//! Not those of a future: it is a task that holds them, and an executor polls others on the same thread.

use std::cell::RefCell;
use std::ptr;
use std::sync::{Arc, Weak};

use crate::locks::lock_guard::LockGuard;
use crate::recipe::path::ZNodePath;
use crate::request::Request;

thread_local! {
    /// Some of them may have ended.
    static HELD: RefCell<Vec<Weak<Request>>> = const { RefCell::new(Vec::new()) };
}

/// Notes that this thread has acquired a lock.
pub(super) fn note(guard: &LockGuard) {
    let request = guard.request();
    // It fails while the thread ends, which waits for nothing any more.
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        if held.len() == held.capacity() {
            held.retain(|request| request.strong_count() > 0);
        }
        held.push(Arc::downgrade(&request));
    });
}

/// Notes the guard of a downgraded lock if this thread has acquired the former one.
pub(super) fn note_downgrade(former: &Request, guard: &LockGuard) {
    let is_former = |request: &Weak<Request>| ptr::eq(request.as_ptr(), former);
    if HELD.try_with(|held| held.borrow().iter().any(is_former)).unwrap_or_default() {
        note(guard);
    }
}

/// Returns the znode by which this thread holds the lock that the request waits for, on the same
/// session.
pub(super) fn held_before(waiting: &Request) -> Option<ZNodePath> {
    let live = |held: &RefCell<Vec<Weak<Request>>>| held.borrow().iter().filter_map(Weak::upgrade).collect();
    let held: Vec<Arc<Request>> = HELD.try_with(live).unwrap_or_default();
    let holder = held.iter().find(|holder| holder.is_owner() && holder.is_of_the_lock_of(waiting));
    holder.and_then(|holder| holder.znode())
}
