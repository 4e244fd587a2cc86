//! Tests of candidates on the fake server.

use super::*;
use crate::engine::SessionEnd;
use std::time::Instant;

use crossbeam_channel::{RecvTimeoutError, TryRecvError, unbounded};

use crate::client::{Acl, Permissions};
use crate::error::{ErrorReason, Operation, ZkError};
use crate::fake::{Effect, SimOperation, SimulatedClient, SimulatedZooKeeper, VirtualClock};
use crate::tests::{deadline, eventually, in_background, next, open_on_manual_runtime};
use crate::{LockOptions, LossReason};

const LONG: Duration = Duration::from_secs(30);

/// A session, and an election on it.
fn election(server: &SimulatedZooKeeper) -> (Arc<SimulatedClient>, BlockingWriteLock) {
    let client = server.connect(LONG);
    let session = client.open_session().unwrap();
    (client, BlockingWriteLock::new(&session, "/election").unwrap())
}

/// A candidate whose closure leads until it must stop, and a channel that receives a message
/// when it starts to lead.
fn start_candidate(election: BlockingWriteLock) -> (Candidate, Receiver<()>) {
    let (leading, leads) = unbounded();
    let candidate = Candidate::start(election, move |leadership| {
        let _ = leading.send(());
        while leadership.wait(LONG) {}
        Ok(())
    });
    (candidate.unwrap(), leads)
}

/// Waits until an error ends the candidate, and returns the error.
fn end(candidate: &Candidate) -> &LockError {
    assert!(candidate.wait(deadline()), "the candidate has not ended");
    candidate.error().unwrap()
}

#[test]
fn stopped_candidate_steps_down_and_ends_without_an_error() {
    let server = SimulatedZooKeeper::new();
    let (_client, election) = election(&server);
    let (candidate, leads) = start_candidate(election);
    next(&leads);
    assert!(candidate.is_leader());
    assert!(!candidate.wait(Duration::ZERO));
    candidate.stop();
    assert!(candidate.wait(deadline()));
    assert!(!candidate.is_leader());
    assert!(candidate.error().is_none());
    assert!(server.children("/election").is_empty());
}

/// The docs show this end of a process, whose closure takes longer than the process waits.
#[test]
fn nobody_else_leads_while_the_closure_works_unless_the_session_is_closed() {
    for is_closed in [false, true] {
        let server = SimulatedZooKeeper::new();
        let session = server.connect(LONG).open_session().unwrap();
        let election = BlockingWriteLock::new(&session, "/election").unwrap();
        let ((working, works), (ending, ends)) = (unbounded(), unbounded::<()>());
        let candidate = Candidate::start(election, move |leadership| {
            while leadership.wait(LONG) {}
            working.send(()).unwrap();
            let _ = ends.recv();
            Ok(())
        });
        let candidate = candidate.unwrap();
        assert!(candidate.wait_until_leader(deadline()).is_some());
        let other = server.connect(LONG).open_session().unwrap();
        let heir = Candidate::keep_leading(BlockingWriteLock::new(&other, "/election").unwrap()).unwrap();
        candidate.stop();
        assert!(!candidate.wait(Duration::from_millis(10)));
        next(&works);
        if is_closed {
            session.close();
        }
        drop((candidate, session));
        assert_eq!(heir.wait_until_leader(Duration::from_millis(100)).is_some(), is_closed);
        drop(ending);
        assert!(heir.wait_until_leader(deadline()).is_some());
    }
}

#[test]
fn candidate_without_a_closure_leads_until_it_is_stopped() {
    let server = SimulatedZooKeeper::new();
    let (_client, election) = election(&server);
    let session = server.connect(LONG).open_session().unwrap();
    let second = BlockingWriteLock::new(&session, "/election").unwrap();
    let first = Candidate::keep_leading(election).unwrap();
    assert!(first.wait_until_leader(deadline()).is_some());
    let second = Candidate::keep_leading(second).unwrap();
    eventually("it joins the queue", || server.children("/election").len() == 2);
    assert!(second.wait_until_leader(Duration::from_millis(10)).is_none());
    assert!(first.is_leader() && !second.is_leader());
    first.stop();
    assert!(second.wait_until_leader(deadline()).is_some());
    assert!(first.wait(deadline()) && first.wait_until_leader(Wait::forever()).is_none());
    assert!(first.error().is_none());
}

