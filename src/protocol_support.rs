//! [`ProtocolSupport`]: what every recipe needs: a session, an ACL, retries, and an end.
//!
//! Origin: the Java class of that name, from which `WriteLock` inherits; here a lock has one.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Acl, CreateMode, ZkError};
use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::error::{LockError, Operation, Result};
use crate::logging;
use crate::operation::ZooKeeperOperation;
use crate::recipe::path::ZNodePath;
use crate::retry::{RetryCounter, RetryPolicy};
use crate::session::Session;

/// The largest data of a znode: the server's default limit of 1 MiB is for the whole packet, path and ACL included.
pub(crate) const MAX_DATA: usize = 1024 * 1024 - 16 * 1024;

/// The helper methods that recipes stand on, with retries when the connection is lost.
///
/// Thread-safe. Settings concern the calls that start after them.
pub struct ProtocolSupport {
    session: Session,
    settings: Mutex<Settings>,
    /// Dropped to close, which ends every pause between two attempts.
    open: Mutex<Option<Sender<Infallible>>>,
    closed: Receiver<Infallible>,
}

#[derive(Clone)]
struct Settings {
    acl: Arc<[Acl]>,
    retry: RetryPolicy,
}

impl ProtocolSupport {
    /// Makes one on a session, with the open ACL (anybody may do anything) and the recipe's retries: ten attempts, linear
    /// backoff by 500 ms.
    #[must_use]
    pub fn new(session: &Session) -> ProtocolSupport {
        let (open, closed) = bounded(0);
        let settings = Settings { acl: Acl::open_unsafe().into(), retry: RetryPolicy::default() };
        ProtocolSupport {
            session: session.clone(),
            settings: Mutex::new(settings),
            open: Mutex::new(Some(open)),
            closed,
        }
    }

    pub(crate) fn with_acl(session: &Session, acl: Option<Vec<Acl>>) -> ProtocolSupport {
        let support = ProtocolSupport::new(session);
        if let Some(acl) = acl {
            support.set_acl(acl);
        }
        support
    }

    /// One with the same settings, and with an end of its own.
    pub(crate) fn sibling(&self) -> ProtocolSupport {
        let sibling = ProtocolSupport::new(&self.session);
        *sibling.settings.lock() = self.settings.lock().clone();
        sibling
    }

    /// Returns the session.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the ACL that created znodes get.
    #[must_use]
    pub fn acl(&self) -> Vec<Acl> {
        self.shared_acl().to_vec()
    }

    /// Sets the ACL that created znodes get.
    pub fn set_acl(&self, acl: Vec<Acl>) {
        self.settings.lock().acl = acl.into();
    }

    /// Returns how often and after which delays operations are tried again: the recipe's way by default.
    #[must_use]
    pub fn retry_policy(&self) -> RetryPolicy {
        self.settings.lock().retry
    }

    /// Sets how often and after which delays operations are tried again, the joining of the queue by a lock's later
    /// requests among them. A lock also looks again after the policy's [`delay`](RetryPolicy::delay) when a look at the
    /// queue has failed although there is contact.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::{BlockingWriteLock, RetryPolicy, Session};
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
    /// let lock = BlockingWriteLock::new(&session, "/locks/report", None)?;
    /// let policy = RetryPolicy::exponential(Duration::from_millis(50)).with_total_time(Duration::from_secs(20));
    /// lock.protocol_support().set_retry_policy(policy);
    /// # Ok::<(), zookeeper_recipes_lock::LockError>(())
    /// ```
    pub fn set_retry_policy(&self, policy: RetryPolicy) {
        self.settings.lock().retry = policy;
    }

    /// Returns the [`delay`](RetryPolicy::delay) of the policy (500 ms by default).
    #[must_use]
    pub fn retry_delay(&self) -> Duration {
        self.retry_policy().delay()
    }

    /// Sets the delay of the policy and leaves the rest of it as it is. By default it is waited not at all before the
    /// second attempt, once before the third, twice before the fourth, and so on.
    pub fn set_retry_delay(&self, delay: Duration) {
        let mut settings = self.settings.lock();
        settings.retry = settings.retry.with_delay(delay);
    }

    /// Returns how often the policy lets an operation be attempted (10 times by default).
    #[must_use]
    pub fn retry_count(&self) -> u32 {
        self.retry_policy().attempts()
    }

    /// Sets how often the policy lets an operation be attempted and leaves the rest of it as it is. Zero counts as one.
    pub fn set_retry_count(&self, attempts: u32) {
        let mut settings = self.settings.lock();
        settings.retry = settings.retry.with_attempts(attempts);
    }

