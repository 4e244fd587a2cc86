//! The calls of a client: [`Call`], its [`Reply`], and [`Done`], which receives the outcome.

use std::fmt;
use std::sync::Arc;

use crate::error::{ZkError, ZkResult};
use crate::path::is_absolute;
#[cfg(any(test, feature = "test-util"))]
use crate::path::path_of_child;
use crate::{Acl, CreateMode, Names, Op, Stat, Transacted};

/// A call that a client makes.
///
/// Paths begin with a slash, and are relative to the chroot of the connection, if it has one.
///
/// Each variant lists the usual errors with which a server refuses the call. Any call may also fail with
/// `ConnectionLoss`, `SessionExpired` or `Throttled`, or with `MarshallingError` if its reply is too long or cannot be
/// decoded. It fails with `CallTooLong` if the servers could not handle it, and with `BadArguments` if a path does not
/// begin with a slash, or if a server refuses a path. A write other than a deletion may fail with `EndsConnection`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Call {
    /// Creates a znode. The answer is [`Reply::Created`].
    ///
    /// Fails with `NodeExists`, `NoAuth`, `InvalidAcl`, `QuotaExceeded` or `EphemeralOnLocalSession`, with `NoNode` if
    /// the parent is missing, with `NoChildrenForEphemerals` if the parent is ephemeral, or with `Unimplemented` if the
    /// server is too old to know containers.
    Create {
        /// The full path, without the sequence number if `mode` is sequential.
        path: Arc<str>,
        /// The data of the znode.
        data: Arc<[u8]>,
        /// The ACL of the znode.
        acl: Arc<[Acl]>,
        /// The kind of the znode.
        mode: CreateMode,
    },
    /// Creates an ephemeral sequential znode, then lists its directory. The answer is [`Reply::Enqueued`].
    ///
    /// The path of the znode is `<dir>/<prefix><sequence>`. If the create fails, the call fails with the error of the
    /// create. If the connection is lost between the two replies, only the listing fails.
    CreateAndList {
        /// The full path of the directory.
        dir: Arc<str>,
        /// The name of the znode up to its sequence number. If it contains a slash, the call fails with `BadArguments`.
        prefix: Arc<str>,
        /// The data of the znode.
        data: Arc<[u8]>,
        /// The ACL of the znode.
        acl: Arc<[Acl]>,
    },
    /// Deletes a znode. The answer is [`Reply::Done`].
    ///
    /// Fails with `NoNode`, `BadVersion`, `NotEmpty` or `NoAuth`.
    Delete {
        /// The full path.
        path: Arc<str>,
        /// The version that the data must have; `None` for any.
        version: Option<i32>,
    },
    /// Reads the metadata. The answer is [`Reply::Found`].
    ///
    /// A watch on a znode that does not exist fires when the znode is created.
    Exists {
        /// The full path.
        path: Arc<str>,
        /// Whether to set a watch.
        watch: bool,
    },
    /// Reads the data and the metadata. The answer is [`Reply::Data`].
    ///
    /// Fails with `NoNode` or `NoAuth`, and then sets no watch.
    GetData {
        /// The full path.
        path: Arc<str>,
        /// Whether to set a watch.
        watch: bool,
    },
    /// Lists the names of the children. The answer is [`Reply::Children`].
    ///
    /// Fails with `NoNode` or `NoAuth`, and then sets no watch.
    GetChildren {
        /// The full path.
        path: Arc<str>,
        /// Whether to set a watch.
        watch: bool,
    },
    /// Replaces the data. The answer is [`Reply::Stat`].
    ///
    /// Fails with `NoNode`, `BadVersion`, `NoAuth` or `QuotaExceeded`.
    SetData {
        /// The full path.
        path: Arc<str>,
        /// The new data.
        data: Arc<[u8]>,
        /// The version that the data must have; `None` for any.
        version: Option<i32>,
    },
    /// Executes operations in order as one transaction. The answer is [`Reply::Multi`].
    ///
    /// Either all operations take effect or none. If an operation fails, the answer is [`Transacted::Failed`], not an
    /// error. If the client does not support transactions, the call fails with `Unimplemented`.
    Multi(Arc<[Op]>),
}

