//! [`Link`]: the path of a call through faults and stop points to the tree and back.

use std::mem::swap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::MutexGuard;

use super::faults::{Effect, Fault, FaultKind, SimOperation};
use super::log::Call as Logged;
use super::requests::Requester;
use super::state::{Client, Contact, Shared, State};
use crate::client::MaxBuffer;
use crate::client::{Call, DEFAULT_JUTE_MAX_BUFFER, Op, Reply, call_in_parts};
use crate::error::{ZkError, ZkResult};

/// A client as its calls see it. The client itself may already have been dropped.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) shared: Arc<Shared>,
    pub(super) session: i64,
}

/// How a call reached the simulation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sent {
    /// Made on the thread that waits for the reply, bypassing the queue of the connection.
    Directly,
    /// Queued on the connection with this number; `None` if there was no connection.
    OnConnection(Option<u64>),
}

impl Link {
    pub(super) fn client<'a>(&self, state: &'a mut State) -> &'a mut Client {
        state.client(self.session)
    }

    fn requester(&self) -> Requester {
        Requester::Client(self.session)
    }

    fn watcher(&self, watch: bool) -> Option<i64> {
        watch.then_some(self.session)
    }

    /// Logs a call that starts now. Returns its number in the log.
    pub(super) fn begin(&self, state: &mut State, call: &Call) -> usize {
        let (operation, watch) = kind_of(call);
        self.begin_as(state, operation, path_of(call), watch)
    }

    fn begin_as(&self, state: &mut State, operation: SimOperation, path: &str, watch: bool) -> usize {
        let (session, path) = (self.session, path.to_owned());
        state.log.begin(Logged { session, operation, path, watch, executed: false, outcome: None })
    }

    /// Makes a call on this thread, bypassing the queue.
    pub(super) fn call(&self, call: &Call) -> ZkResult<Reply> {
        call_in_parts(call, |part| {
            check_length(part)?;
            let number = self.begin(&mut self.shared.lock(), part);
            self.finish(number, self.pass(part, number, Sent::Directly))
        })
    }

    pub(super) fn close(&self) -> ZkResult<()> {
        let number = self.begin_as(&mut self.shared.lock(), SimOperation::Close, "", false);
        let closed = self.round_trip(SimOperation::Close, number, None, Sent::Directly, |state| {
            state.end_session(self.session);
            self.client(state).contact = Contact::Closed;
            Ok(())
        });
        self.finish(number, closed)
    }

    fn finish<T>(&self, number: usize, result: ZkResult<T>) -> ZkResult<T> {
        let mut state = self.shared.lock();
        state.log.record_outcome(number, result.as_ref().map(drop).map_err(|error| *error));
        // Deliver the events first. For example, the disconnect that makes a call fail must be delivered
        // before the call fails.
        self.shared.deliver(state);
        result
    }

    /// Carries a call to the server and its reply back.
    pub(super) fn pass(&self, call: &Call, number: usize, sent: Sent) -> ZkResult<Reply> {
        let (operation, _) = kind_of(call);
        self.round_trip(operation, number, Some(call), sent, |state| self.execute(state, call))
    }

    fn round_trip<T>(
        &self,
        operation: SimOperation,
        number: usize,
        call: Option<&Call>,
        sent: Sent,
        request: impl FnOnce(&mut State) -> ZkResult<T>,
    ) -> ZkResult<T> {
        let mut state = self.shared.lock();
        self.travel(&mut state, |state| self.send(sent, state))?;
        if let Some(stop_point) = self.client(&mut state).script.plan(operation).before.pop_front() {
            drop(state);
            stop_point();
            state = self.shared.lock();
            self.send(sent, &mut state)?;
        }
        let fault = self.client(&mut state).script.plan(operation).fault_of_this_call();
        if let Some(Fault { when: Effect::Before, kind }) = fault {
            if let FaultKind::HoldBack = kind {
                self.client(&mut state).held_back.extend(call.map(|call| (number, call.clone())));
            }
            self.inject(kind, &mut state)?;
            self.send(sent, &mut state)?;
        }

        let result = request(&mut state);
        if operation.is_write() {
            self.client(&mut state).lagging = None;
        }
        state.log.record_execution(number);
        if let Sent::OnConnection(_) = sent {
            // Events that happen from now on are delivered after this call's reply.
            state.expect_reply(self.session, number);
        }
        let client = self.client(&mut state);
        let connection = client.connection;
        let stop_point = client.script.plan(operation).after.pop_front();
        if let Some(Fault { when: Effect::After, kind: FaultKind::Swallow }) = fault {
            // Done together with the effect, so a test that sees the effect can rely on the swallowing.
            client.swallow();
        }
        if let Some(stop_point) = stop_point {
            client.outbox.stopped += 1;
            let stop = Stop(self);
            self.deliver(sent, state);
            stop_point();
            drop(stop);
        } else {
            self.deliver(sent, state);
        }
        let mut state = self.shared.lock();
        if let Some(Fault { when: Effect::After, kind: kind @ (FaultKind::Fail(_) | FaultKind::Cut) }) = fault
        {
            self.inject(kind, &mut state)?;
        }
        self.travel(&mut state, |state| self.receive(connection, state))?;
        result
    }

    /// Delivers the events so far. The thread that executes the queue does not wait for other threads here.
    fn deliver(&self, sent: Sent, state: MutexGuard<'_, State>) {
        match sent {
            Sent::Directly => self.shared.deliver(state),
            Sent::OnConnection(_) => drop(self.shared.flush(state)),
        }
    }

    /// Executes a call on the server.
    fn execute(&self, state: &mut State, call: &Call) -> ZkResult<Reply> {
        let (path, requester) = (path_of(call), self.requester());
        match call {
            Call::Create { data, acl, mode, .. } => {
                let path = state.create(path, data, acl, *mode, requester)?;
                let stat = state.tree.stat(&path).ok().flatten();
                Ok(Reply::Created { stat: stat.filter(|_| !self.client(state).hides_stats), path })
            }
            Call::Delete { version, .. } => state.delete(path, *version, requester).map(|()| Reply::Done),
            Call::SetData { data, version, .. } => {
                state.set_data(path, data, *version, requester).map(Reply::Stat)
            }
            Call::Multi(operations) => Ok(Reply::Multi(state.transact(operations, requester))),
            read => self.answer(state, |state| match read {
                Call::Exists { watch, .. } => {
                    state.exists(path, self.watcher(*watch), requester).map(Reply::Found)
                }
                Call::GetData { watch, .. } => {
                    let read = state.get_data(path, self.watcher(*watch), requester);
                    read.map(|(data, stat)| Reply::Data(data, stat))
                }
                Call::GetChildren { watch, .. } => {
                    state.get_children(path, self.watcher(*watch), requester).map(Reply::Children)
                }
                _ => Err(ZkError::Unimplemented),
            }),
        }
    }

    /// Executes a read on the tree that this client's server has applied.
    fn answer<T>(&self, state: &mut State, read: impl FnOnce(&mut State) -> T) -> T {
        let Client { lagging, kept, hidden, .. } = self.client(state);
        if lagging.is_none() && kept.is_empty() && hidden.is_empty() {
            return read(state);
        }
        let (lagging, kept, hidden) = (lagging.clone(), kept.clone(), hidden.clone());
        let mut shown = lagging.unwrap_or_else(|| state.tree.clone());
        kept.iter().for_each(|(path, tree)| shown.keep(path, tree));
        hidden.iter().for_each(|path| shown.hide(path));
        swap(&mut state.tree, &mut shown);
        let result = read(state);
        swap(&mut state.tree, &mut shown);
        result
    }

    /// Blocks until half of the client's delay has passed and `pass` no longer blocks, whichever is later. Fails as
    /// soon as `pass` does.
    fn travel(
        &self,
        state: &mut MutexGuard<'_, State>,
        pass: impl Fn(&mut MutexGuard<'_, State>) -> ZkResult<()>,
    ) -> ZkResult<()> {
        let delay = self.client(state).delay / 2;
        let arrival = (!delay.is_zero()).then(|| Instant::now() + delay);
        pass(state)?;
        while let Some(arrival) = arrival.filter(|arrival| Instant::now() < *arrival) {
            self.shared.wait_until(state, arrival);
            pass(state)?;
        }
        Ok(())
    }

    fn inject(&self, fault: FaultKind, state: &mut State) -> ZkResult<()> {
        match fault {
            FaultKind::Fail(error) => return Err(error),
            FaultKind::Cut => state.cut(self.session),
            FaultKind::Swallow => self.client(state).swallow(),
            FaultKind::HoldBack => return Err(ZkError::ConnectionLoss),
        }
        Ok(())
    }

    /// Executes the requests that a server has held back, unless the session has ended.
    pub(super) fn execute_held_back(&self, state: &mut State) {
        for (number, call) in std::mem::take(&mut self.client(state).held_back) {
            if !state.has_ended(self.session) {
                // Nobody waits for the reply.
                let _ = self.execute(state, &call);
                state.log.record_execution(number);
            }
        }
    }

    /// Blocks while the request is swallowed. Succeeds if the request reaches the server.
    fn send(&self, sent: Sent, state: &mut MutexGuard<'_, State>) -> ZkResult<()> {
        loop {
            let client = self.client(state);
            let is_left_behind =
                matches!(sent, Sent::OnConnection(connection) if connection != Some(client.connection));
            match client.contact {
                Contact::Lost | Contact::Closed => return Err(ZkError::SessionExpired),
                // The request was lost with its connection, or was made without one.
                _ if is_left_behind => return Err(ZkError::ConnectionLoss),
                Contact::Disconnected => return Err(ZkError::ConnectionLoss),
                Contact::Connected | Contact::Silent if client.swallowed => self.shared.wait(state),
                Contact::Silent => return Err(ZkError::ConnectionLoss),
                Contact::Connected => return Ok(()),
            }
        }
    }

    /// Blocks while the reply is swallowed. Succeeds if the caller receives the reply. The reply is lost if
    /// the connection on which the request was sent is lost.
    fn receive(&self, connection: u64, state: &mut MutexGuard<'_, State>) -> ZkResult<()> {
        loop {
            let client = self.client(state);
            match client.contact {
                Contact::Lost => return Err(ZkError::SessionExpired),
                Contact::Closed => return Ok(()),
                _ if client.connection != connection => return Err(ZkError::ConnectionLoss),
                _ if client.swallowed => self.shared.wait(state),
                _ => return Ok(()),
            }
        }
    }
}

