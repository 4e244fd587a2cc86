//! The network between a client, the servers and the KDC. There is a relay for each server and, where the
//! machine permits it, a network namespace for each client. Packets between a namespace and the machine can be
//! dropped.

mod gate;
mod namespaces;
mod tickets;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use self::gate::Gate;
pub use self::namespaces::{Direction, Namespaces};
use self::tickets::Tickets;
use crate::plan::{WITHOUT_TLS, has_tickets, uses_tls};
use crate::support::ensemble::Ensemble;
use crate::support::relay::Relay;
use crate::support::test_server::TestKdc;

/// A client's paths to the servers, and to the KDC if it needs tickets.
#[derive(Debug)]
pub struct Link {
    client: usize,
    ways: Vec<Way>,
    tickets: Option<Tickets>,
    namespaces: Option<Arc<Namespaces>>,
}

/// The path to one server: a relay and, if the client has a namespace, a gate at the border of that.
#[derive(Debug)]
struct Way {
    gate: Option<Gate>,
    relay: Relay,
}

impl Link {
    pub fn new(
        client: usize,
        ensemble: &Ensemble,
        kdc: &TestKdc,
        namespaces: Option<Arc<Namespaces>>,
        scratch: &Path,
    ) -> Link {
        let outside: Option<IpAddr> = namespaces.as_ref().map(|all| all.outside_of(client));
        let servers = (0..ensemble.size()).filter(|server| *server != WITHOUT_TLS || !uses_tls(client));
        let ways = servers.map(|server| {
            let relay = match uses_tls(client) {
                true => Relay::to((Ipv4Addr::LOCALHOST, ensemble.node(server).tls_port())),
                false => Relay::to(ensemble.connect_string_of(server)),
            };
            Way { gate: outside.map(|address| Gate::open(address, relay.port())), relay }
        });
        let ways = ways.collect();
        let tickets = has_tickets(client).then(|| Tickets::new(client, kdc, outside, scratch));
        Link { client, ways, tickets, namespaces }
    }

    /// Returns the client's connect string.
    pub fn connect_string(&self) -> String {
        let address =
            |way: &Way| way.gate.as_ref().map_or_else(|| way.relay.connect_string(), Gate::connect_string);
        self.ways.iter().map(address).collect::<Vec<_>>().join(",")
    }

    /// Returns the command that runs a program in the client's namespace, with everything that it needs to get
    /// tickets.
    pub fn command(&self) -> Vec<String> {
        let mut command = Vec::new();
        if let Some(namespaces) = &self.namespaces {
            command.extend(["ip", "netns", "exec", namespaces.name_of(self.client)].map(str::to_owned));
        }
        command.extend(self.tickets.iter().flat_map(Tickets::command));
        command
    }

    /// Drops packets. Without a namespace, the relays hold bytes back instead: all of them, or only replies.
    pub fn drop_packets(&self, direction: Direction) {
        match (&self.namespaces, direction) {
            (Some(namespaces), _) => namespaces.drop_packets(self.client, direction),
            (None, Direction::Replies) => self.hold_replies(),
            (None, _) => self.silence(None),
        }
    }

    /// Blocks all bytes, to one server or to all. The number of the server may exceed those on this link.
    pub fn silence(&self, server: Option<usize>) {
        let concerned = |index| server.is_none_or(|server| server % self.ways.len() == index);
        let ways = self.ways.iter().enumerate().filter(|(index, _)| concerned(*index));
        ways.for_each(|(_, way)| way.relay.swallow());
    }

    pub fn hold_replies(&self) {
        self.ways.iter().for_each(|way| way.relay.hold_replies());
    }

    pub fn cut(&self) {
        self.ways.iter().for_each(|way| way.relay.cut());
    }

    pub fn refuse(&self) {
        for way in &self.ways {
            way.gate.iter().for_each(Gate::close);
            way.relay.refuse();
        }
    }

    pub fn restore(&self) {
        if let Some(namespaces) = &self.namespaces {
            namespaces.restore(self.client);
        }
        for way in &self.ways {
            way.relay.restore();
            way.gate.iter().for_each(Gate::listen);
        }
    }
}
