//! Tests that the application's logger may block, panic and call the crate, and that the lines which say why something
//! has ended are written. This is a separate binary because a process has a single logger.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "in a test, a panic is the failure report"
)]

mod support;

use std::net::TcpListener;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{bounded, unbounded};
use log::{Level, LevelFilter, Log, Metadata, Record};
use support::leaks::assert_no_threads;
use zookeeper_connection::support::logging;
use zookeeper_recipes_lock::client::seam::{Call, Done, EventSink, Granted, Identity, ZooKeeperClient};
use zookeeper_recipes_lock::client::{Acl, Permissions, ZkError};
use zookeeper_recipes_lock::data::NodeTracker;
use zookeeper_recipes_lock::fake::{Effect, SimOperation, SimulatedClient, SimulatedZooKeeper};
use zookeeper_recipes_lock::locks::{
    CohortLock, MultiLock, ReadGuard, ReadWriteLock, ReentrantLock, RunOnce, Semaphore,
};
use zookeeper_recipes_lock::queue::{LeaderWatch, LockDirectory, QueueWatch, Revoker};
use zookeeper_recipes_lock::recipe::NamingScheme;
use zookeeper_recipes_lock::{
    BlockingWriteLock, CancelToken, Candidate, ErrorReason, Leadership, LockError, LockGuard, LockOptions,
    RetryPolicy, Session, SessionState, Wait, WriteLock,
};

const DIR: &str = "/locks/it";
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(2);
/// The time limit for everything that a test does.
const DEADLINE: Duration = Duration::from_secs(120);
const ROUNDS: u64 = 60;
/// Of so many lines, one makes a logger call the crate.
const CALLS_EVERY: u64 = 50;
/// The longest wait for the logger.
const MAX_LOG_WAIT: Duration = Duration::from_millis(100);
/// Far less than a logger is stuck for.
const MAX_CALL: Duration = Duration::from_secs(10);
/// The number of lines that may wait for the logger.
const MAX_LINES: usize = 40_000;
/// The name of the thread that writes all lines. The thread ends when there have been no lines for a while.
const LOG_THREAD: &str = "zk-log";

// ---- the logger

struct Logger;

static LOGGER: Logger = Logger;

/// A function that is called with each record.
type Reaction = dyn Fn(&Record<'_>) + Send + Sync;

static REACTION: Mutex<Option<Arc<Reaction>>> = Mutex::new(None);

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("zookeeper_recipes_lock")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let reaction = lock(&REACTION).clone();
        if let Some(react) = reaction {
            react(record);
        }
    }

    fn flush(&self) {}
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A reaction. It stays installed until this is dropped.
struct Reacting;

impl Reacting {
    fn with(reaction: impl Fn(&Record<'_>) + Send + Sync + 'static) -> Reacting {
        let _ = log::set_logger(&LOGGER);
        log::set_max_level(LevelFilter::Trace);
        *lock(&REACTION) = Some(Arc::new(reaction));
        Reacting
    }
}

impl Drop for Reacting {
    fn drop(&mut self) {
        let reaction = lock(&REACTION).take();
        drop(reaction);
    }
}

// ---- the workload

/// The objects that a logger may call.
struct Objects {
    session: Session,
    waiting: WriteLock,
    reading: ReadGuard,
    guard: LockGuard,
    blocking: BlockingWriteLock,
    shared: ReadWriteLock,
    reentrant: ReentrantLock,
    multi: MultiLock,
    directory: LockDirectory,
    tracker: NodeTracker,
    leader: LeaderWatch,
    queue: QueueWatch,
    candidate: Candidate,
    revoker: Revoker,
}

fn short_delays() -> LockOptions {
    LockOptions::new().retry(RetryPolicy::linear(SHORT))
}

impl Objects {
    fn on(session: &Session) -> Objects {
        let blocking = |dir: &str| BlockingWriteLock::with_options(session, dir, short_delays()).unwrap();
        let lead = |leadership: &Leadership| {
            while leadership.wait(LONG) {}
            Ok(())
        };
        let directory = LockDirectory::new(session, DIR).unwrap();
        let shared = ReadWriteLock::new(session, DIR).unwrap();
        Objects {
            session: session.clone(),
            waiting: WriteLock::with_listener(session, DIR, ()).unwrap(),
            reading: ReadWriteLock::new(session, "/locks/read").unwrap().read().unwrap(),
            guard: blocking("/locks/held").lock().unwrap(),
            blocking: blocking(DIR),
            reentrant: ReentrantLock::new(blocking(DIR)),
            multi: MultiLock::new(session, [DIR, "/locks/other"]).unwrap(),
            tracker: NodeTracker::start(session, "/config", Wait::forever()).unwrap(),
            leader: directory.watch_leader(Wait::forever()).unwrap(),
            queue: directory.watch_queue(Wait::forever()).unwrap(),
            candidate: Candidate::start(blocking("/locks/election"), lead).unwrap(),
            revoker: Revoker::new(session),
            directory,
            shared,
        }
    }