#[test]
fn candidate_without_a_closure_leads_again_after_a_loss() {
    let server = SimulatedZooKeeper::new();
    let (_client, election) = election(&server);
    let candidate = Candidate::keep_leading(election).unwrap();
    assert!(candidate.wait_until_leader(deadline()).is_some());
    let znode = server.children("/election").remove(0);
    server.delete(&format!("/election/{znode}"));
    eventually("the loss is noticed", || !candidate.is_leader());
    assert!(candidate.wait_until_leader(deadline()).is_some());
    assert_ne!(server.children("/election"), [znode]);
}

#[test]
fn wait_for_the_leadership_ends_with_the_candidate() {
    let server = SimulatedZooKeeper::new();
    let (client, election) = election(&server);
    let _leader = election.lock().unwrap();
    let session = server.connect(LONG).open_session().unwrap();
    let candidate = Candidate::keep_leading(BlockingWriteLock::new(&session, "/election").unwrap()).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| candidate.wait_until_leader(Wait::forever()));
        session.close();
        assert!(waiting.join().unwrap().is_none());
    });
    drop(client);
}

#[test]
fn candidate_whose_session_is_closed_after_a_stop_ends_without_an_error() {
    let server = SimulatedZooKeeper::new();
    let (client, _runtime, session) = open_on_manual_runtime(&server, LONG);
    let election = BlockingWriteLock::new(&session, "/election").unwrap();
    let (joining, joins) = unbounded();
    let (go, may_go) = unbounded::<()>();
    // This runs on the candidate's thread. When that thread waits, it finds the candidate stopped and the
    // session closed.
    client.before_next(SimOperation::Create, move || {
        joining.send(()).unwrap();
        let _ = may_go.recv_timeout(deadline());
        session.core().end(SessionEnd::Closed);
    });
    let candidate = Candidate::start(election, |_| Ok(())).unwrap();
    next(&joins);
    candidate.stop();
    go.send(()).unwrap();
    // A longer wait would immediately advance the time of this runtime.
    eventually("the candidate ends", || candidate.wait(Duration::ZERO));
    assert!(candidate.error().is_none(), "{candidate:?}");
}

#[test]
fn dropped_waiting_candidate_leaves_the_queue() {
    let server = SimulatedZooKeeper::new();
    let (_client, election) = election(&server);
    let leader = election.lock().unwrap();
    let session = server.connect(LONG).open_session().unwrap();
    let other = BlockingWriteLock::new(&session, "/election").unwrap();
    let (candidate, leads) = start_candidate(other);
    eventually("it joins the queue", || server.children("/election").len() == 2);
    let ended = candidate.ended().clone();
    drop(candidate);
    assert_eq!(ended.recv_timeout(deadline()), Err(RecvTimeoutError::Disconnected));
    eventually("it leaves the queue", || server.children("/election").len() == 1);
    assert!(leads.is_empty());
    assert!(leader.is_owner());
}

#[test]
fn the_end_of_the_session_ends_a_candidate() {
    let server = SimulatedZooKeeper::new();
    let (client, lock) = election(&server);
    let (candidate, leads) = start_candidate(lock);
    next(&leads);
    client.expire();
    assert!(end(&candidate).is_session_lost(), "{candidate:?}");

    let session = server.connect(LONG).open_session().unwrap();
    let lock = BlockingWriteLock::new(&session, "/election").unwrap();
    let (candidate, leads) = start_candidate(lock);
    next(&leads);
    session.close();
    assert!(end(&candidate).is_closed(), "{candidate:?}");
}

#[test]
fn a_candidate_ends_with_its_session_and_no_later() {
    let (server, clock) = (SimulatedZooKeeper::new(), VirtualClock::new());
    let client = server.connect(LONG);
    let session = clock.open(client.clone()).unwrap();
    let lock = BlockingWriteLock::new(&session, "/election").unwrap();
    let candidate = Candidate::keep_leading(lock).unwrap();
    assert!(candidate.wait_until_leader(LONG).is_some());
    client.expire();
    // The clock does not advance.
    assert_eq!(candidate.ended().recv_timeout(deadline()), Err(RecvTimeoutError::Disconnected));
    assert!(candidate.error().is_some_and(LockError::is_session_lost), "{candidate:?}");
}

