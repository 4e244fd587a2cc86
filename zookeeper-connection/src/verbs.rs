//! [`Verbs`]: a method for each call, which waits for the reply.

use crate::error::ZkResult;
use crate::{Acl, Ask, Call, CreateMode, Enqueued, Names, Op, Reply, Stat, Transacted};

/// A method for each [`Call`], which blocks until the reply has come.
///
/// # Errors
/// Each fails as its call does. In particular, [`ConnectionLoss`](crate::ZkError::ConnectionLoss) leaves open
/// whether the call has taken effect.
pub trait Verbs {
    /// Makes a call, and waits for the reply.
    ///
    /// # Errors
    /// See [`Verbs`].
    fn make(&self, call: Call) -> ZkResult<Reply>;

    /// Makes a call, and reads its reply.
    ///
    /// # Errors
    /// See [`Verbs`].
    fn ask<T>(&self, ask: Ask<T>) -> ZkResult<T> {
        self.make(ask.call).and_then(ask.read)
    }

    /// [`Call::Create`]. Returns the path of the znode, with its sequence number if it has one.
    ///
    /// # Errors
    /// See [`Verbs`].
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> ZkResult<String> {
        self.ask(Call::create(path, data, acl, mode)).map(|(path, _)| path)
    }

    /// [`Call::CreateAndList`].
    ///
    /// # Errors
    /// See [`Verbs`].
    fn create_and_list(&self, dir: &str, prefix: &str, data: &[u8], acl: &[Acl]) -> ZkResult<Enqueued> {
        self.ask(Call::create_and_list(dir, prefix, data, acl))
    }

    /// [`Call::Delete`], at any version for `None`.
    ///
    /// # Errors
    /// See [`Verbs`].
    fn delete(&self, path: &str, version: Option<i32>) -> ZkResult<()> {
        self.ask(Call::delete(path, version))
    }

    /// [`Call::Exists`]. Returns the metadata, or `None` if there is no such znode.
    ///
    /// # Errors
    /// See [`Verbs`].
    fn exists(&self, path: &str, watch: bool) -> ZkResult<Option<Stat>> {
        self.ask(Call::exists(path, watch))
    }

    /// [`Call::GetChildren`].
    ///
    /// # Errors
    /// See [`Verbs`].
    fn get_children(&self, path: &str, watch: bool) -> ZkResult<Names> {
        self.ask(Call::get_children(path, watch))
    }

    /// [`Call::GetData`].
    ///
    /// # Errors
    /// See [`Verbs`].
    fn get_data(&self, path: &str, watch: bool) -> ZkResult<(Vec<u8>, Stat)> {
        self.ask(Call::get_data(path, watch))
    }

    /// [`Call::SetData`], at any version for `None`.
    ///
    /// # Errors
    /// See [`Verbs`].
    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> ZkResult<Stat> {
        self.ask(Call::set_data(path, data, version))
    }

    /// [`Call::Multi`].
    ///
    /// # Errors
    /// See [`Verbs`].
    fn transact(&self, operations: &[Op]) -> ZkResult<Transacted> {
        self.ask(Call::multi(operations))
    }
}
