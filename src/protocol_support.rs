//! [`ProtocolSupport`]: what every recipe needs: a session, settings and retries.
//!
//! Origin: the Java class of this name. The Java `WriteLock` inherits from it; here a lock has one.

use std::fmt;
use std::time::Duration;

use crate::client::{Acl, Call, CreateMode};
use crate::error::{ErrorReason, LockError, Operation, Result, ZkError};
use crate::lock_options::{LockOptions, check_data};
use crate::logging;
use crate::operation::ZooKeeperOperation;
use crate::recipe::path::ZNodePath;
use crate::retry::RetryCounter;
use crate::session::Session;
use crate::time::{Latch, submit_wake_up};
use crate::wait::CancelToken;

/// Retries after a lost connection, and znodes that must exist.
///
/// `Send` and `Sync`. Clones share the session.
#[derive(Clone)]
pub struct ProtocolSupport {
    session: Session,
    options: LockOptions,
    /// Ends every pause between two attempts.
    closed: CancelToken,
}

impl ProtocolSupport {
    /// Makes one on a session, with the default [`LockOptions`].
    #[must_use]
    pub fn new(session: &Session) -> ProtocolSupport {
        ProtocolSupport::with_checked_options(session, LockOptions::new())
    }

    /// Makes one on a session. It uses the ACL and the retry policy of the options.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument) when the options hold more than about 1 MiB
    /// of data or a [`max_hold`](LockOptions::max_hold) of zero.
    pub fn with_options(session: &Session, options: LockOptions) -> Result<ProtocolSupport> {
        options.check()?;
        Ok(ProtocolSupport::with_checked_options(session, options))
    }

    /// Makes one with options that come from another lock.
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

    /// The latch that is set when this is closed.
    pub(crate) fn closed(&self) -> &Latch {
        self.closed.latch()
    }

    /// Returns whether this, or a clone of it, was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Closes this and its clones: no operation begins any more, and one that waits for its next
    /// attempt fails with [`Closed`](crate::ErrorReason::Closed). The session stays open.
    pub fn close(&self) {
        // In a forked child, where every call fails, those that wait are the parent's, and a mutex may stay held for ever.
        if !self.session.process().is_current() {
            return;
        }
        self.closed.cancel();
        submit_wake_up(self.session.core().runtime(), self.closed());
    }

    /// Executes an operation, and repeats it after each connection loss as the
    /// [retry policy](LockOptions::retry) allows. Blocks meanwhile.
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
    /// The first error, when every attempt lost its connection. Any other error of the operation at
    /// once, [`SessionLost`](crate::ErrorReason::SessionLost) for example.
    pub fn retry_operation<O: ZooKeeperOperation>(&self, operation: O) -> Result<O::Output> {
        self.retry(Operation::RETRY, "an operation", operation)
    }

    /// As `retry_operation`, for an operation of this crate that errors name.
    pub(crate) fn retry<O: ZooKeeperOperation>(
        &self,
        named: Operation,
        path: impl fmt::Display,
        mut operation: O,
    ) -> Result<O::Output> {
        let policy = self.options.retry_policy();
        let mut counter = RetryCounter::default();
        loop {
            self.check_open(named, &path)?;
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

    /// Ensures that a persistent znode exists at this path, with its parents. It has no data, and
    /// the ACL of the options.
    ///
    /// # Errors
    /// As [`ensure_exists`](ProtocolSupport::ensure_exists).
    pub fn ensure_path_exists(&self, path: &str) -> Result<()> {
        self.ensure_exists(path, &[], self.options.shared_acl(), CreateMode::Persistent)
    }

    /// Ensures that a znode exists at this path: creates it if it is missing, and missing parents
    /// with the ACL of the options. An existing znode stays as it is.
    ///
    /// # Errors
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument).
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument): too much data, or a sequential mode, in
    ///   which every attempt would create another znode.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied), [`InvalidAcl`](crate::ErrorReason::InvalidAcl).
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss) after the last attempt.
    /// - [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed).
    pub fn ensure_exists(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> Result<()> {
        let path = ZNodePath::parse(path)?;
        check_data(data)?;
        if mode.is_sequential() {
            let rule = "a sequential znode cannot be ensured, each attempt would create another";
            return Err(LockError::invalid_argument("create mode", rule));
        }
        self.retry(Operation::CREATE, &path, || {
            let core = self.session.core();
            let create = || core.ask(Call::create(&path, data, acl, mode));
            let created = match (create(), path.parent()) {
                (Err(ZkError::NoNode), Some(parent)) => core
                    .ensure_path(&parent, self.options.shared_acl(), CreateMode::Persistent)
                    .and_then(|()| create()),
                (created, _) => created,
            };
            match created {
                Ok(_) | Err(ZkError::NodeExists) => Ok(()),
                Err(ZkError::NoNode) => {
                    let chroot = core.client().chroot();
                    Err(LockError::no_chroot(Operation::CREATE, &path, chroot.as_deref()))
                }
                Err(error) => Err(core.failure(Operation::CREATE, &path, error)),
            }
        })
    }

    pub(crate) fn check_open(&self, operation: Operation, path: impl fmt::Display) -> Result<()> {
        if self.is_closed() { Err(LockError::of(ErrorReason::Closed, operation, path)) } else { Ok(()) }
    }

    /// Waits, at most until this is closed or the session ends: the next attempt on it fails then. An
    /// operation of the application's may go on elsewhere, with pauses.
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

impl fmt::Debug for ProtocolSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtocolSupport")
            .field("session", &self.session)
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
