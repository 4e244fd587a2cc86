//! [`TlsStream`]: the TLS layer of a transport.

use std::io::{self, Read, Write};
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::client::{ClientConfig, ClientConnection};
use rustls::pki_types::ServerName;

/// How to encrypt a stream, and the name of the server at its end.
pub(crate) struct TlsTarget {
    pub(crate) client: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
}

/// Encrypts the bytes written to a socket, and decrypts the bytes read from it.
pub(crate) struct TlsStream {
    connection: ClientConnection,
}

impl TlsStream {
    pub(crate) fn new(target: TlsTarget) -> io::Result<TlsStream> {
        let connection = ClientConnection::new(target.client, target.name).map_err(invalid)?;
        Ok(TlsStream { connection })
    }

    /// Continues the handshake, and returns whether it is complete.
    pub(crate) fn handshake(&mut self, socket: &mut TcpStream) -> io::Result<bool> {
        loop {
            would_block_to(self.flush(socket), ())?;
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
            return Err(invalid(error));
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

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {error}"))
}

/// Replaces a `WouldBlock` error with a value.
fn would_block_to<T>(result: io::Result<T>, value: T) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(value),
        result => result,
    }
}
