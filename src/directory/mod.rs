//! [`LockDirectory`]: a lock looked at from outside: who holds it, who waits, and what is left over.
//!
//! Origin: `visitLocks`, `MetadataHandler`, `reapExpiredLocks` and `reapAllLocks` of HBase's `InterProcessLock`;
//! `contenders()` of kazoo.

mod leader_watch;
mod lock_info;
mod queue_watch;
mod reading;
mod reaping;
#[cfg(test)]
mod tests;
mod utc;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use self::leader_watch::LeaderWatch;
pub use self::lock_info::LockInfo;
pub use self::queue_watch::QueueWatch;
use crate::client::{Stat, ZkError, ZkResult};
use crate::error::{LockError, Operation, Result};
use crate::logging;
use crate::recipe::kind::LockKind;
use crate::recipe::order::{count_owners, in_order};
use crate::recipe::path::ZNodePath;
use crate::session::{Core, Session};
use crate::wait::Wait;

/// The directory of a lock or an election, for those who look at it and those who clear it up.
///
/// Every child that ends in a sequence number counts as a request, whichever library made it, as it does for the locks of
/// this crate; other children are passed over. A directory that does not exist is one where nobody waits.
///
/// What is returned is what the connected server knew, which may be a moment behind the others, and may have changed
/// since. Calls are made once: after a [`ConnectionLoss`](LockError::ConnectionLoss) calling again is right
/// ([`ProtocolSupport::retry_operation`](crate::ProtocolSupport::retry_operation) does so). They block until the server has
/// answered, at the longest until the session has ended.
///
/// `Send` and `Sync`, and cheap to clone.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{LockDirectory, Session};
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
/// for request in LockDirectory::new(&session, "/locks/report")?.contenders()? {
///     println!("{request}");
/// }
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
#[derive(Clone)]
pub struct LockDirectory {
    session: Session,
    dir: ZNodePath,
    reaps_live_sessions: bool,
}

impl LockDirectory {
    /// Names a directory. Sends nothing, and creates nothing.
    ///
    /// # Errors
    /// The only way to fail is [`InvalidPath`](LockError::InvalidPath).
    pub fn new(session: &Session, dir: &str) -> Result<LockDirectory> {
        Ok(LockDirectory {
            session: session.clone(),
            dir: ZNodePath::parse(dir)?,
            reaps_live_sessions: false,
        })
    }

    // ---- looking

    /// Returns who holds the lock and who waits for it, in the order of the queue. The [owners](LockInfo::owners) come
    /// first.
    ///
    /// One call to list them and one for each, several at a time. A request that goes meanwhile is left out; one that may
    /// not be read has its name alone.
    ///
    /// # Errors
    /// [`AccessDenied`](LockError::AccessDenied): READ is not granted on the directory;
    /// [`ConnectionLoss`](LockError::ConnectionLoss); [`SessionLost`](LockError::SessionLost);
    /// [`Closed`](LockError::Closed).
    pub fn contenders(&self) -> Result<Vec<LockInfo>> {
        let core = self.session.core();
        let requests = self.list(&core)?;
        reading::read_all(&core, &self.dir, requests)
    }

    /// Returns who holds the lock: the first request in the queue, which may be one of several readers. `None` when nobody
    /// does.
    ///
    /// An owner in this process knows better, by [`is_owner`](crate::WriteLock::is_owner).
    ///
    /// # Errors
    /// As [`contenders`](LockDirectory::contenders).
    pub fn current_owner(&self) -> Result<Option<LockInfo>> {
        let core = self.session.core();
        let requests = self.list(&core)?;
        let read = core.call(Operation::READ, &self.dir, move |core| first_of(core, &requests))?;
        read.map_err(|error| LockError::client(Operation::READ, &self.dir, error))
    }

    /// Returns all who hold the lock: one, several readers, or nobody.
    ///
    /// # Errors
    /// As [`contenders`](LockDirectory::contenders).
    pub fn current_owners(&self) -> Result<Vec<LockInfo>> {
        let core = self.session.core();
        let mut requests = self.list(&core)?;
        loop {
            let kinds = requests.iter().filter_map(|request| LockKind::of(request.name()));
            let behind = requests.split_off(count_owners(kinds));
            let owners = reading::read_all(&core, &self.dir, requests)?;
            // Those who are gone meanwhile have made room for the next.
            if !owners.is_empty() || behind.is_empty() {
                return Ok(owners);
            }
            requests = behind;
        }
    }

