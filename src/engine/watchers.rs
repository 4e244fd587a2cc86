//! [`Watchers`]: for each path, the participants that wait for its next event.

use std::collections::BTreeMap;

use super::border::ParticipantId;
use crate::recipe::path::ZNodePath;

/// The participants that wait for events, by path. One watch on a path serves all of them, and its event wakes them in
/// the order in which they were added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Watchers {
    by_path: BTreeMap<ZNodePath, Vec<ParticipantId>>,
}

impl Watchers {
    pub(super) fn add(&mut self, path: &ZNodePath, id: ParticipantId) {
        let watching = self.by_path.entry(path.clone()).or_default();
        if !watching.contains(&id) {
            watching.push(id);
        }
    }

    /// Removes a participant. Returns whether it was the last one that waited on this path.
    pub(super) fn remove(&mut self, path: &ZNodePath, id: ParticipantId) -> bool {
        let Some(watching) = self.by_path.get_mut(path) else { return false };
        watching.retain(|other| *other != id);
        let is_last = watching.is_empty();
        if is_last {
            self.by_path.remove(path);
        }
        is_last
    }

    pub(super) fn has_any(&self, path: &ZNodePath) -> bool {
        self.by_path.contains_key(path)
    }

    pub(super) fn take(&mut self, path: &ZNodePath) -> Vec<ParticipantId> {
        self.by_path.remove(path).unwrap_or_default()
    }

    pub(super) fn paths(&self) -> usize {
        self.by_path.len()
    }
}
