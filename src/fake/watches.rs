//! [`Watches`]: the one-shot watches of all sessions. The server keeps them, as a real server does.
//!
//! A data watch (set by `exists` and `get_data`) fires on creation, change and deletion of its
//! znode. A child watch (set by `get_children`) fires on creation and deletion of a child and on
//! deletion of the znode itself.

use std::collections::BTreeMap;

use super::tree::{Change, split};
use zookeeper_connection::codec::EventKind;

#[derive(Debug, Default)]
pub(super) struct Watches {
    data: Kind,
    children: Kind,
}

/// The watching sessions by path, in the order in which they set their watches.
#[derive(Debug, Default)]
struct Kind(BTreeMap<String, Vec<i64>>);

impl Watches {
    pub(super) fn watch_data(&mut self, path: &str, session: i64) {
        self.data.add(path, session);
    }

    pub(super) fn watch_children(&mut self, path: &str, session: i64) {
        self.children.add(path, session);
    }

    /// Removes the session's watches on this path. Returns whether there were any.
    pub(super) fn remove(&mut self, path: &str, session: i64) -> bool {
        let (data, children) = (self.data.remove(path, session), self.children.remove(path, session));
        data || children
    }

    /// Removes the watches that the change fires. Returns the session, the path and the event kind of each. A
    /// session with both kinds of watches on a deleted znode is returned once.
    pub(super) fn fire(&mut self, change: &Change) -> Vec<(i64, String, EventKind)> {
        let (path, kind) = match change {
            Change::Created(path) => (path, EventKind::Created),
            Change::DataSet(path) => (path, EventKind::DataChanged),
            Change::Deleted(path, _) => (path, EventKind::Deleted),
        };
        let mut sessions = self.data.take(path);
        if kind == EventKind::Deleted {
            let more = self.children.take(path);
            sessions
                .extend(more.into_iter().filter(|session| !sessions.contains(session)).collect::<Vec<_>>());
        }
        let mut fired: Vec<_> = sessions.into_iter().map(|session| (session, path.clone(), kind)).collect();
        if let (Change::Created(_) | Change::Deleted(..), Some((parent, _))) = (change, split(path)) {
            let sessions = self.children.take(parent).into_iter();
            fired.extend(sessions.map(|session| (session, parent.to_owned(), EventKind::ChildrenChanged)));
        }
        fired
    }

    pub(super) fn drop_session(&mut self, session: i64) {
        self.data.drop_session(session);
        self.children.drop_session(session);
    }

    pub(super) fn count(&self) -> usize {
        self.data.count() + self.children.count()
    }
}

impl Kind {
    fn add(&mut self, path: &str, session: i64) {
        let sessions = self.0.entry(path.to_owned()).or_default();
        if !sessions.contains(&session) {
            sessions.push(session);
        }
    }

    fn remove(&mut self, path: &str, session: i64) -> bool {
        let Some(sessions) = self.0.get_mut(path) else { return false };
        let before = sessions.len();
        sessions.retain(|watching| *watching != session);
        let is_removed = sessions.len() < before;
        if sessions.is_empty() {
            self.0.remove(path);
        }
        is_removed
    }

    fn take(&mut self, path: &str) -> Vec<i64> {
        self.0.remove(path).unwrap_or_default()
    }

    fn drop_session(&mut self, session: i64) {
        self.0.retain(|_, sessions| {
            sessions.retain(|watching| *watching != session);
            !sessions.is_empty()
        });
    }

    fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}