    /// Makes calls of many kinds, none of which waits.
    fn query(&self) {
        let Objects { session, waiting, reading, guard, blocking, .. } = self;
        let _ = (session.state(), session.subscribe(), session.session_timeout(), session.clone());
        let _ = (waiting.is_owner(), waiting.id(), waiting.is_closed(), waiting.lock_listener());
        let _ = (waiting.dir(), waiting.is_closed());
        waiting.set_lock_listener(());
        let _ = (reading.is_owner(), reading.id(), reading.loss(), reading.lease_remaining());
        let _ = (guard.is_owner(), guard.id(), guard.lost().try_recv(), guard.revocation().try_recv());
        let _ = (guard.loss(), !guard.revocation().is_empty());
        let _ = (self.tracker.current().is_ok(), self.tracker.changes().try_recv());
        let _ = (self.leader.leader().is_ok(), self.queue.names().is_ok());
        let _ = (self.candidate.is_leader(), self.candidate.error());
        let text = format!("{session:?} {waiting:?} {guard:?} {blocking:?} {:?}", self.candidate);
        let rest = format!("{:?} {:?} {:?} {:?}", self.tracker, self.leader, self.queue, self.revoker);
        assert!(!text.is_empty() && !rest.is_empty());
    }

    /// Makes a call that briefly waits for the server.
    fn call(&self, number: u64) {
        match number % 8 {
            0 => drop(self.blocking.try_lock_for(SHORT)),
            1 => drop(self.shared.try_read_for(SHORT)),
            2 => drop(self.multi.try_lock_for(SHORT)),
            3 => drop(self.reentrant.try_lock_for(SHORT)),
            4 => drop(self.waiting.unlock()),
            5 => drop(self.guard.fencing_token()),
            6 => drop(self.directory.contenders()),
            _ => drop(self.tracker.wait_deleted(SHORT)),
        }
    }
}

/// Acquires and releases locks on two sessions while faults occur.
fn work_with_faults(
    server: &SimulatedZooKeeper,
    clients: &[Arc<SimulatedClient>; 2],
    sessions: &[Session; 2],
) {
    let over = AtomicBool::new(false);
    let other = server.connect(LONG);
    thread::scope(|scope| {
        let workers: Vec<_> = sessions
            .iter()
            .map(|session| scope.spawn(move || (0..ROUNDS).for_each(|round| use_locks(session, round))))
            .collect();
        scope.spawn(|| {
            for number in 0.. {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                inject_fault(server, &other, &clients[number as usize % 2], number);
                thread::sleep(SHORT);
            }
            clients.iter().for_each(|client| client.reconnect());
        });
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        over.store(true, Ordering::SeqCst);
        assert!(outcomes.iter().all(Result::is_ok), "a workload thread panicked");
    });
    other.close();
}

fn use_locks(session: &Session, round: u64) {
    let blocking = BlockingWriteLock::with_options(session, DIR, short_delays()).unwrap();
    let waiting = WriteLock::with_options(session, DIR, short_delays(), ()).unwrap();
    let _ = waiting.lock();
    let guard = blocking.try_lock_for(3 * SHORT);
    let _ = waiting.unlock();
    match guard {
        Ok(Some(guard)) if round % 2 == 0 => drop(guard.unlock()),
        guard => drop(guard),
    }
    let shared = ReadWriteLock::new(session, DIR).unwrap();
    if let Ok(Some(guard)) = shared.try_write_for(3 * SHORT) {
        drop(guard.downgrade());
    }
}

/// Injects a fault for a client.
fn inject_fault(server: &SimulatedZooKeeper, other: &SimulatedClient, client: &SimulatedClient, number: u64) {
    match number % 7 {
        // The previous fault has not occurred yet.
        1..=3 if client.pending_faults() > 0 => {}
        0 => client.disconnect(),
        1 => client.fail_next(SimOperation::Delete, Effect::Before, ZkError::ConnectionLoss),
        2 => client.fail_next(SimOperation::Create, Effect::After, ZkError::ConnectionLoss),
        3 => client.fail_next(SimOperation::GetChildren, Effect::Before, ZkError::ConnectionLoss),
        4 => server.set_data("/config", &number.to_be_bytes()),
        5 => server.children(DIR).iter().for_each(|name| {
            let path = format!("{DIR}/{name}").into();
            let _ = other.call(&Call::SetData { path, data: b"unlock"[..].into(), version: None });
        }),
        _ => {}
    }
    client.reconnect();
}

fn two_sessions(server: &SimulatedZooKeeper) -> ([Arc<SimulatedClient>; 2], [Session; 2]) {
    let clients = [server.connect(LONG), server.connect(LONG)];
    let sessions = [0, 1].map(|number: usize| clients[number].open_session().unwrap());
    (clients, sessions)
}

/// Opens a session that gets its clients from this factory.
fn session_by_factory(
    factory: impl Fn() -> Result<Arc<SimulatedClient>, LockError> + Send + Sync + 'static,
) -> Result<Session, LockError> {
    Session::from_factory(move || Ok(factory()? as Arc<dyn ZooKeeperClient>), true)
}

/// Makes the tests run one at a time, because otherwise each would see the others' log lines.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs a test's body on another thread, and fails if the body does not end in time.
fn within_the_deadline(body: impl FnOnce() + Send + 'static) {
    let _alone = lock(&ONE_AT_A_TIME);
    let (done, ended) = bounded(1);
    let thread = thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    let outcome = ended.recv_timeout(DEADLINE);
    assert_ne!(outcome, Err(crossbeam_channel::RecvTimeoutError::Timeout), "something hangs");
    thread.join().unwrap();
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::yield_now();
    }
}

