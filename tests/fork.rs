//! Tests that after a fork, the child of a process that owns a lock does not own the lock. This is a separate
//! binary without the threads of other tests, because a child has a copy of only the thread that forks.

#![cfg(unix)]
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test")]

use std::cell::RefCell;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use log::Level;
use uuid::Uuid;
use zookeeper_connection::support::logging;
use zookeeper_recipes_lock::client::seam::{
    Call, Done, Enqueued, EventSink, Granted, Identity, Reply, ZooKeeperClient,
};
use zookeeper_recipes_lock::client::{ZkError, ZkResult};
use zookeeper_recipes_lock::crossbeam_channel::TryRecvError;
use zookeeper_recipes_lock::data::{NodeTracker, RecoverableZooKeeper};
use zookeeper_recipes_lock::events::SessionEvent;
use zookeeper_recipes_lock::fake::{SimulatedClient, SimulatedZooKeeper};
use zookeeper_recipes_lock::locks::{
    CohortLock, CohortOptions, MultiLock, NamedLocks, ReadWriteLock, ReentrantLock, RunOnce, Semaphore,
};
use zookeeper_recipes_lock::queue::{LockDirectory, Revoker};
use zookeeper_recipes_lock::{
    BlockingWriteLock, CancelToken, Candidate, ErrorReason, LockError, LockGuard, LockOptions, LossReason,
    ProtocolSupport, RetryPolicy, Session, SessionState, Wait, WriteLock,
};

/// Enough forks that at one of them, some thread holds a mutex that the child's calls might need.
const FORKS: usize = 50;

/// A child that takes longer than this is waiting for a thread that does not exist.
const MAX_CHILD_SECONDS: u32 = 10;

fn main() {
    children_make_names_of_their_own();
    println!("test forked_children_make_names_of_their_own ... ok");

    let zookeeper = SimulatedZooKeeper::new();
    let session = zookeeper.connect(Duration::from_secs(30)).open_session().expect("there is contact");
    let blocking = |dir: &str| BlockingWriteLock::new(&session, dir).expect("the path is valid");

    let guard = blocking("/locks/forked").lock().expect("the lock is free");
    assert_only_the_parent_owns("a guard", || guard.is_owner());
    // This client makes its calls on the thread that submits them, so a drop in the child might delete the
    // znode.
    let direct = Arc::new(Direct::on(&zookeeper));
    let client: Arc<dyn ZooKeeperClient> = direct.clone();
    let of_direct = Session::from_factory(move || Ok(Arc::clone(&client)), false).expect("there is contact");
    let direct_lock = BlockingWriteLock::new(&of_direct, "/locks/direct").expect("the path is valid");
    let dropped = direct_lock.lock().expect("the lock is free");
    in_each_child(
        "a guard that it drops",
        || dropped.is_owner(),
        || {
            let before = direct.calls();
            drop_copy(&dropped);
            assert_eq!(direct.calls(), before, "the child must not withdraw the parent's request");
        },
    );
    drop(dropped);
    let listening = WriteLock::new(&of_direct, "/locks/direct").expect("the path is valid");
    assert!(listening.lock().expect("the lock is free"));
    let cohort = CohortLock::new(&of_direct, "/locks/cohort").expect("the path is valid");
    let of_cohort = cohort.lock().expect("the lock is free");
    in_each_child(
        "locks that it drops",
        || listening.is_owner() && of_cohort.is_owner(),
        || {
            let before = direct.calls();
            drop_copy(&listening);
            drop_copy(&of_cohort);
            drop_copy(&cohort);
            assert_eq!(direct.calls(), before, "the child must not withdraw the parent's requests");
        },
    );
    drop((listening, of_cohort, cohort));

    let lock = WriteLock::with_listener(&session, "/locks/listening", ()).expect("the path is valid");
    assert!(lock.lock().expect("the lock is free"));
    assert_only_the_parent_owns("a listening lock", || lock.is_owner());

    let candidate = Candidate::start(blocking("/locks/election"), |leadership| {
        while leadership.wait(Duration::from_secs(60)) {}
        Ok(())
    })
    .expect("a thread can be started");
    let begun = Instant::now();
    while !candidate.is_leader() {
        assert!(begun.elapsed() < Duration::from_secs(30), "the candidate must lead in time");
        thread::yield_now();
    }
    assert_only_the_parent_owns("a candidate", || candidate.is_leader());
    let tracker =
        NodeTracker::start(&of_direct, "/tracked", Duration::from_secs(30)).expect("there is contact");
    in_each_child(
        "what it drops",
        || candidate.is_leader(),
        || {
            let before = direct.calls();
            drop_copy(&tracker);
            drop_copy(&candidate);
            assert_eq!(direct.calls(), before, "the child must not act for the parent");
        },
    );
    println!("test forked_child_does_not_own_the_lock ... ok");

    futures_of_a_child_complete_at_once(&zookeeper);
    println!("test futures_complete_at_once_in_a_forked_child_which_may_drop_them ... ok");

    calls_of_a_child_fail_at_once(&zookeeper);
    println!("test calls_of_a_forked_child_fail_at_once ... ok");

    a_child_of_the_child_has_no_session(&session);
    println!("test child_of_a_forked_child_has_no_session_either ... ok");

    lines_of_a_child_are_not_held_up();
    println!("test log_lines_of_a_forked_child_are_not_held_up ... ok");

    // In the parent, dropping this last handle ends the session. In a child, it must not.
    let last = zookeeper.connect(Duration::from_secs(30)).open_session().expect("there is contact");
    let is_connected = || last.state() == SessionState::Connected;
    in_each_child("a handle", is_connected, || drop_copy(&last));
    println!("test forked_child_drops_the_last_handle ... ok");
}

