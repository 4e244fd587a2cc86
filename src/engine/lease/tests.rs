//! Tests of the lease over time.

mod over_time;
mod pings;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(32);
const REPORT: Duration = Duration::from_secs(2);

fn second(seconds: u64) -> Moment {
    Moment::from_nanos(0).after(Duration::from_secs(100 + seconds))
}

fn granted(session_timeout: Duration, report_delay: Duration) -> Granted {
    Granted::new(session_timeout).with_report_delay(report_delay)
}

/// Returns a lease on a connection to the leader, to which nothing has to be reported.
fn of_the_leader() -> Lease {
    let mut lease = Lease::unproven(granted(TIMEOUT, Duration::ZERO), second(0));
    lease.on_connected(granted(TIMEOUT, Duration::ZERO), None, second(0));
    lease
}

/// Returns the lease of a session that was opened at second 0, when a write was also answered.
fn opened() -> Lease {
    let mut lease = Lease::unproven(granted(TIMEOUT, REPORT), second(0));
    lease.on_connected(granted(TIMEOUT, REPORT), Some(second(0)), second(0));
    lease.write(second(0), second(0));
    lease
}

impl Lease {
    /// Sends a write on the present connection, and takes its answer.
    fn write(&mut self, sent: Moment, answered: Moment) -> bool {
        let sending = self.sending(sent);
        self.on_write_answered(sending, answered)
    }

    fn read(&mut self, sent: Moment, answered: Moment) {
        let sending = self.sending(sent);
        self.on_read_answered(sending, answered);
    }

    /// Takes a lock under the present epoch.
    fn take(&mut self, now: Moment) -> Option<ParticipantId> {
        let owner = ParticipantId(self.owners.len() as u64);
        (self.admit(owner, self.connection(), now) == Admission::Admitted).then_some(owner)
    }

    /// Returns whether the present epoch still lasts.
    fn covers(&self, now: Moment) -> bool {
        now < self.end()
    }

    fn held_until(&self, owner: ParticipantId) -> Moment {
        self.owners[&owner].until
    }

    /// Makes a read and then a write, as a session without owners does for a proof. With a report delay, a later write
    /// must confirm the pair that they make. Returns what `write` returns.
    fn read_and_write(&mut self, sent: Moment, answered: Moment) -> bool {
        self.read(sent, answered);
        self.write(answered, answered)
    }
}

#[test]
fn nothing_is_owned_before_the_first_proof() {
    let lease = Lease::unproven(granted(TIMEOUT, REPORT), second(0));
    assert!(!lease.covers(second(0)));
    assert!(lease.keep_alive_due() <= second(0));
}

#[test]
fn a_lease_ends_a_margin_before_the_session_timeout() {
    let lease = opened();
    assert!(lease.covers(second(30)));
    assert!(!lease.covers(second(31)));
    assert_eq!(lease.given_up_at(), second(32));
}

#[test]
fn a_connection_proves_nothing_before_a_write_on_it_is_answered() {
    let mut lease = Lease::unproven(granted(TIMEOUT, REPORT), second(0));
    lease.on_connected(granted(TIMEOUT, REPORT), Some(second(0)), second(1));
    lease.read(second(2), second(2));
    assert!(!lease.covers(second(2)), "a deposed leader still answers reads");
    let sent_before = lease.sending(second(2));
    lease.on_disconnected();
    lease.on_connected(granted(TIMEOUT, REPORT), Some(second(3)), second(4));
    lease.on_write_answered(sent_before, second(5));
    assert!(!lease.covers(second(5)), "that write was sent on the previous connection");
    lease.write(second(6), second(7));
    assert_eq!(lease.end(), second(3 + 31));
}

#[test]
fn answers_before_the_grant_of_a_reconnect_is_known_prove_nothing() {
    let mut lease = opened();
    lease.on_disconnected();
    // The client already has a connection, but has not reported it yet.
    lease.read_and_write(second(11), second(11));
    lease.read_and_write(second(20), second(20));
    assert!(!lease.covers(second(20)), "the server may grant a much shorter timeout");
    lease.on_connected(granted(TIMEOUT / 8, REPORT), Some(second(10)), second(21));
    assert!(lease.end() <= second(10).after(TIMEOUT / 8));
    lease.write(second(22), second(22));
    assert!(!lease.covers(second(22)), "the shorter timeout counts from the disconnect");
}

