//! [`Terminal`]: the controlling terminal, which a shell gives to one process group at a time.
//!
//! This process blocks SIGTTOU and SIGTTIN. Otherwise, the calls here would stop this process when another group has
//! the terminal. After `stty tostop`, so would every message.
//!
//! A process group or session outside this PID namespace has the id 0, which the functions of `rustix` do not expect.
//! Therefore, some calls here use `nix`.

use std::fs::File;
use std::io::{self, IsTerminal};

use nix::unistd::{self, getpgid, getpgrp, getsid};
use rustix::io::Errno;
use rustix::process::{Pid, getppid, test_kill_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

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
        // In a pipeline, another process such as a pager may read from the terminal. In that case, the command gets the
        // terminal only on its first use.
        let is_wanted = io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal();
        Some(Terminal { file, given: None, is_wanted })
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

    /// Returns whether the process group of this process has the terminal.
    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.file).is_ok_and(|group| Pid::as_raw(Some(group)) == getpgrp().as_raw())
    }
}

/// Returns whether a shell can continue this process when it is stopped, that is, whether its process group is not
/// orphaned.
pub(super) fn has_job_control() -> bool {
    let (group, Ok(session)) = (getpgrp(), getsid(None)) else { return false };
    let mut ancestor = getppid();
    while let Some(process) = ancestor {
        let id = unistd::Pid::from_raw(Pid::as_raw(Some(process)));
        if getpgid(Some(id)) != Ok(group) {
            return getsid(Some(id)) == Ok(session);
        }
        // A script without job control is in the same group.
        ancestor = parent_of(process);
    }
    false
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
