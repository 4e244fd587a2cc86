//! Pairs what goes together: a [`Call::CreateAndList`] is a creation and a listing on the wire, and has
//! one [`Reply`].

use std::sync::{Arc, OnceLock};

use crate::error::{ZkError, ZkResult};
use crate::{Call, Done, Enqueued, Reply};

/// What a call is on the wire, in order, each with its continuation.
#[derive(Debug)]
pub enum Exchange {
    One((Call, Continuation)),
    Two([(Call, Continuation); 2]),
}

/// What takes up the outcome of a call on the wire.
#[derive(Debug)]
pub enum Continuation {
    Reply(Done),
    /// The first of two outcomes, which is kept for the second.
    Created(Arc<OnceLock<ZkResult<Reply>>>),
    Listed {
        created: Arc<OnceLock<ZkResult<Reply>>>,
        done: Done,
    },
}

pub fn exchange(call: Call, done: Done) -> Exchange {
    let Call::CreateAndList { dir, .. } = &call else {
        return Exchange::One((call, Continuation::Reply(done)));
    };
    let created = Arc::new(OnceLock::new());
    let list = Call::GetChildren { path: Arc::clone(dir), watch: false };
    Exchange::Two([
        (call, Continuation::Created(Arc::clone(&created))),
        (list, Continuation::Listed { created, done }),
    ])
}

impl Continuation {
    /// Takes up the outcome, on the I/O thread, or on the caller's if the call is refused: must not block.
    pub fn answered(self, outcome: ZkResult<Reply>) {
        match self {
            Continuation::Reply(done) => done.finish(outcome),
            Continuation::Created(created) => drop(created.set(outcome)),
            Continuation::Listed { created, done } => {
                // The outcomes come in this order, on one thread, so the first continuation is gone.
                let created = Arc::into_inner(created).and_then(OnceLock::into_inner);
                done.finish(enqueued(created.unwrap_or(Err(ZkError::ConnectionLoss)), outcome));
            }
        }
    }
}

fn enqueued(created: ZkResult<Reply>, listed: ZkResult<Reply>) -> ZkResult<Reply> {
    let (path, stat) = created?.created()?;
    Ok(Reply::Enqueued(Enqueued { path, stat, children: listed.and_then(Reply::children) }))
}
