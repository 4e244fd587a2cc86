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

/// Returns a free loopback port. Another process may take it before the caller does, who then tries
/// another.
///
/// It is below the ephemeral range. A client that reconnects repeatedly while no server listens
/// would be assigned a local port from that range, and occasionally the very port that it connects
/// to. It would then talk to itself, and the server could not restart.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Parallel processes start at different positions.
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

/// Binds this port if it is free. A port that was just closed may not be: a process spawned by
/// another thread has a copy of all our sockets until its program starts.
pub fn listen_on(port: u16) -> Option<TcpListener> {
    TcpListener::bind(loopback(port)).ok()
}

/// Sends a four letter word (`ruok`, `srvr`, `mntr`…) and returns the answer.
///
/// Its time limit is short, for callers that retry: a server that is just starting may accept a
/// connection and neither answer nor close it.
pub fn four_letter(port: u16, word: &str) -> io::Result<String> {
    let wait = scaled(Duration::from_millis(500));
    let mut stream = TcpStream::connect_timeout(&loopback(port), wait)?;
    stream.set_read_timeout(Some(wait))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
