//! [`Budget`]: the bound on the ephemeral znodes of a session.
//!
//! When a session is closed or expires, one transaction ends it. That transaction names all ephemeral znodes of the
//! session. If it is longer than the servers' `jute.maxbuffer`, no server can read it: the ensemble goes down, and
//! cannot start again (ZOOKEEPER-4306). So a session creates no more znodes than such a transaction can name.
//!
//! A znode counts from the submission of its create until a reply or an event shows that it does not exist. If the
//! reply to a create is lost, the znode counts until a search fails to find it or its deletion is answered.
//!
//! The leader makes the transaction that ends a session, from the znodes that the leader has. So its answer `NoNode`
//! counts even if the connected server still shows the znode, as a server does that has diverged from the others. If such
//! a server lacks a znode that the leader has, its reads and events make the session count too little. The
//! [reserve](RESERVE_DIVISOR) is for such znodes, too.
//!
//! The paths of sequential znodes are known without their numbers, because each has a GUID: those of requests, and
//! those that [`RecoverableZooKeeper`](crate::data::RecoverableZooKeeper) creates. Only a transaction of the
//! application may create several with the same path but for the number. If its reply is lost, they count until the
//! session ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::calls::may_have_created;
use crate::client::{Call, CreateMode, Op, OpOutcome, Reply, Transacted};
use crate::client::{MaxBuffer, Names};
use crate::error::{ZkError, ZkResult};

/// The fraction of `jute.maxbuffer` that is left free, as a divisor. It is for the rest of the transaction,
/// for the packet around it, and for znodes of the session that the budget does not know about.
const RESERVE_DIVISOR: usize = 8;

/// The least number of characters that a server appends to the path of a sequential znode.
const NUMBER: usize = 10;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    limit: usize,
    /// Knows how many bytes a path takes in a transaction.
    max_buffer: MaxBuffer,
    /// The number of bytes that all znodes take in the transaction, including those whose create is under way.
    used: usize,
    /// The bytes of each znode that exists.
    znodes: BTreeMap<Arc<str>, usize>,
    /// The znodes whose create has no known outcome. Here, the path of a sequential znode lacks the number.
    lost: BTreeMap<Arc<str>, Lost>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lost {
    bytes: usize,
    /// A search has begun since the create was lost.
    is_searched: bool,
}

impl Budget {
    pub(super) fn new(jute_max_buffer: usize, chroot: usize) -> Budget {
        let limit = jute_max_buffer - jute_max_buffer / RESERVE_DIVISOR;
        let max_buffer = MaxBuffer::new(jute_max_buffer).with_chroot(chroot);
        Budget { limit, max_buffer, used: 0, znodes: BTreeMap::new(), lost: BTreeMap::new() }
    }

    /// Counts the znodes that a call creates.
    ///
    /// # Errors
    /// `SessionFull` if the session would have too many znodes. In that case, none of the call's znodes is counted.
    pub(super) fn take(&mut self, call: &Call) -> ZkResult<()> {
        let bytes = self.bytes_of(call);
        if bytes > 0 && self.used + bytes > self.limit {
            return Err(ZkError::SessionFull { limit: self.limit });
        }
        self.used += bytes;
        Ok(())
    }

    /// Undoes [`take`](Budget::take) for a call that has created nothing.
    pub(super) fn give_back(&mut self, call: &Call) {
        self.used = self.used.saturating_sub(self.bytes_of(call));
    }

    /// Handles the outcome of a call that [`take`](Budget::take) has counted.
    pub(super) fn on_reply(&mut self, call: &Call, outcome: &ZkResult<Reply>) {
        match (call, outcome) {
            (Call::Delete { path, .. }, Ok(_) | Err(ZkError::NoNode))
            | (Call::Exists { path, .. } | Call::GetData { path, .. }, Err(ZkError::NoNode))
            | (Call::Exists { path, .. }, Ok(Reply::Found(None))) => self.remove(path),
            (Call::Multi(operations), Ok(Reply::Multi(Transacted::Committed(outcomes)))) => {
                self.note_committed(operations, outcomes);
            }
            (Call::Multi(_), Ok(Reply::Multi(Transacted::Failed { .. }))) => self.give_back(call),
            (_, Ok(Reply::Created { path, .. })) => self.note_created(call, path),
            (_, Ok(Reply::Enqueued(enqueued))) => self.note_created(call, &enqueued.path),
            (_, Err(error)) if !may_have_created(*error) => self.give_back(call),
            _ => self.note_lost(call),
        }
    }

    fn note_committed(&mut self, operations: &[Op], outcomes: &[OpOutcome]) {
        for (operation, outcome) in operations.iter().zip(outcomes) {
            match (operation, outcome) {
                (Op::Create { path, mode, .. }, OpOutcome::Created(created)) => {
                    self.add(created, self.bytes(path.len(), *mode));
                }
                (Op::Delete { path, .. }, _) => self.remove(path),
                _ => {}
            }
        }
    }

