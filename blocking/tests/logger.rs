//! Tests that a logger that blocks does not hold up calls. This is a separate binary because the logger
//! serves the whole process.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the failure report")]

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use log::{LevelFilter, Log, Metadata, Record};
use zookeeper_recipes_lock::client::ZkResult;
use zookeeper_recipes_lock::client::port::{Call, EventSink, Reply, ZooKeeperClient};
use zookeeper_recipes_lock::fake::{SimulatedClient, SimulatedZooKeeper};
use zookeeper_recipes_lock::{BlockingWriteLock, Session, WriteLock};
use zookeeper_recipes_lock_blocking::{BlockingClient, on_workers};

const LONG: Duration = Duration::from_secs(30);

/// More locks than there are threads for calls.
const LOCKS: usize = 20;

/// A logger that blocks when it gets a line about an acquired lock, until the sender of `GATE` is dropped.
struct Blocked;

static GATE: OnceLock<Receiver<()>> = OnceLock::new();

impl Log for Blocked {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.args().to_string().starts_with("acquired /locks/blocked/") {
            let _ = GATE.get().map(Receiver::recv);
        }
    }

    fn flush(&self) {}
}

/// A client of the simulated server whose calls block.
struct Blocking(Arc<SimulatedClient>);

impl BlockingClient for Blocking {
    fn call(&self, call: &Call) -> ZkResult<Reply> {
        self.0.call(call)
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        self.0.subscribe(sink)
    }

    fn session_timeout(&self) -> Duration {
        self.0.session_timeout()
    }

    fn report_delay(&self) -> Duration {
        self.0.report_delay()
    }

    fn close(&self) {
        self.0.close();
    }
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < until, "never: {what}");
        thread::yield_now();
    }
}

#[test]
fn logger_that_blocks_on_acquisitions_holds_up_no_call() {
    let (open, gate) = bounded(0);
    GATE.set(gate).unwrap();
    log::set_logger(&Blocked).unwrap();
    log::set_max_level(LevelFilter::Debug);
    let server = SimulatedZooKeeper::new();
    let session = Session::from_client(on_workers(Arc::new(Blocking(server.connect(LONG))))).unwrap();
    let locks: Vec<_> = (0..LOCKS)
        .map(|number| {
            let dir = format!("/locks/blocked/{number}");
            let ahead = server.create_sequential(&dir, "x-other-lock-", None);
            let lock = WriteLock::with_listener(&session, &dir, ()).unwrap();
            assert!(!lock.lock().unwrap());
            server.delete(&ahead);
            lock
        })
        .collect();
    eventually("all locks are owned", || locks.iter().all(|lock| lock.is_owner()));
    let (acquired, acquisitions) = bounded(1);
    let lock = BlockingWriteLock::new(&session, "/locks/free").unwrap();
    thread::spawn(move || acquired.send(lock.lock().map(drop)));
    acquisitions.recv_timeout(LONG).unwrap().unwrap();
    drop(open);
}
