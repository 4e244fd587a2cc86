//! [`Change`]: the modifying calls, and how each determines whether a lost attempt took effect.
//!
//! A lost attempt may take effect long after the next one was answered: a server that was paused
//! passes on what it has received as soon as it takes the session up again. So "not yet" is no verdict.
//! An attempt is repeated only if the server accepts one of the two at most, whenever the other one
//! comes, and a verdict must hold whatever other clients have done in between.

use std::sync::Arc;

use crate::client::{Acl, Ask, Call, CreateMode, Stat};
use crate::error::{ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::recipe::queue::find_own;
use crate::session::Core;

/// A modifying call.
pub(super) trait Change {
    type Output;
    /// What the call would have left behind.
    type Found;

    /// Returns what is sent to the server when the znode is in this state.
    fn ask(&self, path: &ZNodePath, before: Seen) -> Ask<Self::Output>;

    /// Returns whether an attempt is made at the version that was read, and again at a later one.
    fn takes_any_version(&self) -> bool {
        false
    }

    /// Reads what the call would have left behind.
    fn find(&self, core: &Arc<Core>, path: &ZNodePath) -> ZkResult<Self::Found>;

    /// Decides on the attempts that were made when the znode was in that state.
    fn judge(&self, path: &ZNodePath, found: Self::Found, before: Seen) -> Verdict<Self::Output>;
}

/// The verdict on unanswered attempts.
#[derive(Debug)]
pub(super) enum Verdict<T> {
    TookEffect(T),
    /// None took effect, and none ever will: the znode has passed the version that they require.
    Superseded(Seen),
    /// None took effect so far, and one more may be made: one of them at most will.
    Repeatable(Seen),
    /// An attempt may have taken effect, or may still do so.
    Unknown,
}

/// The state of a znode.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    Missing,
    /// Servers since 3.8.4 show nothing of a znode without READ.
    Unreadable,
    Present(Stat),
}

impl Seen {
    pub(super) fn find(core: &Arc<Core>, path: &ZNodePath) -> ZkResult<Seen> {
        match core.ask(Call::exists(path, false)) {
            Ok(Some(stat)) => Ok(Seen::Present(stat)),
            Ok(None) => Ok(Seen::Missing),
            Err(ZkError::NoAuth) => Ok(Seen::Unreadable),
            Err(error) => Err(error),
        }
    }
}

/// The bytes that a call writes.
pub(super) struct Payload {
    pub(super) data: Vec<u8>,
    /// They contain a mark, so that no other call writes the same.
    pub(super) is_marked: bool,
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

/// Creates a znode. Never repeated: the znode of the first attempt may be deleted before the second one
/// comes.
pub(super) struct Create {
    pub(super) written: Payload,
    pub(super) acl: Vec<Acl>,
    pub(super) mode: CreateMode,
}

impl Create {
    /// Returns whether a znode is this call's, as far as its data and mode show.
    fn is_own(&self, data: &[u8], stat: &Stat, before: Seen) -> bool {
        if data != self.written.data {
            return false;
        }
        let is_new = match before {
            Seen::Missing => true,
            Seen::Present(before) => before.czxid != stat.czxid,
            Seen::Unreadable => false,
        };
        // Data that were changed prove nothing about the data at creation.
        self.written.is_marked || (is_new && stat.version == 0 && is_of_mode(stat, self.mode))
    }
}

impl Change for Create {
    type Output = Created;
    type Found = Option<(Vec<u8>, Stat)>;

    fn ask(&self, path: &ZNodePath, _before: Seen) -> Ask<Created> {
        Call::create(path, &*self.written.data, &*self.acl, self.mode)
    }

    fn find(&self, core: &Arc<Core>, path: &ZNodePath) -> ZkResult<Self::Found> {
        read(core, path)
    }

