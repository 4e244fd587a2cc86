//! A value in ZooKeeper's tree beside each lock. Owners read and replace it on their own session without
//! checking any version: whatever was written under a lock must be there for the next owner.

use std::time::Duration;

use zookeeper_recipes_lock::client::Stat;
use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::{LockError, RetryPolicy, Session};

use super::contender::{Contender, class_of};
use super::holding::{Held, Holding};
use crate::plan::{SEMAPHORE, state_of};

/// Returns the calls on a session.
pub fn on(session: &Session) -> RecoverableZooKeeper {
    RecoverableZooKeeper::new(session, RetryPolicy::constant(Duration::from_millis(50)).with_attempts(4))
}

impl Contender {
    /// Reads the state that the predecessors have left.
    pub(super) fn read_state(&self, held: &dyn Held, holding: &mut Holding) {
        let path = state_of(holding.lock);
        let read = |state: &RecoverableZooKeeper| state.get_data(&path).map(|(_, stat)| stat);
        self.access_state("read-state", held, holding, &read);
    }

    /// Replaces the state before the lock is released.
    pub(super) fn write_state(&self, held: &dyn Held, holding: &mut Holding) {
        if !held.shares() && !holding.lost {
            let path = state_of(holding.lock);
            let data = format!("client {} thread {} hold {}", self.index, self.thread, self.holds);
            let write = |state: &RecoverableZooKeeper| state.set_data(&path, data.as_bytes(), None);
            self.access_state("wrote-state", held, holding, &write);
        }
    }

    /// Records an access if the lock is still held after it.
    fn access_state(
        &self,
        what: &str,
        held: &dyn Held,
        holding: &mut Holding,
        access: &(dyn Fn(&RecoverableZooKeeper) -> Result<Stat, LockError> + Sync),
    ) {
        let Some(state) = self.state.as_ref().filter(|_| holding.lock != SEMAPHORE) else { return };
        match self.meanwhile(held, holding, || access(state)) {
            Ok(stat) if held.is_owner() => {
                let Holding { lock, sequence, .. } = holding;
                let (zxid, version) = (stat.mzxid, stat.version);
                self.note(&format!("{what} lock={lock} sequence={sequence} zxid={zxid} version={version}"));
            }
            Ok(_) => {}
            Err(error) => self.note(&format!("no-state error={}", class_of(&error))),
        }
    }
}
