//! [`ProtocolSupport`]: the base of every recipe, with a session, settings and retries.
//!
//! Origin: the Java class of this name. The Java `WriteLock` inherits from it; here a lock contains one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Acl, Ask, Call, CreateMode, Stat};
use crate::error::{ErrorReason, LockError, Operation, Result, ZkError};
use crate::lock_options::LockOptions;
use crate::logging;
use crate::operation::ZooKeeperOperation;
use crate::recipe::path::ZNodePath;
use crate::retry::RetryCounter;
use crate::session::{Core, Session};
use crate::time::{Latch, submit_wake_up};
use crate::wait::CancelToken;

/// A helper for recipes that retries operations and creates missing znodes.
///
/// Use it to build your own recipes on a [`Session`]. Clones share the session, and closing one clone closes all.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{ProtocolSupport, Session};
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let support = ProtocolSupport::new(&session);
/// support.ensure_path_exists("/app/reports")?;
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
#[derive(Clone)]
pub struct ProtocolSupport {
    session: Session,
    options: LockOptions,
    /// Ends every pause between two attempts.
    closed: CancelToken,
}

impl ProtocolSupport {
    /// Creates a helper on a session, with the default [`LockOptions`].
    #[must_use]
    pub fn new(session: &Session) -> ProtocolSupport {
        ProtocolSupport::with_checked_options(session, LockOptions::new())
    }

    /// Creates a helper on a session, with the ACL and the retry policy of the options.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the [`max_hold`](LockOptions::max_hold) of the options
    /// is zero.
    pub fn with_options(session: &Session, options: LockOptions) -> Result<ProtocolSupport> {
        options.check()?;
        Ok(ProtocolSupport::with_checked_options(session, options))
    }

    /// Creates a helper with options that have already been checked.
    pub(crate) fn with_checked_options(session: &Session, options: LockOptions) -> ProtocolSupport {
        ProtocolSupport { session: session.clone(), options, closed: CancelToken::new() }
    }

    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn options(&self) -> &LockOptions {
        &self.options
    }

    /// Returns the latch that [`close`](ProtocolSupport::close) sets.
    pub(crate) fn closed(&self) -> &Latch {
        self.closed.latch()
    }

    /// Returns whether this helper or a clone of it was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Closes this helper and its clones.
    ///
    /// From then on, no operation starts, and an operation that waits for its next attempt fails with
    /// [`Closed`](crate::ErrorReason::Closed). The session stays open.
    pub fn close(&self) {
        // In a forked child, every call fails anyway, waiting calls belong to the parent, and a mutex may stay held
        // forever.
        if !self.session.process().is_current() {
            return;
        }
        self.closed.cancel();
        submit_wake_up(self.session.core().runtime(), self.closed());
    }

    /// Executes an operation, and repeats it after each connection loss.
    ///
    /// The [retry policy](LockOptions::retry) sets the number of attempts and the pauses between them. The call blocks
    /// until the last attempt has ended.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), zookeeper_recipes_lock::LockError> {
    /// # let session = zookeeper_recipes_lock::Session::connect("127.0.0.1", std::time::Duration::from_secs(30))?;
    /// # fn migrate() -> Result<u32, zookeeper_recipes_lock::LockError> { Ok(1) }
    /// let support = zookeeper_recipes_lock::ProtocolSupport::new(&session);
    /// let migrated = support.retry_operation(|| migrate())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// - If every attempt lost its connection, the call returns the first error. Any other error of the operation, for
    ///   example [`SessionLost`](crate::ErrorReason::SessionLost), is returned immediately.
    /// - [`Closed`](crate::ErrorReason::Closed): this helper was closed before an attempt.
    pub fn retry_operation<O: ZooKeeperOperation>(&self, operation: O) -> Result<O::Output> {
        self.repeat(
            || if self.is_closed() { Err(LockError::closed_before_retry()) } else { Ok(()) },
            operation,
        )
    }

    /// Like `retry_operation`, but for an operation of this crate. Errors contain the operation's name and path.
    pub(crate) fn retry<O: ZooKeeperOperation>(
        &self,
        named: Operation,
        path: impl fmt::Display,
        operation: O,
    ) -> Result<O::Output> {
        self.repeat(|| self.check_open(named, &path), operation)
    }

    /// Repeats an operation while `may_start` returns no error.
    fn repeat<O: ZooKeeperOperation>(
        &self,
        may_start: impl Fn() -> Result<()>,
        mut operation: O,
    ) -> Result<O::Output> {
        let policy = self.options.retry_policy();
        let mut counter = RetryCounter::default();
        loop {
            may_start()?;
            let error = match operation.execute() {
                Err(error) if error.is_connection_loss() => error,
                result => return result,
            };
            logging::debug!("attempt {} failed: {error}", counter.failures() + 1);
            let core = self.session.core();
            let delay = counter.failed(error, &policy, core.now(), || core.random_unit())?;
            self.pause(delay);
        }
    }

