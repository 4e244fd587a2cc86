//! The lease: until when the server provably keeps the session, and with it every lock that this process owns.
//!
//! The leader of the ensemble ends a session one session timeout after it has last *heard* of it. It
//! hears of a client that is connected to a follower in two ways only:
//! - when the session is opened, and when the client reconnects: the follower asks the leader;
//! - from the reports of the follower, which name the sessions that were active since the report
//!   before. They go out every half tick. An observer that hangs on a follower reports to that one, so
//!   its reports take two half ticks.
//!
//! So an answer proves less than it seems, even to a request that goes through the leader: if the follower
//! dies before its next report, the leader counts from the report before. What proves that the
//! session lives until one session timeout after a moment:
//! - *Two requests*, one after the other, the older sent at that moment, and both answered. Any request
//!   marks the session as active; of two, at least one is in the next report (a mark that races with a
//!   report can be lost).
//! - *A write*, sent on the same connection a full report delay after those two were answered, and answered
//!   itself. It passes through the leader on the way that the report took before it. A read would prove
//!   nothing: a server that has lost its leader answers reads for a while after the new leader has ended
//!   the session.
//!
//! A reconnect alone proves nothing for the same reason. It counts once the first write on that
//! connection has been answered. The session timeout and the report delay that count are those of the
//! connection as it is now, since a server grants them anew on every reconnect.
//!
//! A margin covers clock drift.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::clock::Moment;
use crate::client::Granted;

/// The part of the session timeout that a lease gives away for clock drift, as a divisor.
const MARGIN_DIVISOR: u32 = 32;

/// The part of the session timeout by which a lease is renewed before it must be, as a divisor.
const SLACK_DIVISOR: u32 = 16;

/// The least part of the session timeout between two keep-alives, as a divisor.
const MIN_PERIOD_DIVISOR: u32 = 64;

/// One unbroken stretch of proof: it is extended again and again, and once it has ended it stays ended.
///
/// An owner keeps the epoch under which it acquired. An epoch is closed for extension by a disconnect, so that an owner's
/// lease runs on but grows only after a look at its znode has moved it to the current epoch.
#[derive(Debug)]
pub(crate) struct LeaseEpoch {
    /// Nanoseconds of the [`Moment`] at which it ends, or one of the two below, which cover no moment either.
    end: AtomicU64,
}

/// Nothing has been proven under the epoch yet.
const UNPROVEN: u64 = 0;
/// The epoch was ended ahead of its time.
const FINISHED: u64 = 1;

impl LeaseEpoch {
    fn until(end: Moment) -> Arc<LeaseEpoch> {
        Arc::new(LeaseEpoch { end: AtomicU64::new(end.as_nanos()) })
    }

    fn unproven() -> Arc<LeaseEpoch> {
        Arc::new(LeaseEpoch { end: AtomicU64::new(UNPROVEN) })
    }

    pub(crate) fn covers(&self, now: Moment) -> bool {
        now.as_nanos() < self.end.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) -> Moment {
        Moment::from_nanos(self.end.load(Ordering::Acquire))
    }

    /// Extends the epoch, unless it has ended by `now`. Returns whether the proof was taken up.
    fn extend(&self, now: Moment, end: Moment) -> bool {
        self.end
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |current| {
                (current == UNPROVEN || now.as_nanos() < current).then_some(current.max(end.as_nanos()))
            })
            .is_ok()
    }

    /// Has the epoch end at that moment at the latest.
    fn cap(&self, end: Moment) {
        self.end.fetch_min(end.as_nanos(), Ordering::AcqRel);
    }

    fn finish(&self) {
        self.end.store(FINISHED, Ordering::Release);
    }
}