    /// Returns whether [`close`](ProtocolSupport::close) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.open.lock().is_none()
    }

    /// Closes: an operation that waits for its next attempt ends with [`LockError::Closed`], and none begins any more. A lock
    /// that stands on this makes no further request; those that hold or wait stay. The session stays open. Idempotent.
    pub fn close(&self) {
        *self.open.lock() = None;
    }

    /// Executes an operation, and again after each connection loss, as the [policy](ProtocolSupport::retry_policy) says.
    ///
    /// Blocks meanwhile; [`close`](ProtocolSupport::close) ends the waiting.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), zookeeper_recipes_lock::LockError> {
    /// # let session = zookeeper_recipes_lock::Session::connect("127.0.0.1", std::time::Duration::from_secs(10))?;
    /// # fn migrate() -> Result<u32, zookeeper_recipes_lock::LockError> { Ok(1) }
    /// let support = zookeeper_recipes_lock::ProtocolSupport::new(&session);
    /// let migrated = support.retry_operation(|| migrate())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The first error, when every attempt lost its connection; any other error of the operation at once, the loss of
    /// the session among them; [`Closed`](LockError::Closed).
    pub fn retry_operation<O: ZooKeeperOperation>(&self, operation: O) -> Result<O::Output> {
        self.retry("retry", "an operation", operation)
    }

    /// Does the same for an operation of this crate, with errors that name it.
    pub(crate) fn retry<O: ZooKeeperOperation>(
        &self,
        name: &'static str,
        path: impl fmt::Display,
        mut operation: O,
    ) -> Result<O::Output> {
        let policy = self.retry_policy();
        let mut counter = RetryCounter::default();
        loop {
            self.check_open(name, &path)?;
            let error = match operation.execute() {
                Err(error) if error.is_connection_loss() => error,
                result => return result,
            };
            logging::debug!("attempt {} failed: {error}", counter.failures() + 1);
            let delay = counter.failed(error, &policy, &self.session.core())?;
            self.pause(delay);
        }
    }

    /// Ensures that a persistent znode exists at this path, with all its parents, without data and with the ACL set.
    ///
    /// # Errors
    /// As [`ensure_exists`](ProtocolSupport::ensure_exists).
    pub fn ensure_path_exists(&self, path: &str) -> Result<()> {
        self.ensure_exists(path, &[], &self.shared_acl(), CreateMode::Persistent)
    }

    /// Ensures that a znode exists at this path: creates it unless it is there, and the parents that are missing, with the
    /// ACL set. One that is there is left as it is.
    ///
    /// # Errors
    /// [`InvalidPath`](LockError::InvalidPath); [`InvalidArgument`](LockError::InvalidArgument) for too much data or a
    /// sequential mode (every attempt would create another znode); [`AccessDenied`](LockError::AccessDenied);
    /// [`InvalidAcl`](LockError::InvalidAcl);
    /// [`ConnectionLoss`](LockError::ConnectionLoss) after the last attempt; [`SessionLost`](LockError::SessionLost);
    /// [`Closed`](LockError::Closed).
    pub fn ensure_exists(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> Result<()> {
        let path = ZNodePath::parse(path)?;
        check_data(data)?;
        if matches!(mode, CreateMode::PersistentSequential | CreateMode::EphemeralSequential) {
            return Err(LockError::InvalidArgument {
                argument: "create mode",
                rule: "a sequential znode cannot be ensured, each attempt would create another".to_owned(),
            });
        }
        self.retry(Operation::CREATE.name, &path, || {
            self.session.core().check_open(Operation::CREATE, &path)?;
            let (znode, data, acl, parents_acl) =
                (path.clone(), data.to_vec(), acl.to_vec(), self.shared_acl());
            let created = self.session.core().call(Operation::CREATE, &path, move |core| {
                let create = || core.write(|client| client.create(znode.as_str(), &data, &acl, mode));
                match (create(), znode.parent()) {
                    (Err(ZkError::NoNode), Some(parent)) => {
                        core.ensure_path(&parent, &parents_acl).and_then(|()| create())
                    }
                    (created, _) => created,
                }
            })?;
            match created {
                Ok(_) | Err(ZkError::NodeExists) => Ok(()),
                Err(ZkError::NoNode) => {
                    let (operation, path) = (Operation::CREATE.name, path.to_string());
                    Err(LockError::NoChroot { operation, path })
                }
                Err(error) => Err(LockError::client(Operation::CREATE, &path, error)),
            }
        })
    }

    pub(crate) fn shared_acl(&self) -> Arc<[Acl]> {
        Arc::clone(&self.settings.lock().acl)
    }

    pub(crate) fn check_open(&self, operation: &'static str, path: impl fmt::Display) -> Result<()> {
        if self.is_closed() { Err(LockError::Closed { operation, path: path.to_string() }) } else { Ok(()) }
    }

    /// Waits, but not beyond the closing of this or the end of the session: then the next attempt says so.
    fn pause(&self, delay: Duration) {
        if delay.is_zero() {
            return;
        }
        let core = self.session.core();
        crossbeam_channel::select! {
            recv(self.closed) -> _ => {}
            recv(core.ended()) -> _ => {}
            default(delay) => {}
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

pub(crate) fn check_data(data: &[u8]) -> Result<()> {
    if data.len() <= MAX_DATA {
        return Ok(());
    }
    Err(LockError::InvalidArgument {
        argument: "znode data",
        rule: format!("{} bytes are more than the {MAX_DATA} that fit into a request", data.len()),
    })
}
