//! The protocol, step by step, on the simulated ZooKeeper: what a real server cannot do on command.

mod downgrade;
mod sharing;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use zookeeper::{Acl, Permission, ZkError};

use crate::sim::{Effect, ReadChecks, SimOperation, SimulatedClient, SimulatedZooKeeper};
use crate::{
    BlockingWriteLock, CancelHandle, LockError, LockListener, LossReason, Patience, ProtocolSupport,
    RetryPolicy, Session, SessionState, WriteLock,
};

const DIR: &str = "/locks/it";
const LONG: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(30);

/// The calls that a lock makes on its way from nothing to owning and back.
const STEPS: [SimOperation; 4] =
    [SimOperation::Create, SimOperation::GetChildren, SimOperation::GetData, SimOperation::Delete];

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::yield_now();
    }
}

/// A session on a simulated client.
struct Party {
    client: Arc<SimulatedClient>,
    session: Session,
}

impl Party {
    fn join(zk: &SimulatedZooKeeper) -> Party {
        Party::join_for(zk, LONG)
    }

    fn join_for(zk: &SimulatedZooKeeper, session_timeout: Duration) -> Party {
        let client = zk.connect(session_timeout);
        let session = Session::from_client(client.clone()).unwrap();
        Party { client, session }
    }

    fn blocking(&self) -> BlockingWriteLock {
        let lock = BlockingWriteLock::new(&self.session, DIR, None).unwrap();
        lock.protocol_support().set_retry_delay(Duration::from_millis(1));
        lock
    }

    fn listening(&self) -> (WriteLock, Receiver<Call>) {
        let (calls, taken) = unbounded();
        let lock = WriteLock::with_listener(&self.session, DIR, None, Notes(calls)).unwrap();
        lock.set_retry_delay(Duration::from_millis(1));
        (lock, taken)
    }

    /// Reconnects each time that contact was lost, until the flag is dropped.
    fn mend(&self) -> Sender<()> {
        let (stop, stopped) = crossbeam_channel::bounded(0);
        let (client, states) = (Arc::clone(&self.client), self.session.subscribe());
        thread::spawn(move || {
            loop {
                crossbeam_channel::select! {
                    recv(stopped) -> _ => return,
                    recv(states) -> state => match state {
                        Ok(SessionState::Suspended) => client.reconnect(),
                        Ok(SessionState::Connected) => {}
                        _ => return,
                    },
                }
            }
        });
        stop
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Acquired,
    Released,
    Lost(LossReason),
    Dropped(LossReason),
}

struct Notes(Sender<Call>);

impl LockListener for Notes {
    fn lock_acquired(&self) {
        let _ = self.0.send(Call::Acquired);
    }
    fn lock_released(&self) {
        let _ = self.0.send(Call::Released);
    }
    fn lock_lost(&self, reason: LossReason) {
        let _ = self.0.send(Call::Lost(reason));
    }
    fn request_dropped(&self, reason: LossReason) {
        let _ = self.0.send(Call::Dropped(reason));
    }
}

fn next(calls: &Receiver<Call>) -> Call {
    calls.recv_timeout(PATIENCE).unwrap()
}

fn operations(zk: &SimulatedZooKeeper) -> Vec<SimOperation> {
    zk.log().iter().map(|call| call.operation).collect()
}

// ---- the number of calls

#[test]
fn an_uncontended_lock_is_three_round_trips() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let lock = Party::join(&zk).blocking();
    zk.clear_log();
    lock.lock().unwrap().unlock().unwrap();
    assert_eq!(operations(&zk), [SimOperation::Create, SimOperation::GetChildren, SimOperation::Delete]);
}

#[test]
fn missing_parents_cost_calls_only_when_they_are_missing() {
    let zk = SimulatedZooKeeper::new();
    let lock = Party::join(&zk).blocking();
    zk.clear_log();
    drop(lock.lock().unwrap());
    // The request, the directory, its parent, the directory again, the request again.
    assert_eq!(zk.calls(SimOperation::Create), 5);
    eventually("the request is gone", || zk.children(DIR).is_empty());
}

