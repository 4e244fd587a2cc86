//! [`Jobs`]: the jobs of sessions on a [`VirtualClock`](super::VirtualClock). Time passes only while none is
//! running.
//!
//! A job that waits for a swallowed packet, a latch or a deadline is *parked*: it does not count as running. It counts
//! again as soon as its wait is over, before its thread wakes. Otherwise, time could pass in between.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::time::{Job, Latch};

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
    /// The jobs that have not ended.
    jobs: BTreeMap<u64, Standing>,
}

enum Standing {
    Running,
    /// Does not count as running until it is resumed or one of the latches is set.
    ///
    /// Dropping these clones runs no external code, because the waiting thread holds the latches until it has resumed
    /// the job.
    Parked(Vec<Latch>),
}

impl Standing {
    fn counts(&self) -> bool {
        match self {
            Standing::Running => true,
            Standing::Parked(latches) => latches.iter().any(Latch::is_set),
        }
    }
}

impl Jobs {
    /// Wraps a job. The job counts as running from now until it has run or is dropped.
    pub(super) fn track(self: &Arc<Jobs>, job: Job) -> Job {
        let number = {
            let mut table = self.table.lock();
            table.last += 1;
            let number = table.last;
            table.jobs.insert(number, Standing::Running);
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
        while !table.is_idle() {
            if self.idle.wait_until(&mut table, limit).timed_out() {
                let late = table.jobs.values_mut().filter(|standing| standing.counts());
                late.for_each(|standing| *standing = Standing::Parked(Vec::new()));
            }
        }
    }

    fn set(&self, number: u64, standing: Standing) {
        if let Some(entry) = self.table.lock().jobs.get_mut(&number) {
            *entry = standing;
        }
        self.idle.notify_all();
    }
}

impl Table {
    fn is_idle(&self) -> bool {
        !self.jobs.values().any(Standing::counts)
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs").field("under_way", &self.table.lock().jobs.len()).finish()
    }
}

/// The table entry of a job. It is removed when this is dropped, at the end of the job.
struct Entry {
    jobs: Arc<Jobs>,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.jobs.table.lock().jobs.remove(&self.number);
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
        self.jobs.set(self.number, Standing::Running);
    }
}

/// Parks the job that runs on this thread, if any, and returns it. The job counts again when it is resumed or one of
/// the latches is set.
pub(super) fn park(latches: &[&Latch]) -> Option<Parked> {
    let job = present()?;
    job.jobs.set(job.number, Standing::Parked(latches.iter().copied().cloned().collect()));
    Some(job)
}

/// Returns whether a job runs on this thread.
pub(super) fn is_in_a_job() -> bool {
    present().is_some()
}

fn present() -> Option<Parked> {
    PRESENT.with_borrow(Clone::clone)
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;

    use super::*;
    use crate::fake::VirtualClock;
    use crate::tests::{eventually, next};
    use crate::time::{Priority, Runtime, Setter};

    #[test]
    fn job_whose_wait_is_over_counts_before_its_thread_wakes() {
        crate::tests::begin();
        let runtime = VirtualClock::new().runtime().unwrap();
        let setter = Setter::new();
        let (of_job, latch) = (Arc::clone(&runtime), setter.latch().clone());
        let (send, sent) = bounded(1);
        let wait = move || {
            send.send(present().unwrap().jobs).unwrap();
            of_job.wait(&[&latch], None);
        };
        runtime.submit(Priority::Callback, Box::new(wait));
        let jobs = next(&sent);
        eventually("the job is parked", || jobs.table.lock().is_idle());
        {
            // The job's thread needs the table before it can go on.
            let table = jobs.table.lock();
            setter.set();
            assert!(!table.is_idle());
        }
        jobs.await_idle();
        assert_eq!(jobs.table.lock().jobs.len(), 0);
        runtime.shut_down();
    }
}