// ---- the tests

#[test]
fn logger_may_call_the_crate() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        server.create("/config", b"");
        let (clients, sessions) = two_sessions(&server);
        let things = Arc::new(Objects::on(&sessions[0]));
        let (asked, records) = unbounded();
        let number = AtomicU64::new(0);
        let of_logger = Arc::clone(&things);
        let reacting = Reacting::with(move |record| {
            let _ = asked.send(record.args().to_string());
            of_logger.query();
            // A call causes several lines itself, and each of them comes to the logger, too.
            let number = number.fetch_add(1, Ordering::SeqCst);
            if number % CALLS_EVERY == 0 {
                of_logger.call(number / CALLS_EVERY);
            }
        });
        work_with_faults(&server, &clients, &sessions);
        let guard = BlockingWriteLock::new(&sessions[0], "/asked").unwrap().lock().unwrap();
        server.set_data(guard.id(), b"unlock");
        guard.revocation().recv_timeout(LONG).unwrap();
        drop(guard);
        let mut missing =
            vec!["joined", "acquired", "released", "suspended", "waits for", "attempt", "asks to release"];
        while !missing.is_empty() {
            let record = records.recv_timeout(LONG).unwrap_or_else(|_| panic!("not logged: {missing:?}"));
            missing.retain(|part| !record.contains(part));
        }
        drop(reacting);
        eventually("the session is connected", || sessions[0].state() == SessionState::Connected);
        things.candidate.stop();
        assert!(things.candidate.wait(Wait::timeout(LONG)));
    });
}

#[test]
fn logger_that_blocks_holds_up_neither_the_end_of_a_session_nor_its_replacement() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        server.create(DIR, b"");
        let ahead = server.create_sequential(DIR, "x-other-lock-", None);
        let client = server.connect(LONG);
        let lost = client.open_session().unwrap();
        let (made, clients) = unbounded();
        let of_factory = server.clone();
        let replaced = session_by_factory(move || {
            let client = of_factory.connect(LONG);
            let _ = made.send(Arc::clone(&client));
            Ok(client)
        })
        .unwrap();
        let [of_lost, of_replaced] =
            [&lost, &replaced].map(|session| BlockingWriteLock::new(session, DIR).unwrap());
        let waiters = [thread::spawn(move || of_lost.lock()), thread::spawn(move || of_replaced.lock())];
        eventually("both requests wait", || server.children(DIR).len() == 3);

        let (release, blocked) = bounded::<()>(0);
        let reacting = Reacting::with(move |record| {
            if record.level() <= Level::Info {
                let _ = blocked.recv();
            }
        });
        client.expire();
        clients.recv().unwrap().expire();
        let [ended, acquired] = waiters;
        assert!(
            matches!(ended.join().unwrap(), Err(ref error) if matches!(error.reason(), ErrorReason::SessionLost))
        );
        server.delete(&ahead);
        let guard = acquired.join().unwrap().unwrap();
        assert!(guard.is_owner());
        drop((release, guard, reacting));
    });
}

/// A client that refuses deletions on the thread that submits them, because its session has ended. It does not report
/// the end.
struct RefusesAtOnce(Arc<SimulatedClient>);

impl ZooKeeperClient for RefusesAtOnce {
    fn submit(&self, call: Call, done: Done) {
        match call {
            Call::Delete { .. } => done.finish(Err(ZkError::SessionExpired)),
            call => self.0.submit(call, done),
        }
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        self.0.subscribe(sink)
    }

    fn identity(&self) -> Identity {
        self.0.identity()
    }

    fn granted(&self) -> Granted {
        self.0.granted()
    }

    fn close(&self) {
        self.0.close();
    }
}

#[test]
fn logger_that_blocks_the_thread_whose_call_is_refused_does_not_hold_up_the_end_of_the_session() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        server.create(DIR, b"");
        server.create_sequential(DIR, "x-other-lock-", None);
        let of_factory = server.clone();
        let session = Session::from_factory(
            move || Ok(Arc::new(RefusesAtOnce(of_factory.connect(LONG))) as Arc<dyn ZooKeeperClient>),
            false,
        )
        .unwrap();
        let guard = BlockingWriteLock::new(&session, "/locks/held").unwrap().lock().unwrap();
        let waiting = BlockingWriteLock::new(&session, DIR).unwrap();
        let waiter = thread::spawn(move || waiting.lock());
        eventually("the request waits", || server.children(DIR).len() == 2);

        let (release, blocked) = bounded::<()>(0);
        let (blocks, is_blocked) = unbounded();
        let reacting = Reacting::with(move |record| {
            if record.args().to_string().starts_with("released") {
                let _ = blocks.send(());
                let _ = blocked.recv();
            }
        });
        let releasing = thread::spawn(move || drop(guard));
        let ended = waiter.join().unwrap();
        assert!(matches!(ended, Err(ref error) if matches!(error.reason(), ErrorReason::SessionLost)));
        is_blocked.recv().unwrap();
        drop(release);
        releasing.join().unwrap();
        drop(reacting);
    });
}