#[test]
fn a_waiter_costs_one_look_and_one_watch() {
    let zk = SimulatedZooKeeper::new();
    let (holder, waiter) = (Party::join(&zk), Party::join(&zk));
    let guard = holder.blocking().lock().unwrap();
    zk.clear_log();
    let (lock, calls) = waiter.listening();
    assert!(!lock.lock().unwrap());
    let of_waiter = |operation| {
        let ours = |call: &&crate::sim::Call| call.session == waiter.client.session_id();
        zk.log().iter().filter(ours).filter(|call| call.operation == operation).count()
    };
    assert_eq!(of_waiter(SimOperation::GetChildren), 1);
    assert_eq!(of_waiter(SimOperation::GetData), 1);
    guard.unlock().unwrap();
    assert_eq!(next(&calls), Call::Acquired);
    assert_eq!(of_waiter(SimOperation::GetChildren), 2);
}

// ---- races with the one ahead

#[test]
fn a_predecessor_that_vanishes_between_listing_and_watch_is_noticed() {
    for operation in [SimOperation::GetData, SimOperation::GetChildren] {
        let zk = SimulatedZooKeeper::new();
        zk.create(DIR, b"");
        let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
        let party = Party::join(&zk);
        let gone = zk.clone();
        match operation {
            SimOperation::GetData => party.client.before_next(operation, move || gone.delete(&ahead)),
            _ => party.client.after_next(operation, move || gone.delete(&ahead)),
        }
        let (lock, calls) = party.listening();
        lock.lock().unwrap();
        assert_eq!(next(&calls), Call::Acquired, "{operation:?}");
        assert!(lock.is_owner());
        assert_eq!(zk.watch_count(), 0, "a watch on a znode that is gone would stay");
    }
}

#[test]
fn a_predecessor_that_vanishes_as_soon_as_it_is_watched_is_noticed() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
    let party = Party::join(&zk);
    let gone = zk.clone();
    party.client.after_next(SimOperation::GetData, move || gone.delete(&ahead));
    assert!(party.blocking().try_lock_for(PATIENCE).unwrap().is_some());
}

#[test]
fn a_change_of_the_predecessors_data_is_no_release() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
    let party = Party::join(&zk);
    let (lock, calls) = party.listening();
    assert!(!lock.lock().unwrap());
    for _ in 0..3 {
        let watches = zk.watch_count();
        zk.set_data(&ahead, b"changed");
        eventually("the watch is set again", || zk.watch_count() == watches);
    }
    assert!(calls.try_recv().is_err() && !lock.is_owner());
    zk.delete(&ahead);
    assert_eq!(next(&calls), Call::Acquired);
}

#[test]
fn a_watch_that_fires_after_the_unlock_acquires_nothing() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
    let party = Party::join(&zk);
    let (lock, calls) = party.listening();
    assert!(!lock.lock().unwrap());
    lock.unlock().unwrap();
    zk.delete(&ahead);
    let other = party.blocking();
    assert!(other.try_lock_for(PATIENCE).unwrap().is_some(), "nobody is in the queue");
    assert!(!lock.is_owner());
    assert!(calls.try_recv().is_err());
}

#[test]
fn a_queue_across_the_wrap_of_the_counter_stays_in_order() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    zk.set_sequence(DIR, i32::MAX - 2);
    let party = Party::join(&zk);
    let locks: Vec<_> = (0..6).map(|_| party.listening()).collect();
    for (lock, _) in &locks {
        lock.lock().unwrap();
    }
    assert!(zk.children(DIR).iter().any(|name| name.ends_with("--2147483648")), "{:?}", zk.children(DIR));
    for (position, (lock, calls)) in locks.iter().enumerate() {
        assert_eq!(next(calls), Call::Acquired, "number {position}");
        assert!(locks.iter().enumerate().all(|(other, (lock, _))| lock.is_owner() == (other == position)));
        lock.unlock().unwrap();
    }
}

