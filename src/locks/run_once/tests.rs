//! Tests of jobs that run once, on a fake server.

use crate::error::ErrorReason;
use std::cell::Cell;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::client::{Acl, Permissions};
use crate::fake::{Effect, SimOperation, SimulatedClient, SimulatedZooKeeper};
use crate::tests::{eventually, in_background, next};

const DIR: &str = "/app/jobs";
const TIMEOUT: Duration = Duration::from_secs(30);
const BOTH: [Repeat; 2] = [Repeat::Never, Repeat::UntilSuccess];

struct Fixture {
    server: SimulatedZooKeeper,
    client: Arc<SimulatedClient>,
    jobs: RunOnce,
    /// How often a job has begun.
    runs: Cell<u32>,
}

impl Fixture {
    fn new(repeat: Repeat) -> Fixture {
        Fixture::with_options(repeat, LockOptions::new())
    }

    fn with_options(repeat: Repeat, options: LockOptions) -> Fixture {
        crate::tests::begin();
        let server = SimulatedZooKeeper::new();
        let client = server.connect(TIMEOUT);
        let session = client.open_session().unwrap();
        let jobs = RunOnce::with_options(&session, DIR, options, repeat).unwrap();
        Fixture { server, client, jobs, runs: Cell::new(0) }
    }

    fn run(&self, key: &str) -> Result<RunOutcome<u32, Infallible>> {
        self.jobs.run(key, |guard| {
            assert!(guard.is_owner());
            self.runs.set(self.runs.get() + 1);
            Ok(7)
        })
    }

    fn fail(&self, key: &str) -> Result<RunOutcome<u32, &'static str>> {
        self.jobs.run(key, |_| {
            self.runs.set(self.runs.get() + 1);
            Err("no disk")
        })
    }

    /// Asserts that only the marker is left in the directory of the key.
    fn assert_marked(&self, key: &str) {
        assert_eq!(self.server.children(&format!("{DIR}/{key}")), ["done"]);
    }
}

fn is_done<T, E>(outcome: &RunOutcome<T, E>) -> bool {
    matches!(outcome, RunOutcome::AlreadyDone { .. })
}

#[test]
fn job_runs_once_for_each_key() {
    for repeat in BOTH {
        let fixture = Fixture::new(repeat);
        for key in ["a", "b"] {
            assert_eq!(fixture.run(key).unwrap(), RunOutcome::Ran(7));
            fixture.assert_marked(key);
            assert!(is_done(&fixture.run(key).unwrap()), "{repeat:?}");
        }
        assert_eq!(fixture.runs.get(), 2);
    }
}

#[test]
fn marker_names_who_has_run_the_job_and_when() {
    let fixture = Fixture::with_options(Repeat::Never, LockOptions::new().data("host a\nrack 7"));
    assert_eq!(fixture.run("a").unwrap(), RunOutcome::Ran(7));
    let created = fixture.server.stat("/app/jobs/a/done").unwrap().created();
    let RunOutcome::AlreadyDone { by, at } = fixture.run("a").unwrap() else { panic!("it is done") };
    assert_eq!((by.as_str(), at), ("host a\nrack 7", created));
}

#[test]
fn marker_of_unknown_origin_counts_as_done() {
    let fixture = Fixture::new(Repeat::Never);
    for (key, data) in [("a", "by hand"), ("b", ""), ("c", "x\n../up begun"), ("d", "x\ny-0000000001 soon")] {
        fixture.server.create(&format!("{DIR}/{key}"), b"");
        fixture.server.create(&format!("{DIR}/{key}/done"), data.as_bytes());
        let RunOutcome::AlreadyDone { by, .. } = fixture.run(key).unwrap() else { panic!("{key}") };
        assert_eq!(by, data);
    }
    assert_eq!(fixture.runs.get(), 0);
}

#[test]
fn key_is_marked_before_the_job_or_after_it() {
    for (repeat, is_marked) in [(Repeat::Never, true), (Repeat::UntilSuccess, false)] {
        let fixture = Fixture::new(repeat);
        let outcome = fixture.jobs.run("a", |_| {
            assert_eq!(fixture.server.exists("/app/jobs/a/done"), is_marked, "{repeat:?}");
            Ok::<_, Infallible>(())
        });
        assert_eq!(outcome.unwrap(), RunOutcome::Ran(()));
        assert!(fixture.server.exists("/app/jobs/a/done"));
    }
}

