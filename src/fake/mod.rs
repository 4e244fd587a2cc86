//! A simulated ZooKeeper behind [`ZooKeeperClient`](crate::client::ZooKeeperClient), for tests that need a fault at a
//! chosen moment.
//!
//! It lives in memory and in one process and does what it is told and nothing else: no threads, no clock, no chance.
//! Every call is executed at once on the calling thread. What goes wrong is a verb of [`SimulatedClient`]:
//! `disconnect`, `expire`, `swallow`, `fail_next`, `cut_next`; `before_next` and `after_next` stop a call where a race
//! would strike. What other clients of the ensemble do is a verb of [`SimulatedZooKeeper`].
//!
//! ```
//! use std::time::Duration;
//! use zookeeper_recipes_lock::fake::{Effect, SimOperation, SimulatedZooKeeper};
//!
//! let zookeeper = SimulatedZooKeeper::new();
//! let client = zookeeper.connect(Duration::from_secs(6));
//!
//! // Somebody else is first in the queue …
//! let holder = zookeeper.create_sequential("/locks/report", "x-a-lock-", Some(7));
//! assert_eq!(holder, "/locks/report/x-a-lock-0000000000");
//!
//! // … and the reply to our own request will be lost, with the connection.
//! client.cut_next(SimOperation::Create, Effect::After);
//! assert_eq!(client.pending_faults(), 1);
//! ```
//!
//! # Limitations
//! One server: every client sees every write at once, where a real follower may lag behind. Sessions expire only when
//! told. A bad path is refused by every call, where the real server looks only at those to be created. Quotas, size
//! limits, TTLs and the collection of containers are left out; a znode that was created as a container is a persistent
//! one here. `ctime` and `mtime` are zxids.

mod access;
mod client;
mod faults;
mod log;
mod requests;
mod state;
mod tree;
mod verbs;
mod watches;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Acl, CreateMode, Stat, ZkError, ZkResult};

use access::Caller;
use requests::Requester;
use state::{Shared, State};

pub use access::ReadChecks;
pub use client::SimulatedClient;
pub use faults::{Effect, SimOperation};
pub use log::Call;
pub use tree::SequenceEnd;

/// A ZooKeeper in memory; a clone is another handle to the same one.
///
/// Its verbs act as somebody else who may do everything: ACLs do not bind them and no fault befalls them, while the
/// watches of the clients fire as ever, before the verb returns. The verbs that change the tree panic where the server
/// would refuse, since then the test is not what its author thinks.
#[derive(Clone)]
pub struct SimulatedZooKeeper {
    shared: Arc<Shared>,
}

impl SimulatedZooKeeper {
    /// Starts with the root alone.
    #[must_use]
    pub fn new() -> SimulatedZooKeeper {
        SimulatedZooKeeper { shared: Arc::new(Shared::new()) }
    }

    /// Opens a session and returns its client, connected.
    #[must_use]
    pub fn connect(&self, session_timeout: Duration) -> Arc<SimulatedClient> {
        SimulatedClient::connect(&self.shared, session_timeout)
    }

    /// Creates a persistent znode, and its parents where they are missing, open to everybody.
    ///
    /// # Panics
    /// When the server would refuse: the znode exists, a parent is ephemeral, the path is bad.
    #[track_caller]
    pub fn create(&self, path: &str, data: &[u8]) {
        self.create_with_acl(path, data, &Acl::open_unsafe());
    }

    /// Creates a persistent znode with this ACL, and its parents where they are missing, open to everybody.
    ///
    /// # Panics
    /// As [`create`](SimulatedZooKeeper::create), and when the ACL is bad.
    #[track_caller]
    pub fn create_with_acl(&self, path: &str, data: &[u8], acl: &[Acl]) {
        let created = self.act(|state| {
            state.ensure_parents(path)?;
            state.create(path, data, acl, CreateMode::Persistent, Requester::Other(0))
        });
        granted("create", path, created);
    }

    /// Creates `<dir>/<prefix><sequence>`, and `dir` where it is missing, and returns the path: ephemeral in that session,
    /// or persistent. The session may be a client's or any number for one that only the test knows, which
    /// [`expire_session`](SimulatedZooKeeper::expire_session) ends.
    ///
    /// # Panics
    /// When the server would refuse: a parent is ephemeral, the path is bad, the session was a client's and has ended.
    #[track_caller]
    pub fn create_sequential(&self, dir: &str, prefix: &str, session: Option<i64>) -> String {
        let path = tree::join(dir, prefix);
        let created = self.act(|state| {
            if session.is_some_and(|session| state.has_ended(session)) {
                return Err(ZkError::SessionExpired);
            }
            let mode = match session {
                Some(_) => CreateMode::EphemeralSequential,
                None => CreateMode::PersistentSequential,
            };
            state.ensure_path(dir)?;
            state.create(&path, &[], &Acl::open_unsafe(), mode, Requester::Other(session.unwrap_or(0)))
        });
        granted("create", &path, created)
    }

