//! Signals and processes, on Unix.

use std::io::{self, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::{fs, thread};

use crossbeam_channel::{Receiver, bounded, unbounded};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::code_of_signal;
use crate::output::complain;

const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// The signals that this process gets from now on, but for those that it was started to ignore, as
/// nohup(1) does.
pub(super) fn signals() -> io::Result<Receiver<i32>> {
    let ignored = ignored_signals();
    let is_ignored = |signal: i32| ignored >> (signal - 1) & 1 == 1;
    let taken = FORWARDED.into_iter().chain([SIGTSTP]).filter(|signal| !is_ignored(*signal));
    let mut signals = Signals::new(taken)?;
    let (sender, receiver) = unbounded();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if signal == SIGTSTP {
                complain("not stopped: the lock would be lost while the command runs on");
            } else if sender.send(signal).is_err() {
                break;
            }
        }
    })?;
    Ok(receiver)
}

/// The signals that are ignored, as bits. None where it cannot be known.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or_default()
}

/// Whether a signal ends the wait for the lock. Those that mean something to the command alone do
/// not.
pub(super) fn ends_wait(signal: i32) -> bool {
    ![SIGUSR1, SIGUSR2].contains(&signal)
}

/// A running command, the first of its process group.
pub(super) struct Child {
    child: std::process::Child,
    group: Pid,
    ended: Receiver<()>,
}

impl Child {
    pub(super) fn spawn(command: &mut Command) -> io::Result<Child> {
        command.process_group(0);
        if io::stdin().is_terminal() {
            // Reading from the terminal would stop a background process group, and keep the lock
            // for ever.
            command.stdin(Stdio::null());
        }
        let mut child = command.spawn()?;
        let group = Pid::from_child(&child);
        // Waits without reaping: the process id is not reused while signals may be sent to it.
        let (sender, ended) = bounded::<()>(1);
        let waiting = thread::Builder::new().name("child".to_owned()).spawn(move || {
            let _ = waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            drop(sender);
        });
        if let Err(error) = waiting {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        Ok(Child { child, group, ended })
    }

    /// Disconnected when the command has ended.
    pub(super) fn ended(&self) -> &Receiver<()> {
        &self.ended
    }

    /// Forwards a signal to the process group.
    pub(super) fn forward(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.signal(signal);
        }
    }

    /// Asks the process group to end. A stopped one continues for that.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    /// Ends the process group.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        // Fails only if all of its processes have ended.
        let _ = kill_process_group(self.group, signal);
    }

    /// The exit code of the command, which has ended.
    pub(super) fn code(mut self) -> io::Result<u8> {
        let status = self.child.wait()?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(code.or_else(|| status.signal().map(code_of_signal)).unwrap_or(u8::MAX))
    }
}
