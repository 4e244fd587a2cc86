//! The calls that are made to a client on behalf of its session.
//!
//! [`Core::send`] does not wait for the reply. [`Core::ask`] does, so only workers call it.

use std::sync::Arc;

use super::Core;
use crate::client::{Acl, Ask, Call, CreateMode, Done, Stat, contain_call};
use crate::engine::ParticipantId;
use crate::engine::lease::Sending;
use crate::error::{LossReason, ZkError, ZkResult};
use crate::logging;
use crate::panics::contain;
use crate::recipe::names::Names;
use crate::recipe::path::ZNodePath;
use crate::session::registry::Notification;
use crate::time::Priority;

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
    /// Makes a call, and waits for the outcome. For threads that may block.
    pub(crate) fn ask<T>(self: &Arc<Self>, ask: Ask<T>) -> ZkResult<T> {
        let Ask { call, read } = ask;
        let (is_write, sending) = (call.is_write(), self.sending()?);
        let result = contain_call("the ZooKeeper client", || self.client.call(call)).and_then(read);
        self.answered(is_write, sending, &result);
        result
    }

    /// Makes a call that does not wait. The outcome is passed to `done`, on any thread, where it must
    /// not block.
    pub(crate) fn send<T: 'static>(
        self: &Arc<Self>,
        priority: Priority,
        ask: Ask<T>,
        done: impl FnOnce(ZkResult<T>) + Send + 'static,
    ) {
        let Ask { call, read } = ask;
        let (is_write, sending) = match self.sending() {
            Ok(sending) => (call.is_write(), sending),
            Err(error) => return done(Err(error)),
        };
        let core = Arc::clone(self);
        let done = Done::new(move |outcome| {
            let result = outcome.and_then(read);
            core.answered(is_write, sending, &result);
            done(result);
        });
        // After a panic the outcome is unknown, as when `done` is dropped.
        if let Err(message) = contain(|| self.client.submit(call, done.with_priority(priority))) {
            logging::error!("the ZooKeeper client panicked, so the outcome of a call is unknown: {message}");
        }
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

    /// Takes up the outcome of a call. An answer to a read helps to extend the lease, one to a write
    /// extends it.
    fn answered<T>(self: &Arc<Self>, is_write: bool, sending: Sending, result: &ZkResult<T>) {
        if was_answered(result) {
            // A denial of a write counts as a read, since any server may have given it.
            match is_write && was_answered_by_leader(result) {
                true => self.take_proof(sending),
                false => self.status.lock().lease.read_answered(sending, self.runtime.now()),
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
        self.ask(Call::get_children(dir, false))
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
        acl: &Arc<[Acl]>,
        mut mode: CreateMode,
    ) -> ZkResult<()> {
        let mut missing = vec![path.clone()];
        while let Some(next) = missing.last() {
            let mode_of_next = if next == path { mode } else { CreateMode::Persistent };
            match self.ask(Call::create(next, [], Arc::clone(acl), mode_of_next)) {
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
        match self.ask(Call::get_data(path, true)) {
            Err(ZkError::NoAuth) => WatchOutcome::of_exists(self.ask(Call::exists(path, true))),
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
