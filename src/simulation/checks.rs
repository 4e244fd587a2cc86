//! The promises that are checked after every step.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::locks::Callback;
use super::world::{World, short};
use crate::WriteLock;
use crate::recipe::znode_name::generated_sequence;

/// The length of a GUID and of the `x-` before it.
const GUID_END: usize = 2 + 36;

impl World {
    /// Returns what is broken.
    pub(super) fn check(&self, dirs: &[&str]) -> Option<String> {
        dirs.iter().find_map(|dir| {
            let children = self.zookeeper.children(dir);
            self.check_owners(dir, &children).or_else(|| check_names(&children))
        })
    }

    /// Whoever says to own the lock is the first in the queue, so that no two do. No lock can prevent that another client
    /// deletes its znode; then it must only hear of it in time, which is checked at the end.
    fn check_owners(&self, dir: &str, children: &[String]) -> Option<String> {
        let owners: Vec<(usize, Arc<WriteLock>)> = self.owners(dir);
        let mut undisturbed = 0;
        for (number, lock) in &owners {
            let Some(id) = lock.id() else {
                return Some(format!("lock {number} owns {dir} without a znode"));
            };
            if self.state().deleted_by_another.contains(&id) {
                continue;
            }
            undisturbed += 1;
            let Some(name) = id.strip_prefix(dir).and_then(|name| name.strip_prefix('/')) else {
                return Some(format!("lock {number} owns {dir} with the znode {id}"));
            };
            if !children.iter().any(|child| child == name) {
                return Some(format!("lock {number} owns {dir} but its znode {} is gone", short(&id)));
            }
            if let Some(ahead) = children.iter().find(|child| is_ahead(child, name)) {
                return Some(format!("lock {number} owns {dir} but {} is before it", short(ahead)));
            }
        }
        (undisturbed > 1).then(|| format!("{undisturbed} locks own {dir} at once"))
    }

    /// When nothing is left to be done at this moment, whoever is no owner any more has been told so.
    pub(super) fn check_that_all_is_told(&self) -> Option<String> {
        let now = self.now();
        let believing: Vec<(usize, Arc<WriteLock>)> = {
            let state = self.state();
            let is_free = |client: usize| {
                let client = &state.clients[client];
                client.jobs.is_empty() && client.paused_until <= now
            };
            let locks = state.locks.iter().enumerate();
            let believing = locks
                .filter(|(_, record)| record.last == Some(Callback::Acquired))
                .filter(|(_, record)| !record.in_callback && is_free(record.client));
            believing.filter_map(|(number, record)| Some((number, record.weak.upgrade()?))).collect()
        };
        let (number, _) = believing.into_iter().find(|(_, lock)| !lock.is_owner())?;
        Some(format!("lock {number} is not told that it is no owner any more"))
    }

    /// The locks on a directory that say to be owned now.
    pub(super) fn owners(&self, dir: &str) -> Vec<(usize, Arc<WriteLock>)> {
        let locks: Vec<(usize, Arc<WriteLock>)> = {
            let state = self.state();
            let of_dir = state.locks.iter().enumerate().filter(|(_, record)| record.dir == dir);
            of_dir.filter_map(|(number, record)| Some((number, record.weak.upgrade()?))).collect()
        };
        // Outside the lock, as it asks for the time.
        locks.into_iter().filter(|(_, lock)| lock.is_owner()).collect()
    }
}

/// No request ever has two znodes.
fn check_names(children: &[String]) -> Option<String> {
    let mut guids = BTreeSet::new();
    let ours = children.iter().filter_map(|child| child.get(..GUID_END));
    for guid in ours {
        if !guids.insert(guid) {
            return Some(format!("one request has two znodes: {guid}"));
        }
    }
    None
}

fn is_ahead(child: &str, of: &str) -> bool {
    match (generated_sequence(child), generated_sequence(of)) {
        (Some(theirs), Some(mine)) => mine.wrapping_sub(theirs) > 0,
        _ => false,
    }
}
