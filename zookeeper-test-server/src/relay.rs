//! [`Relay`]: stands for the network between a client and a server, and fails on command.

use std::io;
use std::mem;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use super::lane::{Link, Passes, Road};
use super::net::{listen, listen_on};
use super::wait::{holds_within, some_within};

/// How long a connection to the target may take.
const MAX_CONNECT: Duration = Duration::from_secs(1);

/// How long the listener may take to close or to listen again.
const MAX_CHANGE: Duration = Duration::from_secs(30);

/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A TCP relay on a fixed loopback port that stands for the network between a client and a server.
///
/// Its methods set the rules for open and new connections:
///
/// | method | open connections | new connections |
/// |---|---|---|
/// | [`cut`](Relay::cut) | closed; bytes held back are lost | relayed |
/// | [`refuse`](Relay::refuse) | closed; bytes held back are lost | refused |
/// | [`black_out`](Relay::black_out) | closed; bytes held back are lost | accepted; nothing passes |
/// | [`swallow`](Relay::swallow) | stay open; nothing passes, in either direction | accepted; nothing passes |
/// | [`hold_replies`](Relay::hold_replies) | requests pass, replies do not | the same |
/// | [`restore`](Relay::restore) | bytes held back are delivered; relayed | relayed |
///
/// The last method called sets the rules. They apply to every byte that the relay has not yet forwarded when
/// the method returns. Bytes that are held back are delivered later, like a TCP retransmission.
///
/// `Send` and `Sync`. The relay's threads end when it is dropped.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_test_server::{Relay, TestServer};
///
/// # fn main() -> std::io::Result<()> {
/// let server = TestServer::start()?;
/// let far_away = Relay::with_delay(&server.connect_string(), Duration::from_millis(20))?;
/// far_away.swallow()?;
/// far_away.restore()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Relay {
    network: Arc<Network>,
    acceptor: Mutex<Option<Acceptor>>,
}

impl Relay {
    /// Starts a relay to `target`, such as a server's `connect_string`.
    ///
    /// # Errors
    /// If `target` is not an address, no port is free, or no thread can be started.
    pub fn to(target: impl ToSocketAddrs) -> io::Result<Relay> {
        Relay::new(target, None)
    }

    /// Starts a relay to `target` that delays every byte, in both directions.
    ///
    /// # Errors
    /// The errors of [`to`](Relay::to).
    pub fn with_delay(target: impl ToSocketAddrs, delay: Duration) -> io::Result<Relay> {
        Relay::new(target, Some(delay))
    }

    /// Starts a relay to a server that may begin to listen later. Until then, but for at most `max_wait` each, clients
    /// wait for an answer instead of seeing their connections close.
    #[doc(hidden)]
    pub fn waiting_for(target: impl ToSocketAddrs, max_wait: Duration) -> io::Result<Relay> {
        Relay::start(target, None, max_wait)
    }

    fn new(target: impl ToSocketAddrs, delay: Option<Duration>) -> io::Result<Relay> {
        Relay::start(target, delay, Duration::ZERO)
    }

    fn start(target: impl ToSocketAddrs, delay: Option<Duration>, max_wait: Duration) -> io::Result<Relay> {
        let target = target.to_socket_addrs()?.next();
        let listener = listen()?;
        let address = listener.local_addr()?;
        let road = delay.map(|delay| Road::spawn(address.port(), delay)).transpose()?;
        let network = Arc::new(Network {
            address,
            target: target.ok_or_else(|| io::Error::other("the target has no address"))?,
            state: Mutex::new(State { passes: Passes::ALL, links: Vec::new(), stranded: Vec::new() }),
            trap: Mutex::default(),
            road,
            max_wait,
        });
        let acceptor = Acceptor::spawn(listener, Arc::clone(&network))?;
        Ok(Relay { network, acceptor: Mutex::new(Some(acceptor)) })
    }

    /// Returns the address that clients connect to instead of the target's address.
    #[must_use]
    pub fn connect_string(&self) -> String {
        self.network.address.to_string()
    }

