//! The port to other client libraries: the few calls that the locks need, and the trait of a client.
//!
//! The primary type in this module is [`ZooKeeperClient`], which makes a [`Call`] and passes on its [`Reply`]. Applications
//! need none of this, because [`Session::connect`](crate::Session::connect) brings its own client. Implement the trait to
//! run the locks on another library: the package `zookeeper-recipes-lock-blocking` does so for one whose calls block,
//! and the package `zookeeper-recipes-lock-conformance` checks an implementation.
//!
//! **This module may change in any 0.x release.**
//!
//! The crate reaches ZooKeeper only through this trait, and knows nothing of the library behind it. An adapter
//! works around the faults of its library; no other code does.

use std::time::Duration;

use super::DEFAULT_JUTE_MAX_BUFFER;

pub use super::session_runtime::SessionRuntime;
pub use crate::time::Moment;
pub use zookeeper_connection::{
    Ask, Call, ClientEvent, Done, Enqueued, EventSink, Granted, Names, NamesIter, Op, Reply, Transacted,
    Verbs,
};

/// A connection to ZooKeeper, which has one session, for the recipes.
///
/// The crate's own, which [`Session::connect`](crate::Session::connect) uses, is one. Implement it to
/// run the recipes on another client through [`Session::from_client`](crate::Session::from_client); the
/// package `zookeeper-recipes-lock-blocking` does that for a client whose calls wait for their replies. The
/// package `zookeeper-recipes-lock-conformance` checks a client against the contract.
///
/// # The contract
/// - A call whose reply was lost fails with [`ZkError::ConnectionLoss`](crate::client::ZkError): it may or
///   may not have taken effect. The same holds for a call that panics; the session continues.
/// - Once the session cannot come back, every call fails immediately with
///   [`ZkError::SessionExpired`](crate::client::ZkError). A call never takes effect on any other session
///   than the one that the client was made for.
/// - A request that is too long for a server, of a mebibyte by default, fails with
///   [`ZkError::BadArguments`](crate::client::ZkError) before it is sent. A server would close the
///   connection, and each repetition would do the same.
/// - `watch` sets a one-shot watch on the server. Its event reaches the sink given to
///   [`subscribe`](ZooKeeperClient::subscribe) as [`ClientEvent::NodeChanged`], after the reply of
///   the call that set it. A watch that is set twice on one path fires once.
/// - Events are delivered in the order in which they happened.
///   [`Disconnected`](ClientEvent::Disconnected) is delivered before any call fails because of it,
///   and before the client asks a server to take up the session again: a write that is answered on
///   the new connection proves the session alive from that event on.
/// - After a reconnect, calls are answered by a server that has taken up every change of which the
///   client has reported a reply or an event. Otherwise an owner could read what was before its
///   predecessor wrote.
/// - [`Connected`](ClientEvent::Connected) may come later than the connection. Until then calls are
///   answered and prove nothing.
/// - The answer to a ping is reported as [`PingAnswered`](ClientEvent::PingAnswered) between the
///   [`Connected`](ClientEvent::Connected) and the [`Disconnected`](ClientEvent::Disconnected) of
///   the connection on which the ping was sent, or not at all.
///
/// # Threads and locks
/// - [`submit`](ZooKeeperClient::submit) does not wait for a server.
/// - The client calls a [`Done`], and the sink, on any of its threads, while it holds no lock that
///   `submit` or [`remove_watches`](ZooKeeperClient::remove_watches) takes: what follows from an
///   outcome or an event makes such calls, on that thread and on others. Neither of the two blocks.
/// - The session drops the client on a callback thread, never on one of the client's. So the drop may wait for
///   the client's threads.
/// - Of calls and their effects, outcomes and events: see [`is_ordered`](ZooKeeperClient::is_ordered).
pub trait ZooKeeperClient: Send + Sync {
    /// Receives the clock and the threads of the session that takes this client.
    ///
    /// For clients that simulate time: the [fake](crate::fake)'s runs on them. A client that wraps
    /// another passes them on to it. The default does nothing. Called once, before any other call.
    fn run_on(&self, runtime: &SessionRuntime) {
        let _ = runtime;
    }

