//! Tests of candidates: elections, the end of leadership, and what follows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, select, unbounded};
use zookeeper_recipes_lock::client::{Acl, Permissions};
use zookeeper_recipes_lock::queue::{Revocation, Revoker};
use zookeeper_recipes_lock::{
    BlockingWriteLock, Candidate, ErrorKind, ErrorReason, Leadership, LockOptions, LossReason, Session, Wait,
};

use crate::child_test::ChildTest;
use crate::fixtures::{
    ErrorVariant, LONG, Observer, SHORT, connect, connect_replaced, next, session, unique_dir,
};
use crate::support::relay::Relay;
use crate::support::server;
use crate::support::wait::{deadline, eventually};

/// Longer than any test takes.
const LONGEST: Duration = Duration::from_secs(3600);

fn election(session: &Session, dir: &str) -> BlockingWriteLock {
    BlockingWriteLock::new(session, dir).unwrap()
}

fn assert_ends(candidate: &Candidate) {
    assert!(candidate.wait(Wait::timeout(deadline())), "the candidate must end: {candidate:?}");
}

/// A message from the closure of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Leading(i64),
    Stopped(Option<LossReason>),
}

/// Starts a candidate that leads until it must stop.
fn start_candidate(session: &Session, dir: &str) -> (Candidate, Receiver<Message>) {
    let (sender, messages) = unbounded();
    let lead = move |leadership: &Leadership| {
        sender.send(Message::Leading(leadership.fencing_token()?))?;
        assert!(!leadership.wait(LONGEST));
        // The reason is set a moment after the loss, so wait for it.
        let is_lost = !leadership.is_owner();
        sender.send(Message::Stopped(is_lost.then(|| next(leadership.lost()))))?;
        Ok(())
    };
    (Candidate::start(election(session, dir), lead).unwrap(), messages)
}

fn await_leading(messages: &Receiver<Message>) -> i64 {
    match next(messages) {
        Message::Leading(token) => token,
        stopped => panic!("not leading: {stopped:?}"),
    }
}

/// Starts a candidate that leads until it receives a message.
fn start_candidate_until_released(
    session: &Session,
    dir: &str,
    name: &'static str,
    leading: &Sender<&'static str>,
) -> (Candidate, Sender<()>) {
    let (release, released) = unbounded();
    let leading = leading.clone();
    let lead = move |_: &Leadership| {
        leading.send(name)?;
        Ok(released.recv()?)
    };
    (Candidate::start(election(session, dir), lead).unwrap(), release)
}

// ---- turns

#[test]
fn candidates_lead_one_at_a_time_and_all_have_turns() {
    let dir = unique_dir("one-leader");
    let leaders = Arc::new(AtomicUsize::new(0));
    let (terms, led) = unbounded();
    let candidates: Vec<(Session, Candidate)> = (0..3)
        .map(|number| {
            let session = session(server::shared());
            let (leaders, terms) = (Arc::clone(&leaders), terms.clone());
            let lead = move |leadership: &Leadership| {
                assert_eq!(leaders.fetch_add(1, Ordering::SeqCst), 0, "two leaders");
                assert!(leadership.is_owner());
                terms.send((number, leadership.fencing_token()?))?;
                let _ = leadership.wait(Duration::from_millis(20));
                leaders.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            };
            let candidate = Candidate::start(election(&session, &dir), lead).unwrap();
            (session, candidate)
        })
        .collect();
    let mut terms_of = [0; 3];
    let mut last_token = 0;
    while terms_of.iter().any(|terms| *terms < 2) {
        let (number, token) = next(&led);
        assert!(token > last_token, "the token must grow");
        last_token = token;
        terms_of[number] += 1;
    }
    for (_, candidate) in &candidates {
        candidate.stop();
        assert_ends(candidate);
        assert!(candidate.error().is_none(), "{candidate:?}");
    }
    Observer::at(server::shared()).await_children(&dir, 0);
}

#[test]
fn candidate_rejoins_behind_the_others_after_its_closure_returned() {
    let session = session(server::shared());
    let dir = unique_dir("again");
    let observer = Observer::at(server::shared());
    let (leading, leaders) = unbounded();
    let (first, release_first) = start_candidate_until_released(&session, &dir, "first", &leading);
    assert_eq!(next(&leaders), "first");
    let (second, release_second) = start_candidate_until_released(&session, &dir, "second", &leading);
    for _ in 0..2 {
        observer.await_children(&dir, 2);
        assert!(first.is_leader() && !second.is_leader());
        release_first.send(()).unwrap();
        assert_eq!(next(&leaders), "second");
        observer.await_children(&dir, 2);
        assert!(second.is_leader() && !first.is_leader());
        release_second.send(()).unwrap();
        assert_eq!(next(&leaders), "first");
    }
}

