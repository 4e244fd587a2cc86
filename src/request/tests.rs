//! Step-by-step tests of the protocol on the fake server, with faults that no real server produces on demand.

mod crossing;
mod directories;
mod downgrade;
mod interleavings;
mod kinds;
mod late_creates;
mod limited_holds;
mod lost_replies;
mod many_requests;
mod naming;
mod next_in_line;
mod predecessors;
mod refusals;
mod replacement;
mod retries;
mod session_ends;
mod sharing;
mod succession;
mod waiting;
mod withdrawal;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::client::KEEP_ALIVE_PATH;
use crate::client::{Acl, Permissions};
use crate::error::ZkError;
use crate::fake::{Effect, ReadChecks, SimOperation, SimulatedClient, SimulatedZooKeeper};
use crate::locks::Released;
use crate::tests::{
    deadline, eventually, in_background, logged, logged_down_to, next, open_on_manual_runtime,
};
use crate::{
    BlockingWriteLock, CancelToken, LockError, LockListener, LockOptions, LossReason, ProtocolSupport,
    RetryPolicy, Session, SessionState, Wait, WriteLock,
};

const DIR: &str = "/locks/it";
const LONG: Duration = Duration::from_secs(30);

/// The calls that a lock makes, from its request to its release.
const STEPS: [SimOperation; 4] =
    [SimOperation::Create, SimOperation::GetChildren, SimOperation::GetData, SimOperation::Delete];

/// A session, and the fake client that it uses.
struct Fixture {
    client: Arc<SimulatedClient>,
    session: Session,
}

/// Returns options with the default number of retries, but short delays.
fn quick_retries() -> LockOptions {
    LockOptions::new().retry(RetryPolicy::linear(Duration::from_millis(1)))
}

/// Returns options for a test that reconnects on its own thread. The retries outlast any delay of that
/// thread.
fn patient_retries() -> LockOptions {
    LockOptions::new().retry(RetryPolicy::constant(Duration::from_millis(1)).with_attempts(100_000))
}

impl Fixture {
    fn join(zk: &SimulatedZooKeeper) -> Fixture {
        Fixture::join_for(zk, LONG)
    }

    fn join_for(zk: &SimulatedZooKeeper, session_timeout: Duration) -> Fixture {
        let client = zk.connect(session_timeout);
        let session = client.open_session().unwrap();
        Fixture { client, session }
    }

    fn blocking(&self) -> BlockingWriteLock {
        BlockingWriteLock::with_options(&self.session, DIR, quick_retries()).unwrap()
    }

    fn listening(&self) -> (WriteLock, Receiver<Call>) {
        self.listening_with(quick_retries())
    }

    fn listening_with(&self, options: LockOptions) -> (WriteLock, Receiver<Call>) {
        let (sender, calls) = unbounded();
        let lock = WriteLock::with_options(&self.session, DIR, options, RecordingListener(sender));
        (lock.unwrap(), calls)
    }

    /// Reconnects after each loss of contact, until the returned sender is dropped.
    fn reconnect_on_loss(&self) -> Sender<()> {
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

struct RecordingListener(Sender<Call>);

impl LockListener for RecordingListener {
    fn lock_acquired(&self) {
        let _ = self.0.send(Call::Acquired);
    }
    fn lock_released(&self) {
        let _ = self.0.send(Call::Released);
    }
    fn lock_lost(&self, _lock: &WriteLock, reason: LossReason) {
        let _ = self.0.send(Call::Lost(reason));
    }
    fn request_dropped(&self, _lock: &WriteLock, reason: LossReason) {
        let _ = self.0.send(Call::Dropped(reason));
    }
}

/// Makes the client panic in its next call of this operation, before or after the call's effect.
fn panic_in_next(client: &SimulatedClient, operation: SimOperation, when: Effect) {
    // `resume_unwind` skips the panic hook, which would print the panic.
    let panic = || std::panic::resume_unwind(Box::new("a client panics on purpose"));
    match when {
        Effect::Before => client.before_next(operation, panic),
        Effect::After => client.after_next(operation, panic),
    }
}

/// Returns the calls so far, without the keep-alives.
fn operations(zk: &SimulatedZooKeeper) -> Vec<SimOperation> {
    let log = zk.log();
    log.iter().filter(|call| call.path != KEEP_ALIVE_PATH).map(|call| call.operation).collect()
}

// ---- the number of calls

#[test]
fn uncontended_lock_makes_three_calls() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    // A tenth of a second after the acquisition, the owner would watch its znode.
    let (client, _runtime, session) = open_on_manual_runtime(&zk, LONG);
    let lock = Fixture { client, session }.blocking();
    zk.clear_log();
    lock.lock().unwrap().unlock().unwrap();
    assert_eq!(operations(&zk), [SimOperation::Create, SimOperation::GetChildren, SimOperation::Delete]);
}

#[test]
fn parents_are_created_only_when_missing() {
    let zk = SimulatedZooKeeper::new();
    let lock = Fixture::join(&zk).blocking();
    zk.clear_log();
    drop(lock.lock().unwrap());
    // The calls create the request, the directory, its parent, the directory again, and the request again.
    assert_eq!(zk.calls(SimOperation::Create), 5);
    eventually("the request is gone", || zk.children(DIR).is_empty());
}

#[test]
fn waiter_looks_once_and_watches_once() {
    let zk = SimulatedZooKeeper::new();
    let (holder, waiter) = (Fixture::join(&zk), Fixture::join(&zk));
    let guard = holder.blocking().lock().unwrap();
    eventually("the holder watches its znode", || zk.calls(SimOperation::GetData) == 1);
    zk.clear_log();
    let (lock, calls) = waiter.listening();
    assert!(!lock.lock().unwrap());
    let of_waiter = |operation| {
        let ours = |call: &&crate::fake::Call| call.session == waiter.client.session_id();
        zk.log().iter().filter(ours).filter(|call| call.operation == operation).count()
    };
    assert_eq!(of_waiter(SimOperation::GetChildren), 1);
    // The waiter is next in line, so it watches its own znode, too. The event that signals its turn makes it
    // the owner.
    let watched = |path: &str| zk.log().iter().filter(|call| call.watch && call.path == path).count();
    assert_eq!(watched(guard.id()), 1);
    assert_eq!(watched(&lock.id().unwrap()), 1);
    assert_eq!(of_waiter(SimOperation::GetData), 2);
    guard.unlock().unwrap();
    assert_eq!(next(&calls), Call::Acquired);
    assert_eq!(of_waiter(SimOperation::GetChildren), 1, "nobody else was ahead");
}
