//! [`Status`]: the state of a session, as state machines under one mutex.
//!
//! [`Life`], whether the session has ended, moves in one direction:
//!
//! | state | event | next state |
//! |---|---|---|
//! | `Open` | it is closed, it is lost, or there was no contact for a session timeout | `Ending` |
//! | `Ending` | every participant was notified, and the session lives on without us | `Lingering` |
//! | `Ending` | every participant was notified, otherwise | `Finished` |
//! | `Lingering` | the last deletion is done, or a session timeout has passed | `Finished` |
//!
//! [`Contact`], whether the client has a connection:
//!
//! | state | connected | disconnected | proof of life answered |
//! |---|---|---|---|
//! | `NotYet` | `Present` | | |
//! | `Present` | | `Lost` | |
//! | `Lost` | `Regained`: a proof is due at once; or `Present` on a session that owns nothing: every participant looks again | | |
//! | `Regained` | | `Lost` | `Present`: every participant looks again |
//!
//! The two are independent: a session that lingers deletes its znodes after a reconnect. Both
//! together, with the age of the last answered request, make the [`SessionState`] that subscribers
//! see:
//!
//! | `Life` | `Contact` | last answered request | `SessionState` |
//! |---|---|---|---|
//! | `Open` | `Present`, `Regained` | less than 31/32 of the session timeout ago | `Connected` |
//! | `Open` | any | otherwise | `Suspended` |
//! | any other | any | any | `Lost` |
//!
//! Only a write on the present connection counts, from its sending, while a lock is held, where the
//! client does not report its pings, and until the first one is answered. Otherwise every sign of the
//! server counts, a reconnect too.

use std::convert::Infallible;
use std::mem;
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::client::{ClientEvent, Granted};
use crate::engine::lease::Lease;
use crate::error::LossReason;
use crate::session::SessionState;
use crate::session::ownership::Ownerships;
use crate::session::runner::Alarm;
use crate::time::Moment;

#[derive(Debug)]
pub(super) struct Status {
    life: Life,
    contact: Contact,
    pub(super) lease: Lease,
    pub(super) ownerships: Ownerships,
    /// Events from before the client's first report of contact; `None` after it.
    early: Option<Vec<(ClientEvent, Moment)>>,
    pub(super) proof_under_way: bool,
    /// Whether a routine look is due that waits for the next keep-alive.
    pub(super) routine_look_due: bool,
    pub(super) next_tick: Alarm,
    /// What the subscribers know.
    announced: SessionState,
    subscribers: Vec<Sender<SessionState>>,
}

/// The senders are dropped to signal [`Core::ended`](super::Core::ended) and
/// [`Core::finished`](super::Core::finished).
#[derive(Debug)]
enum Life {
    Open {
        end: Sender<Infallible>,
        finish: Sender<Infallible>,
    },
    /// The participants are being notified.
    Ending {
        reason: LossReason,
        end: Sender<Infallible>,
        finish: Sender<Infallible>,
    },
    /// Deletions go on: the last participant to leave finishes the session.
    Lingering {
        reason: LossReason,
        finish: Sender<Infallible>,
    },
    /// The client is dropped and the threads end.
    Finished {
        reason: LossReason,
    },
}

#[derive(Debug)]
enum Contact {
    NotYet {
        /// The session was opened after this moment, if that is known.
        opened_after: Option<Moment>,
    },
    Present,
    Lost {
        at: Moment,
    },
    /// Contact is back, but nothing shows yet that the session lives: the participants look again
    /// when it is proven.
    Regained,
}

impl Status {
    pub(super) fn new(
        lease: Lease,
        opened_after: Option<Moment>,
        end: Sender<Infallible>,
        finish: Sender<Infallible>,
    ) -> Status {
        Status {
            life: Life::Open { end, finish },
            contact: Contact::NotYet { opened_after },
            lease,
            ownerships: Ownerships::default(),
            early: Some(Vec::new()),
            proof_under_way: false,
            routine_look_due: false,
            next_tick: Alarm::default(),
            announced: SessionState::Suspended,
            subscribers: Vec::new(),
        }
    }

    // ---- the client's first events

    /// Keeps an event that came too early; returns any other.
    pub(super) fn keep_if_early(&mut self, event: ClientEvent, at: Moment) -> Option<ClientEvent> {
        match &mut self.early {
            Some(early) => {
                early.push((event, at));
                None
            }
            None => Some(event),
        }
    }

