//! A child process that cannot outlive the test process.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::wait::eventually;

const SUPERVISOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/supervise.sh");

/// Runs one command as often as requested. When this value is dropped, or the test process ends in
/// any way, `supervise.sh` kills the command and removes its directory.
#[derive(Debug)]
pub struct Supervisor {
    child: Child,
    pids: BufReader<ChildStdout>,
}

impl Supervisor {
    /// Takes charge of `dir` and prepares to run `command`, whose output is appended to `log`.
    pub fn new(dir: &Path, log: &Path, command: &[&str]) -> Self {
        let mut child = Command::new(SUPERVISOR)
            .args([dir, log])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A separate group: an interrupt from the terminal reaches it only through the end of
            // the pipe.
            .process_group(0)
            .spawn()
            .unwrap_or_else(|e| panic!("{SUPERVISOR} does not run: {e}"));
        let pids = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Self { child, pids }
    }

    /// Starts the command. The previous one must have ended.
    pub fn start(&mut self) -> Process {
        let stdin = self.child.stdin.as_mut().expect("it is piped, and taken only in drop");
        stdin.write_all(b"start\n").expect("the supervisor reads its input");
        let mut line = String::new();
        self.pids.read_line(&mut line).expect("the supervisor prints the pid");
        let pid = line.trim().parse().ok().and_then(Pid::from_raw);
        Process(pid.unwrap_or_else(|| panic!("the supervisor printed {line:?} instead of a pid")))
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait(); // fails only after another wait
    }
}

/// The command itself, not its supervisor.
#[derive(Debug, Clone, Copy)]
pub struct Process(Pid);

impl Process {
    /// A child that has not been waited for.
    pub fn of(child: &Child) -> Process {
        Process(Pid::from_child(child))
    }

    /// Its process id.
    pub fn pid(self) -> u32 {
        self.0.as_raw_nonzero().get().unsigned_abs()
    }

    /// Returns `true` until the process has ended. A stopped process is running.
    pub fn is_running(self) -> bool {
        test_kill_process(self.0).is_ok()
    }

    /// Sends a signal. Does nothing if the process has ended.
    pub fn signal(self, signal: Signal) {
        let _ = kill_process(self.0, signal); // fails only if the process has ended
    }

    /// Stops the process (SIGSTOP) and returns once it is stopped.
    pub fn pause(self) {
        self.signal(Signal::STOP);
        eventually("the process is stopped", || !self.is_running() || self.is_stopped());
    }

    fn is_stopped(self) -> bool {
        // The state follows the name, which is in parentheses and may contain anything.
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// Blocks until the process has ended.
    pub fn wait(self) {
        eventually("the process ends", || !self.is_running());
    }
}

/// The last lines of a log, for a panic's message.
pub fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
