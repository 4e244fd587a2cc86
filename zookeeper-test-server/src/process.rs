//! A child process that cannot outlive the test process.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::wait::holds_within;

const SUPERVISE: &str = include_str!("supervise.sh");

/// How long a process may take to obey a signal.
const MAX_REACTION: Duration = Duration::from_secs(60);

/// A locale with English messages, in which paths may have any characters.
pub(crate) const ENGLISH: &str = "C.UTF-8";

/// The number of log lines that an error quotes.
const TAIL: usize = 30;

/// Runs one command as often as requested. `supervise.sh` kills the command and removes its directory when this
/// value is dropped or the test process ends in any way.
#[derive(Debug)]
pub struct Supervisor {
    child: Child,
    pids: BufReader<ChildStdout>,
}

impl Supervisor {
    /// Takes ownership of `dir` and prepares to run `command`, with its output appended to `log`.
    pub fn new(dir: &Path, log: &Path, command: &[impl AsRef<OsStr>]) -> io::Result<Self> {
        let mut child = Command::new("bash")
            .args(["-c", SUPERVISE, "supervise.sh"])
            .args([dir, log])
            .args(command)
            // The log is searched for messages in English.
            .env("LC_ALL", ENGLISH)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The supervisor has its own process group. An interrupt from the terminal therefore reaches it only
            // indirectly, when the pipe closes.
            .process_group(0)
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("cannot run bash: {error}")))?;
        let pids = child.stdout.take().map(BufReader::new);
        let pids = pids.ok_or_else(|| io::Error::other("the supervisor has no output pipe"))?;
        Ok(Self { child, pids })
    }

    /// Starts the command. Its previous process must have ended.
    pub fn start(&mut self) -> io::Result<Process> {
        let stdin = self.child.stdin.as_mut();
        stdin.ok_or_else(|| io::Error::other("the supervisor has no input pipe"))?.write_all(b"start\n")?;
        let mut line = String::new();
        self.pids.read_line(&mut line)?;
        let pid = line.trim().parse().ok().and_then(Pid::from_raw);
        pid.map(Process::new).ok_or_else(|| {
            io::Error::other(format!("the supervisor printed {line:?} instead of a process id"))
        })
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait(); // fails only if somebody else has already waited
    }
}

/// The process of the command itself, not of its supervisor.
#[derive(Debug, Clone, Copy)]
pub struct Process {
    pid: Pid,
    /// When the process was started, because its id may be used again. `None` if that is not known.
    started: Option<u64>,
}

impl Process {
    /// Returns the process of a child that has not been waited for.
    #[allow(dead_code, reason = "the crate's own tests use it")]
    pub fn of(child: &Child) -> Process {
        Process::new(Pid::from_child(child))
    }

    fn new(pid: Pid) -> Process {
        Process { pid, started: Stat::of(pid).map(|stat| stat.started) }
    }

    /// Returns the process id.
    pub fn pid(self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Returns `true` until the process has ended. A stopped process is running.
    pub fn is_running(self) -> bool {
        let present = Stat::of(self.pid).map(|stat| stat.started);
        // If the file cannot be read, for example for lack of descriptors, this counts as the same process.
        let is_another = self.started.zip(present).is_some_and(|(started, present)| started != present);
        !is_another && test_kill_process(self.pid).is_ok()
    }

    /// Sends a signal. Does nothing if the process has ended.
    pub fn signal(self, signal: Signal) {
        if self.is_running() {
            let _ = kill_process(self.pid, signal); // fails only if the process has ended
        }
    }

    /// Stops the process (SIGSTOP) and returns once it is stopped.
    pub fn pause(self) -> io::Result<()> {
        self.signal(Signal::STOP);
        self.await_that("stop", || !self.is_running() || self.is_stopped())
    }

    fn is_stopped(self) -> bool {
        // On systems other than Linux, the process counts as stopped at once.
        Stat::of(self.pid).map_or(cfg!(not(target_os = "linux")), |stat| stat.is_stopped)
    }

    /// Blocks until the process has ended.
    pub fn wait(self) -> io::Result<()> {
        self.await_that("end", || !self.is_running())
    }

    fn await_that(self, what: &str, cond: impl FnMut() -> bool) -> io::Result<()> {
        if holds_within(MAX_REACTION, cond) {
            return Ok(());
        }
        let message = format!("process {} did not {what} within {MAX_REACTION:?}", self.pid());
        Err(io::Error::new(io::ErrorKind::TimedOut, message))
    }
}

/// What `/proc/PID/stat` shows.
struct Stat {
    is_stopped: bool,
    started: u64,
}

impl Stat {
    fn of(pid: Pid) -> Option<Stat> {
        let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The state follows the name, which is in parentheses and may contain anything.
        let (_, rest) = stat.rsplit_once(") ")?;
        let started = rest.split(' ').nth(19)?.parse().ok()?;
        Some(Stat { is_stopped: rest.starts_with('T'), started })
    }
}

/// Returns the last lines of a log, for an error message.
pub fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn process_that_has_the_id_of_an_ended_one_is_another() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::of(&child);
        let ended = Process { started: process.started.map(|started| started - 1), ..process };
        assert!(process.is_running() && !ended.is_running());
        ended.signal(Signal::KILL);
        assert!(child.try_wait().unwrap().is_none(), "it was not signalled");
        process.signal(Signal::KILL);
        child.wait().unwrap();
        assert!(!process.is_running());
    }
}
