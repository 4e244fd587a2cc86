//! [`Request`]: what a client sends after the handshake.

use std::borrow::Cow;
use std::fmt;

use super::OpCode;
use super::writer::Writer;
use crate::client::{Acl, CreateMode};

/// The number that ends a multi, instead of an operation's. A reply has it for an error too.
pub(super) const MULTI_END: i32 = -1;

/// The number of watches of any kind.
pub(super) const ANY_WATCH: i32 = 3;

/// A request of a client. A version of -1 stands for any version.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    Create {
        path: Cow<'a, str>,
        data: Cow<'a, [u8]>,
        acl: Cow<'a, [Acl]>,
        mode: CreateMode,
    },
    Delete {
        path: Cow<'a, str>,
        version: i32,
    },
    Exists {
        path: Cow<'a, str>,
        watch: bool,
    },
    GetData {
        path: Cow<'a, str>,
        watch: bool,
    },
    SetData {
        path: Cow<'a, str>,
        data: Cow<'a, [u8]>,
        version: i32,
    },
    GetChildren {
        path: Cow<'a, str>,
        watch: bool,
    },
    /// `Create`, `Delete`, `SetData` and `Check`: all take effect, or none. A server refuses any
    /// other request within.
    Multi(Vec<Request<'a>>),
    /// Only within a multi: servers close the connection otherwise.
    Check {
        path: Cow<'a, str>,
        version: i32,
    },
    /// Removes the watches of all kinds.
    RemoveWatches {
        path: Cow<'a, str>,
    },
    Ping,
    Auth {
        scheme: Cow<'a, str>,
        auth: Cow<'a, [u8]>,
    },
    /// Sets watches again on a new connection. Changes after the transaction `relative_zxid` are
    /// reported at once.
    SetWatches {
        relative_zxid: i64,
        data: Vec<Cow<'a, str>>,
        exist: Vec<Cow<'a, str>>,
        child: Vec<Cow<'a, str>>,
    },
    Close,
}

impl Request<'_> {
    pub(crate) fn operation(&self) -> OpCode {
        match self {
            Request::Create { mode: CreateMode::Container, .. } => OpCode::CreateContainer,
            Request::Create { .. } => OpCode::Create2,
            Request::Delete { .. } => OpCode::Delete,
            Request::Exists { .. } => OpCode::Exists,
            Request::GetData { .. } => OpCode::GetData,
            Request::SetData { .. } => OpCode::SetData,
            Request::GetChildren { .. } => OpCode::GetChildren,
            Request::Multi(_) => OpCode::Multi,
            Request::Check { .. } => OpCode::Check,
            Request::RemoveWatches { .. } => OpCode::RemoveWatches,
            Request::Ping => OpCode::Ping,
            Request::Auth { .. } => OpCode::Auth,
            Request::SetWatches { .. } => OpCode::SetWatches,
            Request::Close => OpCode::Close,
        }
    }

    /// Returns the path of the only znode that the request names.
    pub(crate) fn path(&self) -> Option<&str> {
        match self {
            Request::Create { path, .. }
            | Request::Delete { path, .. }
            | Request::Exists { path, .. }
            | Request::GetData { path, .. }
            | Request::SetData { path, .. }
            | Request::GetChildren { path, .. }
            | Request::Check { path, .. }
            | Request::RemoveWatches { path, .. } => Some(path),
            Request::Multi(_)
            | Request::Ping
            | Request::Auth { .. }
            | Request::SetWatches { .. }
            | Request::Close => None,
        }
    }

    /// Appends the frame. The caller checks that it is no longer than
    /// [`MAX_REQUEST`](super::MAX_REQUEST), before the four bytes of the length.
    pub(crate) fn encode(&self, xid: i32, frame: &mut Vec<u8>) {
        self.encode_as(self.operation(), xid, frame);
    }

    /// As [`encode`](Request::encode), as another operation with the same record: `Create` instead
    /// of `Create2`.
    pub(crate) fn encode_as(&self, operation: OpCode, xid: i32, frame: &mut Vec<u8>) {
        Writer::frame(frame, |writer| {
            writer.i32(xid);
            writer.i32(operation.number());
            self.encode_record(writer);
        });
    }

    fn encode_record(&self, writer: &mut Writer<'_>) {
        match self {
            Request::Create { path, data, acl, mode } => {
                writer.str(path);
                writer.buffer(data);
                writer.acl(acl);
                writer.i32(create_flags(*mode));
            }
            Request::Delete { path, version } | Request::Check { path, version } => {
                writer.str(path);
                writer.i32(*version);
            }
            Request::Exists { path, watch }
            | Request::GetData { path, watch }
            | Request::GetChildren { path, watch } => {
                writer.str(path);
                writer.bool(*watch);
            }
            Request::SetData { path, data, version } => {
                writer.str(path);
                writer.buffer(data);
                writer.i32(*version);
            }
            Request::Multi(requests) => {
                for request in requests {
                    writer.multi_header(request.operation().number(), false, -1);
                    request.encode_record(writer);
                }
                writer.multi_header(MULTI_END, true, -1);
            }
            Request::RemoveWatches { path } => {
                writer.str(path);
                writer.i32(ANY_WATCH);
            }
            Request::Auth { scheme, auth } => {
                writer.i32(0); // the type, which servers ignore
                writer.str(scheme);
                writer.buffer(auth);
            }
            Request::SetWatches { relative_zxid, data, exist, child } => {
                writer.i64(*relative_zxid);
                writer.strings(data);
                writer.strings(exist);
                writer.strings(child);
            }
            Request::Ping | Request::Close => {}
        }
    }
}

pub(super) fn create_flags(mode: CreateMode) -> i32 {
    match mode {
        CreateMode::Persistent => 0,
        CreateMode::Ephemeral => 1,
        CreateMode::PersistentSequential => 2,
        CreateMode::EphemeralSequential => 3,
        CreateMode::Container => 4,
    }
}

impl fmt::Debug for Request<'_> {
    /// The operation and the path: data may be long, and credentials are secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.operation())?;
        match self.path() {
            Some(path) => write!(f, "({path:?})"),
            None => Ok(()),
        }
    }
}
