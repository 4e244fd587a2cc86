//! Tests of the lease of a session whose client reports its pings.

use super::*;

/// Returns a lease on a connection that was made some time ago. The lease lapses while no lock is held.
fn of_pings(report: Duration) -> Lease {
    let granted = granted(TIMEOUT, report);
    let mut lease = Lease::unproven(granted, second(0)).proven_for_owners_only();
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
    let mut lease = Lease::unproven(granted, second(0)).proven_for_owners_only();
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
    let mut lease = Lease::unproven(granted(TIMEOUT, REPORT), second(0)).proven_for_owners_only();
    lease.ping(1);
    lease.ping(2);
    lease.on_connected(granted(TIMEOUT, REPORT), None, second(3));
    lease.write(second(6), second(6));
    assert!(!lease.covers(second(6)));
    lease.ping(7);
    lease.on_disconnected(second(8));
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
    for quiet in [Duration::ZERO, QUIET] {
        let mut lease = of_pings(REPORT);
        assert!(lease.is_keep_alive_due(quiet, second(0)), "nothing is proven on the connection");
        lease.read_and_write(second(0), second(0));
        for at in 1..100 {
            lease.ping(at);
            assert!(!lease.is_keep_alive_due(quiet, second(at)));
        }
        lease.write(second(100), second(100));
        let first = lease.take(second(100)).unwrap();
        let other = ParticipantId(100);
        assert!(lease.share(first, other, second(100)));
        lease.release(first);
        assert!(lease.keep_alive_due(quiet) < lease.end().before(REPORT));
        lease.release(other);
        assert!(!lease.is_keep_alive_due(quiet, second(200)));
        lease.on_disconnected(second(201));
        lease.on_connected(granted(TIMEOUT, REPORT), Some(second(201)), second(202));
        assert!(!lease.is_keep_alive_due(quiet, second(202)), "there is nothing to prove");
        assert_eq!(lease.contact_holds_until(), second(202 + 31));
        lease.write(second(203), second(203));
        let _owner = lease.take(second(203)).unwrap();
        lease.on_disconnected(second(204));
        lease.on_connected(granted(TIMEOUT, REPORT), Some(second(204)), second(205));
        assert!(lease.is_keep_alive_due(quiet, second(205)), "nothing is proven on the connection");
        assert!(lease.contact_holds_until() < second(205));
    }
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
    lease.on_disconnected(second(2));
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
    lease.on_disconnected(second(44));
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
    lease.on_disconnected(second(10));
    let end = second(10).after(Duration::from_millis(7750));
    assert_eq!(lease.on_taken_up(Duration::from_secs(8), second(10)), Some(end));
    assert_eq!(lease.held_until(old), end);
    assert_eq!(lease.given_up_at(), second(10 + 8), "no server has served the session since the disconnect");
    // The next server grants a longer timeout again.
    assert_eq!(lease.on_taken_up(TIMEOUT, second(10)), None);
    assert_eq!(lease.on_connected(granted(TIMEOUT, REPORT), Some(second(10)), second(12)), None);
    assert_eq!(lease.held_until(old), end);
    lease.write(second(13), second(13));
    assert_eq!(lease.end(), end, "the shorter timeout counts for the rest of the session");
}

// ---- an owner's lease over time

const TICK: Duration = Duration::from_secs(2);

/// Round trips take at most this fraction of the session timeout, as a divisor, unless a test says otherwise.
const MAX_ROUND_TRIP: u32 = 100;

/// A session with its lease, its pings and its keep-alives, on a slow network.
struct Run {
    lease: Lease,
    timeout: Duration,
    /// The longest round trip.
    longest: Duration,
    /// Whether all round trips are equally long.
    is_steady: bool,
    random: u64,
    now: Moment,
    next_ping: Moment,
    next_request: Option<Moment>,
    keep_alive_under_way: bool,
    /// The number of writes that were sent.
    writes: u32,
    /// The requests in flight, in the order of their answers.
    under_way: VecDeque<(Moment, Sending, Kind)>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Ping,
    Read,
    Write,
    // The calls of a proof.
    FirstRead,
    FirstWrite,
    LastWrite,
}

