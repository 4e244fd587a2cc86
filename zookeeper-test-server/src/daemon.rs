//! [`Daemon`]: a supervised process that can be stopped, suspended and restarted.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use parking_lot::Mutex;
use rustix::process::Signal;

use super::process::{Process, Supervisor};

/// A process that ends when this value is dropped or the test process ends.
#[derive(Debug)]
pub(super) struct Daemon {
    supervisor: Mutex<Supervisor>,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Down,
    Running(Process),
    Paused(Process),
}

impl Daemon {
    /// Takes ownership of `dir` and prepares to run `command`, with its output appended to `log` in `dir`.
    pub(super) fn new(dir: &Path, command: &[impl AsRef<OsStr>]) -> io::Result<Daemon> {
        let supervisor = Supervisor::new(dir, &dir.join("log"), command)?;
        Ok(Daemon { supervisor: Mutex::new(supervisor), state: Mutex::new(State::Down) })
    }

    /// Starts the process without waiting for it.
    pub(super) fn launch(&self) -> io::Result<()> {
        if self.is_running() {
            return Err(io::Error::other("this server is running already"));
        }
        *self.state.lock() = State::Running(self.supervisor.lock().start()?);
        Ok(())
    }

    /// Sends a signal that ends the process, paused or not, and returns once it has ended.
    pub(super) fn end(&self, signal: Signal) -> io::Result<()> {
        let mut state = self.state.lock();
        if let State::Running(process) | State::Paused(process) = *state {
            process.signal(signal);
            process.signal(Signal::CONT); // a stopped process reacts only to SIGKILL
            process.wait()?;
        }
        *state = State::Down;
        Ok(())
    }

    pub(super) fn pause(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        if let State::Running(process) = *state {
            process.pause()?;
            *state = State::Paused(process);
        }
        Ok(())
    }

    pub(super) fn resume(&self) {
        let mut state = self.state.lock();
        if let State::Paused(process) = *state {
            process.signal(Signal::CONT);
            *state = State::Running(process);
        }
    }

    /// Returns `true` from the start to the end of the process. A paused process is running.
    pub(super) fn is_running(&self) -> bool {
        self.process().is_some_and(Process::is_running)
    }

    pub(super) fn is_awake(&self) -> bool {
        matches!(*self.state.lock(), State::Running(process) if process.is_running())
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.process().map(Process::pid)
    }

    fn process(&self) -> Option<Process> {
        match *self.state.lock() {
            State::Down => None,
            State::Running(process) | State::Paused(process) => Some(process),
        }
    }
}
