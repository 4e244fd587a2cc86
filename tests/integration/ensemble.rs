//! Tests of locks on an ensemble of three servers, some of which fail.

use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::queue::LockDirectory;
use zookeeper_recipes_lock::{BlockingWriteLock, LossReason, RetryPolicy, SessionState, WriteLock};

use crate::fixtures::{Call, LONG, RecordingListener, SHORT, connect, next, unique_dir};
use crate::support::ensemble::Ensemble;
use crate::support::relay::Relay;
use crate::support::server::ServerOptions;
use crate::support::wait::{deadline, eventually, scaled};

#[test]
fn owner_and_waiter_survive_the_death_of_the_leading_server() {
    assert_owner_and_waiter_survive_the_leader_of(&Ensemble::start(3));
}

/// A local session is known only to its server until it creates an ephemeral znode.
#[test]
fn owner_and_waiter_whose_sessions_began_as_local_ones_survive_the_death_of_the_leading_server() {
    let options = ServerOptions::default().published().config("localSessionsEnabled=true");
    let options = options.config("localSessionsUpgradingEnabled=true");
    assert_owner_and_waiter_survive_the_leader_of(&Ensemble::published(3, &options));
}

fn assert_owner_and_waiter_survive_the_leader_of(ensemble: &Ensemble) {
    let dir = unique_dir("leader-dies");
    let (one, two) = (connect(&ensemble.connect_string(), LONG), connect(&ensemble.connect_string(), LONG));
    let guard = BlockingWriteLock::new(&one, &dir).unwrap().lock().unwrap();
    let (listener, calls) = RecordingListener::new();
    let waiter = WriteLock::with_listener(&two, &dir, listener).unwrap();
    assert!(!waiter.lock().unwrap());
    let states = [one.subscribe(), two.subscribe()];
    ensemble.kill(ensemble.leader());
    for states in &states {
        assert_eq!(next(states), SessionState::Suspended);
    }
    assert!(guard.is_owner(), "the guard must own while its lease lasts");
    eventually("both sessions are connected", || {
        one.state() == SessionState::Connected && two.state() == SessionState::Connected
    });
    assert!(guard.is_owner() && !waiter.is_owner());
    assert!(calls.try_recv().is_err());
    guard.unlock().unwrap();
    assert_eq!(next(&calls), Call::Acquired);
}

/// A new leader gives every session its whole timeout again, also one whose client is long gone.
#[test]
fn dead_holder_blocks_others_for_another_session_timeout_when_the_leader_dies() {
    let ensemble = Ensemble::start(3);
    let dir = unique_dir("dead-holder");
    let relay = Relay::to(ensemble.connect_string_of(ensemble.follower()));
    let holder = connect(&relay.connect_string(), SHORT);
    let guard = BlockingWriteLock::new(&holder, &dir).unwrap().lock().unwrap();
    let near = connect(&ensemble.connect_string(), LONG);
    let (listener, calls) = RecordingListener::new();
    let waiter = WriteLock::with_listener(&near, &dir, listener).unwrap();
    assert!(!waiter.lock().unwrap());

    let leader = ensemble.leader();
    relay.refuse();
    let died = Instant::now();
    eventually("half of the session timeout is over", || died.elapsed() >= SHORT / 2);
    assert!(calls.is_empty(), "the session has not expired yet");
    let leader_died = Instant::now();
    ensemble.kill(leader);
    assert_eq!(next(&calls), Call::Acquired);
    let (since_holder, since_leader) = (died.elapsed(), leader_died.elapsed());
    assert_eq!(guard.loss(), Some(LossReason::LeaseExpired));
    assert!(since_leader >= SHORT, "{since_leader:?} after the death of the leader");
    // The election, the reconnect of the waiter and a tick are extra.
    let limit = 2 * SHORT + scaled(Duration::from_secs(5));
    assert!(since_holder < limit, "{since_holder:?} after the death of the holder");
}

