//! The calls to the client, which leave through the outbox. The engine makes some of them for itself, and others for
//! threads that wait for the outcome.

use std::fmt;
use std::sync::Arc;

use super::Core;
use super::afterwards::Afterwards;
use crate::client::{Acl, Ask, Call, CreateMode, Done, Reply};
use crate::engine::{CallId, Engine, MissingParents, ParticipantId, SessionEnd};
use crate::error::{ErrorKind, LockError, Operation, Result, ZkError, ZkResult};
use crate::logging;
use crate::panics::contain;
use crate::recipe::path::ZNodePath;
use crate::time::{Latch, Priority, Slot};
use crate::wait::CancelToken;

/// An item of the outbox. Calls leave in the order in which the engine made them.
pub(super) enum Outgoing {
    Call(CallId, Call, Priority),
    RemoveWatch(ZNodePath),
    /// An outcome that the client reported within `submit`, on the same thread. It is handled after all items have been
    /// sent.
    Answered(CallId, ZkResult<Reply>),
}

/// Receives the outcome of a call that the engine made on behalf of somebody else.
pub(super) type OutcomeSink = Box<dyn FnOnce(ZkResult<Reply>) + Send>;

/// The future outcome of a call.
pub(crate) struct Answer<T> {
    outcome: Slot<ZkResult<Reply>>,
    read: fn(Reply) -> ZkResult<T>,
}

impl Core {
    /// Passes the calls of the outbox to the client. To keep the order, only one thread does so at a time, and other
    /// threads leave their items to it.
    ///
    /// If the client reports outcomes within `submit`, they are inputs, too, which may cause more calls. A client may
    /// refuse thousands of waiting calls in this way, one after the other, so this is a loop. The work that follows is
    /// added to `afterwards`.
    pub(super) fn send_all(self: &Arc<Self>, afterwards: &mut Afterwards) {
        loop {
            let mut answered = Vec::new();
            self.outbox.deliver(|outgoing| match outgoing {
                Outgoing::Call(id, call, priority) => self.send(id, call, priority),
                Outgoing::RemoveWatch(path) => {
                    let remove = || self.client.remove_watches(path.as_str());
                    self.contained("a watch may stay on the server", remove);
                }
                Outgoing::Answered(id, outcome) => answered.push((id, outcome)),
            });
            if answered.is_empty() {
                return;
            }
            for (id, outcome) in answered {
                let ((), more) = self.take_in(|driver| driver.engine.handle_reply(id, outcome));
                afterwards.add(more);
            }
        }
    }

    fn send(self: &Arc<Self>, id: CallId, call: Call, priority: Priority) {
        let core = Arc::clone(self);
        let done = Done::new(move |outcome| match core.outbox.delivers_here() {
            true => core.outbox.post(Outgoing::Answered(id, outcome)),
            false => core.replied(id, outcome),
        });
        // If the client panics before it has stored or completed `done`, the outcome is unknown.
        let submit = || self.client.submit(call, done.with_urgency(priority.urgency()));
        self.contained("the outcome of a call is unknown", submit);
    }

    fn contained(&self, consequence: &'static str, call: impl FnOnce()) {
        if let Err(message) = contain(call) {
            logging::error!("the ZooKeeper client panicked, so {consequence}: {message}");
        }
    }

    fn replied(self: &Arc<Self>, id: CallId, outcome: ZkResult<Reply>) {
        self.feed(|driver| driver.engine.handle_reply(id, outcome));
    }

    // ---- for threads that may block

    /// Makes a call, and waits for the outcome.
    ///
    /// # Errors
    /// If the call fails. [`failure`](Core::failure) converts its error.
    pub(crate) fn call<T>(
        self: &Arc<Self>,
        operation: Operation,
        path: &ZNodePath,
        ask: Ask<T>,
    ) -> Result<T> {
        self.ask(ask).map_err(|error| self.failure(operation, path, error))
    }

    /// Fails with the reason if the session has ended.
    pub(crate) fn check_open(&self, operation: Operation, path: &ZNodePath) -> Result<()> {
        match self.snapshot().end_reason {
            Some(end) => Err(self.classify(LockError::ended(operation, path, end.into()))),
            None => Ok(()),
        }
    }

    /// Converts the error of a failed call. If the call failed because the session has ended, the result contains the
    /// reason for that end.
    pub(crate) fn failure(&self, operation: Operation, path: impl fmt::Display, error: ZkError) -> LockError {
        self.classify(match self.snapshot().end_reason {
            Some(end) if error == ZkError::SessionExpired => LockError::ended(operation, path, end.into()),
            _ => LockError::client(operation, path, error),
        })
    }

    /// Returns the error with the kind that is true of this session now. After the end of a session, no lock can be
    /// acquired on it again, unless the session is replaced: then nobody has to connect another one.
    pub(crate) fn classify(&self, error: LockError) -> LockError {
        // A forked child takes no mutex. The session counts as lost there, and nothing replaces it.
        let is_here = self.process.is_current();
        let end = if is_here { self.snapshot().end_reason } else { Some(SessionEnd::Expired) };
        let replaced_until = self.replaced_until.get().filter(|_| is_here);
        let kind = match (error.kind(), end) {
            (ErrorKind::LockAgain, Some(SessionEnd::Closed)) => ErrorKind::Permanent,
            (ErrorKind::LockAgain | ErrorKind::Reconnect, Some(SessionEnd::Expired | SessionEnd::Silent)) => {
                match replaced_until {
                    None => ErrorKind::Reconnect,
                    Some(closed) if closed.is_cancelled() => ErrorKind::Permanent,
                    Some(_) => ErrorKind::LockAgain,
                }
            }
            (kind, _) => kind,
        };
        error.with_kind(kind)
    }

