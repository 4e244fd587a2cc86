//! [`BlockingFake`]: a client of the fake server whose calls block.

use std::sync::Arc;
use std::time::Duration;

use crate::client::{BlockingClient, Call, EventSink, Reply, ZooKeeperClient};
use crate::error::ZkResult;
use crate::fake::SimulatedClient;

/// A client for the tests of [`BlockingClient`] itself: each call is made on a worker of the session's.
pub(crate) struct BlockingFake(Arc<SimulatedClient>);

impl BlockingFake {
    pub(crate) fn on(client: Arc<SimulatedClient>) -> Arc<BlockingFake> {
        Arc::new(BlockingFake(client))
    }
}

impl BlockingClient for BlockingFake {
    fn call(&self, call: &Call) -> ZkResult<Reply> {
        self.0.call(call)
    }

    fn remove_watches(&self, path: &str) {
        self.0.remove_watches(path);
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        self.0.subscribe(sink)
    }

    fn session_timeout(&self) -> Duration {
        self.0.session_timeout()
    }

    fn report_delay(&self) -> Duration {
        self.0.report_delay()
    }

    fn min_idle_for_ping(&self) -> Duration {
        self.0.min_idle_for_ping()
    }

    fn owns_session(&self) -> bool {
        self.0.owns_session()
    }

    fn close(&self) {
        self.0.close();
    }
}
