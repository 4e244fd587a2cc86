//! [`Link`]: one connection through a relay, with a [`Lane`] for each direction.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::relay::spawn;

/// The directions in which bytes pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passes {
    pub(super) requests: bool,
    pub(super) replies: bool,
}

impl Passes {
    pub(super) const ALL: Passes = Passes { requests: true, replies: true };
    pub(super) const REQUESTS: Passes = Passes { requests: true, replies: false };
    pub(super) const NOTHING: Passes = Passes { requests: false, replies: false };
}

/// One connection: the halves of the client and of the server, and a thread for each direction.
#[derive(Debug)]
pub(super) struct Link {
    requests: Arc<Lane>,
    replies: Arc<Lane>,
    threads: [JoinHandle<()>; 2],
}

impl Link {
    /// Connects both halves. The bytes of each read from the client are passed to `look` before they are
    /// forwarded.
    pub(super) fn new(
        client: TcpStream,
        server: TcpStream,
        passes: Passes,
        road: Option<&Road>,
        port: u16,
        look: impl Fn(&[u8]) + Send + 'static,
    ) -> io::Result<Link> {
        let (client, server) = (Arc::new(client), Arc::new(server));
        for stream in [&client, &server] {
            // This fails if the peer has already closed the stream, which the lanes will notice.
            let _ = stream.set_nodelay(true);
        }
        let requests = Arc::new(Lane::new(&client, &server, passes.requests));
        let replies = Arc::new(Lane::new(&server, &client, passes.replies));
        let (requesting, there) = (Arc::clone(&requests), road.cloned());
        let (replying, back) = (Arc::clone(&replies), road.cloned());
        let pumps = || {
            let requests = spawn(port, move || requesting.pump(there.as_ref(), look))?;
            let replies = spawn(port, move || replying.pump(back.as_ref(), |_| {}))?;
            io::Result::Ok([requests, replies])
        };
        match pumps() {
            Ok(threads) => Ok(Link { requests, replies, threads }),
            Err(error) => {
                requests.hang_up(); // ends the thread that was started
                Err(error)
            }
        }
    }

    pub(super) fn set(&self, passes: Passes) {
        self.requests.set(passes.requests);
        self.replies.set(passes.replies);
    }

    pub(super) fn is_over(&self) -> bool {
        self.requests.is_over() && self.replies.is_over()
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.requests.bytes_held() + self.replies.bytes_held()
    }

    pub(super) fn close(self) {
        self.requests.hang_up();
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// Something that arrives on a lane.
#[derive(Debug)]
enum Arrival {
    Bytes(Vec<u8>),
    End,
}

/// The delay that all lanes share. One thread suffices, because bytes leave in the order in which they enter.
/// The thread ends when the last sender is dropped.
#[derive(Debug, Clone)]
pub(super) struct Road {
    delay: Duration,
    entrance: Sender<(Instant, Arc<Lane>, Arrival)>,
}

impl Road {
    pub(super) fn spawn(port: u16, delay: Duration) -> io::Result<Road> {
        let (entrance, exit): (_, Receiver<(Instant, Arc<Lane>, Arrival)>) = channel();
        spawn(port, move || {
            for (due, lane, arrival) in exit {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                lane.arrive(&arrival);
            }
        })?;
        Ok(Road { delay, entrance })
    }

    fn send(&self, lane: &Arc<Lane>, arrival: Arrival) {
        // The send cannot fail: the thread runs for as long as the road has a sender.
        let _ = self.entrance.send((Instant::now() + self.delay, Arc::clone(lane), arrival));
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
    fn new(from: &Arc<TcpStream>, to: &Arc<TcpStream>, open: bool) -> Lane {
        let (held, end) = (Vec::new(), End::NotSeen);
        Lane { from: Arc::clone(from), to: Arc::clone(to), gate: Mutex::new(Gate { open, held, end }) }
    }

    /// Forwards bytes, through the road if there is one. The bytes of each read are passed to `look` first.
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
