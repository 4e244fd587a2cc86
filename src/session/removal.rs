//! [`Removal`]: deletes a znode, in the background if need be: after an unlock, a timeout, or a
//! create whose reply was lost.
//!
//! An unlock during an outage must not leave a znode that blocks others while the session lives,
//! so a deletion is repeated until it is done or the session has ended: after every reconnect, and
//! now and then in contact. This holds even if the server refuses it, as an ACL can be changed back.
//! A reconnect changes nothing of a refusal, so the next attempt after one comes in its time.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;

use super::registry::{Notification, Participant, Registry};
use super::runner::{Runner, Task};
use super::state::{CallKind, Core};
use crate::client::{PipelinedClient, contain_call};
use crate::engine::ParticipantId;
use crate::error::{ZkError, ZkResult};
use crate::lock_order::{Mutex, rank::REMOVAL};
use crate::logging;
use crate::recipe::path::ZNodePath;
use crate::time::Priority;

/// The delay before a failed deletion is repeated in contact. It doubles with each failure, up to
/// the second.
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
    attempts: Mutex<REMOVAL, Attempts>,
}

#[derive(Default)]
struct Attempts {
    /// Serializes the attempts: a concurrent second one would report `NoNode`.
    runner: Runner,
    /// Who waits for the outcome of the first, or for the loss of contact.
    first: Option<Sender<ZkResult<()>>>,
    /// How the last one failed, which is logged when it changes.
    failure: Option<ZkError>,
    /// How many have failed: on this connection, or in all once the server has refused one.
    failures: u32,
    was_refused: bool,
}

impl Removal {
    pub(crate) fn start(core: &Arc<Core>, target: Target, first: Option<Sender<ZkResult<()>>>) {
        let id = core.engine().new_id();
        let attempts = Mutex::new(Attempts { first, ..Attempts::default() });
        let removal = Arc::new(Removal { id, core: Arc::clone(core), target, attempts });
        core.registry().add(id, Arc::<Removal>::clone(&removal));
        if let Target::ZNode(path) = &removal.target {
            core.engine().leaves(path);
        }
        if let Some(reason) = core.end_reason() {
            return removal.notify(Notification::SessionEnded(reason));
        }
        if !core.in_contact() {
            removal.report(Err(ZkError::ConnectionLoss));
        }
        removal.wake();
    }

    /// Reports the first outcome. Without contact none can come soon, and the client may keep the
    /// deletion for the next connection.
    fn report(&self, outcome: ZkResult<()>) {
        let first = self.attempts.lock().first.take();
        if let Some(first) = first {
            // The receiver may be gone.
            let _ = first.send(outcome);
        }
    }

    fn failed(self: Arc<Self>, error: ZkError) {
        let (is_news, delay) = {
            let mut attempts = self.attempts.lock();
            let is_news = attempts.failure.replace(error) != Some(error);
            attempts.was_refused |= !error.is_reply_lost();
            let again = attempts.runner.finish();
            (is_news, (!again).then(|| attempts.next_delay()))
        };
        if is_news {
            let target = &self.target;
            logging::warn!("cannot remove {target} ({error:?}): it blocks others until a retry succeeds");
        }
        if !error.is_reply_lost() {
            self.for_each_own(Registry::deletion_refused);
        }
        match delay {
            None => self.submit(Priority::Other),
            Some(delay) if self.core.in_contact() || !error.is_reply_lost() => self.wake_after(delay),
            // There is nothing to try: the reconnect wakes every participant.
            Some(_) => {}
        }
    }

    /// Reports something about each of the znodes that others of this session may wait for.
    fn for_each_own(&self, report: fn(&Registry, &ZNodePath)) {
        let registry = self.core.registry();
        match &self.target {
            Target::ZNode(path) => report(registry, path),
            Target::Children { dir, prefix } => {
                let own = registry.engine().own_with_prefix(dir, prefix);
                own.iter().for_each(|path| report(registry, path));
            }
        }
    }

    /// Ends: the server deletes the znode with the session. If that lives on there, the session that
    /// follows does.
    fn leave_behind(&self) {
        let has_failed = self.attempts.lock().failure.is_some();
        if has_failed {
            logging::info!("{} is removed with its session", self.target);
        }
        self.core.leave_behind(self.target.clone());
        self.end();
    }

    fn end(&self) {
        self.with_runner(Runner::stop);
        self.core.leave(self.id);
    }