#[test]
fn panic_in_the_closure_ends_the_candidate_and_its_leadership() {
    let server = SimulatedZooKeeper::new();
    let (_client, election) = election(&server);
    let candidate = Candidate::start(election, |_| panic!("on purpose")).unwrap();
    let error = end(&candidate);
    assert_eq!((error.reason(), error.path()), (ErrorReason::LeaderPanicked, Some("/election")));
    assert!(error.to_string().contains("(on purpose)"), "{error}");
    assert!(server.children("/election").is_empty());
}

#[test]
fn candidate_rejoins_after_a_pause_when_the_closure_fails() {
    let server = SimulatedZooKeeper::new();
    let (_client, election) = election(&server);
    let (leading, leads) = unbounded();
    let begun = Instant::now();
    let _candidate = Candidate::start(election, move |_| {
        let _ = leading.send(Instant::now());
        Err("no luck".into())
    });
    next(&leads);
    let pause = next(&leads) - begun;
    assert!(pause >= MIN_REJOIN_INTERVAL / 2, "{pause:?}");
}

#[test]
fn candidate_rejoins_after_its_znode_was_deleted() {
    let server = SimulatedZooKeeper::new();
    let (_client, election) = election(&server);
    let (_candidate, leads) = start_candidate(election);
    next(&leads);
    let first = server.children("/election").remove(0);
    server.delete(&format!("/election/{first}"));
    next(&leads);
    assert_ne!(server.children("/election"), [first]);
}

#[test]
fn candidate_without_delete_permission_ends() {
    let server = SimulatedZooKeeper::new();
    let (_client, election) = election(&server);
    let (candidate, leads) = start_candidate(election);
    next(&leads);
    server.set_acl("/election", &[Acl::new(Permissions::READ, "world", "anyone")]);
    candidate.stop();
    assert!(end(&candidate).is_access_denied(), "{candidate:?}");
}

#[test]
fn candidate_rejoins_after_a_recoverable_refusal() {
    let server = SimulatedZooKeeper::new();
    let (client, election) = election(&server);
    client.fail_next(SimOperation::Create, Effect::Before, ZkError::Throttled);
    let (candidate, leads) = start_candidate(election);
    assert!(leads.recv_timeout(deadline()).is_ok(), "{:?}", candidate.error());
}

#[test]
fn candidate_stands_again_although_the_deletion_of_its_znode_was_throttled() {
    let server = SimulatedZooKeeper::new();
    let (client, election) = election(&server);
    let (candidate, leads) = start_candidate(election);
    next(&leads);
    client.fail_next(SimOperation::Delete, Effect::Before, ZkError::Throttled);
    candidate.leadership().unwrap().step_down();
    assert!(leads.recv_timeout(deadline()).is_ok(), "{:?}", candidate.error());
}

#[test]
fn line_about_a_lost_session_names_the_remedy() {
    let lost = |reason| LockError::ended(Operation::LOCK, "/election", reason);
    let line = how_it_ends("/election", &lost(LossReason::SessionLost));
    assert!(
        line.starts_with("the candidate for '/election' ends: lock '/election': the session is lost"),
        "{line}"
    );
    assert!(line.contains("replace_lost_sessions"), "{line}");
    let line = how_it_ends("/election", &lost(LossReason::Closed));
    assert!(!line.contains("replace_lost_sessions"), "{line}");
}

#[test]
fn leadership_ends_at_its_limit_and_the_candidate_stands_again() {
    let server = SimulatedZooKeeper::new();
    let clock = VirtualClock::new();
    let session = clock.open(server.connect(LONG)).unwrap();
    let options = LockOptions::new().max_hold(LONG / 2);
    let lock = BlockingWriteLock::with_options(&session, "/election", options).unwrap();
    let (ended, ends) = unbounded();
    let candidate = Candidate::start(lock, move |leadership| {
        while leadership.wait(LONG) {}
        let _ = ended.send((leadership.is_owner(), leadership.loss()));
        Ok(())
    });
    let candidate = candidate.unwrap();
    for _ in 0..2 {
        eventually("it leads", || candidate.is_leader());
        clock.advance(LONG / 2);
        assert_eq!(next(&ends), (false, Some(LossReason::HeldTooLong)));
    }
    assert!(candidate.error().is_none());
}

