//! [`Adapter`]: a handle of the crate `zookeeper` as a client of the library, with remedies for that crate's hazards.
//!
//! The hazards, and the remedies here:
//! - The crate makes the calls of several threads in any order, and its event thread may overtake a reply. [`calls`]
//!   makes one call at a time, and [`connection_state`] holds back what comes during a call.
//! - The crate silently opens a new session when the old one has expired. [`connection_state`] notices this.
//!   From then on, every call fails with `SessionExpired`, whatever the handle would answer.
//! - Calls fail with `ConnectionLoss` forever after the crate has given up or its I/O thread has died.
//!   [`connection_state`] distinguishes this from a temporary loss.
//! - The crate does not set watches again after a reconnect. The session reads again.
//! - The crate keeps a closure for each watch call, even for failed calls. [`watches`](super::watches) creates at most one
//!   closure for each path and kind of watch.
//! - The crate does not expose which session timeout a server has granted, so the application must state the
//!   timeout.
//! - On a disconnect, the crate gives up for good if it has not sent a ping for a session timeout, and it
//!   sends a ping only after two thirds of a session timeout without any request. The reads by which an idle session
//!   stays in contact leave such gaps. An owner's calls do not.
//! - The crate sends requests that are too long for a server. The adapter refuses them. It knows neither the handle's
//!   chroot, which the reserve of [`MaxBuffer`] covers, nor its identities: it counts one with an id of a kibibyte.
//! - Within a chroot, the crate sends a watch on `/` with the path "", and calls the application's default
//!   watcher instead of the closure. There is no remedy here: such a watch never fires.
//! - A call that is made while a handle's I/O thread starts may not wake that thread, and then no later call
//!   does. [`Adapter::new`] waits before it makes any calls.
//!
//! A call blocks for as long as the network swallows packets. The crate fails it when it gives the connection up.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::bounded;
use zookeeper::ZooKeeper;
use zookeeper_recipes_lock::client::seam::{
    Call, Done, Enqueued, EventSink, Granted, Identity, MaxBuffer, Moment, Reply, ZooKeeperClient,
};
use zookeeper_recipes_lock::client::{Acl, CreateMode, ZkError, ZkResult};

use crate::calls::{self, Calls};
use crate::connection_state::ConnectionState;
use crate::convert::{error_of, from_stat, to_acl, to_create_mode};
use crate::watches::HandleWatches;

/// How long the I/O thread of a new handle may take to start.
const MAX_START: Duration = Duration::from_millis(100);

/// The longest tick that a handle's servers may have. A follower reports a session to the leader within a
/// tick, plus a tenth of a tick because timers run late.
const MAX_TICK: Duration = Duration::from_secs(2);

pub(crate) struct Adapter {
    handle: Arc<Handle>,
    calls: Calls,
}

/// A handle of the crate, and what is known about its connection.
struct Handle {
    zk: ZooKeeper,
    connection: Arc<ConnectionState>,
    watches: HandleWatches,
}

impl Adapter {
    /// Wraps a new handle. Waits for the handle to report its state, but only briefly, because it may have done so
    /// already.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn new(zk: ZooKeeper, session_timeout: Duration) -> io::Result<Adapter> {
        let granted = Granted::new(session_timeout);
        let granted = granted.with_report_delay(granted.report_delay.min(MAX_TICK * 11 / 10));
        let connection = Arc::new(ConnectionState::new(granted));
        let weak = Arc::downgrade(&connection);
        let (reports, first_report) = bounded(1);
        // The subscription ends with the handle.
        zk.add_listener(move |state| {
            let _ = reports.try_send(());
            if let Some(connection) = weak.upgrade() {
                connection.on_state(state);
            }
        });
        let _ = first_report.recv_timeout(MAX_START);
        let watches = HandleWatches::new(&connection);
        let handle = Arc::new(Handle { zk, connection, watches });
        // The crate pings after two thirds of the session timeout without a request, and the session gives up after a
        // whole one without an answer.
        let calls = Calls::start(Arc::clone(&handle), session_timeout / 6 * 5)?;
        let of_end = calls.clone();
        handle.connection.when_lost(move || {
            // On another thread, because the crate reports the loss while it holds its locks.
            let calls = of_end.clone();
            let ended = thread::Builder::new().name("zk-lock-end".to_owned()).spawn(move || calls.end());
            if ended.is_err() {
                of_end.end();
            }
        });
        Ok(Adapter { handle, calls })
    }
}

