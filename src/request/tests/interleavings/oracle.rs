//! The promises that must hold in every interleaving.

use super::{OurRequest, Rig};
use crate::recipe::session_tag::SessionTag;
use crate::recipe::znode_name::generated_sequence;
use crate::request::tests::DIR;

impl OurRequest {
    fn has(&self, name: &str) -> bool {
        SessionTag::read(name) == Some(self.number)
    }
}

impl Rig {
    /// Returns the names in the queue, in order.
    pub(super) fn queue(&self) -> Vec<String> {
        let numbered = |name: String| Some((generated_sequence(&name)?, name));
        let mut queue: Vec<(i32, String)> = self.zk.children(DIR).into_iter().filter_map(numbered).collect();
        queue.sort();
        queue.into_iter().map(|(_, name)| name).collect()
    }

    pub(super) fn is_ours(&self, name: &str) -> bool {
        self.ours.iter().any(|ours| ours.has(name))
    }

    /// Returns the first request ahead of this one that excludes it.
    pub(super) fn ahead_of<'a>(&self, name: &str, queue: &'a [String]) -> Option<&'a String> {
        let is_reader = |name: &str| name.starts_with("read-");
        let own = generated_sequence(name)?;
        let ahead = queue.iter().filter(|other| generated_sequence(other).is_some_and(|number| number < own));
        ahead.into_iter().find(|other| !(is_reader(other) && is_reader(name)))
    }

    /// Checks what holds at every moment: an owner is first in the queue, or was first when another client
    /// deleted its znode.
    pub(super) fn check_owners(&self) -> Result<(), String> {
        let queue = self.queue();
        for (number, ours) in self.ours.iter().enumerate().filter(|(_, ours)| ours.request.is_owner()) {
            let znode = ours.request.znode().ok_or_else(|| format!("{number} owns without a znode"))?;
            let name = znode.name().to_owned();
            let ahead = self.ahead_of(&name, &queue);
            match queue.contains(&name) {
                true if ahead.is_some() => return Err(format!("{number} owns {name} behind {ahead:?}")),
                false if self.deleted_behind.contains(&name) => {
                    return Err(format!("{number} owns {name}, which was deleted while others were ahead"));
                }
                false if !self.deleted_first.contains(&name) => {
                    return Err(format!("{number} owns {name}, which it has deleted itself"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks the state after everything has arrived: the first request owns the lock, and every other
    /// request has a reason to wait.
    pub(super) fn check_at_rest(&self) -> Result<(), String> {
        self.check_owners()?;
        let queue = self.queue();
        for (number, ours) in self.ours.iter().enumerate() {
            let has_ended = ours.is_withdrawn || ours.request.has_ended();
            let name = queue.iter().find(|name| ours.has(name));
            match name {
                None if has_ended => {}
                None => self.check_deleted(number)?,
                Some(name) if has_ended => return Err(format!("{number} has ended and left {name}")),
                Some(name) => {
                    let (ahead, is_owner) = (self.ahead_of(name, &queue), ours.request.is_owner());
                    if ahead.is_none() != is_owner {
                        return Err(format!("{number} with {name}: owner {is_owner}, behind {ahead:?}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks a request whose znode was deleted. A waiter need not know this before the request that it
    /// watches has left.
    fn check_deleted(&self, number: usize) -> Result<(), String> {
        let request = &self.ours[number].request;
        let watched = request.watched();
        let waits = !request.is_owner() && watched.is_some_and(|path| self.zk.exists(path.as_str()));
        let own = request.znode();
        let queue = self.queue();
        match own {
            _ if waits => Ok(()),
            Some(own) if self.ahead_of(own.name(), &queue).is_some() && !request.is_owner() => Ok(()),
            own => Err(format!("{number} does not know that its znode is gone: {own:?}")),
        }
    }

    /// Checks the end: no znode is left, and no watch except those that a lost connection may have left.
    pub(super) fn check_nothing_left(&self) -> Result<(), String> {
        let left: Vec<String> = self.queue().into_iter().filter(|name| self.is_ours(name)).collect();
        if !left.is_empty() {
            return Err(format!("left behind: {left:?}"));
        }
        match self.zk.watch_count() {
            0 => Ok(()),
            _ if self.was_cut => Ok(()),
            watches => Err(format!("{watches} watches are left")),
        }
    }
}
