//! The client port: the few ZooKeeper calls that the recipes need, as a trait.
//!
//! Everything above this module speaks to ZooKeeper through [`ZooKeeperClient`] and knows nothing of the client
//! library behind it. What a library does wrong under faults is mended in its adapter and nowhere else.

mod acl;
#[cfg(feature = "zookeeper")]
mod adapter;
#[cfg(feature = "zookeeper")]
pub(crate) mod connect_string;
#[cfg(feature = "zookeeper")]
pub(crate) mod handshake;
mod zk_error;
mod znode;

use std::sync::Arc;
use std::time::Duration;

pub use acl::{Acl, Permissions};
#[cfg(feature = "zookeeper")]
pub(crate) use adapter::Adapter;
pub use zk_error::{ZkError, ZkResult};
pub use znode::{CreateMode, Stat};

/// Where a client delivers its [`ClientEvent`]s.
///
/// It never blocks, never panics and never calls back into the client, so a client may call it on any thread of its
/// own, one that does its I/O included.
pub type EventSink = Arc<dyn Fn(ClientEvent) + Send + Sync>;

/// What a client tells without having been asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientEvent {
    /// Contact with a server, on the session that this client was made for, and what that server grants: a server does
    /// so anew on every connection, so it may be less than before.
    Connected(Granted),
    /// No contact; the session may live. Watches are gone unless the client sets them again by itself, so whoever
    /// waits for one must look again after the next [`Connected`](ClientEvent::Connected).
    Disconnected,
    /// The session cannot come back. Every later call fails with [`ZkError::SessionExpired`](crate::ZkError).
    SessionLost,
    /// A watch fired on the znode at this path (as the caller spelled it, without a chroot).
    NodeChanged {
        /// The full path of the znode.
        path: String,
    },
}

/// What a server grants a session on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Granted {
    /// How long the server keeps the session without hearing from it. Never longer than the truth: a
    /// value too long breaks mutual exclusion.
    pub session_timeout: Duration,
    /// As [`ZooKeeperClient::report_delay`].
    pub report_delay: Duration,
}

impl Granted {
    /// A session timeout, with the report delay of the longest ticks that servers may have which grant it.
    #[must_use]
    pub fn new(session_timeout: Duration) -> Granted {
        Granted { session_timeout, report_delay: Duration::ZERO }.with_tick(Duration::MAX)
    }

    /// Sets the report delay for servers with ticks of this length: a full tick, and a tenth of one for timers that are late.
    ///
    /// Servers grant no session timeout below two ticks, so a longer tick counts as half of the session timeout.
    #[must_use]
    pub fn with_tick(self, tick: Duration) -> Granted {
        self.with_report_delay(tick.min(self.session_timeout / 2) * 11 / 10)
    }

    /// Sets the report delay.
    #[must_use]
    pub fn with_report_delay(self, report_delay: Duration) -> Granted {
        Granted { report_delay, ..self }
    }
}

/// The ZooKeeper calls that the recipes stand on.
///
/// Implemented for the crate `zookeeper`, which [`Session::connect`](crate::Session::connect) and
/// [`Session::from_zookeeper`](crate::Session::from_zookeeper) use; implement it to run the recipes on another client
/// through [`Session::from_client`](crate::Session::from_client).
///
/// # The contract
/// - A call blocks until the server has answered or contact is lost. It may block longer when packets are swallowed:
///   the session calls from threads that it can abandon.
/// - A call that panics counts as one whose reply was lost. The session goes on.
/// - A call whose reply was lost fails with [`ZkError::ConnectionLoss`](crate::ZkError); whether it took effect is
///   unknown.
/// - Once the session cannot come back, every call fails at once with
///   [`ZkError::SessionExpired`](crate::ZkError), and a call never takes effect on any other session than
///   the one the client was made for.
/// - `watch` leaves a one-shot watch on the server; its event reaches the sink given to
///   [`subscribe`](ZooKeeperClient::subscribe) as [`ClientEvent::NodeChanged`], after the reply of the call that left
///   it. Setting it twice on one path fires once.
/// - Events are delivered in the order in which they happened, and
///   [`Disconnected`](ClientEvent::Disconnected) before any call fails because of it, and before the client asks a server to
///   take the session up again: a write that is answered on the new connection proves the session alive from that event on.
/// - [`Connected`](ClientEvent::Connected) may come later than the connection: until then calls are answered and prove
///   nothing.
pub trait ZooKeeperClient: Send + Sync {
    /// Creates a znode and returns its path, with the sequence number where `mode` is a sequential one.
    ///
    /// # Errors
    /// `NoNode` when the parent is missing, `NodeExists`, `NoAuth`, `InvalidAcl`, or one of the contract above.
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> ZkResult<String>;

