//! [`Loopback`]: the other end of a [`Connection`] that has neither sockets nor a thread.
//!
//! [`Connection::loopback`] makes both. The connection behaves as it does on a network: it has the same
//! [machine](crate::machine), which makes the same choices. The owner of the loopback takes the place of the network and
//! of the I/O thread: it opens the transports that the machine asks for, carries the bytes, and decides when time passes
//! and in which order things happen.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use crossbeam_channel::{Sender, bounded};

use crate::chroot::Chroot;
use crate::exchange::Continuation;
use crate::io::Shared;
use crate::machine::{Config, Machine, session};
use crate::time::Clock;
use crate::{ClientEvent, ConnectString, Connection, ConnectionOptions};

/// How a connection on a [`Loopback`] authenticates. The owner of the loopback makes the tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopbackSasl {
    /// Whether a SASL exchange comes first on each transport.
    pub is_used: bool,
    /// Whether tickets are fetched in advance.
    pub needs_tickets: bool,
}

/// See the [module](self).
pub struct Loopback {
    shared: Arc<Shared>,
    /// Disconnects its receivers when the loopback is dropped.
    _ended: Sender<Infallible>,
}

impl Connection {
    /// Creates a connection without a network, and its other end.
    ///
    /// `clock` is read for each call. `seed` decides what is random in the machine.
    ///
    /// In the options, only what the machine uses counts: neither TLS nor SASL. [`Connection::close`] waits until the
    /// loopback is dropped, at most for as long as on a network.
    #[must_use]
    pub fn loopback(
        servers: &ConnectString,
        options: &ConnectionOptions,
        sasl: LoopbackSasl,
        clock: Arc<dyn Clock>,
        seed: u64,
    ) -> (Connection, Loopback) {
        let chroot = Chroot::new(servers.chroot().unwrap_or_default());
        let session = session::Config::new(options, sasl.is_used, chroot.clone(), seed);
        let mut config = Config::new(options, session, servers.servers());
        config.needs_tickets = sasl.needs_tickets;
        let machine = Machine::new(config, clock.now());
        let (end, ended) = bounded(0);
        let shared = Arc::new(Shared::new(machine, None, clock, ended));
        let connection = Connection::on(Arc::clone(&shared), chroot, options, options.max_buffer());
        (connection, Loopback { shared, _ended: end })
    }
}

impl Loopback {
    /// Gives access to the machine. Callers of the connection wait meanwhile, so `work` must not run any of their code.
    pub fn with<T>(&self, work: impl FnOnce(&mut Machine<Continuation>) -> T) -> T {
        work(&mut self.shared.lock().machine)
    }

    /// Reports an event to the sink of the connection, unless the session has been closed.
    pub fn tell(&self, event: ClientEvent) {
        let sink = self.shared.sink_for(&event);
        if let Some(sink) = sink {
            sink(event);
        }
    }
}

impl fmt::Debug for Loopback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loopback").finish_non_exhaustive()
    }
}
