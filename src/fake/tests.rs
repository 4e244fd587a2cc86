//! Tests of the simulation itself: the properties that it shares with a real server, and what its methods do.

mod blocking;
mod calls;
mod clock;
mod contact;
mod submitted;
mod tree;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Effect, ReadChecks, SequenceEnd, SimOperation, SimulatedClient, SimulatedZooKeeper};
use crate::client::{Acl, ClientEvent, CreateMode, Granted, Verbs, ZooKeeperClient};
use crate::error::ZkError;
use crate::tests::{deadline, eventually, in_background, next};

const TIMEOUT: Duration = Duration::from_secs(6);

/// The event of a new connection to the leader, which grants this session timeout.
fn contact() -> ClientEvent {
    ClientEvent::Connected(Granted::new(TIMEOUT).with_report_delay(Duration::ZERO))
}

/// The events that a client's sink has received.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<ClientEvent>>>);

impl Events {
    fn of(client: &SimulatedClient) -> Events {
        let events = Events::default();
        let got = events.clone();
        client.subscribe(Arc::new(move |event| got.0.lock().push(event)));
        events
    }

    /// Takes the events received since the last call.
    fn take(&self) -> Vec<ClientEvent> {
        std::mem::take(&mut self.0.lock())
    }
}

fn changed(path: &str) -> ClientEvent {
    ClientEvent::NodeChanged { path: path.to_owned(), is_deleted: false }
}

fn deleted(path: &str) -> ClientEvent {
    ClientEvent::NodeChanged { path: path.to_owned(), is_deleted: true }
}

/// Returns a server with the znode `/a`, a connected client, and the client's events.
fn connected() -> (SimulatedZooKeeper, Arc<SimulatedClient>, Events) {
    crate::tests::begin();
    let zookeeper = SimulatedZooKeeper::new();
    zookeeper.create("/a", b"data");
    let client = zookeeper.connect(TIMEOUT);
    let events = Events::of(&client);
    (zookeeper, client, events)
}

fn create(client: &SimulatedClient, path: &str, mode: CreateMode) -> Result<String, ZkError> {
    client.create(path, b"", &Acl::open_unsafe(), mode)
}

/// Creates an ephemeral znode as the client.
fn ephemeral(client: &SimulatedClient, path: &str) {
    create(client, path, CreateMode::Ephemeral).unwrap();
}