    /// Deletes a znode.
    ///
    /// # Panics
    /// When the server would refuse: there is no such znode, or it has children.
    #[track_caller]
    pub fn delete(&self, path: &str) {
        granted("delete", path, self.act(|state| state.delete(path, None, Requester::Other(0))));
    }

    /// Replaces a znode's data.
    ///
    /// # Panics
    /// When there is no such znode.
    #[track_caller]
    pub fn set_data(&self, path: &str, data: &[u8]) {
        granted("set", path, self.act(|state| state.set_data(path, data, None, Requester::Other(0))));
    }

    /// Replaces a znode's ACL, which fires no watch.
    ///
    /// # Panics
    /// When there is no such znode, or the ACL is bad.
    #[track_caller]
    pub fn set_acl(&self, path: &str, acl: &[Acl]) {
        let set = self.act(|state| state.tree.set_acl(path, acl, &Caller::ANYBODY_ELSE));
        granted("set the ACL of", path, set);
    }

    /// Sets the number of the next sequential child of `dir`, which is created where it is missing. What comes after
    /// 2147483647 is told by [`set_sequence_end`](SimulatedZooKeeper::set_sequence_end).
    ///
    /// # Panics
    /// When `dir` is missing and cannot be created.
    #[track_caller]
    pub fn set_sequence(&self, dir: &str, next: i32) {
        let ensured = self.act(|state| {
            state.ensure_path(dir)?;
            state.tree.set_sequence(dir, next);
            Ok(())
        });
        granted("set the sequence of", dir, ensured);
    }

    /// Sets what follows the last sequence number; it wraps until then.
    pub fn set_sequence_end(&self, end: SequenceEnd) {
        self.shared.lock().tree.sequence_end = end;
    }

    /// Sets where this server asks for READ; the newest releases' rules hold until then.
    pub fn set_read_checks(&self, read_checks: ReadChecks) {
        self.shared.lock().read_checks = read_checks;
    }

    /// Ends a session on the server, as [`SimulatedClient::expire`] does: one that only the test knows, or one whose
    /// client is gone.
    pub fn expire_session(&self, session: i64) {
        let mut state = self.shared.lock();
        state.expire(session);
        self.shared.deliver(state);
    }

    /// Returns the names of a znode's children, sorted; none when there is no such znode.
    #[must_use]
    pub fn children(&self, path: &str) -> Vec<String> {
        let state = self.shared.lock();
        state.tree.children(path, &Caller::ANYBODY_ELSE).unwrap_or_default()
    }

    /// Returns whether there is such a znode.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.stat(path).is_some()
    }

    /// Returns a znode's metadata.
    #[must_use]
    pub fn stat(&self, path: &str) -> Option<Stat> {
        self.shared.lock().tree.stat(path).ok().flatten()
    }

    /// Returns a znode's data.
    #[must_use]
    pub fn data(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.shared.lock();
        state.tree.data(path, &Caller::ANYBODY_ELSE).ok().map(|(data, _)| data)
    }

    /// Returns a znode's ACL.
    #[must_use]
    pub fn acl(&self, path: &str) -> Option<Vec<Acl>> {
        self.shared.lock().tree.acl(path).map(<[Acl]>::to_vec)
    }

    /// Returns the sessions that clients opened and that live.
    #[must_use]
    pub fn sessions(&self) -> Vec<i64> {
        self.shared.lock().sessions.iter().copied().collect()
    }

    /// Returns how many watches are left on the server; a data watch and a child watch of one client on one znode are
    /// two.
    #[must_use]
    pub fn watch_count(&self) -> usize {
        self.shared.lock().watches.count()
    }

    /// Returns every call of every client, in the order in which they were made, those without contact included.
    #[must_use]
    pub fn log(&self) -> Vec<Call> {
        self.shared.lock().log.calls().to_vec()
    }

    /// Returns how many calls of this operation are in the log.
    #[must_use]
    pub fn calls(&self, operation: SimOperation) -> usize {
        self.shared.lock().log.calls().iter().filter(|call| call.operation == operation).count()
    }

    /// Empties the log.
    pub fn clear_log(&self) {
        self.shared.lock().log.clear();
    }

    /// Makes a request of somebody else.
    fn act<T>(&self, request: impl FnOnce(&mut State) -> ZkResult<T>) -> ZkResult<T> {
        let mut state = self.shared.lock();
        let result = request(&mut state);
        self.shared.deliver(state);
        result
    }
}

impl Default for SimulatedZooKeeper {
    fn default() -> SimulatedZooKeeper {
        SimulatedZooKeeper::new()
    }
}

impl fmt::Debug for SimulatedZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedZooKeeper").finish_non_exhaustive()
    }
}

#[allow(clippy::panic, reason = "a test asked for what the server refuses")]
#[track_caller]
fn granted<T>(verb: &str, path: &str, result: ZkResult<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("somebody else cannot {verb} '{path}': {error:?}"),
    }
}