#[test]
fn connection_that_comes_and_goes_does_not_fill_the_log() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        let client = server.connect(LONG);
        let session = client.open_session().unwrap();
        let states = session.subscribe();
        let lock =
            |number| BlockingWriteLock::new(&session, &format!("/locks/flapping-{number}")).unwrap().lock();
        let guards: Vec<LockGuard> = (0..5).map(|number| lock(number).unwrap()).collect();
        let (log, logged) = unbounded();
        let reacting = Reacting::with(move |record| {
            if record.level() <= Level::Info {
                let _ = log.send(record.args().to_string());
            }
        });
        let is = |state| states.iter().any(|next| next == state);
        for _ in 0..10 {
            client.disconnect();
            assert!(is(SessionState::Suspended));
            client.reconnect();
            assert!(is(SessionState::Connected));
        }
        client.expire();
        let count = |lines: &[String], what| lines.iter().filter(|line| line.contains(what)).count();
        let mut lines: Vec<String> = Vec::new();
        while count(&lines, "session lost") == 0 {
            lines.push(logged.recv_timeout(LONG).unwrap_or_else(|_| panic!("incomplete: {lines:#?}")));
        }
        drop(reacting);
        assert_eq!(count(&lines, "/locks/flapping-"), 1, "{lines:#?}");
        assert_eq!(count(&lines, "lease ends: 5 (/locks/flapping-0/"), 1, "{lines:#?}");
        for what in ["session suspended", "session connected"] {
            assert_eq!(count(&lines, what), 1, "{what}: {lines:#?}");
        }
        drop(guards);
    });
}

#[test]
fn lines_of_an_outage_are_not_overtaken_by_later_ones() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        let client = server.connect(LONG);
        let session = client.open_session().unwrap();
        let guard = BlockingWriteLock::new(&session, "/locks/in-order-1").unwrap().lock().unwrap();
        let ahead = server.create_sequential("/locks/in-order-2", "x-other-lock-", None);
        let waiting = WriteLock::with_listener(&session, "/locks/in-order-2", ()).unwrap();
        assert!(!waiting.lock().unwrap());

        let (release, blocked) = bounded::<()>(0);
        let (log, logged) = unbounded();
        let reacting = Reacting::with(move |record| {
            let line = record.args().to_string();
            if line.starts_with("suspended /locks/in-order-1/") {
                let _ = blocked.recv();
            } else if !line.starts_with("acquired /locks/in-order-2/") {
                return;
            }
            let _ = log.send(line);
        });
        client.disconnect();
        client.reconnect();
        server.delete(&ahead);
        eventually("the second lock is owned", || waiting.is_owner());
        assert!(logged.recv_timeout(Duration::from_millis(100)).is_err(), "the blocked logger must not log");
        drop(release);
        for expected in ["suspended", "acquired"] {
            let line = logged.recv_timeout(LONG).unwrap();
            assert!(line.starts_with(expected), "{expected}: {line}");
        }
        drop((guard, reacting));
    });
}

#[test]
fn refused_deletion_is_logged_at_its_first_failure_and_its_success() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        let client = server.connect(LONG);
        let session = client.open_session().unwrap();
        let (log, logged) = unbounded();
        let reacting = Reacting::with(move |record| {
            let line = record.args().to_string();
            if record.level() <= Level::Info && line.contains("/locks/refused/") {
                let _ = log.send((record.level(), line));
            }
        });
        let guard = BlockingWriteLock::new(&session, "/locks/refused").unwrap().lock().unwrap();
        for _ in 0..3 {
            client.fail_next(SimOperation::Delete, Effect::Before, ZkError::NoAuth);
        }
        drop(guard);
        let lines: Vec<_> = logged
            .iter()
            .filter(|(_, line)| line.contains("remove"))
            .take_while(|(level, _)| *level != Level::Info)
            .collect();
        drop(reacting);
        assert!(server.children("/locks/refused").is_empty());
        let [(Level::Warn, line)] = lines.as_slice() else { panic!("{lines:?}") };
        assert!(line.contains("NoAuth"), "{line}");
    });
}

#[test]
fn refusal_is_logged_as_a_warning_only_for_a_waiting_request() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        // Two requests are ahead, because a waiter behind a single request needs no listing.
        let [_first, nearest] =
            [(); 2].map(|()| server.create_sequential("/locks/dropped", "x-ahead-lock-", None));
        let client = server.connect(LONG);
        let session = client.open_session().unwrap();
        let (log, logged) = unbounded();
        let reacting = Reacting::with(move |record| {
            let line = record.args().to_string();
            if line.contains("/locks/dropped") {
                let _ = log.send((record.level(), line));
            }
        });
        let refuse = || client.fail_next(SimOperation::GetChildren, Effect::Before, ZkError::NoAuth);
        let drop_of = |znode: &str| {
            let line = logged.iter().find(|(_, line)| line.starts_with("dropped") && line.contains(znode));
            line.map(|(level, _)| level)
        };
        refuse();
        let lock = BlockingWriteLock::new(&session, "/locks/dropped").unwrap();
        assert!(lock.try_lock().is_err_and(|error| error.reason() == ErrorReason::AccessDenied));
        assert_eq!(drop_of(""), Some(Level::Debug), "the caller gets the error");
        let waiting = WriteLock::with_listener(&session, "/locks/dropped", ()).unwrap();
        assert!(!waiting.lock().unwrap());
        let znode = waiting.id().unwrap();
        refuse();
        server.delete(&nearest);
        assert_eq!(drop_of(&znode), Some(Level::Warn));
        drop(reacting);
    });
}

