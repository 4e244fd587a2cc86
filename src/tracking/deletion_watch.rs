//! [`DeletionWatch`]: a wait for the deletion of a znode. It survives reconnects and needs no thread.

use std::sync::Arc;

use super::{Look, Subject, Tracking};
use crate::client::Call;
use crate::engine::Sight;
use crate::error::{ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::session::Core;
use crate::time::{Latch, Setter};

/// A wait for the deletion of a znode. Dropping it ends the wait.
pub(crate) struct DeletionWatch {
    tracking: Tracking<Deletion>,
}

impl DeletionWatch {
    pub(crate) fn begin(core: &Arc<Core>, path: &ZNodePath) -> DeletionWatch {
        let subject = Deletion { path: path.clone(), deleted: Setter::new() };
        DeletionWatch { tracking: Tracking::begin(core, subject) }
    }

    /// Returns the latch that is set when the znode is gone. The end of the session does not set it.
    pub(crate) fn deleted(&self) -> &Latch {
        self.tracking.inner.subject.deleted.latch()
    }
}

struct Deletion {
    path: ZNodePath,
    deleted: Setter,
}

impl Subject for Deletion {
    type Value = ();

    fn path(&self) -> &ZNodePath {
        &self.path
    }

    fn look(self: &Arc<Self>) -> Look<()> {
        let deletion = Arc::clone(self);
        Look::data(&self.path, move |data| match data {
            Err(ZkError::NoAuth) => deletion.look_without_data(),
            data => deletion.seen(Sight::of_data(data)),
        })
    }
}

impl Deletion {
    fn look_without_data(self: Arc<Self>) -> Look<()> {
        let exists = Call::exists(&self.path, true);
        Look::ask(exists, move |found| self.seen(Sight::of_exists(found)))
    }

    fn seen(&self, outcome: ZkResult<Sight>) -> Look<()> {
        match outcome {
            Ok(Sight::Gone) => self.deleted.set(),
            Ok(Sight::Watched { .. }) => {}
            // The watch may never fire. This error makes the engine look again at regular intervals.
            Ok(Sight::Unreadable | Sight::Directory) => return Look::Failed(ZkError::NoAuth),
            Err(error) => return Look::Failed(error),
        }
        Look::Seen(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::client::{Acl, Permissions};
    use crate::error::ZkError;
    use crate::fake::{Effect, SimOperation, SimulatedZooKeeper};
    use crate::tests::{eventually, open_on_manual_runtime};

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// The longest delay before the engine looks again.
    const LOOK_AGAIN: Duration = Duration::from_secs(1);

    #[test]
    fn the_latch_is_set_when_the_znode_is_deleted_and_not_before() {
        let zookeeper = SimulatedZooKeeper::new();
        zookeeper.create("/a", b"");
        let (_client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
        let deletion_watch = DeletionWatch::begin(&session.core(), &ZNodePath::parse("/a").unwrap());
        zookeeper.set_data("/a", b"new");
        runtime.advance(2 * LOOK_AGAIN);
        assert!(!deletion_watch.deleted().is_set());
        zookeeper.delete("/a");
        assert!(deletion_watch.deleted().is_set());
    }

    #[test]
    fn a_znode_that_may_not_be_read_is_looked_at_again() {
        let zookeeper = SimulatedZooKeeper::new();
        zookeeper.create_with_acl("/a", b"", &[Acl::new(Permissions::DELETE, "world", "anyone")]);
        let (_client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
        let deletion_watch = DeletionWatch::begin(&session.core(), &ZNodePath::parse("/a").unwrap());
        zookeeper.delete("/a");
        assert!(!deletion_watch.deleted().is_set(), "the server fires no watch for this client");
        runtime.advance(LOOK_AGAIN);
        assert!(deletion_watch.deleted().is_set());
    }

    #[test]
    fn a_look_that_fails_in_contact_is_repeated() {
        let zookeeper = SimulatedZooKeeper::new();
        let (client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
        client.fail_next(SimOperation::GetData, Effect::Before, ZkError::Throttled);
        let deletion_watch = DeletionWatch::begin(&session.core(), &ZNodePath::parse("/a").unwrap());
        assert!(!deletion_watch.deleted().is_set());
        runtime.advance(LOOK_AGAIN);
        assert!(deletion_watch.deleted().is_set());
    }

    #[test]
    fn a_look_without_contact_is_repeated_by_the_reconnect_alone() {
        let zookeeper = SimulatedZooKeeper::new();
        let (client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
        client.disconnect();
        let deletion_watch = DeletionWatch::begin(&session.core(), &ZNodePath::parse("/a").unwrap());
        zookeeper.clear_log();
        runtime.advance(5 * LOOK_AGAIN);
        assert!(zookeeper.log().is_empty(), "{:?}", zookeeper.log());
        client.reconnect();
        assert!(deletion_watch.deleted().is_set());
    }

    #[test]
    fn a_deletion_is_seen_after_a_panic_of_the_client() {
        let zk = SimulatedZooKeeper::new();
        zk.create("/a", b"");
        let client = zk.connect(Duration::from_secs(30));
        let session = client.open_session().unwrap();
        // `resume_unwind` skips the panic hook, which would print the panic.
        client.before_next(SimOperation::GetData, || {
            std::panic::resume_unwind(Box::new("a client panics on purpose"));
        });
        let deletion_watch = DeletionWatch::begin(&session.core(), &ZNodePath::parse("/a").unwrap());
        zk.delete("/a");
        eventually("the deletion is seen", || deletion_watch.deleted().is_set());
    }

    #[test]
    fn a_look_that_comes_after_the_end_leaves_nobody_registered() {
        let zk = SimulatedZooKeeper::new();
        zk.create("/a", b"");
        let session = zk.connect(Duration::from_secs(30)).open_session().unwrap();
        let core = session.core();
        let deletion_watch = DeletionWatch::begin(&core, &ZNodePath::parse("/a").unwrap());
        let inner = Arc::clone(&deletion_watch.tracking.inner);
        let id = inner.state.lock().id;
        drop(deletion_watch);
        inner.register(&core, id);
        // The first look may still be under way.
        eventually("no registration is left", || core.census() == (0, 0));
    }
}
