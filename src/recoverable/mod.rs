//! [`RecoverableZooKeeper`]: calls for the data next to a lock, which are repeated and take effect
//! once.
//!
//! Origin: HBase's class of this name. It concludes more than it can know from what it finds after
//! a lost reply; here the outcome is reported as unknown instead.

mod attempt;
mod call;
mod landmark;
mod mark;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use self::attempt::Attempts;
use self::call::{Call, Create, CreateSequential, Delete, SetData, Written};
pub(crate) use self::mark::unmarked;
use crate::client::ZooKeeperClient;
use crate::client::{Acl, CreateMode, Stat, ZkResult};
use crate::error::{LockError, Operation, Result};
use crate::lock_options::{LockOptions, check_data};
use crate::protocol_support::ProtocolSupport;
use crate::recipe::path::ZNodePath;
use crate::retry::RetryPolicy;
use crate::session::{Core, Session};

/// ZooKeeper's calls for data, each repeated after a connection loss, and each taking effect at
/// most once.
///
/// A call whose reply was lost may have taken effect. It must not simply be sent again: a queue
/// item that a consumer has taken meanwhile would be made twice, and a znode that another client
/// has made in place of a deleted one would be deleted. So each call that changes something reads
/// first what is there, which costs a healthy call one more round trip, and compares after a lost
/// reply:
///
/// | call | it took effect if | it did not, and is sent again, if |
/// |---|---|---|
/// | [`create`](RecoverableZooKeeper::create) | the znode has the call's mark | the znode is older than the call; or fewer children of its parent were created and deleted meanwhile than a hidden effect takes (2 when no znode is there, 3 when another's is) |
/// | `create`, sequential | a child's name has the call's GUID | fewer than 2 children of the parent were created or deleted meanwhile |
/// | [`set_data`](RecoverableZooKeeper::set_data) at a version | the data have the call's mark | the znode is the same, and that version was not replaced, or was by other data |
/// | `set_data` at any version | the data have the call's mark | the znode is the same, and nothing was written |
/// | [`delete`](RecoverableZooKeeper::delete) | the znode was there before, without children and at that version, and is gone | the znode is the same; or it was missing, and none has come |
/// | [`exists`](RecoverableZooKeeper::exists), [`get_data`](RecoverableZooKeeper::get_data), [`get_children`](RecoverableZooKeeper::get_children) | | always |
///
/// Otherwise it fails with [`OutcomeUnknown`](crate::LockError::OutcomeUnknown): an act of another
/// client since the first attempt could have hidden the effect. So an `Ok` means that the call took
/// effect once (but see below for `delete`), and [`Server`](crate::LockError::Server), with the
/// server's refusal, that it did not take effect. While nobody else changes the znode or its
/// siblings, and READ is granted, no outcome is unknown.
///
/// A znode is the same while its creation's transaction id is. The parent's history needs READ
/// there on servers since 3.8.4 and 3.9.2, the mark needs READ on the znode; without them the
/// outcome after a lost reply is unknown.
///
/// The mark is 21 bytes in front of the data, in HBase's format: the byte 255, the length 16 in
/// four bytes, and a random GUID, another for every call.
/// [`get_data`](RecoverableZooKeeper::get_data) takes it off. Programs that read the same znodes
/// otherwise see it, unless it is [left out](RecoverableZooKeeper::with_plain_data).
///
/// Every call blocks. The end of the session ends it, even if it is stuck, and so does
/// [`close`](RecoverableZooKeeper::close). A call stays on the session on which it began, also where
/// that is [replaced](crate::SessionBuilder::replace_lost_sessions). `Send` and `Sync`.
///
/// # What it cannot know
/// - Who deleted a znode. A server keeps no trace of that, so a `delete` whose request was lost
///   succeeds when another client has deleted the znode meanwhile. Do not decide by a deletion
///   which of two consumers takes a queue item: take a lock, or claim the item by `set_data` at its
///   version first, which succeeds for one of them alone.
/// - Which of two clients wrote the same bytes, when they are [not
///   marked](RecoverableZooKeeper::with_plain_data).
/// - Whether data that begin like a mark are marked. Others are taken for marked if they begin with
///   the bytes 255, 0, 0, 0, 16, and the next 16 have the version and the variant of a random GUID,
///   as one in 64 random sequences does. HBase's own marks hold text, which never does.
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
/// zookeeper.create("/counter", b"0", &Acl::open_unsafe(), CreateMode::Persistent)?;
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
        let options = LockOptions::new().retry(policy);
        let support = ProtocolSupport::with_checked_options(session, options);
        RecoverableZooKeeper { support, form: Form::Marked }
    }

    /// Leaves the data as they are, without a mark, for znodes that other programs read.
    ///
    /// A call then recognizes its effect by the data alone, written since it began. If another
    /// client may write the same bytes, put something into them that only this writer has.
    #[must_use]
    pub fn with_plain_data(self) -> RecoverableZooKeeper {
        RecoverableZooKeeper { form: Form::Plain, ..self }
    }

    /// Closes this: a call that waits for its next attempt fails with
    /// [`Closed`](crate::LockError::Closed), and so does every later call. The session stays open.
    /// Idempotent.
    pub fn close(&self) {
        self.support.close();
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
    /// - [`Server`](crate::LockError::Server) with the server's answer: `NodeExists` when the znode is another's, `NoNode`
    ///   when the parent is missing, `NoChildrenForEphemerals`. Nothing was created.
    /// - [`OutcomeUnknown`](crate::LockError::OutcomeUnknown): a reply was lost, and the znode may
    ///   have been created and changed or deleted since, or may not be read.
    /// - [`AccessDenied`](crate::LockError::AccessDenied): CREATE is denied on the parent.
    ///   [`InvalidAcl`](crate::LockError::InvalidAcl).
    /// - [`ConnectionLoss`](crate::LockError::ConnectionLoss): the last attempt that the policy
    ///   allows has failed. It may have taken effect.
    /// - [`SessionLost`](crate::LockError::SessionLost), [`Closed`](crate::LockError::Closed).
    /// - [`InvalidPath`](crate::LockError::InvalidPath), and [`InvalidArgument`](crate::LockError::InvalidArgument) for data
    ///   of about 1 MiB and more; nothing was sent.
    pub fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> Result<String> {
        let (written, acl) = (self.written(data)?, acl.to_vec());
        match mode {
            CreateMode::PersistentSequential | CreateMode::EphemeralSequential => {
                let guid = self.session().core().new_guid();
                let path = ZNodePath::parse(&format!("{path}{guid}-"))?;
                let data = written.data;
                self.write(Operation::CREATE, path, CreateSequential { data, acl, mode })
            }
            _ => self.write(Operation::CREATE, ZNodePath::parse(path)?, Create { written, acl, mode }),
        }
    }

    /// Deletes a znode; with `Some(version)` only at that version of its data.
    ///
    /// # Errors
    /// - [`Server`](crate::LockError::Server) with the server's answer: `NoNode`, `BadVersion`,
    ///   `NotEmpty`. Nothing was deleted by this call.
    /// - [`OutcomeUnknown`](crate::LockError::OutcomeUnknown): a reply was lost, and another znode
    ///   is there now; or none is, and the one before had children or another version.
    ///
    /// Otherwise as [`create`](RecoverableZooKeeper::create).
    pub fn delete(&self, path: &str, version: Option<i32>) -> Result<()> {
        self.write(Operation::DELETE, ZNodePath::parse(path)?, Delete { version: conditional(version) })
    }

    /// Replaces a znode's data; with `Some(version)` only at that version. Returns the new metadata.
    ///
    /// # Errors
    /// - [`Server`](crate::LockError::Server) with the server's answer: `NoNode`, or `BadVersion`
    ///   when another client has replaced that version. Nothing was written.
    /// - [`OutcomeUnknown`](crate::LockError::OutcomeUnknown): a reply was lost, and others have
    ///   written since, or deleted the znode, so that this call's data may have been there between.
    ///
    /// Otherwise as [`create`](RecoverableZooKeeper::create).
    pub fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> Result<Stat> {
        let written = self.written(data)?;
        let path = ZNodePath::parse_or_root(path)?;
        self.write(Operation::SET_DATA, path, SetData { written, version: conditional(version) })
    }

    /// Returns a znode's metadata, or `None` when there is no such znode.
    ///
    /// # Errors
    /// [`ConnectionLoss`](crate::LockError::ConnectionLoss) after the last attempt,
    /// [`SessionLost`](crate::LockError::SessionLost), [`Closed`](crate::LockError::Closed),
    /// [`InvalidPath`](crate::LockError::InvalidPath); [`AccessDenied`](crate::LockError::AccessDenied) where the server
    /// asks for READ.
    pub fn exists(&self, path: &str) -> Result<Option<Stat>> {
        self.read(Operation::READ, path, |client, path| client.exists(path, false))
    }

    /// Returns a znode's data, without the mark, and its metadata, which counts the mark in the length.
    ///
    /// # Errors
    /// [`Server`](crate::LockError::Server) with `NoNode`. Otherwise as [`exists`](RecoverableZooKeeper::exists).
    pub fn get_data(&self, path: &str) -> Result<(Vec<u8>, Stat)> {
        let (data, stat) = self.read(Operation::READ, path, |client, path| client.get_data(path, false))?;
        match self.form {
            Form::Marked => Ok((mark::unmarked(&data).to_vec(), stat)),
            Form::Plain => Ok((data, stat)),
        }
    }

    /// Returns the names of a znode's children, in no order.
    ///
    /// # Errors
    /// As [`get_data`](RecoverableZooKeeper::get_data).
    pub fn get_children(&self, path: &str) -> Result<Vec<String>> {
        self.read(Operation::LIST, path, |client, path| client.get_children(path, false))
    }

    fn written(&self, data: &[u8]) -> Result<Written> {
        let is_marked = self.form == Form::Marked;
        let data = match self.form {
            Form::Marked => mark::marked(self.session().core().new_guid(), data),
            Form::Plain => data.to_vec(),
        };
        check_data(&data)?;
        Ok(Written { data, is_marked })
    }

    fn write<C: Call>(&self, operation: Operation, path: ZNodePath, call: C) -> Result<C::Output> {
        let attempts = Arc::new(Attempts::new(operation, path.clone(), call));
        self.retry(operation, path, move |core| attempts.make(core))
    }

    fn read<T: Send + 'static>(
        &self,
        operation: Operation,
        path: &str,
        call: impl Fn(&dyn ZooKeeperClient, &str) -> ZkResult<T> + Send + Sync + 'static,
    ) -> Result<T> {
        let path = ZNodePath::parse_or_root(path)?;
        let named = path.clone();
        self.retry(operation, path, move |core| {
            let answer = core.read(|client| call(client, named.as_str()));
            answer.map_err(|error| LockError::client(operation, &named, error))
        })
    }

    /// Makes attempts, each on a worker, until one is answered.
    fn retry<T: Send + 'static>(
        &self,
        operation: Operation,
        path: ZNodePath,
        attempt: impl Fn(&Arc<Core>) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        // Of a session that heals itself the one of now: a later one does not own the ephemeral znodes of this call.
        let core = self.session().core();
        let attempt = Arc::new(attempt);
        self.support.retry(operation.name, &path, || {
            let attempt = Arc::clone(&attempt);
            core.check_open(operation, &path)?;
            core.call(operation, &path, move |core| attempt(core))?
        })
    }
}

/// The server takes -1 for any version.
fn conditional(version: Option<i32>) -> Option<i32> {
    version.filter(|version| *version != -1)
}

impl fmt::Debug for RecoverableZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecoverableZooKeeper")
            .field("support", &self.support)
            .field("form", &self.form)
            .finish()
    }
}