#[test]
fn wait_for_a_first_server_is_logged_with_the_outcome_for_each() {
    within_the_deadline(|| {
        let (log, logged) = unbounded();
        let reacting = Reacting::with(move |record| {
            let line = record.args().to_string();
            if record.level() == Level::Warn && line.contains("no ZooKeeper server") {
                let _ = log.send(line);
            }
        });
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let token = CancelToken::new();
        let builder = Session::builder(closed.to_string());
        let builder = builder.wait_for_server(Wait::forever().cancelled_by(&token));
        thread::scope(|scope| {
            let connecting = scope.spawn(|| builder.connect());
            let line = logged.recv().unwrap();
            assert!(line.contains(&format!("tried {closed} (Connection refused")), "{line}");
            token.cancel();
            let error = connecting.join().unwrap().unwrap_err();
            assert_eq!(error.reason(), ErrorReason::Cancelled, "{error}");
        });
        drop(reacting);
    });
}

#[test]
fn persistent_predecessor_is_logged_once_per_session() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        let backup = server.create_sequential("/locks/blocked", "backup-", None);
        let (_clients, sessions) = two_sessions(&server);
        let (log, logged) = unbounded();
        let reacting = Reacting::with(move |record| {
            let line = record.args().to_string();
            if record.level() == Level::Warn && line.contains("persistent") {
                let _ = log.send(line);
            }
        });
        for session in &sessions {
            let lock = WriteLock::new(session, "/locks/blocked").unwrap();
            for _ in 0..2 {
                assert!(!lock.lock().unwrap());
                lock.unlock().unwrap();
            }
        }
        // An ephemeral znode must cause no warning.
        let ephemeral = server.create_sequential("/locks/free", "x-other-lock-", Some(7));
        let lock = WriteLock::new(&sessions[0], "/locks/free").unwrap();
        assert!(!lock.lock().unwrap());
        eventually("both lines are written", || logged.len() >= 2);
        assert_no_threads(LOG_THREAD);
        drop(reacting);
        let lines: Vec<String> = logged.try_iter().collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines.iter().all(|line| line.contains(&backup) && !line.contains(&ephemeral)), "{lines:?}");
    });
}

#[test]
fn names_of_others_are_one_line_in_the_log() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        server.create_sequential("/locks/strange", "x-\u{202e}-lock-", Some(7));
        let (log, logged) = unbounded();
        let reacting = Reacting::with(move |record| drop(log.send(record.args().to_string())));
        let session = server.connect(LONG).open_session().unwrap();
        let lock = WriteLock::new(&session, "/locks/strange").unwrap();
        assert!(!lock.lock().unwrap());
        session.close();
        drop(reacting);
        let lines: Vec<String> = logged.try_iter().collect();
        assert!(lines.iter().any(|line| line.contains("x-\\u{202e}-lock-0000000000")), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains('\u{202e}')), "{lines:?}");
    });
}

#[test]
fn request_that_does_not_count_ours_is_logged_once_per_session_and_directory() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        let latch = server.create_sequential("/election", "_c_0b2e-latch-", Some(7));
        let (_clients, sessions) = two_sessions(&server);
        let (log, logged) = unbounded();
        let reacting = Reacting::with(move |record| {
            let line = record.args().to_string();
            if record.level() == Level::Warn && line.contains("does not count") {
                let _ = log.send(line);
            }
        });
        let name = latch.rsplit('/').next().unwrap();
        let stand = |session, scheme| {
            let options = LockOptions::new().naming(scheme);
            let election = BlockingWriteLock::with_options(session, "/election", options).unwrap();
            for _ in 0..2 {
                assert!(election.try_lock().unwrap().is_none());
            }
        };
        for session in &sessions {
            stand(session, NamingScheme::CuratorLatch);
        }
        assert!(logged.is_empty(), "{:?}", logged.try_recv());
        for session in &sessions {
            stand(session, NamingScheme::Recipe);
        }
        let other = WriteLock::new(&sessions[0], "/other").unwrap();
        assert!(other.lock().unwrap());
        eventually("both lines are written", || logged.len() >= 2);
        assert_no_threads(LOG_THREAD);
        drop(reacting);
        let lines: Vec<String> = logged.try_iter().collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines.iter().all(|line| line.contains(name) && line.contains("NamingScheme::CuratorLatch")));
    });
}

