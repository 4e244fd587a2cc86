//! [`Jobs`]: the work of sessions on a [`VirtualClock`](super::VirtualClock). Time passes only while
//! none is under way.
//!
//! A job that waits, for a swallowed reply or for a deadline, is *parked*: it does not count. What
//! ends the wait makes it count again, before its thread runs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::time::Job;

/// How long a job may run, in real time. One that takes longer may wait for the test itself, so it
/// does not count any more.
const MAX_RUN: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Jobs {
    table: Mutex<Table>,
    idle: Condvar,
}

#[derive(Default)]
struct Table {
    last: u64,
    /// The jobs that have not ended, and whether they count.
    counts: BTreeMap<u64, bool>,
}

impl Jobs {
    /// Has the job count from now until it has run or is dropped.
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

    /// Blocks until no job counts.
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

/// A job that has not ended.
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
    /// The job that this thread runs.
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

/// A job that does not count while it waits.
#[derive(Clone, Debug)]
pub(super) struct Parked {
    jobs: Arc<Jobs>,
    number: u64,
}

impl Parked {
    /// Has the job count again.
    pub(super) fn resume(self) {
        self.jobs.set_counts(self.number, true);
    }
}

/// Parks the job that runs on this thread, if there is one.
pub(super) fn park() -> Option<Parked> {
    let job = present()?;
    job.jobs.set_counts(job.number, false);
    Some(job)
}

/// The job that runs on this thread.
pub(super) fn present() -> Option<Parked> {
    PRESENT.with_borrow(Clone::clone)
}
