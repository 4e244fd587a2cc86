//! Tests that a logger that blocks or panics does not hold up calls. This is a separate binary because the logger
//! serves the whole process.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the failure report")]

use std::panic::resume_unwind;
use std::sync::{Arc, Once, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use log::{LevelFilter, Log, Metadata, Record};
use zookeeper_recipes_lock::client::port::{Call, Done, EventSink, Reply, ZooKeeperClient};
use zookeeper_recipes_lock::client::{ZkError, ZkResult};
use zookeeper_recipes_lock::fake::{SimulatedClient, SimulatedZooKeeper};
use zookeeper_recipes_lock::{BlockingWriteLock, Session, WriteLock};
use zookeeper_recipes_lock_blocking::{BlockingClient, on_workers};

const LONG: Duration = Duration::from_secs(30);

/// More locks than there are threads for calls.
const LOCKS: usize = 20;

/// A logger that blocks when it gets a line about an acquired lock, until the sender of `GATE` is dropped. It panics
/// when it gets a line about a panic.
struct Misbehaving;

static GATE: OnceLock<Receiver<()>> = OnceLock::new();

impl Log for Misbehaving {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let line = record.args().to_string();
        if line.starts_with("acquired /locks/blocked/") {
            let _ = GATE.get().map(Receiver::recv);
        }
        if line.starts_with("the ZooKeeper client panicked") {
            // `resume_unwind` skips the panic hook, which would print the panic.
            resume_unwind(Box::new("the logger panics on purpose"));
        }
    }

    fn flush(&self) {}
}

fn install_logger() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        log::set_logger(&Misbehaving).unwrap();
        log::set_max_level(LevelFilter::Debug);
    });
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

/// A client whose calls panic.
struct Panicking;

impl BlockingClient for Panicking {
    fn call(&self, _: &Call) -> ZkResult<Reply> {
        resume_unwind(Box::new("the client panics on purpose"));
    }

    fn subscribe(&self, _: EventSink) -> bool {
        true
    }

    fn session_timeout(&self) -> Duration {
        LONG
    }

    fn close(&self) {}
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
    install_logger();
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

#[test]
fn logger_that_panics_costs_no_thread_for_calls() {
    install_logger();
    let client = on_workers(Arc::new(Panicking));
    // More calls than there are threads for them.
    for _ in 0..40 {
        let (done, outcome) = bounded(1);
        let read = Call::Exists { path: "/a".into(), watch: false };
        client.submit(read, Done::new(move |result| drop(done.send(result))));
        assert_eq!(outcome.recv_timeout(LONG).unwrap(), Err(ZkError::ConnectionLoss));
    }
}
