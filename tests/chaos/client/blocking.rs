//! Acquires with `BlockingWriteLock`. Also has the common parts of all calls that return a guard.

use std::time::Duration;

use zookeeper_recipes_lock::locks::Released;
use zookeeper_recipes_lock::{BlockingWriteLock, LockError, LockGuard, LossReason, Session};

use super::contender::{Contender, class_of};
use super::holding::Held;
use crate::plan::LOCKS;

impl Contender {
    pub(super) fn acquire_blocking(
        &mut self,
        session: &Session,
        lock: usize,
        time_limit: Option<Duration>,
    ) -> bool {
        let blocking = BlockingWriteLock::new(session, LOCKS[lock]).expect("the path is fine");
        let is_future = self.note_call_or_future("lock", lock, time_limit);
        let outcome = match time_limit {
            _ if is_future => self.tasks.run(blocking.lock_async(), time_limit),
            None => blocking.lock().map(Some),
            Some(Duration::ZERO) => blocking.try_lock(),
            Some(time_limit) => blocking.try_lock_for(time_limit),
        };
        let Some(guard) = self.granted(outcome) else { return false };
        let owned = self.hold(lock, &guard);
        self.release(guard, LockGuard::unlock);
        owned
    }

    pub(super) fn note_call(&self, call: &str, lock: usize, time_limit: Option<Duration>) {
        match time_limit {
            None => self.note_wait(call, lock, None),
            // The call has no deadline: it waits for the servers' answers.
            Some(Duration::ZERO) => self.note_wait(&format!("try-{call}"), lock, None),
            Some(_) => self.note_wait(&format!("try-{call}-for"), lock, time_limit),
        }
    }

    /// Returns the guard, or records why there is none.
    pub(super) fn granted<G>(&self, outcome: Result<Option<G>, LockError>) -> Option<G> {
        match outcome {
            Ok(Some(guard)) => return Some(guard),
            Ok(None) => self.note("gave-up"),
            Err(error) => self.note_failure(&error),
        }
        None
    }

    pub(super) fn release<G>(&mut self, guard: G, unlock: impl FnOnce(G) -> Result<Released, LockError>) {
        if self.random.one_in(2) {
            let outcome = unlock(guard);
            self.note(&format!(
                "unlocked {}",
                outcome.map_or_else(|error| class_of(&error), |released| format!("{released:?}"))
            ));
        } else {
            drop(guard);
            self.note("dropped");
        }
    }
}

impl Held for LockGuard {
    fn is_owner(&self) -> bool {
        LockGuard::is_owner(self)
    }

    fn id(&self) -> Option<String> {
        Some(LockGuard::id(self).to_owned())
    }

    fn fencing_token(&self) -> Option<Result<i64, LockError>> {
        Some(LockGuard::fencing_token(self))
    }

    fn lost(&self) -> Option<LossReason> {
        LockGuard::lost(self).try_recv().ok()
    }
}
