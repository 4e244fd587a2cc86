//! The users of jobs that run once, and the promises about their runs.

use super::application::{self, Value};
use super::guards::User;
use super::locks::options;
use super::seen::saw;
use super::world::World;
use crate::LockGuard;
use crate::error::Result;
use crate::locks::{Repeat, RunOnce, RunOutcome};

/// The directory of the jobs.
const JOBS: &str = "/jobs";

/// The directories of the jobs' keys: one job runs at most once, the other until it succeeds.
pub(super) const KEYS: [&str; 2] = ["/jobs/once", "/jobs/until"];
const REPEATS: [Repeat; 2] = [Repeat::Never, Repeat::UntilSuccess];

/// The marker beside the requests for the lock of a key.
const MARKER: &str = "done";

/// What the checks know of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JobRecord {
    /// How often the job has begun.
    begun: usize,
    /// How many calls to forget the key have begun, except calls that found no marker.
    forgets: usize,
    forgets_under_way: usize,
    /// Whether the job has succeeded and no call to forget it has begun since.
    is_done: bool,
}

impl World {
    /// Returns the requests in a queue.
    pub(super) fn requests_in(&self, dir: &str) -> Vec<String> {
        let mut children = self.zookeeper.children(dir);
        children.retain(|name| name != MARKER);
        children
    }

    fn begin_job(&self, key: usize) {
        let broken = {
            let mut state = self.state();
            let record = &mut state.jobs[key];
            record.begun += 1;
            match REPEATS[key] {
                Repeat::Never => record.begun > 1 + record.forgets,
                Repeat::UntilSuccess => record.is_done,
            }
            .then(|| format!("the job of {} runs again: {record:?}", KEYS[key]))
        };
        if let Some(broken) = broken {
            self.fail(broken);
        }
    }

    /// Records that the job has succeeded. The key was marked after the record `before` was taken.
    fn end_job(&self, key: usize, before: JobRecord) {
        let mut state = self.state();
        let record = &mut state.jobs[key];
        record.is_done |= before.forgets_under_way == 0 && record.forgets == before.forgets;
    }

    fn begin_to_forget(&self, key: usize) {
        let mut state = self.state();
        let record = &mut state.jobs[key];
        record.forgets += 1;
        record.forgets_under_way += 1;
        record.is_done = false;
    }

    fn end_forgetting(&self, key: usize, found_none: bool) {
        let mut state = self.state();
        let record = &mut state.jobs[key];
        record.forgets_under_way -= 1;
        record.forgets -= usize::from(found_none);
    }
}

impl User {
    /// Runs a job, or forgets that it has run.
    pub(super) fn use_job(&self) {
        let tag = self.new_tag();
        let (key, choice) = {
            let mut state = self.world.state();
            // Most users get the same key, because they find more when they meet.
            (usize::from(state.random.one_in(4)), state.random.below(8))
        };
        let options = options(&self.world).data(&*tag);
        let jobs = RunOnce::with_options(&self.session, JOBS, options, REPEATS[key]).expect("a good path");
        let failed = match choice {
            // Nobody may list the directory that the next run would make in place of a forgotten one.
            _ if self.world.profile.unreadable => self.run(&jobs, key),
            0..3 => self.forget(&jobs, key),
            3 => self.reap(&jobs),
            _ => self.run(&jobs, key),
        };
        if let Err(error) = failed {
            self.world.note(format!("a job fails: {error}"));
            // A call in progress when the session is closed may learn only that the session has ended.
            let is_closed = self.world.state().clients[self.client].session.is_none();
            let is_lost = error.is_session_lost() || error.reason() == crate::ErrorReason::LeaseExpired;
            if !(is_closed && is_lost) {
                self.check_error(&error);
            }
        }
        self.check_that_nothing_is_held(&tag);
    }

    fn run(&self, jobs: &RunOnce, key: usize) -> Result<()> {
        self.world.note(format!("is to run the job of {}", KEYS[key]));
        let value = Value::new(&self.world, application::CLOSURE_DROP);
        let job = |guard: &LockGuard| {
            let _value = value;
            self.world.begin_job(key);
            application::run(&self.world, application::CLOSURE);
            if self.world.state().random.one_in(3) {
                self.hold(&[guard]);
            }
            let mut state = self.world.state();
            let fails = state.random.one_in(4);
            if fails {
                saw("job-fails");
                Err(())
            } else {
                Ok(state.jobs[key])
            }
        };
        let Some(outcome) = application::survive(|| jobs.run(name_of(key), job)) else { return Ok(()) };
        let outcome = outcome?;
        self.world.note(format!("has run the job of {}: {outcome:?}", KEYS[key]));
        if let RunOutcome::Ran(before) = outcome {
            self.world.end_job(key, before);
        }
        Ok(())
    }

    fn forget(&self, jobs: &RunOnce, key: usize) -> Result<()> {
        self.world.note(format!("forgets the job of {}", KEYS[key]));
        self.world.begin_to_forget(key);
        let outcome = jobs.forget(name_of(key));
        self.world.note(format!("has forgotten the job of {}: {outcome:?}", KEYS[key]));
        self.world.end_forgetting(key, matches!(outcome, Ok(false)));
        outcome.map(drop)
    }

    fn reap(&self, jobs: &RunOnce) -> Result<()> {
        if self.world.state().random.one_in(2) {
            return self.reap_what_is_old(jobs);
        }
        (0..KEYS.len()).for_each(|key| self.world.begin_to_forget(key));
        let outcome = jobs.reap(std::time::Duration::ZERO);
        self.world.note(format!("has reaped the jobs: {outcome:?}"));
        (0..KEYS.len()).for_each(|key| self.world.end_forgetting(key, matches!(outcome, Ok(0))));
        outcome.map(drop)
    }
}

impl User {
    /// Forgets the jobs that were done more than a day ago by the servers' clock. There are none, although this
    /// machine's clock is decades ahead of the servers'.
    fn reap_what_is_old(&self, jobs: &RunOnce) -> Result<()> {
        let outcome = jobs.reap(std::time::Duration::from_secs(24 * 60 * 60));
        saw("server-clock-decades-behind");
        self.world.note(format!("has reaped the jobs of yesterday: {outcome:?}"));
        if matches!(outcome, Ok(1..)) {
            self.world.fail("a job that was done just now is taken for a day old");
        }
        outcome.map(drop)
    }
}

fn name_of(key: usize) -> &'static str {
    KEYS[key].rsplit('/').next().unwrap_or_default()
}
