//! [`BlockingClient`]: a client whose calls block, for tests that intercept calls. [`port`] wraps such a
//! client for a session.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::client::{
    Call, ClientEvent, DEFAULT_JUTE_MAX_BUFFER, Done, EventSink, Granted, Reply, SessionRuntime,
    ZooKeeperClient, call_in_parts, contain_call,
};
use crate::error::{ZkError, ZkResult};
use crate::fake::SimulatedClient;
use crate::session::Threads;
use crate::time::{Priority, Runtime};

/// A client whose calls wait for their replies. Calls from different threads may take effect in any order.
/// For the other methods, see [`ZooKeeperClient`].
pub(crate) trait BlockingClient: Send + Sync {
    /// Makes a call. The call is never a [`Call::CreateAndList`].
    fn call(&self, call: &Call) -> ZkResult<Reply>;

    fn remove_watches(&self, path: &str) {
        let _ = path;
    }

    fn subscribe(&self, sink: EventSink) -> bool;

    fn session_timeout(&self) -> Duration;

    fn report_delay(&self) -> Duration {
        Granted::new(self.session_timeout()).report_delay
    }

    fn reports_pings(&self) -> bool {
        false
    }

    fn min_idle_for_ping(&self) -> Duration {
        Duration::ZERO
    }

    fn owns_session(&self) -> bool {
        true
    }

    fn jute_max_buffer(&self) -> usize {
        DEFAULT_JUTE_MAX_BUFFER
    }

    fn close(&self);
}

/// Makes any call on a blocking client.
pub(crate) fn call_blocking(client: &(impl BlockingClient + ?Sized), call: &Call) -> ZkResult<Reply> {
    call_in_parts(call, |part| client.call(part))
}

/// Wraps a blocking client for a session. The client's calls run on the session's threads.
pub(crate) fn port(client: Arc<impl BlockingClient + 'static>) -> Arc<dyn ZooKeeperClient> {
    Arc::new(OnWorkers { client, runtime: Mutex::default(), under_way: Arc::default() })
}

/// Reports each outcome on the thread that made the call. When the session or the client ends, the thread that ends it
/// reports the outcomes of all calls in flight.
struct OnWorkers<T> {
    client: Arc<T>,
    runtime: Mutex<Option<SessionRuntime>>,
    under_way: Arc<Mutex<UnderWay>>,
}

/// The calls in flight, by number.
#[derive(Default)]
struct UnderWay {
    last: u64,
    calls: BTreeMap<u64, Done>,
}

/// A call in flight. If this is dropped, for example because the runtime drops the job that would make the call, the
/// call fails with `ConnectionLoss`.
struct Ending {
    under_way: Arc<Mutex<UnderWay>>,
    number: u64,
}

impl Ending {
    fn finish(&self, outcome: ZkResult<Reply>) {
        let done = self.under_way.lock().calls.remove(&self.number);
        if let Some(done) = done {
            done.finish(outcome);
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.finish(Err(ZkError::ConnectionLoss));
    }
}

fn fail_all(under_way: &Mutex<UnderWay>, error: ZkError) {
    let calls = std::mem::take(&mut under_way.lock().calls);
    calls.into_values().for_each(|done| done.finish(Err(error)));
}

impl<T> OnWorkers<T> {
    /// Returns the runtime of the session or, without a session, the client's own.
    fn runtime(&self) -> Arc<dyn Runtime> {
        let mut runtime = self.runtime.lock();
        if let Some(runtime) = runtime.as_ref().and_then(SessionRuntime::get) {
            return runtime;
        }
        let threads: Arc<dyn Runtime> = Threads::start().unwrap();
        *runtime = Some(SessionRuntime::of(&threads));
        threads
    }
}

impl<T: BlockingClient + 'static> ZooKeeperClient for OnWorkers<T> {
    fn run_on(&self, runtime: &SessionRuntime) {
        *self.runtime.lock() = Some(runtime.clone());
    }

    fn submit(&self, call: Call, done: Done) {
        let (client, under_way) = (Arc::clone(&self.client), Arc::clone(&self.under_way));
        let priority = Priority::of_urgency(done.urgency());
        let number = {
            let mut under_way = under_way.lock();
            under_way.last += 1;
            let number = under_way.last;
            under_way.calls.insert(number, done);
            number
        };
        let ending = Ending { under_way, number };
        let make = move || {
            ending.finish(contain_call("the ZooKeeper client", || call_blocking(&*client, &call)));
        };
        self.runtime().submit(priority, Box::new(make));
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

    fn reports_pings(&self) -> bool {
        self.client.reports_pings()
    }

    fn min_idle_for_ping(&self) -> Duration {
        self.client.min_idle_for_ping()
    }

    fn owns_session(&self) -> bool {
        self.client.owns_session()
    }

    fn jute_max_buffer(&self) -> usize {
        self.client.jute_max_buffer()
    }

    fn close(&self) {
        self.client.close();
        fail_all(&self.under_way, ZkError::SessionExpired);
    }
}

impl<T> Drop for OnWorkers<T> {
    fn drop(&mut self) {
        fail_all(&self.under_way, ZkError::ConnectionLoss);
    }
}

/// A client of the simulated server whose calls block.
pub(crate) struct BlockingFake(Arc<SimulatedClient>);

impl BlockingFake {
    pub(crate) fn on(client: Arc<SimulatedClient>) -> Arc<dyn ZooKeeperClient> {
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
