//! [`WatchLoop`]: tracks a subject on one session.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::subject::{Look, Subject, Then};
use super::watch_cell::{Author, View, WatchCell};
use crate::client::Reply;
use crate::engine::{Looked, ParticipantId};
use crate::error::{LossReason, ZkError, ZkResult};
use crate::lock_order::{Mutex, rank::WATCH_LOOP};
use crate::logging;
use crate::session::{Core, Step, Tracker};

pub(super) struct WatchLoop<S: Subject> {
    core: Arc<Core>,
    id: ParticipantId,
    subject: Arc<S>,
    cell: Arc<WatchCell<S::Value>>,
    author: Author,
    /// The continuation of the call that is under way.
    then: Mutex<WATCH_LOOP, Option<Then<S::Value>>>,
    is_stopped: AtomicBool,
}

impl<S: Subject> WatchLoop<S> {
    /// Makes one, which does nothing until it is [started](WatchLoop::start).
    pub(super) fn new(core: Arc<Core>, subject: Arc<S>, cell: Arc<WatchCell<S::Value>>) -> Arc<WatchLoop<S>> {
        let (id, author) = (core.new_id(), cell.next_author());
        let (then, is_stopped) = (Mutex::new(None), AtomicBool::new(false));
        Arc::new(WatchLoop { core, id, subject, cell, author, then, is_stopped })
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(super) fn start(self: Arc<Self>) {
        self.core.track(self.id, Arc::<WatchLoop<S>>::clone(&self));
        if self.is_stopped.load(Ordering::Relaxed) {
            // Before the session knew it, whose mutex orders the two.
            self.core.untrack(self.id);
        }
    }

    /// Stops looking, for good.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.core.untrack(self.id);
    }

    fn take_in(&self, look: Look<S::Value>) -> Step {
        match look {
            Look::Call(call, then) => {
                *self.then.lock() = Some(then);
                Step::Call(call)
            }
            Look::Seen(value) => {
                self.cell.set(self.author, View::Seen(value));
                Step::Done(Looked::Seen)
            }
            Look::ChangedMeanwhile => Step::Done(Looked::Changed),
            Look::Failed(error) => {
                self.note_failure(error);
                Step::Done(Looked::Failed(error))
            }
        }
    }

    fn note_failure(&self, error: ZkError) {
        let is_refused = !error.is_transient() && error != ZkError::SessionExpired;
        if is_refused && self.cell.set(self.author, View::Refused(error)) {
            // This may be a thread of the client's, and the logger is the application's.
            logging::deferring(|| logging::warn!("{} cannot be watched: {error:?}", self.subject.path()));
        }
    }
}

impl<S: Subject> Tracker for WatchLoop<S> {
    fn look(&self) -> Step {
        self.take_in(self.subject.look())
    }

    fn go_on(&self, outcome: ZkResult<Reply>) -> Step {
        let then = self.then.lock().take();
        match then {
            Some(then) => self.take_in(then(outcome)),
            // Proof: each call leaves what follows from it, and has one outcome.
            None => Step::Done(Looked::Changed),
        }
    }

    fn end(&self, reason: LossReason) {
        self.cell.end(reason);
    }
}
