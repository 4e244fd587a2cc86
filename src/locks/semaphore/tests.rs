//! Tests of semaphores on a fake server.

use crate::error::ErrorReason;
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::*;
use crate::client::ZooKeeperClient as _;
use crate::fake::{Effect, SimOperation, SimulatedClient, SimulatedZooKeeper};
use crate::tests::{
    ManualRuntime, eventually, in_background, next, open_on_manual_runtime, replacing_session,
};
use crate::time::Runtime as _;
use crate::{CancelToken, LossReason};

const DIR: &str = "/app/converters";
const LOCKS: &str = "/app/converters/locks";
const LEASES_DIR: &str = "/app/converters/leases";
const TIMEOUT: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(3600);

/// A semaphore on a session with threads.
struct Fixture {
    server: SimulatedZooKeeper,
    client: Arc<SimulatedClient>,
    session: Session,
    semaphore: Arc<Semaphore>,
}

impl Fixture {
    fn new(permits: u32) -> Fixture {
        crate::tests::begin();
        let server = SimulatedZooKeeper::new();
        let client = server.connect(TIMEOUT);
        let session = client.open_session().unwrap();
        let semaphore = Arc::new(Semaphore::new(&session, DIR, permits).unwrap());
        Fixture { server, client, session, semaphore }
    }

    /// Starts to wait for a permit on another thread, and returns when the request is in a queue.
    fn wait(&self) -> Receiver<Result<Permit>> {
        let before = self.requests();
        let semaphore = Arc::clone(&self.semaphore);
        let waiting = in_background(move || semaphore.acquire());
        eventually("another request", || self.requests() != before);
        eventually("the request is placed", || {
            let log = self.server.log();
            let last = log.iter().rfind(|call| call.operation == SimOperation::Create);
            last.is_some_and(|call| call.outcome.is_some())
        });
        waiting
    }

    /// The number of requests for a turn, and the number of leases.
    fn requests(&self) -> (usize, usize) {
        (self.server.children(LOCKS).len(), self.server.children(LEASES_DIR).len())
    }

    fn await_requests(&self, turns: usize, leases: usize) {
        eventually(&format!("{turns} turns and {leases} leases"), || self.requests() == (turns, leases));
    }

    fn assert_nothing_is_left(self) {
        self.await_requests(0, 0);
        eventually("no watch is left", || self.server.watch_count() == 0);
        let none = (0, 0);
        eventually("nobody is registered", || self.session.core().census() == none);
    }
}

/// A semaphore with one permit, on a manual runtime. Another client holds the permit.
struct Taken {
    server: SimulatedZooKeeper,
    runtime: Arc<ManualRuntime>,
    _client: Arc<SimulatedClient>,
    session: Session,
    semaphore: Semaphore,
    ahead: String,
}

impl Taken {
    fn new() -> Taken {
        let server = SimulatedZooKeeper::new();
        server.create(LOCKS, b"");
        server.create(LEASES_DIR, b"");
        let ahead = server.create_sequential(LEASES_DIR, "_c_other-lease-", Some(7));
        let (client, runtime, session) = open_on_manual_runtime(&server, TIMEOUT);
        let semaphore = Semaphore::new(&session, DIR, 1).unwrap();
        Taken { server, runtime, _client: client, session, semaphore, ahead }
    }

    fn requests(&self) -> (usize, usize) {
        (self.server.children(LOCKS).len(), self.server.children(LEASES_DIR).len())
    }
}

#[test]
fn zero_permits_and_invalid_paths_are_refused() {
    let Fixture { session, .. } = Fixture::new(1);
    let error = Semaphore::new(&session, DIR, 0).unwrap_err();
    assert!(error.is_invalid_argument() && error.to_string().contains("permits"), "{error}");
    let long = format!("/{}", "a".repeat(4094));
    for dir in ["", "/", "converters", "/a//b", &long] {
        let error = Semaphore::new(&session, dir, 1).unwrap_err();
        assert_eq!(error.reason(), ErrorReason::InvalidArgument, "{dir}: {error}");
    }
}

#[test]
fn as_many_permits_are_held_as_there_are() {
    let fixture = Fixture::new(3);
    let held: Vec<Permit> = (0..3).map(|_| fixture.semaphore.acquire().unwrap()).collect();
    assert!(held.iter().all(|permit| permit.is_owner() && permit.loss().is_none()));
    assert!(held.iter().all(|permit| !permit.lease_remaining().is_zero()));
    assert!(fixture.semaphore.try_acquire().unwrap().is_none());
    drop(held);
    fixture.assert_nothing_is_left();
}

