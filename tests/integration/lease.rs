//! Tests of the lease on real servers: nobody may own a lock that a server may have given to somebody else.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zookeeper_recipes_lock::queue::LockDirectory;
use zookeeper_recipes_lock::{
    BlockingWriteLock, ErrorReason, LockGuard, LossReason, Session, SessionBuilder, SessionState, WriteLock,
};

use crate::fixtures::{LONG, Observer, SHORT, connect, next, unique_dir};
use crate::support::ensemble::Ensemble;
use crate::support::relay::Relay;
use crate::support::server::{Server, ServerOptions};
use crate::support::wait::{deadline, eventually, eventually_some, eventually_within, scaled};

/// The bits of a zxid that count the transactions under one leader.
const COUNTER: i64 = 0xffff_ffff;

/// Waits until the waiter owns the lock. Fails if the holder owns it at the same time.
fn takes_over_without_overlap(guard: &LockGuard, waiter: &WriteLock) {
    let until = Instant::now() + deadline();
    while !waiter.is_owner() {
        assert!(Instant::now() < until, "the waiter did not take over");
        thread::yield_now();
    }
    assert!(!guard.is_owner(), "two owners at once");
}

/// On every reconnect, the server grants the session timeout anew. Its configuration may have changed since the last
/// connection.
#[test]
fn lease_follows_a_shorter_timeout_granted_on_a_reconnect() {
    let server = Server::start();
    let relay = Relay::to(server.connect_string());
    let far = connect(&relay.connect_string(), Duration::from_secs(40));
    let dir = unique_dir("regranted");
    let guard = BlockingWriteLock::new(&far, &dir).unwrap().lock().unwrap();
    assert_eq!(far.session_timeout(), Duration::from_secs(40));
    server.stop();
    // The new timeout must be longer than the restart takes, because the lease must not end in that time.
    server.reconfigure("maxSessionTimeout=40000", "maxSessionTimeout=20000");
    server.restart();
    eventually("the session is connected", || far.state() == SessionState::Connected);
    eventually("the session has the new timeout", || far.session_timeout() == Duration::from_secs(20));
    let near = connect(&server.connect_string(), LONG);
    let waiter = WriteLock::new(&near, &dir).unwrap();
    assert!(!waiter.lock().unwrap());
    let settled = Instant::now() + Duration::from_secs(21);
    eventually("a whole session timeout has passed without a loss of contact", || {
        assert!(guard.is_owner() && !waiter.is_owner(), "a session in contact must keep its lock");
        Instant::now() >= settled
    });
    relay.swallow();
    takes_over_without_overlap(&guard, &waiter);
    assert_eq!(next(guard.lost()), LossReason::LeaseExpired);
}

/// A new leader restarts the clock of every session. The session then has the timeout that was granted when it was
/// created. A timeout that was granted on a later connection does not count.
#[test]
fn longer_timeout_of_a_reconnect_never_counts_when_the_leader_changes() {
    // Usually, server 2 leads first and, once it is dead, server 1. So the new leader grants the longer timeout in the
    // first case, and the shorter timeout in the other cases.
    let granting_less = [("maxSessionTimeout=16000", "maxSessionTimeout=4000")];
    // Without `maxSessionTimeout`, a server grants at most 20 of its ticks, which is 4 s here. The two limits are also
    // counted in ticks. Their values are higher, because the tick is shorter.
    let ticking_faster = [
        ("tickTime=500", "tickTime=200"),
        ("maxSessionTimeout=16000", ""),
        ("initLimit=20", "initLimit=50"),
        ("syncLimit=6", "syncLimit=15"),
    ];
    thread::scope(|scope| {
        scope.spawn(|| assert_moved_owner_ends_in_time(0, &granting_less));
        scope.spawn(|| assert_moved_owner_ends_in_time(1, &granting_less));
        scope.spawn(|| assert_moved_owner_ends_in_time(1, &ticking_faster));
    });
}

