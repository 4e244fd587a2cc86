//! [`SimulatedConnection`]: the handle of a client, the counterpart of a real
//! [`Connection`](zookeeper_connection::Connection).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::endpoint::{Contact, Endpoint};
use super::faults;
use super::sasl::Tickets;
use super::session::{Ticketed, Wired};
use crate::LockError;
use crate::client::{
    Call, ClientEvent, Done, EventSink, Granted, KEEP_ALIVE_PATH, OTHER_KEEP_ALIVE_PATH, ZooKeeperClient,
};
use crate::error::ZkError;
use crate::tests::simulation::baton::{Wait, pause, role};
use crate::tests::simulation::locks::IDENTITY;
use crate::tests::simulation::world::{World, short};
use zookeeper_connection::codec::DEFAULT_MAX_FRAME;
use zookeeper_connection::exchange::{Continuation, Exchange, exchange};
use zookeeper_connection::machine::{Config, Machine};
use zookeeper_connection::{Chroot, Credential};

/// How much longer than the session timeout closing may take.
const CLOSE_MARGIN: Duration = Duration::from_secs(1);

/// See the [module](self).
pub(in crate::tests::simulation) struct SimulatedConnection {
    pub(super) world: Arc<World>,
    pub(super) client: usize,
    requested: Duration,
}

impl SimulatedConnection {
    /// Starts to connect. On the scheduler's thread, the connection opens immediately.
    pub(in crate::tests::simulation) fn new(world: &Arc<World>, number: usize) -> Arc<SimulatedConnection> {
        let now = world.now();
        if role().is_none() {
            faults::have_a_well_server(world);
        }
        let requested = {
            let mut state = world.state();
            let requested = state.clients[number].session_timeout;
            let authenticates = state.random.one_in(3);
            let tickets = (world.profile.sasl && !state.random.one_in(3)).then_some(Tickets::AtHand);
            let credential = Credential { scheme: IDENTITY.0.to_owned(), auth: IDENTITY.1.into() };
            let config = Config {
                session_timeout: requested,
                credentials: if authenticates { vec![credential] } else { Vec::new() },
                sasl: tickets.is_some(),
                max_frame: DEFAULT_MAX_FRAME,
                jute_max_buffer: world.profile.jute_max_buffer,
                barrier_paths: [KEEP_ALIVE_PATH, OTHER_KEEP_ALIVE_PATH],
                seed: state.random.next(),
            };
            let servers = match role() {
                Some(_) => state.ensemble.all_servers(),
                None => state.ensemble.well_servers(),
            };
            let endpoint = Endpoint::new(
                Machine::new(config, now),
                servers,
                world.profile.balances,
                Granted::new(requested),
                now,
            );
            let mut wired = Wired::new(endpoint, requested, tickets, authenticates, now);
            // The process may be suspended already.
            wired.disturb(state.clients[number].paused_until);
            state.clients[number].wire = Some(wired);
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
    pub(in crate::tests::simulation) fn wait_for_contact(&self) -> Result<(), LockError> {
        let deadline = self.world.now().after(self.requested);
        self.wait_for(|endpoint| endpoint.contact != Contact::Disconnected || endpoint.has_ended, deadline);
        match self.contact() {
            Some(Contact::Connected) => Ok(()),
            _ => Err(LockError::no_server("the simulated servers", self.requested)),
        }
    }

    fn wait_for(&self, holds: impl Fn(&Endpoint) -> bool + Send + 'static, deadline: crate::time::Moment) {
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

    fn contact(&self) -> Option<Contact> {
        self.with_endpoint(|endpoint| endpoint.contact)
    }

    /// Submits calls that leave in one write. Their continuations run in the same order. Once the session has
    /// ended, they run here, with `SessionExpired`.
    fn send<const N: usize>(&self, calls: [(Call, Continuation); N]) {
        let now = self.world.now();
        let mut refused = Vec::new();
        let mut state = self.world.state();
        let wired = state.clients.get_mut(self.client).and_then(|client| client.wire.as_mut());
        let Some(wired) = wired else { return };
        let mut held = faults::Held::Others;
        for (call, continuation) in calls {
            held = held.max(faults::Held::of(&call));
            let what = format!("{call:?} {}", short(call.path().unwrap_or_default()));
            let ticket = wired.begin_call(what, now);
            let continuation = Ticketed { ticket, continuation };
            let Some(endpoint) = &mut wired.endpoint else { continue };
            refused.extend(endpoint.machine.submit(now, call, &Chroot::default(), continuation).err());
            endpoint.settle();
        }
        drop(state);
        faults::perhaps_hold_back(&self.world, self.client, held);
        refused.into_iter().for_each(|refused| refused.answered(Err(ZkError::SessionExpired)));
    }
}

impl ZooKeeperClient for SimulatedConnection {
    fn submit(&self, call: Call, done: Done) {
        match exchange(call, done) {
            Exchange::One(one) => self.send([one]),
            Exchange::Two(two) => self.send(two),
        }
        // Opening a session waits on a real thread for the calls that it submits.
        if role().is_none() && self.is_opening() {
            self.world.run_wire(self.client);
        }
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn remove_watches(&self, path: &str) {
        self.with_endpoint(|endpoint| endpoint.remove_watches(path));
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

    fn jute_max_buffer(&self) -> usize {
        self.world.profile.jute_max_buffer
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
    fn is_opening(&self) -> bool {
        self.world.state().clients[self.client].opening
    }

    fn begin_to_close(&self) {
        let now = self.world.now();
        self.with_endpoint(|endpoint| {
            endpoint.contact = Contact::Closed;
            endpoint.machine.close(now);
            endpoint.settle();
        });
        let sink = self.world.state().clients.get_mut(self.client).and_then(|client| client.sink.take());
        // Dropped outside the lock, because it may be the last handle to anything.
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
