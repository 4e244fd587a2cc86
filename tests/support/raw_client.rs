//! A client that makes single calls on the library's own connection, without the library's sessions, locks,
//! retries and names.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "as in the kit"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use zookeeper_connection::{Acl, ClientEvent, Connection, CreateMode, Stat, Verbs, ZkResult};

/// A client that uses znodes as other programs do. Each method sends one request, once. Dropping the client
/// ends its session.
pub struct RawClient {
    connection: Arc<Connection>,
    /// The paths whose watches have fired.
    changes: Receiver<String>,
}

impl RawClient {
    /// Opens a session.
    pub fn connect(connect_string: &str, session_timeout: Duration) -> RawClient {
        let connection = Connection::open(connect_string, session_timeout).expect("a server is up");
        let (sender, changes) = unbounded();
        connection.subscribe(Arc::new(move |event| {
            if let ClientEvent::NodeChanged { path, .. } = event {
                // The client may have been dropped by now.
                let _ = sender.send(path);
            }
        }));
        RawClient { connection, changes }
    }

    /// Creates a znode and returns its path: `path`, plus the number if the znode is sequential.
    pub fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> ZkResult<String> {
        self.connection.create(path, data, acl, mode)
    }

    /// Deletes a znode, whatever its version.
    pub fn delete(&self, path: &str) -> ZkResult<()> {
        self.connection.delete(path, None)
    }

    /// Returns the metadata of a znode, or `None` if the znode does not exist.
    pub fn exists(&self, path: &str) -> ZkResult<Option<Stat>> {
        self.connection.exists(path, false)
    }

    pub fn get_data(&self, path: &str) -> ZkResult<(Vec<u8>, Stat)> {
        self.connection.get_data(path, false)
    }

    /// Sets a watch on a znode that exists, for [`await_change`](RawClient::await_change).
    pub fn watch(&self, path: &str) -> ZkResult<()> {
        self.connection.get_data(path, true).map(drop)
    }

    /// Waits until the watch on this znode fires. Returns `false` if it does not fire within the limit.
    /// Discards watches on other znodes that fire meanwhile.
    pub fn await_change(&self, path: &str, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        std::iter::from_fn(|| self.changes.recv_deadline(end).ok()).any(|changed| changed == path)
    }

    /// Replaces the data of a znode, whatever its version.
    pub fn set_data(&self, path: &str, data: &[u8]) -> ZkResult<Stat> {
        self.connection.set_data(path, data, None)
    }

    pub fn get_children(&self, path: &str) -> ZkResult<Vec<String>> {
        self.connection.get_children(path, false).map(Vec::from)
    }
}
