//! Between the vocabulary of the port and the wire: the requests of a [`Call`], and its [`Reply`] from
//! what the server answers.

use std::sync::{Arc, OnceLock};

use super::chroot::Chroot;
use super::codec::{OpCode, Reply as Answer, Request};
use crate::client::{Call, CreateMode, Done, Enqueued, Op, OpOutcome, Reply, Transacted};
use crate::error::{ZkError, ZkResult};

/// The requests of a call, in order, each with its continuation.
pub(crate) enum Exchange<'a> {
    One((Request<'a>, Continuation)),
    Two([(Request<'a>, Continuation); 2]),
}

/// The next step after the answer to a request.
pub(crate) enum Continuation {
    /// The reply to the call. `steps` are the operations within a transaction.
    Reply {
        operation: OpCode,
        steps: Vec<OpCode>,
        chroot: Chroot,
        done: Done,
    },
    /// The first of two answers, which is kept for the second.
    Created(Arc<OnceLock<ZkResult<Reply>>>),
    Listed {
        created: Arc<OnceLock<ZkResult<Reply>>>,
        chroot: Chroot,
        done: Done,
    },
}

/// Makes the requests of a call, whose paths have the chroot already.
pub(crate) fn exchange<'a>(call: &'a Call, chroot: &Chroot, done: Done) -> Exchange<'a> {
    let (request, chroot) = (Request::of(call), chroot.clone());
    if let Call::CreateAndList { dir, .. } = call {
        let created = Arc::new(OnceLock::new());
        let list = Request::GetChildren { path: (&**dir).into(), watch: false };
        return Exchange::Two([
            (request, Continuation::Created(Arc::clone(&created))),
            (list, Continuation::Listed { created, chroot, done }),
        ]);
    }
    let operation = request.operation();
    let steps = match &request {
        Request::Multi(requests) => requests.iter().map(Request::operation).collect(),
        _ => Vec::new(),
    };
    Exchange::One((request, Continuation::Reply { operation, steps, chroot, done }))
}

impl Continuation {
    /// Takes up the answer, on the I/O thread, or on the caller's if the request is refused: must not block.
    pub(crate) fn answered(self, answer: ZkResult<Answer>) {
        match self {
            Continuation::Reply { operation, steps, chroot, done } => {
                let reply = reply_of(operation, &steps, answer);
                done.finish(reply.and_then(|reply| chroot.remove_from(reply)));
            }
            Continuation::Created(created) => drop(created.set(answer.and_then(created_in))),
            Continuation::Listed { created, chroot, done } => {
                // The answers come in this order, on one thread, so the first continuation is gone.
                let created = Arc::into_inner(created).and_then(OnceLock::into_inner);
                let reply = enqueued_in(created.unwrap_or(Err(ZkError::ConnectionLoss)), answer);
                done.finish(reply.and_then(|reply| chroot.remove_from(reply)));
            }
        }
    }
}

fn enqueued_in(created: ZkResult<Reply>, listed: ZkResult<Answer>) -> ZkResult<Reply> {
    match created? {
        Reply::Created { path, stat } => {
            Ok(Reply::Enqueued(Enqueued { path, stat, children: names_in(listed) }))
        }
        _ => Err(ZkError::MarshallingError),
    }
}

/// The reply to a call whose request was of this operation, and in a transaction of these.
fn reply_of(operation: OpCode, steps: &[OpCode], answer: ZkResult<Answer>) -> ZkResult<Reply> {
    match (operation, answer) {
        (OpCode::Exists, Err(ZkError::NoNode)) => Ok(Reply::Found(None)),
        (_, Err(error)) => Err(error),
        (OpCode::Exists, Ok(Answer::Stat(stat))) => Ok(Reply::Found(Some(stat))),
        (OpCode::SetData, Ok(Answer::Stat(stat))) => Ok(Reply::Stat(stat)),
        (OpCode::Delete, Ok(Answer::Empty)) => Ok(Reply::Done),
        (OpCode::GetData, Ok(Answer::Data { data, stat })) => Ok(Reply::Data(data, stat)),
        (OpCode::GetChildren, answer) => names_in(answer).map(Reply::Children),
        (OpCode::Create2 | OpCode::CreateContainer, Ok(answer)) => created_in(answer),
        (OpCode::Multi, Ok(answer)) => transacted_in(steps, answer).map(Reply::Multi),
        _ => Err(ZkError::MarshallingError),
    }
}

fn created_in(answer: Answer) -> ZkResult<Reply> {
    match answer {
        Answer::Created { path, stat } => Ok(Reply::Created { path, stat: Some(stat) }),
        Answer::Path(path) => Ok(Reply::Created { path, stat: None }),
        _ => Err(ZkError::MarshallingError),
    }
}

fn names_in(answer: ZkResult<Answer>) -> ZkResult<crate::recipe::names::Names> {
    match answer? {
        Answer::Children(names) => Ok(names),
        _ => Err(ZkError::MarshallingError),
    }
}

fn transacted_in(steps: &[OpCode], answer: Answer) -> ZkResult<Transacted> {
    match answer.multi_failure() {
        // No operation has failed, but the transaction.
        Some((_, error)) if error == ZkError::SessionExpired || error.is_reply_lost() => return Err(error),
        Some((position, error)) => return Ok(Transacted::Failed { position, error }),
        None => {}
    }
    let Answer::Multi(answers) = answer else { return Err(ZkError::MarshallingError) };
    if answers.len() != steps.len() {
        return Err(ZkError::MarshallingError);
    }
    let outcome = |(step, answer): (&OpCode, ZkResult<Answer>)| match (step, answer?) {
        (OpCode::Create2 | OpCode::CreateContainer, Answer::Created { path, .. } | Answer::Path(path)) => {
            Ok(OpOutcome::Created(path))
        }
        (OpCode::Delete, Answer::Empty) => Ok(OpOutcome::Deleted),
        (OpCode::SetData, Answer::Stat(stat)) => Ok(OpOutcome::DataSet(stat)),
        (OpCode::Check, Answer::Empty) => Ok(OpOutcome::Checked),
        _ => Err(ZkError::MarshallingError),
    };
    steps.iter().zip(answers).map(outcome).collect::<ZkResult<_>>().map(Transacted::Committed)
}

impl<'a> Request<'a> {
    /// The request of a call, or the first of two.
    pub(crate) fn of(call: &'a Call) -> Request<'a> {
        match call {
            Call::Create { path, data, acl, mode } => Request::Create {
                path: (&**path).into(),
                data: (&**data).into(),
                acl: (&**acl).into(),
                mode: *mode,
            },
            Call::CreateAndList { dir, prefix, data, acl } => Request::Create {
                path: [&**dir, "/", &**prefix].concat().into(),
                data: (&**data).into(),
                acl: (&**acl).into(),
                mode: CreateMode::EphemeralSequential,
            },
            Call::Delete { path, version } => {
                Request::Delete { path: (&**path).into(), version: at(*version) }
            }
            Call::Exists { path, watch } => Request::Exists { path: (&**path).into(), watch: *watch },
            Call::GetData { path, watch } => Request::GetData { path: (&**path).into(), watch: *watch },
            Call::GetChildren { path, watch } => {
                Request::GetChildren { path: (&**path).into(), watch: *watch }
            }
            Call::SetData { path, data, version } => {
                Request::SetData { path: (&**path).into(), data: (&**data).into(), version: at(*version) }
            }
            Call::Multi(operations) => Request::Multi(operations.iter().map(Request::within_multi).collect()),
        }
    }

    fn within_multi(operation: &'a Op) -> Request<'a> {
        match operation {
            Op::Create { path, data, acl, mode } => {
                Request::Create { path: path.into(), data: data.into(), acl: acl.into(), mode: *mode }
            }
            Op::Delete { path, version } => Request::Delete { path: path.into(), version: at(*version) },
            Op::SetData { path, data, version } => {
                Request::SetData { path: path.into(), data: data.into(), version: at(*version) }
            }
            Op::Check { path, version } => Request::Check { path: path.into(), version: at(*version) },
        }
    }
}

/// The server takes -1 for any version.
fn at(version: Option<i32>) -> i32 {
    version.unwrap_or(-1)
}
