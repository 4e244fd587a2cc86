//! Candidates: who leads, what ends a leadership, and what comes after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, select, unbounded};
use zookeeper_recipes_lock::{
    Acl, BlockingWriteLock, Candidate, Leadership, LockError, LockOptions, LossReason, Permissions,
    Revocation, Revoker, Session, Wait,
};

use crate::fixtures::{
    ErrorVariant, LONG, Onlooker, SHORT, connect, connect_replaced, next, session, unique_dir,
};
use crate::support::relay::Relay;
use crate::support::server;
use crate::support::wait::{deadline, eventually};
use crate::twin::Twin;

/// Longer than any test.
const FOR_EVER: Duration = Duration::from_secs(3600);

fn election(session: &Session, dir: &str) -> BlockingWriteLock {
    BlockingWriteLock::new(session, dir).unwrap()
}

fn assert_ends(candidate: &Candidate) {
    assert!(candidate.wait(Wait::timeout(deadline())), "never ended: {candidate:?}");
}

/// What a candidate that leads for as long as it may tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Leading(i64),
    Out(Option<LossReason>),
}

/// A candidate that leads for as long as it may.
fn stand(session: &Session, dir: &str) -> (Candidate, Receiver<Word>) {
    let (words, said) = unbounded();
    let lead = move |leadership: &Leadership| {
        words.send(Word::Leading(leadership.fencing_token()?))?;
        assert!(!leadership.wait(FOR_EVER));
        words.send(Word::Out(leadership.lost().try_recv().ok()))?;
        Ok(())
    };
    (Candidate::start(election(session, dir), lead).unwrap(), said)
}

fn await_leading(said: &Receiver<Word>) -> i64 {
    match next(said) {
        Word::Leading(token) => token,
        out => panic!("{out:?}, not leading"),
    }
}

/// A candidate that leads until it is told to return.
fn stand_until(
    session: &Session,
    dir: &str,
    name: &'static str,
    leading: &Sender<&'static str>,
) -> (Candidate, Sender<()>) {
    let (go, gone) = unbounded();
    let leading = leading.clone();
    let lead = move |_: &Leadership| {
        leading.send(name)?;
        Ok(gone.recv()?)
    };
    (Candidate::start(election(session, dir), lead).unwrap(), go)
}

// ---- one at a time

