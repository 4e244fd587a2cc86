//! How a thread of the session's runs a job.

use crate::logging;
use crate::panics::contain;
use crate::time::Job;

/// Runs a job; a panic in it must not cost the thread.
pub(crate) fn run_guarded(job: Job) {
    if let Err(message) = contain(job) {
        logging::error!("a job of the session panicked; the thread goes on: {message}");
    }
}
