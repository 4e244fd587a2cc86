//! Opens connections for sessions, with the settings of a [`SessionBuilder`](super::SessionBuilder).

use std::sync::Arc;
use std::time::{Duration, Instant};

use zookeeper_connection::{ConnectError, ConnectString, Connection, ConnectionOptions};

use crate::client::{KEEP_ALIVE_PATH, OTHER_KEEP_ALIVE_PATH};
use crate::error::{ErrorReason, LockError, Operation, Result};
use crate::logging;
use crate::wait::Wait;

/// The settings of a connection.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) servers: ConnectString,
    pub(super) connection: ConnectionOptions,
}

impl Options {
    /// # Errors
    /// `InvalidArgument` for a malformed connect string.
    pub(super) fn new(connect_string: &str, session_timeout: Duration) -> Result<Options> {
        let servers =
            ConnectString::parse(connect_string).map_err(|error| of_connecting(error, Duration::ZERO))?;
        let mut connection = ConnectionOptions::new(session_timeout);
        connection.barrier_paths = [KEEP_ALIVE_PATH, OTHER_KEEP_ALIVE_PATH];
        connection.log_target = logging::CONNECTION;
        Ok(Options { servers, connection })
    }
}

/// Opens a session. Blocks until it is open or the wait ends.
///
/// # Errors
/// - `NoServer` with the outcome for each server.
/// - `CertificateRefused`, `CredentialsRefused`, `NotZooKeeper`, `Cancelled`.
/// - `InvalidTls` if a file of the TLS configuration cannot be used; `InvalidArgument` for two SASL mechanisms.
/// - `Thread` if the I/O thread, or something it needs, cannot be created.
pub(super) fn connect(options: &Options, wait: &Wait) -> Result<Arc<Connection>> {
    let begun = Instant::now();
    let Options { servers, connection } = options;
    let connected = Connection::connect_unless(servers, connection, wait.deadline(), &wait.cancellation());
    connected.map_err(|error| of_connecting(error, wait.time_allowed(begun)))
}

/// Converts the error of an attempt to connect, which was allowed to take `timeout`.
fn of_connecting(error: ConnectError, timeout: Duration) -> LockError {
    match error {
        ConnectError::InvalidConnectString { rule } => LockError::invalid_argument("connect string", rule),
        ConnectError::InvalidChroot { path, rule } => LockError::invalid_path(path, rule),
        ConnectError::InvalidTls { rule } => LockError::invalid_tls(&rule),
        ConnectError::InvalidSasl { rule } => LockError::invalid_argument("SASL configuration", rule),
        ConnectError::Unreachable { tried } => LockError::no_server(tried, timeout),
        ConnectError::CertificateRefused { tried } => LockError::certificate_refused(&tried),
        ConnectError::CredentialsRefused { servers, reason } => {
            LockError::turned_away(ErrorReason::CredentialsRefused, &servers, reason)
        }
        ConnectError::NotZooKeeper { servers, .. } => LockError::turned_away(
            ErrorReason::NotZooKeeper,
            &servers,
            "the servers are ClickHouse Keeper: when one of them stops, its sessions end before their clients notice, \
             so two clients can own a lock; use ZooKeeper",
        ),
        ConnectError::Cancelled { servers } => {
            LockError::of(ErrorReason::Cancelled, Operation::CONNECT, servers)
        }
        ConnectError::Thread { source } => LockError::thread(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(7);

    fn servers() -> String {
        "zk1:2181".to_owned()
    }

    #[test]
    fn each_error_of_connecting_keeps_its_kind_and_its_words() {
        let rule = || "the rule".to_owned();
        let thread = || Arc::new(std::io::Error::other("too many threads"));
        for (error, text) in [
            (ConnectError::InvalidConnectString { rule: rule() }, "invalid connect string: the rule"),
            (
                ConnectError::InvalidChroot { path: "a".to_owned(), rule: "a rule" },
                "invalid path 'a': a rule",
            ),
            (ConnectError::InvalidTls { rule: rule() }, "invalid TLS configuration: the rule"),
            (ConnectError::InvalidSasl { rule: rule() }, "invalid SASL configuration: the rule"),
            (ConnectError::Unreachable { tried: servers() }, "could be reached within 7s"),
            (ConnectError::CertificateRefused { tried: servers() }, "certificates are refused: zk1:2181"),
            (
                ConnectError::CredentialsRefused { servers: servers(), reason: "why" },
                "connect to zk1:2181: why",
            ),
            (ConnectError::NotZooKeeper { servers: servers(), reason: "why" }, "two clients can own a lock"),
            (ConnectError::Cancelled { servers: servers() }, "connect to 'zk1:2181': cancelled"),
            (ConnectError::Thread { source: thread() }, "too many threads"),
        ] {
            let mapped = of_connecting(error.clone(), TIMEOUT);
            assert!(mapped.to_string().contains(text), "{mapped}");
            // Only `Unreachable` becomes `NoServer`.
            let has_no_server = mapped.reason() == ErrorReason::NoServer;
            assert_eq!(has_no_server, matches!(error, ConnectError::Unreachable { .. }), "{mapped:?}");
        }
    }

    #[test]
    fn connection_writes_to_the_paths_of_the_keep_alive_and_logs_with_the_librarys_target() {
        let options = Options::new("zk1", TIMEOUT).unwrap();
        assert_eq!(options.connection.barrier_paths, [KEEP_ALIVE_PATH, OTHER_KEEP_ALIVE_PATH]);
        assert_eq!(options.connection.log_target, logging::CONNECTION);
        assert_eq!(options.connection.session_timeout, TIMEOUT);
    }
}
