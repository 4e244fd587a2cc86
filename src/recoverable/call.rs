//! [`Change`]: a modifying call that can determine whether a lost attempt took effect.
//!
//! A lost attempt may take effect long after the next one was answered, because a paused server passes on what it has
//! received as soon as it resumes. So a lost attempt without a visible effect may still take effect. An attempt is
//! repeated only if the servers accept at most one of the two attempts, no matter when each of them arrives. A verdict
//! must hold whatever other clients have done in the meantime. The exceptions are listed in the documentation of
//! [`RecoverableZooKeeper`](super::RecoverableZooKeeper), under "What it cannot know".

use std::sync::Arc;

use crate::client::{Acl, Ask, Call, CreateMode, Stat};
use crate::error::{ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::recipe::queue::find_own;
use crate::session::Core;

/// A modifying call.
pub(super) trait Change {
    type Output;
    /// What the call reads after a lost attempt.
    type Found;

    /// Returns the call to send, given the state `before` in which the znode was last seen.
    fn ask(&self, path: &ZNodePath, before: Seen) -> Ask<Self::Output>;

    /// Returns whether the caller accepts any version. Each attempt then requires the version that was read, if one
    /// could be read, and may be made again at a later version.
    fn takes_any_version(&self) -> bool {
        false
    }

    /// Looks for the effect of the call.
    fn find(&self, core: &Arc<Core>, path: &ZNodePath) -> ZkResult<Self::Found>;

    /// Judges the unanswered attempts that were made since the znode was in the state `before`.
    fn judge(&self, path: &ZNodePath, found: Self::Found, before: Seen) -> Verdict<Self::Output>;
}

/// A verdict on unanswered attempts.
#[derive(Debug)]
pub(super) enum Verdict<T> {
    TookEffect(T),
    /// No attempt took effect, and none ever will, because the znode is already past the version that they require.
    Superseded(Seen),
    /// No attempt has taken effect so far. One more may be made, because at most one of them will take effect.
    Repeatable(Seen),
    /// An attempt may have taken effect, or may still do so.
    Unknown,
}

/// The state of a znode.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    Missing,
    /// READ is not granted. Servers since 3.8.4 and 3.9.2 then show only that the znode exists.
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
    /// Whether the bytes contain a mark, which makes them unique to this call.
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

/// Creates a znode. Never repeated, because the znode of the first attempt may be deleted before the second attempt
/// arrives.
pub(super) struct Create {
    pub(super) written: Payload,
    pub(super) acl: Vec<Acl>,
    pub(super) mode: CreateMode,
}

impl Create {
    /// Returns whether the data and the mode show that this call created the znode.
    fn is_own(&self, data: &[u8], stat: &Stat, before: Seen) -> bool {
        if data != self.written.data {
            return false;
        }
        let is_new = match before {
            Seen::Missing => true,
            Seen::Present(before) => before.czxid != stat.czxid,
            Seen::Unreadable => false,
        };
        // Without a mark, only unmodified data shows what the znode was created with.
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
        let is_of_another =
            |stat: &Stat| core.client().identity().session_id.is_some_and(|own| stat.session() != Some(own));
        let found = read(core, path)?;
        Ok(found.filter(|(_, stat)| self.mode != CreateMode::Ephemeral || !is_of_another(stat)))
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

/// Returns whether a znode may have been created in this mode. Most servers do not reveal that a znode is a container,
/// so a container may look like a persistent znode.
fn is_of_mode(stat: &Stat, mode: CreateMode) -> bool {
    match mode {
        CreateMode::Ephemeral => stat.session().is_some(),
        CreateMode::Container => stat.session().is_none(),
        _ => stat.ephemeral_owner == 0,
    }
}

/// Creates a sequential znode whose name, without the number, is unique to this call. Never repeated, because each
/// attempt would create another znode.
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

/// Deletes a znode. Never repeated, because the first attempt might arrive late and delete a znode that was created
/// after the second attempt.
pub(super) struct Delete {
    pub(super) version: Option<i32>,
}

impl Delete {
    /// Returns whether the server would have deleted the znode in this state. For an unreadable znode, the answer is
    /// yes unless the call requires a version.
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
            // Another client may have deleted the znode instead, but the server keeps no trace of that.
            Seen::Missing if self.applies_to(before) => Verdict::TookEffect(()),
            _ => Verdict::Unknown,
        }
    }
}

/// Replaces a znode's data. Each attempt requires a version, unless the caller accepts any version and the current one
/// cannot be read. At most one of the attempts at the same version takes effect.
pub(super) struct SetData {
    pub(super) written: Payload,
    /// The version that the caller requires. Never -1, because to the server -1 means "any version".
    pub(super) version: Option<i32>,
}

impl SetData {
    /// Returns the version that an attempt requires if the znode is in this state. Returns `None` only if the state
    /// cannot be read and the caller accepts any version.
    fn version_at(&self, before: Seen) -> Option<i32> {
        self.version.or(match before {
            // Either the server that shows the znode as missing lags behind, or the znode will be created before the
            // write arrives, or the write will be refused.
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
            // The version had already been replaced before the call.
            _ if writes_since(before.version) > 0 => Verdict::Superseded(now),
            0 => Verdict::Repeatable(now),
            1 if has_own_data => Verdict::TookEffect(stat),
            1 => Verdict::Superseded(now),
            _ => Verdict::Unknown,
        }
    }
}
