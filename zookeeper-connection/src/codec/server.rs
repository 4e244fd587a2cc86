//! The server's side of the protocol, for tests: decodes the frames of a client, and encodes the frames of a server.

use std::fmt;

use super::reader::Reader;
use super::request::{ANY_VERSION, ANY_WATCH, MULTI_END, create_flags};
use super::writer::Writer;
use super::{
    ConnectAnswer, ConnectRequest, Control, DecodeError, EventKind, OpCode, Password, ReplyHeader,
    WatchEvent, XID_EVENT,
};
use crate::chroot::Chroot;
use crate::error::ZkError;
use crate::{Acl, Call, CreateMode, Op, OpOutcome, Permissions, Reply, Stat, Transacted};

impl ConnectRequest {
    /// Decodes the first frame of a client. A client before 3.4 does not send `read_only`.
    pub fn decode(frame: &[u8]) -> Result<ConnectRequest, DecodeError> {
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
    pub fn encode(&self, frame: &mut Vec<u8>) {
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

/// A request of a client after the handshake.
#[derive(Clone, PartialEq, Eq)]
pub enum Request<'a> {
    Call(Call),
    Control(Control<'a>),
}

impl<'a> Request<'a> {
    /// Decodes a frame of a client after the first one. Returns the xid and the request.
    pub fn decode(frame: &'a [u8]) -> Result<(i32, Request<'a>), DecodeError> {
        let mut reader = Reader::new(frame);
        let xid = reader.i32()?;
        let number = reader.i32()?;
        let operation = OpCode::from_number(number).ok_or(DecodeError::UnknownOperation(number))?;
        let request = match decode_control(operation, &mut reader)? {
            Some(control) => Request::Control(control),
            None => Request::Call(decode_call(operation, &mut reader)?),
        };
        reader.finish()?;
        Ok((xid, request))
    }

    /// Appends the frame.
    pub fn encode(&self, xid: i32, frame: &mut Vec<u8>) {
        match self {
            Request::Call(call) => call.encode(self.operation(), &Chroot::default(), xid, frame),
            Request::Control(control) => control.encode(xid, frame),
        }
    }

    pub fn operation(&self) -> OpCode {
        match self {
            Request::Call(call) => OpCode::of_call(call),
            Request::Control(control) => control.operation(),
        }
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Call(call) => call.fmt(f),
            Request::Control(control) => control.fmt(f),
        }
    }
}

/// Decodes a control. Returns `None` if the operation is that of a call.
fn decode_control<'a>(
    operation: OpCode,
    reader: &mut Reader<'a>,
) -> Result<Option<Control<'a>>, DecodeError> {
    Ok(Some(match operation {
        OpCode::RemoveWatches => {
            let path = reader.str()?.into();
            match reader.i32()? {
                ANY_WATCH => Control::RemoveWatches { path },
                other => return Err(DecodeError::UnknownValue(other)),
            }
        }
        OpCode::Auth => {
            let _type = reader.i32()?;
            Control::Auth { scheme: reader.str()?.into(), auth: reader.buffer()?.into() }
        }
        OpCode::Sasl => Control::Sasl { token: reader.buffer()?.into() },
        OpCode::SetWatches => Control::SetWatches {
            relative_zxid: reader.i64()?,
            data: reader.strings()?,
            exist: reader.strings()?,
            child: reader.strings()?,
        },
        OpCode::Ping => Control::Ping,
        OpCode::Close => Control::Close,
        _ => return Ok(None),
    }))
}

fn decode_call(operation: OpCode, reader: &mut Reader<'_>) -> Result<Call, DecodeError> {
    Ok(match operation {
        OpCode::Exists => Call::Exists { path: reader.str()?.into(), watch: reader.bool()? },
        OpCode::GetData => Call::GetData { path: reader.str()?.into(), watch: reader.bool()? },
        OpCode::GetChildren => Call::GetChildren { path: reader.str()?.into(), watch: reader.bool()? },
        OpCode::Multi => Call::Multi(decode_steps(reader)?.into()),
        // Outside a multi, this operation makes a server close the connection.
        OpCode::Check => return Err(DecodeError::UnknownOperation(operation.number())),
        _ => match decode_step(operation, reader)? {
            Op::Create { path, data, acl, mode } => {
                Call::Create { path: path.into(), data: data.into(), acl: acl.into(), mode }
            }
            Op::SetData { path, data, version } => {
                Call::SetData { path: path.into(), data: data.into(), version }
            }
            Op::Delete { path, version } | Op::Check { path, version } => {
                Call::Delete { path: path.into(), version }
            }
        },
    })
}

