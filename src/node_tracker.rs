//! [`NodeTracker`]: the current data of one znode, kept up to date.
//!
//! Origin: HBase's `ZooKeeperNodeTracker` and `DeletionListener`. These end the process, or the
//! wait, at the first error.

use std::sync::Arc;

use crossbeam_channel::Receiver;

use crate::client::Stat;
use crate::error::{Result, ZkError};
use crate::lock_order::unwind_safe;
use crate::recipe::path::ZNodePath;
use crate::recoverable::unmarked;
use crate::session::Session;
use crate::tracking::{Look, Subject, Tracking};
use crate::wait::Wait;

/// Keeps the current data of one znode, which may be created, changed and deleted.
///
/// It looks again whenever the znode changes, and after every reconnect, and costs no thread.
/// Results are as recent as the connected server's last answer: usually a moment old, and during an
/// outage as old as the outage. Changes in quick succession may appear as one. It survives the
/// [replacement](crate::SessionBuilder::replace_lost_sessions) of its session.
///
/// READ must be granted, and stay granted: servers since 3.8.4 and 3.9.2 send no event when a znode
/// without READ permission is created or deleted. A tracker that waits for the creation of such a
/// znode looks again at the next reconnect, or at the next routine look of its session, after up to half a minute.
///
/// `Send` and `Sync`; dropping it ends the tracking.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::Session;
/// use zookeeper_recipes_lock::data::NodeTracker;
///
/// # fn limit_to(limit: &str) {}
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let limit = NodeTracker::start(&session, "/config/limit", Duration::from_secs(30))?;
/// loop {
///     match limit.current()? {
///         Some(node) => limit_to(&String::from_utf8_lossy(&node.data)),
///         None => limit_to("default"),
///     }
///     if limit.changes().recv().is_err() {
///         break; // the session has ended
///     }
/// }
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
#[must_use = "it stops to watch when it is not kept"]
#[derive(Debug)]
pub struct NodeTracker {
    tracking: Tracking<Node>,
}

unwind_safe!(NodeTracker);

impl NodeTracker {
    /// Starts to track the znode at this path. It need not exist.
    ///
    /// Blocks until the server has answered, or until the wait times out. The tracking survives
    /// the loss of a session that [is replaced](crate::SessionBuilder::replace_lost_sessions), but
    /// not [closing](Session::close).
    ///
    /// # Errors
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument).
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): READ is not granted on the znode.
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss): no server answered in time.
    /// - [`Cancelled`](crate::ErrorReason::Cancelled).
    /// - [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed).
    pub fn start(session: &Session, path: &str, wait: impl Into<Wait>) -> Result<NodeTracker> {
        let node = Node { path: ZNodePath::parse(path)? };
        Tracking::start(session, node, &wait.into()).map(|tracking| NodeTracker { tracking })
    }

    /// Returns the znode as it was last seen; `None` if it did not exist. Does no I/O and does not
    /// block.
    ///
    /// # Errors
    /// [`AccessDenied`](crate::ErrorReason::AccessDenied) while READ is not granted (it looks again
    /// every second), [`SessionLost`](crate::ErrorReason::SessionLost),
    /// [`Closed`](crate::ErrorReason::Closed).
    pub fn current(&self) -> Result<Option<NodeData>> {
        self.tracking.current()
    }

    /// Returns a channel that receives a message when [`current`](NodeTracker::current) has
    /// changed; for use in [`select!`](crossbeam_channel::select).
    ///
    /// It has room for one message, which covers all changes since it was sent: take it, then ask
    /// for the current data. It is disconnected when the session has ended.
    #[must_use]
    pub fn changes(&self) -> &Receiver<()> {
        self.tracking.changes()
    }

    /// Blocks until the znode exists; returns `None` when the wait times out.
    ///
    /// # Errors
    /// As [`current`](NodeTracker::current), and [`Cancelled`](crate::ErrorReason::Cancelled).
    pub fn wait_available(&self, wait: impl Into<Wait>) -> Result<Option<NodeData>> {
        self.tracking.wait_for(&wait.into(), Option::clone)
    }

    /// Blocks until the znode does not exist, or until the wait times out. Returns whether it does
    /// not exist. It may miss a deletion that is followed at once by a creation.
    ///
    /// # Errors
    /// As [`current`](NodeTracker::current), and [`Cancelled`](crate::ErrorReason::Cancelled).
    pub fn wait_deleted(&self, wait: impl Into<Wait>) -> Result<bool> {
        let deleted = self.tracking.wait_for(&wait.into(), |node| node.is_none().then_some(()))?;
        Ok(deleted.is_some())
    }
}

/// A znode as a [`NodeTracker`] saw it. Cheap to clone; two are equal if nothing was written
/// between them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeData {
    /// The data as they are in the znode.
    pub data: Arc<[u8]>,
    /// The metadata at the time of the read.
    pub stat: Stat,
}

impl NodeData {
    /// Returns the data without the mark that a
    /// [`RecoverableZooKeeper`](crate::data::RecoverableZooKeeper) writes in front of it; all of the data
    /// if there is no mark.
    ///
    /// Use it only for znodes that a `RecoverableZooKeeper` writes: other data may begin like a
    /// mark by chance.
    #[must_use]
    pub fn unmarked_data(&self) -> &[u8] {
        unmarked(&self.data)
    }
}

impl PartialEq for NodeData {
    fn eq(&self, other: &NodeData) -> bool {
        // The transaction that wrote the data last. For a new znode, it is the creation.
        self.stat.mzxid == other.stat.mzxid
    }
}

impl Eq for NodeData {}

/// The subject of a [`NodeTracker`].
#[derive(Debug)]
struct Node {
    path: ZNodePath,
}

impl Subject for Node {
    type Value = Option<NodeData>;

    fn path(&self) -> &ZNodePath {
        &self.path
    }

    fn look(self: &Arc<Self>) -> Look<Option<NodeData>> {
        let node = Arc::clone(self);
        Look::data(&self.path, move |data| match data {
            Ok((data, stat)) => Look::Seen(Some(NodeData { data: data.into(), stat })),
            // Waits for the creation of the znode.
            Err(ZkError::NoNode) => Look::absence(&node.path, None),
            Err(error) => Look::Failed(error),
        })
    }
}
