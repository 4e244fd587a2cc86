//! The requests whose turn has come: how soon they must own, and what their owners must read.
//!
//! A request's turn comes when nothing ahead of it excludes it any more. From then on the queue can only
//! change in its favor.

use std::sync::Arc;
use std::time::Duration;

use super::checks::keeps_waiting;
use super::guards::User;
use super::scheduler::{ALL_DIRS, DIRS, LEASES};
use super::wire;
use super::world::{ClientState, World, short};
use crate::LockGuard;
use crate::client::Call;
use crate::recipe::znode_name::generated_sequence;
use crate::request::Request;
use crate::time::Moment;
use zookeeper_connection::machine::LinkId;

/// What the owners of each directory read and write.
const REGISTERS: [&str; 2] = ["/register/a", "/register/b"];

/// How long a client may rely on a watch alone, in addition to session timeouts.
const ROUTINE: Duration = Duration::from_secs(30);

/// The number of additional session timeouts. A proof of life and other work take time.
const TIMEOUTS: u32 = 3;

/// A request whose turn has come.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    /// When its turn came, or when its client was last disturbed after that.
    pub(super) since: Moment,
    /// The connection of its client at that time, and how often the client had been held up by then.
    connection: Option<(LinkId, u64)>,
    /// The version of the register just before its turn came.
    register: i32,
}

/// The position of a request when another client deleted its znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Its turn had come, so it owns until it notices.
    First,
    Behind,
}

fn register_of(path: &str) -> Option<&'static str> {
    let dirs = DIRS.iter().zip(REGISTERS);
    dirs.into_iter().find(|(dir, _)| path.starts_with(**dir)).map(|(_, register)| register)
}

impl World {
    pub(super) fn create_registers(&self) {
        for register in REGISTERS {
            self.zookeeper.create(register, b"");
        }
    }

    /// Records that another client deletes, or has just deleted, the znode of a session's request.
    pub(super) fn record_deletion_by_another(&self, path: &str, session: i64) {
        let is_first = self.has_its_turn(path);
        let mut state = self.state();
        state.deleted_by_another.insert(path.to_owned());
        state.node_deleted.insert(session);
        match is_first {
            true => state.deleted_in_the_queue.remove(path),
            false => state.deleted_in_the_queue.insert(path.to_owned()),
        };
    }

    /// Returns the position that a request had when another client deleted its znode.
    pub(super) fn is_deleted_by_another(&self, path: &str) -> Option<Place> {
        let state = self.state();
        let place = if state.deleted_in_the_queue.contains(path) { Place::Behind } else { Place::First };
        state.deleted_by_another.contains(path).then_some(place)
    }

    fn has_its_turn(&self, path: &str) -> bool {
        let Some((dir, name)) = path.rsplit_once('/') else { return false };
        let children = self.zookeeper.children(dir);
        let state = self.state();
        let excludes = |child: &&String| {
            keeps_waiting(child, name) && !state.tentative.contains(&format!("{dir}/{child}"))
        };
        let ahead = children.iter().filter(excludes).count();
        ahead == 0 || (dir == LEASES && ahead < self.profile.permits as usize)
    }

    /// Records which turns have come and which are over. Returns whether anything has changed in the tree
    /// since the last time.
    pub(super) fn note_turns(&self) -> bool {
        let as_of = Some(self.version_of_the_tree());
        if std::mem::replace(&mut self.state().turns_as_of, as_of) == as_of {
            return false;
        }
        let mut turns = std::mem::take(&mut self.state().turns);
        let mut present = std::collections::BTreeMap::new();
        for dir in ALL_DIRS {
            for name in self.zookeeper.children(dir) {
                let path = format!("{dir}/{name}");
                let is_request = generated_sequence(&name).is_some() && !name.contains("stranger");
                if !is_request || !self.has_its_turn(&path) {
                    continue;
                }
                let turn = turns.remove(&path).unwrap_or_else(|| self.new_turn(&path));
                present.insert(path, turn);
            }
        }
        let versions = REGISTERS.into_iter().map(|register| (register, self.register_version(register)));
        let versions = versions.collect();
        let mut state = self.state();
        (state.turns, state.register_versions) = (present, versions);
        true
    }

