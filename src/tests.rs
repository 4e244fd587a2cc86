//! Shared parts of the unit tests: waits with a deadline, and monitors that end the test run when something
//! goes wrong that no test would notice.
//!
//! The tests in `tests/` and the benchmarks share some of these parts through `tests/support`. Packages share
//! files by symbolic links, because a published package contains only its own files.

#[cfg(feature = "tls")]
#[allow(dead_code, unreachable_pub, reason = "shared with other binaries, each of which uses a part")]
pub(crate) mod certificates;
pub(crate) mod counts;
#[cfg(unix)]
mod differential;
mod futures;
mod hand_over;
mod log;
mod manual_runtime;
mod of_the_kit;
#[allow(unreachable_pub, reason = "shared with other binaries")]
mod panics;
#[allow(dead_code, reason = "shared with the crate `zookeeper-connection`")]
mod server;
pub(crate) mod simulation;
mod stepped;
mod surface;
#[allow(dead_code, unreachable_pub, reason = "shared with other binaries, each of which uses a part")]
pub(crate) mod wait;
mod watchdog;
mod wrapped;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded, unbounded};

use crate::Session;
use crate::error::Result;
use crate::fake::{SimulatedClient, SimulatedZooKeeper};
use crate::session::{Factory, Threads};
use crate::time::Runtime;

pub(crate) use self::log::{is_enabled, logged, logged_down_to, write, write_text};
pub(crate) use self::manual_runtime::{
    ManualRuntime, open_client_on_manual_runtime, open_on_manual_runtime, open_wrapped_on_manual_runtime,
};
pub(crate) use self::stepped::{Request, SteppedClient};
pub(crate) use self::wait::{deadline, eventually};
pub(crate) use self::wrapped::{Wrapped, open_client, open_wrapped};

/// Starts the monitors that end the test run when something goes wrong that no test would notice. Must be
/// called before the threads of a session are started.
pub(crate) fn begin() {
    panics::watch();
    watchdog::watch_this_test(4 * deadline());
}

/// Like [`begin`], for a test that may run for any length of time because each of its waits has a limit.
pub(crate) fn begin_without_a_limit() {
    panics::watch();
    watchdog::watch_this_test(Duration::MAX);
}

/// Returns a session that replaces lost clients, and a channel that receives each of its clients.
pub(crate) fn replacing_session(
    zookeeper: &SimulatedZooKeeper,
    session_timeout: Duration,
) -> (Session, Receiver<Arc<SimulatedClient>>) {
    replacing_session_on(|| Ok(Threads::start()? as Arc<dyn Runtime>), zookeeper, session_timeout)
}

/// Like [`replacing_session`], but each session runs on a runtime that `runtime` returns.
pub(crate) fn replacing_session_on(
    runtime: impl Fn() -> Result<Arc<dyn Runtime>> + Send + Sync + 'static,
    zookeeper: &SimulatedZooKeeper,
    session_timeout: Duration,
) -> (Session, Receiver<Arc<SimulatedClient>>) {
    let (made, clients) = unbounded();
    let zookeeper = zookeeper.clone();
    let factory = Factory::new(runtime, move |runtime, _| {
        let client = zookeeper.connect(session_timeout);
        client.run_on(runtime);
        let _ = made.send(Arc::clone(&client));
        Ok(client)
    });
    (Session::open_replaced(factory).unwrap(), clients)
}

/// Opens a session in real time that gets its clients from this factory.
pub(crate) fn session_by_factory(
    factory: impl Fn() -> Result<Arc<SimulatedClient>> + Send + Sync + 'static,
) -> Result<Session> {
    let runtime = || Ok(Threads::start()? as Arc<dyn Runtime>);
    Session::open_replaced(Factory::new(runtime, move |runtime, _| {
        let client = factory()?;
        client.run_on(runtime);
        Ok(client)
    }))
}

/// Calls `lose`, then waits until another session has replaced the current one.
pub(crate) fn await_replacement(session: &Session, lose: impl FnOnce()) {
    let former = session.core();
    lose();
    eventually("the session is replaced", || !Arc::ptr_eq(&former, &session.core()));
}

/// Makes a call on another thread, where it may block forever. Returns a channel that receives the call's
/// result.
pub(crate) fn in_background<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (outcome, returned) = bounded(1);
    thread::spawn(move || drop(outcome.send(call())));
    returned
}

/// Returns the next message on a channel. Panics if none arrives before the deadline.
#[track_caller]
pub(crate) fn next<T>(channel: &Receiver<T>) -> T {
    match channel.recv_timeout(deadline()) {
        Ok(message) => message,
        Err(error) => panic!("no message within {:?}: {error}", deadline()),
    }
}
