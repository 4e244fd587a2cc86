//! Tracking: keeps up with the state of a subject on the server by reading it again whenever it may have
//! changed.
//!
//! A [`Subject`] defines how its state is read, in one or more calls. Such a read is called a *look*. The
//! engine decides when to look: at the beginning, after a watch has fired, after a reconnect, some time after a failed
//! look, and now and then without a cause. It also keeps account of the watches (`engine/tracked.rs`). A
//! [`TrackerInner`] does the rest: it carries out the steps of a look, keeps the value that was seen last, and moves to
//! the session that replaces a lost one. Tracking needs no thread. A look reads the current state, so several quick
//! changes may appear as one.
//!
//! There is one watch per path and session. When a tracking ends, its watches are removed from the server, if
//! nobody else waits for them and the client can remove watches.

mod deletion_watch;
mod sighting;
mod subject;
#[cfg(test)]
mod tests;
mod waiter_watch;

use std::fmt;
use std::sync::{Arc, Weak};

use crossbeam_channel::Receiver;

pub(crate) use self::deletion_watch::DeletionWatch;
use self::sighting::{Sighting, View};
use self::subject::Then;
pub(crate) use self::subject::{Look, Subject};
pub(crate) use self::waiter_watch::WaiterWatch;
use crate::client::Reply;
use crate::engine::{LookStep, ParticipantId, SessionEnd};
use crate::error::{ErrorReason, LockError, Operation, Result, ZkError, ZkResult};
use crate::lock_order::{Mutex, rank::TRACKER};
use crate::logging;
use crate::process::Process;
use crate::recipe::path::ZNodePath;
use crate::session::{Core, OnNewSession, Session, Tracker, WeakSession, check_process};
use crate::wait::{Wait, Waited};

/// The tracking of a subject, which ends when this is dropped.
pub(crate) struct Tracking<S: Subject> {
    inner: Arc<TrackerInner<S>>,
    /// Keeps the session open while the tracking lasts. `None` if the tracking ends with its first session,
    /// even if that session is replaced.
    _session: Option<Session>,
    process: Process,
}

/// The part of a tracking that the session also holds. It does not keep the session open, because the last
/// handle to this part may be dropped on a thread that must not block.
struct TrackerInner<S: Subject> {
    me: Weak<TrackerInner<S>>,
    subject: Arc<S>,
    /// The session whose replacements the tracking follows.
    session: Option<WeakSession>,
    changes: Receiver<()>,
    state: Mutex<TRACKER, State<S::Value>>,
}

struct State<T> {
    /// The session on which the looks are made. The outcome of a look on an earlier session is ignored.
    core: Arc<Core>,
    /// The id of the tracking on that session.
    id: ParticipantId,
    is_over: bool,
    /// The continuation of the call in progress.
    then: Option<Then<T>>,
    sighting: Sighting<T>,
}

impl<S: Subject> Tracking<S> {
    /// Starts to track, and waits for the first value.
    ///
    /// # Errors
    /// `SessionLost` or `Closed`, `AccessDenied` or another refusal by the server, `Cancelled`, and
    /// `ConnectionLoss` if the wait times out.
    pub(crate) fn start(session: &Session, subject: S, wait: &Wait) -> Result<Tracking<S>> {
        let tracking = Tracking::new(session.core(), Some(session), subject);
        session.follow(Weak::<TrackerInner<S>>::clone(&tracking.inner.me));
        // We were not notified of a session that opened before we subscribed.
        tracking.inner.new_session();
        match tracking.wait_for(wait, |_| Some(()))? {
            Some(()) => Ok(tracking),
            None => Err(LockError::client(Operation::WATCH, tracking.path(), ZkError::OperationTimeout)),
        }
    }

    /// Starts to track on this session alone. Does not wait.
    fn begin(core: &Arc<Core>, subject: S) -> Tracking<S> {
        Tracking::new(Arc::clone(core), None, subject)
    }

    fn new(core: Arc<Core>, session: Option<&Session>, subject: S) -> Tracking<S> {
        let is_lasting = session.is_some_and(|session| session.replacement().is_some());
        let (sighting, changes) = Sighting::new(is_lasting);
        let (id, process) = (core.new_id(), core.process());
        let state = State { core: Arc::clone(&core), id, is_over: false, then: None, sighting };
        let inner = Arc::new_cyclic(|me| TrackerInner {
            me: Weak::clone(me),
            subject: Arc::new(subject),
            session: session.map(Session::downgrade),
            changes,
            state: Mutex::new(state),
        });
        inner.register(&core, id);
        Tracking { inner, _session: session.cloned(), process }
    }

    /// Returns the value that was seen last.
    ///
    /// # Errors
    /// `SessionLost` or `Closed`, and `AccessDenied` or another refusal by the server.
    pub(crate) fn current(&self) -> Result<S::Value> {
        self.check_process()?;
        let state = self.inner.state.lock();
        match self.judge(state.sighting.view())? {
            Some(sight) => Ok(sight),
            // This never happens: `start` returns a tracking only after the first value, and every later view
            // has a value or an error.
            None => Err(self.end_error(SessionEnd::Closed)),
        }
    }

    /// Returns a channel that receives a message after a change. One message may stand for several changes.
    /// The channel is disconnected when no more changes can come.
    pub(crate) fn changes(&self) -> &Receiver<()> {
        &self.inner.changes
    }

    pub(crate) fn path(&self) -> &ZNodePath {
        self.inner.subject.path()
    }

