//! The options for reaching the servers.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use zookeeper_recipes_lock::client::TlsConfig;
use zookeeper_recipes_lock::{Session, SessionBuilder, Wait};

use crate::failure::{CONFIG, Failure, USAGE};
use crate::sasl::SaslArgs;
use crate::spans::{parse_duration, parse_positive_duration};

/// The longest wait for the first server, unless `run --timeout` states another. The session timeout limits it as well.
const MAX_CONNECT_WAIT: Duration = Duration::from_secs(10);

/// The shortest tick that a session assumes without `--tick` and `--max-tick`.
pub(crate) const DEFAULT_TICK: Duration = Duration::from_secs(2);

/// ZooKeeper's own default, plus one.
const DEFAULT_JUTE_MAX_BUFFER: usize = 1024 * 1024;

/// The variable with an identity. Other users can see a program's arguments, but not its variables.
const AUTH_VARIABLE: &str = "ZK_AUTH";

/// The variable with the password of the private key.
const KEY_PASSWORD_VARIABLE: &str = "ZK_CERT_KEY_PASSWORD";

/// What the user has stated about the servers' ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StatedTick {
    Exactly(Duration),
    AtMost(Duration),
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectionArgs {
    /// The servers, with port 2181 by default, and the chroot: HOST:PORT,...[/CHROOT]
    ///
    /// zklock waits for a server for 10s at most, or for the session timeout if that is shorter. With
    /// 'run --timeout', it waits for that time
    #[arg(
        long,
        short,
        global = true,
        value_name = "SERVERS",
        env = "ZK_CONNECT",
        default_value = "127.0.0.1:2181"
    )]
    pub(crate) connect: String,
    /// How long the servers keep the locks of a silent client, from 100ms to 1d. The servers have their
    /// own limits, by default 4s to 40s. Each TIME has the units ms, s, m, h, d, w, such as '1m 30s'; a
    /// number without a unit is in seconds
    #[arg(long, global = true, hide_short_help = true, value_name = "TIME", value_parser = parse_duration, default_value = "20s")]
    pub(crate) session_timeout: Duration,
    /// The tick (tickTime) of the servers, which 'doctor' shows; the longest, if they differ. With it, zklock
    /// measures no ticks. If it is too short, a lock can have two owners when a server dies
    #[arg(long, global = true, hide_short_help = true, value_name = "TIME", value_parser = parse_positive_duration)]
    tick: Option<Duration>,
    /// An upper bound of the servers' ticks, if you do not know the tick. zklock measures the ticks on a second
    /// connection to each server, but assumes at least this tick, or 2s without this option. If a server
    /// refuses the second connection, zklock assumes this tick, or half of the session timeout without this
    /// option
    #[arg(long, global = true, hide_short_help = true, value_name = "TIME", value_parser = parse_positive_duration)]
    max_tick: Option<Duration>,
    /// The servers' jute.maxbuffer; the smallest, if they differ. A call that could become longer on the servers
    /// is refused, because it could take them all down
    #[arg(long, global = true, hide_short_help = true, value_name = "BYTES", default_value_t = DEFAULT_JUTE_MAX_BUFFER)]
    jute_max_buffer: usize,
    /// Creates the chroot and its parents if they are missing. Everybody gets all permissions there
    #[arg(long, global = true, hide_short_help = true)]
    create_chroot: bool,
    /// An identity, such as digest:user:password. Other users can see arguments, so prefer ZK_AUTH
    /// [env: ZK_AUTH=]
    #[arg(long, global = true, hide_short_help = true, value_name = "SCHEME:CREDENTIAL")]
    auth: Option<Secret>,
    /// A file of identities, one per line, in addition to the one in --auth or ZK_AUTH
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE")]
    auth_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) sasl: SaslArgs,
    /// Encrypts connections. --ca, --cert and --tls-server-name imply it
    #[arg(long, global = true, hide_short_help = true)]
    tls: bool,
    /// A file of certificate authorities to trust, or of the servers' own certificates, instead of the
    /// platform's authorities (PEM)
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The name that the servers' certificates must have, instead of the host in the connect string
    #[arg(long, global = true, hide_short_help = true, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// The certificate of this client (PEM)
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE", requires = "cert_key")]
    cert: Option<PathBuf>,
    /// The private key of this client (PEM)
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE", requires = "cert")]
    cert_key: Option<PathBuf>,
    /// A file whose first line is the password of an encrypted private key (PKCS #8). Without a file,
    /// ZK_CERT_KEY_PASSWORD is the password [env: ZK_CERT_KEY_PASSWORD=]
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE", requires = "cert_key")]
    cert_key_password_file: Option<PathBuf>,
}