#[test]
fn failed_job_is_repeated_only_until_success() {
    for (repeat, runs) in [(Repeat::Never, 1), (Repeat::UntilSuccess, 3)] {
        let fixture = Fixture::new(repeat);
        assert_eq!(fixture.fail("a").unwrap(), RunOutcome::Failed("no disk"));
        let again = fixture.fail("a").unwrap();
        assert_eq!(is_done(&again), repeat == Repeat::Never);
        assert_eq!(is_done(&fixture.run("a").unwrap()), repeat == Repeat::Never);
        assert_eq!(fixture.runs.get(), runs);
        fixture.assert_marked("a");
    }
}

#[test]
fn job_that_panics_releases_the_lock() {
    for repeat in BOTH {
        let fixture = Fixture::new(repeat);
        let job = |_: &LockGuard| -> std::result::Result<(), Infallible> { panic!("on purpose") };
        let panicked = catch_unwind(AssertUnwindSafe(|| fixture.jobs.run("a", job)));
        assert!(panicked.is_err());
        eventually("the lock is free", || {
            fixture.server.children("/app/jobs/a").iter().all(|child| child == "done")
        });
        assert_eq!(is_done(&fixture.run("a").unwrap()), repeat == Repeat::Never);
    }
}

#[test]
fn job_that_runs_elsewhere_is_in_progress() {
    for repeat in BOTH {
        let fixture = Fixture::new(repeat);
        let other = fixture.server.connect(TIMEOUT);
        let session = other.open_session().unwrap();
        let others = RunOnce::with_options(&session, DIR, LockOptions::new(), repeat).unwrap();
        let outcome = fixture.jobs.run("a", |_| {
            let others = others.run("a", |_| Ok::<_, Infallible>(()));
            assert_eq!(others.unwrap(), RunOutcome::InProgress, "{repeat:?}");
            Ok::<_, Infallible>(())
        });
        assert_eq!(outcome.unwrap(), RunOutcome::Ran(()));
        assert!(is_done(&others.run("a", |_| Ok::<_, Infallible>(())).unwrap()));
    }
}

#[test]
fn one_of_many_threads_runs_the_job() {
    for repeat in BOTH {
        let fixture = Fixture::new(repeat);
        let (sender, ran) = crossbeam_channel::unbounded();
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (jobs, sender) = (fixture.jobs.clone(), sender.clone());
                in_background(move || {
                    loop {
                        let outcome = jobs.run("a", |_| sender.send(()));
                        match outcome.unwrap() {
                            RunOutcome::InProgress => {}
                            outcome => return is_done(&outcome),
                        }
                    }
                })
            })
            .collect();
        let others = threads.iter().filter(|thread| next(thread)).count();
        assert_eq!((others, ran.len()), (7, 1), "{repeat:?}");
    }
}

#[test]
fn job_of_a_process_that_dies_is_repeated_only_until_success() {
    for repeat in BOTH {
        let fixture = Fixture::new(repeat);
        let dying = fixture.server.connect(TIMEOUT);
        let session = dying.open_session().unwrap();
        let others = RunOnce::with_options(&session, DIR, LockOptions::new(), repeat).unwrap();
        let outcome = others.run("a", |guard| {
            dying.expire();
            assert!(!guard.is_owner());
            Ok::<_, Infallible>(())
        });
        assert_eq!(outcome.is_ok(), repeat == Repeat::Never, "{outcome:?}");
        assert_eq!(is_done(&fixture.run("a").unwrap()), repeat == Repeat::Never);
    }
}

