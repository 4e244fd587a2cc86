//! A simulated ZooKeeper for tests that need a fault at a chosen moment. Its clients are what the crate's own
//! connection is: ordered, with pings.
//!
//! It lives in memory and in one process, and has no randomness. A client's calls are executed one after
//! the other on a thread of its session, by whose clock its pings are answered. Faults are verbs of
//! [`SimulatedClient`]: `disconnect`, `expire`, `swallow`, `fail_next`, `cut_next`, `hold_back_next`. `before_next`
//! and `after_next` stop a call at the point of a race. The actions of other clients are verbs of
//! [`SimulatedZooKeeper`]. On a [`VirtualClock`] the time of a session passes on command. A
//! [`SimulatedLeadership`] is for functions that take a [`Leadership`](crate::Leadership).
//! `docs/testing.md` in the repository shows whole tests.
//!
//! ```
//! use std::time::Duration;
//! use zookeeper_recipes_lock::fake::{Effect, SimOperation, SimulatedZooKeeper};
//!
//! let zookeeper = SimulatedZooKeeper::new();
//! let client = zookeeper.connect(Duration::from_secs(6));
//!
//! // Another client is first in the queue …
//! let holder = zookeeper.create_sequential("/locks/report", "x-a-lock-", Some(7));
//! assert_eq!(holder, "/locks/report/x-a-lock-0000000000");
//!
//! // … and the reply to our request will be lost, with the connection.
//! client.cut_next(SimOperation::Create, Effect::After);
//! assert_eq!(client.pending_faults(), 1);
//! ```
//!
//! # Limitations
//! There is one server: every client sees every write immediately, while a real follower may lag
//! behind. Sessions expire only on request. Every call refuses a bad path, while the real server
//! checks only paths to be created. Quotas, TTLs and the collection of containers are left out; a
//! container znode is a persistent one here. The server's clock begins in 1970, and advances by a
//! millisecond with each transaction and [on command](SimulatedZooKeeper::advance_clock).

mod access;
mod client;
mod clock;
mod faults;
mod jobs;
mod leadership;
mod link;
mod log;
mod outbox;
mod requests;
mod served;
mod state;
mod tree;
mod verbs;
mod virtual_runtime;
mod watches;
mod wire;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Acl, CreateMode, Stat};
use crate::error::{ZkError, ZkResult};

use access::Caller;
use requests::Requester;
use state::{Shared, State};

pub use access::ReadChecks;
pub use client::SimulatedClient;
pub use clock::VirtualClock;
pub use faults::{Effect, SimOperation};
pub use leadership::SimulatedLeadership;
pub use log::Call;
#[cfg(test)]
pub(crate) use served::{Fired, ServedConnection, View};
pub use tree::SequenceEnd;

/// A ZooKeeper in memory. A clone is another handle to the same server.
///
/// Its verbs act as another client with all rights: ACLs and faults do not apply to them. The
/// clients' watches fire as usual, before the verb returns. Verbs that change the tree panic where
/// the server would refuse, because the test then rests on a wrong assumption.
#[derive(Clone)]
pub struct SimulatedZooKeeper {
    shared: Arc<Shared>,
}

impl SimulatedZooKeeper {
    /// Creates a server with only the root znode.
    #[must_use]
    pub fn new() -> SimulatedZooKeeper {
        #[cfg(test)]
        crate::tests::begin();
        SimulatedZooKeeper { shared: Arc::new(Shared::new()) }
    }

    /// Opens a session and returns its client, connected.
    #[must_use]
    pub fn connect(&self, session_timeout: Duration) -> Arc<SimulatedClient> {
        SimulatedClient::connect(&self.shared, session_timeout)
    }

    /// Creates a persistent znode and its missing parents, open to everybody.
    ///
    /// # Panics
    /// If the server would refuse: the znode exists, a parent is ephemeral, or the path is bad.
    #[track_caller]
    pub fn create(&self, path: &str, data: &[u8]) {
        self.create_with_acl(path, data, &Acl::open_unsafe());
    }

    /// Creates a persistent znode with this ACL. Missing parents are open to everybody.
    ///
    /// # Panics
    /// As [`create`](SimulatedZooKeeper::create), and if the ACL is bad.
    #[track_caller]
    pub fn create_with_acl(&self, path: &str, data: &[u8], acl: &[Acl]) {
        let created = self.act(|state| {
            state.ensure_parents(path)?;
            state.create(path, data, acl, CreateMode::Persistent, Requester::Other(0))
        });
        granted("create", path, created);
    }