impl ConnectionArgs {
    /// Checks the settings without connecting.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        Ok(self.builder(&self.connect)?.check()?)
    }

    /// The settings of a session on these servers.
    ///
    /// # Errors
    /// - An identity or the SASL mechanism is malformed, or a variable with one of them or with the key's password is
    ///   not valid UTF-8.
    /// - A file that contains one of them cannot be used.
    /// - `--principal` is given without Kerberos, or Kerberos is asked for but this zklock was built without it.
    pub(crate) fn builder(&self, servers: &str) -> Result<SessionBuilder, Failure> {
        let mut builder = self.builder_without_ticks(servers)?;
        if let Some(tick) = self.tick {
            builder = builder.tick(tick);
        }
        if let Some(tick) = self.max_tick {
            builder = builder.max_tick(tick);
        }
        Ok(builder)
    }

    /// The settings of a session that only asks the servers about themselves. They may grant it less than two ticks.
    ///
    /// # Errors
    /// The same as [`builder`](ConnectionArgs::builder).
    pub(crate) fn builder_without_ticks(&self, servers: &str) -> Result<SessionBuilder, Failure> {
        let mut builder = Session::builder(servers)
            .session_timeout(self.session_timeout)
            .jute_max_buffer(self.jute_max_buffer)
            .create_chroot(self.create_chroot)
            .wait_for_server(self.wait());
        for Identity { scheme, credential } in self.identities()? {
            builder = builder.auth(scheme, credential);
        }
        builder = self.sasl.apply(builder, None)?;
        Ok(match self.tls_config(None)? {
            Some(tls) => builder.tls(tls),
            None => builder,
        })
    }

    /// The shortest tick that a session assumes, whatever it measures.
    pub(crate) fn shortest_tick(&self) -> Duration {
        self.tick.or(self.max_tick).unwrap_or(DEFAULT_TICK)
    }

    pub(crate) fn stated_tick(&self) -> Option<StatedTick> {
        self.tick.map(StatedTick::Exactly).or(self.max_tick.map(StatedTick::AtMost))
    }

    /// Returns the wait for the first server. It begins now.
    pub(crate) fn wait(&self) -> Wait {
        Wait::timeout(self.session_timeout.min(MAX_CONNECT_WAIT))
    }

    /// Connects to the servers of the connect string.
    pub(crate) fn session(&self) -> Result<Session, Failure> {
        Ok(self.builder(&self.connect)?.connect()?)
    }

    /// Connects a session that is replaced when it is lost.
    pub(crate) fn lasting_session(&self) -> Result<Session, Failure> {
        Ok(self.builder(&self.connect)?.replace_lost_sessions(true).connect()?)
    }

    /// The chroot of the connect string, or an empty string.
    pub(crate) fn chroot(&self) -> &str {
        let connect = self.connect.trim();
        connect.find('/').map_or("", |start| &connect[start..])
    }

    /// Returns whether connections are encrypted.
    pub(crate) fn uses_tls(&self) -> bool {
        self.tls || self.ca.is_some() || self.cert.is_some() || self.tls_server_name.is_some()
    }

    /// The TLS settings, or `None` if connections are not encrypted. The certificates must have the name `host`, unless
    /// `--tls-server-name` states another, or the host in the connect string if both are `None`.
    ///
    /// # Errors
    /// The file with the key's password cannot be used, or the variable with that password is not valid UTF-8.
    pub(crate) fn tls_config(&self, host: Option<&str>) -> Result<Option<TlsConfig>, Failure> {
        if !self.uses_tls() {
            return Ok(None);
        }
        let mut tls = TlsConfig::new();
        if let Some(file) = &self.ca {
            tls = tls.ca_file(file);
        }
        if let (Some(certificate), Some(key)) = (&self.cert, &self.cert_key) {
            tls = tls.client_certificate(certificate, key);
        }
        if let Some(password) = self.key_password()? {
            tls = tls.key_password(password);
        }
        if let Some(name) = self.tls_server_name.as_deref().or(host) {
            tls = tls.server_name(name);
        }
        Ok(Some(tls))
    }

    fn key_password(&self) -> Result<Option<String>, Failure> {
        let Some(file) = &self.cert_key_password_file else {
            return variable(KEY_PASSWORD_VARIABLE);
        };
        let unusable = |why: &str| Failure::new(CONFIG, format!("{}: {why}", file.display()));
        let text = std::fs::read_to_string(file).map_err(|error| unusable(&error.to_string()))?;
        let line = text.lines().next().ok_or_else(|| unusable("the file has no password"))?;
        Ok(Some(line.to_owned()))
    }

    fn identities(&self) -> Result<Vec<Identity>, Failure> {
        let mut identities: Vec<Identity> = match &self.auth {
            Some(Secret(identity)) => {
                vec![identity.parse().map_err(|error| Failure::new(USAGE, format!("--auth: {error}")))?]
            }
            None => identity_of_environment()?.into_iter().collect(),
        };
        if let Some(file) = &self.auth_file {
            identities.extend(read_identities(file)?);
        }
        Ok(identities)
    }
}

