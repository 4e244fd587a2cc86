//! [`Access`]: what a request asks for, as its znode's name tells it.

use uuid::Uuid;

use super::naming_scheme::NamingScheme;

/// For what a request stands in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nobody else, neither readers nor writers, in a queue that has no readers of its own.
    Exclusive,
    /// Other readers beside it, but no writer.
    Read(NamingScheme),
    /// Nobody else, neither readers nor writers.
    Write(NamingScheme),
}

impl Access {
    /// The name of a new request's znode up to its sequence number.
    ///
    /// An exclusive request's is ordered rightly by every library that may share the directory. The GUID, and not the
    /// session id of the Java recipe, lets two threads on one session contend for one lock.
    pub(crate) fn prefix(self, guid: Uuid) -> String {
        match self {
            Access::Exclusive => format!("x-{guid}-lock-"),
            Access::Read(scheme) => scheme.reader_prefix(guid),
            Access::Write(scheme) => scheme.writer_prefix(guid),
        }
    }

    /// Whether a request of that name keeps this one from its turn when it is ahead.
    ///
    /// What is not known to be a reader counts as a writer, whoever made it.
    pub(crate) fn waits_for(self, ahead: &str) -> bool {
        match self {
            Access::Exclusive | Access::Write(_) => true,
            Access::Read(scheme) => !scheme.is_reader(ahead),
        }
    }
}