#[test]
fn lock_beside_a_semaphore_is_logged_once_per_session_and_directory() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        let (_clients, [semaphores, locks]) = two_sessions(&server);
        let permits = Semaphore::new(&semaphores, DIR, 1).unwrap();
        drop(permits.acquire().unwrap());
        let (log, logged) = unbounded();
        let reacting = Reacting::with(move |record| {
            let line = record.args().to_string();
            if record.level() == Level::Warn && line.contains("so both may own at once") {
                let _ = log.send(line);
            }
        });
        let lock = BlockingWriteLock::new(&locks, DIR).unwrap();
        for _ in 0..2 {
            let held = lock.lock().unwrap();
            drop(permits.acquire().unwrap());
            held.unlock().unwrap();
        }
        eventually("the line is written", || !logged.is_empty());
        assert_no_threads(LOG_THREAD);
        drop(reacting);
        let lines: Vec<String> = logged.try_iter().collect();
        let [line] = &lines[..] else { panic!("{lines:?}") };
        let begin = format!("in {DIR}, a semaphore (leases) and a lock (x-");
        assert!(line.starts_with(&begin) && line.contains("use another path for one of them"), "{line}");
    });
}

#[test]
fn all_lines_are_written_by_the_same_thread() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        let (log, logged) = unbounded();
        let reacting = Reacting::with(move |_| {
            let _ = log.send(thread::current().name().map(str::to_owned));
        });
        server.create("/config", b"");
        let (clients, sessions) = two_sessions(&server);
        work_with_faults(&server, &clients, &sessions);
        clients[0].expire();
        drop(sessions);
        drop(reacting);
        assert!(!logged.is_empty());
        assert!(logged.iter().all(|thread| thread.as_deref() == Some(LOG_THREAD)));
    });
}

/// Every blocking call of an application, within a time that a logger which is stuck must not use up.
fn call_everything(server: &SimulatedZooKeeper, number: usize) {
    let client = server.connect(LONG);
    let session = client.open_session().unwrap();
    let dir = |name: &str| format!("/stuck/{number}/{name}");
    let blocking = |name: &str| BlockingWriteLock::new(&session, &dir(name)).unwrap();
    let lock = blocking("lock");
    let held = lock.lock().unwrap();
    assert!(held.is_owner());
    server.create(&dir("data"), b"");
    held.commit(|changes| changes.set_data(&dir("data"), "1")).unwrap();
    let begun = Instant::now();
    assert!(lock.try_lock_for(Duration::from_millis(200)).unwrap().is_none());
    assert!(lock.try_lock().unwrap().is_none());
    assert!(begun.elapsed() < MAX_CALL, "a deadline passed {:?} ago", begun.elapsed());
    held.unlock().unwrap();

    let listening = WriteLock::with_listener(&session, &dir("listening"), ()).unwrap();
    assert!(listening.lock().unwrap());
    eventually("the lock is owned", || listening.is_owner());
    listening.unlock().unwrap();
    listening.close();
    let shared = ReadWriteLock::new(&session, &dir("shared")).unwrap();
    drop(shared.write().unwrap().downgrade().unwrap());
    drop(ReentrantLock::new(blocking("reentrant")).lock().unwrap());
    drop(MultiLock::new(&session, [&*dir("a"), &*dir("b")]).unwrap().lock().unwrap());
    drop(CohortLock::new(&session, &dir("cohort")).unwrap().lock().unwrap());
    drop(Semaphore::new(&session, &dir("permits"), 2).unwrap().acquire().unwrap());
    let keys = RunOnce::new(&session, &dir("keys")).unwrap();
    let _ = keys.run("key", |_| Ok::<_, LockError>(())).unwrap();
    let directory = LockDirectory::new(&session, &dir("lock")).unwrap();
    assert!(directory.contenders().unwrap().is_empty());
    drop(directory.watch_queue(LONG).unwrap());
    drop(NodeTracker::start(&session, &dir("data"), LONG).unwrap());
    let candidate = Candidate::keep_leading(blocking("election")).unwrap();
    eventually("the candidate leads", || candidate.is_leader());
    candidate.stop();
    assert!(candidate.wait(Wait::timeout(LONG)));

    let guard = blocking("last").lock().unwrap();
    client.disconnect();
    client.reconnect();
    eventually("the session is connected", || session.state() == SessionState::Connected);
    let begun = Instant::now();
    session.close();
    drop((guard, session));
    assert!(begun.elapsed() < MAX_CALL, "the session was closed within {:?}", begun.elapsed());
}

#[test]
fn logger_that_is_stuck_costs_no_call_its_deadline_at_any_level() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        for (number, level) in
            [LevelFilter::Warn, LevelFilter::Debug, LevelFilter::Trace].into_iter().enumerate()
        {
            let (open, gate) = bounded::<()>(0);
            let (blocks, is_blocked) = unbounded();
            let reacting = Reacting::with(move |_| {
                let _ = blocks.send(());
                let _ = gate.recv();
            });
            logging::write(Level::Warn, "zookeeper_recipes_lock::session", format_args!("a line"));
            is_blocked.recv_timeout(LONG).unwrap();
            log::set_max_level(level);
            call_everything(&server, number);
            assert!(is_blocked.is_empty(), "the logger was called in parallel");
            drop(open);
            drop(reacting);
            // The next round begins without lines of this one.
            assert_no_threads(LOG_THREAD);
        }
    });
}