#[test]
fn requests_are_named_as_those_of_curator() {
    let fixture = Fixture::new(1);
    let permit = fixture.semaphore.acquire().unwrap();
    fixture.await_requests(0, 1);
    let waiting = fixture.wait();
    fixture.await_requests(1, 2);
    let is_named = |name: &str, kind: &str| {
        let rest = name.strip_prefix("_c_").unwrap();
        rest.len() == 36 + kind.len() + 10 && rest[36..].starts_with(kind)
    };
    assert!(fixture.server.children(LOCKS).iter().all(|name| is_named(name, "-lock-")));
    assert!(fixture.server.children(LEASES_DIR).iter().all(|name| is_named(name, "-lease-")));
    permit.release().unwrap();
    drop(next(&waiting));
}

#[test]
fn refused_try_acquire_leaves_nothing_and_takes_no_time() {
    let taken = Taken::new();
    assert!(taken.semaphore.try_acquire().unwrap().is_none());
    assert_eq!((taken.runtime.elapsed(), taken.requests()), (Duration::ZERO, (0, 1)));
    assert_eq!(taken.server.watch_count(), 0);
}

#[test]
fn call_times_out_at_its_deadline_and_leaves_nothing() {
    let taken = Taken::new();
    let deadline = taken.runtime.now().after(LONG);
    assert!(taken.semaphore.try_acquire_for(Wait::until_moment(deadline)).unwrap().is_none());
    assert_eq!((taken.runtime.now(), taken.requests()), (deadline, (0, 1)));
    assert_eq!(taken.server.watch_count(), 0);
    assert_eq!(taken.session.core().census(), (0, 0));
}

#[test]
fn call_in_the_queue_for_its_turn_times_out_at_its_deadline() {
    let taken = Taken::new();
    taken.server.create_sequential(LOCKS, "_c_other-lock-", Some(7));
    let deadline = taken.runtime.now().after(LONG);
    assert!(taken.semaphore.try_acquire_for(Wait::until_moment(deadline)).unwrap().is_none());
    assert_eq!((taken.runtime.now(), taken.requests()), (deadline, (1, 1)));
}

#[test]
fn cancelled_call_returns_at_that_moment_and_leaves_nothing() {
    let taken = Taken::new();
    let token = CancelToken::new();
    let cancelled = taken.runtime.now().after(LONG);
    let wait = Wait::until_moment(cancelled.after(LONG)).cancelled_by(&token);
    taken.runtime.at(cancelled, Box::new(move || token.cancel()));
    let error = taken.semaphore.try_acquire_for(wait).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::Cancelled, "{error}");
    assert_eq!((taken.runtime.now(), taken.requests()), (cancelled, (0, 1)));
}

#[test]
fn waiter_acquires_when_a_permit_is_released() {
    let taken = Taken::new();
    let (server, ahead) = (taken.server.clone(), taken.ahead.clone());
    let free = taken.runtime.now().after(LONG);
    taken.runtime.at(free, Box::new(move || server.delete(&ahead)));
    let permit = taken.semaphore.acquire().unwrap();
    assert!(permit.is_owner());
    assert_eq!((taken.runtime.now(), taken.requests()), (free, (0, 1)));
    assert_eq!(taken.server.watch_count(), 0, "an owner does not watch the children");
}

#[test]
fn permit_that_is_released_between_listing_and_watch_is_noticed() {
    let taken = Taken::new();
    let (server, ahead) = (taken.server.clone(), taken.ahead.clone());
    let client = Arc::clone(&taken._client);
    // The first call lists the requests for a turn, the second the leases.
    client.after_next(SimOperation::GetChildren, || {});
    client.after_next(SimOperation::GetChildren, move || server.delete(&ahead));
    let begun = taken.runtime.now();
    let permit = taken.semaphore.acquire().unwrap();
    assert!(permit.is_owner());
    assert_eq!(taken.runtime.now(), begun);
}

#[test]
fn release_without_an_event_is_noticed_by_a_routine_look() {
    let taken = Taken::new();
    let (server, ahead) = (taken.server.clone(), taken.ahead.clone());
    let (of_watch, client) = (taken.server.clone(), Arc::clone(&taken._client));
    let free = taken.runtime.now().after(TIMEOUT / 10);
    taken.runtime.at(
        free,
        Box::new(move || {
            client.remove_watches(LEASES_DIR);
            assert!(of_watch.exists(&ahead));
            server.delete(&ahead);
        }),
    );
    let permit = taken.semaphore.acquire().unwrap();
    assert!(permit.is_owner());
    assert!(taken.runtime.elapsed() <= 2 * TIMEOUT, "{:?}", taken.runtime.elapsed());
}