/// Runs this test in another process, which leads and is then killed.
#[test]
fn killed_leader_is_succeeded() {
    const NAME: &str = "electing::killed_leader_is_succeeded";
    if let Some((connect_string, dir)) = ChildTest::arguments() {
        let (candidate, messages) = start_candidate(&connect(&connect_string, SHORT), &dir);
        await_leading(&messages);
        ChildTest::send("leading");
        assert!(candidate.wait(Wait::forever()));
        return;
    }

    let dir = unique_dir("killed");
    let mut child = ChildTest::start(NAME, &dir);
    assert_eq!(child.receive(), "leading");
    let session = session(server::shared());
    let (candidate, messages) = start_candidate(&session, &dir);
    Observer::at(server::shared()).await_children(&dir, 2);
    assert!(messages.try_recv().is_err() && !candidate.is_leader());

    child.kill();
    await_leading(&messages);
    assert!(candidate.is_leader());
}

#[test]
fn candidate_with_a_failing_closure_rejoins_once_a_second() {
    let session = session(server::shared());
    let (terms, led) = unbounded();
    let begun = Instant::now();
    let lead = move |_: &Leadership| {
        terms.send(())?;
        Err("on purpose".into())
    };
    let candidate = Candidate::start(election(&session, &unique_dir("pace")), lead).unwrap();
    for _ in 0..3 {
        next(&led);
    }
    assert!(begun.elapsed() >= Duration::from_secs(2));
    assert!(candidate.error().is_none());
}

// ---- the end of leadership

#[test]
fn leader_rejoins_after_its_znode_was_deleted() {
    let session = session(server::shared());
    let dir = unique_dir("deleted");
    let observer = Observer::at(server::shared());
    let (candidate, messages) = start_candidate(&session, &dir);
    let first = await_leading(&messages);
    observer.delete(&format!("{dir}/{}", observer.children(&dir)[0]));
    assert_eq!(next(&messages), Message::Stopped(Some(LossReason::NodeDeleted)));
    assert!(await_leading(&messages) > first);
    assert!(candidate.is_leader());
}

#[test]
fn leader_steps_down_on_a_revocation_request() {
    let session = session(server::shared());
    let dir = unique_dir("revoked");
    let observer = Observer::at(server::shared());
    let (first, first_messages) = start_candidate(&session, &dir);
    await_leading(&first_messages);
    let (second, second_messages) = start_candidate(&session, &dir);
    observer.await_children(&dir, 2);
    let leader = format!("{dir}/{}", observer.children(&dir)[0]);
    let revoked = Revoker::new(&session).force_revocation_after(&leader, deadline()).unwrap();
    assert_eq!(revoked, Revocation::Complied);
    assert_eq!(next(&first_messages), Message::Stopped(None));
    await_leading(&second_messages);
    observer.await_children(&dir, 2);
    assert!(second.is_leader() && !first.is_leader());
}

#[test]
fn panic_in_the_closure_ends_the_candidate_and_its_leadership() {
    let session = session(server::shared());
    let dir = unique_dir("panics");
    let (tokens, led) = unbounded();
    let lead = move |leadership: &Leadership| {
        tokens.send(leadership.fencing_token()?)?;
        panic!("on purpose, {}", 7);
    };
    let panicking = Candidate::start(election(&session, &dir), lead).unwrap();
    let first = next(&led);
    let (_candidate, messages) = start_candidate(&session, &dir);
    assert!(await_leading(&messages) > first);
    assert_ends(&panicking);
    let error = panicking.error().unwrap();
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::Permanent, ErrorReason::LeaderPanicked),
        "{error:?}"
    );
    assert!(error.to_string().contains(&dir) && error.to_string().contains("on purpose, 7"), "{error}");
    assert!(led.recv().is_err(), "the closure must be dropped without another call");
}

#[test]
fn waiting_candidate_rejoins_after_its_znode_was_deleted() {
    let session = session(server::shared());
    let dir = unique_dir("deleted-waiting");
    let observer = Observer::at(server::shared());
    let guard = election(&session, &dir).lock().unwrap();
    let (candidate, messages) = start_candidate(&session, &dir);
    observer.await_children(&dir, 2);
    observer.delete(&format!("{dir}/{}", observer.children(&dir)[1]));
    drop(guard);
    await_leading(&messages);
    assert!(candidate.is_leader());
}

#[test]
fn candidate_without_delete_permission_ends() {
    let session = session(server::shared());
    let may = Permissions::CREATE | Permissions::READ | Permissions::WRITE;
    let options = LockOptions::new().acl([Acl::new(may, "world", "anyone")]);
    let election = BlockingWriteLock::with_options(&session, &unique_dir("stuck"), options).unwrap();
    let candidate = Candidate::start(election, |_| Ok(())).unwrap();
    assert_ends(&candidate);
    assert!(candidate.error().unwrap().is_access_denied(), "{:?}", candidate.error());
}

// ---- the session

#[test]
fn session_loss_stops_the_closure_and_ends_the_candidate() {
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), SHORT);
    let (candidate, messages) = start_candidate(&far, &unique_dir("plain-lost"));
    await_leading(&messages);
    relay.swallow();
    assert_eq!(next(&messages), Message::Stopped(Some(LossReason::LeaseExpired)));
    assert!(!candidate.is_leader());
    assert_ends(&candidate);
    assert!(candidate.error().unwrap().is_session_lost(), "{:?}", candidate.error());
}

