//! A TCP relay that stands for the network between a client and a server, and fails on command.
//!
//! | verb | open connections | new connections |
//! |---|---|---|
//! | `cut` | closed; bytes held back are lost | relayed |
//! | `refuse` | closed; bytes held back are lost | refused |
//! | `black_out` | closed; bytes held back are lost | accepted; nothing passes |
//! | `swallow` | stay open; nothing passes, in either direction | accepted; nothing passes |
//! | `hold_replies` | requests pass, replies do not | the same |
//! | `…_from(request)` | the same, from this request of a client on | the same |
//! | `restore` | bytes held back are delivered; relayed | relayed |
//!
//! A relay may also add a delay to every byte (`Relay::with_delay`), as a long way would.
//!
//! The last verb applies. When it returns it applies to every byte: a byte that the relay has not
//! yet forwarded is treated by the new rule. Bytes held back are delivered later, like a TCP
//! retransmission.

use std::io::{ErrorKind, Read, Write};
use std::mem;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::net::{listen, listen_on};
use super::wait::{eventually, eventually_some, scaled};

/// A relay on a fixed loopback port. Its threads end when it is dropped.
#[derive(Debug)]
pub struct Relay {
    network: Arc<Network>,
    acceptor: Mutex<Option<Acceptor>>,
}

impl Relay {
    /// Relays to `target`.
    pub fn to(target: impl ToSocketAddrs) -> Self {
        Self::new(target, None)
    }

    /// Relays to `target`, and forwards every byte this much later, in both directions.
    pub fn with_delay(target: impl ToSocketAddrs, delay: Duration) -> Self {
        Self::new(target, Some(delay))
    }

    fn new(target: impl ToSocketAddrs, delay: Option<Duration>) -> Self {
        let target = target.to_socket_addrs().ok().and_then(|mut all| all.next());
        let listener = listen();
        let address = listener.local_addr().expect("it is bound");
        let network = Arc::new(Network {
            address,
            target: target.expect("an address to relay to"),
            state: Mutex::new(State { passes: Passes::ALL, links: Vec::new(), stranded: Vec::new() }),
            trap: Mutex::default(),
            road: delay.map(|delay| Road::spawn(address.port(), delay)),
        });
        let acceptor = Acceptor::spawn(listener, Arc::clone(&network));
        Self { network, acceptor: Mutex::new(Some(acceptor)) }
    }

    /// The address to connect to instead of the target's.
    pub fn connect_string(&self) -> String {
        self.network.address.to_string()
    }

    /// The relay's port.
    pub fn port(&self) -> u16 {
        self.network.address.port()
    }

    /// Closes the connections; new ones are relayed.
    pub fn cut(&self) {
        self.network.close_all(Passes::ALL);
        self.listen();
    }

    /// Closes the connections; new ones are accepted, and nothing passes. A client that reconnects
    /// without a pause then waits for an answer. With `refuse` it would use up a processor.
    pub fn black_out(&self) {
        self.network.close_all(Passes::NOTHING);
        self.listen();
    }

    /// Closes the connections and refuses new ones.
    pub fn refuse(&self) {
        // First the listener: a connection that it still accepted would outlive the closing.
        if let Some(acceptor) = self.acceptor.lock().take() {
            acceptor.stop(self.network.address);
        }
        self.network.close_all(Passes::ALL);
    }

    /// Blocks both directions and closes nothing: a silent network.
    pub fn swallow(&self) {
        self.network.set(Passes::NOTHING);
        self.listen();
    }

    /// Forwards requests and holds back the server's replies. A `cut` afterwards loses the replies.
    pub fn hold_replies(&self) {
        self.network.set(Passes { requests: true, replies: false });
        self.listen();
    }

    /// [Swallows](Relay::swallow) from this request on.
    pub fn swallow_from(&self, request: Request) {
        self.network.set_trap(request, Passes { requests: false, replies: false });
    }

    /// [Holds replies](Relay::hold_replies) back from the reply to this request on.
    pub fn hold_replies_from(&self, request: Request) {
        self.network.set_trap(request, Passes { requests: true, replies: false });
    }

    /// Delivers the bytes held back, and relays as at the start.
    pub fn restore(&self) {
        self.network.set(Passes::ALL);
        self.listen();
    }

    /// The number of open connections.
    pub fn connections(&self) -> usize {
        let state = self.network.state.lock();
        let open = state.links.iter().filter(|link| !link.is_over());
        open.count() + state.stranded.len()
    }

    /// The number of bytes held back, in both directions.
    pub fn bytes_held(&self) -> usize {
        let state = self.network.state.lock();
        let lanes = state.links.iter().flat_map(|link| [&link.requests, &link.replies]);
        lanes.map(|lane| lane.bytes_held()).sum()
    }

