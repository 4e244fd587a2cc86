//! The protocol, step by step, on the simulated ZooKeeper: what a real server cannot do on command.

mod crowds;
mod downgrade;
mod giving_up;
mod lost_replies;
mod overtaking;
mod refusals;
mod replacement;
mod retries;
mod session_ends;
mod sharing;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::client::{Acl, Permissions, ZkError};
use crate::fake::{Effect, ReadChecks, SimOperation, SimulatedClient, SimulatedZooKeeper};
use crate::session::KEEP_ALIVE_PATH;
use crate::testing::{deadline, eventually, in_background, next, open_on_manual_runtime};
use crate::{
    BlockingWriteLock, CancelToken, LockError, LockListener, LockOptions, LossReason, ProtocolSupport,
    Released, RetryPolicy, Session, SessionState, Wait, WriteLock,
};

const DIR: &str = "/locks/it";
const LONG: Duration = Duration::from_secs(30);

/// The calls that a lock makes on its way from nothing to owning and back.
const STEPS: [SimOperation; 4] =
    [SimOperation::Create, SimOperation::GetChildren, SimOperation::GetData, SimOperation::Delete];

/// A session on a simulated client.
struct Fixture {
    client: Arc<SimulatedClient>,
    session: Session,
}

/// Options with the default retries, but short delays.
fn quick_retries() -> LockOptions {
    LockOptions::new().retry(RetryPolicy::linear(Duration::from_millis(1)))
}

impl Fixture {
    fn join(zk: &SimulatedZooKeeper) -> Fixture {
        Fixture::join_for(zk, LONG)
    }

    fn join_for(zk: &SimulatedZooKeeper, session_timeout: Duration) -> Fixture {
        let client = zk.connect(session_timeout);
        let session = Session::from_client(client.clone()).unwrap();
        Fixture { client, session }
    }

    fn blocking(&self) -> BlockingWriteLock {
        BlockingWriteLock::with_options(&self.session, DIR, quick_retries()).unwrap()
    }

    fn listening(&self) -> (WriteLock, Receiver<Call>) {
        let (calls, taken) = unbounded();
        let lock = WriteLock::with_options(&self.session, DIR, quick_retries(), Notes(calls));
        (lock.unwrap(), taken)
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

/// Has the client panic in its next call of this operation, before or after the effect of the call.
fn panic_in_next(client: &SimulatedClient, operation: SimOperation, when: Effect) {
    // Without the hook, which would print it.
    let panic = || std::panic::resume_unwind(Box::new("a client panics on purpose"));
    match when {
        Effect::Before => client.before_next(operation, panic),
        Effect::After => client.after_next(operation, panic),
    }
}

/// The calls so far, without those that keep the session alive.
fn operations(zk: &SimulatedZooKeeper) -> Vec<SimOperation> {
    let log = zk.log();
    log.iter().filter(|call| call.path != KEEP_ALIVE_PATH).map(|call| call.operation).collect()
}

// ---- the number of calls

#[test]
fn an_uncontended_lock_is_three_round_trips() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let lock = Fixture::join(&zk).blocking();
    zk.clear_log();
    lock.lock().unwrap().unlock().unwrap();
    assert_eq!(operations(&zk), [SimOperation::Create, SimOperation::GetChildren, SimOperation::Delete]);
}

#[test]
fn missing_parents_cost_calls_only_when_they_are_missing() {
    let zk = SimulatedZooKeeper::new();
    let lock = Fixture::join(&zk).blocking();
    zk.clear_log();
    drop(lock.lock().unwrap());
    // The request, the directory, its parent, the directory again, the request again.
    assert_eq!(zk.calls(SimOperation::Create), 5);
    eventually("the request is gone", || zk.children(DIR).is_empty());
}

#[test]
fn a_waiter_costs_one_look_and_one_watch() {
    let zk = SimulatedZooKeeper::new();
    let (holder, waiter) = (Fixture::join(&zk), Fixture::join(&zk));
    let guard = holder.blocking().lock().unwrap();
    zk.clear_log();
    let (lock, calls) = waiter.listening();
    assert!(!lock.lock().unwrap());
    let of_waiter = |operation| {
        let ours = |call: &&crate::fake::Call| call.session == waiter.client.session_id();
        zk.log().iter().filter(ours).filter(|call| call.operation == operation).count()
    };
    assert_eq!(of_waiter(SimOperation::GetChildren), 1);
    assert_eq!(of_waiter(SimOperation::GetData), 1);
    guard.unlock().unwrap();
    assert_eq!(next(&calls), Call::Acquired);
    assert_eq!(of_waiter(SimOperation::GetChildren), 2);
}
