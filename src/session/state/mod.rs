//! The core of a session: its state, its lease, and the calls made on its behalf.
//!
//! Events of the client come in on the client's own threads, so everything done there is short and makes no call; what
//! may block is submitted to the runtime.

mod calls;
mod life;
mod routine;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::{ZkError, ZkResult};
use crossbeam_channel::{Receiver, Sender, bounded, select};
use parking_lot::Mutex;
use uuid::Uuid;

use super::SessionState;
use super::clock::Moment;
use super::lease::{Lease, LeaseEpoch};
use super::listings::Listings;
use super::registry::{Notification, Participant, ParticipantId, Registry};
use super::removal::{Removal, Target};
use super::runner::Alarm;
use super::runtime::{Priority, Runtime};
use crate::client::{ClientEvent, Granted, ZooKeeperClient};
use crate::error::{LockError, LossReason, Operation, Result};
use crate::logging;
use crate::recipe::path::ZNodePath;

pub(crate) use calls::WatchOutcome;
#[cfg(test)]
pub(crate) use life::KEEP_ALIVE_PATH;

/// How many znodes are remembered that the log has mentioned.
const MAX_MENTIONED: usize = 1000;

pub(crate) struct Core {
    client: Arc<dyn ZooKeeperClient>,
    /// What the client said when it was taken: it is not called back from its events.
    min_idle_for_ping: Duration,
    runtime: Arc<dyn Runtime>,
    /// The process that opened the session. One that it forks has a copy of everything but the threads.
    process: u32,
    status: Mutex<Status>,
    registry: Registry,
    listings: Listings,
    /// Znodes that the log has mentioned, for what it says once.
    mentioned: Mutex<HashSet<ZNodePath>>,
    /// What could not be deleted before the session ended, for a session that follows.
    orphans: Mutex<Vec<Target>>,
    /// Disconnected when the session has ended, for those who wait for something else meanwhile.
    ended: Receiver<Infallible>,
    /// Disconnected when the client has been let go and the threads are ending.
    finished: Receiver<Infallible>,
}

#[derive(Debug)]
struct Status {
    lease: Lease,
    in_contact: bool,
    /// Events that came before the client had said whether there is contact; `None` once it has.
    early: Option<Vec<ClientEvent>>,
    /// The leader hears of the session when contact begins: not before this moment.
    contact_begins_after: Option<Moment>,
    /// Contact was lost: the participants must look again once the session is known to live.
    recheck_due: bool,
    proof_under_way: bool,
    /// Whether a routine look is due that waits for the next keep-alive.
    routine_look_due: bool,
    next_tick: Alarm,
    announced: SessionState,
    subscribers: Vec<Sender<SessionState>>,
    end: Option<LossReason>,
    /// The session has ended for us but lives on elsewhere: the last participant to leave finishes it.
    lingering: bool,
    /// Dropped to signal [`Core::ended`] and [`Core::finished`].
    end_signal: Option<Sender<Infallible>>,
    finish_signal: Option<Sender<Infallible>>,
}

impl Core {
    /// Takes a client and listens to its events. [`Core::prove_life`] comes next.
    ///
    /// A client whose session was not opened before the given moment brings its first proof along.
    pub(crate) fn start(
        client: Arc<dyn ZooKeeperClient>,
        runtime: Arc<dyn Runtime>,
        opened_after: Option<Moment>,
    ) -> Arc<Core> {
        let (end_signal, ended) = bounded(0);
        let (finish_signal, finished) = bounded(0);
        let status = Status {
            lease: Lease::unproven(granted_by(&*client), runtime.now()),
            in_contact: false,
            early: Some(Vec::new()),
            contact_begins_after: opened_after,
            recheck_due: false,
            proof_under_way: false,
            routine_look_due: false,
            next_tick: Alarm::default(),
            announced: SessionState::Suspended,
            subscribers: Vec::new(),
            end: None,
            lingering: false,
            end_signal: Some(end_signal),
            finish_signal: Some(finish_signal),
        };
        let core = Arc::new(Core {
            min_idle_for_ping: client.min_idle_for_ping(),
            client,
            runtime,
            process: std::process::id(),
            status: Mutex::new(status),
            registry: Registry::default(),
            listings: Listings::default(),
            mentioned: Mutex::default(),
            orphans: Mutex::default(),
            ended,
            finished,
        });
        core.listen();
        core.look_routinely_later();
        core
    }

