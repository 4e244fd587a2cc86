//! [`VirtualRuntime`]: the threads of a session on a [`VirtualClock`](super::VirtualClock).

use std::io;
use std::sync::Arc;

use super::clock::Time;
use super::jobs::{self, Parked};
use crate::session::Threads;
use crate::time::{Job, Latch, Moment, Priority, Runtime};

#[derive(Debug)]
pub(super) struct VirtualRuntime {
    threads: Arc<Threads>,
    time: Arc<Time>,
}

impl VirtualRuntime {
    pub(super) fn new(threads: Arc<Threads>, time: Arc<Time>) -> VirtualRuntime {
        VirtualRuntime { threads, time }
    }
}

impl Runtime for VirtualRuntime {
    fn now(&self) -> Moment {
        self.time.now()
    }

    fn submit(&self, priority: Priority, job: Job) {
        self.threads.submit(priority, self.time.jobs.track(job));
    }

    fn at(&self, moment: Moment, job: Job) {
        self.time.set_timer(&self.threads, moment, job);
    }

    fn spawn(&self, name: &'static str, body: Job) -> io::Result<()> {
        self.threads.spawn(name, body)
    }

    fn wait(&self, latches: &[&Latch], deadline: Option<Moment>) -> bool {
        let alarm = deadline.map(|deadline| self.time.set_alarm(deadline));
        let of_alarm = alarm.iter().map(|alarm| &alarm.rung);
        let all: Vec<&Latch> = latches.iter().copied().chain(of_alarm).collect();
        if !all.iter().any(|latch| latch.is_set()) {
            let parked = jobs::park(&all);
            self.threads.wait(&all, None);
            parked.into_iter().for_each(Parked::resume);
        }
        latches.iter().any(|latch| latch.is_set())
    }

    fn shut_down(&self) {
        self.threads.shut_down();
        self.time.drop_timers(&self.threads);
    }
}