    /// Notes that another session replaces this one after a loss, until `closed` is cancelled.
    pub(in crate::session) fn replace_until(&self, closed: CancelToken) {
        let _ = self.replaced_until.set(closed);
    }

    /// Makes a call, and waits for the outcome or the end of the session.
    pub(crate) fn ask<T>(self: &Arc<Self>, ask: Ask<T>) -> ZkResult<T> {
        self.begin_ask(ask, ()).wait(self)
    }

    /// Makes a call without waiting. `kept` is dropped when the outcome is known, even if nobody waits for the outcome
    /// any more.
    pub(crate) fn begin_ask<T>(self: &Arc<Self>, ask: Ask<T>, kept: impl Send + 'static) -> Answer<T> {
        let Ask { call, read } = ask;
        let outcome = self.begin(kept, |engine, id| engine.ask(id, call));
        Answer { outcome, read }
    }

    /// Makes a write that changes nothing. A read that follows it on the same connection shows every write, by any
    /// client, that was answered before this one was made. See [`Engine::ask_to_write_nothing`].
    pub(crate) fn begin_to_write_nothing(self: &Arc<Self>) -> Answer<()> {
        Answer { outcome: self.begin((), Engine::ask_to_write_nothing), read: Reply::done }
    }

    /// Checks that the connected server does not show a znode that the leader has said does not exist. `czxid` is the id
    /// of the transaction that created the znode, read before the leader was asked.
    ///
    /// # Errors
    /// [`ServerDiverged`](crate::ErrorReason::ServerDiverged) if the server shows the znode although it has caught up.
    /// `ConnectionLoss` if the connection has changed during the check: repeat the check.
    pub(crate) fn check_gone(
        self: &Arc<Self>,
        operation: Operation,
        path: &ZNodePath,
        czxid: i64,
    ) -> Result<()> {
        let connection = self.snapshot().connection;
        // A server that lags behind shows the znode for a while. It answers this write only when it has caught up.
        let written = self.begin_to_write_nothing().wait(self);
        written.map_err(|error| self.failure(operation, path, error))?;
        let shown = match self.ask(Call::exists(path, false)) {
            Err(ZkError::NoAuth) => None,
            shown => shown.map_err(|error| self.failure(operation, path, error))?,
        };
        if shown.is_none_or(|stat| stat.czxid != czxid) {
            return Ok(());
        }
        let error = self.diverged(operation, path);
        match self.snapshot().connection == connection {
            true => Err(error),
            false => Err(self.failure(operation, path, ZkError::ConnectionLoss)),
        }
    }

    /// The error of an operation on a znode that only the connected server shows.
    pub(super) fn diverged(&self, operation: Operation, path: &ZNodePath) -> LockError {
        LockError::server_diverged(operation, path, self.contact().server.as_deref())
    }

    fn begin(
        self: &Arc<Self>,
        kept: impl Send + 'static,
        ask: impl FnOnce(&mut Engine, ParticipantId),
    ) -> Slot<ZkResult<Reply>> {
        let (filler, outcome) = Slot::new();
        let answered: OutcomeSink = Box::new(move |outcome| {
            filler.fill(outcome);
            drop(kept);
        });
        self.feed(|driver| {
            let id = driver.engine.new_id();
            driver.askers.insert(id, answered);
            ask(&mut driver.engine, id);
        });
        outcome
    }

    /// Creates an empty znode unless it exists, and its missing parents as persistent znodes. On a server without
    /// containers, creates a persistent znode instead of a container.
    ///
    /// # Errors
    /// The znode that could not be created, and why.
    pub(crate) fn ensure_path(
        self: &Arc<Self>,
        path: &ZNodePath,
        acl: &Arc<[Acl]>,
        mode: CreateMode,
    ) -> std::result::Result<(), (ZNodePath, ZkError)> {
        let mut missing = MissingParents::of(path, acl, mode);
        loop {
            match missing.answered(self.ask(missing.call())) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err((missing.next().clone(), error)),
            }
        }
    }
}

impl<T> Answer<T> {
    /// Waits for the outcome or the end of the session.
    pub(crate) fn wait(&self, core: &Core) -> ZkResult<T> {
        core.wait(&[self.outcome.latch(), &core.ended], None);
        match self.get() {
            // After the end of the session, the caller must not try again.
            Some(Err(error)) if error.is_reply_lost() && core.snapshot().end_reason.is_some() => {
                Err(ZkError::SessionExpired)
            }
            outcome => outcome.unwrap_or(Err(ZkError::SessionExpired)),
        }
    }

    /// Returns the outcome, if it has arrived and has not been taken yet.
    pub(crate) fn get(&self) -> Option<ZkResult<T>> {
        self.outcome.take().map(|outcome| outcome.and_then(self.read))
    }

    /// The latch that is set when the outcome has arrived.
    pub(crate) fn latch(&self) -> &Latch {
        self.outcome.latch()
    }
}
