//! A [`ZooKeeperClient`] on top of a client whose calls block: each call is made on its own thread.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use zookeeper_recipes_lock::client::CreateMode;
use zookeeper_recipes_lock::client::port::{
    Call, ClientEvent, Done, Enqueued, EventSink, Reply, ZooKeeperClient,
};
use zookeeper_recipes_lock::client::{ZkError, ZkResult};
use zookeeper_recipes_lock::fake::SimulatedClient;

pub(super) trait BlockingClient: Send + Sync {
    /// Makes a call. The call is never a [`Call::CreateAndList`].
    fn call(&self, call: &Call) -> ZkResult<Reply>;

    fn remove_watches(&self, path: &str);

    fn subscribe(&self, sink: EventSink) -> bool;

    fn session_timeout(&self) -> Duration;

    fn report_delay(&self) -> Duration;

    fn close(&self);
}

pub(super) fn port(client: Arc<impl BlockingClient + 'static>) -> Arc<dyn ZooKeeperClient> {
    Arc::new(OnThreads { client, under_way: Arc::default() })
}

struct OnThreads<T> {
    client: Arc<T>,
    under_way: Arc<Mutex<UnderWay>>,
}

/// The calls in flight, by number.
#[derive(Default)]
struct UnderWay {
    last: u64,
    calls: BTreeMap<u64, Done>,
}

fn fail_all(under_way: &Mutex<UnderWay>, error: ZkError) {
    let calls = std::mem::take(&mut under_way.lock().calls);
    calls.into_values().for_each(|done| done.finish(Err(error)));
}

fn make(client: &impl BlockingClient, call: &Call) -> ZkResult<Reply> {
    let Call::CreateAndList { dir, prefix, data, acl } = call else { return client.call(call) };
    let path = format!("{dir}/{prefix}");
    let create = Call::create(path, Arc::clone(data), Arc::clone(acl), CreateMode::EphemeralSequential);
    let (path, stat) = client.call(&create.call).and_then(create.read)?;
    let list = Call::get_children(Arc::clone(dir), false);
    let children = client.call(&list.call).and_then(list.read);
    Ok(Reply::Enqueued(Enqueued { path, stat, children }))
}

impl<T: BlockingClient + 'static> ZooKeeperClient for OnThreads<T> {
    fn submit(&self, call: Call, done: Done) {
        let (client, under_way) = (Arc::clone(&self.client), Arc::clone(&self.under_way));
        let number = {
            let mut under_way = under_way.lock();
            under_way.last += 1;
            let number = under_way.last;
            under_way.calls.insert(number, done);
            number
        };
        thread::spawn(move || {
            // A call that panics may have taken effect.
            let outcome = catch_unwind(AssertUnwindSafe(|| make(&*client, &call)));
            let outcome = outcome.unwrap_or(Err(ZkError::ConnectionLoss));
            let done = under_way.lock().calls.remove(&number);
            if let Some(done) = done {
                done.finish(outcome);
            }
        });
    }

    fn remove_watches(&self, path: &str) {
        self.client.remove_watches(path);
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        let under_way = Arc::clone(&self.under_way);
        self.client.subscribe(Arc::new(move |event| {
            let is_end = event == ClientEvent::SessionLost;
            sink(event);
            if is_end {
                fail_all(&under_way, ZkError::SessionExpired);
            }
        }))
    }

    fn session_timeout(&self) -> Duration {
        self.client.session_timeout()
    }

    fn report_delay(&self) -> Duration {
        self.client.report_delay()
    }

    fn close(&self) {
        self.client.close();
        fail_all(&self.under_way, ZkError::SessionExpired);
    }
}

impl<T> Drop for OnThreads<T> {
    fn drop(&mut self) {
        fail_all(&self.under_way, ZkError::ConnectionLoss);
    }
}

/// A client of the simulated server whose calls block.
pub(super) struct BlockingFake(Arc<SimulatedClient>);

impl BlockingFake {
    pub(super) fn on(client: Arc<SimulatedClient>) -> Arc<dyn ZooKeeperClient> {
        port(Arc::new(BlockingFake(client)))
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

    fn close(&self) {
        self.0.close();
    }
}
