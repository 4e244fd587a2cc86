//! [`RunOnce`]: a job that runs once for each key, in one of many processes.
//!
//! Each key has a lock, which excludes other processes while the job runs, and a marker: a persistent znode beside the
//! requests for the lock. The marker is written in a transaction that checks the lock's znode, so a process that has
//! lost the lock cannot mark the key.

mod marker;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use self::marker::{Key, Marker, MarkerState};
use crate::client::{CreateMode, Op, Stat, Transacted};
use crate::error::{ErrorReason, LockError, Operation, Result, ZkError};
use crate::lock_options::LockOptions;
use crate::locks::blocking_lock::BlockingLock;
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking::exclusive;
use crate::logging;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::path::ZNodePath;
use crate::session::Session;
use crate::wait::Wait;

/// How long [`RunOnce::forget`] waits for the lock of a key before it checks again whether the key is marked. The time
/// doubles with each wait, because to acquire even a free lock takes longer if the servers are slow.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The longest of these waits.
const MAX_LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The rule for jobs that fail or are interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Repeat {
    /// The job runs at most once. This is the default.
    ///
    /// The key is marked before the job starts. So a job that fails, panics or is killed with its process is not
    /// repeated, and may have run only in part. If the marker is written but the server's reply never
    /// arrives, the job does not run at all.
    #[default]
    Never,
    /// The job runs until it has succeeded once.
    ///
    /// The key is marked after the job. If the process dies or loses the lock before the marker is written, the job is
    /// repeated, even if it has done all its work. Write the job so that a repetition does no harm.
    UntilSuccess,
}

/// The outcome of [`RunOnce::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum RunOutcome<T, E> {
    /// The job ran here and succeeded.
    Ran(T),
    /// The job ran here and failed. With [`Repeat::UntilSuccess`], the next call runs it again.
    Failed(E),
    /// The key was already marked, so the job did not run here.
    ///
    /// With [`Repeat::Never`], the job may have failed, or its process may have died.
    #[non_exhaustive]
    AlreadyDone {
        /// The [data](LockOptions::data) of the process that ran the job: `host/pid` by default.
        by: String,
        /// The time at which the key was marked, by the server's clock.
        at: SystemTime,
    },
    /// Another thread or process is running the job, is about to run it, or is forgetting the key.
    InProgress,
}

/// Runs a job once for each key, in one of many processes.
///
/// Use it for migrations, or for cron jobs with the scheduled time as the key. All processes call
/// [`run`](RunOnce::run) with the same key and the same job. One of them runs the job, and the others return
/// immediately.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{LockOptions, Session};
/// use zookeeper_recipes_lock::locks::{Repeat, RunOnce, RunOutcome};
///
/// # fn migrate() -> Result<u32, std::io::Error> { Ok(1) }
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let migrations =
///     RunOnce::with_options(&session, "/app/migrations", LockOptions::new(), Repeat::UntilSuccess)?;
/// match migrations.run("2026-07 add index", |_guard| migrate())? {
///     RunOutcome::Ran(rows) => println!("migrated {rows} rows"),
///     RunOutcome::Failed(error) => println!("the next call tries again: {error}"),
///     other => println!("nothing to do here: {other:?}"),
/// }
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
///
/// # Jobs that fail
/// [`Repeat`] decides what happens. All processes should use the same value for a key.
///
/// | | [`Repeat::Never`] (default) | [`Repeat::UntilSuccess`] |
/// |---|---|---|
/// | the key is marked | before the job | after the job has succeeded |
/// | the job runs | at most once | until it succeeds |
/// | the job fails or panics | not repeated | repeated by the next call |
/// | the process is killed | not repeated | repeated once the session has ended |
///
/// If the lock is lost during the job, the job keeps running. With [`Repeat::UntilSuccess`], another process may then
/// run it at the same time, so the job must check [`LockGuard::is_owner`].
///
/// # Keys and markers
/// A key is any text of 1 to 255 bytes. `/` and control characters are escaped as in
/// [`NamedLocks`](crate::locks::NamedLocks). The marker of a key is the znode `<dir>/<key>/done`. It stays until it is
/// [forgotten](RunOnce::forget) or [reaped](RunOnce::reap).
///
/// # Other clients
/// `RunOnce` needs transactions. On a client that has none, such as a handle of the crate `zookeeper`, every job is
/// refused with [`Unsupported`](crate::ErrorReason::Unsupported) before it runs, and so is the deletion of markers.
#[doc(alias = "cron")]
#[derive(Clone)]
pub struct RunOnce {
    support: Arc<ProtocolSupport>,
    dir: ZNodePath,
    repeat: Repeat,
}

