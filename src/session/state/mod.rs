//! The core of a session: its state, its lease, and the calls made on its behalf.
//!
//! Events of the client come in on the client's own threads, so everything done there is short and
//! makes no call; what may block is submitted to the runtime.

mod calls;
mod life;
mod participants;
mod routine;
mod status;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use uuid::Uuid;

use super::SessionState;
use super::events::{Event, Events};
use super::ownership::Ownership;
use super::process::Process;
use super::registry::{EngineGuard, Notification, Registry, ZNodeChange};
use crate::client::{AnyClient, ClientEvent, Granted, ZooKeeperClient};
use crate::engine::ParticipantId;
use crate::engine::lease::{Admission, ConnectionNumber, Lease};
use crate::error::{LockError, LossReason, Operation, Result, ZkError};
use crate::lock_order::{
    self, Mutex,
    rank::{MENTIONED, ORPHANS, STATUS},
};
use crate::logging;
use crate::recipe::path::ZNodePath;
use crate::time::{Moment, Priority, Runtime, Signal};

pub(crate) use calls::WatchOutcome;
use participants::Orphans;
use status::Status;

/// How many znodes are remembered that the log has mentioned.
const MAX_MENTIONED: usize = 1000;

pub(crate) struct Core {
    client: Arc<dyn ZooKeeperClient>,
    /// The client's answers when it was taken: it is not called back from its events.
    min_idle_for_ping: Duration,
    runtime: Arc<dyn Runtime>,
    process: Process,
    status: Mutex<STATUS, Status>,
    registry: Registry,
    /// Znodes that the log has mentioned, for messages that are logged once.
    mentioned: Mutex<MENTIONED, HashSet<ZNodePath>>,
    /// What could not be deleted before the session ended, for a session that follows.
    orphans: Mutex<ORPHANS, Orphans>,
    events: OnceLock<Arc<Events>>,
    /// Disconnected when the session has ended, for those who wait for something else meanwhile.
    ended: Receiver<Infallible>,
    /// Disconnected when the client has been dropped and the threads are ending.
    finished: Receiver<Infallible>,
}

impl Core {
    /// Takes a client and listens to its events. [`Core::prove_life`] comes next.
    ///
    /// A client whose session was not opened before the given moment brings its first proof along.
    pub(crate) fn start(
        client: AnyClient,
        runtime: Arc<dyn Runtime>,
        opened_after: Option<Moment>,
    ) -> Arc<Core> {
        let client = client.on(&runtime);
        let (end, ended) = bounded(0);
        let (finish, finished) = bounded(0);
        let mut lease = Lease::unproven(granted_by(&*client), runtime.now());
        if client.reports_pings() {
            lease = lease.proven_for_owners_only();
        }
        let status = Status::new(lease, opened_after, end, finish);
        let core = Arc::new(Core {
            min_idle_for_ping: client.min_idle_for_ping(),
            client,
            runtime,
            process: Process::current(),
            status: Mutex::new(status),
            registry: Registry::default(),
            mentioned: Mutex::default(),
            orphans: Mutex::new(Orphans::Kept(Vec::new())),
            events: OnceLock::new(),
            ended,
            finished,
        });
        core.listen();
        core.look_routinely_later();
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
        let first = in_contact.then(|| (ClientEvent::Connected(granted_by(&*self.client)), before));
        // Events that arrive meanwhile queue behind it.
        let next_early = || self.status.lock().next_early();
        let mut next = first.or_else(next_early);
        while let Some((event, at)) = next {
            self.handle(event, at);
            next = next_early();
        }
    }

    fn on_event(self: &Arc<Self>, event: ClientEvent) {
        let at = self.runtime.now();
        let event = self.status.lock().keep_if_early(event, at);
        if let Some(event) = event {
            self.handle(event, at);
        }
    }

    /// Handles an event of this moment. It counts when it happened: a server may take the session
    /// up again right after a disconnect.
    fn handle(self: &Arc<Self>, event: ClientEvent, at: Moment) {
        match event {
            ClientEvent::Connected(granted) => self.on_connect(granted, at),
            ClientEvent::ReportDelay(report_delay) => self.on_report_delay(report_delay),
            ClientEvent::TakenUp { session_timeout } => self.on_taken_up(session_timeout, at),
            ClientEvent::PingAnswered { sent } => self.on_ping_answered(sent),
            ClientEvent::Disconnected => self.on_disconnect(at),
            ClientEvent::SessionLost => self.end(LossReason::SessionExpired),
            ClientEvent::NodeChanged { path, is_deleted } => {
                let path = ZNodePath::from_server(path);
                let change = if is_deleted { ZNodeChange::Deleted } else { ZNodeChange::Unknown };
                for participant in self.registry.take_watching(&path) {
                    participant.znode_changed(&path, change);
                }
            }
        }
    }

