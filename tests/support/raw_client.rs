//! Single calls on the library's own connection, without its session, locks, retries and names.

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

use crossbeam_channel::{Receiver, bounded, unbounded};
use zookeeper_recipes_lock::client::{Call, ClientEvent, Done, Reply, ZooKeeperClient};
use zookeeper_recipes_lock::conformance::own;
use zookeeper_recipes_lock::{Acl, CreateMode, Stat, ZkResult};

/// A client that uses znodes as other programs do. Each method is one request, which is sent once. Its session
/// ends with it.
pub struct RawClient {
    connection: Arc<dyn ZooKeeperClient>,
    /// The paths whose watches have fired.
    changes: Receiver<String>,
}

impl RawClient {
    /// Opens a session.
    pub fn connect(connect_string: &str, session_timeout: Duration) -> RawClient {
        let connection = own::connection(connect_string, session_timeout).expect("a server is up");
        let (sender, changes) = unbounded();
        connection.subscribe(Arc::new(move |event| {
            if let ClientEvent::NodeChanged { path, .. } = event {
                // The client may have been dropped.
                let _ = sender.send(path);
            }
        }));
        RawClient { connection, changes }
    }

    /// Creates a znode, and returns its path: the one given, with the number of a sequential znode.
    pub fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> ZkResult<String> {
        let call = Call::Create { path: path.into(), data: data.into(), acl: acl.into(), mode };
        self.ask(call, |reply| match reply {
            Reply::Created { path, .. } => Some(path),
            _ => None,
        })
    }

    /// Deletes a znode, at any version.
    pub fn delete(&self, path: &str) -> ZkResult<()> {
        let call = Call::Delete { path: path.into(), version: None };
        self.ask(call, |reply| matches!(reply, Reply::Done).then_some(()))
    }

    /// Returns the metadata of a znode, or `None` if it does not exist.
    pub fn exists(&self, path: &str) -> ZkResult<Option<Stat>> {
        let call = Call::Exists { path: path.into(), watch: false };
        self.ask(call, |reply| match reply {
            Reply::Found(stat) => Some(stat),
            _ => None,
        })
    }

    pub fn get_data(&self, path: &str) -> ZkResult<(Vec<u8>, Stat)> {
        self.read_data(path, false)
    }

    /// Sets a watch on a znode that exists, for [`await_change`](RawClient::await_change).
    pub fn watch(&self, path: &str) -> ZkResult<()> {
        self.read_data(path, true).map(drop)
    }

    /// Waits until the watch on this znode fires, and returns whether it has. Watches on other znodes that fire
    /// meanwhile are forgotten.
    pub fn await_change(&self, path: &str, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        std::iter::from_fn(|| self.changes.recv_deadline(end).ok()).any(|changed| changed == path)
    }

    /// Replaces the data of a znode, at any version.
    pub fn set_data(&self, path: &str, data: &[u8]) -> ZkResult<Stat> {
        let call = Call::SetData { path: path.into(), data: data.into(), version: None };
        self.ask(call, |reply| match reply {
            Reply::Stat(stat) => Some(stat),
            _ => None,
        })
    }

    pub fn get_children(&self, path: &str) -> ZkResult<Vec<String>> {
        let call = Call::GetChildren { path: path.into(), watch: false };
        self.ask(call, |reply| match reply {
            Reply::Children(names) => Some(names.into()),
            _ => None,
        })
    }

    fn read_data(&self, path: &str, watch: bool) -> ZkResult<(Vec<u8>, Stat)> {
        self.ask(Call::GetData { path: path.into(), watch }, |reply| match reply {
            Reply::Data(data, stat) => Some((data, stat)),
            _ => None,
        })
    }

    fn ask<T>(&self, call: Call, read: impl FnOnce(Reply) -> Option<T>) -> ZkResult<T> {
        let (sender, outcome) = bounded(1);
        self.connection.submit(call, Done::new(move |reply| drop(sender.send(reply))));
        let reply = outcome.recv().expect("a call is finished or dropped, and then fails")?;
        Ok(read(reply).expect("the reply answers the call"))
    }
}
