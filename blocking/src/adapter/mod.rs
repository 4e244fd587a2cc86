//! Implements the contract of `client::port` on the crate `zookeeper`, and works around that crate's hazards.
//!
//! The hazards, and the remedies here:
//! - The crate silently opens a new session when the old one has expired. [`connection_state`] notices this.
//!   From then on, every call fails with `SessionExpired`, whatever the handle would answer.
//! - Calls fail with `ConnectionLoss` forever after the crate has given up or its I/O thread has died.
//!   [`connection_state`] distinguishes this from a temporary loss.
//! - The crate does not set watches again after a reconnect. The contract of `client::port` permits this,
//!   because the session reads again.
//! - The crate keeps a closure for each watch call, even for failed calls. [`watches`] creates at most one
//!   closure for each path and kind of watch.
//! - The crate does not expose which session timeout a server has granted, so the application must state the
//!   timeout.
//! - On a disconnect, the crate gives up for good if it has not sent a ping for a session timeout, and it
//!   sends a ping only after two thirds of a session timeout without any request.
//!   [`min_idle_for_ping`](BlockingClient::min_idle_for_ping) makes the session leave such gaps.
//! - The crate sends requests that are too long for a server. The adapter refuses them. It knows neither the handle's
//!   chroot, which the reserve of [`MaxBuffer`] covers, nor its identities: it counts one with an id of a kibibyte.
//! - Within a chroot, the crate sends a watch on `/` with the path "", and calls the application's default
//!   watcher instead of the closure. There is no remedy here: such a watch never fires.
//! - A call that is made while a handle's I/O thread starts may not wake that thread, and then no later call
//!   does. [`adapter`] waits before it makes any calls.
//! - Dropping the last reference to a handle makes a blocking call, so a dedicated thread drops it.
//!
//! Calls block for as long as the network swallows packets. The contract allows this, because separate
//! threads make the calls.

mod connection_state;
mod convert;
mod watches;

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::bounded;
use parking_lot::Mutex;
use zookeeper::{Subscription, ZooKeeper};

use self::connection_state::ConnectionState;
pub use self::convert::error_of;
use self::convert::{from_stat, to_acl, to_create_mode};
use self::watches::HandleWatches;
use zookeeper_recipes_lock::client::CreateMode;
use zookeeper_recipes_lock::client::port::{Call, EventSink, Granted, MaxBuffer, Reply};
use zookeeper_recipes_lock::client::{Acl, ZkError, ZkResult};

use crate::BlockingClient;

/// How long the I/O thread of a new handle may take to start.
const MAX_START: Duration = Duration::from_millis(100);

/// The longest tick that a handle's servers may have. A follower reports a session to the leader within a
/// tick, plus a tenth of a tick because timers run late.
const MAX_TICK: Duration = Duration::from_secs(2);

/// Extra idle time before a ping, because the crate's timer ticks in tenths of a second.
const AFTER_PING: Duration = Duration::from_millis(200);

/// A handle that the application also uses. Its default watcher belongs to the application, so each watch has
/// its own closure.
struct Adapter {
    /// The handle; `None` once closed.
    zk: Mutex<Option<Arc<ZooKeeper>>>,
    connection: Arc<ConnectionState>,
    subscription: Mutex<Option<Subscription>>,
    watches: HandleWatches,
}

/// Wraps a handle that the application continues to use. Waits for the handle to report its state, but only briefly,
/// because a handle that was opened long ago may not report any. See [`session_on`](crate::session_on) for
/// the requirements.
#[must_use]
pub fn adapter(zk: Arc<ZooKeeper>, session_timeout: Duration) -> Arc<dyn BlockingClient> {
    Adapter::borrow(zk, session_timeout)
}

impl Adapter {
    fn borrow(zk: Arc<ZooKeeper>, session_timeout: Duration) -> Arc<Adapter> {
        let granted = Granted::new(session_timeout);
        let granted = granted.with_report_delay(granted.report_delay.min(MAX_TICK * 11 / 10));
        let connection = Arc::new(ConnectionState::new(granted));
        let weak = Arc::downgrade(&connection);
        let (reports, first_report) = bounded(1);
        let subscription = zk.add_listener(move |state| {
            let _ = reports.try_send(());
            if let Some(connection) = weak.upgrade() {
                connection.on_state(state);
            }
        });
        let _ = first_report.recv_timeout(MAX_START);
        let watches = HandleWatches::new(&connection);
        Arc::new(Adapter {
            zk: Mutex::new(Some(zk)),
            connection,
            subscription: Mutex::new(Some(subscription)),
            watches,
        })
    }

    fn ask<T>(&self, call: impl FnOnce(&ZooKeeper) -> zookeeper::ZkResult<T>) -> ZkResult<T> {
        let zk = self.zk.lock().clone().ok_or(ZkError::SessionExpired)?;
        let before = self.connection.before_call()?;
        let result = call(&zk).map_err(error_of);
        self.after_call(&zk, before, result)
    }

