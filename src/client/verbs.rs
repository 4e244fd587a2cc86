//! [`Verbs`]: a method for each call, which waits for the reply, for tests and the conformance suite.

use crossbeam_channel::bounded;

use super::{Acl, Ask, Call, CreateMode, Done, Enqueued, Op, Reply, Stat, Transacted, ZooKeeperClient};
use crate::error::{ZkError, ZkResult};
use crate::recipe::names::Names;

pub(crate) trait Verbs {
    /// Makes a call, and waits for the reply.
    fn make(&self, call: Call) -> ZkResult<Reply>;

    fn ask<T>(&self, ask: Ask<T>) -> ZkResult<T> {
        self.make(ask.call).and_then(ask.read)
    }

    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> ZkResult<String> {
        self.ask(Call::create(path, data, acl, mode)).map(|(path, _)| path)
    }

    fn create_and_list(&self, dir: &str, prefix: &str, data: &[u8], acl: &[Acl]) -> ZkResult<Enqueued> {
        self.ask(Call::create_and_list(dir, prefix, data, acl))
    }

    fn delete(&self, path: &str, version: Option<i32>) -> ZkResult<()> {
        self.ask(Call::delete(path, version))
    }

    fn exists(&self, path: &str, watch: bool) -> ZkResult<Option<Stat>> {
        self.ask(Call::exists(path, watch))
    }

    fn get_children(&self, path: &str, watch: bool) -> ZkResult<Names> {
        self.ask(Call::get_children(path, watch))
    }

    fn get_data(&self, path: &str, watch: bool) -> ZkResult<(Vec<u8>, Stat)> {
        self.ask(Call::get_data(path, watch))
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> ZkResult<Stat> {
        self.ask(Call::set_data(path, data, version))
    }

    fn transact(&self, operations: &[Op]) -> ZkResult<Transacted> {
        self.ask(Call::multi(operations))
    }
}

impl Verbs for dyn ZooKeeperClient + '_ {
    fn make(&self, call: Call) -> ZkResult<Reply> {
        let (sender, outcome) = bounded(1);
        self.submit(call, Done::new(move |result| drop(sender.send(result))));
        outcome.recv().unwrap_or(Err(ZkError::ConnectionLoss))
    }
}
