//! Tests of the connection against small servers on the loopback interface.

mod calls;
mod connecting;
mod ending;
mod hand_over;
mod outages;
mod probing;
mod server;
#[cfg(feature = "tls")]
mod tls;

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};

use super::{Connection, ConnectionOptions};
use crate::client::connect_string::ConnectString;
use crate::client::{Call, ClientEvent, Reply, Verbs, ZooKeeperClient};
use crate::error::{Result, ZkResult};
use crate::wait::Wait;

/// Long enough for nothing to happen by itself within a test.
const LONG: Duration = Duration::from_secs(300);

impl Verbs for Connection {
    fn make(&self, call: Call) -> ZkResult<Reply> {
        let port: &dyn ZooKeeperClient = self;
        port.make(call)
    }
}

fn connect_with(servers: &str, options: &ConnectionOptions) -> Result<Arc<Connection>> {
    let wait = Wait::timeout(options.session_timeout);
    Connection::connect(&ConnectString::parse(servers)?, options, &wait)
}

fn connect(servers: &str) -> Arc<Connection> {
    connect_with(servers, &ConnectionOptions::new(LONG)).unwrap()
}

/// The message of the error of connecting within this time.
fn connect_error(servers: &str, session_timeout: Duration) -> String {
    connect_with(servers, &ConnectionOptions::new(session_timeout)).unwrap_err().to_string()
}

fn events_of(connection: &Connection) -> Receiver<ClientEvent> {
    let (sender, events) = unbounded();
    assert!(connection.subscribe(Arc::new(move |event| drop(sender.send(event)))), "there is contact");
    events
}

/// Returns whether it reports a connection, or what the probe has found out on it at any time later.
fn is_connected(event: &ClientEvent) -> bool {
    matches!(event, ClientEvent::Connected(_) | ClientEvent::ReportDelay(_))
}