    fn listen(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        let in_contact = self.client.subscribe(Arc::new(move |event| {
            if let Some(core) = weak.upgrade() {
                core.on_event(event);
            }
        }));
        let first = in_contact.then(|| ClientEvent::Connected(granted_by(&*self.client)));
        // Events that come meanwhile queue up behind it.
        let mut next = first.or_else(|| self.next_early());
        while let Some(event) = next {
            self.handle(event);
            next = self.next_early();
        }
    }

    /// The next event that waits for the listening to begin, which begins when there is none.
    fn next_early(&self) -> Option<ClientEvent> {
        let mut status = self.status.lock();
        let early = status.early.as_mut().filter(|early| !early.is_empty());
        match early {
            Some(early) => Some(early.remove(0)),
            None => {
                status.early = None;
                None
            }
        }
    }

    fn on_event(self: &Arc<Self>, event: ClientEvent) {
        if let Some(early) = &mut self.status.lock().early {
            return early.push(event);
        }
        self.handle(event);
    }

    fn handle(self: &Arc<Self>, event: ClientEvent) {
        match event {
            ClientEvent::Connected(granted) => self.on_connect(granted),
            ClientEvent::Disconnected => self.on_disconnect(),
            ClientEvent::SessionLost => self.end(LossReason::SessionExpired),
            ClientEvent::NodeChanged { path } => {
                let path = ZNodePath::from_server(path);
                for participant in self.registry.take_watching(&path) {
                    participant.notify(Notification::LookAgain);
                }
            }
        }
    }

    fn on_connect(self: &Arc<Self>, granted: Granted) {
        let (ended, terms_end) = self.update(|status, now| {
            status.in_contact = true;
            let taken_up_after = status.contact_begins_after.take();
            let terms_end = status.lease.connected(granted, taken_up_after, now);
            (status.end.is_some(), terms_end)
        });
        if let Some(end) = terms_end {
            self.at(end, |core| core.notify_all_participants(Notification::CheckLease));
        }
        if ended {
            // Only deletions on a session that outlives us are left; no proof is needed for those.
            self.notify_all_participants(Notification::Reconnected);
        } else {
            // The proof that this makes due wakes the participants when it has come.
            self.tick();
        }
    }

    fn on_disconnect(self: &Arc<Self>) {
        let old_term = self.update(|status, now| {
            if !status.in_contact {
                return None;
            }
            status.in_contact = false;
            status.contact_begins_after = Some(now);
            status.recheck_due = true;
            let old_term = Arc::clone(status.lease.current());
            status.lease.disconnected(now);
            Some(old_term)
        });
        if let Some(old_term) = old_term {
            self.at(old_term.end(), |core| core.notify_all_participants(Notification::CheckLease));
            // Not on the client's thread: each of them writes to the log.
            self.submit(|core| core.notify_all_participants(Notification::Suspended));
        }
    }

    /// Changes the status, and sends the subscribers the state that follows from that.
    fn update<T>(self: &Arc<Self>, change: impl FnOnce(&mut Status, Moment) -> T) -> T {
        let now = self.runtime.now();
        let (changed, announced) = {
            let mut status = self.status.lock();
            let changed = change(&mut status, now);
            (changed, status.announce(now))
        };
        match announced {
            Some(SessionState::Connected) => self.log_soon(|| logging::info!("ZooKeeper session connected")),
            Some(SessionState::Suspended) => {
                self.log_soon(|| logging::warn!("ZooKeeper session suspended: no contact"));
            }
            // Its end is logged with the reason.
            Some(SessionState::Lost) | None => {}
        }
        changed
    }

