//! [`RecoverableZooKeeper`]: reads and writes of data that take effect at most once.
//!
//! Origin: HBase's class of this name. After a lost reply, HBase's class concludes more than it can know. Here the
//! outcome is reported as unknown instead.

mod attempt;
mod call;
mod mark;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use self::attempt::Attempts;
use self::call::{Change, Create, CreateSequential, Delete, Payload, SetData};
pub(crate) use self::mark::unmarked;
use crate::client::{Acl, Ask, Call, CreateMode, Stat};
use crate::error::{Operation, Result};
use crate::lock_options::LockOptions;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::path::ZNodePath;
use crate::retry::RetryPolicy;
use crate::session::{Core, Session};

/// Reads and writes of znodes that are retried, but take effect at most once.
///
/// Use it for data that is kept beside a lock. After a lost connection, a call finds out whether it took effect. It is
/// sent again only if repeating it is harmless.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{RetryPolicy, Session};
/// use zookeeper_recipes_lock::client::{Acl, CreateMode};
/// use zookeeper_recipes_lock::data::RecoverableZooKeeper;
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let delay = Duration::from_millis(100);
/// let policy = RetryPolicy::exponential(delay, Duration::from_secs(2));
/// let zookeeper = RecoverableZooKeeper::new(&session, policy);
///
/// zookeeper.create("/counter", b"0", &Acl::open_unsafe(), CreateMode::Persistent)?;
/// let (count, stat) = zookeeper.get_data("/counter")?;
/// assert_eq!(count, b"0");
/// // Counted once, even if the reply is lost.
/// zookeeper.set_data("/counter", b"1", Some(stat.version))?;
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
///
/// # What the result means
/// - `Ok`: the call took effect, exactly once.
/// - [`Server`](crate::ErrorReason::Server), with the server's refusal: the call had no effect and never will.
/// - [`OutcomeUnknown`](crate::ErrorReason::OutcomeUnknown): the call may have taken effect, or may still do so.
///
/// [What it cannot know](#what-it-cannot-know) lists the exceptions.
///
/// # After a lost reply
/// A call whose reply was lost may take effect late, even after calls that were made after it, because a paused server
/// passes on what it has received as soon as it resumes. So sending a call again could do harm. For example, it could
/// create a queue item again after a consumer has taken it, or delete a znode that was created in place of a deleted
/// one. Therefore each modifying call first reads the current state, which costs one extra round trip. After a lost
/// reply, the call reads the state again and compares:
///
/// - [`create`](RecoverableZooKeeper::create) took effect if the znode has the call's mark or, for a sequential znode,
///   if a child's name has the call's GUID. The call is never sent again.
/// - [`set_data`](RecoverableZooKeeper::set_data) took effect if the data has the call's mark. The call is sent again
///   if the znode is still the same one, and either still has the required version or provably lost that version to a
///   write by another client.
/// - [`delete`](RecoverableZooKeeper::delete) took effect if the znode is gone, and previously had the required version
///   and no children. The call is never sent again.
/// - [`exists`](RecoverableZooKeeper::exists), [`get_data`](RecoverableZooKeeper::get_data) and
///   [`get_children`](RecoverableZooKeeper::get_children) are always sent again, and so is the read before a modifying
///   call. Therefore, if contact is missing when a call starts, only a read is lost, and the outcome stays certain.
///
/// A `set_data` requires a version: the caller's or, if READ is granted, the one that was read. At most one of the
/// writes that require the same version takes effect. So a write may be sent again as often as the policy allows, and
/// undoes nothing if it arrives late. The outcome is never unknown if the znode exists, no other client changes it, and
/// READ is granted.
///
/// Two znodes are the same if they were created by the same transaction. Servers show the mark only with READ
/// permission. Servers since 3.8.4 and 3.9.2 also show the transaction id only with READ permission. Without that
/// permission, the outcome after a lost reply is unknown, except that of a `delete` without a version.
///
/// # The mark
/// The mark is 21 bytes in front of the data, in HBase's format: the byte 255, the length 16 in four bytes, and a
/// random GUID, which is different for every call. [`get_data`](RecoverableZooKeeper::get_data) removes the mark.
/// Programs that read the same znodes by other means see it, unless it is [left
/// out](RecoverableZooKeeper::with_plain_data).
///
/// # Sessions
/// Every call blocks until it is answered, the retry policy gives up, or the session ends. A call stays on the session
/// on which it began, even if that session is [replaced](crate::SessionBuilder::replace_lost_sessions).
///
/// # What it cannot know
/// - Which client deleted a znode. A server keeps no trace of that. So a `delete` whose request was lost succeeds if
///   another client has since deleted the znode. The call's own request may still arrive later, and delete a znode that
///   was created in the meantime. So do not use a deletion to decide which of two consumers gets a queue item. Take a
///   lock, or first claim the item with a `set_data` at its version, which succeeds for only one consumer.
/// - Whether a znode has been replaced. If the znode of a lost write is deleted and created again, the new znode may
///   have the version that the write requires. A lost write may take effect up to two minutes late, so do not create a
///   znode again within two minutes after a lost reply.
/// - Which of two clients wrote the same bytes, if the bytes are [not marked](RecoverableZooKeeper::with_plain_data).
/// - Whether data that seems to begin with a mark really does. Data of other writers is mistaken for marked data if it
///   begins with the bytes 255, 0, 0, 0, 16 and the next 16 bytes have the version and the variant of a random GUID, as
///   one in 64 random sequences does. HBase's own marks never do, because they contain text.
pub struct RecoverableZooKeeper {
    support: ProtocolSupport,
    form: Form,
}

