//! The frames of a server after the handshake: [`ReplyHeader`], then a [`Reply`] or a [`WatchEvent`].

use super::reader::Reader;
use super::request::MULTI_END;
use super::{DecodeError, MAX_REQUEST, OpCode};
use crate::client::Stat;
use crate::error::ZkError;
use crate::recipe::names::Names;

/// No multi has more requests: each takes at least 17 bytes, a header and an empty path with a
/// version.
const MAX_RESULTS: usize = MAX_REQUEST / 17;

/// The start of every frame of a server but the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyHeader {
    /// That of the request, or [`XID_EVENT`](super::XID_EVENT).
    pub(crate) xid: i32,
    /// The last transaction that the server had applied. Zero or -1 if the server does not report
    /// any.
    pub(crate) zxid: i64,
    /// Zero, or the code for [`ZkError::from_code`]. A reply with an error has no body.
    pub(crate) error: i32,
}

impl ReplyHeader {
    /// Decodes the header and returns it with the body of the frame.
    pub(crate) fn decode(frame: &[u8]) -> Result<(ReplyHeader, &[u8]), DecodeError> {
        let mut reader = Reader::new(frame);
        let header = ReplyHeader { xid: reader.i32()?, zxid: reader.i64()?, error: reader.i32()? };
        Ok((header, reader.rest()))
    }
}

/// The body of a reply that reports success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Of `Delete`, `Check`, `RemoveWatches`, `Ping`, `Auth`, `SetWatches` and `Close`.
    Empty,
    Created {
        path: String,
        stat: Stat,
    },
    /// Of `Exists` and `SetData`.
    Stat(Stat),
    Data {
        data: Vec<u8>,
        stat: Stat,
    },
    /// The names of the children.
    Children(Names),
    /// Of a create by a server before 3.5. Within a multi also that of any create but
    /// a container's: Apache's servers do not return a `Stat` there.
    Path(String),
    /// The results of a multi, in order. If one failed, none took effect, and
    /// [`multi_failure`](Reply::multi_failure) returns it.
    Multi(Vec<Result<Reply, ZkError>>),
}

impl Reply {
    /// Decodes the reply to a request with this operation.
    pub(crate) fn decode(operation: OpCode, body: &[u8]) -> Result<Reply, DecodeError> {
        let mut reader = Reader::new(body);
        let reply = match operation {
            OpCode::GetData => Reply::Data { data: reader.buffer()?.to_vec(), stat: reader.stat()? },
            OpCode::GetChildren => Reply::Children(reader.names()?),
            OpCode::Multi => Reply::Multi(decode_multi(&mut reader)?),
            OpCode::Create => Reply::Path(reader.str()?.to_owned()),
            OpCode::Create2 | OpCode::CreateContainer => decode_created(&mut reader)?,
            OpCode::Exists | OpCode::SetData => Reply::Stat(reader.stat()?),
            OpCode::Delete
            | OpCode::Check
            | OpCode::RemoveWatches
            | OpCode::Ping
            | OpCode::Auth
            | OpCode::SetWatches
            | OpCode::Close => Reply::Empty,
        };
        reader.finish()?;
        Ok(reply)
    }

    /// Returns the position and the error of the request that made a multi fail.
    ///
    /// The server reports the requests before it with code 0, and those after it with -2.
    pub(crate) fn multi_failure(&self) -> Option<(usize, ZkError)> {
        let Reply::Multi(results) = self else { return None };
        let failed = |result: &Result<Reply, ZkError>| result.as_ref().err().copied();
        let mut errors = results.iter().map(failed).enumerate();
        errors.find_map(|(position, error)| Some((position, error.filter(|error| error.code() != 0)?)))
    }
}

fn decode_created(reader: &mut Reader<'_>) -> Result<Reply, DecodeError> {
    Ok(Reply::Created { path: reader.str()?.to_owned(), stat: reader.stat()? })
}

fn decode_multi(reader: &mut Reader<'_>) -> Result<Vec<Result<Reply, ZkError>>, DecodeError> {
    let mut results = Vec::new();
    loop {
        let number = reader.i32()?;
        let is_end = reader.bool()?;
        let _error = reader.i32()?;
        if is_end {
            return Ok(results);
        }
        if results.len() == MAX_RESULTS {
            return Err(DecodeError::TooLong);
        }
        if number == MULTI_END {
            results.push(Err(ZkError::from_code(reader.i32()?)));
            continue;
        }
        results.push(Ok(match OpCode::from_number(number) {
            Some(OpCode::Create) => Reply::Path(reader.str()?.to_owned()),
            Some(OpCode::Create2 | OpCode::CreateContainer) => decode_created(reader)?,
            Some(OpCode::SetData) => Reply::Stat(reader.stat()?),
            Some(OpCode::Delete | OpCode::Check) => Reply::Empty,
            _ => return Err(DecodeError::UnknownOperation(number)),
        }));
    }
}

/// A watch that fired. It is not set any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchEvent<'a> {
    pub(crate) kind: EventKind,
    pub(crate) path: &'a str,
}

/// The change of a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Created,
    Deleted,
    DataChanged,
    ChildrenChanged,
    /// A number that no server sends at present.
    Other(i32),
}

impl<'a> WatchEvent<'a> {
    /// Decodes the body of a frame with the xid of events.
    pub(crate) fn decode(body: &'a [u8]) -> Result<WatchEvent<'a>, DecodeError> {
        let mut reader = Reader::new(body);
        let kind = match reader.i32()? {
            1 => EventKind::Created,
            2 => EventKind::Deleted,
            3 => EventKind::DataChanged,
            4 => EventKind::ChildrenChanged,
            number => EventKind::Other(number),
        };
        let _state = reader.i32()?; // always "connected"
        let path = reader.str()?;
        reader.finish()?;
        Ok(WatchEvent { kind, path })
    }
}