/// What the child uses instead of its parent's mutexes must not be used by its own children.
fn a_child_of_the_child_has_no_session(session: &Session) {
    let is_connected = || session.state() == SessionState::Connected;
    let has_ended = || assert!(session.state() == SessionState::Lost && session.requests().is_empty());
    in_each_child("a session of its parent", is_connected, || {
        has_ended();
        in_child(has_ended);
    });
}

/// Sessions with the same names would take each other's znodes for their own. The parent has no other threads yet, as
/// it should be at such a fork.
fn children_make_names_of_their_own() {
    // In this test, as in an application with the feature `fast-rng` of `uuid`, this makes a generator of random
    // numbers, whose state a fork copies.
    let _ = Uuid::new_v4();
    let _ = LockOptions::new();
    let names = tempfile::tempdir().expect("a directory");
    let make_a_name = |file: &str| {
        let zookeeper = SimulatedZooKeeper::new();
        let session = zookeeper.connect(Duration::from_secs(30)).open_session().expect("there is contact");
        let lock = BlockingWriteLock::new(&session, "/lock").expect("the path is valid");
        let guard = lock.lock().expect("the lock is free");
        let data = zookeeper.data(guard.id()).expect("the znode exists");
        let pid = format!("/{}", std::process::id());
        assert!(data.ends_with(pid.as_bytes()), "the data names another process");
        fs::write(names.path().join(file), guard.id()).expect("the file can be written");
    };
    in_child(|| make_a_name("first"));
    in_child(|| make_a_name("second"));
    make_a_name("parent");
    let of = |file: &str| fs::read_to_string(names.path().join(file)).expect("the file was written");
    assert!(of("first") != of("second") && of("first") != of("parent") && of("second") != of("parent"));
}

/// Runs code in a child of this process, and checks that it succeeds.
fn in_child(code: impl Fn()) {
    let child = fork();
    assert!(child >= 0, "cannot fork");
    if child == 0 {
        kill_after(MAX_CHILD_SECONDS);
        exit(i32::from(catch_unwind(AssertUnwindSafe(&code)).is_err()));
    }
    assert_eq!(wait_for(child), 0);
}

