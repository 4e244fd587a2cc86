//! Acquires a permit of the `Semaphore`.

use std::time::Duration;

use zookeeper_recipes_lock::locks::{Permit, Semaphore};
use zookeeper_recipes_lock::{LockError, LockGuard, LossReason, Session};

use super::contender::Contender;
use super::holding::Held;
use crate::plan::{LOCKS, PERMITS, SEMAPHORE};

impl Contender {
    pub(super) fn acquire_permit(&mut self, session: &Session, time_limit: Option<Duration>) -> bool {
        let semaphore = Semaphore::new(session, LOCKS[SEMAPHORE], PERMITS as u32).expect("the path is fine");
        let is_future = self.note_call_or_future("acquire", SEMAPHORE, time_limit);
        let outcome = match time_limit {
            _ if is_future => self.tasks.run(semaphore.acquire_async(), time_limit),
            None => semaphore.acquire().map(Some),
            Some(Duration::ZERO) => semaphore.try_acquire(),
            Some(time_limit) => semaphore.try_acquire_for(time_limit),
        };
        let Some(permit) = self.granted(outcome) else { return false };
        let owned = self.hold(SEMAPHORE, &permit);
        self.release(permit, Permit::release);
        owned
    }
}

impl Held for Permit {
    fn is_owner(&self) -> bool {
        LockGuard::is_owner(self)
    }

    fn id(&self) -> Option<String> {
        Some(LockGuard::id(self).to_owned())
    }

    /// Returns `None`: no token orders the holders of several permits.
    fn fencing_token(&self) -> Option<Result<i64, LockError>> {
        None
    }

    fn lost(&self) -> Option<LossReason> {
        LockGuard::lost(self).try_recv().ok()
    }

    fn shares(&self) -> bool {
        true
    }
}
