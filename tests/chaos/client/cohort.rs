//! Acquires with the `CohortLock` that the threads of a session share.

use std::time::Duration;

use zookeeper_recipes_lock::locks::{CohortGuard, CohortLock};
use zookeeper_recipes_lock::{LockError, LossReason};

use super::contender::Contender;
use super::holding::Held;

impl Contender {
    pub(super) fn acquire_in_cohort(
        &mut self,
        cohort: &CohortLock,
        lock: usize,
        time_limit: Option<Duration>,
    ) -> bool {
        self.note_call("cohort", lock, time_limit);
        let outcome = match time_limit {
            None => cohort.lock().map(Some),
            Some(Duration::ZERO) => cohort.try_lock(),
            Some(time_limit) => cohort.try_lock_for(time_limit),
        };
        let Some(guard) = self.granted(outcome) else { return false };
        let owned = self.hold(lock, &guard);
        self.release(guard, CohortGuard::unlock);
        owned
    }
}

impl Held for CohortGuard {
    fn is_owner(&self) -> bool {
        CohortGuard::is_owner(self)
    }

    fn id(&self) -> Option<String> {
        Some(CohortGuard::id(self).to_owned())
    }

    fn fencing_token(&self) -> Option<Result<i64, LockError>> {
        Some(CohortGuard::fencing_token(self))
    }

    fn lost(&self) -> Option<LossReason> {
        CohortGuard::lost(self).try_recv().ok()
    }
}
