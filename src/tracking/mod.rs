//! Tracking: the present state of something on the server, looked at again whenever it may have
//! changed.
//!
//! A [`Subject`] defines how to look; the session says when, as a watch fires or contact is back
//! (`engine/tracked.rs`); a [`WatchLoop`] is between the two; a [`WatchCell`] keeps the last value for
//! those who ask. Tracking costs no thread, and a look always reads the present state, so changes in
//! quick succession may be seen as one.
//!
//! The watches of a loop that ends are removed from the server if nobody else waits for them and
//! the client can do so. There is one for a path and a session.

mod deletion_watch;
mod subject;
#[cfg(test)]
mod tests;
mod waiter_watch;
mod watch_cell;
mod watch_loop;

use std::fmt;
use std::sync::Arc;

use crossbeam_channel::Receiver;

pub(crate) use self::deletion_watch::DeletionWatch;
pub(crate) use self::subject::{Look, Subject};
pub(crate) use self::waiter_watch::WaiterWatch;
use self::watch_cell::{View, WatchCell};
use self::watch_loop::WatchLoop;
use crate::error::{LockError, LossReason, Operation, Result, ZkError};
use crate::lock_order::{Mutex, rank::TRACKER};
use crate::process::Process;
use crate::recipe::path::ZNodePath;
use crate::session::{Core, OnNewSession, Session, check_process};
use crate::wait::{Wait, Waited};

/// A subject that is tracked until this is dropped.
pub(crate) struct Tracking<S: Subject> {
    inner: Arc<TrackerInner<S>>,
    process: Process,
}

/// The current watch loop; replaced when the session is.
struct TrackerInner<S: Subject> {
    session: Session,
    subject: Arc<S>,
    cell: Arc<WatchCell<S::Value>>,
    changes: Receiver<()>,
    /// `None` when the tracking has ended.
    watch_loop: Mutex<TRACKER, Option<Arc<WatchLoop<S>>>>,
}

impl<S: Subject> Tracking<S> {
    /// Starts to track, and waits for the first value.
    ///
    /// # Errors
    /// `SessionLost` or `Closed`, `AccessDenied` or another refusal of the server, `Cancelled`, and
    /// `ConnectionLoss` when the wait times out.
    pub(crate) fn start(session: &Session, subject: S, wait: &Wait) -> Result<Tracking<S>> {
        let subject = Arc::new(subject);
        let (cell, changes) = WatchCell::new(session.replacement().is_some());
        let watch_loop = WatchLoop::new(session.core(), Arc::clone(&subject), Arc::clone(&cell));
        let current = Mutex::new(Some(Arc::clone(&watch_loop)));
        let inner =
            Arc::new(TrackerInner { session: session.clone(), subject, cell, changes, watch_loop: current });
        let follower = Arc::downgrade(&inner);
        let tracking = Tracking { inner, process: session.core().process() };
        watch_loop.start();
        session.follow(follower);
        // A session that came before that was news to nobody.
        tracking.inner.new_session();
        match tracking.wait_for(wait, |_| Some(()))? {
            Some(()) => Ok(tracking),
            None => Err(LockError::client(Operation::WATCH, tracking.path(), ZkError::OperationTimeout)),
        }
    }

    /// Returns what was seen last.
    ///
    /// # Errors
    /// As [`start`](Tracking::start).
    pub(crate) fn current(&self) -> Result<S::Value> {
        self.check_process()?;
        match self.inner.cell.read(|view, _| self.judge(view))? {
            Some(sight) => Ok(sight),
            // Proof: `start` returns no tracking before the first value, and every later view has
            // one.
            None => Err(self.inner.end_error(LossReason::SessionClosed)),
        }
    }

    /// Gets a message after each change, or after several; disconnected when no more can come.
    pub(crate) fn changes(&self) -> &Receiver<()> {
        &self.inner.changes
    }

    pub(crate) fn path(&self) -> &ZNodePath {
        self.inner.subject.path()
    }

    /// Waits until something wanted is seen; `None` when the wait ends first.
    ///
    /// # Errors
    /// As [`start`](Tracking::start).
    pub(crate) fn wait_for<T>(
        &self,
        wait: &Wait,
        wanted: impl Fn(&S::Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.check_process()?;
        loop {
            let (view, changed) = self.inner.cell.read(|view, changed| (self.judge(view), changed.clone()));
            if let Some(found) = view?.as_ref().and_then(&wanted) {
                return Ok(Some(found));
            }
            match wait.wait_for(&**self.inner.session.core().runtime(), &[&changed]) {
                Waited::Set => {}
                Waited::TimedOut => return Ok(None),
                Waited::Cancelled => {
                    let (operation, path) = (Operation::WATCH.name, self.path().to_string());
                    return Err(LockError::Cancelled { operation, path });
                }
            }
        }
    }

    fn check_process(&self) -> Result<()> {
        check_process(self.process, Operation::WATCH, self.path())
    }

    /// The value in a view, if there is one yet.
    fn judge(&self, view: &View<S::Value>) -> Result<Option<S::Value>> {
        match view {
            View::Unseen => Ok(None),
            View::Seen(sight) => Ok(Some(sight.clone())),
            View::Refused(error) => Err(LockError::client(Operation::WATCH, self.path(), *error)),
            View::Ended(reason) => Err(self.inner.end_error(*reason)),
        }
    }
}

impl<S: Subject> Drop for Tracking<S> {
    fn drop(&mut self) {
        // In a forked child the watches are the parent's, and a mutex may stay held for ever.
        if !self.process.is_current() {
            return;
        }
        let watch_loop = self.inner.watch_loop.lock().take();
        if let Some(watch_loop) = watch_loop {
            watch_loop.stop();
        }
    }
}

impl<S: Subject> TrackerInner<S> {
    /// Makes the loop on this session; `None` if there is one, or the tracking has ended.
    fn next_loop(&self, core: Arc<Core>) -> Option<Arc<WatchLoop<S>>> {
        let mut watch_loop = self.watch_loop.lock();
        let former = watch_loop.as_ref().filter(|former| !Arc::ptr_eq(former.core(), &core));
        // It has stopped with its session. Dropped outside the lock.
        let former = Arc::clone(former?);
        let next = WatchLoop::new(core, Arc::clone(&self.subject), Arc::clone(&self.cell));
        *watch_loop = Some(Arc::clone(&next));
        drop(watch_loop);
        drop(former);
        Some(next)
    }

    fn end_error(&self, reason: LossReason) -> LockError {
        LockError::ended(Operation::WATCH, self.subject.path(), reason)
    }
}

impl<S: Subject> OnNewSession for TrackerInner<S> {
    fn new_session(&self) {
        // Until the loop is on the present session: that may be replaced meanwhile.
        while let Some(next) = self.next_loop(self.session.core()) {
            next.start();
        }
    }

    fn closed(&self) {
        self.cell.end(LossReason::SessionClosed);
    }
}

impl<S: Subject> fmt::Debug for Tracking<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracking").field("path", self.path()).finish_non_exhaustive()
    }
}
