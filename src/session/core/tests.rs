//! What the core promises a client, and what it makes of contact and proof.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use zookeeper::{Acl, CreateMode, Stat, ZkError, ZkResult};

use crate::client::{EventSink, ZooKeeperClient};
use crate::session::CLOSE_PATIENCE;
use crate::sim::{Effect, SimOperation, SimulatedClient, SimulatedZooKeeper};
use crate::testing::open_on_manual_runtime;
use crate::{BlockingWriteLock, Session, SessionState};

/// A client that tells its events under a lock of its own, which its other calls take too.
struct LockedClient {
    simulated: Arc<SimulatedClient>,
    lock: Arc<Mutex<()>>,
    was_called_back: AtomicBool,
}

impl ZooKeeperClient for LockedClient {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> ZkResult<String> {
        self.simulated.create(path, data, acl, mode)
    }

    fn delete(&self, path: &str, version: Option<i32>) -> ZkResult<()> {
        self.simulated.delete(path, version)
    }

    fn exists(&self, path: &str, watch: bool) -> ZkResult<Option<Stat>> {
        self.simulated.exists(path, watch)
    }

    fn get_children(&self, path: &str, watch: bool) -> ZkResult<Vec<String>> {
        self.simulated.get_children(path, watch)
    }

    fn get_data(&self, path: &str, watch: bool) -> ZkResult<(Vec<u8>, Stat)> {
        self.simulated.get_data(path, watch)
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> ZkResult<Stat> {
        self.simulated.set_data(path, data, version)
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        let lock = Arc::clone(&self.lock);
        self.simulated.subscribe(Arc::new(move |event| {
            let _telling = lock.lock();
            sink(event);
        }))
    }

    fn session_timeout(&self) -> Duration {
        self.simulated.session_timeout()
    }

    fn quiet_time(&self) -> Duration {
        if self.lock.try_lock().is_none() {
            self.was_called_back.store(true, Ordering::SeqCst);
        }
        Duration::ZERO
    }

    fn report_delay(&self) -> Duration {
        Duration::ZERO
    }

    fn close(&self) {
        self.simulated.close();
    }
}

#[test]
fn a_client_that_tells_an_event_is_not_called_back() {
    let simulated = SimulatedZooKeeper::new().connect(Duration::from_secs(30));
    let client = Arc::new(LockedClient {
        simulated: Arc::clone(&simulated),
        lock: Arc::default(),
        was_called_back: AtomicBool::new(false),
    });
    let _session = Session::from_client(client.clone()).unwrap();
    simulated.disconnect();
    simulated.reconnect();
    assert!(!client.was_called_back.load(Ordering::SeqCst));
}

const TIMEOUT: Duration = Duration::from_secs(8);

#[test]
fn a_session_whose_reads_are_answered_and_whose_writes_fail_is_suspended() {
    let zookeeper = SimulatedZooKeeper::new();
    let (client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
    let states = session.subscribe();
    for _ in 0..200 {
        client.fail_next(SimOperation::SetData, Effect::Before, ZkError::ConnectionLoss);
    }
    while client.pending_faults() > 0 {
        session.core().read(|client| client.exists("/", false)).unwrap();
        runtime.advance(Duration::from_millis(100));
    }
    let lasted = runtime.elapsed();
    assert!(lasted > 2 * TIMEOUT, "the writes failed for {lasted:?}");
    // Writes succeed again.
    runtime.advance(TIMEOUT / 2);
    assert_eq!(states.try_iter().collect::<Vec<_>>(), [SessionState::Suspended, SessionState::Connected]);
}

#[test]
fn a_pending_deletion_makes_no_calls_until_there_is_contact() {
    let zookeeper = SimulatedZooKeeper::new();
    let (client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
    let guard = BlockingWriteLock::new(&session, "/lock", None).unwrap().lock().unwrap();
    client.disconnect();
    drop(guard);
    assert_eq!(zookeeper.calls(SimOperation::Delete), 1, "the one that fails");
    zookeeper.clear_log();
    for _ in 0..10 {
        runtime.advance(TIMEOUT / 16);
    }
    assert!(zookeeper.log().is_empty(), "{:?}", zookeeper.log());
    client.reconnect();
    assert!(zookeeper.children("/lock").is_empty());
}

#[test]
fn closing_without_contact_does_not_wait_for_the_server() {
    let zookeeper = SimulatedZooKeeper::new();
    let client = zookeeper.connect(Duration::from_secs(30));
    let session = Session::from_client(client.clone()).unwrap();
    client.disconnect();
    // The session hears of nothing that follows, and its client cannot be closed.
    client.subscribe(Arc::new(|_| {}));
    client.reconnect();
    client.swallow();
    let begun = Instant::now();
    session.close();
    assert!(begun.elapsed() < CLOSE_PATIENCE, "{:?}", begun.elapsed());
    client.release();
}
