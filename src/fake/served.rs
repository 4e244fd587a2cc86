//! [`ServedConnection`]: a server's side of one connection from a client that speaks the wire protocol.
//!
//! Only tests of this crate use it. The simulation of whole processes has its own handshakes, frames and network.
//!
//! A server may lag behind the ensemble. Its [`View`] is the tree that it has applied. It answers reads from
//! that tree, and holds back later events until it has caught up.

#![cfg_attr(not(test), allow(dead_code, reason = "only the crate's own simulation uses it"))]

use std::collections::VecDeque;
use std::sync::Arc;

use super::SimulatedZooKeeper;
use super::access::{Identity, ReadChecks};
use super::requests::{Requester, caller, fnv_1a};
use super::state::{Shared, State};
use super::tree::Tree;
use crate::client::{Call, Permissions, Reply};
use crate::error::{ZkError, ZkResult};
use zookeeper_connection::codec::EventKind;

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fired {
    pub(crate) kind: EventKind,
    pub(crate) path: String,
}

/// What [`State`] keeps of a [`ServedConnection`].
#[derive(Debug)]
pub(super) struct Served {
    pub(super) session: i64,
    pub(super) identities: Vec<Identity>,
    /// The events not yet taken, in the order in which they happened.
    pub(super) events: VecDeque<Fired>,
}

/// The tree and the sessions that a server has applied.
#[derive(Debug)]
pub(crate) struct View {
    tree: Tree,
    sessions: Vec<i64>,
}

impl View {
    pub(crate) fn last_zxid(&self) -> i64 {
        self.tree.last_zxid
    }

    pub(crate) fn has_session(&self, session: i64) -> bool {
        self.sessions.contains(&session)
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.tree.acl(path).is_some()
    }
}

impl SimulatedZooKeeper {
    /// Returns the current state of the ensemble.
    pub(crate) fn view(&self) -> View {
        let state = self.shared.lock();
        View { tree: state.tree.clone(), sessions: state.sessions.iter().copied().collect() }
    }

    pub(crate) fn last_zxid(&self) -> i64 {
        self.shared.lock().tree.last_zxid
    }
}

/// See the [module](self). Dropping it drops its watches.
pub(crate) struct ServedConnection {
    shared: Arc<Shared>,
    number: i64,
}

impl ServedConnection {
    /// Opens a connection of this session, under a number that no other connection has.
    pub(crate) fn open(zookeeper: &SimulatedZooKeeper, number: i64, session: i64) -> ServedConnection {
        let served = Served { session, identities: Vec::new(), events: VecDeque::new() };
        zookeeper.shared.lock().served.insert(number, served);
        ServedConnection { shared: Arc::clone(&zookeeper.shared), number }
    }

    pub(crate) fn authenticate(&self, scheme: &str, id: &str) {
        if let Some(served) = self.shared.lock().served.get_mut(&self.number) {
            served.identities.push(Identity { scheme: scheme.to_owned(), id: id.to_owned() });
        }
    }

    /// Takes the next event that has happened.
    pub(crate) fn take_event(&self) -> Option<Fired> {
        self.shared.lock().served.get_mut(&self.number)?.events.pop_front()
    }

    pub(crate) fn has_events(&self) -> bool {
        self.shared.lock().served.get(&self.number).is_some_and(|served| !served.events.is_empty())
    }

    /// Executes a write.
    pub(crate) fn write(&self, call: &Call) -> ZkResult<Reply> {
        let mut state = self.shared.lock();
        let requester = Requester::Served(self.number);
        let result = match call {
            Call::Create { path, data, acl, mode } => {
                let created = state.create(path, data, acl, *mode, requester);
                created.map(|path| Reply::Created { stat: state.tree.stat(&path).ok().flatten(), path })
            }
            Call::Delete { path, version } => state.delete(path, *version, requester).map(|()| Reply::Done),
            Call::SetData { path, data, version } => {
                state.set_data(path, data, *version, requester).map(Reply::Stat)
            }
            Call::Multi(operations) => Ok(Reply::Multi(state.transact(operations, requester))),
            _ => Err(ZkError::Unimplemented),
        };
        self.shared.deliver(state);
        result
    }

