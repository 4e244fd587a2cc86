//! Signals and processes, on Unix.

#[cfg(target_os = "linux")]
mod descendants;

use std::io::{self, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
#[cfg(target_os = "linux")]
use std::time::Duration;
use std::{fs, thread};

use crossbeam_channel::{Receiver, bounded, unbounded};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGVTALRM,
    SIGXCPU, SIGXFSZ,
};
use signal_hook::flag;
use signal_hook::iterator::Signals;

#[cfg(target_os = "linux")]
use self::descendants::Descendants;
use super::code_of_signal;
use crate::stderr::complain;

/// Those that would end this process, and leave the command to run on without the lock.
const FORWARDED: [i32; 12] = [
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
];

/// The longest pause between two looks at the processes that are left.
#[cfg(target_os = "linux")]
const MAX_PAUSE: Duration = Duration::from_millis(100);

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

/// Returns whether a signal ends the wait for the lock, and is meant to end the command. Those that mean
/// something to the command alone do not.
pub(super) fn ends_wait(signal: i32) -> bool {
    ![SIGUSR1, SIGUSR2].contains(&signal)
}

/// A running command, the first of its process group.
pub(super) struct Child {
    child: std::process::Child,
    group: Pid,
    ended: Receiver<io::Error>,
    #[cfg(target_os = "linux")]
    descendants: Descendants,
}

impl Child {
    pub(super) fn spawn(command: &mut Command) -> io::Result<Child> {
        // Any handler will do. If SIGCHLD were ignored, as the parent may have left it, no exit
        // code would be kept.
        let has_child_ended = Arc::new(AtomicBool::new(false));
        flag::register(SIGCHLD, Arc::clone(&has_child_ended))?;
        #[cfg(target_os = "linux")]
        let descendants = Descendants::adopt(has_child_ended)?;
        command.process_group(0);
        if io::stdin().is_terminal() {
            // Reading from the terminal would stop a background process group, and keep the lock
            // for ever.
            command.stdin(Stdio::null());
        }
        let child = command.spawn()?;
        let group = Pid::from_child(&child);
        let (sender, ended) = bounded(1);
        let waiting = thread::Builder::new().name("child".to_owned()).spawn(move || {
            if let Err(error) = wait_for_end(group) {
                let _ = sender.send(error);
            }
        });
        let mut child = Child {
            child,
            group,
            ended,
            #[cfg(target_os = "linux")]
            descendants,
        };
        if let Err(error) = waiting {
            let _ = child.kill_rest();
            let _ = child.child.wait();
            return Err(error);
        }
        Ok(child)
    }

    /// Disconnected when the command has ended. An error says that nobody knows whether it has.
    pub(super) fn ended(&self) -> &Receiver<io::Error> {
        &self.ended
    }

    /// Forwards a signal to the process group. A stopped one continues for a signal that ends it: it
    /// would keep the lock for ever.
    pub(super) fn forward(&self, signal: i32) -> io::Result<()> {
        let forwarded = Signal::from_named_raw(signal).map_or(Ok(()), |signal| self.signal(signal));
        if ends_wait(signal) { forwarded.and(self.signal(Signal::CONT)) } else { forwarded }
    }

    /// Asks the process group to end. A stopped one continues for that.
    pub(super) fn terminate(&self) -> io::Result<()> {
        self.signal(Signal::TERM).and(self.signal(Signal::CONT))
    }

    /// Kills the process group, and what is a child of this process on Linux.
    pub(super) fn kill(&self) -> io::Result<()> {
        let group = self.signal(Signal::KILL);
        #[cfg(target_os = "linux")]
        let group = group.and(self.descendants.kill(self.group).1);
        group
    }

    /// Kills what is left of the process group when the command has ended, and on Linux all of its
    /// descendants. Blocks until none is left but those that cannot be killed.
    #[cfg(target_os = "linux")]
    pub(super) fn kill_rest(&self) -> io::Result<()> {
        // Its id is in use until the exit code is read.
        let group = self.signal(Signal::KILL);
        let mut pause = Duration::from_millis(1);
        loop {
            let (gone, outcome) = self.descendants.kill(self.group);
            if gone == 0 {
                return group.and(outcome);
            }
            thread::sleep(pause);
            pause = MAX_PAUSE.min(pause * 2);
        }
    }

    /// Kills what is left of the process group when the command has ended.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn kill_rest(&self) -> io::Result<()> {
        // Some systems refuse signals to a group of processes that have ended.
        let _ = self.signal(Signal::KILL);
        Ok(())
    }

    /// Waits for the adopted processes that have ended. Does not block.
    pub(super) fn reap(&self) {
        #[cfg(target_os = "linux")]
        self.descendants.reap(self.group);
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        match kill_process_group(self.group, signal) {
            // All of its processes have ended.
            Err(Errno::SRCH) => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    /// The exit code of the command, which has ended.
    pub(super) fn code(mut self) -> io::Result<u8> {
        let status = self.child.wait()?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(code.or_else(|| status.signal().map(code_of_signal)).unwrap_or(u8::MAX))
    }
}

/// Blocks until the process has ended. Does not reap it: its id is not used again while signals may
/// be sent to it.
fn wait_for_end(process: Pid) -> io::Result<()> {
    loop {
        match waitid(WaitId::Pid(process), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Err(Errno::INTR) => {}
            outcome => return outcome.map(drop).map_err(io::Error::from),
        }
    }
}
