//! [`RunOnce`]: a job that runs once for a key, in one of many processes.
//!
//! A lock per key excludes others while a job runs, and a persistent znode beside its requests marks
//! the key afterwards. The marker is written in a transaction that checks the lock's znode, so a
//! process that has been replaced marks nothing.

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

/// The time for which [`RunOnce::forget`] waits for the lock of a key, before it checks again whether the key
/// is marked.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The rule that decides whether a failed job is run again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Repeat {
    /// At most once; the default. The key is marked before the job begins. So a job that fails,
    /// panics or is killed with its process is not repeated, and may have run only in part. If the
    /// marker is written but its reply is lost for good, the job does not run at all.
    #[default]
    Never,
    /// At least once, until it has succeeded. The key is marked after the job. So a job whose process
    /// dies, or loses the lock before the marker is written, is repeated, although it may have done
    /// all of its work. Write it so that a repetition does no harm.
    UntilSuccess,
}

/// The outcome of [`RunOnce::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum RunOutcome<T, E> {
    /// The job ran here and succeeded.
    Ran(T),
    /// The job ran here and failed. Under [`Repeat::UntilSuccess`] the next call runs it again.
    Failed(E),
    /// The key is marked: the job did not run here. Under [`Repeat::Never`] it may have failed, or
    /// its process may have died.
    #[non_exhaustive]
    AlreadyDone {
        /// The [data](LockOptions::data) of the process that ran it: `host/pid` by default.
        by: String,
        /// The time at which the key was marked, by the server's clock.
        at: SystemTime,
    },
    /// Another thread or process runs the job, is about to, or forgets the key at this moment.
    InProgress,
}

/// Runs a job once for a key, in one of any number of processes: a tick of a clock, a migration.
///
/// All processes call [`run`](RunOnce::run) with the same key and the same job. One of them runs it,
/// the others return at once. [`Repeat`] says what happens to a job that fails or is killed.
///
/// | | [`Repeat::Never`] (default) | [`Repeat::UntilSuccess`] |
/// |---|---|---|
/// | the key is marked | before the job | after the job has succeeded |
/// | the job runs | at most once | at least once, if somebody calls often enough |
/// | the job fails or panics | is not repeated | is repeated by the next call |
/// | the process is killed during the job | is not repeated | is repeated after the session timeout |
/// | the lock is lost during the job | the job may run on; nobody repeats it | may be repeated by another while it runs: ask [`LockGuard::is_owner`] |
///
/// A key is any text of up to 255 bytes that is not empty; `/` and control characters are escaped as
/// by [`NamedLocks`](crate::locks::NamedLocks). The marker of a key is the znode `<dir>/<key>/done`, and
/// stays until it is [forgotten](RunOnce::forget) or [reaped](RunOnce::reap). All processes should
/// use the same [`Repeat`] for a key.
///
/// It needs transactions, which a handle of the crate `zookeeper` does not have: there every job is refused
/// with [`Unsupported`](crate::ErrorReason::Unsupported) before it runs, and so is each marker's deletion.
///
/// `Send` and `Sync`, and cheap to clone.
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
#[derive(Clone)]
pub struct RunOnce {
    support: Arc<ProtocolSupport>,
    dir: ZNodePath,
    repeat: Repeat,
}

impl RunOnce {
    /// Runs each job at most once, with the default [`LockOptions`]. Sends nothing: the first job
    /// creates the directory if it is missing.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument).
    pub fn new(session: &Session, dir: &str) -> Result<RunOnce> {
        RunOnce::with_options(session, dir, LockOptions::new(), Repeat::Never)
    }

    /// As [`new`](RunOnce::new), with other options. The markers have their ACL and data.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument), and [`InvalidArgument`](crate::ErrorReason::InvalidArgument)
    /// for more than about 1 MiB of data or a [`max_hold`](LockOptions::max_hold) of zero.
    pub fn with_options(
        session: &Session,
        dir: &str,
        options: LockOptions,
        repeat: Repeat,
    ) -> Result<RunOnce> {
        let dir = ZNodePath::parse(dir)?;
        let support = Arc::new(ProtocolSupport::with_options(session, options)?);
        Ok(RunOnce { support, dir, repeat })
    }