// ---- replies lost, at every step

/// Has one call fail in one way while a lock is acquired behind another and released, and checks that nothing of it shows.
fn assert_no_trace_of(fault: impl Fn(&SimulatedClient, SimOperation, Effect)) {
    for operation in STEPS {
        for when in [Effect::Before, Effect::After] {
            let zk = SimulatedZooKeeper::new();
            zk.create(DIR, b"");
            let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
            let party = Party::join(&zk);
            let _mending = party.mend();
            let (lock, calls) = party.listening();
            fault(&party.client, operation, when);
            assert!(!lock.lock().unwrap(), "{operation:?} {when:?}");
            assert_eq!(zk.children(DIR).len(), 2, "never two znodes: {operation:?} {when:?}");
            zk.delete(&ahead);
            assert_eq!(next(&calls), Call::Acquired, "{operation:?} {when:?}");
            assert_eq!(zk.children(DIR).len(), 1);
            // A deletion whose reply is lost says that it is pending, and is made good.
            match lock.unlock() {
                Ok(()) => {}
                Err(error) => assert!(matches!(error, LockError::DeletePending { .. }), "{error}"),
            }
            assert_eq!(next(&calls), Call::Released);
            eventually("the znode is gone", || zk.children(DIR).is_empty());
            assert_eq!(party.client.pending_faults(), 0, "the fault struck: {operation:?} {when:?}");
        }
    }
}

#[test]
fn a_call_that_fails_at_any_step_leaves_no_trace() {
    assert_no_trace_of(|client, operation, when| client.fail_next(operation, when, ZkError::ConnectionLoss));
}

#[test]
fn a_connection_cut_at_any_step_leaves_no_trace() {
    assert_no_trace_of(SimulatedClient::cut_next);
}

#[test]
fn a_create_that_came_through_is_found_again_not_repeated() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let party = Party::join(&zk);
    zk.clear_log();
    party.client.fail_next(SimOperation::Create, Effect::After, ZkError::ConnectionLoss);
    let guard = party.blocking().lock().unwrap();
    assert_eq!(zk.calls(SimOperation::Create), 1);
    assert!(guard.is_owner());
    assert!(zk.exists(guard.id()));
}

#[test]
fn a_create_that_comes_through_after_its_repetition_blocks_nobody() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let party = Party::join(&zk);
    let session = party.client.session_id();
    party.client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
    let guard = party.blocking().lock().unwrap();
    let name = zk.children(DIR).remove(0);
    zk.create_sequential(DIR, &name[..name.len() - 10], Some(session));
    guard.unlock().unwrap();
    eventually("neither znode is left", || zk.children(DIR).is_empty());
}

#[test]
fn a_second_znode_ahead_of_the_own_one_is_deleted() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let party = Party::join(&zk);
    let late = zk.clone();
    let session = party.client.session_id();
    party.client.after_next(SimOperation::Create, move || {
        let name = late.children(DIR).remove(0);
        late.set_sequence(DIR, -5);
        late.create_sequential(DIR, &name[..name.len() - 10], Some(session));
    });
    let guard = party.blocking().try_lock_for(PATIENCE).unwrap().unwrap();
    assert!(guard.is_owner());
    assert_eq!(zk.children(DIR).len(), 1);
}

#[test]
fn a_request_that_cannot_be_made_is_given_up_after_its_attempts() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let party = Party::join(&zk);
    for _ in 0..10 {
        party.client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
    }
    let error = party.blocking().lock().unwrap_err();
    assert!(error.is_connection_loss(), "{error}");
    assert_eq!(party.client.pending_faults(), 0, "ten attempts");
    let (lock, calls) = party.listening();
    assert!(lock.lock().unwrap(), "the next request is a new one");
    assert_eq!(next(&calls), Call::Acquired);
}

// ---- given up, at every step

