//! The server's side, for tests: decodes what a client sends, and encodes what a server sends.

use std::borrow::Cow;

use super::reader::Reader;
use super::request::{ANY_WATCH, MULTI_END, create_flags};
use super::writer::Writer;
use super::{
    ConnectAnswer, ConnectRequest, DecodeError, EventKind, OpCode, Password, Reply, ReplyHeader, Request,
    WatchEvent, XID_EVENT,
};
use crate::client::{Acl, CreateMode, Permissions, Stat};
use crate::error::ZkError;

impl ConnectRequest {
    /// Decodes the first frame of a client. One before 3.4 does not send `read_only`.
    pub(crate) fn decode(frame: &[u8]) -> Result<ConnectRequest, DecodeError> {
        let mut reader = Reader::new(frame);
        let _version = reader.i32()?;
        let request = ConnectRequest {
            last_zxid: reader.i64()?,
            timeout_ms: reader.i32()?,
            session_id: reader.i64()?,
            password: Password::new(reader.buffer()?),
            read_only: !reader.is_empty() && reader.bool()?,
        };
        reader.finish()?;
        Ok(request)
    }
}

impl ConnectAnswer {
    /// Appends the frame.
    pub(crate) fn encode(&self, frame: &mut Vec<u8>) {
        match self {
            ConnectAnswer::Accepted(response) => encode_response(
                response.timeout_ms,
                response.session_id,
                &response.password,
                response.read_only,
                frame,
            ),
            ConnectAnswer::Refused => encode_response(0, 0, &Password::default(), false, frame),
            ConnectAnswer::ClickHouseKeeper => Writer::frame(frame, |writer| {
                writer.i32(0);
                writer.i32(10_000);
                writer.i64(1);
                writer.buffer(Password::default().as_bytes());
            }),
            ConnectAnswer::ReadOnlyServer => ReplyHeader { xid: 0, zxid: 0, error: -119 }.encode(frame),
        }
    }
}

fn encode_response(
    timeout_ms: i32,
    session_id: i64,
    password: &Password,
    read_only: bool,
    frame: &mut Vec<u8>,
) {
    Writer::frame(frame, |writer| {
        writer.i32(0);
        writer.i32(timeout_ms);
        writer.i64(session_id);
        writer.buffer(password.as_bytes());
        writer.bool(read_only);
    });
}

impl<'a> Request<'a> {
    /// Decodes a frame of a client after the first, and returns the request with its xid.
    pub(crate) fn decode(frame: &'a [u8]) -> Result<(i32, Request<'a>), DecodeError> {
        let mut reader = Reader::new(frame);
        let xid = reader.i32()?;
        let number = reader.i32()?;
        let request = match OpCode::from_number(number) {
            Some(OpCode::Multi) => Request::Multi(decode_multi(&mut reader)?),
            Some(operation) => decode_record(operation, &mut reader)?,
            None => return Err(DecodeError::UnknownOperation(number)),
        };
        reader.finish()?;
        Ok((xid, request))
    }
}

fn decode_multi<'a>(reader: &mut Reader<'a>) -> Result<Vec<Request<'a>>, DecodeError> {
    let mut requests = Vec::new();
    loop {
        let number = reader.i32()?;
        let is_end = reader.bool()?;
        let _error = reader.i32()?;
        if is_end {
            return Ok(requests);
        }
        match OpCode::from_number(number) {
            Some(
                operation @ (OpCode::Create2
                | OpCode::CreateContainer
                | OpCode::Delete
                | OpCode::SetData
                | OpCode::Check),
            ) => requests.push(decode_record(operation, reader)?),
            _ => return Err(DecodeError::UnknownOperation(number)),
        }
    }
}

/// Any record but that of a multi.
fn decode_record<'a>(operation: OpCode, reader: &mut Reader<'a>) -> Result<Request<'a>, DecodeError> {
    Ok(match operation {
        OpCode::Create | OpCode::Create2 | OpCode::CreateContainer => Request::Create {
            path: reader.str()?.into(),
            data: reader.buffer()?.into(),
            acl: Cow::Owned(reader.vector(12, decode_acl)?),
            mode: decode_mode(operation, reader.i32()?)?,
        },
        OpCode::Delete => Request::Delete { path: reader.str()?.into(), version: reader.i32()? },
        OpCode::Check => Request::Check { path: reader.str()?.into(), version: reader.i32()? },
        OpCode::Exists => Request::Exists { path: reader.str()?.into(), watch: reader.bool()? },
        OpCode::GetData => Request::GetData { path: reader.str()?.into(), watch: reader.bool()? },
        OpCode::GetChildren => Request::GetChildren { path: reader.str()?.into(), watch: reader.bool()? },
        OpCode::SetData => Request::SetData {
            path: reader.str()?.into(),
            data: reader.buffer()?.into(),
            version: reader.i32()?,
        },
        OpCode::RemoveWatches => {
            let path = reader.str()?.into();
            match reader.i32()? {
                ANY_WATCH => Request::RemoveWatches { path },
                other => return Err(DecodeError::UnknownValue(other)),
            }
        }
        OpCode::Auth => {
            let _type = reader.i32()?;
            Request::Auth { scheme: reader.str()?.into(), auth: reader.buffer()?.into() }
        }
        OpCode::SetWatches => Request::SetWatches {
            relative_zxid: reader.i64()?,
            data: reader.strings()?,
            exist: reader.strings()?,
            child: reader.strings()?,
        },
        OpCode::Ping => Request::Ping,
        OpCode::Close => Request::Close,
        OpCode::Multi => return Err(DecodeError::UnknownOperation(operation.number())),
    })
}