    /// Takes the next event that came too early. When there is none, no later one is kept.
    pub(super) fn next_early(&mut self) -> Option<(ClientEvent, Moment)> {
        match &mut self.early {
            Some(early) if !early.is_empty() => Some(early.remove(0)),
            _ => {
                self.early = None;
                None
            }
        }
    }

    // ---- contact

    pub(super) fn in_contact(&self) -> bool {
        matches!(self.contact, Contact::Present | Contact::Regained)
    }

    /// Whether contact was lost and is back, and the session is not yet proven alive since.
    pub(super) fn has_regained_contact(&self) -> bool {
        matches!(self.contact, Contact::Regained)
    }

    /// Contact has begun. Returns the moment at which former leases end now, if that may be earlier
    /// than before, and whether the participants must look again.
    ///
    /// Owners need a proof before they look. Nobody else does: so a session that owns nothing writes
    /// nothing because of a reconnect.
    pub(super) fn connected(&mut self, granted: Granted, now: Moment) -> (Option<Moment>, bool) {
        let mut must_look = self.has_ended();
        let (contact, taken_up_after) = match self.contact {
            Contact::NotYet { opened_after } => (Contact::Present, opened_after),
            Contact::Present => (Contact::Present, None),
            Contact::Lost { at } if self.lease.is_kept_proven() => (Contact::Regained, Some(at)),
            Contact::Lost { at } => {
                must_look = true;
                (Contact::Present, Some(at))
            }
            Contact::Regained => (Contact::Regained, None),
        };
        self.contact = contact;
        (self.lease.connected(granted, taken_up_after, now), must_look)
    }

    /// A server has taken up the session again, and does not serve it yet. Returns as
    /// [`connected`](Status::connected).
    pub(super) fn taken_up(&mut self, session_timeout: Duration, now: Moment) -> Option<Moment> {
        let after = if let Contact::Lost { at } = self.contact { at } else { now };
        self.lease.taken_up(session_timeout, after, now)
    }

    /// Contact was lost. Returns when the lease ends that was the present one until now; `None` when
    /// there was no contact before either.
    pub(super) fn disconnected(&mut self, now: Moment) -> Option<Moment> {
        if !self.in_contact() {
            return None;
        }
        self.contact = Contact::Lost { at: now };
        let former_end = self.lease.end();
        self.lease.disconnected(now);
        Some(former_end)
    }

    /// The session is proven alive on the present connection. Returns whether the participants must
    /// look again.
    pub(super) fn proven(&mut self) -> bool {
        let must_look = self.has_regained_contact();
        if must_look {
            self.contact = Contact::Present;
        }
        must_look
    }

    // ---- the end

