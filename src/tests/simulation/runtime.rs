//! [`SimulatedRuntime`]: time, threads, waits and timers of one session, controlled by the
//! scheduler.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::baton::{Condition, Wait, pause, role};
use super::world::{ClientState, World};
use crate::time::{Job, Latch, Moment, Priority, Runtime};

pub(super) struct SimulatedRuntime {
    pub(super) world: Arc<World>,
    pub(super) client: usize,
}

/// A job that is to run at a later time.
pub(super) struct Timer {
    pub(super) due: Moment,
    pub(super) job: Job,
}

impl ClientState {
    fn add_job(&mut self, priority: Priority, job: Job) {
        let place = self.jobs.partition_point(|(other, _)| *other <= priority);
        self.jobs.insert(place, (priority, job));
    }

    /// Returns whether there is a job and a worker for it. The session's own jobs always find one, as they do in the
    /// library, whose pool has no limit.
    pub(super) fn may_work(&self) -> bool {
        let is_at_hand = |priority| priority == Priority::Session || self.at_work < self.most_workers;
        self.jobs.front().is_some_and(|(priority, _)| is_at_hand(*priority))
    }
}

impl Runtime for SimulatedRuntime {
    fn now(&self) -> Moment {
        self.world.now()
    }

    fn submit(&self, priority: Priority, job: Job) {
        let refused = {
            let mut state = self.world.state();
            let client = &mut state.clients[self.client];
            if priority == Priority::Callback {
                return client.callbacks.push_back(job);
            }
            match (client.opening, client.shut_down) {
                // Opening a session waits on a real thread for the jobs that it submits.
                (true, _) | (_, true) => Some((job, client.opening)),
                (false, false) => {
                    client.add_job(priority, job);
                    None
                }
            }
        };
        match refused {
            Some((job, true)) => job(),
            // Dropped outside the lock, because the job may hold the last handle to something.
            Some((job, false)) => drop(job),
            None => {
                let stop_here = self.world.state().random.one_in(4);
                if stop_here {
                    pause(Wait::Turn);
                }
            }
        }
    }

    fn at(&self, due: Moment, job: Job) {
        let mut state = self.world.state();
        let client = &mut state.clients[self.client];
        if client.shut_down {
            drop(state);
            return drop(job);
        }
        let place = client.timers.partition_point(|timer| timer.due <= due);
        client.timers.insert(place, Timer { due, job });
    }

    fn spawn(&self, name: &'static str, body: Job) -> io::Result<()> {
        self.world.state().clients[self.client].to_spawn.push_back((name, body));
        Ok(())
    }

    fn wait(&self, latches: &[&Latch], deadline: Option<Moment>) -> bool {
        let is_set = |latch: &&Latch| -> Condition {
            let latch = Latch::clone(latch);
            Box::new(move || latch.is_set())
        };
        pause(Wait::Signals(latches.iter().map(is_set).collect(), deadline));
        let is_one_set = latches.iter().any(|latch| latch.is_set());
        let is_due = deadline.is_some_and(|deadline| deadline <= self.now());
        assert!(is_one_set || is_due || role().is_some(), "a thread that must not block waits");
        is_one_set
    }

    fn shut_down(&self) {
        let dropped = {
            let mut state = self.world.state();
            let client = &mut state.clients[self.client];
            client.shut_down = true;
            std::mem::take(&mut client.timers)
        };
        drop(dropped);
    }

    /// Practically infinite, because routine checks would hide a lost wake-up; but not if deletions may fire
    /// no event.
    fn routine_pause(&self) -> Duration {
        match self.world.profile.faults.hidden_deletions {
            true => Duration::from_secs(30),
            false => Duration::from_secs(24 * 60 * 60),
        }
    }

    fn window(&self) -> usize {
        self.world.profile.window
    }

    fn new_guid(&self) -> Uuid {
        let mut state = self.world.state();
        Uuid::from_u64_pair(state.random.next(), state.random.next())
    }
}

impl fmt::Debug for SimulatedRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedRuntime").field("client", &self.client).finish_non_exhaustive()
    }
}