fn decode_acl(reader: &mut Reader<'_>) -> Result<Acl, DecodeError> {
    let number = reader.i32()?;
    let permissions = u8::try_from(number).ok().and_then(Permissions::from_bits);
    let permissions = permissions.ok_or(DecodeError::UnknownValue(number))?;
    Ok(Acl::new(permissions, reader.str()?, reader.str()?))
}

fn decode_mode(operation: OpCode, flags: i32) -> Result<CreateMode, DecodeError> {
    let modes = [
        CreateMode::Persistent,
        CreateMode::Ephemeral,
        CreateMode::PersistentSequential,
        CreateMode::EphemeralSequential,
        CreateMode::Container,
    ];
    let mode = modes.into_iter().find(|mode| create_flags(*mode) == flags);
    mode.filter(|mode| (*mode == CreateMode::Container) == (operation == OpCode::CreateContainer))
        .ok_or(DecodeError::UnknownValue(flags))
}

impl ReplyHeader {
    /// Appends the frame of a reply without a body: that of an error.
    pub(crate) fn encode(self, frame: &mut Vec<u8>) {
        Writer::frame(frame, |writer| writer.reply_header(self));
    }
}

impl Reply {
    /// Appends the frame.
    pub(crate) fn encode(&self, xid: i32, zxid: i64, frame: &mut Vec<u8>) {
        Writer::frame(frame, |writer| {
            writer.reply_header(ReplyHeader { xid, zxid, error: 0 });
            self.encode_body(writer);
        });
    }

    fn encode_body(&self, writer: &mut Writer<'_>) {
        match self {
            Reply::Empty => {}
            Reply::Created { path, stat } => {
                writer.str(path);
                writer.stat(stat);
            }
            Reply::Stat(stat) => writer.stat(stat),
            Reply::Data { data, stat } => {
                writer.buffer(data);
                writer.stat(stat);
            }
            Reply::Children(names) => {
                writer.strings(&names.iter().collect::<Vec<_>>());
            }
            Reply::Path(path) => writer.str(path),
            Reply::Multi(results) => {
                for result in results {
                    writer.multi_result(result);
                }
                writer.multi_header(MULTI_END, true, -1);
            }
        }
    }

    /// The number that stands for the result within a multi. No client can read the results that
    /// have none.
    fn number_in_multi(&self) -> i32 {
        match self {
            Reply::Empty => OpCode::Delete.number(),
            Reply::Created { .. } => OpCode::Create2.number(),
            Reply::Stat(_) => OpCode::SetData.number(),
            Reply::Path(_) => OpCode::Create.number(),
            Reply::Data { .. } | Reply::Children(_) | Reply::Multi(_) => i32::MIN,
        }
    }
}

impl WatchEvent<'_> {
    /// Appends the frame.
    pub(crate) fn encode(&self, zxid: i64, frame: &mut Vec<u8>) {
        Writer::frame(frame, |writer| {
            writer.reply_header(ReplyHeader { xid: XID_EVENT, zxid, error: 0 });
            writer.i32(match self.kind {
                EventKind::Created => 1,
                EventKind::Deleted => 2,
                EventKind::DataChanged => 3,
                EventKind::ChildrenChanged => 4,
                EventKind::Other(number) => number,
            });
            writer.i32(3); // connected
            writer.str(self.path);
        });
    }
}

impl Writer<'_> {
    fn reply_header(&mut self, header: ReplyHeader) {
        self.i32(header.xid);
        self.i64(header.zxid);
        self.i32(header.error);
    }

    fn multi_result(&mut self, result: &Result<Reply, ZkError>) {
        match result {
            Ok(reply) => {
                self.multi_header(reply.number_in_multi(), false, 0);
                reply.encode_body(self);
            }
            Err(error) => {
                self.multi_header(MULTI_END, false, error.code());
                self.i32(error.code());
            }
        }
    }

    fn stat(&mut self, stat: &Stat) {
        for value in [stat.czxid, stat.mzxid, stat.ctime, stat.mtime] {
            self.i64(value);
        }
        for value in [stat.version, stat.cversion, stat.aversion] {
            self.i32(value);
        }
        self.i64(stat.ephemeral_owner);
        self.i32(stat.data_length);
        self.i32(stat.num_children);
        self.i64(stat.pzxid);
    }
}
