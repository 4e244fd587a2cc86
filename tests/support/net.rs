//! Free ports, and the four letter words that a ZooKeeper server answers.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::wait::{eventually_some, scaled};

const FIRST_PORT: u32 = 10_000;
const PORTS: u32 = 20_000;

/// The loopback address with this port.
pub fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Returns a loopback port that nobody listens on; it may be taken before the caller does, who then tries another.
///
/// It lies below the ephemeral range. A client that reconnects again and again while nobody listens would be given
/// a port of that range as its own, and once in a while the very port that it connects to: it would then talk to
/// itself, and the server could not come back.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes that run side by side begin at different places.
    let start = std::process::id().wrapping_mul(7919);
    (0..PORTS)
        .map(|_| start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)))
        .map(|n| u16::try_from(FIRST_PORT + n % PORTS).expect("the range ends below 65536"))
        .find(|&port| listen_on(port).is_some())
        .expect("some port is free")
}

/// Binds a free port.
pub fn listen() -> TcpListener {
    eventually_some("a free port to listen on", || listen_on(free_port()))
}

/// Binds this port, if it is free. One that was just closed may not be: a process that another thread spawns has
/// a copy of all our sockets until its program begins.
pub fn listen_on(port: u16) -> Option<TcpListener> {
    TcpListener::bind(loopback(port)).ok()
}

/// Sends a four letter word (`ruok`, `srvr`, `mntr`…) and returns the answer.
///
/// Its time limit is short, for callers that ask again: a server that is just starting up may take a question and
/// neither answer nor close the connection.
pub fn four_letter(port: u16, word: &str) -> io::Result<String> {
    let wait = scaled(Duration::from_millis(500));
    let mut stream = TcpStream::connect_timeout(&loopback(port), wait)?;
    stream.set_read_timeout(Some(wait))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
