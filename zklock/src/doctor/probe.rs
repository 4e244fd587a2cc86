//! [`Probe`]: what one address of a server shows.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use zookeeper_recipes_lock::{Session, Wait};

use super::four_letter;
use crate::connection::ConnectionArgs;
use crate::failure::{DENIED, Failure, UNAVAILABLE, code_of, describe};

/// A server that is asked for this timeout grants the shortest one that it allows, unless it allows even less. A
/// shorter time would not suffice for the round trips to a distant server.
const SHORT_TIMEOUT: Duration = Duration::from_millis(600);

/// How long to wait for a server to accept a connection, and to serve a second one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// An address to probe.
#[derive(Debug)]
pub(super) struct Target {
    /// The server as in the connect string, with its port.
    pub(super) server: String,
    host: String,
    /// `None` if the name has no address.
    pub(super) address: Option<SocketAddr>,
    /// The reason why the name has no address.
    failure: Option<String>,
}

/// The findings about an address.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) target: Target,
    pub(super) version: Option<String>,
    pub(super) mode: String,
    /// The session timeout that the server grants.
    pub(super) granted: Option<Duration>,
    pub(super) tick: Option<Duration>,
    /// The reason why no session could be opened.
    pub(super) failure: Option<String>,
    /// Whether the server refuses the credentials of the client.
    pub(super) is_denied: bool,
    /// The reason why no second connection could be opened beside the first.
    pub(super) refusal: Option<String>,
}

/// Resolves a name to one target per address. If that fails, returns one target with the reason.
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

    /// The server, and its address in parentheses if that is different.
    pub(super) fn name(&self) -> String {
        match self.address.map(|address| address.to_string()) {
            Some(address) if address != self.server => format!("{} ({address})", self.server),
            _ => self.server.clone(),
        }
    }

    /// Asks the server for its status, opens a session, and opens a second one beside it.
    ///
    /// # Errors
    /// The same as [`ConnectionArgs::builder`].
    pub(super) fn probe(self, connection: &ConnectionArgs) -> Result<Probe, Failure> {
        let mut probe = Probe {
            version: None,
            mode: "-".to_owned(),
            granted: None,
            tick: None,
            failure: self.failure.clone(),
            is_denied: false,
            refusal: None,
            target: self,
        };
        let Some(address) = probe.target.address else { return Ok(probe) };
        // Without this check, the attempt to open a session would last until its deadline.
        if let Err(error) = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            probe.failure = Some(error.to_string());
            return Ok(probe);
        }
        if !connection.uses_tls() {
            let status = four_letter::status(address);
            probe.version = status.version;
            probe.mode = status.mode.unwrap_or(probe.mode);
            probe.tick = status.tick;
        }
        let session =
            match probe.target.open(connection, address, connection.session_timeout, connection.wait())? {
                Ok(session) => session,
                Err(failure) => {
                    probe.is_denied = failure.code == DENIED;
                    probe.failure = Some(failure.message);
                    return Ok(probe);
                }
            };
        probe.granted = Some(session.session_timeout());
        if probe.mode == "-" {
            probe.mode = "serves".to_owned();
        }
        // Each session asks for the tick in this way, on a second connection.
        match probe.target.open(connection, address, SHORT_TIMEOUT, Wait::timeout(CONNECT_TIMEOUT))? {
            Ok(second) => {
                // The shortest timeout is two ticks, unless minSessionTimeout is set.
                let shortest = Some(second.session_timeout()).filter(|granted| *granted > SHORT_TIMEOUT);
                probe.tick = probe.tick.or(shortest.map(|shortest| shortest / 2));
                second.close();
            }
            Err(refusal) => probe.refusal = Some(refusal.message),
        }
        session.close();
        Ok(probe)
    }

    /// Opens a session at this address.
    pub(super) fn open_session(&self, connection: &ConnectionArgs) -> Result<Session, Failure> {
        let no_address = || Failure::new(UNAVAILABLE, "the name has no address");
        let address = self.address.ok_or_else(no_address)?;
        self.open(connection, address, connection.session_timeout, connection.wait())?
    }

    /// Opens a session at this address, or returns why that fails.
    ///
    /// # Errors
    /// The same as [`ConnectionArgs::builder`].
    fn open(
        &self,
        connection: &ConnectionArgs,
        address: SocketAddr,
        session_timeout: Duration,
        wait: Wait,
    ) -> Result<Result<Session, Failure>, Failure> {
        let mut builder = connection.builder(&address.to_string())?;
        builder = builder.session_timeout(session_timeout).wait_for_server(wait);
        // The servers' principal contains the host's name, not its address.
        builder = connection.sasl.apply(builder, Some(&self.host))?;
        if let Some(tls) = connection.tls_config()? {
            // The certificate contains the host's name, too.
            builder = builder.tls(tls.server_name(&*self.host));
        }
        Ok(builder
            .connect()
            .map_err(|error| Failure::new(code_of(&error), format!("no session: {}", describe(&error)))))
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
        assert!(help_of("doctor").contains(&format!("waits at most {wait} for each connection")));
    }
}