    /// Makes a call, whose outcome is passed to `done`: the reply of its kind, or an error.
    ///
    /// - A reply is passed on after `submit` has returned, or on another thread. An error may be
    ///   passed on at once, where no server is needed to know it: the session has ended, or the call
    ///   is refused.
    /// - A call under way fails when contact or the session is lost, or the client is closed or
    ///   dropped. A [`Done`] that a client forgets blocks a lock for ever.
    fn submit(&self, call: Call, done: Done);

    /// Returns whether all is in order: calls take effect in the order in which they are submitted on
    /// one connection, their replies are passed on in the same order, and events come among the
    /// replies as they happened among the effects. An error may come earlier.
    ///
    /// A lock of a client that is ordered is owned by an event, where others ask the server again. So a
    /// wrong `true` breaks mutual exclusion. The default is `false`.
    fn is_ordered(&self) -> bool {
        false
    }

    /// Removes the watches that this client has set on `path` if it has any, without waiting for the
    /// server. A call made later sets its watch after the removal.
    ///
    /// The default does nothing: a watch that nobody waits for costs memory until it fires, or
    /// until the session ends. An event that comes in spite of the removal is ignored.
    fn remove_watches(&self, path: &str) {
        let _ = path;
    }

    /// Sets the only sink of this client's events and returns whether there is contact now. The
    /// session calls it once, before any other call. The sink receives every change after the
    /// returned state.
    fn subscribe(&self, sink: EventSink) -> bool;

    /// Returns the number of the session, as ZooKeeper's logs and four-letter commands write it in
    /// hexadecimal. `None` if the client does not report it, which is the default.
    fn session_id(&self) -> Option<i64> {
        None
    }

    /// Returns the server of the current connection, or of the last one, for log lines. `None` if
    /// the client does not report it, which is the default.
    fn server(&self) -> Option<String> {
        None
    }

    /// Returns the path that the client puts before all others, for error messages and the bound on the
    /// session's znodes. `None` if there is none, which is the default. Called once, when the session is opened.
    fn chroot(&self) -> Option<String> {
        None
    }

    /// Returns the session timeout that the server granted on the current connection, or a shorter
    /// one that was granted to the session before: how long it keeps the session without contact.
    fn session_timeout(&self) -> Duration;

    /// Returns the time after which the ensemble's leader is certain to know of a request's
    /// session.
    ///
    /// A follower reports its active clients to the leader once every half tick of the servers'
    /// clock (a tick is 2 s by default). An observer may report to a follower, just as often. A
    /// full tick covers both. The default is that of [`Granted::new`], which is never shorter than
    /// that, provided that servers grant no less than two ticks. A shorter time needs fewer
    /// keep-alives. Too short a time breaks mutual exclusion when a server dies. Zero means that
    /// the leader knows of the request when it is answered.
    fn report_delay(&self) -> Duration {
        Granted::new(self.session_timeout()).report_delay
    }

    /// Returns whether the client sends a ping at least once in each third of the session timeout,
    /// whatever other traffic there is, and reports every answer as
    /// [`PingAnswered`](ClientEvent::PingAnswered).
    ///
    /// A ping is an empty request on the session that the connected server answers by itself. A
    /// session whose client reports pings writes only while a lock is held or acquired. Otherwise
    /// it writes at short intervals, to keep its session proven. The default is `false`. Called
    /// once, when the session is opened.
    fn reports_pings(&self) -> bool {
        false
    }

    /// Returns how long the connection must be idle once in every session timeout.
    ///
    /// The default is zero. A client whose health check works only on an idle connection returns a
    /// longer time, and gets it if the session timeout has room for it. Called once, when the
    /// session is opened.
    fn min_idle_for_ping(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns whether [`close`](ZooKeeperClient::close) ends the session on the server, and with
    /// it its ephemeral znodes.
    ///
    /// `false` for a client around a handle that its owner continues to use: then the session
    /// deletes each of its znodes before it closes. The default is `true`.
    fn owns_session(&self) -> bool {
        true
    }

    /// Returns the servers' `jute.maxbuffer` in bytes: the session has no more ephemeral znodes than a transaction
    /// of this length can name. See [`SessionBuilder::jute_max_buffer`](crate::SessionBuilder::jute_max_buffer).
    /// The default is that of ZooKeeper, a mebibyte. Called once, when the session is opened.
    fn jute_max_buffer(&self) -> usize {
        DEFAULT_JUTE_MAX_BUFFER
    }

    /// Releases the connection. No event is reported afterwards. Idempotent. May block as any other
    /// call may.
    fn close(&self);
}