    /// Creates `<dir>/<prefix><sequence>`, and `dir` if it is missing, and returns the path. The
    /// znode is ephemeral in the given session, or persistent without one. The session may be a
    /// client's, or any number that stands for a session without a client;
    /// [`expire_session`](SimulatedZooKeeper::expire_session) ends those.
    ///
    /// # Panics
    /// If the server would refuse: a parent is ephemeral, the path is bad, or a client's session
    /// has ended.
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
    /// If the server would refuse: the znode does not exist, or it has children.
    #[track_caller]
    pub fn delete(&self, path: &str) {
        granted("delete", path, self.act(|state| state.delete(path, None, Requester::Other(0))));
    }

    /// Replaces a znode's data.
    ///
    /// # Panics
    /// If the znode does not exist.
    #[track_caller]
    pub fn set_data(&self, path: &str, data: &[u8]) {
        granted("set", path, self.act(|state| state.set_data(path, data, None, Requester::Other(0))));
    }

    /// Replaces a znode's ACL. No watch fires.
    ///
    /// # Panics
    /// If the znode does not exist, or the ACL is bad.
    #[track_caller]
    pub fn set_acl(&self, path: &str, acl: &[Acl]) {
        let set = self.act(|state| state.tree.set_acl(path, acl, &Caller::OTHER_CLIENT));
        granted("set the ACL of", path, set);
    }

    /// Sets the number of the next sequential child of `dir`, and creates `dir` if it is missing.
    /// [`set_sequence_end`](SimulatedZooKeeper::set_sequence_end) sets what follows 2147483647.
    ///
    /// # Panics
    /// If `dir` is missing and cannot be created.
    #[track_caller]
    pub fn set_sequence(&self, dir: &str, next: i32) {
        let ensured = self.act(|state| {
            state.ensure_path(dir)?;
            state.tree.set_sequence(dir, next);
            Ok(())
        });
        granted("set the sequence of", dir, ensured);
    }

    /// Sets what follows the last sequence number. The default is to wrap.
    pub fn set_sequence_end(&self, end: SequenceEnd) {
        self.shared.lock().tree.sequence_end = end;
    }

    /// Advances the server's clock, by which znodes are created and written. No other clock advances.
    pub fn advance_clock(&self, duration: Duration) {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        self.shared.lock().tree.advance_clock(millis);
    }

    /// Sets which operations require READ. The default is the rules of the newest releases.
    pub fn set_read_checks(&self, read_checks: ReadChecks) {
        self.shared.lock().read_checks = read_checks;
    }

    /// Ends a session on the server, as [`SimulatedClient::expire`] does: one without a client, or
    /// one whose client was dropped.
    pub fn expire_session(&self, session: i64) {
        let mut state = self.shared.lock();
        state.expire(session);
        self.shared.deliver(state);
    }

    /// Returns the names of a znode's children, sorted, or none if the znode does not exist.
    #[must_use]
    pub fn children(&self, path: &str) -> Vec<String> {
        let state = self.shared.lock();
        state.tree.children(path, &Caller::OTHER_CLIENT).unwrap_or_default()
    }

    /// Returns whether the znode exists.
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
        state.tree.data(path, &Caller::OTHER_CLIENT).ok().map(|(data, _)| data)
    }

    /// Returns a znode's ACL.
    #[must_use]
    pub fn acl(&self, path: &str) -> Option<Vec<Acl>> {
        self.shared.lock().tree.acl(path).map(<[Acl]>::to_vec)
    }

    /// Returns the live sessions that clients opened.
    #[must_use]
    pub fn sessions(&self) -> Vec<i64> {
        self.shared.lock().sessions.iter().copied().collect()
    }

    /// Returns the number of watches on the server. A data watch and a child watch of one client on
    /// one znode count as two.
    #[must_use]
    pub fn watch_count(&self) -> usize {
        self.shared.lock().watches.count()
    }

    /// Returns all calls of all clients in the order in which they were made, including those
    /// without contact.
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

    /// Returns the ephemeral znodes, with the sessions that own them.
    #[cfg(test)]
    pub(crate) fn ephemerals(&self) -> Vec<(i64, String)> {
        self.shared.lock().tree.ephemerals()
    }

    /// Executes a transaction, as another client.
    #[cfg(test)]
    pub(crate) fn transact(&self, operations: &[crate::client::port::Op]) {
        let transacted = self.act(|state| Ok(state.transact(operations, Requester::Other(0))));
        let is_committed = matches!(transacted, Ok(crate::client::port::Transacted::Committed(_)));
        assert!(is_committed, "{operations:?}: {transacted:?}");
    }

    /// Executes a request as another client.
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
        Err(error) => panic!("another client cannot {verb} '{path}': {error:?}"),
    }
}
