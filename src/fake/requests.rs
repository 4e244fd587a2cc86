//! The server's handling of each request: it reads or changes the tree, and sets and fires watches.

use std::collections::BTreeMap;

use super::access::{Caller, ReadChecks, Rights};
use super::served::Served;
use super::state::{Client, State};
use super::tree::{Change, ROOT, split};
use crate::client::Names;
use crate::client::{Acl, CreateMode, Op, OpOutcome, Permissions, Stat, Transacted};
use crate::error::{ZkError, ZkResult};

/// The sender of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Requester {
    /// The client with this session.
    Client(i64),
    /// The client on this connection.
    #[cfg_attr(not(test), allow(dead_code, reason = "only the crate's own simulation makes one"))]
    Served(i64),
    /// The test, acting as another client with all rights, in this session or in none (0).
    Other(i64),
}

impl State {
    pub(super) fn create(
        &mut self,
        path: &str,
        data: &[u8],
        acl: &[Acl],
        mode: CreateMode,
        requester: Requester,
    ) -> ZkResult<String> {
        let caller = caller(&self.clients, &self.served, requester);
        let (path, change) = self.tree.create(path, data, acl, mode, &caller)?;
        self.publish(&[change]);
        Ok(path)
    }

    pub(super) fn delete(&mut self, path: &str, version: Option<i32>, requester: Requester) -> ZkResult<()> {
        let change = self.tree.delete(path, version, &caller(&self.clients, &self.served, requester))?;
        self.publish(&[change]);
        Ok(())
    }

    pub(super) fn set_data(
        &mut self,
        path: &str,
        data: &[u8],
        version: Option<i32>,
        requester: Requester,
    ) -> ZkResult<Stat> {
        let caller = caller(&self.clients, &self.served, requester);
        let (stat, change) = self.tree.set_data(path, data, version, &caller)?;
        self.publish(&[change]);
        Ok(stat)
    }

    /// Executes the operations in order, as one transaction. If one fails, the tree is restored.
    pub(super) fn transact(&mut self, operations: &[Op], requester: Requester) -> Transacted {
        let before = self.tree.clone();
        let checked = self.execute_all(operations, requester, |_, _| {});
        self.tree = before;
        // Execute the operations again to publish each change in its turn: the ACL at that moment decides who
        // is notified, and a later operation may delete the znode.
        let publish = |state: &mut Self, change| state.publish(&[change]);
        match checked.and_then(|_| self.execute_all(operations, requester, publish)) {
            Ok(outcomes) => Transacted::Committed(outcomes),
            Err((position, error)) => Transacted::Failed { position, error },
        }
    }

    /// Executes the operations as one transaction. An error carries the position of the operation that
    /// failed.
    fn execute_all(
        &mut self,
        operations: &[Op],
        requester: Requester,
        on_change: impl Fn(&mut Self, Change),
    ) -> Result<Vec<OpOutcome>, (usize, ZkError)> {
        let before = self.tree.last_zxid;
        let mut outcomes = Vec::new();
        for (position, operation) in operations.iter().enumerate() {
            self.tree.last_zxid = before;
            let executed = self.execute(operation, requester);
            let (outcome, change) = executed.map_err(|error| (position, error))?;
            outcomes.push(outcome);
            change.into_iter().for_each(|change| on_change(self, change));
        }
        self.tree.last_zxid = before + 1;
        Ok(outcomes)
    }

    fn execute(&mut self, operation: &Op, requester: Requester) -> ZkResult<(OpOutcome, Option<Change>)> {
        let caller = caller(&self.clients, &self.served, requester);
        Ok(match operation {
            Op::Create { path, data, acl, mode } => {
                let (path, change) = self.tree.create(path, data, acl, *mode, &caller)?;
                (OpOutcome::Created(path), Some(change))
            }
            Op::Delete { path, version } => {
                (OpOutcome::Deleted, Some(self.tree.delete(path, *version, &caller)?))
            }
            Op::SetData { path, data, version } => {
                let (stat, change) = self.tree.set_data(path, data, *version, &caller)?;
                (OpOutcome::DataSet(stat), Some(change))
            }
            Op::Check { path, version } => {
                self.tree.check(path, *version, &caller)?;
                (OpOutcome::Checked, None)
            }
        })
    }

    pub(super) fn exists(
        &mut self,
        path: &str,
        watch: Option<i64>,
        requester: Requester,
    ) -> ZkResult<Option<Stat>> {
        let stat = self.tree.stat(path)?;
        if let (ReadChecks::EventsAndExists, Some(acl)) = (self.read_checks, self.tree.acl(path)) {
            caller(&self.clients, &self.served, requester).check(acl, Permissions::READ)?;
        }
        if let Some(session) = watch {
            self.watches.watch_data(path, session);
        }
        Ok(stat)
    }

    /// Returns the names in an arbitrary order, which is the same in every run.
    pub(super) fn get_children(
        &mut self,
        path: &str,
        watch: Option<i64>,
        requester: Requester,
    ) -> ZkResult<Names> {
        let mut names = self.tree.children(path, &caller(&self.clients, &self.served, requester))?;
        if let Some(session) = watch {
            self.watches.watch_children(path, session);
        }
        names.sort_by_cached_key(|name| fnv_1a(name));
        Ok(names.into())
    }

    pub(super) fn get_data(
        &mut self,
        path: &str,
        watch: Option<i64>,
        requester: Requester,
    ) -> ZkResult<(Vec<u8>, Stat)> {
        let found = self.tree.data(path, &caller(&self.clients, &self.served, requester))?;
        if let Some(session) = watch {
            self.watches.watch_data(path, session);
        }
        Ok(found)
    }

    /// Returns whether the client of this session may read the znode at this path, which has just changed.
    pub(super) fn may_read(&self, session: i64, path: &str, change: &Change) -> bool {
        let acl = match change {
            Change::Deleted(deleted, acl) if deleted == path => acl,
            _ => self.tree.acl(path).unwrap_or_default(),
        };
        let requester = match self.served.contains_key(&session) {
            true => Requester::Served(session),
            false => Requester::Client(session),
        };
        caller(&self.clients, &self.served, requester).check(acl, Permissions::READ).is_ok()
    }

    /// Creates this znode and its parents if they are missing. Created znodes are open to everybody.
    pub(super) fn ensure_path(&mut self, path: &str) -> ZkResult<()> {
        if path == ROOT || self.tree.stat(path)?.is_some() {
            return Ok(());
        }
        self.ensure_parents(path)?;
        self.create(path, &[], &Acl::open_unsafe(), CreateMode::Persistent, Requester::Other(0)).map(drop)
    }

    pub(super) fn ensure_parents(&mut self, path: &str) -> ZkResult<()> {
        match split(path) {
            Some((parent, _)) => self.ensure_path(parent),
            None => Ok(()),
        }
    }
}

pub(super) fn caller<'a>(
    clients: &'a BTreeMap<i64, Client>,
    served: &'a BTreeMap<i64, Served>,
    requester: Requester,
) -> Caller<'a> {
    match requester {
        Requester::Served(number) => match served.get(&number) {
            Some(served) => Caller { session: served.session, rights: Rights::Of(&served.identities) },
            None => Caller { session: 0, rights: Rights::Of(&[]) },
        },
        Requester::Client(session) => {
            let identities = clients.get(&session).map_or(&[][..], |client| &client.identities);
            Caller { session, rights: Rights::Of(identities) }
        }
        Requester::Other(session) => Caller { session, rights: Rights::All },
    }
}

pub(super) fn fnv_1a(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
