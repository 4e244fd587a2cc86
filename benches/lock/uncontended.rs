//! Uncontended locks on one connection: each thread has its own directory. On the floor each has its
//! own connection, too.

use zookeeper::CreateMode;
use zookeeper_recipes_lock::{BlockingWriteLock, LockOptions};

use crate::measure::{Cycle, Plan, Side, compare};
use crate::raw::{self, RawLock};
use crate::table::{print_comparison, print_title};
use crate::{DATA, ROOT, floor_lock, session};

const AIM: f64 = 1.15;

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

    let with_unlock: Side<'_> = ours
        .iter()
        .map(|lock| -> Cycle<'_> {
            Box::new(|| {
                lock.lock().expect("it is free").unlock().expect("it was held");
            })
        })
        .collect();
    let with_drop: Side<'_> = ours
        .iter()
        .map(|lock| -> Cycle<'_> { Box::new(|| drop(lock.lock().expect("it is free"))) })
        .collect();
    let by_hand: Side<'_> = raw.iter().map(|lock| -> Cycle<'_> { Box::new(|| lock.cycle()) }).collect();
    let on_floor: Side<'_> =
        floor.iter_mut().map(|lock| -> Cycle<'_> { Box::new(|| lock.cycle()) }).collect();

    let times = compare(plan, &mut [with_unlock, with_drop, by_hand, on_floor]);
    let of_threads =
        if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads, 1 connection") };
    print_title(&format!("lock + unlock, uncontended, {of_threads}"), "µs per cycle");
    print_comparison("lock(), unlock()", &times[0], &times[2], Some(&times[3]), AIM);
    print_comparison("lock(), guard dropped", &times[1], &times[2], Some(&times[3]), AIM);
}
