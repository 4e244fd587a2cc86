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
/// The default is quick: ticks of half a second, sessions of 1 to 40 s.
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
    /// Returns the default.
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

    /// Sets the server's unit of time (`tickTime`). It checks for expired sessions once a tick.
    #[must_use]
    pub fn tick(self, tick: Duration) -> ServerOptions {
        ServerOptions { tick, ..self }
    }

    /// Sets the bounds of session timeouts. Shorter ones are raised, longer ones lowered.
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

    /// Adds an argument of the JVM.
    #[must_use]
    pub fn jvm_flag(mut self, flag: impl Into<String>) -> ServerOptions {
        self.jvm_flags.push(flag.into());
        self
    }

    /// Adds a second client port, with TLS. `identity` is a PEM file with the server's private key
    /// (PKCS #8) and its certificate, `authorities` one with the certificate authorities. Clients
    /// must have a certificate of one of them.
    #[must_use]
    pub fn tls(self, identity: impl Into<PathBuf>, authorities: impl Into<PathBuf>) -> ServerOptions {
        let tls = Tls { identity: identity.into(), authorities: authorities.into() };
        ServerOptions { tls: Some(tls), ..self }
    }

    /// Adds SASL with DIGEST-MD5, for these pairs of a user and a password. Replaces [`kerberos`](ServerOptions::kerberos):
    /// a server has one mechanism.
    #[must_use]
    pub fn sasl_users<U: Into<String>, P: Into<String>>(
        self,
        users: impl IntoIterator<Item = (U, P)>,
    ) -> ServerOptions {
        let users = users.into_iter().map(|(user, password)| (user.into(), password.into()));
        ServerOptions { sasl: Some(Sasl::Users(users.collect())), ..self }
    }

    /// Adds SASL with Kerberos. Replaces [`sasl_users`](ServerOptions::sasl_users).
    ///
    /// The server's principal is `zookeeper/127.0.0.1`, as clients expect that connect to
    /// [`connect_string`](super::TestServer::connect_string). The server does not talk to the KDC.
    #[must_use]
    pub fn kerberos(self, kdc: &TestKdc) -> ServerOptions {
        self.kerberos_as(SERVICE, kdc, kdc.service_keytab())
    }

    /// As [`kerberos`](ServerOptions::kerberos), with another principal, such as `zookeeper/localhost`, and another
    /// keytab. If that lacks the keys of the principal, the server starts, and refuses all tickets.
    #[must_use]
    pub fn kerberos_as(self, principal: &str, kdc: &TestKdc, keytab: impl Into<PathBuf>) -> ServerOptions {
        let principal = format!("{principal}@{REALM}");
        let sasl = Sasl::Kerberos { krb5_conf: kdc.krb5_conf(), principal, keytab: keytab.into() };
        ServerOptions { sasl: Some(sasl), ..self }
    }

    /// Has the server refuse the requests of clients that have not authenticated by SASL (ZooKeeper 3.6 or later).
    ///
    /// The line in `zoo.cfg` is `sessionRequireClientSASLAuth=true`, without this option `…=false`. So
    /// [`reconfigure`](super::TestServer::reconfigure) can replace one by the other.
    #[must_use]
    pub fn require_sasl(self) -> ServerOptions {
        ServerOptions { requires_sasl: true, ..self }
    }

    /// Has the server serve a client that fails to authenticate by SASL like one that has not tried
    /// (`allowSaslFailedClients`), unless it [requires](ServerOptions::require_sasl) SASL.
    #[must_use]
    pub fn allow_failed_sasl(self) -> ServerOptions {
        ServerOptions { allows_failed_sasl: true, ..self }
    }

    /// Sets how long a server may take to start. The default is a minute.
    #[must_use]
    pub fn start_limit(self, start_limit: Duration) -> ServerOptions {
        ServerOptions { start_limit, ..self }
    }

    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The lines of `zoo.cfg`.
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

    /// Writes the files that SASL needs, and returns the flags of the JVM that name them.
    pub(super) fn write_sasl(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.sasl.as_ref().map_or_else(|| Ok(Vec::new()), |sasl| sasl.write(dir))
    }
}

impl Tls {
    /// Only Netty knows TLS; it serves the plain port as well.
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

/// An error with the end of a server's log.
pub(super) fn with_log(message: &str, dir: &Path) -> io::Error {
    io::Error::other(format!("{message}:\n{}", process::tail(&dir.join("log"))))
}
