//! [`LeaderWatch`]: the first request in a queue, kept up to date.

use crossbeam_channel::Receiver;

use super::lock_info::LockInfo;
use super::reading::read_without_data;
use crate::client::Call;
use crate::error::{Result, ZkError, ZkResult};
use crate::recipe::names::Names;
use crate::recipe::order::in_order;
use crate::recipe::path::ZNodePath;
use crate::session::Session;
use crate::tracking::{Fetched, Subject, Tracking, Watching};
use crate::wait::Wait;

/// Keeps track of the first request in a lock directory: the leader, in an election.
///
/// It costs no thread. While there is a leader, only its znode is watched, so requests that join
/// and leave behind it cost nothing. Results are as recent as the connected server's last answer:
/// usually a moment old, and during an outage as old as the outage. Use it to find the leader. To
/// find out whether this process *is* the leader, ask
/// [`is_owner`](crate::ListeningLock::is_owner). It survives the
/// [replacement](crate::SessionBuilder::replace_lost_sessions) of its session.
///
/// `Send` and `Sync`; dropping it ends the watching.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{LockDirectory, LockInfo, Session};
///
/// # fn send_requests_to(address: Option<&str>) {}
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let watch = LockDirectory::new(&session, "/election")?.watch_leader(Duration::from_secs(30))?;
/// loop {
///     let leader = watch.leader()?;
///     // One that is asked to step down leads until it does.
///     if !leader.as_ref().is_some_and(LockInfo::is_revocation_requested) {
///         send_requests_to(leader.as_ref().map(|leader| leader.data_lossy()).as_deref());
///     }
///     if watch.changes().recv().is_err() {
///         break; // the session has ended
///     }
/// }
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
#[derive(Debug)]
pub struct LeaderWatch {
    tracking: Tracking<Leader>,
}

impl LeaderWatch {
    pub(super) fn start(session: &Session, dir: &ZNodePath, wait: &Wait) -> Result<LeaderWatch> {
        let tracking = Tracking::start(session, Leader { dir: dir.clone() }, wait)?;
        Ok(LeaderWatch { tracking })
    }

    /// Returns the request that was first in the queue at the last look; `None` if the queue was
    /// empty. Does no I/O and does not block.
    ///
    /// A [request for revocation](LockInfo::is_revocation_requested) replaces its data: who finds an
    /// address there keeps the former one as long as the [path](LockInfo::path) is the same.
    ///
    /// # Errors
    /// [`AccessDenied`](crate::LockError::AccessDenied) while READ is not granted on the directory
    /// (it looks again every second), [`SessionLost`](crate::LockError::SessionLost),
    /// [`Closed`](crate::LockError::Closed).
    pub fn leader(&self) -> Result<Option<LockInfo>> {
        self.tracking.current()
    }

    /// Returns a channel that receives a message when the [`leader`](LeaderWatch::leader) or its
    /// data has changed; for use in [`select!`](crossbeam_channel::select).
    ///
    /// It has room for one message, which covers all changes since it was sent. It is disconnected
    /// when the session has ended.
    #[must_use]
    pub fn changes(&self) -> &Receiver<()> {
        self.tracking.changes()
    }
}

/// The subject of a [`LeaderWatch`].
#[derive(Debug)]
struct Leader {
    dir: ZNodePath,
}

impl Subject for Leader {
    type Value = Option<LockInfo>;

    fn path(&self) -> &ZNodePath {
        &self.dir
    }

    fn look(&self, watching: &Watching) -> ZkResult<Fetched<Option<LockInfo>>> {
        let listed = watching.core().ask(Call::get_children(&self.dir, false));
        let first = match listed {
            Ok(children) => self.first(&children),
            Err(ZkError::NoNode) => return watching.absence(&self.dir, None),
            Err(error) => return Err(error),
        };
        let Some(first) = first else { return self.look_at_directory(watching, None) };
        match watching.data(&first) {
            Ok((data, stat)) => Ok(Fetched::Seen(Some(LockInfo::new(&first, data, &stat)))),
            Err(ZkError::NoNode) => Ok(Fetched::ChangedMeanwhile),
            // Servers since 3.8.4 send no event when a znode without READ permission is deleted.
            Err(ZkError::NoAuth) => self.look_at_directory(watching, Some(first)),
            Err(error) => Err(error),
        }
    }
}

impl Leader {
    fn first(&self, children: &Names) -> Option<ZNodePath> {
        in_order(children).first().map(|name| self.dir.child(name))
    }

    /// Watches the children of the directory, for when there is no leader, or none that can be
    /// watched.
    fn look_at_directory(
        &self,
        watching: &Watching,
        first: Option<ZNodePath>,
    ) -> ZkResult<Fetched<Option<LockInfo>>> {
        match watching.children(&self.dir) {
            Ok(children) if self.first(&children) == first => {}
            Ok(_) | Err(ZkError::NoNode) => return Ok(Fetched::ChangedMeanwhile),
            Err(error) => return Err(error),
        }
        let Some(first) = first else { return Ok(Fetched::Seen(None)) };
        Ok(match read_without_data(watching.core(), &first)? {
            Some(leader) => Fetched::Seen(Some(leader)),
            None => Fetched::ChangedMeanwhile,
        })
    }
}
