//! [`Verbs`]: a blocking method for each call.

use crate::error::ZkResult;
use crate::{Acl, Ask, Call, CreateMode, Enqueued, Names, Op, Reply, Stat, Transacted};

/// Blocking methods, one for each [`Call`].
///
/// Each method waits for the reply.
///
/// # Errors
/// Each method fails as its call does. In particular, after [`ConnectionLoss`](crate::ZkError::ConnectionLoss), it is
/// not known whether the call has taken effect.
pub trait Verbs {
    /// Makes a call and waits for the reply.
    ///
    /// # Errors
    /// See [`Verbs`].
    fn make(&self, call: Call) -> ZkResult<Reply>;

    /// Makes a call, waits for the reply and reads it.
    ///
    /// # Errors
    /// See [`Verbs`].
    fn ask<T>(&self, ask: Ask<T>) -> ZkResult<T> {
        self.make(ask.call).and_then(ask.read)
    }

    /// Makes a [`Call::Create`].
    ///
    /// Returns the path of the znode, with its sequence number if it has one.
    ///
    /// # Errors
    /// See [`Verbs`].
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> ZkResult<String> {
        self.ask(Call::create(path, data, acl, mode)).map(|(path, _)| path)
    }

    /// Makes a [`Call::CreateAndList`].
    ///
    /// # Errors
    /// See [`Verbs`].
    fn create_and_list(&self, dir: &str, prefix: &str, data: &[u8], acl: &[Acl]) -> ZkResult<Enqueued> {
        self.ask(Call::create_and_list(dir, prefix, data, acl))
    }

    /// Makes a [`Call::Delete`], at any version if `version` is `None`.
    ///
    /// # Errors
    /// See [`Verbs`].
    fn delete(&self, path: &str, version: Option<i32>) -> ZkResult<()> {
        self.ask(Call::delete(path, version))
    }

    /// Makes a [`Call::Exists`].
    ///
    /// Returns the metadata, or `None` if there is no such znode.
    ///
    /// # Errors
    /// See [`Verbs`].
    fn exists(&self, path: &str, watch: bool) -> ZkResult<Option<Stat>> {
        self.ask(Call::exists(path, watch))
    }

    /// Makes a [`Call::GetChildren`].
    ///
    /// # Errors
    /// See [`Verbs`].
    fn get_children(&self, path: &str, watch: bool) -> ZkResult<Names> {
        self.ask(Call::get_children(path, watch))
    }

    /// Makes a [`Call::GetData`].
    ///
    /// # Errors
    /// See [`Verbs`].
    fn get_data(&self, path: &str, watch: bool) -> ZkResult<(Vec<u8>, Stat)> {
        self.ask(Call::get_data(path, watch))
    }

    /// Makes a [`Call::SetData`], at any version if `version` is `None`.
    ///
    /// # Errors
    /// See [`Verbs`].
    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> ZkResult<Stat> {
        self.ask(Call::set_data(path, data, version))
    }

    /// Makes a [`Call::Multi`].
    ///
    /// # Errors
    /// See [`Verbs`].
    fn transact(&self, operations: &[Op]) -> ZkResult<Transacted> {
        self.ask(Call::multi(operations))
    }
}