#[test]
fn a_request_withdrawn_at_any_step_leaves_no_znode_and_calls_nobody_unpaired() {
    for operation in STEPS {
        for before in [true, false] {
            let zk = SimulatedZooKeeper::new();
            zk.create(DIR, b"");
            let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
            let party = Party::join(&zk);
            let (lock, calls) = party.listening();
            let lock = Arc::new(lock);
            let at_step = Arc::clone(&lock);
            // On the worker that makes the call, as a listener would.
            let withdraw = move || at_step.close();
            match before {
                true => party.client.before_next(operation, withdraw),
                false => party.client.after_next(operation, withdraw),
            }
            let _ = lock.lock();
            zk.delete(&ahead);
            lock.close();
            eventually("no znode is left", || zk.children(DIR).is_empty());
            drop(lock);
            let told: Vec<Call> = calls.try_iter().collect();
            assert!(
                matches!(told.as_slice(), [] | [Call::Acquired, Call::Released]),
                "{operation:?} before={before}: {told:?}"
            );
        }
    }
}

#[test]
fn a_request_withdrawn_while_its_create_hangs_is_undone_when_it_comes_back() {
    for lost in [false, true] {
        let zk = SimulatedZooKeeper::new();
        zk.create(DIR, b"");
        let party = Party::join(&zk);
        party.client.swallow_next(SimOperation::Create, Effect::After);
        assert!(party.blocking().try_lock_for(Duration::from_millis(20)).unwrap().is_none());
        eventually("the create has come through", || zk.children(DIR).len() == 1);
        if lost {
            party.client.disconnect();
            party.client.reconnect();
        }
        party.client.release();
        eventually("it is undone", || zk.children(DIR).is_empty());
    }
}

#[test]
fn a_request_given_up_at_any_moment_of_its_retries_leaves_no_znode() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let party = Party::join(&zk);
    let lock = party.blocking();
    for round in 0..300 {
        party.client.fail_next(SimOperation::Create, Effect::After, ZkError::ConnectionLoss);
        let _ = lock.try_lock_for(Duration::from_micros(round)).unwrap();
    }
    eventually("no znode is left", || zk.children(DIR).is_empty());
}

#[test]
fn a_znode_that_may_not_be_read_is_waited_for_whatever_the_server_checks() {
    for read_checks in [ReadChecks::ReadsOnly, ReadChecks::Events, ReadChecks::EventsAndExists] {
        let zk = SimulatedZooKeeper::new();
        zk.set_read_checks(read_checks);
        zk.create(DIR, b"");
        let (party, other) = (Party::join(&zk), Party::join(&zk));
        let no_read = Acl::new(Permission::DELETE, "world", "anyone");
        let lock = BlockingWriteLock::new(&party.session, DIR, Some(vec![no_read])).unwrap();
        let guard = lock.lock().unwrap();
        let (waiting, calls) = other.listening();
        assert!(!waiting.lock().unwrap(), "{read_checks:?}");
        // Long enough for the owner to look at its own znode, too.
        assert!(calls.recv_timeout(Duration::from_millis(300)).is_err(), "{read_checks:?}");
        assert!(guard.is_owner(), "{read_checks:?}");
        drop(guard);
        assert_eq!(next(&calls), Call::Acquired, "{read_checks:?}");
    }
}

#[test]
fn a_call_cancelled_at_any_step_leaves_no_znode() {
    for step in [SimOperation::Create, SimOperation::GetChildren, SimOperation::GetData] {
        for after in [false, true] {
            let zk = SimulatedZooKeeper::new();
            let ahead = zk.create_sequential(DIR, "x-ahead-lock-", None);
            let party = Party::join(&zk);
            let cancel = CancelHandle::new();
            let pull = {
                let cancel = cancel.clone();
                move || cancel.cancel()
            };
            match after {
                false => party.client.before_next(step, pull),
                true => party.client.after_next(step, pull),
            }
            let patience = Patience::lasting(PATIENCE).cancelled_by(&cancel);
            let outcome = party.blocking().try_lock_with(&patience);
            assert!(matches!(outcome, Err(LockError::Cancelled { .. })), "{step:?} {after}: {outcome:?}");
            eventually("only the one ahead is left", || zk.children(DIR).len() == 1);
            zk.delete(&ahead);
            assert!(matches!(party.blocking().try_lock_with(&patience), Err(LockError::Cancelled { .. })));
            assert!(zk.children(DIR).is_empty(), "nothing was asked for");
        }
    }
}

