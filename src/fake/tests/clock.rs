//! Tests of the virtual clock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crossbeam_channel::{Receiver, bounded, unbounded};

use super::*;
use crate::client::Permissions;
use crate::fake::{SimulatedLeadership, VirtualClock};
use crate::{
    BlockingWriteLock, Candidate, ErrorReason, LockListener, LossReason, Session, SessionState, WriteLock,
};

const LOCK: &str = "/lock";
const HOUR: Duration = Duration::from_secs(3600);

/// Shorter than the time after which a running job is ignored.
const AT_ONCE: Duration = Duration::from_secs(1);

struct Fixture {
    zookeeper: SimulatedZooKeeper,
    clock: VirtualClock,
}

impl Fixture {
    fn new() -> Fixture {
        crate::tests::begin();
        Fixture { zookeeper: SimulatedZooKeeper::new(), clock: VirtualClock::new() }
    }

    fn open(&self) -> (Arc<SimulatedClient>, Session) {
        let client = self.zookeeper.connect(TIMEOUT);
        let session = self.clock.open(client.clone()).unwrap();
        (client, session)
    }

    /// Opens a session, and returns its client and a lock on it.
    fn lock(&self) -> (Arc<SimulatedClient>, BlockingWriteLock) {
        let (client, session) = self.open();
        (client, BlockingWriteLock::new(&session, LOCK).unwrap())
    }
}

#[test]
fn a_lease_without_contact_ends_with_the_clock() {
    let faults: [fn(&SimulatedClient); 3] =
        [SimulatedClient::swallow, SimulatedClient::disconnect, SimulatedClient::expire_silently];
    for fault in faults {
        let fixture = Fixture::new();
        let (client, lock) = fixture.lock();
        let guard = lock.lock().unwrap();
        fault(&client);
        fixture.clock.advance(TIMEOUT / 4);
        assert!(guard.is_owner());
        let begun = Instant::now();
        fixture.clock.advance(TIMEOUT);
        assert!(begun.elapsed() < AT_ONCE);
        assert!(!guard.is_owner());
        assert_eq!(guard.lost().try_recv(), Ok(LossReason::LeaseExpired));
        client.disconnect();
    }
}

#[test]
fn a_lease_in_contact_is_extended() {
    let fixture = Fixture::new();
    let (_client, lock) = fixture.lock();
    let guard = lock.lock().unwrap();
    for _ in 0..10 {
        fixture.clock.advance(10 * TIMEOUT);
        assert!(guard.is_owner());
    }
    assert_eq!(fixture.clock.elapsed(), 100 * TIMEOUT);
    assert!(guard.loss().is_none());
}

#[test]
fn a_waiter_acquires_when_the_session_of_the_holder_expires() {
    let fixture = Fixture::new();
    let ((holder, held), (_client, lock)) = (fixture.lock(), fixture.lock());
    let guard = held.lock().unwrap();
    let waiting = in_background(move || lock.lock().unwrap());
    eventually("both requests are in the queue", || fixture.zookeeper.children(LOCK).len() == 2);
    holder.swallow();
    fixture.clock.advance(TIMEOUT);
    assert!(!guard.is_owner());
    assert!(waiting.is_empty());
    holder.expire();
    assert!(next(&waiting).is_owner());
    holder.disconnect();
}

#[test]
fn a_deadline_follows_the_clock() {
    let fixture = Fixture::new();
    let ((_holder, held), (_client, lock)) = (fixture.lock(), fixture.lock());
    let _guard = held.lock().unwrap();
    let waiting = in_background(move || lock.try_lock_for(HOUR).unwrap().is_none());
    fixture.clock.await_waiting_calls(1);
    fixture.clock.advance(HOUR / 2);
    assert_eq!(fixture.clock.waiting_calls(), 1);
    assert!(waiting.is_empty());
    fixture.clock.advance(HOUR / 2);
    assert!(next(&waiting), "the waiter must give up at its deadline");
    assert_eq!(fixture.clock.waiting_calls(), 0);
}

#[test]
fn a_candidate_stands_again_when_its_pause_is_over() {
    let fixture = Fixture::new();
    let (_client, lock) = fixture.lock();
    let (lead, leading) = unbounded();
    let candidate = Candidate::start(lock, move |_| Ok(lead.send(())?)).unwrap();
    for _ in 0..3 {
        next(&leading);
        fixture.clock.await_waiting_calls(1);
        assert!(leading.is_empty());
        fixture.clock.advance(Duration::from_secs(1));
    }
    candidate.stop();
    assert!(candidate.wait(crate::Wait::forever()));
}

struct Blocking(Receiver<()>, Arc<AtomicBool>);

impl LockListener for Blocking {
    fn lock_acquired(&self) {
        let _ = self.0.recv();
        self.1.store(true, Ordering::SeqCst);
    }

    fn lock_released(&self) {}
}

#[test]
fn listeners_have_returned_after_an_advance_unless_they_block() {
    let fixture = Fixture::new();
    let (_client, session) = fixture.open();
    for blocks in [false, true] {
        let (release, released) = bounded(1);
        let called = Arc::new(AtomicBool::new(false));
        let lock = WriteLock::with_listener(&session, LOCK, Blocking(released, called.clone())).unwrap();
        if !blocks {
            release.send(()).unwrap();
        }
        lock.lock().unwrap();
        fixture.clock.advance(Duration::ZERO);
        assert_eq!(called.load(Ordering::SeqCst), !blocks);
        let begun = Instant::now();
        fixture.clock.advance(10 * TIMEOUT);
        assert!(begun.elapsed() < AT_ONCE, "a listener that blocks must delay only one advance");
        drop(release);
        lock.unlock().unwrap();
    }
}

