//! Checks the crate's own client, on a real server, and the client of the fake against the contract of clients.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_connection::Connection;
use zookeeper_recipes_lock::client::seam::ZooKeeperClient;
use zookeeper_recipes_lock::fake::{SimulatedClient, SimulatedZooKeeper};

use crate::contract::{Fixture, Subject, assert_passed, checks};
use crate::one_server::OneServer;

#[test]
fn connection_keeps_the_contract() {
    let fixture = OneServer::new(true, |connect_string, session_timeout| {
        (Connection::open(connect_string, session_timeout).unwrap(), ())
    });
    let outcomes: Vec<_> = checks().iter().map(|check| (check.name, check.run(&fixture))).collect();
    assert_passed(&outcomes, &[]);
}

const TIMEOUT: Duration = Duration::from_secs(6);

struct Fake(SimulatedZooKeeper);

impl Fixture for Fake {
    fn connect(&self) -> Box<dyn Subject> {
        Box::new(FakeSession(self.0.connect(TIMEOUT)))
    }

    fn session_timeout(&self) -> Option<Duration> {
        Some(TIMEOUT)
    }

    fn contains_panics(&self) -> bool {
        true
    }
}

struct FakeSession(Arc<SimulatedClient>);

impl Subject for FakeSession {
    fn client(&self) -> Arc<dyn ZooKeeperClient> {
        self.0.clone()
    }

    fn session_id(&self) -> Option<i64> {
        Some(self.0.session_id())
    }

    fn disconnect(&self) -> bool {
        self.0.disconnect();
        true
    }

    fn stall(&self) -> bool {
        self.0.swallow();
        true
    }

    fn reconnect(&self) {
        self.0.release();
        self.0.reconnect();
    }

    fn expire(&self) -> bool {
        self.0.expire();
        self.0.release();
        true
    }
}

#[test]
fn client_of_the_fake_keeps_the_contract() {
    let fixture = Fake(SimulatedZooKeeper::new());
    let outcomes: Vec<_> = checks().iter().map(|check| (check.name, check.run(&fixture))).collect();
    assert_passed(&outcomes, &["paths_begin_below_the_chroot", "watch_on_the_chroot_itself_fires"]);
    assert_eq!(fixture.0.children("/"), [""; 0], "the checks leave no znodes");
}
