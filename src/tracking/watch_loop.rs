//! [`WatchLoop`]: looks at a subject on one session, and again whenever the session says that something may have changed.
//!
//! | state | means | leaves it by |
//! |---|---|---|
//! | `Resting` | what was seen is believed to be so still | a watch, a reconnect, a time |
//! | `Looking` | a worker looks; once more if it is woken meanwhile | the look's end |
//! | `Stopped` | final: dropped, or the session has ended | |

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::watch_cell::{View, WatchCell};
use super::{Fetched, Subject, Watching};
use crate::client::{ZkError, ZkResult};
use crate::logging;
use crate::panics::contain_call;
use crate::retry::is_passing;
use crate::session::{Core, Moment, Notification, Participant};

/// How soon a look is tried again that failed although there seems to be contact.
const RETRY: Duration = Duration::from_millis(500);

/// How often a look that the server refuses is tried again: no watch tells of a change of an ACL.
const REFUSED_LOOK: Duration = Duration::from_secs(1);

pub(super) struct WatchLoop<S: Subject> {
    watching: Watching,
    subject: Arc<S>,
    cell: Arc<WatchCell<S::Value>>,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    /// When it is to look again by itself; one time is enough.
    next_look: Option<Moment>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Resting,
    Looking { again: bool },
    Stopped,
}

impl<S: Subject> WatchLoop<S> {
    /// Makes one, which does nothing until it is [started](WatchLoop::start).
    pub(super) fn new(core: Arc<Core>, subject: Arc<S>, cell: Arc<WatchCell<S::Value>>) -> Arc<WatchLoop<S>> {
        let state = Mutex::new(State { phase: Phase::Resting, next_look: None });
        Arc::new(WatchLoop { watching: Watching::new(core), subject, cell, state })
    }

    pub(super) fn start(self: Arc<Self>) {
        let id = self.watching.id();
        self.core().join(id, Arc::<WatchLoop<S>>::clone(&self));
        if self.watching.has_stopped() {
            // Before it joined.
            self.core().leave(id);
        }
        self.look();
    }

    /// Stops looking, for good.
    pub(super) fn stop(&self) {
        self.state.lock().phase = Phase::Stopped;
        self.watching.stop();
        self.core().leave(self.watching.id());
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        self.watching.core()
    }

    fn look(self: Arc<Self>) {
        if self.begin() {
            self.submit();
        }
    }

    /// Claims the looking; `false` when it is over, or when somebody is at it and will look once more.
    fn begin(&self) -> bool {
        let mut state = self.state.lock();
        let begins = state.phase == Phase::Resting;
        if state.phase != Phase::Stopped {
            state.phase = Phase::Looking { again: !begins };
        }
        begins
    }

    fn submit(self: Arc<Self>) {
        let core = Arc::clone(self.core());
        core.submit(move |_| self.run());
    }

    /// One look. The next, if there is one to come at once, waits for its turn as everybody's work does.
    fn run(self: Arc<Self>) {
        self.watching.begin();
        let looked = contain_call("a look at a znode", || self.subject.look(&self.watching));
        let again = self.take_in(looked);
        if self.goes_on(again) {
            self.submit();
        }
    }

    /// Acts on what came of a look; returns whether to look again at once.
    fn take_in(self: &Arc<Self>, looked: ZkResult<Fetched<S::Value>>) -> bool {
        match looked {
            Ok(Fetched::Seen(sight)) => {
                self.set(View::Seen(sight));
                return false;
            }
            Ok(Fetched::ChangedMeanwhile) => return true,
            // The end of the session ends the tracking, and says why.
            Err(ZkError::SessionExpired) => {}
            Err(error) if is_passing(error) => {
                // Without contact there is nothing to see until it is back, which wakes every participant.
                if self.core().in_contact() {
                    self.look_after(RETRY);
                }
            }
            Err(error) => {
                if self.set(View::Refused(error)) {
                    logging::warn!("{} cannot be watched: {error:?}", self.subject.path());
                }
                self.look_after(REFUSED_LOOK);
            }
        }
        false
    }

    /// Shows what was seen, unless it is over: then another may have seen more since.
    fn set(&self, view: View<S::Value>) -> bool {
        let state = self.state.lock();
        state.phase != Phase::Stopped && self.cell.set(view)
    }

    /// Called after a look: rests, unless there is reason to look again.
    fn goes_on(&self, again: bool) -> bool {
        let mut state = self.state.lock();
        let Phase::Looking { again: woken } = state.phase else { return false };
        let goes_on = again || woken;
        state.phase = if goes_on { Phase::Looking { again: false } } else { Phase::Resting };
        goes_on
    }

    fn look_after(self: &Arc<Self>, delay: Duration) {
        let at = self.core().now().after(delay);
        {
            let mut state = self.state.lock();
            if state.next_look.is_some_and(|sooner| sooner <= at) {
                return;
            }
            state.next_look = Some(at);
        }
        let weak = Arc::downgrade(self);
        self.core().at(at, move |_| {
            let Some(watch_loop) = weak.upgrade() else { return };
            // One that was overtaken by a sooner one has nothing left to do.
            let is_due = watch_loop.state.lock().next_look.take_if(|next| *next == at).is_some();
            if is_due {
                watch_loop.look();
            }
        });
    }
}

impl<S: Subject> Participant for WatchLoop<S> {
    fn notify(self: Arc<Self>, why: Notification) {
        match why {
            Notification::LookAgain | Notification::Routine | Notification::Reconnected => self.look(),
            // What was seen is the best that is known.
            Notification::Suspended | Notification::CheckLease => {}
            Notification::SessionEnded(reason) => {
                self.stop();
                self.cell.end(reason);
            }
        }
    }
}
