//! The frames of a server after the handshake: a [`ReplyHeader`], followed by a [`Reply`] or a [`WatchEvent`].

use super::reader::Reader;
use super::request::MULTI_END;
use super::{DecodeError, OpCode};
use crate::chroot::Chroot;
use crate::error::{ZkError, ZkResult};
use crate::{Op, OpOutcome, Reply, Stat, Transacted};

/// The length of the shortest result of a multi, which is a header.
const MIN_RESULT: usize = 9;

/// The start of every frame that a server sends, except the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The xid of the request, or [`XID_EVENT`](super::XID_EVENT).
    pub xid: i32,
    /// The last transaction that the server had applied. Zero or -1 if the server does not report it.
    pub zxid: i64,
    /// Zero, or an error code. A reply with an error has no body.
    pub error: i32,
}

impl ReplyHeader {
    /// Decodes the header. Returns it with the body of the frame.
    pub fn decode(frame: &[u8]) -> Result<(ReplyHeader, &[u8]), DecodeError> {
        let mut reader = Reader::new(frame);
        let header = ReplyHeader { xid: reader.i32()?, zxid: reader.i64()?, error: reader.i32()? };
        Ok((header, reader.rest()))
    }

    /// Returns the error that the server reports, if any.
    pub fn result(self) -> ZkResult<()> {
        if self.error == 0 { Ok(()) } else { Err(ZkError::from_code(self.error)) }
    }
}

impl Reply {
    /// Decodes the reply to a request with this operation, and removes the chroot from its paths. `steps` are the
    /// operations of a multi. The reply to a [`Control`](super::Control) is `Done`, unless the control is a barrier:
    /// then it is the reply to a `SetData`. The answer to a SASL token is decoded by [`decode_sasl_token`].
    ///
    /// The outer error means that the frame cannot be read. The inner result is the outcome of the request: it fails
    /// with the error that the server reports, or with `MarshallingError` if the results do not fit the steps or a
    /// path is outside the chroot. If the znode of an `Exists` is missing, the outcome is `Found(None)`.
    pub fn decode(
        operation: OpCode,
        steps: &[Op],
        chroot: &Chroot,
        header: ReplyHeader,
        body: &[u8],
    ) -> Result<ZkResult<Reply>, DecodeError> {
        match (operation, header.result()) {
            (OpCode::Exists, Err(ZkError::NoNode)) => return Ok(Ok(Reply::Found(None))),
            (_, Err(error)) => return Ok(Err(error)),
            (_, Ok(())) => {}
        }
        let mut reader = Reader::new(body);
        let reply = match operation {
            OpCode::Create | OpCode::Create2 | OpCode::CreateContainer => {
                let (path, stat) = decode_created(operation, chroot, &mut reader)?;
                path.map(|path| Reply::Created { path, stat })
            }
            OpCode::Exists => Ok(Reply::Found(Some(reader.stat()?))),
            OpCode::GetData => Ok(Reply::Data(reader.buffer()?.to_vec(), reader.stat()?)),
            OpCode::GetChildren => Ok(Reply::Children(reader.names()?)),
            OpCode::SetData => Ok(Reply::Stat(reader.stat()?)),
            OpCode::Multi => decode_multi(steps, chroot, &mut reader)?.map(Reply::Multi),
            OpCode::Delete
            | OpCode::Check
            | OpCode::RemoveWatches
            | OpCode::Ping
            | OpCode::Auth
            | OpCode::SetWatches
            | OpCode::Sasl
            | OpCode::Close => Ok(Reply::Done),
        };
        reader.finish()?;
        Ok(reply)
    }
}

/// Decodes the path of a new znode, and its metadata. Servers before 3.5 do not send the metadata. Within a multi,
/// Apache's servers send it only for a container, and others send it for each create.
fn decode_created(
    operation: OpCode,
    chroot: &Chroot,
    reader: &mut Reader<'_>,
) -> Result<(ZkResult<String>, Option<Stat>), DecodeError> {
    let path = chroot.remove_from(reader.str()?).map(str::to_owned).ok_or(ZkError::MarshallingError);
    let stat = if operation == OpCode::Create { None } else { Some(reader.stat()?) };
    Ok((path, stat))
}