/// At a fork, a thread of the parent may be adding a line to those that another thread writes.
fn lines_of_a_child_are_not_held_up() {
    let log = || logging::write(Level::Info, "test", format_args!("a line"));
    let work = || {
        log();
        true
    };
    // A child is stuck if it is forked while the first line is logged.
    log();
    for _ in 0..10 {
        in_each_child("log lines", work, log);
    }
}

/// Threads of the parent constantly poll futures of the same locks, so at each fork, some thread may hold a
/// mutex.
fn futures_of_a_child_complete_at_once(zookeeper: &SimulatedZooKeeper) {
    let direct = Arc::new(Direct::on(zookeeper));
    let client: Arc<dyn ZooKeeperClient> = direct.clone();
    let session = Session::from_factory(move || Ok(Arc::clone(&client)), false).expect("there is contact");
    let blocking = |dir: &str| BlockingWriteLock::new(&session, dir).expect("the path is valid");
    let lock = blocking("/locks/awaited");
    let semaphore = Semaphore::new(&session, "/locks/permits", 1).expect("the path is valid");
    let (guard, permit) =
        (lock.lock().expect("the lock is free"), semaphore.acquire().expect("a permit is free"));
    let candidate = Candidate::keep_leading(blocking("/locks/stood-for")).expect("a thread can be started");

    type Locking = Pin<Box<dyn Future<Output = Result<(), LockError>>>>;
    let futures = || -> Vec<Locking> {
        let (locking, acquiring) = (lock.lock_async(), semaphore.acquire_async());
        vec![Box::pin(async { locking.await.map(drop) }), Box::pin(async { acquiring.await.map(drop) })]
    };
    let mut waiting = futures();
    assert!(waiting.iter_mut().all(|future| poll(future).is_pending()));
    let (mut losing, mut ending) = (Box::pin(guard.lost_async()), Box::pin(candidate.ended_async()));
    assert!(poll(&mut losing).is_pending() && poll(&mut ending).is_pending());
    let waiting = RefCell::new((waiting, losing, ending));
    let work = || {
        let is_pending = |mut future: Locking| poll(&mut future).is_pending();
        let (lost, ended) = (&mut Box::pin(guard.lost_async()), &mut Box::pin(candidate.ended_async()));
        let is_waiting = poll(lost).is_pending() && poll(ended).is_pending();
        is_waiting && futures().into_iter().all(is_pending)
    };
    in_each_child("futures", work, || {
        let before = direct.calls();
        let (waiting, losing, ending) = &mut *waiting.borrow_mut();
        drop_copy(&waiting[0]);
        let is_lost = |outcome: Poll<Result<_, LockError>>| matches!(outcome, Poll::Ready(Err(error)) if matches!(error.reason(), ErrorReason::SessionLost));
        assert!(is_lost(poll(&mut waiting[1])));
        assert!(futures().into_iter().all(|mut future| is_lost(poll(&mut future))));
        assert!(poll(losing).is_ready() && poll(ending).is_ready());
        assert!(poll(&mut Box::pin(permit.lost_async())).is_ready());
        assert!(poll(&mut Box::pin(candidate.ended_async())).is_ready());
        assert_eq!(direct.calls(), before, "the child must not act for the parent");
    });
}

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// The children call everything that they can inherit. At a fork, some thread of the parent may hold a mutex, because
/// these threads constantly use the same locks. In a debug build, a child also panics if it takes a mutex of its parent
/// that nobody holds.
fn calls_of_a_child_fail_at_once(zookeeper: &SimulatedZooKeeper) {
    let session = zookeeper.connect(Duration::from_secs(30)).open_session().expect("there is contact");
    of_a_session(&session);
    of_exclusive_locks(&session);
    of_other_locks(&session);
    of_a_cohort(&session);
    of_a_candidate(&session);
    of_watches(&session);
    of_what_retries(&session);
}

fn of_a_session(session: &Session) {
    let work = || {
        drop((session.subscribe(), session.requests()));
        session.state() == SessionState::Connected
    };
    in_each_child("a busy session", work, || {
        assert_eq!((session.state(), session.id(), session.server()), (SessionState::Lost, None, None));
        assert!(session.requests().is_empty() && !session.set_event_hook(|_: &SessionEvent| {}));
        drop((session.subscribe(), session.session_timeout(), format!("{session:?}"), session.clone()));
        session.close();
        drop_copy(session);
    });
}