impl Run {
    fn new(ticks: u32, is_busy: bool, random: u64) -> Run {
        let timeout = ticks * TICK;
        Run::begin(Granted::new(timeout).with_tick(TICK), timeout / MAX_ROUND_TRIP, is_busy, random)
    }

    fn begin(granted: Granted, longest: Duration, is_busy: bool, random: u64) -> Run {
        let (timeout, now) = (granted.session_timeout, second(0));
        let mut lease = Lease::unproven(granted, now).proven_for_owners_only();
        lease.on_connected(granted, Some(now), now);
        let mut run = Run {
            lease,
            timeout,
            longest,
            is_steady: false,
            random,
            now,
            next_ping: now,
            next_request: is_busy.then_some(now),
            keep_alive_under_way: false,
            writes: 0,
            under_way: VecDeque::new(),
        };
        while !run.lease.covers(run.now) {
            run.step();
        }
        run
    }

    fn below(&mut self, limit: Duration) -> Duration {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        limit.mul_f64((self.random >> 33) as f64 / f64::from(1_u32 << 31))
    }

    fn send(&mut self, kind: Kind) {
        let sending = self.lease.sending(self.now);
        self.writes += u32::from(matches!(kind, Kind::Write | Kind::FirstWrite | Kind::LastWrite));
        let drawn = self.below(self.longest);
        let takes = if self.is_steady || self.random % 3 == 0 { self.longest } else { drawn };
        let before = self.under_way.back().map_or(self.now, |(answer, ..)| *answer);
        self.under_way.push_back((self.now.after(takes).max(before), sending, kind));
    }

    fn answer(&mut self, sending: Sending, kind: Kind) {
        match kind {
            Kind::Ping => self.lease.on_ping_answered(sending.at, self.now),
            Kind::Read | Kind::FirstRead => self.lease.on_read_answered(sending, self.now),
            Kind::Write | Kind::FirstWrite | Kind::LastWrite => {
                _ = self.lease.on_write_answered(sending, self.now)
            }
        }
        let is_enough = !self.lease.is_second_write_due(Duration::ZERO, self.now);
        match kind {
            Kind::FirstWrite if is_enough => self.keep_alive_under_way = false,
            Kind::FirstRead | Kind::FirstWrite => self.send(Kind::LastWrite),
            Kind::LastWrite => self.keep_alive_under_way = false,
            Kind::Ping | Kind::Read | Kind::Write => {}
        }
    }

    /// Advances the clock to the next thing that is due, and does it.
    fn step(&mut self) {
        let never = Moment::from_nanos(u64::MAX);
        let keep_alive = match self.keep_alive_under_way {
            true => never,
            false => self.lease.keep_alive_due(Duration::ZERO),
        };
        let touch = self.lease.touch_due(Duration::ZERO);
        let request = self.next_request.unwrap_or(never);
        let answer = self.under_way.front().map_or(never, |(answer, ..)| *answer);
        let next = keep_alive.min(touch).min(self.next_ping).min(request).min(answer);
        self.now = self.now.max(next);
        if next == answer {
            let (_, sending, kind) = self.under_way.pop_front().unwrap();
            self.answer(sending, kind);
        } else if next == touch {
            assert!(self.lease.begin_touch(Duration::ZERO, self.now));
            self.send(Kind::Read);
            self.send(Kind::Read);
        } else if next == keep_alive {
            self.keep_alive_under_way = true;
            self.send(if self.lease.has_owners() { Kind::FirstWrite } else { Kind::FirstRead });
        } else if next == self.next_ping {
            self.next_ping = self.now.after(self.timeout / 6);
            self.send(Kind::Ping);
        } else {
            let kind = if self.random % 2 == 0 { Kind::Write } else { Kind::Read };
            self.send(kind);
            let pause = self.below(self.timeout / 20);
            self.next_request = Some(self.now.after(pause));
        }
    }

