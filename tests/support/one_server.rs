//! A real server for the checks of the [contract](crate::contract) of clients.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::bounded;
use zookeeper_recipes_lock::client::seam::{Call, Done, ZooKeeperClient};

use crate::contract::{Fixture, Subject};
use crate::fixtures::Observer;
use crate::support::relay::Relay;
use crate::support::server::Server;
use crate::support::wait::{eventually, scaled};

/// A server to which every session connects through its own relay.
pub(crate) struct OneServer<C> {
    server: Server,
    session_timeout: Duration,
    connect: C,
    contains_panics: bool,
}

/// A client, and the value that keeps its session open.
type Connected<H> = (Arc<dyn ZooKeeperClient>, H);

impl<H: Send + Sync + 'static, C: Fn(&str, Duration) -> Connected<H>> OneServer<C> {
    /// Creates a fixture. `connect` opens a client, given a connect string and a session timeout.
    pub(crate) fn new(contains_panics: bool, connect: C) -> OneServer<C> {
        let session_timeout = scaled(Duration::from_secs(5));
        OneServer { server: Server::start(), session_timeout, connect, contains_panics }
    }

    fn subject(&self, chroot: &str) -> Networked<H> {
        let relay = Relay::to(self.server.connect_string());
        let connect_string = format!("{}{chroot}", relay.connect_string());
        let (client, handle) = (self.connect)(&connect_string, self.session_timeout);
        let observer = Observer::at(&self.server);
        Networked { client, _handle: handle, relay, observer, marker: None }
    }
}

impl<H: Send + Sync + 'static, C: Fn(&str, Duration) -> Connected<H>> Fixture for OneServer<C> {
    fn connect(&self) -> Box<dyn Subject> {
        let subject = self.subject("");
        Box::new(Networked { marker: Some(subject.mark()), ..subject })
    }

    fn connect_below(&self, chroot: &str) -> Option<Box<dyn Subject>> {
        Some(Box::new(self.subject(chroot)))
    }

    fn session_timeout(&self) -> Option<Duration> {
        Some(self.session_timeout)
    }

    fn deadline(&self) -> Duration {
        scaled(Duration::from_secs(20))
    }

    fn contains_panics(&self) -> bool {
        self.contains_panics
    }
}

struct Networked<H> {
    client: Arc<dyn ZooKeeperClient>,
    _handle: H,
    relay: Relay,
    observer: Observer,
    /// An ephemeral znode that is deleted when the session ends.
    marker: Option<String>,
}

impl<H> Networked<H> {
    fn mark(&self) -> String {
        let path = format!("/marker-{}", uuid::Uuid::new_v4());
        let acl = zookeeper_recipes_lock::client::Acl::open_unsafe().into();
        let mode = zookeeper_recipes_lock::client::CreateMode::Ephemeral;
        let (sender, outcome) = bounded(1);
        let create = Call::Create { path: path.as_str().into(), data: [].into(), acl, mode };
        self.client.submit(create, Done::new(move |result| drop(sender.send(result))));
        outcome.recv_timeout(Duration::from_secs(30)).unwrap().unwrap();
        path
    }
}

impl<H: Send + Sync> Subject for Networked<H> {
    fn client(&self) -> Arc<dyn ZooKeeperClient> {
        self.client.clone()
    }

    fn session_id(&self) -> Option<i64> {
        let stat = self.observer.zk().exists(self.marker.as_ref()?).unwrap();
        stat.map(|stat| stat.ephemeral_owner)
    }

    fn disconnect(&self) -> bool {
        self.relay.refuse();
        true
    }

    fn stall(&self) -> bool {
        self.relay.swallow();
        true
    }

    fn reconnect(&self) {
        self.relay.restore();
    }

    fn expire(&self) -> bool {
        let Some(marker) = &self.marker else { return false };
        self.relay.refuse();
        eventually("the session ends at the server", || !self.observer.exists(marker));
        self.relay.restore();
        true
    }
}
