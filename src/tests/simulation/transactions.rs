//! Transactions: those of owners, which take effect only while their lock is held, and those of other
//! clients, which delete several requests at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::application::{self, Value};
use super::faults;
use super::guards::User;
use super::scheduler::DIRS;
use super::seen::saw;
use super::world::{World, short};
use crate::client::{Op, Reply, Transacted};
use crate::error::ZkResult;
use crate::{ErrorReason, LockError, LockGuard};

/// The znode that owners write in transactions.
const REGISTER: &str = "/register";

/// The data that owners write to the register.
#[derive(Default)]
pub(super) struct Commits {
    /// The transactions begun: the data and the znode of the owner's request.
    begun: BTreeMap<Vec<u8>, String>,
    effective: BTreeSet<Vec<u8>>,
}

impl User {
    /// Writes under a lock. Sometimes another owner takes over first.
    pub(super) fn commit(&self, guard: &LockGuard) {
        if !self.world.profile.transacts || self.world.state().random.one_in(2) {
            return;
        }
        if !self.world.zookeeper.exists(REGISTER) {
            self.world.zookeeper.create(REGISTER, b"");
        }
        let data = self.new_tag().into_bytes();
        self.world.state().commits.begun.insert(data.clone(), guard.id().to_owned());
        faults::delete_owners_znode(&self.world, self.dir, &guard.request());
        let value = Value::new(&self.world, application::CLOSURE_DROP);
        let outcome = application::survive(|| {
            guard.commit(|changes| {
                let _value = value;
                application::run(&self.world, application::CLOSURE);
                changes.set_data(REGISTER, data.as_slice())
            })
        });
        let Some(outcome) = outcome else { return };
        saw("commit");
        self.world.note(format!("commits: {outcome:?}"));
        let is_effective = self.world.state().commits.effective.contains(&data);
        let is_unknown = |error: &LockError| {
            let is_ended = error.is_connection_loss() || error.is_session_lost() || error.is_closed();
            is_ended || error.reason() == ErrorReason::OutcomeUnknown
        };
        match outcome {
            Ok(_) if !is_effective => self.world.fail("a commit that succeeded changed nothing"),
            Err(error) if is_effective && !is_unknown(&error) => {
                self.world.fail(format!("a commit that failed changed something: {error}"));
            }
            _ => {}
        }
    }
}

impl World {
    /// Executes a client's transaction, and checks that no owner writes after it has been replaced.
    pub(super) fn transact(
        &self,
        operations: &[Op],
        execute: impl FnOnce() -> ZkResult<Reply>,
    ) -> ZkResult<Reply> {
        let owner = operations.iter().find_map(|operation| match operation {
            Op::SetData { data, .. } => Some((data, self.state().commits.begun.get(data).cloned()?)),
            _ => None,
        });
        let is_replaced = owner.as_ref().is_some_and(|(_, znode)| !self.zookeeper.exists(znode));
        let outcome = execute();
        if let (Some((data, znode)), Ok(Reply::Multi(Transacted::Committed(_)))) = (owner, &outcome) {
            self.state().commits.effective.insert(data.clone());
            if is_replaced {
                self.fail(format!("an owner committed after it was replaced: {}", short(&znode)));
            }
        }
        outcome
    }
}

/// Deletes the first two requests of a queue at once, as another client.
pub(super) fn delete_the_first_two(world: &Arc<World>) {
    let dir = some_dir(world);
    let queue = in_order(world, dir);
    if let [first, second, ..] = queue.as_slice() {
        world.note(format!("another client deletes {} and {} at once", short(first), short(second)));
        delete_all(world, &[first.clone(), second.clone()], None);
        saw("first-two-requests-deleted");
    }
}

/// Deletes a directory with all its requests, as another client.
pub(super) fn delete_dir_with_requests(world: &Arc<World>) {
    let dir = some_dir(world);
    if world.zookeeper.exists(dir) {
        world.note(format!("another client deletes {dir} with its requests"));
        delete_all(world, &in_order(world, dir), Some(dir));
        saw("directory-deleted-with-requests");
    }
}

fn some_dir(world: &World) -> &'static str {
    let mut state = world.state();
    DIRS[state.random.index(world.profile.dirs)]
}

fn in_order(world: &World, dir: &str) -> Vec<String> {
    let children = world.zookeeper.children(dir);
    let queue = crate::recipe::order::in_order(&children);
    queue.into_iter().map(|name| format!("{dir}/{name}")).collect()
}

fn delete_all(world: &World, requests: &[String], dir: Option<&str>) {
    let stats = requests.iter().map(|request| world.zookeeper.stat(request));
    let owners: Vec<_> = stats.map(|stat| stat.map_or(0, |stat| stat.ephemeral_owner)).collect();
    {
        let mut state = world.state();
        state.other_requests.retain(|other| !requests.contains(other));
        state.deleted_by_another.extend(requests.iter().cloned());
        state.node_deleted.extend(owners);
    }
    let paths = requests.iter().map(String::as_str).chain(dir);
    let delete = |path: &str| Op::Delete { path: path.to_owned(), version: None };
    world.zookeeper.transact(&paths.map(delete).collect::<Vec<_>>());
}
