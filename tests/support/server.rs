//! One real ZooKeeper server, with verbs to break and repair it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use parking_lot::Mutex;
use rustix::process::Signal;
use tempfile::TempDir;

use super::net::{four_letter, free_port};
use super::panics;
use super::process::{Process, Supervisor, tail};
use super::wait::{deadline, eventually_some, holds_within};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/zookeeper");
const PORT_TAKEN: &str = "Address already in use";
pub(super) const TRIES: usize = 5;

/// The configuration of a server. The default is quick: ticks of half a second, sessions of 1 to 40
/// s.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The server's unit of time. It checks for expired sessions once a tick.
    pub tick_time_ms: u32,
    /// Shorter session timeouts are raised to this.
    pub min_session_timeout_ms: u32,
    /// Longer session timeouts are lowered to this.
    pub max_session_timeout_ms: u32,
    /// More lines for `zoo.cfg`.
    pub config: Vec<String>,
    /// More arguments of the JVM.
    pub jvm_flags: Vec<String>,
    /// Files for a second client port, with TLS.
    pub tls: Option<ServerTls>,
}

/// What a server needs for TLS. Clients must have a certificate of one of the authorities.
#[derive(Debug, Clone)]
pub struct ServerTls {
    /// A PEM file with the private key (PKCS #8) and its certificate.
    pub identity: PathBuf,
    /// A PEM file with certificate authorities.
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

/// A server on its own loopback port. It ends, and its data are removed, when this value is dropped
/// or the test process ends in any way.
#[derive(Debug)]
pub struct Server {
    port: u16,
    tls_port: Option<u16>,
    supervisor: Mutex<Supervisor>,
    state: Mutex<State>,
    dir: TempDir,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Down,
    Running(Process),
    Paused(Process),
}

/// The server shared by all tests of this process that do not break it.
pub fn shared() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(Server::start)
}

