//! Tests of what hooks receive, and of how little harm a faulty hook does.

use std::thread;

use crossbeam_channel::{Receiver, unbounded};

use super::*;
use crate::client::Identity;
use crate::fake::{SimulatedClient, SimulatedZooKeeper};
use crate::locks::{CohortLock, CohortOptions, ReadWriteLock};
use crate::tests::{Wrapped, deadline, eventually, logged, next, open_wrapped, replacing_session};
use crate::{
    BlockingWriteLock, CancelToken, ErrorReason, LockOptions, Session, SessionState, Wait, WriteLock,
};

const DIR: &str = "/locks/a";
const LONG: Duration = Duration::from_secs(30);

/// An event in short form.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Connected,
    Suspended,
    SessionLost,
    SessionReplaced,
    Joined { waits_for: String, ahead: Option<usize> },
    Acquired(Option<String>),
    HandedOver,
    Released(LockKind),
    Lost(LossReason),
    GaveUp(Option<LossReason>),
    Missed(u64),
}

fn seen(event: &SessionEvent) -> Seen {
    match event {
        SessionEvent::Connected(_) => Seen::Connected,
        SessionEvent::Suspended => Seen::Suspended,
        SessionEvent::SessionLost => Seen::SessionLost,
        SessionEvent::SessionReplaced(_) => Seen::SessionReplaced,
        SessionEvent::Joined(event) => {
            Seen::Joined { waits_for: event.waits_for.clone(), ahead: event.ahead }
        }
        SessionEvent::Acquired(event) => Seen::Acquired(event.lock.id.clone()),
        SessionEvent::HandedOver(_) => Seen::HandedOver,
        SessionEvent::Released(event) => Seen::Released(event.lock.kind),
        SessionEvent::Lost(event) => Seen::Lost(event.reason),
        SessionEvent::GaveUp(event) => Seen::GaveUp(event.reason),
        SessionEvent::Missed(number) => Seen::Missed(*number),
    }
}

/// A session with a hook that records events. The hook has already received `Connected`, which is not in the channel.
fn session(server: &SimulatedZooKeeper) -> (Arc<SimulatedClient>, Session, Receiver<Seen>) {
    let client = server.connect(LONG);
    let session = client.open_session().unwrap();
    let events = record(&session);
    (client, session, events)
}

fn record(session: &Session) -> Receiver<Seen> {
    let (sender, events) = unbounded();
    let hook = move |event: &SessionEvent| drop(sender.send(seen(event)));
    assert!(session.set_event_hook(hook));
    assert_eq!(next(&events), Seen::Connected);
    events
}

#[test]
fn acquisition_and_release_are_reported() {
    let server = SimulatedZooKeeper::new();
    let (_client, session, events) = session(&server);
    let guard = BlockingWriteLock::new(&session, DIR).unwrap().lock().unwrap();
    assert_eq!(next(&events), Seen::Acquired(Some(guard.id().to_owned())));
    guard.unlock().unwrap();
    assert_eq!(next(&events), Seen::Released(LockKind::Exclusive));
    let reading = ReadWriteLock::new(&session, "/locks/b").unwrap().read().unwrap();
    assert_eq!(next(&events), Seen::Acquired(Some(reading.id().to_owned())));
    drop(reading);
    assert_eq!(next(&events), Seen::Released(LockKind::Read));
    session.close();
    assert!(events.is_empty(), "{:?}", events.try_recv());
}

#[test]
fn waiter_reports_whom_it_waits_for_and_that_it_gives_up() {
    let server = SimulatedZooKeeper::new();
    let (_client, of_waiter, events) = session(&server);
    let (_other, of_holder, _) = session(&server);
    let holder = BlockingWriteLock::new(&of_holder, DIR).unwrap().lock().unwrap();
    let lock = BlockingWriteLock::new(&of_waiter, DIR).unwrap();
    let joined = Seen::Joined { waits_for: holder.id().to_owned(), ahead: Some(1) };
    let token = CancelToken::new();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| lock.try_lock_for(Wait::forever().cancelled_by(&token)));
        assert_eq!(next(&events), joined);
        token.cancel();
        assert_eq!(waiting.join().unwrap().unwrap_err().reason(), ErrorReason::Cancelled);
    });
    assert_eq!(next(&events), Seen::GaveUp(None));

    let waiting = WriteLock::new(&of_waiter, DIR).unwrap();
    assert!(!waiting.lock().unwrap());
    assert_eq!(next(&events), joined);
    server.delete(&waiting.id().unwrap());
    drop(holder);
    assert_eq!(next(&events), Seen::GaveUp(Some(LossReason::NodeDeleted)));
}

