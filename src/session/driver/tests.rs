//! Tests of the core's calls to its client, and of the state that follows from contact and proofs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, TryRecvError, bounded};
use parking_lot::Mutex;

use super::calls::Outgoing;
use crate::client::KEEP_ALIVE_PATH;
use crate::client::{Acl, Call, ClientEvent, Done, EventSink, Granted, Permissions, ZooKeeperClient};
use crate::error::{Operation, ZkError};
use crate::fake::{Effect, SimOperation, SimulatedClient, SimulatedZooKeeper};
use crate::recipe::path::ZNodePath;
use crate::session::{FirstContact, MAX_CLOSE_SILENCE, MAX_CLOSE_WAIT};
use crate::tests::{
    ManualRuntime, Wrapped, deadline, in_background, logged, next, open_on_manual_runtime, open_wrapped,
    open_wrapped_on_manual_runtime,
};
use crate::time::{Moment, Runtime};
use crate::{BlockingWriteLock, LossReason, Session, SessionState};

mod pings;
mod requests;

/// A client that loses contact while a session subscribes to its events.
struct LosesContact(Arc<SimulatedClient>);

impl Wrapped for LosesContact {
    fn simulated(&self) -> &Arc<SimulatedClient> {
        &self.0
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        let in_contact = self.0.subscribe(sink);
        self.0.disconnect();
        in_contact
    }
}

#[test]
fn contact_lost_during_subscription_is_noticed() {
    let simulated = SimulatedZooKeeper::new().connect(Duration::from_secs(1));
    let refused = open_wrapped(Arc::new(LosesContact(simulated)));
    assert!(refused.is_err(), "no session is opened without contact: {refused:?}");
}

/// A client that loses and regains contact during the subscription, which takes some time.
struct SubscribesSlowly {
    simulated: Arc<SimulatedClient>,
    runtime: Arc<ManualRuntime>,
}

impl SubscribesSlowly {
    const TIME: Duration = Duration::from_secs(3);
}

impl Wrapped for SubscribesSlowly {
    fn simulated(&self) -> &Arc<SimulatedClient> {
        &self.simulated
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        let in_contact = self.simulated.subscribe(sink);
        self.simulated.disconnect();
        self.simulated.reconnect();
        self.runtime.advance(Self::TIME);
        in_contact
    }
}

#[test]
fn a_reconnect_during_subscription_counts_from_its_own_disconnect() {
    let runtime = Arc::new(ManualRuntime::default());
    let simulated = SimulatedZooKeeper::new().connect(TIMEOUT);
    simulated.grant(Granted::new(TIMEOUT));
    let opened = runtime.now();
    simulated.run_on(&(Arc::clone(&runtime) as Arc<dyn Runtime>));
    let client = Arc::new(SubscribesSlowly { simulated, runtime: Arc::clone(&runtime) });
    let contact = FirstContact::by(opened, TIMEOUT, "the simulation");
    let session = Session::open(Ok(client), runtime, None, contact).unwrap();
    let _guard = BlockingWriteLock::new(&session, "/lock").unwrap().lock().unwrap();
    let end = session.core().lease_end();
    assert!(opened < end && end <= opened.after(TIMEOUT), "the lease ends after {:?}", end.since(opened));
}

#[test]
fn session_of_unknown_age_opens_before_its_lease_is_proven() {
    let zookeeper = SimulatedZooKeeper::new();
    let client = zookeeper.connect(Duration::from_secs(3600));
    client.grant(Granted::new(Duration::from_secs(3600)));
    let begun = Instant::now();
    let session = client.open_session().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(600), "{:?}", begun.elapsed());
    assert_eq!(session.state(), SessionState::Connected);
}

const TIMEOUT: Duration = Duration::from_secs(8);

