//! A client's journal. A checker can read it whatever happens to the process.
//!
//! A line is `time thread event key=value…`. Each line is written by a single call, so it is not lost when the
//! process is killed. The newest sight of ownership changes all the time, so it is kept separately, in one slot
//! for each thread.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::panic;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::orders::Orders;
use crate::clock;
use crate::history::sight::Sight;

/// How often a process checks that it is running. Longer gaps count as stalls.
const PULSE: Duration = Duration::from_millis(10);
const STALL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct Journal {
    lines: File,
    sights: File,
}

impl Journal {
    pub fn create(orders: &Orders, incarnation: u64) -> Arc<Journal> {
        let stem = format!("client-{}.{incarnation}", orders.index);
        let create = |extension| {
            File::create(orders.history.join(format!("{stem}.{extension}")))
                .expect("the history can be written")
        };
        Arc::new(Journal { lines: create("log"), sights: create("sights") })
    }

    pub fn note(&self, who: &str, what: &str) {
        let line = format!("{} {who} {what}\n", clock::now());
        (&self.lines).write_all(line.as_bytes()).expect("the history can be written");
    }

    /// Stores the newest sight of a thread's hold.
    pub fn store_sight(&self, thread: usize, hold: u64, sight: Sight) {
        let place = (thread * Sight::SIZE) as u64;
        self.sights.write_all_at(&sight.to_bytes(hold), place).expect("the history can be written");
    }

    /// Records periods in which this process did not run, because it was stopped or the machine was busy. The
    /// crate is not to blame for the delays that result.
    pub fn note_stalls(self: &Arc<Self>) {
        let journal = Arc::clone(self);
        let pulse = thread::Builder::new().name("chaos-pulse".to_owned());
        let beat = move || {
            let mut last = clock::now();
            loop {
                thread::sleep(PULSE);
                let now = clock::now();
                if Duration::from_nanos(now - last) > STALL {
                    journal.note("main", &format!("stalled since={last}"));
                }
                last = now;
            }
        };
        pulse.spawn(beat).expect("a thread can be started"); // ends with the process
    }

    /// Records every panic of any thread.
    pub fn note_panics(self: &Arc<Self>) {
        let journal = Arc::clone(self);
        panic::set_hook(Box::new(move |panic| {
            let place = panic.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
            let payload = panic.payload();
            let message = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref().copied())
                .unwrap_or("?");
            let thread = thread::current().name().unwrap_or("unnamed").replace(' ', "_");
            let what =
                format!("panic thread={thread} place={place} message={}", message.replace([' ', '\n'], "_"));
            journal.note("main", &what);
        }));
    }
}