/// The answer to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The znode was created.
    Created {
        /// Its path, with the sequence number if it has one.
        path: String,
        /// Its metadata, if the server returned it.
        stat: Option<Stat>,
    },
    /// The znode was created. The listing of the directory may have failed.
    Enqueued(Enqueued),
    /// The znode was deleted.
    Done,
    /// The metadata, or `None` if the znode does not exist.
    Found(Option<Stat>),
    /// The data and the metadata.
    Data(Vec<u8>, Stat),
    /// The names of the children, in no particular order.
    ///
    /// A `Vec<String>` converts into [`Names`].
    Children(Names),
    /// The metadata after the data was replaced.
    Stat(Stat),
    /// The outcome of the transaction.
    Multi(Transacted),
}

/// The outcome of [`Call::CreateAndList`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Enqueued {
    /// The full path of the new znode.
    pub path: String,
    /// The new znode's metadata, if the server returned it.
    pub stat: Option<Stat>,
    /// The names in the directory, including the new znode's.
    pub children: ZkResult<Names>,
}

impl Enqueued {
    /// Creates an outcome without metadata.
    #[must_use]
    pub fn new(path: String, children: ZkResult<Names>) -> Enqueued {
        Enqueued { path, stat: None, children }
    }

    /// Sets the metadata.
    #[must_use]
    pub fn with_stat(self, stat: Stat) -> Enqueued {
        Enqueued { stat: Some(stat), ..self }
    }
}

/// A call together with the function that reads its reply.
#[derive(Clone, Debug)]
pub struct Ask<T> {
    /// The call.
    pub call: Call,
    /// Reads the reply. Fails with `MarshallingError` if the reply does not answer the call.
    pub read: fn(Reply) -> ZkResult<T>,
}

/// Defines a method for each kind of reply. Each method refuses replies of other kinds.
macro_rules! readers {
    ($($name:ident: $pattern:pat => $value:expr, $type:ty;)*) => {
        impl Reply {
            $(
            #[doc = concat!("Returns the contents of `", stringify!($pattern), "`.")]
            ///
            /// # Errors
            /// `MarshallingError` for any other reply.
            pub fn $name(self) -> ZkResult<$type> {
                match self {
                    $pattern => Ok($value),
                    _ => Err(ZkError::MarshallingError),
                }
            })*
        }
    };
}

readers! {
    created: Reply::Created { path, stat } => (path, stat), (String, Option<Stat>);
    enqueued: Reply::Enqueued(enqueued) => enqueued, Enqueued;
    done: Reply::Done => (), ();
    found: Reply::Found(stat) => stat, Option<Stat>;
    data: Reply::Data(data, stat) => (data, stat), (Vec<u8>, Stat);
    children: Reply::Children(names) => names, Names;
    stat: Reply::Stat(stat) => stat, Stat;
    multi: Reply::Multi(transacted) => transacted, Transacted;
}

impl Reply {
    /// Returns the names of the children, if the reply has a listing.
    #[must_use]
    pub fn listed(&self) -> Option<&Names> {
        match self {
            Reply::Children(children) => Some(children),
            Reply::Enqueued(enqueued) => enqueued.children.as_ref().ok(),
            _ => None,
        }
    }
}

impl Call {
    /// Makes a [`Call::Create`]. Its reply is read as the path and the metadata of the new znode.
    pub fn create(
        path: impl Into<Arc<str>>,
        data: impl Into<Arc<[u8]>>,
        acl: impl Into<Arc<[Acl]>>,
        mode: CreateMode,
    ) -> Ask<(String, Option<Stat>)> {
        let call = Call::Create { path: path.into(), data: data.into(), acl: acl.into(), mode };
        Ask { call, read: Reply::created }
    }

    /// Makes a [`Call::CreateAndList`].
    pub fn create_and_list(
        dir: impl Into<Arc<str>>,
        prefix: impl Into<Arc<str>>,
        data: impl Into<Arc<[u8]>>,
        acl: impl Into<Arc<[Acl]>>,
    ) -> Ask<Enqueued> {
        let (dir, prefix) = (dir.into(), prefix.into());
        let call = Call::CreateAndList { dir, prefix, data: data.into(), acl: acl.into() };
        Ask { call, read: Reply::enqueued }
    }

    /// Makes a [`Call::Delete`].
    pub fn delete(path: impl Into<Arc<str>>, version: Option<i32>) -> Ask<()> {
        Ask { call: Call::Delete { path: path.into(), version }, read: Reply::done }
    }