/// The Java class path of the server and of its Java client. Panics if they are not installed.
pub fn classpath() -> &'static str {
    static CLASSPATH: OnceLock<String> = OnceLock::new();
    CLASSPATH.get_or_init(|| {
        let output = Command::new(SCRIPT)
            .arg("classpath")
            .output()
            .unwrap_or_else(|e| panic!("{SCRIPT} does not run: {e}"));
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "these tests need a ZooKeeper server; {complaint}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}

impl Server {
    /// Starts a server and returns once it serves.
    pub fn start() -> Self {
        Self::with(ServerOptions::default())
    }

    /// Starts a server with these options and returns once it serves.
    pub fn with(options: ServerOptions) -> Self {
        for _ in 0..TRIES {
            let server = Self::prepare(1, &options);
            server.launch();
            if server.comes_up() {
                return server;
            }
            assert!(server.lost_its_port(), "the server ended:\n{}", server.log());
        }
        panic!("each of {TRIES} free ports was taken before the server bound it");
    }

    /// Creates the directory and the configuration of a server without starting it.
    pub(super) fn prepare(id: usize, options: &ServerOptions) -> Self {
        panics::watch();
        classpath();
        let (port, dir) = (free_port(), data_dir());
        let config = dir.path().join("zoo.cfg");
        let data = dir.path().join("data");
        let mut lines = configuration(options, &data, port);
        let tls_port = options.tls.as_ref().map(|tls| {
            let port = free_port();
            lines.extend(tls_configuration(tls, port));
            port
        });
        fs::write(&config, lines.join("\n")).expect("the new directory is ours");
        fs::create_dir(&data).expect("the new directory is ours");
        fs::write(data.join("myid"), id.to_string()).expect("the new directory is ours");

        let jvm_flags = format!("SERVER_JVMFLAGS={}", options.jvm_flags.join(" "));
        let command = ["env", &jvm_flags, SCRIPT, "run", utf8(&config)];
        let supervisor = Supervisor::new(dir.path(), &dir.path().join("log"), &command);
        Self { port, tls_port, supervisor: Mutex::new(supervisor), state: Mutex::new(State::Down), dir }
    }

    /// Starts the process without waiting for it.
    pub(super) fn launch(&self) {
        assert!(!self.is_running(), "this server already runs");
        *self.state.lock() = State::Running(self.supervisor.lock().start());
    }

    /// Replaces a line of the configuration, effective from the next start.
    pub fn reconfigure(&self, line: &str, new: &str) {
        let config = self.dir().join("zoo.cfg");
        let text = fs::read_to_string(&config).expect("the file is ours");
        assert!(text.lines().any(|other| other == line), "no line {line} in:\n{text}");
        fs::write(&config, text.replace(line, new)).expect("the file is ours");
    }

    /// `127.0.0.1:port`.
    pub fn connect_string(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `localhost:port`, of the port with TLS. Panics if the server has none.
    pub fn tls_connect_string(&self) -> String {
        format!("localhost:{}", self.tls_port.expect("the server is configured with TLS"))
    }

    /// The client port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends the server cleanly (SIGTERM) and returns once it has ended. Its data are kept.
    pub fn stop(&self) {
        self.end(Signal::TERM);
    }

    /// Kills the server (SIGKILL), paused or not, and returns once it has ended. Its data are kept.
    pub fn kill(&self) {
        self.end(Signal::KILL);
    }

    fn end(&self, signal: Signal) {
        let mut state = self.state.lock();
        if let State::Running(process) | State::Paused(process) = *state {
            process.signal(signal);
            process.signal(Signal::CONT); // a stopped process reacts only to SIGKILL
            process.wait();
        }
        *state = State::Down;
    }

    /// Suspends the server (SIGSTOP): its connections stay open, and nothing is answered.
    pub fn pause(&self) {
        let mut state = self.state.lock();
        if let State::Running(process) = *state {
            process.pause();
            *state = State::Paused(process);
        }
    }

    /// Continues a paused server (SIGCONT).
    pub fn resume(&self) {
        let mut state = self.state.lock();
        if let State::Paused(process) = *state {
            process.signal(Signal::CONT);
            *state = State::Running(process);
        }
    }

    /// Starts a stopped or killed server with the same data and port, and returns once it serves.
    pub fn restart(&self) {
        self.launch();
        self.await_serving();
    }

    /// Blocks until the server serves.
    pub(super) fn await_serving(&self) {
        assert!(self.comes_up(), "the server ended:\n{}", self.log());
    }

    /// Blocks until the server serves. Returns `false` if it ended instead.
    fn comes_up(&self) -> bool {
        let settled = holds_within(2 * deadline(), || self.serves() || !self.is_running());
        assert!(settled, "the server runs but does not serve:\n{}", self.log());
        self.is_running()
    }

    /// Returns `true` from the start to the end of the process. A paused server is running.
    pub fn is_running(&self) -> bool {
        self.process().is_some_and(Process::is_running)
    }

    /// Returns whether the server runs and is not paused.
    pub fn is_awake(&self) -> bool {
        matches!(*self.state.lock(), State::Running(process) if process.is_running())
    }

    /// The pid of the server's JVM, if it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process().map(Process::pid)
    }

    fn process(&self) -> Option<Process> {
        match *self.state.lock() {
            State::Down => None,
            State::Running(process) | State::Paused(process) => Some(process),
        }
    }

    /// The directory of its data and its log.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns whether the server accepts requests, which in an ensemble requires a quorum. Only an
    /// answer that names our directory counts: another server may have taken the port first.
    pub fn serves(&self) -> bool {
        let ours = format!("dataDir={}", utf8(&self.dir().join("data")));
        self.is_awake() && four_letter(self.port, "conf").is_ok_and(|answer| answer.contains(&ours))
    }

    /// The answer to a four letter word (`ruok`, `srvr`, `mntr`…). Panics if none arrives within
    /// the deadline.
    pub fn four_letter(&self, word: &str) -> String {
        eventually_some(&format!("{} answers {word}", self.connect_string()), || {
            four_letter(self.port, word).ok()
        })
    }

    /// A number of the server's own statistics (`mntr`), such as `znode_count`.
    pub fn metric(&self, name: &str) -> usize {
        eventually_some(&format!("mntr reports {name}"), || {
            let answer = self.four_letter("mntr");
            let line = answer
                .lines()
                .find_map(|line| line.strip_prefix("zk_")?.strip_prefix(name)?.strip_prefix('\t'))?;
            line.trim().parse().ok()
        })
    }

    /// The number of the last transaction.
    pub fn zxid(&self) -> i64 {
        let answer = self.four_letter("srvr");
        let zxid = answer.lines().find_map(|line| line.strip_prefix("Zxid: 0x"));
        i64::from_str_radix(zxid.expect("the server reports its zxid"), 16).expect("it is a number")
    }

    /// The watches that are set and have not fired.
    pub fn watch_count(&self) -> usize {
        self.metric("watch_count")
    }

    /// The sessions that the server considers alive.
    pub fn session_count(&self) -> usize {
        self.metric("global_sessions")
    }

    /// The end of the server's log.
    pub fn log(&self) -> String {
        tail(&self.dir().join("log"))
    }

    /// Returns whether another process took a port before this server, so that a retry with other
    /// ports may succeed.
    pub(super) fn lost_its_port(&self) -> bool {
        self.log().contains(PORT_TAKEN)
    }
}

fn configuration(options: &ServerOptions, data: &Path, port: u16) -> Vec<String> {
    let mut lines = vec![
        format!("dataDir={}", utf8(data)),
        format!("clientPort={port}"),
        "clientPortAddress=127.0.0.1".to_owned(),
        format!("tickTime={}", options.tick_time_ms),
        format!("minSessionTimeout={}", options.min_session_timeout_ms),
        format!("maxSessionTimeout={}", options.max_session_timeout_ms),
        "maxClientCnxns=0".to_owned(),
        "4lw.commands.whitelist=*".to_owned(),
    ];
    lines.extend_from_slice(&options.config);
    lines
}

/// Only Netty knows TLS; it serves the plain port as well.
fn tls_configuration(tls: &ServerTls, port: u16) -> [String; 7] {
    [
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned(),
        format!("secureClientPort={port}"),
        "secureClientPortAddress=127.0.0.1".to_owned(),
        "ssl.keyStore.type=PEM".to_owned(),
        format!("ssl.keyStore.location={}", utf8(&tls.identity)),
        "ssl.trustStore.type=PEM".to_owned(),
        format!("ssl.trustStore.location={}", utf8(&tls.authorities)),
    ]
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("paths of temporary files are UTF-8")
}

/// A new directory, in memory if possible: tests of locks should not wait for a disk.
fn data_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    tempfile::Builder::new()
        .prefix("zookeeper-test.")
        .tempdir_in(memory)
        .or_else(|_| tempfile::Builder::new().prefix("zookeeper-test.").tempdir())
        .expect("a directory for temporary files")
}