    /// Returns the last write and the number of tentative znodes.
    pub(super) fn version_of_the_tree(&self) -> (i64, usize) {
        (self.zookeeper.last_zxid(), self.state().tentative.len())
    }

    /// A former owner may write in the same step, and the new owner need not see that write. So the version before this
    /// step counts.
    fn new_turn(&self, path: &str) -> Turn {
        let versions = &self.state().register_versions;
        let register = register_of(path).and_then(|register| versions.get(register).copied());
        Turn { since: self.now(), connection: None, register: register.unwrap_or_default() }
    }

    fn register_version(&self, register: &str) -> i32 {
        self.zookeeper.stat(register).map_or(0, |stat| stat.version)
    }

    /// Checks that no lock whose turn has come waits undisturbed beyond the next routine check.
    pub(super) fn check_turns(&self) -> Option<String> {
        let now = self.now();
        let waiting: Vec<(usize, Arc<_>)> = {
            let state = self.state();
            let locks = state.locks.iter().enumerate();
            locks.filter_map(|(number, record)| Some((number, record.weak.upgrade()?))).collect()
        };
        for (number, lock) in waiting {
            let current = lock.request();
            // A session that has ended drops its requests as soon as a worker is free.
            let lives = |request: &Arc<Request>| request.core().snapshot().end_reason.is_none();
            let waits = current.is_some_and(|request| lives(&request) && !request.has_ended());
            let Some(id) = lock.id().filter(|_| waits) else { continue };
            let of_request = lock.request().and_then(|request| self.client_of(request.core()));
            let mut state = self.state();
            let client = of_request.unwrap_or(state.locks[number].client);
            let client = &mut state.clients[client];
            let (connection, timeout) =
                (client.undisturbed_connection(now), client.session_timeout.max(client.created_timeout));
            let Some(turn) = state.turns.get_mut(&id) else { continue };
            // An owner whose lease has ended waits from then until it notices.
            if connection.is_none() || turn.connection != connection || lock.is_owner() {
                (turn.since, turn.connection) = (now, connection);
            }
            if now > turn.since.after(ROUTINE + timeout * TIMEOUTS) {
                return Some(format!("lock {number} waits with {} although its turn has come", short(&id)));
            }
        }
        None
    }
}

impl ClientState {
    /// Returns the number of the connection and of the delays, if nothing disturbs the client.
    fn undisturbed_connection(&mut self, now: Moment) -> Option<(LinkId, u64)> {
        let is_disturbed = self.paused_until > now
            || self.denied_until > now
            || self.writes_to_fail > 0
            || self.link.partitioned
            || self.link.stall.is_some()
            || self.link.slow_until > now;
        if is_disturbed {
            return None;
        }
        let connection = wire::faults::undisturbed_connection(self.endpoint()?)?;
        Some((connection, self.long_delays))
    }
}

impl User {
    /// Reads and writes the register of the directory, as an owner does with what the lock protects. The owner must see
    /// what its predecessors wrote.
    pub(super) fn use_register(&self, guard: &LockGuard) {
        let (request, znode) = (guard.request(), guard.id());
        let turn = self.world.state().turns.get(znode).cloned();
        let (Some(register), Some(turn)) = (register_of(znode), turn) else { return };
        let core = Arc::clone(request.core());
        let read = core.ask(Call::get_data(register, false));
        if let Ok((_, stat)) = read {
            if request.is_owner() && stat.version < turn.register {
                let (seen, written) = (stat.version, turn.register);
                self.world.fail(format!("{} owns but reads version {seen}, not {written}", short(znode)));
            }
        }
        let is_reader = znode.rsplit('/').next().is_some_and(|name| name.starts_with("read-"));
        if !is_reader && request.is_owner() {
            let _ = core.ask(Call::set_data(register, [], None));
        }
    }
}
