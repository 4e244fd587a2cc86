//! Acquires by `BlockingWriteLock`.

use std::time::Duration;

use zookeeper_recipes_lock::{BlockingWriteLock, LockError, LockGuard, LossReason, Session};

use super::contender::{Contender, class_of};
use super::holding::Held;
use crate::plan::LOCKS;

impl Contender {
    pub(super) fn acquire_blocking(
        &mut self,
        session: &Session,
        lock: usize,
        patience: Option<Duration>,
    ) -> bool {
        let blocking = BlockingWriteLock::new(session, LOCKS[lock], None).expect("the path is fine");
        match patience {
            None => self.note_wait("lock", lock, None),
            // It has no deadline: it waits for the server's answers.
            Some(Duration::ZERO) => self.note_wait("try", lock, None),
            Some(_) => self.note_wait("try-for", lock, patience),
        }
        let granted = match patience {
            None => blocking.lock().map(Some),
            Some(Duration::ZERO) => blocking.try_lock(),
            Some(patience) => blocking.try_lock_for(patience),
        };
        match granted {
            Ok(Some(guard)) => {
                let owned = self.hold(lock, &guard);
                self.let_go(guard);
                owned
            }
            Ok(None) => {
                self.note("gave-up");
                false
            }
            Err(error) => {
                self.note_failure(&error);
                false
            }
        }
    }

    fn let_go(&mut self, guard: LockGuard) {
        if self.random.one_in(2) {
            let outcome = guard.unlock();
            self.note(&format!("unlocked {}", outcome.map_or_else(|e| class_of(&e), |()| "ok".into())));
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
