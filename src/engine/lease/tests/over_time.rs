//! Tests of an owner's lease over time: the session's pings, touches and keep-alives on networks of different speeds.

use super::*;

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
        let mut lease = Lease::unproven(granted, now);
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
        let is_enough = !self.lease.is_second_write_due(self.now);
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
            false => self.lease.keep_alive_due(),
        };
        let touch = self.lease.touch_due();
        let request = self.next_request.unwrap_or(never);
        let answer = self.under_way.front().map_or(never, |(answer, ..)| *answer);
        let next = keep_alive.min(touch).min(self.next_ping).min(request).min(answer);
        self.now = self.now.max(next);
        if next == answer {
            let (_, sending, kind) = self.under_way.pop_front().unwrap();
            self.answer(sending, kind);
        } else if next == touch {
            assert!(self.lease.begin_touch(self.now));
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
        run.lease.on_disconnected();
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
