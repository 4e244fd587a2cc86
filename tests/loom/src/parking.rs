//! Parking, as the standard library has it. Loom's own also wakes a thread that waits for a mutex, and
//! panics then.

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

/// May return for no reason.
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

/// A thread as an executor of one task.
impl Wake for Thread {
    fn wake(self: StdArc<Self>) {
        self.unpark();
    }
}
