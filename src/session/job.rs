//! [`Job`]: a piece of work for a thread of the session's.

use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// A panic in a job (a listener's is caught before) must not cost a worker.
pub(crate) fn run_guarded(job: Job) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        log::error!("a job of the session panicked; the thread goes on");
    }
}