/// A line that comes before the end of the process can be read after it.
#[test]
fn reason_for_a_loss_is_written_before_a_close_or_the_drop_of_the_last_handle_returns() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        for round in 0..20 {
            let client = server.connect(LONG);
            let session = client.open_session().unwrap();
            let guard = BlockingWriteLock::new(&session, "/locks/why").unwrap().lock().unwrap();
            let states = session.subscribe();
            let (log, logged) = unbounded();
            let reacting = Reacting::with(move |record| {
                // As slow as a terminal.
                thread::sleep(SHORT);
                if record.level() <= Level::Warn {
                    let _ = log.send(record.args().to_string());
                }
            });
            client.expire();
            assert_eq!(states.recv_timeout(LONG), Ok(SessionState::Lost));
            let begun = Instant::now();
            match round % 2 {
                0 => session.close(),
                _ => {
                    let _ = guard.lost().recv_timeout(LONG);
                    drop((session, guard));
                }
            }
            // On a machine that is too busy, the wait ends without the lines.
            let had_time = begun.elapsed() < MAX_LOG_WAIT;
            let lines: Vec<String> = logged.try_iter().collect();
            drop(reacting);
            for reason in ["ZooKeeper session lost: session expired", "lost /locks/why/"] {
                let is_written = lines.iter().any(|line| line.starts_with(reason));
                assert!(is_written || !had_time, "round {round}: '{reason}' is not in {lines:?}");
            }
        }
    });
}

#[test]
fn logger_that_is_stuck_holds_up_many_closes_for_one_moment() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        let sessions: Vec<_> = (0..50).map(|_| server.connect(LONG).open_session().unwrap()).collect();
        let (open, gate) = bounded::<()>(0);
        let reacting = Reacting::with(move |_| {
            let _ = gate.recv();
        });
        let begun = Instant::now();
        sessions.into_iter().for_each(drop);
        assert!(begun.elapsed() < 20 * MAX_LOG_WAIT, "it took {:?}", begun.elapsed());
        drop((open, reacting));
    });
}

#[test]
fn logger_that_closes_the_session_does_not_wait_for_itself() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        let session = server.connect(LONG).open_session().unwrap();
        let (closed, is_closed) = unbounded();
        let of_logger = session.clone();
        let reacting = Reacting::with(move |record| {
            if record.args().to_string().starts_with("acquired /locks/closing/") {
                of_logger.close();
                let _ = closed.send(());
            }
        });
        // The logger may close the session before this thread has returned from `lock`.
        let acquired = BlockingWriteLock::new(&session, "/locks/closing").unwrap().lock();
        if let Err(error) = &acquired {
            assert_eq!(error.reason(), ErrorReason::Closed);
        }
        is_closed.recv_timeout(LONG).unwrap();
        assert_eq!(session.state(), SessionState::Lost);
        drop((acquired, reacting));
    });
}

#[test]
fn lines_of_several_threads_come_in_the_order_of_their_events() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        let session = server.connect(LONG).open_session().unwrap();
        let (log, logged) = unbounded();
        let reacting = Reacting::with(move |record| {
            let line = record.args().to_string();
            if line.starts_with("acquired /locks/order/") || line.starts_with("released /locks/order/") {
                let _ = log.send(line);
            }
        });
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let lock = BlockingWriteLock::new(&session, "/locks/order").unwrap();
                    (0..ROUNDS).for_each(|_| drop(lock.lock().unwrap()));
                });
            }
        });
        let line = || logged.recv_timeout(LONG).unwrap();
        for _ in 0..4 * ROUNDS {
            let (acquired, released) = (line(), line());
            assert_eq!(
                acquired.strip_prefix("acquired "),
                released.strip_prefix("released "),
                "{acquired}, {released}"
            );
        }
        drop(reacting);
    });
}

#[test]
fn lines_that_do_not_fit_are_counted() {
    within_the_deadline(|| {
        let (open, gate) = bounded::<()>(0);
        let (log, logged) = unbounded();
        let reacting = Reacting::with(move |record| {
            let _ = log.send(record.args().to_string());
            let _ = gate.recv();
        });
        let line = |number| {
            logging::write(Level::Info, "zookeeper_recipes_lock::session", format_args!("line {number}"));
        };
        line(0);
        assert_eq!(logged.recv_timeout(LONG).unwrap(), "line 0");
        (1..=MAX_LINES + 7).for_each(line);
        drop(open);
        for number in 1..=MAX_LINES {
            assert_eq!(logged.recv_timeout(LONG).unwrap(), format!("line {number}"));
        }
        let report = logged.recv_timeout(LONG).unwrap();
        assert_eq!(report, "7 lines were dropped because the logger was blocked");
        drop(reacting);
    });
}

#[test]
fn panicking_logger_blocks_no_lock() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        let (clients, sessions) = two_sessions(&server);
        let drawn = AtomicU64::new(1);
        let reacting = Reacting::with(move |_| {
            // A linear congruential generator.
            let next = |last: u64| last.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let last = drawn.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |last| Some(next(last)));
            if last.unwrap() >> 62 != 0 {
                // `resume_unwind` skips the panic hook, which would print the panic.
                resume_unwind(Box::new("the logger panics on purpose"));
            }
        });
        server.create("/config", b"");
        work_with_faults(&server, &clients, &sessions);
        for session in &sessions {
            let lock = BlockingWriteLock::new(session, DIR).unwrap();
            let guard = lock.try_lock_for(LONG).unwrap().expect("the lock is free");
            assert!(guard.is_owner());
        }
        eventually("no znode is left", || server.children(DIR).is_empty());
        sessions.iter().for_each(Session::close);
        assert!(sessions.iter().all(|session| session.state() == SessionState::Lost));
        eventually("both sessions are closed", || server.sessions().is_empty());
        drop(reacting);
    });
}