#[test]
fn a_lock_closed_while_another_thread_locks_it_leaves_nothing_on_its_session() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let party = Party::join(&zk);
    for _ in 0..300 {
        let (lock, _calls) = party.listening();
        thread::scope(|scope| {
            scope.spawn(|| lock.lock());
            scope.spawn(|| lock.close());
        });
    }
    eventually("no znode is left", || zk.children(DIR).is_empty());
    eventually("nobody is left to be woken", || party.session.core().participants().is_empty());
}

#[test]
fn an_unlock_whose_deletion_fails_is_made_good() {
    for when in [Effect::Before, Effect::After] {
        let zk = SimulatedZooKeeper::new();
        let party = Party::join(&zk);
        let guard = party.blocking().lock().unwrap();
        party.client.cut_next(SimOperation::Delete, when);
        let error = guard.unlock().unwrap_err();
        assert!(matches!(error, LockError::DeletePending { .. }), "{error}");
        party.client.reconnect();
        eventually("the znode is gone", || zk.children(DIR).is_empty());
    }
}

// ---- the end of a session, at every step

#[test]
fn a_session_that_ends_at_any_step_fails_the_call_and_hangs_nobody() {
    for operation in [SimOperation::Create, SimOperation::GetChildren, SimOperation::GetData] {
        for before in [true, false] {
            let zk = SimulatedZooKeeper::new();
            zk.create(DIR, b"");
            zk.create_sequential(DIR, "x-other-lock-", None);
            let party = Party::join(&zk);
            let expiring = Arc::clone(&party.client);
            match before {
                true => party.client.before_next(operation, move || expiring.expire()),
                false => party.client.after_next(operation, move || expiring.expire()),
            }
            let error = party.blocking().lock().unwrap_err();
            assert!(error.is_session_lost(), "{operation:?} before={before}: {error}");
            assert_eq!(party.session.state(), SessionState::Lost);
            assert_eq!(zk.children(DIR).len(), 1);
        }
    }
}

#[test]
fn an_expiry_that_is_noticed_late_is_told_once() {
    let zk = SimulatedZooKeeper::new();
    let party = Party::join(&zk);
    let (lock, calls) = party.listening();
    assert!(lock.lock().unwrap());
    assert_eq!(next(&calls), Call::Acquired);
    party.client.disconnect();
    party.client.expire_silently();
    party.client.reconnect();
    assert_eq!(next(&calls), Call::Lost(LossReason::SessionExpired));
    assert!(!lock.is_owner());
    lock.unlock().unwrap();
    drop(lock);
    assert!(calls.try_recv().is_err());
}

#[test]
fn a_lease_ends_by_the_clock_when_nothing_is_heard() {
    let zk = SimulatedZooKeeper::new();
    let timeout = Duration::from_millis(800);
    let party = Party::join_for(&zk, timeout);
    let (lock, calls) = party.listening();
    assert!(lock.lock().unwrap());
    assert_eq!(next(&calls), Call::Acquired);
    let waiting = Party::join_for(&zk, timeout);
    let (waiter, waiter_calls) = waiting.listening();
    assert!(!waiter.lock().unwrap());
    party.client.swallow();
    waiting.client.swallow();
    assert_eq!(next(&calls), Call::Lost(LossReason::LeaseExpired));
    assert!(!lock.is_owner());
    assert_eq!(next(&waiter_calls), Call::Dropped(LossReason::LeaseExpired));
    assert_eq!(waiting.session.state(), SessionState::Lost);
    party.client.release();
    waiting.client.release();
}