    /// Writes to the log on a worker. This may be a thread of the client's, which holds locks of its own, and a logger is
    /// code of the application's, which may block, or call in here.
    pub(super) fn log_soon(self: &Arc<Self>, log: impl FnOnce() + Send + 'static) {
        self.submit_as(Priority::Session, move |_| log());
    }

    // ---- what others ask

    pub(crate) fn state(&self) -> SessionState {
        self.status.lock().state(self.runtime.now())
    }

    pub(crate) fn end_reason(&self) -> Option<LossReason> {
        self.status.lock().end
    }

    pub(crate) fn in_contact(&self) -> bool {
        self.status.lock().in_contact
    }

    /// When the server was last heard of.
    pub(crate) fn last_contact(&self) -> Moment {
        self.status.lock().lease.last_contact()
    }

    pub(crate) fn session_timeout(&self) -> Duration {
        self.status.lock().lease.session_timeout()
    }

    pub(crate) fn current_epoch(&self) -> Arc<LeaseEpoch> {
        Arc::clone(self.status.lock().lease.current())
    }

    /// Whether a lock may be taken under the term.
    pub(crate) fn admits_owners(&self, term: &LeaseEpoch) -> bool {
        self.status.lock().lease.admits_owners(term, self.runtime.now())
    }

    /// Whether this is the process that opened the session, and not one that it has forked.
    pub(crate) fn is_in_its_process(&self) -> bool {
        std::process::id() == self.process
    }

    pub(crate) fn now(&self) -> Moment {
        self.runtime.now()
    }

    pub(crate) fn new_guid(&self) -> Uuid {
        self.runtime.new_guid()
    }

    /// A number between 0 and 1, drawn by chance.
    pub(crate) fn random_unit(&self) -> f64 {
        // The first 32 bits of a GUID are drawn, and say nothing of its kind.
        let (drawn, ..) = self.new_guid().as_fields();
        f64::from(drawn) / f64::from(u32::MAX)
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    pub(crate) fn listings(&self) -> &Listings {
        &self.listings
    }

    pub(crate) fn ended(&self) -> &Receiver<Infallible> {
        &self.ended
    }

    pub(crate) fn finished(&self) -> &Receiver<Infallible> {
        &self.finished
    }

    pub(crate) fn subscribe(&self, subscriber: Sender<SessionState>) {
        self.status.lock().subscribe(subscriber);
    }

    /// Subscribes one who has not heard of the present state; `false` when nobody listens there any more.
    pub(super) fn tell_and_subscribe(&self, subscriber: Sender<SessionState>) -> bool {
        let mut status = self.status.lock();
        let listens = subscriber.send(status.announced).is_ok();
        status.subscribe(subscriber);
        listens
    }

    /// Runs a job, if the session still lives at that moment, on the timer's thread: it must not block.
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
        self.runtime.submit_callback(Box::new(callback));
    }