fn decode_steps(reader: &mut Reader<'_>) -> Result<Vec<Op>, DecodeError> {
    let mut steps = Vec::new();
    loop {
        let number = reader.i32()?;
        let is_end = reader.bool()?;
        let _error = reader.i32()?;
        if is_end {
            return Ok(steps);
        }
        match OpCode::from_number(number) {
            // Within a multi, the client uses `Create2`, never `Create`.
            None | Some(OpCode::Create) => return Err(DecodeError::UnknownOperation(number)),
            Some(operation) => steps.push(decode_step(operation, reader)?),
        }
    }
}

fn decode_step(operation: OpCode, reader: &mut Reader<'_>) -> Result<Op, DecodeError> {
    Ok(match operation {
        OpCode::Create | OpCode::Create2 | OpCode::CreateContainer => Op::Create {
            path: reader.str()?.to_owned(),
            data: reader.buffer()?.to_vec(),
            acl: reader.vector(12, decode_acl)?,
            mode: decode_mode(operation, reader.i32()?)?,
        },
        OpCode::Delete => Op::Delete { path: reader.str()?.to_owned(), version: decode_version(reader)? },
        OpCode::SetData => Op::SetData {
            path: reader.str()?.to_owned(),
            data: reader.buffer()?.to_vec(),
            version: decode_version(reader)?,
        },
        OpCode::Check => Op::Check { path: reader.str()?.to_owned(), version: decode_version(reader)? },
        _ => return Err(DecodeError::UnknownOperation(operation.number())),
    })
}

fn decode_version(reader: &mut Reader<'_>) -> Result<Option<i32>, DecodeError> {
    reader.i32().map(|version| Some(version).filter(|version| *version != ANY_VERSION))
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
    /// Appends the frame of a reply without a body, such as an error.
    pub fn encode(self, frame: &mut Vec<u8>) {
        Writer::frame(frame, |writer| writer.reply_header(self));
    }
}

impl Reply {
    /// Appends the frame. A server never sends an [`Enqueued`](Reply::Enqueued): it sends a reply to the create and
    /// another one to the listing.
    pub fn encode(&self, xid: i32, zxid: i64, frame: &mut Vec<u8>) {
        Writer::frame(frame, |writer| {
            let error = if matches!(self, Reply::Found(None)) { ZkError::NoNode.code() } else { 0 };
            writer.reply_header(ReplyHeader { xid, zxid, error });
            match self {
                Reply::Done | Reply::Found(None) | Reply::Enqueued(_) => {}
                Reply::Created { path, stat } => {
                    writer.str(path);
                    stat.iter().for_each(|stat| writer.stat(stat));
                }
                Reply::Found(Some(stat)) | Reply::Stat(stat) => writer.stat(stat),
                Reply::Data(data, stat) => {
                    writer.buffer(data);
                    writer.stat(stat);
                }
                Reply::Children(names) => writer.strings(&names.iter().collect::<Vec<_>>()),
                Reply::Multi(transacted) => writer.results(transacted),
            }
        });
    }
}

/// Appends the frame of an answer to a SASL token. `None` encodes as null.
pub fn encode_sasl_token(xid: i32, token: Option<&[u8]>, frame: &mut Vec<u8>) {
    Writer::frame(frame, |writer| {
        writer.reply_header(ReplyHeader { xid, zxid: 0, error: 0 });
        match token {
            Some(token) => writer.buffer(token),
            None => writer.i32(-1),
        }
    });
}

impl WatchEvent<'_> {
    /// Appends the frame.
    pub fn encode(&self, zxid: i64, frame: &mut Vec<u8>) {
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

    /// Appends the results of a multi, as Apache's servers write them. Leaves out the metadata of a container, and the
    /// code -2 for each operation after the failed one.
    fn results(&mut self, transacted: &Transacted) {
        match transacted {
            Transacted::Committed(outcomes) => outcomes.iter().for_each(|outcome| self.outcome(outcome)),
            Transacted::Failed { position, error } => {
                for code in std::iter::repeat_n(0, *position).chain([error.code()]) {
                    self.multi_header(MULTI_END, false, code);
                    self.i32(code);
                }
            }
        }
        self.multi_header(MULTI_END, true, -1);
    }

    fn outcome(&mut self, outcome: &OpOutcome) {
        let operation = match outcome {
            OpOutcome::Created(_) => OpCode::Create,
            OpOutcome::Deleted => OpCode::Delete,
            OpOutcome::DataSet(_) => OpCode::SetData,
            OpOutcome::Checked => OpCode::Check,
        };
        self.multi_header(operation.number(), false, 0);
        match outcome {
            OpOutcome::Created(path) => self.str(path),
            OpOutcome::DataSet(stat) => self.stat(stat),
            OpOutcome::Deleted | OpOutcome::Checked => {}
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
