//! The replacement of a lost session. Waiting requests are made again on the next session.
//!
//! Replacement is off by default, because the application must decide whether to carry on after a loss. If it is on,
//! trackers continue on the next session as well.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_channel::Sender;

use super::driver::Core;
use super::{FirstContact, Handle, SessionState, check_timeout, open_core};
use crate::client::ZooKeeperClient;
use crate::engine::SessionEnd;
use crate::error::{LockError, Result};
use crate::external::External;
use crate::lock_order::{Mutex, rank::REPLACEMENT};
use crate::logging;
use crate::panics::contain;
use crate::time::{Outage, Runtime};
use crate::wait::CancelToken;

/// The delay after the first failure of the factory. It doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest delay between two attempts. A server that comes back is found within this time.
const MAX_PAUSE: Duration = Duration::from_secs(3);

/// The minimum number of followers at which dropped ones are removed.
const MIN_SWEPT: usize = 16;

/// Connects a client for a session with this runtime, unless the token is cancelled before that.
type Connect = dyn Fn(&Arc<dyn Runtime>, &CancelToken) -> Result<Arc<dyn ZooKeeperClient>> + Send + Sync;

/// Creates what each new session runs on: first the runtime, then the client.
pub(crate) struct Factory {
    runtime: Box<dyn Fn() -> Result<Arc<dyn Runtime>> + Send + Sync>,
    client: Box<Connect>,
    /// The outage that locks on each session should survive; `None` for the default.
    survived_outage: Option<Duration>,
}

impl Factory {
    pub(crate) fn new(
        runtime: impl Fn() -> Result<Arc<dyn Runtime>> + Send + Sync + 'static,
        client: impl Fn(&Arc<dyn Runtime>, &CancelToken) -> Result<Arc<dyn ZooKeeperClient>>
        + Send
        + Sync
        + 'static,
    ) -> Factory {
        Factory { runtime: Box::new(runtime), client: Box::new(client), survived_outage: None }
    }

    /// Sets the outage that locks on each session should survive; `None` for the default.
    pub(super) fn with_survived_outage(self, outage: Option<Duration>) -> Factory {
        Factory { survived_outage: outage, ..self }
    }
}

/// Follows a session and, after a loss, continues on the next one.
pub(crate) trait OnNewSession: Send + Sync {
    fn new_session(&self);

    /// Called when the session has been closed, so no other session will follow. May be called several times, and while
    /// the last session is still alive.
    fn closed(&self) {}
}

/// The state that the handles of a session share if the session is replaced after a loss.
pub(crate) struct Replacement {
    /// Cancelled when the session is closed. This ends the replacing thread's wait for a loss, its attempts to connect,
    /// and its pauses between them.
    closed: CancelToken,
    state: Mutex<REPLACEMENT, Sharing>,
}

struct Sharing {
    subscribers: Vec<Sender<SessionState>>,
    followers: Vec<Weak<dyn OnNewSession>>,
    /// Once there are this many followers, dropped ones are removed.
    sweep_at: usize,
}

impl Replacement {
    pub(super) fn new() -> Replacement {
        let (subscribers, followers) = (Vec::new(), Vec::new());
        let state = Sharing { subscribers, followers, sweep_at: MIN_SWEPT };
        Replacement { closed: CancelToken::new(), state: Mutex::new(state) }
    }