    /// Runs a call on a worker and waits for what it returns, but not beyond the end of the session.
    ///
    /// # Errors
    /// `SessionLost` or `Closed` when the session ends meanwhile, whatever becomes of the call.
    pub(crate) fn call<T: Send + 'static>(
        self: &Arc<Self>,
        operation: Operation,
        path: &ZNodePath,
        call: impl FnOnce(&Arc<Core>) -> T + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = bounded(1);
        self.submit(move |core| drop(answer.send(call(core))));
        self.receive(operation, path, &answered)
    }

    /// Waits for the next answer of jobs that were submitted, but not beyond the end of the session.
    ///
    /// # Errors
    /// `SessionLost` or `Closed` when the session ends meanwhile.
    pub(crate) fn receive<T>(
        &self,
        operation: Operation,
        path: &ZNodePath,
        answers: &Receiver<T>,
    ) -> Result<T> {
        let received = select! {
            recv(answers) -> result => result.ok(),
            recv(self.ended) -> _ => answers.try_recv().ok(),
        };
        received.ok_or_else(|| self.end_error(operation, path))
    }

    /// Fails when the session has ended, and says how.
    pub(crate) fn check_open(&self, operation: Operation, path: &ZNodePath) -> Result<()> {
        if self.end_reason().is_some() { Err(self.end_error(operation, path)) } else { Ok(()) }
    }

    fn end_error(&self, operation: Operation, path: &ZNodePath) -> LockError {
        let (operation, path) = (operation.name, path.to_string());
        match self.end_reason() {
            Some(LossReason::SessionClosed) => LockError::Closed { operation, path },
            Some(reason) => LockError::SessionLost { operation, path, reason },
            // The job that was to answer has panicked, and nobody knows what it did before.
            None => LockError::ConnectionLoss { operation, path, source: ZkError::ConnectionLoss },
        }
    }

    /// Whether the log has not mentioned this znode yet, which it does now.
    pub(crate) fn mentions_first(&self, path: &ZNodePath) -> bool {
        let mut mentioned = self.mentioned.lock();
        if mentioned.len() == MAX_MENTIONED {
            mentioned.clear();
        }
        mentioned.insert(path.clone())
    }

    // ---- participants

    /// Adds a participant, which hears at once if the session has ended meanwhile.
    pub(crate) fn join(&self, id: ParticipantId, participant: Arc<dyn Participant>) {
        self.registry.add(id, Arc::clone(&participant));
        if let Some(reason) = self.end_reason() {
            participant.notify(Notification::SessionEnded(reason));
        }
    }

    pub(crate) fn leave(self: &Arc<Self>, id: ParticipantId) {
        self.registry.remove(id);
        if self.status.lock().lingering && self.registry.is_empty() {
            self.finish();
        }
    }

    /// Deletes a znode of this session, trying again until it is gone or the session has ended. The first outcome is
    /// told to `first`.
    pub(crate) fn remove(self: &Arc<Self>, target: Target, first: Option<Sender<ZkResult<()>>>) {
        Removal::start(self, target, first);
    }

    pub(super) fn leave_behind(&self, target: Target) {
        self.orphans.lock().push(target);
    }

    pub(super) fn take_orphans(&self) -> Vec<Target> {
        std::mem::take(&mut self.orphans.lock())
    }

    fn notify_all_participants(&self, why: Notification) {
        for participant in self.registry.everybody() {
            participant.notify(why);
        }
    }
}

impl Status {
    /// Subscribes one who may have done so already: during a healing two threads see to it.
    fn subscribe(&mut self, subscriber: Sender<SessionState>) {
        if !self.subscribers.iter().any(|other| other.same_channel(&subscriber)) {
            self.subscribers.push(subscriber);
        }
    }

    fn state(&self, now: Moment) -> SessionState {
        if self.end.is_some() {
            SessionState::Lost
        } else if self.in_contact && now < self.lease.last_write_holds_until() {
            SessionState::Connected
        } else {
            SessionState::Suspended
        }
    }

    /// Sends the subscribers the state if it has changed, and returns it then.
    fn announce(&mut self, now: Moment) -> Option<SessionState> {
        let state = self.state(now);
        if state == self.announced {
            return None;
        }
        self.announced = state;
        // An unbounded channel: this never waits. One whose receiver is gone is forgotten.
        self.subscribers.retain(|subscriber| subscriber.send(state).is_ok());
        Some(state)
    }
}

/// What the client says of its present connection.
fn granted_by(client: &dyn ZooKeeperClient) -> Granted {
    Granted::new(client.session_timeout()).with_report_delay(client.report_delay())
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("state", &self.state())
            .field("registry", &self.registry)
            .field("runtime", &self.runtime)
            .finish_non_exhaustive()
    }
}
