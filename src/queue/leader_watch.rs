//! [`LeaderWatch`]: the first request in a queue, kept up to date.

use std::sync::Arc;

use crossbeam_channel::Receiver;

use super::lock_info::{Found, LockInfo};
use crate::client::Call;
use crate::client::Names;
use crate::error::{Result, ZkError};
use crate::recipe::is_directory;
use crate::recipe::order::first;
use crate::recipe::path::ZNodePath;
use crate::session::Session;
use crate::tracking::{Look, Subject, Tracking};
use crate::wait::Wait;

/// Keeps track of the first request in a lock directory.
///
/// In an election, the first request is the leader. Use the watch to find out who leads.
/// [`LockDirectory::watch_leader`](crate::queue::LockDirectory::watch_leader) starts the watch, and dropping
/// the watch ends it. To find out whether this process *is* the leader, use
/// [`is_owner`](crate::WriteLock::is_owner) instead.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::Session;
/// use zookeeper_recipes_lock::queue::{LockDirectory, LockInfo};
///
/// # fn send_requests_to(address: Option<&str>) {}
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let watch = LockDirectory::new(&session, "/election")?.watch_leader(Duration::from_secs(30))?;
/// loop {
///     let leader = watch.leader()?;
///     // A leader that was asked to step down still leads, but its data has been replaced.
///     if !leader.as_ref().is_some_and(LockInfo::is_revocation_requested) {
///         send_requests_to(leader.as_ref().map(|leader| leader.data_lossy()).as_deref());
///     }
///     if watch.changes().recv().is_err() {
///         break; // the session has ended
///     }
/// }
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
///
/// The result is as recent as the connected server's last answer: usually a moment old, and during an outage as old as
/// the outage. The watch needs no thread. While there is a leader whose znode this client may read, it watches only
/// that znode, so other requests that come and go cost nothing, unless a directory that this client may not read has
/// the name of an earlier request. It continues on the next session when its session is
/// [replaced](crate::SessionBuilder::replace_lost_sessions).
#[must_use = "the watch ends at once when it is not kept"]
#[derive(Debug)]
pub struct LeaderWatch {
    tracking: Tracking<Leader>,
}

impl LeaderWatch {
    pub(super) fn start(session: &Session, dir: &ZNodePath, wait: &Wait) -> Result<LeaderWatch> {
        let tracking = Tracking::start(session, Leader { dir: dir.clone() }, wait)?;
        Ok(LeaderWatch { tracking })
    }

    /// Returns the first request in the queue, or `None` if the queue is empty.
    ///
    /// Does no I/O and does not block. A [request for revocation](LockInfo::is_revocation_requested) replaces the
    /// leader's data. So if you read an address from the data, keep the old address for as long as the
    /// [path](LockInfo::path) is the same.
    ///
    /// # Errors
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): READ is not granted on the directory. The watch tries
    ///   again every second.
    /// - [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed).
    pub fn leader(&self) -> Result<Option<LockInfo>> {
        self.tracking.current()
    }

    /// Returns a channel that receives a message when the [`leader`](LeaderWatch::leader) or its data changes.
    ///
    /// Use it in a [`select!`](crossbeam_channel::select). The channel holds at most one message, which stands for all
    /// changes since it was sent. It is disconnected when the session has ended, but never in a forked child: there, nothing
    /// arrives.
    #[must_use]
    pub fn changes(&self) -> &Receiver<()> {
        self.tracking.changes()
    }
}

/// What a [`LeaderWatch`] follows: the first request in `dir`.
#[derive(Debug)]
struct Leader {
    dir: ZNodePath,
}

impl Subject for Leader {
    type Value = Option<LockInfo>;

    fn path(&self) -> &ZNodePath {
        &self.dir
    }

    fn look(self: &Arc<Self>) -> Look<Option<LockInfo>> {
        Arc::clone(self).look_among(Vec::new())
    }
}

impl Leader {
    /// Looks for the first request among the children that are not known to be directories.
    fn look_among(self: Arc<Self>, directories: Vec<ZNodePath>) -> Look<Option<LockInfo>> {
        let list = Call::get_children(&self.dir, false);
        Look::ask(list, move |children| match children {
            Ok(children) => match self.first(&children, &directories) {
                Some(first) => self.look_at(first, directories),
                None => self.look_at_directory(None, directories),
            },
            Err(ZkError::NoNode) => Look::absence(&self.dir, None),
            Err(error) => Look::Failed(error),
        })
    }

    fn first(&self, children: &Names, directories: &[ZNodePath]) -> Option<ZNodePath> {
        let is_directory = |child: &str| directories.iter().any(|directory| directory.name() == child);
        let requests = children.iter().filter(|child| !is_directory(child));
        first(requests).map(|name| self.dir.child(name))
    }

    fn look_at(self: Arc<Self>, first: ZNodePath, mut directories: Vec<ZNodePath>) -> Look<Option<LockInfo>> {
        let path = first.clone();
        Look::data(&path, move |data| match data {
            Ok((_, stat)) if is_directory(&stat) => {
                directories.push(first);
                self.look_among(directories)
            }
            Ok((data, stat)) => Look::Seen(Some(LockInfo::new(&first, data, &stat))),
            Err(ZkError::NoNode) => Look::ChangedMeanwhile,
            // Servers since 3.8.4 send no event when a znode without READ permission is deleted.
            Err(ZkError::NoAuth) => self.look_at_directory(Some(first), directories),
            Err(error) => Look::Failed(error),
        })
    }

    /// Watches the children of the directory, because there is no leader or its znode cannot be watched.
    fn look_at_directory(
        self: Arc<Self>,
        first: Option<ZNodePath>,
        directories: Vec<ZNodePath>,
    ) -> Look<Option<LockInfo>> {
        let dir = self.dir.clone();
        Look::children(&dir, move |children| match children {
            Ok(children) if self.first(&children, &directories) == first => match first {
                Some(first) => self.look_without_data(first, directories),
                None => Look::Seen(None),
            },
            Ok(_) | Err(ZkError::NoNode) => Look::ChangedMeanwhile,
            Err(error) => Look::Failed(error),
        })
    }

    fn look_without_data(
        self: Arc<Self>,
        first: ZNodePath,
        mut directories: Vec<ZNodePath>,
    ) -> Look<Option<LockInfo>> {
        Look::ask(Call::exists(&first, false), move |found| match LockInfo::without_data(&first, found) {
            Ok(Found::Request(leader)) => Look::Seen(Some(leader)),
            Ok(Found::Directory) => {
                directories.push(first);
                self.look_among(directories)
            }
            Ok(Found::Nothing) => Look::ChangedMeanwhile,
            Err(error) => Look::Failed(error),
        })
    }
}
