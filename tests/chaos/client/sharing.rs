//! Acquires with `ReadWriteLock`, as a reader beside others, or as a writer that usually downgrades afterwards.

use std::time::Duration;

use zookeeper_recipes_lock::locks::{ReadGuard, ReadWriteLock, WriteGuard};
use zookeeper_recipes_lock::{ErrorReason, LockError, LockGuard, LossReason, Session};

use super::contender::{Contender, class_of};
use super::holding::{Held, Holding};
use crate::plan::LOCKS;

impl Contender {
    pub(super) fn acquire_reading(
        &mut self,
        session: &Session,
        lock: usize,
        time_limit: Option<Duration>,
    ) -> bool {
        let shared = ReadWriteLock::new(session, LOCKS[lock]).expect("the path is fine");
        let is_future = self.note_call_or_future("read", lock, time_limit);
        let outcome = match time_limit {
            _ if is_future => self.tasks.run(shared.read_async(), time_limit),
            None => shared.read().map(Some),
            Some(Duration::ZERO) => shared.try_read(),
            Some(time_limit) => shared.try_read_for(time_limit),
        };
        let Some(guard) = self.granted(outcome) else { return false };
        let owned = self.hold(lock, &guard);
        self.release(guard, ReadGuard::unlock);
        owned
    }

    pub(super) fn acquire_writing(
        &mut self,
        session: &Session,
        lock: usize,
        time_limit: Option<Duration>,
    ) -> bool {
        let shared = ReadWriteLock::new(session, LOCKS[lock]).expect("the path is fine");
        let is_future = self.note_call_or_future("write", lock, time_limit);
        let outcome = match time_limit {
            _ if is_future => self.tasks.run(shared.write_async(), time_limit),
            None => shared.write().map(Some),
            Some(Duration::ZERO) => shared.try_write(),
            Some(time_limit) => shared.try_write_for(time_limit),
        };
        let Some(guard) = self.granted(outcome) else { return false };
        let Some(mut writing) = self.begin(lock, &*guard) else { return false };
        let downgrades = !self.random.one_in(4);
        // With this, faults aimed at owners also hit downgrades.
        writing.max_prolonged = downgrades.then(|| self.random.millis(1..1_500));
        self.observe(&mut writing, &*guard);
        if !downgrades {
            self.end(&mut writing, &*guard);
            self.release(guard, WriteGuard::unlock);
        } else {
            self.write_state(&*guard, &mut writing);
            self.downgrade(writing, guard);
        }
        true
    }

    /// Continues as a reader, or as the writer if the downgrade fails.
    fn downgrade(&mut self, mut writing: Holding, guard: WriteGuard) {
        let lock = writing.lock;
        match guard.downgrade() {
            Ok(guard) => {
                self.note_end(&writing, "downgraded");
                if writing.lost {
                    self.note(&format!("violation kind=downgraded-after-loss lock={lock}"));
                }
                self.hold(lock, &guard);
                self.release(guard, ReadGuard::unlock);
            }
            Err(failed) => {
                self.note(&format!("no-downgrade error={}", class_of(&failed.error)));
                let was_lost = failed.error.reason() == ErrorReason::NotOwner;
                let guard = *failed.guard;
                if was_lost && guard.is_owner() {
                    self.note(&format!("violation kind=owner-not-owner lock={lock}"));
                }
                self.observe(&mut writing, &*guard);
                self.end(&mut writing, &*guard);
                self.release(guard, WriteGuard::unlock);
            }
        }
    }
}

impl Held for ReadGuard {
    fn is_owner(&self) -> bool {
        LockGuard::is_owner(self)
    }

    fn id(&self) -> Option<String> {
        Held::id(&**self)
    }

    fn fencing_token(&self) -> Option<Result<i64, LockError>> {
        Held::fencing_token(&**self)
    }

    fn lost(&self) -> Option<LossReason> {
        Held::lost(&**self)
    }

    fn shares(&self) -> bool {
        true
    }
}