#[test]
fn replaced_owner_marks_nothing() {
    let fixture = Fixture::new(Repeat::Never);
    let (server, client) = (fixture.server.clone(), Arc::clone(&fixture.client));
    client.before_next(SimOperation::Transact, move || {
        let request = server.children("/app/jobs/a").remove(0);
        server.delete(&format!("/app/jobs/a/{request}"));
    });
    let error = fixture.run("a").unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NotOwner, "{error:?}");
    assert_eq!(fixture.runs.get(), 0);
    assert!(!fixture.server.exists("/app/jobs/a/done"));

    let fixture = Fixture::new(Repeat::UntilSuccess);
    let error = fixture.jobs.run("a", |guard| {
        fixture.server.delete(guard.id());
        Ok::<_, Infallible>(())
    });
    assert!(matches!(error, Err(ref error) if error.reason() == ErrorReason::NotOwner), "{error:?}");
    assert!(!fixture.server.exists("/app/jobs/a/done"));
}

#[test]
fn job_does_not_begin_after_its_lock_was_lost_and_another_process_has_done_it() {
    const MAX_HOLD: Duration = Duration::from_secs(2);
    let fixture = Fixture::new(Repeat::UntilSuccess);
    let options = LockOptions::new().max_hold(MAX_HOLD);
    let session = fixture.client.open_session().unwrap();
    let jobs = RunOnce::with_options(&session, DIR, options, Repeat::UntilSuccess).unwrap();
    let (release, held) = crossbeam_channel::bounded::<()>(0);
    let (begin, begun) = crossbeam_channel::bounded(1);
    // The check under the lock is made, but its answer is late.
    fixture.client.after_next(SimOperation::Transact, move || {
        let _ = begin.send(());
        let _ = held.recv();
    });
    let late = in_background(move || {
        jobs.run("a", |_| -> std::result::Result<(), Infallible> { panic!("runs again") })
    });
    let key = format!("{DIR}/a");
    next(&begun);
    // The hold ends at its limit. The session cannot delete the znode meanwhile; somebody else does.
    let taken = std::time::Instant::now();
    eventually("the hold has ended", || taken.elapsed() > MAX_HOLD);
    fixture.server.delete(&format!("{key}/{}", fixture.server.children(&key)[0]));
    let others = others(&fixture.server);
    assert!(matches!(others.run("a", |_| Ok::<_, Infallible>(())).unwrap(), RunOutcome::Ran(())));
    drop(release);
    let error = next(&late).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NotOwner, "{error:?}");
}

#[test]
fn lost_reply_to_the_marker_neither_repeats_nor_loses_the_job() {
    for repeat in BOTH {
        for when in [Effect::Before, Effect::After] {
            let fixture = Fixture::new(repeat);
            fixture.client.fail_next(SimOperation::Transact, when, ZkError::ConnectionLoss);
            assert_eq!(fixture.run("a").unwrap(), RunOutcome::Ran(7), "{repeat:?} {when:?}");
            assert!(is_done(&fixture.run("a").unwrap()));
            assert_eq!(fixture.runs.get(), 1);
            fixture.assert_marked("a");
        }
    }
    let fixture = Fixture::new(Repeat::Never);
    fixture.client.fail_next(SimOperation::Transact, Effect::After, ZkError::MarshallingError);
    assert_eq!(fixture.run("a").unwrap(), RunOutcome::Ran(7), "an unreadable reply");
    // The marker is written after the job.
    for when in [Effect::Before, Effect::After] {
        let fixture = Fixture::new(Repeat::UntilSuccess);
        fixture.client.fail_nth(SimOperation::Transact, 2, when, ZkError::ConnectionLoss);
        assert_eq!(fixture.run("a").unwrap(), RunOutcome::Ran(7), "{when:?}");
        fixture.assert_marked("a");
    }
}

#[test]
fn job_does_not_run_without_its_marker() {
    let options = LockOptions::new().retry(crate::RetryPolicy::default().with_attempts(1));
    let fixture = Fixture::with_options(Repeat::Never, options);
    fixture.client.fail_next(SimOperation::Transact, Effect::After, ZkError::ConnectionLoss);
    assert!(fixture.run("a").unwrap_err().is_connection_loss());
    assert_eq!(fixture.runs.get(), 0);
    assert!(is_done(&fixture.run("a").unwrap()), "at most once, so never");
}

