//! The queue of a lock, seen from outside: who holds the lock, who waits for it, and how to take it away.
//!
//! The primary type in this module is [`LockDirectory`], which lists the requests for a lock, whichever library made
//! them. [`LeaderWatch`] and [`QueueWatch`] report changes. A [`Revoker`] asks a holder to release the lock.

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
use self::lock_info::Found;
pub use self::lock_info::LockInfo;
pub use self::queue_watch::QueueWatch;
pub use self::revoker::{Revocation, Revoker};
use crate::client::Call;
use crate::client::Names;
use crate::error::{LockError, Operation, Result, ZkError};
use crate::lock_order::unwind_safe;
use crate::logging;
use crate::recipe::kind::LockKind;
use crate::recipe::order::in_order;
use crate::recipe::path::ZNodePath;
use crate::recipe::peers::any_mismatch;
use crate::session::{Core, Session};
use crate::wait::Wait;
#[doc(inline)]
pub use zookeeper_connection::support::text::one_line;

unwind_safe!(LeaderWatch, QueueWatch);

/// How often one call lists the directory, if an owner is deleted between the listing and the reads.
const MAX_LISTINGS: u32 = 16;

/// The directory of a lock or an election, for inspection and cleanup.
///
/// [`contenders`](LockDirectory::contenders) lists the holder and the waiters,
/// [`watch_leader`](LockDirectory::watch_leader) follows the leader of an election, and
/// [`reap_expired`](LockDirectory::reap_expired) deletes old requests.
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
///
/// # What counts as a request
/// Every child whose name ends in a sequence number counts as a request, whichever library made it. The locks of this
/// crate use the same rule. Containers, and znodes that have or had children, are directories, and are ignored. But
/// [`watch_queue`](LockDirectory::watch_queue) and [`mixed_names`](LockDirectory::mixed_names) see only names, so they
/// mistake a directory with the name of a request for a request. A lock directory that does not exist counts as an
/// empty queue.
///
/// # Calls
/// Calls block until the server has answered or the session has ended. The results come from the connected server,
/// which may be a moment behind the others. Calls are not retried: after a
/// [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss), call again, for example with
/// [`ProtocolSupport::retry_operation`](crate::ProtocolSupport::retry_operation).
#[derive(Clone)]
pub struct LockDirectory {
    session: Session,
    dir: ZNodePath,
    reaps_live_sessions: bool,
}

impl LockDirectory {
    /// Creates a handle to a directory.
    ///
    /// Sends nothing to the servers and creates no znode.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid.
    pub fn new(session: &Session, dir: &str) -> Result<LockDirectory> {
        Ok(LockDirectory {
            session: session.clone(),
            dir: ZNodePath::parse(dir)?,
            reaps_live_sessions: false,
        })
    }

    /// Checks a path without a session.
    ///
    /// The constructors of all locks make the same check. Use this to check a configuration or a command line before
    /// connecting.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid.
    pub fn check_path(dir: &str) -> Result<()> {
        ZNodePath::parse(dir).map(drop)
    }

    // ---- inspection