#[test]
fn a_session_lives_on_while_it_is_idle() {
    let zk = SimulatedZooKeeper::new();
    let timeout = Duration::from_millis(600);
    let party = Party::join_for(&zk, timeout);
    let guard = party.blocking().lock().unwrap();
    let until = Instant::now() + 3 * timeout;
    let kept_alive = zk.calls(SimOperation::SetData);
    while Instant::now() < until {
        assert!(guard.is_owner());
        thread::yield_now();
    }
    assert!(zk.calls(SimOperation::SetData) >= kept_alive + 3);
}

#[test]
fn an_owner_whose_lease_ended_has_lost_even_if_the_session_comes_back() {
    let zk = SimulatedZooKeeper::new();
    let party = Party::join_for(&zk, Duration::from_secs(2));
    let guard = party.blocking().lock().unwrap();
    party.client.disconnect();
    assert_eq!(guard.lost().recv_timeout(PATIENCE), Ok(LossReason::LeaseExpired));
    party.client.reconnect();
    eventually("the session is back", || party.session.state() == SessionState::Connected);
    assert!(!guard.is_owner());
    eventually("its znode is removed", || zk.children(DIR).is_empty());
    assert!(party.blocking().try_lock().unwrap().is_some());
}

// ---- refused

#[test]
fn a_refused_create_names_the_permission() {
    let zk = SimulatedZooKeeper::new();
    zk.create_with_acl(DIR, b"", &[Acl::new(Permission::READ, "world", "anyone")]);
    let error = Party::join(&zk).blocking().lock().unwrap_err();
    assert!(error.is_access_denied() && error.to_string().contains("CREATE"), "{error}");
}

#[test]
fn a_refused_listing_leaves_no_znode() {
    let zk = SimulatedZooKeeper::new();
    let acl = Permission::CREATE | Permission::DELETE;
    zk.create_with_acl(DIR, b"", &[Acl::new(acl, "world", "anyone")]);
    let party = Party::join(&zk);
    let error = party.blocking().lock().unwrap_err();
    assert!(error.is_access_denied() && error.to_string().contains("READ"), "{error}");
    eventually("no znode is left", || zk.children(DIR).is_empty());
    let (lock, calls) = party.listening();
    assert!(lock.lock().unwrap_err().is_access_denied());
    assert_eq!(next(&calls), Call::Dropped(LossReason::Refused));
}

#[test]
fn a_deletion_that_is_refused_is_an_error() {
    let zk = SimulatedZooKeeper::new();
    let acl = Permission::CREATE | Permission::READ;
    zk.create_with_acl(DIR, b"", &[Acl::new(acl, "world", "anyone")]);
    let party = Party::join(&zk);
    let error = party.blocking().lock().unwrap().unlock().unwrap_err();
    assert!(error.is_access_denied() && error.to_string().contains("DELETE"), "{error}");
    party.session.close();
    assert!(zk.children(DIR).is_empty(), "it goes with the session");
}

// ---- retries

#[test]
fn an_operation_is_tried_ten_times_and_its_first_error_returned() {
    let zk = SimulatedZooKeeper::new();
    let support = ProtocolSupport::new(&Party::join(&zk).session);
    assert_eq!((support.retry_count(), support.retry_delay()), (10, Duration::from_millis(500)));
    support.set_retry_delay(Duration::from_micros(1));
    let mut attempts = 0;
    let error = support
        .retry_operation(|| {
            attempts += 1;
            let source = ZkError::ConnectionLoss;
            Err::<(), _>(LockError::ConnectionLoss {
                operation: "test",
                path: format!("/{attempts}"),
                source,
            })
        })
        .unwrap_err();
    assert_eq!(attempts, 10);
    assert!(matches!(&error, LockError::ConnectionLoss { path, .. } if path == "/1"), "{error}");
}

#[test]
fn an_operation_that_succeeds_or_is_refused_is_not_tried_again() {
    let zk = SimulatedZooKeeper::new();
    let support = ProtocolSupport::new(&Party::join(&zk).session);
    assert_eq!(support.retry_operation(|| Ok(7)).unwrap(), 7);
    let refusals = [
        LockError::SessionLost { operation: "test", path: "/".into(), reason: LossReason::SessionExpired },
        LockError::Client { operation: "test", path: "/".into(), source: ZkError::NoNode },
    ];
    for refusal in refusals {
        let mut refusal = Some(refusal);
        assert!(support.retry_operation(|| Err::<(), _>(refusal.take().unwrap())).is_err());
    }
}