#[test]
fn client_without_transactions_is_refused_before_the_job() {
    for repeat in BOTH {
        let fixture = Fixture::new(repeat);
        fixture.client.fail_next(SimOperation::Transact, Effect::Before, ZkError::Unimplemented);
        let error = fixture.run("a").unwrap_err();
        assert_eq!(error.reason(), ErrorReason::Unsupported, "{error:?}");
        assert_eq!(fixture.runs.get(), 0);
    }
}

#[test]
fn refused_marker_is_an_error() {
    let fixture = Fixture::new(Repeat::Never);
    let acl = [Acl::new(Permissions::READ, "world", "anyone")];
    fixture.server.create_with_acl(DIR, b"", &acl);
    assert!(fixture.run("a").unwrap_err().is_access_denied());
    assert_eq!(fixture.runs.get(), 0);
}

#[test]
fn any_text_is_a_key_unless_it_is_empty_or_too_long() {
    let fixture = Fixture::new(Repeat::Never);
    let longest = "k".repeat(255);
    for key in ["a/b", "/", ".", "..", "done", "a\0b\n\u{7f}", "100%", "🦀", " ", "../../etc", &longest] {
        assert_eq!(fixture.run(key).unwrap(), RunOutcome::Ran(7), "{key:?}");
        assert!(is_done(&fixture.run(key).unwrap()), "{key:?}");
        assert!(fixture.jobs.forget(key).unwrap(), "{key:?}");
    }
    for key in ["", &"k".repeat(256), &"k".repeat(300), &"ü".repeat(128)] {
        for error in [fixture.run(key).unwrap_err(), fixture.jobs.forget(key).unwrap_err()] {
            let is_named = error.to_string().contains("key");
            assert!(error.is_invalid_argument() && is_named, "{key:?}: {error}");
        }
    }
    let deep = format!("/{}", "d".repeat(4000));
    let jobs = RunOnce::new(fixture.jobs.support.session(), &deep).unwrap();
    let error = jobs.run(&longest, |_| Ok::<_, Infallible>(())).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::InvalidArgument, "{error}");
    let error = RunOnce::new(fixture.jobs.support.session(), "jobs").unwrap_err();
    assert_eq!(error.reason(), ErrorReason::InvalidArgument);
}

#[test]
fn forgotten_job_runs_again() {
    let fixture = Fixture::new(Repeat::Never);
    assert!(!fixture.jobs.forget("a").unwrap());
    assert_eq!(fixture.run("a").unwrap(), RunOutcome::Ran(7));
    assert!(fixture.jobs.forget("a").unwrap());
    assert!(!fixture.server.exists("/app/jobs/a"));
    assert_eq!(fixture.run("a").unwrap(), RunOutcome::Ran(7));
}

#[test]
fn old_keys_are_reaped_but_not_those_in_progress() {
    let fixture = Fixture::new(Repeat::Never);
    assert_eq!(fixture.jobs.reap(Duration::ZERO).unwrap(), 0, "without a directory");
    for key in ["a", "b/c"] {
        assert_eq!(fixture.run(key).unwrap(), RunOutcome::Ran(7));
    }
    fixture.server.create("/app/jobs/other", b"");
    assert_eq!(fixture.jobs.reap(Duration::from_secs(3600 * 24 * 365 * 300)).unwrap(), 0);
    let outcome = fixture.jobs.run("d", |_| fixture.jobs.reap(Duration::ZERO));
    assert!(matches!(outcome.unwrap(), RunOutcome::Ran(2)));
    assert_eq!(fixture.server.children(DIR), ["d", "other"]);
    assert!(is_done(&fixture.run("d").unwrap()));
    assert_eq!(fixture.run("b/c").unwrap(), RunOutcome::Ran(7));
}

#[test]
fn age_of_a_key_is_by_the_servers_clock() {
    // The clock of this machine is half a century ahead.
    let fixture = Fixture::new(Repeat::Never);
    let hours = |hours: u64| Duration::from_secs(3600 * hours);
    assert_eq!(fixture.run("a").unwrap(), RunOutcome::Ran(7));
    fixture.server.advance_clock(hours(2));
    assert_eq!(fixture.run("b").unwrap(), RunOutcome::Ran(7));
    assert_eq!(fixture.jobs.reap(hours(3)).unwrap(), 0);
    assert_eq!(fixture.jobs.reap(hours(1)).unwrap(), 1);
    assert!(is_done(&fixture.run("b").unwrap()), "it is young");
    assert_eq!(fixture.run("a").unwrap(), RunOutcome::Ran(7));
}

