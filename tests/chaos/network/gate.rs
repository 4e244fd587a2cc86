//! The exit of a client's namespace: a listener at the machine's end of the client's link, which forwards to
//! one relay or to the KDC.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use crate::support::wait::eventually_some;

#[derive(Debug)]
pub struct Gate {
    address: SocketAddr,
    relay: SocketAddr,
    acceptor: Mutex<Option<Acceptor>>,
}

#[derive(Debug)]
struct Acceptor {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Gate {
    /// Opens a gate to this port of this machine, that of a relay or of the KDC. The gate has a free port of this
    /// address.
    pub fn open(address: IpAddr, relay: u16) -> Gate {
        let listener = TcpListener::bind((address, 0)).expect("the address is ours");
        let gate = Gate {
            address: listener.local_addr().expect("the listener is bound"),
            relay: (Ipv4Addr::LOCALHOST, relay).into(),
            acceptor: Mutex::new(None),
        };
        *gate.acceptor.lock() = Some(gate.accept(listener));
        gate
    }

    pub fn connect_string(&self) -> String {
        self.address.to_string()
    }

    /// Refuses new connections. Open connections end with those behind the gate.
    pub fn close(&self) {
        if let Some(acceptor) = self.acceptor.lock().take() {
            acceptor.stopping.store(true, Ordering::SeqCst);
            let _ = TcpStream::connect(self.address); // wakes the thread
            let _ = acceptor.thread.join();
        }
    }

    pub fn listen(&self) {
        let mut acceptor = self.acceptor.lock();
        if acceptor.is_none() {
            let listener =
                eventually_some("the gate's port is free", || TcpListener::bind(self.address).ok());
            *acceptor = Some(self.accept(listener));
        }
    }

    fn accept(&self, listener: TcpListener) -> Acceptor {
        let stopping = Arc::new(AtomicBool::new(false));
        let (stop, relay) = (Arc::clone(&stopping), self.relay);
        let thread = thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                // A connection that the relay refuses is closed, which is the closest possible equivalent of a
                // refusal here.
                if let Ok(server) = TcpStream::connect(relay) {
                    join(client, server);
                }
            }
        });
        Acceptor { stopping, thread }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.close();
    }
}

/// Forwards bytes in both directions until one end closes.
fn join(client: TcpStream, server: TcpStream) {
    // These calls fail if the peer has already closed.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (client, server) = (Arc::new(client), Arc::new(server));
    for (from, to) in [(&client, &server), (&server, &client)] {
        let (from, to) = (Arc::clone(from), Arc::clone(to));
        thread::spawn(move || {
            let _ = io::copy(&mut &*from, &mut &*to);
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
    }
}
