//! [`Happened`]: an event, and its log line.

use std::fmt;
use std::sync::Arc;

use log::Level;

use super::events::SessionConnected;
use super::seat::Seat;
use crate::engine::{Ending, Event, Place, RequestEvent};
use crate::error::{LockError, LossReason};
use crate::logging;
use crate::time::Moment;

/// An event, with what belonged to it when it happened.
pub(crate) struct Happened {
    pub(crate) event: Event,
    /// The request of an event of a request.
    pub(crate) seat: Option<Arc<Seat>>,
    /// The contact of an event about a new contact.
    pub(crate) contact: Option<SessionConnected>,
}

impl Happened {
    /// The event of a request that was withdrawn before it was started.
    pub(super) fn withdrawn_before_start(seat: &Arc<Seat>, now: Moment) -> Happened {
        let (place, time) = (Place::Unknown, now.since(seat.made));
        let ended = RequestEvent::Ended { place, how: Ending::Withdrawn, time };
        let event = Event::Request(seat.id, ended);
        Happened { event, seat: Some(Arc::clone(seat)), contact: None }
    }

    /// Logs the event. The line calls no code of the application, so the caller may hold the mutex of the session.
    pub(super) fn log(&self) {
        if let Some(level) = self.level().filter(|level| logging::is_enabled(*level)) {
            logging::write_text(level, logging::LOCKS, self.to_string());
        }
    }

    fn level(&self) -> Option<Level> {
        Some(match &self.event {
            // `announcer.rs` logs the changes of state, and `replacement.rs` logs the replacement.
            Event::Connected | Event::Suspended | Event::SessionEnded(_) | Event::SessionReplaced => {
                return None;
            }
            Event::Request(_, event) => return level_of_request(event),
            Event::Removed { was_refused: true, .. } | Event::RemovedWithSession(_) | Event::Stray(_) => {
                Level::Info
            }
            Event::Directory(_) | Event::Removed { was_refused: false, .. } => Level::Debug,
            // An outage may cause one such event for each request, and has a log line of its own.
            Event::CannotRemove { error, .. } | Event::CannotSweep { error, .. } if error.is_reply_lost() => {
                Level::Debug
            }
            Event::Persistent(_)
            | Event::Peers { .. }
            | Event::CannotRemove { .. }
            | Event::CannotSweep { .. } => Level::Warn,
        })
    }

    /// The path of the request's znode or, until the znode is known, its directory.
    fn name(&self) -> &dyn fmt::Display {
        self.seat.as_ref().map_or(&"a request", |seat| seat.name())
    }
}

fn level_of_request(event: &RequestEvent) -> Option<Level> {
    Some(match event {
        RequestEvent::Joined { .. } | RequestEvent::HandedOver => return None,
        // There may be thousands of these per second.
        RequestEvent::Acquired { .. } | RequestEvent::Placed { .. } => Level::Debug,
        RequestEvent::FoundAgain { .. } | RequestEvent::AttemptFailed { .. } => Level::Debug,
        RequestEvent::RevocationRequested => Level::Info,
        // The session may have thousands of requests, and has a line of its own.
        RequestEvent::Suspended { .. } => Level::Debug,
        RequestEvent::Ended { place, how, .. } => match how {
            Ending::Withdrawn => Level::Debug,
            // Until the request has a place in the queue, its caller is still waiting, and gets the error.
            _ if *place == Place::Unknown => Level::Debug,
            _ if how.reason() == Some(LossReason::Closed) => Level::Info,
            // A lost lock needs a line of its own. What the other requests of a lost session were about does not: the
            // line about the session counts them, and each caller gets an error or waits on.
            Ending::Dropped(LossReason::SessionLost, None) => Level::Debug,
            _ => Level::Warn,
        },
    })
}

impl fmt::Display for Happened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.event {
            // These have no line here.
            Event::Connected | Event::Suspended | Event::SessionEnded(_) | Event::SessionReplaced => Ok(()),
            Event::Request(_, event) => write_of_request(f, self.name(), event),
            Event::Persistent(ahead) => {
                write!(f, "requests wait for {ahead}, which is persistent and does not end with any session")
            }
            Event::Directory(path) => {
                write!(f, "{path} has the name of a request, but is a directory, so it is ignored")
            }
            Event::Peers { dir, mismatch } => write!(f, "in {dir}, {mismatch}"),
            Event::Stray(path) => {
                write!(f, "deleting {path}, whose creation was not confirmed: it belongs to no request")
            }
            Event::CannotRemove { path, error } => {
                write!(f, "cannot remove {path} ({error:?}): it blocks others until a retry succeeds")
            }
            Event::CannotSweep { dir, error } => write!(
                f,
                "cannot list {dir} ({error:?}): a request whose creation was not confirmed may block others there \
                 until a retry succeeds"
            ),
            Event::Removed { path, was_refused: true } => write!(f, "removed {path} after all"),
            Event::Removed { path, was_refused: false } => write!(f, "removed {path}"),
            Event::RemovedWithSession(path) => write!(f, "{path} is removed with its session"),
        }
    }
}

