//! [`TestServer`]: one real ZooKeeper server that a test can stop, kill, pause and restart.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use super::daemon::Daemon;
use super::java::{self, JVM_FLAGS, MAIN_CLASS};
use super::net::{four_letter, free_port, loopback};
use super::options::{ServerOptions, utf8, with_log};
use super::process::tail;
use super::wait::{holds_within, some_within};

pub(super) const PORT_TAKEN: &str = "Address already in use";

/// The number of attempts, each with a new free port.
pub(super) const TRIES: usize = 5;

/// How long one attempt to query a server may take.
const MAX_ANSWER: Duration = Duration::from_millis(500);

/// A ZooKeeper server on its own loopback port.
///
/// The server ends, and its data is removed, when this value is dropped or the test process ends in any way.
///
/// `Send` and `Sync`. The [crate docs](super) list what must be installed.
#[derive(Debug)]
pub struct TestServer {
    port: u16,
    tls_port: Option<u16>,
    start_limit: Duration,
    // Dropped before the directory, which the server uses.
    daemon: Daemon,
    dir: TempDir,
}

impl TestServer {
    /// Starts a server and returns once it serves.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) if Java or ZooKeeper is not installed. Another error if the server
    /// ends or does not serve in time; its message includes the end of the log.
    pub fn start() -> io::Result<TestServer> {
        TestServer::start_with(&ServerOptions::new())
    }

    /// Starts a server with these options and returns once it serves.
    ///
    /// # Errors
    /// The errors of [`start`](TestServer::start).
    pub fn start_with(options: &ServerOptions) -> io::Result<TestServer> {
        for _ in 0..TRIES {
            let server = TestServer::prepare(1, options)?;
            server.launch()?;
            if server.comes_up()? {
                return Ok(server);
            }
            if !server.lost_its_port() {
                return Err(with_log("the server ended", server.dir()));
            }
        }
        Err(io::Error::other(format!(
            "in each of {TRIES} attempts another process took the server's port first"
        )))
    }

    /// Creates a server's directory and configuration without starting it.
    pub(super) fn prepare(id: usize, options: &ServerOptions) -> io::Result<TestServer> {
        let (java, class_path) = (java::java()?, java::class_path()?);
        let (port, dir) = (free_port()?, data_dir()?);
        let tls_port = if options.has_tls() { Some(free_port()?) } else { None };
        let (config, data) = (dir.path().join("zoo.cfg"), dir.path().join("data"));
        fs::write(&config, options.lines(&data, port, tls_port)?.join("\n"))?;
        fs::create_dir(&data)?;
        fs::write(data.join("myid"), id.to_string())?;

        let sasl_flags = options.write_sasl(dir.path())?;
        let mut command: Vec<&OsStr> = vec![java.as_ref()];
        command.extend(JVM_FLAGS.iter().map(OsStr::new));
        command.extend(options.jvm_flags.iter().chain(&sasl_flags).map(OsStr::new));
        let class_path_flag = OsString::from("-cp");
        command.extend([&*class_path_flag, &*class_path, MAIN_CLASS.as_ref(), config.as_ref()]);
        let daemon = Daemon::new(dir.path(), &command)?;
        Ok(TestServer { port, tls_port, start_limit: options.start_limit, daemon, dir })
    }

    /// Starts the process without waiting for it.
    pub(super) fn launch(&self) -> io::Result<()> {
        self.daemon.launch()
    }

    /// Replaces a whole line of `zoo.cfg`. The change takes effect on the next start.
    ///
    /// # Errors
    /// If there is no such line, or if the file cannot be written.
    pub fn reconfigure(&self, line: &str, new: &str) -> io::Result<()> {
        let config = self.dir().join("zoo.cfg");
        let text = fs::read_to_string(&config)?;
        if !text.lines().any(|other| other == line) {
            return Err(io::Error::other(format!("no line {line} in:\n{text}")));
        }
        let lines: Vec<&str> = text.lines().map(|other| if other == line { new } else { other }).collect();
        fs::write(&config, lines.join("\n"))
    }

