//! [`NodeTracker`]: the current data of one znode, kept up to date.
//!
//! Origin: HBase's `ZooKeeperNodeTracker` and `DeletionListener`, which end the process, or the wait, at the first error.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Stat, ZkError, ZkResult};
use crossbeam_channel::Receiver;

use crate::error::{LockError, Operation, Result};
use crate::recipe::path::ZNodePath;
use crate::recoverable::unmarked;
use crate::session::Session;
use crate::tracking::{Fetched, Subject, Tracking, Watching};
use crate::wait::Wait;

/// Keeps the current data of one znode, which may come, change and go.
///
/// It looks again whenever the znode changes, and after every reconnect, and costs no thread. What it tells is what the
/// connected server said last: a moment old, and during an outage as old as the outage. Changes in quick succession may be
/// seen as one. On a session that [heals itself](Session::connect_self_healing) it goes on on the next session.
///
/// READ must be granted, and stay so: of a znode that this client may not read, servers since 3.8.4 and 3.9.2 tell nothing,
/// neither that it has come nor that it has gone. A tracker that waits for such a one looks again at the next reconnect
/// only.
///
/// `Send` and `Sync`; dropping it ends the tracking.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{NodeTracker, Session};
///
/// # fn limit_to(limit: &str) {}
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
/// let limit = NodeTracker::new(&session, "/config/limit")?;
/// loop {
///     match limit.current()? {
///         Some(node) => limit_to(&node.data_lossy()),
///         None => limit_to("default"),
///     }
///     if limit.changes().recv().is_err() {
///         break; // the session has ended
///     }
/// }
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
#[derive(Debug)]
pub struct NodeTracker {
    tracking: Tracking<Node>,
}

impl NodeTracker {
    /// Begins to track the znode at this path, which need not exist.
    ///
    /// Blocks until the server has said what is there; through an outage, until that is over or the session is lost. The loss
    /// of a session that [heals itself](Session::connect_self_healing) does not end it, but [closing](Session::close) does.
    /// [`new_with`](NodeTracker::new_with) waits no longer than it is told.
    ///
    /// # Errors
    /// - [`InvalidPath`](crate::LockError::InvalidPath).
    /// - [`AccessDenied`](crate::LockError::AccessDenied): READ is not granted on the znode.
    /// - [`SessionLost`](crate::LockError::SessionLost), [`Closed`](crate::LockError::Closed).
    pub fn new(session: &Session, path: &str) -> Result<NodeTracker> {
        match NodeTracker::new_with(session, path, &Wait::forever())? {
            Some(tracker) => Ok(tracker),
            // Proof: without a deadline there is none to come.
            None => Err(LockError::Closed { operation: Operation::WATCH.name, path: path.to_owned() }),
        }
    }

    /// Begins to track the znode at this path, and blocks until the server has said what is there, or
    /// until the wait ends, and then returns `None`, with nothing tracked.
    ///
    /// # Errors
    /// As [`new`](NodeTracker::new), and [`Cancelled`](crate::LockError::Cancelled).
    pub fn new_with(session: &Session, path: &str, wait: &Wait) -> Result<Option<NodeTracker>> {
        let node = Node { path: ZNodePath::parse(path)? };
        Ok(Tracking::start(session, node, wait)?.map(|tracking| NodeTracker { tracking }))
    }

    /// Returns the full path of the znode.
    #[must_use]
    pub fn path(&self) -> &str {
        self.tracking.path().as_str()
    }

    /// Returns the session.
    #[must_use]
    pub fn session(&self) -> &Session {
        self.tracking.session()
    }

    /// Returns the znode as it was seen last; `None` when there was none. Does no I/O and waits for nothing.
    ///
    /// # Errors
    /// [`AccessDenied`](crate::LockError::AccessDenied) while READ is not granted (it is tried again every second),
    /// [`SessionLost`](crate::LockError::SessionLost), [`Closed`](crate::LockError::Closed).
    pub fn current(&self) -> Result<Option<NodeData>> {
        self.tracking.current()
    }

