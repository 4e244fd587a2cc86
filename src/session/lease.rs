//! The lease: until when the server provably keeps the session, and with it every lock that this process owns.
//!
//! The leader of the ensemble ends a session one session timeout after it has last *heard* of it, and of a client that
//! is connected to a follower it hears in two ways only:
//! - when the session is opened, and when the client reconnects: the follower asks the leader, which takes note;
//! - from the follower's answers to the leader's pings, one every half tick, which name the sessions that were active.
//!
//! A request alone proves less than it seems, even one that goes through the leader: if the follower dies before its next
//! report, the leader counts from the report before. So a request that was *sent* at one time proves the session alive for
//! a session timeout from then on only once a later request that passed through the leader has been answered: sent after
//! the earlier one's *answer* by more than the time between two reports, which travel the same way. It confirms the earlier
//! one. Reads prove nothing: a follower that has lost its leader answers them for a while after the leader has ended the
//! session.
//!
//! A margin covers clock drift.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::clock::Moment;

/// The part of the session timeout that a lease gives away for clock drift, as a divisor.
const MARGIN_DIVISOR: u32 = 32;

/// The part of the session timeout by which a lease is renewed before it must be, as a divisor.
const SLACK_DIVISOR: u32 = 16;

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

/// The session's lease: its current term, what is to prove the next, and whether there can be one.
#[derive(Debug)]
pub(crate) struct Lease {
    session_timeout: Duration,
    /// After which time a follower has reported to the leader.
    report_delay: Duration,
    current: Arc<Term>,
    /// Terms that were broken off, for as long as somebody may hold a lock under one.
    broken_off: Vec<Weak<Term>>,
    /// Answered requests that nothing has confirmed yet, oldest first.
    unconfirmed: VecDeque<Exchange>,
    /// When the request was answered that waits to be confirmed.
    awaiting: Option<Moment>,
    /// When there was last a sign of the other side.
    last_contact: Moment,
    over: bool,
}

/// A request and its answer. The ensemble had it in between: what is proven counts from the sending, and the time within
/// which it is reported from the answer.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    sent: Moment,
    answered: Moment,
}

impl Lease {
    /// A lease without proof; the contact counts from now.
    pub(crate) fn unproven(session_timeout: Duration, report_delay: Duration, now: Moment) -> Lease {
        Lease {
            session_timeout,
            report_delay,
            current: Term::unproven(),
            broken_off: Vec::new(),
            unconfirmed: VecDeque::new(),
            awaiting: None,
            last_contact: now,
            over: false,
        }
    }

    pub(crate) fn current(&self) -> &Arc<Term> {
        &self.current
    }

    /// When the session is given up unless there is a sign of the other side before.
    pub(crate) fn given_up_at(&self) -> Moment {
        self.last_contact.after(self.session_timeout)
    }

    /// Whether a lock may be taken under the term: it lasts, and can still be extended before it ends. An owner under one
    /// that cannot be would have lost the lock before it could do anything with it.
    pub(crate) fn admits_owners(&self, term: &Term, now: Moment) -> bool {
        let oldest = self.unconfirmed.front().map_or(now, |exchange| exchange.answered);
        term.covers(now) && term.covers(oldest.after(self.report_delay))
    }

    /// When a request is due to keep the lease from ending, on a connection that wants to be left alone for `quiet`.
    pub(crate) fn keep_alive_due(&self, quiet: Duration) -> Moment {
        if let Some(awaiting) = self.awaiting {
            return awaiting.after(self.report_delay);
        }
        let ahead = self.report_delay.saturating_add(self.session_timeout / SLACK_DIVISOR);
        let must = self.current.end().before(ahead);
        must.min(self.last_contact.after(quiet.max(self.session_timeout / 3)))
    }

    /// Takes note of a sign of the other side that proves nothing.
    pub(crate) fn contact(&mut self, now: Moment) {
        self.last_contact = self.last_contact.max(now);
    }

    /// Takes up that the leader itself has heard of the session at that moment or later: it was opened, or taken up again
    /// on a new connection.
    pub(crate) fn heard_of(&mut self, heard: Moment, now: Moment) {
        self.contact(now);
        let term = Arc::clone(&self.current);
        self.extend(&term, heard, now);
    }