    /// Interprets the result of a call.
    fn after_call<T>(&self, zk: &ZooKeeper, changes_before: u64, result: ZkResult<T>) -> ZkResult<T> {
        if let Err(ZkError::ConnectionLoss) = result {
            let ask = || zk.exists("/", false).map(drop).map_err(error_of);
            self.connection.explain_loss(changes_before, ask);
        }
        self.connection.after_call(changes_before, result)
    }
}

/// The calls of a handle.
impl Adapter {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> ZkResult<Reply> {
        let zk = self.zk.lock().clone().ok_or(ZkError::SessionExpired)?;
        let before = self.connection.before_call()?;
        let created =
            zk.create(path, data.to_vec(), to_acl(acl), to_create_mode(mode)).map_err(|error| {
                match (mode, error) {
                    (CreateMode::Container, zookeeper::ZkError::Unimplemented) => ZkError::Unimplemented,
                    _ => error_of(error),
                }
            });
        let path = created.clone();
        let result = self.after_call(&zk, before, created);
        if let (Err(ZkError::SessionExpired), Ok(path)) = (&result, path) {
            // The call may have succeeded on a session that the handle opened silently. That session lives
            // on, and nothing else would delete the znode.
            let _ = zk.delete(&path, None);
        }
        Ok(Reply::Created { path: result?, stat: None })
    }

    fn exists(&self, path: &str, watch: bool) -> ZkResult<Reply> {
        let stat = self.ask(|zk| match watch.then(|| self.watches.arm(path)).flatten() {
            Some(watcher) => zk.exists_w(path, watcher),
            None => zk.exists(path, watch),
        })?;
        Ok(Reply::Found(stat.map(from_stat)))
    }

    fn get_children(&self, path: &str, watch: bool) -> ZkResult<Reply> {
        let names = self.ask(|zk| {
            if !watch {
                return zk.get_children(path, false);
            }
            // Read without a closure first, as in `get_data` below.
            zk.exists(path, false)?.ok_or(zookeeper::ZkError::NoNode)?;
            // The closure is not shared with a data watch on the same path, because the crate separates the two
            // kinds.
            match self.watches.arm_children(path) {
                Some(watcher) => zk.get_children_w(path, watcher),
                None => zk.get_children(path, true),
            }
        })?;
        Ok(Reply::Children(names.into()))
    }

    fn get_data(&self, path: &str, watch: bool) -> ZkResult<Reply> {
        let (data, stat) = self.ask(|zk| {
            // Read without a closure first, because the closure for a missing znode would stay forever.
            let read = zk.get_data(path, false)?;
            if !watch {
                return Ok(read);
            }
            match self.watches.arm(path) {
                Some(watcher) => zk.get_data_w(path, watcher),
                None => zk.get_data(path, true),
            }
        })?;
        Ok(Reply::Data(data, from_stat(stat)))
    }
}

impl BlockingClient for Adapter {
    fn call(&self, call: &Call) -> ZkResult<Reply> {
        // The adapter does not know the identities of the handle's session.
        MaxBuffer::new(self.jute_max_buffer()).with_unknown_identity().check(call)?;
        match call {
            Call::Create { path, data, acl, mode } => self.create(path, data, acl, *mode),
            Call::Delete { path, version } => self.ask(|zk| zk.delete(path, *version)).map(|()| Reply::Done),
            Call::Exists { path, watch } => self.exists(path, *watch),
            Call::GetData { path, watch } => self.get_data(path, *watch),
            Call::GetChildren { path, watch } => self.get_children(path, *watch),
            Call::SetData { path, data, version } => {
                let stat = self.ask(|zk| zk.set_data(path, data.to_vec(), *version))?;
                Ok(Reply::Stat(from_stat(stat)))
            }
            Call::CreateAndList { .. } | Call::Multi(_) => Err(ZkError::Unimplemented),
        }
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        self.connection.subscribe(sink)
    }

    fn session_timeout(&self) -> Duration {
        self.connection.granted.session_timeout
    }

    fn report_delay(&self) -> Duration {
        self.connection.granted.report_delay
    }

    /// Returns a little more than two thirds of the session timeout, after which the crate sends a ping. With
    /// more frequent requests, the crate would send no pings, and would give up on the first disconnect.
    fn min_idle_for_ping(&self) -> Duration {
        self.session_timeout() * 2 / 3 + AFTER_PING
    }

    fn owns_session(&self) -> bool {
        false
    }

    fn close(&self) {
        self.connection.detach();
        let Some(zk) = self.zk.lock().take() else { return };
        if let Some(subscription) = self.subscription.lock().take() {
            zk.remove_listener(subscription);
        }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.connection.detach();
        let Some(zk) = self.zk.get_mut().take() else { return };
        // Dropping the last handle closes the session, which blocks. This is the last handle if the application has
        // dropped its own. If no thread can be started, the handle is dropped here.
        let _ = thread::Builder::new().name("zk-lock-close".to_owned()).spawn(move || drop(zk));
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter").field("granted", &self.connection.granted).finish_non_exhaustive()
    }
}
