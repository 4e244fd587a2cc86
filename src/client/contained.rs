//! Catches the panics of a client.

use crate::error::{ZkError, ZkResult};
use crate::logging;
use crate::panics::contain;

/// Makes a call that may panic. After a panic, the call may have taken effect, like a call whose reply was lost.
pub(crate) fn contain_call<T>(who: &str, call: impl FnOnce() -> ZkResult<T>) -> ZkResult<T> {
    contain(call).unwrap_or_else(|message| {
        logging::error!("{who} panicked, so the outcome of a call is unknown: {message}");
        Err(ZkError::ConnectionLoss)
    })
}
