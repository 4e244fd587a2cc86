//! The calls that are made to a client on behalf of its session. They may block, so only workers
//! make them.

use std::sync::Arc;

use super::Core;
use crate::client::ZooKeeperClient;
use crate::client::{Acl, CreateMode, ZkError, ZkResult};
use crate::error::LossReason;
use crate::panics::contain_call;
use crate::recipe::path::ZNodePath;
use crate::session::lease::Sending;
use crate::session::registry::{Notification, ParticipantId};

/// The outcome of an attempt to watch a znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchOutcome {
    /// It exists with these data, which were written `version` times since its creation. A
    /// persistent one stays when its creator's session ends.
    Watched { data: Vec<u8>, version: i32, is_persistent: bool },
    /// It exists, but READ is denied: servers since 3.8.4 set the watch and never report its event.
    Unreadable,
    /// It does not exist, and no watch was left where READ is granted.
    Gone,
}

impl Core {
    /// A call that any server may answer: its answer helps to extend the lease.
    pub(crate) fn read<T>(
        self: &Arc<Self>,
        call: impl FnOnce(&dyn ZooKeeperClient) -> ZkResult<T>,
    ) -> ZkResult<T> {
        self.send(call, |sending, _| self.take_note(sending))
    }

    /// A call that goes through the quorum: its answer extends the lease. A denial counts as a read
    /// only, since any server may have given it.
    pub(crate) fn write<T>(
        self: &Arc<Self>,
        call: impl FnOnce(&dyn ZooKeeperClient) -> ZkResult<T>,
    ) -> ZkResult<T> {
        self.send(call, |sending, error| match error {
            Some(error) if !error.is_leaders_answer() => self.take_note(sending),
            _ => self.take_proof(sending),
        })
    }

    /// Makes a call, and if it was answered, passes on when it was sent and the error.
    fn send<T>(
        self: &Arc<Self>,
        call: impl FnOnce(&dyn ZooKeeperClient) -> ZkResult<T>,
        answered: impl FnOnce(Sending, Option<ZkError>),
    ) -> ZkResult<T> {
        self.check_alive()?;
        let sending = self.status.lock().lease.sending(self.runtime.now());
        let result = contain_call("the ZooKeeper client", || call(&*self.client));
        if was_answered(&result) {
            answered(sending, result.as_ref().err().copied());
        }
        if matches!(result, Err(ZkError::SessionExpired)) {
            self.end(LossReason::SessionExpired);
        }
        result
    }

    /// Lists a directory as it is after everything that this session has sent before, on whichever
    /// connection: a read alone may be answered by a server that lags behind.
    pub(crate) fn list_after_write(self: &Arc<Self>, dir: &ZNodePath) -> ZkResult<Vec<String>> {
        self.prove_life()?;
        self.read(|client| client.get_children(dir.as_str(), false))
    }

    fn take_note(&self, sending: Sending) {
        self.status.lock().lease.read_answered(sending, self.runtime.now());
    }

    fn take_proof(self: &Arc<Self>, sending: Sending) {
        let too_late_for_some = self.update(|status, now| {
            let too_late_for_some = status.lease.write_answered(sending, now);
            // After a long silence the new end may come before what was waited for so far.
            self.schedule_next_tick(status, now);
            too_late_for_some
        });
        if too_late_for_some {
            self.notify_all_participants(Notification::CheckLease);
        }
    }

    /// On a session that has ended, the only calls left are deletions of znodes that outlive it
    /// here.
    fn check_alive(&self) -> ZkResult<()> {
        let has_ended = self.end_reason().is_some();
        if has_ended && !self.outlives_us() { Err(ZkError::SessionExpired) } else { Ok(()) }
    }

    /// Creates a persistent znode and its missing parents. Does nothing if it exists.
    pub(crate) fn ensure_path(self: &Arc<Self>, path: &ZNodePath, acl: &[Acl]) -> ZkResult<()> {
        let mut missing = vec![path.clone()];
        while let Some(next) = missing.last() {
            match self.write(|client| client.create(next.as_str(), &[], acl, CreateMode::Persistent)) {
                Ok(_) | Err(ZkError::NodeExists) => drop(missing.pop()),
                // A parent that is deleted repeatedly prolongs the loop by one step per deletion.
                Err(ZkError::NoNode) => match next.parent() {
                    Some(parent) => missing.push(parent),
                    None => return Err(ZkError::NoNode),
                },
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Looks at a znode and leaves a watch there for the participant.
    pub(crate) fn watch(self: &Arc<Self>, path: &ZNodePath, id: ParticipantId) -> ZkResult<WatchOutcome> {
        self.registry.watch(path, id);
        self.set_watch(path)
    }

    /// Looks at a znode and leaves a watch there for those who have registered for it.
    pub(crate) fn set_watch(self: &Arc<Self>, path: &ZNodePath) -> ZkResult<WatchOutcome> {
        match self.read(|client| client.get_data(path.as_str(), true)) {
            Ok((data, stat)) => {
                let is_persistent = stat.ephemeral_owner == 0;
                Ok(WatchOutcome::Watched { data, version: stat.version, is_persistent })
            }
            Err(ZkError::NoNode) => Ok(WatchOutcome::Gone),
            Err(ZkError::NoAuth) => match self.read(|client| client.exists(path.as_str(), true)) {
                // Servers since 3.8.4 refuse this too if it exists.
                Ok(Some(_)) | Err(ZkError::NoAuth) => Ok(WatchOutcome::Unreadable),
                Ok(None) => Ok(WatchOutcome::Gone),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        }
    }
}

/// Whether the request was handled, even if only to refuse it.
fn was_answered<T>(result: &ZkResult<T>) -> bool {
    result.as_ref().err().is_none_or(|error| error.is_answer())
}

/// Whether the leader has handled the write.
pub(super) fn was_answered_by_leader<T>(result: &ZkResult<T>) -> bool {
    result.as_ref().err().is_none_or(|error| error.is_leaders_answer())
}
