//! [`Runner`]: runs a task on one worker at a time, and once more after an event during the run.
//!
//! Everything that waits on a session works alike: an event wakes it, it looks at the server, and
//! it acts on the result. Two concurrent looks would interfere. An event during a look may be newer
//! than the look's result, so the worker looks once more before it rests.
//!
//! A [`Task`] is such a thing. Its runner is part of its state, under the mutex of the task, so
//! that the claim and the state change together.

use std::sync::Arc;
use std::time::Duration;

use super::alarm::Alarm;
use super::driver::Core;
use crate::time::Priority;

/// Whether a worker is at work on a task, and when the task is to be woken by the clock.
///
/// | state | `claim` | `finish` | `stop` |
/// |---|---|---|---|
/// | `Idle` | `Running`: the caller runs | | `Stopped` |
/// | `Running` | `Woken` | `Idle` | `Stopping` |
/// | `Woken` | `Woken` | `Running`: the caller runs again | `Stopping` |
/// | `Stopping` | `Stopping` | `Stopped` | `Stopping` |
/// | `Stopped` | `Stopped` | | `Stopped` |
#[derive(Debug, Default)]
pub(crate) struct Runner {
    state: State,
    alarm: Alarm,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    Running,
    /// Running, and once more after that.
    Woken,
    /// Running for the last time.
    Stopping,
    Stopped,
}

impl Runner {
    /// Claims the work for the caller. Returns `false` if a worker is at work, who will do it once
    /// more, or if the runner was stopped.
    pub(crate) fn claim(&mut self) -> bool {
        let claimed = self.state == State::Idle;
        self.state = match self.state {
            State::Idle => State::Running,
            State::Running | State::Woken => State::Woken,
            stopped @ (State::Stopping | State::Stopped) => stopped,
        };
        claimed
    }

    /// Ends a run. Returns whether the worker must run once more, and still has the claim.
    pub(crate) fn finish(&mut self) -> bool {
        let again = self.state == State::Woken;
        self.state = match self.state {
            State::Woken => State::Running,
            State::Running | State::Idle => State::Idle,
            State::Stopping | State::Stopped => State::Stopped,
        };
        again
    }

    /// Refuses every claim from now on. Returns whether a worker is still at work.
    pub(crate) fn stop(&mut self) -> bool {
        let is_running = self.is_running();
        self.state = if is_running { State::Stopping } else { State::Stopped };
        is_running
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running | State::Woken | State::Stopping)
    }

    pub(crate) fn was_stopped(&self) -> bool {
        matches!(self.state, State::Stopping | State::Stopped)
    }
}

/// A part of a session that runs when it is woken, on one worker at a time.
pub(crate) trait Task: Send + Sync + Sized + 'static {
    fn core(&self) -> &Arc<Core>;

    /// Gives access to the runner, under the mutex of the task.
    fn with_runner<T>(&self, access: impl FnOnce(&mut Runner) -> T) -> T;

    /// [Claims](Runner::claim) the work. Returns how urgent it is, or `None` if there is nothing
    /// for the caller to do.
    fn claim(&self) -> Option<Priority> {
        self.with_runner(Runner::claim).then_some(Priority::Other)
    }

    /// Does the work and [finishes](Runner::finish) it, perhaps after this has returned. Must contain the panics of
    /// code that is not this crate's: a claim that is never finished is the end of the task.
    fn run(self: Arc<Self>);

    /// Whether [`run`](Task::run) may be called on any thread, as it never blocks.
    fn never_blocks(&self) -> bool {
        false
    }

    /// Runs the task, on a worker if it may block. If it is being run, it runs once more after that.
    fn wake(self: Arc<Self>) {
        let Some(priority) = self.claim() else { return };
        match self.never_blocks() {
            true => self.run(),
            false => self.submit(priority),
        }
    }

    /// Wakes the task after this time, or earlier if an earlier time was set.
    fn wake_after(self: &Arc<Self>, delay: Duration) {
        let at = self.core().now().after(delay);
        if !self.with_runner(|runner| runner.alarm.set(at)) {
            return;
        }
        let weak = Arc::downgrade(self);
        self.core().at(at, move |_| {
            let Some(task) = weak.upgrade() else { return };
            if task.with_runner(|runner| runner.alarm.rings(at)) {
                task.wake();
            }
        });
    }

    /// Hands a claim to a worker.
    fn submit(self: Arc<Self>, priority: Priority) {
        let core = Arc::clone(self.core());
        core.submit_as(priority, move |_| self.run());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_claim_at_a_time_succeeds() {
        let mut runner = Runner::default();
        assert!(runner.claim());
        assert!(runner.is_running());
        assert!(!runner.claim());
    }

    #[test]
    fn claims_during_a_run_make_it_run_once_more() {
        let mut runner = Runner::default();
        runner.claim();
        runner.claim();
        runner.claim();
        assert!(runner.finish());
        assert!(runner.is_running());
        assert!(!runner.claim(), "the worker that runs again has the claim");
        assert!(runner.finish());
        assert!(!runner.finish());
        assert!(!runner.is_running());
        assert!(runner.claim());
    }

    #[test]
    fn a_stopped_runner_refuses_every_claim() {
        let mut runner = Runner::default();
        assert!(!runner.stop());
        assert!(!runner.claim());
        assert!(runner.was_stopped() && !runner.is_running());
    }

    #[test]
    fn a_runner_that_is_stopped_during_a_run_does_not_run_again() {
        for woken in [false, true] {
            let mut runner = Runner::default();
            runner.claim();
            if woken {
                runner.claim();
            }
            assert!(runner.stop());
            assert!(runner.was_stopped() && runner.is_running());
            assert!(!runner.claim());
            assert!(!runner.finish());
            assert!(!runner.is_running());
            assert!(!runner.stop());
        }
    }
}
