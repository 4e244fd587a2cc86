//! [`Tree`]: the znodes, and the server's rules for reading and changing them.
//!
//! The tree knows nothing of connections and watches: it returns its changes for [`Watches`](super::watches::Watches)
//! to handle. A failed request changes nothing and takes no zxid.

use std::collections::{BTreeMap, BTreeSet};

use super::access::Caller;
use super::requests::fnv_1a;
use crate::client::{Acl, CreateMode, Permissions, Stat};
use crate::error::{ZkError, ZkResult};

pub(super) const ROOT: &str = "/";

/// The sequence number that a server assigns after the last one, 2147483647.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SequenceEnd {
    /// The next number is -2147483648, as ZooKeeper's documentation states and releases up to 3.5 do. The
    /// default.
    #[default]
    Wraps,
    /// Every later child gets 2147483647, as in releases from 3.6 on if no two creations overlap. In those
    /// releases the counter never decreases.
    Sticks,
    /// Children whose creations overlap get 2147483647, -2147483648 and so on; the next child after them gets
    /// 2147483647 again. Releases from 3.6 on do this. In this simulation, the transaction ids determine
    /// which creations overlap.
    Mixes,
}

/// What a request changed.
#[derive(Debug)]
pub(super) enum Change {
    Created(String),
    /// The path and the ACL of the deleted znode.
    Deleted(String, Vec<Acl>),
    DataSet(String),
}

#[derive(Clone, Debug)]
pub(super) struct Tree {
    znodes: BTreeMap<String, ZNode>,
    pub(super) last_zxid: i64,
    /// The difference between the clock's time and the last zxid, in milliseconds.
    clock: i64,
    pub(super) sequence_end: SequenceEnd,
}

#[derive(Clone, Debug)]
struct ZNode {
    data: Vec<u8>,
    acl: Vec<Acl>,
    /// The session that owns the znode if it is ephemeral, otherwise 0.
    owner: i64,
    created: i64,
    created_at: i64,
    modified: i64,
    modified_at: i64,
    children_modified: i64,
    version: i32,
    acl_version: i32,
    /// The number of the next sequential child. It counts all children ever created, including those without
    /// a number.
    sequence: i32,
    /// The number of the next child while the last creation is in progress; overrides `sequence`.
    under_way: Option<i32>,
    children: BTreeSet<String>,
}

impl Tree {
    pub(super) fn new() -> Tree {
        let root = ZNode::new(&[], Acl::open_unsafe(), 0, (0, 0));
        Tree {
            znodes: BTreeMap::from([(ROOT.to_owned(), root)]),
            last_zxid: 0,
            clock: 0,
            sequence_end: SequenceEnd::default(),
        }
    }

    pub(super) fn create(
        &mut self,
        path: &str,
        data: &[u8],
        acl: &[Acl],
        mode: CreateMode,
        caller: &Caller<'_>,
    ) -> ZkResult<(String, Change)> {
        let sequential = matches!(mode, CreateMode::PersistentSequential | CreateMode::EphemeralSequential);
        let ephemeral = matches!(mode, CreateMode::Ephemeral | CreateMode::EphemeralSequential);
        // Checked in the order of Apache's `PrepRequestProcessor`, which checks the name after the parent.
        if !path.contains('/') {
            return Err(ZkError::BadArguments);
        }
        let acl = caller.resolve(acl)?;
        let Some((parent_path, name)) = split(path) else { return Err(ZkError::NodeExists) };
        let parent = self.znodes.get_mut(parent_path).ok_or(ZkError::NoNode)?;
        caller.check(&parent.acl, Permissions::CREATE)?;
        let number = parent.under_way.unwrap_or(parent.sequence);
        // A prefix may be empty, so a sequential path may end with a slash.
        check_path(&if sequential { format!("{path}0") } else { path.to_owned() })?;
        let name = if sequential { format!("{name}{number:010}") } else { name.to_owned() };
        if parent.children.contains(&name) {
            return Err(ZkError::NodeExists);
        }
        if parent.owner != 0 {
            return Err(ZkError::NoChildrenForEphemerals);
        }
        self.last_zxid += 1;
        let next = number.wrapping_add(1);
        (parent.sequence, parent.under_way) = match self.sequence_end {
            SequenceEnd::Wraps => (next, None),
            SequenceEnd::Sticks => (parent.sequence.max(next), None),
            SequenceEnd::Mixes => (parent.sequence.max(next), is_overlapped(self.last_zxid).then_some(next)),
        };
        parent.children_modified = self.last_zxid;
        let path = join(parent_path, &name);
        parent.children.insert(name);
        let owner = if ephemeral { caller.session } else { 0 };
        let now = (self.last_zxid, self.time());
        self.znodes.insert(path.clone(), ZNode::new(data, acl, owner, now));
        Ok((path.clone(), Change::Created(path)))
    }

