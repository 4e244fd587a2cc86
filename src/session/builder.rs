//! [`SessionBuilder`]: how a session connects.

use std::time::Duration;

use super::{FirstContact, Session, check_timeout};
use crate::client::DEFAULT_TICK;
use crate::client::connect_string::ConnectString;
#[cfg(feature = "tls")]
use crate::connection::TlsConfig;
use crate::connection::{Connection, ConnectionOptions, Credential};
use crate::error::Result;
use crate::session::runtime::{Runtime, Threads};

/// The session timeout unless another one is set.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects a [`Session`] with settings; made by [`Session::builder`].
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::Session;
///
/// let session = Session::builder("zk1:2181,zk2:2181,zk3:2181/app")
///     .session_timeout(Duration::from_secs(40))
///     .replace_lost_sessions(true)
///     .connect()?;
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect`"]
pub struct SessionBuilder {
    connect_string: String,
    session_timeout: Duration,
    replaces_lost_sessions: bool,
    max_tick: Duration,
    credentials: Vec<Credential>,
    #[cfg(feature = "tls")]
    tls: Option<TlsConfig>,
}

impl SessionBuilder {
    pub(super) fn new(connect_string: String) -> SessionBuilder {
        SessionBuilder {
            connect_string,
            session_timeout: DEFAULT_TIMEOUT,
            replaces_lost_sessions: false,
            max_tick: DEFAULT_TICK,
            credentials: Vec::new(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Sets how long the server keeps the session, with its locks, without hearing from this
    /// process; 30 s by default. The server limits it (by default to 4 s to 40 s), and its answer
    /// counts: [`Session::session_timeout`].
    pub fn session_timeout(self, session_timeout: Duration) -> SessionBuilder {
        SessionBuilder { session_timeout, ..self }
    }

    /// Sets the longest tick (`tickTime`) of the servers; 2 s by default, as in their sample
    /// configuration.
    ///
    /// A lock is owned only while the server provably keeps the session, and the proof depends on
    /// the tick. The session takes half of the shortest session timeout that a server grants for its
    /// tick, but no less than this.
    ///
    /// - State shorter ticks for a session timeout of a few seconds: its locks then survive longer
    ///   outages.
    /// - State longer ticks if the servers' `minSessionTimeout` is below two of them, as it hides
    ///   them. **A value below the true one then breaks mutual exclusion** when a server dies.
    pub fn max_tick(self, max_tick: Duration) -> SessionBuilder {
        SessionBuilder { max_tick, ..self }
    }

    /// Sets whether to connect a new session whenever one is lost; `false` by default.
    ///
    /// Waiting requests then join the queue again on the new session, at its end, and what the lost
    /// session left in the queue is deleted. A lock that was *held* is lost and reported as such:
    /// only the application knows what that means. The [state](Session::state) changes from `Lost`
    /// back to `Connected`.
    ///
    /// Calls that wait for a lock wait for the next session, too. All others fail with
    /// [`SessionLost`](crate::LockError::SessionLost) until it is connected: `try_lock`, a
    /// downgrade, a look at a directory, a revocation, a call for data. Repeat them later.
    ///
    /// This is for daemons that contend all the time. It is not the default, as everything else on
    /// a lost session is gone as well: other locks, ephemeral znodes, watches. A library should not
    /// carry on with its own part alone.
    pub fn replace_lost_sessions(self, replace: bool) -> SessionBuilder {
        SessionBuilder { replaces_lost_sessions: replace, ..self }
    }

    /// Adds an identity, presented to every server before anything else, on every connection and
    /// also by a session that replaces a lost one: ZooKeeper's `addauth`.
    ///
    /// With the scheme `digest`, the credential is `user:password`. A refused credential ends the
    /// session. Credentials are never logged.
    pub fn auth(mut self, scheme: impl Into<String>, credential: impl Into<Vec<u8>>) -> SessionBuilder {
        self.credentials.push(Credential { scheme: scheme.into(), auth: credential.into() });
        self
    }

    /// Encrypts the connection with TLS.
    #[cfg(feature = "tls")]
    pub fn tls(self, tls: TlsConfig) -> SessionBuilder {
        SessionBuilder { tls: Some(tls), ..self }
    }

    /// Connects, and returns when the session is established. Blocks for the session timeout at
    /// most.
    ///
    /// # Errors
    /// - [`InvalidArgument`](crate::LockError::InvalidArgument): the connect string is malformed,
    ///   or the timeout is shorter than 100 ms or longer than a day.
    /// - [`Connect`](crate::LockError::Connect): no server answered, or one refuses a credential.
    ///   The message has the result for each server.
    /// - [`Thread`](crate::LockError::Thread): no thread could be started.
    pub fn connect(self) -> Result<Session> {
        let session_timeout = self.session_timeout;
        check_timeout(session_timeout)?;
        let servers = ConnectString::parse(&self.connect_string)?;
        let mut options = ConnectionOptions::new(session_timeout);
        options.credentials = self.credentials;
        options.max_tick = self.max_tick;
        #[cfg(feature = "tls")]
        {
            options.tls = self.tls;
        }
        if self.replaces_lost_sessions {
            return Session::from_client_factory(move || Ok(Connection::connect(&servers, &options)?));
        }
        let threads = Threads::start()?;
        let begun = threads.now();
        let client = Connection::connect(&servers, &options).map(|connection| connection as _);
        let contact = FirstContact::by(begun, session_timeout, servers.to_string());
        Session::open(client, threads, Some(begun), &contact)
    }
}