/// The lower half of a transaction's number is a counter. When the counter reaches its end, the serving leader
/// steps down, and every create that is under way is lost with the leader's epoch.
#[test]
fn leader_that_runs_out_of_transaction_numbers_costs_no_lock() {
    let nearly_all = u32::MAX - 150;
    let flag = format!("-Dzookeeper.testingonly.initialZxid={nearly_all}");
    let ensemble = Ensemble::published(3, &ServerOptions::default().published().jvm_flag(flag));
    let (held, busy) = (unique_dir("numbers-held"), unique_dir("numbers-busy"));
    let (one, two) = (connect(&ensemble.connect_string(), LONG), connect(&ensemble.connect_string(), LONG));
    let guard = BlockingWriteLock::new(&one, &held).unwrap().lock().unwrap();
    let (listener, calls) = RecordingListener::new();
    let waiter = WriteLock::with_listener(&two, &held, listener).unwrap();
    assert!(!waiter.lock().unwrap());
    let lock = BlockingWriteLock::new(&two, &busy).unwrap();
    let (first, until) = (guard.fencing_token().unwrap(), Instant::now() + 4 * deadline());
    let mut last = first;
    // The upper half counts the leaders.
    while last >> 32 < (first >> 32) + 2 {
        assert!(Instant::now() < until, "the leader does not step down");
        let other = lock.try_lock_for(deadline()).unwrap().expect("the next leader serves");
        let token = other.fencing_token().unwrap();
        assert!(token > last, "{token:x} after {last:x}");
        last = token;
        assert!(guard.is_owner() && !waiter.is_owner());
    }
    guard.unlock().unwrap();
    assert_eq!(next(&calls), Call::Acquired);
}

#[test]
fn owner_on_a_server_without_news_of_the_leader_stops_before_the_next_owns() {
    let ensemble = Ensemble::with_links(3, &ServerOptions::default().published());
    let cut_off = ensemble.follower();
    let others = || (0..ensemble.size()).filter(|server| *server != cut_off);
    let dir = unique_dir("stalled-links");
    // This is shorter than the time after which a follower gives up on its leader, so the server still
    // answers pings when the leader expires the session.
    let timeout = Duration::from_secs(2);
    let one = connect(&ensemble.connect_string_of(cut_off), timeout);
    let two = connect(&ensemble.connect_string_of(ensemble.leader()), LONG);
    let guard = BlockingWriteLock::new(&one, &dir).unwrap().lock().unwrap();
    let (listener, calls) = RecordingListener::new();
    let waiter = WriteLock::with_listener(&two, &dir, listener).unwrap();
    assert!(!waiter.lock().unwrap());
    others().for_each(|other| ensemble.stall_link(cut_off, other));
    eventually("the waiter owns", || {
        let waiter_owns = waiter.is_owner();
        assert!(!(waiter_owns && guard.is_owner()));
        waiter_owns
    });
    assert_eq!(next(&calls), Call::Acquired);
    assert_eq!(guard.loss(), Some(LossReason::LeaseExpired));
    others().for_each(|other| ensemble.restore_link(cut_off, other));
    ensemble.await_quorum();
    assert!(waiter.is_owner());
}

#[test]
fn rolling_restart_costs_no_lock_of_busy_or_idle_sessions() {
    let ensemble = Ensemble::start(3);
    let sessions: Vec<_> = (0..6).map(|_| connect(&ensemble.connect_string(), LONG)).collect();
    let dirs: Vec<_> = (0..sessions.len()).map(|_| unique_dir("rolling-restart")).collect();
    let locks =
        sessions.iter().zip(&dirs).map(|(session, dir)| BlockingWriteLock::new(session, dir).unwrap());
    let guards: Vec<_> = locks.map(|lock| lock.lock().unwrap()).collect();
    let (stop, stopped) = bounded::<()>(0);
    thread::scope(|scope| {
        for (session, dir) in sessions.iter().zip(&dirs).step_by(2) {
            let (stopped, reader) =
                (stopped.clone(), RecoverableZooKeeper::new(session, RetryPolicy::default()));
            // Ten requests a second leave the connection no idle time.
            scope.spawn(move || {
                while stopped.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
                    let _ = reader.exists(dir);
                }
            });
        }
        for index in 0..ensemble.size() {
            ensemble.stop(index);
            ensemble.restart(index);
            ensemble.await_quorum();
            eventually("every session is connected", || {
                sessions.iter().all(|session| session.state() == SessionState::Connected)
            });
        }
        drop(stop);
    });
    for guard in &guards {
        assert!(guard.is_owner(), "{:?}", guard.loss());
        assert!(guard.lost().is_empty());
    }
}

#[test]
fn owner_behind_a_paused_server_stops_before_another_acquires() {
    let ensemble = Ensemble::start(3);
    let dir = unique_dir("follower-pauses");
    let follower = ensemble.follower();
    let far = connect(&ensemble.connect_string_of(follower), SHORT);
    let near = connect(&ensemble.connect_string_of(ensemble.leader()), LONG);
    let guard = BlockingWriteLock::new(&far, &dir).unwrap().lock().unwrap();
    let waiter = WriteLock::new(&near, &dir).unwrap();
    assert!(!waiter.lock().unwrap());
    ensemble.pause(follower);
    let until = Instant::now() + deadline();
    while !waiter.is_owner() {
        assert!(Instant::now() < until, "the waiter did not take over");
        std::thread::yield_now();
    }
    assert!(!guard.is_owner(), "two owners at once");
    assert_eq!(next(guard.lost()), LossReason::LeaseExpired);
}

