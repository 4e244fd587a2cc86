//! Tests of a session's writes and states between its pings.

use super::*;
use crate::WriteLock;

/// A client that makes each call on the thread that submits it, and reports pings on command.
struct PingingClient {
    simulated: Arc<SimulatedClient>,
    sink: Mutex<Option<EventSink>>,
}

impl Wrapped for PingingClient {
    fn simulated(&self) -> &Arc<SimulatedClient> {
        &self.simulated
    }

    fn submit(&self, call: Call, done: Done) {
        done.finish(self.simulated.call(&call));
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        *self.sink.lock() = Some(Arc::clone(&sink));
        self.simulated.subscribe(sink)
    }
}

struct Fixture {
    zookeeper: SimulatedZooKeeper,
    client: Arc<PingingClient>,
    runtime: Arc<ManualRuntime>,
    session: Session,
}

impl Fixture {
    fn new() -> Fixture {
        let zookeeper = SimulatedZooKeeper::new();
        let simulated = zookeeper.connect(TIMEOUT);
        simulated.grant(Granted::new(TIMEOUT).with_tick(TIMEOUT / 4));
        let runtime = Arc::new(ManualRuntime::default());
        let client = Arc::new(PingingClient { simulated, sink: Mutex::default() });
        let contact = FirstContact::by(runtime.now(), TIMEOUT, "the simulation");
        let session = Session::open(Ok(client.clone()), runtime.clone(), Some(runtime.now()), contact);
        Fixture { zookeeper, client, runtime, session: session.unwrap() }
    }

    fn emit(&self, event: ClientEvent) {
        let sink = self.client.sink.lock().clone().unwrap();
        sink(event);
    }

    fn ping(&self) {
        self.emit(ClientEvent::PingAnswered { sent: self.runtime.now() });
    }

    /// Lets time pass with a ping every sixth of the session timeout. Returns the number of writes that prove that the
    /// session is alive.
    fn pass(&self, time: Duration, mut check: impl FnMut(Moment)) -> usize {
        self.zookeeper.clear_log();
        let steps = 16;
        let step = TIMEOUT / 6 / steps;
        for number in 0..u32::try_from(time.as_nanos() / step.as_nanos()).unwrap() {
            if number % steps == 0 {
                self.ping();
            }
            self.runtime.advance(step);
            check(self.runtime.now());
        }
        let log = self.zookeeper.log();
        log.iter().filter(|call| call.operation == SimOperation::SetData).count()
    }
}

#[test]
fn idle_and_waiting_sessions_write_nothing_and_are_connected() {
    let fixture = Fixture::new();
    let states = fixture.session.subscribe();
    assert_eq!(fixture.pass(5 * TIMEOUT, |_| {}), 0);
    let holder = fixture.zookeeper.create_sequential("/lock", "x-a-lock-", Some(7));
    let lock = WriteLock::new(&fixture.session, "/lock").unwrap();
    assert!(!lock.lock().unwrap());
    assert_eq!(fixture.pass(5 * TIMEOUT, |_| {}), 0);
    assert_eq!(states.try_iter().collect::<Vec<_>>(), []);
    // The lease has lapsed, and is proven again when the request's turn comes.
    fixture.zookeeper.delete(&holder);
    assert!(lock.is_owner(), "without any delay");
    assert_eq!(states.try_iter().collect::<Vec<_>>(), []);
}

#[test]
fn first_lock_of_an_idle_session_is_owned_at_once() {
    let fixture = Fixture::new();
    fixture.pass(5 * TIMEOUT, |_| {});
    fixture.zookeeper.clear_log();
    let lock = WriteLock::new(&fixture.session, "/lock").unwrap();
    assert!(lock.lock().unwrap());
    assert_eq!(fixture.zookeeper.calls(SimOperation::SetData), 0, "the create itself is the proof");
}

#[test]
fn owner_writes_at_its_period_and_never_after_its_release() {
    let fixture = Fixture::new();
    let lock = WriteLock::new(&fixture.session, "/lock").unwrap();
    assert!(lock.lock().unwrap());
    let core = fixture.session.core();
    fixture.pass(TIMEOUT, |_| {});
    let writes = fixture.pass(10 * TIMEOUT, |now| {
        assert!(lock.is_owner());
        let left = core.lease_end().since(now);
        assert!(left >= TIMEOUT / 2, "{left:?} left");
    });
    // The report delay is 0.275 T, so the period is 0.173 T, with two writes in each.
    assert!((100..=125).contains(&writes), "{writes} writes");
    lock.unlock().unwrap();
    assert_eq!(fixture.pass(5 * TIMEOUT, |_| {}), 0);
    assert_eq!(fixture.session.state(), SessionState::Connected);
}

#[test]
fn owner_that_survives_a_shorter_outage_writes_less() {
    let fixture = Fixture::new();
    let core = fixture.session.core();
    core.set_survived_outage(TIMEOUT / 4);
    let lock = WriteLock::new(&fixture.session, "/lock").unwrap();
    assert!(lock.lock().unwrap());
    fixture.pass(TIMEOUT, |_| {});
    let writes = fixture.pass(10 * TIMEOUT, |now| {
        assert!(lock.is_owner());
        let left = core.lease_end().since(now);
        assert!(left >= TIMEOUT / 5, "{left:?} left");
    });
    // The period is 0.444 T.
    assert!((35..=50).contains(&writes), "{writes} writes");
}

