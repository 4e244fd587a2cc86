//! A distant server: how many round trips lock, unlock and hand-over take.
//!
//! A relay delays every byte, so the round trips outweigh all other costs.

use std::time::{Duration, Instant};

use zookeeper_recipes_lock::client::CreateMode;
use zookeeper_recipes_lock::{BlockingWriteLock, LockOptions};

use crate::measure::Plan;
use crate::raw::{self, RawLock};
use crate::support::relay::Relay;
use crate::table::{median, print_round_trips, print_title};
use crate::{DATA, ROOT, floor_lock, handover, session};

/// The delay in each direction.
const DELAY: Duration = Duration::from_millis(5);

const SESSIONS: usize = 8;

/// The microseconds that each lock and each unlock took.
struct Times {
    lock: Vec<f64>,
    unlock: Vec<f64>,
}

pub(crate) fn run(plan: &Plan, connect_string: &str) {
    let relay = Relay::with_delay(connect_string, DELAY);
    let far = relay.connect_string();
    let dir = |side: &str| {
        let dir = format!("{ROOT}/far-{side}");
        raw::create(&raw::connect(connect_string), &dir, CreateMode::Persistent);
        dir
    };
    let session = session(&far);
    let options = LockOptions::new().data(DATA);
    let ours = BlockingWriteLock::with_options(&session, &dir("ours"), options).expect("the path is valid");
    let by_hand = RawLock::new(&raw::connect(&far), &dir("raw"));
    let mut on_floor = floor_lock(&far, &dir("floor"));

    let mut round_trip = Vec::new();
    let [mut unlocked, mut dropped, mut raw, mut floor] = [const { Times::new() }; 4];
    for _ in 0..plan.rounds + 1 {
        round_trip.push(time(|| on_floor.ask()).0);
        unlocked.add(
            || ours.lock().expect("the lock is free"),
            |guard| {
                guard.unlock().expect("the lock was held");
            },
        );
        dropped.add(|| ours.lock().expect("the lock is free"), drop);
        // The deletion of the dropped guard's znode must end before the next measurement.
        ours.lock().expect("the lock is free").unlock().expect("the lock was held");
        raw.add(|| by_hand.hold(), drop);
        let (lock, own) = time(|| on_floor.lock());
        let (unlock, ()) = time(|| on_floor.unlock(&own));
        floor.push(lock, unlock);
    }
    let round_trip = median(&round_trip);
    print_title(
        &format!("{DELAY:?} away, {:.2} ms a round trip, as measured", round_trip / 1e3),
        "round trips, medians",
    );
    for (name, of) in [("lock", Times::of_lock as fn(&Times) -> &[f64]), ("unlock", Times::of_unlock)] {
        let sides =
            [("ours", of(&unlocked)), ("dropped", of(&dropped)), ("raw", of(&raw)), ("floor", of(&floor))];
        print_round_trips(name, round_trip, &sides);
    }
    let times = handover::measure(&plan.with_legs_of(3), &far, SESSIONS);
    let sides = [("ours", &*times[0]), ("dropped", &*times[1]), ("raw", &*times[2]), ("floor", &*times[3])];
    print_round_trips(&format!("hand-over among {SESSIONS} sessions"), round_trip, &sides);
}

impl Times {
    const fn new() -> Times {
        Times { lock: Vec::new(), unlock: Vec::new() }
    }

    /// Measures both parts of a cycle.
    fn add<G>(&mut self, lock: impl FnOnce() -> G, unlock: impl FnOnce(G)) {
        let (locked, guard) = time(lock);
        let (unlocked, ()) = time(|| unlock(guard));
        self.push(locked, unlocked);
    }

    fn push(&mut self, lock: f64, unlock: f64) {
        self.lock.push(lock);
        self.unlock.push(unlock);
    }

    fn of_lock(&self) -> &[f64] {
        &self.lock
    }

    fn of_unlock(&self) -> &[f64] {
        &self.unlock
    }
}

/// Returns how many microseconds a call takes, and its result.
fn time<T>(call: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let result = call();
    (start.elapsed().as_secs_f64() * 1e6, result)
}
