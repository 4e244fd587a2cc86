//! The driver of a session: it passes to the [`Engine`] what happens, and does what that asks for.
//!
//! One mutex is around the engine. Under it, an input is handled, the ownerships are set, and events
//! are posted to their observers, which is short and calls nobody. Everything that may call others
//! happens after it: calls leave through the outbox, in their order; then come notifications, log
//! lines and callbacks.
//!
//! Events and replies come in on the client's own threads, so everything done there is short, and work that
//! may block is submitted to the runtime.

mod calls;
mod orphans;
mod requests;
#[cfg(test)]
mod tests;
mod trackers;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::Sender;
use log::Level;
use uuid::Uuid;

use self::calls::{OutcomeSink, Outgoing};
use self::orphans::Orphans;
use self::requests::Seated;
use self::trackers::LookOn;
pub(crate) use self::trackers::{Step, Tracker};
use super::SessionState;
use super::alarm::Alarm;
use super::events::Events;
use super::happened::Happened;
use super::mailbox::Mailbox;
use super::process::Process;
use super::seat::Seat;
use crate::client::{AnyClient, ClientEvent, Granted, Reply, ZooKeeperClient};
use crate::engine::lease::{ConnectionNumber, Lease};
use crate::engine::{Effect, Engine, Event, ParticipantId, Settings, Target};
use crate::error::{LossReason, ZkResult};
use crate::external::External;
use crate::lock_order::{
    self, Mutex, MutexGuard,
    rank::{ENGINE, ORPHANS},
};
use crate::logging;
use crate::recipe::session_tag::SessionTag;
use crate::time::{Filler, Latch, Moment, Priority, Repetition, Runtime, Setter};

/// The log names suspensions at most this often.
const SUSPENSION_PAUSE: Duration = Duration::from_secs(60);

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
    seats: BTreeMap<ParticipantId, Seated>,
    trackers: BTreeMap<ParticipantId, Arc<dyn Tracker>>,
    /// The receivers of the outcomes of calls that the engine makes for others.
    askers: BTreeMap<ParticipantId, OutcomeSink>,
    /// The waiters for the first outcome of a deletion.
    first_outcomes: BTreeMap<ParticipantId, Filler<ZkResult<()>>>,
    /// Events from before the client's first report of contact; `None` after it.
    early: Option<Vec<(ClientEvent, Moment)>>,
    /// The state that the subscribers know.
    announced: SessionState,
    /// Set when another state is announced.
    changed: Setter,
    subscribers: Vec<Sender<SessionState>>,
    /// Of the session, in the log.
    suspension: Repetition,
    /// Of its locks, in the log.
    suspensions: Repetition,
    /// The log does not name the present suspension of the session, nor its end.
    is_quiet: bool,
    alarm: Alarm,
    /// The session itself while it lingers: its handles may be gone, and it has deletions to make.
    lingering: Option<Arc<Core>>,
    /// Those of [`Core::ended`], and of [`Core::finished`] until the session is finished.
    end: Setter,
    finish: Option<Setter>,
}

/// The work to do when the mutex is free again.
#[derive(Default)]
struct Afterwards {
    answers: Vec<(OutcomeSink, ZkResult<Reply>)>,
    looks: Vec<LookOn>,
    /// Those whose tracking has ended with the session.
    untracked: Vec<(Arc<dyn Tracker>, LossReason)>,
    announced: Vec<SessionState>,
    lines: Vec<Happened>,
    /// Those whose observers have callbacks to make.
    callbacks: Vec<Arc<Seat>>,
    left_behind: Vec<Target>,
    is_ending: bool,
    finish: Option<Setter>,
    /// Handles that may be the last ones.
    dropped: Vec<Seated>,
}

/// The thread on which an input comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// One of the client's, for an event.
    ClientEvent,
    /// Any other, for replies also one of the client's.
    Other,
}

