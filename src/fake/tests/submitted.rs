//! Tests of submitted calls, the kind that a session makes: their order, and what becomes of them when
//! something fails.

use crossbeam_channel::{Receiver, bounded, unbounded};

use super::*;
use crate::client::{Call, Done, Op, Permissions, Reply};
use crate::error::ZkResult;
use crate::fake::VirtualClock;
use crate::{BlockingWriteLock, Session};

#[test]
fn request_that_is_too_long_for_a_server_is_refused() {
    let long = vec![0; 1 << 20];
    let name = "x".repeat(1 << 20);
    let open = Acl::open_unsafe;
    let calls = [
        Call::create("/x", &*long, open(), CreateMode::Persistent).call,
        Call::create("/x", [], [Acl::new(Permissions::ALL, "digest", &name)], CreateMode::Persistent).call,
        Call::create_and_list("/", "x-", &*long, open()).call,
        Call::set_data("/a", &*long, None).call,
        Call::exists(format!("/{name}"), false).call,
        Call::multi([Op::SetData { path: "/a".into(), data: (*long).into(), version: None }]).call,
    ];
    for call in calls {
        let (zookeeper, client, _) = connected();
        let (send, sent) = bounded(1);
        client.submit(call.clone(), Done::new(move |outcome| send.send(outcome).unwrap()));
        let is_refused = |outcome| matches!(outcome, Err(ZkError::CallTooLong { .. }));
        assert!(is_refused(next(&sent)), "{call:?}");
        assert!(is_refused(client.call(&call)), "{call:?}");
        assert!(zookeeper.log().is_empty());
    }
}

/// What a client has delivered, in order.
#[derive(Debug, PartialEq, Eq)]
enum Passed {
    Reply(&'static str, ZkResult<()>),
    Event(ClientEvent),
}

use Passed::{Event, Reply as Replied};

/// Returns a connected client and a recorder of what it delivers.
fn recorded() -> (SimulatedZooKeeper, Arc<SimulatedClient>, Recorder) {
    let (zookeeper, client, _) = connected();
    let (sender, passed) = unbounded();
    let events = sender.clone();
    client.subscribe(Arc::new(move |event| {
        // Pings may arrive at any time.
        if !matches!(event, ClientEvent::PingAnswered { .. }) {
            let _ = events.send(Event(event));
        }
    }));
    let recorder = Recorder { client: Arc::clone(&client), sender, passed };
    (zookeeper, client, recorder)
}

struct Recorder {
    client: Arc<SimulatedClient>,
    sender: crossbeam_channel::Sender<Passed>,
    passed: Receiver<Passed>,
}

impl Recorder {
    fn submit(&self, name: &'static str, call: Call) {
        let sender = self.sender.clone();
        let done = move |outcome: ZkResult<Reply>| {
            let _ = sender.send(Replied(name, outcome.map(drop)));
        };
        self.client.submit(call, Done::new(done));
    }

    fn read(&self, name: &'static str, watch: bool) {
        self.submit(name, Call::get_data("/a", watch).call);
    }

