//! The client port on the crate `zookeeper`, with that crate's hazards contained.
//!
//! Its behavior under faults, and the remedies here:
//! - It silently opens a new session when the old one has expired. [`connection_state`] notices,
//!   and from then on every call fails with `SessionExpired`, whatever the handle would answer.
//! - After it has given up, or when its I/O thread has died, calls fail with `ConnectionLoss`
//!   forever. [`connection_state`] distinguishes this from a temporary loss.
//! - It does not set watches again after a reconnect. The port's contract documents this, and the
//!   session reads again.
//! - It keeps a closure for each watch call, including failed ones. [`watches`] creates at most one
//!   for a path.
//! - It does not expose a server's grant. All servers are [asked](ensemble), again after every
//!   reconnect, before the session is notified of it.
//! - It gives up for good at a disconnect if it has not pinged for a session timeout, and it pings
//!   only after two thirds of one without any traffic.
//!   [`min_idle_for_ping`](ZooKeeperClient::min_idle_for_ping) requests that gap.
//! - Connecting panics if the first address fails immediately, resolves names only once, and
//!   reports neither the granted session timeout nor the cause of a failure. So a separate
//!   handshake comes first, and a dedicated thread contains the rest.
//! - Dropping its last handle makes a blocking call. If that fails, the handle lives on and keeps
//!   the session alive. So it is closed first, on a worker or on a dedicated thread.
//!
//! Calls block as long as packets are swallowed. The port's contract allows this, and the session's
//! workers absorb it.

mod connection_state;
mod convert;
mod ensemble;
mod watches;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use parking_lot::Mutex;
use zookeeper::{Subscription, WatchedEvent, ZooKeeper};

use self::connection_state::{ConnectionState, Grants};
use self::convert::{from_error, from_stat, to_acl, to_create_mode};
use self::ensemble::Ensemble;
use self::watches::Watches;
use super::connect_string::ConnectString;
use super::{Acl, CreateMode, EventSink, Granted, Stat, ZkError, ZkResult, ZooKeeperClient};
use crate::error::{LockError, Result};

/// Added to the crate's idle time before a ping: the crate's timer ticks in tenths of a second.
const AFTER_PING: Duration = Duration::from_millis(200);

/// The delay before a failed close is retried.
const CLOSE_RETRY: Duration = Duration::from_millis(100);

/// The servers' default tick time.
const DEFAULT_TICK: Duration = Duration::from_secs(2);

pub(crate) struct Adapter {
    /// `None` once closed.
    zk: Mutex<Option<Arc<ZooKeeper>>>,
    connection: Arc<ConnectionState>,
    ownership: Ownership,
}

/// The owner of the handle, and the way in which events arrive.
enum Ownership {
    /// Ours: every watch event arrives at the handle's default watcher, so no closure is ever kept.
    Owned,
    /// The application's, including its default watcher: watches need closures.
    Borrowed { subscription: Mutex<Option<Subscription>>, watches: Watches },
}

impl Adapter {
    /// Connects to the first serving server. Blocks for at most `session_timeout`.
    pub(crate) fn connect(
        servers: &ConnectString,
        session_timeout: Duration,
    ) -> Result<Arc<dyn ZooKeeperClient>> {
        let deadline = Instant::now() + session_timeout;
        let servers = servers.clone();
        let tried = servers.to_string();
        let (result, connected) = bounded(1);
        // Name resolution has no deadline, and the crate panics if an address fails immediately.
        let started = thread::Builder::new().name("zk-lock-connect".to_owned()).spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| open(&servers, session_timeout, deadline)));
            let _ = result.send(outcome.unwrap_or_else(|_| Err(format!("{servers} (the client panicked)"))));
        });
        started.map_err(LockError::thread)?;
        match connected.recv_deadline(deadline) {
            Ok(Ok(adapter)) => Ok(Arc::new(adapter)),
            Ok(Err(tried)) => Err(LockError::Connect { tried, timeout: session_timeout }),
            Err(_) => {
                Err(LockError::Connect { tried: format!("{tried} (no answer)"), timeout: session_timeout })
            }
        }
    }

    /// Uses a handle that the application keeps.
    pub(crate) fn borrow(zk: Arc<ZooKeeper>, session_timeout: Duration) -> Arc<dyn ZooKeeperClient> {
        let granted = Granted::new(session_timeout).with_tick(DEFAULT_TICK);
        let connection = Arc::new(ConnectionState::of_a_handle_in_use(granted));
        let weak = Arc::downgrade(&connection);
        let subscription = zk.add_listener(move |state| {
            if let Some(connection) = weak.upgrade() {
                connection.on_state(state);
            }
        });
        let watches = Watches::new(&connection);
        Arc::new(Adapter {
            zk: Mutex::new(Some(zk)),
            connection,
            ownership: Ownership::Borrowed { subscription: Mutex::new(Some(subscription)), watches },
        })
    }

    fn call<T>(&self, call: impl FnOnce(&ZooKeeper) -> zookeeper::ZkResult<T>) -> ZkResult<T> {
        let zk = self.zk.lock().clone().ok_or(ZkError::SessionExpired)?;
        let before = self.connection.before_call()?;
        let result = call(&zk).map_err(from_error);
        self.connection.after_call(before, result)
    }
}

impl ZooKeeperClient for Adapter {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> ZkResult<String> {
        let zk = self.zk.lock().clone().ok_or(ZkError::SessionExpired)?;
        let before = self.connection.before_call()?;
        let created = zk.create(path, data.to_vec(), to_acl(acl), to_create_mode(mode)).map_err(from_error);
        let path = created.clone();
        let result = self.connection.after_call(before, created);
        if let (Err(ZkError::SessionExpired), Ok(path)) = (&result, path) {
            // The call may have succeeded on a session that the handle opened silently. On an
            // application's handle that session lives on, and nothing else would delete the znode.
            let _ = zk.delete(&path, None);
        }
        result
    }