/// The session's lease: its current epoch, what is to prove the next, and whether there can be one.
#[derive(Debug)]
pub(crate) struct Lease {
    /// What the server of the current connection grants.
    granted: Granted,
    current: Arc<LeaseEpoch>,
    /// Epochs that were broken off, for as long as somebody may hold a lock under one.
    broken_off: Vec<Weak<LeaseEpoch>>,
    /// Counts the times at which contact began or ended. Requests of different counts prove nothing together.
    connection: u64,
    /// The session was opened, or taken up again, on this connection and after this moment. Nothing is
    /// proven by that before a write on the connection is answered.
    taken_up_after: Option<Moment>,
    /// The last request that was answered on this connection; the next one makes a pair with it.
    last: Option<Exchange>,
    /// Pairs of answered requests that no write has confirmed yet, oldest first.
    unconfirmed: VecDeque<Exchange>,
    /// When the pair was answered that waits to be confirmed.
    awaiting: Option<Moment>,
    /// When the last answered write on this connection was sent.
    last_write: Option<Moment>,
    /// When there was last a sign of the other side.
    last_contact: Moment,
    over: bool,
}

/// A request and its answer, or two: the first sending and the last answer. The ensemble had it in between, so what
/// is proven counts from the sending, and the report delay from the answer.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    sent: Moment,
    answered: Moment,
}

/// When a request was sent, and on which connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    at: Moment,
    connection: u64,
}

impl Lease {
    /// A lease without proof and without a connection; the contact counts from now.
    pub(crate) fn unproven(granted: Granted, now: Moment) -> Lease {
        Lease {
            granted,
            current: LeaseEpoch::unproven(),
            broken_off: Vec::new(),
            connection: 0,
            taken_up_after: None,
            last: None,
            unconfirmed: VecDeque::new(),
            awaiting: None,
            last_write: None,
            last_contact: now,
            over: false,
        }
    }

    pub(crate) fn current(&self) -> &Arc<LeaseEpoch> {
        &self.current
    }

    pub(crate) fn session_timeout(&self) -> Duration {
        self.granted.session_timeout
    }

    /// Whether a write proves something only after others that came before it.
    pub(crate) fn needs_pairs(&self) -> bool {
        !self.granted.report_delay.is_zero()
    }

    /// When the session is given up unless there is a sign of the other side before.
    pub(crate) fn given_up_at(&self) -> Moment {
        self.last_contact.after(self.granted.session_timeout)
    }

    /// Until when the last answered write on this connection shows that there is contact with the ensemble. A lease
    /// needs more than that.
    pub(crate) fn last_write_holds_until(&self) -> Moment {
        self.last_write.map_or(Moment::from_nanos(0), |sent| sent.after(self.span()))
    }

    pub(crate) fn last_contact(&self) -> Moment {
        self.last_contact
    }

    /// Whether a lock may be taken under the epoch: it lasts, and can still be extended before it ends. An owner under
    /// one that cannot be would have lost the lock before it could do anything with it.
    pub(crate) fn admits_owners(&self, epoch: &LeaseEpoch, now: Moment) -> bool {
        let oldest = self.unconfirmed.front().map_or(now, |pair| pair.answered);
        epoch.covers(now) && epoch.covers(oldest.after(self.granted.report_delay))
    }

    /// When a request is due to keep the lease from ending, on a connection that wants to be left alone for `quiet`.
    pub(crate) fn keep_alive_due(&self, quiet: Duration) -> Moment {
        if let Some(awaiting) = self.awaiting {
            return awaiting.after(self.granted.report_delay);
        }
        let must = if self.has_room_to_wait() {
            self.next_due_before(self.current.end())
        } else {
            self.next_period()
        };
        must.min(self.last_contact.after(quiet.max(self.granted.session_timeout / 3)))
    }

    /// When a keep-alive is due that is to be confirmed before the lease ends at that moment.
    fn next_due_before(&self, end: Moment) -> Moment {
        end.before(self.granted.report_delay.saturating_add(self.slack()))
    }

    /// Whether a keep-alive and its confirmation, one report delay later, leave time for the next ones. If not,
    /// keep-alives come at short intervals, and each confirms an older one.
    fn has_room_to_wait(&self) -> bool {
        self.span() >= self.granted.report_delay.saturating_mul(2).saturating_add(2 * self.slack())
    }

