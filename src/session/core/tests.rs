//! What the core promises a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use zookeeper::{Acl, CreateMode, Stat, ZkResult};

use crate::Session;
use crate::client::{EventSink, ZooKeeperClient};
use crate::error::Operation;
use crate::recipe::path::ZNodePath;
use crate::session::Core;
use crate::sim::{SimulatedClient, SimulatedZooKeeper};

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

#[test]
fn a_call_that_panics_has_an_unknown_outcome() {
    let session = Session::from_client(SimulatedZooKeeper::new().connect(Duration::from_secs(30))).unwrap();
    let path = ZNodePath::parse("/a").unwrap();
    // Without the hook, which would print it.
    let panics = |_: &Arc<Core>| std::panic::resume_unwind(Box::new("on purpose"));
    let error = session.core().call::<()>(Operation::LOCK, &path, panics).unwrap_err();
    assert!(error.is_connection_loss(), "{error}");
}
