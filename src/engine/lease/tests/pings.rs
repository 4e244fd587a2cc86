//! Tests of what pings prove, and of what is due while a lock is held.

use super::*;

/// Returns a lease on a connection that was made some time ago.
fn of_pings(report: Duration) -> Lease {
    let granted = granted(TIMEOUT, report);
    let mut lease = Lease::unproven(granted, second(0));
    lease.on_connected(granted, None, second(0));
    lease
}

impl Lease {
    fn ping(&mut self, at: u64) {
        self.on_ping_answered(second(at), second(at));
    }
}

#[test]
fn two_pings_that_are_old_enough_are_confirmed_by_a_write() {
    let mut lease = of_pings(REPORT);
    lease.on_ping_answered(second(5), second(6));
    lease.on_ping_answered(second(10), second(11));
    lease.write(second(13), second(14));
    assert_eq!(lease.end(), second(5 + 31));
}

#[test]
fn pings_younger_than_the_report_delay_are_not_confirmed() {
    let mut lease = of_pings(REPORT);
    lease.ping(5);
    lease.on_ping_answered(second(10), second(11));
    lease.write(second(12), second(20));
    assert!(!lease.covers(second(20)), "their follower may have died before it reported them");
}

#[test]
fn a_single_ping_is_no_pair() {
    let mut lease = of_pings(REPORT);
    lease.ping(1);
    lease.write(second(9), second(9));
    assert!(!lease.covers(second(9)), "its mark may be lost");
}

#[test]
fn pings_alone_prove_nothing() {
    let granted = granted(TIMEOUT, REPORT);
    let mut lease = Lease::unproven(granted, second(0));
    lease.on_connected(granted, Some(second(0)), second(0));
    for at in 1..30 {
        lease.ping(at);
        assert!(!lease.covers(second(at)), "a deposed leader still answers pings");
        assert!(lease.contact_holds_until() < second(at));
    }
    lease.write(second(30), second(30));
    assert_eq!(lease.end(), second(27 + 31));
}

#[test]
fn pings_outside_of_a_connection_are_ignored() {
    let mut lease = Lease::unproven(granted(TIMEOUT, REPORT), second(0));
    lease.ping(1);
    lease.ping(2);
    lease.on_connected(granted(TIMEOUT, REPORT), None, second(3));
    lease.write(second(6), second(6));
    assert!(!lease.covers(second(6)));
    lease.ping(7);
    lease.on_disconnected();
    lease.ping(8);
    lease.ping(9);
    assert!(lease.unconfirmed.is_empty() && lease.last.is_none());
}

#[test]
fn ping_counts_as_contact() {
    let mut lease = of_pings(REPORT);
    lease.ping(20);
    assert_eq!(lease.given_up_at(), second(20 + 32));
}

#[test]
fn ten_thousand_pings_without_a_write_keep_a_handful_of_pairs() {
    for (report, pairs) in [(REPORT, 19), (Duration::ZERO, 1)] {
        let mut lease = of_pings(report);
        let step = Duration::from_millis(10);
        let mut now = second(0);
        for _ in 0..10_000 {
            now = now.after(step);
            lease.on_ping_answered(now, now);
            assert!(lease.unconfirmed.len() <= pairs, "{} pairs", lease.unconfirmed.len());
        }
        // No pair that counts was dropped.
        lease.write(now, now);
        let youngest = lease.end().before(lease.span());
        let missed = now.since(youngest).saturating_sub(report);
        assert!(missed <= report / 16 + 2 * step, "{missed:?}");
    }
}

#[test]
fn pings_take_nothing_from_a_write_that_is_under_way() {
    let mut lease = of_pings(REPORT);
    lease.ping(1);
    lease.ping(2);
    let sending = lease.sending(second(4));
    for at in 5..25 {
        lease.ping(at);
    }
    lease.on_write_answered(sending, second(25));
    assert_eq!(lease.end(), second(1 + 31));
}

#[test]
fn a_report_delay_that_proves_longer_counts_for_a_write_that_is_under_way() {
    let mut lease = of_pings(REPORT);
    lease.ping(1);
    lease.ping(2);
    let sending = lease.sending(second(4));
    lease.set_report_delay(2 * REPORT);
    lease.on_write_answered(sending, second(4));
    assert!(!lease.covers(second(4)));
}

