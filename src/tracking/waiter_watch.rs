//! [`WaiterWatch`]: a wait for requests that join the queue behind an exclusive owner. It survives reconnects
//! and needs no thread.

use std::sync::Arc;

use super::{Look, Subject, Tracking};
use crate::error::ZkError;
use crate::recipe::path::ZNodePath;
use crate::recipe::queue::has_waiter;
use crate::session::Core;

/// A wait for requests behind an owner. Dropping it ends the wait; the report itself may do that.
pub(crate) struct WaiterWatch {
    _tracking: Tracking<Waiters>,
}

impl WaiterWatch {
    /// Watches the children of the owner's directory. Calls `report` on a worker after each listing that
    /// shows a request behind the owner's znode. Also calls `report` after each listing that the server
    /// refuses, because the owner then cannot find out whether somebody waits.
    pub(crate) fn begin(
        core: &Arc<Core>,
        dir: &ZNodePath,
        own: &ZNodePath,
        report: impl Fn() + Send + Sync + 'static,
    ) -> WaiterWatch {
        let report = Arc::new(report);
        let weak = Arc::downgrade(core);
        let report = move || {
            let report = Arc::clone(&report);
            if let Some(core) = weak.upgrade() {
                core.run_job(move |_| report());
            }
        };
        let subject = Waiters { dir: dir.clone(), own: own.clone(), report: Box::new(report) };
        WaiterWatch { _tracking: Tracking::begin(core, subject) }
    }
}

struct Waiters {
    dir: ZNodePath,
    own: ZNodePath,
    report: Box<dyn Fn() + Send + Sync>,
}

impl Subject for Waiters {
    type Value = ();

    fn path(&self) -> &ZNodePath {
        &self.dir
    }

    /// Every look sets a new watch, because the last watch may have fired for a child that is not a request.
    /// The call that sets the watch also lists the children, so it misses no request that joined earlier.
    fn look(self: &Arc<Self>) -> Look<()> {
        let behind = Arc::clone(self);
        Look::children(&self.dir, move |children| match children {
            Ok(children) => {
                if has_waiter(behind.own.name(), &children) {
                    (behind.report)();
                }
                Look::Seen(())
            }
            // The directory is gone, and the owner's znode with it. The owner's request notices that.
            Err(ZkError::NoNode) => Look::Seen(()),
            Err(error) => {
                if !error.is_transient() && error != ZkError::SessionExpired {
                    (behind.report)();
                }
                Look::Failed(error)
            }
        })
    }
}
