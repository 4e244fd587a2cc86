//! Wraps the child processes of the published package, so that errors panic. The processes cannot outlive the
//! test process.

use std::path::Path;
use std::process::Child;

use rustix::process::Signal;

use super::test_server::process;

/// Runs one command as often as requested. The command is killed and its directory removed when this value is
/// dropped or the test process ends in any way.
#[derive(Debug)]
pub struct Supervisor(process::Supervisor);

impl Supervisor {
    /// Takes ownership of `dir` and prepares to run `command`, with its output appended to `log`.
    pub fn new(dir: &Path, log: &Path, command: &[&str]) -> Self {
        Self(process::Supervisor::new(dir, log, command).expect("a supervisor"))
    }

    /// Starts the command. Its previous process must have ended.
    pub fn start(&mut self) -> Process {
        Process(self.0.start().expect("the supervisor starts the command"))
    }
}

/// The process of the command itself, not of its supervisor.
#[derive(Debug, Clone, Copy)]
pub struct Process(process::Process);

impl Process {
    /// Returns the process of a child that has not been waited for.
    pub fn of(child: &Child) -> Process {
        Process(process::Process::of(child))
    }

    pub fn pid(self) -> u32 {
        self.0.pid()
    }

    pub fn is_running(self) -> bool {
        self.0.is_running()
    }

    pub fn signal(self, signal: Signal) {
        self.0.signal(signal);
    }

    pub fn pause(self) {
        self.0.pause().expect("the process is stopped");
    }

    pub fn wait(self) {
        self.0.wait().expect("the process ends");
    }
}

/// Returns the last lines of a log, for a panic message.
pub fn tail(log: &Path) -> String {
    process::tail(log)
}