/// A text that no message may show. Parsing never fails, because clap shows an argument that it cannot parse.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) String);

impl std::str::FromStr for Secret {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Secret, Self::Err> {
        Ok(Secret(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secret").finish_non_exhaustive()
    }
}

/// A scheme and its credential. `Debug` does not print the credential.
#[derive(Clone, PartialEq, Eq)]
struct Identity {
    scheme: String,
    credential: String,
}

impl std::str::FromStr for Identity {
    type Err = String;

    /// The error does not show the text, which may be a password.
    fn from_str(text: &str) -> Result<Identity, String> {
        let Some((scheme, credential)) = text.split_once(':') else {
            return Err("an identity is SCHEME:CREDENTIAL, such as digest:user:password".to_owned());
        };
        Session::builder("localhost").auth(scheme, credential).check().map_err(|error| error.to_string())?;
        Ok(Identity { scheme: scheme.to_owned(), credential: credential.to_owned() })
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

/// The value of an environment variable. An empty variable counts as unset.
///
/// # Errors
/// The value is not valid UTF-8. The error does not show it, because it may be a password.
pub(crate) fn variable(name: &str) -> Result<Option<String>, Failure> {
    let value = env::var_os(name).filter(|value| !value.is_empty());
    let text = value.map(OsString::into_string).transpose();
    text.map_err(|_| Failure::new(USAGE, format!("{name}: it is not valid UTF-8")))
}

fn identity_of_environment() -> Result<Option<Identity>, Failure> {
    let identity = variable(AUTH_VARIABLE)?.map(|value| value.parse());
    identity.transpose().map_err(|error: String| Failure::new(USAGE, format!("{AUTH_VARIABLE}: {error}")))
}

fn read_identities(file: &Path) -> Result<Vec<Identity>, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(CONFIG, format!("{}: {error}", file.display())))?;
    let mut identities = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let in_line = |error| Failure::new(CONFIG, format!("{}:{number}: {error}", file.display()));
        identities.push(line.parse().map_err(in_line)?);
    }
    if identities.is_empty() {
        return Err(Failure::new(CONFIG, format!("{}: the file has no identity", file.display())));
    }
    Ok(identities)
}

/// The host and port of each server of a connect string.
pub(crate) fn servers_of(connect: &str) -> Result<Vec<(String, u16)>, Failure> {
    let servers = connect.split('/').next().unwrap_or_default();
    let named = servers.split(',').map(str::trim).filter(|server| !server.is_empty());
    let servers: Vec<(String, u16)> = named.map(host_and_port).collect::<Result<_, _>>()?;
    if servers.is_empty() {
        return Err(Failure::new(USAGE, format!("the connect string '{connect}' names no server")));
    }
    Ok(servers)
}

/// Splits `HOST[:PORT]`, and removes the brackets of an IPv6 address.
fn host_and_port(server: &str) -> Result<(String, u16), Failure> {
    let after_address = server.rfind(']').map_or(0, |bracket| bracket + 1);
    let (host, port) = match server[after_address..].rfind(':') {
        Some(colon) => (&server[..after_address + colon], &server[after_address + colon + 1..]),
        None => (server, "2181"),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match port.parse() {
        Ok(port) if port > 0 && !host.is_empty() => Ok((host.to_owned(), port)),
        _ => Err(Failure::new(USAGE, format!("'{server}' in the connect string is not HOST:PORT"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::help_of;
    use crate::spans::show_duration;

    #[test]
    fn help_names_the_longest_wait_for_a_server() {
        let wait = show_duration(MAX_CONNECT_WAIT);
        assert!(help_of("who").contains(&format!("waits for a server for {wait} at most")));
        assert!(help_of("run").contains(&format!("for a server for {wait} or the session timeout")));
    }

    #[test]
    fn help_names_the_port_that_is_tried_without_one() {
        let (_, port) = servers_of("zk1").ok().unwrap()[0];
        assert!(help_of("who").contains(&format!("The servers, with port {port} by default")));
    }

    #[test]
    fn help_names_the_shortest_tick_that_is_assumed_by_default() {
        let tick = show_duration(DEFAULT_TICK);
        assert!(help_of("who").contains(&format!("at least this tick, or {tick} without this option")));
    }

    #[test]
    fn help_names_the_shortest_and_the_longest_session_timeout() {
        let help = help_of("who");
        let (_, limits) = help.split_once("of a silent client, from ").unwrap();
        let (limits, _) = limits.split_once(". ").unwrap();
        let (shortest, longest) = limits.split_once(" to ").unwrap();
        let (shortest, longest) = (parse_duration(shortest).unwrap(), parse_duration(longest).unwrap());
        let is_accepted = |time| Session::builder("zk1").session_timeout(time).check().is_ok();
        assert!(is_accepted(shortest) && is_accepted(longest));
        let least = Duration::from_millis(1);
        assert!(!is_accepted(shortest - least) && !is_accepted(longest + least));
    }

    #[test]
    fn servers_are_parsed() {
        let servers = servers_of("zk1, zk2:2182,[::1]:2183,[::1]/app").ok().unwrap();
        let expected = [("zk1", 2181), ("zk2", 2182), ("::1", 2183), ("::1", 2181)];
        assert_eq!(servers, expected.map(|(host, port)| (host.to_owned(), port)));
        for wrong in ["", ",", "/app", "zk1:port", "zk1:0", ":2181"] {
            assert_eq!(servers_of(wrong).unwrap_err().code, USAGE, "{wrong}");
        }
    }

    #[test]
    fn credentials_are_neither_in_errors_nor_in_debug_output() {
        for wrong in ["secret", "digest:secret"] {
            assert!(!wrong.parse::<Identity>().unwrap_err().contains("secret"));
        }
        let identity: Identity = "digest:user:secret".parse().unwrap();
        assert_eq!((identity.scheme.as_str(), identity.credential.as_str()), ("digest", "user:secret"));
        assert!(!format!("{identity:?}").contains("secret"));
    }
}
