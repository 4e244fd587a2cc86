//! [`Jobs`]: the jobs of sessions on a [`VirtualClock`](super::VirtualClock). Time passes only while none is
//! running.
//!
//! A job that waits for a swallowed packet, a latch or a deadline is *parked*: it does not count as running. What ends
//! the wait for a packet or a deadline makes the job count again before it wakes the job's thread. A job that a latch
//! wakes counts again only when its thread runs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::time::Job;

/// How long a clock waits for running jobs, in real time. A job that runs longer may be waiting for the test itself, so
/// it no longer counts.
const MAX_RUN: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Jobs {
    table: Mutex<Table>,
    idle: Condvar,
}

#[derive(Default)]
struct Table {
    last: u64,
    /// The jobs that have not ended, and whether each counts as running.
    counts: BTreeMap<u64, bool>,
}

impl Jobs {
    /// Wraps a job. The job counts as running from now until it has run or is dropped.
    pub(super) fn track(self: &Arc<Jobs>, job: Job) -> Job {
        let number = {
            let mut table = self.table.lock();
            table.last += 1;
            let number = table.last;
            table.counts.insert(number, true);
            number
        };
        let entry = Entry { jobs: Arc::clone(self), number };
        Box::new(move || {
            let _present = Present::set(&entry);
            job();
        })
    }

    /// Blocks until no job counts as running.
    pub(super) fn await_idle(&self) {
        let limit = Instant::now() + MAX_RUN;
        let mut table = self.table.lock();
        while table.counts.values().any(|counts| *counts) {
            if self.idle.wait_until(&mut table, limit).timed_out() {
                table.counts.values_mut().for_each(|counts| *counts = false);
            }
        }
    }

    fn set_counts(&self, number: u64, counts: bool) {
        if let Some(entry) = self.table.lock().counts.get_mut(&number) {
            *entry = counts;
        }
        self.idle.notify_all();
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs").field("under_way", &self.table.lock().counts.len()).finish()
    }
}

/// The table entry of a job. It is removed when this is dropped, at the end of the job.
struct Entry {
    jobs: Arc<Jobs>,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.jobs.table.lock().counts.remove(&self.number);
        self.jobs.idle.notify_all();
    }
}

thread_local! {
    /// The job that runs on this thread, if any.
    static PRESENT: RefCell<Option<Parked>> = const { RefCell::new(None) };
}

struct Present {
    outer: Option<Parked>,
}

impl Present {
    fn set(entry: &Entry) -> Present {
        let job = Parked { jobs: Arc::clone(&entry.jobs), number: entry.number };
        Present { outer: PRESENT.replace(Some(job)) }
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        PRESENT.set(self.outer.take());
    }
}

/// A job that does not count as running while it waits.
#[derive(Clone, Debug)]
pub(super) struct Parked {
    jobs: Arc<Jobs>,
    number: u64,
}

impl Parked {
    /// Makes the job count again.
    pub(super) fn resume(self) {
        self.jobs.set_counts(self.number, true);
    }
}

/// Parks the job that runs on this thread, if any, and returns it.
pub(super) fn park() -> Option<Parked> {
    let job = present()?;
    job.jobs.set_counts(job.number, false);
    Some(job)
}

/// Returns the job that runs on this thread, if any.
pub(super) fn present() -> Option<Parked> {
    PRESENT.with_borrow(Clone::clone)
}
