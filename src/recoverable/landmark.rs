//! [`Landmark`]: the nearest existing znode, from which a call sees the changes since.

use std::sync::Arc;

use crate::client::{Call, Stat};
use crate::error::{ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::session::Core;

/// The first existing znode on the way from a path to the root.
#[derive(Clone, Debug)]
pub(super) struct Landmark {
    pub(super) path: ZNodePath,
    /// `None` if the server does not show it, for lack of READ or because even the root is missing.
    pub(super) seen: Option<Seen>,
}

/// From the landmark before attempts without an answer to the one after them.
#[derive(Clone, Copy)]
pub(super) struct Interval<'a> {
    pub(super) before: &'a Landmark,
    pub(super) now: &'a Landmark,
}

/// The identity of a znode and the extent of its history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) czxid: i64,
    pub(super) pzxid: i64,
    pub(super) version: i32,
    pub(super) children: i32,
    cversion: i32,
}

impl Landmark {
    /// Finds it, from this path upward.
    pub(super) fn find(core: &Arc<Core>, from: &ZNodePath) -> ZkResult<Landmark> {
        let mut path = from.clone();
        loop {
            let seen = match core.ask(Call::exists(&path, false)) {
                Ok(Some(stat)) => Some(Seen::from(&stat)),
                // Of an unreadable znode, servers since 3.8.4 show only that it exists.
                Err(ZkError::NoAuth) => None,
                Ok(None) if path != ZNodePath::root() => {
                    path = path.parent().unwrap_or_else(ZNodePath::root);
                    continue;
                }
                Ok(None) => None,
                Err(error) => return Err(error),
            };
            return Ok(Landmark { path, seen });
        }
    }
}

impl Interval<'_> {
    /// Returns the landmark's old and new state if it is the same znode as before, not a
    /// replacement.
    pub(super) fn same(self) -> Option<(Seen, Seen)> {
        let (then, now) = (self.before.seen?, self.now.seen?);
        (self.now.path == self.before.path && now.czxid == then.czxid).then_some((then, now))
    }

    /// Counts the children created or deleted meanwhile. `None` if the number is not known.
    pub(super) fn changes(self) -> Option<u32> {
        let (then, now) = self.same()?;
        if now.pzxid == then.pzxid {
            return Some(0);
        }
        // Negative values belong to a counter near its end, where a server may stop counting.
        let counts = then.cversion >= 0 && now.cversion > then.cversion;
        counts.then(|| now.cversion.abs_diff(then.cversion))
    }
}

impl From<&Stat> for Seen {
    fn from(stat: &Stat) -> Seen {
        let Stat { czxid, pzxid, version, cversion, num_children: children, .. } = *stat;
        Seen { czxid, pzxid, version, children, cversion }
    }
}
