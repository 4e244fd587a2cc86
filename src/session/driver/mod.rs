//! The driver of a session: it passes inputs to the [`Engine`], and carries out its effects.
//!
//! One mutex guards the engine. Under it, the driver handles an input, sets the ownerships, posts events to their
//! observers, and logs. That takes little time and calls no other code: the log's own thread calls the logger. So log
//! lines keep the order of the events, and a line is on its way to the logger before anybody can act on its event.
//! Everything that may call other code happens after the mutex is released. First, calls leave through the outbox, in
//! order. Then come events for the hook, callbacks and notifications.
//!
//! Events and replies arrive on the client's own threads. So the work on those threads is short, and work that may
//! block is submitted to the runtime.
//!
//! The center is [`Core::feed`]. The modules are:
//! - [`opening`]: how a session begins.
//! - [`requests`] and [`trackers`]: what locks and trackers ask of the engine, and what it reports to them.
//! - [`calls`]: the calls to the client.
//! - [`afterwards`]: the work after the mutex is released.
//! - [`announcer`]: the state of the session, for subscribers and the log.
//! - [`orphans`]: the deletions that are left to the next session.
//! - [`snapshot`]: what others may read, and wait for.
//!
//! All of these modules add methods to [`Core`]. The events for the hook are in `session/events.rs`.

mod afterwards;
mod announcer;
mod calls;
mod opening;
mod orphans;
mod requests;
mod snapshot;
#[cfg(test)]
mod tests;
mod trackers;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use self::afterwards::{Afterwards, Task};
use self::announcer::Announcer;
use self::calls::{OutcomeSink, Outgoing};
use self::opening::Arrival;
use self::orphans::Orphans;
pub(crate) use self::trackers::Tracker;
use super::alarm::Alarm;
use super::events::Events;
use super::mailbox::Mailbox;
use super::seat::Seat;
use crate::client::{Identity, ZooKeeperClient};
use crate::engine::{Effect, Engine, ParticipantId, SessionEnd};
use crate::error::ZkResult;
use crate::external::External;
use crate::lock_order::{
    Mutex, MutexGuard,
    rank::{ENGINE, ORPHANS},
};
use crate::process::Process;
use crate::time::{Filler, Latch, Moment, Runtime, Setter};
use crate::wait::CancelToken;

/// One session of a client, from beginning to end. A [`Session`](super::Session) of the application has one core or, if
/// lost sessions are replaced, several in succession.
pub(crate) struct Core {
    client: External<Arc<dyn ZooKeeperClient>>,
    runtime: Arc<dyn Runtime>,
    process: Process,
    driver: Mutex<ENGINE, Driver>,
    /// The calls on their way to the client.
    outbox: Mailbox<Outgoing>,
    /// The requests whose observers have steps to take.
    steps: Mailbox<Arc<Seat>>,
    /// The deletions that the session did not make before it ended, for the next session.
    orphans: Mutex<ORPHANS, Orphans>,
    events: OnceLock<Arc<Events>>,
    /// If another session replaces this one after a loss: the token that is cancelled when the session is closed.
    replaced_until: OnceLock<CancelToken>,
    /// Set when the session has ended and all its participants have been notified. A thread that waits for the outcome
    /// of a call waits for this latch, too.
    ended: Latch,
    /// Set when the client is closed and the threads are ending.
    finished: Latch,
}

/// The state under the mutex.
struct Driver {
    engine: Engine,
    /// The requests that have not ended.
    seats: BTreeMap<ParticipantId, Arc<Seat>>,
    /// Wakes the threads that wait for the place of a request. A setter is used when its request has a place or has
    /// ended.
    awaited: BTreeMap<ParticipantId, Setter>,
    trackers: BTreeMap<ParticipantId, Arc<dyn Tracker>>,
    /// The receivers of outcomes, for calls that the engine makes on behalf of others.
    askers: BTreeMap<ParticipantId, OutcomeSink>,
    /// The waiters for the first outcome of a deletion.
    first_outcomes: BTreeMap<ParticipantId, Filler<ZkResult<()>>>,
    /// Events that arrive before `subscribe` has reported whether there is contact. `None` once they are all handled.
    early: Option<Vec<Arrival>>,
    /// What identified the client's session at its last contact.
    identity: Identity,
    announcer: Announcer,
    alarm: Alarm,
    /// Sets [`Core::ended`].
    end: Setter,
    /// Sets [`Core::finished`]. `None` once the session is finished.
    finish: Option<Setter>,
}

