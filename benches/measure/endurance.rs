//! A day in miniature: many sessions and locks, while one server after another is killed or paused. Once a minute, when
//! no lock is held, this counts what the process and the servers hold.

use std::fs;
use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use zookeeper_recipes_lock::queue::LockDirectory;
use zookeeper_recipes_lock::{BlockingWriteLock, ErrorReason, Session, SessionState};

use crate::allocated::allocated_blocks;
use crate::plot::{Line, plot};
use crate::support::ensemble::Ensemble;
use crate::support::server::ServerOptions;
use crate::support::test_server::TestEnsemble;
use crate::{ROOT, resident_kib};

const SESSIONS: usize = 100;

/// Two locks, on different sessions, share a directory.
const LOCKS: usize = 1000;

const WORKERS: usize = 16;
const SERVERS: usize = 3;
const SESSION_TIMEOUT: Duration = Duration::from_secs(20);

/// The time from one count to the next.
const ROUND: Duration = Duration::from_secs(60);

/// The time from one fault to the next.
const BETWEEN_FAULTS: Duration = Duration::from_secs(12);

const PAUSE: Duration = Duration::from_secs(4);
const MAX_WAIT: Duration = Duration::from_secs(2);
const HOLD: Duration = Duration::from_millis(5);

/// The pause of a worker between two locks.
const REST: Duration = Duration::from_millis(50);

const MAX_RECOVERY: Duration = Duration::from_secs(300);

/// What the process and the servers hold when no lock is held.
struct Count {
    minute: f64,
    resident_kib: f64,
    /// The number of allocated blocks of memory.
    blocks: usize,
    threads: usize,
    descriptors: usize,
    znodes: usize,
    watches: usize,
}

/// The work between the first count and the last one.
#[derive(Default)]
struct Work {
    acquired: AtomicUsize,
    timed_out: AtomicUsize,
    failed: AtomicUsize,
    faults: AtomicUsize,
}

/// Prints the counts of each minute, and the path of the plot.
pub(crate) fn run(length: Duration) {
    // Otherwise the servers would delete the directories, which are containers, while nobody uses them.
    let flag = "-Dznode.container.checkIntervalMs=86400000".to_owned();
    let ensemble = Ensemble::with(SERVERS, &ServerOptions { jvm_flags: vec![flag], ..Default::default() });
    let sessions: Vec<Session> =
        (0..SESSIONS).map(|_| replaced_session(&ensemble.connect_string())).collect();
    let locks: Vec<BlockingWriteLock> = (0..LOCKS)
        .map(|number| {
            BlockingWriteLock::new(&sessions[number % SESSIONS], &dir_of(number)).expect("it is valid")
        })
        .collect();
    // Ensures that every directory exists and every lock has been held before the first count.
    locks.iter().for_each(|lock| drop(lock.lock().expect("the lock is free")));

    let work = Work::default();
    let begun = Instant::now();
    let mut counts = Vec::new();
    println!(
        "\n| minute | resident KiB | blocks | threads | descriptors | znodes | watches | acquired | timed out | failed | faults |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    while counts.is_empty() || begun.elapsed() < length {
        work_and_fail(&ensemble, &locks, &work);
        await_rest(&ensemble, &sessions);
        let count = count(&ensemble, begun);
        print(&count, &work);
        counts.push(count);
    }
    let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/endurance.svg");
    fs::write(path, picture(&counts)).expect("the target directory can be written");
    println!("\nThe plot is in {path}.");
}

fn replaced_session(connect_string: &str) -> Session {
    let builder = Session::builder(connect_string).session_timeout(SESSION_TIMEOUT);
    builder.replace_lost_sessions(true).connect().expect("the servers are up")
}

fn dir_of(lock: usize) -> String {
    format!("{ROOT}/endurance-{}", lock / 2)
}

/// Runs a round: all workers lock and unlock until the last fault of the round is over.
fn work_and_fail(ensemble: &Ensemble, locks: &[BlockingWriteLock], work: &Work) {
    let over = Instant::now() + ROUND;
    let (end, ended) = bounded::<()>(0);
    thread::scope(move |scope| {
        // A panic in this closure ends the workers, too.
        let _end = end;
        for worker in 0..WORKERS {
            let ended = ended.clone();
            scope.spawn(move || lock_and_unlock(locks, worker as u64, &ended, work));
        }
        while Instant::now() + BETWEEN_FAULTS < over {
            thread::sleep(BETWEEN_FAULTS);
            if let Err(error) = fail(ensemble, work.faults.fetch_add(1, Ordering::Relaxed)) {
                eprintln!("the servers are late: {error}");
            }
        }
    });
}

