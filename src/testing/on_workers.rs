//! [`OnWorkers`]: makes a pipelined client of one that blocks.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::client::{
    Acl, CreateMode, Created, Done, Enqueued, EventSink, Op, PipelinedClient, Stat, Transacted,
    ZooKeeperClient, contain_call,
};
use crate::error::ZkResult;
use crate::recipe::names::Names;
use crate::time::{Job, Priority, Runtime};

/// Makes the calls on the session's workers, and passes on their outcomes there.
pub(crate) struct OnWorkers {
    client: Arc<dyn ZooKeeperClient>,
    /// Without one, calls are made where they are submitted.
    runtime: Option<Weak<dyn Runtime>>,
    /// What is held back of the next calls of `get_data`.
    holds: Mutex<VecDeque<Hold>>,
    held: Mutex<VecDeque<Job>>,
}

/// What is held back of a call.
#[derive(Clone, Copy)]
pub(crate) enum Hold {
    Call,
    Reply,
}

impl OnWorkers {
    pub(crate) fn new(client: Arc<dyn ZooKeeperClient>, runtime: &Arc<dyn Runtime>) -> Arc<OnWorkers> {
        OnWorkers::on(client, Some(Arc::downgrade(runtime)))
    }

    pub(crate) fn on_the_calling_thread(client: Arc<dyn ZooKeeperClient>) -> Arc<OnWorkers> {
        OnWorkers::on(client, None)
    }

    fn on(client: Arc<dyn ZooKeeperClient>, runtime: Option<Weak<dyn Runtime>>) -> Arc<OnWorkers> {
        Arc::new(OnWorkers { client, runtime, holds: Mutex::default(), held: Mutex::default() })
    }

    /// Holds something back of the next call of `get_data` for which nothing is held back yet.
    pub(crate) fn hold_next(&self, hold: Hold) {
        self.holds.lock().push_back(hold);
    }

    /// Makes the first call that is held back, or passes on its reply.
    pub(crate) fn release_first(&self) {
        let held = self.held.lock().pop_front();
        held.expect("something is held back")();
    }

    fn submit<T: 'static>(
        &self,
        done: Done<T>,
        call: impl FnOnce(&dyn ZooKeeperClient) -> ZkResult<T> + Send + 'static,
    ) {
        let client = Arc::clone(&self.client);
        let job = move || done.finish(contain_call("the client", || call(&*client)));
        match self.runtime.as_ref().map(Weak::upgrade) {
            None => job(),
            Some(Some(runtime)) => runtime.submit(Priority::Other, Box::new(job)),
            // The session has ended.
            Some(None) => {}
        }
    }
}

impl PipelinedClient for OnWorkers {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode, done: Done<Created>) {
        let (path, data, acl) = (path.to_owned(), data.to_owned(), acl.to_owned());
        self.submit(done, move |client| client.create(&path, &data, &acl, mode).map(|path| (path, None)));
    }

    fn create_and_list(&self, dir: &str, prefix: &str, data: &[u8], acl: &[Acl], done: Done<Enqueued>) {
        let (dir, prefix, data, acl) = (dir.to_owned(), prefix.to_owned(), data.to_owned(), acl.to_owned());
        self.submit(done, move |client| client.create_and_list(&dir, &prefix, &data, &acl));
    }

    fn delete(&self, path: &str, version: Option<i32>, done: Done<()>) {
        let path = path.to_owned();
        self.submit(done, move |client| client.delete(&path, version));
    }

    fn exists(&self, path: &str, watch: bool, done: Done<Option<Stat>>) {
        let path = path.to_owned();
        self.submit(done, move |client| client.exists(&path, watch));
    }

    fn get_children(&self, path: &str, watch: bool, done: Done<Names>) {
        let path = path.to_owned();
        self.submit(done, move |client| client.get_children(&path, watch));
    }

    fn get_data(&self, path: &str, watch: bool, done: Done<(Vec<u8>, Stat)>) {
        let path = path.to_owned();
        let call = move |client: &dyn ZooKeeperClient| client.get_data(&path, watch);
        let hold = self.holds.lock().pop_front();
        let held: Job = match hold {
            None => return self.submit(done, call),
            Some(Hold::Call) => {
                let client = Arc::clone(&self.client);
                Box::new(move || done.finish(call(&*client)))
            }
            Some(Hold::Reply) => {
                let result = call(&*self.client);
                Box::new(move || done.finish(result))
            }
        };
        self.held.lock().push_back(held);
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>, done: Done<Stat>) {
        let (path, data) = (path.to_owned(), data.to_owned());
        self.submit(done, move |client| client.set_data(&path, &data, version));
    }
}

impl ZooKeeperClient for OnWorkers {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> ZkResult<String> {
        self.client.create(path, data, acl, mode)
    }

    fn delete(&self, path: &str, version: Option<i32>) -> ZkResult<()> {
        self.client.delete(path, version)
    }

    fn exists(&self, path: &str, watch: bool) -> ZkResult<Option<Stat>> {
        self.client.exists(path, watch)
    }

    fn get_children(&self, path: &str, watch: bool) -> ZkResult<Names> {
        self.client.get_children(path, watch)
    }

    fn get_data(&self, path: &str, watch: bool) -> ZkResult<(Vec<u8>, Stat)> {
        self.client.get_data(path, watch)
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> ZkResult<Stat> {
        self.client.set_data(path, data, version)
    }

    fn transact(&self, operations: &[Op]) -> ZkResult<Transacted> {
        self.client.transact(operations)
    }

    fn remove_watches(&self, path: &str, is_unwanted: &dyn Fn() -> bool) {
        self.client.remove_watches(path, is_unwanted);
    }

    fn pipelined(&self) -> Option<&dyn PipelinedClient> {
        Some(self)
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        self.client.subscribe(sink)
    }

    fn session_id(&self) -> Option<i64> {
        self.client.session_id()
    }

    fn session_timeout(&self) -> Duration {
        self.client.session_timeout()
    }

    fn report_delay(&self) -> Duration {
        self.client.report_delay()
    }

    fn min_idle_for_ping(&self) -> Duration {
        self.client.min_idle_for_ping()
    }

    fn reports_pings(&self) -> bool {
        self.client.reports_pings()
    }

    fn owns_session(&self) -> bool {
        self.client.owns_session()
    }

    fn close(&self) {
        self.client.close();
    }
}
