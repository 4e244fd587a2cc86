//! The lease: until when the server provably keeps the session, and with it every lock that this process owns.
//!
//! The server cannot end a session earlier than one session timeout after it handled a request of that session, so the
//! time at which an answered request was *sent*, plus the timeout that the server granted, less a margin, is safe
//! whatever the network does. Only requests that went through the quorum count (writes, refused ones included): a
//! follower that has lost its leader answers reads for a while after the leader has ended the session.
//!
//! The margin covers clock drift, and that a follower reports to the leader which sessions it has heard of only once
//! every half tick: the session timeout is at least two ticks, by default rather five or more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::clock::Moment;

/// The part of the session timeout that a lease gives away, as a divisor.
const MARGIN_DIVISOR: u32 = 8;

/// The lengths of time that follow from a session timeout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseLength {
    session_timeout: Duration,
}

impl LeaseLength {
    pub(crate) fn of(session_timeout: Duration) -> LeaseLength {
        LeaseLength { session_timeout }
    }

    /// Until when a request sent then, and answered, proves the session alive.
    pub(crate) fn proven_by(self, sent: Moment) -> Moment {
        sent.after(self.session_timeout - self.session_timeout / MARGIN_DIVISOR)
    }

    /// From when on nothing heard since a request sent then means that the session is given up.
    pub(crate) fn given_up_after(self, sent: Moment) -> Moment {
        sent.after(self.session_timeout)
    }
}

/// One unbroken stretch of proof: it is extended again and again, and once it has ended it stays ended.
///
/// An owner keeps the term under which it acquired. A term is closed for extension by a disconnect, so that an owner's
/// lease runs on but grows only after a look at its znode has moved it to the current term.
#[derive(Debug)]
pub(crate) struct Term {
    /// Nanoseconds of the [`Moment`] at which it ends, or one of the two below, which cover no moment either.
    end: AtomicU64,
}

/// Nothing has been proven under the term yet.
const UNPROVEN: u64 = 0;
/// The term was ended ahead of its time.
const FINISHED: u64 = 1;

impl Term {
    fn until(end: Moment) -> Arc<Term> {
        Arc::new(Term { end: AtomicU64::new(end.as_nanos()) })
    }

    fn unproven() -> Arc<Term> {
        Arc::new(Term { end: AtomicU64::new(UNPROVEN) })
    }

    pub(crate) fn covers(&self, now: Moment) -> bool {
        now.as_nanos() < self.end.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) -> Moment {
        Moment::from_nanos(self.end.load(Ordering::Acquire))
    }

    /// Extends the term, unless it has ended by `now`. Returns whether the proof was taken up.
    fn extend(&self, now: Moment, end: Moment) -> bool {
        self.end
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |current| {
                (current == UNPROVEN || now.as_nanos() < current).then_some(current.max(end.as_nanos()))
            })
            .is_ok()
    }

    fn finish(&self) {
        self.end.store(FINISHED, Ordering::Release);
    }
}

/// The session's lease: its current term, and whether there can be another.
#[derive(Debug)]
pub(crate) struct Lease {
    length: LeaseLength,
    current: Arc<Term>,
    last_proof: Moment,
    over: bool,
}

impl Lease {
    /// A lease that starts with proof of a request sent at that moment.
    pub(crate) fn starting(session_timeout: Duration, sent: Moment) -> Lease {
        let length = LeaseLength::of(session_timeout);
        Lease { length, current: Term::until(length.proven_by(sent)), last_proof: sent, over: false }
    }

    pub(crate) fn current(&self) -> &Arc<Term> {
        &self.current
    }

    /// When the newest answered request was sent.
    pub(crate) fn last_proof(&self) -> Moment {
        self.last_proof
    }

    pub(crate) fn given_up_at(&self) -> Moment {
        self.length.given_up_after(self.last_proof)
    }

    /// Takes up the proof of a request that was sent under `term` and has been answered by `now`.
    ///
    /// Returns whether it came too late for the owners under that term: its end is final for them, and those to come
    /// start anew.
    pub(crate) fn prove(&mut self, term: &Arc<Term>, sent: Moment, now: Moment) -> bool {
        if self.over {
            return false;
        }
        self.last_proof = self.last_proof.max(sent);
        let end = self.length.proven_by(sent);
        if term.extend(now, end) || !Arc::ptr_eq(term, &self.current) {
            return false;
        }
        self.current = Term::until(end);
        true
    }

    /// Closes the current term for extension: what is proven from now on belongs to a new one.
    pub(crate) fn break_off(&mut self) {
        if !self.over {
            self.current = Term::unproven();
        }
    }

    /// Ends the lease and the current term at once, for good.
    pub(crate) fn finish(&mut self) {
        self.over = true;
        self.current.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(8);

    fn second(seconds: u64) -> Moment {
        Moment::from_nanos(0).after(Duration::from_secs(100 + seconds))
    }

    #[test]
    fn a_lease_ends_a_margin_before_the_session_timeout_after_the_sending() {
        let lease = Lease::starting(TIMEOUT, second(0));
        assert!(lease.current().covers(second(6)));
        assert!(!lease.current().covers(second(7)));
        assert_eq!(lease.given_up_at(), second(8));
    }

    #[test]
    fn an_answer_counts_from_its_sending_not_from_its_arrival() {
        let mut lease = Lease::starting(TIMEOUT, second(0));
        let term = Arc::clone(lease.current());
        lease.prove(&term, second(1), second(5));
        assert!(term.covers(second(7)));
        assert!(!term.covers(second(8)));
    }

    #[test]
    fn an_older_proof_never_shortens_a_term() {
        let mut lease = Lease::starting(TIMEOUT, second(4));
        let term = Arc::clone(lease.current());
        lease.prove(&term, second(1), second(5));
        assert!(term.covers(second(10)));
        assert_eq!(lease.last_proof(), second(4));
    }

    #[test]
    fn a_term_that_has_ended_is_final_and_a_late_proof_starts_another() {
        let mut lease = Lease::starting(TIMEOUT, second(0));
        let old = Arc::clone(lease.current());
        assert!(lease.prove(&old, second(6), second(9)));
        assert!(!old.covers(second(9)));
        assert!(lease.current().covers(second(9)));
    }

    #[test]
    fn after_a_disconnect_the_old_term_runs_on_and_proof_goes_to_the_new_one() {
        let mut lease = Lease::starting(TIMEOUT, second(0));
        let old = Arc::clone(lease.current());
        lease.break_off();
        let new = Arc::clone(lease.current());
        assert!(old.covers(second(6)));
        assert!(!new.covers(second(1)));
        assert!(!lease.prove(&new, second(2), second(3)));
        assert!(lease.current().covers(second(8)));
        assert!(!old.covers(second(8)));
    }

    #[test]
    fn a_finished_lease_takes_no_more_proof() {
        let mut lease = Lease::starting(TIMEOUT, second(0));
        let term = Arc::clone(lease.current());
        lease.finish();
        assert!(!term.covers(second(1)));
        lease.prove(&term, second(1), second(1));
        assert!(!lease.current().covers(second(1)));
    }
}