#[test]
fn any_release_lets_the_first_waiter_in() {
    for released in 0..3 {
        let fixture = Fixture::new(3);
        let mut held: Vec<Permit> = (0..3).map(|_| fixture.semaphore.acquire().unwrap()).collect();
        fixture.await_requests(0, 3);
        let waiting = fixture.wait();
        held.remove(released).release().unwrap();
        held.push(next(&waiting).unwrap());
        assert!(held.iter().all(|permit| permit.is_owner()));
        drop(held);
        fixture.assert_nothing_is_left();
    }
}

#[test]
fn permits_are_granted_in_the_order_of_the_requests() {
    let fixture = Fixture::new(1);
    let mut held = fixture.semaphore.acquire().unwrap();
    fixture.await_requests(0, 1);
    let waiting: Vec<_> = (0..4)
        .map(|number| {
            let waiting = fixture.wait();
            fixture.await_requests(number + 1, 2);
            waiting
        })
        .collect();
    for (number, waiter) in waiting.iter().enumerate() {
        assert!(waiting[number..].iter().all(|waiter| waiter.is_empty()));
        held.release().unwrap();
        held = next(waiter).unwrap();
    }
    drop(held);
    fixture.assert_nothing_is_left();
}

#[test]
fn release_wakes_one_of_those_who_wait() {
    let fixture = Fixture::new(1);
    let held = fixture.semaphore.acquire().unwrap();
    fixture.await_requests(0, 1);
    // Each waiter has its own session, so they wait like processes.
    let clients: Vec<_> = (0..4).map(|_| fixture.server.connect(TIMEOUT)).collect();
    let waiting: Vec<_> = clients
        .iter()
        .enumerate()
        .map(|(number, client)| {
            let session = client.open_session().unwrap();
            let semaphore = Semaphore::new(&session, DIR, 1).unwrap();
            let waiting = in_background(move || semaphore.acquire());
            fixture.await_requests(number + 1, 2);
            waiting
        })
        .collect();
    let lists = || {
        let log = fixture.server.log();
        log.iter().filter(|call| call.operation == SimOperation::GetChildren).count()
    };
    // One watch on the children, two set by owners on their own znodes, and those of the other waiters: on the request
    // ahead, on the one ahead of that one, if there is one, and on their own znodes.
    eventually("all wait", || fixture.server.watch_count() == 1 + 2 + (2 + 3 + 3));
    fixture.server.clear_log();
    held.release().unwrap();
    let second = next(&waiting[0]).unwrap();
    fixture.await_requests(3, 2);
    eventually("the next one waits", || fixture.server.watch_count() == 1 + 2 + (2 + 3));
    // The waiter that is served makes one listing. The next waiter makes three: for its turn, when it joins
    // the leases, and when it waits there.
    assert!(lists() <= 4, "{:?}", fixture.server.log());
    drop((second, waiting));
}

#[test]
fn try_acquire_does_not_overtake_a_waiter() {
    let fixture = Fixture::new(2);
    let held = [fixture.semaphore.acquire().unwrap(), fixture.semaphore.acquire().unwrap()];
    fixture.await_requests(0, 2);
    let waiting = fixture.wait();
    fixture.await_requests(1, 3);
    assert!(fixture.semaphore.try_acquire().unwrap().is_none());
    drop(held);
    drop(next(&waiting).unwrap());
    fixture.await_requests(0, 0);
    assert!(fixture.semaphore.try_acquire().unwrap().is_some());
    fixture.assert_nothing_is_left();
}

#[test]
fn every_lease_in_the_directory_takes_a_permit() {
    let taken = Taken::new();
    let two = Semaphore::new(&taken.session, DIR, 2).unwrap();
    let permit = two.try_acquire().unwrap().unwrap();
    assert!(two.try_acquire().unwrap().is_none());
    assert!(Semaphore::new(&taken.session, DIR, 3).unwrap().try_acquire().unwrap().is_some());
    assert!(permit.is_owner());
    assert_eq!(two.dir(), DIR);
}

