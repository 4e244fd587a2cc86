//! [`BlockingClient`], and the [`ZooKeeperClient`] that wraps one.

use std::any::Any;
use std::collections::BTreeMap;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use log::Level;
use parking_lot::Mutex;
use zookeeper_recipes_lock::client::CreateMode;
use zookeeper_recipes_lock::client::port::{
    Call, ClientEvent, Done, Enqueued, EventSink, Granted, Reply, ZooKeeperClient,
};
use zookeeper_recipes_lock::client::{ZkError, ZkResult};

use crate::logging;
use crate::workers::Workers;

/// A client whose calls wait for their replies.
///
/// This is the simplest kind of client to write. [`on_workers`] makes its calls on separate threads, several at once,
/// and a waiting lock occupies none of these threads. If you implement [`ZooKeeperClient`] without blocking
/// instead, you save the threads and some round trips.
///
/// # The contract
/// The contract is that of [`ZooKeeperClient`], which documents the methods with the same names, except for
/// these differences:
/// - A call blocks until the server has answered or contact is lost. It may block for as long as the network
///   swallows packets.
/// - Calls from different threads may take effect in any order.
/// - On the thread that calls the sink, the sink calls no method of the client except
///   [`remove_watches`](BlockingClient::remove_watches). So the client may call the sink while it holds a
///   lock, provided that `remove_watches` does not take that lock.
pub trait BlockingClient: Send + Sync {
    /// Makes a call and returns the reply of its kind.
    ///
    /// The call is never a [`Call::CreateAndList`], because [`on_workers`] makes its two calls in sequence.
    /// For a call that it does not know, the client returns
    /// [`Unimplemented`](zookeeper_recipes_lock::client::ZkError::Unimplemented).
    ///
    /// # Errors
    /// The errors that the call documents, and those in the contract of [`ZooKeeperClient`].
    fn call(&self, call: &Call) -> ZkResult<Reply>;

    /// See [`ZooKeeperClient::remove_watches`].
    fn remove_watches(&self, path: &str) {
        let _ = path;
    }

    /// See [`ZooKeeperClient::subscribe`].
    fn subscribe(&self, sink: EventSink) -> bool;

    /// See [`ZooKeeperClient::session_id`].
    fn session_id(&self) -> Option<i64> {
        None
    }

    /// See [`ZooKeeperClient::server`].
    fn server(&self) -> Option<String> {
        None
    }

    /// See [`ZooKeeperClient::session_timeout`].
    fn session_timeout(&self) -> Duration;

    /// See [`ZooKeeperClient::report_delay`].
    fn report_delay(&self) -> Duration {
        Granted::new(self.session_timeout()).report_delay
    }

    /// See [`ZooKeeperClient::reports_pings`].
    fn reports_pings(&self) -> bool {
        false
    }

    /// See [`ZooKeeperClient::min_idle_for_ping`].
    fn min_idle_for_ping(&self) -> Duration {
        Duration::ZERO
    }

    /// See [`ZooKeeperClient::owns_session`].
    fn owns_session(&self) -> bool {
        true
    }

    /// See [`ZooKeeperClient::jute_max_buffer`].
    fn jute_max_buffer(&self) -> usize {
        1024 * 1024
    }

    /// See [`ZooKeeperClient::chroot`].
    fn chroot(&self) -> Option<String> {
        None
    }

    /// See [`ZooKeeperClient::close`].
    fn close(&self);
}

/// Wraps a blocking client for [`Session::from_client`](zookeeper_recipes_lock::Session::from_client).
///
/// Threads are started when there are calls to make. At most 16 of them serve calls that may have to wait for other
/// calls. A session that ends waits for none of the threads.
pub fn on_workers<T: BlockingClient + ?Sized + 'static>(client: Arc<T>) -> Arc<dyn ZooKeeperClient> {
    Arc::new(OnWorkers { client, workers: Workers::new(), under_way: Arc::default() })
}

/// See [`on_workers`].
struct OnWorkers<T: ?Sized> {
    client: Arc<T>,
    workers: Workers,
    under_way: Arc<UnderWay>,
}

/// The calls in flight. Whatever removes a call from the map ends the call: its worker, with the outcome, or the end of
/// the session.
#[derive(Default)]
struct UnderWay(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    last: u64,
    by_number: BTreeMap<u64, Done>,
    has_ended: bool,
}

impl UnderWay {
    /// Registers a call and returns its number. After the end of the session, the call fails instead.
    fn begin(&self, done: Done) -> Option<u64> {
        let mut calls = self.0.lock();
        if calls.has_ended {
            drop(calls);
            done.finish(Err(ZkError::SessionExpired));
            return None;
        }
        calls.last += 1;
        let number = calls.last;
        calls.by_number.insert(number, done);
        Some(number)
    }

    fn finish(&self, number: u64, outcome: ZkResult<Reply>) {
        let done = self.0.lock().by_number.remove(&number);
        if let Some(done) = done {
            done.finish(outcome);
        }
    }

    /// Fails the calls in flight, which may be stuck, and all later ones.
    fn end(&self) {
        let ended = {
            let mut calls = self.0.lock();
            calls.has_ended = true;
            mem::take(&mut calls.by_number)
        };
        ended.into_values().for_each(|done| done.finish(Err(ZkError::SessionExpired)));
    }
}

/// Ends a call whose job is dropped because there is no thread for it.
struct Ending {
    under_way: Arc<UnderWay>,
    number: u64,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.under_way.finish(self.number, Err(ZkError::ConnectionLoss));
    }
}

