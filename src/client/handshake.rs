//! A separate handshake with each server, before the client library starts. It finds out which
//! servers serve, and learns two values that the library does not expose: the session timeout that
//! a server grants, and its minimum session timeout, from which its tick time follows.
//!
//! It implements the two protocol messages that this takes: the connect request and its answer. The
//! sessions that it opens are closed immediately.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};

/// A longer answer is not from a ZooKeeper server.
const MAX_ANSWER: usize = 1024;

/// A server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) address: SocketAddr,
    pub(crate) session_timeout: Duration,
    /// The minimum session timeout of the server.
    pub(crate) shortest_timeout: Duration,
}

/// Asks all servers, each given as `host:port`, in parallel until `deadline`, on one thread each.
/// The answers have the order of the servers, with each server's position in the list.
///
/// Resolving a name may take longer than the deadline. Its thread ends when the name is resolved.
pub(crate) fn probe_all(
    servers: &[String],
    session_timeout: Duration,
    deadline: Instant,
) -> Receiver<(usize, io::Result<Greeting>)> {
    let (sender, answers) = unbounded();
    for (position, server) in servers.iter().enumerate() {
        let (server, of_thread) = (server.clone(), sender.clone());
        let thread = thread::Builder::new().name("zk-lock-probe".to_owned());
        let spawned = thread.spawn(move || {
            let _ = of_thread.send((position, probe(&server, session_timeout, deadline)));
        });
        if let Err(error) = spawned {
            let _ = sender.send((position, Err(error)));
        }
    }
    answers
}

/// Asks one server, given as `host:port`, at each of its addresses, until `deadline`.
///
/// # Errors
/// The error of its last address.
fn probe(server: &str, session_timeout: Duration, deadline: Instant) -> io::Result<Greeting> {
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in server.to_socket_addrs()? {
        let ask = |timeout| greet_address(address, timeout, deadline);
        match ask(session_timeout).and_then(|granted| Ok((granted, ask(Duration::from_millis(1))?))) {
            Ok((session_timeout, shortest_timeout)) => {
                return Ok(Greeting { address, session_timeout, shortest_timeout });
            }
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

fn greet_address(address: SocketAddr, session_timeout: Duration, deadline: Instant) -> io::Result<Duration> {
    let mut stream = TcpStream::connect_timeout(&address, remaining(deadline)?)?;
    stream.set_write_timeout(Some(remaining(deadline)?))?;
    stream.write_all(&connect_request(session_timeout))?;
    let answer = read_frame(&mut stream, deadline)?;
    let granted = granted_timeout(&answer)?;
    // Whether this arrives does not matter: an unused session expires.
    let _ = stream.write_all(&close_request());
    Ok(granted)
}

fn remaining(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn connect_request(session_timeout: Duration) -> Vec<u8> {
    let millis = i32::try_from(session_timeout.as_millis()).unwrap_or(i32::MAX);
    let mut body = Vec::with_capacity(45);
    body.extend(0_i32.to_be_bytes()); // protocol version
    body.extend(0_i64.to_be_bytes()); // last zxid seen
    body.extend(millis.to_be_bytes());
    body.extend(0_i64.to_be_bytes()); // a new session
    body.extend(16_i32.to_be_bytes()); // length of the password
    body.extend([0; 16]);
    body.push(0); // not read-only
    frame(&body)
}

fn close_request() -> Vec<u8> {
    let mut body = Vec::with_capacity(8);
    body.extend(1_i32.to_be_bytes()); // xid
    body.extend((-11_i32).to_be_bytes()); // closeSession
    frame(&body)
}

fn frame(body: &[u8]) -> Vec<u8> {
    let length = i32::try_from(body.len()).unwrap_or(i32::MAX);
    [&length.to_be_bytes(), body].concat()
}

fn read_frame(stream: &mut TcpStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    read_exact(stream, &mut length, deadline)?;
    let length = usize::try_from(i32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > MAX_ANSWER {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "this is not a ZooKeeper server"));
    }
    let mut body = vec![0; length];
    read_exact(stream, &mut body, deadline)?;
    Ok(body)
}

/// Like `Read::read_exact`, but the deadline applies to the whole buffer, not to each read.
fn read_exact(stream: &mut TcpStream, mut buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !buffer.is_empty() {
        stream.set_read_timeout(Some(remaining(deadline)?))?;
        match stream.read(buffer) {
            Ok(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the server closed the connection: it is not serving",
                ));
            }
            Ok(read) => buffer = &mut buffer[read..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn granted_timeout(answer: &[u8]) -> io::Result<Duration> {
    match answer.get(4..8).map(<[u8; 4]>::try_from) {
        Some(Ok(millis)) => match u64::try_from(i32::from_be_bytes(millis)) {
            Ok(millis) if millis > 0 => Ok(Duration::from_millis(millis)),
            _ => Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the server refused a session")),
        },
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "this is not a ZooKeeper server")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    use crate::testing::deadline;

    fn serve(answer: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            // One for the requested timeout, one for the minimum.
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 49];
                stream.read_exact(&mut request).unwrap();
                stream.write_all(&answer).unwrap();
            }
        });
        address
    }

    fn greet_once(answer: Vec<u8>) -> io::Result<Greeting> {
        probe(&serve(answer), Duration::from_secs(10), Instant::now() + deadline())
    }

    #[test]
    fn granted_timeout_is_read_from_the_answer() {
        let body = [&0_i32.to_be_bytes()[..], &4000_i32.to_be_bytes(), &[0; 29]].concat();
        assert_eq!(greet_once(frame(&body)).unwrap().session_timeout, Duration::from_secs(4));
    }

    #[test]
    fn malformed_handshake_is_an_error() {
        let answers = [
            Vec::new(),
            vec![0],
            frame(&[]),
            frame(&[0; 7]),
            frame(&[0; 37]),
            frame(&[0xff; 37]),
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            vec![0xff; 64],
        ];
        for answer in answers {
            assert!(greet_once(answer.clone()).is_err(), "{answer:?}");
        }
    }

    #[test]
    fn silent_server_costs_no_more_than_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let deadline = Instant::now() + Duration::from_millis(100);
        let error = probe(&address, Duration::from_secs(10), deadline).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
