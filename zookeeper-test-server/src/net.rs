//! Free ports, and queries with ZooKeeper's four-letter words.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const FIRST_PORT: u16 = 10_000;
const PORTS: u16 = 20_000;

/// The loopback address with this port.
pub fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Returns a free loopback port. Another process may take the port before the caller does. The caller must
/// then try another port.
///
/// The port is below the ephemeral range. While no server listens, a client that reconnects repeatedly is
/// assigned local ports from that range. If the server's port were among them, the client might connect to
/// itself, and the server could not restart.
pub fn free_port() -> io::Result<u16> {
    listen().and_then(|listener| Ok(listener.local_addr()?.port()))
}

/// Binds a free port.
pub fn listen() -> io::Result<TcpListener> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Concurrent processes start their search at different ports.
    let start = std::process::id().wrapping_mul(7919);
    (0..PORTS)
        .map(|_| start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % u32::from(PORTS))
        .filter_map(|offset| Some(FIRST_PORT + u16::try_from(offset).ok()?))
        .find_map(listen_on)
        .ok_or_else(|| io::Error::other(format!("no port from {FIRST_PORT} on is free")))
}

/// Binds this port if it is free. A port may stay in use for a moment after it is closed: a process that
/// another thread spawns holds copies of all our sockets until its program starts.
pub fn listen_on(port: u16) -> Option<TcpListener> {
    TcpListener::bind(loopback(port)).ok()
}

/// Sends a four-letter word and returns the answer. A server that is still starting may accept the connection
/// but neither answer nor close it.
pub fn four_letter(port: u16, word: &str, limit: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&loopback(port), limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
