//! [`OwnQueues`]: the znodes of the session's exclusive requests, until their deletion is confirmed.

use std::collections::BTreeMap;

use super::border::ParticipantId;
use crate::recipe::counter::is_ordered;
use crate::recipe::path::ZNodePath;
use crate::recipe::znode_name::generated_sequence;

/// The queues, by directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct OwnQueues {
    by_dir: BTreeMap<ZNodePath, BTreeMap<QueueKey, OwnZNode>>,
    /// The request that is creating its znode and listing the queue, by directory.
    joining: BTreeMap<ZNodePath, ParticipantId>,
}

/// The place of a request's znode in the queue of its directory. The path is part of the key because a
/// directory that is deleted and created again reuses numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct QueueKey {
    sequence: i32,
    path: ZNodePath,
}

impl QueueKey {
    /// Returns the place of a znode, or `None` if its number defines no order.
    fn of(path: &ZNodePath) -> Option<QueueKey> {
        let sequence = generated_sequence(path.name()).filter(|sequence| is_ordered(*sequence))?;
        Some(QueueKey { sequence, path: path.clone() })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct OwnZNode {
    /// The znode's request has owned the lock.
    has_owned: bool,
    state: Stay,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Stay {
    #[default]
    InQueue,
    /// It is being deleted.
    Leaving,
    /// For now, the server refuses to delete it.
    Refused,
}

impl OwnQueues {
    pub(super) fn add(&mut self, path: &ZNodePath) {
        let (Some(place), Some(dir)) = (QueueKey::of(path), path.parent()) else { return };
        self.by_dir.entry(dir).or_default().insert(place, OwnZNode::default());
    }

    pub(super) fn note_owner(&mut self, path: &ZNodePath) {
        if let Some(own) = self.get_mut(path) {
            own.has_owned = true;
        }
    }

    pub(super) fn note_leaving(&mut self, path: &ZNodePath) {
        if let Some(own) = self.get_mut(path).filter(|own| own.state == Stay::InQueue) {
            own.state = Stay::Leaving;
        }
    }

    /// Notes that the server refuses to delete a znode. Returns whether this is the first refusal.
    pub(super) fn refuse(&mut self, path: &ZNodePath) -> bool {
        self.get_mut(path)
            .is_some_and(|own| std::mem::replace(&mut own.state, Stay::Refused) != Stay::Refused)
    }

    /// Removes a znode that is gone. Returns whether its request has owned the lock.
    pub(super) fn remove(&mut self, path: &ZNodePath) -> bool {
        let (Some(dir), Some(place)) = (path.dir(), QueueKey::of(path)) else { return false };
        let Some(queue) = self.by_dir.get_mut(dir) else { return false };
        let own = queue.remove(&place);
        if queue.is_empty() {
            self.by_dir.remove(dir);
        }
        own.is_some_and(|own| own.has_owned)
    }

    pub(super) fn has_owned(&self, path: &ZNodePath) -> bool {
        self.get(path).is_some_and(|own| own.has_owned)
    }

    pub(super) fn is_in_queue(&self, path: &ZNodePath) -> bool {
        self.get(path).is_some_and(|own| own.state == Stay::InQueue)
    }

    pub(super) fn is_leaving(&self, path: &ZNodePath) -> bool {
        self.get(path).is_some_and(|own| own.state == Stay::Leaving)
    }

    pub(super) fn begin_joining(&mut self, dir: &ZNodePath, id: ParticipantId) {
        self.joining.insert(dir.clone(), id);
    }

    /// Notes that a request has joined, has failed to, or has ended.
    pub(super) fn end_joining(&mut self, dir: &ZNodePath, id: ParticipantId) {
        if self.joining.get(dir) == Some(&id) {
            self.joining.remove(dir);
        }
    }

    /// Returns whether the next request of this session in a directory will most probably be behind another one of it.
    pub(super) fn will_follow(&self, dir: &ZNodePath) -> bool {
        self.joining.contains_key(dir) || self.is_last_in_queue(dir)
    }

    /// Returns whether the session has a znode in a directory, and is not trying to delete the last one.
    pub(super) fn is_last_in_queue(&self, dir: &ZNodePath) -> bool {
        let last = self.by_dir.get(dir).and_then(BTreeMap::last_key_value);
        last.is_some_and(|(_, own)| own.state == Stay::InQueue)
    }

    /// Returns the session's nearest znode before this one, unless the session is trying to delete it.
    pub(super) fn before(&self, path: &ZNodePath) -> Option<ZNodePath> {
        let queue = self.by_dir.get(path.dir()?)?;
        let (before, own) = queue.range(..QueueKey::of(path)?).next_back()?;
        (own.state == Stay::InQueue).then(|| before.path.clone())
    }

    fn get(&self, path: &ZNodePath) -> Option<&OwnZNode> {
        self.by_dir.get(path.dir()?)?.get(&QueueKey::of(path)?)
    }

    fn get_mut(&mut self, path: &ZNodePath) -> Option<&mut OwnZNode> {
        self.by_dir.get_mut(path.dir()?)?.get_mut(&QueueKey::of(path)?)
    }
}