/// A listener that acquires a lock, and waits for another until a deadline.
struct Locking {
    free: BlockingWriteLock,
    held: BlockingWriteLock,
    is_done: Arc<AtomicBool>,
}

impl LockListener for Locking {
    fn lock_acquired(&self) {
        self.free.lock().unwrap().unlock().unwrap();
        assert!(self.held.try_lock_for(HOUR / 60).unwrap().is_none());
        self.free.lock().unwrap().unlock().unwrap();
        self.is_done.store(true, Ordering::SeqCst);
    }

    fn lock_released(&self) {}
}

#[test]
fn listeners_that_wait_for_locks_have_returned_after_an_advance() {
    let fixture = Fixture::new();
    let ((_holder, held), (_client, session)) = (fixture.lock(), fixture.open());
    let _guard = held.lock().unwrap();
    for _ in 0..10 {
        let is_done = Arc::new(AtomicBool::new(false));
        let [free, held] = ["/free", LOCK].map(|dir| BlockingWriteLock::new(&session, dir).unwrap());
        let listener = Locking { free, held, is_done: is_done.clone() };
        let lock = WriteLock::with_listener(&session, "/listened", listener).unwrap();
        lock.lock().unwrap();
        fixture.clock.advance(Duration::ZERO);
        assert!(!is_done.load(Ordering::SeqCst));
        fixture.clock.advance(HOUR / 60);
        assert!(is_done.load(Ordering::SeqCst));
        lock.unlock().unwrap();
    }
}

#[test]
fn a_lost_session_is_replaced_on_the_clock() {
    let fixture = Fixture::new();
    let zookeeper = fixture.zookeeper.clone();
    let session = fixture.clock.open_replaced(move || Ok(zookeeper.connect(TIMEOUT))).unwrap();
    let states = session.subscribe();
    let first = fixture.zookeeper.sessions();
    fixture.zookeeper.expire_session(first[0]);
    assert_eq!(next(&states), SessionState::Lost);
    eventually("the next session is connected", || session.state() == SessionState::Connected);
    let guard = BlockingWriteLock::new(&session, LOCK).unwrap().lock().unwrap();
    fixture.clock.advance(HOUR / 60);
    assert!(guard.is_owner());
}

#[test]
fn a_closed_session_leaves_nothing_on_the_clock() {
    let fixture = Fixture::new();
    let (_client, session) = fixture.open();
    let guard = BlockingWriteLock::new(&session, LOCK).unwrap().lock().unwrap();
    assert!(!fixture.clock.is_idle());
    drop(guard);
    session.close();
    eventually("the timers are dropped", || fixture.clock.is_idle());
    assert!(fixture.zookeeper.sessions().is_empty());
}

#[test]
fn delayed_calls_take_real_time_and_none_of_the_clock() {
    const DELAY: Duration = Duration::from_millis(40);
    let fixture = Fixture::new();
    let (client, lock) = fixture.lock();
    client.delay(DELAY);
    let begun = Instant::now();
    let guard = lock.lock().unwrap();
    assert!(begun.elapsed() >= DELAY);
    fixture.clock.advance(2 * TIMEOUT);
    assert!(guard.is_owner());
    client.delay(Duration::ZERO);
}

#[test]
fn a_disconnect_ends_a_delayed_call() {
    let (_zookeeper, client, _) = connected();
    client.delay(HOUR);
    let call = {
        let client = client.clone();
        in_background(move || client.get_data("/a", false))
    };
    assert!(call.recv_timeout(Duration::from_millis(20)).is_err());
    client.disconnect();
    assert_eq!(next(&call), Err(ZkError::ConnectionLoss));
}

#[test]
fn a_denied_lock_is_an_error() {
    let fixture = Fixture::new();
    fixture.zookeeper.create_with_acl(LOCK, b"", &[Acl::new(Permissions::READ, "world", "anyone")]);
    let (_client, lock) = fixture.lock();
    assert!(matches!(lock.lock(), Err(ref error) if error.reason() == ErrorReason::AccessDenied));
}

/// Returns a leadership in real time and one on a clock.
fn leaderships() -> [SimulatedLeadership; 2] {
    crate::tests::begin();
    let clock = VirtualClock::new();
    [SimulatedLeadership::new().unwrap(), SimulatedLeadership::with_clock(&clock).unwrap()]
}

#[test]
fn a_leadership_that_is_taken_away_is_lost() {
    for leadership in leaderships() {
        assert!(leadership.is_owner() && !leadership.should_stop());
        leadership.take_away();
        assert!(!leadership.is_owner() && leadership.should_stop());
        assert_eq!(leadership.loss(), Some(LossReason::NodeDeleted));
        leadership.take_away();
        leadership.request_revocation();
    }
}

#[test]
fn a_leadership_ends_with_its_session() {
    for leadership in leaderships() {
        leadership.expire();
        assert!(!leadership.is_owner() && leadership.should_stop());
        assert_eq!(leadership.loss(), Some(LossReason::SessionLost));
    }
}

#[test]
fn a_leadership_that_should_stop_still_leads() {
    let stops: [fn(&SimulatedLeadership); 2] =
        [SimulatedLeadership::stop, SimulatedLeadership::request_revocation];
    for stop in stops {
        for leadership in leaderships() {
            stop(&leadership);
            assert!(leadership.is_owner() && leadership.should_stop());
            assert!(!leadership.wait(HOUR));
        }
    }
}
