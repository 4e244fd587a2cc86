//! [`Change`]: the modifying calls, and how each determines whether a lost attempt took effect.
//!
//! A verdict compares the state before the attempt with the current state. It must hold whatever
//! other clients have done in between, so it counts changes: an attempt that took effect, and whose
//! effect others have hidden, leaves at least a certain number of changes. With fewer changes, it
//! did not take effect.

use std::sync::Arc;

use super::landmark::{Interval, Seen};
use crate::client::{Acl, Ask, Call, CreateMode, Stat};
use crate::error::{ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::recipe::queue::find_own;
use crate::session::Core;

/// A modifying call.
pub(super) trait Change {
    type Output;
    /// The data read to recognize the call's own effect.
    type Found;

    /// Returns what is sent to the server.
    fn ask(&self, path: &ZNodePath) -> Ask<Self::Output>;

    /// The start of the search for the landmark: the znode that the server changes.
    fn subject(&self, path: &ZNodePath) -> ZNodePath {
        path.clone()
    }

    /// Reads what the call would have left behind.
    fn find(&self, core: &Arc<Core>, path: &ZNodePath) -> ZkResult<Self::Found>;

    /// Decides whether attempts in that interval took effect. Its end was read after `found`.
    fn judge(&self, path: &ZNodePath, found: Self::Found, interval: Interval<'_>) -> Verdict<Self::Output>;
}

/// The verdict on unanswered attempts.
#[derive(Debug)]
pub(super) enum Verdict<T> {
    TookEffect(T),
    NoEffect,
    /// Hidden by later changes of other clients, or by a lack of READ.
    Unknown,
}

impl<T> Verdict<T> {
    /// No effect if there were fewer changes than a hidden effect takes.
    fn no_effect_below(least: u32, changes: Option<u32>) -> Verdict<T> {
        if changes.is_some_and(|changes| changes < least) { Verdict::NoEffect } else { Verdict::Unknown }
    }

    /// The verdict on a call that creates a child of `parent`, if the child does not exist.
    fn on_missing_child(parent: &ZNodePath, interval: Interval<'_>) -> Verdict<T> {
        // It was created and deleted. Above the parent, only the parent's own changes are counted.
        let least = if interval.now.path == *parent { 2 } else { 1 };
        Verdict::no_effect_below(least, interval.changes())
    }
}

/// The bytes that a call writes.
pub(super) struct Written {
    pub(super) data: Vec<u8>,
    /// They contain a mark, so that no other call writes the same.
    pub(super) is_marked: bool,
}

fn parent_of(path: &ZNodePath) -> ZNodePath {
    path.parent().unwrap_or_else(ZNodePath::root)
}

fn read(core: &Arc<Core>, path: &ZNodePath) -> ZkResult<Option<(Vec<u8>, Stat)>> {
    match core.ask(Call::get_data(path, false)) {
        Ok(found) => Ok(Some(found)),
        Err(ZkError::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The path of a new znode, and its metadata if the server has returned them.
type Created = (String, Option<Stat>);

/// Creates a znode.
pub(super) struct Create {
    pub(super) written: Written,
    pub(super) acl: Vec<Acl>,
    pub(super) mode: CreateMode,
}

impl Create {
    /// Returns whether a znode that was created since the first attempt is this call's. `None` if that is
    /// no longer known.
    fn is_own(&self, data: &[u8], stat: &Stat) -> Option<bool> {
        let has_own_data = data == self.written.data;
        if self.written.is_marked && has_own_data {
            return Some(true);
        }
        if !is_of_mode(stat, self.mode) {
            return Some(false);
        }
        // Data that were changed prove nothing about the data at creation.
        (stat.version == 0).then_some(has_own_data)
    }
}

impl Change for Create {
    type Output = Created;
    type Found = Option<(Vec<u8>, Stat)>;

    fn ask(&self, path: &ZNodePath) -> Ask<Created> {
        Call::create(path, &*self.written.data, &*self.acl, self.mode)
    }

    /// The parent: its history shows that a child was created and deleted.
    fn subject(&self, path: &ZNodePath) -> ZNodePath {
        parent_of(path)
    }

    fn find(&self, core: &Arc<Core>, path: &ZNodePath) -> ZkResult<Self::Found> {
        read(core, path)
    }

    fn judge(&self, path: &ZNodePath, found: Self::Found, interval: Interval<'_>) -> Verdict<Created> {
        let Some((data, stat)) = found else {
            return Verdict::on_missing_child(&parent_of(path), interval);
        };
        if interval.before.seen.is_some_and(|seen| stat.czxid <= seen.pzxid) {
            // The znode existed before and was in the way all the time.
            return Verdict::NoEffect;
        }
        match self.is_own(&data, &stat) {
            Some(true) => Verdict::TookEffect((path.to_string(), None)),
            // Our own znode was created and deleted, and then this one was created.
            Some(false) => Verdict::no_effect_below(3, interval.changes()),
            None => Verdict::Unknown,
        }
    }
}

/// A server without containers creates persistent znodes in their place.
fn is_of_mode(stat: &Stat, mode: CreateMode) -> bool {
    match mode {
        CreateMode::Ephemeral => stat.session().is_some(),
        CreateMode::Container => stat.session().is_none(),
        _ => stat.ephemeral_owner == 0,
    }
}

/// Creates a sequential znode whose name, up to the number, is unique to this call.
pub(super) struct CreateSequential {
    pub(super) data: Vec<u8>,
    pub(super) acl: Vec<Acl>,
    pub(super) mode: CreateMode,
}

impl Change for CreateSequential {
    type Output = Created;
    type Found = Option<ZNodePath>;

    fn ask(&self, path: &ZNodePath) -> Ask<Created> {
        Call::create(path, &*self.data, &*self.acl, self.mode)
    }

    fn subject(&self, path: &ZNodePath) -> ZNodePath {
        parent_of(path)
    }

    fn find(&self, core: &Arc<Core>, path: &ZNodePath) -> ZkResult<Self::Found> {
        let dir = parent_of(path);
        match core.ask(Call::get_children(&dir, false)) {
            Ok(children) => Ok(find_own(path.name(), &children).map(|name| dir.child(name))),
            Err(ZkError::NoNode) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn judge(&self, path: &ZNodePath, found: Self::Found, interval: Interval<'_>) -> Verdict<Created> {
        match found {
            Some(znode) => Verdict::TookEffect((znode.to_string(), None)),
            None => Verdict::on_missing_child(&parent_of(path), interval),
        }
    }
}

/// Deletes a znode.
pub(super) struct Delete {
    pub(super) version: Option<i32>,
}

impl Delete {
    /// Returns whether the server would have deleted the znode in its state then. An unreadable one counts
    /// as such, unless the call requires a version.
    fn applies_to(&self, seen: Option<Seen>) -> bool {
        let is_at_version = |version| seen.is_some_and(|seen| seen.version == version);
        self.version.is_none_or(is_at_version) && seen.is_none_or(|seen| seen.children == 0)
    }
}

impl Change for Delete {
    type Output = ();
    type Found = ();

    fn ask(&self, path: &ZNodePath) -> Ask<()> {
        Call::delete(path, self.version)
    }

    fn find(&self, _core: &Arc<Core>, _path: &ZNodePath) -> ZkResult<()> {
        Ok(())
    }

    fn judge(&self, path: &ZNodePath, _found: (), interval: Interval<'_>) -> Verdict<()> {
        let Interval { before, now } = interval;
        match (before.path == *path, now.path == *path) {
            // Deleted by this call, or by another client first: the server keeps no trace of that.
            (true, false) if self.applies_to(before.seen) => Verdict::TookEffect(()),
            (true, true) if interval.same().is_some() => Verdict::NoEffect,
            // It was created, perhaps before the landmark was read, and deleted.
            (false, false) => Verdict::no_effect_below(1, interval.changes()),
            _ => Verdict::Unknown,
        }
    }
}

/// Replaces a znode's data.
pub(super) struct SetData {
    pub(super) written: Written,
    /// Not -1, which the server takes for any version.
    pub(super) version: Option<i32>,
}

impl SetData {
    /// Returns whether data that equal the call's are its own: written since, and at the right version.
    fn is_own(&self, before: i32, now: i32) -> bool {
        now != before && self.version.is_none_or(|version| now == version.wrapping_add(1))
    }

    /// Returns whether the current data exclude that the call's data were there in between.
    fn excludes_effect(&self, before: i32, now: i32) -> bool {
        let Some(version) = self.version else { return now == before };
        // The number of writes in between.
        let writes = |seen: i32| seen.wrapping_sub(version);
        // The version after the expected one is not written yet, or is the current one, or was
        // written before.
        writes(now) <= 1 || writes(before) >= 1
    }
}

impl Change for SetData {
    type Output = Stat;
    type Found = Option<(Vec<u8>, Stat)>;

    fn ask(&self, path: &ZNodePath) -> Ask<Stat> {
        Call::set_data(path, &*self.written.data, self.version)
    }

    fn find(&self, core: &Arc<Core>, path: &ZNodePath) -> ZkResult<Self::Found> {
        read(core, path)
    }

    fn judge(&self, path: &ZNodePath, found: Self::Found, interval: Interval<'_>) -> Verdict<Stat> {
        let Some((data, stat)) = found else {
            // It was created, perhaps before the landmark was read, and deleted.
            return Verdict::no_effect_below(1, interval.changes());
        };
        let has_own_data = data == self.written.data;
        if self.written.is_marked && has_own_data {
            return Verdict::TookEffect(stat);
        }
        let before = interval.before;
        let was_there = before.seen.filter(|seen| before.path == *path && seen.czxid == stat.czxid);
        match was_there.map(|seen| seen.version) {
            Some(before) if has_own_data && self.is_own(before, stat.version) => Verdict::TookEffect(stat),
            Some(before) if self.excludes_effect(before, stat.version) => Verdict::NoEffect,
            _ => Verdict::Unknown,
        }
    }
}