    /// When a keep-alive is due where they cannot wait for one another. Each confirms a pair that is older than the report
    /// delay by up to a period, and what it proves must hold for a further period.
    fn next_period(&self) -> Moment {
        let (Some(write), Some(pair)) = (self.last_write, self.unconfirmed.back()) else {
            return Moment::from_nanos(0);
        };
        let spare = self.span().saturating_sub(self.granted.report_delay).saturating_sub(self.slack());
        let least = write.after(self.granted.session_timeout / MIN_PERIOD_DIVISOR);
        write.min(pair.sent).after(spare / 2).max(least)
    }

    /// How long a proof holds.
    fn span(&self) -> Duration {
        self.granted.session_timeout - self.granted.session_timeout / MARGIN_DIVISOR
    }

    fn slack(&self) -> Duration {
        self.granted.session_timeout / SLACK_DIVISOR
    }

    /// Takes note of a sign of the other side that proves nothing.
    fn contact(&mut self, now: Moment) {
        self.last_contact = self.last_contact.max(now);
    }

    /// Contact has begun, with a server that grants this. The session was opened, or taken up again, after
    /// `taken_up_after`; `None` when that was some time ago.
    ///
    /// Returns the moment at which the epochs of before end now, if that may be earlier: a shorter session timeout
    /// counts from the moment at which the server granted it.
    pub(crate) fn connected(
        &mut self,
        granted: Granted,
        taken_up_after: Option<Moment>,
        now: Moment,
    ) -> Option<Moment> {
        let is_shorter = granted.session_timeout < self.granted.session_timeout;
        self.granted = granted;
        self.contact(now);
        self.begin_connection();
        self.taken_up_after = taken_up_after;
        if !is_shorter {
            return None;
        }
        let end = taken_up_after.unwrap_or(now).after(self.span());
        self.current.cap(end);
        self.broken_off.iter().filter_map(Weak::upgrade).for_each(|epoch| epoch.cap(end));
        Some(end)
    }

    /// Contact was lost: what is proven from now on belongs to a new epoch.
    pub(crate) fn disconnected(&mut self, now: Moment) {
        self.contact(now);
        self.begin_connection();
        if !self.over {
            self.broken_off.retain(|epoch| epoch.strong_count() > 0);
            self.broken_off.push(Arc::downgrade(&self.current));
            self.current = LeaseEpoch::unproven();
        }
    }

    fn begin_connection(&mut self) {
        self.connection += 1;
        self.taken_up_after = None;
        self.last = None;
        self.last_write = None;
        self.unconfirmed.clear();
        self.awaiting = None;
    }

    /// To be called before a request is sent.
    pub(crate) fn sending(&self, now: Moment) -> Sending {
        Sending { at: now, connection: self.connection }
    }

    /// Takes up the answer to a request that any server may have given.
    pub(crate) fn read_answered(&mut self, sending: Sending, now: Moment) {
        self.contact(now);
        if sending.connection == self.connection {
            self.note(Exchange { sent: sending.at, answered: now });
        }
    }

    /// Takes up the answer to a request that passed through the leader.
    ///
    /// Returns whether it came too late for the owners under the current epoch: its end is final for them, and those to
    /// come start anew.
    pub(crate) fn write_answered(&mut self, sending: Sending, now: Moment) -> bool {
        self.contact(now);
        if sending.connection != self.connection {
            return false;
        }
        self.last_write = self.last_write.max(Some(sending.at));
        let proven = self.taken_up_after.take().max(self.take_confirmed(sending.at));
        self.note(Exchange { sent: sending.at, answered: now });
        proven.is_some_and(|proven| self.extend(proven, now))
    }

    /// Returns the moment since which the session is proven to be known to the leader by a write sent at `sent`.
    fn take_confirmed(&mut self, sent: Moment) -> Option<Moment> {
        if !self.needs_pairs() {
            return Some(sent);
        }
        let report_delay = self.granted.report_delay;
        let count = self.unconfirmed.partition_point(|pair| pair.answered.after(report_delay) <= sent);
        let newest = self.unconfirmed.drain(..count).max_by_key(|pair| pair.sent)?;
        self.awaiting.take_if(|awaiting| *awaiting <= newest.answered);
        Some(newest.sent)
    }