    pub(super) fn end_reason(&self) -> Option<LossReason> {
        match &self.life {
            Life::Open { .. } => None,
            Life::Ending { reason, .. } | Life::Lingering { reason, .. } | Life::Finished { reason } => {
                Some(*reason)
            }
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end_reason().is_some()
    }

    pub(super) fn is_lingering(&self) -> bool {
        matches!(self.life, Life::Lingering { .. })
    }

    /// Ends the session; `false` when it had ended before.
    pub(super) fn end(&mut self, reason: LossReason) -> bool {
        let is_first = !self.has_ended();
        self.change_life(|life| match life {
            Life::Open { end, finish } => Life::Ending { reason, end, finish },
            ended => ended,
        });
        if is_first {
            self.lease.finish();
        }
        is_first
    }

    /// Every participant was notified of the end, and some may have something to delete.
    pub(super) fn linger(&mut self) {
        self.change_life(|life| match life {
            Life::Ending { reason, end, finish } => {
                drop(end);
                Life::Lingering { reason, finish }
            }
            other => other,
        });
    }

    /// Nothing is left to do. Returns what signals it when it is dropped; `None` when that was so
    /// before.
    pub(super) fn finish(&mut self) -> Option<Sender<Infallible>> {
        let mut finished = None;
        self.linger();
        self.change_life(|life| match life {
            Life::Lingering { reason, finish } => {
                finished = Some(finish);
                Life::Finished { reason }
            }
            other => other,
        });
        finished
    }

    fn change_life(&mut self, change: impl FnOnce(Life) -> Life) {
        let placeholder = Life::Finished { reason: LossReason::SessionClosed };
        self.life = change(mem::replace(&mut self.life, placeholder));
    }

    // ---- what subscribers see

    pub(super) fn state(&self, now: Moment) -> SessionState {
        if self.has_ended() {
            SessionState::Lost
        } else if self.in_contact() && now < self.lease.contact_holds_until() {
            SessionState::Connected
        } else {
            SessionState::Suspended
        }
    }

    /// Sends the subscribers the state if it has changed, and returns it then.
    pub(super) fn announce(&mut self, now: Moment) -> Option<SessionState> {
        let state = self.state(now);
        if state == self.announced {
            return None;
        }
        self.announced = state;
        // An unbounded channel: this never waits. A subscriber whose receiver is gone is forgotten.
        self.subscribers.retain(|subscriber| subscriber.send(state).is_ok());
        Some(state)
    }

    pub(super) fn announced(&self) -> SessionState {
        self.announced
    }

    /// Does nothing for a subscriber that has subscribed before, as two threads may do it when a
    /// session is replaced.
    pub(super) fn subscribe(&mut self, subscriber: Sender<SessionState>) {
        if !self.subscribers.iter().any(|other| other.same_channel(&subscriber)) {
            self.subscribers.push(subscriber);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crossbeam_channel::{Receiver, TryRecvError, bounded};

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn moment(seconds: u64) -> Moment {
        Moment::from_nanos(0).after(Duration::from_secs(seconds))
    }

    /// A status, and what signals that the session has ended and that it is finished.
    fn status() -> (Status, Receiver<Infallible>, Receiver<Infallible>) {
        let ((end, ended), (finish, finished)) = (bounded(0), bounded(0));
        let lease = Lease::unproven(Granted::new(TIMEOUT), moment(1));
        (Status::new(lease, None, end, finish), ended, finished)
    }

    fn is_signalled(signal: &Receiver<Infallible>) -> bool {
        signal.try_recv() == Err(TryRecvError::Disconnected)
    }

    #[test]
    fn participants_look_again_after_the_first_proof_on_a_regained_contact() {
        let (mut status, ..) = status();
        status.connected(Granted::new(TIMEOUT), moment(1));
        assert!(!status.proven(), "contact was not lost");
        assert!(status.disconnected(moment(2)).is_some());
        assert!(!status.proven(), "there is no contact");
        status.connected(Granted::new(TIMEOUT), moment(3));
        assert!(status.has_regained_contact());
        assert!(status.proven());
        assert!(!status.proven());
    }

    #[test]
    fn contact_that_is_lost_again_before_a_proof_is_regained_again() {
        let (mut status, ..) = status();
        for second in 1..4 {
            status.connected(Granted::new(TIMEOUT), moment(second));
            assert!(status.in_contact());
            assert!(status.disconnected(moment(second)).is_some());
            assert!(!status.in_contact());
            assert!(status.disconnected(moment(second)).is_none(), "it was lost before");
        }
        status.connected(Granted::new(TIMEOUT), moment(4));
        assert!(status.proven());
    }

    #[test]
    fn a_session_ends_once_and_signals_the_end_and_the_finish() {
        let (mut status, ended, finished) = status();
        assert!(status.finish().is_none(), "it has not ended");
        assert!(status.end(LossReason::LeaseExpired));
        assert!(!status.end(LossReason::SessionClosed));
        assert_eq!(status.end_reason(), Some(LossReason::LeaseExpired));
        assert!(!is_signalled(&ended), "the participants are being notified");
        status.linger();
        assert!(status.is_lingering() && is_signalled(&ended) && !is_signalled(&finished));
        drop(status.finish());
        assert!(!status.is_lingering() && is_signalled(&finished));
        assert!(status.finish().is_none());
        assert_eq!(status.end_reason(), Some(LossReason::LeaseExpired));
    }

    #[test]
    fn a_session_that_is_gone_from_the_server_does_not_linger() {
        let (mut status, ended, finished) = status();
        status.end(LossReason::SessionExpired);
        let finish = status.finish();
        assert!(is_signalled(&ended) && !is_signalled(&finished));
        drop(finish);
        assert!(is_signalled(&finished));
        status.linger();
        assert!(!status.is_lingering(), "it is finished");
    }
}
