//! What most tests begin with: sessions, a directory of their own, a bare client to look on, a listener that takes notes.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use zookeeper::{Acl, CreateMode, ZkError, ZooKeeper};
use zookeeper_recipes_lock::{LockError, LockListener, LossReason, Session};

use crate::support::server::Server;
use crate::support::wait::{deadline, eventually};

/// The session timeout of tests that need none in particular: long, so that a slow machine ends no session.
pub const LONG: Duration = Duration::from_secs(30);

/// The session timeout of tests in which a session must end.
pub const SHORT: Duration = Duration::from_secs(4);

/// Questions for one variant of an error.
pub trait ErrorVariant {
    fn is_session_lost(&self) -> bool;
    fn is_closed(&self) -> bool;
    fn is_access_denied(&self) -> bool;
    fn is_invalid_argument(&self) -> bool;
}

impl ErrorVariant for LockError {
    fn is_session_lost(&self) -> bool {
        matches!(self, LockError::SessionLost { .. })
    }

    fn is_closed(&self) -> bool {
        matches!(self, LockError::Closed { .. })
    }

    fn is_access_denied(&self) -> bool {
        matches!(self, LockError::AccessDenied { .. })
    }

    fn is_invalid_argument(&self) -> bool {
        matches!(self, LockError::InvalidPath { .. } | LockError::InvalidArgument { .. })
    }
}

/// Connects a session that is replaced when it is lost.
pub fn connect_replaced(connect_string: &str, timeout: Duration) -> Session {
    Session::builder(connect_string).session_timeout(timeout).replace_lost_sessions(true).connect().unwrap()
}

pub fn session(server: &Server) -> Session {
    connect(&server.connect_string(), LONG)
}

pub fn connect(connect_string: &str, timeout: Duration) -> Session {
    Session::connect(connect_string, timeout).unwrap()
}

/// A directory that no other test uses. Its parents do not exist at first.
pub fn unique_dir(test: &str) -> String {
    format!("/it/{test}/{}", uuid::Uuid::new_v4())
}

/// A client beside the library, to look on and to interfere.
pub struct Onlooker {
    zk: ZooKeeper,
}

impl Onlooker {
    pub fn at(server: &Server) -> Onlooker {
        Onlooker::of(&server.connect_string())
    }

    pub fn of(connect_string: &str) -> Onlooker {
        Onlooker { zk: ZooKeeper::connect(connect_string, LONG, |_| {}).unwrap() }
    }

    pub fn zk(&self) -> &ZooKeeper {
        &self.zk
    }

    /// The children's names, in the order of their sequence numbers; none where there is no such directory.
    pub fn children(&self, dir: &str) -> Vec<String> {
        match self.zk.get_children(dir, false) {
            Ok(mut children) => {
                children.sort_by_key(|name| zookeeper_recipes_lock::ZNodeName::new(name.as_str()));
                children
            }
            Err(ZkError::NoNode) => Vec::new(),
            Err(error) => panic!("list {dir}: {error:?}"),
        }
    }

    pub fn exists(&self, path: &str) -> bool {
        self.zk.exists(path, false).unwrap().is_some()
    }

    pub fn delete(&self, path: &str) {
        self.zk.delete(path, None).unwrap();
    }

    pub fn data(&self, path: &str) -> Vec<u8> {
        self.zk.get_data(path, false).unwrap().0
    }

    pub fn create_persistent(&self, path: &str) {
        let mut upto = String::new();
        for name in path[1..].split('/') {
            upto = format!("{upto}/{name}");
            match self.zk.create(&upto, Vec::new(), Acl::open_unsafe().clone(), CreateMode::Persistent) {
                Ok(_) | Err(ZkError::NodeExists) => {}
                Err(error) => panic!("create {upto}: {error:?}"),
            }
        }
    }

    pub fn await_children(&self, dir: &str, count: usize) {
        eventually(&format!("{count} znodes in {dir}"), || self.children(dir).len() == count);
    }
}

/// What a listener was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Acquired,
    RevocationRequested,
    Released,
    Lost(LossReason),
    Dropped(LossReason),
}

/// A listener that takes notes.
pub struct Notes {
    calls: Sender<Call>,
}

impl Notes {
    pub fn new() -> (Arc<Notes>, Receiver<Call>) {
        let (calls, taken) = unbounded();
        (Arc::new(Notes { calls }), taken)
    }

    fn note(&self, call: Call) {
        // The test may have ended and dropped its end.
        let _ = self.calls.send(call);
    }
}

impl LockListener for Notes {
    fn lock_acquired(&self) {
        self.note(Call::Acquired);
    }

    fn lock_released(&self) {
        self.note(Call::Released);
    }

    fn lock_lost(&self, reason: LossReason) {
        self.note(Call::Lost(reason));
    }

    fn revocation_requested(&self) {
        self.note(Call::RevocationRequested);
    }

    fn request_dropped(&self, reason: LossReason) {
        self.note(Call::Dropped(reason));
    }
}

/// The next thing on a channel, which must come before the deadline.
pub fn next<T>(channel: &Receiver<T>) -> T {
    channel.recv_timeout(deadline()).expect("nothing came before the deadline")
}