#[test]
fn loss_of_the_session_and_its_replacement_are_reported() {
    let server = SimulatedZooKeeper::new();
    let (session, clients) = replacing_session(&server, LONG);
    let client = next(&clients);
    let events = record(&session);
    let guard = BlockingWriteLock::new(&session, DIR).unwrap().lock().unwrap();
    assert!(matches!(next(&events), Seen::Acquired(_)));
    client.disconnect();
    assert_eq!(next(&events), Seen::Suspended);
    client.reconnect();
    assert_eq!(next(&events), Seen::Connected);
    client.expire();
    let mut seen = [next(&events), next(&events), next(&events)];
    seen.sort_by_key(|event| matches!(event, Seen::Lost(_)));
    let lost = LossReason::SessionLost;
    assert_eq!(seen, [Seen::SessionLost, Seen::SessionReplaced, Seen::Lost(lost)]);
    drop(guard);
    let again = BlockingWriteLock::new(&session, DIR).unwrap().lock().unwrap();
    assert_eq!(next(&events), Seen::Acquired(Some(again.id().to_owned())));
}

#[test]
fn cohort_lock_reports_what_it_hands_over() {
    let server = SimulatedZooKeeper::new();
    let (_client, session, events) = session(&server);
    let kept_long = CohortOptions::new().keep_for(LONG);
    let lock = CohortLock::with_options(&session, DIR, LockOptions::new(), kept_long).unwrap();
    drop(lock.lock().unwrap());
    drop(lock.lock().unwrap());
    assert!(matches!(next(&events), Seen::Acquired(_)));
    assert_eq!(next(&events), Seen::HandedOver);
    drop(lock);
    assert_eq!(next(&events), Seen::Released(LockKind::Exclusive));
}

#[test]
fn second_hook_is_refused() {
    let server = SimulatedZooKeeper::new();
    let (_client, session, events) = session(&server);
    let (sender, of_second) = unbounded();
    assert!(!session.set_event_hook(move |event: &SessionEvent| drop(sender.send(seen(event)))));
    drop(BlockingWriteLock::new(&session, DIR).unwrap().lock().unwrap());
    assert!(matches!(next(&events), Seen::Acquired(_)));
    assert!(of_second.is_empty());
}

#[test]
fn refused_hook_is_dropped_outside_every_lock() {
    struct Asks(Session);
    impl EventHook for Asks {
        fn on_event(&self, _event: &SessionEvent) {}
    }
    impl Drop for Asks {
        fn drop(&mut self) {
            assert_eq!(self.0.state(), SessionState::Connected);
        }
    }
    let server = SimulatedZooKeeper::new();
    let (_client, session, _events) = session(&server);
    assert!(!session.set_event_hook(Asks(session.clone())));
}

#[test]
fn hook_that_panics_costs_only_its_events() {
    let server = SimulatedZooKeeper::new();
    let session = server.connect(LONG).open_session().unwrap();
    let (released, releases) = unbounded();
    let hook = move |event: &SessionEvent| match event {
        SessionEvent::Acquired(_) | SessionEvent::Suspended => panic!("on purpose"),
        SessionEvent::Released(_) => drop(released.send(())),
        _ => {}
    };
    assert!(session.set_event_hook(hook));
    let events = Arc::clone(session.core().events().unwrap());
    let lines = logged(|| events.pass_on(&SessionEvent::Suspended));
    assert_eq!(lines, ["an event hook panicked: on purpose"]);
    for _ in 0..3 {
        BlockingWriteLock::new(&session, DIR).unwrap().lock().unwrap().unlock().unwrap();
        next(&releases);
    }
}