    /// Returns the relay's port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.network.address.port()
    }

    /// Closes all connections. New connections are relayed.
    ///
    /// # Errors
    /// If the relay was [refusing](Relay::refuse) connections and cannot listen on its port again.
    pub fn cut(&self) -> io::Result<()> {
        self.network.close_all(Passes::ALL);
        self.listen()
    }

    /// Closes all connections. New connections are accepted, but nothing passes.
    ///
    /// A client that reconnects without a pause then waits for an answer; with [`refuse`](Relay::refuse) it
    /// would keep a processor busy.
    ///
    /// # Errors
    /// Those of [`cut`](Relay::cut).
    pub fn black_out(&self) -> io::Result<()> {
        self.network.close_all(Passes::NOTHING);
        self.listen()
    }

    /// Closes all connections and refuses new ones.
    ///
    /// # Errors
    /// If connections are still accepted after 30 seconds.
    pub fn refuse(&self) -> io::Result<()> {
        // Close the listener first: a connection that it accepted after the others were closed would survive.
        let acceptor = self.acceptor.lock().take();
        let stopped = acceptor.map_or(Ok(()), |acceptor| acceptor.stop(self.network.address));
        self.network.close_all(Passes::ALL);
        stopped
    }

    /// Blocks both directions without closing any connection, like a silent network.
    ///
    /// # Errors
    /// Those of [`cut`](Relay::cut).
    pub fn swallow(&self) -> io::Result<()> {
        self.network.set(Passes::NOTHING);
        self.listen()
    }

    /// Forwards requests, but holds back the server's replies. A later [`cut`](Relay::cut) loses the replies.
    ///
    /// # Errors
    /// Those of [`cut`](Relay::cut).
    pub fn hold_replies(&self) -> io::Result<()> {
        self.network.set(Passes::REQUESTS);
        self.listen()
    }

    /// [Swallows](Relay::swallow) everything from this request on.
    pub fn swallow_from(&self, request: RelayTrap) {
        self.network.set_trap(request, Passes::NOTHING);
    }

    /// [Holds back replies](Relay::hold_replies) from the reply to this request on.
    pub fn hold_replies_from(&self, request: RelayTrap) {
        self.network.set_trap(request, Passes::REQUESTS);
    }

    /// Delivers the bytes that were held back, and relays everything again.
    ///
    /// # Errors
    /// Those of [`cut`](Relay::cut).
    pub fn restore(&self) -> io::Result<()> {
        self.network.set(Passes::ALL);
        self.listen()
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        let state = self.network.state.lock();
        let open = state.links.iter().filter(|link| !link.is_over());
        open.count() + state.stranded.len()
    }

    /// Returns the number of bytes that are held back, in both directions.
    #[must_use]
    pub fn bytes_held(&self) -> usize {
        self.network.state.lock().links.iter().map(Link::bytes_held).sum()
    }

    fn listen(&self) -> io::Result<()> {
        let mut acceptor = self.acceptor.lock();
        if acceptor.is_none() {
            let listener = some_within(MAX_CHANGE, || listen_on(self.port()));
            let listener = listener.ok_or_else(|| io::Error::from(io::ErrorKind::AddrInUse))?;
            *acceptor = Some(Acceptor::spawn(listener, Arc::clone(&self.network))?);
        }
        Ok(())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.refuse(); // nothing else can be done about an error here
    }
}

/// A request that makes a [`Relay`] start to swallow everything or to hold back replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayTrap {
    operation: i32,
    path: String,
}

impl RelayTrap {
    /// Creates a trap for a request by operation number and path.
    ///
    /// `operation` is the number in ZooKeeper's protocol: `create` is 1, `delete` is 2, `setData` is 5. The
    /// request's path must contain `path`. Any request contains an empty path.
    ///
    /// The relay looks only at the first request of each read. So if a client writes several requests at once, a later
    /// one does not spring the trap.
    pub fn new(operation: i32, path: impl Into<String>) -> RelayTrap {
        RelayTrap { operation, path: path.into() }
    }