    /// Returns `127.0.0.1:port`.
    #[must_use]
    pub fn connect_string(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns `localhost:port` for the TLS port, if the [options](ServerOptions::tls) ask for one.
    #[must_use]
    pub fn tls_connect_string(&self) -> Option<String> {
        self.tls_port.map(|port| format!("localhost:{port}"))
    }

    /// Returns the client port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Stops the server cleanly (SIGTERM) and returns once it has ended. Its data is kept.
    ///
    /// # Errors
    /// If the server does not end within a minute.
    pub fn stop(&self) -> io::Result<()> {
        self.daemon.end(Signal::TERM)
    }

    /// Kills the server (SIGKILL), even if it is paused, and returns once it has ended. Its data is kept.
    ///
    /// # Errors
    /// The same as [`stop`](TestServer::stop).
    pub fn kill(&self) -> io::Result<()> {
        self.daemon.end(Signal::KILL)
    }

    /// Suspends the server (SIGSTOP). Its connections stay open, but it answers nothing.
    ///
    /// # Errors
    /// If the server is not suspended within a minute.
    pub fn pause(&self) -> io::Result<()> {
        self.daemon.pause()
    }

    /// Resumes a paused server (SIGCONT).
    pub fn resume(&self) {
        self.daemon.resume();
    }

    /// Restarts a stopped or killed server with the same data and port. Returns once it serves.
    ///
    /// # Errors
    /// If the server is already running, and the errors of [`start`](TestServer::start).
    pub fn restart(&self) -> io::Result<()> {
        self.launch()?;
        self.await_serving()
    }

    /// Blocks until the server serves.
    pub(super) fn await_serving(&self) -> io::Result<()> {
        if self.comes_up()? { Ok(()) } else { Err(with_log("the server ended", self.dir())) }
    }

    /// Blocks until the server serves on each of its client ports. Returns `false` if it ended instead.
    fn comes_up(&self) -> io::Result<bool> {
        let tls_port = self.configured_tls_port()?;
        let listens_for_tls =
            || tls_port.is_none_or(|port| TcpStream::connect_timeout(&loopback(port), MAX_ANSWER).is_ok());
        if holds_within(self.start_limit, || self.serves() && listens_for_tls() || !self.is_running()) {
            return Ok(self.is_running());
        }
        Err(with_log("the server is running but does not serve", self.dir()))
    }

    /// Returns the TLS port, unless a test has removed it from the configuration. A standalone server opens that port
    /// after it has begun to serve on the other one.
    fn configured_tls_port(&self) -> io::Result<Option<u16>> {
        let text = fs::read_to_string(self.dir().join("zoo.cfg"))?;
        let is_configured = |port: &u16| text.lines().any(|line| line == format!("secureClientPort={port}"));
        Ok(self.tls_port.filter(is_configured))
    }

    /// Returns `true` from the start to the end of the process. A paused server is running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.daemon.is_running()
    }

    /// Returns whether the server is running and not paused.
    #[must_use]
    pub fn is_awake(&self) -> bool {
        self.daemon.is_awake()
    }

    /// Returns the process id of the server's JVM, unless the server was stopped or killed through this value.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.daemon.pid()
    }

    /// Returns the directory with the server's configuration, data and log.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns whether the server accepts requests, which in an ensemble requires a quorum.
    // Only an answer that names our data directory counts, because another server may have taken the port
    // first.
    #[must_use]
    pub fn serves(&self) -> bool {
        let data = self.dir().join("data");
        let is_ours = |answer: String| {
            utf8(&data).is_ok_and(|data| answer.lines().any(|line| line.contains(&format!("dataDir={data}"))))
        };
        self.is_awake() && self.ask_once("conf").is_ok_and(is_ours)
    }

    /// Returns the answer to a four-letter word (`ruok`, `srvr`, `mntr` …). All four-letter words are enabled.
    ///
    /// # Errors
    /// If no answer arrives in time, because the server is down, paused or just starting.
    pub fn four_letter(&self, word: &str) -> io::Result<String> {
        match some_within(self.start_limit, || self.ask_once(word).ok()) {
            Some(answer) => Ok(answer),
            None => self.ask_once(word),
        }
    }

    pub(super) fn ask_once(&self, word: &str) -> io::Result<String> {
        four_letter(self.port, word, MAX_ANSWER)
    }

    /// Returns the end of the server's log.
    #[must_use]
    pub fn log(&self) -> String {
        tail(&self.dir().join("log"))
    }

    /// Returns whether another process took one of this server's ports first. A new attempt with other ports
    /// may succeed.
    pub(super) fn lost_its_port(&self) -> bool {
        self.log().contains(PORT_TAKEN)
    }
}

/// Creates a new directory, in memory if possible, because tests of locks should not wait for a disk.
pub(super) fn data_dir() -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("zookeeper-test.");
    builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir())
}