/// The server `short` of three grants 4 s, because its configuration has this change. The others grant 16 s. An owner
/// moves from the server `short` to another. Then the owner is cut off, and the leader dies.
fn assert_moved_owner_ends_in_time(short: usize, change: &[(&str, &str)]) {
    const LONGER: Duration = Duration::from_secs(16);
    let ensemble =
        Ensemble::with(3, &ServerOptions { max_session_timeout_ms: 16_000, ..ServerOptions::default() });
    ensemble.stop(short);
    for (line, new) in change {
        ensemble.node(short).reconfigure(line, new);
    }
    // Wait until the other two servers have a leader. It stays the leader when the third server joins.
    ensemble.leader();
    ensemble.restart(short);
    ensemble.await_quorum();
    let leader = ensemble.leader();
    assert_ne!(leader, short, "the server that started last must not lead");
    let long = 3 - leader - short;
    let [to_short, to_long] = [short, long].map(|server| Relay::to(ensemble.connect_string_of(server)));
    to_long.refuse();
    let relays = format!("{},{}", to_short.connect_string(), to_long.connect_string());
    let far = connect(&relays, LONGER);
    assert_eq!(far.session_timeout(), SHORT);
    let dir = unique_dir("leader-changes");
    let guard = BlockingWriteLock::new(&far, &dir).unwrap().lock().unwrap();
    to_long.restore();
    to_short.refuse();
    let is_on_the_long = || far.server().is_some_and(|server| server.contains(&to_long.connect_string()));
    eventually("the session has moved", || is_on_the_long() && far.state() == SessionState::Connected);
    let near = connect(&ensemble.connect_string_of(long), LONGER);
    assert_eq!(near.session_timeout(), LONGER);
    let waiter = WriteLock::new(&near, &dir).unwrap();
    assert!(!waiter.lock().unwrap());
    let settled = Instant::now() + SHORT;
    eventually("a whole session timeout has passed without a loss of contact", || {
        assert!(guard.is_owner() && !waiter.is_owner(), "a session in contact must keep its lock");
        Instant::now() >= settled
    });
    to_long.swallow();
    ensemble.kill(leader);
    takes_over_without_overlap(&guard, &waiter);
    assert_eq!(far.session_timeout(), SHORT);
    assert_eq!(next(guard.lost()), LossReason::LeaseExpired);
}

/// A raised `minSessionTimeout` hides the tick, so a session assumes a tick of half of it.
#[test]
fn owner_survives_half_a_session_timeout_where_a_raised_minimum_hides_the_tick_if_the_tick_is_stated() {
    const TICK: Duration = Duration::from_millis(400);
    const TIMEOUT: Duration = Duration::from_secs(8);
    let server = Server::with(ServerOptions {
        tick_time_ms: TICK.as_millis().try_into().unwrap(),
        min_session_timeout_ms: TIMEOUT.as_millis().try_into().unwrap(),
        ..ServerOptions::default()
    });
    let hold = |builder: SessionBuilder| {
        let session = builder.session_timeout(TIMEOUT).wait_for_server(deadline()).connect().unwrap();
        let guard = BlockingWriteLock::new(&session, &unique_dir("hidden-tick")).unwrap().lock().unwrap();
        (session, guard)
    };
    // If the machine is so busy that the pause is longer, the test tries again.
    eventually_some("the pause is not too long", || {
        let (measuring, fragile) = hold(Session::builder(server.connect_string()));
        let (knowing, sturdy) = hold(Session::builder(server.connect_string()).tick(TICK));
        // By now, keep-alives have extended the leases as far as they can.
        let settled = Instant::now() + TIMEOUT;
        eventually("the leases are settled", || Instant::now() >= settled);
        server.pause();
        let paused = Instant::now();
        thread::sleep((TIMEOUT / 2).saturating_sub(paused.elapsed()));
        server.resume();
        let is_exact = paused.elapsed() < TIMEOUT / 2 + Duration::from_millis(150);
        eventually("leases from before the pause are over", || paused.elapsed() >= TIMEOUT);
        let (lost, kept) = (fragile.loss(), sturdy.loss());
        measuring.close();
        knowing.close();
        is_exact.then(|| {
            assert_eq!(lost, Some(LossReason::LeaseExpired), "the tick counts as half of the minimum");
            assert_eq!(kept, None, "the session knows the tick");
        })
    });
}

/// With a report delay of most of the session timeout, no lease could be proven.
#[test]
fn session_timeout_of_less_than_two_stated_ticks_is_refused() {
    let server = Server::start();
    let connect = |tick: u64| {
        let builder = Session::builder(server.connect_string()).session_timeout(Duration::from_secs(1));
        builder.tick(Duration::from_millis(tick)).wait_for_server(deadline()).connect()
    };
    let error = connect(501).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::InvalidArgument);
    assert!(error.to_string().contains("less than two ticks of 501ms"), "{error}");
    assert!(connect(500).is_ok());
}

