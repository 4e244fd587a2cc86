//! Signals and processes, on Unix.

#[cfg(target_os = "linux")]
mod descendants;
mod launcher;
mod terminal;

#[cfg(target_os = "linux")]
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use nix::sys::signal::{SigSet, Signal as Blocked};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, kill_current_process_group, kill_process, kill_process_group,
    waitid,
};
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU,
    SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

#[cfg(target_os = "linux")]
use self::descendants::{Descendants, Looks};
pub(super) use self::launcher::check_program;
pub(crate) use self::launcher::launch;
use self::terminal::{Terminal, has_job_control};
use super::code_of_signal;
use super::supervision::{Change, End, Stop};
use crate::stderr;

/// The signals that would end this process and let the command run on without the lock.
const FORWARDED: [i32; 12] = [
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
];

/// The pauses between two looks for remaining processes.
#[cfg(target_os = "linux")]
const MIN_PAUSE: Duration = Duration::from_millis(1);
#[cfg(target_os = "linux")]
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// The time after which a wait for killed processes is reported.
#[cfg(target_os = "linux")]
const UNREPORTED: Duration = Duration::from_secs(5);

/// How long a command may take to stop when it is asked to.
const MAX_STOPPING: Duration = Duration::from_secs(2);

/// The signals that stop a process for using a terminal that another group has.
fn terminal_stops() -> SigSet {
    [Blocked::SIGTTIN, Blocked::SIGTTOU].into_iter().collect()
}

/// Prevents this process from being stopped for using a terminal. This also holds for threads that are spawned later.
pub(crate) fn block_terminal_stops() -> io::Result<()> {
    Ok(terminal_stops().thread_block()?)
}

/// The signals that this process gets from now on. Signals that it was started to ignore, by nohup(1) for example, stay
/// ignored.
pub(super) fn signals() -> io::Result<Receiver<i32>> {
    let ignored = ignored_signals();
    let is_ignored = |signal: i32| ignored >> (signal - 1) & 1 == 1;
    let taken = FORWARDED.into_iter().chain([SIGTSTP]).filter(|signal| !is_ignored(*signal));
    let mut signals = Signals::new(taken.chain([SIGCONT]))?;
    let (sender, receiver) = unbounded();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                break;
            }
        }
    })?;
    Ok(receiver)
}

/// The ignored signals as bits. Without /proc, no signal counts as ignored.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or_default()
}

/// Returns whether a signal ends the wait for the lock. On SIGTSTP, stops this process if a shell can continue it.
pub(super) fn ends_wait(signal: i32) -> bool {
    if signal == SIGTSTP && has_job_control() {
        stop_myself();
    }
    ends(signal)
}

/// Returns whether a signal means that this process was continued.
pub(super) fn is_continuing(signal: i32) -> bool {
    signal == SIGCONT
}

/// Returns whether a signal is meant to end the command. What SIGUSR1 and SIGUSR2 mean is up to the command.
pub(super) fn ends(signal: i32) -> bool {
    ![SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT].contains(&signal)
}

/// Stops this process until it is continued.
fn stop_myself() {
    // This cannot fail: a process may always signal itself.
    let _ = kill_process(getpid(), Signal::STOP);
}

/// Ends this process as Ctrl-C would have ended it if the command had not had the terminal: with its whole process
/// group, which includes a script that runs it. Returns only if that fails.
pub(super) fn end_as_interrupted() {
    let _ = kill_current_process_group(Signal::INT);
    // No signal ends process 1 that has no handler, and the emulation does not allow for that.
    if getpid() != Pid::INIT {
        let _ = emulate_default_handler(SIGINT);
    }
}

/// A command, which is the first process of its group.
pub(super) struct Child {
    child: std::process::Child,
    group: Pid,
    changes: Receiver<Change>,
    /// Whether the launcher has been allowed to become the command.
    is_launched: bool,
    terminal: Option<Terminal>,
    /// Until this moment, a stop of the command means that the whole job should stop.
    stopping_until: Option<Instant>,
    /// Whether this process has forwarded a SIGINT.
    has_forwarded_interrupt: bool,
    #[cfg(target_os = "linux")]
    descendants: Descendants,
}