fn of_exclusive_locks(session: &Session) {
    let blocking = BlockingWriteLock::new(session, "/locks/busy").expect("the path is valid");
    let reentrant = ReentrantLock::new(blocking.clone());
    let listening =
        WriteLock::with_listener(session, "/locks/busy-listening", ()).expect("the path is valid");
    let named = NamedLocks::new(session, "/locks/named").expect("the path is valid");
    let held = BlockingWriteLock::new(session, "/locks/held").expect("the path is valid");
    let held_again = ReentrantLock::new(held.clone());
    let guard = held_again.lock().expect("the lock is free");
    let token = CancelToken::new();
    let work = || {
        let brief = Wait::timeout(Duration::from_micros(100)).cancelled_by(&token);
        drop((blocking.try_lock(), reentrant.try_lock_for(&brief), held.try_lock_for(brief)));
        listening.set_lock_listener(());
        drop((listening.lock_listener(), listening.lock(), listening.unlock(), format!("{reentrant:?}")));
        drop((named.cohort("a", CohortOptions::new()), BlockingWriteLock::clone(&blocking)));
        let _ = (guard.lost().len(), guard.revocation().len());
        guard.is_owner() && guard.loss().is_none()
    };
    in_each_child("busy exclusive locks", work, || {
        let wait = Duration::from_secs(60);
        assert!(
            is_lost(blocking.lock()) && is_lost(blocking.try_lock()) && is_lost(blocking.try_lock_for(wait))
        );
        assert!(is_lost(blocking.with_lock(|_| ())));
        assert!(
            is_lost(reentrant.lock())
                && is_lost(reentrant.try_lock())
                && is_lost(reentrant.try_lock_for(wait))
        );
        assert!(
            is_lost(listening.lock()) && is_lost(listening.unlock()) && is_lost(listening.fencing_token())
        );
        assert!(listening.id().is_none() && !listening.is_owner() && listening.lock_listener().is_none());
        listening.set_lock_listener(());
        assert!(is_lost(named.cohort("a", CohortOptions::new())) && named.get("a").is_ok());
        drop(format!("{blocking:?} {reentrant:?} {held_again:?} {listening:?} {named:?} {guard:?}"));
        owns_nothing(&guard);
        assert!(copy_of(&guard).unlock().is_err());
        token_of_a_child(&token);
        listening.close();
        blocking.close();
        drop_copy(&listening);
        drop_copy(&guard);
        drop_copy(&reentrant);
        drop_copy(&named);
    });
}

/// A child may go on using its copy of a token with which threads of the parent wait.
fn token_of_a_child(token: &CancelToken) {
    assert!(!token.is_cancelled() && token.cancelled().try_recv() == Err(TryRecvError::Empty));
    token.clone().cancel();
    assert!(token.is_cancelled() && token.cancelled().try_recv() == Err(TryRecvError::Disconnected));
    drop_copy(token);
}

fn owns_nothing(guard: &LockGuard) {
    assert!(!guard.is_owner() && guard.lease_remaining().is_zero());
    assert_eq!(guard.loss(), Some(LossReason::SessionLost));
    // Guards that are held together share the channel.
    let _ = guard.lost().recv();
    assert!(guard.lost().recv().is_err() && guard.revocation().is_empty());
    assert!(poll(&mut Box::pin(guard.lost_async())).is_ready());
    assert!(is_lost(guard.commit(|changes| changes.check("/a"))) && is_lost(guard.fencing_token()));
    drop((guard.id(), format!("{guard:?}")));
}