    fn listen(&self) {
        let mut acceptor = self.acceptor.lock();
        if acceptor.is_none() {
            let listener = eventually_some("the relay's port is free", || listen_on(self.port()));
            *acceptor = Some(Acceptor::spawn(listener, Arc::clone(&self.network)));
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.refuse();
    }
}

fn spawn(port: u16, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    // Named after the port, so that a test can check that the threads of its relay have ended.
    let thread = thread::Builder::new().name(format!("relay-{port}"));
    thread.spawn(work).expect("a thread for the relay")
}

/// The thread that accepts new connections.
#[derive(Debug)]
struct Acceptor {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Acceptor {
    fn spawn(listener: TcpListener, network: Arc<Network>) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let thread = spawn(network.address.port(), move || {
            loop {
                let (client, _) = listener.accept().expect("the relay takes connections");
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                network.join(client);
            }
        });
        Self { stopping, thread }
    }

    /// Closes the listener and returns once connections are refused.
    fn stop(self, address: SocketAddr) {
        self.stopping.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(address); // wakes the thread
        let _ = self.thread.join();
        // A process that another thread is just spawning may briefly keep a copy of the listener.
        eventually("the relay refuses", || TcpStream::connect(address).is_err());
    }
}

/// A client's request: the protocol's number of its operation, and a part of its path.
#[derive(Debug, Clone)]
pub struct Request {
    pub operation: i32,
    pub path: String,
}

impl Request {
    /// Whether these bytes are this request. A client sends each request in one write.
    fn is(&self, bytes: &[u8]) -> bool {
        // After the length of the packet and the request's own number.
        bytes.get(8..12) == Some(&self.operation.to_be_bytes())
            && bytes.windows(self.path.len()).any(|part| part == self.path.as_bytes())
    }
}

/// Which directions are open.
#[derive(Debug, Clone, Copy)]
struct Passes {
    requests: bool,
    replies: bool,
}

impl Passes {
    const ALL: Self = Self { requests: true, replies: true };
    const NOTHING: Self = Self { requests: false, replies: false };
}

/// The current rule and the connections under it.
#[derive(Debug)]
struct Network {
    address: SocketAddr,
    target: SocketAddr,
    state: Mutex<State>,
    /// The rule that applies from a request on.
    trap: Mutex<Option<(Request, Passes)>>,
    /// Where bytes spend the delay, if they have one.
    road: Option<Road>,
}

#[derive(Debug)]
struct State {
    passes: Passes,
    links: Vec<Link>,
    /// Clients that connected while the network was silent and the target down: they must not
    /// notice.
    stranded: Vec<TcpStream>,
}

impl Network {
    fn join(self: &Arc<Self>, client: TcpStream) {
        let server = TcpStream::connect_timeout(&self.target, scaled(Duration::from_secs(1)));
        let mut state = self.state.lock();
        state.links.retain(|link| !link.is_over());
        match server {
            Ok(server) => {
                let link = Link::new(client, server, state.passes, self);
                state.links.push(link);
            }
            Err(_) if state.passes.replies => {} // closed, as close to a refusal as a relay can get
            Err(_) => state.stranded.push(client),
        }
    }

    fn set(&self, passes: Passes) {
        let mut state = self.state.lock();
        state.passes = passes;
        for link in &state.links {
            link.requests.set(passes.requests);
            link.replies.set(passes.replies);
        }
        if passes.replies {
            state.stranded.clear();
        }
    }

    fn set_trap(&self, request: Request, passes: Passes) {
        *self.trap.lock() = Some((request, passes));
    }

    /// Inspects what a client sends, before it is forwarded.
    fn requested(&self, bytes: &[u8]) {
        let sprung = self.trap.lock().take_if(|(request, _)| request.is(bytes));
        if let Some((_, passes)) = sprung {
            self.set(passes);
        }
    }