    /// Deletes the children with the prefix. Blocks.
    fn delete_children(&self, dir: &ZNodePath, prefix: &str) -> ZkResult<()> {
        let children = self.core.list_after_write(dir)?;
        for name in children.iter().filter(|name| name.starts_with(prefix)) {
            match self.core.write(|client| client.delete(dir.child(name).as_str(), None)) {
                Ok(()) | Err(ZkError::NoNode) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes up the outcome of an attempt.
    fn attempted(self: Arc<Self>, result: ZkResult<()>) {
        self.report(result);
        match result {
            Ok(()) | Err(ZkError::NoNode) => {
                let failed_before = self.attempts.lock().failure.is_some();
                match failed_before {
                    true => logging::info!("removed {} after all", self.target),
                    false => logging::debug!("removed {}", self.target),
                }
                self.for_each_own(Registry::deleted);
                self.end();
            }
            // The session may have ended for this process alone, with the znode left on the server.
            Err(ZkError::SessionExpired) => self.leave_behind(),
            Err(error) => self.failed(error),
        }
    }
}

impl Task for Removal {
    fn core(&self) -> &Arc<Core> {
        &self.core
    }

    fn with_runner<T>(&self, access: impl FnOnce(&mut Runner) -> T) -> T {
        access(&mut self.attempts.lock().runner)
    }

    fn never_blocks(&self) -> bool {
        self.core.is_pipelined() && matches!(self.target, Target::ZNode(_))
    }

    fn run(self: Arc<Self>) {
        match &self.target {
            Target::ZNode(path) => {
                let removal = Arc::clone(&self);
                let call = |client: &dyn PipelinedClient, done| client.delete(path.as_str(), None, done);
                self.core.begin(CallKind::Write, call, move |result| removal.attempted(result));
            }
            Target::Children { dir, prefix } => {
                let result = contain_call("a deletion", || self.delete_children(dir, prefix));
                self.attempted(result);
            }
        }
    }
}

impl Attempts {
    /// Prepares for a new connection. Returns whether to try again on it at once.
    fn reconnected(&mut self) -> bool {
        if !self.was_refused {
            self.failures = 0;
        }
        self.failure.is_none_or(ZkError::is_reply_lost)
    }

    /// Counts an attempt that has failed, and returns when to make the next one.
    fn next_delay(&mut self) -> Duration {
        let delay = FIRST_RETRY.saturating_mul(2_u32.saturating_pow(self.failures)).min(MAX_RETRY);
        self.failures = self.failures.saturating_add(1);
        delay
    }
}

impl Participant for Removal {
    fn notify(self: Arc<Self>, why: Notification) {
        match why {
            Notification::Reconnected => {
                let tries = self.attempts.lock().reconnected();
                if tries {
                    self.wake();
                }
            }
            Notification::LookAgain => self.wake(),
            Notification::Suspended => self.report(Err(ZkError::ConnectionLoss)),
            Notification::Routine | Notification::CheckLease => {}
            Notification::SessionEnded(_) if self.core.outlives_us() => self.wake(),
            Notification::SessionEnded(_) => self.leave_behind(),
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

    use crate::BlockingWriteLock;
    use crate::fake::{SimOperation, SimulatedZooKeeper};
    use crate::testing::open_on_manual_runtime;

    #[test]
    fn deletion_under_way_when_the_client_gives_up_is_left_to_the_next_session() {
        let zookeeper = SimulatedZooKeeper::new();
        let timeout = Duration::from_secs(30);
        let (client, _runtime, session) = open_on_manual_runtime(&zookeeper, timeout);
        let guard = BlockingWriteLock::new(&session, "/lock").unwrap().lock().unwrap();
        let gives_up = Arc::clone(&client);
        client.before_next(SimOperation::Delete, move || gives_up.give_up());
        drop(guard);
        assert_eq!(zookeeper.children("/lock").len(), 1, "the session lives on at the server");
        let (_client, _runtime, next) = open_on_manual_runtime(&zookeeper, timeout);
        session.core().pass_orphans_to(&next.core());
        assert!(zookeeper.children("/lock").is_empty());
    }

    #[test]
    fn the_delay_doubles_with_each_failure_up_to_half_a_minute() {
        let mut attempts = Attempts::default();
        let delays: Vec<Duration> = (0..9).map(|_| attempts.next_delay()).collect();
        let millis = [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000];
        assert_eq!(delays, millis.map(Duration::from_millis));
    }
}