impl Child {
    /// Starts the launcher of a command, which stops itself when it is ready. [`go_on`](Child::go_on) then lets it
    /// become the command.
    pub(super) fn spawn(
        program: &OsString,
        arguments: &[OsString],
        set_variables: impl FnOnce(&mut Command),
    ) -> io::Result<Child> {
        // If the parent has left SIGCHLD ignored, the kernel keeps no exit code. Any handler prevents that.
        let has_child_ended = Arc::new(AtomicBool::new(false));
        // It may have left SIGCHLD blocked, too.
        SigSet::from(Blocked::SIGCHLD).thread_unblock()?;
        flag::register(SIGCHLD, Arc::clone(&has_child_ended))?;
        #[cfg(target_os = "linux")]
        let descendants = Descendants::adopt(has_child_ended)?;
        let mut launcher: Command = launcher::launcher_of(program, arguments);
        set_variables(&mut launcher);
        let (sender, changes) = unbounded();
        let (started, launched) = bounded(1);
        // The thread is started first: if this function fails, nothing of the command has run.
        let watching = move || launched.iter().for_each(|group| watch(group, &sender));
        thread::Builder::new().name("child".to_owned()).spawn(watching)?;
        let child = launcher.spawn()?;
        let group = Pid::from_child(&child);
        // Cannot fail: the thread waits for it.
        let _ = started.send(group);
        Ok(Child {
            child,
            group,
            changes,
            is_launched: false,
            terminal: Terminal::open(),
            stopping_until: None,
            has_forwarded_interrupt: false,
            #[cfg(target_os = "linux")]
            descendants,
        })
    }

    /// The changes of the command; the first is the stop of the launcher. The channel is disconnected when the command
    /// has ended.
    pub(super) fn changes(&self) -> &Receiver<Change> {
        &self.changes
    }

    /// Forwards a signal to the process group. If the signal should end the command, also continues the group, because
    /// a stopped command would keep the lock forever.
    pub(super) fn forward(&mut self, signal: i32) -> io::Result<()> {
        match signal {
            SIGTSTP if self.terminal.is_none() || !has_job_control() => {
                stderr::complain("not stopped: the lock would be lost while the command runs on");
                return Ok(());
            }
            SIGTSTP => self.stopping_until = Instant::now().checked_add(MAX_STOPPING),
            SIGINT => self.has_forwarded_interrupt = true,
            _ => {}
        }
        let forwarded = Signal::from_named_raw(signal).map_or(Ok(()), |signal| self.signal(signal));
        if ends(signal) { forwarded.and(self.signal(Signal::CONT)) } else { forwarded }
    }

    /// Returns what a stop of the command means. If the command was stopped for using the terminal, it should have the
    /// terminal from now on.
    pub(super) fn handle_stop(&mut self, signal: i32) -> Stop {
        if !self.is_launched {
            // The launcher is ready.
            return Stop::Passing;
        }
        let is_asked = self.stopping_until.take().is_some_and(|until| Instant::now() < until);
        let wants_terminal = [SIGTTIN, SIGTTOU].contains(&signal);
        self.look_at_terminal();
        let Some(terminal) = &mut self.terminal else { return Stop::Lasting };
        if wants_terminal {
            terminal.want();
        }
        match terminal.is_given() {
            // The command was stopped before it got the terminal. Otherwise, a group that the command has created has
            // the terminal, and continuing the command would only stop it again.
            true if wants_terminal && terminal.is_with(self.group) => Stop::Passing,
            true if wants_terminal => Stop::Lasting,
            true if has_job_control() => Stop::OfTheJob,
            // No shell could continue the job, so nothing may be stopped.
            true if signal == SIGTSTP => Stop::Passing,
            false if wants_terminal && terminal.is_ours() => Stop::Passing,
            false if is_asked => Stop::OfTheJob,
            _ => Stop::Lasting,
        }
    }