    fn next(&self) -> Passed {
        next(&self.passed)
    }
}

#[test]
fn replies_come_in_order_with_events_among_them() {
    let (zookeeper, client, recorder) = recorded();
    let (release, held) = bounded::<()>(0);
    client.before_next(SimOperation::SetData, move || assert!(held.recv().is_err()));
    recorder.read("watches", true);
    recorder.submit("changes", Call::set_data("/a", b"1".as_slice(), None).call);
    recorder.read("reads", false);
    assert_eq!(recorder.next(), Replied("watches", Ok(())));
    assert!(recorder.passed.is_empty(), "the stop point must hold up what is behind it");
    drop(release);
    // As on a real server, the event happens before the effect is confirmed.
    assert_eq!(recorder.next(), Event(changed("/a")));
    assert_eq!(recorder.next(), Replied("changes", Ok(())));
    assert_eq!(recorder.next(), Replied("reads", Ok(())));
    assert_eq!(zookeeper.stat("/a").unwrap().version, 1);
}

#[test]
fn event_between_an_effect_and_its_reply_comes_after_the_reply() {
    let (zookeeper, client, recorder) = recorded();
    let other = zookeeper.clone();
    client.after_next(SimOperation::GetData, move || other.set_data("/a", b"1"));
    recorder.read("watches", true);
    assert_eq!(recorder.next(), Replied("watches", Ok(())));
    assert_eq!(recorder.next(), Event(changed("/a")));
}

#[test]
fn calls_behind_a_cut_fail_and_take_no_effect() {
    let (zookeeper, client, recorder) = recorded();
    let (release, held) = bounded::<()>(0);
    let (begin, begun) = bounded(1);
    client.before_next(SimOperation::Exists, move || {
        begin.send(()).unwrap();
        assert!(held.recv().is_err());
    });
    recorder.submit("held", Call::exists("/a", false).call);
    recorder.submit("behind", Call::set_data("/a", b"1".as_slice(), None).call);
    // A call that the cut overtakes before it has begun fails earlier.
    next(&begun);
    client.disconnect();
    client.reconnect();
    recorder.read("on the next connection", false);
    drop(release);
    assert_eq!(recorder.next(), Event(ClientEvent::Disconnected));
    assert_eq!(recorder.next(), Event(contact()));
    assert_eq!(recorder.next(), Replied("held", Err(ZkError::ConnectionLoss)));
    assert_eq!(recorder.next(), Replied("behind", Err(ZkError::ConnectionLoss)));
    assert_eq!(recorder.next(), Replied("on the next connection", Ok(())));
    assert_eq!(zookeeper.stat("/a").unwrap().version, 0);
}

#[test]
fn reply_that_a_cut_loses_had_its_effect_and_fails_after_the_disconnect() {
    let (zookeeper, client, recorder) = recorded();
    client.cut_next(SimOperation::SetData, Effect::After);
    recorder.submit("changes", Call::set_data("/a", b"1".as_slice(), None).call);
    assert_eq!(recorder.next(), Event(ClientEvent::Disconnected));
    assert_eq!(recorder.next(), Replied("changes", Err(ZkError::ConnectionLoss)));
    assert_eq!(zookeeper.stat("/a").unwrap().version, 1);
}

#[test]
fn close_comes_after_the_calls_before_it_and_later_ones_fail() {
    let (zookeeper, client, recorder) = recorded();
    recorder.submit("before", Call::set_data("/a", b"1".as_slice(), None).call);
    client.close();
    recorder.read("after", false);
    assert_eq!(recorder.next(), Replied("before", Ok(())));
    assert_eq!(recorder.next(), Replied("after", Err(ZkError::SessionExpired)));
    assert!(zookeeper.sessions().is_empty());
}

#[test]
fn calls_of_a_dropped_client_end() {
    let (_zookeeper, client, recorder) = recorded();
    client.swallow();
    recorder.read("swallowed", false);
    let Recorder { client: last, sender, passed } = recorder;
    drop((client, last, sender));
    assert!(matches!(next(&passed), Replied("swallowed", Err(_))));
}

#[test]
fn pings_are_answered_by_the_clock_of_the_session_and_behind_the_calls() {
    let zookeeper = SimulatedZooKeeper::new();
    let clock = VirtualClock::new();
    let client = zookeeper.connect(TIMEOUT);
    let session: Session = clock.open(client.clone()).unwrap();
    let guard = BlockingWriteLock::new(&session, "/lock").unwrap().lock().unwrap();
    clock.advance(100 * TIMEOUT);
    assert!(guard.is_owner(), "the lease must be renewed in contact");
    zookeeper.clear_log();
    // Without a lock, pings alone keep the session alive.
    guard.unlock().unwrap();
    clock.advance(TIMEOUT);
    let later = zookeeper.log().len();
    clock.advance(10 * TIMEOUT);
    assert_eq!(zookeeper.log().len(), later);
    let guard = BlockingWriteLock::new(&session, "/lock").unwrap().lock().unwrap();
    client.swallow();
    clock.advance(TIMEOUT);
    assert!(!guard.is_owner(), "the lease must end without answered pings");
    client.disconnect();
}
