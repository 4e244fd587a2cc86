//! [`SimulatedClient`]: the port, and the path of a call through faults and stop points to the tree
//! and back.

use std::fmt;
use std::mem::swap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::faults::{Effect, Fault, FaultKind, SimOperation};
use super::log::Call;
use super::requests::Requester;
use super::state::{Client, Contact, Shared, State};
use crate::client::{self, BlockingClient, EventSink, Op, Reply};
use crate::error::{ZkError, ZkResult};

/// Servers close the connection when a request is longer. So clients refuse it.
const MAX_REQUEST: usize = 0xf_ffff;

/// A client of a [`SimulatedZooKeeper`](super::SimulatedZooKeeper) with its own session, and the
/// faults that a test can inject into it.
///
/// A call is executed immediately on the calling thread. The sink is called there too, or on the
/// thread that caused the event, with no lock of the simulation held. No call and no verb returns
/// before all earlier events are delivered.
///
/// [`close`](BlockingClient::close) without contact ends the session for this client only. On the
/// server, the session and its ephemeral znodes live on until a test calls
/// [`expire`](SimulatedClient::expire). Dropping the client without a close is a crash. Its effect
/// is the same, but then [`expire_session`](super::SimulatedZooKeeper::expire_session) ends the
/// session.
pub struct SimulatedClient {
    pub(super) shared: Arc<Shared>,
    pub(super) session: i64,
}

impl SimulatedClient {
    /// Opens a session.
    pub(super) fn connect(shared: &Arc<Shared>, session_timeout: Duration) -> Arc<SimulatedClient> {
        let mut state = shared.lock();
        state.last_session += 1;
        let session = state.last_session;
        state.sessions.insert(session);
        // No report delay: the only server is the leader.
        let client = Client { contact: Contact::Connected, session_timeout, ..Client::default() };
        state.clients.insert(session, client);
        Arc::new(SimulatedClient { shared: Arc::clone(shared), session })
    }

    /// Returns the id of this client's session.
    #[must_use]
    pub fn session_id(&self) -> i64 {
        self.session
    }

    fn requester(&self) -> Requester {
        Requester::Client(self.session)
    }

    fn watcher(&self, watch: bool) -> Option<i64> {
        watch.then_some(self.session)
    }

    /// Logs a call around its [`round_trip`](SimulatedClient::round_trip).
    fn make<T>(
        &self,
        operation: SimOperation,
        path: &str,
        watch: bool,
        call: Option<&client::Call>,
        request: impl FnOnce(&mut State) -> ZkResult<T>,
    ) -> ZkResult<T> {
        let session = self.session;
        let begun = Call { session, operation, path: path.to_owned(), watch, executed: false, outcome: None };
        let number = self.shared.lock().log.begin(begun);
        let result = self.round_trip(operation, number, call, request);
        let mut state = self.shared.lock();
        state.log.returned(number, result.as_ref().map(drop).map_err(|error| *error));
        // Delivers, for example, another thread's disconnect before the call fails because of it.
        self.shared.deliver(state);
        result
    }

    fn round_trip<T>(
        &self,
        operation: SimOperation,
        number: usize,
        call: Option<&client::Call>,
        request: impl FnOnce(&mut State) -> ZkResult<T>,
    ) -> ZkResult<T> {
        let mut state = self.shared.lock();
        self.travel(&mut state, |state| self.send(state))?;
        if let Some(stop_point) = self.client(&mut state).script.plan(operation).before.pop_front() {
            drop(state);
            stop_point();
            state = self.shared.lock();
            self.send(&mut state)?;
        }
        let fault = self.client(&mut state).script.plan(operation).fault_of_this_call();
        if let Some(Fault { when: Effect::Before, kind }) = fault {
            if let FaultKind::HoldBack = kind {
                self.client(&mut state).held_back.extend(call.map(|call| (number, call.clone())));
            }
            self.inject(kind, &mut state)?;
            self.send(&mut state)?;
        }

        let result = request(&mut state);
        if operation.is_write() {
            self.client(&mut state).lagging = None;
        }
        state.log.executed(number);
        let client = self.client(&mut state);
        let connection = client.connection;
        let stop_point = client.script.plan(operation).after.pop_front();
        if let Some(Fault { when: Effect::After, kind: FaultKind::Swallow }) = fault {
            // Atomic with the effect, so that a test that sees the effect can rely on the
            // swallowing.
            client.swallow();
        }
        self.shared.deliver(state);
        if let Some(stop_point) = stop_point {
            stop_point();
        }
        let mut state = self.shared.lock();
        if let Some(Fault { when: Effect::After, kind: kind @ (FaultKind::Fail(_) | FaultKind::Cut) }) = fault
        {
            self.inject(kind, &mut state)?;
        }
        self.travel(&mut state, |state| self.receive(connection, state))?;
        result
    }