#[test]
fn leader_and_waiter_rejoin_on_the_replaced_session() {
    let relay = Relay::to(server::shared().connect_string());
    let replacement = connect_replaced(&relay.connect_string(), SHORT);
    let dir = unique_dir("replacement-lost");
    let (leader, leader_messages) = start_candidate(&replacement, &dir);
    let first = await_leading(&leader_messages);
    let (waiter, waiter_messages) = start_candidate(&replacement, &dir);
    Observer::at(server::shared()).await_children(&dir, 2);
    relay.swallow();
    assert_eq!(next(&leader_messages), Message::Stopped(Some(LossReason::LeaseExpired)));
    relay.restore();
    let assert_is_later =
        |message| assert!(matches!(message, Message::Leading(token) if token > first), "{message:?}");
    let is_waiter_first = select! {
        recv(leader_messages) -> message => { assert_is_later(message.unwrap()); false }
        recv(waiter_messages) -> message => { assert_is_later(message.unwrap()); true }
        default(deadline()) => panic!("there is no leader"),
    };
    Observer::at(server::shared()).await_children(&dir, 2);
    select! {
        recv(leader_messages) -> message => panic!("the leader changed again: {message:?}"),
        recv(waiter_messages) -> message => panic!("the leader changed again: {message:?}"),
        default(Duration::from_secs(1)) => {}
    }
    assert_eq!((leader.is_leader(), waiter.is_leader()), (!is_waiter_first, is_waiter_first));
    assert!(leader.error().is_none() && waiter.error().is_none());
}

#[test]
fn closed_session_ends_its_candidates() {
    let session = session(server::shared());
    let dir = unique_dir("closed");
    let (leader, messages) = start_candidate(&session, &dir);
    await_leading(&messages);
    let (waiter, _) = start_candidate(&session, &dir);
    Observer::at(server::shared()).await_children(&dir, 2);
    session.close();
    for candidate in [&leader, &waiter] {
        assert_ends(candidate);
        assert!(candidate.error().unwrap().is_closed(), "{:?}", candidate.error());
    }
    assert_eq!(next(&messages), Message::Stopped(Some(LossReason::Closed)));
}

// ---- stopping

#[test]
fn waiting_candidate_stops_at_once_and_leaves_the_queue() {
    let session = session(server::shared());
    let dir = unique_dir("stop-waiting");
    let observer = Observer::at(server::shared());
    let guard = election(&session, &dir).lock().unwrap();
    let (candidate, messages) = start_candidate(&session, &dir);
    observer.await_children(&dir, 2);
    assert!(!candidate.wait(Wait::timeout(Duration::ZERO)));
    candidate.stop();
    candidate.stop();
    assert_ends(&candidate);
    assert!(candidate.error().is_none());
    assert!(messages.recv().is_err(), "its closure must be dropped");
    observer.await_children(&dir, 1);
    drop(guard);
}

#[test]
fn leading_candidate_stops_when_its_closure_returns() {
    let session = session(server::shared());
    let dir = unique_dir("stop-leading");
    let (candidate, messages) = start_candidate(&session, &dir);
    await_leading(&messages);
    assert!(candidate.is_leader());
    candidate.stop();
    assert_eq!(next(&messages), Message::Stopped(None));
    assert_ends(&candidate);
    assert!(candidate.error().is_none() && !candidate.is_leader());
    assert_eq!(Observer::at(server::shared()).children(&dir).len(), 0);
}

#[test]
fn candidate_stops_at_once_while_packets_are_swallowed() {
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), LONG);
    let dir = unique_dir("stop-silent");
    let observer = Observer::at(server::shared());
    let guard = election(&session(server::shared()), &dir).lock().unwrap();
    let (candidate, _) = start_candidate(&far, &dir);
    observer.await_children(&dir, 2);
    relay.swallow();
    candidate.stop();
    assert!(candidate.wait(Wait::timeout(LONG / 2)), "the candidate must end before the session");
    relay.restore();
    observer.await_children(&dir, 1);
    drop(guard);
}

#[test]
fn dropping_a_leading_candidate_does_not_wait() {
    let session = session(server::shared());
    let dir = unique_dir("drop");
    let observer = Observer::at(server::shared());
    let (release, held) = bounded::<()>(0);
    let (leading, leads) = unbounded();
    let lead = move |leadership: &Leadership| {
        leading.send(())?;
        let _ = held.recv();
        assert!(leadership.should_stop() && leadership.is_owner());
        leading.send(())?;
        Ok(())
    };
    let candidate = Candidate::start(election(&session, &dir), lead).unwrap();
    next(&leads);
    drop(candidate);
    assert_eq!(observer.children(&dir).len(), 1, "the candidate must lead until its closure returns");
    drop(release);
    next(&leads);
    observer.await_children(&dir, 0);
    eventually("its closure is dropped", || leads.try_recv().is_err_and(|error| error.is_disconnected()));
}