fn of_other_locks(session: &Session) {
    let shared = ReadWriteLock::new(session, "/locks/busy-shared").expect("the path is valid");
    let several = MultiLock::new(session, ["/locks/a", "/locks/b"]).expect("the paths are valid");
    let semaphore = Semaphore::new(session, "/locks/busy-permits", 2).expect("the path is valid");
    let once = RunOnce::new(session, "/locks/once").expect("the path is valid");
    let in_use = ReadWriteLock::new(session, "/locks/in-use").expect("the path is valid");
    let writing = in_use.write().expect("the lock is free");
    let holding = several.lock().expect("the locks are free");
    let permit = semaphore.acquire().expect("a permit is free");
    let work = || {
        drop((shared.try_read(), shared.try_write(), several.try_lock(), semaphore.try_acquire()));
        let _ = (holding.lost().len(), holding.revocation().len(), writing.lost().len(), permit.lost().len());
        drop(once.run("key", |_| Ok::<_, ()>(())));
        writing.is_owner() && holding.is_owner() && permit.is_owner()
    };
    in_each_child("other busy locks", work, || {
        let wait = Duration::from_secs(60);
        assert!(is_lost(shared.read()) && is_lost(shared.try_read()) && is_lost(shared.try_read_for(wait)));
        assert!(
            is_lost(shared.write()) && is_lost(shared.try_write()) && is_lost(shared.try_write_for(wait))
        );
        assert!(
            is_lost(several.lock()) && is_lost(several.try_lock()) && is_lost(several.try_lock_for(wait))
        );
        assert!(is_lost(semaphore.acquire()) && is_lost(semaphore.try_acquire()));
        assert!(is_lost(semaphore.try_acquire_for(wait)));
        assert!(is_lost(once.run("key", |_| Ok::<_, ()>(()))) && is_lost(once.forget("key")));
        assert!(is_lost(once.reap(Duration::ZERO)));
        drop(format!("{shared:?} {several:?} {semaphore:?} {once:?} {writing:?} {holding:?} {permit:?}"));
        assert!(!holding.is_owner() && holding.lease_remaining().is_zero() && holding.loss().is_some());
        assert!(holding.lost().recv().is_ok() && holding.revocation().is_empty());
        [&*writing, &*permit].into_iter().chain(holding.guards()).for_each(owns_nothing);
        assert!(copy_of(&holding).unlock().is_err() && copy_of(&permit).release().is_err());
        // The error holds the guard, whose last reference it would drop.
        std::mem::forget(copy_of(&writing).downgrade().unwrap_err());
        assert!(copy_of(&writing).unlock().is_err());
        shared.close();
        several.close();
        semaphore.close();
        drop_copy(&shared);
        drop_copy(&several);
        drop_copy(&semaphore);
        drop_copy(&once);
    });
}

fn of_a_cohort(session: &Session) {
    let cohort = CohortLock::new(session, "/locks/busy-cohort").expect("the path is valid");
    let in_use = CohortLock::new(session, "/locks/cohort-in-use").expect("the path is valid");
    let guard = in_use.lock().expect("the lock is free");
    let work = || {
        drop((cohort.try_lock(), in_use.try_lock(), format!("{cohort:?}")));
        guard.is_owner()
    };
    in_each_child("a busy cohort", work, || {
        let wait = Duration::from_secs(60);
        assert!(is_lost(cohort.lock()) && is_lost(cohort.try_lock()) && is_lost(cohort.try_lock_for(wait)));
        assert!(!guard.is_owner() && guard.lease_remaining().is_zero());
        assert_eq!(guard.loss(), Some(LossReason::SessionLost));
        assert!(guard.lost().recv().is_ok() && guard.revocation().is_empty());
        assert!(is_lost(guard.commit(|changes| changes.check("/a"))) && is_lost(guard.fencing_token()));
        drop((guard.id(), format!("{cohort:?} {guard:?}")));
        assert!(is_lost(copy_of(&guard).unlock()));
        cohort.close();
        in_use.close();
        drop_copy(&guard);
        drop_copy(&cohort);
    });
}

