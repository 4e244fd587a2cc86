//! The interface for other client libraries: a trait for clients, and the few calls that the locks need.
//!
//! The primary type in this module is [`ZooKeeperClient`], which makes a [`Call`] and passes on its [`Reply`].
//! Applications rarely need it, because [`Session::connect`](crate::Session::connect) brings its own client.
//!
//! **This module may change in any 0.x release.**

// The crate reaches ZooKeeper only through this trait, and knows nothing of the library behind it. A library's faults
// are worked around only in the adapter of that library.

use std::time::Duration;

use super::DEFAULT_JUTE_MAX_BUFFER;

pub use super::session_runtime::SessionRuntime;
pub use crate::time::Moment;
pub use zookeeper_connection::{
    Ask, Call, ClientEvent, Done, Enqueued, EventSink, Granted, MaxBuffer, Names, NamesIter, Op, Reply,
    Transacted, Verbs,
};

/// A client with one ZooKeeper session, on which the locks run.
///
/// Implement this trait to run the locks on another client library, and pass the client to
/// [`Session::from_client`](crate::Session::from_client). The package `zookeeper-recipes-lock-blocking` has an adapter
/// for clients whose calls block. The package `zookeeper-recipes-lock-conformance` checks a client against the contract
/// below, as far as a caller can see from outside.
///
/// # Calls
/// - If the reply to a call is lost, the call fails with [`ZkError::ConnectionLoss`](crate::client::ZkError). The call
///   may or may not have taken effect. The same is true of a call that panics. The session continues. The client never
///   makes a call again, because two znodes of one create may get the same path if their directory is created anew.
/// - Once the session is lost, every call fails immediately with [`ZkError::SessionExpired`](crate::client::ZkError). A
///   call never takes effect on any session but the one for which the client was created.
/// - A call that may [become too long](MaxBuffer) on the servers fails with
///   [`ZkError::CallTooLong`](crate::client::ZkError) before it is sent. If it were sent, the server would close the
///   connection, or write a transaction that no server can read: then the whole ensemble goes down.
/// - After a reconnect, calls are answered only by a server that has applied every change that the client has seen in a
///   reply or an event. Otherwise, an owner could read data from before its predecessor's last write.
///
/// # Events
/// - `watch` sets a one-shot watch on the server. Its event is passed to the sink of
///   [`subscribe`](ZooKeeperClient::subscribe) as [`ClientEvent::NodeChanged`], after the reply to the call that set
///   the watch. A watch that is set twice on one path fires once.
/// - Events are delivered in the order in which they happened.
/// - [`Disconnected`](ClientEvent::Disconnected) is delivered before any call fails because the connection was lost,
///   and before the client asks a server to resume the session. So a write that is answered on the new connection
///   proves that the session was alive after that event.
/// - [`Connected`](ClientEvent::Connected) may be delivered some time after the client has connected. Until then, calls
///   are answered but prove nothing.
/// - The answer to a ping is reported as [`PingAnswered`](ClientEvent::PingAnswered). The report comes between the
///   [`Connected`](ClientEvent::Connected) and the [`Disconnected`](ClientEvent::Disconnected) of the connection on
///   which the ping was sent, or not at all.
///
/// # Threads and locks
/// - [`submit`](ZooKeeperClient::submit) does not wait for a server.
/// - The client may call a [`Done`] or the sink on any of its threads. At that moment it must hold no lock that
///   `submit` or [`remove_watches`](ZooKeeperClient::remove_watches) takes, because the session makes such calls in
///   response, on that thread and on others. Nor does it hold a lock that [`session_id`](ZooKeeperClient::session_id) or
///   [`server`](ZooKeeperClient::server) takes: while [`Connected`](ClientEvent::Connected) is delivered, the session
///   asks for the server of that connection. A `Done` and the sink do not block.
/// - The session drops the client on a callback thread, never on a thread of the client. So the client's `drop` may
///   wait for the client's threads.
/// - [`is_ordered`](ZooKeeperClient::is_ordered) says whether calls take effect and are answered in order.
pub trait ZooKeeperClient: Send + Sync {
    /// Receives the clock and the threads of the session that uses this client.
    ///
    /// They are meant for clients that simulate time, like the client of the [fake](crate::fake). A client that wraps
    /// another client passes them on. Called once. Only [`session_timeout`](ZooKeeperClient::session_timeout) may be
    /// called earlier. The default does nothing.
    fn run_on(&self, runtime: &SessionRuntime) {
        let _ = runtime;
    }

    /// Makes a call, and passes the outcome to `done`.
    ///
    /// The outcome is an error, or the reply that belongs to the kind of call.
    /// - A reply is passed on after `submit` has returned, or on another thread. An error may be passed on immediately
    ///   if it is known without asking a server, because the session has ended or the call is refused.
    /// - A pending call fails when contact or the session is lost, or when the client is closed or dropped. If a client
    ///   leaks a [`Done`], the lock that waits for it blocks until its own wait or the session ends.
    fn submit(&self, call: Call, done: Done);

