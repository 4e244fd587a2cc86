//! [`Subject`]: something that is tracked. [`Look`]: a step of reading it.

use std::sync::Arc;

use crate::client::Names;
use crate::client::{Ask, Call, Reply, Stat};
use crate::error::{ZkError, ZkResult};
use crate::recipe::path::ZNodePath;

/// Something on the server that can be tracked.
pub(crate) trait Subject: Send + Sync + 'static {
    /// The result of a look.
    type Value: Clone + PartialEq + Send + 'static;

    /// The path that errors name.
    fn path(&self) -> &ZNodePath;

    /// Begins one look. The look leaves a watch on everything whose change may make the value stale. Never
    /// blocks.
    fn look(self: &Arc<Self>) -> Look<Self::Value>;
}

/// The next step of a look.
pub(crate) enum Look<T> {
    /// A call, and its continuation.
    Call(Call, Then<T>),
    Seen(T),
    /// The subject changed during the look, so another look is needed.
    ChangedMeanwhile,
    Failed(ZkError),
}

/// The continuation of a call.
pub(crate) type Then<T> = Box<dyn FnOnce(ZkResult<Reply>) -> Look<T> + Send>;

impl<T: Send + 'static> Look<T> {
    /// Makes a call. `then` must return an error that it does not expect as [`Look::Failed`].
    pub(crate) fn ask<R: 'static>(
        ask: Ask<R>,
        then: impl FnOnce(ZkResult<R>) -> Look<T> + Send + 'static,
    ) -> Look<T> {
        let Ask { call, read } = ask;
        Look::Call(call, Box::new(move |outcome| then(outcome.and_then(read))))
    }

    /// Reads a znode, and leaves a watch that fires when the znode changes or is deleted. Leaves no watch if
    /// there is no such znode.
    pub(crate) fn data(
        path: &ZNodePath,
        then: impl FnOnce(ZkResult<(Vec<u8>, Stat)>) -> Look<T> + Send + 'static,
    ) -> Look<T> {
        Look::ask(Call::get_data(path, true), then)
    }

    /// Lists the children of a znode, and leaves a watch that fires when a child is created or deleted.
    /// Leaves no watch if there is no such znode.
    pub(crate) fn children(
        path: &ZNodePath,
        then: impl FnOnce(ZkResult<Names>) -> Look<T> + Send + 'static,
    ) -> Look<T> {
        Look::ask(Call::get_children(path, true), then)
    }

    /// Checks that a znode that was not found is still missing. If so, the look ends with `value` and leaves
    /// a watch that fires when the znode is created.
    pub(crate) fn absence(path: &ZNodePath, value: T) -> Look<T> {
        Look::ask(Call::exists(path, true), move |found| match found {
            Ok(None) => Look::Seen(value),
            Ok(Some(_)) => Look::ChangedMeanwhile,
            Err(error) => Look::Failed(error),
        })
    }
}
