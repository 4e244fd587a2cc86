//! [`Probe`]: one address of a server.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use zookeeper_recipes_lock::LockError;

use super::four_letter;
use crate::connection::ConnectionArgs;
use crate::failure::{Failure, describe};

/// No server grants less than it wants, so this shows the least that it grants.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(100);

/// The longest time for a server to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// An address to probe.
#[derive(Debug)]
pub(super) struct Target {
    /// As in the connect string.
    pub(super) server: String,
    host: String,
    /// `None` if the name has none.
    pub(super) address: Option<SocketAddr>,
    failure: Option<String>,
}

/// The findings about an address.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) target: Target,
    pub(super) version: Option<String>,
    pub(super) mode: String,
    /// The session timeout.
    pub(super) granted: Option<Duration>,
    pub(super) tick: Option<Duration>,
    /// The reason why no session could be opened.
    pub(super) failure: Option<String>,
}

/// Resolves a name. Without an address, the target says why.
pub(super) fn targets(host: &str, port: u16) -> Vec<Target> {
    let server = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let target =
        |address, failure| Target { server: server.clone(), host: host.to_owned(), address, failure };
    let mut addresses: Vec<SocketAddr> = match (host, port).to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(error) => return vec![target(None, Some(error.to_string()))],
    };
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() {
        return vec![target(None, Some("the name has no address".to_owned()))];
    }
    addresses.into_iter().map(|address| target(Some(address), None)).collect()
}

impl Target {
    #[cfg(test)]
    pub(super) fn named(server: &str) -> Target {
        Target { server: server.to_owned(), host: server.to_owned(), address: None, failure: None }
    }

    /// The server, and the address if that is another.
    pub(super) fn name(&self) -> String {
        match self.address.map(|address| address.to_string()) {
            Some(address) if address != self.server => format!("{} ({address})", self.server),
            _ => self.server.clone(),
        }
    }

    /// Asks the server for what it says about itself, and opens a session.
    ///
    /// # Errors
    /// A file of the arguments cannot be used.
    pub(super) fn probe(self, connection: &ConnectionArgs) -> Result<Probe, Failure> {
        let mut probe = Probe {
            version: None,
            mode: "-".to_owned(),
            granted: None,
            tick: None,
            failure: self.failure.clone(),
            target: self,
        };
        let Some(address) = probe.target.address else { return Ok(probe) };
        // Opening a session would try again and again.
        if let Err(error) = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            probe.failure = Some(error.to_string());
            return Ok(probe);
        }
        let mut asks_least = true;
        if connection.tls_config().is_none() {
            let status = four_letter::status(address);
            probe.version = status.version;
            probe.mode = status.mode.unwrap_or(probe.mode);
            probe.tick = status.tick;
            asks_least = status.tick.is_none();
        }
        match probe.target.granted(connection, address, connection.session_timeout)? {
            Ok(granted) => probe.granted = Some(granted),
            Err(failure) => {
                probe.failure = Some(failure);
                return Ok(probe);
            }
        }
        if probe.mode == "-" {
            probe.mode = "serves".to_owned();
        }
        if asks_least {
            // Two ticks, unless the server is configured otherwise.
            let least = probe.target.granted(connection, address, SHORTEST_TIMEOUT)?;
            probe.tick = least.ok().map(|least| least / 2).filter(|tick| *tick >= SHORTEST_TIMEOUT);
        }
        Ok(probe)
    }

    /// Opens a session at this address, and returns what is granted, or why there is none.
    fn granted(
        &self,
        connection: &ConnectionArgs,
        address: SocketAddr,
        asked: Duration,
    ) -> Result<Result<Duration, String>, Failure> {
        let mut builder = connection.builder(&address.to_string())?.session_timeout(asked);
        if let Some(tls) = connection.tls_config() {
            // The certificate is for the name.
            builder = builder.tls(tls.server_name(&*self.host));
        }
        Ok(match builder.connect() {
            Ok(session) => {
                let granted = session.session_timeout();
                session.close();
                Ok(granted)
            }
            Err(LockError::Connect { tried, .. }) => Err(format!("no session: {tried}")),
            Err(error) => Err(describe(&error)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::help_of;
    use crate::spans::show_duration;

    #[test]
    fn help_names_the_longest_wait_for_an_address() {
        let wait = show_duration(CONNECT_TIMEOUT);
        assert!(help_of("doctor").contains(&format!("every server, for {wait} at most")));
    }
}
