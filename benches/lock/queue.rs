//! Long queues, measured in a separate process: how fast requests join, how fast the lock passes from the first
//! request to the last, and the memory of each request while all of them wait.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, unbounded};
use zookeeper_recipes_lock::{BlockingWriteLock, LockListener, LockOptions, Session, WriteLock};

use crate::floor::Wire;
use crate::footprint::Size;
use crate::measure::{Plan, measure_in_child};
use crate::table::{print_numbers, print_title};
use crate::{DATA, ROOT, session};

/// The argument that makes this program the measured process.
pub(crate) const CHILD: &str = "--queue-of";

/// The number of threads that join. Each waits for one round trip at a time.
const JOINING: usize = 8;
/// These requests are created first, so shared buffers and threads have reached their final size.
const WARM_UP: usize = 100;
const LISTINGS: usize = 21;

const AIM_JOINED: f64 = 2_000.0;
const AIM_PASSED: f64 = 1_000.0;
const AIM_BYTES: f64 = 4_096.0;

/// A listener that reports which lock was acquired.
struct Turn(usize, Sender<usize>);

impl LockListener for Turn {
    fn lock_acquired(&self) {
        // The receiver is gone at the end.
        let _ = self.1.send(self.0);
    }
    fn lock_released(&self) {}
}

pub(crate) fn run(plan: &Plan, connect_string: &str, waiting: usize, sessions: usize) {
    let arguments = [CHILD, connect_string, &waiting.to_string(), &sessions.to_string()];
    let measured: Vec<[f64; 4]> = (0..plan.footprints.min(3)).map(|_| measure_in_child(&arguments)).collect();
    let of = |index: usize| measured.iter().map(|numbers| numbers[index]).collect::<Vec<f64>>();
    let of_sessions = if sessions == 1 { "1 session".to_owned() } else { format!("{sessions} sessions") };
    print_title(&format!("a queue of {waiting} requests of {of_sessions}"), "");
    // The aims apply to one session: several sessions learn of a release by a watch and a listing.
    if sessions == 1 {
        print_numbers("joined per second", &of(0), "> 2000", |rate| rate > AIM_JOINED);
        print_numbers("hand-overs per second", &of(1), "> 1000", |rate| rate > AIM_PASSED);
    } else {
        print_numbers("joined per second", &of(0), "-", |_| true);
        print_numbers("hand-overs per second", &of(1), "-", |_| true);
        print_numbers("µs for half a listing, bare socket", &of(3), "-", |_| true);
    }
    print_numbers("resident bytes per waiter", &of(2), "< 4096", |bytes| bytes < AIM_BYTES);
}

/// Takes the role of the measured process. Prints how many requests joined per second, how many acquired per
/// second, the bytes per waiter, and the microseconds in which a bare socket receives half of a listing: while
/// the queue drains, it is half as long on average.
pub(crate) fn child(connect_string: &str, waiting: &str, sessions: &str) {
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let (waiting, sessions) = (number(waiting), number(sessions));
    let dir = format!("{ROOT}/long-{}", std::process::id());
    let holder = session(connect_string);
    let guard = BlockingWriteLock::new(&holder, &dir).and_then(|lock| lock.lock()).expect("the lock is free");
    let sessions: Vec<Session> = (0..sessions).map(|_| session(connect_string)).collect();
    let (sender, turns) = unbounded();

    let warm_up = join(&sessions, &dir, WARM_UP, &sender);
    warm_up.iter().for_each(|lock| drop(lock.unlock()));
    let (before, begun) = (Size::now(), Instant::now());
    let locks = join(&sessions, &dir, waiting, &sender);
    let joining = begun.elapsed();
    let bytes = (Size::now().resident_kib - before.resident_kib) * 1024.0 / waiting as f64;
    let half_a_listing = receive_a_listing(connect_string, &dir) / 2.0;

    guard.unlock().expect("the lock was held");
    let first = turns.recv().expect("the first request acquires");
    let begun = Instant::now();
    locks[first].unlock().expect("the lock was held");
    for number in turns.iter().take(waiting - 1) {
        locks[number].unlock().expect("the lock was held");
    }
    let passing = begun.elapsed();
    let per_second = |count: usize, time: std::time::Duration| count as f64 / time.as_secs_f64();
    println!(
        "{} {} {bytes} {half_a_listing}",
        per_second(waiting, joining),
        per_second(waiting - 1, passing)
    );
    sessions.iter().for_each(Session::close);
}

/// Returns the median time in which a bare socket receives a listing, in microseconds.
fn receive_a_listing(connect_string: &str, dir: &str) -> f64 {
    let mut wire = Wire::connect(connect_string, Duration::from_secs(30));
    let mut times: Vec<f64> = (0..LISTINGS)
        .map(|_| {
            let begun = Instant::now();
            wire.receive_listing(dir);
            begun.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[LISTINGS / 2]
}

/// Joins a queue. The sessions make the requests in turn.
fn join(sessions: &[Session], dir: &str, count: usize, sender: &Sender<usize>) -> Vec<WriteLock> {
    let next = Mutex::new(Vec::with_capacity(count));
    thread::scope(|scope| {
        for _ in 0..JOINING {
            scope.spawn(|| {
                loop {
                    let lock = {
                        let mut locks = next.lock().expect("no thread panics");
                        let number = locks.len();
                        if number == count {
                            return;
                        }
                        let session = &sessions[number % sessions.len()];
                        let (options, turn) = (LockOptions::new().data(DATA), Turn(number, sender.clone()));
                        let lock = WriteLock::with_options(session, dir, options, turn);
                        let lock = std::sync::Arc::new(lock.expect("the path is valid"));
                        locks.push(std::sync::Arc::clone(&lock));
                        lock
                    };
                    assert!(!lock.lock().expect("the server answers"), "the lock is held");
                }
            });
        }
    });
    let locks = next.into_inner().expect("no thread panics");
    locks.into_iter().map(|lock| std::sync::Arc::into_inner(lock).expect("no thread has a handle")).collect()
}
