//! [`ClientEvent`] and [`Granted`]: what a connection reports.

use std::sync::Arc;
use std::time::Duration;

use crate::time::Moment;

/// Receives a client's [`ClientEvent`]s.
///
/// It never blocks and never panics. So a client may call it on any of its threads, including the one
/// that does its I/O. It may submit calls to the client.
pub type EventSink = Arc<dyn Fn(ClientEvent) + Send + Sync>;

/// An event that a client reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// Contact with a server, and that server's grant. Every connection has a new grant, which may be less than
    /// before.
    Connected(Granted),
    /// The [report delay](Granted::report_delay) on the present connection, if it is known only after
    /// [`Connected`](ClientEvent::Connected).
    ReportDelay(Duration),
    /// The session timeout of a server that has taken up the session again, if it is known before
    /// [`Connected`](ClientEvent::Connected). A connection may end in between, for example while
    /// credentials are presented, and the session lives for the shortest time that any server has granted.
    TakenUp {
        /// See [`Granted::session_timeout`].
        session_timeout: Duration,
    },
    /// The server has answered a ping that was sent at that moment or later, on the present
    /// connection. A [`Connection`](crate::Connection) sends one in each sixth of the session timeout.
    PingAnswered {
        /// Read from the clock before the ping was sent.
        sent: Moment,
    },
    /// No contact; the session may live. A [`Connection`](crate::Connection) goes on to look for a server, and sets the
    /// watches again on the next one. While no server takes the session up, it never gives up by time: only a server can say
    /// that the session has ended.
    Disconnected,
    /// The session cannot come back: a server says so, or the servers refuse the client, or they take the session up and
    /// answer nothing for a session timeout. Every later call fails with
    /// [`SessionExpired`](crate::ZkError::SessionExpired). Open another connection, and set the watches there.
    ///
    /// During an outage, however long, no server says anything. A program that must know when the session can have ended
    /// counts the session timeout from the last answer.
    SessionLost,
    /// A watch fired on the znode at this path, as the caller has spelled it. Such
    /// events come in the order of the changes, on the connection between whose
    /// [`Connected`](ClientEvent::Connected) and [`Disconnected`](ClientEvent::Disconnected) they
    /// were received.
    NodeChanged {
        /// The full path of the znode.
        path: String,
        /// `true` if the znode was deleted. `false` if it was created or its data or children have changed, and from
        /// another client than [`Connection`](crate::Connection) also if that does not know.
        is_deleted: bool,
    },
}

/// A server's grant to a session on one connection.
///
/// How long a session lives without contact is the shortest session timeout of all grants since its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Granted {
    /// The time for which the server keeps the session without contact, or a shorter one.
    pub session_timeout: Duration,
    /// The time after which the ensemble's leader is certain to know of a request's session, or a longer one.
    ///
    /// A follower reports its active clients to the leader once every half tick of the servers' clock (a tick is 2 s
    /// by default). An observer may report to a follower, just as often. A full tick covers both.
    pub report_delay: Duration,
}

/// The ticks that servers are assumed to have if nobody knows better: those of their sample
/// configuration.
pub const DEFAULT_TICK: Duration = Duration::from_secs(2);

impl Granted {
    /// Creates a grant with this session timeout. The report delay is that of the longest ticks
    /// which servers with such a grant may have.
    #[must_use]
    pub fn new(session_timeout: Duration) -> Granted {
        // Servers grant no session timeout below two ticks.
        Granted { session_timeout, report_delay: session_timeout / 20 * 11 }
    }

    /// Shortens the report delay to that of servers with ticks of this length: a full tick, and a
    /// tenth of one for late timers.
    #[must_use]
    pub fn with_tick(self, tick: Duration) -> Granted {
        self.with_report_delay((tick.saturating_mul(11) / 10).min(self.report_delay))
    }

    /// The same grant where no more than this session timeout counts. The report delay stays: it
    /// depends on the server.
    #[must_use]
    pub fn at_most(self, session_timeout: Duration) -> Granted {
        Granted { session_timeout: self.session_timeout.min(session_timeout), ..self }
    }

    /// Sets the report delay.
    #[must_use]
    pub fn with_report_delay(self, report_delay: Duration) -> Granted {
        Granted { report_delay, ..self }
    }
}