#[test]
fn leadership_that_is_kept_never_leads_in_a_later_term() {
    let server = SimulatedZooKeeper::new();
    let (_client, election) = election(&server);
    let candidate = Candidate::keep_leading(election).unwrap();
    let first = candidate.wait_until_leader(deadline()).unwrap();
    assert!(first.is_owner() && first.fencing_token().is_ok() && !first.lease_remaining().is_zero());
    first.step_down();
    first.step_down();
    assert!(first.should_stop());
    eventually("it has stepped down", || !first.is_owner());
    // The only candidate leads again.
    let second = candidate.wait_until_leader(deadline()).unwrap();
    assert!(!Arc::ptr_eq(&first, &second) && second.id() != first.id());
    assert!(second.is_owner() && !second.should_stop() && !first.is_owner());
    assert_eq!(first.loss(), None, "it was not lost");
    first.step_down();
    assert!(second.is_owner() && !second.should_stop());
    assert!(
        matches!(first.commit(|changes| changes.delete("/other")), Err(ref error) if error.reason() == ErrorReason::NotOwner)
    );
    candidate.stop();
    assert!(candidate.wait(deadline()) && candidate.leadership().is_none() && !second.is_owner());
}

#[test]
fn leader_that_steps_down_lets_the_next_one_lead() {
    let server = SimulatedZooKeeper::new();
    let (_client, election) = election(&server);
    let first = Candidate::keep_leading(election).unwrap();
    let leadership = first.wait_until_leader(deadline()).unwrap();
    let session = server.connect(LONG).open_session().unwrap();
    let second = Candidate::keep_leading(BlockingWriteLock::new(&session, "/election").unwrap()).unwrap();
    eventually("it joins the queue", || server.children("/election").len() == 2);
    assert!(second.leadership().is_none());
    leadership.step_down();
    assert!(second.wait_until_leader(deadline()).is_some());
    assert!(!first.is_leader() && first.error().is_none());
}

#[test]
fn leader_may_step_down_while_it_commits_and_within_its_closure() {
    let server = SimulatedZooKeeper::new();
    server.create("/report", b"");
    let (client, election) = election(&server);
    let (terms, term) = unbounded();
    let candidate = Candidate::start(election, move |leadership| {
        if terms.is_empty() {
            let stop = leadership.stop_requested().clone();
            let committed = leadership.commit(|changes| changes.set_data("/report", "done"));
            let is_asked = stop.try_recv().is_err_and(|error| error.is_disconnected());
            let _ = terms.send((committed.is_ok(), is_asked, leadership.wait(LONG)));
        }
        Ok(())
    });
    let candidate = Arc::new(candidate.unwrap());
    let of_candidate = Arc::downgrade(&candidate);
    client.before_next(SimOperation::Transact, move || {
        let candidate = of_candidate.upgrade();
        candidate.and_then(|candidate| candidate.leadership()).unwrap().step_down();
    });
    assert_eq!(next(&term), (true, true, false));
}

#[test]
fn leader_that_loses_the_lock_may_step_down() {
    let server = SimulatedZooKeeper::new();
    let (_client, election) = election(&server);
    let candidate = Candidate::keep_leading(election).unwrap();
    let first = candidate.wait_until_leader(deadline()).unwrap();
    server.delete(first.id());
    first.step_down();
    eventually("it does not lead", || !first.is_owner());
    assert!(candidate.wait_until_leader(deadline()).unwrap().id() != first.id());
}

/// The term ends without a loss and without a stop, because the closure returns.
#[test]
fn end_of_a_term_ends_the_waits_of_those_who_kept_the_leadership() {
    let server = SimulatedZooKeeper::new();
    let (_client, election) = election(&server);
    let (end, may_end) = unbounded::<()>();
    let candidate = Candidate::start(election, move |_| {
        let _ = may_end.recv_timeout(deadline());
        Ok(())
    });
    let candidate = candidate.unwrap();
    let first = candidate.wait_until_leader(deadline()).unwrap();
    let waiting = in_background({
        let first = Arc::clone(&first);
        move || first.wait(Duration::from_secs(3600))
    });
    assert!(!first.should_stop() && first.stop_requested().try_recv() == Err(TryRecvError::Empty));
    end.send(()).unwrap();
    assert!(!next(&waiting));
    let requested = first.stop_requested().recv_timeout(deadline());
    assert_eq!(requested, Err(RecvTimeoutError::Disconnected));
    // The waits of the next term continue.
    let second = candidate.wait_until_leader(deadline()).unwrap();
    assert!(!first.wait(LONG) && second.wait(Duration::from_millis(1)));
    assert_eq!((first.loss(), second.stop_requested().try_recv()), (None, Err(TryRecvError::Empty)));
}
