//! The queue of a lock, seen from outside: who holds it, who waits, and how to take it away.
//!
//! The primary type in this module is [`LockDirectory`], which lists the requests of a lock, whichever library made them.
//! [`LeaderWatch`] and [`QueueWatch`] report changes, and a [`Revoker`] asks a holder to release.

// Origin: `visitLocks`, `MetadataHandler`, `reapExpiredLocks` and `reapAllLocks` of HBase's `InterProcessLock`;
// `contenders()` of kazoo.

mod leader_watch;
mod lock_info;
mod queue_watch;
mod reading;
mod reaping;
mod revoker;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::leader_watch::LeaderWatch;
pub use self::lock_info::LockInfo;
pub use self::queue_watch::QueueWatch;
pub use self::revoker::{Revocation, Revoker};
use crate::client::port::Call;
use crate::error::{LockError, Operation, Result, ZkError};
use crate::lock_order::unwind_safe;
use crate::logging;
use crate::recipe::kind::LockKind;
use crate::recipe::order::in_order;
use crate::recipe::path::ZNodePath;
use crate::recipe::peers::any_mismatch;
use crate::session::{Core, Session};
use crate::wait::Wait;

unwind_safe!(LeaderWatch, QueueWatch);

/// The directory of a lock or an election, for inspection and cleanup.
///
/// Every child whose name ends in a sequence number counts as a request, whichever library made it,
/// as it does for the locks of this crate. Other children are ignored, and so are znodes that
/// have children, or had some: they are directories. A directory that does not exist counts as an empty queue.
///
/// Results are those of the connected server. They may be a moment behind the other servers, and
/// may have changed since. Calls are not retried: after a
/// [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss), call again
/// ([`ProtocolSupport::retry_operation`](crate::ProtocolSupport::retry_operation) does). They block
/// until the server has answered or the session has ended.
///
/// `Send` and `Sync`, and cheap to clone.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::Session;
/// use zookeeper_recipes_lock::queue::LockDirectory;
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
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
    /// Makes a handle to a directory. Sends nothing and creates nothing.
    ///
    /// # Errors
    /// The only way to fail is [`InvalidArgument`](crate::ErrorReason::InvalidArgument).
    pub fn new(session: &Session, dir: &str) -> Result<LockDirectory> {
        Ok(LockDirectory {
            session: session.clone(),
            dir: ZNodePath::parse(dir)?,
            reaps_live_sessions: false,
        })
    }

    /// Checks a path as the constructors of all locks do. Needs no session: for a configuration or a
    /// command line, before anything is connected.
    ///
    /// # Errors
    /// The only way to fail is [`InvalidArgument`](crate::ErrorReason::InvalidArgument).
    pub fn check_path(dir: &str) -> Result<()> {
        ZNodePath::parse(dir).map(drop)
    }

    // ---- inspection

    /// Returns all requests, in the order of the queue. The [owners](LockInfo::owners) come first.
    ///
    /// Makes one call for the list and one for each request, several at a time. A request that is
    /// deleted meanwhile is left out. One without READ permission has only its name.
    ///
    /// # Errors
    /// [`AccessDenied`](crate::ErrorReason::AccessDenied): READ is not granted on the directory;
    /// [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss); [`SessionLost`](crate::ErrorReason::SessionLost);
    /// [`Closed`](crate::ErrorReason::Closed).
    pub fn contenders(&self) -> Result<Vec<LockInfo>> {
        let core = self.session.core();
        let requests = self.list(&core)?;
        reading::read_all(&core, &requests)
    }

    /// Returns the holder of the lock: the first request in the queue, which may be one of several
    /// readers. `None` if nobody holds the lock.
    ///
    /// A process that asks for its own lock gets a better answer from
    /// [`is_owner`](crate::WriteLock::is_owner).
    ///
    /// # Errors
    /// As [`contenders`](LockDirectory::contenders).
    pub fn current_owner(&self) -> Result<Option<LockInfo>> {
        let core = self.session.core();
        for request in self.list(&core)? {
            let read = reading::read_one(&core, &request);
            let found = read.map_err(|error| core.failure(Operation::READ, &self.dir, error))?;
            // Otherwise it was deleted meanwhile.
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Watches the first request in the queue: in an election, the leader.
    ///
    /// Blocks until the server has answered, or until the wait times out. The watch survives the
    /// loss of a session that [is replaced](crate::SessionBuilder::replace_lost_sessions), but not
    /// [closing](Session::close).
    ///
    /// # Errors
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): READ is not granted on the directory.
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss): no server answered in time.
    /// - [`Cancelled`](crate::ErrorReason::Cancelled).
    /// - [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed).
    pub fn watch_leader(&self, wait: impl Into<Wait>) -> Result<LeaderWatch> {
        LeaderWatch::start(&self.session, &self.dir, &wait.into())
    }

    /// Watches who is in the queue. Blocks as [`watch_leader`](LockDirectory::watch_leader) does.
    ///
    /// # Errors
    /// As [`watch_leader`](LockDirectory::watch_leader).
    pub fn watch_queue(&self, wait: impl Into<Wait>) -> Result<QueueWatch> {
        QueueWatch::start(&self.session, &self.dir, &wait.into())
    }

    /// Returns a warning if the queue has requests of libraries that do not count each other's names:
    /// both may hold the lock at once. It names two of them, and the [naming
    /// scheme](crate::recipe::NamingScheme) to use. `None` if all requests there count each other, as far as
    /// their libraries are known.
    ///
    /// # Errors
    /// As [`contenders`](LockDirectory::contenders).
    pub fn mixed_names(&self) -> Result<Option<String>> {
        let requests = self.list(&self.session.core())?;
        Ok(any_mismatch(requests.iter().map(ZNodePath::name)))
    }

    // ---- cleanup

    /// Sets whether requests of live sessions are reaped, too. By default they are not.
    ///
    /// The server deletes an ephemeral znode with its session. So an ephemeral znode that exists
    /// belongs to a session that the server considers alive, and to a process that may be using the
    /// lock. Deleting it gives the lock to the next request while that process may still act: only
    /// the [fencing token](crate::LockGuard::fencing_token) can keep the two apart. An owner in
    /// this crate gets [`NodeDeleted`](crate::LossReason::NodeDeleted).
    #[must_use]
    pub fn including_live_sessions(self, including: bool) -> LockDirectory {
        LockDirectory { reaps_live_sessions: including, ..self }
    }

    /// Returns the requests that [`reap_expired`](LockDirectory::reap_expired) would delete now, in
    /// the order of the queue.
    ///
    /// If the queue has requests that may be deleted, and `older_than` is not zero, it asks for the time of
    /// the servers' clock: one transaction creates a znode in the directory and deletes it.
    ///
    /// # Errors
    /// As [`contenders`](LockDirectory::contenders). For the time also
    /// [`AccessDenied`](crate::ErrorReason::AccessDenied) when CREATE or DELETE is not granted on the directory, and
    /// [`Unsupported`](crate::ErrorReason::Unsupported) when the client of the session has no transactions.
    pub fn expired(&self, older_than: Duration) -> Result<Vec<LockInfo>> {
        let mut requests = self.contenders()?;
        requests.retain(|request| {
            let may_reap = self.reaps_live_sessions || request.is_persistent;
            may_reap && request.kind != LockKind::Other
        });
        if requests.is_empty() || older_than.is_zero() {
            return Ok(requests);
        }
        let now = reaping::server_time(&self.session.core(), &self.dir)?;
        requests.retain(|request| now.is_some_and(|now| reaping::is_old(request, older_than, now)));
        Ok(requests)
    }

    /// Deletes the requests of at least this age, and returns those that it deleted, in the order
    /// of the queue.
    ///
    /// It deletes only persistent requests, which no session's end deletes, unless [live
    /// sessions](LockDirectory::including_live_sessions) are included. Requests of unknown kind
    /// ([`Other`](LockKind::Other)) and other children always stay, so that a path that is no lock
    /// directory loses nothing. So does a request whose data was written since it was read, and one
    /// that has the name of another since the directory was created anew. The age is by the clock of the
    /// servers alone, so a wrong clock of this machine does no harm.
    ///
    /// None of the deleted requests acquires the lock first: the queue is cleared from its end.
    /// Requests that arrive meanwhile stay. Each deletion is logged.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::Session;
    /// # use zookeeper_recipes_lock::queue::LockDirectory;
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
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
    /// As [`expired`](LockDirectory::expired), and [`AccessDenied`](crate::ErrorReason::AccessDenied)
    /// when DELETE is not granted on the directory. Requests deleted before the error stay deleted.
    pub fn reap_expired(&self, older_than: Duration) -> Result<Vec<LockInfo>> {
        let expired = self.expired(older_than)?;
        reaping::delete_all(&self.session.core(), expired)
    }

    /// Removes the directory if it has no children; returns whether this call removed it.
    ///
    /// This is safe for others: the server does not remove a directory that has a child by then,
    /// and the next request creates the directory again. Its sequence numbers start again; fencing
    /// tokens go on growing. A znode with data stays, unless it replaces the directory between the
    /// two calls of this function: a server deletes by path and version alone.
    ///
    /// # Errors
    /// - [`NotALock`](crate::ErrorReason::NotALock): the znode has data or belongs to a
    ///   session. It is left alone.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): DELETE is not granted on the parent, or READ is
    ///   not granted on the directory.
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss), [`SessionLost`](crate::ErrorReason::SessionLost),
    ///   [`Closed`](crate::ErrorReason::Closed): the directory may have been removed or not.
    pub fn remove_if_empty(&self) -> Result<bool> {
        let (core, dir) = (self.session.core(), &self.dir);
        let Some(stat) = core.call(Operation::READ, dir, Call::exists(dir, false))? else { return Ok(false) };
        // Only if its version has not changed since it was read.
        let removed = match stat.data_length == 0 && stat.session().is_none() {
            true => core.ask(Call::delete(dir, Some(stat.version))),
            false => Err(ZkError::BadVersion),
        };
        match removed {
            Ok(()) => {
                logging::info!("removed the empty lock directory {dir}");
                Ok(true)
            }
            Err(ZkError::NotEmpty | ZkError::NoNode) => Ok(false),
            // It has data, or was written since it was read.
            Err(ZkError::BadVersion) => Err(LockError::not_a_lock_directory(dir)),
            Err(error) => Err(core.failure(Operation::DELETE, dir, error)),
        }
    }

    /// The paths of the requests, in the order of the queue.
    fn list(&self, core: &Arc<Core>) -> Result<Vec<ZNodePath>> {
        match core.ask(Call::get_children(&self.dir, false)) {
            Ok(children) => Ok(in_order(&children).into_iter().map(|name| self.dir.child(name)).collect()),
            Err(ZkError::NoNode) => Ok(Vec::new()),
            Err(error) => Err(core.failure(Operation::LIST, &self.dir, error)),
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
