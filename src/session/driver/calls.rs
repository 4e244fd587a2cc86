//! The calls to the client: those of the engine, which leave through the outbox, and those of
//! threads that wait for the reply.

use std::sync::Arc;

use super::{Core, Origin};
use crate::client::{Acl, Ask, Call, CreateMode, Done, Reply, contain_call};
use crate::engine::calls::{KEEP_ALIVE_PATHS, keep_alive, was_answered_by_leader, was_denied};
use crate::engine::{CallId, MissingParents};
use crate::error::ZkResult;
use crate::logging;
use crate::panics::contain;
use crate::recipe::path::ZNodePath;
use crate::time::Priority;

/// What leaves for the client, in the order in which the engine has asked for it.
pub(super) enum Outgoing {
    Call(CallId, Call, Priority),
    RemoveWatch(ZNodePath),
    /// The client has passed on an outcome before it has returned from the call. It is taken up when
    /// the turn to send is over: what follows may write to the log, or wait for calls.
    Answered(CallId, ZkResult<Reply>),
    /// As [`Answered`](Outgoing::Answered), for a panic of the client.
    Panicked(String),
}

impl Core {
    /// Passes to the client what waits for that. Only one thread does so at a time, which keeps the
    /// order; the others leave it to the first.
    pub(super) fn send_all(self: &Arc<Self>) {
        let mut afterwards = Vec::new();
        self.outbox.deliver(|outgoing| match outgoing {
            Outgoing::Call(id, call, priority) => self.send(id, call, priority),
            Outgoing::RemoveWatch(path) => self.contained(|| self.client.remove_watches(path.as_str())),
            Outgoing::Answered(..) | Outgoing::Panicked(_) => afterwards.push(outgoing),
        });
        for outgoing in afterwards {
            match outgoing {
                Outgoing::Answered(id, outcome) => self.replied(id, outcome),
                Outgoing::Panicked(message) => {
                    logging::error!(
                        "the ZooKeeper client panicked, so the outcome of a call is unknown: {message}"
                    );
                }
                Outgoing::Call(..) | Outgoing::RemoveWatch(_) => {}
            }
        }
    }

    fn send(self: &Arc<Self>, id: CallId, call: Call, priority: Priority) {
        let core = Arc::clone(self);
        let done = Done::new(move |outcome| match core.outbox.delivers_here() {
            true => core.outbox.post(Outgoing::Answered(id, outcome)),
            false => core.replied(id, outcome),
        });
        // After a panic the outcome is unknown, as when `done` is dropped.
        self.contained(|| self.client.submit(call, done.with_priority(priority)));
    }

    fn contained(&self, call: impl FnOnce()) {
        if let Err(message) = contain(call) {
            self.outbox.post(Outgoing::Panicked(message));
        }
    }

    fn replied(self: &Arc<Self>, id: CallId, outcome: ZkResult<Reply>) {
        self.feed(Origin::Other, |driver| driver.engine.replied(id, outcome));
    }

    // ---- for threads that may block

    /// Makes a call, and waits for the outcome.
    pub(crate) fn ask<T>(self: &Arc<Self>, ask: Ask<T>) -> ZkResult<T> {
        let Ask { call, read } = ask;
        let is_write = call.is_write();
        let sending = self.driver_now().engine.sending()?;
        let result = contain_call("the ZooKeeper client", || self.client.call(call)).and_then(read);
        let answer = result.as_ref().map(drop).map_err(|error| *error);
        self.feed(Origin::Other, |driver| {
            driver.engine.answered(is_write, sending, answer);
        });
        result
    }

    /// Makes a write that changes nothing. A read that follows shows everything that this session has
    /// sent before, on whichever connection: a read alone may be answered by a server that lags
    /// behind.
    pub(crate) fn write_nothing(self: &Arc<Self>) -> ZkResult<()> {
        let mut result = Ok(());
        for path in KEEP_ALIVE_PATHS {
            result = self.ask(keep_alive(path)).map(drop);
            if !was_denied(&result) {
                break;
            }
        }
        if was_answered_by_leader(&result) { Ok(()) } else { result }
    }

    /// Creates a znode without data and its missing parents, which persist. Does nothing if it
    /// exists. A server without containers creates a persistent znode in their place.
    pub(crate) fn ensure_path(
        self: &Arc<Self>,
        path: &ZNodePath,
        acl: &Arc<[Acl]>,
        mode: CreateMode,
    ) -> ZkResult<()> {
        let mut missing = MissingParents::of(path, acl, mode);
        while !missing.answered(self.ask(missing.call()))? {}
        Ok(())
    }
}
