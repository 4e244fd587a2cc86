//! Signals and processes, on Unix.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{self, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use nix::sys::signal::{SigSet, Signal as Blocked};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_current_process_group, kill_process, kill_process_group};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{
    SIGBUS, SIGCHLD, SIGCONT, SIGFPE, SIGILL, SIGINT, SIGKILL, SIGPIPE, SIGSEGV, SIGSTOP, SIGSYS, SIGTRAP,
    SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::code_of_signal;
use super::descendants::{Descendants, Hunt, Killed, Rest};
use super::guardian::{Guarded, Guardian};
use super::leash::{Moment, Term};
use super::supervision::{End, Interrupt, Stop};
use super::terminal::{Terminal, has_job_control};
use super::wire::{Order, Report};
use crate::stderr;

/// The signals that are not forwarded: no process can catch the first two, the next four are about the terminal, the
/// children of this process and its own continuation, and the rest report a fault of the process that gets them.
const NOT_FORWARDED: [i32; 13] = [
    SIGKILL, SIGSTOP, SIGTTIN, SIGTTOU, SIGCHLD, SIGCONT, SIGBUS, SIGFPE, SIGILL, SIGPIPE, SIGSEGV, SIGSYS,
    SIGTRAP,
];

/// The largest number of a signal on any system.
const MAX_SIGNAL: i32 = 64;

/// How long the guardian may say nothing while it kills what is left of the command.
const MAX_SILENCE: Duration = Duration::from_secs(1);

/// How long after a kill the guardian may say nothing although nothing is left of the command.
const MAX_FREEZE: Duration = Duration::from_secs(5);

/// The pause between two looks at the guardian meanwhile.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// How long a command may take to stop when it is asked to.
const MAX_STOPPING: Duration = Duration::from_secs(2);

