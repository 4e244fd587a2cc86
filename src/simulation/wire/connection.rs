//! [`SimulatedConnection`]: the handle of a client on the wire, as
//! [`Connection`](crate::connection::Connection) is of a real one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::endpoint::{Contact, Continuation, Endpoint};
use super::session::{Slot, Wired};
use crate::LockError;
use crate::client::{
    Acl, ClientEvent, CreateMode, Enqueued, EventSink, Granted, Stat, ZkError, ZkResult, ZooKeeperClient,
};
use crate::connection::Credential;
use crate::connection::codec::{DEFAULT_MAX_FRAME, Reply, Request};
use crate::connection::machine::{Config, Machine};
use crate::simulation::baton::{Wait, pause, role};
use crate::simulation::world::{World, short};

/// How long closing waits beyond the session timeout.
const CLOSE_MARGIN: Duration = Duration::from_secs(1);

/// See the [module](self).
pub(in crate::simulation) struct SimulatedConnection {
    world: Arc<World>,
    client: usize,
    requested: Duration,
}

impl SimulatedConnection {
    /// Starts to connect. On the scheduler's thread, the connection opens at once.
    pub(in crate::simulation) fn new(world: &Arc<World>, number: usize) -> Arc<SimulatedConnection> {
        let now = world.now();
        let requested = {
            let mut state = world.state();
            let requested = state.clients[number].session_timeout;
            let authenticates = state.random.one_in(3);
            let credential = Credential { scheme: "digest".to_owned(), auth: b"user:password".to_vec() };
            let config = Config {
                session_timeout: requested,
                credentials: if authenticates { vec![credential] } else { Vec::new() },
                max_frame: DEFAULT_MAX_FRAME,
                seed: state.random.next(),
            };
            let servers = match role() {
                Some(_) => state.ensemble.all_servers(),
                None => state.ensemble.well_servers(now),
            };
            let endpoint = Endpoint::new(Machine::new(config, now), servers, Granted::new(requested), now);
            state.clients[number].wire = Some(Wired::new(endpoint, requested, authenticates, now));
            requested
        };
        let connection = SimulatedConnection { world: Arc::clone(world), client: number, requested };
        if role().is_none() {
            world.run_wire(number);
            let servers = world.state().ensemble.all_servers();
            connection.with_endpoint(|endpoint| endpoint.set_servers(servers));
        }
        Arc::new(connection)
    }

    /// Blocks until the session is open, for at most the session timeout.
    pub(in crate::simulation) fn wait_for_contact(&self) -> crate::Result<()> {
        let deadline = self.world.now().after(self.requested);
        self.wait_for(|endpoint| endpoint.contact != Contact::Disconnected || endpoint.has_ended, deadline);
        match self.contact() {
            Some(Contact::Connected) => Ok(()),
            _ => {
                Err(LockError::Connect { tried: "the simulated servers".to_owned(), timeout: self.requested })
            }
        }
    }

    fn wait_for(&self, holds: impl Fn(&Endpoint) -> bool + Send + 'static, deadline: crate::session::Moment) {
        let (world, client) = (Arc::clone(&self.world), self.client);
        let condition =
            move || world.state().clients[client].endpoint().is_none_or(|endpoint| holds(endpoint));
        pause(Wait::Signals(vec![Box::new(condition)], Some(deadline)));
    }

    /// Works with the endpoint under the lock. `None` once the run is over.
    fn with_endpoint<T>(&self, work: impl FnOnce(&mut Endpoint) -> T) -> Option<T> {
        self.world.state().clients.get_mut(self.client)?.endpoint().map(work)
    }

    fn contact(&self) -> Option<Contact> {
        self.with_endpoint(|endpoint| endpoint.contact)
    }

