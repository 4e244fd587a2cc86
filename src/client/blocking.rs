//! Clients whose calls block: [`BlockingClient`], and the adapter that makes the port of one.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{
    Call, CreateMode, DEFAULT_JUTE_MAX_BUFFER, Done, Enqueued, EventSink, Granted, Reply, SessionRuntime,
    ZooKeeperClient, contain_call,
};
use crate::error::ZkResult;
use crate::external::External;
use crate::time::Runtime;

/// A client whose calls wait for their replies.
///
/// The simplest client to write. The session makes its calls on threads that it can abandon, several
/// of them at once, so that a waiting lock occupies none. A
/// [`ZooKeeperClient`] that does not block saves the threads, and round trips.
///
/// # The contract
/// That of [`ZooKeeperClient`], whose methods explain those of the same name here, with these
/// differences:
/// - A call blocks until the server has answered or contact is lost. It may block longer when
///   packets are swallowed.
/// - Calls of different threads may take effect in any order.
/// - The sink makes no call on the thread on which it is called, but for
///   [`remove_watches`](BlockingClient::remove_watches). So it may be called under a lock that that
///   does not take.
pub trait BlockingClient: Send + Sync {
    /// Makes a call, and returns the reply of its kind. It is never a [`Call::CreateAndList`]: the
    /// session makes the two calls in sequence. The client refuses what it does not know with
    /// [`Unimplemented`](crate::ZkError::Unimplemented).
    ///
    /// # Errors
    /// Those that the call names, or one of the contract.
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
        DEFAULT_JUTE_MAX_BUFFER
    }

    /// See [`ZooKeeperClient::chroot`].
    fn chroot(&self) -> Option<String> {
        None
    }

    /// See [`ZooKeeperClient::close`].
    fn close(&self);
}

/// Makes any call of a client that blocks.
pub(crate) fn call_blocking(client: &(impl BlockingClient + ?Sized), call: &Call) -> ZkResult<Reply> {
    call_in_parts(call, |part| client.call(part))
}

/// Makes a call by others that are one request each: a [`Call::CreateAndList`] is two.
pub(crate) fn call_in_parts(call: &Call, mut make: impl FnMut(&Call) -> ZkResult<Reply>) -> ZkResult<Reply> {
    let Call::CreateAndList { dir, prefix, data, acl } = call else { return make(call) };
    let (data, acl) = (Arc::clone(data), Arc::clone(acl));
    let path = [&**dir, "/", &**prefix].concat();
    let create = Call::create(path, data, acl, CreateMode::EphemeralSequential);
    let (path, stat) = make(&create.call).and_then(create.read)?;
    let list = Call::get_children(Arc::clone(dir), false);
    let children = make(&list.call).and_then(list.read);
    Ok(Reply::Enqueued(Enqueued { path, stat, children }))
}

/// A client of either kind, for a [`Session`](crate::Session).
#[derive(Clone)]
#[non_exhaustive]
pub enum AnyClient {
    /// One that does not block.
    Port(Arc<dyn ZooKeeperClient>),
    /// One that blocks.
    Blocking(Arc<dyn BlockingClient>),
}

impl AnyClient {
    pub(crate) fn session_timeout(&self) -> Duration {
        match self {
            AnyClient::Port(client) => client.session_timeout(),
            AnyClient::Blocking(client) => client.session_timeout(),
        }
    }

    pub(crate) fn close(&self) {
        match self {
            AnyClient::Port(client) => client.close(),
            AnyClient::Blocking(client) => client.close(),
        }
    }

    /// Makes a port of it, for a session on this runtime, whose threads make calls that block.
    pub(crate) fn on(self, runtime: &Arc<dyn Runtime>) -> Arc<dyn ZooKeeperClient> {
        match self {
            AnyClient::Port(client) => {
                client.run_on(&SessionRuntime::of(runtime));
                client
            }
            AnyClient::Blocking(client) => {
                let client = Arc::new(External::new("a ZooKeeper client", client, runtime));
                Arc::new(OnWorkers { client, runtime: Arc::downgrade(runtime) })
            }
        }
    }
}

impl<T: BlockingClient + 'static> From<Arc<T>> for AnyClient {
    fn from(client: Arc<T>) -> AnyClient {
        AnyClient::Blocking(client)
    }
}

impl From<Arc<dyn BlockingClient>> for AnyClient {
    fn from(client: Arc<dyn BlockingClient>) -> AnyClient {
        AnyClient::Blocking(client)
    }
}

impl From<Arc<dyn ZooKeeperClient>> for AnyClient {
    fn from(client: Arc<dyn ZooKeeperClient>) -> AnyClient {
        AnyClient::Port(client)
    }
}

impl fmt::Debug for AnyClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AnyClient::Port(_) => "Port",
            AnyClient::Blocking(_) => "Blocking",
        })
    }
}

/// The adapter. It passes on each outcome on the thread that has made the call.
struct OnWorkers {
    /// A job that is dropped may have the last handle.
    client: Arc<External<Arc<dyn BlockingClient>>>,
    runtime: Weak<dyn Runtime>,
}

impl ZooKeeperClient for OnWorkers {
    fn submit(&self, call: Call, done: Done) {
        // Without one, the session has ended.
        let Some(runtime) = self.runtime.upgrade() else { return };
        let client = Arc::clone(&self.client);
        let make = move || call_blocking(&***client, &call);
        runtime.submit(
            done.priority(),
            Box::new(move || done.finish(contain_call("the ZooKeeper client", make))),
        );
    }

    fn remove_watches(&self, path: &str) {
        self.client.remove_watches(path);
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        self.client.subscribe(sink)
    }

    fn session_id(&self) -> Option<i64> {
        self.client.session_id()
    }

    fn server(&self) -> Option<String> {
        self.client.server()
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

    fn chroot(&self) -> Option<String> {
        self.client.chroot()
    }

    fn close(&self) {
        self.client.close();
    }
}
