//! The end of a request: withdrawn, lost, dropped from the queue, or refused.

use std::sync::Arc;

use crossbeam_channel::Sender;
use log::Level;

use super::{Ending, Event, Phase, Request, State};
use crate::error::{LockError, LossReason, Operation, ZkResult};
use crate::logging;
use crate::recipe::path::ZNodePath;
use crate::session::Target;
use crate::session::events::{self, GaveUp, LockLost, LockReleased};

/// The work left after the end of a request.
struct Cleanup {
    left_behind: Option<Target>,
    /// The znodes of other requests, on which watches may be left.
    watched: Vec<ZNodePath>,
    /// Whether a worker is moving it.
    still_moving: bool,
}

impl Request {
    /// Ends the request and deletes its znode, in the background if need be. The first outcome of
    /// the deletion is sent to `first`. Does nothing when the request has ended.
    ///
    /// The caller [delivers](Request::deliver) the event, when it holds no lock.
    pub(crate) fn withdraw(self: &Arc<Self>, first: Option<Sender<ZkResult<()>>>) {
        let mut state = self.state.lock();
        let was_owner = matches!(state.phase, Phase::Owner { .. });
        if was_owner && !self.is_owner() {
            // The lease ended before the withdrawal, and no thread has noticed yet.
            drop(state);
            return self.lose_lease();
        }
        let Some(cleanup) = self.end(&mut state, Ending::Withdrawn) else { return };
        if was_owner {
            self.observer.post(Event::Released);
        }
        self.post_end(&state, was_owner, None);
        let name = self.name_of(&state);
        drop(state);
        self.core.deliver_events();
        self.clean_up(cleanup, first);
        if was_owner {
            logging::info!("released {name}");
        }
    }

    /// Ends the request because the lock, or the place in the queue, was taken away.
    pub(super) fn lose(self: &Arc<Self>, reason: LossReason) {
        self.end_unasked(reason, None);
    }

    /// Ends the request because its znode is gone. The end of the session deletes it too, and its
    /// event may come before anything else that shows that end.
    pub(super) fn lose_znode(self: &Arc<Self>) {
        self.core.tick();
        match self.core.end_reason() {
            Some(reason) => self.lose(reason),
            None if self.has_outlived_its_lease() => self.lose_lease(),
            None => self.lose(LossReason::NodeDeleted),
        }
    }

    /// Ends the request because its lease has ended. The end of the session ends the lease too,
    /// before it is notified.
    pub(super) fn lose_lease(self: &Arc<Self>) {
        self.lose(self.core.end_reason().unwrap_or(LossReason::LeaseExpired));
    }

    /// Ends the request because the server refuses a call that it needs.
    pub(super) fn fail(self: &Arc<Self>, error: LockError) {
        self.end_unasked(LossReason::Refused, Some(error));
    }

    fn end_unasked(self: &Arc<Self>, reason: LossReason, error: Option<LockError>) {
        let mut state = self.state.lock();
        let was_owner = matches!(state.phase, Phase::Owner { .. });
        // Until the request is placed, its caller waits for it and gets the error.
        let was_placed = state.phase.is_placed();
        let cause = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        let (how, event) = if was_owner {
            (Ending::Lost(reason), Event::Lost(reason))
        } else {
            let ended = || LockError::ended(Operation::LOCK, self.name_of(&state), reason);
            let error = error.unwrap_or_else(ended);
            (Ending::Dropped(reason, error.clone()), Event::Dropped(reason, error))
        };
        let Some(cleanup) = self.end(&mut state, how) else { return };
        self.observer.post(event);
        self.post_end(&state, was_owner, Some(reason));
        let name = self.name_of(&state);
        drop(state);
        self.deliver_soon();
        self.core.deliver_events();
        self.clean_up(cleanup, None);
        let what = if was_owner { "lost" } else { "dropped from the queue:" };
        let level = match reason {
            _ if !was_placed => Level::Debug,
            LossReason::SessionClosed => Level::Info,
            _ => Level::Warn,
        };
        logging::log!(level, "{what} {name}: {reason}{cause}");
    }

    /// Posts the event of the end of the request, for a reason or without one.
    fn post_end(&self, state: &State, was_owner: bool, reason: Option<LossReason>) {
        self.core.post_event(|| {
            let znode = match &state.phase {
                Phase::Ended { znode, .. } => znode.as_ref(),
                _ => None,
            };
            let (lock, time) = (self.lock_of_event(znode), self.core.now().since(state.since));
            match reason {
                Some(reason) if was_owner => events::Event::Lost(LockLost { lock, reason, held: time }),
                None if was_owner => events::Event::Released(LockReleased { lock, held: time }),
                reason => events::Event::GaveUp(GaveUp { lock, reason, waited: time }),
            }
        });
    }

    /// Ends the request and returns the work left; `None` if it had ended before.
    fn end(&self, state: &mut State, how: Ending) -> Option<Cleanup> {
        let (left_behind, znode) = match &state.phase {
            Phase::Ended { .. } => return None,
            // A worker that is creating the znode sees the end when the call returns, and deletes
            // it.
            Phase::Joining(_) => (state.reply_lost.then(|| self.all_znodes()), None),
            Phase::Queued { znode, .. } | Phase::Owner { znode, .. } => {
                // A create that seemed lost may have taken effect beside its repetition.
                let target = if state.reply_lost { self.all_znodes() } else { Target::ZNode(znode.clone()) };
                (Some(target), Some(znode.clone()))
            }
        };
        self.core.release(self.id);
        // The deletion of the own znode uses up the watch on it.
        let watched = state.watched.iter().chain(state.ahead.second());
        let watched = watched.filter(|watched| Some(*watched) != znode.as_ref()).cloned().collect();
        self.forget_watches(state);
        state.phase = Phase::Ended { znode, how };
        state.listing = None;
        self.core.engine().forget_reader(&self.spec.dir, self.id);
        state.awaited = None;
        Some(Cleanup { left_behind, watched, still_moving: state.runner.stop() })
    }

    fn clean_up(&self, cleanup: Cleanup, first: Option<Sender<ZkResult<()>>>) {
        if let Some(target) = cleanup.left_behind {
            self.core.remove(target, first);
        }
        for path in cleanup.watched {
            self.core.remove_watch(&path, self.id);
        }
        // Last: a lingering session is finished when the last participant has left. A worker that
        // moves the request may have a deletion to add, so it leaves for the request.
        if !cleanup.still_moving {
            self.core.leave(self.id);
        }
    }

    /// Every znode that this request has created, whether or not a reply named it.
    pub(super) fn all_znodes(&self) -> Target {
        Target::Children { dir: self.spec.dir.clone(), prefix: self.spec.prefix.clone() }
    }
}
