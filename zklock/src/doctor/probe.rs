//! [`Probe`]: what one address of a server shows.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use zookeeper_recipes_lock::{Session, Wait};

use super::four_letter;
use crate::connection::ConnectionArgs;
use crate::failure::{DENIED, Failure, UNAVAILABLE, code_of, describe};

/// A server that is asked for one of these timeouts grants the shortest one that it allows, unless it allows even less.
/// The first is too short for the round trips to a distant server, and the second for those to a very distant one.
const SHORT_TIMEOUTS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(600)];
/// How long to wait for a session with each of these timeouts.
const SHORT_WAIT: Duration = Duration::from_secs(1);

/// How long to wait for a session with the usual timeout, if there is none with a short one.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// How long to wait for a server to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// An address to probe.
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug)]
pub(super) struct Probe {
    pub(super) target: Target,
    pub(super) version: Option<String>,
    pub(super) mode: String,
    /// The session timeout that the server grants.
    pub(super) granted: Option<Duration>,
    /// The tick that the server states, or else the measured one.
    pub(super) tick: Option<Duration>,
    /// The tick that the server states.
    pub(super) shown_tick: Option<Duration>,
    /// The tick that a session measures: half of the shortest session timeout that the server allows.
    pub(super) measured_tick: Option<Duration>,
    /// Whether the server is too far away, or too slow, for the short session that would show the tick.
    pub(super) is_distant: bool,
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
            shown_tick: None,
            measured_tick: None,
            is_distant: false,
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
            probe.shown_tick = status.tick;
            probe.measured_tick = status.min_session_timeout.map(|shortest| shortest / 2);
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
        if ["-", "not serving"].contains(&&*probe.mode) {
            // A server that was starting does serve now.
            probe.mode = "serves".to_owned();
        }
        probe.open_second_session(connection, address)?;
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
        let mut builder = connection.builder_without_ticks(&address.to_string())?;
        builder = builder.session_timeout(session_timeout).wait_for_server(wait);
        // The servers' principal contains the host's name, not its address.
        builder = connection.sasl.apply(builder, Some(&self.host))?;
        // The certificate contains the host's name, too.
        if let Some(tls) = connection.tls_config(Some(&self.host))? {
            builder = builder.tls(tls);
        }
        Ok(builder
            .connect()
            .map_err(|error| Failure::new(code_of(&error), format!("no session: {}", describe(&error)))))
    }
}

impl Probe {
    /// Opens a session beside the first one, as each session does to measure the tick.
    fn open_second_session(
        &mut self,
        connection: &ConnectionArgs,
        address: SocketAddr,
    ) -> Result<(), Failure> {
        let short = SHORT_TIMEOUTS.map(|timeout| (timeout, SHORT_WAIT));
        for (asked, wait) in short.into_iter().chain([(connection.session_timeout, LAST_WAIT)]) {
            match self.target.open(connection, address, asked, Wait::timeout(wait))? {
                Ok(second) => {
                    let shortest = Some(second.session_timeout()).filter(|granted| *granted > asked);
                    second.close();
                    self.measured_tick = self.measured_tick.or(shortest.map(|shortest| shortest / 2));
                    self.is_distant = asked != SHORT_TIMEOUTS[0] && shortest.is_none();
                    self.refusal = None;
                    break;
                }
                Err(refusal) => self.refusal = Some(refusal.message),
            }
        }
        self.tick = self.tick.or(self.measured_tick);
        Ok(())
    }

    /// Returns whether other addresses of the same server serve, and all of them are of another family (IPv4 or IPv6).
    /// Sessions use those.
    pub(super) fn is_only_of_the_wrong_family(&self, probes: &[Probe]) -> bool {
        let family = |probe: &Probe| probe.target.address.map(|address| address.is_ipv4());
        let serving = probes
            .iter()
            .filter(|probe| probe.granted.is_some() && probe.target.server == self.target.server);
        let mut serving = serving.peekable();
        serving.peek().is_some() && serving.all(|other| family(other) != family(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::help_of;
    use crate::spans::show_duration;

    #[test]
    fn help_names_the_longest_waits_for_an_address() {
        let [first, second] = [CONNECT_TIMEOUT, 2 * SHORT_WAIT + LAST_WAIT].map(show_duration);
        let help = help_of("doctor");
        assert!(help.contains(&format!("waits at most {first} for each connection")), "{help}");
        assert!(help.contains(&format!("beside it, within {second}")), "{help}");
    }

    #[test]
    fn address_of_a_family_that_no_session_needs_is_known() {
        let at = |address: &str, serves: bool| Probe {
            target: Target { address: address.parse().ok(), ..Target::named("zk1:2181") },
            version: None,
            mode: "-".to_owned(),
            granted: serves.then_some(CONNECT_TIMEOUT),
            tick: None,
            shown_tick: None,
            measured_tick: None,
            is_distant: false,
            failure: (!serves).then(|| "unreachable".to_owned()),
            is_denied: false,
            refusal: None,
        };
        let wrong = |probes: &[Probe]| probes[0].is_only_of_the_wrong_family(probes);
        let failed = at("[::1]:2181", false);
        assert!(wrong(&[failed.clone(), at("10.0.0.1:2181", true)]));
        assert!(!wrong(&[failed.clone(), at("10.0.0.1:2181", false)]));
        assert!(!wrong(&[failed.clone(), at("10.0.0.1:2181", true), at("[::2]:2181", true)]));
        let other = Probe { target: Target::named("zk2:2181"), ..at("10.0.0.1:2181", true) };
        assert!(!wrong(&[failed, other]), "the address of another server");
    }
}