    pub(super) fn delete(
        &mut self,
        path: &str,
        version: Option<i32>,
        caller: &Caller<'_>,
    ) -> ZkResult<Change> {
        check_path(path)?;
        let (parent, _) = split(path).ok_or(ZkError::BadArguments)?;
        caller.check(&self.znode(parent)?.acl, Permissions::DELETE)?;
        let znode = self.znode(path)?;
        znode.check_version(version)?;
        if !znode.children.is_empty() {
            return Err(ZkError::NotEmpty);
        }
        self.last_zxid += 1;
        Ok(self.remove(path))
    }

    pub(super) fn set_data(
        &mut self,
        path: &str,
        data: &[u8],
        version: Option<i32>,
        caller: &Caller<'_>,
    ) -> ZkResult<(Stat, Change)> {
        check_path(path)?;
        let znode = self.znodes.get_mut(path).ok_or(ZkError::NoNode)?;
        caller.check(&znode.acl, Permissions::WRITE)?;
        znode.check_version(version)?;
        self.last_zxid += 1;
        znode.data = data.to_vec();
        (znode.modified, znode.modified_at) = (self.last_zxid, self.last_zxid.saturating_add(self.clock));
        znode.version = znode.version.wrapping_add(1);
        Ok((znode.stat(), Change::DataSet(path.to_owned())))
    }

    /// Fails unless the znode exists and has this version.
    pub(super) fn check(&self, path: &str, version: Option<i32>, caller: &Caller<'_>) -> ZkResult<()> {
        check_path(path)?;
        let znode = self.znode(path)?;
        caller.check(&znode.acl, Permissions::READ)?;
        znode.check_version(version)
    }

    /// Sets the ACL. No watch fires, as on a real server.
    pub(super) fn set_acl(&mut self, path: &str, acl: &[Acl], caller: &Caller<'_>) -> ZkResult<()> {
        check_path(path)?;
        let acl = caller.resolve(acl)?;
        let znode = self.znodes.get_mut(path).ok_or(ZkError::NoNode)?;
        caller.check(&znode.acl, Permissions::ADMIN)?;
        self.last_zxid += 1;
        znode.acl_version = znode.acl_version.wrapping_add(1);
        znode.acl = acl;
        Ok(())
    }

    pub(super) fn stat(&self, path: &str) -> ZkResult<Option<Stat>> {
        check_path(path)?;
        Ok(self.znodes.get(path).map(ZNode::stat))
    }

    /// Returns the sorted names of the children.
    pub(super) fn children(&self, path: &str, caller: &Caller<'_>) -> ZkResult<Vec<String>> {
        check_path(path)?;
        let znode = self.znode(path)?;
        caller.check(&znode.acl, Permissions::READ)?;
        Ok(znode.children.iter().cloned().collect())
    }

    pub(super) fn data(&self, path: &str, caller: &Caller<'_>) -> ZkResult<(Vec<u8>, Stat)> {
        check_path(path)?;
        let znode = self.znode(path)?;
        caller.check(&znode.acl, Permissions::READ)?;
        Ok((znode.data.clone(), znode.stat()))
    }

    pub(super) fn acl(&self, path: &str) -> Option<&[Acl]> {
        self.znodes.get(path).map(|znode| &*znode.acl)
    }

    /// Deletes the session's znodes in one write, in an arbitrary order: Apache's servers keep
    /// them in a hash set.
    pub(super) fn end_session(&mut self, session: i64) -> Vec<Change> {
        let owned = |(path, znode): (&String, &ZNode)| (znode.owner == session).then(|| path.clone());
        let mut paths: Vec<String> = self.znodes.iter().filter_map(owned).collect();
        paths.sort_by_cached_key(|path| fnv_1a(path));
        self.last_zxid += 1;
        paths.iter().map(|path| self.remove(path)).collect()
    }

    pub(super) fn set_sequence(&mut self, path: &str, next: i32) {
        if let Some(znode) = self.znodes.get_mut(path) {
            znode.sequence = next;
            znode.under_way = None;
        }
    }

    /// Returns the time of the last transaction, in milliseconds since 1970.
    fn time(&self) -> i64 {
        self.last_zxid.saturating_add(self.clock)
    }

    pub(super) fn advance_clock(&mut self, millis: i64) {
        self.clock = self.clock.saturating_add(millis);
    }