    /// Executes a call on the server.
    fn execute(&self, state: &mut State, call: &client::Call) -> ZkResult<Reply> {
        use client::Call;
        let (path, requester) = (path_of(call), self.requester());
        match call {
            Call::Create { data, acl, mode, .. } => {
                let path = state.create(path, data, acl, *mode, requester)?;
                Ok(Reply::Created { path, stat: None })
            }
            Call::Delete { version, .. } => state.delete(path, *version, requester).map(|()| Reply::Done),
            Call::SetData { data, version, .. } => {
                state.set_data(path, data, *version, requester).map(Reply::Stat)
            }
            Call::Multi(operations) => Ok(Reply::Multi(state.transact(operations, requester))),
            read => self.look(state, |state| match read {
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

    /// Makes a read, of the tree that this client's server has applied.
    fn look<T>(&self, state: &mut State, read: impl FnOnce(&mut State) -> T) -> T {
        let Some(mut applied) = self.client(state).lagging.take() else { return read(state) };
        swap(&mut state.tree, &mut applied);
        let result = read(state);
        swap(&mut state.tree, &mut applied);
        self.client(state).lagging = Some(applied);
        result
    }

    /// Lets the client's server lag behind: reads show the present tree, whatever others change,
    /// until this client's next write was executed.
    #[cfg(test)]
    pub(crate) fn lag_until_next_write(&self) {
        let mut state = self.shared.lock();
        let applied = state.tree.clone();
        self.client(&mut state).lagging = Some(applied);
    }

    /// Blocks for half of the delay of a call, and as long as `pass` does. Fails at once if that
    /// fails.
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

    /// Executes what a server has held back, unless the session has ended.
    pub(super) fn execute_held_back(&self, state: &mut State) {
        for (number, call) in std::mem::take(&mut self.client(state).held_back) {
            if !state.has_ended(self.session) {
                // Nobody waits for the answer.
                let _ = self.execute(state, &call);
                state.log.executed(number);
            }
        }
    }

    /// Blocks while the request is swallowed, then returns whether it reaches the server.
    fn send(&self, state: &mut MutexGuard<'_, State>) -> ZkResult<()> {
        loop {
            let client = self.client(state);
            match client.contact {
                Contact::Lost | Contact::Closed => return Err(ZkError::SessionExpired),
                Contact::Disconnected => return Err(ZkError::ConnectionLoss),
                Contact::Connected | Contact::Silent if client.swallowed => self.shared.wait(state),
                Contact::Silent => return Err(ZkError::ConnectionLoss),
                Contact::Connected => return Ok(()),
            }
        }
    }

    /// Blocks while the reply is swallowed, then returns whether the caller receives it. It is lost
    /// if the connection on which the request was sent is lost.
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

    pub(super) fn client<'a>(&self, state: &'a mut State) -> &'a mut Client {
        state.client(self.session)
    }
}

impl BlockingClient for SimulatedClient {
    fn call(&self, call: &client::Call) -> ZkResult<Reply> {
        use client::Call;
        check_length(call)?;
        let (operation, watch) = match call {
            Call::Create { .. } => (SimOperation::Create, false),
            Call::Delete { .. } => (SimOperation::Delete, false),
            Call::Exists { watch, .. } => (SimOperation::Exists, *watch),
            Call::GetData { watch, .. } => (SimOperation::GetData, *watch),
            Call::GetChildren { watch, .. } => (SimOperation::GetChildren, *watch),
            Call::SetData { .. } => (SimOperation::SetData, false),
            Call::Multi(_) => (SimOperation::Transact, false),
            Call::CreateAndList { .. } => return Err(ZkError::Unimplemented),
        };
        let path = path_of(call);
        self.make(operation, path, watch, Some(call), |state| self.execute(state, call))
    }

    fn remove_watches(&self, path: &str) {
        let mut state = self.shared.lock();
        if self.client(&mut state).contact == Contact::Connected {
            state.watches.remove(path, self.session);
        }
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        let mut state = self.shared.lock();
        let client = self.client(&mut state);
        let connected = matches!(client.contact, Contact::Connected | Contact::Silent);
        let former = client.sink.replace(sink);
        drop(state);
        // Not under the lock: dropping what the sink holds may call the client.
        drop(former);
        connected
    }

    fn report_delay(&self) -> Duration {
        self.client(&mut self.shared.lock()).report_delay
    }

    fn min_idle_for_ping(&self) -> Duration {
        self.client(&mut self.shared.lock()).min_idle_for_ping
    }

    fn session_timeout(&self) -> Duration {
        self.client(&mut self.shared.lock()).session_timeout
    }

    fn close(&self) {
        let ended = |contact| matches!(contact, Contact::Closed | Contact::Lost);
        let contact = self.client(&mut self.shared.lock()).contact;
        if !ended(contact) {
            // Whether the request reached the server makes no difference to this client.
            let _ = self.make(SimOperation::Close, "", false, None, |state| {
                state.end_session(self.session);
                self.client(state).contact = Contact::Closed;
                Ok(())
            });
        }
        let mut state = self.shared.lock();
        state.hang_up(self.session);
        let client = self.client(&mut state);
        if !ended(client.contact) {
            client.contact = Contact::Closed;
        }
        let sink = client.sink.take();
        self.shared.deliver(state);
        drop(sink);
    }
}

fn path_of(call: &client::Call) -> &str {
    match call {
        client::Call::Multi(operations) => operations.first().map_or("", Op::path),
        call => call.path().unwrap_or_default(),
    }
}

fn check_length(call: &client::Call) -> ZkResult<()> {
    let data = |operation: &Op| match operation {
        Op::Create { data, .. } | Op::SetData { data, .. } => data.len(),
        Op::Delete { .. } | Op::Check { .. } => 0,
    };
    let length = match call {
        client::Call::Create { path, data, .. } | client::Call::SetData { path, data, .. } => {
            path.len() + data.len()
        }
        client::Call::Multi(operations) => operations.iter().map(data).sum(),
        _ => 0,
    };
    if length > MAX_REQUEST { Err(ZkError::BadArguments) } else { Ok(()) }
}

impl Drop for SimulatedClient {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.hang_up(self.session);
        let client = state.clients.remove(&self.session);
        drop(state);
        // Not under the lock: the sink and the stop points belong to the test and may call the
        // client.
        drop(client);
    }
}

impl fmt::Debug for SimulatedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedClient").field("session", &self.session).finish_non_exhaustive()
    }
}
