//! The seam between a session and its client: the few methods that the locks need.
//!
//! The primary type in this module is [`ZooKeeperClient`]. Applications do not need it, because
//! [`Session::connect`](crate::Session::connect) brings its own client. The seam is public with the feature `seam`, for
//! adapters that run the locks on another client library. Such an adapter calls
//! [`Session::from_factory`](crate::Session::from_factory).
//!
//! **This module is unstable: every release may change it.**

use zookeeper_connection::Connection;
use zookeeper_connection::support::lock_order::assert_none_held;

use super::DEFAULT_JUTE_MAX_BUFFER;

#[cfg(feature = "seam")]
pub use zookeeper_connection::{
    Ask, Call, ClientEvent, Done, Enqueued, EventSink, Granted, MaxBuffer, Moment, Names, NamesIter, Op,
    Reply, Transacted, Verbs,
};
#[cfg(not(feature = "seam"))]
use zookeeper_connection::{Call, Done, EventSink, Granted};

/// A client with one ZooKeeper session, on which the locks run.
///
/// # Contract
/// Mutual exclusion relies on these rules:
/// 1. The calls on one connection take effect, and are answered, in the order in which they are submitted. A call that
///    fails without an answer may fail earlier.
/// 2. An event is passed on after the replies to all calls that took effect before it, and after all earlier events. A
///    client that does not know which calls did waits for the replies to all calls that were under way when the event
///    came. An event may be late, but must not be lost unless the connection is.
/// 3. [`Disconnected`](ClientEvent::Disconnected) is passed on before any call fails because the connection was lost,
///    and before the client asks a server to resume the session. [`Connected`](ClientEvent::Connected) may be late:
///    until then, calls may be answered but prove nothing.
/// 4. [`PingAnswered`](ClientEvent::PingAnswered) is passed on between the `Connected` and the `Disconnected` of the
///    connection on which the ping was sent, or not at all. A ping is any request that a server has answered. A session
///    that gets neither replies nor answered pings for a session timeout is given up.
/// 5. A call never takes effect on any session but the client's own, and never twice: the client does not repeat calls.
///    Once the session is lost, every call fails immediately with
///    [`SessionExpired`](crate::client::ZkError::SessionExpired).
/// 6. A reply comes from a server, and answers this very call on the connection on which it was made. So does an error,
///    except those that the rules name, `ConnectionLoss` and `BadArguments`: what a server says proves that the session
///    lives. A read-only server is no contact. After a reconnect, calls are answered only by a server that has applied
///    every change that the client has seen.
/// 7. A call that may [become too long](MaxBuffer) on the servers fails with
///    [`CallTooLong`](crate::client::ZkError::CallTooLong) before it is sent.
/// 8. [`granted`](ZooKeeperClient::granted) and `Connected` never state a longer session timeout, or a shorter report
///    delay, than the servers'. Each shorter grant is reported, by [`TakenUp`](ClientEvent::TakenUp) or `Connected`, before
///    the `Disconnected` of its connection.
///
/// # Threads and locks
/// - A [`Done`] and the sink do not block. The client may call them on any of its threads, but not while it holds a
///   lock that one of its methods takes, because the session calls these methods in response.
/// - The session drops the client on a thread of its own. So the client's `drop` may wait for the client's threads.
pub trait ZooKeeperClient: Send + Sync {
    /// Makes a call, and passes the outcome to `done`. Does not wait for a server.
    ///
    /// A reply is passed on after `submit` has returned, or on another thread. An error may be passed on immediately.
    /// If the reply is lost, the call fails with [`ConnectionLoss`](crate::client::ZkError::ConnectionLoss), and may or
    /// may not have taken effect. A pending call fails when contact or the session is lost, and when the client is
    /// closed or dropped.
    fn submit(&self, call: Call, done: Done);

    /// Removes the watches that earlier calls have set on `path`. Does not wait for a server.
    ///
    /// The default does nothing: a watch that nobody needs then uses memory until it fires or the session ends.
    fn remove_watches(&self, path: &str) {
        let _ = path;
    }

    /// Sets the sink of this client's events, and returns whether there is contact now.
    ///
    /// The session calls this once, before it [submits](ZooKeeperClient::submit) its first call. The sink receives
    /// every event after the returned state.
    fn subscribe(&self, sink: EventSink) -> bool;

    /// Returns what identifies the session and its servers.
    fn identity(&self) -> Identity;

    /// Returns what the servers grant to the session now.
    fn granted(&self) -> Granted;

    /// Ends the session on the server, and releases the connection. May block. Idempotent.
    ///
    /// No event is reported afterwards, and nothing of the client keeps the session alive, even if no server could be
    /// asked.
    fn close(&self);
}

/// What identifies a client's session and its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The session id, or `None` if it is not known.
    pub session_id: Option<i64>,
    /// The server of the current or last connection, or `None` if it is not known.
    pub server: Option<String>,
    /// The path that the client prepends to all paths. Never changes.
    pub chroot: Option<String>,
    /// The servers' `jute.maxbuffer`, in bytes. Never changes.
    pub jute_max_buffer: usize,
}

impl Default for Identity {
    /// Returns the identity of a client without a chroot that knows neither its session id nor its server. The servers'
    /// `jute.maxbuffer` is one mebibyte, as in ZooKeeper.
    fn default() -> Identity {
        Identity { session_id: None, server: None, chroot: None, jute_max_buffer: DEFAULT_JUTE_MAX_BUFFER }
    }
}

/// The crate's own client. A thread that locks the connection's mutex must hold no other mutex.
impl ZooKeeperClient for Connection {
    fn submit(&self, call: Call, done: Done) {
        assert_none_held();
        Connection::submit(self, call, done);
    }

    fn remove_watches(&self, path: &str) {
        assert_none_held();
        Connection::remove_watches(self, path);
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        assert_none_held();
        Connection::subscribe(self, sink)
    }

    fn identity(&self) -> Identity {
        assert_none_held();
        Identity {
            session_id: Some(self.session_id()),
            server: Some(self.server()),
            chroot: self.chroot().map(str::to_owned),
            jute_max_buffer: self.jute_max_buffer(),
        }
    }

    fn granted(&self) -> Granted {
        assert_none_held();
        Connection::granted(self)
    }

    fn close(&self) {
        assert_none_held();
        self.end();
    }
}
