//! Tracking: what is on the server, looked at again whenever it may have changed, for as long as anybody is interested.
//!
//! A [`Subject`] says how to look; a [`Lookout`](lookout::Lookout) looks on the session's workers, when a watch fires or
//! contact is back; a [`Board`](board::Board) keeps what was seen for those who ask. Tracking costs no thread, and a look
//! always reads the present state, so changes in quick succession may be seen as one.
//!
//! A watch that nobody waits for any more stays with the server until its next event or the end of the session, as the
//! client library cannot take it back; there is one for a path and a session.

mod board;
mod lookout;
#[cfg(test)]
mod tests;
mod watching;

use std::fmt;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use parking_lot::Mutex;
use zookeeper::ZkResult;

use self::board::{Board, View};
use self::lookout::Lookout;
pub(crate) use self::watching::Watching;
use crate::error::{LockError, LossReason, Operation, Result};
use crate::patience::{Patience, Waited};
use crate::recipe::path::ZNodePath;
use crate::session::{Rejoin, Session};

/// What is tracked.
pub(crate) trait Subject: Send + Sync + 'static {
    /// What a look brings.
    type Sight: Clone + PartialEq + Send + 'static;

    /// The path that errors name.
    fn path(&self) -> &ZNodePath;

    /// Looks once, on a worker, and leaves a watch for whatever makes the sight outdated.
    fn look(&self, watching: &Watching) -> ZkResult<Look<Self::Sight>>;
}

/// What came of a look.
#[derive(Debug)]
pub(crate) enum Look<T> {
    Seen(T),
    /// It changed while it was looked at, so that no watch was left.
    ChangedMeanwhile,
}

/// A subject that is tracked until this is dropped.
pub(crate) struct Tracking<S: Subject> {
    post: Arc<Post<S>>,
}

/// The place of the lookout, which another takes on the next session where sessions heal.
struct Post<S: Subject> {
    session: Session,
    subject: Arc<S>,
    board: Arc<Board<S::Sight>>,
    changes: Receiver<()>,
    /// `None` when the tracking has ended.
    lookout: Mutex<Option<Arc<Lookout<S>>>>,
}

impl<S: Subject> Tracking<S> {
    /// Begins to track, and waits for the first sight, through an outage if need be; `None` when the patience ends before.
    ///
    /// # Errors
    /// `SessionLost` or `Closed`, `AccessDenied` or another refusal of the server, `Cancelled`.
    pub(crate) fn start(session: &Session, subject: S, patience: &Patience) -> Result<Option<Tracking<S>>> {
        let subject = Arc::new(subject);
        let (board, changes) = Board::new(session.healing().is_some());
        let lookout = Lookout::new(session.core(), Arc::clone(&subject), Arc::clone(&board));
        let current = Mutex::new(Some(Arc::clone(&lookout)));
        let post = Arc::new(Post { session: session.clone(), subject, board, changes, lookout: current });
        post.await_healing();
        let tracking = Tracking { post };
        lookout.start();
        Ok(tracking.wait_for(patience, |_| Some(()))?.map(|()| tracking))
    }

    /// What was seen last.
    ///
    /// # Errors
    /// As [`start`](Tracking::start).
    pub(crate) fn current(&self) -> Result<S::Sight> {
        match self.post.board.read(|view, _| self.judge(view))? {
            Some(sight) => Ok(sight),
            // Proof: `start` returns none before the first sight, and no later view is without one.
            None => Err(self.post.end_error(LossReason::SessionClosed)),
        }
    }

    /// A message after each change, or after several; disconnected when there will be none any more.
    pub(crate) fn changes(&self) -> &Receiver<()> {
        &self.post.changes
    }

    pub(crate) fn path(&self) -> &ZNodePath {
        self.post.subject.path()
    }

    pub(crate) fn session(&self) -> &Session {
        &self.post.session
    }

    /// Waits until something wanted is seen; `None` when the patience ends before.
    ///
    /// # Errors
    /// As [`start`](Tracking::start).
    pub(crate) fn wait_for<T>(
        &self,
        patience: &Patience,
        wanted: impl Fn(&S::Sight) -> Option<T>,
    ) -> Result<Option<T>> {
        loop {
            let (view, changed) = self.post.board.read(|view, changed| (self.judge(view), changed.clone()));
            if let Some(found) = view?.as_ref().and_then(&wanted) {
                return Ok(Some(found));
            }
            match patience.wait_for(&changed) {
                Waited::Received(never) => match never {},
                Waited::Disconnected => {}
                Waited::TimedOut => return Ok(None),
                Waited::Cancelled => {
                    let (operation, path) = (Operation::WATCH.name, self.path().to_string());
                    return Err(LockError::Cancelled { operation, path });
                }
            }
        }
    }

    /// The sight in a view, if there is one yet.
    fn judge(&self, view: &View<S::Sight>) -> Result<Option<S::Sight>> {
        match view {
            View::Unseen => Ok(None),
            View::Seen(sight) => Ok(Some(sight.clone())),
            View::Refused(error) => Err(LockError::client(Operation::WATCH, self.path(), *error)),
            View::Ended(reason) => Err(self.post.end_error(*reason)),
        }
    }
}

impl<S: Subject> Drop for Tracking<S> {
    fn drop(&mut self) {
        let lookout = self.post.lookout.lock().take();
        if let Some(lookout) = lookout {
            lookout.stop();
        }
    }
}

impl<S: Subject> Post<S> {
    /// Sees to it that the tracking goes on on the next session, where there will be one.
    fn await_healing(self: &Arc<Self>) {
        let Some(healing) = self.session.healing() else { return };
        let rejoining: Arc<dyn Rejoin> = Arc::<Post<S>>::clone(self);
        healing.register(Arc::downgrade(&rejoining));
        if healing.is_closed() {
            self.closed();
        }
    }

    fn end_error(&self, reason: LossReason) -> LockError {
        let (operation, path) = (Operation::WATCH.name, self.subject.path().to_string());
        match reason {
            LossReason::SessionClosed => LockError::Closed { operation, path },
            reason => LockError::SessionLost { operation, path, reason },
        }
    }
}

impl<S: Subject> Rejoin for Post<S> {
    fn rejoin(&self) {
        let core = self.session.core();
        let next = Lookout::new(Arc::clone(&core), Arc::clone(&self.subject), Arc::clone(&self.board));
        let former = {
            let mut lookout = self.lookout.lock();
            // Not when the tracking has ended, nor when it began on the present session.
            if lookout.as_ref().is_none_or(|lookout| Arc::ptr_eq(lookout.core(), &core)) {
                return;
            }
            lookout.replace(Arc::clone(&next))
        };
        // Outside the lock. It has stopped with its session.
        drop(former);
        next.start();
    }

    fn closed(&self) {
        self.board.end(LossReason::SessionClosed);
    }
}

impl<S: Subject> fmt::Debug for Tracking<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracking").field("path", self.path()).finish_non_exhaustive()
    }
}