    /// Returns whether calls, replies and events keep their order.
    ///
    /// In an ordered client, the calls on one connection take effect in the order in which they are submitted, and
    /// their replies are passed on in the same order. If a change takes effect between two calls, its event is passed
    /// on between their replies. An error may come earlier.
    ///
    /// The default is `false`. **A wrong `true` breaks mutual exclusion**: on an ordered client, an event alone may
    /// make a request the owner; on any other client, the session asks the server again.
    fn is_ordered(&self) -> bool {
        false
    }

    /// Removes the watches of this client on `path`, if there are any.
    ///
    /// The method does not wait for the server. The watches of later calls are not removed. If a removed watch fires
    /// nevertheless, its event is ignored. The default does nothing: a watch that nobody needs then uses memory until
    /// it fires or the session ends.
    fn remove_watches(&self, path: &str) {
        let _ = path;
    }

    /// Sets the sink of this client's events, and returns whether there is contact now.
    ///
    /// The session calls this once, before it [submits](ZooKeeperClient::submit) its first call. The sink receives
    /// every event after the returned state.
    fn subscribe(&self, sink: EventSink) -> bool;

    /// Returns the session id.
    ///
    /// ZooKeeper's logs and four-letter commands print it in hexadecimal. The default is `None`: the client does not
    /// report it.
    fn session_id(&self) -> Option<i64> {
        None
    }

    /// Returns the server of the current or last connection, for log lines and events.
    ///
    /// The default is `None`: the client does not report it.
    fn server(&self) -> Option<String> {
        None
    }

    /// Returns the path that the client prepends to all paths, if there is one.
    ///
    /// The path appears in error messages, and its length counts toward the limit on the session's znodes. The default
    /// is `None`. Called once, when the session is opened.
    fn chroot(&self) -> Option<String> {
        None
    }

    /// Returns how long the server keeps the session without contact.
    ///
    /// This is the session timeout that the server granted on the current connection, or a shorter one that was granted
    /// to the session earlier.
    fn session_timeout(&self) -> Duration;

    /// Returns how long the leader may take to learn that a session was active.
    ///
    /// The time counts from the answer to a request. A follower reports its active sessions to the leader every half
    /// tick (a tick is 2 s by default). An observer may report through a follower, which takes up to another half tick.
    /// A full tick covers both. Zero means that the leader already knows of the activity when the request is answered.
    ///
    /// A shorter delay needs fewer keep-alives. **A delay that is too short breaks mutual exclusion when a server
    /// dies.** The default is that of [`Granted::new`], which is long enough if servers grant no session timeout below
    /// two ticks.
    fn report_delay(&self) -> Duration {
        Granted::new(self.session_timeout()).report_delay
    }

    /// Returns whether the client sends pings regularly and reports the answers.
    ///
    /// Such a client sends a ping at least once in each third of the session timeout, even if there is other traffic,
    /// and reports every answer as [`PingAnswered`](ClientEvent::PingAnswered). A ping is an empty request that the
    /// connected server answers on its own.
    ///
    /// The session makes writes to prove that it is alive. If `true`, it makes them only when it is opened, and while a
    /// lock is held or being acquired. If `false`, it makes them at short intervals all the time. The default is
    /// `false`. Called once, when the session is opened.
    fn reports_pings(&self) -> bool {
        false
    }

    /// Returns how long the connection must be idle once in every session timeout.
    ///
    /// A client whose health check works only on an idle connection returns a time above zero. The session pauses for
    /// this time, if the session timeout leaves room for a pause. The default is zero. Called once, when the session is
    /// opened.
    fn min_idle_for_ping(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns whether [`close`](ZooKeeperClient::close) ends the session on the server.
    ///
    /// Return `false` for a client around a handle that its owner continues to use. The locks then delete each of their
    /// znodes before the client is closed, because the session lives on and would keep the znodes. The default is
    /// `true`.
    fn owns_session(&self) -> bool {
        true
    }

    /// Returns the servers' `jute.maxbuffer`, in bytes.
    ///
    /// The session limits its ephemeral znodes by this value, and the client [each call](MaxBuffer): see
    /// [`SessionBuilder::jute_max_buffer`](crate::SessionBuilder::jute_max_buffer). The default is one mebibyte, as in
    /// ZooKeeper. Called once, when the session is opened.
    fn jute_max_buffer(&self) -> usize {
        DEFAULT_JUTE_MAX_BUFFER
    }

    /// Releases the connection.
    ///
    /// Before that, the client ends the session on the server, if [`owns_session`](ZooKeeperClient::owns_session) is
    /// `true`. No event is reported afterwards. The call may block. Idempotent.
    fn close(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Defines only what has no default.
    struct Plain;

    impl ZooKeeperClient for Plain {
        fn submit(&self, _call: Call, _done: Done) {}

        fn subscribe(&self, _sink: EventSink) -> bool {
            false
        }

        fn session_timeout(&self) -> Duration {
            Duration::from_secs(30)
        }

        fn close(&self) {}
    }

    #[test]
    fn defaults_promise_nothing_that_a_client_may_lack() {
        assert!(!Plain.is_ordered() && !Plain.reports_pings());
        assert_eq!(Plain.report_delay(), Granted::new(Duration::from_secs(30)).report_delay);
        assert!(Plain.report_delay() > Duration::ZERO);
    }
}
