//! [`SimulatedConnection`]: the handle of a client on the wire, as
//! [`Connection`](crate::connection::Connection) is of a real one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::bounded;

use super::endpoint::{Contact, Continuation, Endpoint};
use super::faults;
use super::session::Wired;
use crate::LockError;
use crate::client::{
    Acl, ClientEvent, CreateMode, Created, Done, Enqueued, EventSink, Granted, PipelinedClient, Stat,
    ZooKeeperClient,
};
use crate::connection::Credential;
use crate::connection::codec::{DEFAULT_MAX_FRAME, Reply, Request};
use crate::connection::machine::{Config, Machine};
use crate::error::{ZkError, ZkResult};
use crate::recipe::names::Names;
use crate::simulation::baton::{Wait, pause, role};
use crate::simulation::world::{World, short};

/// How long closing waits beyond the session timeout.
const CLOSE_MARGIN: Duration = Duration::from_secs(1);

/// See the [module](self).
pub(in crate::simulation) struct SimulatedConnection {
    world: Arc<World>,
    client: usize,
    requested: Duration,
    is_pipelined: bool,
}

impl SimulatedConnection {
    /// Starts to connect. On the scheduler's thread, the connection opens at once.
    pub(in crate::simulation) fn new(
        world: &Arc<World>,
        number: usize,
        is_pipelined: bool,
    ) -> Arc<SimulatedConnection> {
        let now = world.now();
        if role().is_none() {
            faults::have_a_well_server(world);
        }
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
                None => state.ensemble.well_servers(),
            };
            let endpoint = Endpoint::new(Machine::new(config, now), servers, Granted::new(requested), now);
            let mut wired = Wired::new(endpoint, requested, authenticates, now);
            // The process may be suspended already.
            wired.disturb(state.clients[number].paused_until);
            state.clients[number].wire = Some(wired);
            requested
        };
        let connection =
            SimulatedConnection { world: Arc::clone(world), client: number, requested, is_pipelined };
        if role().is_none() {
            world.run_wire(number);
            let servers = world.state().ensemble.all_servers();
            connection.with_endpoint(|endpoint| endpoint.set_servers(servers));
        }
        Arc::new(connection)
    }

    /// Blocks until the session is open, for at most the session timeout.
    pub(in crate::simulation) fn wait_for_contact(&self) -> crate::LockResult<()> {
        let deadline = self.world.now().after(self.requested);
        self.wait_for(|endpoint| endpoint.contact != Contact::Disconnected || endpoint.has_ended, deadline);
        match self.contact() {
            Some(Contact::Connected) => Ok(()),
            _ => {
                Err(LockError::Connect { tried: "the simulated servers".to_owned(), timeout: self.requested })
            }
        }
    }

    fn wait_for(&self, holds: impl Fn(&Endpoint) -> bool + Send + 'static, deadline: crate::time::Moment) {
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

    /// Submits requests, which leave in one write. Their continuations run in the same order; here
    /// with `SessionExpired` once the session has ended.
    fn submit<const N: usize>(&self, requests: [(Request<'_>, Continuation); N]) {
        let now = self.world.now();
        let mut refused = Vec::new();
        let mut state = self.world.state();
        let wired = state.clients.get_mut(self.client).and_then(|client| client.wire.as_mut());
        let Some(wired) = wired else { return };
        for (request, continuation) in requests {
            let what = format!("{:?} {}", request.operation(), short(request.path().unwrap_or_default()));
            let ticket = wired.begin_call(what, now);
            let continuation: Continuation = Box::new(move |outcome| {
                ticket.answered();
                continuation(outcome);
            });
            let Some(endpoint) = &mut wired.endpoint else { continue };
            refused.extend(endpoint.machine.submit(now, &request, continuation).err());
            endpoint.settle();
        }
        drop(state);
        refused.into_iter().for_each(|refused| refused(Err(ZkError::SessionExpired)));
    }

    /// Submits a request, and passes on what is read from its reply.
    fn send<T: 'static>(
        &self,
        request: Request<'_>,
        done: Done<T>,
        read: impl FnOnce(ZkResult<Reply>) -> ZkResult<T> + Send + 'static,
    ) {
        self.submit([(request, Box::new(move |outcome| done.finish(read(outcome))))]);
    }

    /// Makes a call and waits for the outcome.
    fn wait_for_outcome<T: Send + 'static>(&self, call: impl FnOnce(Done<T>)) -> ZkResult<T> {
        pause(Wait::Turn);
        let (sender, outcome) = bounded(1);
        call(Done::new(move |result| drop(sender.send(result))));
        if role().is_none() {
            if !self.world.state().clients[self.client].opening {
                self.world.fail("a call is made on a thread that must not block");
            }
            self.world.run_wire(self.client);
        } else {
            let outcome = outcome.clone();
            pause(Wait::Until(Box::new(move || !outcome.is_empty())));
        }
        outcome.try_recv().unwrap_or(Err(ZkError::SessionExpired))
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

fn names_in(outcome: ZkResult<Reply>) -> ZkResult<Names> {
    match outcome? {
        Reply::Children(names) => Ok(names),
        _ => Err(ZkError::MarshallingError),
    }
}

fn created_in(outcome: ZkResult<Reply>) -> ZkResult<(String, Stat)> {
    match outcome? {
        Reply::Created { path, stat } => Ok((path, stat)),
        _ => Err(ZkError::MarshallingError),
    }
}

impl PipelinedClient for SimulatedConnection {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode, done: Done<Created>) {
        let request = Request::Create { path: path.into(), data: data.into(), acl: acl.into(), mode };
        self.send(request, done, |outcome| created_in(outcome).map(|(path, stat)| (path, Some(stat))));
    }

    fn create_and_list(&self, dir: &str, prefix: &str, data: &[u8], acl: &[Acl], done: Done<Enqueued>) {
        let create = Request::Create {
            path: format!("{dir}/{prefix}").into(),
            data: data.into(),
            acl: acl.into(),
            mode: CreateMode::EphemeralSequential,
        };
        let list = Request::GetChildren { path: dir.into(), watch: false };
        let (created, creation) = bounded(1);
        let on_created = move |outcome| drop(created.send(created_in(outcome)));
        let on_listed = move |outcome| {
            let created = creation.try_recv().unwrap_or(Err(ZkError::ConnectionLoss));
            done.finish(created.map(|(path, stat)| Enqueued::new(path, names_in(outcome)).with_stat(stat)));
        };
        self.submit([(create, Box::new(on_created)), (list, Box::new(on_listed))]);
    }

    fn delete(&self, path: &str, version: Option<i32>, done: Done<()>) {
        let request = Request::Delete { path: path.into(), version: version.unwrap_or(-1) };
        self.send(request, done, |outcome| outcome.map(drop));
    }

    fn exists(&self, path: &str, watch: bool, done: Done<Option<Stat>>) {
        self.send(Request::Exists { path: path.into(), watch }, done, |outcome| match outcome {
            Ok(Reply::Stat(stat)) => Ok(Some(stat)),
            Ok(_) => Err(ZkError::MarshallingError),
            Err(ZkError::NoNode) => Ok(None),
            Err(error) => Err(error),
        });
    }

    fn get_children(&self, path: &str, watch: bool, done: Done<Names>) {
        self.send(Request::GetChildren { path: path.into(), watch }, done, names_in);
    }

    fn get_data(&self, path: &str, watch: bool, done: Done<(Vec<u8>, Stat)>) {
        self.send(Request::GetData { path: path.into(), watch }, done, |outcome| match outcome? {
            Reply::Data { data, stat } => Ok((data, stat)),
            _ => Err(ZkError::MarshallingError),
        });
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>, done: Done<Stat>) {
        let version = version.unwrap_or(-1);
        let request = Request::SetData { path: path.into(), data: data.into(), version };
        self.send(request, done, |outcome| match outcome? {
            Reply::Stat(stat) => Ok(stat),
            _ => Err(ZkError::MarshallingError),
        });
    }
}

impl ZooKeeperClient for SimulatedConnection {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> ZkResult<String> {
        let request = Request::Create { path: path.into(), data: data.into(), acl: acl.into(), mode };
        self.wait_for_outcome(|done| self.send(request, done, created_in)).map(|(path, _)| path)
    }

    fn delete(&self, path: &str, version: Option<i32>) -> ZkResult<()> {
        self.wait_for_outcome(|done| PipelinedClient::delete(self, path, version, done))
    }

    fn exists(&self, path: &str, watch: bool) -> ZkResult<Option<Stat>> {
        self.wait_for_outcome(|done| PipelinedClient::exists(self, path, watch, done))
    }

    fn get_children(&self, path: &str, watch: bool) -> ZkResult<Names> {
        let names = self.wait_for_outcome(|done| PipelinedClient::get_children(self, path, watch, done));
        self.perhaps_take_a_while();
        names
    }

    fn get_data(&self, path: &str, watch: bool) -> ZkResult<(Vec<u8>, Stat)> {
        self.wait_for_outcome(|done| PipelinedClient::get_data(self, path, watch, done))
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> ZkResult<Stat> {
        self.wait_for_outcome(|done| PipelinedClient::set_data(self, path, data, version, done))
    }

    fn create_and_list(&self, dir: &str, prefix: &str, data: &[u8], acl: &[Acl]) -> ZkResult<Enqueued> {
        let call = |done| PipelinedClient::create_and_list(self, dir, prefix, data, acl, done);
        let enqueued = self.wait_for_outcome(call);
        self.perhaps_take_a_while();
        enqueued
    }

    fn remove_watches(&self, path: &str, is_unwanted: &dyn Fn() -> bool) {
        self.with_endpoint(|endpoint| endpoint.remove_watches(path, is_unwanted));
    }

    fn pipelined(&self) -> Option<&dyn PipelinedClient> {
        self.is_pipelined.then_some(self)
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
