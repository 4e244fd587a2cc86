//! Readers that start at the same time, each on a connection of its own, with a writer behind them: the time
//! until all readers hold the lock, and from the last release to the writer.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::LockOptions;
use zookeeper_recipes_lock::client::CreateMode;
use zookeeper_recipes_lock::locks::ReadWriteLock;

use crate::measure::{Plan, SETTLE};
use crate::raw::{self, RawLock};
use crate::raw_client::RawClient;
use crate::table::{print_comparison, print_title};
use crate::{DATA, ROOT, session};

const AIM: f64 = 1.15;

/// The time until all readers held the lock, and until the writer held it after them, in microseconds.
struct Times {
    all_read: f64,
    writer_follows: f64,
}

pub(crate) fn run(plan: &Plan, connect_string: &str, readers: usize) {
    let zk = raw::connect(connect_string);
    let dir = format!("{ROOT}/readers-{readers}");
    raw::create(&zk, &dir, CreateMode::Persistent);
    let lock = || {
        let options = LockOptions::new().data(DATA);

        ReadWriteLock::with_options(&session(connect_string), &dir, options).expect("the path is valid")
    };
    let ours: Vec<ReadWriteLock> = (0..readers).map(|_| lock()).collect();
    let our_writer = lock();
    let raw: Vec<RawLock> =
        (0..readers).map(|_| RawLock::reader(&raw::connect(connect_string), &dir)).collect();
    let raw_writer = RawLock::writer(&raw::connect(connect_string), &dir);

    let await_queue = |length| await_queue(&zk, &dir, length);
    let time_ours = || {
        time_round(
            &ours,
            |lock| lock.read().expect("no writer is ahead"),
            |guard| {
                guard.unlock().expect("the lock was held");
            },
            || our_writer.write().expect("its turn comes"),
            await_queue,
        )
    };
    let time_raw = || time_round(&raw, RawLock::hold, drop, || raw_writer.hold(), await_queue);

    let mut times: [Vec<Times>; 2] = [Vec::new(), Vec::new()];
    for round in 0..plan.rounds + 1 {
        for turn in 0..2 {
            thread::sleep(SETTLE);
            let side = (round + turn) % 2;
            let measured = if side == 0 { time_ours() } else { time_raw() };
            // The first round is for warming up.
            if round > 0 {
                times[side].push(measured);
            }
        }
    }
    let column = |side: usize, of: fn(&Times) -> f64| times[side].iter().map(of).collect::<Vec<f64>>();
    print_title(&format!("{readers} readers at once, each with a session, and a writer behind them"), "µs");
    let all_read = |times: &Times| times.all_read;
    print_comparison("until all readers hold", &column(0, all_read), &column(1, all_read), None, AIM);
    let follows = |times: &Times| times.writer_follows;
    print_comparison("last release to writer", &column(0, follows), &column(1, follows), None, AIM);
}

/// Makes all readers acquire at the same time and a writer join the queue behind them. Then all readers
/// release.
fn time_round<'a, L: Sync, G: Send, W: Send>(
    readers: &'a [L],
    read: impl Fn(&'a L) -> G + Sync,
    release: impl Fn(G),
    write: impl FnOnce() -> W + Send,
    await_queue: impl Fn(usize),
) -> Times {
    let gate = Barrier::new(readers.len());
    let mut held: Vec<(Instant, Instant, G)> = thread::scope(|scope| {
        let acquire = |lock: &'a L| {
            gate.wait();
            let start = Instant::now();
            let guard = read(lock);
            (start, Instant::now(), guard)
        };
        let reading: Vec<_> = readers.iter().map(|lock| scope.spawn(move || acquire(lock))).collect();
        reading.into_iter().map(|thread| thread.join().expect("no reader panics")).collect()
    });
    let start = held.iter().map(|(start, ..)| *start).min().expect("at least one reader runs");
    let end = held.iter().map(|(_, end, _)| *end).max().expect("at least one reader runs");
    let writer_follows = thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let guard = write();
            (Instant::now(), guard)
        });
        await_queue(readers.len() + 1);
        let (.., last) = held.pop().expect("at least one reader runs");
        held.into_iter().for_each(|(.., guard)| release(guard));
        let released = Instant::now();
        release(last);
        let (acquired, _guard) = writing.join().expect("the writer does not panic");
        acquired - released
    });
    await_queue(0);
    Times { all_read: (end - start).as_secs_f64() * 1e6, writer_follows: writer_follows.as_secs_f64() * 1e6 }
}

/// Waits until the queue has this many requests.
fn await_queue(zk: &RawClient, dir: &str, length: usize) {
    while zk.get_children(dir).expect("the directory exists").len() != length {
        thread::sleep(Duration::from_millis(5));
    }
}
