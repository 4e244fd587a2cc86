//! ZooKeeper's wire format: encodes records as bytes, and decodes bytes into records.
//!
//! There is no I/O here, and no state except the frame buffer.
//!
//! A connection is a stream of frames in each direction ([`Frames`]). The client's first frame is a [`ConnectRequest`];
//! [`decode_connect_answer`] decodes the server's first frame, the answer. Each further frame of a client is a
//! [`Call`](crate::Call) or a [`Control`]. Each further frame of a server is a [`ReplyHeader`], followed by a
//! [`Reply`](crate::Reply), a SASL token or a [`WatchEvent`]. Nothing follows a header with an error.
//!
//! This module adds the [`Chroot`](super::Chroot) to the paths of calls, and removes it from the paths of replies.
//!
//! Bytes from a server are not trusted. No input causes a panic, and no memory is reserved for a length or a count
//! before that many bytes have arrived.
//!
//! Numbers are big-endian. A length or a count of -1 means null, which decodes as empty.

mod connect;
mod frame;
#[cfg(any(test, zk_laws))]
pub mod laws;
mod op_code;
mod reader;
mod reply;
mod request;
#[cfg(any(test, feature = "test-util"))]
mod server;
#[cfg(test)]
mod tests;
mod writer;

pub use connect::{ConnectAnswer, ConnectRequest, ConnectResponse, Password, decode_connect_answer};
pub use frame::Frames;
pub use op_code::OpCode;
pub use reply::{EventKind, ReplyHeader, WatchEvent, decode_sasl_token};
pub use request::Control;
#[cfg(any(test, feature = "test-util"))]
pub use server::{Request, encode_sasl_token};

/// The default limit for frames from a server, enough for a listing of about a million locks. Servers do not limit the
/// frames that they send, so a listing over the client's limit could not be read from any server.
pub const DEFAULT_MAX_FRAME: usize = 64 << 20;

/// The xid of a watch event.
pub const XID_EVENT: i32 = -1;
/// The xid of a ping and its reply.
pub const XID_PING: i32 = -2;
/// The xid of credentials and their reply.
pub const XID_AUTH: i32 = -4;
/// The xid of a request that sets watches again. Servers may reply to it with another xid.
pub const XID_SET_WATCHES: i32 = -8;

/// A server that requires authentication answers every request of an unauthenticated client with this error. The error
/// overtakes outstanding replies, and the server then closes the connection.
pub const AUTHENTICATION_REQUIRED: i32 = -124;

/// How bytes violate the protocol.
#[derive(thiserror::Error, Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    #[error("the frame ends within a record")]
    Truncated,
    #[error("a length is negative")]
    NegativeLength,
    #[error("a length exceeds its limit")]
    TooLong,
    #[error("a string is not UTF-8")]
    NotUtf8,
    #[error("the frame continues after its record")]
    TrailingBytes,
    #[error("unknown operation {0}")]
    UnknownOperation(i32),
    #[error("{0} is not a valid number here")]
    UnknownValue(i32),
    #[error("the server answers the handshake with error code {0}")]
    ConnectError(i32),
}