    /// Asks for a confirmation of the newest pair; `false` when a new one is needed.
    pub(crate) fn await_confirmation(&mut self, now: Moment) -> bool {
        if self.awaiting.is_some() {
            // Its time has come. A later request must not put it off, perhaps beyond the end of the lease.
            return false;
        }
        let worthwhile = self.unconfirmed.back().filter(|pair| {
            let confirmed = pair.answered.after(self.granted.report_delay);
            now < confirmed && confirmed <= self.next_due_before(pair.sent.after(self.span()))
        });
        self.awaiting = worthwhile.map(|pair| pair.answered);
        self.awaiting.is_some()
    }

    /// Ends the lease and every epoch of it at once, for good.
    pub(crate) fn finish(&mut self) {
        self.over = true;
        self.current.finish();
        for epoch in self.broken_off.drain(..).filter_map(|epoch| epoch.upgrade()) {
            epoch.finish();
        }
    }

    /// Remembers a request, as a pair with the one before it. Few pairs suffice: each is to stand for those shortly
    /// after it.
    fn note(&mut self, exchange: Exchange) {
        let Some(before) = self.last.replace(exchange) else { return };
        let pair = Exchange { sent: before.sent.min(exchange.sent), answered: exchange.answered };
        let spacing = self.granted.report_delay / 16;
        if self.unconfirmed.back().is_none_or(|last| last.sent.after(spacing) <= pair.sent) {
            self.unconfirmed.push_back(pair);
        }
    }