fn of_a_candidate(session: &Session) {
    let election = BlockingWriteLock::new(session, "/locks/busy-election").expect("the path is valid");
    let candidate = Candidate::keep_leading(election.clone()).expect("a thread can be started");
    let leadership = candidate.wait_until_leader(Duration::from_secs(30)).expect("nobody else stands");
    let work = || {
        let brief = Duration::from_micros(10);
        let leads = leadership.wait(brief) && candidate.wait_until_leader(brief).is_some();
        leads && !candidate.wait(brief) && !leadership.should_stop()
    };
    in_each_child("a busy candidate", work, || {
        let wait = Duration::from_secs(60);
        assert!(candidate.leadership().is_none() && candidate.wait_until_leader(wait).is_none());
        assert!(!candidate.is_leader() && !candidate.wait(wait) && candidate.error().is_none());
        assert!(leadership.should_stop() && !leadership.wait(wait));
        assert!(leadership.stop_requested().is_empty() && candidate.ended().is_empty());
        leadership.step_down();
        candidate.stop();
        drop(format!("{candidate:?} {leadership:?}"));
        owns_nothing(&leadership);
        let of_child = Candidate::keep_leading(election.clone()).expect("a thread can be started");
        assert!(
            of_child.wait(wait) && of_child.error().is_some_and(|error| is_lost(Err::<(), _>(error.clone())))
        );
        drop_copy(&leadership);
        drop_copy(&candidate);
    });
}

fn of_watches(session: &Session) {
    let wait = Duration::from_secs(60);
    let directory = LockDirectory::new(session, "/locks/busy").expect("the path is valid");
    let tracker = NodeTracker::start(session, "/tracked", wait).expect("there is contact");
    let leader = directory.watch_leader(wait).expect("there is contact");
    let queue = directory.watch_queue(wait).expect("there is contact");
    let work = || tracker.current().is_ok() && leader.leader().is_ok() && queue.names().is_ok();
    in_each_child("busy watches", work, || {
        assert!(is_lost(tracker.current()) && is_lost(leader.leader()) && is_lost(queue.names()));
        assert!(is_lost(tracker.wait_available(wait)) && is_lost(tracker.wait_deleted(wait)));
        let _ = (tracker.changes().len(), leader.changes().len(), queue.changes().len());
        drop(format!("{tracker:?} {leader:?} {queue:?} {directory:?}"));
        assert!(NodeTracker::start(session, "/tracked", wait).is_err());
        assert!(directory.watch_leader(wait).is_err() && directory.watch_queue(wait).is_err());
        assert!(is_lost(directory.contenders()) && is_lost(directory.current_owner()));
        assert!(is_lost(directory.mixed_names()) && is_lost(directory.remove_if_empty()));
        assert!(
            is_lost(directory.expired(Duration::ZERO)) && is_lost(directory.reap_expired(Duration::ZERO))
        );
        drop_copy(&tracker);
        drop_copy(&leader);
        drop_copy(&queue);
        drop_copy(&directory);
    });
}

fn of_what_retries(session: &Session) {
    let support = ProtocolSupport::new(session);
    let policy = RetryPolicy::constant(Duration::from_micros(100));
    let impatient = ProtocolSupport::with_options(session, LockOptions::new().retry(policy));
    let impatient = impatient.expect("the options are valid");
    let data = RecoverableZooKeeper::new(session, policy);
    let revoker = Revoker::new(session);
    let lose = || Err::<(), _>(LockError::from_client("test", "/a", ZkError::ConnectionLoss));
    let work = || support.ensure_path_exists("/a").is_ok() && impatient.retry_operation(lose).is_err();
    in_each_child("what retries", work, || {
        assert!(is_lost(support.ensure_path_exists("/b")) && support.retry_operation(|| Ok(())).is_ok());
        assert!(impatient.retry_operation(lose).is_err());
        let request = "/locks/busy/x-lock-0000000001";
        assert!(is_lost(revoker.request_revocation(request)));
        assert!(is_lost(revoker.force_revocation_after(request, Duration::from_secs(60))));
        assert!(is_lost(data.exists("/a")) && is_lost(data.set_data("/a", b"", None)));
        drop(format!("{support:?} {data:?} {revoker:?}"));
        support.close();
        assert!(!support.is_closed(), "the parent may go on");
        drop_copy(&support);
        drop_copy(&impatient);
        drop_copy(&data);
        drop_copy(&revoker);
    });
}

