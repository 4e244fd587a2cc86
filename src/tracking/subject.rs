//! [`Subject`]: something that is tracked, and the looks at it.

use std::sync::Arc;

use crate::client::port::Names;
use crate::client::{Ask, Call, Reply, Stat};
use crate::error::{ZkError, ZkResult};
use crate::recipe::path::ZNodePath;

/// Something that is tracked.
pub(crate) trait Subject: Send + Sync + 'static {
    /// The result of a look.
    type Value: Clone + PartialEq + Send + 'static;

    /// The path that errors name.
    fn path(&self) -> &ZNodePath;

    /// Looks once, and leaves a watch for everything that may outdate the value. Never blocks.
    fn look(self: &Arc<Self>) -> Look<Self::Value>;
}

/// The next step of a look.
pub(crate) enum Look<T> {
    /// A call, and its continuation.
    Call(Call, Then<T>),
    Seen(T),
    /// It changed while it was looked at, so that no watch was left.
    ChangedMeanwhile,
    Failed(ZkError),
}

/// The continuation of a call.
pub(crate) type Then<T> = Box<dyn FnOnce(ZkResult<Reply>) -> Look<T> + Send>;

impl<T: Send + 'static> Look<T> {
    /// Makes a call. A refusal that `then` does not expect is to be passed on as [`Look::Failed`].
    pub(crate) fn ask<R: 'static>(
        ask: Ask<R>,
        then: impl FnOnce(ZkResult<R>) -> Look<T> + Send + 'static,
    ) -> Look<T> {
        let Ask { call, read } = ask;
        Look::Call(call, Box::new(move |outcome| then(outcome.and_then(read))))
    }

    /// Reads a znode; the watch fires when it changes or goes. None is left where there is no such
    /// znode.
    pub(crate) fn data(
        path: &ZNodePath,
        then: impl FnOnce(ZkResult<(Vec<u8>, Stat)>) -> Look<T> + Send + 'static,
    ) -> Look<T> {
        Look::ask(Call::get_data(path, true), then)
    }

    /// Lists the children of a znode; the watch fires when one comes or goes. None is left where
    /// there is no such znode.
    pub(crate) fn children(
        path: &ZNodePath,
        then: impl FnOnce(ZkResult<Names>) -> Look<T> + Send + 'static,
    ) -> Look<T> {
        Look::ask(Call::get_children(path, true), then)
    }

    /// Looks whether a znode that was not found is still missing, which is seen as `value`; the
    /// watch fires when it comes.
    pub(crate) fn absence(path: &ZNodePath, value: T) -> Look<T> {
        Look::ask(Call::exists(path, true), move |found| match found {
            Ok(None) => Look::Seen(value),
            Ok(Some(_)) => Look::ChangedMeanwhile,
            Err(error) => Look::Failed(error),
        })
    }
}