    /// Watches who is first in the queue: in an election, who leads.
    ///
    /// Blocks until the server has answered, through an outage if need be. The watch survives the
    /// loss of a session that [is replaced](crate::SessionBuilder::replace_lost_sessions), but not
    /// [closing](Session::close).
    ///
    /// # Errors
    /// [`AccessDenied`](LockError::AccessDenied): READ is not granted on the directory;
    /// [`SessionLost`](LockError::SessionLost); [`Closed`](LockError::Closed).
    pub fn watch_leader(&self) -> Result<LeaderWatch> {
        self.watch_leader_for(Wait::forever())?.ok_or_else(|| self.never_seen())
    }

    /// As [`watch_leader`](LockDirectory::watch_leader), but returns `None` when the wait times out.
    ///
    /// # Errors
    /// As [`watch_leader`](LockDirectory::watch_leader), and [`Cancelled`](LockError::Cancelled).
    pub fn watch_leader_for(&self, wait: impl Into<Wait>) -> Result<Option<LeaderWatch>> {
        LeaderWatch::start(&self.session, &self.dir, &wait.into())
    }

    /// Watches who is in the queue. Blocks as [`watch_leader`](LockDirectory::watch_leader) does.
    ///
    /// # Errors
    /// As [`watch_leader`](LockDirectory::watch_leader).
    pub fn watch_queue(&self) -> Result<QueueWatch> {
        self.watch_queue_for(Wait::forever())?.ok_or_else(|| self.never_seen())
    }

    /// As [`watch_queue`](LockDirectory::watch_queue), but returns `None` when the wait times out.
    ///
    /// # Errors
    /// As [`watch_leader_for`](LockDirectory::watch_leader_for).
    pub fn watch_queue_for(&self, wait: impl Into<Wait>) -> Result<Option<QueueWatch>> {
        QueueWatch::start(&self.session, &self.dir, &wait.into())
    }

    /// The error of a watch without a time limit that never saw the queue. Only the end of the
    /// session ends such a wait.
    fn never_seen(&self) -> LockError {
        LockError::closed(Operation::WATCH, &self.dir)
    }

    // ---- clearing up

    /// Lets this reap requests of sessions that are alive, too. It does not unless told so.
    ///
    /// The server deletes an ephemeral znode with its session, so each one that is there belongs to a session that it
    /// holds alive, and to a process that may be using the lock. Deleting it gives the lock to the next while that one still
    /// acts: only its [fencing token](crate::LockGuard::fencing_token) can keep the two apart. An owner in this crate is told
    /// [`NodeDeleted`](crate::LossReason::NodeDeleted).
    #[must_use]
    pub fn including_live_sessions(self, including: bool) -> LockDirectory {
        LockDirectory { reaps_live_sessions: including, ..self }
    }

    /// Deletes the requests that were made this long ago or longer, and returns those that were deleted, in the order of
    /// the queue.
    ///
    /// Only persistent requests, which no session's end deletes, unless [live
    /// sessions](LockDirectory::including_live_sessions) are included. Those of unknown kind ([`Other`](LockKind::Other))
    /// stay in any case, as do other children, so that a path that is no lock directory loses nothing; and so does a
    /// request whose data was written since it was read. The age is the difference of this machine's clock and the server's.
    ///
    /// Nobody who is deleted acquires the lock before: the queue is cleared from its end. Requests that come meanwhile stay.
    /// Each one deleted is logged.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::{LockDirectory, Session};
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
    /// let directory = LockDirectory::new(&session, "/locks/report")?;
    /// let a_day = Duration::from_secs(24 * 60 * 60);
    /// for request in directory.reap_expired(a_day)? {
    ///     println!("left over, and deleted: {request}");
    /// }
    /// directory.remove_if_empty()?;
    /// # Ok::<(), zookeeper_recipes_lock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// As [`contenders`](LockDirectory::contenders), and [`AccessDenied`](LockError::AccessDenied) when DELETE is not
    /// granted on the directory. What was deleted before the error stays so.
    pub fn reap_expired(&self, older_than: Duration) -> Result<Vec<LockInfo>> {
        let mut expired = self.contenders()?;
        let now = SystemTime::now();
        expired.retain(|request| {
            let may_reap = self.reaps_live_sessions || request.is_persistent();
            may_reap && reaping::is_expired(request, older_than, now)
        });
        let delete = move |core: &Arc<Core>| reaping::delete_all(core, expired);
        self.session.core().call(Operation::REAP, &self.dir, delete)?
    }

