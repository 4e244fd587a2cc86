//! [`TlsStream`]: the TLS layer of a transport.

use std::io::{self, Read, Write};
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::client::{ClientConfig, ClientConnection};
use rustls::pki_types::ServerName;

use super::failure::Failure;

/// How to encrypt a stream, and the name of the server at its end.
pub(crate) struct TlsTarget {
    pub(crate) client: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
}

/// Encrypts the bytes written to a socket, and decrypts the bytes read from it.
pub(crate) struct TlsStream {
    connection: ClientConnection,
    name: ServerName<'static>,
    /// Whether the client has a certificate.
    has_certificate: bool,
}

impl TlsStream {
    pub(crate) fn new(target: TlsTarget) -> io::Result<TlsStream> {
        let TlsTarget { client, name } = target;
        let has_certificate = client.client_auth_cert_resolver.has_certs();
        let connection = ClientConnection::new(client, name.clone())
            .map_err(|error| Failure::new(error, &name, has_certificate))?;
        Ok(TlsStream { connection, name, has_certificate })
    }

    /// Continues the handshake, and returns whether it is complete.
    pub(crate) fn handshake(&mut self, socket: &mut TcpStream) -> io::Result<bool> {
        loop {
            if let Err(error) = would_block_to(self.flush(socket), ()) {
                return Err(self.read_failure(socket).unwrap_or(error));
            }
            if !self.connection.is_handshaking() {
                return Ok(true);
            }
            match self.receive(socket) {
                Ok(true) => {}
                Ok(false) => {
                    let closed = "the server closed the connection during the TLS handshake: check that the port \
                                  uses TLS";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, closed));
                }
                Err(error) => return would_block_to(Err(error), false),
            }
        }
    }

    /// Reads what the server sent last, after a write has failed. Returns why TLS failed, if these bytes show it: they may
    /// have an alert, which says why the server has closed the connection. If the client's certificate is refused, the
    /// server may close the connection before the client has sent all of its handshake.
    fn read_failure(&mut self, socket: &mut TcpStream) -> Option<io::Error> {
        loop {
            match self.receive(socket) {
                Ok(true) => {}
                Err(error) if error.get_ref().is_some_and(|error| error.is::<Failure>()) => {
                    return Some(error);
                }
                Ok(false) | Err(_) => return None,
            }
        }
    }

    /// Reads decrypted bytes. Returns zero at the end of the stream, even if the server closes it without an alert.
    pub(crate) fn read(&mut self, socket: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                result => return result,
            }
            if !self.receive(socket)? {
                return Ok(0);
            }
        }
    }

    /// Encrypts and writes bytes. Returns how many bytes were taken.
    pub(crate) fn write(&mut self, socket: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
        self.flush(socket)?;
        let taken = self.connection.writer().write(bytes)?;
        would_block_to(self.flush(socket), ())?;
        Ok(taken)
    }

    /// Announces the end of the stream, if the socket takes the alert now.
    pub(crate) fn close(&mut self, socket: &mut TcpStream) {
        self.connection.send_close_notify();
        let _ = self.flush(socket);
    }

    /// Writes all encrypted bytes.
    fn flush(&mut self, socket: &mut TcpStream) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut WithoutSignal(socket))?;
        }
        Ok(())
    }

    /// Reads once from the socket and decrypts. Returns `false` at the end of the stream.
    fn receive(&mut self, socket: &mut TcpStream) -> io::Result<bool> {
        if self.connection.read_tls(socket)? == 0 {
            return Ok(false);
        }
        if let Err(error) = self.connection.process_new_packets() {
            // Sends the alert that reports the error to the server.
            let _ = self.flush(socket);
            return Err(Failure::new(error, &self.name, self.has_certificate).into());
        }
        Ok(true)
    }
}

/// Writes to a socket with `send` only, which raises no SIGPIPE if the server has closed the connection. A vectored
/// write would raise it, and so end a process in which SIGPIPE has its default effect.
struct WithoutSignal<'a>(&'a mut TcpStream);

impl Write for WithoutSignal<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Replaces a `WouldBlock` error with a value.
fn would_block_to<T>(result: io::Result<T>, value: T) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(value),
        result => result,
    }
}
