//! The answers of a cohort's [state](super::state) to the threads that use it.

use std::sync::Arc;
use std::thread;

use super::request::CohortRequest;
use crate::error::Result;
use crate::request::{LastingRequest, Request};
use crate::time::{Moment, Slot};
use crate::tracking::WaiterWatch;

/// How often a thread that waits gives way before it sleeps.
const MAX_YIELDS: usize = 12;

/// What a thread waits for.
pub(super) struct Turn {
    /// The request that was started, or why there is no session to make it on; only for a thread that tries.
    pub(super) started: Slot<Result<Arc<Request>>>,
    pub(super) outcome: Slot<Result<Grant>>,
}

impl Turn {
    /// Gives way to other threads for a moment. One that is about to hand the lock over in memory does it in less
    /// time than it takes to fall asleep and be woken.
    pub(super) fn await_hand_over(&self) {
        for _ in 0..MAX_YIELDS {
            if self.outcome.latch().is_set() {
                return;
            }
            thread::yield_now();
        }
    }
}

/// The lock, for one thread.
pub(crate) struct Grant {
    pub(crate) request: Arc<CohortRequest>,
    pub(crate) tenure: u64,
}

/// The result of a thread's arrival.
pub(super) enum Entry {
    Granted(Grant),
    /// For a thread that tries: somebody holds the lock or waits for it.
    Busy,
    Waits {
        number: u64,
        turn: Turn,
    },
    Closed,
}

/// The state that a thread leaves when it gives up.
pub(super) enum Left {
    /// The lock was granted at this moment.
    Granted,
    /// It was the last one, and the request is of no use any more.
    Last(Arc<LastingRequest>),
    Others,
}

/// The result of a release by a thread.
pub(super) enum Departure {
    /// Handed over, or kept until that moment; then the caller starts a timer if it is `Some`.
    Stays(Option<Moment>),
    Goes(Retired),
    /// It was lost before.
    Lost,
}

/// What is to be ended outside the mutex.
#[derive(Default)]
pub(super) struct Retired {
    pub(super) joining: Option<Arc<LastingRequest>>,
    pub(super) request: Option<Arc<CohortRequest>>,
    pub(super) watch: Option<WaiterWatch>,
}

impl Retired {
    /// Withdraws the requests.
    pub(super) fn end(self) {
        if let Some(joining) = &self.joining {
            joining.withdraw();
        }
        if let Some(request) = self.into_request() {
            request.withdraw();
        }
    }

    /// Stops the watch, which would notice the deletion of the owner's znode, and returns the owner's
    /// request.
    pub(super) fn into_request(self) -> Option<Arc<CohortRequest>> {
        drop(self.watch);
        self.request
    }
}

/// Work for a thread without a mutex.
pub(super) enum Work {
    Retire(Retired),
    /// Make a request with this number.
    Start(u64),
    /// Look for requests behind this one.
    Watch(Arc<CohortRequest>),
}

/// The next step after the timer of a kept lock.
pub(super) enum KeepTimer {
    Rearm(Moment),
    /// The lock was kept long enough.
    Expired,
    Cancelled,
}
