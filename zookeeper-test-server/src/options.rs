//! [`ServerOptions`]: the configuration of a server.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::kdc::{REALM, SERVICE, TestKdc};
use super::process;
use super::sasl::Sasl;

/// The configuration of a [`TestServer`](super::TestServer), or of all servers of a
/// [`TestEnsemble`](super::TestEnsemble).
///
/// The defaults suit fast tests: a tick of half a second, and session timeouts from 1 to 40 s.
///
/// ```
/// use std::time::Duration;
/// use zookeeper_test_server::ServerOptions;
///
/// let options = ServerOptions::new()
///     .tick(Duration::from_secs(2))
///     .session_timeouts(Duration::from_secs(4), Duration::from_secs(40))
///     .config("maxClientCnxns=10")
///     .jvm_flag("-Djute.maxbuffer=4194304");
/// # drop(options);
/// ```
#[derive(Debug, Clone)]
pub struct ServerOptions {
    tick: Duration,
    min_session_timeout: Duration,
    max_session_timeout: Duration,
    config: Vec<String>,
    pub(super) jvm_flags: Vec<String>,
    tls: Option<Tls>,
    sasl: Option<Sasl>,
    requires_sasl: bool,
    allows_failed_sasl: bool,
    pub(super) start_limit: Duration,
}

#[derive(Debug, Clone)]
struct Tls {
    identity: PathBuf,
    authorities: PathBuf,
}

impl ServerOptions {
    /// Returns the default options.
    #[must_use]
    pub fn new() -> ServerOptions {
        ServerOptions {
            tick: Duration::from_millis(500),
            min_session_timeout: Duration::from_secs(1),
            max_session_timeout: Duration::from_secs(40),
            config: Vec::new(),
            jvm_flags: Vec::new(),
            tls: None,
            sasl: None,
            requires_sasl: false,
            allows_failed_sasl: false,
            start_limit: Duration::from_secs(60),
        }
    }

    /// Sets the server's unit of time (`tickTime`). Sessions are checked for expiry once a tick.
    #[must_use]
    pub fn tick(self, tick: Duration) -> ServerOptions {
        ServerOptions { tick, ..self }
    }

    /// Sets the bounds of session timeouts. The server raises shorter timeouts and lowers longer ones.
    #[must_use]
    pub fn session_timeouts(self, min: Duration, max: Duration) -> ServerOptions {
        ServerOptions { min_session_timeout: min, max_session_timeout: max, ..self }
    }

    /// Adds a line to `zoo.cfg`.
    #[must_use]
    pub fn config(mut self, line: impl Into<String>) -> ServerOptions {
        self.config.push(line.into());
        self
    }

    /// Adds an argument for the JVM.
    #[must_use]
    pub fn jvm_flag(mut self, flag: impl Into<String>) -> ServerOptions {
        self.jvm_flags.push(flag.into());
        self
    }

    /// Adds a second client port, with TLS.
    ///
    /// `identity` is a PEM file with the server's private key (PKCS #8) and its certificate. `authorities` is a
    /// PEM file with the certificate authorities; clients must present a certificate issued by one of them.
    #[must_use]
    pub fn tls(self, identity: impl Into<PathBuf>, authorities: impl Into<PathBuf>) -> ServerOptions {
        let tls = Tls { identity: identity.into(), authorities: authorities.into() };
        ServerOptions { tls: Some(tls), ..self }
    }

    /// Enables SASL with DIGEST-MD5 for these pairs of user and password.
    ///
    /// A server has only one mechanism, so this replaces [`kerberos`](ServerOptions::kerberos).
    #[must_use]
    pub fn sasl_users<U: Into<String>, P: Into<String>>(
        self,
        users: impl IntoIterator<Item = (U, P)>,
    ) -> ServerOptions {
        let users = users.into_iter().map(|(user, password)| (user.into(), password.into()));
        ServerOptions { sasl: Some(Sasl::Users(users.collect())), ..self }
    }

    /// Enables SASL with Kerberos.
    ///
    /// The server's principal is `zookeeper/127.0.0.1`, which clients expect when they connect to
    /// [`connect_string`](super::TestServer::connect_string). The server does not talk to the KDC. This
    /// replaces [`sasl_users`](ServerOptions::sasl_users).
    #[must_use]
    pub fn kerberos(self, kdc: &TestKdc) -> ServerOptions {
        self.kerberos_as(SERVICE, kdc, kdc.service_keytab())
    }

