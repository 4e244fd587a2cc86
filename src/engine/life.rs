//! [`Life`]: whether a session lives, and whether its client has a connection.
//!
//! | life | event | next |
//! |---|---|---|
//! | `Open` | it is closed, it is lost, or there was no contact for a session timeout | `Ending` |
//! | `Ending` | every participant was notified, and the session lives on without us | `Lingering` |
//! | `Ending` | every participant was notified, otherwise | `Finished` |
//! | `Lingering` | the last deletion is done, the session has expired, or there was no contact for a session timeout | `Finished` |
//!
//! Beside it, the session has a [`Contact`], also while it lingers: it deletes its znodes after a reconnect.
//!
//! | contact | connected | disconnected | a write was answered |
//! |---|---|---|---|
//! | `NotYet` | `Present` | | |
//! | `Present` | | `Lost` | |
//! | `Lost` | `Regained`: a proof is due at once; or `Present`, if the lease is not kept proven: every participant looks again, and deletions are repeated | | |
//! | `Regained` | | `Lost` | `Present`: every participant looks again |
//!
//! Both together, with the age of the last answered request, make what subscribers see as the state
//! of the session:
//!
//! | life | contact | last answered request | `SessionState` |
//! |---|---|---|---|
//! | `Open` | `Present`, `Regained` | less than 31/32 of the session timeout ago | `Connected` |
//! | `Open` | any | otherwise | `Suspended` |
//! | any other | any | any | `Lost` |
//!
//! Only a write on the present connection counts, from its sending, while a lock is held, where the
//! client does not report its pings, and until the first one is answered. Otherwise every answer of
//! the server counts, a reconnect too.

use crate::error::LossReason;
use crate::time::Moment;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Life {
    Open,
    /// The participants are being notified.
    Ending(LossReason),
    /// Deletions go on: the last one finishes the session, or its end at the server.
    Lingering(LossReason),
    /// The client is dropped and the threads end.
    Finished(LossReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Contact {
    NotYet {
        /// The session was opened after this moment, if that is known.
        opened_after: Option<Moment>,
    },
    Present,
    Lost {
        since: Moment,
    },
    /// Contact is back, but nothing shows yet that the session lives: the participants look again
    /// when it is proven.
    Regained,
}

impl Life {
    pub(super) fn end_reason(self) -> Option<LossReason> {
        match self {
            Life::Open => None,
            Life::Ending(reason) | Life::Lingering(reason) | Life::Finished(reason) => Some(reason),
        }
    }

    pub(super) fn has_ended(self) -> bool {
        self.end_reason().is_some()
    }
}
