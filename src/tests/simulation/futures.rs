//! Tasks that wait for locks, each on the thread of a user, and give up at any moment.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use super::baton::{Wait as Pause, pause, role};
use super::guards::User;
use super::world::World;
use crate::time::Moment;

/// The waker of a task that waits on a user's thread.
struct Task {
    world: Weak<World>,
    is_woken: AtomicBool,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        let is_callback = role().is_some_and(|role| role.name.contains(" callback "));
        if let Some(world) = self.world.upgrade().filter(|_| !is_callback) {
            world.fail("a task was woken on a thread that is not for callbacks");
        }
    }
}

impl User {
    /// Runs a task until its future completes. Sometimes drops the future before that, perhaps just when it
    /// would complete.
    pub(super) fn run_task<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let gives_up = self.world.state().random.one_in(2);
        let until = gives_up.then(|| self.some_time_from_now());
        let output = self.run_task_until(future, until);
        if output.is_none() {
            self.world.note("drops a future");
        }
        output
    }

    /// Like [`run_task`](User::run_task), with the time at which the future is dropped.
    pub(super) fn run_task_until<T>(
        &self,
        future: impl Future<Output = T>,
        until: Option<Moment>,
    ) -> Option<T> {
        let mut future = pin!(future);
        loop {
            // A new waker each time, because the task may move.
            let task =
                Arc::new(Task { world: Arc::downgrade(&self.world), is_woken: AtomicBool::new(false) });
            let waker = Waker::from(Arc::clone(&task));
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Some(output);
            }
            let of_pause = Arc::clone(&task);
            let is_woken = move || of_pause.is_woken.load(Ordering::Acquire);
            pause(Pause::Signals(vec![Box::new(is_woken)], until));
            let is_due = until.is_some_and(|until| until <= self.world.now());
            let is_woken = task.is_woken.load(Ordering::Acquire);
            if is_due && (!is_woken || self.world.state().random.one_in(2)) {
                return None;
            }
        }
    }
}
