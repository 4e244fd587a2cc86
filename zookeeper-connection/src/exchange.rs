//! Splits a [`Call::CreateAndList`] into two requests, a create and a listing, and merges their replies into one
//! [`Reply`].

use std::sync::{Arc, OnceLock};

use crate::error::{ZkError, ZkResult};
use crate::{Call, Done, Enqueued, Reply};

/// The requests of a call, in order, each with its continuation.
#[derive(Debug)]
pub enum Exchange {
    One((Call, Continuation)),
    Two([(Call, Continuation); 2]),
}

/// Receives the outcome of one request.
#[derive(Debug)]
pub enum Continuation {
    Reply(Done),
    /// Keeps the outcome of the create for the continuation of the listing.
    Created(Arc<OnceLock<ZkResult<Reply>>>),
    /// Finishes the call with both outcomes.
    Listed {
        created: Arc<OnceLock<ZkResult<Reply>>>,
        done: Done,
    },
}

/// Splits a call into its requests.
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
    /// Handles the outcome. Must not block: it runs on the I/O thread, or on the caller's thread if the call is
    /// refused.
    pub fn answered(self, outcome: ZkResult<Reply>) {
        match self {
            Continuation::Reply(done) => done.finish(outcome),
            Continuation::Created(created) => drop(created.set(outcome)),
            Continuation::Listed { created, done } => {
                // The outcomes arrive in order, on one thread, so the first continuation is gone by now.
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