impl RunOnce {
    /// Creates a `RunOnce` on the directory `dir`, with default options.
    ///
    /// Sends nothing to the servers. The first job creates the directory if it is missing.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid.
    pub fn new(session: &Session, dir: &str) -> Result<RunOnce> {
        RunOnce::with_options(session, dir, LockOptions::new(), Repeat::Never)
    }

    /// Creates a `RunOnce` like [`new`](RunOnce::new), with other options.
    ///
    /// The ACL and the data of the options also apply to the markers.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid, or the
    /// [`max_hold`](LockOptions::max_hold) is zero.
    pub fn with_options(
        session: &Session,
        dir: &str,
        options: LockOptions,
        repeat: Repeat,
    ) -> Result<RunOnce> {
        let dir = session.lock_path(dir)?;
        let support = Arc::new(ProtocolSupport::with_options(session, options)?);
        Ok(RunOnce { support, dir, repeat })
    }

    /// Runs the job unless it has already run for this key or is running somewhere.
    ///
    /// The job receives the guard of the key's lock. It should check [`LockGuard::is_owner`] before each action that
    /// two processes must not take at the same time. The call blocks until the servers have answered and the job has
    /// returned.
    ///
    /// ```no_run
    /// # use std::convert::Infallible;
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::Session;
    /// # use zookeeper_recipes_lock::locks::{RunOnce, RunOutcome};
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
    /// # fn send_report() {}
    /// let reports = RunOnce::new(&session, "/app/reports")?;
    /// let outcome = reports.run("2026-07-01", |_guard| Ok::<_, Infallible>(send_report()))?;
    /// let is_ours = matches!(outcome, RunOutcome::Ran(()));
    /// # Ok::<(), zookeeper_recipes_lock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the key is empty or longer than 255 bytes, or its
    ///   path would be longer than 4096 bytes.
    /// - [`Unsupported`](crate::ErrorReason::Unsupported): the client of the session has no transactions.
    /// - The same as [`BlockingWriteLock::try_lock`](crate::BlockingWriteLock::try_lock).
    ///
    /// With [`Repeat::Never`], the job has not run if the call returns an error. But the key may have been marked,
    /// unless the error is one of the first two: the reply to an earlier attempt may have been lost.
    ///
    /// With [`Repeat::UntilSuccess`], the job may have run even if the call returns an error. For example,
    /// [`NotOwner`](crate::ErrorReason::NotOwner) means that the lock was lost before the marker was written.
    pub fn run<T, E>(
        &self,
        key: &str,
        job: impl FnOnce(&LockGuard) -> std::result::Result<T, E>,
    ) -> Result<RunOutcome<T, E>> {
        let key = Key::parse(&self.dir, key)?;
        // A lagging server may show a forgotten marker. So a marker is read again once the server has caught up.
        let marker = match self.retry(&key, || self.read(&key))? {
            Some(_) => self.retry(&key, || self.read_latest(&key))?,
            None => None,
        };
        if let Some(marker) = marker {
            return self.retry(&key, || self.outcome_of(&key, &marker));
        }
        let Some(guard) = self.lock_of(&key).try_lock()? else {
            // The process that ran the job may not have released the lock yet.
            let marker = self.retry(&key, || self.read(&key))?;
            let outcome = |marker| self.retry(&key, || self.outcome_of(&key, &marker));
            return marker.map_or(Ok(RunOutcome::InProgress), outcome);
        };
        let outcome = self.run_locked(&key, &guard, job);
        // Wait for the release, so that others find the lock free when this call returns.
        if let Err(error) = guard.unlock() {
            logging::debug!("the lock of {} was not released cleanly: {error}", key.dir);
        }
        outcome
    }