#[test]
fn largest_number_bounds_the_permits_where_numbers_differ() {
    let fixture = Fixture::new(1);
    let three = Semaphore::new(&fixture.session, DIR, 3).unwrap();
    let mut held: Vec<Permit> = (0..3).map(|_| three.acquire().unwrap()).collect();
    assert!(three.try_acquire().unwrap().is_none());
    held.truncate(1);
    assert!(fixture.semaphore.try_acquire().unwrap().is_none());
    // A waiter with a smaller number of permits gets its turn first.
    fixture.await_requests(0, 1);
    let waiting = fixture.wait();
    fixture.await_requests(1, 2);
    assert!(three.try_acquire_for(Duration::from_millis(50)).unwrap().is_none());
    held.push(three.try_acquire().unwrap().unwrap());
    held.clear();
    let permit = next(&waiting).unwrap();
    assert!(three.acquire().unwrap().is_owner() && permit.is_owner());
    drop(permit);
    drop(three);
    fixture.assert_nothing_is_left();
}

#[test]
fn release_of_a_permit_that_was_taken_away_is_an_error() {
    let fixture = Fixture::new(1);
    let permit = fixture.semaphore.acquire().unwrap();
    assert_eq!((permit.is_owner(), fixture.requests().1), (true, 1));
    fixture.server.delete(permit.id());
    let result = permit.release();
    assert!(matches!(result, Err(ref error) if error.reason() == ErrorReason::NodeDeleted), "{result:?}");
    fixture.assert_nothing_is_left();
}

#[test]
fn permit_whose_znode_is_deleted_is_lost_and_free_for_another() {
    let fixture = Fixture::new(1);
    let permit = fixture.semaphore.acquire().unwrap();
    eventually("its znode is watched", || fixture.server.watch_count() == 1);
    fixture.server.delete(permit.id());
    assert_eq!(next(permit.lost()), LossReason::NodeDeleted);
    assert_eq!(permit.loss(), Some(LossReason::NodeDeleted));
    assert!(!permit.is_owner() && permit.lease_remaining().is_zero());
    let other = fixture.semaphore.acquire().unwrap();
    assert!(other.is_owner());
    assert!(matches!(permit.release(), Err(ref error) if error.reason() == ErrorReason::NodeDeleted));
    assert!(other.is_owner());
}

#[test]
fn permit_ends_with_its_lease() {
    let server = SimulatedZooKeeper::new();
    let (_client, runtime, session) = open_on_manual_runtime(&server, TIMEOUT);
    let permit = Semaphore::new(&session, DIR, 1).unwrap().acquire().unwrap();
    runtime.suspend(TIMEOUT);
    assert!(!permit.is_owner());
    assert_eq!(permit.loss(), Some(LossReason::LeaseExpired));
}

#[test]
fn waiter_whose_lease_is_deleted_fails_and_lets_the_next_one_in() {
    let fixture = Fixture::new(1);
    let held = fixture.semaphore.acquire().unwrap();
    fixture.await_requests(0, 1);
    let first = fixture.wait();
    fixture.await_requests(1, 2);
    let second = fixture.wait();
    fixture.await_requests(2, 2);
    let leases = fixture.server.children(LEASES_DIR);
    let lease = leases.iter().find(|name| !held.id().ends_with(name.as_str())).unwrap();
    fixture.server.delete(&format!("{LEASES_DIR}/{lease}"));
    assert!(matches!(next(&first), Err(ref error) if error.reason() == ErrorReason::NodeDeleted));
    held.release().unwrap();
    assert!(next(&second).unwrap().is_owner());
    fixture.assert_nothing_is_left();
}

#[test]
fn waiter_whose_turn_is_deleted_keeps_its_place() {
    let fixture = Fixture::new(1);
    let held = fixture.semaphore.acquire().unwrap();
    fixture.await_requests(0, 1);
    let first = fixture.wait();
    fixture.await_requests(1, 2);
    let turn = fixture.server.children(LOCKS).remove(0);
    fixture.server.delete(&format!("{LOCKS}/{turn}"));
    let second = fixture.wait();
    fixture.await_requests(1, 3);
    held.release().unwrap();
    let first = next(&first).unwrap();
    assert!(first.is_owner() && second.is_empty());
    first.release().unwrap();
    drop(next(&second).unwrap());
    fixture.assert_nothing_is_left();
}

#[test]
fn waiter_acquires_after_a_reconnect_what_was_released_meanwhile() {
    let fixture = Fixture::new(1);
    fixture.server.create(LEASES_DIR, b"");
    let ahead = fixture.server.create_sequential(LEASES_DIR, "_c_other-lease-", Some(7));
    let waiting = fixture.wait();
    fixture.await_requests(1, 2);
    fixture.client.disconnect();
    fixture.server.delete(&ahead);
    fixture.client.reconnect();
    assert!(next(&waiting).unwrap().is_owner());
    fixture.assert_nothing_is_left();
}

