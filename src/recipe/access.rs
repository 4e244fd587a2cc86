//! [`Access`]: what a request asks for, as its znode's name tells it.

use uuid::Uuid;

/// For what a request stands in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nobody else, neither readers nor writers.
    Exclusive,
}

impl Access {
    /// The name of a new request's znode up to its sequence number.
    ///
    /// An exclusive request's is ordered rightly by every library that may share the directory. The GUID, and not the
    /// session id of the Java recipe, lets two threads on one session contend for one lock.
    pub(crate) fn prefix(self, guid: Uuid) -> String {
        match self {
            Access::Exclusive => format!("x-{guid}-lock-"),
        }
    }

    /// Whether a request of that name keeps this one from its turn when it is ahead.
    pub(crate) fn waits_for(self, _ahead: &str) -> bool {
        match self {
            Access::Exclusive => true,
        }
    }
}
