//! Tests of [`Session::requests`].

use super::*;
use crate::WriteLock;
use crate::events::RequestStatus;
use crate::tests::wait::eventually_some;
use crate::tests::{await_replacement, eventually, replacing_session};

const DIR: &str = "/locks/a";
const LONG: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);

/// A request in short form: its znode, whether it is the owner, its age, and the request that it waits for.
type Shown = (Option<String>, bool, Duration, Option<String>);

fn shown(session: &Session) -> Vec<Shown> {
    let in_short = |request: RequestStatus| {
        assert_eq!(request.lock.dir, DIR);
        (request.lock.id, request.is_owner, request.age, request.waits_for)
    };
    session.requests().into_iter().map(in_short).collect()
}

#[test]
fn requests_are_shown_with_their_ages_until_they_end() {
    let zookeeper = SimulatedZooKeeper::new();
    let (_client, runtime, session) = open_on_manual_runtime(&zookeeper, LONG);
    let [first, second] = [(); 2].map(|()| WriteLock::new(&session, DIR).unwrap());
    assert_eq!(shown(&session), []);
    assert!(first.lock().unwrap());
    runtime.advance(3 * SECOND);
    assert!(!second.lock().unwrap());
    runtime.advance(2 * SECOND);
    let owner = (first.id(), true, 5 * SECOND, None);
    assert_eq!(shown(&session), [owner, (second.id(), false, 2 * SECOND, first.id())]);

    first.unlock().unwrap();
    // From now on, the age counts from the acquisition.
    assert_eq!(shown(&session), [(second.id(), true, Duration::ZERO, None)]);
    runtime.advance(SECOND);
    assert_eq!(shown(&session), [(second.id(), true, SECOND, None)]);
    second.unlock().unwrap();
    assert_eq!(shown(&session), []);
}

#[test]
fn waiter_is_shown_with_the_request_of_another_session_ahead() {
    let zookeeper = SimulatedZooKeeper::new();
    let (_other, _, of_holder) = open_on_manual_runtime(&zookeeper, LONG);
    let (_client, runtime, session) = open_on_manual_runtime(&zookeeper, LONG);
    let [holder, waiter] = [&of_holder, &session].map(|session| WriteLock::new(session, DIR).unwrap());
    assert!(holder.lock().unwrap() && !waiter.lock().unwrap());
    assert_eq!(shown(&session), [(waiter.id(), false, Duration::ZERO, holder.id())]);
    assert_eq!(shown(&of_holder), [(holder.id(), true, Duration::ZERO, None)]);
    runtime.advance(SECOND);
    zookeeper.delete(&waiter.id().unwrap());
    assert_eq!(shown(&session), []);
}

#[test]
fn owner_is_shown_in_an_outage_until_its_lease_ends_and_a_waiter_longer() {
    let zookeeper = SimulatedZooKeeper::new();
    let (client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
    let [first, second] = [(); 2].map(|()| WriteLock::new(&session, DIR).unwrap());
    assert!(first.lock().unwrap() && !second.lock().unwrap());
    let waiting = |age| (second.id(), false, age, first.id());
    client.disconnect();
    runtime.advance(SECOND);
    assert_eq!(shown(&session), [(first.id(), true, SECOND, None), waiting(SECOND)]);
    // As if the process had been suspended: nobody has noticed the end of the lease yet.
    runtime.suspend(TIMEOUT);
    assert_eq!(shown(&session), [waiting(SECOND + TIMEOUT)]);
    runtime.advance(Duration::ZERO);
    assert!(!first.is_owner());
    session.close();
    assert_eq!(shown(&session), []);
}

#[test]
fn request_that_waits_for_the_connection_is_shown() {
    let zookeeper = SimulatedZooKeeper::new();
    let client = zookeeper.connect(LONG);
    let session = client.open_session().unwrap();
    client.disconnect();
    let lock = BlockingWriteLock::new(&session, DIR).unwrap();
    let locked = in_background(move || lock.lock().map(|guard| guard.id().to_owned()));
    eventually("the request is shown", || !session.requests().is_empty());
    let requests = shown(&session);
    assert!(matches!(requests[..], [(None, false, _, None)]), "{requests:?}");
    client.reconnect();
    next(&locked).unwrap();
    eventually("no request is left", || session.requests().is_empty());
}

#[test]
fn replaced_session_shows_the_new_requests_only() {
    let zookeeper = SimulatedZooKeeper::new();
    let of_holder = zookeeper.connect(LONG).open_session().unwrap();
    let holder = BlockingWriteLock::new(&of_holder, DIR).unwrap().lock().unwrap();
    let (session, clients) = replacing_session(&zookeeper, LONG);
    let lock = BlockingWriteLock::new(&session, DIR).unwrap();
    let locked = in_background(move || lock.lock().map(drop));
    let waits = |session: &Session| {
        let [(Some(id), false, _, Some(ahead))] = &shown(session)[..] else { return None };
        (ahead == holder.id()).then(|| id.clone())
    };
    let id = eventually_some("the request waits", || waits(&session));
    let client = next(&clients);
    await_replacement(&session, || client.expire());
    let again = eventually_some("the request waits again", || waits(&session));
    assert_ne!(id, again);
    drop(holder);
    next(&locked).unwrap();
}