    /// Creates a persistent znode and its parents if they are missing.
    ///
    /// A new znode has no data, and has the ACL of the options. An existing znode is left as it is.
    ///
    /// # Errors
    /// The same as [`ensure_exists`](ProtocolSupport::ensure_exists).
    pub fn ensure_path_exists(&self, path: &str) -> Result<()> {
        self.ensure_exists(path, &[], self.options.shared_acl(), CreateMode::Persistent)
    }

    /// Creates a znode and its parents if they are missing.
    ///
    /// Missing parents are persistent and have the ACL of the options. An existing znode is left as it is. But with
    /// [`Ephemeral`](CreateMode::Ephemeral), `Ok` means that the znode belongs to this session, and stays until the session
    /// ends or somebody deletes it. With the other modes, `Ok` says nothing about the kind or the owner of an existing
    /// znode.
    ///
    /// # Errors
    /// - [`Server`](crate::ErrorReason::Server) with `NodeExists`: the znode was to be ephemeral, but the existing one is
    ///   persistent or belongs to another session, which the message names. A session that this one has replaced is
    ///   another session, too. To wait until the znode is gone, repeat the call. If the client does not report the id of
    ///   its session, every existing znode leads to this error.
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid, or the mode is sequential. In
    ///   a sequential mode, every attempt would create another znode.
    /// - [`CallTooLong`](crate::ErrorReason::CallTooLong): the data or the ACL is too long.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied), [`InvalidAcl`](crate::ErrorReason::InvalidAcl), or another
    ///   reason for which the server refused the call.
    /// - [`NoChroot`](crate::ErrorReason::NoChroot): the chroot of the connect string does not exist.
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss) after the last attempt.
    /// - [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed).
    pub fn ensure_exists(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> Result<()> {
        let path = ZNodePath::parse(path)?;
        if mode.is_sequential() {
            let rule = "with a sequential mode, each attempt would create another znode";
            return Err(LockError::invalid_argument("create mode", rule));
        }
        self.retry(Operation::CREATE, &path, || {
            let core = self.session.core();
            match self.create_below_parents(&core, &path, || Call::create(&path, data, acl, mode)) {
                Err((_, ZkError::NodeExists)) if mode == CreateMode::Ephemeral => check_is_own(&core, &path),
                Ok(()) | Err((_, ZkError::NodeExists)) => Ok(()),
                Err((_, ZkError::NoNode)) => {
                    let chroot = core.client().identity().chroot;
                    Err(LockError::no_chroot(Operation::CREATE, &path, chroot.as_deref()))
                }
                Err((path, error)) => Err(core.failure(Operation::CREATE, &path, error)),
            }
        })
    }

    /// Creates a znode and its missing parents. Whenever another client deletes a parent before the znode is created,
    /// this starts again, as joining a queue does.
    ///
    /// # Errors
    /// `NoNode` if not even the root exists, because the chroot is missing; otherwise the error of a call. In either
    /// case with the znode that could not be created.
    fn create_below_parents(
        &self,
        core: &Arc<Core>,
        path: &ZNodePath,
        create: impl Fn() -> Ask<(String, Option<Stat>)>,
    ) -> std::result::Result<(), (ZNodePath, ZkError)> {
        loop {
            match (core.ask(create()), path.parent()) {
                (Err(ZkError::NoNode), Some(parent)) => {
                    core.ensure_path(&parent, self.options.shared_acl(), CreateMode::Persistent)?;
                }
                (created, _) => return created.map(drop).map_err(|error| (path.clone(), error)),
            }
        }
    }

    pub(crate) fn check_open(&self, operation: Operation, path: impl fmt::Display) -> Result<()> {
        if self.is_closed() { Err(LockError::of(ErrorReason::Closed, operation, path)) } else { Ok(()) }
    }

    /// Waits for this time. The wait ends early if this helper is closed or the session ends, because the next attempt
    /// would fail anyway. If the session has already ended, the wait takes the full time, because the application's
    /// operation may use another session.
    fn pause(&self, delay: Duration) {
        if delay.is_zero() {
            return;
        }
        let core = self.session.core();
        let until = Some(core.now().after(delay));
        if core.snapshot().end_reason.is_some() {
            core.wait(&[self.closed()], until);
        } else {
            core.wait(&[self.closed(), core.ended()], until);
        }
    }
}

/// Checks that a znode, which a create has found, belongs to this session.
fn check_is_own(core: &Arc<Core>, path: &ZNodePath) -> Result<()> {
    match core.call(Operation::READ, path, Call::exists(path, false))?.map(|stat| stat.session()) {
        Some(Some(owner)) if core.client().identity().session_id == Some(owner) => Ok(()),
        Some(owner) => Err(LockError::znode_of_another(Operation::CREATE, path, owner)),
        // It was deleted in the meantime.
        None => Err(core.failure(Operation::CREATE, path, ZkError::NodeExists)),
    }
}

impl fmt::Debug for ProtocolSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtocolSupport")
            .field("session", &self.session)
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