/// The format of written data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Marked,
    Plain,
}

impl RecoverableZooKeeper {
    /// Creates an instance on a session, with this retry policy.
    ///
    /// Sends nothing to the servers.
    #[must_use]
    pub fn new(session: &Session, policy: RetryPolicy) -> RecoverableZooKeeper {
        let options = LockOptions::new().retry(policy);
        let support = ProtocolSupport::with_checked_options(session, options);
        RecoverableZooKeeper { support, form: Form::Marked }
    }

    /// Omits the mark, so that other programs can read the data.
    ///
    /// Without a mark, a call recognizes its effect only by the data itself. Only the creation of an ephemeral znode also
    /// checks the session. If another client may write the same bytes, add something to them that only this writer uses.
    /// The calls of this instance do not remove marks from the data that they read.
    #[must_use]
    pub fn with_plain_data(self) -> RecoverableZooKeeper {
        RecoverableZooKeeper { form: Form::Plain, ..self }
    }

    pub(crate) fn session(&self) -> &Session {
        self.support.session()
    }

    /// Creates a znode, and returns its path.
    ///
    /// The parent must exist. A sequential znode gets a GUID between its name and its number: `/queue/item-` becomes
    /// `/queue/item-<guid>-0000000007`. Do not create one in the directory of a lock, where it would count as a
    /// request.
    ///
    /// # Errors
    /// - [`Server`](crate::ErrorReason::Server) with the server's answer: `NodeExists` if a znode already exists at the
    ///   path, `NoNode` if the parent is missing, `NoChildrenForEphemerals` if the parent is ephemeral. Nothing was
    ///   created.
    /// - [`OutcomeUnknown`](crate::ErrorReason::OutcomeUnknown): either a reply could not be read, or a reply was lost
    ///   and the znode does not exist, belongs to another client, was changed, or cannot be read because READ is not
    ///   granted. The znode may still be created.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): CREATE is not granted on the parent.
    /// - [`InvalidAcl`](crate::ErrorReason::InvalidAcl): the server refused the ACL.
    /// - [`SessionFull`](crate::ErrorReason::SessionFull), [`Refused`](crate::ErrorReason::Refused),
    ///   [`Unsupported`](crate::ErrorReason::Unsupported), [`EndsConnection`](crate::ErrorReason::EndsConnection).
    ///   Nothing was created.
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss): the last attempt that the policy allows has failed.
    ///   The call may have taken effect, or may still do so.
    /// - [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed): a pending call may
    ///   have taken effect.
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid. Nothing was sent.
    /// - [`CallTooLong`](crate::ErrorReason::CallTooLong): the data or the ACL is too long. Nothing was
    ///   written.
    pub fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> Result<String> {
        let (written, acl) = (self.written(data), acl.to_vec());
        let (path, _) = match mode {
            CreateMode::PersistentSequential | CreateMode::EphemeralSequential => {
                let guid = self.session().core().new_guid();
                let path = ZNodePath::parse(&format!("{path}{guid}-"))?;
                let data = written.data;
                self.write(Operation::CREATE, path, CreateSequential { data, acl, mode })?
            }
            _ => self.write(Operation::CREATE, ZNodePath::parse(path)?, Create { written, acl, mode })?,
        };
        Ok(path)
    }

    /// Deletes a znode.
    ///
    /// With `Some(version)`, the znode is deleted only if its data has that version. -1 means the same as `None`.
    ///
    /// # Errors
    /// - [`Server`](crate::ErrorReason::Server) with the server's answer: `NoNode`, `BadVersion`,
    ///   `NotEmpty`. This call deleted nothing.
    /// - [`OutcomeUnknown`](crate::ErrorReason::OutcomeUnknown): a reply was lost. Either a znode exists at the path
    ///   and may still be deleted, or no znode exists but this call may not have deleted it: before the call, the znode
    ///   was missing, had children, or had a version that was different or could not be read.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): DELETE is not granted on the parent.
    /// - All others are the same as for [`create`](RecoverableZooKeeper::create).
    pub fn delete(&self, path: &str, version: Option<i32>) -> Result<()> {
        self.write(Operation::DELETE, ZNodePath::parse(path)?, Delete { version: conditional(version) })
    }

    /// Replaces the data of a znode, and returns its new metadata.
    ///
    /// With `Some(version)`, the data is replaced only if it has that version. With `None` or -1, the call requires the
    /// version that it has read, and starts again immediately whenever another client has written in between. If the
    /// server hides the version, because READ is not granted, the call is sent once, without a version.
    ///
    /// # Errors
    /// - [`Server`](crate::ErrorReason::Server) with the server's answer: `NoNode`, or `BadVersion`
    ///   if another client has replaced that version. Nothing was written.
    /// - [`OutcomeUnknown`](crate::ErrorReason::OutcomeUnknown): either a reply could not be read, or a reply was lost
    ///   and READ is not granted, or a reply was lost and other clients have since written the data or deleted the
    ///   znode. The znode may have had this call's data in the meantime.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): WRITE is not granted.
    /// - All others are the same as for [`create`](RecoverableZooKeeper::create).
    pub fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> Result<Stat> {
        let written = self.written(data);
        let path = ZNodePath::parse_or_root(path)?;
        self.write(Operation::SET_DATA, path, SetData { written, version: conditional(version) })
    }

    /// Returns a znode's metadata, or `None` if it does not exist.
    ///
    /// # Errors
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss): the last attempt that the policy allows has failed.
    /// - [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed).
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): the server requires READ.
    /// - [`Refused`](crate::ErrorReason::Refused): the server throttles its clients.
    pub fn exists(&self, path: &str) -> Result<Option<Stat>> {
        self.read(Operation::READ, path, |path| Call::exists(path, false))
    }

    /// Returns a znode's data without the mark, and its metadata.
    ///
    /// The data length in the metadata includes the mark. With [plain data](RecoverableZooKeeper::with_plain_data), the
    /// data is returned as it is.
    ///
    /// # Errors
    /// - [`Server`](crate::ErrorReason::Server) with `NoNode`: the znode does not exist.
    /// - All others are the same as for [`exists`](RecoverableZooKeeper::exists).
    pub fn get_data(&self, path: &str) -> Result<(Vec<u8>, Stat)> {
        let (data, stat) = self.read(Operation::READ, path, |path| Call::get_data(path, false))?;
        match self.form {
            Form::Marked => Ok((mark::unmarked(&data).to_vec(), stat)),
            Form::Plain => Ok((data, stat)),
        }
    }

    /// Returns the names of a znode's children, in no particular order.
    ///
    /// # Errors
    /// The same as [`get_data`](RecoverableZooKeeper::get_data).
    pub fn get_children(&self, path: &str) -> Result<Vec<String>> {
        self.read(Operation::LIST, path, |path| Call::get_children(path, false)).map(Vec::from)
    }

    fn written(&self, data: &[u8]) -> Payload {
        let is_marked = self.form == Form::Marked;
        let data = match self.form {
            Form::Marked => mark::marked(self.session().core().new_guid(), data),
            Form::Plain => data.to_vec(),
        };
        Payload { data, is_marked }
    }

    fn write<C: Change>(&self, operation: Operation, path: ZNodePath, call: C) -> Result<C::Output> {
        let mut attempts = Attempts::new(operation, path.clone(), call);
        self.retry(operation, &path, |core| attempts.make(core))
    }

    fn read<T>(&self, operation: Operation, path: &str, ask: fn(&ZNodePath) -> Ask<T>) -> Result<T> {
        let path = ZNodePath::parse_or_root(path)?;
        self.retry(operation, &path, |core| core.call(operation, &path, ask(&path)))
    }

    /// Makes attempts until one is answered, the session ends, or the retry policy gives up.
    fn retry<T>(
        &self,
        operation: Operation,
        path: &ZNodePath,
        mut attempt: impl FnMut(&Arc<Core>) -> Result<T>,
    ) -> Result<T> {
        // All attempts use the session that is current now, even if it is replaced: a later session does not own the
        // ephemeral znodes of this call.
        let core = self.session().core();
        self.support.retry(operation, path, || attempt(&core))
    }
}

/// Turns -1 into `None`, because to the server -1 means "any version".
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
