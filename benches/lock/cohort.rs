//! Cohort locks beside plain ones, in four cases: one thread that acquires again and again, eight contending threads of
//! one process, another process that asks for a lock kept idle, and two contending processes. A second session of this
//! process stands in for another process. For comparison with the eight threads, eight threads pass a token around:
//! each step wakes a thread, as each hand-over does.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{bounded, unbounded};
use zookeeper_recipes_lock::client::CreateMode;
use zookeeper_recipes_lock::locks::CohortLock;
use zookeeper_recipes_lock::{BlockingWriteLock, LockListener, LockOptions, WriteLock};

use crate::measure::{Cycle, Plan, SETTLE, Side, compare};
use crate::raw;
use crate::table::{print_numbers, print_title};
use crate::{DATA, ROOT, session};

const AIM_MICROS: f64 = 2.0;
const AIM_FACTOR: f64 = 100.0;
const AIM_IDLE: f64 = 1.5;
const AIM_SHARED: f64 = 20.0;

pub(crate) fn run(plan: &Plan, connect_string: &str, threads: usize) {
    let (session, zk) = (session(connect_string), raw::connect(connect_string));
    let dir = |kind: &str| {
        let dir = format!("{ROOT}/{kind}-{threads}");
        raw::create(&zk, &dir, CreateMode::Persistent);
        dir
    };
    let options = || LockOptions::new().data(DATA);
    let cohort = CohortLock::with_options(&session, &dir("cohort"), options(), Default::default());
    let cohort = cohort.expect("the path is valid");
    let plain = BlockingWriteLock::with_options(&session, &dir("plain"), options());
    let plain = plain.expect("the path is valid");

    // The locks are measured one after the other, because one of them completes far more cycles than the other.
    let side = |cycle: &(dyn Fn() + Sync)| -> Vec<f64> {
        let mut side: Side<'_> = (0..threads).map(|_| -> Cycle<'_> { Box::new(cycle) }).collect();
        compare(plan, std::slice::from_mut(&mut side)).swap_remove(0)
    };
    let shared = side(&|| {
        cohort.lock().expect("its turn comes").unlock().expect("the lock was held");
    });
    let requested = side(&|| {
        plain.lock().expect("its turn comes").unlock().expect("the lock was held");
    });

    let of_threads = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads, 1 lock") };
    print_title(&format!("lock + unlock of a cohort lock, {of_threads}"), "µs per cycle");
    let factors: Vec<f64> = requested.iter().zip(&shared).map(|(plain, cohort)| plain / cohort).collect();
    if threads == 1 {
        print_numbers("CohortLock", &shared, "< 2", |median| median < AIM_MICROS);
    } else {
        print_numbers("CohortLock", &shared, "-", |_| true);
    }
    print_numbers("BlockingWriteLock", &requested, "-", |_| true);
    print_numbers("times as fast", &factors, "> 100", |median| median > AIM_FACTOR);
    if threads > 1 {
        let tokens: Vec<f64> = (0..plan.rounds).map(|_| pass_a_token(threads)).collect();
        print_numbers("a token passed on", &tokens, "-", |_| true);
    }
}

/// Returns how many microseconds a thread takes to pass a token to the next thread through a channel, which wakes that
/// thread. A hand-over costs about as much if all threads except the owner sleep.
fn pass_a_token(threads: usize) -> f64 {
    const TIMES: u32 = 50_000;
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| bounded::<u32>(1)).unzip();
    let begun = Instant::now();
    thread::scope(|scope| {
        for (number, receiver) in receivers.into_iter().enumerate() {
            let next = senders[(number + 1) % threads].clone();
            scope.spawn(move || {
                for left in receiver {
                    // The thread that gets the last token ends, and the others end after it.
                    if left == 0 || next.send(left - 1).is_err() {
                        return;
                    }
                }
            });
        }
        senders[0].send(TIMES).expect("the first thread waits");
        drop(senders);
    });
    begun.elapsed().as_secs_f64() * 1e6 / f64::from(TIMES)
}

