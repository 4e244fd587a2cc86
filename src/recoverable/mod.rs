//! [`RecoverableZooKeeper`]: calls for the data next to a lock, which are tried again without doing their work twice.
//!
//! Origin: HBase's class of this name. It takes what it finds after a lost reply for its own more readily; here what
//! cannot be told is said to be unknown.

mod attempt;
mod mark;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use zookeeper::{Acl, CreateMode, Stat};

use self::attempt::Attempt;
pub(crate) use self::mark::unmarked;
use crate::error::{Operation, Result};
use crate::protocol_support::{ProtocolSupport, check_data};
use crate::recipe::path::ZNodePath;
use crate::retry::RetryPolicy;
use crate::session::Session;

/// ZooKeeper's calls for data, each tried again when the connection is lost, and each taking effect once.
///
/// A call whose reply was lost may or may not have taken effect, so it cannot simply be made again: its own znode would
/// be in the way of a repeated create, its own version in that of a repeated conditional write. Each call here finds out:
///
/// | call | the repetition meets | it was this call's own if |
/// |---|---|---|
/// | [`create`](RecoverableZooKeeper::create) | `NodeExists` | the znode's data bears the call's mark |
/// | `create`, sequential | another znode beside it | a name in the directory bears the call's GUID |
/// | [`set_data`](RecoverableZooKeeper::set_data) at a version | `BadVersion` | the data of the next version bear the call's mark |
/// | [`delete`](RecoverableZooKeeper::delete) | `NoNode` | taken for it: the znode is gone |
/// | [`exists`](RecoverableZooKeeper::exists), [`get_data`](RecoverableZooKeeper::get_data), [`get_children`](RecoverableZooKeeper::get_children) | nothing | |
///
/// Where another client has written in between, so that the znode no longer tells, the call fails with
/// [`OutcomeUnknown`](crate::LockError::OutcomeUnknown).
///
/// The mark is 21 bytes in front of the data, in HBase's format; [`get_data`](RecoverableZooKeeper::get_data) takes it off
/// again. Programs that read the same znodes otherwise see it, unless it is [left out](RecoverableZooKeeper::with_plain_data).
///
/// Every call blocks; the end of the session ends it, also when it is stuck, and so does
/// [closing](ProtocolSupport::close) the [`protocol_support`](RecoverableZooKeeper::protocol_support). A call goes on on
/// the session that it began on, also where that [heals itself](Session::connect_self_healing). `Send` and `Sync`.
///
/// # What it cannot tell
/// - Whether a znode was created, and deleted by another at once, before the repetition: then it is created a second time.
/// - Whether it was this call that deleted a znode, or another, or whether there was none, when contact was lost meanwhile.
/// - A repeated deletion may strike a znode that another has made in its place, if that has the same version.
/// - A repeated write without a version may replace what another has written in between.
///
/// # Example
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{Acl, CreateMode, RecoverableZooKeeper, RetryPolicy, Session};
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
/// let policy = RetryPolicy::bounded_exponential(Duration::from_millis(100), Duration::from_secs(2));
/// let zookeeper = RecoverableZooKeeper::new(&session, policy);
///
/// zookeeper.create("/counter", b"0", Acl::open_unsafe(), CreateMode::Persistent)?;
/// let (count, stat) = zookeeper.get_data("/counter")?;
/// assert_eq!(count, b"0");
/// // Counted once, whatever becomes of the reply.
/// zookeeper.set_data("/counter", b"1", Some(stat.version))?;
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
pub struct RecoverableZooKeeper {
    support: ProtocolSupport,
    form: Form,
}

/// How data are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Marked,
    Plain,
}

impl RecoverableZooKeeper {
    /// Makes one on a session, with this policy for its repetitions. Sends nothing.
    #[must_use]
    pub fn new(session: &Session, policy: RetryPolicy) -> RecoverableZooKeeper {
        let support = ProtocolSupport::new(session);
        support.set_retry_policy(policy);
        RecoverableZooKeeper { support, form: Form::Marked }
    }

    /// Leaves the data as they are, without a mark, for znodes that other programs read.
    ///
    /// A call then knows its own by the data alone: if another client can write the same bytes, put something of the
    /// writer's own into them (the session's life for ephemeral znodes, as an older one of the same process may still be
    /// there).
    #[must_use]
    pub fn with_plain_data(self) -> RecoverableZooKeeper {
        RecoverableZooKeeper { form: Form::Plain, ..self }
    }

    /// Returns what the calls stand on: the session, the retries, and an end to them.
    #[must_use]
    pub fn protocol_support(&self) -> &ProtocolSupport {
        &self.support
    }

    /// Returns the session.
    #[must_use]
    pub fn session(&self) -> &Session {
        self.support.session()
    }

