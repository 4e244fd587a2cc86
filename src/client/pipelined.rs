//! [`PipelinedClient`]: calls that do not wait for their replies.

use std::fmt;

use super::{Acl, CreateMode, Enqueued, Stat};
use crate::error::{ZkError, ZkResult};
use crate::recipe::names::Names;

/// A client that takes a call together with what follows from its outcome.
///
/// A session uses it where it can: no thread waits for a reply, and several calls are under way at
/// once. [`ZooKeeperClient::pipelined`](super::ZooKeeperClient::pipelined) gives access to it.
///
/// # The contract
/// That of [`ZooKeeperClient`](super::ZooKeeperClient), and for each call:
/// - It never blocks.
/// - It passes the outcome to `done`, on any thread, perhaps before it returns, and perhaps after the
///   outcomes of later calls. `done` never blocks, but it may make further calls. It must not be
///   called while a lock of the client is held.
/// - A call under way passes on an error when contact or the session is lost, or the client is closed
///   or dropped. A [`Done`] that a client forgets blocks a lock for ever.
/// - Calls take effect in the order in which one thread makes them, as long as they are made on one
///   connection.
///
/// The module `conformance` (feature `test-util`) checks this too.
///
/// Each method is the method of the same name of [`ZooKeeperClient`](super::ZooKeeperClient).
pub trait PipelinedClient {
    /// Creates a znode. Returns its path, and its metadata if the server has returned them.
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode, done: Done<Created>);

    /// Creates an ephemeral sequential znode, then lists its directory. A connection that is lost
    /// between the two replies is an error of the listing.
    fn create_and_list(&self, dir: &str, prefix: &str, data: &[u8], acl: &[Acl], done: Done<Enqueued>);

    /// Deletes a znode.
    fn delete(&self, path: &str, version: Option<i32>, done: Done<()>);

    /// Returns a znode's metadata.
    fn exists(&self, path: &str, watch: bool, done: Done<Option<Stat>>);

    /// Returns the names of a znode's children.
    fn get_children(&self, path: &str, watch: bool, done: Done<Names>);

    /// Returns a znode's data and metadata.
    fn get_data(&self, path: &str, watch: bool, done: Done<(Vec<u8>, Stat)>);

    /// Replaces a znode's data.
    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>, done: Done<Stat>);
}

/// The path of a new znode, and its metadata if the server has returned them.
pub type Created = (String, Option<Stat>);

/// What follows from the outcome of a call.
///
/// Dropping it unused passes on a [`ConnectionLoss`](ZkError): the outcome is unknown.
pub struct Done<T> {
    continuation: Option<Continuation<T>>,
}

type Continuation<T> = Box<dyn FnOnce(ZkResult<T>) + Send>;

impl<T> Done<T> {
    pub(crate) fn new(continuation: impl FnOnce(ZkResult<T>) + Send + 'static) -> Done<T> {
        Done { continuation: Some(Box::new(continuation)) }
    }

    /// Passes on the outcome.
    pub fn finish(mut self, outcome: ZkResult<T>) {
        if let Some(continuation) = self.continuation.take() {
            continuation(outcome);
        }
    }
}

impl<T> Drop for Done<T> {
    fn drop(&mut self) {
        if let Some(continuation) = self.continuation.take() {
            continuation(Err(ZkError::ConnectionLoss));
        }
    }
}

impl<T> fmt::Debug for Done<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done").finish_non_exhaustive()
    }
}

/// Makes each call of a client that blocks, on the calling thread.
pub(crate) struct Blocking<'a>(pub(crate) &'a dyn super::ZooKeeperClient);

impl PipelinedClient for Blocking<'_> {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode, done: Done<Created>) {
        done.finish(self.0.create(path, data, acl, mode).map(|path| (path, None)));
    }

    fn create_and_list(&self, dir: &str, prefix: &str, data: &[u8], acl: &[Acl], done: Done<Enqueued>) {
        done.finish(self.0.create_and_list(dir, prefix, data, acl));
    }

    fn delete(&self, path: &str, version: Option<i32>, done: Done<()>) {
        done.finish(self.0.delete(path, version));
    }

    fn exists(&self, path: &str, watch: bool, done: Done<Option<Stat>>) {
        done.finish(self.0.exists(path, watch));
    }

    fn get_children(&self, path: &str, watch: bool, done: Done<Names>) {
        done.finish(self.0.get_children(path, watch));
    }

    fn get_data(&self, path: &str, watch: bool, done: Done<(Vec<u8>, Stat)>) {
        done.finish(self.0.get_data(path, watch));
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>, done: Done<Stat>) {
        done.finish(self.0.set_data(path, data, version));
    }
}