#[test]
fn reaping_locks_no_more_than_one_young_key() {
    let fixture = Fixture::new(Repeat::Never);
    for key in ["a", "b", "c"] {
        assert_eq!(fixture.run(key).unwrap(), RunOutcome::Ran(7));
    }
    fixture.server.clear_log();
    assert_eq!(fixture.jobs.reap(TIMEOUT).unwrap(), 0);
    assert_eq!(fixture.server.calls(SimOperation::Create), 1);
}

#[test]
fn lost_session_is_an_error() {
    let fixture = Fixture::new(Repeat::Never);
    fixture.client.expire();
    assert!(fixture.run("a").unwrap_err().is_session_lost());
    assert!(fixture.jobs.forget("a").unwrap_err().is_session_lost());
    assert!(fixture.jobs.reap(TIMEOUT).unwrap_err().is_session_lost());
}

/// Returns a `RunOnce` of another process, on the same directory.
fn others(server: &SimulatedZooKeeper) -> RunOnce {
    let session = server.connect(TIMEOUT).open_session().unwrap();
    RunOnce::new(&session, DIR).unwrap()
}

fn run_elsewhere(jobs: &RunOnce) -> RunOutcome<(), Infallible> {
    jobs.run("a", |_| Ok(())).unwrap()
}

/// The operations that may delete a marker.
const DELETIONS: [SimOperation; 2] = [SimOperation::Delete, SimOperation::Transact];

#[test]
fn forget_with_a_lost_reply_leaves_a_later_marker() {
    for operation in DELETIONS {
        for nth in 1..=3 {
            let fixture = Fixture::new(Repeat::Never);
            assert_eq!(fixture.run("a").unwrap(), RunOutcome::Ran(7));
            let others = others(&fixture.server);
            fixture.client.fail_nth(operation, nth, Effect::After, ZkError::ConnectionLoss);
            let jobs = others.clone();
            let (ran, runs) = crossbeam_channel::unbounded();
            fixture.client.after_next(operation, move || {
                if run_elsewhere(&jobs) == RunOutcome::Ran(()) {
                    ran.send(()).unwrap();
                }
            });
            assert!(fixture.jobs.forget("a").unwrap());
            let again = runs.len() + usize::from(run_elsewhere(&others) == RunOutcome::Ran(()));
            assert_eq!(again, 1, "{operation:?} {nth}: it was forgotten once");
        }
    }
}

#[test]
fn forget_during_a_job_with_a_lost_reply_leaves_a_later_marker() {
    let fixture = Fixture::new(Repeat::Never);
    let (server, client) = (fixture.server.clone(), fixture.server.connect(TIMEOUT));
    let session = client.open_session().unwrap();
    let forgetting = RunOnce::new(&session, DIR).unwrap();
    let outcome = fixture.jobs.run("a", |guard| {
        let (server, request, others) = (server.clone(), guard.id().to_owned(), others(&server));
        client.fail_next(SimOperation::Transact, Effect::After, ZkError::ConnectionLoss);
        client.after_next(SimOperation::Transact, move || {
            server.delete(&request);
            assert_eq!(run_elsewhere(&others), RunOutcome::Ran(()));
        });
        forgetting.forget("a")
    });
    assert!(matches!(outcome.unwrap(), RunOutcome::Ran(true)));
    assert!(is_done(&fixture.run("a").unwrap()), "it was forgotten once, and has run again");
}

/// Lets another process forget the key after the next such operation of the owner. Its first deletion of the marker
/// comes late, when the owner releases the lock. Returns the other process, because the end of its session would cancel
/// that.
fn forget_late_after(
    operation: SimOperation,
    fixture: &Fixture,
    before: impl FnOnce() + Send + 'static,
) -> RunOnce {
    let client = fixture.server.connect(TIMEOUT);
    let forgetting = RunOnce::new(&client.open_session().unwrap(), DIR).unwrap();
    client.hold_back_next(SimOperation::Transact);
    let other = forgetting.clone();
    fixture.client.after_next(operation, move || {
        before();
        assert!(forgetting.forget("a").unwrap());
    });
    fixture.client.before_next(SimOperation::Delete, move || client.pass_on());
    other
}