    /// Creates a znode and returns its path. Its parent must exist.
    ///
    /// A sequential znode gets a GUID between its name and its number: `/queue/item-` becomes
    /// `/queue/item-<guid>-0000000007`. Make none in the directory of a lock, where it would count as a request.
    ///
    /// # Errors
    /// - [`Client`](crate::LockError::Client) with the server's answer: `NodeExists` when the znode is another's, `NoNode`
    ///   when the parent is missing, `NoChildrenForEphemerals`.
    /// - [`OutcomeUnknown`](crate::LockError::OutcomeUnknown): a znode was there after a lost reply, and has been changed or
    ///   deleted since.
    /// - [`AccessDenied`](crate::LockError::AccessDenied): CREATE is denied on the parent, or READ on a znode whose maker
    ///   must be found out. [`InvalidAcl`](crate::LockError::InvalidAcl).
    /// - [`ConnectionLoss`](crate::LockError::ConnectionLoss): the last attempt that the policy allows has failed.
    /// - [`SessionLost`](crate::LockError::SessionLost), [`Closed`](crate::LockError::Closed).
    /// - [`InvalidPath`](crate::LockError::InvalidPath), and [`InvalidArgument`](crate::LockError::InvalidArgument) for data
    ///   of about 1 MiB and more; nothing was sent.
    pub fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> Result<String> {
        let data = self.formed(data)?;
        let acl = acl.to_vec();
        match mode {
            CreateMode::PersistentSequential | CreateMode::EphemeralSequential => {
                let guid = self.session().core().new_guid();
                let path = ZNodePath::parse(&format!("{path}{guid}-"))?;
                self.retry(Operation::CREATE, path, move |attempt| {
                    attempt.create_sequential(&data, &acl, mode)
                })
            }
            _ => self.retry(Operation::CREATE, ZNodePath::parse(path)?, move |attempt| {
                attempt.create(&data, &acl, mode)
            }),
        }
    }

    /// Deletes a znode; with `Some(version)` only at that version of its data.
    ///
    /// # Errors
    /// [`Client`](crate::LockError::Client) with the server's answer: `NoNode` when the first attempt was answered so,
    /// `BadVersion`, `NotEmpty`. Otherwise as [`create`](RecoverableZooKeeper::create).
    pub fn delete(&self, path: &str, version: Option<i32>) -> Result<()> {
        self.retry(Operation::DELETE, ZNodePath::parse(path)?, move |attempt| attempt.delete(version))
    }

    /// Replaces a znode's data; with `Some(version)` only at that version. Returns the new metadata.
    ///
    /// # Errors
    /// - [`Client`](crate::LockError::Client) with the server's answer: `NoNode`, or `BadVersion` when another client's
    ///   data have that place.
    /// - [`OutcomeUnknown`](crate::LockError::OutcomeUnknown): after a lost reply the data have been replaced more than
    ///   once.
    ///
    /// Otherwise as [`create`](RecoverableZooKeeper::create).
    pub fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> Result<Stat> {
        let data = self.formed(data)?;
        let path = ZNodePath::parse_or_root(path)?;
        self.retry(Operation::SET_DATA, path, move |attempt| attempt.set_data(&data, version))
    }

    /// Returns a znode's metadata, or `None` when there is no such znode.
    ///
    /// # Errors
    /// [`ConnectionLoss`](crate::LockError::ConnectionLoss) after the last attempt,
    /// [`SessionLost`](crate::LockError::SessionLost), [`Closed`](crate::LockError::Closed),
    /// [`InvalidPath`](crate::LockError::InvalidPath); [`AccessDenied`](crate::LockError::AccessDenied) where the server
    /// asks for READ.
    pub fn exists(&self, path: &str) -> Result<Option<Stat>> {
        self.retry(Operation::READ, ZNodePath::parse_or_root(path)?, |attempt| {
            attempt.answered(attempt.core.read(|client| client.exists(attempt.path.as_str(), false)))
        })
    }

    /// Returns a znode's data, without the mark, and its metadata, which counts the mark in the length.
    ///
    /// # Errors
    /// [`Client`](crate::LockError::Client) with `NoNode`. Otherwise as [`exists`](RecoverableZooKeeper::exists).
    pub fn get_data(&self, path: &str) -> Result<(Vec<u8>, Stat)> {
        let (data, stat) = self.retry(Operation::READ, ZNodePath::parse_or_root(path)?, |attempt| {
            attempt.answered(attempt.core.read(|client| client.get_data(attempt.path.as_str(), false)))
        })?;
        match self.form {
            Form::Marked => Ok((mark::unmarked(data), stat)),
            Form::Plain => Ok((data, stat)),
        }
    }

    /// Returns the names of a znode's children, in no order.
    ///
    /// # Errors
    /// As [`get_data`](RecoverableZooKeeper::get_data).
    pub fn get_children(&self, path: &str) -> Result<Vec<String>> {
        self.retry(Operation::LIST, ZNodePath::parse_or_root(path)?, |attempt| {
            attempt.answered(attempt.core.read(|client| client.get_children(attempt.path.as_str(), false)))
        })
    }

    /// The data as they are written.
    fn formed(&self, data: &[u8]) -> Result<Vec<u8>> {
        let data = match self.form {
            Form::Marked => mark::marked(self.session().core().new_guid(), data),
            Form::Plain => data.to_vec(),
        };
        check_data(&data)?;
        Ok(data)
    }

    /// Makes attempts, each on a worker, until one is answered.
    fn retry<T: Send + 'static>(
        &self,
        operation: Operation,
        path: ZNodePath,
        call: impl Fn(&Attempt) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        // Of a session that heals itself the one of now: a later one does not own the ephemeral znodes of this call.
        let core = self.session().core();
        let mut next = Attempt { core, operation, path, is_repetition: false };
        let call = Arc::new(call);
        let named = next.path.clone();
        self.support.retry(operation.name, &named, || {
            let (call, attempt) = (Arc::clone(&call), next.clone());
            next.is_repetition = true;
            next.core.check_open(operation, &next.path)?;
            next.core.call(operation, &next.path, move |_| call(&attempt))?
        })
    }
}

impl fmt::Debug for RecoverableZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecoverableZooKeeper")
            .field("support", &self.support)
            .field("form", &self.form)
            .finish()
    }
}