#[test]
fn owner_is_suspended_when_its_writes_fail_although_pings_are_answered() {
    let fixture = Fixture::new();
    let lock = WriteLock::new(&fixture.session, "/lock").unwrap();
    assert!(lock.lock().unwrap());
    let states = fixture.session.subscribe();
    for _ in 0..1000 {
        fixture.client.simulated.fail_next(SimOperation::SetData, Effect::Before, ZkError::ConnectionLoss);
    }
    fixture.pass(2 * TIMEOUT, |_| {});
    assert!(!lock.is_owner());
    assert_eq!(states.try_iter().next(), Some(SessionState::Suspended));
    assert!(fixture.client.simulated.pending_faults() > 700, "the writes are repeated ten times a second");
}

#[test]
fn session_without_any_answer_is_suspended_and_then_lost() {
    let fixture = Fixture::new();
    fixture.pass(3 * TIMEOUT, |_| {});
    let states = fixture.session.subscribe();
    for _ in 0..100 {
        fixture.runtime.advance(TIMEOUT / 90);
    }
    assert_eq!(states.try_iter().collect::<Vec<_>>(), [SessionState::Suspended, SessionState::Lost]);
}

impl Fixture {
    fn lose_contact_for_a_while(&self) {
        self.zookeeper.clear_log();
        self.client.simulated.disconnect();
        self.runtime.advance(TIMEOUT / 4);
        self.client.simulated.reconnect();
    }
}

#[test]
fn reconnect_of_a_session_that_owns_nothing_writes_nothing() {
    let fixture = Fixture::new();
    let holder = fixture.zookeeper.create_sequential("/lock", "x-a-lock-", Some(7));
    let waiter = WriteLock::new(&fixture.session, "/lock").unwrap();
    assert!(!waiter.lock().unwrap());
    fixture.pass(TIMEOUT, |_| {});
    let states = fixture.session.subscribe();
    fixture.lose_contact_for_a_while();
    assert_eq!(fixture.zookeeper.calls(SimOperation::SetData), 0);
    assert!(fixture.zookeeper.calls(SimOperation::GetData) > 0, "the waiter has read a znode");
    assert_eq!(fixture.pass(3 * TIMEOUT, |_| {}), 0);
    assert_eq!(states.try_iter().collect::<Vec<_>>(), [SessionState::Suspended, SessionState::Connected]);
    fixture.zookeeper.delete(&holder);
    assert!(waiter.is_owner(), "without any delay");
}

#[test]
fn waiter_whose_turn_has_come_proves_its_session_after_a_reconnect() {
    let fixture = Fixture::new();
    let holder = fixture.zookeeper.create_sequential("/lock", "x-a-lock-", Some(7));
    let waiter = WriteLock::new(&fixture.session, "/lock").unwrap();
    assert!(!waiter.lock().unwrap());
    fixture.pass(TIMEOUT, |_| {});
    fixture.client.simulated.disconnect();
    fixture.zookeeper.delete(&holder);
    fixture.lose_contact_for_a_while();
    assert!(waiter.is_owner());
    assert!(fixture.zookeeper.calls(SimOperation::SetData) > 0);
}

#[test]
fn owner_proves_its_session_after_a_reconnect() {
    let fixture = Fixture::new();
    let lock = WriteLock::new(&fixture.session, "/lock").unwrap();
    assert!(lock.lock().unwrap());
    fixture.lose_contact_for_a_while();
    assert!(fixture.zookeeper.calls(SimOperation::SetData) > 0);
    fixture.pass(3 * TIMEOUT, |_| assert!(lock.is_owner()));
}

#[test]
fn owner_ends_with_a_shorter_timeout_that_a_server_grants_before_it_serves() {
    let fixture = Fixture::new();
    let lock = WriteLock::new(&fixture.session, "/lock").unwrap();
    assert!(lock.lock().unwrap());
    fixture.pass(TIMEOUT, |_| {});
    fixture.client.simulated.disconnect();
    fixture.emit(ClientEvent::TakenUp { session_timeout: TIMEOUT / 8 });
    fixture.runtime.advance(TIMEOUT / 16);
    assert!(lock.is_owner());
    fixture.runtime.advance(TIMEOUT / 16);
    assert!(!lock.is_owner());
    assert_eq!(lock.id(), None, "the lock has noticed the end");
}

#[test]
fn waiters_do_not_look_when_the_lease_of_their_session_lapses() {
    let fixture = Fixture::new();
    fixture.zookeeper.create_sequential("/lock", "x-a-lock-", Some(7));
    let lock = WriteLock::new(&fixture.session, "/lock").unwrap();
    assert!(!lock.lock().unwrap());
    fixture.zookeeper.clear_log();
    fixture.pass(3 * TIMEOUT, |_| {});
    let log = fixture.zookeeper.log();
    // Only routine reads, at most one in fifteen seconds.
    assert!(log.len() <= 2, "{log:?}");
    assert!(!fixture.session.core().admits_owners());
}
