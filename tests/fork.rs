//! Tests that after a fork, the child of a process that owns a lock does not own the lock. This is a separate
//! binary without the threads of other tests, because a child has a copy of only the thread that forks.

#![cfg(unix)]
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test")]

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::client::ZkResult;
use zookeeper_recipes_lock::client::port::{Call, Done, Enqueued, EventSink, Reply, ZooKeeperClient};
use zookeeper_recipes_lock::data::NodeTracker;
use zookeeper_recipes_lock::fake::{SimulatedClient, SimulatedZooKeeper};
use zookeeper_recipes_lock::locks::{CohortLock, ReentrantLock, Semaphore};
use zookeeper_recipes_lock::queue::LockDirectory;
use zookeeper_recipes_lock::{
    BlockingWriteLock, Candidate, ErrorReason, LockError, Session, SessionState, WriteLock,
};

/// Enough forks that at one of them, some thread holds a mutex that the child's calls might need.
const FORKS: usize = 50;

/// A child that takes longer than this is waiting for a thread that does not exist.
const MAX_CHILD_SECONDS: u32 = 10;

fn main() {
    let zookeeper = SimulatedZooKeeper::new();
    let session = Session::from_client(zookeeper.connect(Duration::from_secs(30))).expect("there is contact");
    let blocking = |dir: &str| BlockingWriteLock::new(&session, dir).expect("the path is valid");

    let guard = blocking("/locks/forked").lock().expect("the lock is free");
    assert_only_the_parent_owns("a guard", || guard.is_owner());
    // This client makes its calls on the thread that submits them, so a drop in the child might delete the
    // znode.
    let direct = Arc::new(Direct::on(&zookeeper));
    let client: Arc<dyn ZooKeeperClient> = direct.clone();
    let of_direct = Session::from_client(client).expect("there is contact");
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

    // This is the last handle, so dropping it ends the session.
    let last = Session::from_client(zookeeper.connect(Duration::from_secs(30))).expect("there is contact");
    let is_connected = || last.state() == SessionState::Connected;
    in_each_child("a handle", is_connected, || drop_copy(&last));
    println!("test forked_child_drops_the_last_handle ... ok");
}

/// Threads of the parent constantly poll futures of the same locks, so at each fork, some thread may hold a
/// mutex.
fn futures_of_a_child_complete_at_once(zookeeper: &SimulatedZooKeeper) {
    let direct = Arc::new(Direct::on(zookeeper));
    let client: Arc<dyn ZooKeeperClient> = direct.clone();
    let session = Session::from_client(client).expect("there is contact");
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
        let is_lost = |outcome: Poll<Result<_, LockError>>| matches!(outcome, Poll::Ready(Err(error)) if matches!(error.reason(), ErrorReason::SessionLost(_)));
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

/// Threads of the parent constantly use the same locks, so at each fork, some thread may hold a mutex.
fn calls_of_a_child_fail_at_once(zookeeper: &SimulatedZooKeeper) {
    let session = Session::from_client(zookeeper.connect(Duration::from_secs(30))).expect("there is contact");
    let blocking = BlockingWriteLock::new(&session, "/locks/busy").expect("the path is valid");
    let listening =
        WriteLock::with_listener(&session, "/locks/busy-listening", ()).expect("the path is valid");
    let cohort = CohortLock::new(&session, "/locks/busy-cohort").expect("the path is valid");
    let reentrant = ReentrantLock::new(blocking.clone());
    let guard = BlockingWriteLock::new(&session, "/locks/held").expect("the path is valid");
    let guard = guard.lock().expect("the lock is free");
    let tracker =
        NodeTracker::start(&session, "/tracked", Duration::from_secs(30)).expect("there is contact");
    let work = || {
        drop(blocking.try_lock());
        drop(listening.lock().and_then(|_| listening.unlock()));
        drop(cohort.try_lock());
        drop((session.subscribe(), tracker.current().is_ok(), !guard.revocation().is_empty()));
        session.state() == SessionState::Connected && guard.is_owner()
    };
    in_each_child("a busy session", work, || {
        let is_lost = |error: &LockError| matches!(error.reason(), ErrorReason::SessionLost(_));
        assert!(blocking.lock().is_err_and(|error| is_lost(&error)));
        assert!(blocking.try_lock().is_err_and(|error| is_lost(&error)));
        assert!(blocking.try_lock_for(Duration::from_secs(60)).is_err_and(|error| is_lost(&error)));
        assert!(listening.lock().is_err_and(|error| is_lost(&error)));
        assert!(listening.unlock().is_err_and(|error| is_lost(&error)));
        assert!(cohort.lock().is_err_and(|error| is_lost(&error)));
        assert!(reentrant.lock().is_err_and(|error| is_lost(&error)));
        assert!(tracker.current().is_err_and(|error| is_lost(&error)));
        assert!(NodeTracker::start(&session, "/tracked", Duration::from_secs(60)).is_err());
        assert!(LockDirectory::new(&session, "/locks/busy").is_ok_and(|dir| dir.contenders().is_err()));
        assert!(guard.revocation().is_empty() && listening.id().is_none());
        assert_eq!(session.state(), SessionState::Lost);
        drop(session.subscribe());
        session.close();
        drop_copy(&listening);
        drop_copy(&guard);
        drop_copy(&session);
    });
    drop(guard);
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

    fn session_timeout(&self) -> Duration {
        self.client.session_timeout()
    }

    fn report_delay(&self) -> Duration {
        self.client.report_delay()
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
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(holds(), "{what}: in the parent");
                }
            });
        }
        let failed = (0..FORKS).find_map(|_| {
            let child = fork();
            if child == 0 {
                kill_after(MAX_CHILD_SECONDS);
                exit(i32::from(catch_unwind(AssertUnwindSafe(&child_does)).is_err()));
            }
            Some(wait_for(child)).filter(|status| *status != 0)
        });
        over.store(true, Ordering::Relaxed);
        assert_eq!(failed, None, "{what}: the child considers itself the owner or hangs");
    });
    assert!(holds(), "{what}: the parent must keep the lock");
}

#[allow(unsafe_code, reason = "no safe function forks")]
fn fork() -> libc::pid_t {
    // SAFETY: between `alarm` and `_exit`, the child only uses this library, and the test checks that such a use waits
    // for no mutex that a thread of the parent held. If one waits, the alarm ends the child.
    unsafe { libc::fork() }
}

#[allow(unsafe_code, reason = "the test keeps what the child drops")]
fn drop_copy<T>(value: &T) {
    // SAFETY: the child never uses the value again, and exits without unwinding to the value's owner.
    drop(unsafe { std::ptr::read(value) });
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
