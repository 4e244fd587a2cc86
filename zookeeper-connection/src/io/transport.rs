//! [`Transport`]: a non-blocking stream of bytes to a server, plain or encrypted.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

#[cfg(feature = "tls")]
use crate::tls::{TlsStream, TlsTarget};

/// A stream to a server. Each change in the stream's readiness is reported only once, so the stream must be read until
/// it would block, or until a read comes back [short](Transport::ends_with_a_short_read).
pub(super) struct Transport {
    socket: TcpStream,
    stage: Stage,
    #[cfg(feature = "tls")]
    tls: Option<TlsStream>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    /// The TLS handshake is in progress.
    #[cfg(feature = "tls")]
    Handshake,
    Open,
}

/// The encryption of a transport, if any.
#[cfg(feature = "tls")]
pub(super) type Security = Option<TlsTarget>;
#[cfg(not(feature = "tls"))]
#[derive(Default)]
pub(super) struct Security;

impl Transport {
    /// Begins to connect. Call [`Transport::progress`] until the transport is open.
    pub(super) fn connect(
        address: SocketAddr,
        #[cfg_attr(not(feature = "tls"), allow(unused_variables))] security: Security,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Transport> {
        #[cfg(feature = "tls")]
        let tls = security.map(TlsStream::new).transpose()?;
        let mut socket = TcpStream::connect(address)?;
        registry.register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Transport {
            socket,
            stage: Stage::Connecting,
            #[cfg(feature = "tls")]
            tls,
        })
    }

    pub(super) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Returns whether a read that returns less than it could has emptied the stream, unless its end was reported.
    ///
    /// epoll and kqueue report what arrives later. On Windows, mio does so only after a read that would block. A
    /// decrypted record says nothing about the socket.
    pub(super) fn ends_with_a_short_read(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            return false;
        }
        cfg!(all(
            any(target_os = "linux", target_os = "android", target_vendor = "apple", target_os = "freebsd"),
            not(mio_unsupported_force_poll_poll)
        ))
    }

    /// Continues to connect, and returns whether the transport is open.
    pub(super) fn progress(&mut self) -> io::Result<bool> {
        if self.stage == Stage::Connecting {
            if !is_connected(&self.socket)? {
                return Ok(false);
            }
            self.socket.set_nodelay(true)?;
            self.stage = Stage::Open;
            #[cfg(feature = "tls")]
            if self.tls.is_some() {
                self.stage = Stage::Handshake;
            }
        }
        #[cfg(feature = "tls")]
        if let (Stage::Handshake, Some(tls)) = (self.stage, &mut self.tls) {
            if tls.handshake(&mut self.socket)? {
                self.stage = Stage::Open;
            }
        }
        Ok(self.is_open())
    }

    /// Reads what has arrived. Returns zero at the end of the stream.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        retry(|| {
            #[cfg(feature = "tls")]
            if let Some(tls) = &mut self.tls {
                return tls.read(&mut self.socket, buffer);
            }
            self.socket.read(buffer)
        })
    }

    /// Writes as many bytes as the stream takes now, and removes them from `bytes`. The stream becomes ready again when
    /// it can take more.
    pub(super) fn write(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let mut written = 0;
        let result = loop {
            let rest = &bytes[written..];
            let result = retry(|| {
                #[cfg(feature = "tls")]
                if let Some(tls) = &mut self.tls {
                    return tls.write(&mut self.socket, rest);
                }
                if rest.is_empty() { Ok(0) } else { self.socket.write(rest) }
            });
            match result {
                Ok(0) => break Ok(()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        bytes.drain(..written);
        result
    }

    /// Closes the stream. Bytes that were already written are still sent.
    pub(super) fn close(mut self, registry: &Registry) {
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            tls.close(&mut self.socket);
        }
        let _ = registry.deregister(&mut self.socket);
        // Dropping the socket would not close the connection if a forked child has a copy of it.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Returns whether a stream has ended because one side has refused the certificate of the other, or the server wants one.
pub(super) fn refuses_certificate(error: &io::Error) -> bool {
    #[cfg(feature = "tls")]
    return crate::tls::refuses_certificate(error);
    #[cfg(not(feature = "tls"))]
    {
        let _ = error;
        false
    }
}

/// Returns whether a socket that is connecting has connected.
fn is_connected(socket: &TcpStream) -> io::Result<bool> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    match socket.peer_addr() {
        // If nobody listens on a port of this machine, the system may choose that port as the socket's own. The socket
        // is then connected to itself, and would keep the server from starting.
        Ok(peer) if socket.local_addr().is_ok_and(|local| local == peer) => {
            Err(io::ErrorKind::ConnectionRefused.into())
        }
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        #[cfg(unix)]
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes a system call, and repeats it if a signal interrupts it.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