    fn on_connect(self: &Arc<Self>, granted: Granted, at: Moment) {
        let (has_ended, (epochs_end, must_look)) =
            self.update(|status, _now| (status.has_ended(), status.connected(granted, at)));
        self.check_leases_at(epochs_end);
        if !has_ended {
            self.report_contact();
            // A proof that this makes due wakes the participants when it has come.
            self.tick();
        }
        if must_look {
            self.notify_all_participants(Notification::Reconnected);
        }
    }

    fn on_taken_up(self: &Arc<Self>, session_timeout: Duration, at: Moment) {
        let epochs_end = self.update(|status, now| {
            let epochs_end = status.taken_up(session_timeout, at);
            self.schedule_next_tick(status, now);
            epochs_end
        });
        self.check_leases_at(epochs_end);
    }

    fn on_ping_answered(self: &Arc<Self>, sent: Moment) {
        self.update(|status, now| {
            status.lease.ping_answered(sent, now);
            self.schedule_next_tick(status, now);
        });
    }

    fn on_report_delay(self: &Arc<Self>, report_delay: Duration) {
        self.update(|status, now| {
            status.lease.set_report_delay(report_delay);
            self.schedule_next_tick(status, now);
        });
    }

    fn on_disconnect(self: &Arc<Self>, at: Moment) {
        let former = self.update(|status, _now| status.disconnected(at));
        if let Some(former) = former {
            self.report_event(|| Event::Suspended);
            self.check_leases_at(Some(former));
            // Not on the client's thread: each of them writes to the log.
            self.submit(|core| core.notify_all_participants(Notification::Suspended));
        }
    }

    /// Has the owners whose lease has ended report that. On a worker, as each of them writes to the
    /// log: this may be the timer's thread or one of the client's.
    pub(super) fn check_leases(self: &Arc<Self>) {
        // The lease of a session that owns nothing ends all the time.
        let has_owners = self.status.lock().lease.has_owners();
        if has_owners {
            self.submit_as(Priority::Session, |core| core.notify_all_participants(Notification::CheckLease));
        }
    }

    fn check_leases_at(self: &Arc<Self>, end: Option<Moment>) {
        if let Some(end) = end {
            self.at(end, |core| core.check_leases());
        }
    }

