//! The handshake: [`ConnectRequest`] and its answer.

use std::fmt;

use super::DecodeError;
use super::reader::Reader;
use super::writer::Writer;

/// The error code in a read-only server's answer.
const NOT_READ_ONLY: i32 = -119;

/// The length of a [`ReplyHeader`](super::ReplyHeader). A [`ConnectResponse`] is longer.
const REPLY_HEADER: usize = 16;

/// The maximum length of a password. The passwords of ZooKeeper servers have 16 bytes.
const MAX_PASSWORD: usize = 256;

/// The password in a request for a new session.
const NO_PASSWORD: [u8; 16] = [0; 16];

/// The password of a session. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Vec<u8>);

impl Password {
    pub fn new(password: impl Into<Vec<u8>>) -> Password {
        Password(password.into())
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Default for Password {
    /// The password of a request for a new session.
    fn default() -> Password {
        Password(NO_PASSWORD.to_vec())
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

/// The first frame of a client. It requests a new session, or asks to resume an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The last transaction that the client has seen. A server that has not applied it closes the connection.
    pub last_zxid: i64,
    pub timeout_ms: i32,
    /// Zero for a new session.
    pub session_id: i64,
    pub password: Password,
    /// Whether the client accepts a read-only server.
    pub read_only: bool,
}

impl ConnectRequest {
    /// Appends the frame.
    pub fn encode(&self, frame: &mut Vec<u8>) {
        Writer::frame(frame, |writer| {
            writer.i32(0); // the protocol's version
            writer.i64(self.last_zxid);
            writer.i32(self.timeout_ms);
            writer.i64(self.session_id);
            writer.buffer(self.password.as_bytes());
            writer.bool(self.read_only);
        });
    }
}

/// The answer of a server that has opened or resumed the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectResponse {
    /// The session timeout, greater than zero.
    pub timeout_ms: i32,
    pub session_id: i64,
    pub password: Password,
    /// Whether the server is read-only.
    pub read_only: bool,
}

/// A server's answer to a [`ConnectRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectAnswer {
    Accepted(ConnectResponse),
    /// The session has expired, or the password is wrong. The response has a timeout of zero.
    Refused,
    /// The server is read-only and cannot open a session. This answer is a reply header with an error. Only a client
    /// that accepts a read-only server gets it; for others, the server closes the connection.
    ReadOnlyServer,
    /// ClickHouse Keeper has opened a session. It never resumes one.
    ClickHouseKeeper,
}

/// Decodes the first frame of a server.
///
/// Servers before 3.4 do not say whether they are read-only, because they never are. ClickHouse Keeper does not say so
/// either, but is recognized by its password of zeros; ZooKeeper derives the password from the session id.
///
/// # Errors
/// - `ConnectError` if the server answers with an error, unless that error says that the server is read-only.
/// - `UnknownValue` for a negative session timeout, or for another version of the protocol. ClickHouse Keeper sends
///   another version while it has no leader.
/// - Other errors if the frame is malformed.
pub fn decode_connect_answer(frame: &[u8]) -> Result<ConnectAnswer, DecodeError> {
    let mut reader = Reader::new(frame);
    if frame.len() == REPLY_HEADER {
        let _xid = reader.i32()?;
        let _zxid = reader.i64()?;
        return match reader.i32()? {
            NOT_READ_ONLY => Ok(ConnectAnswer::ReadOnlyServer),
            error => Err(DecodeError::ConnectError(error)),
        };
    }
    let version = reader.i32()?;
    if version != 0 {
        return Err(DecodeError::UnknownValue(version));
    }
    let timeout_ms = reader.i32()?;
    let session_id = reader.i64()?;
    let password = reader.buffer()?;
    let is_short = reader.is_empty();
    let read_only = !is_short && reader.bool()?;
    reader.finish()?;
    if password.len() > MAX_PASSWORD {
        return Err(DecodeError::TooLong);
    }
    match timeout_ms {
        0 => Ok(ConnectAnswer::Refused),
        1.. if is_short && password == NO_PASSWORD => Ok(ConnectAnswer::ClickHouseKeeper),
        1.. => {
            let password = Password::new(password);
            Ok(ConnectAnswer::Accepted(ConnectResponse { timeout_ms, session_id, password, read_only }))
        }
        // A negative timeout is malformed. It is not a refusal, which would end the session.
        ..0 => Err(DecodeError::UnknownValue(timeout_ms)),
    }
}