/// Makes a call of any kind. A panic is caught and counts as a lost reply, because the call may have taken
/// effect.
fn make<T: BlockingClient + ?Sized>(client: &T, call: &Call) -> ZkResult<Reply> {
    let outcome = catch_unwind(AssertUnwindSafe(|| match call {
        Call::CreateAndList { .. } => create_and_list(client, call),
        call => client.call(call),
    }));
    outcome.unwrap_or_else(|panic| {
        let message = message_of(&*panic);
        let line =
            format_args!("the ZooKeeper client panicked, so the outcome of a call is unknown: {message}");
        logging::write(Level::Error, line);
        // Dropping the payload could panic again and end the thread.
        mem::forget(panic);
        Err(ZkError::ConnectionLoss)
    })
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

/// Makes the two calls of a [`Call::CreateAndList`].
fn create_and_list<T: BlockingClient + ?Sized>(client: &T, call: &Call) -> ZkResult<Reply> {
    let Call::CreateAndList { dir, prefix, data, acl } = call else { return Err(ZkError::Unimplemented) };
    let path = [&**dir, "/", &**prefix].concat().into();
    let (data, acl, mode) = (Arc::clone(data), Arc::clone(acl), CreateMode::EphemeralSequential);
    let Reply::Created { path, stat } = client.call(&Call::Create { path, data, acl, mode })? else {
        return Err(ZkError::MarshallingError);
    };
    let list = Call::GetChildren { path: Arc::clone(dir), watch: false };
    let children = match client.call(&list) {
        Ok(Reply::Children(names)) => Ok(names),
        Ok(_) => Err(ZkError::MarshallingError),
        Err(error) => Err(error),
    };
    let enqueued = Enqueued::new(path, children);
    Ok(Reply::Enqueued(match stat {
        Some(stat) => enqueued.with_stat(stat),
        None => enqueued,
    }))
}

impl<T: BlockingClient + ?Sized + 'static> ZooKeeperClient for OnWorkers<T> {
    fn submit(&self, call: Call, done: Done) {
        let urgency = done.urgency();
        let Some(number) = self.under_way.begin(done) else { return };
        let (client, under_way) = (Arc::clone(&self.client), Arc::clone(&self.under_way));
        let ending = Ending { under_way, number };
        let job = move || ending.under_way.finish(number, make(&*client, &call));
        self.workers.submit(urgency, Box::new(job));
    }

    fn remove_watches(&self, path: &str) {
        self.client.remove_watches(path);
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        let (workers, under_way) = (self.workers.clone(), Arc::clone(&self.under_way));
        self.client.subscribe(Arc::new(move |event| {
            let is_end = event == ClientEvent::SessionLost;
            sink(event);
            if is_end {
                // End the calls on a worker, because the client may report the loss while it holds its locks.
                let under_way = Arc::clone(&under_way);
                workers.submit(0, Box::new(move || under_way.end()));
                workers.abandon();
            }
        }))
    }

    fn session_id(&self) -> Option<i64> {
        self.client.session_id()
    }

    fn server(&self) -> Option<String> {
        self.client.server()
    }

    fn chroot(&self) -> Option<String> {
        self.client.chroot()
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
        self.under_way.end();
        self.workers.shut_down();
    }
}

impl<T: ?Sized> Drop for OnWorkers<T> {
    fn drop(&mut self) {
        self.under_way.end();
        self.workers.shut_down();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crossbeam_channel::{Receiver, bounded};

    const LONG: Duration = Duration::from_secs(30);

    /// A client whose reads panic and whose other calls never return.
    #[derive(Default)]
    struct Flawed {
        sink: Mutex<Option<EventSink>>,
        never: Mutex<Option<Receiver<()>>>,
    }

    impl BlockingClient for Flawed {
        fn call(&self, call: &Call) -> ZkResult<Reply> {
            if let Call::GetData { .. } = call {
                panic!("on purpose");
            }
            let never = self.never.lock().clone();
            let _ = never.map(|never| never.recv());
            Err(ZkError::ConnectionLoss)
        }

        fn subscribe(&self, sink: EventSink) -> bool {
            *self.sink.lock() = Some(sink);
            true
        }

        fn session_timeout(&self) -> Duration {
            LONG
        }

        fn close(&self) {}
    }

    fn submit(client: &dyn ZooKeeperClient, call: Call) -> Receiver<ZkResult<Reply>> {
        let (sender, outcome) = bounded(1);
        client.submit(call, Done::new(move |result| drop(sender.send(result))));
        outcome
    }

    fn read() -> Call {
        Call::GetData { path: "/a".into(), watch: false }
    }

    fn delete() -> Call {
        Call::Delete { path: "/a".into(), version: None }
    }

    #[test]
    fn outcome_of_a_call_that_panics_is_unknown_and_later_calls_are_made() {
        let client = on_workers(Arc::new(Flawed::default()));
        for _ in 0..40 {
            let outcome = submit(&*client, read()).recv_timeout(LONG).unwrap();
            assert_eq!(outcome, Err(ZkError::ConnectionLoss));
        }
    }

    #[test]
    fn calls_that_are_stuck_end_with_their_session() {
        let (_keeps_stuck, never) = bounded(0);
        let flawed = Arc::new(Flawed { never: Mutex::new(Some(never)), ..Flawed::default() });
        let client = on_workers(Arc::clone(&flawed));
        client.subscribe(Arc::new(|_| {}));
        // More calls than there are threads for them.
        let stuck: Vec<_> = (0..40).map(|_| submit(&*client, delete())).collect();
        let sink = flawed.sink.lock().clone().unwrap();
        sink(ClientEvent::SessionLost);
        for outcome in stuck {
            assert_eq!(outcome.recv_timeout(LONG).unwrap(), Err(ZkError::SessionExpired));
        }
        assert_eq!(submit(&*client, read()).recv_timeout(LONG).unwrap(), Err(ZkError::SessionExpired));
    }
}
