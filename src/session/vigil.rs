//! [`Vigil`]: waits for a znode of somebody else's to go, over reconnects, and costs no thread meanwhile.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::core::{Core, Sight};
use super::participants::{Participant, ParticipantId, Wake};
use crate::panics::contain_call;
use crate::recipe::path::ZNodePath;

/// How soon a znode is looked at again when no watch tells of it although there seems to be contact.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Ends when it is dropped.
pub(crate) struct Vigil {
    lookout: Arc<Lookout>,
    gone: Receiver<()>,
}

struct Lookout {
    id: ParticipantId,
    core: Arc<Core>,
    path: ZNodePath,
    gone: Sender<()>,
    is_over: AtomicBool,
}

impl Vigil {
    pub(crate) fn begin(core: &Arc<Core>, path: &ZNodePath) -> Vigil {
        let (sender, gone) = bounded(1);
        let lookout = Arc::new(Lookout {
            id: core.participants().new_id(),
            core: Arc::clone(core),
            path: path.clone(),
            gone: sender,
            is_over: AtomicBool::new(false),
        });
        core.join(lookout.id, Arc::<Lookout>::clone(&lookout));
        Arc::clone(&lookout).look_soon();
        Vigil { lookout, gone }
    }

    /// A channel on which a message arrives when the znode is gone. Nothing comes after the end of the session.
    pub(crate) fn gone(&self) -> &Receiver<()> {
        &self.gone
    }
}

impl Drop for Vigil {
    fn drop(&mut self) {
        let Lookout { id, core, path, is_over, .. } = &*self.lookout;
        is_over.store(true, Ordering::SeqCst);
        core.participants().unwatch(path, *id);
        core.leave(*id);
    }
}

impl Lookout {
    fn look_soon(self: Arc<Self>) {
        let core = Arc::clone(&self.core);
        core.submit(move |_| self.look());
    }

    fn look(self: Arc<Self>) {
        let sight = contain_call("a look at a znode", || self.core.watch(&self.path, self.id));
        if self.is_over.load(Ordering::SeqCst) {
            // It ended while the call was under way, which had registered it again.
            return self.core.participants().unwatch(&self.path, self.id);
        }
        match sight {
            Ok(Sight::Gone) => drop(self.gone.try_send(())),
            Ok(Sight::Watched { .. }) => {}
            // The reconnect wakes it.
            Err(_) if !self.core.in_contact() => {}
            Ok(Sight::Unreadable) | Err(_) => self.look_later(),
        }
    }

    fn look_later(self: Arc<Self>) {
        let weak = Arc::downgrade(&self);
        self.core.at(self.core.now().after(LOOK_AGAIN), move |_| {
            if let Some(lookout) = weak.upgrade() {
                lookout.look_soon();
            }
        });
    }
}

impl Participant for Lookout {
    fn wake(self: Arc<Self>, why: Wake) {
        match why {
            Wake::LookAgain | Wake::Routine | Wake::Reconnected => self.look_soon(),
            Wake::Suspended | Wake::CheckLease | Wake::SessionEnded(_) => {}
        }
    }
}

impl fmt::Debug for Vigil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vigil").field("path", &self.lookout.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use zookeeper::{Acl, Permission, ZkError};

    use crate::Session;
    use crate::sim::{Effect, SimOperation, SimulatedZooKeeper};
    use crate::testing::{eventually, open_on_manual_runtime};

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn a_message_arrives_when_the_znode_is_deleted_and_not_before() {
        let zookeeper = SimulatedZooKeeper::new();
        zookeeper.create("/a", b"");
        let (_client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
        let vigil = Vigil::begin(&session.core(), &ZNodePath::parse("/a").unwrap());
        zookeeper.set_data("/a", b"new");
        runtime.advance(2 * LOOK_AGAIN);
        assert!(vigil.gone().try_recv().is_err());
        zookeeper.delete("/a");
        assert_eq!(vigil.gone().try_recv(), Ok(()));
        assert!(vigil.gone().try_recv().is_err());
    }

    #[test]
    fn a_znode_that_may_not_be_read_is_looked_at_again() {
        let zookeeper = SimulatedZooKeeper::new();
        zookeeper.create_with_acl("/a", b"", &[Acl::new(Permission::DELETE, "world", "anyone")]);
        let (_client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
        let vigil = Vigil::begin(&session.core(), &ZNodePath::parse("/a").unwrap());
        zookeeper.delete("/a");
        assert!(vigil.gone().try_recv().is_err(), "the server fires no watch for this client");
        runtime.advance(LOOK_AGAIN);
        assert_eq!(vigil.gone().try_recv(), Ok(()));
    }

    #[test]
    fn a_look_that_fails_in_contact_is_repeated() {
        let zookeeper = SimulatedZooKeeper::new();
        let (client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
        client.fail_next(SimOperation::GetData, Effect::Before, ZkError::Unimplemented);
        let vigil = Vigil::begin(&session.core(), &ZNodePath::parse("/a").unwrap());
        assert!(vigil.gone().try_recv().is_err());
        runtime.advance(LOOK_AGAIN);
        assert_eq!(vigil.gone().try_recv(), Ok(()));
    }

    #[test]
    fn a_look_without_contact_is_repeated_by_the_reconnect_alone() {
        let zookeeper = SimulatedZooKeeper::new();
        let (client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
        client.disconnect();
        let vigil = Vigil::begin(&session.core(), &ZNodePath::parse("/a").unwrap());
        zookeeper.clear_log();
        runtime.advance(5 * LOOK_AGAIN);
        assert!(zookeeper.log().is_empty(), "{:?}", zookeeper.log());
        client.reconnect();
        assert_eq!(vigil.gone().try_recv(), Ok(()));
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
        let vigil = Vigil::begin(&session.core(), &ZNodePath::parse("/a").unwrap());
        zk.delete("/a");
        vigil.gone().recv_timeout(Duration::from_secs(30)).unwrap();
    }

    #[test]
    fn a_look_that_comes_after_the_end_leaves_nobody_registered() {
        let zk = SimulatedZooKeeper::new();
        zk.create("/a", b"");
        let session = Session::from_client(zk.connect(Duration::from_secs(30))).unwrap();
        let core = session.core();
        let vigil = Vigil::begin(&core, &ZNodePath::parse("/a").unwrap());
        let lookout = Arc::clone(&vigil.lookout);
        drop(vigil);
        lookout.look();
        // The look with which it began may be under way still.
        eventually("nobody is registered", || {
            format!("{:?}", core.participants()) == "Participants { all: 0, watched_paths: 0 }"
        });
    }
}