#[test]
fn a_pair_of_requests_extends_the_lease_only_when_a_later_write_confirms_it() {
    let mut lease = opened();
    lease.read_and_write(second(10), second(11));
    assert_eq!(lease.end(), second(31), "a follower may die before it reports this");
    lease.write(second(12), second(12));
    assert_eq!(lease.end(), second(31), "too soon for the leader to know of the pair");
    let sending = lease.sending(second(13));
    lease.read(second(15), second(15));
    assert_eq!(lease.end(), second(31), "a read confirms nothing");
    lease.on_write_answered(sending, second(20));
    assert_eq!(lease.end(), second(10 + 31));
}

/// The link from the leader stalls. So the follower sends the report of the pair only together with the
/// answer to the write. If the follower then dies, the report is lost.
#[test]
fn an_owners_lease_is_extended_only_by_a_write_that_follows_another() {
    let mut lease = opened();
    let ownership = lease.take(second(1)).unwrap();
    lease.read_and_write(second(10), second(11));
    let beside = lease.sending(second(14));
    lease.write(second(13), second(15));
    assert_eq!(lease.end(), second(31), "the report may not have arrived");
    lease.on_write_answered(beside, second(16));
    assert_eq!(lease.end(), second(31), "the second write may have overtaken the report");
    let follows = lease.sending(second(17));
    lease.on_write_answered(follows, second(18));
    assert_eq!(lease.end(), second(10 + 31));
    lease.release(ownership);
    lease.read_and_write(second(20), second(21));
    lease.write(second(23), second(23));
    assert_eq!(lease.end(), second(20 + 31), "to take a lock, one write is enough");
}

#[test]
fn what_one_write_has_confirmed_is_forgotten_with_its_connection() {
    let mut lease = opened();
    let owner = lease.take(second(1)).unwrap();
    lease.read_and_write(second(10), second(11));
    lease.write(second(13), second(13));
    lease.on_disconnected();
    lease.on_connected(granted(TIMEOUT, REPORT), None, second(15));
    lease.write(second(16), second(16));
    assert!(!lease.covers(second(16)), "another server would have to report that pair");
    assert_eq!(lease.held_until(owner), second(31));
}

#[test]
fn a_single_request_before_the_report_extends_no_lease() {
    let mut lease = Lease::unproven(granted(TIMEOUT, REPORT), second(0));
    lease.on_connected(granted(TIMEOUT, REPORT), None, second(0));
    lease.write(second(1), second(1));
    lease.write(second(9), second(9));
    assert!(!lease.covers(second(9)), "the mark of the first request may be lost");
    lease.write(second(12), second(12));
    assert_eq!(lease.end(), second(1 + 31), "of two marks, at least one is reported");
}

#[test]
fn a_request_counts_from_its_sending_not_from_its_answer() {
    let mut lease = of_the_leader();
    lease.write(second(1), second(9));
    assert_eq!(lease.end(), second(32));
}

#[test]
fn an_older_proof_never_shortens_an_epoch() {
    let mut lease = of_the_leader();
    lease.write(second(4), second(5));
    lease.write(second(1), second(6));
    assert_eq!(lease.end(), second(4 + 31));
}

#[test]
fn writes_need_no_keep_alive() {
    let mut lease = opened();
    let _owner = lease.take(second(0)).unwrap();
    for now in 1..100 {
        lease.write(second(now), second(now));
        assert!(lease.keep_alive_due() > second(now));
    }
    assert_eq!(
        lease.end(),
        second(95 + 31),
        "the pair that was a report delay old at the last write but one"
    );
    assert!(lease.unconfirmed.len() <= 5, "{:?}", lease.unconfirmed);
}

#[test]
fn an_epoch_that_has_ended_is_final_and_a_late_proof_starts_another() {
    let mut lease = of_the_leader();
    lease.write(second(0), second(0));
    let old = lease.take(second(0)).unwrap();
    assert!(lease.write(second(6), second(40)));
    assert_eq!(lease.held_until(old), second(31));
    assert!(lease.covers(second(33)));
}