    /// Stops the command and everything that it has started. Returns `false` if something cannot be stopped.
    /// [`go_on`](Child::go_on) continues what was stopped.
    pub(super) fn stop(&mut self) -> bool {
        let _ = self.signal(Signal::STOP);
        #[cfg(target_os = "linux")]
        return self.descendants.stop();
        #[cfg(not(target_os = "linux"))]
        true
    }

    /// Stops this process until the shell continues it, because the command has been stopped as a job of that shell.
    pub(super) fn stop_with_the_job(&mut self) {
        stderr::flush();
        let had_terminal = self.terminal.as_ref().is_some_and(Terminal::is_given);
        self.take_terminal_back(false);
        if had_terminal {
            // The shell also waits for a script that runs this process, so the script must stop as well.
            let _ = kill_current_process_group(Signal::STOP);
        } else {
            stop_myself();
        }
    }

    /// Starts or continues the command. Gives it the terminal if it should have the terminal and this process has it.
    pub(super) fn go_on(&mut self) -> io::Result<()> {
        self.is_launched = true;
        if let Some(terminal) = &mut self.terminal {
            terminal.give(self.group);
        }
        let rest = self.continue_rest();
        self.signal(Signal::CONT).and(rest)
    }

    /// Continues what [`stop`](Child::stop) has stopped and [`go_on`](Child::go_on) could not continue.
    pub(super) fn continue_rest(&mut self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        self.descendants.go_on()?;
        Ok(())
    }

    /// Returns whether a stopped command can go on: it should have the terminal, and the shell has given the terminal
    /// to this process.
    pub(super) fn may_go_on(&self) -> bool {
        self.terminal.as_ref().is_some_and(Terminal::is_wanted_and_ours)
    }

    /// Sends SIGTERM to the process group, and continues it if it is stopped. A launcher that has not become the
    /// command is killed instead: if it was started to ignore SIGTERM, it would become the command when it is
    /// continued.
    pub(super) fn terminate(&self) -> io::Result<()> {
        if !self.is_launched {
            return self.kill();
        }
        self.signal(Signal::TERM).and(self.signal(Signal::CONT))
    }

    /// Kills the process group, and on Linux all descendants.
    pub(super) fn kill(&self) -> io::Result<()> {
        let group = self.signal(Signal::KILL);
        #[cfg(target_os = "linux")]
        let group = group.and(self.descendants.kill().failure.map_or(Ok(()), Err));
        group
    }

    /// Kills what is left of the process group when the command has ended, and all its descendants. Blocks until all
    /// are gone except those that cannot be killed, or until it is clear that there is no way to find out.
    #[cfg(target_os = "linux")]
    pub(super) fn kill_rest(&self) -> io::Result<()> {
        // The id of the group stays in use until the exit code is read.
        let group = self.signal(Signal::KILL);
        let (mut pause, mut known, mut looks) = (MIN_PAUSE, HashSet::new(), Looks::default());
        let mut report_at = Instant::now().checked_add(UNREPORTED);
        loop {
            self.reap();
            let killed = self.descendants.kill();
            if looks.are_enough(&killed, Instant::now()) {
                return group.and(killed.failure.map_or(Ok(()), Err));
            }
            if report_at.take_if(|at| *at <= Instant::now()).is_some() {
                let left = killed.found.len();
                stderr::complain(&format!(
                    "waiting for what is left of the command: {left} processes at the moment"
                ));
            }
            // Killed processes may take a while to end. If new ones appear, look again at once.
            let has_new = killed.found.iter().any(|process| !known.contains(process));
            let is_empty = killed.found.is_empty() && !killed.may_pass;
            pause = if has_new || is_empty { MIN_PAUSE } else { MAX_PAUSE.min(pause * 2) };
            known.extend(killed.found);
            thread::sleep(pause);
        }
    }

