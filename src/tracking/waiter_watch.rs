//! [`WaiterWatch`]: notices that a request joins the queue behind an exclusive owner, over
//! reconnects, and costs no thread meanwhile.

use std::sync::Arc;

use super::{Look, Subject, Tracking};
use crate::error::ZkError;
use crate::recipe::path::ZNodePath;
use crate::recipe::queue::has_waiter;
use crate::session::Core;

/// Ends when it is dropped, which its report may do.
pub(crate) struct WaiterWatch {
    _tracking: Tracking<Waiters>,
}

impl WaiterWatch {
    /// Watches the children of the owner's directory. The report is called, on a worker, after each
    /// look that finds a request behind the owner's znode, and after each that the server refuses:
    /// the owner cannot find out then whether somebody waits.
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

    /// Every look sets the watch again, as it may have fired for a child that is no request. The
    /// same call lists the children, so no request is missed that came before the watch.
    fn look(self: &Arc<Self>) -> Look<()> {
        let behind = Arc::clone(self);
        Look::children(&self.dir, move |children| match children {
            Ok(children) => {
                if has_waiter(behind.own.name(), &children) {
                    (behind.report)();
                }
                Look::Seen(())
            }
            // The owner's znode is gone too, which its request notices.
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