/// The time on the clock that the holder and the guardian share. On Linux, it runs while the machine is suspended.
pub(super) fn now() -> Moment {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    // Neither is negative.
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// The signals that stop a process for using a terminal that another group has.
pub(super) fn terminal_stops() -> SigSet {
    [Blocked::SIGTTIN, Blocked::SIGTTOU].into_iter().collect()
}

/// Prevents this process from being stopped for using a terminal. This also holds for threads that are spawned later.
pub(crate) fn block_terminal_stops() -> io::Result<()> {
    Ok(terminal_stops().thread_block()?)
}

/// The signals that this process gets from now on: all that are forwarded, and SIGCONT. Signals that it was started to
/// ignore, by nohup(1) for example, stay ignored.
pub(super) fn signals() -> io::Result<Receiver<i32>> {
    let mut signals = Signals::new([SIGCONT])?;
    let handle = signals.handle();
    for signal in (1..=MAX_SIGNAL).filter(|signal| !NOT_FORWARDED.contains(signal) && !is_ignored(*signal)) {
        if let Err(error) = handle.add_signal(signal) {
            // Some numbers belong to the C library, and some systems have fewer signals.
            if signal_of(signal).is_some() {
                return Err(error);
            }
        }
    }
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

/// Returns whether this program was started to ignore a signal.
pub(super) fn is_ignored(signal: i32) -> bool {
    *IGNORED >> (signal - 1) & 1 == 1
}

/// The signals that this program was started to ignore. This is read before Rust's own start, which makes each program
/// ignore SIGPIPE.
#[ctor::ctor]
static IGNORED: u64 = ignored_signals();

/// The ignored signals as bits. Without /proc, no signal counts as ignored.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or_default()
}

/// The signal of this number, if there is one that a process may send.
fn signal_of(number: i32) -> Option<Signal> {
    #[cfg(target_os = "linux")]
    return rustix_libc_wrappers::process::SignalExt::from_raw(number);
    #[cfg(not(target_os = "linux"))]
    return Signal::from_named_raw(number);
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

/// Returns whether a signal is meant to end the command. What SIGUSR1 and SIGUSR2 mean is up to the command, and by
/// default, the last two do nothing.
pub(super) fn ends(signal: i32) -> bool {
    ![SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGURG, SIGWINCH].contains(&signal)
}

/// Stops this process until it is continued.
fn stop_myself() {
    // This cannot fail: a process may always signal itself.
    let _ = kill_process(getpid(), Signal::STOP);
}

/// Ends this process as Ctrl-C ends a process: with its whole process group, which includes a script that runs it. The
/// script ends only if this process ends by the signal. Returns only if that fails.
pub(super) fn end_as_interrupted(interrupt: Interrupt) {
    if interrupt == Interrupt::OfTheCommand {
        let _ = kill_current_process_group(Signal::INT);
    }
    // No signal ends process 1 that has no handler, and the emulation does not allow for that.
    if getpid() != Pid::INIT {
        let _ = emulate_default_handler(SIGINT);
    }
}

/// A command, which is the first process of its group, and its guardian.
pub(super) struct Child {
    guardian: Guardian,
    /// What the guardian reports. Disconnected when the guardian has ended.
    reports: Receiver<Report>,
    /// Whether the launcher has been allowed to become the command.
    is_launched: bool,
    terminal: Option<Terminal>,
    /// Until this moment, a stop of the command means that the whole job should stop.
    stopping_until: Option<Instant>,
    /// Whether this process has forwarded a SIGINT.
    has_forwarded_interrupt: bool,
    descendants: Descendants,
    /// When everything was killed for the first time.
    killed_at: Option<Instant>,
    /// The looks of this process for what is left.
    hunt: Hunt,
    /// Whether these have shown that nothing is left.
    is_rest_gone: bool,
}

impl Child {
    /// Starts the guardian and the launcher of a command. [`go_on`](Child::go_on) then lets the launcher become the
    /// command.
    pub(super) fn spawn(
        guarded: &Guarded<'_>,
        set_variables: impl FnOnce(&mut Command),
    ) -> io::Result<Child> {
        // If the parent has left SIGCHLD ignored, the kernel keeps no exit code. Any handler prevents that.
        let has_child_ended = Arc::new(AtomicBool::new(false));
        // It may have left SIGCHLD blocked, too.
        SigSet::from(Blocked::SIGCHLD).thread_unblock()?;
        flag::register(SIGCHLD, Arc::clone(&has_child_ended))?;
        let mut descendants = Descendants::adopt(has_child_ended)?;
        // If a later step fails, the guardian is killed, and with it the launcher: nothing of the command has run.
        let guardian = Guardian::spawn(guarded, set_variables)?;
        descendants.spare(guardian.pid());
        let (sender, reports) = unbounded();
        let socket = guardian.socket()?;
        let reading = thread::Builder::new().name("child".to_owned());
        reading.spawn(move || read_reports(&socket, &sender))?;
        Ok(Child {
            guardian,
            reports,
            is_launched: false,
            terminal: Terminal::open(),
            stopping_until: None,
            has_forwarded_interrupt: false,
            descendants,
            killed_at: None,
            hunt: Hunt::default(),
            is_rest_gone: false,
        })
    }

    /// Tells the guardian how long the command may run.
    pub(super) fn hold(&self, term: Term) {
        self.guardian.keep_running();
        self.guardian.tell(Order::Hold(term));
    }

    /// What happens to the command. Disconnected when the guardian has ended.
    pub(super) fn reports(&self) -> &Receiver<Report> {
        &self.reports
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
        let forwarded = signal_of(signal).map_or(Ok(()), |signal| self.signal(signal));
        if ends(signal) { forwarded.and(self.signal(Signal::CONT)) } else { forwarded }
    }

    /// Returns whether a signal to this process means that the job should stop, and a shell could continue it.
    pub(super) fn stops_with_the_job(&self, signal: i32) -> bool {
        signal == SIGTSTP && self.terminal.is_some() && has_job_control()
    }

    /// Returns what a stop of the command means. If the command was stopped for using the terminal, it should have the
    /// terminal from now on.
    pub(super) fn handle_stop(&mut self, signal: i32) -> Stop {
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
            true if wants_terminal && terminal.is_with(self.guardian.group) => Stop::Passing,
            true if wants_terminal => Stop::Lasting,
            true if signal == SIGTSTP && has_job_control() => Stop::OfTheJob,
            // No shell could continue the job, so nothing may be stopped.
            true if signal == SIGTSTP => Stop::Passing,
            // Somebody has stopped only the command. The keys at the terminal are for this process meanwhile.
            true => {
                terminal.withdraw();
                Stop::Lasting
            }
            false if wants_terminal && (terminal.is_ours() || terminal.is_ours_on_request()) => Stop::Passing,
            false if is_asked => Stop::OfTheJob,
            _ => Stop::Lasting,
        }
    }

    /// Stops the command and everything that it has started. Returns `false` if something cannot be stopped.
    /// [`go_on`](Child::go_on) continues what was stopped.
    pub(super) fn stop(&mut self) -> bool {
        let _ = self.signal(Signal::STOP);
        self.descendants.stop()
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
        if let Some(terminal) = &mut self.terminal {
            terminal.give(self.guardian.group);
        }
        if !std::mem::replace(&mut self.is_launched, true) {
            self.guardian.tell(Order::Launch);
            return Ok(());
        }
        let rest = self.continue_rest();
        self.signal(Signal::CONT).and(rest)
    }

    /// Continues what [`stop`](Child::stop) has stopped and [`go_on`](Child::go_on) could not continue.
    pub(super) fn continue_rest(&mut self) -> io::Result<()> {
        self.descendants.go_on()
    }

    /// Returns whether a stopped command can go on: it should have the terminal, and the shell has given the terminal
    /// to this process.
    pub(super) fn may_go_on(&self) -> bool {
        self.terminal.as_ref().is_some_and(Terminal::is_wanted_and_ours)
    }

    /// Sends SIGTERM to the process group, and continues it if it is stopped. A launcher that has not become the command
    /// is killed instead, because it may have been started to ignore SIGTERM.
    pub(super) fn terminate(&mut self) -> io::Result<()> {
        if !self.is_launched {
            return self.kill(false);
        }
        // Before the signal: what the command leaves behind must not count as left by itself.
        self.guardian.tell(Order::Asked);
        self.signal(Signal::TERM).and(self.signal(Signal::CONT))
    }

    /// Kills the process group, and lets the guardian kill all descendants. With `looks`, this process looks for them as
    /// well, because the guardian may be frozen.
    pub(super) fn kill(&mut self, looks: bool) -> io::Result<()> {
        self.killed_at = self.killed_at.or(Some(Instant::now()));
        self.guardian.keep_running();
        self.guardian.tell(Order::Kill);
        let group = self.signal(Signal::KILL);
        if looks { group.and(self.look().unwrap_or(Ok(()))) } else { group }
    }

    /// Looks for what is left, and kills it. Returns the outcome when nothing is left except what cannot be killed.
    fn look(&mut self) -> Option<io::Result<()>> {
        let outcome = self.hunt.look(&self.descendants, Rest::Unknown, complain_of_the_rest);
        self.is_rest_gone = matches!(outcome, Some(Ok(())));
        outcome
    }

    /// Returns whether nothing is left of a command that was killed, but the guardian does not say so: it is frozen.
    pub(super) fn is_guardian_frozen(&self) -> bool {
        // Elsewhere, looks show nothing.
        let is_rest_gone = cfg!(target_os = "linux") && self.is_rest_gone;
        is_rest_gone && self.killed_at.is_some_and(|killed_at| killed_at.elapsed() >= MAX_FREEZE)
    }

    /// Kills the command, if it has not ended, and everything that descends from it. Blocks until the guardian says that
    /// nothing is left. Without the guardian, or if it is silent, looks itself.
    pub(super) fn kill_rest(&mut self) -> io::Result<()> {
        let group = self.kill(false);
        let trusted_until = Instant::now().checked_add(MAX_SILENCE);
        let mut is_alone = self.is_guardian_frozen();
        loop {
            self.reap();
            self.guardian.keep_running();
            let pause = if is_alone { self.hunt.pause } else { LOOK_PAUSE };
            match self.reports.recv_timeout(pause) {
                Ok(Report::Gone) => return group,
                Ok(Report::Unsure) => is_alone = true,
                Err(RecvTimeoutError::Disconnected) => {
                    thread::sleep(self.hunt.pause);
                    is_alone = true;
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
            is_alone |= trusted_until.is_some_and(|until| until <= Instant::now());
            if is_alone {
                if let Some(outcome) = self.look() {
                    return group.and(outcome);
                }
            }
        }
    }

    /// Waits for adopted processes that have ended. Does not block.
    pub(super) fn reap(&self) {
        self.descendants.reap(&[self.guardian.pid(), self.guardian.group]);
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        match kill_process_group(self.guardian.group, signal) {
            // All processes of the group have ended.
            Err(Errno::SRCH) => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    fn look_at_terminal(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.look(|group| self.descendants.include_group(group));
        }
    }

    fn take_terminal_back(&mut self, restores_modes: bool) {
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back(restores_modes);
        }
    }

    /// Takes the terminal back from the command, which has ended with this status of wait(2). Returns how it ended.
    pub(super) fn handle_end(&mut self, status: i32) -> End {
        let status = ExitStatus::from_raw(status);
        self.look_at_terminal();
        let had_terminal = self.terminal.as_ref().is_some_and(Terminal::is_given);
        self.take_terminal_back(status.signal().is_some());
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        let code = code.or_else(|| status.signal().map(code_of_signal)).unwrap_or(u8::MAX);
        let is_at_terminal = had_terminal || self.terminal.as_ref().is_some_and(Terminal::is_ours);
        let interrupt = (is_at_terminal && status.signal() == Some(SIGINT)).then_some(
            match self.has_forwarded_interrupt {
                true => Interrupt::OfTheJob,
                false => Interrupt::OfTheCommand,
            },
        );
        End { code, interrupt }
    }
}

impl Drop for Child {
    /// If the guardian was killed, the command had no orderly end.
    ///
    /// A panic would release the lock while the command runs. So it ends this process: then, the guardian ends the command
    /// before the lease does.
    fn drop(&mut self) {
        if thread::panicking() {
            process::abort();
        }
        self.take_terminal_back(true);
    }
}

fn complain_of_the_rest(killed: &Killed) {
    let left = killed.found.len();
    let problem = killed.failure.as_ref().map_or(String::new(), |error| format!("; {error}"));
    stderr::complain(&format!(
        "waiting for what is left of the command: {left} processes at the moment{problem}"
    ));
}

/// Passes on what the guardian reports, until it has ended.
fn read_reports(socket: &UnixStream, reports: &Sender<Report>) {
    while let Ok(report) = Report::read(socket) {
        if reports.send(report).is_err() {
            return;
        }
    }
}

/// Returns whether the system shows the children of a process, so that a guardian knows when none is left.
pub(super) fn shows_children() -> bool {
    let own_id = getpid().as_raw_nonzero();
    Path::new(&format!("/proc/self/task/{own_id}/children")).exists()
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::env;
    use std::ffi::OsString;
    use std::path::PathBuf;
    use std::process::Stdio;

    use rustix::process::test_kill_process;
    use signal_hook::consts::SIGABRT;
    use tempfile::TempDir;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// The variable that names the directory of a program in a test.
    const DIR: &str = "ZKLOCK_TEST_DIR";

    /// The guardian and the launcher are this program, so it must become them before any test runs.
    #[ctor::ctor]
    fn launch() {
        if let Some(code) = crate::run::launch() {
            process::exit(code.into());
        }
    }

    fn eventually<T>(mut get: impl FnMut() -> Option<T>) -> T {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match get() {
                Some(value) => return value,
                None => assert!(Instant::now() < end, "not within a minute"),
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The id that a worker of the command has written.
    fn worker(dir: &Path) -> Option<Pid> {
        let content = fs::read_to_string(dir.join("worker")).ok()?;
        Pid::from_raw(content.strip_suffix('\n')?.parse().ok()?)
    }

    /// The lock of a program, which is released when this is dropped.
    struct Lock(PathBuf);

    impl Drop for Lock {
        fn drop(&mut self) {
            fs::write(self.0.join("released"), "").unwrap();
        }
    }

    /// A program of the test below.
    #[test]
    #[ignore = "another test runs it in a process of its own"]
    fn program_that_panics() {
        let Some(dir) = env::var_os(DIR).map(PathBuf::from) else { return };
        let _lock = Lock(dir.clone());
        let script = "setsid sh -c 'echo $$ >worker; exec sleep 100' & wait";
        let arguments = ["-c", script].map(OsString::from);
        let term = Term { ask_at: Some(now() + HOUR), kill_at: now() + HOUR };
        let program = OsString::from("sh");
        let (arguments, grace) = (&arguments[..], Duration::from_millis(100));
        let guarded = Guarded { program: &program, arguments, term, grace, waits_for_all: false };
        let mut child = Child::spawn(&guarded, |command| {
            command.current_dir(&dir);
        })
        .unwrap();
        child.go_on().unwrap();
        eventually(|| worker(&dir));
        panic!("on purpose");
    }

    #[test]
    fn panic_does_not_release_the_lock_while_the_command_runs() {
        let dir = TempDir::new().unwrap();
        let mut program = Command::new(env::current_exe().unwrap());
        program.args(["--exact", "run::unix::tests::program_that_panics", "--ignored"]);
        // The directory may get a core dump. A pipe would stay open as long as the worker lives.
        program.env(DIR, dir.path()).current_dir(dir.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let ended = program.status().unwrap();
        let worker = worker(dir.path()).unwrap();
        assert_eq!(ended.signal(), Some(SIGABRT), "{ended:?}");
        assert!(!dir.path().join("released").exists());
        eventually(|| test_kill_process(worker).is_err().then_some(()));
    }
}
