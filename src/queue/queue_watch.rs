//! [`QueueWatch`]: all requests in a queue, kept up to date.

use std::sync::Arc;

use crossbeam_channel::Receiver;

use crate::error::{Result, ZkError};
use crate::recipe::order::in_order;
use crate::recipe::path::ZNodePath;
use crate::session::Session;
use crate::tracking::{Look, Subject, Tracking};
use crate::wait::Wait;

/// Keeps track of all requests in a lock directory.
///
/// [`LockDirectory::watch_queue`](crate::queue::LockDirectory::watch_queue) starts the watch, and dropping the watch
/// ends it. It is meant for operators' tools, because each request that joins or leaves costs a listing of
/// the directory. To follow only the leader, use a [`LeaderWatch`](crate::queue::LeaderWatch).
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::Session;
/// use zookeeper_recipes_lock::queue::LockDirectory;
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let directory = LockDirectory::new(&session, "/locks/report")?;
/// let watch = directory.watch_queue(Duration::from_secs(30))?;
/// while watch.changes().recv().is_ok() {
///     for request in directory.contenders()? {
///         println!("{request}");
///     }
/// }
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
///
/// The result is as recent as that of a `LeaderWatch`. The watch needs no thread, and continues on the next session
/// when its session is [replaced](crate::SessionBuilder::replace_lost_sessions).
#[must_use = "the watch ends at once when it is not kept"]
#[derive(Debug)]
pub struct QueueWatch {
    tracking: Tracking<Queue>,
}

impl QueueWatch {
    pub(super) fn start(session: &Session, dir: &ZNodePath, wait: &Wait) -> Result<QueueWatch> {
        let tracking = Tracking::start(session, Queue { dir: dir.clone() }, wait)?;
        Ok(QueueWatch { tracking })
    }

    /// Returns the names of the requests, in the order of the queue.
    ///
    /// Does no I/O and does not block.
    ///
    /// # Errors
    /// The same as [`LeaderWatch::leader`](crate::queue::LeaderWatch::leader).
    pub fn names(&self) -> Result<Vec<String>> {
        self.tracking.current()
    }

    /// Returns a channel that receives a message when a request joins or leaves.
    ///
    /// Use it in a [`select!`](crossbeam_channel::select). The channel holds at most one message, which stands for all
    /// changes since it was sent. It is disconnected when the session has ended, but never in a forked child: there, nothing
    /// arrives.
    #[must_use]
    pub fn changes(&self) -> &Receiver<()> {
        self.tracking.changes()
    }
}

/// What a [`QueueWatch`] follows: all requests in `dir`.
#[derive(Debug)]
struct Queue {
    dir: ZNodePath,
}

impl Subject for Queue {
    type Value = Vec<String>;

    fn path(&self) -> &ZNodePath {
        &self.dir
    }

    fn look(self: &Arc<Self>) -> Look<Vec<String>> {
        let queue = Arc::clone(self);
        Look::children(&self.dir, move |children| match children {
            Ok(children) => Look::Seen(in_order(&children).into_iter().map(str::to_owned).collect()),
            Err(ZkError::NoNode) => Look::absence(&queue.dir, Vec::new()),
            Err(error) => Look::Failed(error),
        })
    }
}