    /// Makes a [`Call::Exists`]. Its reply is read as the metadata, or `None` if there is no such znode.
    pub fn exists(path: impl Into<Arc<str>>, watch: bool) -> Ask<Option<Stat>> {
        Ask { call: Call::Exists { path: path.into(), watch }, read: Reply::found }
    }

    /// Makes a [`Call::GetData`].
    pub fn get_data(path: impl Into<Arc<str>>, watch: bool) -> Ask<(Vec<u8>, Stat)> {
        let call = Call::GetData { path: path.into(), watch };
        Ask { call, read: Reply::data }
    }

    /// Makes a [`Call::GetChildren`].
    pub fn get_children(path: impl Into<Arc<str>>, watch: bool) -> Ask<Names> {
        let call = Call::GetChildren { path: path.into(), watch };
        Ask { call, read: Reply::children }
    }

    /// Makes a [`Call::SetData`].
    pub fn set_data(
        path: impl Into<Arc<str>>,
        data: impl Into<Arc<[u8]>>,
        version: Option<i32>,
    ) -> Ask<Stat> {
        let call = Call::SetData { path: path.into(), data: data.into(), version };
        Ask { call, read: Reply::stat }
    }

    /// Makes a [`Call::Multi`].
    pub fn multi(operations: impl Into<Arc<[Op]>>) -> Ask<Transacted> {
        Ask { call: Call::Multi(operations.into()), read: Reply::multi }
    }

    /// Returns the path of the znode or of the directory; `None` for a transaction.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        match self {
            Call::Create { path, .. }
            | Call::CreateAndList { dir: path, .. }
            | Call::Delete { path, .. }
            | Call::Exists { path, .. }
            | Call::GetData { path, .. }
            | Call::GetChildren { path, .. }
            | Call::SetData { path, .. } => Some(path),
            Call::Multi(_) => None,
        }
    }

    /// Returns whether the call goes through the leader.
    ///
    /// The leader's answer proves that the session is alive. The answer to a read does not, because it may come from
    /// any server.
    #[must_use]
    pub fn is_write(&self) -> bool {
        match self {
            Call::Create { .. }
            | Call::CreateAndList { .. }
            | Call::Delete { .. }
            | Call::SetData { .. }
            | Call::Multi(_) => true,
            Call::Exists { .. } | Call::GetData { .. } | Call::GetChildren { .. } => false,
        }
    }

    /// Returns whether every path is absolute, and the prefix of a `CreateAndList` contains no slash.
    ///
    /// Below a chroot, such paths lead to the chroot or to znodes below it, because no znode has the name `..`.
    pub(crate) fn has_sound_paths(&self) -> bool {
        match self {
            Call::CreateAndList { dir, prefix, .. } => is_absolute(dir) && !prefix.contains('/'),
            Call::Multi(operations) => operations.iter().all(|operation| is_absolute(operation.path())),
            Call::Create { path, .. }
            | Call::Delete { path, .. }
            | Call::Exists { path, .. }
            | Call::GetData { path, .. }
            | Call::GetChildren { path, .. }
            | Call::SetData { path, .. } => is_absolute(path),
        }
    }

    /// Returns whether a reply is of the right kind for this call.
    #[must_use]
    pub fn is_answered_by(&self, reply: &Reply) -> bool {
        match self {
            Call::Create { .. } => matches!(reply, Reply::Created { .. }),
            Call::CreateAndList { .. } => matches!(reply, Reply::Enqueued(_)),
            Call::Delete { .. } => matches!(reply, Reply::Done),
            Call::Exists { .. } => matches!(reply, Reply::Found(_)),
            Call::GetData { .. } => matches!(reply, Reply::Data(..)),
            Call::GetChildren { .. } => matches!(reply, Reply::Children(_)),
            Call::SetData { .. } => matches!(reply, Reply::Stat(_)),
            Call::Multi(_) => matches!(reply, Reply::Multi(_)),
        }
    }

    /// Returns the approximate length of the request in bytes.
    ///
    /// This is the length of the paths and of the data, plus a constant. An ACL does not count.
    #[must_use]
    pub fn bytes(&self) -> usize {
        const REST: usize = 64;
        REST + match self {
            Call::Create { path, data, .. } | Call::SetData { path, data, .. } => path.len() + data.len(),
            Call::CreateAndList { dir, prefix, data, .. } => 2 * dir.len() + prefix.len() + data.len(),
            Call::Delete { path, .. }
            | Call::Exists { path, .. }
            | Call::GetData { path, .. }
            | Call::GetChildren { path, .. } => path.len(),
            Call::Multi(operations) => operations.iter().map(Op::bytes).sum(),
        }
    }

    /// Returns the directory that the call lists, if it lists one.
    #[must_use]
    pub fn listed_dir(&self) -> Option<&Arc<str>> {
        match self {
            Call::CreateAndList { dir, .. } => Some(dir),
            Call::GetChildren { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Returns the path on which the call sets a watch, if it sets one.
    #[must_use]
    pub fn watched_path(&self) -> Option<&Arc<str>> {
        match self {
            Call::Exists { path, watch: true }
            | Call::GetData { path, watch: true }
            | Call::GetChildren { path, watch: true } => Some(path),
            _ => None,
        }
    }
}

impl fmt::Debug for Call {
    /// Writes the kind and the path, without the data, which may be long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Call::Create { .. } => "Create",
            Call::CreateAndList { .. } => "CreateAndList",
            Call::Delete { .. } => "Delete",
            Call::Exists { .. } => "Exists",
            Call::GetData { .. } => "GetData",
            Call::GetChildren { .. } => "GetChildren",
            Call::SetData { .. } => "SetData",
            Call::Multi(_) => "Multi",
        })?;
        match self.path() {
            Some(path) => write!(f, "({path:?})"),
            None => Ok(()),
        }
    }
}

