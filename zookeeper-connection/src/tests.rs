//! Tests of the connection against small servers on the loopback interface.
//!
//! The files that are shared with other crates are symbolic links, because a published package contains only its own
//! files.

mod calls;
#[cfg(feature = "tls")]
#[allow(dead_code, unreachable_pub, reason = "shared with other crates, each of which uses a part")]
pub(crate) mod certificates;
mod connecting;
mod ending;
#[allow(dead_code, reason = "shared with other crates, each of which uses a part")]
pub(crate) mod log;
mod outages;
#[allow(unreachable_pub, reason = "shared with other crates")]
mod panics;
mod probing;
mod remembering;
mod sasl;
mod server;
#[cfg(feature = "tls")]
mod tls;
#[allow(dead_code, unreachable_pub, reason = "shared with other crates, each of which uses a part")]
pub(crate) mod wait;
mod watchdog;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded, unbounded};

#[cfg(feature = "tls")]
pub(crate) use self::log::logged_down_to;
use self::wait::scaled;
pub(crate) use self::wait::{deadline, eventually};
use crate::connection::{Connection, ConnectionOptions};
use crate::{ClientEvent, ConnectError, ConnectString};

type Result<T> = std::result::Result<T, ConnectError>;

/// A time so long that no timeout expires within a test.
const LONG: Duration = Duration::from_secs(300);

/// Starts to watch for hangs and background panics, which end the test run. Must be called before a connection is
/// opened.
fn begin() {
    panics::watch();
    watchdog::watch_this_test(4 * deadline());
}

/// Makes a call that may block forever on another thread, and returns a channel for its outcome.
pub(crate) fn in_background<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (outcome, returned) = bounded(1);
    thread::spawn(move || drop(outcome.send(call())));
    returned
}

/// Returns the next message on a channel, which must arrive before the deadline.
#[track_caller]
pub(crate) fn next<T>(channel: &Receiver<T>) -> T {
    match channel.recv_timeout(deadline()) {
        Ok(message) => message,
        Err(error) => panic!("no message within {:?}: {error}", deadline()),
    }
}

/// Connects. However short the session timeout is, a busy machine has time for it.
fn connect_with(servers: &str, options: &ConnectionOptions) -> Result<Arc<Connection>> {
    connect_within(deadline(), servers, options)
}

fn connect_within(limit: Duration, servers: &str, options: &ConnectionOptions) -> Result<Arc<Connection>> {
    begin();
    Connection::connect(&ConnectString::parse(servers)?, options, Instant::now().checked_add(limit))
}

fn connect(servers: &str) -> Arc<Connection> {
    connect_with(servers, &ConnectionOptions::new(LONG)).unwrap()
}

/// Returns the error message of an attempt to connect within the session timeout.
fn connect_error(servers: &str, options: &ConnectionOptions) -> String {
    connect_within(options.session_timeout, servers, options).unwrap_err().to_string()
}

/// Tries to connect within a session timeout, and returns the error if it is as expected. Otherwise, tries again with a
/// longer timeout: on a busy machine, the last attempt of a short time may fail in another way.
#[track_caller]
fn error_in_some_time<E: ToString>(
    session_timeout: Duration,
    error_within: impl Fn(Duration) -> E,
    is_expected: impl Fn(&E) -> bool,
) -> E {
    let mut timeout = scaled(session_timeout);
    loop {
        let error = error_within(timeout);
        if is_expected(&error) {
            return error;
        }
        timeout *= 4;
        assert!(timeout < deadline(), "{}", error.to_string());
    }
}

fn events_of(connection: &Connection) -> Receiver<ClientEvent> {
    let (sender, events) = unbounded();
    assert!(connection.subscribe(Arc::new(move |event| drop(sender.send(event)))), "a server is connected");
    events
}

/// Returns whether an event reports a connection, or a report delay that a probe found out later.
fn is_connected(event: &ClientEvent) -> bool {
    matches!(event, ClientEvent::Connected(_) | ClientEvent::ReportDelay(_))
}
