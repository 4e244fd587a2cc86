//! Uncontended locks on one connection, where each thread has a directory of its own. On the floor, each thread
//! has its own connection, too. A second floor has one connection for all locks, and one thread, which takes each step
//! of all locks in one write.

use zookeeper_recipes_lock::client::CreateMode;
use zookeeper_recipes_lock::{BlockingWriteLock, LockOptions};

use crate::floor::FloorLocks;
use crate::measure::{Cycle, Plan, Side, compare_both};
use crate::raw::{self, RawLock};
use crate::table::{print_comparison, print_numbers, print_title};
use crate::{DATA, ROOT, SESSION_TIMEOUT, floor_lock, session};

const AIM: f64 = 1.15;

/// The limit for the processor time of a cycle, for one thread and for several.
const AIM_PROCESSOR_MICROS: f64 = 45.0;
const AIM_PROCESSOR_MICROS_OF_MANY: f64 = 35.0;

pub(crate) fn run(plan: &Plan, connect_string: &str, threads: usize) {
    let (session, zk) = (session(connect_string), raw::connect(connect_string));
    let dirs: Vec<String> = (0..threads).map(|thread| format!("{ROOT}/own-{threads}-{thread}")).collect();
    for dir in &dirs {
        raw::create(&zk, dir, CreateMode::Persistent);
    }
    let ours: Vec<BlockingWriteLock> = dirs
        .iter()
        .map(|dir| {
            let options = LockOptions::new().data(DATA);

            BlockingWriteLock::with_options(&session, dir, options).expect("the path is valid")
        })
        .collect();
    let raw: Vec<_> = dirs.iter().map(|dir| RawLock::new(&zk, dir)).collect();
    let mut floor: Vec<_> = dirs.iter().map(|dir| floor_lock(connect_string, dir)).collect();
    let mut shared_floor = FloorLocks::new(connect_string, SESSION_TIMEOUT, &dirs, DATA);

    let with_unlock: Side<'_> = ours
        .iter()
        .map(|lock| -> Cycle<'_> {
            Box::new(|| {
                lock.lock().expect("the lock is free").unlock().expect("the lock was held");
            })
        })
        .collect();
    let with_drop: Side<'_> = ours
        .iter()
        .map(|lock| -> Cycle<'_> { Box::new(|| drop(lock.lock().expect("the lock is free"))) })
        .collect();
    let by_hand: Side<'_> = raw.iter().map(|lock| -> Cycle<'_> { Box::new(|| lock.cycle()) }).collect();
    let on_floor: Side<'_> =
        floor.iter_mut().map(|lock| -> Cycle<'_> { Box::new(|| lock.cycle()) }).collect();

    let on_shared_floor: Side<'_> = vec![Box::new(|| shared_floor.cycle())];

    let mut sides = [with_unlock, with_drop, by_hand, on_floor, on_shared_floor];
    let (times, processor_times) = compare_both(plan, &mut sides);
    let of_threads =
        if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads, 1 connection") };
    print_title(&format!("lock + unlock, uncontended, {of_threads}"), "µs per cycle");
    print_comparison("lock(), unlock()", &times[0], &times[2], Some(&times[3]), AIM);
    print_comparison("lock(), guard dropped", &times[1], &times[2], Some(&times[3]), AIM);
    if threads > 1 {
        // A cycle on this floor is one of each lock.
        let on_shared_floor: Vec<f64> = times[4].iter().map(|time| time / threads as f64).collect();
        print_numbers("floor, 1 connection", &on_shared_floor, "-", |_| true);
    }
    let aim = if threads == 1 { AIM_PROCESSOR_MICROS } else { AIM_PROCESSOR_MICROS_OF_MANY };
    print_processor_times(&processor_times, aim);
}

fn print_processor_times(sides: &[Vec<f64>], aim: f64) {
    let [with_unlock, with_drop, by_hand, on_floor, ..] = sides else { return };
    print_title("… of that, processor time of this process", "µs per cycle");
    let is_met = |median| median <= aim;
    print_numbers("lock(), unlock()", with_unlock, &format!("≤ {aim}"), is_met);
    print_numbers("lock(), guard dropped", with_drop, &format!("≤ {aim}"), is_met);
    print_numbers("raw", by_hand, "-", |_| true);
    print_numbers("floor", on_floor, "-", |_| true);
}