    /// Closes the connections. This rule applies to later ones.
    fn close_all(&self, passes: Passes) {
        let mut state = self.state.lock();
        state.passes = passes;
        state.stranded.clear();
        let links = mem::take(&mut state.links);
        drop(state);
        links.into_iter().for_each(Link::close);
    }
}

/// One connection: the client's and the server's half, and a thread for each direction.
#[derive(Debug)]
struct Link {
    requests: Arc<Lane>,
    replies: Arc<Lane>,
    threads: [JoinHandle<()>; 2],
}

impl Link {
    fn new(client: TcpStream, server: TcpStream, passes: Passes, network: &Arc<Network>) -> Self {
        let (client, server) = (Arc::new(client), Arc::new(server));
        for stream in [&client, &server] {
            // Fails if the peer has already closed, which the lanes will notice.
            let _ = stream.set_nodelay(true);
        }
        let requests = Arc::new(Lane::new(&client, &server, passes.requests));
        let replies = Arc::new(Lane::new(&server, &client, passes.replies));
        let port = network.address.port();
        let (requesting, roads) = (Arc::clone(&requests), [network.road.clone(), network.road.clone()]);
        let (replying, network) = (Arc::clone(&replies), Arc::clone(network));
        let [there, back] = roads;
        let threads = [
            spawn(port, move || requesting.pump(there.as_ref(), |bytes| network.requested(bytes))),
            spawn(port, move || replying.pump(back.as_ref(), |_| {})),
        ];
        Self { requests, replies, threads }
    }

    fn is_over(&self) -> bool {
        self.requests.is_over() && self.replies.is_over()
    }

    fn close(self) {
        self.requests.hang_up();
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// What a lane forwards.
#[derive(Debug)]
enum Arrival {
    Bytes(Vec<u8>),
    End,
}

/// The delay of all lanes: one thread, as what enters first leaves first. It ends with the last
/// sender.
#[derive(Debug, Clone)]
struct Road {
    delay: Duration,
    entrance: Sender<(Instant, Arc<Lane>, Arrival)>,
}

impl Road {
    fn spawn(port: u16, delay: Duration) -> Self {
        let (entrance, exit): (_, Receiver<(Instant, Arc<Lane>, Arrival)>) = channel();
        spawn(port, move || {
            for (due, lane, arrival) in exit {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                lane.arrive(&arrival);
            }
        });
        Self { delay, entrance }
    }

    fn send(&self, lane: &Arc<Lane>, arrival: Arrival) {
        let sent = self.entrance.send((Instant::now() + self.delay, Arc::clone(lane), arrival));
        sent.expect("the road is open while it has a sender");
    }
}

/// One direction of a connection.
#[derive(Debug)]
struct Lane {
    from: Arc<TcpStream>,
    to: Arc<TcpStream>,
    // Locked while bytes are forwarded, so that closing the gate waits for them.
    gate: Mutex<Gate>,
}

#[derive(Debug)]
struct Gate {
    open: bool,
    held: Vec<u8>,
    end: End,
}

/// The state of the end of the stream.
#[derive(Debug, PartialEq)]
enum End {
    NotSeen,
    Held,
    PassedOn,
}

impl Lane {
    fn new(from: &Arc<TcpStream>, to: &Arc<TcpStream>, open: bool) -> Self {
        let (held, end) = (Vec::new(), End::NotSeen);
        Self { from: Arc::clone(from), to: Arc::clone(to), gate: Mutex::new(Gate { open, held, end }) }
    }

    /// Forwards bytes, by the road if there is one, and shows each read to `look` first.
    fn pump(self: &Arc<Self>, road: Option<&Road>, look: impl Fn(&[u8])) {
        let forward = |arrival: Arrival| match road {
            Some(road) => road.send(self, arrival),
            None => self.arrive(&arrival),
        };
        let mut buffer = [0; 16 * 1024];
        loop {
            match (&*self.from).read(&mut buffer) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
                Ok(n) => {
                    look(&buffer[..n]);
                    forward(Arrival::Bytes(buffer[..n].to_vec()));
                }
            }
        }
        forward(Arrival::End);
    }

    /// Forwards what has arrived, or holds it back.
    fn arrive(&self, arrival: &Arrival) {
        let mut gate = self.gate.lock();
        match arrival {
            Arrival::Bytes(bytes) => gate.held.extend_from_slice(bytes),
            Arrival::End => gate.end = End::Held,
        }
        self.pass_on(&mut gate);
    }

    fn set(&self, open: bool) {
        let mut gate = self.gate.lock();
        gate.open = open;
        self.pass_on(&mut gate);
    }

    fn pass_on(&self, gate: &mut Gate) {
        if !gate.open {
            return;
        }
        if (&*self.to).write_all(&gate.held).is_err() {
            self.hang_up(); // the receiver has closed; this notifies the sender
        }
        gate.held.clear();
        if gate.end == End::Held {
            let _ = self.to.shutdown(Shutdown::Write);
            gate.end = End::PassedOn;
        }
    }

    fn is_over(&self) -> bool {
        self.gate.lock().end == End::PassedOn
    }

    fn bytes_held(&self) -> usize {
        self.gate.lock().held.len()
    }

    fn hang_up(&self) {
        // Fails if the stream is already closed.
        let _ = self.from.shutdown(Shutdown::Both);
        let _ = self.to.shutdown(Shutdown::Both);
    }
}
