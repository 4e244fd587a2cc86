//! The part of the driver's work that may call the application or the client. It is done once the mutex is free.

use std::sync::Arc;

use super::Core;
use super::calls::OutcomeSink;
use super::trackers::Tracker;
use crate::client::Reply;
use crate::engine::{ParticipantId, SessionEnd, Target};
use crate::error::{Operation, ZkResult};
use crate::logging;
use crate::recipe::path::ZNodePath;
use crate::session::seat::Seat;
use crate::time::{Moment, Priority, Setter};

/// The work to do once the mutex is free.
#[derive(Default)]
pub(super) struct Afterwards {
    pub(super) tasks: Vec<Task>,
    /// Set if the session is finished. Dropping it sets [`Core::finished`].
    pub(super) finish: Option<Setter>,
    /// Handles to drop. Each may be the last handle to its seat.
    pub(super) dropped: Vec<Arc<Seat>>,
}

/// A piece of work. Tasks are done kind by kind, in the order of the variants.
pub(super) enum Task {
    Answer(OutcomeSink, ZkResult<Reply>),
    /// Calls the callbacks of this request's observer.
    CallBack(Arc<Seat>),
    LeaveBehind(Target),
    CompleteEnd,
    /// Done late, so that it delays no owner or waiter: a tracker may have to sort a long queue.
    Look(ParticipantId, Arc<dyn Tracker>, Option<ZkResult<Reply>>),
    EndTracking(Arc<dyn Tracker>, SessionEnd),
    /// Logs that the connected server shows this znode, which the leader does not have.
    LogDivergence(ZNodePath),
}

impl Afterwards {
    /// Adds the work after a later input.
    pub(super) fn add(&mut self, later: Afterwards) {
        let Afterwards { tasks, finish, dropped } = later;
        self.tasks.extend(tasks);
        // A session finishes only once.
        self.finish = self.finish.take().or(finish);
        self.dropped.extend(dropped);
    }
}

impl Task {
    fn turn(&self) -> u8 {
        match self {
            Task::Answer(..) => 0,
            Task::CallBack(_) => 1,
            Task::LeaveBehind(_) => 2,
            Task::CompleteEnd => 3,
            Task::Look(..) => 4,
            Task::EndTracking(..) => 5,
            Task::LogDivergence(_) => 6,
        }
    }
}

impl Core {
    pub(super) fn complete(self: &Arc<Self>, afterwards: Afterwards) {
        let Afterwards { mut tasks, finish, dropped } = afterwards;
        self.deliver_events();
        // A step may lead to others. The mailbox takes them one after the other, so the stack does not grow.
        self.steps.deliver(|seat| seat.observer.advance());
        tasks.sort_by_key(Task::turn);
        tasks.into_iter().for_each(|task| self.carry_out(task));
        self.shut_down_if(finish);
        drop(dropped);
    }

    fn carry_out(self: &Arc<Self>, task: Task) {
        match task {
            Task::Answer(answered, outcome) => answered(outcome),
            Task::CallBack(seat) => self.run_callback(move || seat.observer.deliver()),
            Task::LeaveBehind(target) => self.leave_behind(target),
            Task::CompleteEnd => {
                // Submitted as a job, because the current thread may be a thread of the client that holds locks, and a
                // notification may drop values of the application.
                self.run_job_as(Priority::Session, Core::complete_end);
            }
            Task::Look(id, tracker, outcome) => self.take_look_step(id, &*tracker, outcome),
            Task::EndTracking(tracker, reason) => tracker.end(reason),
            Task::LogDivergence(path) => logging::warn!("{}", self.diverged(Operation::DELETE, &path)),
        }
    }

    fn shut_down_if(self: &Arc<Self>, finish: Option<Setter>) {
        let Some(finish) = finish else { return };
        self.run_job(move |core| {
            core.client.close();
            drop(finish);
        });
        self.runtime.shut_down();
    }

    // ---- threads of the session

    /// Runs a job at `moment`, unless the session is gone by then. The job runs on the timer's thread and must not
    /// block.
    pub(crate) fn at(self: &Arc<Self>, moment: Moment, job: impl FnOnce(&Arc<Core>) + Send + 'static) {
        let weak = Arc::downgrade(self);
        self.runtime.at(
            moment,
            Box::new(move || {
                if let Some(core) = weak.upgrade() {
                    job(&core);
                }
            }),
        );
    }

    pub(crate) fn run_job(self: &Arc<Self>, job: impl FnOnce(&Arc<Core>) + Send + 'static) {
        self.run_job_as(Priority::Other, job);
    }

    pub(crate) fn run_job_as(
        self: &Arc<Self>,
        priority: Priority,
        job: impl FnOnce(&Arc<Core>) + Send + 'static,
    ) {
        let core = Arc::clone(self);
        self.runtime.submit(priority, Box::new(move || job(&core)));
    }

    /// Runs a callback of the application, even after the end of the session. The callback may block.
    pub(crate) fn run_callback(&self, callback: impl FnOnce() + Send + 'static) {
        self.runtime.submit(Priority::Callback, Box::new(callback));
    }
}