    /// Waits for this long, and meanwhile only pings.
    fn wait(&mut self, time: Duration) {
        let until = self.now.after(time);
        while self.next_ping < until || self.under_way.front().is_some_and(|(at, ..)| *at < until) {
            self.step();
        }
        self.now = until;
    }

    /// Acquires a lock that nobody holds, as a request does: it looks, with a write beside its read if it joins the
    /// queue or needs a proof. If the lease does not admit it, it awaits a proof, and looks again.
    fn acquire(&mut self, joins: bool) -> ParticipantId {
        let mut writes = joins;
        loop {
            if writes || self.lease.needs_proof(self.now) {
                self.send(Kind::Write);
            }
            self.send(Kind::Read);
            self.await_answers();
            if let Some(owner) = self.lease.take(self.now) {
                return owner;
            }
            assert!(self.now < second(10_000), "no lock can be taken: {:?}", self.lease);
            self.keep_alive_under_way = true;
            self.send(if self.lease.needs_proof(self.now) { Kind::LastWrite } else { Kind::FirstRead });
            while self.keep_alive_under_way {
                self.step();
            }
            writes = false;
        }
    }

    /// Waits for the answers to all requests that have been sent.
    fn await_answers(&mut self) {
        let last = self.under_way.back().map_or(self.now, |(at, ..)| *at);
        while self.under_way.front().is_some_and(|(at, ..)| *at <= last) {
            self.step();
        }
    }

    /// Runs for this long, and returns the shortest time that the lease had left at any step.
    fn least_left(&mut self, time: Duration) -> Duration {
        let (until, mut least) = (self.now.after(time), self.timeout);
        while self.now < until {
            let end = self.lease.end();
            self.step();
            least = least.min(end.since(self.now));
        }
        least
    }
}

#[test]
fn an_owners_lease_always_lasts_for_the_outage_that_it_is_to_survive() {
    for ticks in 3..=20 {
        for (random, is_busy) in [(1, false), (2, true), (3, false), (4, true)] {
            let mut run = Run::new(ticks, is_busy, random);
            let (timeout, outage) = (run.timeout, run.lease.outage());
            let _ownership = run.lease.take(run.now).unwrap();
            run.least_left(timeout);
            let least = run.least_left(50 * timeout);
            let round_trips = 3 * timeout / MAX_ROUND_TRIP;
            // The pairs that other requests make do not begin at exactly the best moments.
            let wait = if is_busy { run.lease.least_period() } else { Duration::ZERO };
            assert!(
                least + round_trips + wait >= outage,
                "{ticks} ticks, busy: {is_busy}: {least:?} of {outage:?}"
            );
            let promised = if ticks < 5 { timeout * 2 / 5 } else { timeout / 2 };
            assert!(least >= promised, "{ticks} ticks: {least:?} of {timeout:?}");
        }
    }
}

#[test]
fn an_owner_makes_two_writes_in_each_period() {
    for ticks in 2..=20 {
        for random in 1..5 {
            let mut run = Run::new(ticks, false, random);
            let _ownership = run.lease.take(run.now).unwrap();
            run.least_left(run.timeout);
            run.writes = 0;
            run.least_left(50 * run.timeout);
            let periods = (50 * run.timeout).div_duration_f64(run.lease.period());
            let limit = 2.0 * periods.ceil() + 2.0;
            assert!(
                f64::from(run.writes) <= limit,
                "{ticks} ticks: {} writes in {periods} periods",
                run.writes
            );
        }
    }
}

#[test]
fn an_owner_makes_fewer_writes_to_survive_a_shorter_outage() {
    for ticks in 5..=20 {
        let mut writes = Vec::new();
        for (part, least_part) in [(0, 8), (4, 4), (3, 3), (1, 1)] {
            let mut run = Run::new(ticks, false, 1);
            let timeout = run.timeout;
            run.lease.set_survived_outage(timeout.checked_div(part).unwrap_or(Duration::ZERO));
            let spare = run.lease.span() - run.lease.granted.report_delay;
            let outage = (timeout / least_part).min(spare / 4 * 3);
            assert_eq!(run.lease.outage(), outage, "{ticks} ticks");
            let _ownership = run.lease.take(run.now).unwrap();
            run.least_left(2 * timeout);
            run.writes = 0;
            let least = run.least_left(50 * timeout);
            assert!(least + 3 * timeout / MAX_ROUND_TRIP >= outage, "{ticks} ticks: {least:?} of {outage:?}");
            writes.push(run.writes);
        }
        assert!(writes.is_sorted() && 2 * writes[1] <= writes[3], "{ticks} ticks: {writes:?}");
    }
}

