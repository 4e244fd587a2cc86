//! The events of a client: [`ClientEvent`] and [`Granted`].

use std::sync::Arc;
use std::time::Duration;

use crate::time::Moment;

/// Receives a client's [`ClientEvent`]s.
///
/// A sink must neither block nor panic, because a client may call it on any thread, including its I/O thread. A sink
/// may submit calls to the client.
pub type EventSink = Arc<dyn Fn(ClientEvent) + Send + Sync>;

/// An event on a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The client is connected to a server, which has made this grant.
    ///
    /// Each connection has a new grant, which may be smaller than the last one.
    Connected(Granted),
    /// The [report delay](Granted::report_delay) on the current connection has become known.
    ///
    /// Reported if the delay was not yet known at [`Connected`](ClientEvent::Connected), and again if a better value
    /// becomes known.
    ReportDelay(Duration),
    /// A server has resumed the session, but does not serve it yet.
    ///
    /// Reported if the grant is known before [`Connected`](ClientEvent::Connected), for example because credentials
    /// must be presented first. The grant counts even if the connection ends before `Connected`: without contact, a
    /// session lives for the shortest time that any server has granted.
    TakenUp {
        /// See [`Granted::session_timeout`].
        session_timeout: Duration,
    },
    /// The server has answered a ping on the current connection.
    ///
    /// A [`Connection`](crate::Connection) sends six pings in each session timeout.
    PingAnswered {
        /// The ping was sent at this moment or later.
        sent: Moment,
    },
    /// The client is not connected to any server. The session may be alive.
    ///
    /// A [`Connection`](crate::Connection) goes on looking for a server, and sets the watches again on the next one. It
    /// never gives up while no server can be reached, because only a server can say that the session has ended.
    Disconnected,
    /// The session has ended for good.
    ///
    /// There are four possible reasons: a server says that the session has ended; a server refuses a credential, or all
    /// servers refuse the client; the servers resume the session but answer nothing for a session timeout; or the
    /// client's own thread fails. Every later call fails with [`SessionExpired`](crate::ZkError::SessionExpired). Open
    /// another connection, and set the watches there.
    ///
    /// No outage causes this event, however long it lasts. A program that must know when the session may have ended
    /// must count the session timeout from the last answer.
    SessionLost,
    /// A watch on this znode has fired.
    ///
    /// These events come in the order of the changes, except that changes during an outage are reported after it in any
    /// order. An event is reported between the [`Connected`](ClientEvent::Connected) and the
    /// [`Disconnected`](ClientEvent::Disconnected) of the connection on which it was received.
    NodeChanged {
        /// The full path of the znode, as the application spells it.
        path: String,
        /// `true` if the znode was deleted, and `false` if it was created or its data or children have changed.
        ///
        /// Clients other than [`Connection`](crate::Connection) also report `false` if they do not know.
        is_deleted: bool,
    },
}

/// A server's grant to a session on one connection.
///
/// Without contact, a session lives for the shortest session timeout of all grants since its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Granted {
    /// The minimum time for which the server keeps the session without contact.
    pub session_timeout: Duration,
    /// The maximum time that the leader takes to learn that a session has made a request.
    ///
    /// A follower reports its active clients to the leader every half tick (a tick is 2 s by default). An observer may
    /// report through a follower, which takes up to another half tick. A full tick covers both.
    pub report_delay: Duration,
}

/// The shortest tick that is assumed if neither [`tick`](crate::ConnectionOptions::tick) nor
/// [`max_tick`](crate::ConnectionOptions::max_tick) is set.
///
/// This is the tick in ZooKeeper's sample configuration.
pub const DEFAULT_TICK: Duration = Duration::from_secs(2);

impl Granted {
    /// Creates a grant with this session timeout.
    ///
    /// The report delay is the one for the longest tick that a server with this grant may have.
    #[must_use]
    pub fn new(session_timeout: Duration) -> Granted {
        // Unless it is configured otherwise, a server grants no session timeout below two of its ticks.
        Granted { session_timeout, report_delay: session_timeout / 20 * 11 }
    }

    /// Shortens the report delay to the delay of servers with this tick.
    ///
    /// A tick of more than half of the session timeout counts as half of it.
    #[must_use]
    pub fn with_tick(self, tick: Duration) -> Granted {
        self.with_report_delay(report_delay_of(tick).min(self.report_delay))
    }

    /// Limits the session timeout. The report delay does not change, because it depends on the server.
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

/// Returns the report delay of servers with this tick: a full tick, plus a tenth of a tick for late timers.
pub(crate) fn report_delay_of(tick: Duration) -> Duration {
    tick.saturating_mul(11) / 10
}
