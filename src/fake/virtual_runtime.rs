//! [`VirtualRuntime`]: the threads of a session in use, on a [`VirtualClock`](super::VirtualClock).

use std::io;
use std::sync::Arc;

use super::clock::Time;
use super::jobs::{self, Parked};
use crate::session::Threads;
use crate::time::{Job, Moment, Priority, Runtime, Signal, is_disconnected, is_ready, select_of};

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

    fn wait(&self, signals: &[&dyn Signal], deadline: Option<Moment>) -> bool {
        let alarm = deadline.map(|deadline| self.time.set_alarm(deadline));
        loop {
            if is_ready(signals) {
                return true;
            }
            if alarm.as_ref().is_some_and(|alarm| is_disconnected(&alarm.rung)) {
                return false;
            }
            let parked = jobs::park();
            let mut select = select_of(signals);
            if let Some(alarm) = &alarm {
                select.recv(&alarm.rung);
            }
            select.ready();
            parked.into_iter().for_each(Parked::resume);
        }
    }

    fn abandon(&self) {
        self.threads.abandon();
    }

    fn shut_down(&self) {
        self.threads.shut_down();
        self.time.drop_timers(&self.threads);
    }
}