#[test]
fn an_owner_touches_a_server_from_half_a_period_on() {
    let mut lease = of_pings(REPORT);
    [1, 6, 11].into_iter().for_each(|at| lease.ping(at));
    lease.write(second(13), second(13));
    assert!(!lease.begin_touch(Duration::ZERO, second(20)), "no lock is held");
    let owner = lease.take(second(14)).unwrap();
    let first = second(14).after(lease.period() / 2);
    assert!(lease.touch_due(QUIET) > second(1000), "the connection needs to be idle");
    assert_eq!(lease.touch_due(Duration::ZERO), first);
    assert!(lease.begin_touch(Duration::ZERO, first) && !lease.begin_touch(Duration::ZERO, first));
    assert_eq!(lease.touch_due(Duration::ZERO), first.after(lease.period()));
    lease.on_disconnected(first);
    lease.on_connected(granted(TIMEOUT, REPORT), Some(first), first);
    assert!(!lease.begin_touch(Duration::ZERO, first), "a write comes first");
    lease.write(first, first);
    assert!(lease.begin_touch(Duration::ZERO, first), "the last touch was on another connection");
    lease.release(owner);
    assert!(!lease.begin_touch(Duration::ZERO, second(1000)));
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

/// The lease may be about to lapse when the request's turn comes.
#[test]
fn a_lock_that_was_waited_for_has_a_lease_that_lasts() {
    for ticks in 3..=20 {
        for random in 0..200 {
            let mut run = Run::new(ticks, false, random);
            let timeout = run.timeout;
            let waits = run.below(2 * timeout);
            run.wait(waits);
            if run.lease.needs_proof(run.now) {
                let before = run.lease.end();
                run.send(Kind::Write);
                while run.lease.end() <= before {
                    run.step();
                }
            }
            let taken = run.lease.take(run.now);
            assert!(taken.is_some(), "{ticks} ticks after {waits:?}: {:?}", run.lease);
            let left = run.lease.end().since(run.now);
            assert!(left >= timeout / FRESH_DIVISOR, "{ticks} ticks after {waits:?}: {left:?}");
            let least = run.least_left(10 * timeout);
            let round_trips = 2 * timeout / MAX_ROUND_TRIP;
            assert!(
                least + round_trips >= timeout / FRESH_DIVISOR,
                "{ticks} ticks after {waits:?}: {least:?}"
            );
        }
    }
}

/// The round trips are the longest that the documentation allows for.
#[test]
fn a_slow_network_neither_costs_a_lock_nor_puts_off_a_request() {
    let known = |ticks: u32| Granted::new(ticks * TICK).with_tick(TICK);
    // The part of T that a round trip takes, and the part that an outage may last, as divisors.
    let short = [(Granted::new(5 * TICK), 40, 1), (known(2), 40, 1), (known(3), 20, 1), (known(4), 20, 1)];
    let long = (5..=20)
        .flat_map(|ticks| [(12, 1), (20, 4), (40, 8)].map(|(part, outage)| (known(ticks), part, outage)));
    for (granted, part, outage) in short.into_iter().chain(long) {
        for random in 0..200 {
            let mut run = Run::begin(granted, granted.session_timeout / part, false, random);
            if outage > 1 {
                run.lease.set_survived_outage(run.timeout / outage);
            }
            run.is_steady = random % 2 == 0;
            let waits = run.below(3 * run.timeout);
            run.wait(waits);
            let turn = run.now;
            let owner = run.acquire(random % 4 < 2);
            let took = run.now.since(turn);
            assert!(took <= 3 * run.longest, "T/{part} of {granted:?} after {waits:?}: took {took:?}");
            let until = run.now.after(10 * run.timeout);
            while run.now < until {
                run.step();
                let held_until = run.lease.held_until(owner);
                assert!(run.now < held_until, "T/{part} of {granted:?} after {waits:?}: {:?}", run.lease);
            }
        }
    }
}

/// Such a network may well cost the lock.
#[test]
fn a_very_slow_network_puts_off_no_request_for_long() {
    for ticks in 4..=20 {
        for random in 0..200 {
            let granted = Granted::new(ticks * TICK).with_tick(TICK);
            let mut run = Run::begin(granted, granted.session_timeout / 8, false, random);
            run.is_steady = random % 2 == 0;
            let waits = run.below(3 * run.timeout);
            run.wait(waits);
            let turn = run.now;
            run.acquire(random % 4 < 2);
            let took = run.now.since(turn);
            assert!(took <= 8 * run.longest, "{ticks} ticks after {waits:?}: took {took:?}");
        }
    }
}

#[test]
fn a_write_that_was_slow_long_ago_leaves_no_lock_with_a_short_lease() {
    for ticks in 3..=20 {
        for random in 0..100 {
            let mut run = Run::new(ticks, false, random);
            let timeout = run.timeout;
            let slow = run.lease.sending(run.now);
            run.wait(timeout / 5);
            run.lease.on_write_answered(slow, run.now);
            let waits = run.below(2 * timeout);
            run.wait(waits);
            let owner = run.acquire(false);
            let left = run.lease.held_until(owner).since(run.now);
            assert!(left >= timeout / FRESH_DIVISOR, "{ticks} ticks after {waits:?}: {left:?}");
        }
    }
}

#[test]
fn an_idle_sessions_first_write_admits_an_owner_whose_lease_lasts() {
    for ticks in 2..=20 {
        for random in 0..50 {
            let mut run = Run::new(ticks, false, random);
            let timeout = run.timeout;
            let idle = 3 * timeout + run.below(timeout);
            while run.now < second(0).after(idle) {
                run.step();
            }
            assert!(!run.lease.covers(run.now), "the lease has lapsed");
            assert!(run.lease.needs_proof(run.now));
            run.send(Kind::Write);
            while !run.lease.covers(run.now) {
                run.step();
            }
            let ownership = run.lease.take(run.now);
            if ticks == 2 {
                // With so short a timeout, the reserve is hardly longer than the round trips.
                continue;
            }
            assert!(ownership.is_some(), "{ticks} ticks: {:?}", run.lease);
            let expected =
                run.lease.span() - run.lease.granted.report_delay - timeout / 3 - run.lease.period() / 2;
            let least = run.least_left(10 * timeout);
            assert!(
                least + 4 * timeout / MAX_ROUND_TRIP >= expected,
                "{ticks} ticks: {least:?} of {expected:?}"
            );
        }
    }
}

#[test]
fn an_owner_keeps_its_lock_when_a_reconnect_brings_a_much_longer_timeout() {
    for random in 0..20 {
        let mut run = Run::new(5, false, random);
        let owner = run.lease.take(run.now).unwrap();
        run.least_left(run.timeout);
        run.under_way.clear();
        run.keep_alive_under_way = false;
        let (lost_at, longer) = (run.now, 16 * run.timeout);
        run.lease.on_disconnected(lost_at);
        run.now = run.now.after(run.timeout / 10);
        run.lease.on_connected(Granted::new(longer).with_tick(TICK), Some(lost_at), run.now);
        while !run.lease.covers(run.now) {
            run.step();
        }
        assert!(run.lease.renew(owner, run.lease.connection(), run.now));
        run.least_left(longer);
        assert!(run.now < run.lease.held_until(owner));
        assert!(
            run.lease.end() < run.now.after(run.timeout),
            "a new leader would not know the longer timeout"
        );
    }
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
    assert!(lease.keep_alive_due(Duration::ZERO) <= now);
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
