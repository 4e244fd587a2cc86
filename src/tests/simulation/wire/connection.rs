//! [`SimulatedConnection`]: a real [`Connection`], on the network of the simulation.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::endpoint::{Endpoint, connect_string};
use super::faults;
use super::sasl::Tickets;
use super::session::Wired;
use crate::LockError;
use crate::client::{
    Call, Done, EventSink, Granted, Identity, KEEP_ALIVE_PATH, OTHER_KEEP_ALIVE_PATH, ZooKeeperClient,
};
use crate::tests::simulation::baton::{Wait, pause, role};
use crate::tests::simulation::locks::IDENTITY;
use crate::tests::simulation::world::{World, short};
use crate::time::Moment;
use zookeeper_connection::loopback::LoopbackSasl;
use zookeeper_connection::machine::ContactState;
use zookeeper_connection::{Clock, ConnectString, Connection, ConnectionOptions, Credential};

/// How much longer than the session timeout closing may take.
const CLOSE_MARGIN: Duration = Duration::from_secs(1);

/// See the [module](self).
pub(in crate::tests::simulation) struct SimulatedConnection {
    pub(super) world: Arc<World>,
    pub(super) client: usize,
    requested: Duration,
    connection: Connection,
}

/// The clock of the simulation.
#[derive(Debug)]
struct WorldClock(Weak<World>);

impl Clock for WorldClock {
    fn now(&self) -> Moment {
        self.0.upgrade().map_or(Moment::from_nanos(u64::MAX), |world| world.now())
    }
}

impl SimulatedConnection {
    /// Starts to connect. On the scheduler's thread, the connection opens immediately.
    pub(in crate::tests::simulation) fn new(world: &Arc<World>, number: usize) -> Arc<SimulatedConnection> {
        if role().is_none() {
            faults::have_a_well_server(world);
        }
        let (connection, requested) = open(world, number);
        let connection =
            SimulatedConnection { world: Arc::clone(world), client: number, requested, connection };
        if role().is_none() {
            world.run_wire(number);
            let servers = world.state().ensemble.all_servers();
            connection.with_endpoint(|endpoint| endpoint.set_servers(servers, true));
        }
        Arc::new(connection)
    }

    /// Blocks until the session is open, for at most the session timeout.
    pub(in crate::tests::simulation) fn wait_for_contact(&self) -> Result<(), LockError> {
        let deadline = self.world.now().after(self.requested);
        let is_decided =
            |endpoint: &Endpoint| endpoint.contact() != ContactState::Disconnected || endpoint.has_ended;
        self.wait_for(is_decided, deadline);
        match self.with_endpoint(|endpoint| endpoint.contact()) {
            Some(ContactState::Connected) => Ok(()),
            _ => Err(LockError::no_server("the simulated servers", self.requested)),
        }
    }

    fn wait_for(&self, holds: impl Fn(&Endpoint) -> bool + Send + 'static, deadline: Moment) {
        let (world, client) = (Arc::clone(&self.world), self.client);
        let condition =
            move || world.state().clients[client].endpoint().is_none_or(|endpoint| holds(endpoint));
        pause(Wait::Signals(vec![Box::new(condition)], Some(deadline)));
    }

    /// Works with the endpoint while holding the lock. Returns `None` once the run is over, and during a step of the
    /// endpoint.
    fn with_endpoint<T>(&self, work: impl FnOnce(&mut Endpoint) -> T) -> Option<T> {
        self.world.state().clients.get_mut(self.client)?.endpoint().map(work)
    }

    fn settle(&self) {
        let now = self.world.now();
        self.with_endpoint(|endpoint| endpoint.settle(now));
    }
}

/// Creates a client's connection and its end of the network.
fn open(world: &Arc<World>, number: usize) -> (Connection, Duration) {
    let now = world.now();
    let mut state = world.state();
    let requested = state.clients[number].session_timeout;
    let authenticates = state.random.one_in(3);
    let tickets = (world.profile.sasl && !state.random.one_in(3)).then_some(Tickets::AtHand);
    let tick = state.clients[number].link.heard.tick;
    let mut options = ConnectionOptions::new(requested);
    options.barrier_paths = [KEEP_ALIVE_PATH, OTHER_KEEP_ALIVE_PATH];
    options.mentions_first_outage = false;
    // If the tick is not stated, a probe finds it out.
    match state.random.one_in(3) {
        true => options.tick = Some(tick),
        false => options.max_tick = Some(tick),
    }
    if authenticates {
        options.credentials = vec![Credential { scheme: IDENTITY.0.to_owned(), auth: IDENTITY.1.into() }];
    }
    let sasl = LoopbackSasl { is_used: tickets.is_some(), needs_tickets: tickets.is_some() };
    let seed = state.random.next();
    let servers = match role() {
        Some(_) => state.ensemble.all_servers(),
        None => state.ensemble.well_servers(),
    };
    let names = if world.profile.balances { 1 } else { state.ensemble.servers.len() };
    // Proof: the text is made for this purpose.
    let names = ConnectString::parse(&connect_string(names)).expect("a valid connect string");
    let clock = Arc::new(WorldClock(Arc::downgrade(world)));
    let (connection, loopback) = Connection::loopback(&names, &options, sasl, clock, seed);
    let endpoint = Endpoint::new(loopback, servers, world.profile.balances, now);
    let mut wired = Wired::new(endpoint, requested, tickets, authenticates, now);
    // The process may be suspended already.
    wired.disturb(state.clients[number].paused_until);
    state.clients[number].wire = Some(wired);
    (connection, requested)
}

impl ZooKeeperClient for SimulatedConnection {
    fn submit(&self, call: Call, done: Done) {
        let held = faults::Held::of(&call);
        let what = format!("{call:?} {}", short(call.path().unwrap_or_default()));
        let now = self.world.now();
        let ticket = {
            let mut state = self.world.state();
            let wired = state.clients.get_mut(self.client).and_then(|client| client.wire.as_mut());
            let Some(wired) = wired else { return };
            wired.begin_call(what, now)
        };
        let done = Done::new(move |outcome| {
            ticket.answered();
            done.finish(outcome);
        });
        self.connection.submit(call, done);
        self.settle();
        faults::perhaps_hold_back(&self.world, self.client, held);
        // Opening a session waits on a real thread for the calls that it submits.
        if role().is_none() && self.is_opening() {
            self.world.run_wire(self.client);
        }
    }

    fn remove_watches(&self, path: &str) {
        let now = self.world.now();
        self.with_endpoint(|endpoint| {
            endpoint.remove_watches(now, path, || self.connection.remove_watches(path));
        });
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        self.connection.subscribe(sink)
    }

    /// Only the session is told of a limit that leaves room for two requests: the connection would refuse every call.
    fn identity(&self) -> Identity {
        Identity { jute_max_buffer: self.world.profile.jute_max_buffer, ..self.connection.identity() }
    }

    fn granted(&self) -> Granted {
        self.connection.granted()
    }

    fn close(&self) {
        pause(Wait::Turn);
        self.world.note("close");
        self.begin_to_close();
        if role().is_none() {
            return self.world.run_wire(self.client);
        }
        let longest = self.granted().session_timeout.max(self.requested) + CLOSE_MARGIN;
        self.wait_for(|endpoint| endpoint.has_ended, self.world.now().after(longest));
    }
}

impl SimulatedConnection {
    fn is_opening(&self) -> bool {
        self.world.state().clients[self.client].opening
    }

    fn begin_to_close(&self) {
        self.connection.begin_to_close();
        self.settle();
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