    /// Takes up the answer to a request that passed through the leader, sent under `term` and answered by `now`.
    ///
    /// Returns whether it came too late for the owners under that term: its end is final for them, and those to come
    /// start anew.
    pub(crate) fn answered(&mut self, term: &Arc<Term>, sent: Moment, now: Moment) -> bool {
        self.contact(now);
        if self.report_delay.is_zero() {
            return self.extend(term, sent, now);
        }
        let confirmed = self.take_confirmed(sent);
        self.note(Exchange { sent, answered: now });
        let Some(confirmed) = confirmed else { return false };
        if self.awaiting.is_some_and(|awaiting| awaiting <= confirmed.answered) {
            self.awaiting = None;
        }
        self.extend(term, confirmed.sent, now)
    }

    /// Returns the newest request that was reported before a server on the same connection got one sent at this moment.
    fn take_confirmed(&mut self, sent: Moment) -> Option<Exchange> {
        let report_delay = self.report_delay;
        let reported = |exchange: &Exchange| exchange.answered.after(report_delay) <= sent;
        let count = self.unconfirmed.partition_point(reported);
        self.unconfirmed.drain(..count).next_back()
    }

    /// Asks for a confirmation of the newest request; `false` when there is none young enough to be worth it.
    pub(crate) fn await_confirmation(&mut self, now: Moment) -> bool {
        if self.awaiting.is_some() {
            // Its time has come. A later request must not put it off, perhaps beyond the end of the lease.
            return false;
        }
        let newest = self.unconfirmed.back().map(|exchange| exchange.answered);
        self.awaiting = newest.filter(|answered| now < answered.after(self.report_delay));
        self.awaiting.is_some()
    }

    /// Contact was lost: what is proven from now on belongs to a new term.
    pub(crate) fn break_off(&mut self, now: Moment) {
        self.contact(now);
        self.unconfirmed.clear();
        self.awaiting = None;
        if !self.over {
            self.broken_off.retain(|term| term.strong_count() > 0);
            self.broken_off.push(Arc::downgrade(&self.current));
            self.current = Term::unproven();
        }
    }

    /// Ends the lease and every term of it at once, for good.
    pub(crate) fn finish(&mut self) {
        self.over = true;
        self.current.finish();
        for term in self.broken_off.drain(..).filter_map(|term| term.upgrade()) {
            term.finish();
        }
    }

    /// Remembers a request. Few suffice: each is to stand for those shortly after it.
    fn note(&mut self, exchange: Exchange) {
        if self.unconfirmed.back().is_none_or(|last| last.sent.after(self.report_delay / 4) <= exchange.sent)
        {
            self.unconfirmed.push_back(exchange);
        }
    }

