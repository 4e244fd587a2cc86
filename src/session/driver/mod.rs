//! The driver of a session: it passes to the [`Engine`] what happens, and does what that asks for.
//!
//! One mutex is around the engine. Under it, an input is handled, the ownerships are set, and events
//! are posted to their observers, which is short and calls nobody. Everything that may call others
//! happens after it: calls leave through the outbox, in their order; then come events for the hook, callbacks and
//! notifications; then log lines.
//!
//! Events and replies come in on the client's own threads, so everything done there is short, and work that
//! may block is submitted to the runtime.
//!
//! Its heart is here: [`Core::feed`]. The rest is around it: how a session [begins](opening), what its
//! [`requests`] and [`trackers`] ask and hear, the [`calls`] to the client, what is done [`afterwards`], what subscribers
//! and the log hear of its state ([`announcer`]), what it leaves for a session that follows ([`orphans`]), and what
//! others may [ask](snapshot) and wait for. All of them are methods of [`Core`]; its events for the hook are in
//! `session/events.rs`.

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
use self::orphans::Orphans;
pub(crate) use self::trackers::Tracker;
use super::alarm::Alarm;
use super::events::Events;
use super::mailbox::Mailbox;
use super::seat::Seat;
use crate::client::{ClientEvent, ZooKeeperClient};
use crate::engine::{Effect, Engine, ParticipantId};
use crate::error::{LossReason, ZkResult};
use crate::external::External;
use crate::lock_order::{
    Mutex, MutexGuard,
    rank::{ENGINE, ORPHANS},
};
use crate::process::Process;
use crate::time::{Filler, Latch, Moment, Runtime, Setter};

/// One session of a client, from its beginning to its end. A [`Session`](super::Session) of the application has one, or one
/// after the other if lost ones are replaced.
pub(crate) struct Core {
    client: External<Arc<dyn ZooKeeperClient>>,
    runtime: Arc<dyn Runtime>,
    process: Process,
    /// The client is one whose connection names each contact in the log, with its server.
    names_contacts: bool,
    driver: Mutex<ENGINE, Driver>,
    /// The calls on their way to the client.
    outbox: Mailbox<Outgoing>,
    /// The deletions that were not made before the session ended, for a session that follows.
    orphans: Mutex<ORPHANS, Orphans>,
    events: OnceLock<Arc<Events>>,
    /// Set when the session has ended, for those who wait for something else meanwhile.
    ended: Latch,
    /// Set when the client has been dropped and the threads are ending.
    finished: Latch,
}

/// The state that the mutex guards.
struct Driver {
    engine: Engine,
    /// The requests that have not ended.
    seats: BTreeMap<ParticipantId, Arc<Seat>>,
    /// Set when a request is placed or has ended, where a thread waits for that.
    awaited: BTreeMap<ParticipantId, Setter>,
    trackers: BTreeMap<ParticipantId, Arc<dyn Tracker>>,
    /// The receivers of the outcomes of calls that the engine makes for others.
    askers: BTreeMap<ParticipantId, OutcomeSink>,
    /// The waiters for the first outcome of a deletion.
    first_outcomes: BTreeMap<ParticipantId, Filler<ZkResult<()>>>,
    /// Events from before the client's first report of contact; `None` after it.
    early: Option<Vec<(ClientEvent, Moment)>>,
    announcer: Announcer,
    alarm: Alarm,
    /// The session itself while it lingers: its handles may be gone, and it has deletions to make.
    lingering: Option<Arc<Core>>,
    /// Those of [`Core::ended`], and of [`Core::finished`] until the session is finished.
    end: Setter,
    finish: Option<Setter>,
}

impl Core {
    /// Passes an input to the engine, and does what that asks for: under the mutex, sets the ownerships and posts what
    /// is to be sent; then sends it; and then does everything that may call the application.
    fn feed<T>(self: &Arc<Self>, input: impl FnOnce(&mut Driver) -> T) -> T {
        let mut afterwards = Afterwards::default();
        let result = {
            let mut driver = self.driver_now();
            // A change by the clock alone is seen, even if this input reverts it.
            afterwards.log.announced.extend(driver.announce());
            let result = input(&mut driver);
            driver.engine.settle();
            driver.carry_out(self, &mut afterwards);
            result
        };
        self.send_all();
        self.complete(afterwards);
        result
    }

    /// The driver, with the present time.
    fn driver_now(&self) -> MutexGuard<'_, ENGINE, Driver> {
        let mut driver = self.driver.lock();
        // Under the mutex: a thread that is paused here must not act on a time that others have left
        // behind.
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

    /// Ends the session for good: owners are notified, waiters get an error, threads end.
    pub(crate) fn end(self: &Arc<Self>, reason: LossReason) {
        self.feed(|driver| driver.engine.end(reason));
    }

    fn complete_end(self: &Arc<Self>) {
        self.feed(|driver| driver.engine.complete_end());
    }
}

impl Driver {
    /// Does what the engine asks for, as far as that is possible under the mutex.
    fn carry_out(&mut self, core: &Arc<Core>, afterwards: &mut Afterwards) {
        // First: a call that lets others in is yet to be sent, and an owner yet to be woken.
        while let Some((owner, held)) = self.engine.poll_ownership() {
            if let Some(ended) = self.seats.get(&owner).and_then(|seat| seat.hold(held)) {
                self.engine.lose_hold(owner, ended);
                self.engine.settle();
            }
        }
        afterwards.log.announced.extend(self.announce());
        self.alarm.clear_past(self.engine.now());
        if let Some(at) = self.engine.poll_deadline().filter(|next| self.alarm.set(*next)) {
            core.at(at, move |core| core.ring(at));
        }
        // Last: a thread that is woken by a report may be about to take the mutex.
        while let Some(effect) = self.engine.poll_effect() {
            self.carry_out_one(core, effect, afterwards);
        }
        if self.engine.has_completed_end() {
            self.end.set();
        }
        self.lingering = self.engine.lingers().then(|| Arc::clone(core));
        self.announcer.forget_repetitions(self.engine.now(), &mut afterwards.log);
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
