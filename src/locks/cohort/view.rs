//! [`CohortView`]: the state of a cohort, for tests.

use std::sync::Arc;

use super::state::{CohortPhase, CohortShared, Tally};
use crate::time::Moment;

/// The state while the process owns the lock.
#[derive(Clone, Debug)]
pub(crate) struct CohortView {
    pub(crate) znode: String,
    pub(crate) number: u64,
    pub(crate) is_kept: bool,
    pub(crate) is_owner: bool,
    /// Whether a request behind the owner's request is known.
    pub(crate) waiter_is_known: bool,
    pub(crate) tally: Tally,
    /// When half of the `max_hold` is over, if there is one.
    pub(crate) half_time: Option<Moment>,
}

impl CohortShared {
    /// Returns the state while the process owns the lock.
    pub(crate) fn view(&self) -> Option<CohortView> {
        let (request, mut view) = {
            let state = self.lock();
            let CohortPhase::Owned(ownership) = &state.phase else { return None };
            let view = CohortView {
                znode: String::new(),
                number: ownership.request.number,
                is_kept: state.is_kept(),
                is_owner: ownership.request.holds_lease(),
                waiter_is_known: ownership.behind.is_some(),
                tally: state.tally,
                half_time: ownership.request.half_time(),
            };
            (Arc::clone(&ownership.request), view)
        };
        view.znode = request.path().to_string();
        Some(view)
    }

    /// Returns the number of waiting threads.
    pub(crate) fn waiters(&self) -> usize {
        self.lock().waiters.len()
    }
}
