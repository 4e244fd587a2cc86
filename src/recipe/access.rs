//! [`Access`]: the access to a lock that a request asks for, as encoded in its znode's name.

use std::num::NonZeroU32;

use uuid::Uuid;

use super::kind::LockKind;
use super::naming_scheme::{NamingScheme, around};

/// The access that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    /// Excludes all other requests, in a queue in which this crate has no readers.
    Exclusive(NamingScheme),
    /// Shares the lock with other readers; excludes writers.
    Read(NamingScheme),
    /// Excludes all other requests, readers and writers, in the queue of a read-write lock.
    Write(NamingScheme),
    /// Takes one of this many permits: waits until fewer requests than permits are ahead.
    Permit(NonZeroU32),
}

impl Access {
    /// Returns the name of a new request's znode, without the sequence number.
    ///
    /// The Java recipe uses the session id in place of the GUID. With a GUID, two threads on one session can contend
    /// for one lock.
    pub(crate) fn prefix(self, guid: Uuid) -> String {
        match self {
            Access::Exclusive(scheme) => scheme.exclusive_prefix(guid),
            Access::Read(scheme) => scheme.reader_prefix(guid),
            Access::Write(scheme) => scheme.writer_prefix(guid),
            // As in Curator's `InterProcessSemaphoreV2`.
            Access::Permit(_) => around(guid, "_c_", "-lease-"),
        }
    }

    /// Returns the sequence number in the name of a request's znode, as the server has written it.
    pub(crate) fn number_in(self, name: &str) -> Option<&str> {
        // The prefixes of all requests with the same access have the same length.
        name.get(self.prefix(Uuid::nil()).len()..)
    }

    /// Returns the kind of the request.
    pub(crate) fn kind(self) -> LockKind {
        match self {
            Access::Exclusive(_) => LockKind::Exclusive,
            Access::Read(_) => LockKind::Read,
            Access::Write(_) => LockKind::Write,
            Access::Permit(_) => LockKind::Permit,
        }
    }

    /// Returns whether the request is in a queue in which each request excludes every other one. A writer is not in
    /// such a queue: readers may be ahead of it, and several of them may own the lock at once.
    pub(crate) fn is_exclusive(self) -> bool {
        matches!(self, Access::Exclusive(_))
    }

    /// Returns how many requests may own a permit at once, if this request is for a permit.
    pub(crate) fn permits(self) -> Option<NonZeroU32> {
        match self {
            Access::Permit(permits) => Some(permits),
            Access::Exclusive(_) | Access::Read(_) | Access::Write(_) => None,
        }
    }

    /// Returns whether a waiter watches the children of the directory instead of the request ahead, because any of the
    /// requests ahead may make way for it.
    pub(crate) fn watches_children(self) -> bool {
        self.permits().is_some()
    }

    /// Returns whether a request with the name `ahead`, if it is ahead of this one, makes this one wait or takes a
    /// permit.
    ///
    /// For a reader, a request without the name of a reader of the same scheme counts as a writer, whichever library
    /// made it.
    pub(crate) fn waits_for(self, ahead: &str) -> bool {
        match self {
            Access::Exclusive(_) | Access::Write(_) | Access::Permit(_) => true,
            Access::Read(scheme) => !scheme.is_reader(ahead),
        }
    }
}
