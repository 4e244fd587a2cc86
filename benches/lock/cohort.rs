//! Cohort locks beside plain ones: one thread that acquires again and again, and eight threads of
//! one process that contend.

use zookeeper::CreateMode;
use zookeeper_recipes_lock::{BlockingWriteLock, CohortLock, LockOptions};

use crate::measure::{Cycle, Plan, Side, compare};
use crate::raw;
use crate::table::{print_numbers, print_title};
use crate::{DATA, ROOT, session};

const AIM_MICROS: f64 = 2.0;
const AIM_FACTOR: f64 = 100.0;

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

    // One after the other: their numbers of cycles have nothing in common.
    let side = |cycle: &(dyn Fn() + Sync)| -> Vec<f64> {
        let mut side: Side<'_> = (0..threads).map(|_| -> Cycle<'_> { Box::new(cycle) }).collect();
        compare(plan, std::slice::from_mut(&mut side)).swap_remove(0)
    };
    let shared = side(&|| {
        cohort.lock().expect("its turn comes").unlock().expect("it was held");
    });
    let requested = side(&|| {
        plain.lock().expect("its turn comes").unlock().expect("it was held");
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
}