    /// Enables SASL with Kerberos, with another principal and another keytab.
    ///
    /// An example of a principal is `zookeeper/localhost`. If the keytab lacks the principal's keys, the
    /// server starts but refuses all tickets. Otherwise this works like
    /// [`kerberos`](ServerOptions::kerberos).
    #[must_use]
    pub fn kerberos_as(self, principal: &str, kdc: &TestKdc, keytab: impl Into<PathBuf>) -> ServerOptions {
        let principal = format!("{principal}@{REALM}");
        let sasl = Sasl::Kerberos { krb5_conf: kdc.krb5_conf(), principal, keytab: keytab.into() };
        ServerOptions { sasl: Some(sasl), ..self }
    }

    /// Makes the server refuse requests from clients that have not authenticated with SASL.
    ///
    /// This requires ZooKeeper 3.6 or later. The line in `zoo.cfg` is `sessionRequireClientSASLAuth=true`; without this
    /// option it is `sessionRequireClientSASLAuth=false`. [`reconfigure`](super::TestServer::reconfigure) can replace
    /// one line with the other.
    #[must_use]
    pub fn require_sasl(self) -> ServerOptions {
        ServerOptions { requires_sasl: true, ..self }
    }

    /// Makes the server ignore failed SASL authentication (`allowSaslFailedClients`).
    ///
    /// A client that fails to authenticate is served anyway, unless the server [requires](ServerOptions::require_sasl)
    /// SASL.
    #[must_use]
    pub fn allow_failed_sasl(self) -> ServerOptions {
        ServerOptions { allows_failed_sasl: true, ..self }
    }

    /// Sets how long a server may take to start. The default is a minute.
    ///
    /// The same limit applies to the waits for a leader, for a quorum and for the answer to a four-letter word.
    #[must_use]
    pub fn start_limit(self, start_limit: Duration) -> ServerOptions {
        ServerOptions { start_limit, ..self }
    }

    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the lines of `zoo.cfg`.
    pub(super) fn lines(&self, data: &Path, port: u16, tls_port: Option<u16>) -> io::Result<Vec<String>> {
        let mut lines = vec![
            format!("dataDir={}", utf8(data)?),
            format!("clientPort={port}"),
            "clientPortAddress=127.0.0.1".to_owned(),
            format!("tickTime={}", self.tick.as_millis()),
            format!("minSessionTimeout={}", self.min_session_timeout.as_millis()),
            format!("maxSessionTimeout={}", self.max_session_timeout.as_millis()),
            "maxClientCnxns=0".to_owned(),
            "4lw.commands.whitelist=*".to_owned(),
            format!("sessionRequireClientSASLAuth={}", self.requires_sasl),
            format!("allowSaslFailedClients={}", self.allows_failed_sasl),
        ];
        if self.sasl.is_some() {
            let provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider";
            lines.push(format!("authProvider.sasl={provider}"));
        }
        lines.extend_from_slice(&self.config);
        if let (Some(tls), Some(port)) = (&self.tls, tls_port) {
            lines.extend(tls.lines(port)?);
        }
        Ok(lines)
    }

    /// Writes the files that SASL needs. Returns the JVM flags that name them.
    pub(super) fn write_sasl(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.sasl.as_ref().map_or_else(|| Ok(Vec::new()), |sasl| sasl.write(dir))
    }
}

impl Tls {
    /// Returns the lines of `zoo.cfg` for TLS. Only the Netty connection factory supports TLS; it also serves
    /// the plain port.
    fn lines(&self, port: u16) -> io::Result<[String; 7]> {
        Ok([
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned(),
            format!("secureClientPort={port}"),
            "secureClientPortAddress=127.0.0.1".to_owned(),
            "ssl.keyStore.type=PEM".to_owned(),
            format!("ssl.keyStore.location={}", utf8(&self.identity)?),
            "ssl.trustStore.type=PEM".to_owned(),
            format!("ssl.trustStore.location={}", utf8(&self.authorities)?),
        ])
    }
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions::new()
    }
}

pub(super) fn utf8(path: &Path) -> io::Result<&str> {
    path.to_str().ok_or_else(|| io::Error::other(format!("{} is not UTF-8", path.display())))
}

/// Returns an error with the end of a server's log.
pub(super) fn with_log(message: &str, dir: &Path) -> io::Error {
    io::Error::other(format!("{message}:\n{}", process::tail(&dir.join("log"))))
}