#[test]
fn end_of_a_lease_that_was_seen_is_final_whatever_proof_is_being_taken_up() {
    let zookeeper = SimulatedZooKeeper::new();
    let (client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
    let guard = Arc::new(BlockingWriteLock::new(&session, "/locks/it").unwrap().lock().unwrap());
    let has_ended = Arc::new(AtomicBool::new(false));
    // The thread that handles the reply to a keep-alive is paused after it has read the clock.
    let (clock, seen, ended) = (Arc::clone(&runtime), Arc::clone(&guard), Arc::clone(&has_ended));
    client.after_next(SimOperation::SetData, move || {
        let reader = Arc::clone(&clock);
        clock.after_next_reading(move || {
            reader.suspend(seen.lease_remaining());
            assert!(!seen.is_owner());
            ended.store(true, Ordering::Relaxed);
        });
    });
    while !has_ended.load(Ordering::Relaxed) {
        runtime.advance(TIMEOUT / 64);
    }
    assert!(!guard.is_owner(), "the lease has ended");
    assert_eq!(guard.lost().try_recv(), Ok(LossReason::LeaseExpired));
    assert_eq!(guard.lease_remaining(), Duration::ZERO);
}

#[test]
fn grant_of_a_reconnect_shortens_the_leases_after_it_and_lengthens_none() {
    for (timeout, counts) in [(TIMEOUT / 2, TIMEOUT / 2), (2 * TIMEOUT, TIMEOUT)] {
        let zookeeper = SimulatedZooKeeper::new();
        let (client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
        // The lease is kept proven for an owner.
        let _guard = BlockingWriteLock::new(&session, "/lock").unwrap().lock().unwrap();
        client.disconnect();
        client.grant(Granted::new(timeout).with_report_delay(Duration::ZERO));
        client.reconnect();
        for _ in 0..8 {
            runtime.advance(counts / 4);
        }
        assert_eq!(session.session_timeout(), counts);
        let core = session.core();
        let lease = core.lease_end().since(runtime.now());
        assert!(counts / 2 < lease && lease <= counts, "{lease:?} of {counts:?}");
    }
}

#[test]
fn close_disconnects_the_state_channels_even_after_a_loss() {
    for is_lost in [false, true] {
        let client = SimulatedZooKeeper::new().connect(TIMEOUT);
        let session = client.open_session().unwrap();
        let states = session.subscribe();
        if is_lost {
            client.expire();
            assert_eq!(next(&states), SessionState::Lost);
        }
        session.close();
        assert_eq!(states.recv_timeout(deadline()), Err(RecvTimeoutError::Disconnected), "lost: {is_lost}");
        assert_eq!(session.subscribe().try_recv(), Err(TryRecvError::Disconnected), "lost: {is_lost}");
    }
}

/// A server with `enableEagerACLCheck` denies a write without asking the leader.
#[test]
fn denied_write_proves_nothing() {
    let zookeeper = SimulatedZooKeeper::new();
    let (client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
    for denial in [ZkError::NoAuth, ZkError::InvalidAcl] {
        runtime.advance(Duration::from_millis(100));
        let end = session.core().lease_end();
        client.fail_next(SimOperation::Delete, Effect::Before, denial);
        let denied = session.core().ask(Call::delete("/a", None));
        assert_eq!((denied, session.core().lease_end()), (Err(denial), end));
        session.core().ask(Call::delete("/a", None)).unwrap_err();
        assert!(session.core().lease_end() > end, "the leader has answered that the znode is missing");
    }
}

#[test]
fn session_is_kept_alive_where_the_keep_alive_is_denied() {
    let zookeeper = SimulatedZooKeeper::new();
    zookeeper.create_with_acl(KEEP_ALIVE_PATH, b"", &[Acl::new(Permissions::NONE, "world", "anyone")]);
    let (_client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
    let states = session.subscribe();
    while runtime.elapsed() < 3 * TIMEOUT {
        runtime.advance(Duration::from_millis(100));
    }
    assert_eq!((session.state(), states.try_iter().count()), (SessionState::Connected, 0));
}

#[test]
fn lock_is_acquired_where_the_read_that_proves_contact_is_denied() {
    let zookeeper = SimulatedZooKeeper::new();
    zookeeper.create_with_acl(KEEP_ALIVE_PATH, b"", &[Acl::new(Permissions::NONE, "world", "anyone")]);
    let client = zookeeper.connect(TIMEOUT);
    client.grant(Granted::new(TIMEOUT).with_report_delay(TIMEOUT / 8));
    let runtime = Arc::new(ManualRuntime::default());
    let session = client.open_session_on(|| Ok(runtime)).unwrap();
    let _guard = BlockingWriteLock::new(&session, "/lock").unwrap().lock().unwrap();
    assert!(zookeeper.calls(SimOperation::Exists) > 0, "{:?}", zookeeper.log());
}

#[test]
fn pending_deletion_makes_no_calls_without_contact() {
    let zookeeper = SimulatedZooKeeper::new();
    let (client, runtime, session) = open_on_manual_runtime(&zookeeper, TIMEOUT);
    let guard = BlockingWriteLock::new(&session, "/lock").unwrap().lock().unwrap();
    client.disconnect();
    drop(guard);
    assert_eq!(zookeeper.calls(SimOperation::Delete), 1, "the deletion that failed");
    zookeeper.clear_log();
    for _ in 0..10 {
        runtime.advance(TIMEOUT / 16);
    }
    assert!(zookeeper.log().is_empty(), "{:?}", zookeeper.log());
    client.reconnect();
    assert!(zookeeper.children("/lock").is_empty());
}

#[test]
fn close_without_contact_does_not_wait_for_the_server() {
    let zookeeper = SimulatedZooKeeper::new();
    let client = zookeeper.connect(Duration::from_secs(30));
    let session = client.open_session().unwrap();
    client.disconnect();
    // The session gets no further events, and its client cannot be closed.
    client.subscribe(Arc::new(|_| {}));
    client.reconnect();
    client.swallow();
    let begun = Instant::now();
    session.close();
    assert!(begun.elapsed() < MAX_CLOSE_SILENCE, "{:?}", begun.elapsed());
    client.release();
}

#[test]
fn random_numbers_are_between_0_and_1_and_differ() {
    let session = SimulatedZooKeeper::new().connect(TIMEOUT).open_session().unwrap();
    let drawn: Vec<f64> = (0..100).map(|_| session.core().random_unit()).collect();
    assert!(drawn.iter().all(|number| (0.0..=1.0).contains(number)), "{drawn:?}");
    assert!(
        drawn.iter().any(|number| *number < 0.5) && drawn.iter().any(|number| *number > 0.5),
        "{drawn:?}"
    );
}

#[test]
fn panicking_call_has_an_unknown_outcome() {
    let client = SimulatedZooKeeper::new().connect(Duration::from_secs(30));
    let session = client.open_session().unwrap();
    let path = ZNodePath::parse("/a").unwrap();
    // `resume_unwind` does not call the panic hook, which would print a message.
    client.before_next(SimOperation::Exists, || std::panic::resume_unwind(Box::new("on purpose")));
    let error = session.core().call(Operation::LOCK, &path, Call::exists("/a", false)).unwrap_err();
    assert!(error.is_connection_loss(), "{error}");
}

/// A client that panics when it is called or is asked to remove a watch.
struct Panics(Arc<SimulatedClient>);

impl Wrapped for Panics {
    fn simulated(&self) -> &Arc<SimulatedClient> {
        &self.0
    }

    fn submit(&self, call: Call, done: Done) {
        match call.path() == Some("/panics") {
            true => std::panic::resume_unwind(Box::new("on purpose")),
            false => self.0.submit(call, done),
        }
    }

    fn remove_watches(&self, _path: &str) {
        std::panic::resume_unwind(Box::new("on purpose"));
    }
}

#[test]
fn line_about_a_panic_of_the_client_says_what_is_unknown() {
    let client = Panics(SimulatedZooKeeper::new().connect(TIMEOUT));
    let (_runtime, session) = open_wrapped_on_manual_runtime(Arc::new(client));
    let core = session.core();
    let of_call = logged(|| assert!(core.ask(Call::exists("/panics", false)).is_err()));
    assert_eq!(of_call, ["the ZooKeeper client panicked, so the outcome of a call is unknown: on purpose"]);
    core.outbox.post(Outgoing::RemoveWatch(ZNodePath::parse("/a").unwrap()));
    let of_removal = logged(|| core.feed(|_| ()));
    assert_eq!(of_removal, ["the ZooKeeper client panicked, so a watch may stay on the server: on purpose"]);
}

/// A client that holds back all calls until it loses its connection. Then it answers the first call, and refuses later
/// ones on the thread that submits them.
struct RefusesAtOnce {
    simulated: Arc<SimulatedClient>,
    held: Mutex<Vec<Done>>,
    refuses: AtomicBool,
    /// The addresses of a variable on the stack at each refusal.
    depths: Mutex<Vec<usize>>,
}

impl Wrapped for RefusesAtOnce {
    fn simulated(&self) -> &Arc<SimulatedClient> {
        &self.simulated
    }

    fn submit(&self, call: Call, done: Done) {
        if call.path() != Some("/held") {
            return self.simulated.submit(call, done);
        }
        if !self.refuses.load(Ordering::Relaxed) {
            return self.held.lock().push(done);
        }
        let on_stack = 0_u8;
        self.depths.lock().push(std::ptr::from_ref(&on_stack).addr());
        done.finish(Err(ZkError::ConnectionLoss));
    }
}

#[test]
fn client_that_refuses_many_waiting_calls_uses_little_stack() {
    let client = Arc::new(RefusesAtOnce {
        simulated: SimulatedZooKeeper::new().connect(TIMEOUT),
        held: Mutex::default(),
        refuses: AtomicBool::new(false),
        depths: Mutex::default(),
    });
    let (_runtime, session) = open_wrapped_on_manual_runtime(client.clone());
    let core = session.core();
    let answers: Vec<_> = (0..1000).map(|_| core.begin_ask(Call::exists("/held", false), ())).collect();
    client.refuses.store(true, Ordering::Relaxed);
    let held = std::mem::take(&mut *client.held.lock());
    assert!(held.len() < 900, "{} of the calls did not have to wait", held.len());
    held.into_iter().for_each(|done| done.finish(Err(ZkError::ConnectionLoss)));
    assert!(answers.iter().all(|answer| answer.get() == Some(Err(ZkError::ConnectionLoss))));
    let depths = client.depths.lock();
    let (least, most) = (depths.iter().min().unwrap(), depths.iter().max().unwrap());
    assert!(depths.len() > 100 && most - least < 16 * 1024, "{} calls, {} bytes", depths.len(), most - least);
}

#[test]
fn reply_that_is_lost_with_the_session_is_no_connection_loss() {
    let client = SimulatedZooKeeper::new().connect(Duration::from_secs(30));
    let session = client.open_session().unwrap();
    let core = session.core();
    client.fail_next(SimOperation::Exists, Effect::Before, ZkError::ConnectionLoss);
    let answer = core.begin_ask(Call::exists("/a", false), ());
    assert!(core.wait(&[answer.latch()], None));
    session.close();
    assert_eq!(answer.wait(&core).unwrap_err(), ZkError::SessionExpired);
}

#[test]
fn close_returns_after_the_server_has_ended_the_session() {
    let zookeeper = SimulatedZooKeeper::new();
    let client = zookeeper.connect(Duration::from_secs(30));
    let session = client.open_session().unwrap();
    let (returned, has_returned) = bounded(1);
    client.before_next(SimOperation::Close, move || {
        // By then, a close that does not wait would have returned.
        let _ = has_returned.recv_timeout(MAX_CLOSE_SILENCE / 10);
    });
    let left = in_background(move || {
        session.close();
        let left = zookeeper.sessions().len();
        let _ = returned.send(());
        left
    });
    assert_eq!(next(&left), 0);
}

/// A client whose close takes a while. Meanwhile, the server answers pings.
struct SlowToClose {
    simulated: Arc<SimulatedClient>,
    time: Duration,
    sink: Mutex<Option<EventSink>>,
}

impl Wrapped for SlowToClose {
    fn simulated(&self) -> &Arc<SimulatedClient> {
        &self.simulated
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        *self.sink.lock() = Some(Arc::clone(&sink));
        self.simulated.subscribe(sink)
    }

    fn close(&self) {
        let sink = self.sink.lock().take().unwrap();
        let ticks = crossbeam_channel::tick(MAX_CLOSE_SILENCE / 10);
        let end = Instant::now() + self.time;
        for _ in ticks.iter().take_while(|now| *now < end) {
            sink(ClientEvent::PingAnswered { sent: Moment::now() });
        }
        self.simulated.close();
    }
}

#[test]
fn close_waits_while_the_server_answers_but_no_longer_than_its_limit() {
    let close_that_takes = |time: Duration| {
        let simulated = SimulatedZooKeeper::new().connect(Duration::from_secs(30));
        let client = SlowToClose { simulated, time, sink: Mutex::default() };
        let session = open_wrapped(Arc::new(client)).unwrap();
        let begun = Instant::now();
        session.close();
        begun.elapsed()
    };
    let longer_than_a_silence = MAX_CLOSE_SILENCE * 3 / 2;
    let limited = in_background(move || close_that_takes(2 * MAX_CLOSE_WAIT));
    assert!(close_that_takes(longer_than_a_silence) >= longer_than_a_silence);
    let limited = next(&limited);
    assert!((MAX_CLOSE_WAIT..2 * MAX_CLOSE_WAIT).contains(&limited), "{limited:?}");
}