    fn extend(&mut self, term: &Arc<Term>, proven: Moment, now: Moment) -> bool {
        let end = proven.after(self.session_timeout - self.session_timeout / MARGIN_DIVISOR);
        if self.over || term.extend(now, end) || !Arc::ptr_eq(term, &self.current) {
            return false;
        }
        self.current = Term::until(end);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(32);
    const REPORT: Duration = Duration::from_secs(2);
    const QUIET: Duration = Duration::from_secs(20);

    fn second(seconds: u64) -> Moment {
        Moment::from_nanos(0).after(Duration::from_secs(100 + seconds))
    }

    /// A lease of a session that was opened at second 0.
    fn opened() -> (Lease, Arc<Term>) {
        let mut lease = Lease::unproven(TIMEOUT, REPORT, second(0));
        lease.heard_of(second(0), second(0));
        let term = Arc::clone(lease.current());
        (lease, term)
    }

    #[test]
    fn nothing_is_owned_before_the_first_proof() {
        let lease = Lease::unproven(TIMEOUT, REPORT, second(0));
        assert!(!lease.current().covers(second(0)));
        assert!(lease.keep_alive_due(QUIET) <= second(0));
    }

    #[test]
    fn a_lease_ends_a_margin_before_the_session_timeout() {
        let (lease, term) = opened();
        assert!(term.covers(second(30)));
        assert!(!term.covers(second(31)));
        assert_eq!(lease.given_up_at(), second(32));
    }

    #[test]
    fn a_request_extends_the_lease_only_when_a_later_one_confirms_it() {
        let (mut lease, term) = opened();
        lease.answered(&term, second(10), second(11));
        assert_eq!(term.end(), second(31), "a follower may die before it reports this");
        lease.answered(&term, second(11), second(12));
        assert_eq!(term.end(), second(31), "too soon to know of the report");
        lease.answered(&term, second(12), second(20));
        assert_eq!(
            term.end(),
            second(31),
            "the first may have reached the follower as late as its answer came"
        );
        lease.answered(&term, second(22), second(23));
        assert_eq!(term.end(), second(12 + 31));
    }

    #[test]
    fn a_request_counts_from_its_sending_not_from_its_answer() {
        let mut lease = Lease::unproven(TIMEOUT, Duration::ZERO, second(0));
        let term = Arc::clone(lease.current());
        lease.answered(&term, second(1), second(9));
        assert_eq!(term.end(), second(32));
    }

    #[test]
    fn an_older_proof_never_shortens_a_term() {
        let mut lease = Lease::unproven(TIMEOUT, Duration::ZERO, second(0));
        let term = Arc::clone(lease.current());
        lease.answered(&term, second(4), second(5));
        lease.answered(&term, second(1), second(6));
        assert_eq!(term.end(), second(4 + 31));
    }

    #[test]
    fn a_keep_alive_is_due_after_the_quiet_time_and_its_confirmation_after_the_report() {
        let (mut lease, term) = opened();
        assert_eq!(lease.keep_alive_due(QUIET), second(20));
        lease.answered(&term, second(20), second(21));
        assert!(lease.await_confirmation(second(21)));
        assert_eq!(lease.keep_alive_due(QUIET), second(23));
        lease.answered(&term, second(23), second(24));
        assert_eq!(term.end(), second(20 + 31));
        assert_eq!(lease.keep_alive_due(QUIET), second(24 + 20), "quiet counts from the answer");
    }

    #[test]
    fn a_confirmation_that_is_awaited_is_not_put_off_by_later_requests() {
        let (mut lease, term) = opened();
        lease.answered(&term, second(20), second(21));
        assert!(lease.await_confirmation(second(21)));
        lease.answered(&term, second(22), second(22));
        assert_eq!(lease.keep_alive_due(QUIET), second(23));
        assert!(!lease.await_confirmation(second(23)), "it is due");
    }

    #[test]
    fn a_keep_alive_comes_in_time_even_if_that_breaks_the_quiet() {
        let (lease, _) = opened();
        assert_eq!(lease.keep_alive_due(Duration::from_secs(100)), second(31 - 2 - 2));
    }

    #[test]
    fn traffic_needs_no_keep_alive() {
        let (mut lease, term) = opened();
        for now in 1..100 {
            lease.answered(&term, second(now), second(now));
            assert!(lease.keep_alive_due(QUIET) > second(now));
        }
        assert_eq!(term.end(), second(97 + 31));
        assert!(lease.unconfirmed.len() <= 5, "{:?}", lease.unconfirmed);
    }

    #[test]
    fn a_term_that_has_ended_is_final_and_a_late_proof_starts_another() {
        let mut lease = Lease::unproven(TIMEOUT, Duration::ZERO, second(0));
        let old = Arc::clone(lease.current());
        lease.answered(&old, second(0), second(0));
        assert!(lease.answered(&old, second(6), second(40)));
        assert!(!old.covers(second(33)));
        assert!(lease.current().covers(second(33)));
    }

    #[test]
    fn after_a_disconnect_the_old_term_runs_on_and_proof_goes_to_the_new_one() {
        let (mut lease, old) = opened();
        lease.answered(&old, second(1), second(1));
        lease.break_off(second(2));
        let new = Arc::clone(lease.current());
        assert!(old.covers(second(30)) && !new.covers(second(2)));
        lease.heard_of(second(2), second(9));
        assert_eq!(new.end(), second(2 + 31));
        assert_eq!(old.end(), second(31));
        assert_eq!(lease.given_up_at(), second(9 + 32));
        // What was sent on the old connection is confirmed by nothing on the new one.
        lease.answered(&new, second(10), second(10));
        assert_eq!(new.end(), second(2 + 31));
    }

    #[test]
    fn a_term_that_ends_before_it_can_be_extended_admits_no_owners() {
        let (mut lease, term) = opened();
        assert!(lease.admits_owners(&term, second(28)));
        assert!(term.covers(second(29)) && !lease.admits_owners(&term, second(29)));
        lease.answered(&term, second(27), second(28));
        assert!(lease.admits_owners(&term, second(29)), "a request sent at second 30 confirms it in time");
        assert!(lease.admits_owners(&term, second(30)));
        assert!(!lease.admits_owners(&term, second(31)));
    }

    #[test]
    fn a_proof_so_old_that_its_term_ends_at_once_admits_no_owners() {
        let (mut lease, first) = opened();
        lease.answered(&first, second(1), second(1));
        assert!(lease.answered(&first, second(20), second(31)));
        let late = Arc::clone(lease.current());
        assert!(late.covers(second(31)) && !lease.admits_owners(&late, second(31)));
    }

    /// Keeps the lease of an idle session as its core does, on a network with these round trips. Returns the least time
    /// that was left of it.
    fn keep_when_idle(
        timeout: Duration,
        report: Duration,
        quiet: Duration,
        round_trip: Duration,
    ) -> Duration {
        let mut lease = Lease::unproven(timeout, report, second(0));
        lease.heard_of(second(0), second(0));
        let term = Arc::clone(lease.current());
        let mut now = second(0).after(round_trip);
        lease.answered(&term, second(0), now);
        let mut least = timeout;
        while now < second(0).after(10 * timeout) {
            now = lease.keep_alive_due(quiet).max(now);
            if !lease.await_confirmation(now) {
                let sent = now;
                now = sent.after(round_trip);
                let left = term.end().since(now);
                assert!(lease.admits_owners(&term, now), "{left:?} left, {lease:?}");
                least = least.min(left);
                lease.answered(&term, sent, now);
            }
            assert!(lease.admits_owners(&term, now), "{lease:?}");
        }
        least
    }

    #[test]
    fn an_idle_session_admits_owners_at_any_time() {
        for timeout in [1, 2, 4, 6, 10, 20, 40, 60, 120].map(Duration::from_secs) {
            let quiet = timeout * 2 / 3 + Duration::from_millis(200);
            let reports =
                [50, 250, 1000, 5000].map(|half_tick| Duration::from_millis(half_tick).min(timeout / 4));
            let of_adapter = reports.map(|report| (report * 11 / 10, quiet));
            for (report, quiet) in of_adapter.into_iter().chain([(timeout / 4, Duration::ZERO)]) {
                // Two round trips, and what delays a timer, fit into the slack of a sixteenth.
                assert!(keep_when_idle(timeout, report, quiet, timeout / 40) >= timeout / 80);
            }
        }
    }

    #[test]
    fn a_report_that_never_comes_is_waited_for_without_an_overflow() {
        let lease = Lease::unproven(TIMEOUT, Duration::MAX, second(0));
        assert!(lease.keep_alive_due(QUIET) <= second(0));
    }

    #[test]
    fn a_finished_lease_takes_no_more_proof() {
        let (mut lease, term) = opened();
        lease.finish();
        assert!(!term.covers(second(1)));
        assert!(!lease.answered(&term, second(1), second(4)));
        lease.heard_of(second(5), second(5));
        assert!(!lease.current().covers(second(5)));
    }

    #[test]
    fn a_finished_lease_ends_the_terms_before_the_last_disconnect_too() {
        let (mut lease, first) = opened();
        lease.break_off(second(1));
        lease.heard_of(second(1), second(2));
        let second_term = Arc::clone(lease.current());
        lease.break_off(second(3));
        lease.finish();
        assert!(!first.covers(second(4)) && !second_term.covers(second(4)));
    }
}