#[test]
fn closing_ends_the_waiting_for_the_next_attempt() {
    let zk = SimulatedZooKeeper::new();
    let party = Party::join(&zk);
    let support = Arc::new(ProtocolSupport::new(&party.session));
    support.set_retry_delay(Duration::from_secs(3600));
    let (tried, attempts) = unbounded();
    let of_thread = Arc::clone(&support);
    let retrying = thread::spawn(move || {
        of_thread.retry_operation(|| {
            tried.send(()).unwrap();
            let source = ZkError::ConnectionLoss;
            Err::<(), _>(LockError::ConnectionLoss { operation: "test", path: "/".into(), source })
        })
    });
    // The second attempt comes at once, the third after the delay.
    attempts.recv_timeout(PATIENCE).unwrap();
    attempts.recv_timeout(PATIENCE).unwrap();
    support.close();
    assert!(retrying.join().unwrap().unwrap_err().is_closed());
}

#[test]
fn a_lock_retries_by_its_policy() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let party = Party::join(&zk);
    let hour = Duration::from_secs(3600);
    let policies = [
        (RetryPolicy::constant(Duration::from_millis(1)).with_attempts(3), 3),
        (RetryPolicy::linear(hour).with_jitter().with_total_time(Duration::from_secs(60)), 2),
        (RetryPolicy::exponential(hour).with_total_time(Duration::from_secs(60)), 1),
    ];
    let lock = party.blocking();
    for (policy, attempts) in policies {
        lock.protocol_support().set_retry_policy(policy);
        assert_eq!(lock.protocol_support().retry_policy(), policy);
        for _ in 0..attempts {
            party.client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
        }
        assert!(lock.lock().unwrap_err().is_recoverable(), "{policy:?}");
        assert_eq!(party.client.pending_faults(), 0, "{policy:?}");
        drop(lock.lock().unwrap());
    }
}

#[test]
fn the_total_time_is_counted_from_the_first_failure() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let party = Party::join(&zk);
    for _ in 0..500 {
        party.client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
    }
    let policy = RetryPolicy::constant(Duration::from_millis(10)).with_attempts(u32::MAX);
    let lock = party.blocking();
    lock.protocol_support().set_retry_policy(policy.with_total_time(Duration::from_millis(100)));
    assert!(lock.lock().unwrap_err().is_recoverable());
    assert!(party.client.pending_faults() >= 500 - 11);
}

#[test]
fn delay_and_count_are_settings_of_the_policy() {
    let zk = SimulatedZooKeeper::new();
    let support = ProtocolSupport::new(&Party::join(&zk).session);
    support.set_retry_policy(RetryPolicy::exponential(Duration::from_secs(1)).with_jitter());
    support.set_retry_delay(Duration::from_secs(2));
    support.set_retry_count(0);
    let expected = RetryPolicy::exponential(Duration::from_secs(2)).with_jitter().with_attempts(1);
    assert_eq!(support.retry_policy(), expected);
    assert_eq!((support.retry_count(), support.retry_delay()), (1, Duration::from_secs(2)));
}

#[test]
fn a_path_is_ensured_over_a_lost_reply() {
    let zk = SimulatedZooKeeper::new();
    let party = Party::join(&zk);
    let support = ProtocolSupport::new(&party.session);
    support.set_retry_delay(Duration::from_millis(1));
    for when in [Effect::Before, Effect::After] {
        party.client.fail_next(SimOperation::Create, when, ZkError::ConnectionLoss);
        support.ensure_path_exists(&format!("/a/{when:?}/b")).unwrap();
        assert!(zk.exists(&format!("/a/{when:?}/b")));
    }
}

// ---- sessions that heal themselves