/// An observer behind an observer master reports to the leader in two hops, each of which takes up to half a
/// tick.
#[test]
fn keep_alive_lost_with_an_observer_and_its_master_extends_no_lease() {
    const MASTER: usize = 0;
    const OBSERVER: usize = 3;
    let options =
        ServerOptions { tick_time_ms: 2000, min_session_timeout_ms: 4000, ..ServerOptions::default() };
    let ensemble = Ensemble::with_observer(&options);
    let leader = ensemble.leader();
    assert_ne!(leader, MASTER, "the master was started after the election, so it cannot lead");
    let leader = ensemble.node(leader);
    for attempt in 0..3 {
        ensemble.await_quorum();
        eventually("the observer serves", || ensemble.node(OBSERVER).serves());
        let dir = unique_dir("observer-dies-early");
        let far = connect(&ensemble.connect_string_of(OBSERVER), Duration::from_secs(6));
        let near = connect(&leader.connect_string(), LONG);
        let guard = BlockingWriteLock::new(&far, &dir).unwrap().lock().unwrap();
        let waiter = WriteLock::new(&near, &dir).unwrap();
        assert!(!waiter.lock().unwrap());
        // There are no other writes, so the next transactions are a keep-alive and its confirmation.
        let idle = Instant::now() + Duration::from_millis(2800 + 300 * attempt);
        eventually("the locks are settled", || Instant::now() >= idle);
        let before = leader.zxid();
        eventually("a keep-alive is confirmed", || leader.zxid() >= before + 2);
        ensemble.pause(MASTER);
        ensemble.pause(OBSERVER);
        takes_over_without_overlap(&guard, &waiter);
        ensemble.resume(MASTER);
        ensemble.resume(OBSERVER);
        drop((guard, waiter));
    }
}

#[test]
fn frozen_server_does_not_delay_connecting_to_the_others() {
    let ensemble = Ensemble::start(3);
    ensemble.pause(ensemble.follower());
    for _ in 0..4 {
        let begun = Instant::now();
        let session = connect(&ensemble.connect_string(), LONG);
        // The frozen server costs a sixth of the session timeout.
        assert!(begun.elapsed() < LONG / 4, "{:?}", begun.elapsed());
        session.close();
    }
}

#[test]
fn close_with_a_silent_server_returns_in_time() {
    let server = Server::start();
    let relay = Relay::to(server.connect_string());
    let session = connect(&relay.connect_string(), Duration::from_secs(4));
    relay.swallow();
    let begun = Instant::now();
    session.close();
    assert!(begun.elapsed() < scaled(Duration::from_secs(3)), "{:?}", begun.elapsed());

    relay.restore();
    let session = connect(&relay.connect_string(), Duration::from_secs(4));
    relay.swallow();
    eventually_within(2 * deadline(), "the session is lost", || session.state() == SessionState::Lost);
    let begun = Instant::now();
    session.close();
    assert!(begun.elapsed() < scaled(Duration::from_millis(500)), "{:?}", begun.elapsed());
}

/// Sessions that own nothing only ping, and pings do not go through the ensemble's log.
#[test]
fn idle_and_waiting_sessions_cause_no_transactions_and_an_owner_causes_few() {
    const SESSIONS: usize = 1000;
    const MINUTE: Duration = Duration::from_secs(60);
    raise_file_limit();
    let timeout = scaled(Duration::from_secs(12));
    let window = timeout / 2;
    let server = Server::with(ServerOptions {
        tick_time_ms: 200,
        min_session_timeout_ms: 400,
        ..ServerOptions::default()
    });
    let (dir, other_dir, read_dir) = (unique_dir("quiet"), unique_dir("owned"), unique_dir("read"));
    let observer = Observer::at(&server);
    observer.create_persistent(&dir);
    let first = format!("{dir}/x-observer-lock-0000000000");
    observer.create_persistent(&first);
    observer.create_persistent(&format!("{read_dir}/x-observer-lock-0000000000"));
    let sessions: Vec<_> = (0..SESSIONS).map(|_| connect(&server.connect_string(), timeout)).collect();
    // The remaining sessions stay idle.
    let (waiting, others) = sessions.split_at(SESSIONS / 3);
    let reading = &others[..SESSIONS / 3];
    let waiters: Vec<_> = waiting.iter().map(|session| WriteLock::new(session, &dir).unwrap()).collect();
    for waiter in &waiters {
        assert!(!waiter.lock().unwrap());
    }
    let readers: Vec<_> =
        reading.iter().map(|session| LockDirectory::new(session, &read_dir).unwrap()).collect();
    let mut next_reader = readers.iter().cycle();
    let mut transactions_in = |window: Duration| {
        let before = server.zxid();
        let until = Instant::now() + window;
        while Instant::now() < until {
            assert_eq!(next_reader.next().unwrap().contenders().unwrap().len(), 1);
            thread::sleep(Duration::from_millis(10));
        }
        server.zxid() - before
    };
    // On a slow machine, a session may lose contact, and it writes after it reconnects.
    eventually_within(20 * window, "no transactions", || transactions_in(window) == 0);
    eventually_within(3 * MINUTE, "no transactions in a minute", || transactions_in(MINUTE) == 0);

    let owner = others.last().unwrap();
    let guard = BlockingWriteLock::new(owner, &other_dir).unwrap().lock().unwrap();
    let period = timeout / 6;
    let few = i64::try_from(window.as_nanos() / period.as_nanos()).unwrap();
    eventually_within(20 * window, "few transactions", || (1..=2 * few).contains(&transactions_in(window)));
    assert!(guard.is_owner());
    guard.unlock().unwrap();
    eventually_within(20 * window, "no transactions", || transactions_in(window) == 0);
    for session in &sessions {
        assert_eq!(session.state(), SessionState::Connected);
    }
    let owner = waiters.iter().position(|waiter| waiter.is_owner());
    assert_eq!(owner, None);
    observer.delete(&first);
    eventually("the first waiter owns", || waiters[0].is_owner());
}

