//! [`WatchLoop`]: looks at a subject on one session, and again whenever the session reports that
//! something may have changed.

use std::sync::Arc;
use std::time::Duration;

use super::watch_cell::{View, WatchCell};
use super::{Fetched, Subject, Watching};
use crate::client::contain_call;
use crate::engine::Notification;
use crate::error::{ZkError, ZkResult};
use crate::lock_order::{Mutex, rank::WATCH_LOOP};
use crate::logging;
use crate::session::{Core, Participant, Runner, Task};
use crate::time::Priority;

/// The delay before a failed look is repeated in contact.
const RETRY: Duration = Duration::from_millis(500);

/// How often a refused look is repeated: a change of an ACL fires no watch.
const REFUSED_LOOK: Duration = Duration::from_secs(1);

pub(super) struct WatchLoop<S: Subject> {
    watching: Watching,
    subject: Arc<S>,
    cell: Arc<WatchCell<S::Value>>,
    /// Stopped when the tracking is dropped, or when the session ends.
    runner: Mutex<WATCH_LOOP, Runner>,
}

impl<S: Subject> WatchLoop<S> {
    /// Makes one, which does nothing until it is [started](WatchLoop::start).
    pub(super) fn new(core: Arc<Core>, subject: Arc<S>, cell: Arc<WatchCell<S::Value>>) -> Arc<WatchLoop<S>> {
        let runner = Mutex::default();
        Arc::new(WatchLoop { watching: Watching::new(core), subject, cell, runner })
    }

    pub(super) fn start(self: Arc<Self>) {
        let id = self.watching.id();
        self.core().join(id, Arc::<WatchLoop<S>>::clone(&self));
        if self.watching.has_stopped() {
            // Before it joined.
            self.core().leave(id);
        }
        self.wake();
    }

    /// Stops looking, for good.
    pub(super) fn stop(&self) {
        self.runner.lock().stop();
        self.watching.stop();
        self.core().leave(self.watching.id());
    }

    /// Acts on what came of a look.
    fn take_in(self: &Arc<Self>, looked: ZkResult<Fetched<S::Value>>) {
        match looked {
            Ok(Fetched::Seen(sight)) => {
                self.set(View::Seen(sight));
            }
            Ok(Fetched::ChangedMeanwhile) => Arc::clone(self).wake(),
            // The end of the session ends the loop, and gives the reason.
            Err(ZkError::SessionExpired) => {}
            Err(error) if error.is_transient() => {
                // Without contact there is nothing to see: the reconnect wakes every participant.
                if self.core().in_contact() {
                    self.wake_after(RETRY);
                }
            }
            Err(error) => {
                if self.set(View::Refused(error)) {
                    logging::warn!("{} cannot be watched: {error:?}", self.subject.path());
                }
                self.wake_after(REFUSED_LOOK);
            }
        }
    }

    /// Sets the view, unless the loop was stopped: its successor may have seen more since.
    fn set(&self, view: View<S::Value>) -> bool {
        let runner = self.runner.lock();
        !runner.was_stopped() && self.cell.set(view)
    }
}

impl<S: Subject> Task for WatchLoop<S> {
    fn core(&self) -> &Arc<Core> {
        self.watching.core()
    }

    fn with_runner<T>(&self, access: impl FnOnce(&mut Runner) -> T) -> T {
        access(&mut self.runner.lock())
    }

    /// One look. The next one queues for a worker like all other work.
    fn run(self: Arc<Self>) {
        let last = self.watching.begin();
        let looked = contain_call("a look at a znode", || self.subject.look(&self.watching));
        self.watching.forget(last);
        self.take_in(looked);
        if self.with_runner(Runner::finish) {
            self.submit(Priority::Other);
        }
    }
}

impl<S: Subject> Participant for WatchLoop<S> {
    fn notify(self: Arc<Self>, why: Notification) {
        match why {
            Notification::LookAgain | Notification::Routine | Notification::Reconnected => self.wake(),
            Notification::SessionEnded(reason) => {
                self.stop();
                self.cell.end(reason);
            }
        }
    }
}
