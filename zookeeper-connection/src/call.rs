//! What a client is asked: [`Call`], [`Reply`], and [`Done`], which takes the outcome.

use std::fmt;
use std::sync::Arc;

use crate::error::{ZkError, ZkResult};
use crate::{Acl, CreateMode, Names, Op, Stat, Transacted};

/// A call that a client is asked to make. Paths are as the session spells them, without a chroot.
///
/// Each call names the errors by which a server refuses it; any may also fail with
/// `ConnectionLoss`, `SessionExpired`, and `BadArguments` for a request that is too long.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Call {
    /// Creates a znode, and is answered by [`Reply::Created`]. Fails with `NoNode` if the parent is
    /// missing, `NodeExists`, `NoAuth`, `InvalidAcl`, and `Unimplemented` for a container on an old
    /// server.
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
    /// Creates an ephemeral sequential znode `<dir>/<prefix><sequence>`, then lists `dir`, and is
    /// answered by [`Reply::Enqueued`]. Fails as the create does; then nothing was listed. A
    /// connection that is lost between the two replies is an error of the listing.
    CreateAndList {
        /// The full path of the directory.
        dir: Arc<str>,
        /// The name of the znode up to its sequence number.
        prefix: Arc<str>,
        /// The data of the znode.
        data: Arc<[u8]>,
        /// The ACL of the znode.
        acl: Arc<[Acl]>,
    },
    /// Deletes a znode, and is answered by [`Reply::Done`]. Fails with `NoNode`, `BadVersion`,
    /// `NotEmpty`, `NoAuth`.
    Delete {
        /// The full path.
        path: Arc<str>,
        /// Only at this version of the data.
        version: Option<i32>,
    },
    /// Asks for the metadata, and is answered by [`Reply::Found`]. The watch of a znode that does
    /// not exist waits for its creation.
    Exists {
        /// The full path.
        path: Arc<str>,
        /// `true` to set a watch.
        watch: bool,
    },
    /// Asks for the data and the metadata, and is answered by [`Reply::Data`]. Fails with `NoNode`
    /// (then no watch is set), `NoAuth`.
    GetData {
        /// The full path.
        path: Arc<str>,
        /// `true` to set a watch.
        watch: bool,
    },
    /// Asks for the names of the children, and is answered by [`Reply::Children`]. Fails with
    /// `NoNode` (then no watch is set), `NoAuth`.
    GetChildren {
        /// The full path.
        path: Arc<str>,
        /// `true` to set a watch.
        watch: bool,
    },
    /// Replaces the data, and is answered by [`Reply::Stat`]. Fails with `NoNode`, `BadVersion`,
    /// `NoAuth`.
    SetData {
        /// The full path.
        path: Arc<str>,
        /// The new data.
        data: Arc<[u8]>,
        /// Only at this version of the data.
        version: Option<i32>,
    },
    /// Executes operations in order, as one transaction: all take effect, or none. Is answered by
    /// [`Reply::Multi`]. A failed operation is no error but [`Transacted::Failed`]. A client without
    /// transactions refuses with `Unimplemented`.
    Multi(Arc<[Op]>),
}

/// The answer to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The znode was created.
    Created {
        /// Its path, with the sequence number if it has one.
        path: String,
        /// Its metadata, if the server has returned them.
        stat: Option<Stat>,
    },
    /// The znode was created, and the directory was listed, or not.
    Enqueued(Enqueued),
    /// The znode was deleted.
    Done,
    /// The metadata, or `None` if the znode does not exist.
    Found(Option<Stat>),
    /// The data and the metadata.
    Data(Vec<u8>, Stat),
    /// The names of the children, in no particular order. A `Vec<String>` converts into [`Names`].
    Children(Names),
    /// The metadata after the change of the data.
    Stat(Stat),
    /// The outcome of the transaction.
    Multi(Transacted),
}

/// The outcome of [`Call::CreateAndList`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Enqueued {
    /// The full path of the new znode.
    pub path: String,
    /// The new znode's metadata, if the server has returned it.
    pub stat: Option<Stat>,
    /// The names in the directory, which contain that of the new znode.
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

/// A call, and how its reply is read: one of another kind cannot be.
#[derive(Clone, Debug)]
pub struct Ask<T> {
    /// The call.
    pub call: Call,
    /// Reads its reply. Fails with `MarshallingError` for a reply of another kind.
    pub read: fn(Reply) -> ZkResult<T>,
}