    fn note_created(&mut self, call: &Call, path: &str) {
        self.add(path, self.bytes_of(call));
    }

    fn note_lost(&mut self, call: &Call) {
        match call {
            Call::Create { path, .. } => self.lose(path, self.bytes_of(call)),
            Call::CreateAndList { dir, prefix, .. } => {
                self.lose(&[&**dir, "/", &**prefix].concat(), self.bytes_of(call));
            }
            Call::Multi(operations) => {
                for operation in &**operations {
                    if let Op::Create { path, mode: mode @ CreateMode::Ephemeral, .. } = operation {
                        self.lose(path, self.bytes(path.len(), *mode));
                    }
                }
            }
            _ => {}
        }
    }

    /// Notes that a search has found the znode of a create that had no known outcome.
    pub(super) fn note_found(&mut self, without_number: &str, path: &str) {
        self.forget_lost(without_number);
        let bytes = self.bytes(without_number.len(), CreateMode::EphemeralSequential);
        self.used += bytes;
        self.add(path, bytes);
    }

    /// Notes that a search begins for the znodes in this directory whose create has no known outcome.
    pub(super) fn search(&mut self, dir: &str) {
        let in_dir = self.lost.iter_mut().filter(|(path, _)| is_in(dir, path));
        in_dir.for_each(|(_, lost)| lost.is_searched = true);
    }

    /// Ends a search that has found these children, and stops counting the lost znodes that are not among them. A lost
    /// znode among them still counts as lost until its request finds it or its deletion is answered. If the reply to a
    /// create was lost after the search began, the znode of that create also still counts, because the server may have
    /// created it after the search.
    pub(super) fn settle(&mut self, dir: &str, children: &Names) {
        let searched = self.lost.iter().filter(|(path, lost)| lost.is_searched && is_in(dir, path));
        let searched: Vec<Arc<str>> = searched.map(|(path, _)| Arc::clone(path)).collect();
        if searched.is_empty() {
            return;
        }
        let listed: BTreeSet<&str> = children.iter().flat_map(|name| [name, without_number(name)]).collect();
        let is_listed = |path: &str| path.rsplit_once('/').is_some_and(|(_, name)| listed.contains(name));
        searched.iter().filter(|path| !is_listed(path)).for_each(|path| self.forget_lost(path));
    }

    /// Records a znode that exists, and that [`take`](Budget::take) has counted.
    fn add(&mut self, path: &str, bytes: usize) {
        if bytes > 0 {
            let former = self.znodes.insert(path.into(), bytes);
            self.used = self.used.saturating_sub(former.unwrap_or_default());
        }
    }

    /// Records a znode that may exist, and that [`take`](Budget::take) has counted.
    fn lose(&mut self, path: &str, bytes: usize) {
        if bytes > 0 {
            let former = self.lost.insert(path.into(), Lost { bytes, is_searched: false });
            self.used = self.used.saturating_sub(former.map_or(0, |lost| lost.bytes));
        }
    }

    fn forget_lost(&mut self, path: &str) {
        self.used = self.used.saturating_sub(self.lost.remove(path).map_or(0, |lost| lost.bytes));
    }

    /// Stops counting a znode, because it does not exist.
    pub(super) fn remove(&mut self, path: &str) {
        self.forget_lost(path);
        self.forget_lost(without_number(path));
        self.used = self.used.saturating_sub(self.znodes.remove(path).unwrap_or_default());
    }

    /// Returns the bytes that a call adds to the transaction that ends the session.
    fn bytes_of(&self, call: &Call) -> usize {
        match call {
            Call::Create { path, mode, .. } => self.bytes(path.len(), *mode),
            Call::CreateAndList { dir, prefix, .. } => {
                self.bytes(dir.len() + 1 + prefix.len(), CreateMode::EphemeralSequential)
            }
            Call::Multi(operations) => {
                let bytes = operations.iter().map(|operation| match operation {
                    Op::Create { path, mode, .. } => self.bytes(path.len(), *mode),
                    _ => 0,
                });
                bytes.sum()
            }
            _ => 0,
        }
    }

    fn bytes(&self, path: usize, mode: CreateMode) -> usize {
        match mode {
            CreateMode::Ephemeral | CreateMode::EphemeralSequential => {
                self.max_buffer.created_path(path, mode)
            }
            CreateMode::Persistent | CreateMode::PersistentSequential | CreateMode::Container => 0,
        }
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used
    }
}

/// Returns a sequential znode's path or name without its sequence number. Beyond the end of the counter, the number is
/// negative, so a minus sign precedes its digits.
fn without_number(path: &str) -> &str {
    if !path.as_bytes().iter().rev().take(NUMBER).all(u8::is_ascii_digit) {
        return path;
    }
    let start = path.len().checked_sub(NUMBER).and_then(|end| path.get(..end)).unwrap_or(path);
    if start.ends_with("--") { &start[..start.len() - 1] } else { start }
}

fn is_in(dir: &str, path: &str) -> bool {
    path.rsplit_once('/').is_some_and(|(parent, _)| parent == dir)
}
