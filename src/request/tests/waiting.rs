//! [`Waiting`]: a reader or writer in the queue, in a task that the test polls.

use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::*;
use crate::locks::{ReadGuard, ReadWriteLock, WriteGuard};
use crate::{LockError, LockGuard};

/// A request in the queue.
pub(super) struct Waiting<G> {
    task: Mutex<Task<G>>,
}

enum Task<G> {
    Waits(Pin<Box<dyn Future<Output = Result<G, LockError>> + Send>>),
    Done(Result<G, LockError>),
}

impl<G: Deref<Target = LockGuard>> Waiting<G> {
    /// Joins the queue behind a request that it must wait for.
    fn join(
        zk: &SimulatedZooKeeper,
        fixture: &Fixture,
        acquiring: impl Future<Output = Result<G, LockError>> + Send + 'static,
    ) -> Waiting<G> {
        let session = fixture.client.session_id();
        let watches = |call: &&crate::fake::Call| call.session == session && call.watch;
        let watching = || zk.log().iter().filter(watches).filter(|call| call.outcome.is_some()).count();
        let before = watching();
        let waiting = Waiting { task: Mutex::new(Task::Waits(Box::pin(acquiring))) };
        assert!(!waiting.is_owner(), "another request is ahead");
        eventually("the request ahead is watched", || watching() > before);
        waiting
    }

    fn poll(&self) {
        let mut task = self.task.lock();
        if let Task::Waits(acquiring) = &mut *task {
            if let Poll::Ready(outcome) = acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                *task = Task::Done(outcome);
            }
        }
    }

    pub(super) fn is_owner(&self) -> bool {
        self.poll();
        matches!(&*self.task.lock(), Task::Done(Ok(guard)) if guard.is_owner())
    }

    /// Returns the outcome of the wait.
    pub(super) fn outcome(self) -> Result<G, LockError> {
        eventually("the wait ends", || {
            self.poll();
            matches!(&*self.task.lock(), Task::Done(_))
        });
        match self.task.into_inner() {
            Task::Done(outcome) => outcome,
            Task::Waits(_) => unreachable!(),
        }
    }
}

impl Fixture {
    pub(super) fn sharing(&self) -> ReadWriteLock {
        ReadWriteLock::with_options(&self.session, DIR, quick_retries()).unwrap()
    }

    /// Joins a reader, which waits for the request ahead.
    pub(super) fn waiting_reader(&self, zk: &SimulatedZooKeeper) -> Waiting<ReadGuard> {
        Waiting::join(zk, self, self.sharing().read_async())
    }

    /// Joins a writer, which waits for the request ahead.
    pub(super) fn waiting_writer(&self, zk: &SimulatedZooKeeper) -> Waiting<WriteGuard> {
        Waiting::join(zk, self, self.sharing().write_async())
    }
}