/// A follower reports its clients to the leader every half tick. If it dies just after a keep-alive and before
/// the next report, the leader counts the session timeout from a much earlier moment.
#[test]
fn keep_alive_lost_with_its_follower_extends_no_lease() {
    let slow = ServerOptions { tick_time_ms: 2000, min_session_timeout_ms: 4000, ..ServerOptions::default() };
    let ensemble = Ensemble::with(3, &slow);
    let dir = unique_dir("follower-dies-early");
    let follower = ensemble.follower();
    let timeout = Duration::from_secs(6);
    let far = connect(&ensemble.connect_string_of(follower), timeout);
    let near = connect(&ensemble.connect_string_of(ensemble.leader()), LONG);
    let guard = BlockingWriteLock::new(&far, &dir).unwrap().lock().unwrap();
    let waiter = WriteLock::new(&near, &dir).unwrap();
    assert!(!waiter.lock().unwrap());
    // There are no other writes, so the next transaction is the owner's keep-alive.
    let leader = ensemble.node(ensemble.leader());
    let idle = Instant::now() + Duration::from_secs(1);
    eventually("the locks are settled", || Instant::now() >= idle);
    let before = leader.zxid();
    eventually("a keep-alive has arrived", || leader.zxid() != before);
    ensemble.pause(follower);
    let until = Instant::now() + deadline();
    while !waiter.is_owner() {
        assert!(Instant::now() < until, "the waiter did not take over");
        std::thread::yield_now();
    }
    assert!(!guard.is_owner(), "two owners at once");
}

#[test]
fn lock_works_while_one_server_of_three_is_down() {
    let ensemble = Ensemble::start(3);
    let follower = ensemble.follower();
    ensemble.kill(follower);
    let dir = unique_dir("one-down");
    for _ in 0..4 {
        // Connecting may begin at any server, but must end at a server that serves.
        let session = connect(&ensemble.connect_string(), LONG);
        BlockingWriteLock::new(&session, &dir).unwrap().lock().unwrap().unlock().unwrap();
    }
    ensemble.restart(follower);
    let session = connect(&ensemble.connect_string_of(follower), LONG);
    assert!(BlockingWriteLock::new(&session, &dir).unwrap().try_lock().unwrap().is_some());
}

/// A paused server keeps the requests that clients have sent, and passes them on when it resumes. It does so
/// even if, in the meantime, the clients moved to another server, saw no effect of the requests there, and
/// came back.
#[test]
fn write_that_a_paused_server_holds_back_leaves_nothing() {
    let ensemble = Ensemble::start(3);
    let leader = ensemble.leader();
    let followers: Vec<_> = (0..ensemble.size()).filter(|server| *server != leader).collect();
    let [former, other] = [0, 1].map(|index| Relay::to(ensemble.connect_string_of(followers[index])));
    other.refuse();
    let observer = connect(&ensemble.connect_string_of(leader), LONG);
    let connect_string = format!("{},{}", former.connect_string(), other.connect_string());
    let session = connect(&connect_string, Duration::from_secs(8));
    let states = session.subscribe();
    let dir = unique_dir("held-back");
    let lock = BlockingWriteLock::new(&session, &dir).unwrap();
    // The directory exists, so the first requests of each round are creates.
    lock.lock().unwrap().unlock().unwrap();
    let directory = LockDirectory::new(&observer, &dir).unwrap();
    for _ in 0..6 {
        ensemble.pause(followers[0]);
        let attempt = lock.try_lock_for(Duration::from_millis(100));
        assert!(!matches!(attempt, Ok(Some(_))), "{attempt:?}");
        other.restore();
        former.refuse();
        await_connection(&states);
        assert_eq!(
            directory.contenders().unwrap(),
            [],
            "the paused server must not have passed anything on yet"
        );
        // Meanwhile the session searches for the lost create.
        thread::sleep(Duration::from_millis(100));
        former.restore();
        other.refuse();
        // The session connects to the former server again. The server may read the connect request before the
        // create that it holds back.
        thread::sleep(Duration::from_millis(150));
        ensemble.resume(followers[0]);
        await_connection(&states);
        eventually("nothing is left", || directory.contenders().unwrap().is_empty());
        lock.lock().unwrap().unlock().unwrap();
    }
}

fn await_connection(states: &Receiver<SessionState>) {
    while next(states) != SessionState::Connected {}
}