    /// Returns a channel that gets a message when [`current`](NodeTracker::current) has changed; usable in
    /// [`select!`](crossbeam_channel::select).
    ///
    /// It has room for one message, which stands for all changes since it was sent: take it, then ask for the current
    /// data. It is disconnected when the session has ended.
    #[must_use]
    pub fn changes(&self) -> &Receiver<()> {
        self.tracking.changes()
    }

    /// Blocks until the znode exists, or for `timeout`, and then returns `None`.
    ///
    /// # Errors
    /// As [`current`](NodeTracker::current).
    pub fn wait_available(&self, timeout: Duration) -> Result<Option<NodeData>> {
        self.wait_available_with(&Wait::timeout(timeout))
    }

    /// Blocks until the znode exists, or until the wait ends, and then returns `None`.
    ///
    /// # Errors
    /// As [`current`](NodeTracker::current), and [`Cancelled`](crate::LockError::Cancelled).
    pub fn wait_available_with(&self, wait: &Wait) -> Result<Option<NodeData>> {
        self.tracking.wait_for(wait, Option::clone)
    }

    /// Blocks until the znode does not exist, or for `timeout`; returns whether it is gone.
    ///
    /// One that is deleted and made again at once may be missed.
    ///
    /// # Errors
    /// As [`current`](NodeTracker::current).
    pub fn wait_deleted(&self, timeout: Duration) -> Result<bool> {
        self.wait_deleted_with(&Wait::timeout(timeout))
    }

    /// Blocks until the znode does not exist, or until the wait ends; returns whether it is gone.
    ///
    /// # Errors
    /// As [`current`](NodeTracker::current), and [`Cancelled`](crate::LockError::Cancelled).
    pub fn wait_deleted_with(&self, wait: &Wait) -> Result<bool> {
        let gone = self.tracking.wait_for(wait, |node| node.is_none().then_some(()))?;
        Ok(gone.is_some())
    }
}

/// A znode as a [`NodeTracker`] saw it. Cheap to clone; two are equal when nothing was written between them.
#[derive(Clone, Debug)]
pub struct NodeData {
    contents: Arc<Contents>,
}

#[derive(Debug)]
struct Contents {
    data: Vec<u8>,
    stat: Stat,
}

impl NodeData {
    /// Returns the data as they are in the znode.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.contents.data
    }

    /// Returns the data without the mark that a
    /// [`RecoverableZooKeeper`](crate::RecoverableZooKeeper) writes in front of them; the whole
    /// data where there is none.
    ///
    /// Use it for znodes that a `RecoverableZooKeeper` writes, and only for those: other data may
    /// begin like a mark by chance.
    #[must_use]
    pub fn unmarked_data(&self) -> &[u8] {
        unmarked(self.data())
    }

    /// Returns the [data](NodeData::data) as text; what is not UTF-8 in it is replaced.
    #[must_use]
    pub fn data_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.data())
    }

    /// Returns the metadata, as it was when the data was read.
    #[must_use]
    pub fn stat(&self) -> &Stat {
        &self.contents.stat
    }
}

impl PartialEq for NodeData {
    fn eq(&self, other: &NodeData) -> bool {
        // The transaction that wrote it last; of one that was made again, the creation.
        self.stat().mzxid == other.stat().mzxid
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

    fn look(&self, watching: &Watching) -> ZkResult<Fetched<Option<NodeData>>> {
        match watching.data(&self.path) {
            Ok((data, stat)) => {
                let contents = Arc::new(Contents { data, stat });
                Ok(Fetched::Seen(Some(NodeData { contents })))
            }
            // A watch on what does not exist: here it is waited for.
            Err(ZkError::NoNode) => watching.absence(&self.path, None),
            Err(error) => Err(error),
        }
    }
}