impl Core {
    /// Takes a client and listens to its events. A write proves then that a server serves it.
    ///
    /// A client whose session was not opened before the given moment brings its first proof along.
    pub(crate) fn start(
        client: AnyClient,
        runtime: Arc<dyn Runtime>,
        opened_after: Option<Moment>,
    ) -> Arc<Core> {
        let client = External::new("a ZooKeeper client", client.on(&runtime), &runtime);
        let (end, finish) = (Setter::new(), Setter::new());
        let (ended, finished) = (end.latch().clone(), finish.latch().clone());
        let now = runtime.now();
        let mut lease = Lease::unproven(granted_by(&**client), now);
        if client.reports_pings() {
            lease = lease.proven_for_owners_only();
        }
        // The client's answers when it was taken: it is not called back from its events.
        let settings = Settings {
            is_ordered: client.is_ordered(),
            owns_session: client.owns_session(),
            min_idle_for_ping: client.min_idle_for_ping(),
            chroot: client.chroot(),
            routine_pause: runtime.routine_pause(),
            window: runtime.window(),
            jute_max_buffer: client.jute_max_buffer(),
            opened_after,
            tag: SessionTag::new(runtime.new_guid()),
            seed: runtime.new_guid().as_u64_pair().0,
        };
        let names_contacts = client.server().is_some();
        let core = Arc::new(Core {
            client,
            runtime,
            names_contacts,
            process: Process::current(),
            driver: Mutex::new(Driver {
                engine: Engine::new(now, settings, lease),
                seats: BTreeMap::new(),
                trackers: BTreeMap::new(),
                askers: BTreeMap::new(),
                first_outcomes: BTreeMap::new(),
                early: Some(Vec::new()),
                announced: SessionState::Suspended,
                changed: Setter::new(),
                subscribers: Vec::new(),
                suspension: Repetition::default(),
                suspensions: Repetition::default(),
                is_quiet: false,
                alarm: Alarm::default(),
                lingering: None,
                end,
                finish: Some(finish),
            }),
            outbox: Mailbox::new(),
            orphans: Mutex::new(Orphans::Kept(Vec::new())),
            events: OnceLock::new(),
            ended,
            finished,
        });
        core.listen();
        core
    }

    /// Sets the outage that an owner of a lock is to survive.
    pub(crate) fn set_survived_outage(self: &Arc<Self>, outage: Duration) {
        self.feed(Origin::Other, |driver| driver.engine.set_survived_outage(outage));
    }

    /// Makes one that has ended. It writes no line to the log, whose logger may wait for ever in a forked
    /// child.
    pub(in crate::session) fn ended_on(
        client: Arc<dyn ZooKeeperClient>,
        runtime: Arc<dyn Runtime>,
    ) -> Arc<Core> {
        let core = Core::start(client.into(), runtime, None);
        let mut driver = core.driver_now();
        driver.engine.end(LossReason::SessionExpired);
        driver.engine.complete_end();
        while driver.engine.poll_effect().is_some() {}
        driver.end.set();
        driver.finish = None;
        drop(driver);
        core
    }

    fn listen(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        let before = self.runtime.now();
        let in_contact = self.client.subscribe(Arc::new(move |event| {
            if let Some(core) = weak.upgrade() {
                core.on_event(event);
            }
        }));
        if in_contact {
            let connected = ClientEvent::Connected(granted_by(&**self.client));
            self.feed(Origin::Other, |driver| driver.engine.handle_event(before, connected));
        }
        // Events that arrive meanwhile queue behind it.
        while self.feed(Origin::Other, Driver::take_early) {}
    }

    fn on_event(self: &Arc<Self>, event: ClientEvent) {
        let at = self.runtime.now();
        self.feed(Origin::ClientEvent, |driver| match &mut driver.early {
            Some(early) => early.push((event, at)),
            None => driver.engine.handle_event(at, event),
        });
    }