/// When a server dies, all its sessions move to the other servers at once, and owners must not wait behind them. On its
/// first contact with an address, a session asks the server there for its tick. To do so, it opens and closes another
/// session, which causes two transactions. Later contacts cause no transactions unless the session owns a lock.
#[test]
fn reconnects_of_sessions_that_own_nothing_cause_no_transactions_where_ticks_are_known() {
    const SESSIONS: usize = 100;
    const LAST_QUESTION: Duration = Duration::from_secs(3);
    raise_file_limit();
    let ensemble = Ensemble::start(3);
    let leader = ensemble.leader();
    // The sessions visit the leader last.
    let servers = [leader + 1, leader + 2, leader].map(|server| server % 3);
    let relays = servers.map(|server| Relay::to(ensemble.connect_string_of(server)));
    let transactions_of = |leader: usize| usize::try_from(ensemble.node(leader).zxid() & COUNTER).unwrap();
    let before = transactions_of(leader);
    relays[1..].iter().for_each(Relay::refuse);
    let all = relays.each_ref().map(Relay::connect_string).join(",");
    let sessions: Vec<_> = (0..SESSIONS).map(|_| connect(&all, LONG)).collect();
    for (relay, visited) in relays.iter().zip(1..) {
        relay.restore();
        relays.iter().filter(|other| !std::ptr::eq(*other, relay)).for_each(Relay::refuse);
        let address = relay.connect_string();
        let is_here = |session: &Session| session.server().is_some_and(|server| server.contains(&address));
        eventually("all sessions are on this server", || {
            sessions.iter().all(|session| session.state() == SessionState::Connected && is_here(session))
        });
        // For each session, its creation and its first write are two more transactions.
        let made = SESSIONS * (2 + 2 * visited);
        eventually("all sessions know its tick", || transactions_of(leader) >= before + made);
    }
    let dir = unique_dir("reconnecting");
    let owner = connect(&ensemble.connect_string(), LONG);
    let guard = BlockingWriteLock::new(&owner, &dir).unwrap().lock().unwrap();
    let waiting = sessions.iter().step_by(3);
    let waiters: Vec<_> = waiting.map(|session| WriteLock::new(session, &dir).unwrap()).collect();
    for waiter in &waiters {
        assert!(!waiter.lock().unwrap());
    }
    let states: Vec<_> = sessions.iter().map(Session::subscribe).collect();
    relays.iter().for_each(Relay::restore);
    ensemble.kill(leader);
    for states in &states {
        assert_eq!(next(states), SessionState::Suspended);
    }
    let is_connected = |session: &Session| session.state() == SessionState::Connected;
    eventually("all sessions are connected", || sessions.iter().all(is_connected) && is_connected(&owner));
    let asked = Instant::now() + LAST_QUESTION;
    eventually("the sessions would have asked for ticks by now", || Instant::now() >= asked);
    // A new leader counts from zero.
    let transactions = transactions_of(ensemble.leader());
    println!("{transactions} transactions under the new leader");
    assert!(transactions < SESSIONS / 5, "{transactions} transactions of {SESSIONS} sessions and an owner");
    assert!(guard.is_owner() && !waiters.iter().any(|waiter| waiter.is_owner()));
}

/// A session needs four descriptors, and many systems allow only 1024 by default.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// `try_lock_for` returns at its deadline even if the session may send no more calls, because too many have not been
/// answered yet.
#[test]
fn attempts_end_at_their_deadline_while_a_server_answers_nothing() {
    let server = Server::start();
    let relay = Relay::to(server.connect_string());
    let session = connect(&relay.connect_string(), LONG);
    let dir = unique_dir("frozen");
    drop(BlockingWriteLock::new(&session, &dir).unwrap().lock().unwrap());
    relay.swallow();
    let lock = BlockingWriteLock::new(&session, &dir).unwrap();
    for _ in 0..1500 {
        assert!(lock.try_lock_for(Duration::ZERO).unwrap().is_none());
    }
    let begun = Instant::now();
    assert!(lock.try_lock_for(Duration::from_secs(1)).unwrap().is_none());
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(1) && took < scaled(Duration::from_secs(3)), "{took:?}");
    relay.restore();
    let directory = LockDirectory::new(&session, &dir).unwrap();
    eventually("nothing is left", || directory.contenders().unwrap().is_empty());
}