#[test]
fn lost_reply_to_the_creation_of_a_lease_leaves_one_lease() {
    for when in [Effect::Before, Effect::After] {
        let fixture = Fixture::new(1);
        fixture.server.create(LOCKS, b"");
        fixture.server.create(LEASES_DIR, b"");
        let client = Arc::clone(&fixture.client);
        // The first create makes the request for a turn.
        fixture.client.after_next(SimOperation::Create, move || client.cut_next(SimOperation::Create, when));
        let waiting = fixture.wait();
        eventually("the cut", || fixture.client.pending_faults() == 0);
        fixture.client.reconnect();
        let permit = next(&waiting).unwrap();
        fixture.await_requests(0, 1);
        assert!(permit.is_owner());
        drop(permit);
        fixture.assert_nothing_is_left();
    }
}

#[test]
fn close_ends_all_waits() {
    let fixture = Fixture::new(1);
    let held = fixture.semaphore.acquire().unwrap();
    fixture.await_requests(0, 1);
    let waiting = [fixture.wait(), fixture.wait()];
    fixture.semaphore.close();
    for waiter in &waiting {
        assert!(next(waiter).unwrap_err().is_closed());
    }
    assert!(fixture.semaphore.acquire().unwrap_err().is_closed());
    assert!(fixture.semaphore.try_acquire().unwrap_err().is_closed());
    assert!(held.is_owner());
    drop(held);
    fixture.assert_nothing_is_left();
}

#[test]
fn waiters_join_again_on_a_replaced_session() {
    let server = SimulatedZooKeeper::new();
    server.create(LEASES_DIR, b"");
    let ahead = server.create_sequential(LEASES_DIR, "_c_other-lease-", Some(7));
    let (session, clients) = replacing_session(&server, TIMEOUT);
    let semaphore = Semaphore::new(&session, DIR, 1).unwrap();
    let waiting = in_background(move || semaphore.acquire());
    let mut former = Vec::new();
    for _ in 0..3 {
        eventually("it waits with another request", || {
            let children = server.children(LEASES_DIR);
            children.len() == 2 && !children.iter().any(|child| former.contains(child))
        });
        let own = |child: &String| !ahead.ends_with(child.as_str());
        former.extend(server.children(LEASES_DIR).into_iter().filter(own));
        if former.len() < 3 {
            next(&clients).expire();
        }
    }
    server.delete(&ahead);
    assert!(next(&waiting).unwrap().is_owner());
}

#[test]
fn lost_session_ends_all_waits() {
    let fixture = Fixture::new(1);
    let held = fixture.semaphore.acquire().unwrap();
    fixture.await_requests(0, 1);
    let waiting = [fixture.wait(), fixture.wait()];
    fixture.client.expire();
    for waiter in &waiting {
        assert!(next(waiter).unwrap_err().is_session_lost());
    }
    assert_eq!(next(held.lost()), LossReason::SessionLost);
}

#[test]
fn permit_ends_at_its_limit_and_the_wait_for_one_has_none() {
    let server = SimulatedZooKeeper::new();
    let (_client, runtime, session) = open_on_manual_runtime(&server, TIMEOUT);
    let limit = Duration::from_secs(10);
    let options = LockOptions::new().max_hold(limit);
    let semaphore = Semaphore::with_options(&session, DIR, 1, options).unwrap();
    let unlimited = Semaphore::new(&session, DIR, 1).unwrap().acquire().unwrap();
    // The waiting call keeps its turn throughout.
    let wait = Wait::until_moment(runtime.now().after(3 * limit));
    let begun = server.calls(SimOperation::Create);
    assert!(semaphore.try_acquire_for(wait).unwrap().is_none());
    assert_eq!(server.calls(SimOperation::Create) - begun, 2, "one turn and one lease");
    assert!(unlimited.is_owner());
    unlimited.release().unwrap();

    let permit = semaphore.acquire().unwrap();
    runtime.advance(limit - Duration::from_nanos(1));
    assert!(permit.is_owner());
    runtime.advance(Duration::from_nanos(1));
    assert_eq!((permit.is_owner(), permit.loss()), (false, Some(LossReason::HeldTooLong)));
    assert_eq!(permit.lost().try_recv(), Ok(LossReason::HeldTooLong));
    assert!(semaphore.try_acquire().unwrap().is_some());
    assert!(matches!(permit.release(), Err(ref error) if error.reason() == ErrorReason::HeldTooLong));
}