    /// Passes an input to the engine, and does what that asks for.
    fn feed<T>(self: &Arc<Self>, origin: Origin, input: impl FnOnce(&mut Driver) -> T) -> T {
        let mut afterwards = Afterwards::default();
        let result = {
            let mut driver = self.driver_now();
            // A change by the clock alone is seen, even if this input reverts it.
            afterwards.announced.extend(driver.announce());
            let result = input(&mut driver);
            driver.engine.settle();
            driver.carry_out(self, &mut afterwards);
            driver.forget_repetitions(&mut afterwards);
            result
        };
        self.send_all();
        self.complete(origin, afterwards);
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

    fn complete(self: &Arc<Self>, origin: Origin, afterwards: Afterwards) {
        let Afterwards {
            answers,
            looks,
            untracked,
            announced,
            lines,
            callbacks,
            left_behind,
            is_ending,
            finish,
            dropped,
        } = afterwards;
        self.deliver_events();
        for (answered, outcome) in answers {
            answered(outcome);
        }
        for seat in callbacks {
            self.submit_callback(move || seat.observer.deliver());
        }
        for target in left_behind {
            self.leave_behind(target);
        }
        if is_ending {
            self.runtime.abandon();
            // On a worker: this may be a thread of the client's, with its locks held, and a
            // notification may drop what is the application's.
            self.submit_as(Priority::Session, Core::complete_end);
        }
        // After what owners and waiters need: a look may sort a long queue.
        for look in looks {
            self.look_on(origin, look);
        }
        for (tracker, reason) in untracked {
            tracker.end(reason);
        }
        // Nothing but the log is left: its logger is the application's, and may block, or call in here.
        // A thread of the client's does not write those of an outage or an end, of which there may be many.
        let warns = !announced.is_empty() || lines.iter().any(Happened::is_of_an_outage);
        if origin == Origin::ClientEvent && warns {
            self.submit_as(Priority::Session, move |core| core.write_to_log(&announced, &lines));
            self.shut_down_if(finish);
        } else {
            self.shut_down_if(finish);
            self.write_to_log(&announced, &lines);
        }
        drop(dropped);
    }

    fn shut_down_if(self: &Arc<Self>, finish: Option<Setter>) {
        let Some(finish) = finish else { return };
        self.submit(move |core| {
            core.client.close();
            drop(finish);
        });
        self.runtime.shut_down();
    }

    fn write_to_log(&self, announced: &[SessionState], lines: &[Happened]) {
        for state in announced {
            match state {
                SessionState::Connected => {
                    let level = if self.names_contacts { Level::Debug } else { Level::Info };
                    logging::log!(level, "ZooKeeper session connected");
                }
                SessionState::Suspended => logging::warn!("ZooKeeper session suspended: no contact"),
                // Its end is logged with the reason.
                SessionState::Lost => {}
            }
        }
        // The log is about to name, or has named, the loss.
        let is_news = |line: &&Happened| !line.is_suspension() || self.end_reason().is_none();
        lines.iter().filter(is_news).for_each(Happened::log);
    }

    fn ring(self: &Arc<Self>, at: Moment) {
        self.feed(Origin::Other, |driver| {
            if driver.alarm.rings(at) {
                driver.engine.handle_alarm();
            }
        });
    }

    // ---- the end

    /// Ends the session for good: owners are notified, waiters get an error, threads end.
    pub(crate) fn end(self: &Arc<Self>, reason: LossReason) {
        self.feed(Origin::Other, |driver| driver.engine.end(reason));
    }

    fn complete_end(self: &Arc<Self>) {
        self.feed(Origin::Other, |driver| driver.engine.complete_end());
    }

    // ---- participants

    pub(crate) fn new_id(&self) -> ParticipantId {
        self.driver.lock().engine.new_id()
    }

    /// Keeps the session from being finished until this is undone.
    pub(crate) fn pin(&self, id: ParticipantId) {
        self.driver.lock().engine.pin(id);
    }

    pub(crate) fn unpin(self: &Arc<Self>, id: ParticipantId) {
        self.feed(Origin::Other, |driver| driver.engine.unpin(id));
    }

    /// Has everybody look. Without contact it does nothing: the reconnect wakes them.
    #[cfg(test)]
    pub(crate) fn look_routinely(self: &Arc<Self>) {
        self.feed(Origin::Other, |driver| driver.engine.look_routinely());
    }

    // ---- what others ask

    pub(crate) fn state(&self) -> SessionState {
        self.driver_now().state()
    }

    pub(crate) fn end_reason(&self) -> Option<LossReason> {
        self.driver.lock().engine.end_reason()
    }

    pub(crate) fn in_contact(&self) -> bool {
        self.driver.lock().engine.in_contact()
    }

    /// The time of the last contact with the server.
    pub(crate) fn last_contact(&self) -> Moment {
        self.driver.lock().engine.lease().last_contact()
    }

    pub(crate) fn events(&self) -> Option<&Arc<Events>> {
        self.events.get()
    }

    /// Sets the events of the session; those set before stay. Returns whether there were none.
    pub(crate) fn keep_events(&self, events: Arc<Events>) -> bool {
        self.driver.lock().engine.count_ahead();
        self.events.set(events).is_ok()
    }

    pub(crate) fn report_present_contact(self: &Arc<Self>) {
        if self.in_contact() {
            self.report_event(Event::Connected, None);
        }
    }

    pub(crate) fn client(&self) -> &dyn ZooKeeperClient {
        &**self.client
    }

    pub(crate) fn session_timeout(&self) -> Duration {
        self.driver.lock().engine.lease().session_timeout()
    }

    pub(crate) fn connection(&self) -> ConnectionNumber {
        self.driver.lock().engine.lease().connection()
    }

    /// The number of participants, and of the paths for which somebody has registered.
    pub(crate) fn census(&self) -> (usize, usize) {
        self.driver.lock().engine.census()
    }

    /// The process that opened the session.
    pub(crate) fn process(&self) -> Process {
        self.process
    }

    pub(crate) fn now(&self) -> Moment {
        self.runtime.now()
    }

    pub(crate) fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    /// Blocks until one of the latches is set, or until the deadline. Returns `false` at the
    /// deadline if none is set.
    pub(crate) fn wait(&self, latches: &[&Latch], deadline: Option<Moment>) -> bool {
        lock_order::assert_none_held();
        self.runtime.wait(latches, deadline)
    }

    pub(crate) fn new_guid(&self) -> Uuid {
        self.runtime.new_guid()
    }

    /// A random number between 0 and 1.
    pub(crate) fn random_unit(&self) -> f64 {
        // The first 32 bits of a GUID are random and do not depend on its version.
        let (drawn, ..) = self.new_guid().as_fields();
        f64::from(drawn) / f64::from(u32::MAX)
    }

    pub(crate) fn ended(&self) -> &Latch {
        &self.ended
    }

    pub(crate) fn finished(&self) -> &Latch {
        &self.finished
    }

    /// The latch that is set when the subscribers next hear of another state.
    pub(crate) fn next_change(&self) -> Latch {
        self.driver.lock().changed.latch().clone()
    }

    pub(crate) fn subscribe(&self, subscriber: Sender<SessionState>) {
        self.driver.lock().subscribe(subscriber);
    }

    /// Sends the present state to a new subscriber; `false` if the receiver is gone.
    pub(super) fn announce_and_subscribe(&self, subscriber: Sender<SessionState>) -> bool {
        let mut driver = self.driver.lock();
        let listens = subscriber.send(driver.announced).is_ok();
        driver.subscribe(subscriber);
        listens
    }

    // ---- threads

    /// Runs a job, if the session still lives at that moment, on the timer's thread: it must not
    /// block.
    pub(crate) fn at(self: &Arc<Self>, moment: Moment, job: impl FnOnce(&Arc<Core>) + Send + 'static) {
        let weak = Arc::downgrade(self);
        self.runtime.at(
            moment,
            Box::new(move || {
                if let Some(core) = weak.upgrade() {
                    job(&core);
                }
            }),
        );
    }

    pub(crate) fn submit(self: &Arc<Self>, job: impl FnOnce(&Arc<Core>) + Send + 'static) {
        self.submit_as(Priority::Other, job);
    }

    pub(crate) fn submit_as(
        self: &Arc<Self>,
        priority: Priority,
        job: impl FnOnce(&Arc<Core>) + Send + 'static,
    ) {
        let core = Arc::clone(self);
        self.runtime.submit(priority, Box::new(move || job(&core)));
    }

    /// Runs a callback of the application's, which may block, even after the end of the session.
    pub(crate) fn submit_callback(&self, callback: impl FnOnce() + Send + 'static) {
        self.runtime.submit(Priority::Callback, Box::new(callback));
    }
}

impl Driver {
    /// Takes up the next event that came too early. Returns `false` when there is none, and no later
    /// one is kept.
    fn take_early(&mut self) -> bool {
        match &mut self.early {
            Some(early) if !early.is_empty() => {
                let (event, at) = early.remove(0);
                self.engine.handle_event(at, event);
                true
            }
            _ => {
                self.early = None;
                false
            }
        }
    }