#[test]
fn forget_that_a_server_passes_on_late_leaves_the_next_marker_of_the_same_owner() {
    let fixture = Fixture::new(Repeat::Never);
    fixture.client.fail_next(SimOperation::Transact, Effect::After, ZkError::ConnectionLoss);
    let _other = forget_late_after(SimOperation::Transact, &fixture, || ());
    assert_eq!(fixture.run("a").unwrap(), RunOutcome::Ran(7));
    assert!(is_done(&fixture.run("a").unwrap()), "it has been forgotten once, and marked again");
}

#[test]
fn late_forget_of_a_late_marker_leaves_the_next_marker_of_the_same_owner() {
    for is_revoked in [false, true] {
        let fixture = Fixture::new(Repeat::Never);
        // The first marker appears after the owner has found none, and is forgotten before the owner makes another.
        let (marking, server) = (fixture.client.clone(), fixture.server.clone());
        fixture.client.hold_back_next(SimOperation::Transact);
        fixture.client.before_next(SimOperation::SetData, move || marking.pass_on());
        let _other = forget_late_after(SimOperation::SetData, &fixture, move || {
            let names = server.children("/app/jobs/a");
            let request = names.iter().find(|name| *name != "done").unwrap();
            if is_revoked {
                server.set_data(&format!("/app/jobs/a/{request}"), b"unlock");
            }
        });
        assert_eq!(fixture.run("a").unwrap(), RunOutcome::Ran(7));
        let is_marked = is_done(&fixture.run("a").unwrap());
        assert!(is_marked, "it has been forgotten once, and marked again (revoked: {is_revoked})");
    }
}

#[test]
fn reap_leaves_a_marker_that_is_not_old() {
    for operation in [SimOperation::Create, SimOperation::Delete] {
        let fixture = Fixture::new(Repeat::Never);
        assert_eq!(fixture.run("a").unwrap(), RunOutcome::Ran(7));
        let (server, others) = (fixture.server.clone(), others(&fixture.server));
        let (ran, runs) = crossbeam_channel::unbounded();
        fixture.client.before_next(operation, move || {
            // Half a minute later by the server's clock, others may forget the key and run the job.
            server.advance_clock(Duration::from_secs(30));
            if others.forget("a").unwrap() && run_elsewhere(&others) == RunOutcome::Ran(()) {
                ran.send(()).unwrap();
            }
        });
        fixture.server.advance_clock(Duration::from_secs(60));
        let reaped = fixture.jobs.reap(Duration::from_secs(45)).unwrap();
        assert_eq!(reaped + runs.len(), 1, "{operation:?}");
        assert_eq!(is_done(&fixture.run("a").unwrap()), !runs.is_empty(), "{operation:?}");
    }
}

#[test]
fn mark_that_a_server_passes_on_late_does_not_mark_a_forgotten_key() {
    let fixture = Fixture::new(Repeat::Never);
    let others = others(&fixture.server);
    fixture.client.hold_back_next(SimOperation::Transact);
    let outcome = fixture.jobs.run("a", |_| {
        assert!(others.forget("a").unwrap());
        fixture.client.pass_on();
        Ok::<_, Infallible>(())
    });
    assert_eq!(outcome.unwrap(), RunOutcome::Ran(()));
    assert!(!fixture.server.exists("/app/jobs/a/done"));
}

#[test]
fn lagging_server_hides_neither_a_marker_nor_its_deletion() {
    let fixture = Fixture::new(Repeat::Never);
    let others = others(&fixture.server);
    fixture.client.lag_until_next_write();
    assert_eq!(run_elsewhere(&others), RunOutcome::Ran(()));
    assert!(fixture.jobs.forget("a").unwrap(), "it is marked");

    assert_eq!(run_elsewhere(&others), RunOutcome::Ran(()));
    fixture.client.lag_until_next_write();
    assert!(others.forget("a").unwrap());
    assert_eq!(fixture.run("a").unwrap(), RunOutcome::Ran(7), "it was forgotten");
}

