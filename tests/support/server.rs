//! Wraps the published [`TestServer`] so that errors panic.

use std::env;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::test_server::{self, TestServer, java};
use super::wait::{deadline, eventually_some, scaled};
use super::{panics, watchdog};

/// Far longer than any test with a server takes, even on a busy machine.
const MAX_TEST: Duration = Duration::from_secs(15 * 60);

/// The configuration of a server. The defaults suit fast tests: a tick of half a second, and session timeouts
/// from 1 to 40 s.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The server's unit of time. The server checks for expired sessions once a tick.
    pub tick_time_ms: u64,
    /// Shorter session timeouts are raised to this.
    pub min_session_timeout_ms: u64,
    /// Longer session timeouts are lowered to this.
    pub max_session_timeout_ms: u64,
    /// Additional lines for `zoo.cfg`.
    pub config: Vec<String>,
    /// Additional arguments for the JVM.
    pub jvm_flags: Vec<String>,
    /// The files for a second client port, with TLS.
    pub tls: Option<ServerTls>,
}

/// What a server needs for TLS. Clients must have a certificate issued by one of the authorities.
#[derive(Debug, Clone)]
pub struct ServerTls {
    /// A PEM file with the private key (PKCS #8) and the certificate.
    pub identity: PathBuf,
    /// A PEM file with the certificate authorities.
    pub authorities: PathBuf,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            tick_time_ms: 500,
            min_session_timeout_ms: 1_000,
            max_session_timeout_ms: 40_000,
            config: Vec::new(),
            jvm_flags: Vec::new(),
            tls: None,
        }
    }
}

impl ServerOptions {
    /// Converts these options to those of the published package, and adds the time that a server may take to
    /// start on this machine.
    pub fn published(&self) -> test_server::ServerOptions {
        let timeouts = [self.min_session_timeout_ms, self.max_session_timeout_ms];
        let [min, max] = timeouts.map(Duration::from_millis);
        let mut options = test_server::ServerOptions::new()
            .tick(Duration::from_millis(self.tick_time_ms))
            .session_timeouts(min, max)
            .start_limit(2 * deadline());
        options = self.config.iter().fold(options, |options, line| options.config(line));
        options = self.jvm_flags.iter().fold(options, |options, flag| options.jvm_flag(flag));
        match &self.tls {
            Some(tls) => options.tls(&tls.identity, &tls.authorities),
            None => options,
        }
    }
}

/// A server. Any error from it fails the test.
#[derive(Debug)]
pub struct Server(pub(super) Arc<TestServer>);

/// Returns the server that all tests of this process share if they do not break it.
pub fn shared() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    watchdog::watch_this_test(scaled(MAX_TEST));
    // The server would delete empty lock directories every minute, in the middle of some test.
    let jvm_flags = vec![format!("-Dznode.container.checkIntervalMs={}", i32::MAX)];
    SHARED.get_or_init(|| Server::with(ServerOptions { jvm_flags, ..ServerOptions::default() }))
}

/// Returns the Java class path of the server and of its Java client.
///
/// # Panics
/// If Java or ZooKeeper is not installed.
pub fn classpath() -> &'static str {
    static CLASSPATH: OnceLock<String> = OnceLock::new();
    CLASSPATH.get_or_init(|| {
        let path = java::class_path().unwrap_or_else(|error| panic!("{error}"));
        path.into_string().expect("the paths are UTF-8")
    })
}

impl Server {
    /// Starts a server and returns once it serves.
    pub fn start() -> Self {
        Self::with(ServerOptions::default())
    }

    /// Starts a server with these options and returns once it serves.
    pub fn with(options: ServerOptions) -> Self {
        Self::published(&options.published())
    }

    /// Starts a server with options of the published package.
    pub fn published(options: &test_server::ServerOptions) -> Self {
        panics::watch();
        watchdog::watch_this_test(scaled(MAX_TEST));
        let server = TestServer::start_with(options);
        Self(Arc::new(server.unwrap_or_else(|error| panic!("{error}"))))
    }

    pub fn reconfigure(&self, line: &str, new: &str) {
        self.0.reconfigure(line, new).expect("the line is replaced");
    }

    pub fn tls_connect_string(&self) -> String {
        self.0.tls_connect_string().expect("the server is configured with TLS")
    }

    pub fn tls_port(&self) -> u16 {
        let address = self.tls_connect_string();
        address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("an address has a port")
    }

    pub fn stop(&self) {
        self.0.stop().expect("the server stops");
    }

    pub fn kill(&self) {
        self.0.kill().expect("the server ends");
    }

    pub fn pause(&self) {
        self.0.pause().expect("the server is suspended");
    }

    pub fn restart(&self) {
        self.0.restart().unwrap_or_else(|error| panic!("{error}"));
    }

    pub fn four_letter(&self, word: &str) -> String {
        self.0.four_letter(word).unwrap_or_else(|error| panic!("no answer to {word}: {error}"))
    }

    /// Returns a number from the server's own statistics (`mntr`), such as `znode_count`.
    pub fn metric(&self, name: &str) -> usize {
        eventually_some(&format!("mntr reports {name}"), || {
            let answer = self.four_letter("mntr");
            let line = answer
                .lines()
                .find_map(|line| line.strip_prefix("zk_")?.strip_prefix(name)?.strip_prefix('\t'))?;
            line.trim().parse().ok()
        })
    }

    /// Returns the number of the last transaction.
    pub fn zxid(&self) -> i64 {
        let answer = self.four_letter("srvr");
        let zxid = answer.lines().find_map(|line| line.strip_prefix("Zxid: 0x"));
        i64::from_str_radix(zxid.expect("the server reports its zxid"), 16).expect("a number")
    }

    /// Returns whether this release can enforce quotas: 3.7 and later, with `zookeeper.enforceQuota`.
    pub fn enforces_quotas(&self) -> bool {
        let answer = self.four_letter("srvr");
        let version = answer.strip_prefix("Zookeeper version: 3.").expect("the server reports its version");
        let minor: String = version.chars().take_while(char::is_ascii_digit).collect();
        minor.parse::<u32>().expect("a number") >= 7
    }

    /// Runs a command of ZooKeeper's own shell, in a new process.
    pub fn run_in_shell(&self, arguments: &[&str]) {
        let (home, path) = (env::var_os("JAVA_HOME"), env::var_os("PATH").unwrap_or_default());
        let java = java::java_in(home.as_deref(), &path).unwrap_or_else(|error| panic!("{error}"));
        let mut shell = Command::new(java);
        shell.args([
            "-cp",
            classpath(),
            "org.apache.zookeeper.ZooKeeperMain",
            "-server",
            &self.connect_string(),
        ]);
        let ended = shell.args(arguments).output().expect("the shell starts");
        assert!(ended.status.success(), "{arguments:?}: {ended:?}");
    }

    /// Returns the number of watches that are set and have not fired.
    pub fn watch_count(&self) -> usize {
        self.metric("watch_count")
    }

    /// Returns the number of sessions that the server considers alive.
    pub fn session_count(&self) -> usize {
        self.metric("global_sessions")
    }
}

impl Deref for Server {
    type Target = TestServer;

    fn deref(&self) -> &TestServer {
        &self.0
    }
}
