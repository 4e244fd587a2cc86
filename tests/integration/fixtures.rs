//! Common fixtures: sessions, unique directories, a client that inspects the server, a recording listener.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use zookeeper_recipes_lock::client::{Acl, CreateMode, ZkError};
use zookeeper_recipes_lock::{
    ErrorReason, LockError, LockListener, LossReason, Session, SessionBuilder, WriteLock,
};

use crate::raw_client::RawClient;
use crate::support::server::Server;
use crate::support::wait::{deadline, eventually};

/// The default session timeout: long, so that no session ends on a slow machine.
pub const LONG: Duration = Duration::from_secs(30);

/// The session timeout of tests in which a session must end.
pub const SHORT: Duration = Duration::from_secs(4);

/// Tells which variant an error is.
pub trait ErrorVariant {
    fn is_session_lost(&self) -> bool;
    fn is_closed(&self) -> bool;
    fn is_access_denied(&self) -> bool;
    fn is_invalid_argument(&self) -> bool;
}

impl ErrorVariant for LockError {
    fn is_session_lost(&self) -> bool {
        matches!(self.reason(), ErrorReason::SessionLost)
    }

    fn is_closed(&self) -> bool {
        self.reason() == ErrorReason::Closed
    }

    fn is_access_denied(&self) -> bool {
        self.reason() == ErrorReason::AccessDenied
    }

    fn is_invalid_argument(&self) -> bool {
        matches!(self.reason(), ErrorReason::InvalidArgument)
    }
}

/// Returns a builder for sessions on servers whose tick is half a second, or whose minimum session timeout
/// reveals the tick. However short the session timeout is, a busy machine has time to connect.
fn builder(connect_string: &str, timeout: Duration) -> SessionBuilder {
    let builder = Session::builder(connect_string).session_timeout(timeout);
    builder.max_tick(Duration::from_millis(500)).wait_for_server(deadline())
}

/// Connects a session that is replaced when it is lost.
pub fn connect_replaced(connect_string: &str, timeout: Duration) -> Session {
    builder(connect_string, timeout).replace_lost_sessions(true).connect().unwrap()
}

pub fn session(server: &Server) -> Session {
    connect(&server.connect_string(), LONG)
}

pub fn connect(connect_string: &str, timeout: Duration) -> Session {
    builder(connect_string, timeout).connect().unwrap()
}

/// Returns the path of a directory that no other test uses. At first, the directory does not exist; its parents may.
pub fn unique_dir(test: &str) -> String {
    format!("/it/{test}/{}", uuid::Uuid::new_v4())
}

/// A client that inspects and changes znodes, as another program would.
pub struct Observer {
    zk: RawClient,
}

impl Observer {
    pub fn at(server: &Server) -> Observer {
        Observer::of(&server.connect_string())
    }

    pub fn of(connect_string: &str) -> Observer {
        Observer { zk: RawClient::connect(connect_string, LONG) }
    }

    pub fn zk(&self) -> &RawClient {
        &self.zk
    }

    /// Returns the names of the children in the order of their sequence numbers, or no names if the directory
    /// does not exist.
    pub fn children(&self, dir: &str) -> Vec<String> {
        match self.zk.get_children(dir) {
            Ok(mut children) => {
                children.sort_by_key(|name| zookeeper_recipes_lock::ZNodeName::new(name.as_str()));
                children
            }
            Err(ZkError::NoNode) => Vec::new(),
            Err(error) => panic!("list {dir}: {error:?}"),
        }
    }

    pub fn exists(&self, path: &str) -> bool {
        self.zk.exists(path).unwrap().is_some()
    }

    pub fn delete(&self, path: &str) {
        self.zk.delete(path).unwrap();
    }

    pub fn data(&self, path: &str) -> Vec<u8> {
        self.zk.get_data(path).unwrap().0
    }

    pub fn create_persistent(&self, path: &str) {
        let mut prefix = String::new();
        for name in path[1..].split('/') {
            prefix = format!("{prefix}/{name}");
            match self.zk.create(&prefix, b"", &Acl::open_unsafe(), CreateMode::Persistent) {
                Ok(_) | Err(ZkError::NodeExists) => {}
                Err(error) => panic!("create {prefix}: {error:?}"),
            }
        }
    }

    pub fn await_children(&self, dir: &str, count: usize) {
        eventually(&format!("{count} znodes in {dir}"), || self.children(dir).len() == count);
    }
}

/// A call to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Acquired,
    RevocationRequested,
    Released,
    Lost(LossReason),
    Dropped(LossReason),
}

/// A listener that records its calls in a channel.
pub struct RecordingListener {
    sender: Sender<Call>,
}

impl RecordingListener {
    pub fn new() -> (Arc<RecordingListener>, Receiver<Call>) {
        let (sender, calls) = unbounded();
        (Arc::new(RecordingListener { sender }), calls)
    }

    fn record(&self, call: Call) {
        // The test may have ended.
        let _ = self.sender.send(call);
    }
}

impl LockListener for RecordingListener {
    fn lock_acquired(&self) {
        self.record(Call::Acquired);
    }

    fn lock_released(&self) {
        self.record(Call::Released);
    }

    fn lock_lost(&self, _lock: &WriteLock, reason: LossReason) {
        self.record(Call::Lost(reason));
    }

    fn revocation_requested(&self, _lock: &WriteLock) {
        self.record(Call::RevocationRequested);
    }

    fn request_dropped(&self, _lock: &WriteLock, reason: LossReason) {
        self.record(Call::Dropped(reason));
    }
}

/// Returns the next message on a channel. Panics if none arrives before the deadline.
pub fn next<T>(channel: &Receiver<T>) -> T {
    channel.recv_timeout(deadline()).expect("a message must arrive before the deadline")
}