/// A session whose clients come from a factory, and the newest of these.
fn self_healing(zk: &SimulatedZooKeeper) -> (Session, Receiver<Arc<SimulatedClient>>) {
    let (made, clients) = unbounded();
    let zk = zk.clone();
    let session = Session::from_client_factory(move || {
        let client = zk.connect(LONG);
        let _ = made.send(Arc::clone(&client));
        Ok(client)
    });
    (session.unwrap(), clients)
}

#[test]
fn who_waits_on_a_session_that_heals_itself_waits_on() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
    let (session, clients) = self_healing(&zk);
    let (told, calls) = unbounded();
    let listening = WriteLock::with_listener(&session, DIR, None, Notes(told)).unwrap();
    assert!(!listening.lock().unwrap());
    let blocking = BlockingWriteLock::new(&session, DIR, None).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| blocking.lock().map(|guard| guard.is_owner()));
        for _ in 0..3 {
            eventually("both stand in the queue", || zk.children(DIR).len() == 3);
            clients.recv_timeout(PATIENCE).unwrap().expire();
        }
        eventually("both stand in the queue", || zk.children(DIR).len() == 3);
        zk.delete(&ahead);
        assert_eq!(next(&calls), Call::Acquired, "nothing is told of the losses");
        listening.unlock().unwrap();
        assert!(waiting.join().unwrap().unwrap());
    });
    assert_eq!(next(&calls), Call::Released);
}

#[test]
fn who_holds_on_a_session_that_heals_itself_has_lost() {
    let zk = SimulatedZooKeeper::new();
    let (session, clients) = self_healing(&zk);
    let states = session.subscribe();
    let (told, calls) = unbounded();
    let lock = WriteLock::with_listener(&session, DIR, None, Notes(told)).unwrap();
    assert!(lock.lock().unwrap());
    clients.recv_timeout(PATIENCE).unwrap().expire();
    assert_eq!((next(&calls), next(&calls)), (Call::Acquired, Call::Lost(LossReason::SessionExpired)));
    assert_eq!(states.recv_timeout(PATIENCE), Ok(SessionState::Lost));
    assert_eq!(states.recv_timeout(PATIENCE), Ok(SessionState::Connected));
    assert!(!lock.is_owner());
    assert!(zk.children(DIR).is_empty(), "nobody joined again for it");
    assert!(lock.lock().unwrap(), "but it may");
    assert_eq!(next(&calls), Call::Acquired);
}

#[test]
fn what_a_lost_session_left_in_the_queue_is_deleted_on_the_next() {
    let zk = SimulatedZooKeeper::new();
    let (session, clients) = self_healing(&zk);
    let lock = BlockingWriteLock::new(&session, DIR, None).unwrap();
    let guard = lock.lock().unwrap();
    let left = guard.id().to_owned();
    // The client gives up, as it does when it was too busy to ping, and the session lives on for its timeout.
    clients.recv_timeout(PATIENCE).unwrap().give_up();
    assert_eq!(guard.lost().recv_timeout(PATIENCE), Ok(LossReason::SessionExpired));
    assert!(lock.try_lock_for(PATIENCE).unwrap().is_some(), "without waiting for the end of the old session");
    assert!(!zk.exists(&left));
}

#[test]
fn closing_a_session_that_heals_itself_ends_the_healing() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    zk.create_sequential(DIR, "x-other-lock-", None);
    let (session, clients) = self_healing(&zk);
    let lock = BlockingWriteLock::new(&session, DIR, None).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| lock.lock().map(drop));
        eventually("it stands in the queue", || zk.children(DIR).len() == 2);
        session.close();
        let error = waiting.join().unwrap().unwrap_err();
        assert!(error.is_closed(), "{error:?}");
    });
    assert!(lock.lock().unwrap_err().is_closed());
    clients.recv_timeout(PATIENCE).unwrap();
    assert!(clients.recv_timeout(PATIENCE).is_err(), "the factory is gone, and made no other");
    assert_eq!(session.state(), SessionState::Lost);
}