    /// Returns all requests, in the order of the queue.
    ///
    /// The [owners](LockInfo::owners) come first. A request that is deleted during the call is left out. If READ is not
    /// granted on a request, only its name is known. The method makes one call to list the requests and then one call
    /// for each request, several at a time. If the first request is deleted in between, it begins again, up to 15
    /// times, so that no waiter looks like an owner.
    ///
    /// # Errors
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): READ is not granted on the directory.
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss), [`SessionLost`](crate::ErrorReason::SessionLost),
    ///   [`Closed`](crate::ErrorReason::Closed).
    pub fn contenders(&self) -> Result<Vec<LockInfo>> {
        let core = self.session.core();
        let mut attempts = MAX_LISTINGS;
        loop {
            attempts -= 1;
            let found = reading::read_all(&core, &self.list(&core)?)?;
            if attempts == 0 || !misses_an_owner(&found) {
                return Ok(found.into_iter().filter_map(Found::request).collect());
            }
        }
    }

    /// Returns the holder of the lock, or `None` if nobody holds it.
    ///
    /// The holder is the first request in the queue; if readers hold the lock, it is one of them. To find out whether
    /// this process holds the lock, use [`is_owner`](crate::WriteLock::is_owner) instead.
    ///
    /// # Errors
    /// The same as [`contenders`](LockDirectory::contenders).
    pub fn current_owner(&self) -> Result<Option<LockInfo>> {
        let core = self.session.core();
        let mut attempts = MAX_LISTINGS;
        'listing: loop {
            attempts -= 1;
            for listed in self.list(&core)? {
                match reading::read_one(&core, &listed)? {
                    Found::Request(holder) => return Ok(Some(holder)),
                    // The next request need not be the holder: others may have joined, even ahead of it.
                    Found::Nothing if attempts > 0 => continue 'listing,
                    Found::Nothing | Found::Directory => {}
                }
            }
            return Ok(None);
        }
    }

    /// Watches the first request in the queue, which is the leader in an election.
    ///
    /// Blocks until the server has answered or the wait times out. On a session that [replaces
    /// itself](crate::SessionBuilder::replace_lost_sessions), the watch continues after the session is lost.
    /// It ends when the session is [closed](Session::close).
    ///
    /// # Errors
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): READ is not granted on the directory.
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss): no server answered in time.
    /// - [`Cancelled`](crate::ErrorReason::Cancelled): another thread cancelled the wait.
    /// - [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed).
    pub fn watch_leader(&self, wait: impl Into<Wait>) -> Result<LeaderWatch> {
        LeaderWatch::start(&self.session, &self.dir, &wait.into())
    }

    /// Watches all requests in the queue.
    ///
    /// Blocks like [`watch_leader`](LockDirectory::watch_leader).
    ///
    /// # Errors
    /// The same as [`watch_leader`](LockDirectory::watch_leader).
    pub fn watch_queue(&self, wait: impl Into<Wait>) -> Result<QueueWatch> {
        QueueWatch::start(&self.session, &self.dir, &wait.into())
    }

    /// Returns a warning if the directory mixes requests that ignore each other, so that two clients may own at once.
    ///
    /// There are two such mixtures. The warning names two of the requests, and the remedy:
    /// - Requests of a library that does not recognize the names of another. The remedy is another [naming
    ///   scheme](crate::recipe::NamingScheme).
    /// - Requests for a lock beside a [`Semaphore`](crate::locks::Semaphore) in the same directory. The remedy is
    ///   another path for one of them. A semaphore counts as long as its two directories exist, even if nobody uses it.
    ///
    /// Returns `None` if all requests recognize each other, as far as their libraries are known.
    ///
    /// # Errors
    /// The same as [`contenders`](LockDirectory::contenders).
    pub fn mixed_names(&self) -> Result<Option<String>> {
        Ok(any_mismatch(&self.children(&self.session.core())?))
    }

    // ---- cleanup

    /// Sets whether requests of live sessions are reaped, too.
    ///
    /// The default is `false`. The server deletes an ephemeral znode with its session. So as long as an ephemeral znode
    /// exists, the server considers its session alive, and a process may be using the lock.
    ///
    /// **Deleting the znode gives the lock to the next request while that process may still act.** Only the
    /// [fencing token](crate::LockGuard::fencing_token) can keep the two owners apart. If the former owner
    /// uses this crate, it loses the lock with [`NodeDeleted`](crate::LossReason::NodeDeleted).
    #[must_use]
    pub fn including_live_sessions(self, including: bool) -> LockDirectory {
        LockDirectory { reaps_live_sessions: including, ..self }
    }

    /// Returns the requests that [`reap_expired`](LockDirectory::reap_expired) would delete now.
    ///
    /// They are in the order of the queue. If `older_than` is not zero and there are requests to judge, the
    /// call reads the servers' clock: one transaction creates a znode in the directory and deletes it.
    ///
    /// # Errors
    /// - The same as [`contenders`](LockDirectory::contenders).
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): reading the clock needs CREATE and DELETE on the
    ///   directory.
    /// - [`Unsupported`](crate::ErrorReason::Unsupported): reading the clock needs a client that has transactions.
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

    /// Deletes requests of at least this age, and returns the deleted ones.
    ///
    /// By default, only persistent requests are deleted, because they do not end with a session. See
    /// [`including_live_sessions`](LockDirectory::including_live_sessions). The age is measured by the
    /// servers' clock alone, so a wrong clock on this machine does no harm.
    ///
    /// The queue is cleared from the back, so none of the deleted requests acquires the lock in between. The
    /// result is in the order of the queue. Each deletion is logged.
    ///
    /// These are never deleted:
    /// - requests of unknown kind ([`Other`](LockKind::Other)) and other children. But a child whose name happens to
    ///   look like that of a request (`x-` or `read-` at the beginning, ten digits at the end) counts as one: check the
    ///   path, and look at [`expired`](LockDirectory::expired) first;
    /// - requests that arrive during the call, even if they reuse a name because the directory was created anew;
    /// - requests whose data is written during the call.
    ///
    /// The last two rules have exceptions, because a server deletes only by path and version: a request may be deleted
    /// if it takes over a name between the two calls that check and delete a request, or if this client may not read
    /// the metadata of the old request.
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
    /// - The same as [`expired`](LockDirectory::expired).
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): DELETE is not granted on the directory.
    /// - [`ServerDiverged`](crate::ErrorReason::ServerDiverged): the connected server shows a request that does not exist.
    ///
    /// Requests that were deleted before the error stay deleted.
    pub fn reap_expired(&self, older_than: Duration) -> Result<Vec<LockInfo>> {
        let expired = self.expired(older_than)?;
        reaping::delete_all(&self.session.core(), expired)
    }

    /// Removes the directory if it has no children, and returns whether it did.
    ///
    /// Locks of this crate and of Curator are not affected. The server does not remove a directory that has a child,
    /// and the next request creates the directory again. Other clients may fail if the directory
    /// [disappears](crate::LockOptions::container). The new directory's sequence numbers start again, but fencing
    /// tokens continue to grow.
    ///
    /// A znode with data is not removed, with one exception. This method makes two calls. If a znode with
    /// data replaces the directory between them, that znode may be removed, because a server deletes only by
    /// path and version.
    ///
    /// # Errors
    /// - [`NotALock`](crate::ErrorReason::NotALock): the znode has data or is ephemeral. It was not removed.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): DELETE is not granted on the parent, or READ is
    ///   not granted on the directory.
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss), [`SessionLost`](crate::ErrorReason::SessionLost),
    ///   [`Closed`](crate::ErrorReason::Closed): the directory may or may not have been removed.
    pub fn remove_if_empty(&self) -> Result<bool> {
        let (core, dir) = (self.session.core(), &self.dir);
        let Some(stat) = core.call(Operation::READ, dir, Call::exists(dir, false))? else { return Ok(false) };
        // The deletion fails if the version has changed since it was read.
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
            // The znode has data, or was written after it was read.
            Err(ZkError::BadVersion) => Err(LockError::not_a_lock_directory(dir)),
            Err(error) => Err(core.failure(Operation::DELETE, dir, error)),
        }
    }

    /// Returns the paths of the requests, in the order of the queue.
    fn list(&self, core: &Arc<Core>) -> Result<Vec<ZNodePath>> {
        Ok(in_order(&self.children(core)?).into_iter().map(|name| self.dir.child(name)).collect())
    }

    /// Returns the names of all children. A directory that does not exist has none.
    fn children(&self, core: &Arc<Core>) -> Result<Names> {
        match core.ask(Call::get_children(&self.dir, false)) {
            Err(ZkError::NoNode) => Ok(Names::default()),
            children => children.map_err(|error| core.failure(Operation::LIST, &self.dir, error)),
        }
    }
}

/// Returns whether the first request of the listing is gone. The next one that was found need not be the owner: the
/// first may have downgraded its lock, or released it to a request that came after the listing.
fn misses_an_owner(found: &[Found]) -> bool {
    let first = found.iter().find(|found| !matches!(found, Found::Directory));
    matches!(first, Some(Found::Nothing))
}

impl fmt::Debug for LockDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockDirectory")
            .field("dir", &self.dir)
            .field("reaps_live_sessions", &self.reaps_live_sessions)
            .finish_non_exhaustive()
    }
}
