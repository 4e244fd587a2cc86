//! Runs `zklock`, and prepares the servers for it.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, test_kill_process};
#[cfg(target_os = "linux")]
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use tempfile::TempDir;
use zookeeper_recipes_lock::client::{Acl, CreateMode};
use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::queue::LockDirectory;
use zookeeper_recipes_lock::{BlockingWriteLock, LockGuard, RetryPolicy, Session};

use crate::support::process::Process;
use crate::support::server::{self, Server};
use crate::support::wait::{eventually, eventually_some};

/// The session timeout of sessions that must not end.
const LONG: Duration = Duration::from_secs(30);

/// A started program, whose output goes to files. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
    files: TempDir,
}

/// A program whose standard output and standard error are pipes. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Piped(pub Child);

impl Piped {
    pub fn spawn(mut command: Command) -> Piped {
        Piped(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Waits until the program ends, and returns its exit code.
    pub fn code(&mut self) -> Option<i32> {
        eventually_some("the program ends", || self.0.try_wait().unwrap()).code()
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// The program, without variables of the test's environment that would change what it does.
pub fn command(connect: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zklock"));
    let names =
        ["ZK_AUTH", "ZK_CERT_KEY_PASSWORD", "ZK_SASL", "ZK_SERVER_PRINCIPAL", "RUST_LOG", "ZKLOCK_PATH"];
    for name in names {
        command.env_remove(name);
    }
    command.env("ZK_CONNECT", connect).args(args);
    command
}

/// Runs the program on a server to its end.
pub fn zklock(server: &Server, args: &[&str]) -> Ended {
    run(command(&server.connect_string(), args))
}

/// Runs a program to its end.
pub fn run(command: Command) -> Ended {
    Program::spawn(command).end()
}

impl Program {
    /// Starts the program on a server. Its standard input is a pipe.
    pub fn start(server: &Server, args: &[&str]) -> Program {
        Program::spawn(command(&server.connect_string(), args))
    }

    pub fn spawn(command: Command) -> Program {
        let files = TempDir::new().unwrap();
        let err = File::create(files.path().join("err")).unwrap();
        Program::start_in(files, command, err.into())
    }

    /// Starts a program whose standard error is not a file.
    pub fn spawn_with(command: Command, stderr: Stdio) -> Program {
        let files = TempDir::new().unwrap();
        fs::write(files.path().join("err"), "").unwrap();
        Program::start_in(files, command, stderr)
    }

    fn start_in(files: TempDir, mut command: Command, stderr: Stdio) -> Program {
        let out = File::create(files.path().join("out")).unwrap();
        let child = command.stdin(Stdio::piped()).stdout(out).stderr(stderr).spawn().unwrap();
        Program { child, files }
    }

    pub fn out(&self) -> String {
        self.read("out")
    }

    pub fn err(&self) -> String {
        self.read("err")
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.files.path().join(name)).unwrap()
    }

    /// The first line of the output that has this text.
    pub fn line_with(&self, text: &str) -> String {
        eventually_some(&format!("a line with '{text}'"), || {
            // An incomplete last line does not count.
            let out = self.out();
            let lines = out.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            lines.map(str::trim_end).find(|line| line.contains(text)).map(str::to_owned)
        })
    }

    #[cfg(target_os = "linux")]
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        Process::of(&self.child).signal(signal);
    }

    /// Closes the standard input.
    pub fn close_input(&mut self) {
        drop(self.child.stdin.take());
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until the program ends.
    pub fn end(mut self) -> Ended {
        let status = eventually_some("the program ends", || self.child.try_wait().unwrap());
        let code = status.code().unwrap_or_else(|| panic!("{status}: {}", self.err()));
        Ended { code, out: self.out(), err: self.err() }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// Checks that the program ended with this code, after one line on standard error that contains this text.
    #[track_caller]
    pub fn assert_failed(&self, code: i32, text: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        assert!(self.err.starts_with("zklock: ") && self.err.contains(text), "{text}: {self:?}");
    }

    /// Checks that the program succeeded, and wrote nothing to standard error.
    #[track_caller]
    pub fn assert_succeeded(&self) {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{self:?}");
    }
}

/// The directory of a lock on a server, which most tests share. No other test uses it.
pub struct Fixture {
    pub server: &'static Server,
    pub session: Session,
    pub dir: String,
}

impl Fixture {
    pub fn new() -> Fixture {
        Fixture::on(server::shared())
    }

    /// The directory of a lock on a server that a test may break.
    pub fn on(server: &'static Server) -> Fixture {
        let dir = format!("/cli-{}", uuid::Uuid::new_v4());
        Fixture { server, session: Session::connect(&server.connect_string(), LONG).unwrap(), dir }
    }

    pub fn zookeeper(&self) -> RecoverableZooKeeper {
        let policy = RetryPolicy::constant(Duration::from_millis(100)).with_attempts(10);
        RecoverableZooKeeper::new(&self.session, policy).with_plain_data()
    }

    /// Runs the program with the directory as the last argument.
    pub fn zklock(&self, args: &[&str]) -> Ended {
        zklock(self.server, &[args, &[self.dir.as_str()]].concat())
    }

    /// Starts `zklock run`, which runs a shell script.
    pub fn run(&self, options: &[&str], script: &str) -> Program {
        Program::start(self.server, &self.run_args(options, script))
    }

    pub fn run_args<'a>(&'a self, options: &[&'a str], script: &'a str) -> Vec<&'a str> {
        [&["run", "--max-tick", "500ms"], options, &[self.dir.as_str(), "--", "sh", "-c", script]].concat()
    }

    pub fn directory(&self) -> LockDirectory {
        LockDirectory::new(&self.session, &self.dir).unwrap()
    }

    pub fn hold(&self) -> LockGuard {
        BlockingWriteLock::new(&self.session, &self.dir).unwrap().lock().unwrap()
    }

    pub fn await_requests(&self, count: usize) {
        let directory = self.directory();
        eventually(&format!("{count} requests"), || directory.contenders().unwrap().len() == count);
    }

    /// Creates the directory if it is missing. Servers would delete a directory that a lock has created.
    pub fn create_dir(&self) {
        let zookeeper = self.zookeeper();
        if zookeeper.exists(&self.dir).unwrap().is_none() {
            zookeeper.create(&self.dir, b"", &Acl::open_unsafe(), CreateMode::Persistent).unwrap();
        }
    }

    /// Creates a znode in the directory, and the directory if it is missing.
    pub fn create(&self, name: &str, data: &[u8], mode: CreateMode) -> String {
        self.create_dir();
        let path = format!("{}/{name}", self.dir);
        self.zookeeper().create(&path, data, &Acl::open_unsafe(), mode).unwrap()
    }

    pub fn exists(&self, path: &str) -> bool {
        self.zookeeper().exists(path).unwrap().is_some()
    }
}

/// The process id at the end of a line.
pub fn pid_of(line: &str) -> Pid {
    line.rsplit(' ').next().and_then(|pid| Pid::from_raw(pid.parse().ok()?)).unwrap()
}

/// Returns whether the process whose id is at the end of this line is alive. A zombie is not.
pub fn is_alive(line: &str) -> bool {
    let pid = pid_of(line);
    test_kill_process(pid).is_ok() && state_of(pid) != 'Z'
}

/// The state of a process, as ps(1) shows it, or '-' if it has gone.
pub fn state_of(pid: Pid) -> char {
    // The name may not be valid UTF-8.
    let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('-')
}

/// The guardian that this program has started.
#[cfg(target_os = "linux")]
pub fn guardian_of(program: Pid) -> Pid {
    child_of(program)
}

/// The first child of a process.
#[cfg(target_os = "linux")]
pub fn child_of(parent: Pid) -> Pid {
    let parent = parent.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    let first = children.split_whitespace().next().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    first.unwrap_or_else(|| panic!("{parent} has no child"))
}

/// Lets a process open only this many more files.
#[cfg(target_os = "linux")]
pub fn leave_descriptors(pid: Pid, count: usize) {
    let is_free =
        |number: &u64| !Path::new(&format!("/proc/{}/fd/{number}", pid.as_raw_nonzero())).is_symlink();
    // The process may have a file open for a moment.
    let samples = (0..50).filter_map(|_| {
        std::thread::sleep(Duration::from_millis(1));
        (0..).filter(is_free).nth(count)
    });
    let current = samples.min();
    prlimit(Some(pid), Resource::Nofile, Rlimit { current, ..getrlimit(Resource::Nofile) }).unwrap();
}

/// Lets a process open as many files as this one.
#[cfg(target_os = "linux")]
pub fn give_descriptors_back(pid: Pid) {
    prlimit(Some(pid), Resource::Nofile, getrlimit(Resource::Nofile)).unwrap();
}

/// Creates a file with this content. Returns its path.
pub fn file(dir: &Path, name: &str, content: &str) -> String {
    let path = dir.join(name);
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}
