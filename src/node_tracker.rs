//! [`NodeTracker`]: the current data of one znode, kept up to date.
//!
//! Origin: HBase's `ZooKeeperNodeTracker` and `DeletionListener`, which end the process or the wait on the
//! first error.

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

/// Keeps track of the data of one znode.
///
/// Use it for configuration and similar data that is read often and changes rarely. The znode may be created, changed
/// and deleted at any time. [`start`](NodeTracker::start) begins the tracking, and dropping the tracker ends it.
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
///
/// The tracker reads the znode again whenever it changes, and after every reconnect. The result is as recent
/// as the last answer from the connected server: usually a moment old and, during an outage, as old as the
/// outage. Changes in quick succession may appear as one. The tracker needs no thread, and continues on the
/// next session when its session is [replaced](crate::SessionBuilder::replace_lost_sessions).
///
/// # Permission
/// READ must be granted and stay granted. Servers since 3.8.4 and 3.9.2 send no event when a znode without
/// READ permission is created or deleted. A tracker that waits for such a znode notices its creation only at
/// the next reconnect, or after up to half a minute.
#[must_use = "the tracking ends as soon as the tracker is dropped"]
#[derive(Debug)]
pub struct NodeTracker {
    tracking: Tracking<Node>,
}

unwind_safe!(NodeTracker);

impl NodeTracker {
    /// Starts to track the znode at this path, which need not exist yet.
    ///
    /// Blocks until the server has answered or the wait times out. On a session that [replaces
    /// itself](crate::SessionBuilder::replace_lost_sessions), the tracking continues after a loss, and ends
    /// when the session is [closed](Session::close).
    ///
    /// # Errors
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): READ is not granted on the znode.
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss): no server answered in time.
    /// - [`Cancelled`](crate::ErrorReason::Cancelled): another thread cancelled the wait.
    /// - [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed).
    pub fn start(session: &Session, path: &str, wait: impl Into<Wait>) -> Result<NodeTracker> {
        let node = Node { path: ZNodePath::parse(path)? };
        Tracking::start(session, node, &wait.into()).map(|tracking| NodeTracker { tracking })
    }

    /// Returns the znode as it was last seen, or `None` if it did not exist.
    ///
    /// Does no I/O and does not block.
    ///
    /// # Errors
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): READ is not granted. The tracker tries again every second.
    /// - [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed).
    pub fn current(&self) -> Result<Option<NodeData>> {
        self.tracking.current()
    }

    /// Returns a channel that receives a message when [`current`](NodeTracker::current) changes.
    ///
    /// Use it in a [`select!`](crossbeam_channel::select). The channel holds at most one message, which stands for all
    /// changes since it was sent. So take the message first, then call [`current`](NodeTracker::current). The channel
    /// is disconnected when the session has ended, but never in a forked child: there, nothing arrives.
    #[must_use]
    pub fn changes(&self) -> &Receiver<()> {
        self.tracking.changes()
    }

    /// Blocks until the znode exists or the wait times out; returns `None` on a timeout.
    ///
    /// # Errors
    /// The same as [`current`](NodeTracker::current), and [`Cancelled`](crate::ErrorReason::Cancelled).
    pub fn wait_available(&self, wait: impl Into<Wait>) -> Result<Option<NodeData>> {
        self.tracking.wait_for(&wait.into(), Option::clone)
    }

    /// Blocks until the znode does not exist or the wait times out; returns `false` on a timeout.
    ///
    /// The call may miss a deletion that is immediately followed by a creation.
    ///
    /// # Errors
    /// The same as [`current`](NodeTracker::current), and [`Cancelled`](crate::ErrorReason::Cancelled).
    pub fn wait_deleted(&self, wait: impl Into<Wait>) -> Result<bool> {
        let deleted = self.tracking.wait_for(&wait.into(), |node| node.is_none().then_some(()))?;
        Ok(deleted.is_some())
    }
}

/// A znode as a [`NodeTracker`] saw it.
///
/// It is cheap to clone. Two values are equal if the znode was not written between the two reads.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeData {
    /// The data, exactly as stored in the znode.
    pub data: Arc<[u8]>,
    /// The metadata at the time of the read.
    pub stat: Stat,
}

impl NodeData {
    /// Returns the data without the mark of a [`RecoverableZooKeeper`](crate::data::RecoverableZooKeeper).
    ///
    /// Returns all of the data if it does not begin with a mark. Use this only for znodes that a `RecoverableZooKeeper`
    /// writes, because other data may look like a mark by chance.
    #[must_use]
    pub fn unmarked_data(&self) -> &[u8] {
        unmarked(&self.data)
    }
}

impl PartialEq for NodeData {
    fn eq(&self, other: &NodeData) -> bool {
        // `mzxid` identifies the transaction that last wrote the data or, if there was no later write,
        // created the znode.
        self.stat.mzxid == other.stat.mzxid
    }
}

impl Eq for NodeData {}

/// The znode that a [`NodeTracker`] tracks.
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
            // Leave a watch for the creation of the znode.
            Err(ZkError::NoNode) => Look::absence(&node.path, None),
            Err(error) => Look::Failed(error),
        })
    }
}
