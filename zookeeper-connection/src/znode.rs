//! The kinds of znodes and their metadata: [`CreateMode`] and [`Stat`].

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kind of a new znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CreateMode {
    /// Stays until it is deleted.
    Persistent,
    /// Deleted with the session that created it.
    Ephemeral,
    /// Persistent, with a sequence number appended to its name.
    PersistentSequential,
    /// Ephemeral, with a sequence number appended to its name.
    EphemeralSequential,
    /// Deleted by the server some time after its last child. Servers have supported it since version 3.5.3.
    Container,
}

impl CreateMode {
    /// Returns whether the server appends a sequence number to the name.
    #[must_use]
    pub fn is_sequential(self) -> bool {
        matches!(self, CreateMode::PersistentSequential | CreateMode::EphemeralSequential)
    }
}

/// The metadata of a znode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stat {
    /// The transaction that created the znode.
    pub czxid: i64,
    /// The transaction that last changed the data.
    pub mzxid: i64,
    /// The creation time of the znode, in milliseconds since 1970.
    pub ctime: i64,
    /// The time of the last change to the data, in milliseconds since 1970.
    pub mtime: i64,
    /// The number of changes to the data.
    pub version: i32,
    /// The number of creations and deletions of children.
    pub cversion: i32,
    /// The number of changes to the ACL.
    pub aversion: i32,
    /// The session that created an ephemeral znode. Zero for most other znodes, but see
    /// [`is_container`](Stat::is_container).
    pub ephemeral_owner: i64,
    /// The length of the data in bytes.
    pub data_length: i32,
    /// The number of children.
    pub num_children: i32,
    /// The transaction that last created or deleted a child.
    pub pzxid: i64,
}

impl Stat {
    /// The `ephemeral_owner` with which servers mark a container. No session has this id.
    const CONTAINER: i64 = i64::MIN;

    /// Returns the session of an ephemeral znode, or `None` for other znodes.
    #[must_use]
    pub fn session(&self) -> Option<i64> {
        Some(self.ephemeral_owner).filter(|owner| !matches!(*owner, 0 | Stat::CONTAINER))
    }

    /// Returns whether the znode is known to be a container. Most servers do not reveal this.
    #[must_use]
    pub fn is_container(&self) -> bool {
        self.ephemeral_owner == Stat::CONTAINER
    }

    /// Returns when the znode was created, by the server's clock.
    ///
    /// A time that is out of range becomes 1970.
    #[must_use]
    pub fn created(&self) -> SystemTime {
        time(self.ctime)
    }

    /// Returns when the data was last written, by the server's clock.
    ///
    /// A time that is out of range becomes 1970.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        time(self.mtime)
    }
}

fn time(millis: i64) -> SystemTime {
    let since_epoch = Duration::from_millis(u64::try_from(millis).unwrap_or_default());
    UNIX_EPOCH.checked_add(since_epoch).unwrap_or(UNIX_EPOCH)
}