/// A running stop point. Dropped when the stop point ends, even by a panic.
struct Stop<'a>(&'a Link);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        let mut state = self.0.shared.lock();
        let outbox = &mut self.0.client(&mut state).outbox;
        // If the client was dropped in the meantime, this is a new outbox.
        outbox.stopped = outbox.stopped.saturating_sub(1);
        self.0.shared.notify(&mut state);
    }
}

/// Returns the operation of a call, and whether it asks for a watch.
fn kind_of(call: &Call) -> (SimOperation, bool) {
    match call {
        Call::Create { .. } | Call::CreateAndList { .. } => (SimOperation::Create, false),
        Call::Delete { .. } => (SimOperation::Delete, false),
        Call::Exists { watch, .. } => (SimOperation::Exists, *watch),
        Call::GetData { watch, .. } => (SimOperation::GetData, *watch),
        Call::GetChildren { watch, .. } => (SimOperation::GetChildren, *watch),
        Call::SetData { .. } => (SimOperation::SetData, false),
        Call::Multi(_) => (SimOperation::Transact, false),
    }
}

fn path_of(call: &Call) -> &str {
    match call {
        Call::Multi(operations) => operations.first().map_or("", Op::path),
        call => call.path().unwrap_or_default(),
    }
}

/// Refuses a call that may be too long for a server.
pub(super) fn check_length(call: &Call) -> ZkResult<()> {
    MaxBuffer::new(DEFAULT_JUTE_MAX_BUFFER).check(call)
}