#[test]
fn two_candidates_never_lead_at_once_and_all_have_their_turn() {
    let dir = unique_dir("one-leader");
    let leaders = Arc::new(AtomicUsize::new(0));
    let (terms, led) = unbounded();
    let candidates: Vec<(Session, Candidate)> = (0..3)
        .map(|number| {
            let session = session(server::shared());
            let (leaders, terms) = (Arc::clone(&leaders), terms.clone());
            let lead = move |leadership: &Leadership| {
                assert_eq!(leaders.fetch_add(1, Ordering::SeqCst), 0, "two leaders");
                assert!(leadership.is_leader());
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
        assert!(token > last_token, "the token grows");
        last_token = token;
        terms_of[number] += 1;
    }
    for (_, candidate) in &candidates {
        candidate.stop();
        assert_ends(candidate);
        assert!(candidate.error().is_none(), "{candidate:?}");
    }
    Onlooker::at(server::shared()).await_children(&dir, 0);
}

#[test]
fn a_closure_that_returns_steps_down_and_stands_again_behind_the_others() {
    let session = session(server::shared());
    let dir = unique_dir("again");
    let onlooker = Onlooker::at(server::shared());
    let (leading, leaders) = unbounded();
    let (first, first_may_go) = stand_until(&session, &dir, "first", &leading);
    assert_eq!(next(&leaders), "first");
    let (second, second_may_go) = stand_until(&session, &dir, "second", &leading);
    for _ in 0..2 {
        onlooker.await_children(&dir, 2);
        assert!(first.is_leader() && !second.is_leader());
        first_may_go.send(()).unwrap();
        assert_eq!(next(&leaders), "second");
        onlooker.await_children(&dir, 2);
        assert!(second.is_leader() && !first.is_leader());
        second_may_go.send(()).unwrap();
        assert_eq!(next(&leaders), "first");
    }
}

/// Runs itself in a process of its own, which leads and is then killed.
#[test]
fn a_leader_that_is_killed_is_followed() {
    const NAME: &str = "electing::a_leader_that_is_killed_is_followed";
    if let Some((connect_string, dir)) = Twin::place() {
        let (candidate, said) = stand(&connect(&connect_string, SHORT), &dir);
        await_leading(&said);
        Twin::say("leading");
        candidate.wait(Wait::forever());
        return;
    }

    let dir = unique_dir("killed");
    let mut twin = Twin::start(NAME, &dir);
    assert_eq!(twin.hear(), "leading");
    let session = session(server::shared());
    let (candidate, said) = stand(&session, &dir);
    Onlooker::at(server::shared()).await_children(&dir, 2);
    assert!(said.try_recv().is_err() && !candidate.is_leader());

    twin.kill();
    await_leading(&said);
    assert!(candidate.is_leader());
}

#[test]
fn a_candidate_whose_closure_fails_at_once_stands_once_a_second() {
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

// ---- what ends a leadership

#[test]
fn a_leader_whose_znode_is_deleted_is_told_and_stands_again() {
    let session = session(server::shared());
    let dir = unique_dir("deleted");
    let onlooker = Onlooker::at(server::shared());
    let (candidate, said) = stand(&session, &dir);
    let first = await_leading(&said);
    onlooker.delete(&format!("{dir}/{}", onlooker.children(&dir)[0]));
    assert_eq!(next(&said), Word::Out(Some(LossReason::NodeDeleted)));
    assert!(await_leading(&said) > first);
    assert!(candidate.is_leader());
}

#[test]
fn a_leader_that_is_asked_for_its_leadership_steps_down() {
    let session = session(server::shared());
    let dir = unique_dir("revoked");
    let onlooker = Onlooker::at(server::shared());
    let (first, first_said) = stand(&session, &dir);
    await_leading(&first_said);
    let (second, second_said) = stand(&session, &dir);
    onlooker.await_children(&dir, 2);
    let leader = format!("{dir}/{}", onlooker.children(&dir)[0]);
    let revoked = Revoker::new(&session).force_revocation_after(&leader, deadline()).unwrap();
    assert_eq!(revoked, Revocation::Complied);
    assert_eq!(next(&first_said), Word::Out(None));
    await_leading(&second_said);
    onlooker.await_children(&dir, 2);
    assert!(second.is_leader() && !first.is_leader());
}

#[test]
fn a_closure_that_panics_releases_the_leadership_and_ends_its_candidate() {
    let session = session(server::shared());
    let dir = unique_dir("panics");
    let (tokens, led) = unbounded();
    let lead = move |leadership: &Leadership| {
        tokens.send(leadership.fencing_token()?)?;
        panic!("on purpose, {}", 7);
    };
    let panicking = Candidate::start(election(&session, &dir), lead).unwrap();
    let first = next(&led);
    let (_candidate, said) = stand(&session, &dir);
    assert!(await_leading(&said) > first);
    assert_ends(&panicking);
    let error = panicking.error().unwrap();
    assert!(matches!(error, LockError::LeaderPanicked { .. }), "{error:?}");
    assert!(error.to_string().contains(&dir) && error.to_string().contains("on purpose, 7"), "{error}");
    assert!(led.recv().is_err(), "the closure is not called again, and is dropped");
}

#[test]
fn a_candidate_whose_znode_is_deleted_while_it_waits_stands_again() {
    let session = session(server::shared());
    let dir = unique_dir("deleted-waiting");
    let onlooker = Onlooker::at(server::shared());
    let guard = election(&session, &dir).lock().unwrap();
    let (candidate, said) = stand(&session, &dir);
    onlooker.await_children(&dir, 2);
    onlooker.delete(&format!("{dir}/{}", onlooker.children(&dir)[1]));
    drop(guard);
    await_leading(&said);
    assert!(candidate.is_leader());
}

#[test]
fn a_candidate_that_may_not_delete_its_znode_ends_rather_than_wait_behind_it() {
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
fn on_a_plain_session_its_loss_stops_the_closure_and_ends_the_candidate() {
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), SHORT);
    let (candidate, said) = stand(&far, &unique_dir("plain-lost"));
    await_leading(&said);
    relay.swallow();
    assert_eq!(next(&said), Word::Out(Some(LossReason::LeaseExpired)));
    assert!(!candidate.is_leader());
    assert_ends(&candidate);
    assert!(candidate.error().unwrap().is_session_lost(), "{:?}", candidate.error());
}

#[test]
fn on_a_replaced_session_a_leader_and_a_waiter_stand_again_after_its_loss() {
    let relay = Relay::to(server::shared().connect_string());
    let replacement = connect_replaced(&relay.connect_string(), SHORT);
    let dir = unique_dir("replacement-lost");
    let (leader, leader_said) = stand(&replacement, &dir);
    let first = await_leading(&leader_said);
    let (waiter, waiter_said) = stand(&replacement, &dir);
    Onlooker::at(server::shared()).await_children(&dir, 2);
    relay.swallow();
    assert_eq!(next(&leader_said), Word::Out(Some(LossReason::LeaseExpired)));
    relay.restore();
    let assert_is_later = |word| assert!(matches!(word, Word::Leading(token) if token > first), "{word:?}");
    let is_waiter_first = select! {
        recv(leader_said) -> word => { assert_is_later(word.unwrap()); false }
        recv(waiter_said) -> word => { assert_is_later(word.unwrap()); true }
        default(deadline()) => panic!("nobody leads"),
    };
    Onlooker::at(server::shared()).await_children(&dir, 2);
    select! {
        recv(leader_said) -> word => panic!("the leader changed again: {word:?}"),
        recv(waiter_said) -> word => panic!("the leader changed again: {word:?}"),
        default(Duration::from_secs(1)) => {}
    }
    assert_eq!((leader.is_leader(), waiter.is_leader()), (!is_waiter_first, is_waiter_first));
    assert!(leader.error().is_none() && waiter.error().is_none());
}

#[test]
fn a_closed_session_ends_candidates_that_lead_and_that_wait() {
    let session = session(server::shared());
    let dir = unique_dir("closed");
    let (leader, said) = stand(&session, &dir);
    await_leading(&said);
    let (waiter, _) = stand(&session, &dir);
    Onlooker::at(server::shared()).await_children(&dir, 2);
    session.close();
    for candidate in [&leader, &waiter] {
        assert_ends(candidate);
        assert!(candidate.error().unwrap().is_closed(), "{:?}", candidate.error());
    }
    assert_eq!(next(&said), Word::Out(Some(LossReason::SessionClosed)));
}

// ---- stopping

#[test]
fn a_candidate_that_waits_stops_at_once_and_leaves_the_queue() {
    let session = session(server::shared());
    let dir = unique_dir("stop-waiting");
    let onlooker = Onlooker::at(server::shared());
    let guard = election(&session, &dir).lock().unwrap();
    let (candidate, said) = stand(&session, &dir);
    onlooker.await_children(&dir, 2);
    assert!(!candidate.wait(Wait::timeout(Duration::ZERO)));
    candidate.stop();
    candidate.stop();
    assert_ends(&candidate);
    assert!(candidate.error().is_none());
    assert!(said.recv().is_err(), "its closure is dropped");
    onlooker.await_children(&dir, 1);
    drop(guard);
}

#[test]
fn a_candidate_that_leads_stops_when_its_closure_returns_and_is_gone_then() {
    let session = session(server::shared());
    let dir = unique_dir("stop-leading");
    let (candidate, said) = stand(&session, &dir);
    await_leading(&said);
    assert!(candidate.is_leader());
    candidate.stop();
    assert_eq!(next(&said), Word::Out(None));
    assert_ends(&candidate);
    assert!(candidate.error().is_none() && !candidate.is_leader());
    assert_eq!(Onlooker::at(server::shared()).children(&dir).len(), 0);
}

#[test]
fn a_candidate_stops_at_once_while_packets_are_swallowed() {
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), LONG);
    let dir = unique_dir("stop-silent");
    let onlooker = Onlooker::at(server::shared());
    let guard = election(&session(server::shared()), &dir).lock().unwrap();
    let (candidate, _) = stand(&far, &dir);
    onlooker.await_children(&dir, 2);
    relay.swallow();
    candidate.stop();
    assert!(candidate.wait(Wait::timeout(LONG / 2)), "before the session ends");
    relay.restore();
    onlooker.await_children(&dir, 1);
    drop(guard);
}

#[test]
fn dropping_a_candidate_whose_closure_goes_on_waits_for_nothing() {
    let session = session(server::shared());
    let dir = unique_dir("drop");
    let onlooker = Onlooker::at(server::shared());
    let (release, held) = bounded::<()>(0);
    let (leading, leads) = unbounded();
    let lead = move |leadership: &Leadership| {
        leading.send(())?;
        let _ = held.recv();
        assert!(leadership.should_stop() && leadership.is_leader());
        leading.send(())?;
        Ok(())
    };
    let candidate = Candidate::start(election(&session, &dir), lead).unwrap();
    next(&leads);
    drop(candidate);
    assert_eq!(onlooker.children(&dir).len(), 1, "it leads until it returns");
    drop(release);
    next(&leads);
    onlooker.await_children(&dir, 0);
    eventually("its closure is dropped", || leads.try_recv().is_err_and(|error| error.is_disconnected()));
}
