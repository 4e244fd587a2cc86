//! [`Life`]: whether a session lives. [`Contact`]: whether its client has a connection.
//!
//! - `Open` becomes `Ending` when the session is closed or lost, or when, after the first contact, the ensemble has
//!   given no sign of life for a session timeout, whatever the [`Contact`].
//! - `Ending` becomes `Finished` when every participant has been notified.
//!
//! Besides its life, the session has a [`Contact`].
//!
//! - `NotYet` becomes `Present` on the first connection.
//! - `Present` becomes `Lost` on a disconnect.
//! - `Lost` becomes `Regained` on a reconnect if the lease is kept proven (see below). A proof is then due at once.
//!   If the lease is not kept proven, `Lost` becomes `Present`: every participant looks again, and deletions are
//!   repeated.
//! - `Regained` becomes `Present` when a write is answered: every participant looks again. `Regained` becomes
//!   `Lost` on a disconnect.
//!
//! Subscribers see a `SessionState`, which follows from life, contact, and the age of the last answered
//! request:
//!
//! | life | contact | last answered request | `SessionState` |
//! |---|---|---|---|
//! | `Open` | `Present`, `Regained` | less than 31/32 of the session timeout ago | `Connected` |
//! | `Open` | any | otherwise | `Suspended` |
//! | any other | any | any | `Lost` |
//!
//! Which answers count depends on whether the lease is kept proven. The lease is kept proven while a lock is held, and
//! until the first write is answered.
//!
//! While the lease is kept proven, only the answer to a write on the present connection counts, timed from when the
//! write was sent. While it is not, every answer from the server counts, and so does a reconnect.

use std::fmt;

use crate::error::LossReason;
use crate::time::Moment;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Life {
    Open,
    /// The participants are being notified.
    Ending(SessionEnd),
    /// Nothing is left to do: the driver closes the client and ends the threads.
    Finished(SessionEnd),
}

/// Why a session has ended. Its requests are lost with the [reason](LossReason) that follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SessionEnd {
    /// The server ended the session, or the client gave it up.
    Expired,
    /// The ensemble gave no sign of life for a session timeout. The server may keep the session.
    Silent,
    /// This process closed the session. The server may keep it.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Contact {
    NotYet {
        /// A moment before the session was opened, if one is known.
        opened_after: Option<Moment>,
    },
    Present,
    Lost {
        since: Moment,
    },
    /// Contact is back, but nothing proves yet that the session lives. Once that is proven, the participants look
    /// again.
    Regained,
}

impl Life {
    pub(super) fn end_reason(self) -> Option<SessionEnd> {
        match self {
            Life::Open => None,
            Life::Ending(reason) | Life::Finished(reason) => Some(reason),
        }
    }

    pub(super) fn has_ended(self) -> bool {
        self.end_reason().is_some()
    }
}

impl SessionEnd {
    /// Why an owner whose hold has ended has lost its lock, given how the session has ended, if it has. A session that
    /// has been silent for too long was silent when the lease ended, which is earlier.
    pub(crate) fn loss_of_hold(end: Option<SessionEnd>) -> LossReason {
        match end {
            None | Some(SessionEnd::Silent) => LossReason::LeaseExpired,
            Some(end) => end.into(),
        }
    }
}

impl From<SessionEnd> for LossReason {
    fn from(end: SessionEnd) -> LossReason {
        match end {
            SessionEnd::Expired | SessionEnd::Silent => LossReason::SessionLost,
            SessionEnd::Closed => LossReason::Closed,
        }
    }
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SessionEnd::Expired => "session expired",
            SessionEnd::Silent => "no contact for too long",
            SessionEnd::Closed => "session closed",
        })
    }
}