#[test]
fn after_a_disconnect_the_old_epoch_runs_on_and_proof_goes_to_the_new_one() {
    let mut lease = opened();
    let old = lease.take(second(0)).unwrap();
    lease.read_and_write(second(1), second(1));
    lease.on_disconnected();
    assert!(second(30) < lease.held_until(old) && !lease.covers(second(2)));
    lease.on_connected(granted(TIMEOUT, REPORT), Some(second(2)), second(8));
    lease.write(second(9), second(9));
    assert_eq!(lease.end(), second(2 + 31));
    assert_eq!(lease.held_until(old), second(31));
    assert_eq!(lease.given_up_at(), second(9 + 32));
    // Nothing on the new connection confirms what was sent on the old one.
    lease.write(second(10), second(10));
    assert_eq!(lease.end(), second(2 + 31));
}

#[test]
fn an_owner_is_renewed_only_by_a_look_on_the_present_connection() {
    let mut lease = opened();
    let owner = lease.take(second(1)).unwrap();
    let looked_on = lease.connection();
    lease.on_disconnected();
    lease.on_connected(granted(TIMEOUT, REPORT), Some(second(10)), second(11));
    lease.write(second(12), second(12));
    assert_eq!(lease.end(), second(10 + 31));
    assert!(lease.renew(owner, looked_on, second(13)), "its earlier epoch has not ended");
    assert_eq!(lease.held_until(owner), second(31), "its znode may have gone since it was seen");
    assert!(lease.renew(owner, lease.connection(), second(13)));
    assert_eq!(lease.held_until(owner), second(10 + 31));
}

#[test]
fn a_shorter_timeout_that_a_reconnect_brings_ends_the_old_epochs_sooner() {
    let mut lease = opened();
    let old = lease.take(second(0)).unwrap();
    lease.on_disconnected();
    let shorter = granted(Duration::from_secs(8), REPORT);
    let end = second(10).after(Duration::from_millis(7750));
    assert_eq!(lease.on_connected(shorter, Some(second(10)), second(12)), Some(end));
    assert_eq!(lease.held_until(old), end);
    lease.write(second(13), second(13));
    assert_eq!(lease.end(), end);
    assert_eq!(lease.given_up_at(), second(13 + 8));
}

#[test]
fn a_longer_timeout_that_a_reconnect_brings_never_counts() {
    let mut lease = opened();
    let old = lease.take(second(0)).unwrap();
    lease.on_disconnected();
    let longer = granted(2 * TIMEOUT, REPORT);
    assert_eq!(lease.on_connected(longer, Some(second(10)), second(12)), None);
    assert_eq!(lease.held_until(old), second(31));
    assert_eq!(lease.session_timeout(), TIMEOUT);
    for at in 13..30 {
        lease.read_and_write(second(at), second(at));
    }
    // The leader dies at 30. A new leader serves from 31 on, and keeps the session for the timeout that was
    // granted when it was created.
    let new_leader_ends_it = second(31).after(TIMEOUT);
    assert!(lease.end() <= new_leader_ends_it, "{:?}", lease.end().since(second(0)));
    assert_eq!(lease.given_up_at(), second(29).after(TIMEOUT));
}

#[test]
fn the_shortest_timeout_counts_whatever_is_granted_after_it() {
    let mut lease = opened();
    let (longer, end) = (granted(4 * TIMEOUT, REPORT), |from: u64| second(from).after(TIMEOUT / 64 * 31));
    lease.on_disconnected();
    lease.on_taken_up(TIMEOUT / 2, second(10));
    for at in [11, 20, 29] {
        lease.on_connected(longer, Some(second(at - 1)), second(at));
        lease.write(second(at), second(at));
        assert_eq!(lease.end(), end(at - 1));
        assert_eq!(lease.given_up_at(), second(at).after(TIMEOUT / 2));
        lease.on_disconnected();
    }
}

#[test]
fn an_epoch_that_ends_before_it_can_be_extended_admits_no_owners() {
    let mut lease = opened();
    lease.write(second(0), second(0));
    assert!(lease.admits_owners(second(27)));
    lease.unconfirmed.clear();
    assert!(lease.covers(second(29)) && !lease.admits_owners(second(28)));
    lease.read_and_write(second(26), second(27));
    assert!(lease.admits_owners(second(28)), "a write sent at second 29 confirms it in time");
    assert!(lease.needs_proof(second(29)), "that write comes before the next owner");
    assert!(lease.covers(second(30)) && !lease.admits_owners(second(30)), "a write takes time");
}