    /// Deletes the requests of any age: [`reap_expired`](LockDirectory::reap_expired) with no time at all.
    ///
    /// # Errors
    /// As [`reap_expired`](LockDirectory::reap_expired).
    pub fn reap_all(&self) -> Result<Vec<LockInfo>> {
        self.reap_expired(Duration::ZERO)
    }

    /// Removes the directory if it has no children; returns whether this call has removed it.
    ///
    /// Nobody is hurt by that: the server removes no directory that has got a child meanwhile, and whoever comes later makes
    /// it again. Its sequence numbers start anew; fencing tokens go on growing.
    ///
    /// # Errors
    /// [`NotALockDirectory`](LockError::NotALockDirectory) for a znode that has data or belongs to a session: it is left
    /// alone. [`AccessDenied`](LockError::AccessDenied) when DELETE is not granted on the znode above, or READ on this one;
    /// [`ConnectionLoss`](LockError::ConnectionLoss), after which it may be removed or not;
    /// [`SessionLost`](LockError::SessionLost); [`Closed`](LockError::Closed).
    pub fn remove_if_empty(&self) -> Result<bool> {
        let core = self.session.core();
        core.check_open(Operation::DELETE, &self.dir)?;
        let dir = self.dir.clone();
        core.call(Operation::DELETE, &self.dir, move |core| remove_if_empty(core, &dir))?
    }

    /// The paths of the requests, in the order of the queue.
    fn list(&self, core: &Arc<Core>) -> Result<Vec<ZNodePath>> {
        core.check_open(Operation::LIST, &self.dir)?;
        let dir = self.dir.clone();
        let listed = core.call(Operation::LIST, &self.dir, move |core| {
            core.read(|client| client.get_children(dir.as_str(), false))
        })?;
        match listed {
            Ok(children) => Ok(in_order(&children).into_iter().map(|name| self.dir.child(name)).collect()),
            Err(ZkError::NoNode) => Ok(Vec::new()),
            Err(error) => Err(LockError::client(Operation::LIST, &self.dir, error)),
        }
    }
}

impl fmt::Debug for LockDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockDirectory")
            .field("dir", &self.dir)
            .field("reaps_live_sessions", &self.reaps_live_sessions)
            .finish_non_exhaustive()
    }
}

/// The first request that is still there.
fn first_of(core: &Arc<Core>, requests: &[ZNodePath]) -> ZkResult<Option<LockInfo>> {
    for request in requests {
        if let Some(info) = reading::read_one(core, request)? {
            return Ok(Some(info));
        }
    }
    Ok(None)
}

/// Removes an empty directory, on a worker, at the version at which it was found to be one.
fn remove_if_empty(core: &Arc<Core>, dir: &ZNodePath) -> Result<bool> {
    let found = core.read(|client| client.exists(dir.as_str(), false));
    let found = found.map_err(|error| LockError::client(Operation::READ, dir, error))?;
    let Some(stat) = found else { return Ok(false) };
    let removed = match is_directory(&stat) {
        true => core.write(|client| client.delete(dir.as_str(), Some(stat.version))),
        false => Err(ZkError::BadVersion),
    };
    match removed {
        Ok(()) => {
            logging::info!("removed the empty lock directory {dir}");
            Ok(true)
        }
        Err(ZkError::NotEmpty | ZkError::NoNode) => Ok(false),
        // Written to since, if not before.
        Err(ZkError::BadVersion) => Err(LockError::NotALockDirectory { path: dir.to_string() }),
        Err(error) => Err(LockError::client(Operation::DELETE, dir, error)),
    }
}

/// Whether a znode can be a lock directory. The server marks a container by an owner that no session can be.
fn is_directory(stat: &Stat) -> bool {
    const CONTAINER: i64 = i64::MIN;
    stat.data_length == 0 && matches!(stat.ephemeral_owner, 0 | CONTAINER)
}