#[test]
fn lagging_server_shows_no_former_run_as_in_progress() {
    let fixture = Fixture::new(Repeat::Never);
    let others = others(&fixture.server);
    let _ = others.run("a", |_| {
        fixture.client.lag_until_next_write();
        Ok::<_, Infallible>(())
    });
    let outcome = fixture.run("a").unwrap();
    assert!(is_done(&outcome), "{outcome:?}");
}

/// `zklock once` deletes its marker if the command could not begin.
#[test]
fn key_whose_marker_its_writer_deletes_before_it_releases_the_lock_is_not_done() {
    let fixture = Fixture::new(Repeat::Never);
    let outcome = others(&fixture.server).run("a", |guard| {
        let (server, request) = (fixture.server.clone(), guard.id().to_owned());
        fixture.client.before_next(SimOperation::Exists, move || {
            server.delete(&format!("{DIR}/a/done"));
            server.delete(&request);
        });
        Ok::<_, Infallible>(fixture.run("a").unwrap())
    });
    assert_eq!(outcome.unwrap(), RunOutcome::Ran(RunOutcome::InProgress));
}

#[test]
fn key_is_forgotten_while_its_job_runs() {
    let fixture = Fixture::new(Repeat::Never);
    let others = others(&fixture.server);
    let outcome = fixture.jobs.run("a", |guard| {
        assert!(others.forget("a").unwrap());
        assert!(!others.forget("a").unwrap());
        assert_eq!(others.run("a", |_| Ok::<_, Infallible>(())).unwrap(), RunOutcome::InProgress);
        Ok::<_, Infallible>(guard.is_owner())
    });
    assert_eq!(outcome.unwrap(), RunOutcome::Ran(true));
    assert_eq!(run_elsewhere(&others), RunOutcome::Ran(()));
}

#[test]
fn key_is_forgotten_however_slow_the_servers_are() {
    let fixture = Fixture::new(Repeat::Never);
    assert_eq!(fixture.run("a").unwrap(), RunOutcome::Ran(7));
    // To acquire the lock takes two calls.
    fixture.client.delay(Duration::from_millis(700));
    let jobs = fixture.jobs.clone();
    let forgotten = in_background(move || jobs.forget("a"));
    assert!(next(&forgotten).unwrap());
}

#[test]
fn key_is_forgotten_after_the_lock_of_another_was_released() {
    let fixture = Fixture::new(Repeat::Never);
    assert_eq!(fixture.run("a").unwrap(), RunOutcome::Ran(7));
    let session = fixture.server.connect(TIMEOUT).open_session().unwrap();
    let held = crate::BlockingWriteLock::new(&session, "/app/jobs/a").unwrap().lock().unwrap();
    let jobs = fixture.jobs.clone();
    let forgotten = in_background(move || jobs.forget("a"));
    eventually("it waits for the lock", || fixture.server.children("/app/jobs/a").len() == 3);
    assert!(fixture.server.exists("/app/jobs/a/done"));
    drop(held);
    assert!(next(&forgotten).unwrap());
    assert!(!fixture.server.exists("/app/jobs/a"));
}

#[test]
fn marker_that_only_the_connected_server_shows_is_not_said_to_be_forgotten() {
    let forget: fn(&RunOnce) -> Result<()> = |jobs| jobs.forget("a").map(drop);
    let reap: fn(&RunOnce) -> Result<()> = |jobs| jobs.reap(Duration::ZERO).map(drop);
    for forget in [forget, reap] {
        let fixture = Fixture::new(Repeat::Never);
        assert_eq!(fixture.run("a").unwrap(), RunOutcome::Ran(7));
        let marker = format!("{DIR}/a/done");
        fixture.client.keep_showing(&marker);
        fixture.server.delete(&marker);
        let error = forget(&fixture.jobs).unwrap_err();
        assert_eq!((error.reason(), error.path()), (ErrorReason::ServerDiverged, Some(&*marker)), "{error}");
        assert!(is_done(&fixture.run("a").unwrap()), "the server shows the marker");
    }
}