/// Makes a method for each kind of reply, which refuses any other.
macro_rules! readers {
    ($($name:ident: $pattern:pat => $value:expr, $type:ty;)*) => {
        impl Reply {
            $(
            #[doc = concat!("Takes a reply of the kind `", stringify!($pattern), "`.")]
            ///
            /// # Errors
            /// `MarshallingError` for any other.
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
    /// [`Call::Create`], for the path and the metadata of the new znode.
    pub fn create(
        path: impl Into<Arc<str>>,
        data: impl Into<Arc<[u8]>>,
        acl: impl Into<Arc<[Acl]>>,
        mode: CreateMode,
    ) -> Ask<(String, Option<Stat>)> {
        let call = Call::Create { path: path.into(), data: data.into(), acl: acl.into(), mode };
        Ask { call, read: Reply::created }
    }

    /// [`Call::CreateAndList`].
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

    /// [`Call::Delete`].
    pub fn delete(path: impl Into<Arc<str>>, version: Option<i32>) -> Ask<()> {
        Ask { call: Call::Delete { path: path.into(), version }, read: Reply::done }
    }

    /// [`Call::Exists`], for the metadata; `None` if there is no such znode.
    pub fn exists(path: impl Into<Arc<str>>, watch: bool) -> Ask<Option<Stat>> {
        Ask { call: Call::Exists { path: path.into(), watch }, read: Reply::found }
    }

    /// [`Call::GetData`].
    pub fn get_data(path: impl Into<Arc<str>>, watch: bool) -> Ask<(Vec<u8>, Stat)> {
        let call = Call::GetData { path: path.into(), watch };
        Ask { call, read: Reply::data }
    }

    /// [`Call::GetChildren`].
    pub fn get_children(path: impl Into<Arc<str>>, watch: bool) -> Ask<Names> {
        let call = Call::GetChildren { path: path.into(), watch };
        Ask { call, read: Reply::children }
    }

    /// [`Call::SetData`].
    pub fn set_data(
        path: impl Into<Arc<str>>,
        data: impl Into<Arc<[u8]>>,
        version: Option<i32>,
    ) -> Ask<Stat> {
        let call = Call::SetData { path: path.into(), data: data.into(), version };
        Ask { call, read: Reply::stat }
    }

    /// [`Call::Multi`].
    pub fn multi(operations: impl Into<Arc<[Op]>>) -> Ask<Transacted> {
        Ask { call: Call::Multi(operations.into()), read: Reply::multi }
    }

    /// Returns the path of the only znode that the call names, or that of the directory.
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

    /// Returns whether the call goes through the leader, whose answer proves the session alive. Any
    /// server may answer a read.
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

    /// Returns whether a reply is of the kind that answers this call.
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

    /// Returns the bytes of its request, approximately: its paths and its data, and the rest of a short request.
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

    /// Returns the directory that the call lists.
    #[must_use]
    pub fn listed_dir(&self) -> Option<&Arc<str>> {
        match self {
            Call::CreateAndList { dir, .. } => Some(dir),
            Call::GetChildren { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Returns the path of the znode on which the call leaves a watch.
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
    /// The kind and the path: data may be long.
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

/// Makes a call by others that are one request each: a [`Call::CreateAndList`] is two.
#[cfg(any(test, feature = "test-util"))]
#[doc(hidden)]
pub fn call_in_parts(call: &Call, mut make: impl FnMut(&Call) -> ZkResult<Reply>) -> ZkResult<Reply> {
    let Call::CreateAndList { dir, prefix, data, acl } = call else { return make(call) };
    let (data, acl) = (Arc::clone(data), Arc::clone(acl));
    let path = [&**dir, "/", &**prefix].concat();
    let create = Call::create(path, data, acl, CreateMode::EphemeralSequential);
    let (path, stat) = make(&create.call).and_then(create.read)?;
    let list = Call::get_children(Arc::clone(dir), false);
    let children = make(&list.call).and_then(list.read);
    Ok(Reply::Enqueued(Enqueued { path, stat, children }))
}

/// The continuation of a call, which takes the outcome.
///
/// Dropping it unused passes on a [`ConnectionLoss`](ZkError): the outcome is unknown.
pub struct Done {
    continuation: Option<OnOutcome>,
    urgency: u8,
}

type OnOutcome = Box<dyn FnOnce(ZkResult<Reply>) + Send>;

impl Done {
    const LEAST_URGENT: u8 = 2;

    /// Has the outcome passed to a continuation, which must not block.
    pub fn new(continuation: impl FnOnce(ZkResult<Reply>) + Send + 'static) -> Done {
        Done { continuation: Some(Box::new(continuation)), urgency: Done::LEAST_URGENT }
    }

    /// Sets the [urgency](Done::urgency).
    #[must_use]
    pub fn with_urgency(mut self, urgency: u8) -> Done {
        self.urgency = urgency;
        self
    }

    /// Returns how urgent the call is, for a client that has fewer threads than calls: 0 for what proves the
    /// session, which waits for no other call; 1 for what others wait for; 2 for all others.
    #[must_use]
    pub fn urgency(&self) -> u8 {
        self.urgency
    }

    /// Passes on the outcome.
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
