//! Parking as in the standard library. Loom's own version also wakes a thread that waits for a mutex, which
//! then panics.

use std::sync::Arc as StdArc;
use std::task::Wake;

use loom::sync::{Arc, Notify};
use loom::thread::{self, ThreadId};

#[derive(Clone, Debug)]
pub(crate) struct Thread {
    id: ThreadId,
    token: Arc<Notify>,
}

loom::thread_local! {
    static CURRENT: Thread = Thread { id: thread::current().id(), token: Arc::new(Notify::new()) };
}

pub(crate) fn current() -> Thread {
    CURRENT.with(Thread::clone)
}

/// Parks the thread. May return spuriously.
pub(crate) fn park() {
    current().token.wait();
}

impl Thread {
    pub(crate) fn id(&self) -> ThreadId {
        self.id
    }

    pub(crate) fn unpark(&self) {
        self.token.notify();
    }
}

/// A thread that acts as the executor of one task.
impl Wake for Thread {
    fn wake(self: StdArc<Self>) {
        self.unpark();
    }
}