#[test]
fn logger_that_blocks_on_warnings_holds_up_no_call_of_a_client_that_blocks() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        let (open, gate) = bounded::<()>(0);
        let reacting = Reacting::with(move |record| {
            if record.args().to_string().contains("/secret/") {
                let _ = gate.recv();
            }
        });
        let session = server.connect(LONG).open_session().unwrap();
        // Make enough calls to occupy a small pool of threads.
        for number in 0..16 {
            let path = format!("/secret/{number}");
            server.create_with_acl(&path, b"", &[Acl::new(Permissions::DELETE, "world", "anyone")]);
            let refused = NodeTracker::start(&session, &path, LONG).unwrap_err();
            assert_eq!(refused.reason(), ErrorReason::AccessDenied, "{refused}");
        }
        let (acquired, acquisitions) = bounded(1);
        let lock = BlockingWriteLock::new(&session, DIR).unwrap();
        thread::spawn(move || acquired.send(lock.lock().map(drop)));
        acquisitions.recv_timeout(LONG).unwrap().unwrap();
        drop(open);
        drop(reacting);
    });
}

#[test]
fn logger_that_blocks_on_acquisitions_holds_up_no_call() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        let (open, gate) = bounded::<()>(0);
        let reacting = Reacting::with(move |record| {
            if record.args().to_string().starts_with("acquired /locks/blocked/") {
                let _ = gate.recv();
            }
        });
        let session = server.connect(LONG).open_session().unwrap();
        let locks: Vec<_> = (0..20)
            .map(|number| {
                let dir = format!("/locks/blocked/{number}");
                let ahead = server.create_sequential(&dir, "x-other-lock-", None);
                let lock = WriteLock::with_listener(&session, &dir, ()).unwrap();
                assert!(!lock.lock().unwrap());
                server.delete(&ahead);
                lock
            })
            .collect();
        eventually("all locks are owned", || locks.iter().all(|lock| lock.is_owner()));
        let (acquired, acquisitions) = bounded(1);
        let lock = BlockingWriteLock::new(&session, DIR).unwrap();
        thread::spawn(move || acquired.send(lock.lock().map(drop)));
        acquisitions.recv_timeout(LONG).unwrap().unwrap();
        drop(open);
        drop(reacting);
    });
}

#[test]
fn removal_that_was_refused_is_logged_again_at_the_end_of_the_session() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        let client = server.connect(LONG);
        let session = client.open_session().unwrap();
        let guard = BlockingWriteLock::new(&session, DIR).unwrap().lock().unwrap();
        let (log, logged) = unbounded();
        let reacting = Reacting::with(move |record| {
            let line = record.args().to_string();
            if record.level() <= Level::Debug && line.contains("remove") {
                let _ = log.send(line);
            }
        });
        // The retries are refused, too.
        (0..1000).for_each(|_| client.fail_next(SimOperation::Delete, Effect::Before, ZkError::NoAuth));
        drop(guard);
        let failed = logged.recv_timeout(LONG).unwrap();
        assert!(failed.starts_with("cannot remove "), "{failed}");
        client.expire_silently();
        client.report_expiry();
        let ended = logged.recv_timeout(LONG).unwrap();
        assert!(ended.ends_with("is removed with its session"), "{ended}");
        drop(reacting);
        assert!(logged.is_empty());
    });
}

/// However many attempts are made, the log treats them as one outage.
#[test]
fn outage_lasts_until_the_session_is_replaced() {
    within_the_deadline(|| {
        let server = SimulatedZooKeeper::new();
        let (made, clients) = unbounded();
        let (of_factory, is_out) = (server.clone(), Arc::new(AtomicBool::new(false)));
        let out = Arc::clone(&is_out);
        let session = session_by_factory(move || {
            if out.load(Ordering::SeqCst) {
                return Err(LockError::other("no server"));
            }
            let client = of_factory.connect(LONG);
            let _ = made.send(Arc::clone(&client));
            Ok(client)
        })
        .unwrap();
        let (log, logged) = unbounded();
        let reacting = Reacting::with(move |record| {
            if record.level() <= Level::Info && record.target() == "zookeeper_recipes_lock::session" {
                let _ = log.send(record.args().to_string());
            }
        });
        is_out.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        clients.recv().unwrap().expire();
        let line = |what: &str| logged.iter().find(|line| line.contains(what)).unwrap();
        assert!(line("no ZooKeeper session for ").ends_with(" s: no server"));
        is_out.store(false, Ordering::SeqCst);
        let replaced = line("a new ZooKeeper session replaces the lost one, after ");
        let seconds = replaced.split(", after ").nth(1).unwrap().split('s').next().unwrap();
        let seconds: f64 = seconds.parse().unwrap();
        assert!((1.0..=begun.elapsed().as_secs_f64() + 0.1).contains(&seconds), "{replaced}");
        drop((session, reacting));
    });
}