    /// Submits requests, which leave in one write. Their continuations run in the same order.
    ///
    /// # Errors
    /// `SessionExpired` once the session has ended; then no continuation is called.
    pub(in crate::simulation) fn submit<const N: usize>(
        &self,
        requests: [(Request<'_>, Continuation); N],
    ) -> ZkResult<()> {
        let now = self.world.now();
        let mut refused = Vec::new();
        self.with_endpoint(|endpoint| {
            for (request, continuation) in requests {
                refused.extend(endpoint.machine.submit(now, &request, continuation).err());
            }
            endpoint.settle();
        });
        // Without the lock: a continuation may own anything.
        if refused.is_empty() { Ok(()) } else { Err(ZkError::SessionExpired) }
    }

    fn call(&self, request: Request<'_>) -> ZkResult<Reply> {
        let [slot] = self.call_all([request])?;
        self.outcome(&slot)
    }

    /// Submits requests together, and returns the places of their outcomes.
    fn call_all<const N: usize>(&self, requests: [Request<'_>; N]) -> ZkResult<[Slot; N]> {
        pause(Wait::Turn);
        let slots: [Slot; N] = std::array::from_fn(|_| Slot::default());
        let mut next = slots.iter();
        let now = self.world.now();
        let requests = requests.map(|request| {
            // Proof: there are as many.
            let slot = next.next().expect("a slot for each request");
            let what = format!("{:?} {}", request.operation(), short(request.path().unwrap_or_default()));
            if let Some(client) = self.world.state().clients.get_mut(self.client) {
                client.wired_mut().begin_call(what, slot, now);
            }
            (request, fill(slot))
        });
        self.submit(requests)?;
        Ok(slots)
    }

    /// Waits for an outcome.
    fn outcome(&self, slot: &Slot) -> ZkResult<Reply> {
        if role().is_none() {
            if !self.world.state().clients[self.client].opening {
                self.world.fail("a call is made on a thread that must not block");
            }
            self.world.run_wire(self.client);
        } else {
            let filled = Arc::clone(slot);
            pause(Wait::Until(Box::new(move || filled.lock().is_some())));
        }
        slot.lock().take().unwrap_or(Err(ZkError::SessionExpired))
    }

    /// A long listing occupies the worker that receives it.
    fn perhaps_take_a_while(&self) {
        if self.world.profile.is_busy && self.world.in_trouble() && role().is_some() {
            let longest = self.session_timeout().as_nanos() as u64 / 4;
            let length = Duration::from_nanos(self.world.state().random.below(longest));
            pause(Wait::Time(self.world.now().after(length)));
        }
    }
}

fn fill(slot: &Slot) -> Continuation {
    let slot = Arc::clone(slot);
    Box::new(move |result| *slot.lock() = Some(result))
}

fn children(reply: Reply) -> ZkResult<Vec<String>> {
    match reply {
        Reply::Children(names) => Ok(names),
        _ => Err(ZkError::MarshallingError),
    }
}

fn created(reply: Reply) -> ZkResult<(String, Stat)> {
    match reply {
        Reply::Created { path, stat } => Ok((path, stat)),
        _ => Err(ZkError::MarshallingError),
    }
}

impl ZooKeeperClient for SimulatedConnection {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> ZkResult<String> {
        let (data, acl) = (data.into(), acl.into());
        let reply = self.call(Request::Create { path: path.into(), data, acl, mode })?;
        created(reply).map(|(path, _)| path)
    }

    fn delete(&self, path: &str, version: Option<i32>) -> ZkResult<()> {
        self.call(Request::Delete { path: path.into(), version: version.unwrap_or(-1) }).map(drop)
    }

    fn exists(&self, path: &str, watch: bool) -> ZkResult<Option<Stat>> {
        match self.call(Request::Exists { path: path.into(), watch }) {
            Ok(Reply::Stat(stat)) => Ok(Some(stat)),
            Ok(_) => Err(ZkError::MarshallingError),
            Err(ZkError::NoNode) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn get_children(&self, path: &str, watch: bool) -> ZkResult<Vec<String>> {
        let names = self.call(Request::GetChildren { path: path.into(), watch }).and_then(children);
        self.perhaps_take_a_while();
        names
    }

    fn get_data(&self, path: &str, watch: bool) -> ZkResult<(Vec<u8>, Stat)> {
        match self.call(Request::GetData { path: path.into(), watch })? {
            Reply::Data { data, stat } => Ok((data, stat)),
            _ => Err(ZkError::MarshallingError),
        }
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> ZkResult<Stat> {
        let version = version.unwrap_or(-1);
        match self.call(Request::SetData { path: path.into(), data: data.into(), version })? {
            Reply::Stat(stat) => Ok(stat),
            _ => Err(ZkError::MarshallingError),
        }
    }

    fn create_and_list(&self, dir: &str, prefix: &str, data: &[u8], acl: &[Acl]) -> ZkResult<Enqueued> {
        let create = Request::Create {
            path: format!("{dir}/{prefix}").into(),
            data: data.into(),
            acl: acl.into(),
            mode: CreateMode::EphemeralSequential,
        };
        let list = Request::GetChildren { path: dir.into(), watch: false };
        let [new, listed] = self.call_all([create, list])?;
        let (path, stat) = self.outcome(&new).and_then(created)?;
        let names = self.outcome(&listed).and_then(children);
        self.perhaps_take_a_while();
        Ok(Enqueued::new(path, names).with_stat(stat))
    }

    fn reports_pings(&self) -> bool {
        true
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        let contact = self.contact();
        if contact == Some(Contact::Lost) {
            sink(ClientEvent::SessionLost);
        }
        if let Some(client) = self.world.state().clients.get_mut(self.client) {
            client.sink = Some(sink);
        }
        contact == Some(Contact::Connected)
    }

    fn session_timeout(&self) -> Duration {
        self.with_endpoint(|endpoint| endpoint.granted.session_timeout).unwrap_or(self.requested)
    }

    fn report_delay(&self) -> Duration {
        self.with_endpoint(|endpoint| endpoint.granted.report_delay).unwrap_or_default()
    }

    fn close(&self) {
        pause(Wait::Turn);
        self.world.note("close");
        self.begin_to_close();
        if role().is_none() {
            return self.world.run_wire(self.client);
        }
        let longest = self.session_timeout().max(self.requested) + CLOSE_MARGIN;
        self.wait_for(|endpoint| endpoint.has_ended, self.world.now().after(longest));
    }
}

impl SimulatedConnection {
    fn begin_to_close(&self) {
        let now = self.world.now();
        self.with_endpoint(|endpoint| {
            endpoint.contact = Contact::Closed;
            endpoint.machine.close(now);
            endpoint.settle();
        });
        let sink = self.world.state().clients.get_mut(self.client).and_then(|client| client.sink.take());
        // Without the lock: it may be the last handle of anything.
        drop(sink);
    }
}

impl Drop for SimulatedConnection {
    fn drop(&mut self) {
        self.begin_to_close();
    }
}

impl fmt::Debug for SimulatedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedConnection").field("client", &self.client).finish_non_exhaustive()
    }
}
