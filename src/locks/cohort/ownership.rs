//! [`CohortOwnership`]: the state of a lock that the process owns.

use std::sync::Arc;

use crossbeam_channel::Sender;

use super::request::CohortRequest;
use super::turns::Grant;
use crate::error::LossReason;
use crate::time::Moment;
use crate::tracking::WaiterWatch;

/// The state of a lock that the process owns.
pub(super) struct CohortOwnership {
    pub(super) request: Arc<CohortRequest>,
    pub(super) usage: Usage,
    /// `Some` once a request behind this one is known.
    pub(super) behind: Option<Behind>,
    pub(super) watch: Option<WaiterWatch>,
    pub(super) watch_has_begun: bool,
    /// Whether the timer is running after which an idle lock is no longer kept.
    pub(super) has_timer: bool,
}

pub(super) enum Usage {
    /// A thread holds the lock. Each channel exists once the holder has asked for it.
    Held { lost: Option<Sender<LossReason>>, revocation: Option<Sender<()>> },
    /// No thread holds the lock.
    Kept { until: Moment },
}

impl Usage {
    pub(super) const HELD: Usage = Usage::Held { lost: None, revocation: None };
}

/// What is known about the requests behind the owner's request.
pub(super) struct Behind {
    pub(super) since: Moment,
    /// The number of hand-overs since a request behind was noticed.
    pub(super) handovers: u32,
}

impl CohortOwnership {
    /// Returns whether enough of the [`max_hold`](crate::LockOptions::max_hold) is left for another thread. A thread
    /// that gets the lock has at least half of it.
    pub(super) fn has_time(&self) -> bool {
        let now = self.request.core().now();
        self.request.half_time().is_none_or(|half| now < half)
    }

    pub(super) fn begin_tenure(&mut self) -> Grant {
        self.usage = Usage::HELD;
        Grant { request: Arc::clone(&self.request), tenure: self.request.next_tenure() }
    }
}
