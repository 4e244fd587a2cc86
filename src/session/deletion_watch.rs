//! [`DeletionWatch`]: waits for a znode of somebody else's to go, over reconnects, and costs no thread meanwhile.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::registry::{Notification, Participant, ParticipantId};
use super::state::{Core, WatchOutcome};
use crate::panics::contain_call;
use crate::recipe::path::ZNodePath;

/// How soon a znode is looked at again when no watch tells of it although there seems to be contact.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Ends when it is dropped.
pub(crate) struct DeletionWatch {
    watch_loop: Arc<WatchLoop>,
    deleted: Receiver<()>,
}

struct WatchLoop {
    id: ParticipantId,
    core: Arc<Core>,
    path: ZNodePath,
    deleted: Sender<()>,
    is_over: AtomicBool,
}

impl DeletionWatch {
    pub(crate) fn begin(core: &Arc<Core>, path: &ZNodePath) -> DeletionWatch {
        let (sender, deleted) = bounded(1);
        let watch_loop = Arc::new(WatchLoop {
            id: core.registry().new_id(),
            core: Arc::clone(core),
            path: path.clone(),
            deleted: sender,
            is_over: AtomicBool::new(false),
        });
        core.join(watch_loop.id, Arc::<WatchLoop>::clone(&watch_loop));
        Arc::clone(&watch_loop).look_soon();
        DeletionWatch { watch_loop, deleted }
    }

    /// A channel on which a message arrives when the znode is gone. Nothing comes after the end of the session.
    pub(crate) fn deleted(&self) -> &Receiver<()> {
        &self.deleted
    }
}

impl Drop for DeletionWatch {
    fn drop(&mut self) {
        let WatchLoop { id, core, path, is_over, .. } = &*self.watch_loop;
        is_over.store(true, Ordering::SeqCst);
        core.registry().unwatch(path, *id);
        core.leave(*id);
    }
}

impl WatchLoop {
    fn look_soon(self: Arc<Self>) {
        let core = Arc::clone(&self.core);
        core.submit(move |_| self.look());
    }

    fn look(self: Arc<Self>) {
        let sight = contain_call("a look at a znode", || self.core.watch(&self.path, self.id));
        if self.is_over.load(Ordering::SeqCst) {
            // It ended while the call was under way, which had registered it again.
            return self.core.registry().unwatch(&self.path, self.id);
        }
        match sight {
            Ok(WatchOutcome::Gone) => drop(self.deleted.try_send(())),
            Ok(WatchOutcome::Watched { .. }) => {}
            // The reconnect wakes it.
            Err(_) if !self.core.in_contact() => {}
            Ok(WatchOutcome::Unreadable) | Err(_) => self.look_later(),
        }
    }

    fn look_later(self: Arc<Self>) {
        let weak = Arc::downgrade(&self);
        self.core.at(self.core.now().after(LOOK_AGAIN), move |_| {
            if let Some(watch_loop) = weak.upgrade() {
                watch_loop.look_soon();
            }
        });
    }
}

impl Participant for WatchLoop {
    fn notify(self: Arc<Self>, why: Notification) {
        match why {
            Notification::LookAgain | Notification::Routine | Notification::Reconnected => self.look_soon(),
            Notification::Suspended | Notification::CheckLease | Notification::SessionEnded(_) => {}
        }
    }
}

impl fmt::Debug for DeletionWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeletionWatch").field("path", &self.watch_loop.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::Session;
    use crate::client::{Acl, Permissions, ZkError};
    use crate::fake::{Effect, SimOperation, SimulatedZooKeeper};
    use crate::testing::{eventually, open_on_manual_runtime};

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn a_message_arrives_when_the_znode_is_deleted_and_not_before() {
        let zookeeper = SimulatedZooKeeper::new();
        zookeeper.create("/a", b"");
        let (_client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
        let deletion_watch = DeletionWatch::begin(&session.core(), &ZNodePath::parse("/a").unwrap());
        zookeeper.set_data("/a", b"new");
        runtime.advance(2 * LOOK_AGAIN);
        assert!(deletion_watch.deleted().try_recv().is_err());
        zookeeper.delete("/a");
        assert_eq!(deletion_watch.deleted().try_recv(), Ok(()));
        assert!(deletion_watch.deleted().try_recv().is_err());
    }

    #[test]
    fn a_znode_that_may_not_be_read_is_looked_at_again() {
        let zookeeper = SimulatedZooKeeper::new();
        zookeeper.create_with_acl("/a", b"", &[Acl::new(Permissions::DELETE, "world", "anyone")]);
        let (_client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
        let deletion_watch = DeletionWatch::begin(&session.core(), &ZNodePath::parse("/a").unwrap());
        zookeeper.delete("/a");
        assert!(deletion_watch.deleted().try_recv().is_err(), "the server fires no watch for this client");
        runtime.advance(LOOK_AGAIN);
        assert_eq!(deletion_watch.deleted().try_recv(), Ok(()));
    }

    #[test]
    fn a_look_that_fails_in_contact_is_repeated() {
        let zookeeper = SimulatedZooKeeper::new();
        let (client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
        client.fail_next(SimOperation::GetData, Effect::Before, ZkError::Unimplemented);
        let deletion_watch = DeletionWatch::begin(&session.core(), &ZNodePath::parse("/a").unwrap());
        assert!(deletion_watch.deleted().try_recv().is_err());
        runtime.advance(LOOK_AGAIN);
        assert_eq!(deletion_watch.deleted().try_recv(), Ok(()));
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
        assert_eq!(deletion_watch.deleted().try_recv(), Ok(()));
    }

    #[test]
    fn a_deletion_is_seen_after_a_panic_of_the_client() {
        let zk = SimulatedZooKeeper::new();
        zk.create("/a", b"");
        let client = zk.connect(Duration::from_secs(30));
        let session = Session::from_client(client.clone()).unwrap();
        // Without the hook, which would print it.
        client.before_next(SimOperation::GetData, || {
            std::panic::resume_unwind(Box::new("a client panics on purpose"));
        });
        let deletion_watch = DeletionWatch::begin(&session.core(), &ZNodePath::parse("/a").unwrap());
        zk.delete("/a");
        deletion_watch.deleted().recv_timeout(Duration::from_secs(30)).unwrap();
    }

    #[test]
    fn a_look_that_comes_after_the_end_leaves_nobody_registered() {
        let zk = SimulatedZooKeeper::new();
        zk.create("/a", b"");
        let session = Session::from_client(zk.connect(Duration::from_secs(30))).unwrap();
        let core = session.core();
        let deletion_watch = DeletionWatch::begin(&core, &ZNodePath::parse("/a").unwrap());
        let watch_loop = Arc::clone(&deletion_watch.watch_loop);
        drop(deletion_watch);
        watch_loop.look();
        // The look with which it began may be under way still.
        eventually("nobody is registered", || {
            format!("{:?}", core.registry()) == "Registry { all: 0, watched_paths: 0 }"
        });
    }
}