/// Does the work of a thread until the channel is disconnected.
fn lock_and_unlock(locks: &[BlockingWriteLock], seed: u64, ended: &Receiver<()>, work: &Work) {
    static ROUNDS: AtomicU64 = AtomicU64::new(0);
    let mut random = fastrand::Rng::with_seed(seed + (ROUNDS.fetch_add(1, Ordering::Relaxed) << 8));
    while ended.recv_timeout(REST).is_err_and(|error| error.is_timeout()) {
        let lock = &locks[random.usize(..locks.len())];
        let counter = match lock.try_lock_for(MAX_WAIT) {
            Ok(Some(guard)) => {
                let _ = guard.lost().recv_timeout(HOLD);
                &work.acquired
            }
            Ok(None) => &work.timed_out,
            Err(error) => {
                assert!(error.reason() != ErrorReason::Closed, "nobody closes: {error}");
                &work.failed
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Kills and restarts a server, or pauses one. Every second time, the server is the leader. On a busy machine, a server
/// may need longer than this function waits for it.
fn fail(ensemble: &TestEnsemble, number: usize) -> io::Result<()> {
    let index = if number % 2 == 0 { ensemble.leader()? } else { ensemble.follower()? };
    let server = ensemble.server(index);
    if number % 4 < 2 {
        server.kill()?;
        ensemble.restart(index)?;
    } else {
        server.pause()?;
        thread::sleep(PAUSE);
        server.resume();
    }
    ensemble.await_quorum()
}

/// Waits until all sessions have contact and nothing is left of the locks.
fn await_rest(ensemble: &Ensemble, sessions: &[Session]) {
    let begun = Instant::now();
    loop {
        let missing = what_is_missing(ensemble, sessions);
        if missing.is_empty() {
            return;
        }
        if begun.elapsed() >= MAX_RECOVERY {
            keep_server_files(ensemble);
            panic!("after {MAX_RECOVERY:?}:\n{}", missing.join("\n"));
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Keeps the servers' logs and transactions. What the servers have confirmed shows who is at fault.
fn keep_server_files(ensemble: &Ensemble) {
    let kept = tempfile::tempdir().expect("a directory for temporary files").keep();
    for server in 0..SERVERS {
        let copied = Command::new("cp").arg("-R").arg(ensemble.node(server).dir()).arg(&kept).status();
        assert!(copied.is_ok_and(|status| status.success()), "the files of server {server} can be copied");
    }
    println!("the files of the servers are kept in {}", kept.display());
}

fn what_is_missing(ensemble: &Ensemble, sessions: &[Session]) -> Vec<String> {
    let down = (0..SERVERS).filter(|index| !ensemble.server(*index).serves());
    let mut missing: Vec<String> = down.map(|index| format!("server {index} does not serve")).collect();
    for session in sessions.iter().filter(|session| session.state() != SessionState::Connected) {
        missing.push(format!("{session:?} is {:?}", session.state()));
    }
    if missing.is_empty() && metric(ensemble, "ephemerals_count").into_iter().any(|left| left > 0) {
        let queues = (0..LOCKS / 2).map(|number| LockDirectory::new(&sessions[0], &dir_of(2 * number)));
        let requests =
            queues.flat_map(|queue| queue.and_then(|queue| queue.contenders()).unwrap_or_default());
        missing.extend(requests.map(|request| request.to_string()));
    }
    missing
}

fn metric(ensemble: &Ensemble, name: &str) -> Vec<usize> {
    (0..SERVERS).map(|index| ensemble.node(index).metric(name)).collect()
}

fn count(ensemble: &Ensemble, begun: Instant) -> Count {
    let entries = |dir: &str| fs::read_dir(dir).expect("this is Linux").count();
    Count {
        minute: begun.elapsed().as_secs_f64() / 60.0,
        resident_kib: resident_kib(),
        blocks: allocated_blocks(),
        threads: entries("/proc/self/task"),
        descriptors: entries("/proc/self/fd"),
        znodes: metric(ensemble, "znode_count").into_iter().max().unwrap_or_default(),
        watches: metric(ensemble, "watch_count").into_iter().sum(),
    }
}

fn print(count: &Count, work: &Work) {
    let Count { minute, resident_kib, blocks, threads, descriptors, znodes, watches } = count;
    let [acquired, timed_out, failed, faults] = [&work.acquired, &work.timed_out, &work.failed, &work.faults]
        .map(|number| number.load(Ordering::Relaxed));
    println!(
        "| {minute:.0} | {resident_kib:.0} | {blocks} | {threads} | {descriptors} | {znodes} | {watches} | {acquired} | {timed_out} | \
         {failed} | {faults} |"
    );
}

/// Draws each count as a multiple of the first one.
fn picture(counts: &[Count]) -> String {
    let line = |name, of: fn(&Count) -> f64| {
        let first = counts.first().map_or(1.0, of).max(1.0);
        Line { name, points: counts.iter().map(|count| (count.minute, of(count) / first)).collect() }
    };
    plot(
        "What the process and the servers hold, relative to the first minute",
        &[
            line("resident memory", |count| count.resident_kib),
            line("blocks allocated", |count| count.blocks as f64),
            line("threads", |count| count.threads as f64),
            line("descriptors", |count| count.descriptors as f64),
            line("znodes", |count| count.znodes as f64),
            line("watches", |count| count.watches as f64),
        ],
    )
}