    /// Changes the status, and sends the subscribers the state that follows from that.
    fn update<T>(self: &Arc<Self>, change: impl FnOnce(&mut Status, Moment) -> T) -> T {
        let (changed, announced) = self.change(|status, now| (change(status, now), status.announce(now)));
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

    /// Changes the status, and until when requests hold their locks.
    fn change<T>(&self, change: impl FnOnce(&mut Status, Moment) -> T) -> T {
        let mut status = self.status.lock();
        // Under the mutex: a thread that is paused here must not act on a time that others have left
        // behind.
        let changed = change(&mut status, self.runtime.now());
        let Status { lease, ownerships, .. } = &mut *status;
        ownerships.apply(lease);
        changed
    }

    /// Writes to the log on a worker. This may be a thread of the client's, which holds the
    /// client's locks, and the logger is the application's: it may block, or call in here.
    pub(super) fn log_soon(self: &Arc<Self>, log: impl FnOnce() + Send + 'static) {
        self.submit_as(Priority::Session, move |_| log());
    }

    // ---- what others ask

    pub(crate) fn state(&self) -> SessionState {
        self.status.lock().state(self.runtime.now())
    }

    pub(crate) fn end_reason(&self) -> Option<LossReason> {
        self.status.lock().end_reason()
    }

    pub(crate) fn in_contact(&self) -> bool {
        self.status.lock().in_contact()
    }

    /// The time of the last contact with the server.
    pub(crate) fn last_contact(&self) -> Moment {
        self.status.lock().lease.last_contact()
    }

    pub(crate) fn events(&self) -> Option<&Arc<Events>> {
        self.events.get()
    }

    /// Sets the events of the session; those set before stay. Returns whether there were none.
    pub(crate) fn keep_events(&self, events: Arc<Events>) -> bool {
        self.events.set(events).is_ok()
    }

    pub(crate) fn report_present_contact(self: &Arc<Self>) {
        if self.in_contact() {
            self.report_contact();
        }
    }

    fn report_contact(self: &Arc<Self>) {
        self.report_event(|| Event::Connected(Arc::downgrade(self)));
    }

    pub(crate) fn client(&self) -> &dyn ZooKeeperClient {
        &*self.client
    }

    pub(crate) fn session_timeout(&self) -> Duration {
        self.status.lock().lease.session_timeout()
    }

    pub(crate) fn connection(&self) -> ConnectionNumber {
        self.status.lock().lease.connection()
    }

    /// When the present epoch of the lease ends.
    #[cfg(test)]
    pub(crate) fn lease_end(&self) -> Moment {
        self.status.lock().lease.end()
    }

    /// Takes a lock that was seen to be free on that connection, if it is still the present one and
    /// the lease admits owners. From then on the lease is kept proven, until the lock is
    /// [released](Core::release).
    pub(crate) fn admit(
        self: &Arc<Self>,
        owner: ParticipantId,
        ownership: &Ownership,
        connection: ConnectionNumber,
    ) -> Admission {
        self.change(|status, now| {
            let admission = status.lease.admit(owner, connection, now);
            if admission == Admission::Admitted {
                status.ownerships.add(owner, ownership);
                // A session that owned nothing had nothing due.
                if !status.proof_under_way && status.lease.keep_alive_due(self.min_idle_for_ping) <= now {
                    self.schedule_tick(status, now);
                }
                self.schedule_next_tick(status, now);
            }
            admission
        })
    }

    /// Has another request hold the lock as its owner does; `false` if that holds it no longer.
    pub(crate) fn share(&self, owner: ParticipantId, other: ParticipantId, ownership: &Ownership) -> bool {
        self.change(|status, now| {
            let is_held = status.lease.share(owner, other, now);
            if is_held {
                status.ownerships.add(other, ownership);
            }
            is_held
        })
    }

    /// Takes up that an owner's znode was seen on that connection; `false` if its lease has ended.
    pub(crate) fn renew(&self, owner: ParticipantId, connection: ConnectionNumber) -> bool {
        self.change(|status, now| status.lease.renew(owner, connection, now))
    }

    /// A request holds its lock no longer.
    pub(crate) fn release(&self, owner: ParticipantId) {
        self.change(|status, _now| status.lease.release(owner));
    }

    /// Whether a lock may be taken under the current epoch.
    pub(crate) fn admits_owners(&self) -> bool {
        self.status.lock().lease.admits_owners(self.runtime.now())
    }

    /// Whether no lock may be taken now, although one might be if a write were answered that is
    /// sent now.
    pub(crate) fn needs_proof(&self) -> bool {
        self.status.lock().lease.needs_proof(self.runtime.now())
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

    /// Blocks until one of the signals is ready, or until the deadline. Returns `false` at the
    /// deadline if none is ready.
    pub(crate) fn wait(&self, signals: &[&dyn Signal], deadline: Option<Moment>) -> bool {
        lock_order::assert_none_held();
        self.runtime.wait(signals, deadline)
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

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// What the requests of this session decide by. Not to be held during a call.
    pub(crate) fn engine(&self) -> EngineGuard<'_> {
        self.registry.engine()
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

    /// Sends the present state to a new subscriber; `false` if the receiver is gone.
    pub(super) fn announce_and_subscribe(&self, subscriber: Sender<SessionState>) -> bool {
        let mut status = self.status.lock();
        let listens = subscriber.send(status.announced()).is_ok();
        status.subscribe(subscriber);
        listens
    }

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

    /// See [`ZooKeeperClient::is_ordered`].
    pub(crate) fn is_ordered(&self) -> bool {
        self.client.is_ordered()
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

    /// Runs a call on a worker and waits for what it returns, but not beyond the end of the
    /// session.
    ///
    /// # Errors
    /// `SessionLost` or `Closed` if the session has ended, or ends meanwhile, whatever the outcome
    /// of the call.
    pub(crate) fn call<T: Send + 'static>(
        self: &Arc<Self>,
        operation: Operation,
        path: &ZNodePath,
        call: impl FnOnce(&Arc<Core>) -> T + Send + 'static,
    ) -> Result<T> {
        self.check_open(operation, path)?;
        let (answer, answered) = bounded(1);
        self.submit(move |core| drop(answer.send(call(core))));
        self.receive(operation, path, &answered)
    }

    /// Waits for the next answer of jobs that were submitted, but not beyond the end of the
    /// session.
    ///
    /// # Errors
    /// `SessionLost` or `Closed` when the session ends meanwhile.
    pub(crate) fn receive<T: Send + 'static>(
        &self,
        operation: Operation,
        path: &ZNodePath,
        answers: &Receiver<T>,
    ) -> Result<T> {
        self.wait(&[answers, &self.ended], None);
        answers.try_recv().map_err(|_| self.end_error(operation, path))
    }

    /// Fails if the session has ended, with the reason.
    pub(crate) fn check_open(&self, operation: Operation, path: &ZNodePath) -> Result<()> {
        if self.end_reason().is_some() { Err(self.end_error(operation, path)) } else { Ok(()) }
    }

    fn end_error(&self, operation: Operation, path: &ZNodePath) -> LockError {
        match self.end_reason() {
            Some(reason) => LockError::ended(operation, path, reason),
            // The job panicked before it answered, so its effect is unknown.
            None => LockError::client(operation, path, ZkError::ConnectionLoss),
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
}

/// What the client reports of its current connection.
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