fn write_of_request(
    f: &mut fmt::Formatter<'_>,
    name: &dyn fmt::Display,
    event: &RequestEvent,
) -> fmt::Result {
    match event {
        RequestEvent::AttemptFailed { attempts, failure } => {
            write!(f, "attempt {attempts} to join {name} failed: {}", LockError::from(failure.clone()))
        }
        RequestEvent::FoundAgain { znode } => {
            write!(f, "found {znode} again, whose creation was not confirmed")
        }
        RequestEvent::Joined { znode, .. } => write!(f, "created {znode}"),
        RequestEvent::Placed { ahead, .. } => write!(f, "joined {name}, which waits for {ahead}"),
        RequestEvent::Acquired { .. } => write!(f, "acquired {name}"),
        RequestEvent::HandedOver => write!(f, "handed {name} over"),
        RequestEvent::Suspended { is_owner: true } => {
            write!(f, "suspended {name}: no contact, owned until the lease ends")
        }
        RequestEvent::Suspended { is_owner: false } => {
            write!(f, "suspended {name}: no contact, waiting until it returns")
        }
        RequestEvent::RevocationRequested => write!(f, "somebody asks to release {name}"),
        RequestEvent::Ended { place, how, .. } => match how {
            Ending::Withdrawn if *place == Place::Owner => write!(f, "released {name}"),
            Ending::Withdrawn => write!(f, "withdrew {name}"),
            Ending::Lost(reason) => write!(f, "lost {name}: {reason}"),
            Ending::Dropped(reason, None) => write!(f, "dropped from the queue: {name}: {reason}"),
            Ending::Dropped(reason, Some(failure)) => {
                let error = LockError::from(failure.clone());
                write!(f, "dropped from the queue: {name}: {reason}: {error}")
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::engine::{ParticipantId, SessionEnd};
    use crate::recipe::path::ZNodePath;

    fn of_request(event: RequestEvent) -> Happened {
        Happened { event: Event::Request(ParticipantId::default(), event), seat: None, contact: None }
    }

    #[test]
    fn loss_is_a_warning_unless_the_session_was_closed() {
        let levels = [(SessionEnd::Closed, Level::Info), (SessionEnd::Expired, Level::Warn)];
        for (reason, expected) in levels {
            let (place, how) = (Place::Owner, Ending::Lost(reason.into()));
            let ended = of_request(RequestEvent::Ended { place, how, time: Duration::ZERO });
            assert_eq!(ended.level(), Some(expected), "{reason}");
        }
    }

    #[test]
    fn failure_that_the_waiting_caller_gets_is_no_warning() {
        let how = Ending::Lost(LossReason::NodeDeleted);
        for (place, expected) in [(Place::Unknown, Level::Debug), (Place::Owner, Level::Warn)] {
            let ended = of_request(RequestEvent::Ended { place, how: how.clone(), time: Duration::ZERO });
            assert_eq!(ended.level(), Some(expected));
        }
    }

    /// A session may have thousands of requests.
    #[test]
    fn only_lost_locks_are_warned_of_one_by_one_when_a_session_is_lost() {
        let reason = LossReason::SessionLost;
        let ended = |place, how| of_request(RequestEvent::Ended { place, how, time: Duration::ZERO }).level();
        assert_eq!(ended(Place::Owner, Ending::Lost(reason)), Some(Level::Warn));
        assert_eq!(ended(Place::Queued, Ending::Dropped(reason, None)), Some(Level::Debug));
        for is_owner in [false, true] {
            assert_eq!(of_request(RequestEvent::Suspended { is_owner }).level(), Some(Level::Debug));
        }
        let deleted = Ending::Dropped(LossReason::NodeDeleted, None);
        assert_eq!(ended(Place::Queued, deleted), Some(Level::Warn));
    }

    #[test]
    fn cycles_of_a_lock_are_below_info_and_name_whom_they_wait_for() {
        let ahead = ZNodePath::parse("/locks/a/x-a-lock-0000000001").unwrap();
        let placed = of_request(RequestEvent::Placed { ahead: ahead.clone(), number_ahead: None });
        assert_eq!(placed.to_string(), format!("joined a request, which waits for {ahead}"));
        let acquired = of_request(RequestEvent::Acquired { waited: Duration::ZERO });
        let (place, how) = (Place::Owner, Ending::Withdrawn);
        let released = of_request(RequestEvent::Ended { place, how, time: Duration::ZERO });
        assert_eq!(released.to_string(), "released a request");
        for line in [placed, acquired, released] {
            assert_eq!(line.level(), Some(Level::Debug), "{line}");
        }
        assert_eq!(of_request(RequestEvent::RevocationRequested).level(), Some(Level::Info));
    }
}