impl Core {
    /// Passes an input to the engine, and carries out its effects. Under the mutex, this sets the ownerships, posts the
    /// calls, and logs. Then it sends the calls, and finally does everything that may call the application.
    fn feed<T>(self: &Arc<Self>, input: impl FnOnce(&mut Driver) -> T) -> T {
        let (result, mut afterwards) = self.take_in(input);
        self.send_all(&mut afterwards);
        self.complete(afterwards);
        result
    }

    /// Does the part of [`feed`](Core::feed) under the mutex.
    fn take_in<T>(self: &Arc<Self>, input: impl FnOnce(&mut Driver) -> T) -> (T, Afterwards) {
        let mut afterwards = Afterwards::default();
        let mut driver = self.driver_now();
        // Announce the state before the input is handled, so that a change caused by the clock alone is announced even
        // if the input reverts it.
        driver.announce();
        let result = input(&mut driver);
        driver.engine.settle();
        driver.carry_out(self, &mut afterwards);
        (result, afterwards)
    }

    /// Locks the driver and tells the engine the current time.
    fn driver_now(&self) -> MutexGuard<'_, ENGINE, Driver> {
        let mut driver = self.driver.lock();
        // The clock is read under the mutex. Otherwise, a thread that is paused after reading it would act on a stale
        // time.
        driver.engine.begin(self.runtime.now());
        driver
    }

    fn ring(self: &Arc<Self>, at: Moment) {
        self.feed(|driver| {
            if driver.alarm.rings(at) {
                driver.engine.handle_deadline();
            }
        });
    }

    /// Ends the session for good. Owners are notified, waiters get an error, and the threads end.
    pub(crate) fn end(self: &Arc<Self>, reason: SessionEnd) {
        self.feed(|driver| {
            if reason == SessionEnd::Closed {
                // Subscribers learn only of changes that the application has not caused itself.
                driver.announcer.disconnect();
            }
            driver.engine.end(reason);
        });
    }

    fn complete_end(self: &Arc<Self>) {
        self.feed(|driver| driver.engine.complete_end());
    }
}

impl Driver {
    /// Carries out the engine's effects as far as possible under the mutex.
    fn carry_out(&mut self, core: &Arc<Core>, afterwards: &mut Afterwards) {
        // Ownerships come first: they must be up to date before a call that lets others in is sent, and before a new
        // owner is woken.
        while let Some((owner, held)) = self.engine.poll_ownership() {
            if let Some(ended) = self.seats.get(&owner).and_then(|seat| seat.hold(held)) {
                self.engine.lose_hold(owner, ended);
                self.engine.settle();
            }
        }
        self.announce();
        self.alarm.clear_past(self.engine.now());
        if let Some(at) = self.engine.poll_deadline().filter(|next| self.alarm.set(*next)) {
            core.at(at, move |core| core.ring(at));
        }
        // Effects come last, because some of them wake threads, which may take the mutex immediately.
        while let Some(effect) = self.engine.poll_effect() {
            self.carry_out_one(core, effect, afterwards);
        }
        if self.engine.has_completed_end() {
            self.end.set();
        }
    }

    fn carry_out_one(&mut self, core: &Arc<Core>, effect: Effect, afterwards: &mut Afterwards) {
        match effect {
            Effect::Submit(id, call, priority) => core.outbox.post(Outgoing::Call(id, call, priority)),
            Effect::RemoveWatch(path) => core.outbox.post(Outgoing::RemoveWatch(path)),
            Effect::Happened(event) => self.take_event(core, event, afterwards),
            Effect::RemovalAnswered(id, outcome) => {
                if let Some(first) = self.first_outcomes.remove(&id) {
                    first.fill(outcome);
                }
            }
            Effect::Diverged(path) => afterwards.tasks.push(Task::LogDivergence(path)),
            Effect::LeftBehind(id, target) => {
                self.first_outcomes.remove(&id);
                afterwards.tasks.push(Task::LeaveBehind(target));
            }
            Effect::BeginLook(id) => self.note_look(id, None, afterwards),
            Effect::ReadFor(id, outcome) => self.note_look(id, Some(outcome), afterwards),
            Effect::Answered(id, outcome) => {
                let answered = self.askers.remove(&id);
                afterwards.tasks.extend(answered.map(|answered| Task::Answer(answered, outcome)));
            }
            Effect::Untracked(id, reason) => {
                let tracker = self.trackers.remove(&id);
                afterwards.tasks.extend(tracker.map(|tracker| Task::EndTracking(tracker, reason)));
            }
            Effect::Ending => afterwards.tasks.push(Task::CompleteEnd),
            Effect::Finished => afterwards.finish = self.finish.take(),
        }
    }
}