    /// Runs the job under the lock of its key.
    fn run_locked<T, E>(
        &self,
        key: &Key,
        guard: &LockGuard,
        job: impl FnOnce(&LockGuard) -> std::result::Result<T, E>,
    ) -> Result<RunOutcome<T, E>> {
        // Another process may have run the job and released the lock since the marker was read.
        if let Some(Marker { by, at, .. }) = self.retry(key, || self.read(key))? {
            return Ok(RunOutcome::AlreadyDone { by, at });
        }
        match self.repeat {
            Repeat::Never => {
                if let Some(Marker { by, at, .. }) = self.mark(key, guard, MarkerState::Begun)? {
                    return Ok(RunOutcome::AlreadyDone { by, at });
                }
            }
            // If the client has no transactions, this fails before the job runs rather than after it.
            Repeat::UntilSuccess => {
                self.retry(key, || guard.commit(|changes| changes.check(key.dir.as_str())))?;
                // The answer may have come so late that another process has meanwhile owned the lock and done the job.
                if !guard.is_owner() {
                    return Err(guard.request().not_owner(Operation::COMMIT));
                }
            }
        }
        logging::debug!("running the job of {}", key.dir);
        let result = match job(guard) {
            Ok(result) => result,
            Err(error) => return Ok(RunOutcome::Failed(error)),
        };
        if self.repeat == Repeat::UntilSuccess {
            self.mark(key, guard, MarkerState::Done)?;
        }
        Ok(RunOutcome::Ran(result))
    }

    /// Marks the key. If the key already has another marker, returns that marker.
    fn mark(&self, key: &Key, guard: &LockGuard, state: MarkerState) -> Result<Option<Marker>> {
        let id = request_of(guard);
        let options = self.support.options();
        let data = marker::data(options.shared_data(), id, state);
        let another = |marker: Marker| (marker.id != id).then_some(marker);
        let mut may_be_marked = false;
        self.retry(key, || {
            if may_be_marked {
                if let Some(marker) = self.read(key)? {
                    return Ok(another(marker));
                }
                // Another process may have forgotten the marker of an earlier attempt, and may have sent a deletion
                // that comes late. The deletion requires a version that this request had while that marker existed.
                // So the commit below raises the version once it is certain that no earlier marker exists. A server
                // may lag behind a commit whose reply could not be read.
                guard.rule_out_lost_commits()?;
                if let Some(marker) = self.read_latest(key)? {
                    return Ok(another(marker));
                }
                guard.outdate_version()?;
            }
            may_be_marked = true;
            let marked = guard.commit(|changes| {
                changes.create_with(
                    key.done.as_str(),
                    data.as_slice(),
                    options.shared_acl(),
                    CreateMode::Persistent,
                )
            });
            match marked {
                Ok(_) => Ok(None),
                // An earlier attempt of ours took effect late, a client that does not use the lock wrote a marker, or
                // the reply was unreadable.
                Err(error) if shows_another_marker(error.reason()) => {
                    Ok(another(self.read(key)?.ok_or(error)?))
                }
                Err(error) => Err(error),
            }
        })
    }