    /// Does what the engine asks for, as far as that is possible under the mutex.
    fn carry_out(&mut self, core: &Arc<Core>, afterwards: &mut Afterwards) {
        // First: a call that lets others in is yet to be sent, and an owner yet to be woken.
        while let Some((owner, until)) = self.engine.poll_ownership() {
            let seated = self.seats.get(&owner);
            if seated.is_some_and(|seated| !seated.seat.ownership.set(until)) {
                self.engine.lose_lease(owner);
                self.engine.settle();
            }
        }
        afterwards.announced.extend(self.announce());
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
    }

    fn carry_out_one(&mut self, core: &Arc<Core>, effect: Effect, afterwards: &mut Afterwards) {
        match effect {
            Effect::Submit(id, call, priority) => core.outbox.post(Outgoing::Call(id, call, priority)),
            Effect::RemoveWatch(path) => core.outbox.post(Outgoing::RemoveWatch(path)),
            Effect::Happened(event) => self.take_event(core, event, afterwards),
            Effect::Removed(id, outcome) => {
                if let Some(first) = self.first_outcomes.remove(&id) {
                    first.fill(outcome);
                }
            }
            Effect::LeftBehind(id, target) => {
                self.first_outcomes.remove(&id);
                afterwards.left_behind.push(target);
            }
            Effect::BeginLook(id) => self.note_look(id, None, afterwards),
            Effect::ReadFor(id, outcome) => self.note_look(id, Some(outcome), afterwards),
            Effect::Answered(id, outcome) => {
                afterwards.answers.extend(self.askers.remove(&id).map(|answered| (answered, outcome)));
            }
            Effect::Untracked(id, reason) => {
                afterwards.untracked.extend(self.trackers.remove(&id).map(|tracker| (tracker, reason)));
            }
            Effect::Ending => afterwards.is_ending = true,
            Effect::Finished => afterwards.finish = self.finish.take(),
        }
    }