#[test]
fn a_proof_so_old_that_its_epoch_ends_at_once_admits_no_owners() {
    let mut lease = opened();
    lease.read_and_write(second(1), second(1));
    let _ownership = lease.take(second(1)).unwrap();
    lease.write(second(5), second(6));
    assert!(lease.write(second(20), second(31)));
    assert!(lease.covers(second(31)) && !lease.admits_owners(second(31)));
}

#[test]
fn a_report_that_never_comes_is_waited_for_without_an_overflow() {
    let lease = Lease::unproven(granted(TIMEOUT, Duration::MAX), second(0));
    assert!(lease.keep_alive_due() <= second(0));
}

#[test]
fn a_finished_lease_takes_no_more_proof() {
    let mut lease = opened();
    lease.finish(second(100));
    assert!(!lease.covers(second(1)));
    assert!(!lease.write(second(1), second(4)));
    lease.on_connected(granted(TIMEOUT, REPORT), Some(second(5)), second(5));
    lease.write(second(5), second(5));
    assert!(!lease.covers(second(5)));
}

#[test]
fn a_finished_lease_ends_the_epochs_before_the_last_disconnect_too() {
    let mut lease = opened();
    let first = lease.take(second(0)).unwrap();
    lease.on_disconnected();
    lease.on_connected(granted(TIMEOUT, REPORT), Some(second(1)), second(2));
    lease.write(second(2), second(2));
    let other = lease.take(second(2)).unwrap();
    lease.on_disconnected();
    assert!([first, other].iter().all(|owner| second(4) < lease.held_until(*owner)));
    lease.finish(second(100));
    assert!([first, other].iter().all(|owner| lease.held_until(*owner) == ENDED));
}

#[test]
fn silence_before_a_disconnect_is_no_contact() {
    let mut lease = opened();
    // The last sign of life was at 0. At 12, the client gave up the connection because the server was silent.
    lease.on_disconnected();
    assert_eq!(lease.given_up_at(), second(0).after(TIMEOUT));
}

// ---- holds with a limit

#[test]
fn hold_with_a_limit_ends_there_whatever_is_proven() {
    let mut lease = opened();
    let owner = lease.take(second(1)).unwrap();
    lease.limit(owner, second(20));
    let other = lease.take(second(1)).unwrap();
    assert_eq!((lease.held_until(owner), lease.next_limit()), (second(20), Some(second(20))));
    lease.read(second(10), second(10));
    lease.read(second(11), second(11));
    lease.write(second(13), second(13));
    lease.write(second(14), second(14));
    assert!(lease.renew(owner, lease.connection(), second(14)));
    assert_eq!((lease.held_until(owner), lease.held_until(other)), (second(20), second(31 + 10)));
    assert_eq!(lease.ended_owners(second(20)), [(owner, second(20))]);
    assert!(lease.has_reached_limit(owner, second(20)));
    assert!(!lease.renew(owner, lease.connection(), second(20)));
    lease.release(owner);
    assert_eq!(lease.next_limit(), None, "no limit is left");
}

#[test]
fn hold_whose_lease_ends_first_has_not_reached_its_limit() {
    let mut lease = opened();
    let owner = lease.take(second(1)).unwrap();
    lease.limit(owner, second(40));
    assert_eq!(lease.held_until(owner), second(31));
    assert_eq!(lease.ended_at(owner, second(50)), Some(second(31)));
    assert!(!lease.has_reached_limit(owner, second(31)));
    lease.finish(second(50));
    assert_eq!(lease.held_until(owner), ENDED);
}

#[test]
fn hold_that_has_come_to_its_limit_has_ended_before_the_session() {
    for (now, until) in [(19, ENDED), (20, second(20))] {
        let mut lease = opened();
        let owner = lease.take(second(1)).unwrap();
        lease.limit(owner, second(20));
        lease.finish(second(now));
        assert_eq!(lease.held_until(owner), until);
        assert_eq!(lease.has_reached_limit(owner, until), until != ENDED);
    }
}

#[test]
fn hold_that_is_shared_is_so_within_its_limit() {
    let mut lease = opened();
    let owner = lease.take(second(1)).unwrap();
    lease.limit(owner, second(20));
    let other = ParticipantId(7);
    assert!(lease.share(owner, other, second(2)));
    lease.release(owner);
    assert_eq!((lease.held_until(other), lease.next_limit()), (second(20), Some(second(20))));
    assert!(!lease.share(other, owner, second(20)));
}