    pub(super) fn close(&self) {
        let followers = {
            let mut state = self.state.lock();
            self.closed.cancel();
            state.subscribers.clear();
            state.live_followers()
        };
        for follower in followers {
            follower.closed();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// The token that is cancelled when the session is closed.
    pub(super) fn closed(&self) -> CancelToken {
        self.closed.clone()
    }

    pub(super) fn subscribe(&self, subscriber: Sender<SessionState>) {
        let mut state = self.state.lock();
        if !self.is_closed() {
            state.subscribers.push(subscriber);
        }
    }

    /// See [`Session::follow`](super::Session::follow).
    pub(super) fn follow(&self, follower: Weak<dyn OnNewSession>) {
        let is_closed = {
            let mut state = self.state.lock();
            state.add_follower(Weak::clone(&follower));
            self.is_closed()
        };
        if let Some(follower) = follower.upgrade().filter(|_| is_closed) {
            follower.closed();
        }
    }

    fn replaced(&self, core: &Core) {
        let followers = {
            let mut state = self.state.lock();
            state.subscribers.retain(|subscriber| core.announce_and_subscribe(subscriber.clone()));
            state.live_followers()
        };
        for follower in followers {
            follower.new_session();
        }
    }
}

impl Sharing {
    fn add_follower(&mut self, follower: Weak<dyn OnNewSession>) {
        if self.followers.len() >= self.sweep_at {
            self.followers.retain(|follower| follower.strong_count() > 0);
            // Doubled, because otherwise each new follower could cause a search through thousands.
            self.sweep_at = MIN_SWEPT.max(2 * self.followers.len());
        }
        self.followers.push(follower);
    }

    fn live_followers(&self) -> Vec<Arc<dyn OnNewSession>> {
        self.followers.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Creates a core on a new client, unless `closed` is cancelled before that.
pub(super) fn make(factory: &Factory, closed: &CancelToken) -> Result<Arc<Core>> {
    let runtime = (factory.runtime)()?;
    let mut taken = None;
    let made = contain(|| make_on(&runtime, factory, closed, &mut taken));
    made.unwrap_or_else(|message| {
        // No session uses the client, so nobody else closes it.
        if let Some(client) = &taken {
            drop(client.call(|client| client.close()));
        }
        runtime.shut_down();
        let tried = format!("the client of the factory (a panic: {message})");
        Err(LockError::no_server(tried, Duration::ZERO))
    })
}

fn make_on(
    runtime: &Arc<dyn Runtime>,
    factory: &Factory,
    closed: &CancelToken,
    taken: &mut Option<External<Arc<dyn ZooKeeperClient>>>,
) -> Result<Arc<Core>> {
    let opened_after = Some(runtime.now());
    let client = (factory.client)(runtime, closed).and_then(|client| {
        // Wrapped first, so that this is the last handle to the client, whatever fails later.
        let client = &**taken.insert(External::new("a ZooKeeper client", client, runtime));
        check_timeout(client.granted().session_timeout).inspect_err(|_| client.close())?;
        Ok(client.clone())
    });
    let wait = client.as_ref().map_or(Duration::ZERO, |client| client.granted().session_timeout);
    let contact = FirstContact::by(runtime.now(), wait, "the client of the factory");
    let contact = FirstContact { cancelled: closed.latch().clone(), ..contact };
    let core = open_core(client, Arc::clone(runtime), opened_after, contact)?;
    if let Some(outage) = factory.survived_outage {
        core.set_survived_outage(outage);
    }
    Ok(core)
}

/// Starts the thread that replaces each lost core, until the handle is closed or dropped.
pub(super) fn start(
    handle: &Arc<Handle>,
    core: Arc<Core>,
    factory: Factory,
    closed: CancelToken,
) -> Result<()> {
    let handle = Arc::downgrade(handle);
    let runtime = Arc::clone(core.runtime());
    let factory = External::new("a factory of ZooKeeper clients", factory, &runtime);
    let body = Box::new(move || {
        let mut core = core;
        while let Some(next) = replace_when_lost(&handle, &core, &factory, &closed) {
            core = next;
        }
    });
    runtime.spawn("zk-lock-replacement", body).map_err(LockError::thread)
}

/// Waits until the core is lost, and returns its replacement, or `None` if there will be none.
fn replace_when_lost(
    handle: &Weak<Handle>,
    lost: &Arc<Core>,
    factory: &Factory,
    closed: &CancelToken,
) -> Option<Arc<Core>> {
    lost.wait(&[lost.ended(), closed.latch()], None);
    let (mut outage, lost_at) = (Outage::default(), lost.snapshot().last_contact);
    outage.begin(lost_at);
    let mut failures = 0;
    // A close ends the session, too, so both latches may be set.
    while !closed.is_cancelled() {
        let error = match make(factory, closed) {
            Ok(core) => return install(handle, lost, core, outage.end(lost.now())),
            // The error may contain a value of the application.
            Err(error) => External::new("an error of a factory", error, lost.runtime()),
        };
        if closed.is_cancelled() {
            break;
        }
        failures += 1;
        let now = lost.now();
        let level = if outage.mention(now).is_some() { log::Level::Warn } else { log::Level::Debug };
        let elapsed = now.since(lost_at);
        logging::log!(level, "no ZooKeeper session for {} s: {}", elapsed.as_secs(), *error);
        let pause = pause_after(failures, lost.random_unit());
        lost.wait(&[closed.latch()], Some(lost.now().after(pause)));
    }
    None
}

/// Returns how long to wait after this many failures. `chance` selects a time between half of the delay and all of it.
/// This keeps clients that lost their sessions at the same time from reconnecting at the same time.
fn pause_after(failures: u32, chance: f64) -> Duration {
    let full = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(failures - 1)).min(MAX_PAUSE);
    full.mul_f64(0.5 + chance / 2.0)
}

/// Installs the new core. `outage` is how long there was no contact, if the outage was logged.
fn install(
    handle: &Weak<Handle>,
    lost: &Arc<Core>,
    core: Arc<Core>,
    outage: Option<Duration>,
) -> Option<Arc<Core>> {
    lost.pass_orphans_to(&core);
    let replaced = handle.upgrade().filter(|handle| handle.replace(Arc::clone(&core)));
    let Some(handle) = replaced else {
        // The session was closed or dropped while the factory was running.
        core.end(SessionEnd::Closed);
        return None;
    };
    let after = outage.map(|outage| format!(", after {outage:.1?} without contact")).unwrap_or_default();
    logging::info!("a new ZooKeeper session replaces the lost one{after}");
    core.deliver_events();
    // A guard that is still held may keep the lost session alive, which must not keep the channels connected.
    lost.disconnect_subscribers();
    handle.replacement.as_ref()?.replaced(&core);
    Some(core)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorReason, LossReason};
    use std::panic::resume_unwind;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use crossbeam_channel::{RecvTimeoutError, unbounded};

    use crate::client::EventSink;
    use crate::fake::{SimOperation, SimulatedClient, SimulatedZooKeeper};
    use crate::locks::LockEvent;
    use crate::session::Threads;
    use crate::tests::{
        Wrapped, await_replacement, deadline, eventually, next, replacing_session, session_by_factory,
    };
    use crate::{BlockingWriteLock, Session, WriteLock};

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn a_session_that_is_dropped_or_closed_while_the_factory_is_at_work_leaves_nothing_open() {
        for closed in [false, true] {
            let server = SimulatedZooKeeper::new();
            let (made, clients) = unbounded();
            let (go, may_go) = unbounded();
            let of_factory = server.clone();
            go.send(()).unwrap();
            let session = session_by_factory(move || {
                let client = of_factory.connect(LONG);
                let _ = made.send(Arc::clone(&client));
                let _ = may_go.recv_timeout(deadline());
                Ok(client)
            });
            let session = session.unwrap();
            next(&clients).expire();
            let second = next(&clients);
            if closed {
                session.close();
            }
            // Unless it was closed, the session is dropped here, while the factory is still at work.
            let _held = closed.then_some(session);
            go.send(()).unwrap();
            eventually("the second session is closed", || !server.sessions().contains(&second.session_id()));
            assert_eq!(server.calls(SimOperation::Close), 1);
        }
    }

    /// A client that has no contact is awaited for its session timeout, but not after the session was closed.
    #[test]
    fn a_session_that_is_dropped_or_closed_while_a_client_has_no_contact_does_not_wait_for_it() {
        for closed in [false, true] {
            let (server, number) = (SimulatedZooKeeper::new(), AtomicUsize::new(0));
            let (made, clients) = unbounded();
            let session = session_by_factory(move || {
                let client = server.connect(Duration::from_secs(3600));
                if number.fetch_add(1, Ordering::SeqCst) > 0 {
                    client.disconnect();
                }
                made.send(Arc::downgrade(&client)).unwrap();
                Ok(client)
            });
            let session = session.unwrap();
            next(&clients).upgrade().unwrap().expire();
            let second = next(&clients);
            if closed {
                session.close();
            } else {
                drop(session);
            }
            eventually("the second client is dropped", || second.upgrade().is_none());
        }
    }

    /// Counts the new sessions that it is notified of.
    #[derive(Default)]
    struct Counts(AtomicUsize);

    impl OnNewSession for Counts {
        fn new_session(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn every_follower_is_notified_and_those_that_were_dropped_are_forgotten() {
        let server = SimulatedZooKeeper::new();
        let (session, clients) = replacing_session(&server, LONG);
        let mut kept: Vec<Arc<Counts>> = Vec::new();
        for number in 0..20 * MIN_SWEPT {
            let follower = Arc::new(Counts::default());
            let weak: Weak<Counts> = Arc::downgrade(&follower);
            session.follow(weak);
            if number % 10 == 0 {
                kept.push(follower);
            }
        }
        let known = session.replacement().unwrap().state.lock().followers.len();
        assert!(known <= 2 * kept.len() + MIN_SWEPT, "{known}");
        await_replacement(&session, || next(&clients).expire());
        eventually("all are notified", || kept.iter().all(|kept| kept.0.load(Ordering::SeqCst) == 1));
    }

    #[test]
    fn a_follower_that_comes_after_the_close_is_notified_of_it_at_once() {
        struct Closed(AtomicUsize);

        impl OnNewSession for Closed {
            fn new_session(&self) {}

            fn closed(&self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }

        let (session, _clients) = replacing_session(&SimulatedZooKeeper::new(), LONG);
        session.close();
        let follower = Arc::new(Closed(AtomicUsize::new(0)));
        let weak: Weak<Closed> = Arc::downgrade(&follower);
        session.follow(weak);
        assert_eq!(follower.0.load(Ordering::SeqCst), 1);
    }

    /// Closes the session as soon as it has been replaced.
    struct ClosesNext(Session);

    impl OnNewSession for ClosesNext {
        fn new_session(&self) {
            self.0.close();
        }
    }

    #[test]
    fn close_by_a_follower_that_is_notified_of_the_new_session_leaves_nothing_open() {
        let server = SimulatedZooKeeper::new();
        let (session, clients) = replacing_session(&server, LONG);
        let follower: Arc<dyn OnNewSession> = Arc::new(ClosesNext(session.clone()));
        session.follow(Arc::downgrade(&follower));
        next(&clients).expire();
        next(&clients);
        eventually("the second session is closed", || server.sessions().is_empty());
        assert_eq!(session.state(), SessionState::Lost);
    }

    #[test]
    fn a_request_is_dropped_once_if_the_session_is_closed_while_it_is_replaced() {
        let server = SimulatedZooKeeper::new();
        let (session, clients) = replacing_session(&server, LONG);
        server.create("/locks/it", b"");
        server.create_sequential("/locks/it", "x-other-lock-", None);
        // The follower is notified of the new session before the lock is.
        let follower: Arc<dyn OnNewSession> = Arc::new(ClosesNext(session.clone()));
        session.follow(Arc::downgrade(&follower));
        let (reporting, reports) = unbounded();
        let lock = WriteLock::with_listener(&session, "/locks/it", reporting).unwrap();
        assert!(!lock.lock().unwrap());
        next(&clients).expire();
        assert_eq!(next(&reports), LockEvent::Dropped(LossReason::Closed));
        eventually("every session is closed", || server.sessions().is_empty());
        drop((lock, follower, session));
        assert_eq!(reports.iter().collect::<Vec<_>>(), []);
    }

    #[test]
    fn close_at_any_moment_of_a_replacement_leaves_nothing_open() {
        let server = SimulatedZooKeeper::new();
        for round in 0..300 {
            let (session, clients) = replacing_session(&server, LONG);
            next(&clients).expire();
            // The delay grows with each round, so the session is closed at moments that range from before the factory
            // is called to after the new session is installed.
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(2 * round) {
                std::hint::spin_loop();
            }
            session.close();
            // The replacing thread owns the factory. Keep the last handle until that thread has ended.
            while clients.recv_timeout(deadline()).is_ok() {}
            eventually("every session is closed", || server.sessions().is_empty());
            assert_eq!(session.state(), SessionState::Lost);
        }
    }

    #[test]
    fn a_factory_is_held_to_the_bounds_of_a_session_timeout() {
        let server = SimulatedZooKeeper::new();
        for timeout in [Duration::from_millis(99), Duration::from_millis(u64::MAX)] {
            let server = server.clone();
            let refused = session_by_factory(move || Ok(server.connect(timeout)));
            assert!(
                matches!(refused, Err(ref error) if error.reason() == ErrorReason::InvalidArgument),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn pauses_between_tries_double_up_to_a_few_seconds() {
        let millis: Vec<_> = (1..=7).map(|failures| pause_after(failures, 1.0).as_millis()).collect();
        assert_eq!(millis, [100, 200, 400, 800, 1600, 3000, 3000]);
        assert_eq!(pause_after(u32::MAX, 1.0), MAX_PAUSE);
        assert_eq!(pause_after(3, 0.0), pause_after(3, 1.0) / 2);
    }

    /// A client that panics when a session subscribes to its events.
    struct Panicking(Arc<SimulatedClient>);

    impl Wrapped for Panicking {
        fn simulated(&self) -> &Arc<SimulatedClient> {
            &self.0
        }

        fn subscribe(&self, _sink: EventSink) -> bool {
            resume_unwind(Box::new("on purpose"))
        }
    }

    #[test]
    fn a_factory_is_asked_again_if_it_panics_or_its_client_does() {
        let server = SimulatedZooKeeper::new();
        let (made, clients) = unbounded();
        let calls = AtomicUsize::new(0);
        let of_factory = server.clone();
        let runtime = || Ok(Threads::start()? as Arc<dyn Runtime>);
        let client = move |_: &Arc<dyn Runtime>, _: &CancelToken| -> Result<Arc<dyn ZooKeeperClient>> {
            let connect = || of_factory.connect(LONG);
            match calls.fetch_add(1, Ordering::SeqCst) {
                1 => resume_unwind(Box::new("on purpose")),
                2 => Ok(Arc::new(Panicking(connect()))),
                3 => Ok(of_factory.connect(Duration::from_nanos(1))),
                _ => {
                    let client = connect();
                    let _ = made.send(Arc::clone(&client));
                    Ok(client)
                }
            }
        };
        let session = Session::open_replaced(Factory::new(runtime, client)).unwrap();
        let changes = session.subscribe();
        next(&clients).expire();
        assert_eq!(next(&changes), SessionState::Lost);
        assert_eq!(next(&changes), SessionState::Connected);
        assert_eq!(server.sessions().len(), 1, "clients on which no session was made are closed");
        session.core().end(SessionEnd::Closed);
    }

    #[test]
    fn close_disconnects_the_state_channels_although_a_guard_keeps_a_lost_session() {
        let server = SimulatedZooKeeper::new();
        let (made, clients) = unbounded();
        let session = session_by_factory(move || {
            let client = server.connect(LONG);
            let _ = made.send(Arc::clone(&client));
            Ok(client)
        });
        let session = session.unwrap();
        let states = session.subscribe();
        let _lost = BlockingWriteLock::new(&session, "/locks/a").unwrap().lock().unwrap();
        next(&clients).expire();
        assert_eq!(next(&states), SessionState::Lost);
        assert_eq!(next(&states), SessionState::Connected);
        session.close();
        assert_eq!(states.recv_timeout(deadline()), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_subscription_during_a_replacement_reports_each_change_once() {
        let server = SimulatedZooKeeper::new();
        let client = server.connect(LONG);
        let session = client.open_session().unwrap();
        let core = session.core();
        let replacement = Replacement::new();
        let (subscriber, changes) = unbounded();
        // What `Session::subscribe` does if it is called between the installation of the new core and the notification
        // of the subscribers.
        replacement.subscribe(subscriber.clone());
        core.subscribe(subscriber);
        replacement.replaced(&core);
        assert_eq!(changes.try_iter().collect::<Vec<_>>(), [SessionState::Connected]);
        client.disconnect();
        assert_eq!(changes.try_iter().collect::<Vec<_>>(), [SessionState::Suspended]);
    }
}