    #[cfg(test)]
    pub(super) fn ephemerals(&self) -> Vec<(i64, String)> {
        let ephemerals = self.znodes.iter().filter(|(_, znode)| znode.owner != 0);
        ephemerals.map(|(path, znode)| (znode.owner, path.clone())).collect()
    }

    /// Shows a znode as it is in another tree, unless this tree has a znode at its path.
    pub(super) fn keep(&mut self, path: &str, other: &Tree) {
        let (Some(znode), Some((dir, name))) = (other.znodes.get(path), split(path)) else { return };
        if self.znodes.contains_key(path) {
            return;
        }
        self.znodes.insert(path.to_owned(), znode.clone());
        let children = BTreeSet::new();
        let Some(parent) = other.znodes.get(dir) else { return };
        let parent =
            self.znodes.entry(dir.to_owned()).or_insert_with(|| ZNode { children, ..parent.clone() });
        parent.children.insert(name.to_owned());
    }

    /// Removes a znode without a transaction.
    pub(super) fn hide(&mut self, path: &str) {
        self.znodes.remove(path);
        let dir = split(path).and_then(|(dir, name)| Some((self.znodes.get_mut(dir)?, name)));
        if let Some((dir, name)) = dir {
            dir.children.remove(name);
        }
    }

    fn znode(&self, path: &str) -> ZkResult<&ZNode> {
        self.znodes.get(path).ok_or(ZkError::NoNode)
    }

    /// Removes a znode. The caller has checked that it exists and has no children.
    fn remove(&mut self, path: &str) -> Change {
        let acl = self.znodes.remove(path).map(|znode| znode.acl).unwrap_or_default();
        if let Some((parent, name)) = split(path) {
            if let Some(parent) = self.znodes.get_mut(parent) {
                parent.children.remove(name);
                parent.children_modified = self.last_zxid;
            }
        }
        Change::Deleted(path.to_owned(), acl)
    }
}

impl ZNode {
    fn new(data: &[u8], acl: Vec<Acl>, owner: i64, (zxid, time): (i64, i64)) -> ZNode {
        ZNode {
            data: data.to_vec(),
            acl,
            owner,
            created: zxid,
            created_at: time,
            modified: zxid,
            modified_at: time,
            children_modified: zxid,
            version: 0,
            acl_version: 0,
            sequence: 0,
            under_way: None,
            children: BTreeSet::new(),
        }
    }

    fn check_version(&self, version: Option<i32>) -> ZkResult<()> {
        match version {
            // The client library sends -1 for "any version".
            None | Some(-1) => Ok(()),
            Some(version) if version == self.version => Ok(()),
            Some(_) => Err(ZkError::BadVersion),
        }
    }

    fn stat(&self) -> Stat {
        let num_children = i32::try_from(self.children.len()).unwrap_or(i32::MAX);
        Stat {
            czxid: self.created,
            mzxid: self.modified,
            ctime: self.created_at,
            mtime: self.modified_at,
            version: self.version,
            // The server stores the number of creations but reports the number of all changes.
            cversion: self.sequence.wrapping_mul(2).wrapping_sub(num_children),
            aversion: self.acl_version,
            ephemeral_owner: self.owner,
            data_length: i32::try_from(self.data.len()).unwrap_or(i32::MAX),
            num_children,
            pzxid: self.children_modified,
        }
    }
}

/// Returns whether a creation is still in progress when the next one in its directory starts. This is true of
/// about half of the zxids, without a pattern.
fn is_overlapped(zxid: i64) -> bool {
    const MIX: i64 = 0x1e37_79b9_7f4a_7c15;
    let mixed = zxid.wrapping_mul(MIX);
    (mixed ^ (mixed >> 32)).wrapping_mul(MIX) < 0
}

/// Returns the parent's path and the last name, or `None` for the root.
pub(super) fn split(path: &str) -> Option<(&str, &str)> {
    if path == ROOT {
        return None;
    }
    let (parent, name) = path.rsplit_once('/')?;
    Some((if parent.is_empty() { ROOT } else { parent }, name))
}

pub(super) fn join(parent: &str, name: &str) -> String {
    if parent == ROOT { format!("/{name}") } else { format!("{parent}/{name}") }
}

fn check_path(path: &str) -> ZkResult<()> {
    let bad_name = |name: &str| matches!(name, "" | "." | "..") || name.chars().any(char::is_control);
    match path.strip_prefix('/') {
        Some("") => Ok(()),
        Some(names) if !names.split('/').any(bad_name) => Ok(()),
        _ => Err(ZkError::BadArguments),
    }
}