#[test]
fn no_keep_alive_is_due_while_no_lock_is_held() {
    let mut lease = of_pings(REPORT);
    assert!(lease.keep_alive_due() <= second(0), "nothing is proven on the connection");
    lease.read_and_write(second(0), second(0));
    for at in 1..100 {
        lease.ping(at);
        assert!(lease.keep_alive_due() > second(at));
    }
    lease.write(second(100), second(100));
    let first = lease.take(second(100)).unwrap();
    let other = ParticipantId(100);
    assert!(lease.share(first, other, second(100)));
    lease.release(first);
    assert!(lease.keep_alive_due() < lease.end().before(REPORT));
    lease.release(other);
    assert!(lease.keep_alive_due() > second(200));
    lease.on_disconnected();
    lease.on_connected(granted(TIMEOUT, REPORT), Some(second(201)), second(202));
    assert!(lease.keep_alive_due() > second(202), "there is nothing to prove");
    assert_eq!(lease.contact_holds_until(), second(202 + 31));
    lease.write(second(203), second(203));
    let _owner = lease.take(second(203)).unwrap();
    lease.on_disconnected();
    lease.on_connected(granted(TIMEOUT, REPORT), Some(second(204)), second(205));
    assert!(lease.keep_alive_due() <= second(205), "nothing is proven on the connection");
    assert!(lease.contact_holds_until() < second(205));
}

#[test]
fn an_idle_session_is_in_contact_by_its_pings_and_an_owner_by_its_writes() {
    let mut lease = of_pings(REPORT);
    lease.ping(1);
    lease.ping(2);
    lease.write(second(5), second(5));
    lease.ping(8);
    assert_eq!(lease.contact_holds_until(), second(8 + 31));
    let owner = lease.take(second(8)).unwrap();
    assert_eq!(lease.contact_holds_until(), second(5 + 31));
    lease.release(owner);
    assert_eq!(lease.contact_holds_until(), second(8 + 31));
}

#[test]
fn only_an_epoch_with_an_owner_is_checked_when_its_proof_came_too_late() {
    for is_owned in [false, true] {
        let mut lease = of_pings(REPORT);
        lease.ping(1);
        lease.ping(2);
        lease.write(second(5), second(5));
        let owner = is_owned.then(|| lease.take(second(5)).unwrap());
        lease.ping(35);
        lease.ping(36);
        let came_too_late = [40, 40].map(|at| lease.write(second(at), second(at)));
        assert_eq!(came_too_late, [is_owned; 2]);
        assert!(lease.covers(second(40)));
        assert!(owner.is_none_or(|owner| lease.held_until(owner) < second(40)), "a lapse is final");
    }
}

#[test]
fn a_lock_that_is_taken_under_an_epoch_that_was_closed_is_refused() {
    let mut lease = opened();
    let connection = lease.connection();
    assert!(lease.covers(second(2)));
    lease.on_disconnected();
    assert_eq!(lease.admit(ParticipantId(1), connection, second(2)), Admission::Outdated);
}

#[test]
fn a_proof_is_needed_when_a_write_would_admit_owners() {
    let mut lease = of_pings(REPORT);
    lease.ping(1);
    assert!(!lease.needs_proof(second(9)), "one ping is no pair");
    lease.ping(10);
    assert!(!lease.needs_proof(second(11)), "the pair is too young");
    assert!(lease.needs_proof(second(12)));
    assert!(!lease.needs_proof(second(31)), "the pair is too old to extend the lease");
    lease.write(second(12), second(12));
    assert!(!lease.needs_proof(second(12)) && lease.admits_owners(second(12)));
    lease.ping(40);
    lease.ping(41);
    assert!(lease.needs_proof(second(43)), "the lease has lapsed");
    lease.on_disconnected();
    assert!(!lease.needs_proof(second(44)));
    lease.on_connected(granted(TIMEOUT, REPORT), Some(second(44)), second(45));
    assert!(lease.needs_proof(second(45)), "a write proves that the session was resumed");
    lease.finish(second(100));
    assert!(!lease.needs_proof(second(45)));
}