    /// Runs the job unless it has run for this key, or runs somewhere at this moment. Blocks for the
    /// server's answers and for the job.
    ///
    /// The job gets the guard of the key's lock. It should ask [`LockGuard::is_owner`] before each
    /// action that must not be done by two processes at once.
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
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the key is empty, or longer than 255 bytes.
    ///   [`InvalidArgument`](crate::ErrorReason::InvalidArgument): its path would be longer than 4096 bytes.
    /// - [`Unsupported`](crate::ErrorReason::Unsupported): the client of the session has no transactions.
    /// - As [`BlockingWriteLock::try_lock`](crate::BlockingWriteLock::try_lock).
    ///
    /// Under [`Repeat::Never`] the job has not run after an error. But after
    /// [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss), [`SessionLost`](crate::ErrorReason::SessionLost),
    /// [`Closed`](crate::ErrorReason::Closed), [`NotOwner`](crate::ErrorReason::NotOwner) and
    /// [`OutcomeUnknown`](crate::ErrorReason::OutcomeUnknown) the key may be marked. Under [`Repeat::UntilSuccess`] the job may have run:
    /// [`NotOwner`](crate::ErrorReason::NotOwner), for one, means that the lock was lost before the marker was
    /// written.
    pub fn run<T, E>(
        &self,
        key: &str,
        job: impl FnOnce(&LockGuard) -> std::result::Result<T, E>,
    ) -> Result<RunOutcome<T, E>> {
        let key = Key::parse(&self.dir, key)?;
        // A server that lags behind may show a marker that was forgotten.
        let marker = match self.retry(&key, || self.read(&key))? {
            Some(_) => self.retry(&key, || self.read_latest(&key))?,
            None => None,
        };
        if let Some(marker) = marker {
            return self.retry(&key, || self.outcome_of(&key, &marker));
        }
        let Some(guard) = self.lock_of(&key).try_lock()? else {
            // The one that has run it may be about to release the lock.
            let marker = self.retry(&key, || self.read(&key))?;
            let outcome = |marker| self.retry(&key, || self.outcome_of(&key, &marker));
            return marker.map_or(Ok(RunOutcome::InProgress), outcome);
        };
        let outcome = self.run_locked(&key, &guard, job);
        // Others see the lock free when this returns.
        if let Err(error) = guard.unlock() {
            logging::debug!("after the job of {}: {error}", key.dir);
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
        // Since the last look, another may have run it and released the lock.
        if let Some(Marker { by, at, .. }) = self.retry(key, || self.read(key))? {
            return Ok(RunOutcome::AlreadyDone { by, at });
        }
        match self.repeat {
            Repeat::Never => {
                if let Some(Marker { by, at, .. }) = self.mark(key, guard, MarkerState::Begun)? {
                    return Ok(RunOutcome::AlreadyDone { by, at });
                }
            }
            // Finds out that there are no transactions before the job, not after it.
            Repeat::UntilSuccess => {
                self.retry(key, || guard.commit(|changes| changes.check(key.dir.as_str())))?;
            }
        }
        logging::debug!("runs the job of {}", key.dir);
        let result = match job(guard) {
            Ok(result) => result,
            Err(error) => return Ok(RunOutcome::Failed(error)),
        };
        if self.repeat == Repeat::UntilSuccess {
            self.mark(key, guard, MarkerState::Done)?;
        }
        Ok(RunOutcome::Ran(result))
    }

    /// Marks the key. Returns the marker of another if there is one.
    fn mark(&self, key: &Key, guard: &LockGuard, state: MarkerState) -> Result<Option<Marker>> {
        let id = request_of(guard);
        let options = self.support.options();
        let data = marker::data(options.shared_data(), id, state);
        let mut may_be_marked = false;
        self.retry(key, || {
            if may_be_marked {
                if let Some(marker) = self.read(key)? {
                    return Ok((marker.id != id).then_some(marker));
                }
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
                // A late first attempt, somebody who does not use the lock, or an unreadable reply.
                Err(error) if shows_another_marker(error.reason()) => {
                    let marker = self.read(key)?.ok_or(error)?;
                    Ok((marker.id != id).then_some(marker))
                }
                Err(error) => Err(error),
            }
        })
    }

    /// Returns what a marker says: done, unless the one that has written it before its job still holds the
    /// lock.
    fn outcome_of<T, E>(&self, key: &Key, marker: &Marker) -> Result<RunOutcome<T, E>> {
        let is_running =
            marker.state == MarkerState::Begun && self.stat(&key.dir.child(&marker.id))?.is_some();
        Ok(match is_running {
            true => RunOutcome::InProgress,
            false => RunOutcome::AlreadyDone { by: marker.by.clone(), at: marker.at },
        })
    }

    /// Forgets that the job has run for a key, so that it can run again. Returns whether the key was
    /// marked. A job that runs at this moment is not disturbed.
    ///
    /// The marker is deleted under the lock of the key, unless its writer still holds that lock. A
    /// marker that is written later stays. Blocks while somebody else holds the lock and the marker
    /// exists.
    ///
    /// # Errors
    /// As [`run`](RunOnce::run) for the key; [`AccessDenied`](crate::ErrorReason::AccessDenied);
    /// [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss), [`SessionLost`](crate::ErrorReason::SessionLost) and
    /// [`Closed`](crate::ErrorReason::Closed), after which the key may be forgotten.
    pub fn forget(&self, key: &str) -> Result<bool> {
        let key = Key::parse(&self.dir, key)?;
        let Some(marker) = self.retry(&key, || self.read_latest(&key))? else { return Ok(false) };
        // Another may be faster, or an attempt whose reply was lost. A later marker stays.
        let is_gone = || {
            let present = self.retry(&key, || self.read_latest(&key))?;
            Ok(present.is_none_or(|present| present.czxid != marker.czxid))
        };
        loop {
            if !marker.id.is_empty() && self.delete_marker(&key, &marker.id)? {
                return Ok(true);
            }
            let wait = Wait::until_moment(self.support.session().core().now().after(LOOK_AGAIN));
            let guard = self.lock_of(&key).try_lock_for(&wait)?;
            let is_forgotten = is_gone().and_then(|is_gone| match &guard {
                Some(guard) if !is_gone => self.delete_marker(&key, request_of(guard)),
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

    /// Forgets all keys that were marked at least this long ago, and returns how many. A key whose
    /// lock is held stays. The age is by the clock of the servers alone, so a wrong clock of this machine
    /// does no harm.
    ///
    /// Choose a time after which nobody asks for these keys any more: a process that is late would run
    /// their jobs again.
    ///
    /// # Errors
    /// As [`forget`](RunOnce::forget). Keys that were forgotten before the error stay forgotten.
    pub fn reap(&self, older_than: Duration) -> Result<usize> {
        // By the servers' clock, which the creation of a request shows. It may lie a little in the past.
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
            // Since the last look, the key may have been forgotten and marked again.
            let looked = self.retry(&key, || Ok((self.stat(&request)?, self.stat(&key.done)?)));
            let is_gone = looked.and_then(|(own, marker)| {
                now = now.max(own.map(|own| own.created()));
                let is_old = now.zip(marker).is_some_and(|(now, marker)| is_old(marker, now));
                Ok(is_old && self.delete_marker(&key, request_of(&guard))?)
            });
            self.release(&key, guard);
            reaped += usize::from(is_gone?);
        }
        Ok(reaped)
    }

    /// Deletes the marker while a request owns the lock of the key. Returns `false` if the request
    /// does not exist.
    ///
    /// Only the owner's transactions create a marker, and no znode can be deleted by its czxid. As
    /// long as the owner exists and writes nothing, each attempt finds the same marker or none.
    fn delete_marker(&self, key: &Key, request: &str) -> Result<bool> {
        let operations = [
            Op::Check { path: key.dir.child(request).to_string(), version: None },
            Op::Delete { path: key.done.to_string(), version: None },
        ];
        match self.retry(key, || self.transact(key, &operations))? {
            Transacted::Committed(_) => Ok(true),
            Transacted::Failed { position: 0, error: ZkError::NoNode } => Ok(false),
            // Another was faster, or an attempt whose reply was lost.
            Transacted::Failed { error: ZkError::NoNode, .. } => Ok(true),
            Transacted::Failed { error, .. } => Err(LockError::client(Operation::DELETE, &key.done, error)),
        }
    }

    fn lock_of(&self, key: &Key) -> BlockingLock {
        BlockingLock::new(Arc::clone(&self.support), key.dir.clone(), exclusive(&self.support))
    }

    /// Releases the lock of a key that was forgotten, and removes its directory if nobody uses it.
    /// The next request would create it again.
    fn release(&self, key: &Key, guard: LockGuard) {
        if let Err(error) = guard.unlock().and_then(|_| self.delete(&key.dir)) {
            logging::debug!("{} stays: {error}", key.dir);
        }
    }

    fn retry<T>(&self, key: &Key, operation: impl FnMut() -> Result<T>) -> Result<T> {
        self.support.retry(Operation::COMMIT, &key.done, operation)
    }
}

/// The name of the request that holds a lock.
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

/// Returns whether the marker must be read to learn who wrote it, after a commit that ended for this reason.
fn shows_another_marker(reason: ErrorReason) -> bool {
    matches!(reason, ErrorReason::Server(ZkError::NodeExists) | ErrorReason::OutcomeUnknown)
}