    /// Returns what a marker means: the job is done, unless the marker was written before the job and its writer still
    /// holds the lock.
    fn outcome_of<T, E>(&self, key: &Key, marker: &Marker) -> Result<RunOutcome<T, E>> {
        if marker.state == MarkerState::Begun {
            if self.stat(&key.dir.child(&marker.id))?.is_some() {
                return Ok(RunOutcome::InProgress);
            }
            // A writer whose job could not begin may have deleted the marker before it released the lock. A server that
            // shows the release shows the deletion, too.
            if self.read(key)?.is_none_or(|present| present.czxid != marker.czxid) {
                return Ok(RunOutcome::InProgress);
            }
        }
        Ok(RunOutcome::AlreadyDone { by: marker.by.clone(), at: marker.at })
    }

    /// Forgets that the job has run for a key, so that it can run again.
    ///
    /// Returns whether the key was marked. A running job is not disturbed. A marker that is written during the call
    /// stays.
    ///
    /// The marker is deleted under the lock of the key, which the call acquires unless the writer of the marker still
    /// holds it. The call blocks while anybody else holds the lock and the marker exists. It may take a minute to notice
    /// that somebody else has deleted the marker.
    ///
    /// # Errors
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument), as in [`run`](RunOnce::run).
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): the marker was not deleted.
    /// - [`Unsupported`](crate::ErrorReason::Unsupported): the client of the session has no transactions.
    /// - [`NodeDeleted`](crate::ErrorReason::NodeDeleted): another client deleted the request with which the call
    ///   waited for the lock. The marker was not deleted.
    /// - [`ServerDiverged`](crate::ErrorReason::ServerDiverged): there is no marker, but the connected server shows one.
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss), [`SessionLost`](crate::ErrorReason::SessionLost),
    ///   [`Closed`](crate::ErrorReason::Closed): the key may or may not have been forgotten.
    pub fn forget(&self, key: &str) -> Result<bool> {
        let key = Key::parse(&self.dir, key)?;
        let Some(marker) = self.retry(&key, || self.read_latest(&key))? else { return Ok(false) };
        // Another client, or an attempt of ours whose reply was lost, may have deleted the marker. A marker
        // that was written later stays.
        let is_gone = || {
            let present = self.retry(&key, || self.read_latest(&key))?;
            Ok(present.is_none_or(|present| present.czxid != marker.czxid))
        };
        let mut time = LOOK_AGAIN;
        loop {
            // While the writer of the marker holds the lock, it may write another marker, but only at a higher version.
            let writer = match marker.id.as_str() {
                "" => None,
                id => self.retry(&key, || self.stat(&key.dir.child(id)))?,
            };
            if let Some(Stat { version, .. }) = writer {
                if is_gone()? || self.delete_marker(&key, marker.czxid, &marker.id, Some(version))? {
                    return Ok(true);
                }
            }
            let wait = Wait::until_moment(self.support.session().core().now().after(time));
            time = (2 * time).min(MAX_LOOK_AGAIN);
            let guard = self.lock_of(&key).try_lock_for(&wait)?;
            let is_forgotten = is_gone().and_then(|is_gone| match &guard {
                Some(guard) if !is_gone => self.delete_marker(&key, marker.czxid, request_of(guard), None),
                _ => Ok(is_gone),
            });
            if let Some(guard) = guard {
                self.release(&key, guard);
            }
            if is_forgotten? {
                return Ok(true);
            }
        }
    }

    /// Forgets all keys that were marked at least this long ago, and returns their number.
    ///
    /// A key whose lock is held is not forgotten. The age is measured by the servers' clock alone, so a wrong
    /// clock on this machine does no harm.
    ///
    /// Choose a time after which nobody uses these keys any more. Otherwise, a process that comes late would
    /// run the jobs again.
    ///
    /// # Errors
    /// The same as [`forget`](RunOnce::forget). Keys that were forgotten before the error stay forgotten.
    pub fn reap(&self, older_than: Duration) -> Result<usize> {
        // The current time by the servers' clock, taken from the creation of a request. It may be slightly in the past.
        let mut now = None;
        let is_old = |stat: Stat, now: SystemTime| {
            now.duration_since(stat.created()).unwrap_or_default() >= older_than
        };
        let mut reaped = 0;
        for name in &self.children(&self.dir)? {
            let key = Key::of(&self.dir, name);
            let Some(marker) = self.stat(&key.done)? else { continue };
            if now.is_some_and(|now| !is_old(marker, now)) {
                continue;
            }
            let Some(guard) = self.lock_of(&key).try_lock()? else { continue };
            let request = key.dir.child(request_of(&guard));
            // The key may have been forgotten and marked again since the marker was read.
            let looked = self.retry(&key, || Ok((self.stat(&request)?, self.stat(&key.done)?)));
            let is_gone = looked.and_then(|(own, marker)| {
                now = now.max(own.map(|own| own.created()));
                match marker.zip(now).filter(|(marker, now)| is_old(*marker, *now)) {
                    Some((marker, _)) => self.delete_marker(&key, marker.czxid, request_of(&guard), None),
                    None => Ok(false),
                }
            });
            self.release(&key, guard);
            reaped += usize::from(is_gone?);
        }
        Ok(reaped)
    }

    /// Deletes the marker while the given request owns the lock of the key, and has the given version, if any. Returns
    /// `false` if there is no such request. `czxid` is the id of the transaction that created the marker.
    ///
    /// A znode cannot be deleted by its czxid. But only transactions of the lock's owner create a marker. So while the
    /// owner exists and writes nothing, each attempt finds either the same marker or none.
    fn delete_marker(&self, key: &Key, czxid: i64, request: &str, version: Option<i32>) -> Result<bool> {
        let operations = [
            Op::Check { path: key.dir.child(request).to_string(), version },
            Op::Delete { path: key.done.to_string(), version: None },
        ];
        match self.retry(key, || self.transact(key, &operations))? {
            Transacted::Committed(_) => Ok(true),
            Transacted::Failed { position: 0, error: ZkError::NoNode | ZkError::BadVersion } => Ok(false),
            // Another client, or an attempt whose reply was lost, has deleted the marker.
            Transacted::Failed { error: ZkError::NoNode, .. } => {
                let core = self.support.session().core();
                self.retry(key, || core.check_gone(Operation::DELETE, &key.done, czxid))?;
                Ok(true)
            }
            Transacted::Failed { error, .. } => Err(LockError::client(Operation::DELETE, &key.done, error)),
        }
    }

    fn lock_of(&self, key: &Key) -> BlockingLock {
        BlockingLock::new(Arc::clone(&self.support), key.dir.clone(), exclusive(&self.support))
    }

    /// Releases the lock of a key, and removes the directory of the key if it is then empty, that is, if the key was
    /// forgotten and nobody else has a request there. The next request creates the directory again.
    fn release(&self, key: &Key, guard: LockGuard) {
        if let Err(error) = guard.unlock().and_then(|_| self.delete(&key.dir)) {
            logging::debug!("the directory {} was not removed: {error}", key.dir);
        }
    }

    fn retry<T>(&self, key: &Key, operation: impl FnMut() -> Result<T>) -> Result<T> {
        self.support.retry(Operation::COMMIT, &key.done, operation)
    }
}

/// Returns the name of the guard's request.
fn request_of(guard: &LockGuard) -> &str {
    guard.id().rsplit('/').next().unwrap_or_default()
}

impl fmt::Debug for RunOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOnce")
            .field("dir", &self.dir)
            .field("repeat", &self.repeat)
            .finish_non_exhaustive()
    }
}

/// After a commit that failed for this reason, returns whether the marker must be read to learn who wrote it.
fn shows_another_marker(reason: ErrorReason) -> bool {
    matches!(reason, ErrorReason::Server(ZkError::NodeExists) | ErrorReason::OutcomeUnknown)
}