#[test]
fn a_shorter_timeout_counts_from_the_disconnect_even_if_its_connection_never_serves() {
    let mut lease = opened();
    let old = lease.take(second(0)).unwrap();
    lease.on_disconnected();
    let end = second(10).after(Duration::from_millis(7750));
    assert_eq!(lease.on_taken_up(Duration::from_secs(8), second(10)), Some(end));
    assert_eq!(lease.held_until(old), end);
    assert_eq!(lease.given_up_at(), second(8), "no server has served the session since second 0");
    // The next server grants a longer timeout again.
    assert_eq!(lease.on_taken_up(TIMEOUT, second(10)), None);
    assert_eq!(lease.on_connected(granted(TIMEOUT, REPORT), Some(second(10)), second(12)), None);
    assert_eq!(lease.held_until(old), end);
    lease.write(second(13), second(13));
    assert_eq!(lease.end(), end, "the shorter timeout counts for the rest of the session");
}

#[test]
fn an_owner_touches_a_server_from_half_a_period_on() {
    let mut lease = of_pings(REPORT);
    [1, 6, 11].into_iter().for_each(|at| lease.ping(at));
    lease.write(second(13), second(13));
    assert!(!lease.begin_touch(second(20)), "no lock is held");
    let owner = lease.take(second(14)).unwrap();
    let first = second(14).after(lease.period() / 2);
    assert_eq!(lease.touch_due(), first);
    assert!(lease.begin_touch(first) && !lease.begin_touch(first));
    assert_eq!(lease.touch_due(), first.after(lease.period()));
    lease.on_disconnected();
    lease.on_connected(granted(TIMEOUT, REPORT), Some(first), first);
    assert!(!lease.begin_touch(first), "a write comes first");
    lease.write(first, first);
    assert!(lease.begin_touch(first), "the last touch was on another connection");
    lease.release(owner);
    assert!(!lease.begin_touch(second(1000)));
}

#[test]
fn a_touch_shortly_after_a_ping_makes_a_separate_pair() {
    let mut lease = of_pings(REPORT);
    lease.ping(1);
    lease.write(second(2), second(2));
    let _owner = lease.take(second(2));
    lease.ping(9);
    let at = second(9).after(REPORT / 32);
    lease.touched = Some(at);
    lease.on_read_answered(lease.sending(at), at);
    lease.on_read_answered(lease.sending(at), at);
    assert_eq!(lease.unconfirmed.back().map(|pair| pair.sent), Some(at), "{lease:?}");
}

#[test]
fn a_lock_taken_shortly_before_the_end_of_its_lease_has_a_keep_alive_due_at_once() {
    let mut lease = of_pings(Duration::from_secs(17));
    [1, 2, 3, 12, 14].into_iter().for_each(|at| lease.ping(at));
    lease.write(second(19), second(19));
    [21, 26].into_iter().for_each(|at| lease.ping(at));
    assert_eq!(lease.end(), second(1 + 31));
    let now = second(30).after(Duration::from_millis(500));
    let ownership = lease.take(now);
    assert!(ownership.is_some(), "a write sent now extends the lease in time, but not by much: {lease:?}");
    assert!(lease.keep_alive_due() <= now);
}

#[test]
fn no_lock_is_taken_under_a_lease_that_can_be_extended_only_once_in_time() {
    let mut lease = of_pings(REPORT);
    lease.ping(1);
    lease.ping(2);
    lease.write(second(4), second(28));
    assert_eq!(lease.end(), second(1 + 31));
    assert!(lease.admits_owners(second(28)), "the lease can be extended to 2 + 31");
    // This pair is confirmed at 32 at the earliest, and a write takes time.
    lease.ping(30);
    assert!(!lease.admits_owners(second(30)));
}

#[test]
fn answer_taken_up_late_does_not_widen_the_gap_between_pairs() {
    let mut lease = of_pings(REPORT);
    let late = lease.sending(second(4));
    lease.ping(3);
    lease.ping(5);
    lease.on_read_answered(late, second(6));
    lease.ping(7);
    lease.write(second(11), second(11));
    assert_eq!(lease.end(), second(5 + 31));
}
