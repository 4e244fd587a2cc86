//! [`CohortOwnership`]: what a process knows of a lock that it owns.

use std::sync::Arc;

use crossbeam_channel::Sender;

use super::request::CohortRequest;
use super::turns::Grant;
use crate::error::LossReason;
use crate::time::Moment;
use crate::tracking::WaiterWatch;

/// The lock is owned by the process.
pub(super) struct CohortOwnership {
    pub(super) request: Arc<CohortRequest>,
    pub(super) usage: Usage,
    /// `Some` while requests are known to be behind this one.
    pub(super) behind: Option<Behind>,
    pub(super) watch: Option<WaiterWatch>,
    pub(super) watch_has_begun: bool,
    /// A timer is running that looks whether the lock was kept long enough.
    pub(super) has_timer: bool,
}

pub(super) enum Usage {
    /// The channels exist once the holder has asked for them.
    Held {
        lost: Option<Sender<LossReason>>,
        revocation: Option<Sender<()>>,
    },
    Kept {
        until: Moment,
    },
}

impl Usage {
    pub(super) const HELD: Usage = Usage::Held { lost: None, revocation: None };
}

/// Another process waits.
pub(super) struct Behind {
    pub(super) since: Moment,
    /// The number of hand-overs since.
    pub(super) handovers: u32,
}

impl CohortOwnership {
    /// Returns whether the process has enough of its [time](crate::LockOptions::max_hold) left for another thread. A
    /// thread that gets the lock has at least half of it.
    pub(super) fn has_time(&self) -> bool {
        let now = self.request.core().now();
        self.request.half_time().is_none_or(|half| now < half)
    }

    pub(super) fn begin_tenure(&mut self) -> Grant {
        self.usage = Usage::HELD;
        Grant { request: Arc::clone(&self.request), tenure: self.request.next_tenure() }
    }
}