    /// Deletes a znode; with `Some(version)` only at that version of its data.
    ///
    /// # Errors
    /// `NoNode`, `BadVersion`, `NotEmpty`, `NoAuth`, or one of the contract above.
    fn delete(&self, path: &str, version: Option<i32>) -> ZkResult<()>;

    /// Returns the znode's metadata, or `None` when there is no such znode (then the watch waits for its creation).
    ///
    /// # Errors
    /// One of the contract above.
    fn exists(&self, path: &str, watch: bool) -> ZkResult<Option<Stat>>;

    /// Returns the names of the znode's children, in no order.
    ///
    /// # Errors
    /// `NoNode` (no watch is left then), `NoAuth`, or one of the contract above.
    fn get_children(&self, path: &str, watch: bool) -> ZkResult<Vec<String>>;

    /// Returns the znode's data and metadata.
    ///
    /// # Errors
    /// `NoNode` (no watch is left then), `NoAuth`, or one of the contract above.
    fn get_data(&self, path: &str, watch: bool) -> ZkResult<(Vec<u8>, Stat)>;

    /// Replaces the znode's data; with `Some(version)` only at that version.
    ///
    /// # Errors
    /// `NoNode`, `BadVersion`, `NoAuth`, or one of the contract above.
    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> ZkResult<Stat>;

    /// Creates an ephemeral sequential znode `<dir>/<prefix><sequence>`, then lists `dir`.
    ///
    /// Returns the new znode's path and the outcome of the listing, in which the new znode is contained. The default
    /// makes the two calls one after the other; a client that can pipeline saves a round trip here.
    ///
    /// # Errors
    /// Those of [`create`](ZooKeeperClient::create); then nothing was listed.
    fn create_and_list(
        &self,
        dir: &str,
        prefix: &str,
        data: &[u8],
        acl: &[Acl],
    ) -> ZkResult<(String, ZkResult<Vec<String>>)> {
        let path = self.create(&format!("{dir}/{prefix}"), data, acl, CreateMode::EphemeralSequential)?;
        Ok((path, self.get_children(dir, false)))
    }

    /// Names the one sink of this client's events and returns whether there is contact right now; called once, by the
    /// session, before any other call. Every change after the returned answer is told to the sink.
    fn subscribe(&self, sink: EventSink) -> bool;

    /// Returns the session timeout that the server granted on the present connection: how long it keeps the session
    /// without hearing from it.
    fn session_timeout(&self) -> Duration;

    /// Returns after which time the ensemble's leader is sure to have heard of a request's session.
    ///
    /// A follower reports to the leader which of its clients were active, once every half tick of the servers' clock
    /// (a tick is 2 s by default), and an observer may report to a follower, as often: a full tick covers both. The default
    /// is that of [`Granted::new`], which is never shorter than that, as long as servers grant no less than two ticks; a
    /// shorter time makes for fewer keep-alives. Too short a time breaks mutual exclusion when a server dies. With zero, the
    /// leader has heard of it by the time of the answer.
    fn report_delay(&self) -> Duration {
        Granted::new(self.session_timeout()).report_delay
    }

    /// Returns for how long the connection wants to be left alone once in every session timeout.
    ///
    /// The default is not at all. A client whose own health check only works on an idle connection names a longer time,
    /// and gets it where the session timeout has room for it. Asked once, when the session is opened.
    fn min_idle_for_ping(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether [`close`](ZooKeeperClient::close) ends the session on the server, and with it its ephemeral znodes.
    ///
    /// `false` for a client around a handle that somebody else opened and goes on using: then the session deletes each
    /// znode of its own before it lets go. The default is `true`.
    fn owns_session(&self) -> bool {
        true
    }

    /// Lets go of the connection; no event is told any more. Idempotent. May block as any other call may.
    fn close(&self);
}