/// Makes a call, one request at a time. A [`Call::CreateAndList`] consists of two requests.
#[cfg(any(test, feature = "test-util"))]
#[doc(hidden)]
pub fn call_in_parts(call: &Call, mut make: impl FnMut(&Call) -> ZkResult<Reply>) -> ZkResult<Reply> {
    let Call::CreateAndList { dir, prefix, data, acl } = call else { return make(call) };
    let (data, acl) = (Arc::clone(data), Arc::clone(acl));
    let path = path_of_child(dir, prefix).concat();
    let create = Call::create(path, data, acl, CreateMode::EphemeralSequential);
    let (path, stat) = make(&create.call).and_then(create.read)?;
    let list = Call::get_children(Arc::clone(dir), false);
    let children = make(&list.call).and_then(list.read);
    Ok(Reply::Enqueued(Enqueued { path, stat, children }))
}

/// The continuation of a call: a function that receives the outcome.
///
/// If the continuation is dropped before an outcome is known, the function receives
/// [`ConnectionLoss`](ZkError::ConnectionLoss).
pub struct Done {
    continuation: Option<OnOutcome>,
    urgency: u8,
}

type OnOutcome = Box<dyn FnOnce(ZkResult<Reply>) + Send>;

impl Done {
    const LEAST_URGENT: u8 = 2;

    /// Creates a continuation from a function, which must not block.
    pub fn new(continuation: impl FnOnce(ZkResult<Reply>) + Send + 'static) -> Done {
        Done { continuation: Some(Box::new(continuation)), urgency: Done::LEAST_URGENT }
    }

    /// Sets the [urgency](Done::urgency).
    #[must_use]
    pub fn with_urgency(mut self, urgency: u8) -> Done {
        self.urgency = urgency;
        self
    }

    /// Returns how urgent the call is.
    ///
    /// A client with fewer threads than calls makes the most urgent calls first:
    /// - 0: a call that proves that the session is alive, which must not wait for any other call
    /// - 1: a call that keeps or releases a lock
    /// - 2: any other call
    #[must_use]
    pub fn urgency(&self) -> u8 {
        self.urgency
    }

    /// Passes the outcome to the function.
    pub fn finish(mut self, outcome: ZkResult<Reply>) {
        if let Some(continuation) = self.continuation.take() {
            continuation(outcome);
        }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        if let Some(continuation) = self.continuation.take() {
            continuation(Err(ZkError::ConnectionLoss));
        }
    }
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crossbeam_channel::bounded;

    #[test]
    fn outcome_that_nobody_passes_on_is_unknown() {
        let (sender, outcome) = bounded(1);
        drop(Done::new(move |result| sender.send(result).unwrap()));
        assert_eq!(outcome.try_recv(), Ok(Err(ZkError::ConnectionLoss)));
    }
}