/// Decodes the results of a multi. If an operation failed, the server reports code 0 for the operations before it, and
/// code -2 for those after it.
fn decode_multi(
    steps: &[Op],
    chroot: &Chroot,
    reader: &mut Reader<'_>,
) -> Result<ZkResult<Transacted>, DecodeError> {
    let mut failure = None;
    let mut outcomes = Ok(Vec::with_capacity(steps.len().min(reader.len() / MIN_RESULT)));
    let mut count = 0;
    loop {
        let number = reader.i32()?;
        let is_end = reader.bool()?;
        let _error = reader.i32()?;
        if is_end {
            break;
        }
        let outcome = if number == MULTI_END {
            let error = ZkError::from_code(reader.i32()?);
            if error.code() != 0 {
                failure = failure.or(Some((count, error)));
            }
            Err(error)
        } else {
            decode_outcome(number, steps.get(count), chroot, reader)?
        };
        match (&mut outcomes, outcome) {
            (Ok(outcomes), Ok(outcome)) => outcomes.push(outcome),
            (Ok(_), Err(error)) => outcomes = Err(error),
            (Err(_), _) => {}
        }
        count += 1;
    }
    Ok(match failure {
        // The transaction failed as a whole, not one of its operations.
        Some((_, error)) if error == ZkError::SessionExpired || error.is_reply_lost() => Err(error),
        Some((position, error)) => Ok(Transacted::Failed { position, error }),
        None if count != steps.len() => Err(ZkError::MarshallingError),
        None => outcomes.map(Transacted::Committed),
    })
}

/// Decodes the result of the operation with this number. A result that does not fit the step is an error.
fn decode_outcome(
    number: i32,
    step: Option<&Op>,
    chroot: &Chroot,
    reader: &mut Reader<'_>,
) -> Result<ZkResult<OpOutcome>, DecodeError> {
    let outcome = match OpCode::from_number(number) {
        Some(operation @ (OpCode::Create | OpCode::Create2 | OpCode::CreateContainer)) => {
            let (path, _) = decode_created(operation, chroot, reader)?;
            path.map(OpOutcome::Created)
        }
        Some(OpCode::SetData) => Ok(OpOutcome::DataSet(reader.stat()?)),
        Some(OpCode::Delete | OpCode::Check) if matches!(step, Some(Op::Check { .. })) => {
            Ok(OpOutcome::Checked)
        }
        Some(OpCode::Delete | OpCode::Check) => Ok(OpOutcome::Deleted),
        _ => return Err(DecodeError::UnknownOperation(number)),
    };
    Ok(match (step, outcome) {
        (Some(Op::Create { .. }), outcome @ Ok(OpOutcome::Created(_)))
        | (Some(Op::Delete { .. }), outcome @ Ok(OpOutcome::Deleted))
        | (Some(Op::SetData { .. }), outcome @ Ok(OpOutcome::DataSet(_)))
        | (Some(Op::Check { .. }), outcome @ Ok(OpOutcome::Checked)) => outcome,
        _ => Err(ZkError::MarshallingError),
    })
}

/// Decodes the body of a server's answer to a SASL token. Returns the server's next token, or an empty token if the
/// server sends none.
pub fn decode_sasl_token(body: &[u8]) -> Result<&[u8], DecodeError> {
    let mut reader = Reader::new(body);
    let token = reader.buffer()?;
    reader.finish()?;
    Ok(token)
}

/// A watch that has fired, and is therefore no longer set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchEvent<'a> {
    pub kind: EventKind,
    pub path: &'a str,
}

/// How a znode has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Created,
    Deleted,
    DataChanged,
    ChildrenChanged,
    /// A number that no server sends today.
    Other(i32),
}

impl<'a> WatchEvent<'a> {
    /// Decodes the body of a frame with the xid of events.
    pub fn decode(body: &'a [u8]) -> Result<WatchEvent<'a>, DecodeError> {
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