    /// Kills what is left of the process group when the command has ended.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn kill_rest(&self) -> io::Result<()> {
        // Some systems refuse signals to a group of processes that have ended.
        let _ = self.signal(Signal::KILL);
        Ok(())
    }

    /// Waits for adopted processes that have ended. Does not block.
    pub(super) fn reap(&self) {
        #[cfg(target_os = "linux")]
        self.descendants.reap(self.group);
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        match kill_process_group(self.group, signal) {
            // All processes of the group have ended.
            Err(Errno::SRCH) => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    fn look_at_terminal(&mut self) {
        let Some(terminal) = &mut self.terminal else { return };
        #[cfg(target_os = "linux")]
        terminal.look(|group| self.descendants.include_group(group));
        #[cfg(not(target_os = "linux"))]
        terminal.look(|_| false);
    }

    fn take_terminal_back(&mut self, restores_modes: bool) {
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back(restores_modes);
        }
    }

    /// Returns how the command ended. Call it only when the command has ended.
    pub(super) fn end(mut self) -> io::Result<End> {
        // Until the exit code is read, the id of the group stays in use.
        self.look_at_terminal();
        let status = self.child.wait()?;
        let had_terminal = self.terminal.as_ref().is_some_and(Terminal::is_given);
        self.take_terminal_back(status.signal().is_some());
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        let code = code.or_else(|| status.signal().map(code_of_signal)).unwrap_or(u8::MAX);
        let is_interrupted = had_terminal && !self.has_forwarded_interrupt && status.signal() == Some(SIGINT);
        Ok(End { code, is_interrupted })
    }
}

/// Reports the changes of a process until it has ended. Does not reap it, so its id cannot be reused while signals may
/// be sent to it.
fn watch(process: Pid, changes: &Sender<Change>) {
    let any = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED;
    loop {
        let change = match waitid(WaitId::Pid(process), any | WaitIdOptions::NOWAIT) {
            Err(Errno::INTR) | Ok(None) => continue,
            Err(error) => Change::Unknown(error.into()),
            Ok(Some(status)) if status.stopped() || status.continued() => match take_report(process) {
                Some(change) => change,
                None => continue,
            },
            Ok(Some(_)) => return,
        };
        let is_last = matches!(change, Change::Unknown(_));
        if changes.send(change).is_err() || is_last {
            return;
        }
    }
}

/// Takes the report of a stop or a continuation from the kernel, which reports each of them once.
fn take_report(process: Pid) -> Option<Change> {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
    let status = waitid(WaitId::Pid(process), options).ok()??;
    status.stopping_signal().map(Change::Stopped).or(status.continued().then_some(Change::Continued))
}

/// Returns whether an operation can succeed later, because this process or the system has no process, descriptor or
/// memory left.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    let errors = [Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|error| errors.contains(&error))
}

/// Returns why a signal has stopped a command.
pub(super) fn cause_of_stop(signal: i32) -> &'static str {
    match signal {
        SIGTTIN => "it reads from the terminal in the background",
        SIGTTOU => "it uses the terminal in the background",
        _ => "a signal has stopped it",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;

    /// The launcher ignores SIGTERM if this process was started to ignore it. No other unit test may start processes,
    /// because this one kills them all.
    #[test]
    fn launcher_that_must_end_does_not_become_the_command() {
        let mut launcher = Command::new("sh");
        launcher.args(["-c", "trap '' TERM; kill -STOP $$; exit 3"]).process_group(0);
        let child = launcher.spawn().unwrap();
        let group = Pid::from_child(&child);
        let (sender, changes) = unbounded();
        let watching = thread::spawn(move || watch(group, &sender));
        let child = Child {
            child,
            group,
            changes,
            is_launched: false,
            terminal: None,
            stopping_until: None,
            has_forwarded_interrupt: false,
            #[cfg(target_os = "linux")]
            descendants: Descendants::default(),
        };
        assert!(matches!(child.changes().recv().unwrap(), Change::Stopped(_)));
        child.terminate().unwrap();
        watching.join().unwrap();
        assert_eq!(child.end().unwrap().code, code_of_signal(Signal::KILL.as_raw()));
    }
}
