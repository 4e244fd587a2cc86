//! Timing: threads that start together, sides that alternate, and processes that are measured.

use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The extent of the measurements.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) is_quick: bool,
    pub(crate) rounds: usize,
    /// The approximate length of a side's turn in a round.
    pub(crate) leg: Duration,
    /// How many times the memory is measured, each time in a separate process.
    pub(crate) footprints: usize,
}

impl Plan {
    pub(crate) fn new(quick: bool) -> Plan {
        if quick {
            Plan { is_quick: quick, rounds: 5, leg: Duration::from_millis(150), footprints: 3 }
        } else {
            Plan { is_quick: quick, rounds: 31, leg: Duration::from_millis(300), footprints: 5 }
        }
    }

    /// Returns the same plan with longer turns and fewer rounds, for measurements that need long turns to settle.
    pub(crate) fn with_legs_of(&self, factor: u32) -> Plan {
        Plan { leg: self.leg * factor, rounds: (self.rounds * 2 / 3).max(3), ..*self }
    }
}

/// The work that one thread repeats.
pub(crate) type Cycle<'a> = Box<dyn FnMut() + Send + 'a>;

/// One of the sides in a comparison: the cycles of its threads, which run at the same time.
pub(crate) type Side<'a> = Vec<Cycle<'a>>;

/// The pause before each turn, so background work of the previous side does not affect the next one.
pub(crate) const SETTLE: Duration = Duration::from_millis(150);

/// Measures the sides alternately, in the order of [`side_at`]. Returns the microseconds per cycle: for each side, one
/// number per round. All sides make the same number of cycles.
pub(crate) fn compare(plan: &Plan, sides: &mut [Side<'_>]) -> Vec<Vec<f64>> {
    compare_both(plan, sides).0
}

/// Like [`compare`], and also returns the microseconds of processor time per cycle, in the same form.
pub(crate) fn compare_both(plan: &Plan, sides: &mut [Side<'_>]) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
    let cycles = sides.iter_mut().map(|side| calibrate(side, plan.leg)).min().unwrap_or(1);
    let mut times = vec![Vec::with_capacity(plan.rounds); sides.len()];
    let mut processor_times = times.clone();
    for round in 0..plan.rounds {
        for turn in 0..sides.len() {
            let position = side_at(round, turn, sides.len());
            thread::sleep(SETTLE);
            let side = &mut sides[position];
            let before = processor_time();
            times[position].push(time_per_cycle(side, cycles));
            let used = processor_time() - before;
            processor_times[position].push(used * 1e6 / (side.len() as f64 * f64::from(cycles)));
        }
    }
    (times, processor_times)
}

/// Returns which side has this turn in this round. Each round starts with the next side, and every second round runs
/// backwards. So the effects of the order cancel: in twice as many rounds as there are sides, each side has each turn
/// twice.
const fn side_at(round: usize, turn: usize, sides: usize) -> usize {
    let turn = if round % 2 == 0 { turn } else { sides - turn };
    (round + turn) % sides
}

// A benchmark has no unit tests, so the compiler checks this, for all pairs of a side and a turn.
const _: () = {
    let mut number = 0;
    while number < 6 * 6 * 6 {
        let (sides, turn, side) = (number % 6 + 1, number / 6 % 6, number / 36);
        let (mut round, mut count) = (0, 0);
        while turn < sides && round < 2 * sides {
            count += (side_at(round, turn, sides) == side) as usize;
            round += 1;
        }
        assert!(turn >= sides || side >= sides || count == 2);
        number += 1;
    }
};

/// Returns the seconds of processor time that this process has spent so far, in its own code and in the system.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns how many cycles each thread makes in this time. This also warms up the side.
fn calibrate(side: &mut Side<'_>, leg: Duration) -> u32 {
    let start = Instant::now();
    let (mut done, mut batch) = (0, 1);
    // The batches grow, so an early hiccup does not distort the result.
    while start.elapsed() < leg {
        time_per_cycle(side, batch);
        done += batch;
        batch *= 2;
    }
    ((f64::from(done) * leg.as_secs_f64() / start.elapsed().as_secs_f64()) as u32).max(1)
}

/// Returns the time from the first thread's start to the last one's end, in microseconds, divided by the number
/// of cycles.
fn time_per_cycle(side: &mut Side<'_>, cycles: u32) -> f64 {
    let threads = side.len();
    let gate = Barrier::new(threads);
    let times: Vec<(Instant, Instant)> = thread::scope(|scope| {
        let running: Vec<_> =
            side.iter_mut().map(|cycle| scope.spawn(|| time_cycles(cycle, cycles, &gate))).collect();
        running.into_iter().map(|thread| thread.join().expect("no cycle panics")).collect()
    });
    let start = times.iter().map(|(start, _)| *start).min().expect("at least one thread runs");
    let end = times.iter().map(|(_, end)| *end).max().expect("at least one thread runs");
    (end - start).as_secs_f64() * 1e6 / (threads as f64 * f64::from(cycles))
}

fn time_cycles(cycle: &mut Cycle<'_>, cycles: u32, gate: &Barrier) -> (Instant, Instant) {
    gate.wait();
    let start = Instant::now();
    for _ in 0..cycles {
        cycle();
    }
    (start, Instant::now())
}

/// Runs this program again with these arguments. Returns the numbers that it prints.
pub(crate) fn measure_in_child<const N: usize>(arguments: &[&str]) -> [f64; N] {
    let this_program = std::env::current_exe().expect("the system knows this program's path");
    let output = Command::new(this_program)
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .expect("this program runs once more");
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("the measured process printed {text:?}"))
}
