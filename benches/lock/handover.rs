//! A contended lock with a separate connection for each contender: the time from one owner to the next.

use zookeeper_recipes_lock::{BlockingWriteLock, LockOptions};

use crate::measure::{Cycle, Plan, Side, compare};
use crate::raw::{self, RawLock};
use crate::table::{print_comparison, print_title};
use crate::{DATA, ROOT, floor_lock, session};

const AIM: f64 = 1.15;

pub(crate) fn run(plan: &Plan, connect_string: &str, sessions: usize) {
    let times = measure(&plan.with_legs_of(2), connect_string, sessions);
    print_title(&format!("hand-over among {sessions} sessions, all in a loop"), "µs per hand-over");
    print_comparison("lock(), unlock()", &times[0], &times[2], Some(&times[3]), AIM);
    print_comparison("lock(), guard dropped", &times[1], &times[2], Some(&times[3]), AIM);
}

/// Returns the microseconds per hand-over: ours, ours with the guard dropped, raw, and on the floor.
pub(crate) fn measure(plan: &Plan, connect_string: &str, sessions: usize) -> Vec<Vec<f64>> {
    let dir = format!("{ROOT}/shared-{sessions}");
    // The floor's lock creates the directory if it is missing.
    let mut floor: Vec<_> = (0..sessions).map(|_| floor_lock(connect_string, &dir)).collect();
    let ours: Vec<BlockingWriteLock> = (0..sessions)
        .map(|_| {
            let options = LockOptions::new().data(DATA);

            BlockingWriteLock::with_options(&session(connect_string), &dir, options)
                .expect("the path is valid")
        })
        .collect();
    let raw: Vec<_> = (0..sessions).map(|_| RawLock::new(&raw::connect(connect_string), &dir)).collect();

    let with_unlock: Side<'_> = ours
        .iter()
        .map(|lock| -> Cycle<'_> {
            Box::new(|| {
                lock.lock().expect("its turn comes").unlock().expect("the lock was held");
            })
        })
        .collect();
    let with_drop: Side<'_> = ours
        .iter()
        .map(|lock| -> Cycle<'_> { Box::new(|| drop(lock.lock().expect("its turn comes"))) })
        .collect();
    let by_hand: Side<'_> =
        raw.iter().map(|lock| -> Cycle<'_> { Box::new(|| lock.contended_cycle()) }).collect();
    let on_floor: Side<'_> =
        floor.iter_mut().map(|lock| -> Cycle<'_> { Box::new(|| lock.cycle()) }).collect();

    compare(plan, &mut [with_unlock, with_drop, by_hand, on_floor])
}
