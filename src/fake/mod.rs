//! A simulated ZooKeeper for tests that need a fault at a chosen moment.
//!
//! The primary types in this module are [`SimulatedZooKeeper`], an in-memory server, and [`SimulatedClient`], a client
//! that [opens a session](SimulatedClient::open_session) in place of the crate's own connection. Like that connection, the
//! client sends pings, and its calls, replies and events keep their order. Nothing in the simulation is random.
//!
//! - Methods of [`SimulatedClient`] inject faults: `disconnect`, `expire`, `swallow`, `fail_next`, `cut_next`,
//!   `hold_back_next`. `before_next` and `after_next` run a closure inside a chosen call, to stage a race.
//! - Methods of [`SimulatedZooKeeper`] act as another client: they create, change and delete znodes.
//! - For sessions on a [`VirtualClock`], time passes only when the test advances it.
//! - A [`SimulatedLeadership`] is for testing functions that take a [`Leadership`](crate::Leadership).
//!
//! For complete tests, see `docs/testing.md` in the repository.
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
//! There is one server, so every client sees every write immediately, while a real follower may lag behind. Sessions
//! expire only on request. Every call refuses a bad path, while a real server checks only the paths of znodes to be
//! created. ACLs are accepted even if a real server does not know their scheme, or refuses their id. There are no
//! quotas and no TTLs. Container znodes are persistent: they are never collected. The server's clock starts in 1970.
//! Each transaction advances it by one millisecond, and [`advance_clock`](SimulatedZooKeeper::advance_clock) by any
//! amount.

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
pub use zookeeper_connection::Granted;

/// An in-memory ZooKeeper server.
///
/// Its methods act as another client that has all rights: ACLs and faults do not apply to them. They fire the
/// watches of the simulated clients before they return. A method that changes the tree panics if a server
/// would refuse the change, because the test then rests on a wrong assumption.
///
/// A clone is another handle to the same server.
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

    /// Opens a session and returns its connected client.
    #[must_use]
    pub fn connect(&self, session_timeout: Duration) -> Arc<SimulatedClient> {
        SimulatedClient::connect(&self.shared, session_timeout)
    }

    /// Creates a persistent znode, open to everybody, and its missing parents.
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
    /// In the same cases as [`create`](SimulatedZooKeeper::create), and if the ACL is bad. An entry with the scheme
    /// `auth` is bad here, because this other client has no identity.
    #[track_caller]
    pub fn create_with_acl(&self, path: &str, data: &[u8], acl: &[Acl]) {
        let created = self.act(|state| {
            state.ensure_parents(path)?;
            state.create(path, data, acl, CreateMode::Persistent, Requester::Other(0))
        });
        granted("create", path, created);
    }

    /// Creates `<dir>/<prefix><sequence>` and returns its path. Creates `dir` if it is missing.
    ///
    /// If `session` is given, the znode is ephemeral and belongs to that session; otherwise, it is persistent.
    /// `session` may be the id of a client's session. Any other number but 0 stands for a session without a client.
    /// [`expire_session`](SimulatedZooKeeper::expire_session) ends a session of either kind.
    ///
    /// # Panics
    /// If the server would refuse: a parent is ephemeral, the path is bad, `session` is 0 or the id of a client's
    /// session that has ended, or a znode with the next number exists (after
    /// [`set_sequence`](SimulatedZooKeeper::set_sequence) or at the [end of the numbers](SequenceEnd)).
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
    /// If the server would refuse: the znode does not exist, has children, or is the root.
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
        let set = self.act(|state| state.set_data(path, data, None, Requester::Other(0)));
        granted("set the data of", path, set);
    }

    /// Replaces a znode's ACL. No watch fires.
    ///
    /// # Panics
    /// If the znode does not exist, or the ACL is bad, as for
    /// [`create_with_acl`](SimulatedZooKeeper::create_with_acl).
    #[track_caller]
    pub fn set_acl(&self, path: &str, acl: &[Acl]) {
        let set = self.act(|state| state.tree.set_acl(path, acl, &Caller::OTHER_CLIENT));
        granted("set the ACL of", path, set);
    }

    /// Sets the number of the next sequential child of `dir`. Creates `dir` if it is missing.
    ///
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

    /// Sets which sequence number follows 2147483647, the last one. By default, numbers wrap.
    pub fn set_sequence_end(&self, end: SequenceEnd) {
        self.shared.lock().tree.sequence_end = end;
    }

    /// Advances the server's clock, which timestamps znodes. No other clock advances.
    pub fn advance_clock(&self, duration: Duration) {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        self.shared.lock().tree.advance_clock(millis);
    }

    /// Sets which operations require READ. The default is the behaviour of ZooKeeper's newest releases.
    pub fn set_read_checks(&self, read_checks: ReadChecks) {
        self.shared.lock().read_checks = read_checks;
    }

    /// Expires a session on the server, as [`SimulatedClient::expire`] does.
    ///
    /// Use it for a session without a client, or one whose client was dropped.
    pub fn expire_session(&self, session: i64) {
        let mut state = self.shared.lock();
        state.expire(session);
        self.shared.deliver(state);
    }

    /// Returns the sorted names of a znode's children, or an empty list if the znode does not exist.
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

    /// Returns a znode's metadata, or `None` if it does not exist.
    #[must_use]
    pub fn stat(&self, path: &str) -> Option<Stat> {
        self.shared.lock().tree.stat(path).ok().flatten()
    }

    /// Returns a znode's data, or `None` if it does not exist.
    #[must_use]
    pub fn data(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.shared.lock();
        state.tree.data(path, &Caller::OTHER_CLIENT).ok().map(|(data, _)| data)
    }

    /// Returns a znode's ACL, or `None` if it does not exist.
    #[must_use]
    pub fn acl(&self, path: &str) -> Option<Vec<Acl>> {
        self.shared.lock().tree.acl(path).map(<[Acl]>::to_vec)
    }

    /// Returns the live sessions that clients opened.
    #[must_use]
    pub fn sessions(&self) -> Vec<i64> {
        self.shared.lock().sessions.iter().copied().collect()
    }

    /// Returns the number of watches on the server.
    ///
    /// If one client has a data watch and a child watch on the same znode, they count as two.
    #[must_use]
    pub fn watch_count(&self) -> usize {
        self.shared.lock().watches.count()
    }

    /// Returns the calls of all clients since the log was last cleared, in the order in which they were made.
    ///
    /// Calls made without contact are included. Calls that are too long for a server are not.
    #[must_use]
    pub fn log(&self) -> Vec<Call> {
        self.shared.lock().log.calls().to_vec()
    }

    /// Returns the number of calls of this operation in the log.
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
    pub(crate) fn transact(&self, operations: &[crate::client::Op]) {
        let transacted = self.act(|state| Ok(state.transact(operations, Requester::Other(0))));
        let is_committed = matches!(transacted, Ok(crate::client::Transacted::Committed(_)));
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
        Err(error) => panic!("the simulated server refuses to {verb} '{path}': {error:?}"),
    }
}