    fn extend(&mut self, proven: Moment, now: Moment) -> bool {
        let end = proven.after(self.span());
        if self.over || self.current.extend(now, end) {
            return false;
        }
        self.current = LeaseEpoch::until(end);
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

    fn granted(session_timeout: Duration, report_delay: Duration) -> Granted {
        Granted::new(session_timeout).with_report_delay(report_delay)
    }

    /// A lease on a server that leads, so that nothing has to be reported.
    fn of_the_leader() -> Lease {
        Lease::unproven(granted(TIMEOUT, Duration::ZERO), second(0))
    }

    /// A lease of a session that was opened at second 0, where a write was answered.
    fn opened() -> (Lease, Arc<LeaseEpoch>) {
        let mut lease = Lease::unproven(granted(TIMEOUT, REPORT), second(0));
        lease.connected(granted(TIMEOUT, REPORT), Some(second(0)), second(0));
        lease.write(second(0), second(0));
        let epoch = Arc::clone(lease.current());
        (lease, epoch)
    }

    impl Lease {
        /// A write that is sent and answered on the present connection.
        fn write(&mut self, sent: Moment, answered: Moment) -> bool {
            let sending = self.sending(sent);
            self.write_answered(sending, answered)
        }

        fn read(&mut self, sent: Moment, answered: Moment) {
            let sending = self.sending(sent);
            self.read_answered(sending, answered);
        }

        /// What a session does to prove that it lives.
        fn read_and_write(&mut self, sent: Moment, answered: Moment) -> bool {
            self.read(sent, answered);
            self.write(answered, answered)
        }
    }

    #[test]
    fn nothing_is_owned_before_the_first_proof() {
        let lease = Lease::unproven(granted(TIMEOUT, REPORT), second(0));
        assert!(!lease.current().covers(second(0)));
        assert!(lease.keep_alive_due(QUIET) <= second(0));
    }

    #[test]
    fn a_lease_ends_a_margin_before_the_session_timeout() {
        let (lease, epoch) = opened();
        assert!(epoch.covers(second(30)));
        assert!(!epoch.covers(second(31)));
        assert_eq!(lease.given_up_at(), second(32));
    }

    #[test]
    fn a_connection_proves_nothing_before_a_write_on_it_is_answered() {
        let mut lease = Lease::unproven(granted(TIMEOUT, REPORT), second(0));
        lease.connected(granted(TIMEOUT, REPORT), Some(second(0)), second(1));
        lease.read(second(2), second(2));
        assert!(!lease.current().covers(second(2)), "a leader that was deposed answers reads");
        let sent_before = lease.sending(second(2));
        lease.disconnected(second(3));
        lease.connected(granted(TIMEOUT, REPORT), Some(second(3)), second(4));
        lease.write_answered(sent_before, second(5));
        assert!(!lease.current().covers(second(5)), "that write was on the connection before");
        lease.write(second(6), second(7));
        assert_eq!(lease.current().end(), second(3 + 31));
    }

    #[test]
    fn a_pair_of_requests_extends_the_lease_only_when_a_later_write_confirms_it() {
        let (mut lease, epoch) = opened();
        lease.read_and_write(second(10), second(11));
        assert_eq!(epoch.end(), second(31), "a follower may die before it reports this");
        lease.write(second(12), second(12));
        assert_eq!(epoch.end(), second(31), "too soon to know of the report");
        lease.read(second(15), second(15));
        assert_eq!(epoch.end(), second(31), "a read confirms nothing");
        lease.write(second(13), second(20));
        assert_eq!(epoch.end(), second(10 + 31));
    }

    #[test]
    fn a_single_request_before_the_report_extends_no_lease() {
        let mut lease = Lease::unproven(granted(TIMEOUT, REPORT), second(0));
        lease.connected(granted(TIMEOUT, REPORT), None, second(0));
        lease.write(second(1), second(1));
        lease.write(second(9), second(9));
        assert!(!lease.current().covers(second(9)), "the mark that the first one left may be lost");
        lease.write(second(12), second(12));
        assert_eq!(lease.current().end(), second(1 + 31), "of two requests one is reported");
    }

    #[test]
    fn a_request_counts_from_its_sending_not_from_its_answer() {
        let mut lease = of_the_leader();
        let epoch = Arc::clone(lease.current());
        lease.write(second(1), second(9));
        assert_eq!(epoch.end(), second(32));
    }

    #[test]
    fn an_older_proof_never_shortens_a_epoch() {
        let mut lease = of_the_leader();
        let epoch = Arc::clone(lease.current());
        lease.write(second(4), second(5));
        lease.write(second(1), second(6));
        assert_eq!(epoch.end(), second(4 + 31));
    }

    #[test]
    fn a_keep_alive_is_due_after_the_quiet_time_and_its_confirmation_after_the_report() {
        let (mut lease, epoch) = opened();
        assert_eq!(lease.keep_alive_due(QUIET), second(20));
        lease.read_and_write(second(20), second(21));
        assert!(lease.await_confirmation(second(21)));
        assert_eq!(lease.keep_alive_due(QUIET), second(23));
        lease.read_and_write(second(23), second(24));
        assert_eq!(epoch.end(), second(20 + 31));
        assert_eq!(lease.keep_alive_due(QUIET), second(24 + 20), "quiet counts from the answer");
    }

    #[test]
    fn a_confirmation_that_is_awaited_is_not_put_off_by_later_requests() {
        let (mut lease, epoch) = opened();
        lease.read_and_write(second(20), second(21));
        assert!(lease.await_confirmation(second(21)));
        lease.write(second(22), second(22));
        assert_eq!(lease.keep_alive_due(QUIET), second(23));
        assert!(!lease.await_confirmation(second(23)), "it is due");
        drop(epoch);
    }

    #[test]
    fn a_keep_alive_comes_in_time_even_if_that_breaks_the_quiet() {
        let (lease, _) = opened();
        assert_eq!(lease.keep_alive_due(Duration::from_secs(100)), second(31 - 2 - 2));
    }

    #[test]
    fn writes_need_no_keep_alive() {
        let (mut lease, epoch) = opened();
        for now in 1..100 {
            lease.write(second(now), second(now));
            assert!(lease.keep_alive_due(QUIET) > second(now));
        }
        assert_eq!(epoch.end(), second(96 + 31), "a pair, and a report delay before the last write");
        assert!(lease.unconfirmed.len() <= 5, "{:?}", lease.unconfirmed);
    }

    #[test]
    fn a_single_write_after_a_long_silence_does_not_stand_for_a_keep_alive() {
        let (mut lease, epoch) = opened();
        lease.write(second(26), second(26));
        // It makes a pair with the request that opened the session, which a confirmation would not extend.
        assert!(lease.keep_alive_due(QUIET) > second(26));
        assert!(!lease.await_confirmation(second(27)), "{lease:?}");
        lease.read_and_write(second(27), second(27));
        assert!(lease.await_confirmation(second(28)));
        lease.read_and_write(second(29), second(29));
        assert_eq!(epoch.end(), second(27 + 31));
    }

    #[test]
    fn single_writes_do_not_put_a_keep_alive_off_where_the_report_delay_is_long() {
        let half = granted(TIMEOUT, TIMEOUT / 2);
        let mut lease = Lease::unproven(half, second(0));
        lease.connected(half, Some(second(0)), second(0));
        lease.read_and_write(second(0), second(0));
        let epoch = Arc::clone(lease.current());
        for now in 1..100 {
            if now % 5 == 0 {
                lease.write(second(now), second(now));
            }
            if lease.keep_alive_due(QUIET) <= second(now) && !lease.await_confirmation(second(now)) {
                lease.read_and_write(second(now), second(now));
            }
            assert!(lease.admits_owners(&epoch, second(now)), "second {now}: {lease:?}");
        }
    }

    #[test]
    fn reads_alone_do_not_put_a_keep_alive_off() {
        for report_delay in [REPORT, TIMEOUT / 2] {
            let mut lease = Lease::unproven(granted(TIMEOUT, report_delay), second(0));
            lease.connected(granted(TIMEOUT, report_delay), Some(second(0)), second(0));
            lease.read_and_write(second(0), second(0));
            let busy = (1..31).find(|now| {
                lease.read(second(*now), second(*now));
                let is_due = lease.keep_alive_due(QUIET) <= second(*now);
                is_due && !lease.await_confirmation(second(*now))
            });
            assert!(busy.is_some(), "no keep-alive is due although no write comes: {lease:?}");
        }
    }

    #[test]
    fn an_epoch_that_has_ended_is_final_and_a_late_proof_starts_another() {
        let mut lease = of_the_leader();
        let old = Arc::clone(lease.current());
        lease.write(second(0), second(0));
        assert!(lease.write(second(6), second(40)));
        assert!(!old.covers(second(33)));
        assert!(lease.current().covers(second(33)));
    }

    #[test]
    fn after_a_disconnect_the_old_epoch_runs_on_and_proof_goes_to_the_new_one() {
        let (mut lease, old) = opened();
        lease.read_and_write(second(1), second(1));
        lease.disconnected(second(2));
        let new = Arc::clone(lease.current());
        assert!(old.covers(second(30)) && !new.covers(second(2)));
        lease.connected(granted(TIMEOUT, REPORT), Some(second(2)), second(8));
        lease.write(second(9), second(9));
        assert_eq!(new.end(), second(2 + 31));
        assert_eq!(old.end(), second(31));
        assert_eq!(lease.given_up_at(), second(9 + 32));
        // What was sent on the old connection is confirmed by nothing on the new one.
        lease.write(second(10), second(10));
        assert_eq!(new.end(), second(2 + 31));
    }

    #[test]
    fn a_shorter_timeout_that_a_reconnect_brings_ends_the_old_epochs_sooner() {
        let (mut lease, old) = opened();
        lease.disconnected(second(10));
        let shorter = granted(Duration::from_secs(8), REPORT);
        let end = second(10).after(Duration::from_millis(7750));
        assert_eq!(lease.connected(shorter, Some(second(10)), second(12)), Some(end));
        assert_eq!(old.end(), end);
        lease.write(second(13), second(13));
        assert_eq!(lease.current().end(), end);
        assert_eq!(lease.given_up_at(), second(13 + 8));
    }

    #[test]
    fn a_longer_timeout_that_a_reconnect_brings_leaves_the_old_epochs_alone() {
        let (mut lease, old) = opened();
        lease.disconnected(second(10));
        let longer = granted(2 * TIMEOUT, REPORT);
        assert_eq!(lease.connected(longer, Some(second(10)), second(12)), None);
        assert_eq!(old.end(), second(31));
        lease.write(second(13), second(13));
        assert_eq!(lease.current().end(), second(10 + 62));
    }

    #[test]
    fn an_epoch_that_ends_before_it_can_be_extended_admits_no_owners() {
        let (mut lease, epoch) = opened();
        lease.write(second(0), second(0));
        assert!(lease.admits_owners(&epoch, second(28)));
        lease.unconfirmed.clear();
        assert!(epoch.covers(second(29)) && !lease.admits_owners(&epoch, second(29)));
        lease.read_and_write(second(27), second(28));
        assert!(lease.admits_owners(&epoch, second(29)), "a write sent at second 30 confirms it in time");
        assert!(lease.admits_owners(&epoch, second(30)));
        assert!(!lease.admits_owners(&epoch, second(31)));
    }

    #[test]
    fn a_proof_so_old_that_its_epoch_ends_at_once_admits_no_owners() {
        let (mut lease, _) = opened();
        lease.read_and_write(second(1), second(1));
        assert!(lease.write(second(20), second(31)));
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
        let mut lease = Lease::unproven(granted(timeout, report), second(0));
        lease.connected(granted(timeout, report), Some(second(0)), second(0));
        let mut now = second(0).after(round_trip);
        lease.read_and_write(second(0), now);
        let epoch = Arc::clone(lease.current());
        let mut least = timeout;
        while now < second(0).after(10 * timeout) {
            now = lease.keep_alive_due(quiet).max(now);
            if !lease.await_confirmation(now) {
                lease.read(now, now.after(round_trip));
                let sent = now.after(round_trip);
                now = sent.after(round_trip);
                let left = epoch.end().since(now);
                assert!(lease.admits_owners(&epoch, now), "{left:?} left, {lease:?}");
                least = least.min(left);
                lease.write(sent, now);
            }
            assert!(lease.admits_owners(&epoch, now), "{lease:?}");
        }
        least
    }

    #[test]
    fn an_idle_session_admits_owners_at_any_time() {
        for timeout in [1, 2, 4, 6, 10, 20, 40, 60, 120].map(Duration::from_secs) {
            let quiet = timeout * 2 / 3 + Duration::from_millis(200);
            let ticks = [100, 500, 2000, 10_000].map(|tick| Duration::from_millis(tick).min(timeout / 2));
            let of_adapter = ticks.map(|tick| (tick * 11 / 10, quiet));
            for (report, quiet) in of_adapter.into_iter().chain([(timeout / 2, Duration::ZERO)]) {
                // Three round trips, and what delays a timer, fit into the slack of a sixteenth.
                assert!(keep_when_idle(timeout, report, quiet, timeout / 80) >= timeout / 160);
            }
        }
    }

    #[test]
    fn a_report_that_never_comes_is_waited_for_without_an_overflow() {
        let lease = Lease::unproven(granted(TIMEOUT, Duration::MAX), second(0));
        assert!(lease.keep_alive_due(QUIET) <= second(0));
    }

    #[test]
    fn a_finished_lease_takes_no_more_proof() {
        let (mut lease, epoch) = opened();
        lease.finish();
        assert!(!epoch.covers(second(1)));
        assert!(!lease.write(second(1), second(4)));
        lease.connected(granted(TIMEOUT, REPORT), Some(second(5)), second(5));
        lease.write(second(5), second(5));
        assert!(!lease.current().covers(second(5)));
    }

    #[test]
    fn a_finished_lease_ends_the_epochs_before_the_last_disconnect_too() {
        let (mut lease, first) = opened();
        lease.disconnected(second(1));
        lease.connected(granted(TIMEOUT, REPORT), Some(second(1)), second(2));
        lease.write(second(2), second(2));
        let second_epoch = Arc::clone(lease.current());
        lease.disconnected(second(3));
        lease.finish();
        assert!(!first.covers(second(4)) && !second_epoch.covers(second(4)));
    }
}