/// A client that is on another server after each reconnect, and panics when it is asked for the name of the last one.
struct Moving {
    client: Arc<SimulatedClient>,
    connections: Arc<AtomicUsize>,
}

const SERVERS: [&str; 4] = ["zk1", "zk2", "zk3", "zk4"];

impl Wrapped for Moving {
    fn simulated(&self) -> &Arc<SimulatedClient> {
        &self.client
    }

    fn identity(&self) -> Identity {
        match SERVERS.get(self.connections.load(Ordering::SeqCst)) {
            Some(server) => Identity { server: Some((*server).to_owned()), ..Identity::default() },
            None => std::panic::resume_unwind(Box::new("on purpose")),
        }
    }
}

/// A hook may be late, and the client on yet another server by then.
#[test]
fn each_contact_names_the_server_that_it_was_with() {
    let server = SimulatedZooKeeper::new();
    let (client, connections) = (server.connect(LONG), Arc::new(AtomicUsize::new(0)));
    let moving = Moving { client: Arc::clone(&client), connections: Arc::clone(&connections) };
    let session = open_wrapped(Arc::new(moving)).unwrap();
    let ((goes, go), (contact, contacts)) = (unbounded::<()>(), unbounded());
    assert!(session.set_event_hook(move |event: &SessionEvent| {
        let _ = go.recv_timeout(deadline());
        if let SessionEvent::Connected(connected) = event {
            let _ = contact.send(connected.server.clone());
        }
    }));
    let in_contact = || session.core().snapshot().in_contact;
    for _ in SERVERS {
        client.disconnect();
        eventually("contact is lost", || !in_contact());
        connections.fetch_add(1, Ordering::SeqCst);
        client.reconnect();
        eventually("contact is back", in_contact);
    }
    drop(goes);
    for expected in SERVERS {
        assert_eq!(next(&contacts).as_deref(), Some(expected));
    }
    assert_eq!(next(&contacts), None, "the client panicked");
}

#[test]
fn hook_that_blocks_delays_no_lock_and_what_it_misses_is_counted() {
    let server = SimulatedZooKeeper::new();
    let session = server.connect(LONG).open_session().unwrap();
    let ((goes, go), (missed, misses)) = (unbounded::<()>(), unbounded());
    let (is_called, calls) = unbounded();
    let hook = move |event: &SessionEvent| match event {
        SessionEvent::Acquired(_) => {
            let _ = is_called.send(());
            let _ = go.recv_timeout(deadline());
        }
        SessionEvent::Missed(events) => drop(missed.send(*events)),
        _ => {}
    };
    assert!(session.set_event_hook(hook));
    let guard = BlockingWriteLock::new(&session, DIR).unwrap().lock().unwrap();
    // From here on, the hook is blocked. Before that, it might have taken further events.
    next(&calls);
    let core = session.core();
    for _ in 0..MAX_WAITING + 5 {
        core.report_event(Event::Suspended, None);
    }
    guard.unlock().unwrap();
    assert!(misses.is_empty());
    drop(goes);
    // At least five suspensions, and the release.
    assert!(next(&misses) >= 6);
    eventually("everything is delivered", || {
        core.events().is_some_and(|events| events.waiting.load(Ordering::Relaxed) == 0)
    });
}

#[test]
fn nothing_that_happens_on_a_new_session_is_reported_before_it_is() {
    let server = SimulatedZooKeeper::new();
    let (session, _clients) = replacing_session(&server, LONG);
    let events = record(&session);
    let other = server.connect(LONG).open_session().unwrap();
    let core = other.core();
    assert!(session.handle.replace(Arc::clone(&core)));
    // A request of another thread may cause such an event before the replacing thread continues.
    core.report_event(Event::Suspended, None);
    assert_eq!((next(&events), next(&events)), (Seen::SessionReplaced, Seen::Suspended));
}
