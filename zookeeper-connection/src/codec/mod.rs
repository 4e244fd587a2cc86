//! ZooKeeper's wire format: bytes to records and back. No I/O, and no state but the frame buffer.
//!
//! A connection is a stream of frames in each direction ([`Frames`]). The first frame is a
//! [`ConnectRequest`], answered by what [`decode_connect_answer`] returns. Every other frame of a
//! client is a [`Call`](crate::Call), or a [`Control`]. Every other frame of a server starts
//! with a [`ReplyHeader`]: a [`Reply`](crate::Reply), or a [`WatchEvent`].
//!
//! The paths of calls and replies get and lose the [`Chroot`](super::Chroot) here.
//!
//! The bytes of a server are not trusted. No input panics, and nothing is reserved for a length or
//! a count before as many bytes have arrived.
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

/// The default bound for the frames of a server: a listing of about a million locks. Servers have
/// no bound, and a client with a lower one cannot read a larger listing on any connection.
pub const DEFAULT_MAX_FRAME: usize = 64 << 20;

/// The bound for a request, which is the default of a server's `jute.maxbuffer`. A server closes
/// the connection without a reply if a frame is longer.
pub const MAX_REQUEST: usize = 0xf_ffff;

/// The xid of a watch event.
pub const XID_EVENT: i32 = -1;
/// The xid of a ping and its reply.
pub const XID_PING: i32 = -2;
/// The xid of the credentials and their reply.
pub const XID_AUTH: i32 = -4;
/// The xid of a request that sets watches again. Servers may reply to it with another xid.
pub const XID_SET_WATCHES: i32 = -8;

/// The error of a server that demands an authentication, to every request of a client without one. It comes
/// ahead of the replies that are owed, and the server closes the connection.
pub const AUTHENTICATION_REQUIRED: i32 = -124;

/// The way in which bytes violate the protocol.
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
    #[error("{0} is none of the numbers that are possible here")]
    UnknownValue(i32),
    #[error("the server answers the handshake with error code {0}")]
    ConnectError(i32),
}