    // ---- what subscribers see

    fn state(&self) -> SessionState {
        if self.engine.end_reason().is_some() {
            SessionState::Lost
        } else if self.engine.is_connected() {
            SessionState::Connected
        } else {
            SessionState::Suspended
        }
    }

    /// Sends the subscribers the state if it has changed, and returns it then.
    fn announce(&mut self) -> Option<SessionState> {
        let state = self.state();
        if state == self.announced {
            return None;
        }
        self.announced = state;
        // Dropping the former one sets it.
        self.changed = Setter::new();
        if self.is_closed() {
            // The application has closed the session and knows that. Its channels are disconnected.
            self.subscribers.clear();
        }
        // An unbounded channel: this never waits. A subscriber whose receiver is gone is forgotten.
        self.subscribers.retain(|subscriber| subscriber.send(state).is_ok());
        Some(state)
    }

    fn is_closed(&self) -> bool {
        self.engine.end_reason() == Some(LossReason::SessionClosed)
    }

    /// A connection that comes and goes must not fill the log.
    fn forget_repetitions(&mut self, afterwards: &mut Afterwards) {
        let now = self.engine.now();
        let has_suspensions = afterwards.lines.iter().any(Happened::is_suspension);
        if has_suspensions && self.suspensions.is_repeated(now, SUSPENSION_PAUSE) {
            afterwards.lines.retain(|line| !line.is_suspension());
        }
        if afterwards.announced.contains(&SessionState::Suspended) {
            self.is_quiet = self.suspension.is_repeated(now, SUSPENSION_PAUSE);
        }
        if self.is_quiet {
            afterwards.announced.clear();
        }
    }

    /// Idempotent: two threads may add the same channel when a session is replaced.
    fn subscribe(&mut self, subscriber: Sender<SessionState>) {
        if !self.is_closed() && !self.subscribers.iter().any(|other| other.same_channel(&subscriber)) {
            self.subscribers.push(subscriber);
        }
    }
}

/// Returns what the client reports of its current connection.
fn granted_by(client: &dyn ZooKeeperClient) -> Granted {
    Granted::new(client.session_timeout()).with_report_delay(client.report_delay())
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (participants, watched_paths) = self.census();
        f.debug_struct("Core")
            .field("state", &self.state())
            .field("participants", &participants)
            .field("watched_paths", &watched_paths)
            .field("runtime", &self.runtime)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Core {
    /// Returns when the present epoch of the lease ends.
    pub(crate) fn lease_end(&self) -> Moment {
        self.driver.lock().engine.lease().end()
    }

    /// Returns how many wait for the next listing of a directory.
    pub(crate) fn readers(&self, dir: &crate::recipe::path::ZNodePath) -> usize {
        self.driver.lock().engine.readers(dir)
    }

    pub(crate) fn bytes_of_znodes(&self) -> usize {
        self.driver.lock().engine.bytes_of_znodes()
    }

    pub(crate) fn admits_owners(&self) -> bool {
        self.driver_now().engine.admits_owners()
    }

    pub(crate) fn mentions_first(&self, path: &crate::recipe::path::ZNodePath) -> bool {
        self.driver.lock().engine.mentions_first(path)
    }
}
