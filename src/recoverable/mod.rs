//! [`RecoverableZooKeeper`]: calls for the data next to a lock, which take effect at most once.
//!
//! Origin: HBase's class of this name. After a lost reply, that class concludes more than it can
//! know; here the outcome is reported as unknown instead.

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
use crate::lock_options::{LockOptions, check_data};
use crate::protocol_support::ProtocolSupport;
use crate::recipe::path::ZNodePath;
use crate::retry::RetryPolicy;
use crate::session::{Core, Session};

/// ZooKeeper's calls for data, which take effect at most once although connections are lost.
///
/// A call whose reply was lost may have taken effect, and if it has not, it may still do so: a server that
/// was paused passes on what it has received when it continues, behind later calls. Sending such a call
/// again could cause damage: a queue item that a consumer has taken meanwhile would be created twice, and a
/// znode that was created in place of a deleted one would be deleted. So each modifying call first reads the
/// current state, which costs one extra round trip even without faults, and compares after a lost reply:
///
/// | call | it took effect if | it is sent again if |
/// |---|---|---|
/// | [`create`](RecoverableZooKeeper::create) | the znode has the call's mark | never |
/// | `create`, sequential | a child's name has the call's GUID | never |
/// | [`set_data`](RecoverableZooKeeper::set_data) | the data have the call's mark | the znode is the same, and the version required was not written, or by another client |
/// | [`delete`](RecoverableZooKeeper::delete) | the znode existed before, without children and at that version, and is deleted | never |
/// | [`exists`](RecoverableZooKeeper::exists), [`get_data`](RecoverableZooKeeper::get_data), [`get_children`](RecoverableZooKeeper::get_children) | | always |
///
/// Otherwise it fails with [`OutcomeUnknown`](crate::ErrorReason::OutcomeUnknown): the call may have taken
/// effect, or may still do so. So `Ok` means that the call took effect once, and
/// [`Server`](crate::ErrorReason::Server), with the server's refusal, that it did not and will not; the
/// exceptions are [below](#what-it-cannot-know). The read before a modifying call is always repeated, so a
/// call that begins without contact is not unknown.
///
/// A write is sent at a version: the one that the caller requires, or the one that was read. Of any number
/// of writes at one version, one takes effect at most. So it is sent again as often as the policy allows,
/// and a late one undoes nothing. As long as the znode exists, no other client changes it, and READ is
/// granted, the outcome of a write is never unknown.
///
/// A znode is the same as long as its creation's transaction id is. Servers since 3.8.4 and 3.9.2 show that
/// and the mark only with READ on the znode. Without it, the outcome after a lost reply is unknown.
///
/// The mark is 21 bytes in front of the data, in HBase's format: the byte 255, the length 16 in
/// four bytes, and a random GUID, different for every call.
/// [`get_data`](RecoverableZooKeeper::get_data) removes it. Programs that read the same znodes by
/// other means see it, unless it is [left out](RecoverableZooKeeper::with_plain_data).
///
/// Every call blocks. The end of the session ends it, even if it is stuck. A call stays on the
/// session on which it began, even if that session is
/// [replaced](crate::SessionBuilder::replace_lost_sessions). `Send` and `Sync`.
///
/// # What it cannot know
/// - Which client deleted a znode. A server keeps no trace of that, so a `delete` whose request was
///   lost succeeds if another client has deleted the znode meanwhile. Its own request may then still come,
///   and delete a znode that was created since. Do not use a deletion to
///   decide which of two consumers takes a queue item: take a lock, or first claim the item by
///   `set_data` at its version, which succeeds for only one of them.
/// - Whether a znode has been replaced. If the znode of a lost write is deleted and created again, the new
///   one may have the version that the write requires. A server holds a request back for about
///   `syncLimit` of its ticks, 10 s by default: do not create a znode again within that time of a lost
///   reply.
/// - Which of two clients wrote the same bytes, if they are [not
///   marked](RecoverableZooKeeper::with_plain_data).
/// - Whether data that begin like a mark are marked. Data of other writers are taken for marked if
///   they begin with the bytes 255, 0, 0, 0, 16, and the next 16 have the version and the variant
///   of a random GUID, as one in 64 random sequences does. HBase's own marks hold text, which never
///   does.
///
/// # Example
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
    /// Creates an instance on a session, with this policy for retries. Sends nothing.
    #[must_use]
    pub fn new(session: &Session, policy: RetryPolicy) -> RecoverableZooKeeper {
        let options = LockOptions::new().retry(policy);
        let support = ProtocolSupport::with_checked_options(session, options);
        RecoverableZooKeeper { support, form: Form::Marked }
    }

    /// Writes the data unchanged, without a mark, for znodes that other programs read.
    ///
    /// A call then recognizes its effect only by the data, written since it began. If another
    /// client may write the same bytes, add something to them that only this writer has.
    #[must_use]
    pub fn with_plain_data(self) -> RecoverableZooKeeper {
        RecoverableZooKeeper { form: Form::Plain, ..self }
    }

    pub(crate) fn session(&self) -> &Session {
        self.support.session()
    }

    /// Creates a znode and returns its path. Its parent must exist.
    ///
    /// A sequential znode gets a GUID between its name and its number: `/queue/item-` becomes
    /// `/queue/item-<guid>-0000000007`. Do not create one in the directory of a lock, where it
    /// would count as a request.
    ///
    /// # Errors
    /// - [`Server`](crate::ErrorReason::Server) with the server's answer: `NodeExists` if another
    ///   client's znode exists, `NoNode` if the parent is missing, `NoChildrenForEphemerals`.
    ///   Nothing was created.
    /// - [`OutcomeUnknown`](crate::ErrorReason::OutcomeUnknown): a reply was lost, and the znode is not there,
    ///   is another client's, has been changed, or may not be read. It may still be created.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): CREATE is denied on the parent.
    ///   [`InvalidAcl`](crate::ErrorReason::InvalidAcl).
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss): the last attempt that the policy
    ///   allows has failed. It may have taken effect, or may still do so.
    /// - [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed): a call
    ///   that was under way may have taken effect.
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument), and
    ///   [`InvalidArgument`](crate::ErrorReason::InvalidArgument) for data of about 1 MiB and more.
    ///   Nothing was sent.
    pub fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> Result<String> {
        let (written, acl) = (self.written(data)?, acl.to_vec());
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

    /// Deletes a znode; with `Some(version)` only at that version of its data.
    ///
    /// # Errors
    /// - [`Server`](crate::ErrorReason::Server) with the server's answer: `NoNode`, `BadVersion`,
    ///   `NotEmpty`. This call deleted nothing.
    /// - [`OutcomeUnknown`](crate::ErrorReason::OutcomeUnknown): a reply was lost, and the znode or another
    ///   one exists, and may still be deleted. Or none exists, and the one before had children or another
    ///   version.
    ///
    /// Otherwise as [`create`](RecoverableZooKeeper::create).
    pub fn delete(&self, path: &str, version: Option<i32>) -> Result<()> {
        self.write(Operation::DELETE, ZNodePath::parse(path)?, Delete { version: conditional(version) })
    }

    /// Replaces a znode's data; with `Some(version)` only at that version. Returns the new
    /// metadata.
    ///
    /// Without a version it is sent at the version that was read, and again, immediately, each time another
    /// client has written in between. Without READ on the znode it is sent once, at any version.
    ///
    /// # Errors
    /// - [`Server`](crate::ErrorReason::Server) with the server's answer: `NoNode`, or `BadVersion`
    ///   if another client has replaced that version. Nothing was written.
    /// - [`OutcomeUnknown`](crate::ErrorReason::OutcomeUnknown): a reply was lost, and others have
    ///   written since, or deleted the znode, so this call's data may have been there in between.
    ///
    /// Otherwise as [`create`](RecoverableZooKeeper::create).
    pub fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> Result<Stat> {
        let written = self.written(data)?;
        let path = ZNodePath::parse_or_root(path)?;
        self.write(Operation::SET_DATA, path, SetData { written, version: conditional(version) })
    }

    /// Returns a znode's metadata, or `None` if it does not exist.
    ///
    /// # Errors
    /// [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss) after the last attempt,
    /// [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed),
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument);
    /// [`AccessDenied`](crate::ErrorReason::AccessDenied) if the server requires READ.
    pub fn exists(&self, path: &str) -> Result<Option<Stat>> {
        self.read(Operation::READ, path, |path| Call::exists(path, false))
    }

    /// Returns a znode's data, without the mark, and its metadata, whose length includes the mark.
    ///
    /// # Errors
    /// [`Server`](crate::ErrorReason::Server) with `NoNode`. Otherwise as
    /// [`exists`](RecoverableZooKeeper::exists).
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
    /// As [`get_data`](RecoverableZooKeeper::get_data).
    pub fn get_children(&self, path: &str) -> Result<Vec<String>> {
        self.read(Operation::LIST, path, |path| Call::get_children(path, false)).map(Vec::from)
    }

    fn written(&self, data: &[u8]) -> Result<Payload> {
        let is_marked = self.form == Form::Marked;
        let data = match self.form {
            Form::Marked => mark::marked(self.session().core().new_guid(), data),
            Form::Plain => data.to_vec(),
        };
        check_data(&data)?;
        Ok(Payload { data, is_marked })
    }

    fn write<C: Change>(&self, operation: Operation, path: ZNodePath, call: C) -> Result<C::Output> {
        let mut attempts = Attempts::new(operation, path.clone(), call);
        self.retry(operation, &path, |core| attempts.make(core))
    }

    fn read<T>(&self, operation: Operation, path: &str, ask: fn(&ZNodePath) -> Ask<T>) -> Result<T> {
        let path = ZNodePath::parse_or_root(path)?;
        self.retry(operation, &path, |core| core.call(operation, &path, ask(&path)))
    }

    /// Makes attempts until one is answered.
    fn retry<T>(
        &self,
        operation: Operation,
        path: &ZNodePath,
        mut attempt: impl FnMut(&Arc<Core>) -> Result<T>,
    ) -> Result<T> {
        // With replacement sessions, the current one: a later session does not own the ephemeral
        // znodes of this call.
        let core = self.session().core();
        self.support.retry(operation, path, || attempt(&core))
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
