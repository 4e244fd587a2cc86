//! [`Terminal`]: the controlling terminal, which a shell gives to one process group at a time.
//!
//! This process blocks SIGTTOU and SIGTTIN. Otherwise, the calls here would stop this process when another group has
//! the terminal. After `stty tostop`, so would every message.
//!
//! A process group or session outside this PID namespace has the id 0, which the functions of `rustix` do not expect.
//! Therefore, some calls here use `nix`.

use std::fs::{self, File};

use nix::unistd::{self, getpgid, getpgrp, getsid};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getppid, kill_current_process_group, test_kill_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use super::guardian;

#[derive(Debug)]
pub(super) struct Terminal {
    file: File,
    /// The process group of the command, and the terminal modes when that group got the terminal. `None` while the
    /// command does not have it.
    given: Option<(Pid, Termios)>,
    /// Whether the command should have the terminal whenever this process has it.
    is_wanted: bool,
}

impl Terminal {
    /// Opens the controlling terminal, or returns `None` if this process has none.
    pub(super) fn open() -> Option<Terminal> {
        let file = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Terminal { file, given: None, is_wanted: false })
    }

    /// Gives the terminal to the process group of the command, if the command should have it and this process has it.
    pub(super) fn give(&mut self, group: Pid) {
        if self.is_wanted && self.is_ours() {
            let modes = tcgetattr(&self.file).ok().filter(|_| tcsetpgrp(&self.file, group).is_ok());
            self.given = modes.map(|modes| (group, modes));
        }
    }

    /// Finds out whether somebody else has the terminal now. For example, if only a script around this process was
    /// killed, the shell has taken the terminal, and this process must not take it from the shell.
    ///
    /// `is_of_command` tells whether some process of the command is in a group: the command may have given the terminal
    /// to a group that it has created. If that group has ended, the command still counts as having the terminal.
    pub(super) fn look(&mut self, is_of_command: impl FnOnce(Pid) -> bool) {
        let Some((group, _)) = &self.given else { return };
        let is_taken = match tcgetpgrp(&self.file) {
            Ok(now) => {
                now != *group && test_kill_process_group(now) != Err(Errno::SRCH) && !is_of_command(now)
            }
            // The group is outside this PID namespace.
            Err(error) => error == Errno::OPNOTSUPP,
        };
        if is_taken {
            self.given = None;
        }
    }

    /// Returns whether the group of the command has the terminal. Gives it to that group again if the group that has it
    /// instead, one that the command has created, has ended.
    pub(super) fn is_with(&self, command: Pid) -> bool {
        match tcgetpgrp(&self.file) {
            Ok(now) if now == command => true,
            Ok(now) if test_kill_process_group(now) == Err(Errno::SRCH) => {
                self.is_given() && tcsetpgrp(&self.file, command).is_ok()
            }
            _ => false,
        }
    }

    /// Takes the terminal back from the command. With `restores_modes`, also restores the modes of the terminal, which
    /// a killed command may have changed.
    pub(super) fn take_back(&mut self, restores_modes: bool) {
        if let Some((_, modes)) = self.given.take() {
            // This fails only if the terminal has gone.
            if let Some(ours) = Pid::from_raw(getpgrp().as_raw()) {
                let _ = tcsetpgrp(&self.file, ours);
            }
            if restores_modes {
                let _ = tcsetattr(&self.file, OptionalActions::Now, &modes);
            }
        }
    }

    /// Takes the terminal back until the command uses it again.
    pub(super) fn withdraw(&mut self) {
        self.take_back(false);
        self.is_wanted = false;
    }

    /// Lets the command have the terminal from now on.
    pub(super) fn want(&mut self) {
        self.is_wanted = true;
    }

    pub(super) fn is_given(&self) -> bool {
        self.given.is_some()
    }

    pub(super) fn is_wanted_and_ours(&self) -> bool {
        self.is_wanted && self.is_ours()
    }

    /// Asks an outer `zklock` for the terminal. Returns whether the group of this process has it now.
    pub(super) fn is_ours_on_request(&self) -> bool {
        ask_for_terminal();
        self.is_ours()
    }

    /// Returns whether the process group of this process has the terminal, or could take it from a group that has ended,
    /// for example one to which the command has given it.
    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.file).is_ok_and(|group| {
            Pid::as_raw(Some(group)) == getpgrp().as_raw()
                || test_kill_process_group(group) == Err(Errno::SRCH)
        })
    }
}

/// Gives the controlling terminal from the group of a command, which has ended, to the group of the job.
pub(super) fn give_back(command: Pid, job: unistd::Pid) {
    let (Ok(file), Some(job)) = (File::open("/dev/tty"), Pid::from_raw(job.as_raw())) else { return };
    if tcgetpgrp(&file) == Ok(command) {
        // Fails only if the job has ended, too.
        let _ = tcsetpgrp(&file, job);
    }
}

/// Returns whether a shell can continue this process when it is stopped, that is, whether its process group is not
/// orphaned.
pub(super) fn has_job_control() -> bool {
    parent_of_group().is_some_and(|parent| {
        getsid(None).is_ok_and(|session| getsid(Some(unistd::Pid::from_raw(parent))) == Ok(session))
    })
}

/// Asks the outer `zklock` for the terminal, if this process is of its command: stops the group as if it had used the
/// terminal. Returns when the group is continued.
fn ask_for_terminal() {
    let command_line = parent_of_group().map(|parent| fs::read(format!("/proc/{parent}/cmdline")));
    if command_line.is_some_and(|line| line.is_ok_and(|line| line.starts_with(guardian::NAME.as_bytes()))) {
        let stops = super::unix::terminal_stops();
        if stops.thread_unblock().is_ok() {
            let _ = kill_current_process_group(Signal::TTIN);
            let _ = stops.thread_block();
        }
    }
}

/// The closest ancestor outside the process group of this process.
fn parent_of_group() -> Option<i32> {
    let group = getpgrp();
    let mut ancestor = getppid();
    while let Some(process) = ancestor {
        let id = Pid::as_raw(Some(process));
        if getpgid(Some(unistd::Pid::from_raw(id))) != Ok(group) {
            return Some(id);
        }
        // A script without job control is in the same group.
        ancestor = parent_of(process);
    }
    None
}

#[cfg(target_os = "linux")]
fn parent_of(process: Pid) -> Option<Pid> {
    Pid::from_raw(super::descendants::Entry::read(process).ok()??.parent)
}

/// The leader of the session, which in all likelihood is the shell. `None` for the leader itself.
#[cfg(not(target_os = "linux"))]
fn parent_of(process: Pid) -> Option<Pid> {
    let leader = getsid(Some(unistd::Pid::from_raw(Pid::as_raw(Some(process))))).ok()?;
    Pid::from_raw(leader.as_raw()).filter(|leader| *leader != process)
}