fn is_lost<T>(outcome: Result<T, LockError>) -> bool {
    outcome.is_err_and(|error| matches!(error.reason(), ErrorReason::SessionLost))
}

/// A client that makes its calls on the thread that submits them.
struct Direct {
    zookeeper: SimulatedZooKeeper,
    client: Arc<SimulatedClient>,
    /// The number of calls so far. It is atomic because the child reads it, and in the child, the simulated
    /// server's mutex may stay locked forever.
    calls: AtomicUsize,
}

impl Direct {
    fn on(zookeeper: &SimulatedZooKeeper) -> Direct {
        let client = zookeeper.connect(Duration::from_secs(30));
        Direct { zookeeper: zookeeper.clone(), client, calls: AtomicUsize::new(0) }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn call(&self, call: &Call) -> ZkResult<Reply> {
        let Call::CreateAndList { dir, prefix, .. } = call else { return self.client.call(call) };
        let path = self.zookeeper.create_sequential(dir, prefix, Some(self.client.session_id()));
        Ok(Reply::Enqueued(Enqueued::new(path, Ok(self.zookeeper.children(dir).into()))))
    }
}

impl ZooKeeperClient for Direct {
    fn submit(&self, call: Call, done: Done) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        done.finish(self.call(&call));
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        self.client.subscribe(sink)
    }

    fn identity(&self) -> Identity {
        self.client.identity()
    }

    fn granted(&self) -> Granted {
        self.client.granted()
    }

    fn close(&self) {
        self.client.close();
    }
}

fn assert_only_the_parent_owns(what: &str, is_owner: impl Fn() -> bool + Sync) {
    in_each_child(what, &is_owner, || assert!(!is_owner()));
}

/// Forks while other threads check whether the condition still holds.
fn in_each_child(what: &str, holds: impl Fn() -> bool + Sync, child_does: impl Fn()) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        // The threads end even if this one panics.
        let _over = SetOnDrop(&over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(holds(), "{what}: in the parent");
                }
            });
        }
        let failed = (0..FORKS).find_map(|_| {
            let child = fork();
            assert!(child >= 0, "{what}: cannot fork");
            if child == 0 {
                kill_after(MAX_CHILD_SECONDS);
                exit(i32::from(catch_unwind(AssertUnwindSafe(&child_does)).is_err()));
            }
            Some(wait_for(child)).filter(|status| *status != 0)
        });
        assert_eq!(failed, None, "{what}: the child considers itself the owner or hangs");
    });
    assert!(holds(), "{what}: the parent must keep the lock");
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[allow(unsafe_code, reason = "no safe function forks")]
fn fork() -> libc::pid_t {
    // SAFETY: between `alarm` and `_exit`, the child only uses this library, and the test checks that no such use waits
    // for a mutex that a thread of the parent held. If one does, the alarm ends the child.
    unsafe { libc::fork() }
}

fn drop_copy<T>(value: &T) {
    drop(copy_of(value));
}

#[allow(unsafe_code, reason = "the test keeps what the child consumes")]
fn copy_of<T>(value: &T) -> T {
    // SAFETY: the child exits without unwinding to the value's owner. It may drop several copies of a guard: only its
    // reference counts become too low, and the threads that hold the other references do not exist in the child.
    unsafe { std::ptr::read(value) }
}

#[allow(unsafe_code, reason = "no safe function sets an alarm")]
fn kill_after(seconds: u32) {
    // SAFETY: this only sets a timer whose signal ends the process.
    unsafe { libc::alarm(seconds) };
}

#[allow(unsafe_code, reason = "the exit handlers of the parent's libraries must not run")]
fn exit(code: i32) -> ! {
    // SAFETY: this only ends the process.
    unsafe { libc::_exit(code) }
}

/// Returns how the child ended: 0 if it exited with status 0.
#[allow(unsafe_code, reason = "no safe function waits for a process that was not spawned")]
fn wait_for(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: the pointer is valid during the call.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child);
    status
}
