//! A znode that is to be deleted, in the background if need be: after an unlock, a timeout, or a create whose reply was
//! lost.
//!
//! An unlock during an outage must not leave a znode that blocks everybody while the session lives,
//! so a deletion is tried again until it is done or the session has ended: after every reconnect,
//! and now and then in contact. This holds for one that the server refuses, too: an ACL can be
//! changed back, and the next connection may have the credentials that this one lacks.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use parking_lot::Mutex;

use super::clock::Moment;
use super::registry::{Notification, Participant, ParticipantId};
use super::state::Core;
use crate::client::{ZkError, ZkResult};
use crate::logging;
use crate::panics::contain_call;
use crate::recipe::path::ZNodePath;

/// How soon a deletion is tried again that failed although there is contact, and the longest time
/// to which this grows, by doubling it after each failure.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(30);

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
#[derive(Default)]
struct Attempts {
    under_way: bool,
    again: bool,
    /// Who waits for the outcome of the first.
    first: Option<Sender<ZkResult<()>>>,
    /// How the last one failed, which is logged when it changes.
    failure: Option<ZkError>,
    /// How many have failed on this connection, and when the next one is due.
    failures: u32,
    due: Option<Moment>,
}

/// When the next attempt is made after one that failed.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Soon,
    After(Duration),
}

impl Removal {
    pub(crate) fn start(core: &Arc<Core>, target: Target, first: Option<Sender<ZkResult<()>>>) {
        let id = core.registry().new_id();
        let attempts = Mutex::new(Attempts { first, ..Attempts::default() });
        let removal = Arc::new(Removal { id, core: Arc::clone(core), target, attempts });
        core.registry().add(id, Arc::<Removal>::clone(&removal));
        match core.end_reason() {
            Some(reason) => removal.notify(Notification::SessionEnded(reason)),
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
        let first = self.attempts.lock().first.take();
        if let Some(first) = first {
            // The receiver may be gone.
            let _ = first.send(result);
        }
        match result {
            Ok(()) | Err(ZkError::NoNode) => {
                let failed_before = self.attempts.lock().failure.is_some();
                match failed_before {
                    true => logging::info!("removed {} after all", self.target),
                    false => logging::debug!("removed {}", self.target),
                }
                self.core.leave(self.id);
            }
            Err(ZkError::SessionExpired) => self.core.leave(self.id),
            Err(error) => self.failed(error),
        }
    }

    fn failed(self: Arc<Self>, error: ZkError) {
        let (is_news, next) = {
            let mut attempts = self.attempts.lock();
            (attempts.failure.replace(error) != Some(error), attempts.failed())
        };
        if is_news {
            let target = &self.target;
            logging::warn!("cannot remove {target} ({error:?}): it blocks others until a retry succeeds");
        }
        match next {
            Next::Soon => self.try_soon(),
            // Without contact there is nothing to try until it is back, which wakes every
            // participant.
            Next::After(_) if !self.core.in_contact() => {}
            Next::After(delay) => self.try_after(delay),
        }
    }

    fn try_after(self: Arc<Self>, delay: Duration) {
        let core = Arc::clone(&self.core);
        let due = core.now().after(delay);
        self.attempts.lock().due = Some(due);
        core.at(due, move |_| {
            // A later failure has set another time.
            let is_due = self.attempts.lock().due == Some(due);
            if is_due {
                self.try_soon();
            }
        });
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

impl Attempts {
    /// Ends an attempt that has failed.
    fn failed(&mut self) -> Next {
        self.under_way = false;
        if std::mem::take(&mut self.again) {
            return Next::Soon;
        }
        let delay = FIRST_RETRY.saturating_mul(2_u32.saturating_pow(self.failures)).min(MAX_RETRY);
        self.failures = self.failures.saturating_add(1);
        Next::After(delay)
    }
}

impl Participant for Removal {
    fn notify(self: Arc<Self>, why: Notification) {
        match why {
            Notification::Reconnected => {
                self.attempts.lock().failures = 0;
                self.try_soon();
            }
            Notification::LookAgain => self.try_soon(),
            Notification::Routine | Notification::CheckLease | Notification::Suspended => {}
            Notification::SessionEnded(_) if self.core.outlives_us() => self.try_soon(),
            Notification::SessionEnded(_) => {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_with_each_failure_up_to_half_a_minute() {
        let mut attempts = Attempts::default();
        let delays: Vec<Next> = (0..9).map(|_| attempts.failed()).collect();
        let millis = [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000];
        assert_eq!(delays, millis.map(|millis| Next::After(Duration::from_millis(millis))));
    }
}
