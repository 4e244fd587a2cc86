//! Tests of jobs that run once, on real servers.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use zookeeper_recipes_lock::locks::{Repeat, RunOnce, RunOutcome};
use zookeeper_recipes_lock::{LockOptions, Session};

use crate::fixtures::{Observer, SHORT, connect, session, unique_dir};
use crate::support::relay::Relay;
use crate::support::server::{self, Server};
use crate::support::wait::eventually;

fn jobs(session: &Session, dir: &str, repeat: Repeat) -> RunOnce {
    RunOnce::with_options(session, dir, LockOptions::new(), repeat).unwrap()
}

fn is_done<T, E>(outcome: &RunOutcome<T, E>) -> bool {
    matches!(outcome, RunOutcome::AlreadyDone { .. })
}

#[test]
fn one_of_several_sessions_runs_each_job() {
    for repeat in [Repeat::Never, Repeat::UntilSuccess] {
        let dir = unique_dir("once");
        let sessions: Vec<Session> = (0..3).map(|_| session(server::shared())).collect();
        let runs: Vec<AtomicUsize> = (0..10).map(|_| AtomicUsize::new(0)).collect();
        thread::scope(|scope| {
            for session in &sessions {
                let (runs, jobs) = (&runs, jobs(session, &dir, repeat));
                scope.spawn(move || {
                    for (key, runs) in runs.iter().enumerate() {
                        let job = |_: &_| Ok::<_, Infallible>(runs.fetch_add(1, Ordering::SeqCst));
                        while jobs.run(&format!("tick/{key}"), job).unwrap() == RunOutcome::InProgress {}
                    }
                });
            }
        });
        assert!(runs.iter().all(|runs| runs.load(Ordering::SeqCst) == 1), "{repeat:?}: {runs:?}");
    }
}

#[test]
fn marker_outlives_the_session_and_names_it() {
    let (dir, begun) = (unique_dir("once-marker"), SystemTime::now());
    let first = session(server::shared());
    let ran = jobs(&first, &dir, Repeat::Never).run("a", |_| Ok::<_, Infallible>(7)).unwrap();
    assert_eq!(ran, RunOutcome::Ran(7));
    first.close();
    let second = session(server::shared());
    let again = jobs(&second, &dir, Repeat::Never).run("a", |_| Ok::<_, Infallible>(8)).unwrap();
    let RunOutcome::AlreadyDone { by, at, .. } = again else { panic!("{again:?}") };
    assert!(by.ends_with(&format!("/{}", std::process::id())), "{by}");
    let age = at.duration_since(begun - Duration::from_secs(1)).unwrap();
    assert!(age < Duration::from_secs(60), "{age:?}");
}

#[test]
fn job_whose_process_loses_its_session_is_repeated_only_until_success() {
    for repeat in [Repeat::Never, Repeat::UntilSuccess] {
        let dir = unique_dir("once-lost");
        let relay = Relay::to(server::shared().connect_string());
        let (near, far) = (session(server::shared()), connect(&relay.connect_string(), SHORT));
        let observer = Observer::at(server::shared());
        let outcome = jobs(&far, &dir, repeat).run("a", |guard| {
            relay.swallow();
            let request = guard.id().to_owned();
            eventually("the session of the killed process ends", || !observer.exists(&request));
            assert!(!guard.is_owner());
            Ok::<_, Infallible>(())
        });
        assert_eq!(outcome.is_ok(), repeat == Repeat::Never, "{outcome:?}");
        let again = jobs(&near, &dir, repeat).run("a", |_| Ok::<_, Infallible>(())).unwrap();
        assert_eq!(is_done(&again), repeat == Repeat::Never, "{again:?}");
    }
}

#[test]
fn forgotten_and_reaped_keys_leave_no_znode() {
    let server = Server::start();
    let (session, observer) = (session(&server), Observer::at(&server));
    let jobs = jobs(&session, "/jobs", Repeat::Never);
    for key in ["a", "b/c", "d"] {
        assert_eq!(jobs.run(key, |_| Ok::<_, Infallible>(())).unwrap(), RunOutcome::Ran(()));
    }
    assert!(jobs.forget("a").unwrap() && !jobs.forget("a").unwrap());
    assert_eq!(jobs.reap(Duration::from_secs(3600)).unwrap(), 0);
    assert_eq!(jobs.reap(Duration::ZERO).unwrap(), 2);
    observer.await_children("/jobs", 0);
}
