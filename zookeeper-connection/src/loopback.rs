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
#[derive(Clone)]
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use parking_lot::Mutex;

    use super::*;
    use crate::codec::{
        ConnectAnswer, ConnectRequest, ConnectResponse, Frames, Password, ReplyHeader, Request, XID_PING,
    };
    use crate::machine::{Action, ContactState, LinkId};
    use crate::time::Moment;
    use crate::{Call, Done, Granted, Reply, Verbs, ZkError, ZkResult};

    const TIMEOUT: Duration = Duration::from_secs(20);

    #[derive(Debug, Default)]
    struct TestClock(AtomicU64);

    impl Clock for TestClock {
        fn now(&self) -> Moment {
            Moment::from_nanos(self.0.load(Ordering::Relaxed))
        }
    }

    /// A connection, its clock, and a server that answers every request.
    struct Network {
        connection: Connection,
        loopback: Loopback,
        clock: Arc<TestClock>,
        events: Arc<Mutex<Vec<ClientEvent>>>,
        opened: VecDeque<(LinkId, String)>,
        link: Option<LinkId>,
        frames: Frames,
    }

    impl Network {
        fn new(servers: &str) -> Network {
            let clock = Arc::new(TestClock::default());
            let servers = ConnectString::parse(servers).unwrap();
            let options = ConnectionOptions { tick: Some(TIMEOUT / 10), ..ConnectionOptions::new(TIMEOUT) };
            let (connection, loopback) =
                Connection::loopback(&servers, &options, LoopbackSasl::default(), clock.clone(), 7);
            let events: Arc<Mutex<Vec<ClientEvent>>> = Arc::default();
            let told = Arc::clone(&events);
            connection.subscribe(Arc::new(move |event| told.lock().push(event)));
            let (opened, frames) = (VecDeque::new(), Frames::new(1 << 20));
            let mut network = Network { connection, loopback, clock, events, opened, link: None, frames };
            network.act();
            network
        }

        fn now(&self) -> Moment {
            self.clock.now()
        }

        /// Carries out all actions.
        fn act(&mut self) {
            while let Some(action) = self.loopback.with(|machine| machine.poll_action()) {
                match action {
                    Action::Open { link, host, .. } => self.opened.push_back((link, host)),
                    Action::Tell(event) => self.loopback.tell(event),
                    Action::Reply(continuation, result) => continuation.answered(result),
                    _ => {}
                }
            }
        }

        /// Opens the transport that the machine has asked for last, and serves the session there.
        fn connect(&mut self) -> ConnectRequest {
            let (link, _) = self.opened.pop_back().unwrap();
            self.link = Some(link);
            self.frames = Frames::new(1 << 20);
            let now = self.now();
            self.loopback.with(|machine| machine.handle_opened(now, link));
            let request = ConnectRequest::decode(&self.requests()[0]).unwrap();
            let mut answer = Vec::new();
            let response = ConnectResponse {
                timeout_ms: request.timeout_ms,
                session_id: 7,
                password: Password::new([1; 16]),
                read_only: false,
            };
            ConnectAnswer::Accepted(response).encode(&mut answer);
            self.deliver(&answer);
            request
        }

        fn requests(&mut self) -> Vec<Vec<u8>> {
            let link = self.link.unwrap();
            let bytes = self.loopback.with(|machine| machine.poll_transmit(link).map(std::mem::take));
            self.frames.push(&bytes.unwrap_or_default());
            std::iter::from_fn(|| self.frames.next_frame().unwrap().map(<[u8]>::to_vec)).collect()
        }

        fn deliver(&mut self, bytes: &[u8]) {
            let (link, now) = (self.link.unwrap(), self.now());
            self.loopback.with(|machine| machine.handle_bytes(now, link, bytes));
            self.act();
        }

        /// Answers everything that has been sent. Returns the paths.
        fn answer(&mut self) -> Vec<String> {
            let mut paths = Vec::new();
            for frame in self.requests() {
                let (xid, request) = Request::decode(&frame).unwrap();
                let mut answer = Vec::new();
                match &request {
                    Request::Call(call) => {
                        paths.extend(call.path().map(str::to_owned));
                        ReplyHeader { xid, zxid: 5, error: ZkError::NoNode.code() }.encode(&mut answer);
                    }
                    Request::Control(_) => {
                        let xid = if xid == XID_PING { XID_PING } else { xid };
                        Reply::Done.encode(xid, 5, &mut answer);
                    }
                }
                self.deliver(&answer);
            }
            paths
        }

        fn pass(&mut self, time: Duration) {
            self.clock.0.fetch_add(u64::try_from(time.as_nanos()).unwrap(), Ordering::Relaxed);
            let now = self.now();
            self.loopback.with(|machine| machine.handle_time(now));
            self.act();
        }

        fn submit(&self, path: &str) -> Arc<Mutex<Option<ZkResult<Reply>>>> {
            let outcome = Arc::new(Mutex::new(None));
            let of_done = Arc::clone(&outcome);
            let done = Done::new(move |result| *of_done.lock() = Some(result));
            self.connection.submit(Call::exists(path, false).call, done);
            outcome
        }
    }

    #[test]
    fn connection_has_the_servers_and_chroot_and_calls_of_one_on_a_network() {
        let mut network = Network::new("127.0.0.1:1,127.0.0.1:2/app");
        network.connect();
        let granted = Granted::new(TIMEOUT).with_tick(TIMEOUT / 10);
        assert_eq!(*network.events.lock(), [ClientEvent::Connected(granted)]);
        assert_eq!(network.connection.session_id(), 7);
        let outcome = network.submit("/x");
        assert_eq!(network.answer(), ["/app/x"]);
        assert!(matches!(outcome.lock().take(), Some(Ok(Reply::Found(None)))));
    }

    #[test]
    fn lost_transport_fails_its_calls_and_another_server_resumes_the_session() {
        let mut network = Network::new("127.0.0.1:1,127.0.0.1:2");
        let (_, first) = network.opened[0].clone();
        network.connect();
        network.answer();
        let outcome = network.submit("/x");
        let (link, now) = (network.link.unwrap(), network.now());
        network.loopback.with(|machine| machine.handle_closed(now, link));
        network.act();
        assert!(matches!(outcome.lock().take(), Some(Err(ZkError::ConnectionLoss))));
        assert_eq!(network.events.lock().last(), Some(&ClientEvent::Disconnected));
        while network.opened.is_empty() {
            network.pass(Duration::from_millis(10));
        }
        assert_eq!(network.opened[0].1, first, "both are on one host");
        assert_eq!(network.connect().session_id, 7);
        assert!(matches!(network.events.lock().last(), Some(ClientEvent::Connected(_))));
    }

    #[test]
    fn closed_connection_reports_nothing_and_fails_calls_at_once() {
        let mut network = Network::new("127.0.0.1:1");
        network.connect();
        network.answer();
        network.connection.begin_to_close();
        assert_eq!(network.connection.exists("/x", false), Err(ZkError::SessionExpired));
        network.answer();
        assert_eq!(network.loopback.with(|machine| machine.status().contact), ContactState::Closed);
        assert_eq!(network.loopback.with(|machine| machine.poll_deadline()), None);
        assert!(!network.events.lock().contains(&ClientEvent::SessionLost));
    }
}
