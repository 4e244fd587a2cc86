//! A znode that is to be deleted, in the background if need be: after an unlock, a timeout, or a create whose reply was
//! lost.
//!
//! An unlock during an outage must not leave a znode that blocks everybody while the session lives, so a deletion is
//! tried again after every reconnect until it is done or the session has ended.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use parking_lot::Mutex;
use zookeeper::{ZkError, ZkResult};

use super::core::Core;
use super::participants::{Participant, ParticipantId, Wake};
use crate::logging;
use crate::panics::contain_call;
use crate::recipe::path::ZNodePath;

/// How soon a deletion is tried again that failed although there seems to be contact.
const RETRY: Duration = Duration::from_millis(500);

/// What is to be deleted.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// The znode at this path.
    ZNode(ZNodePath),
    /// Every child of this directory with this prefix: the reply that would have named it was lost.
    Children { dir: ZNodePath, prefix: String },
}

pub(crate) struct Removal {
    id: ParticipantId,
    core: Arc<Core>,
    target: Target,
    attempts: Mutex<Attempts>,
}

/// One attempt at a time: of two at once, one would find the znode gone and tell so.
struct Attempts {
    under_way: bool,
    again: bool,
    /// Who waits for the outcome of the first.
    first: Option<Sender<ZkResult<()>>>,
}

impl Removal {
    pub(crate) fn start(core: &Arc<Core>, target: Target, first: Option<Sender<ZkResult<()>>>) {
        let id = core.participants().new_id();
        let attempts = Mutex::new(Attempts { under_way: false, again: false, first });
        let removal = Arc::new(Removal { id, core: Arc::clone(core), target, attempts });
        core.participants().add(id, Arc::<Removal>::clone(&removal));
        match core.end_reason() {
            Some(reason) => removal.wake(Wake::SessionEnded(reason)),
            None => removal.try_soon(),
        }
    }

    fn try_soon(self: Arc<Self>) {
        {
            let mut attempts = self.attempts.lock();
            attempts.again = attempts.under_way;
            if std::mem::replace(&mut attempts.under_way, true) {
                return;
            }
        }
        let core = Arc::clone(&self.core);
        core.submit(move |_| self.try_now());
    }

    fn try_now(self: Arc<Self>) {
        let result = contain_call("a deletion", || self.delete());
        let (again, first) = {
            let mut attempts = self.attempts.lock();
            attempts.under_way = false;
            (std::mem::take(&mut attempts.again), attempts.first.take())
        };
        if let Some(first) = first {
            // Whoever waited for it may have gone.
            let _ = first.send(result);
        }
        match result {
            Ok(()) | Err(ZkError::NoNode) => {
                logging::debug!("removed {}", self.target);
                self.core.leave(self.id);
            }
            Err(ZkError::ConnectionLoss | ZkError::OperationTimeout | ZkError::SessionMoved) => {
                logging::warn!("{} is still to be removed: connection lost", self.target);
                if again { self.try_soon() } else { self.try_later() }
            }
            Err(ZkError::SessionExpired) => self.core.leave(self.id),
            Err(error) => {
                logging::warn!(
                    "{} cannot be removed and stays until its session ends: {error:?}",
                    self.target
                );
                self.core.leave(self.id);
            }
        }
    }

    /// Without contact there is nothing to try until it is back, which wakes every participant.
    fn try_later(self: Arc<Self>) {
        if self.core.in_contact() {
            let due = self.core.now().after(RETRY);
            let core = Arc::clone(&self.core);
            core.at(due, move |_| self.try_soon());
        }
    }

    fn delete(&self) -> ZkResult<()> {
        match &self.target {
            Target::ZNode(path) => self.core.write(|client| client.delete(path.as_str(), None)),
            Target::Children { dir, prefix } => {
                let children = self.core.list_after_write(dir)?;
                for name in children.iter().filter(|name| name.starts_with(prefix)) {
                    match self.core.write(|client| client.delete(dir.child(name).as_str(), None)) {
                        Ok(()) | Err(ZkError::NoNode) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            }
        }
    }
}

impl Participant for Removal {
    fn wake(self: Arc<Self>, why: Wake) {
        match why {
            Wake::LookAgain | Wake::Reconnected => self.try_soon(),
            Wake::CheckLease | Wake::Suspended => {}
            Wake::SessionEnded(_) if self.core.outlives_us() => self.try_soon(),
            Wake::SessionEnded(_) => {
                self.core.leave_behind(self.target.clone());
                self.core.leave(self.id);
            }
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::ZNode(path) => write!(f, "{path}"),
            Target::Children { dir, prefix } => write!(f, "{dir}/{prefix}*"),
        }
    }
}