impl Handle {
    fn ask<T>(&self, call: impl FnOnce(&ZooKeeper) -> zookeeper::ZkResult<T>) -> ZkResult<T> {
        let before = self.connection.before_call()?;
        let result = call(&self.zk).map_err(error_of);
        self.after_call(before, result)
    }

    /// Interprets the result of a call.
    fn after_call<T>(&self, changes_before: u64, result: ZkResult<T>) -> ZkResult<T> {
        if let Err(ZkError::ConnectionLoss) = result {
            let ask = || self.zk.exists("/", false).map(drop).map_err(error_of);
            self.connection.explain_loss(changes_before, ask);
        }
        self.connection.after_call(changes_before, result)
    }
}

/// The calls of a handle.
impl Handle {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> ZkResult<Reply> {
        let before = self.connection.before_call()?;
        let created =
            self.zk.create(path, data.to_vec(), to_acl(acl), to_create_mode(mode)).map_err(|error| {
                match (mode, error) {
                    (CreateMode::Container, zookeeper::ZkError::Unimplemented) => ZkError::Unimplemented,
                    _ => error_of(error),
                }
            });
        let path = created.clone();
        let result = self.after_call(before, created);
        if let (Err(ZkError::SessionExpired), Ok(path)) = (&result, path) {
            // The call may have succeeded on a session that the handle opened silently. That session lives
            // on, and nothing else would delete the znode.
            let _ = self.zk.delete(&path, None);
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

    /// Creates an ephemeral sequential znode, and lists its directory.
    fn create_and_list(&self, dir: &str, prefix: &str, data: &[u8], acl: &[Acl]) -> ZkResult<Reply> {
        let path = format!("{dir}/{prefix}");
        let Reply::Created { path, .. } = self.create(&path, data, acl, CreateMode::EphemeralSequential)?
        else {
            return Err(ZkError::MarshallingError);
        };
        let children = match self.get_children(dir, false) {
            Ok(Reply::Children(names)) => Ok(names),
            Ok(_) => Err(ZkError::MarshallingError),
            Err(error) => Err(error),
        };
        Ok(Reply::Enqueued(Enqueued::new(path, children)))
    }
}

impl calls::Handle for Handle {
    fn call(&self, call: &Call) -> ZkResult<Reply> {
        match call {
            Call::Create { path, data, acl, mode } => self.create(path, data, acl, *mode),
            Call::CreateAndList { dir, prefix, data, acl } => self.create_and_list(dir, prefix, data, acl),
            Call::Delete { path, version } => self.ask(|zk| zk.delete(path, *version)).map(|()| Reply::Done),
            Call::Exists { path, watch } => self.exists(path, *watch),
            Call::GetData { path, watch } => self.get_data(path, *watch),
            Call::GetChildren { path, watch } => self.get_children(path, *watch),
            Call::SetData { path, data, version } => {
                let stat = self.ask(|zk| zk.set_data(path, data.to_vec(), *version))?;
                Ok(Reply::Stat(from_stat(stat)))
            }
            Call::Multi(_) => Err(ZkError::Unimplemented),
        }
    }

    fn begin(&self) {
        self.connection.begin_call();
    }

    fn end(&self) {
        self.connection.end_call();
    }

    fn ping(&self) {
        let sent = Moment::now();
        let Ok(before) = self.connection.before_call() else { return };
        self.connection.begin_call();
        if self.ask(|zk| zk.exists("/", false)).is_ok() {
            self.connection.on_ping_answered(before, sent);
        }
        self.connection.end_call();
    }
}

impl ZooKeeperClient for Adapter {
    fn submit(&self, call: Call, done: Done) {
        // The adapter does not know the identities of the handle's session.
        let max_buffer = MaxBuffer::new(Identity::default().jute_max_buffer).with_unknown_identity();
        match max_buffer.check(&call) {
            Ok(()) => self.calls.submit(call, done),
            Err(error) => done.finish(Err(error)),
        }
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        self.handle.connection.subscribe(sink)
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn granted(&self) -> Granted {
        self.handle.connection.granted
    }

    fn close(&self) {
        if self.handle.connection.detach() {
            self.calls.end();
            // If the servers cannot be reached, the session ends there without this call.
            let _ = self.handle.zk.close();
        }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter").field("granted", &self.handle.connection.granted).finish_non_exhaustive()
    }
}