    /// Returns whether these bytes are such a request. Assumes that a client sends each request in one write.
    fn is(&self, bytes: &[u8]) -> bool {
        // The operation number follows the length of the packet and the number of the request.
        bytes.get(8..12) == Some(&self.operation.to_be_bytes())
            && (self.path.is_empty()
                || bytes.windows(self.path.len()).any(|part| part == self.path.as_bytes()))
    }
}

/// The thread that accepts connections.
#[derive(Debug)]
struct Acceptor {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Acceptor {
    fn spawn(listener: TcpListener, network: Arc<Network>) -> io::Result<Acceptor> {
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let thread = spawn(network.address.port(), move || {
            loop {
                let accepted = listener.accept();
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                match accepted {
                    Ok((client, _)) => network.join(client),
                    Err(_) => thread::sleep(ACCEPT_PAUSE), // too many open files, for example
                }
            }
        })?;
        Ok(Acceptor { stopping, thread })
    }

    /// Closes the listener and returns once connections are refused.
    fn stop(self, address: SocketAddr) -> io::Result<()> {
        self.stopping.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(address); // wakes the thread
        let _ = self.thread.join();
        // A child process that another thread is spawning may briefly hold a copy of the listener.
        if holds_within(MAX_CHANGE, || TcpStream::connect(address).is_err()) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("{address} still accepts connections")))
    }
}

/// Starts a thread named after the port, so a test can check that the relay's threads have ended.
pub(super) fn spawn(port: u16, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(format!("relay-{port}")).spawn(work)
}

/// The current rule and the connections that it applies to.
#[derive(Debug)]
struct Network {
    address: SocketAddr,
    target: SocketAddr,
    state: Mutex<State>,
    /// A request, and the rule that applies from that request on.
    trap: Mutex<Option<(RelayTrap, Passes)>>,
    /// The road that delays the bytes, if there is a delay.
    road: Option<Road>,
    /// How long a connection waits for the target to listen.
    max_wait: Duration,
}

#[derive(Debug)]
struct State {
    passes: Passes,
    links: Vec<Link>,
    /// Clients that connected while the network was silent and the target was down. They must not notice that the
    /// target is down.
    stranded: Vec<TcpStream>,
}

impl Network {
    fn join(self: &Arc<Self>, client: TcpStream) {
        let server =
            some_within(self.max_wait, || TcpStream::connect_timeout(&self.target, MAX_CONNECT).ok());
        let mut state = self.state.lock();
        state.links.retain(|link| !link.is_over());
        match server {
            Some(server) => {
                let network = Arc::clone(self);
                let look = move |bytes: &[u8]| network.inspect_request(bytes);
                // If its threads cannot be started, the connection is closed.
                let link =
                    Link::new(client, server, state.passes, self.road.as_ref(), self.address.port(), look);
                state.links.extend(link);
            }
            None if state.passes.replies => {} // closes the connection, the nearest thing to a refusal
            None => state.stranded.push(client),
        }
    }

    fn set(&self, passes: Passes) {
        let mut state = self.state.lock();
        state.passes = passes;
        for link in &state.links {
            link.set(passes);
        }
        if passes.replies {
            state.stranded.clear();
        }
    }

    fn set_trap(&self, request: RelayTrap, passes: Passes) {
        *self.trap.lock() = Some((request, passes));
    }

    /// Checks what a client sends before it is forwarded.
    fn inspect_request(&self, bytes: &[u8]) {
        let sprung = self.trap.lock().take_if(|(request, _)| request.is(bytes));
        if let Some((_, passes)) = sprung {
            self.set(passes);
        }
    }

    /// Closes all connections. The rule applies to later connections.
    fn close_all(&self, passes: Passes) {
        let mut state = self.state.lock();
        state.passes = passes;
        state.stranded.clear();
        let links = mem::take(&mut state.links);
        drop(state);
        links.into_iter().for_each(Link::close);
    }
}