    fn delete(&self, path: &str, version: Option<i32>) -> ZkResult<()> {
        self.call(|zk| zk.delete(path, version))
    }

    fn exists(&self, path: &str, watch: bool) -> ZkResult<Option<Stat>> {
        let stat = self.call(|zk| match (watch, &self.ownership) {
            (true, Ownership::Borrowed { watches, .. }) => match watches.arm(path) {
                Some(watcher) => zk.exists_w(path, watcher),
                None => zk.exists(path, true),
            },
            _ => zk.exists(path, watch),
        })?;
        Ok(stat.map(from_stat))
    }

    fn get_children(&self, path: &str, watch: bool) -> ZkResult<Vec<String>> {
        self.call(|zk| match (watch, &self.ownership) {
            // Not shared with a data watch on the same path: the crate separates the two kinds.
            (true, Ownership::Borrowed { watches, .. }) => {
                // As in `get_data` below.
                zk.exists(path, false)?.ok_or(zookeeper::ZkError::NoNode)?;
                match watches.arm_children(path) {
                    Some(watcher) => zk.get_children_w(path, watcher),
                    None => zk.get_children(path, true),
                }
            }
            _ => zk.get_children(path, watch),
        })
    }

    fn get_data(&self, path: &str, watch: bool) -> ZkResult<(Vec<u8>, Stat)> {
        let (data, stat) = self.call(|zk| match (watch, &self.ownership) {
            (true, Ownership::Borrowed { watches, .. }) => {
                // A closure for a missing znode would stay forever, so this call comes first.
                zk.get_data(path, false)?;
                match watches.arm(path) {
                    Some(watcher) => zk.get_data_w(path, watcher),
                    None => zk.get_data(path, true),
                }
            }
            _ => zk.get_data(path, watch),
        })?;
        Ok((data, from_stat(stat)))
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> ZkResult<Stat> {
        self.call(|zk| zk.set_data(path, data.to_vec(), version)).map(from_stat)
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        self.connection.subscribe(sink)
    }

    fn session_timeout(&self) -> Duration {
        self.connection.granted().session_timeout
    }

    fn report_delay(&self) -> Duration {
        self.connection.granted().report_delay
    }

    /// A little more than two thirds of the session timeout, after which the crate pings. With more
    /// frequent requests it would never ping, and would give up at the first disconnect.
    fn min_idle_for_ping(&self) -> Duration {
        self.session_timeout() * 2 / 3 + AFTER_PING
    }

    fn owns_session(&self) -> bool {
        matches!(self.ownership, Ownership::Owned)
    }

    fn close(&self) {
        self.connection.detach();
        let Some(zk) = self.zk.lock().take() else { return };
        if let Ownership::Borrowed { subscription, .. } = &self.ownership {
            if let Some(subscription) = subscription.lock().take() {
                zk.remove_listener(subscription);
            }
        }
        if self.owns_session() {
            close_for_good(&zk, &self.connection, self.session_timeout());
        }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.connection.detach();
        let Some(zk) = self.zk.get_mut().take() else { return };
        let (owned, connection, wait) =
            (self.owns_session(), Arc::clone(&self.connection), self.session_timeout());
        // May block: dropping the last handle closes the session. If no thread can be started, it
        // is dropped here.
        let _ = thread::Builder::new().name("zk-lock-close".to_owned()).spawn(move || {
            if owned {
                close_for_good(&zk, &connection, wait);
            }
        });
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter")
            .field("owned", &self.owns_session())
            .field("granted", &self.connection.granted())
            .finish_non_exhaustive()
    }
}

/// Closes the session, even across outages. A handle that is only dropped during an outage
/// reconnects afterwards, and keeps its session and the locks held on it alive until the process
/// ends.
fn close_for_good(zk: &ZooKeeper, connection: &ConnectionState, session_timeout: Duration) {
    // Until then the server has ended the session, unless the handle keeps it alive; in that case a
    // close succeeds.
    let deadline = Instant::now() + session_timeout * 2;
    while zk.close().is_err() && !connection.has_ended() && Instant::now() < deadline {
        thread::sleep(CLOSE_RETRY); // no event signals when a retry may succeed
    }
}

/// Finds a serving server, then starts the crate's client with that server first.
fn open(
    servers: &ConnectString,
    session_timeout: Duration,
    deadline: Instant,
) -> std::result::Result<Adapter, String> {
    let ensemble = Ensemble::new(servers.clone(), session_timeout);
    let (connect_string, all_answered) = ensemble.find(deadline)?;
    let connection = Arc::new(ConnectionState::connecting(Grants::Asked(Arc::new(ensemble)), all_answered));
    let of_watcher = Arc::downgrade(&connection);
    let on_watch = move |event: WatchedEvent| {
        if let Some(connection) = of_watcher.upgrade() {
            connection.on_watch(event);
        }
    };
    let zk = ZooKeeper::connect(&connect_string, session_timeout, on_watch)
        .map_err(|error| format!("{connect_string} ({error:?})"))?;
    let of_listener = Arc::downgrade(&connection);
    zk.add_listener(move |state| {
        if let Some(connection) = of_listener.upgrade() {
            connection.on_state(state);
        }
    });
    Ok(Adapter { zk: Mutex::new(Some(Arc::new(zk))), connection, ownership: Ownership::Owned })
}
