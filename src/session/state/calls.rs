//! The calls that are made to a client on behalf of its session.
//!
//! [`Core::read`] and [`Core::write`] wait for the reply, so only workers make them. [`Core::begin`]
//! does not wait if the client is pipelined.

use std::sync::Arc;

use crossbeam_channel::bounded;

use super::Core;
use crate::client::{Acl, Blocking, CreateMode, Done, PipelinedClient, Stat, ZooKeeperClient, contain_call};
use crate::engine::ParticipantId;
use crate::error::{LossReason, ZkError, ZkResult};
use crate::logging;
use crate::panics::contain;
use crate::recipe::names::Names;
use crate::recipe::path::ZNodePath;
use crate::session::lease::Sending;
use crate::session::registry::Notification;

/// What the answer to a call proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// Any server may answer: the answer helps to extend the lease.
    Read,
    /// It goes through the leader: the answer extends the lease. A denial counts as a read only,
    /// since any server may have given it.
    Write,
}

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
    /// Makes a read, and waits for the outcome.
    pub(crate) fn read<T>(
        self: &Arc<Self>,
        call: impl FnOnce(&dyn ZooKeeperClient) -> ZkResult<T>,
    ) -> ZkResult<T> {
        self.make(CallKind::Read, call)
    }

    /// Makes a write, and waits for the outcome.
    pub(crate) fn write<T>(
        self: &Arc<Self>,
        call: impl FnOnce(&dyn ZooKeeperClient) -> ZkResult<T>,
    ) -> ZkResult<T> {
        self.make(CallKind::Write, call)
    }

    fn make<T>(
        self: &Arc<Self>,
        kind: CallKind,
        call: impl FnOnce(&dyn ZooKeeperClient) -> ZkResult<T>,
    ) -> ZkResult<T> {
        let sending = self.sending()?;
        let result = contain_call("the ZooKeeper client", || call(&*self.client));
        self.answered(kind, sending, &result);
        result
    }

    /// Begins a call. The outcome is passed to `done`: before this returns if the client blocks, else
    /// on any thread, where `done` must not block.
    pub(crate) fn begin<T: Send + 'static>(
        self: &Arc<Self>,
        kind: CallKind,
        call: impl FnOnce(&dyn PipelinedClient, Done<T>),
        done: impl FnOnce(ZkResult<T>) + Send + 'static,
    ) {
        let Some(client) = self.client.pipelined() else {
            return done(self.make_blocking(kind, call));
        };
        let sending = match self.sending() {
            Ok(sending) => sending,
            Err(error) => return done(Err(error)),
        };
        let core = Arc::clone(self);
        let done = Done::new(move |result| {
            core.answered(kind, sending, &result);
            done(result);
        });
        // After a panic the outcome is unknown, as when `done` is dropped.
        if let Err(message) = contain(|| call(client, done)) {
            logging::error!("the ZooKeeper client panicked, so the outcome of a call is unknown: {message}");
        }
    }

    /// Makes a call of a client that blocks.
    pub(crate) fn make_blocking<T: Send + 'static>(
        self: &Arc<Self>,
        kind: CallKind,
        call: impl FnOnce(&dyn PipelinedClient, Done<T>),
    ) -> ZkResult<T> {
        self.make(kind, |client| {
            let (sender, outcome) = bounded(1);
            call(&Blocking(client), Done::new(move |result| drop(sender.send(result))));
            outcome.try_recv().unwrap_or(Err(ZkError::ConnectionLoss))
        })
    }

    /// Ends a participant's wait for the next event on a path. The watch is removed from the server
    /// if nobody else waits for it.
    pub(crate) fn remove_watch(&self, path: &ZNodePath, id: ParticipantId) {
        self.engine().unwatch(path, id);
        self.remove_unwanted_watch(path);
    }

    /// Removes the watch on a path from the server, unless somebody waits for it.
    pub(crate) fn remove_unwanted_watch(&self, path: &ZNodePath) {
        // Participants register before their calls. So one that registers after this check sets its
        // watch after the removal.
        let is_unwanted = || !self.engine().is_watched(path);
        if let Err(message) = contain(|| self.client.remove_watches(path.as_str(), &is_unwanted)) {
            logging::error!("the ZooKeeper client panicked, so a watch on {path} is left: {message}");
        }
    }

    fn sending(&self) -> ZkResult<Sending> {
        self.check_alive()?;
        Ok(self.status.lock().lease.sending(self.runtime.now()))
    }

    /// Takes up the outcome of a call.
    fn answered<T>(self: &Arc<Self>, kind: CallKind, sending: Sending, result: &ZkResult<T>) {
        if was_answered(result) {
            match kind {
                CallKind::Write if was_answered_by_leader(result) => self.take_proof(sending),
                _ => self.status.lock().lease.read_answered(sending, self.runtime.now()),
            }
        }
        if matches!(result, Err(ZkError::SessionExpired)) {
            self.end(LossReason::SessionExpired);
        }
    }

    /// Lists a directory as it is after everything that this session has sent before, on whichever
    /// connection: a read alone may be answered by a server that lags behind.
    pub(crate) fn list_after_write(self: &Arc<Self>, dir: &ZNodePath) -> ZkResult<Names> {
        self.prove_life()?;
        self.read(|client| client.get_children(dir.as_str(), false))
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

    /// Creates a znode without data and its missing parents, which persist. Does nothing if it
    /// exists. A server without containers creates a persistent znode in their place.
    pub(crate) fn ensure_path(
        self: &Arc<Self>,
        path: &ZNodePath,
        acl: &[Acl],
        mut mode: CreateMode,
    ) -> ZkResult<()> {
        let mut missing = vec![path.clone()];
        while let Some(next) = missing.last() {
            let mode_of_next = if next == path { mode } else { CreateMode::Persistent };
            match self.write(|client| client.create(next.as_str(), &[], acl, mode_of_next)) {
                Ok(_) | Err(ZkError::NodeExists) => drop(missing.pop()),
                Err(ZkError::Unimplemented) if mode_of_next == CreateMode::Container => {
                    mode = CreateMode::Persistent;
                }
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

    /// Looks at a znode and leaves a watch there for those who have registered for it.
    pub(crate) fn set_watch(self: &Arc<Self>, path: &ZNodePath) -> ZkResult<WatchOutcome> {
        match self.read(|client| client.get_data(path.as_str(), true)) {
            Err(ZkError::NoAuth) => {
                WatchOutcome::of_exists(self.read(|client| client.exists(path.as_str(), true)))
            }
            result => WatchOutcome::of_data(result),
        }
    }
}

impl WatchOutcome {
    /// The outcome of a look at the data of a znode that may be read.
    pub(crate) fn of_data(result: ZkResult<(Vec<u8>, Stat)>) -> ZkResult<WatchOutcome> {
        match result {
            Ok((data, stat)) => {
                let is_persistent = stat.ephemeral_owner == 0;
                Ok(WatchOutcome::Watched { data, version: stat.version, is_persistent })
            }
            Err(ZkError::NoNode) => Ok(WatchOutcome::Gone),
            Err(error) => Err(error),
        }
    }

    /// The outcome of a look at a znode whose data may not be read. Servers since 3.8.4 refuse this
    /// too if it exists.
    pub(crate) fn of_exists(result: ZkResult<Option<Stat>>) -> ZkResult<WatchOutcome> {
        match result {
            Ok(Some(_)) | Err(ZkError::NoAuth) => Ok(WatchOutcome::Unreadable),
            Ok(None) => Ok(WatchOutcome::Gone),
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