    fn judge(&self, path: &ZNodePath, found: Self::Found, before: Seen) -> Verdict<Created> {
        match found {
            Some((data, stat)) if self.is_own(&data, &stat, before) => {
                Verdict::TookEffect((path.to_string(), None))
            }
            _ => Verdict::Unknown,
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

/// Creates a sequential znode whose name, up to the number, is unique to this call. Never repeated: each
/// attempt would make a znode.
pub(super) struct CreateSequential {
    pub(super) data: Vec<u8>,
    pub(super) acl: Vec<Acl>,
    pub(super) mode: CreateMode,
}

impl Change for CreateSequential {
    type Output = Created;
    type Found = Option<ZNodePath>;

    fn ask(&self, path: &ZNodePath, _before: Seen) -> Ask<Created> {
        Call::create(path, &*self.data, &*self.acl, self.mode)
    }

    fn find(&self, core: &Arc<Core>, path: &ZNodePath) -> ZkResult<Self::Found> {
        let dir = path.parent().unwrap_or_else(ZNodePath::root);
        match core.ask(Call::get_children(&dir, false)) {
            Ok(children) => Ok(find_own(path.name(), &children).map(|name| dir.child(name))),
            Err(ZkError::NoNode) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn judge(&self, _path: &ZNodePath, found: Self::Found, _before: Seen) -> Verdict<Created> {
        found.map_or(Verdict::Unknown, |znode| Verdict::TookEffect((znode.to_string(), None)))
    }
}

/// Deletes a znode. Never repeated: the first attempt may find a znode that was created after the second
/// one.
pub(super) struct Delete {
    pub(super) version: Option<i32>,
}

impl Delete {
    /// Returns whether the server would have deleted the znode in that state. An unreadable one counts
    /// as such, unless the call requires a version.
    fn applies_to(&self, seen: Seen) -> bool {
        match seen {
            Seen::Missing => false,
            Seen::Unreadable => self.version.is_none(),
            Seen::Present(stat) => {
                stat.num_children == 0 && self.version.is_none_or(|version| stat.version == version)
            }
        }
    }
}

impl Change for Delete {
    type Output = ();
    type Found = Seen;

    fn ask(&self, path: &ZNodePath, _before: Seen) -> Ask<()> {
        Call::delete(path, self.version)
    }

    fn find(&self, core: &Arc<Core>, path: &ZNodePath) -> ZkResult<Seen> {
        Seen::find(core, path)
    }

    fn judge(&self, _path: &ZNodePath, found: Seen, before: Seen) -> Verdict<()> {
        match found {
            // Deleted by this call, or by another client: the server keeps no trace of that.
            Seen::Missing if self.applies_to(before) => Verdict::TookEffect(()),
            _ => Verdict::Unknown,
        }
    }
}

/// Replaces a znode's data. Each attempt requires a version, so of any number at the same version one
/// takes effect at most.
pub(super) struct SetData {
    pub(super) written: Payload,
    /// The version that the caller requires. Not -1, which the server takes for any version.
    pub(super) version: Option<i32>,
}

impl SetData {
    /// The version that an attempt requires when the znode is in that state. `None` only if that cannot be
    /// read, and the caller takes any.
    fn version_at(&self, before: Seen) -> Option<i32> {
        self.version.or(match before {
            // The server shows an old state, or answers that the znode is missing.
            Seen::Missing => Some(0),
            Seen::Unreadable => None,
            Seen::Present(stat) => Some(stat.version),
        })
    }
}

impl Change for SetData {
    type Output = Stat;
    type Found = Option<(Vec<u8>, Stat)>;

    fn ask(&self, path: &ZNodePath, before: Seen) -> Ask<Stat> {
        Call::set_data(path, &*self.written.data, self.version_at(before))
    }

    fn takes_any_version(&self) -> bool {
        self.version.is_none()
    }

    fn find(&self, core: &Arc<Core>, path: &ZNodePath) -> ZkResult<Self::Found> {
        read(core, path)
    }

    fn judge(&self, _path: &ZNodePath, found: Self::Found, before: Seen) -> Verdict<Stat> {
        let Some((data, stat)) = found else { return Verdict::Unknown };
        let has_own_data = data == self.written.data;
        if self.written.is_marked && has_own_data {
            return Verdict::TookEffect(stat);
        }
        let (Some(version), Seen::Present(before)) = (self.version_at(before), before) else {
            return Verdict::Unknown;
        };
        if before.czxid != stat.czxid {
            return Verdict::Unknown;
        }
        let now = Seen::Present(stat);
        let writes_since = |seen: i32| seen.wrapping_sub(version);
        match writes_since(stat.version) {
            // The version was replaced before the call.
            _ if writes_since(before.version) > 0 => Verdict::Superseded(now),
            0 => Verdict::Repeatable(now),
            1 if has_own_data => Verdict::TookEffect(stat),
            1 => Verdict::Superseded(now),
            _ => Verdict::Unknown,
        }
    }
}
