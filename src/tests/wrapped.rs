//! [`Wrapped`]: a client that behaves like a simulated one, except for what a test changes.

use std::sync::Arc;

use crate::Session;
use crate::client::{Call, Done, EventSink, Granted, Identity, ZooKeeperClient};
use crate::error::Result;
use crate::fake::SimulatedClient;
use crate::session::{FirstContact, Threads};
use crate::time::Runtime;

/// The methods of a [`ZooKeeperClient`], which by default are those of a simulated client.
pub(crate) trait Wrapped: Send + Sync {
    fn simulated(&self) -> &Arc<SimulatedClient>;

    fn submit(&self, call: Call, done: Done) {
        ZooKeeperClient::submit(&**self.simulated(), call, done);
    }

    fn remove_watches(&self, path: &str) {
        ZooKeeperClient::remove_watches(&**self.simulated(), path);
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        ZooKeeperClient::subscribe(&**self.simulated(), sink)
    }

    fn identity(&self) -> Identity {
        ZooKeeperClient::identity(&**self.simulated())
    }

    fn close(&self) {
        ZooKeeperClient::close(&**self.simulated());
    }
}

impl<T: Wrapped> ZooKeeperClient for T {
    fn submit(&self, call: Call, done: Done) {
        Wrapped::submit(self, call, done);
    }

    fn remove_watches(&self, path: &str) {
        Wrapped::remove_watches(self, path);
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        Wrapped::subscribe(self, sink)
    }

    fn identity(&self) -> Identity {
        Wrapped::identity(self)
    }

    fn granted(&self) -> Granted {
        ZooKeeperClient::granted(&**self.simulated())
    }

    fn close(&self) {
        Wrapped::close(self);
    }
}

/// Opens a session in real time on a client that wraps a simulated one.
pub(crate) fn open_wrapped(client: Arc<impl Wrapped + 'static>) -> Result<Session> {
    let runtime: Arc<dyn Runtime> = Threads::start()?;
    client.simulated().run_on(&runtime);
    open_on(runtime, client)
}

/// Opens a session in real time on a client that needs no runtime.
pub(crate) fn open_client(client: Arc<dyn ZooKeeperClient>) -> Result<Session> {
    open_on(Threads::start()?, client)
}

fn open_on(runtime: Arc<dyn Runtime>, client: Arc<dyn ZooKeeperClient>) -> Result<Session> {
    let contact = FirstContact::by(runtime.now(), client.granted().session_timeout, "the simulation");
    Session::open(Ok(client), runtime, None, contact)
}
