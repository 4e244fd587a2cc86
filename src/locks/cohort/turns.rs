//! What a cohort's [state](super::state) returns to its threads.

use std::sync::Arc;
use std::thread;

use super::request::CohortRequest;
use crate::error::Result;
use crate::request::{LastingRequest, Request};
use crate::time::{Moment, Slot};
use crate::tracking::WaiterWatch;

/// How often a waiting thread yields before it sleeps.
const MAX_YIELDS: usize = 12;

/// What a waiting thread receives.
pub(super) struct Turn {
    /// For a `try_lock`: the request that was started, or the reason why there is no session for it.
    pub(super) started: Slot<Result<Arc<Request>>>,
    pub(super) outcome: Slot<Result<Grant>>,
}

impl Turn {
    /// Yields to other threads for a moment. A thread that is about to hand the lock over usually does so in less time
    /// than it would take this thread to fall asleep and be woken.
    pub(super) fn await_hand_over(&self) {
        for _ in 0..MAX_YIELDS {
            if self.outcome.latch().is_set() {
                return;
            }
            thread::yield_now();
        }
    }
}

/// One thread's hold of the lock.
pub(crate) struct Grant {
    pub(crate) request: Arc<CohortRequest>,
    pub(crate) tenure: u64,
}

/// What a thread gets when it asks for the lock.
pub(super) enum Entry {
    Granted(Grant),
    /// For a `try_lock`: somebody holds the lock or waits for it.
    Busy,
    Waits {
        number: u64,
        turn: Turn,
    },
    Closed,
}

/// What a thread finds when it gives up.
pub(super) enum Left {
    /// The thread's outcome is already there: the lock, or an error.
    Granted,
    /// No other thread waits, so the request is no longer needed.
    Last(Arc<LastingRequest>),
    /// There is nothing to do: other threads wait, or there is no waiting request.
    Others,
}

/// What happens when a thread releases the lock.
pub(super) enum Departure {
    /// The lock was handed over or is kept. With `Some`, the caller starts a timer for that moment.
    Stays(Option<Moment>),
    /// The lock is released to other processes.
    Goes(Retired),
    /// The lock was already lost.
    Lost,
}

/// The things that must be ended outside the mutex.
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

    /// Stops the watch, which would otherwise notice the deletion of the owner's znode, and returns the owner's
    /// request.
    pub(super) fn into_request(self) -> Option<Arc<CohortRequest>> {
        drop(self.watch);
        self.request
    }
}

/// Work for a thread that holds no mutex.
pub(super) enum Work {
    Retire(Retired),
    /// Make the request with this number.
    Start(u64),
    /// Watch for requests behind this one.
    Watch(Arc<CohortRequest>),
}

/// What happens after the timer of a kept lock has rung.
pub(super) enum KeepTimer {
    Rearm(Moment),
    /// The lock was kept long enough.
    Expired,
    Cancelled,
}