/// Measures how fast another process gets a lock that is kept idle, compared with a lock whose holder releases it as
/// soon as the other process has joined the queue.
pub(crate) fn run_idle(plan: &Plan, connect_string: &str) {
    let (of_keeper, of_other) = (session(connect_string), session(connect_string));
    let dir = |kind: &str| format!("{ROOT}/{kind}-idle");
    let cohort = CohortLock::new(&of_keeper, &dir("cohort")).expect("the path is valid");
    let other = BlockingWriteLock::new(&of_other, &dir("cohort")).expect("the path is valid");
    let holder = BlockingWriteLock::new(&of_keeper, &dir("plain")).expect("the path is valid");
    let (turn, turns) = unbounded();
    let listener = move || {
        // The receiver is gone at the end.
        let _ = turn.send(());
    };
    let waiter =
        WriteLock::with_listener(&of_other, &dir("plain"), OnTurn(listener)).expect("the path is valid");
    let (mut kept, mut released) = (Vec::new(), Vec::new());
    for _ in 0..10 * plan.rounds {
        drop(cohort.lock().expect("its turn comes"));
        // Long enough for the keeper to start watching the queue.
        thread::sleep(SETTLE / 10);
        let begun = Instant::now();
        let guard = other.lock().expect("its turn comes");
        kept.push(begun.elapsed().as_secs_f64() * 1e6);
        guard.unlock().expect("the lock was held");

        let guard = holder.lock().expect("its turn comes");
        thread::sleep(SETTLE / 10);
        let begun = Instant::now();
        waiter.lock().expect("it joins");
        guard.unlock().expect("the lock was held");
        turns.recv().expect("its turn comes");
        released.push(begun.elapsed().as_secs_f64() * 1e6);
        waiter.unlock().expect("the lock was held");
    }
    print_title("from the request of another process to its ownership", "µs");
    print_numbers("of a CohortLock kept idle", &kept, "-", |_| true);
    print_numbers("of a lock released at once", &released, "-", |_| true);
    let ratios: Vec<f64> = kept.iter().zip(&released).map(|(kept, released)| kept / released).collect();
    print_numbers("times as long", &ratios, "≤ 1.5", |median| median <= AIM_IDLE);
}

struct OnTurn<F>(F);

impl<F: Fn() + Send + Sync> LockListener for OnTurn<F> {
    fn lock_acquired(&self) {
        self.0();
    }

    fn lock_released(&self) {}
}

/// Measures two processes of eight threads each on one lock: the rate of all tenures compared to plain locks,
/// and the share of one process.
pub(crate) fn run_shared(plan: &Plan, connect_string: &str) {
    let sessions = [session(connect_string), session(connect_string)];
    let dir = |kind: &str| format!("{ROOT}/{kind}-shared");
    let cohorts = sessions.each_ref().map(|session| {
        let lock = CohortLock::new(session, &dir("cohort")).expect("the path is valid");
        move || drop(lock.lock().expect("its turn comes"))
    });
    let plain = sessions.each_ref().map(|session| {
        let lock = BlockingWriteLock::new(session, &dir("plain")).expect("the path is valid");
        move || drop(lock.lock().expect("its turn comes"))
    });
    let (mut factors, mut parts) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        let [first, second] = tenures(&cohorts, 2 * plan.leg);
        let of_plain: u32 = tenures(&plain, 2 * plan.leg).into_iter().sum();
        factors.push(f64::from(first + second) / f64::from(of_plain.max(1)));
        parts.push(100.0 * f64::from(first) / f64::from((first + second).max(1)));
    }
    print_title("two processes of 8 threads each, on one lock", "");
    print_numbers("times as fast as plain", &factors, "≥ 20", |median| median >= AIM_SHARED);
    print_numbers("share of the first process, %", &parts, "40 to 60", |median| {
        (40.0..=60.0).contains(&median)
    });
}

/// Returns how many times each process has held the lock in this time.
fn tenures(processes: &[impl Fn() + Sync; 2], length: Duration) -> [u32; 2] {
    let end = Instant::now() + length;
    let work = |cycle: &(dyn Fn() + Sync)| {
        let mut done = 0;
        while Instant::now() < end {
            cycle();
            done += 1;
        }
        done
    };
    thread::scope(|scope| {
        let threads = processes.each_ref().map(|cycle| [(); 8].map(|()| scope.spawn(move || work(cycle))));
        threads.map(|threads| threads.into_iter().map(|thread| thread.join().expect("no cycle panics")).sum())
    })
}