    /// Executes a read on a server with this view. Without a view, the server has applied everything.
    pub(crate) fn read(&self, call: &Call, view: Option<&View>) -> ZkResult<Reply> {
        let mut state = self.shared.lock();
        let tree = view.map_or(&state.tree, |view| &view.tree);
        let caller = caller(&state.clients, &state.served, Requester::Served(self.number));
        let (reply, watch) = match call {
            Call::Exists { path, watch } => {
                let checks = state.read_checks == ReadChecks::EventsAndExists;
                if let Some(acl) = tree.acl(path).filter(|_| checks) {
                    caller.check(acl, Permissions::READ)?;
                }
                (Reply::Found(tree.stat(path)?), watch.then_some((path, true)))
            }
            Call::GetData { path, watch } => {
                let (data, stat) = tree.data(path, &caller)?;
                (Reply::Data(data, stat), watch.then_some((path, true)))
            }
            Call::GetChildren { path, watch } => {
                let mut names = tree.children(path, &caller)?;
                names.sort_by_cached_key(|name| fnv_1a(name));
                (Reply::Children(names.into()), watch.then_some((path, false)))
            }
            _ => return Err(ZkError::Unimplemented),
        };
        if let Some((path, is_on_data)) = watch {
            self.watch(&mut state, path, is_on_data, view);
        }
        Ok(reply)
    }

    /// Removes the watches on a path. Fails with `NoWatcher` if there are none.
    pub(crate) fn remove_watches(&self, path: &str) -> ZkResult<()> {
        let is_removed = self.shared.lock().watches.remove(path, self.number);
        if is_removed { Ok(()) } else { Err(ZkError::Other(-121)) }
    }

    /// Sets watches again, as after a reconnect. Returns the events that the watches missed since transaction
    /// `since`.
    pub(crate) fn set_watches(
        &self,
        since: i64,
        [data, existence, children]: [&[std::borrow::Cow<'_, str>]; 3],
        view: Option<&View>,
    ) -> Vec<Fired> {
        let mut state = self.shared.lock();
        let mut fired = Vec::new();
        let lists = [(0, data), (1, existence), (2, children)];
        for (list, path) in
            lists.into_iter().flat_map(|(list, paths)| paths.iter().map(move |path| (list, path)))
        {
            let stat = view.map_or(&state.tree, |view| &view.tree).stat(path).ok().flatten();
            let kind = match (list, stat) {
                (0 | 2, None) => Some(EventKind::Deleted),
                (0, Some(stat)) => (stat.mzxid > since).then_some(EventKind::DataChanged),
                (1, Some(_)) => Some(EventKind::Created),
                (2, Some(stat)) => (stat.pzxid > since).then_some(EventKind::ChildrenChanged),
                _ => None,
            };
            match kind {
                Some(kind) => fired.push(Fired { kind, path: path.clone().into_owned() }),
                None => self.watch(&mut state, path, list != 2, view),
            }
        }
        fired
    }

    /// Sets a watch. If the server lags behind, the watch fires for the first change that the server has not
    /// applied.
    fn watch(&self, state: &mut State, path: &str, is_on_data: bool, view: Option<&View>) {
        let missed = view.and_then(|view| missed(&view.tree, &state.tree, path, is_on_data));
        match missed {
            Some(kind) => {
                if let Some(served) = state.served.get_mut(&self.number) {
                    served.events.push_back(Fired { kind, path: path.to_owned() });
                }
            }
            None if is_on_data => state.watches.watch_data(path, self.number),
            None => state.watches.watch_children(path, self.number),
        }
    }
}

/// Returns the first event at this path that a server with the tree `applied` has not seen, as far as the two trees
/// show it.
fn missed(applied: &Tree, present: &Tree, path: &str, is_on_data: bool) -> Option<EventKind> {
    let stat = |tree: &Tree| tree.stat(path).ok().flatten();
    match (stat(applied), stat(present)) {
        (None, None) => None,
        (None, Some(_)) => Some(EventKind::Created),
        (Some(_), None) => Some(EventKind::Deleted),
        (Some(before), Some(now)) if before.czxid != now.czxid => Some(EventKind::Deleted),
        (Some(before), Some(now)) if is_on_data => {
            (before.mzxid != now.mzxid).then_some(EventKind::DataChanged)
        }
        (Some(before), Some(now)) => (before.pzxid != now.pzxid).then_some(EventKind::ChildrenChanged),
    }
}

impl Drop for ServedConnection {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.watches.drop_session(self.number);
        state.served.remove(&self.number);
    }
}