    /// Waits until `wanted` returns `Some` for a value, and returns what it found. Returns `None` if the wait
    /// times out first.
    ///
    /// # Errors
    /// `SessionLost` or `Closed`, `AccessDenied` or another refusal by the server, and `Cancelled`.
    pub(crate) fn wait_for<T>(
        &self,
        wait: &Wait,
        wanted: impl Fn(&S::Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.check_process()?;
        loop {
            let (view, changed, core) = {
                let state = self.inner.state.lock();
                let view = self.judge(state.sighting.view());
                (view, state.sighting.changed().clone(), Arc::clone(&state.core))
            };
            if let Some(found) = view?.as_ref().and_then(&wanted) {
                return Ok(Some(found));
            }
            match wait.wait_for(&**core.runtime(), &[&changed]) {
                Waited::Set => {}
                Waited::TimedOut => return Ok(None),
                Waited::Cancelled => {
                    return Err(LockError::of(ErrorReason::Cancelled, Operation::WATCH, self.path()));
                }
            }
        }
    }

    fn check_process(&self) -> Result<()> {
        check_process(self.process, Operation::WATCH, self.path())
    }

    /// Returns the value in a view, if it has one yet.
    fn judge(&self, view: &View<S::Value>) -> Result<Option<S::Value>> {
        match view {
            View::Unseen => Ok(None),
            View::Seen(sight) => Ok(Some(sight.clone())),
            View::Refused(error) => Err(LockError::client(Operation::WATCH, self.path(), *error)),
            View::Ended(reason) => Err(self.end_error(*reason)),
        }
    }

    fn end_error(&self, reason: SessionEnd) -> LockError {
        LockError::ended(Operation::WATCH, self.path(), reason.into())
    }
}

impl<S: Subject> Drop for Tracking<S> {
    fn drop(&mut self) {
        // In a forked child, the watches belong to the parent, and a mutex may stay held forever.
        if !self.process.is_current() {
            return;
        }
        let (core, id) = {
            let mut state = self.inner.state.lock();
            state.is_over = true;
            (Arc::clone(&state.core), state.id)
        };
        core.untrack(id);
    }
}

impl<S: Subject> TrackerInner<S> {
    /// Registers the tracking with a session, which then looks at the subject. Undoes this if the tracking
    /// has ended or has moved to another session meanwhile.
    fn register(&self, core: &Arc<Core>, id: ParticipantId) {
        let Some(me) = self.me.upgrade() else { return };
        core.track(id, me);
        // The tracking may have ended or moved before the session knew the tracker.
        if self.with_state_on(core, |_| ()).is_none() {
            core.untrack(id);
        }
    }

    /// Moves the tracking to this session, and returns its id there. Returns `None` if the tracking is
    /// already on this session or has ended.
    fn move_to(&self, core: &Arc<Core>) -> Option<ParticipantId> {
        let mut state = self.state.lock();
        if state.is_over || Arc::ptr_eq(&state.core, core) {
            return None;
        }
        let id = core.new_id();
        let former = (std::mem::replace(&mut state.core, Arc::clone(core)), state.then.take());
        state.id = id;
        drop(state);
        // Drop these outside the mutex. There is nothing to untrack: the end of the former session ended the
        // tracking on it.
        drop(former);
        Some(id)
    }

    /// Changes the state if the tracking is still on this session.
    fn with_state_on<R>(
        &self,
        core: &Arc<Core>,
        change: impl FnOnce(&mut State<S::Value>) -> R,
    ) -> Option<R> {
        let mut state = self.state.lock();
        let looks = !state.is_over && Arc::ptr_eq(&state.core, core);
        if looks { Some(change(&mut state)) } else { None }
    }

    /// Shows this view. Returns whether it differs from the previous one.
    fn show(&self, core: &Arc<Core>, view: View<S::Value>) -> bool {
        // The former view is dropped outside the mutex.
        let former = self.with_state_on(core, |state| state.sighting.set(view));
        former.flatten().is_some()
    }

    fn note_failure(&self, core: &Arc<Core>, error: ZkError) {
        let is_refused = !error.is_transient() && error != ZkError::SessionExpired;
        if is_refused && self.show(core, View::Refused(error)) {
            logging::warn!("{} cannot be watched: {error:?}", self.subject.path());
        }
    }
}

impl<S: Subject> Tracker for TrackerInner<S> {
    fn look(&self, core: &Arc<Core>, outcome: Option<ZkResult<Reply>>) -> LookStep {
        let look = match outcome {
            None => self.subject.look(),
            Some(outcome) => match self.with_state_on(core, |state| state.then.take()).flatten() {
                Some(then) => then(outcome),
                // There is no continuation, so the tracking has ended on this session.
                None => return LookStep::Seen,
            },
        };
        match look {
            Look::Call(call, then) => match self.with_state_on(core, |state| state.then = Some(then)) {
                Some(()) => LookStep::Call(call),
                None => LookStep::Seen,
            },
            Look::Seen(value) => {
                self.show(core, View::Seen(value));
                LookStep::Seen
            }
            Look::ChangedMeanwhile => LookStep::Changed,
            Look::Failed(error) => {
                self.note_failure(core, error);
                LookStep::Failed(error)
            }
        }
    }

    fn end(&self, reason: SessionEnd) {
        let former = self.state.lock().sighting.end(reason);
        // Drop the former view outside the mutex.
        drop(former);
    }
}

impl<S: Subject> OnNewSession for TrackerInner<S> {
    fn new_session(&self) {
        // Repeat this until the tracking is on the current session, because each new session may be replaced
        // meanwhile.
        while let Some(session) = self.session.as_ref().and_then(WeakSession::upgrade) {
            let core = session.core();
            let Some(id) = self.move_to(&core) else { return };
            self.register(&core, id);
        }
    }

    fn closed(&self) {
        self.end(SessionEnd::Closed);
    }
}

impl<S: Subject> fmt::Debug for Tracking<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracking").field("path", self.path()).finish_non_exhaustive()
    }
}
