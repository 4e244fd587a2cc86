//! The guardian: the parent of the command, which ends it when the lock can be lost.
//!
//! Whoever stops, freezes or kills the holder (the process that has the session) does not free the command: the holder
//! tells the guardian until when the lease is certain, and the guardian ends the command at that moment unless the holder
//! has told it a later one. It does the same when the holder has ended. [`Leash`] decides; this process carries it out.
//!
//! The guardian is this program in another process, with one thread, no connection, and a process group of its own, so no
//! signal to the job or to the command reaches it; the others are blocked. It adopts the descendants whose parents have
//! ended, so it knows when none is left. If the guardian is killed, the kernel kills the command, and the holder adopts
//! and ends the rest.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{self, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal as Blocked};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, waitid, waitpid};
use rustix::stdio::stdin;
#[cfg(target_os = "linux")]
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use signal_hook::consts::{SIGCHLD, SIGPIPE};
use signal_hook::{flag, low_level};

use super::descendants::{Descendants, Hunt, Rest};
use super::launcher::{launcher_of, own_path, this_program};
use super::leash::{Leash, Moment, Step, Term};
use super::terminal;
use super::unix::{is_ignored, now};
use super::wire::{self, Order, Report};
use crate::failure::SYSTEM;

/// The program name (`argv[0]`) by which this program knows that it is the guardian.
pub(super) const NAME: &str = "zklock: guardian";

/// The longest wait before the clock is read again, and reports that did not fit are sent again.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// How long the guardian may take to start.
const MAX_START: Duration = Duration::from_secs(30);

/// How long a killed guardian may take to end, and the pause between two looks at it.
const MAX_END: Duration = Duration::from_secs(1);
const END_PAUSE: Duration = Duration::from_micros(50);

// ---- the holder's side

/// A command that is to be guarded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guarded<'a> {
    pub(super) program: &'a OsString,
    pub(super) arguments: &'a [OsString],
    /// How long the command may run at first.
    pub(super) term: Term,
    /// How long it may take to end after SIGTERM.
    pub(super) grace: Duration,
    /// Whether the guardian cares for what the command leaves behind.
    pub(super) waits_for_all: bool,
}

/// The guardian, as the holder sees it. It is killed when this value is dropped, and must outlive all signals to the
/// command's group: it keeps the ended command, so that the id of the group stays in use.
#[derive(Debug)]
pub(super) struct Guardian {
    process: process::Child,
    socket: UnixStream,
    /// The process group of the command.
    pub(super) group: Pid,
}

impl Guardian {
    /// Starts the guardian, and with it the launcher of the command.
    pub(super) fn spawn(
        guarded: &Guarded<'_>,
        set_variables: impl FnOnce(&mut Command),
    ) -> io::Result<Guardian> {
        let (socket, other) = UnixStream::pair()?;
        let own_path = own_path();
        let mut command = this_program(&own_path, NAME);
        let grace = u64::try_from(guarded.grace.as_nanos()).unwrap_or(u64::MAX);
        command
            .arg(own_path)
            .arg(grace.to_string())
            .arg(guarded.waits_for_all.to_string())
            .arg(is_ignored(SIGPIPE).to_string())
            .arg(guarded.program)
            .args(guarded.arguments);
        command.stdin(Stdio::from(OwnedFd::from(other))).process_group(0);
        set_variables(&mut command);
        let mut process = command.spawn()?;
        // It has the other end of the pair, whose closing tells that the guardian has ended.
        drop(command);
        match Guardian::begin(&socket, guarded.term) {
            Ok(group) => Ok(Guardian { process, socket, group }),
            Err(error) => {
                end(&mut process, &socket);
                Err(error)
            }
        }
    }

    /// Sends what the guardian needs to begin. Returns the process group of the command.
    fn begin(socket: &UnixStream, term: Term) -> io::Result<Pid> {
        // Fails if the guardian has ended, which the answer shows as well.
        let _ = wire::pass(socket, &Order::Hold(term).encode(), stdin());
        socket.set_read_timeout(Some(MAX_START))?;
        let started = match Report::read(socket) {
            Ok(Report::Started(group)) => Pid::from_raw(group),
            Ok(Report::Failed(error)) => return Err(io::Error::from_raw_os_error(error)),
            _ => None,
        };
        socket.set_read_timeout(None)?;
        started.ok_or_else(|| {
            // Started through a dynamic loader or an emulator, /proc/self/exe is that program.
            let message = "zklock cannot start itself a second time, to guard the command; was it started through \
                           another program?";
            io::Error::new(io::ErrorKind::Unsupported, message)
        })
    }

    /// Returns the socket from which to read [`Report`]s.
    pub(super) fn socket(&self) -> io::Result<UnixStream> {
        self.socket.try_clone()
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Tells the guardian something. If it does not read, this may be lost.
    pub(super) fn tell(&self, order: Order) {
        let _ = send(&self.socket, &order.encode(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Continues the guardian, if somebody has stopped it.
    pub(super) fn keep_running(&self) {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        if let Ok(Some(_)) = waitid(WaitId::Pid(self.pid()), options) {
            let _ = kill_process_group(self.pid(), Signal::CONT);
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        end(&mut self.process, &self.socket);
        // This process, as a subreaper, has adopted the ended command.
        let _ = waitpid(Some(self.group), WaitOptions::NOHANG);
    }
}

/// Kills the guardian, and waits until it has ended. One that is frozen, or that another process traces, may take forever,
/// but does nothing any more, so it is left alone after a while.
fn end(guardian: &mut process::Child, socket: &UnixStream) {
    let _ = guardian.kill();
    let begun = Instant::now();
    // The system closes its end of the socket a moment before it has ended.
    let time = Timespec::try_from(MAX_END).unwrap_or_default();
    let _ = poll(&mut [PollFd::new(socket, PollFlags::HUP)], Some(&time));
    while matches!(guardian.try_wait(), Ok(None)) && begun.elapsed() < MAX_END {
        thread::sleep(END_PAUSE);
    }
}

// ---- the guardian itself

/// Guards the command, if this process is the guardian. Returns its exit code.
pub(super) fn guard() -> Option<u8> {
    let mut arguments = env::args_os();
    if arguments.next()? != NAME {
        return None;
    }
    match Guard::start(arguments) {
        Ok(guard) => guard.until_the_end(),
        Err(error) => drop(tell(Report::Failed(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())))),
    }
    Some(SYSTEM)
}

struct Guard {
    leash: Leash,
    command: Pid,
    /// Whether the descendants that outlive the command belong to it.
    waits_for_all: bool,
    /// The socket to the launcher. It is closed when the launcher becomes the command.
    launcher: UnixStream,
    /// The standard input of the command.
    input: OwnedFd,
    /// The process group of the holder, which gets the terminal back.
    job: Option<nix::unistd::Pid>,
    /// Becomes readable when a child has changed.
    children: UnixStream,
    /// Becomes readable at the next moment of the leash, where the system has such a timer.
    alarm: Option<OwnedFd>,
    descendants: Descendants,
    /// Set when the command was killed, until nothing is left.
    hunt: Option<Hunt>,
    /// The beginning of an order that has not come as a whole.
    received: Vec<u8>,
    reports: Reports,
    has_holder_ended: bool,
    has_command_ended: bool,
    /// Whether it was reported that nothing is left, or that this is not known.
    is_reported: bool,
}

impl Guard {
    fn start(mut arguments: impl Iterator<Item = OsString>) -> io::Result<Guard> {
        let (first, input) = wire::receive(stdin())?;
        let Some(Order::Hold(term)) = Order::decode(first) else { return Err(Errno::INVAL.into()) };
        let mut next = || arguments.next().ok_or(Errno::INVAL);
        let (own_path, grace, waits_for_all) = (next()?, next()?, next()?);
        let (ignores_pipe, program) = (next()?, next()?);
        let grace = grace.to_str().and_then(|grace| grace.parse().ok()).ok_or(Errno::INVAL)?;
        let arguments: Vec<OsString> = arguments.collect();
        let job = nix::unistd::getpgid(Some(nix::unistd::getppid())).ok();

        let has_child_ended = Arc::new(AtomicBool::new(false));
        flag::register(SIGCHLD, Arc::clone(&has_child_ended))?;
        let (children, wake) = UnixStream::pair()?;
        children.set_nonblocking(true)?;
        low_level::pipe::register(SIGCHLD, wake)?;
        let descendants = Descendants::adopt(has_child_ended)?;

        let (launcher, other) = UnixStream::pair()?;
        launcher.set_nonblocking(true)?;
        let mut command = launcher_of(&own_path, &ignores_pipe, &program, &arguments);
        let started = command.stdin(Stdio::from(OwnedFd::from(other))).spawn()?;
        let command = Pid::from_child(&started);
        // Not before the launcher has started, because it would inherit the blocked signals.
        let mut blocked = SigSet::all();
        blocked.remove(Blocked::SIGCHLD);
        blocked.thread_set_mask()?;
        tell(Report::Started(command.as_raw_nonzero().get()));
        Ok(Guard {
            leash: Leash::new(term, Duration::from_nanos(grace)),
            command,
            waits_for_all: waits_for_all == "true",
            launcher,
            input,
            job,
            children,
            alarm: alarm(),
            descendants,
            hunt: None,
            received: Vec::new(),
            reports: Reports::default(),
            has_holder_ended: false,
            has_command_ended: false,
            is_reported: false,
        })
    }

    fn until_the_end(mut self) {
        loop {
            self.reports.send(tell);
            self.handle_changes();
            self.handle_orders();
            let now = now();
            match self.leash.poll(now) {
                Step::Ask => self.ask(),
                Step::Kill => self.kill(),
                Step::Wait(until) => {
                    let pause = self.hunt();
                    if self.has_holder_ended && until.is_none() && self.hunt.is_none() {
                        return self.give_terminal_back();
                    }
                    self.wait(until, until.map_or(pause, |until| until.saturating_sub(now).min(pause)));
                }
            }
        }
    }

    /// Waits for an order, a change of a child, a moment, or the end of a time. Only the moment comes while the machine is
    /// suspended.
    fn wait(&self, until: Option<Moment>, time: Duration) {
        let holder = stdin();
        let mut awaited = vec![PollFd::new(&self.children, PollFlags::IN)];
        if let Some(alarm) = &self.alarm {
            set_alarm(alarm, until);
            awaited.push(PollFd::new(alarm, PollFlags::IN));
        }
        if !self.has_holder_ended {
            awaited.push(PollFd::from_borrowed_fd(holder, PollFlags::IN));
        }
        // A millisecond more, so that the moment has come.
        let time = Timespec::try_from(time + Duration::from_millis(1)).unwrap_or_default();
        // Fails for an interruption by a signal, at most.
        let _ = poll(&mut awaited, Some(&time));
        // Drains the pipe, which says nothing else.
        let _ = (&self.children).read(&mut [0; 64]);
    }

    fn handle_orders(&mut self) {
        let mut bytes = [0; 16 * Order::LENGTH];
        while !self.has_holder_ended {
            match recv(stdin(), &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => self.has_holder_ended = true,
                Ok((length, _)) => self.received.extend(&bytes[..length]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.has_holder_ended = true,
            }
        }
        while let Some((order, rest)) = self.received.split_first_chunk() {
            let (order, rest) = (Order::decode(*order), rest.to_vec());
            self.received = rest;
            match order {
                Some(Order::Hold(term)) => self.leash.handle_term(term),
                Some(Order::Launch) => self.launch(),
                Some(Order::Asked) => self.leash.handle_asked(),
                Some(Order::Kill) => self.leash.handle_kill(),
                None => self.has_holder_ended = true,
            }
        }
        if self.has_holder_ended {
            self.leash.handle_holder_end(now());
        }
    }

    fn launch(&mut self) {
        if self.leash.launch(now()) {
            // Fails only if the launcher has ended, which is noticed elsewhere.
            let _ = wire::pass(&self.launcher, &[0], self.input.as_fd());
        }
    }

    /// Reports the changes of the command, and waits for other children that have ended. Leaves the ended command alone,
    /// so that its id, which is that of its group, stays in use.
    fn handle_changes(&mut self) {
        let changes = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED;
        while !self.has_command_ended {
            let options = changes | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            match waitid(WaitId::Pid(self.command), options) {
                Err(Errno::INTR) => {}
                Ok(Some(status)) if status.stopped() || status.continued() => self.report_change(),
                Ok(Some(status)) => {
                    let code = status.exit_status().map(|code| code << 8);
                    self.handle_command_end(code.or(status.terminating_signal()).unwrap_or_default());
                }
                Ok(None) => break,
                // Not possible: only this process waits for its children.
                Err(_) => self.handle_command_end(Signal::KILL.as_raw()),
            }
        }
        self.descendants.reap(&[self.command]);
        if self.has_command_ended && !self.is_reported && self.descendants.are_gone() == Rest::None {
            self.report_rest(Report::Gone);
        }
    }

    /// Takes the report of a stop or a continuation from the kernel, which reports each of them once, and passes it on.
    fn report_change(&mut self) {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        let Ok(Some(status)) = waitid(WaitId::Pid(self.command), options) else { return };
        match status.stopping_signal() {
            Some(signal) => self.report(Report::Stopped(signal)),
            None if status.continued() => self.report(Report::Continued),
            None => {}
        }
    }

    fn handle_command_end(&mut self, status: i32) {
        self.has_command_ended = true;
        let mut error = [0; 4];
        if let Ok(4) = (&self.launcher).read(&mut error) {
            self.report(Report::Failed(i32::from_le_bytes(error)));
        }
        // It may have ended because the holder has asked it to.
        self.handle_orders();
        if !self.waits_for_all {
            self.leash.handle_command_end(now());
        }
        self.report(Report::Ended(status));
    }

    fn report(&mut self, report: Report) {
        self.reports.add(report);
        self.reports.send(tell);
    }

    fn report_rest(&mut self, report: Report) {
        self.is_reported = true;
        if self.waits_for_all {
            self.leash.handle_command_end(now());
        }
        self.report(report);
    }

    fn ask(&mut self) {
        self.report(Report::Ending);
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    fn kill(&mut self) {
        self.report(Report::Ending);
        self.signal(Signal::KILL);
        self.hunt.get_or_insert_default();
    }

    /// Looks for what is left of a command that was killed. Returns how long to wait before the next look.
    fn hunt(&mut self) -> Duration {
        let Some(mut hunt) = self.hunt.take() else { return MAX_WAIT };
        let rest = if self.has_command_ended { self.descendants.are_gone() } else { Rest::Some };
        if let Some(outcome) = hunt.look(&self.descendants, rest, |_| {}) {
            self.report_rest(if outcome.is_ok() { Report::Gone } else { Report::Unsure });
            return MAX_WAIT;
        }
        self.hunt.insert(hunt).pause
    }

    fn signal(&self, signal: Signal) {
        // Fails only if all processes of the group have ended, or may not be signalled.
        let _ = kill_process_group(self.command, signal);
    }

    /// Gives the terminal back to the job, if the command has it.
    fn give_terminal_back(&self) {
        if let Some(job) = self.job {
            terminal::give_back(self.command, job);
        }
    }
}

/// The reports that were not sent yet, because a frozen holder has no room for them.
#[derive(Debug, Default)]
struct Reports(Vec<Report>);

impl Reports {
    /// Adds a report. Of stops and continuations, only the newest counts.
    fn add(&mut self, report: Report) {
        let is_passing = |report: &Report| matches!(report, Report::Stopped(_) | Report::Continued);
        if is_passing(&report) {
            self.0.retain(|report| !is_passing(report));
        }
        self.0.push(report);
    }

    /// Sends as many as there is room for, in their order. `tell` returns whether there was room.
    fn send(&mut self, tell: impl Fn(Report) -> bool) {
        let sent = self.0.iter().take_while(|report| tell(**report)).count();
        self.0.drain(..sent);
    }
}

/// Returns a timer that runs while the machine is suspended.
#[cfg(target_os = "linux")]
fn alarm() -> Option<OwnedFd> {
    timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC).ok()
}

#[cfg(not(target_os = "linux"))]
fn alarm() -> Option<OwnedFd> {
    None
}

/// Lets the alarm ring at a moment, or never.
#[cfg(target_os = "linux")]
fn set_alarm(alarm: &OwnedFd, at: Option<Moment>) {
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    // A moment of zero would mean never, and is over anyway.
    let at = at.map_or(zero, |at| Timespec::try_from(at.max(Moment::from_nanos(1))).unwrap_or(zero));
    let times = Itimerspec { it_interval: zero, it_value: at };
    // Cannot fail: the times are valid.
    let _ = timerfd_settime(alarm, TimerfdTimerFlags::ABSTIME, &times);
}

#[cfg(not(target_os = "linux"))]
fn set_alarm(_alarm: &OwnedFd, _at: Option<Moment>) {}

/// Tells the holder something. Returns whether it has been sent, or never can be.
fn tell(report: Report) -> bool {
    send(stdin(), &report.encode(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) != Err(Errno::AGAIN)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[test]
    fn reports_that_a_frozen_holder_has_no_room_for_are_sent_later() {
        let (room, sent) = (Cell::new(2), RefCell::new(Vec::new()));
        let tell = |report| {
            let has_room = room.get() > 0;
            if has_room {
                room.set(room.get() - 1);
                sent.borrow_mut().push(report);
            }
            has_room
        };
        let mut reports = Reports::default();
        let mut report = |report| {
            reports.add(report);
            reports.send(tell);
        };
        for _ in 0..1000 {
            report(Report::Stopped(19));
            report(Report::Continued);
        }
        [Report::Stopped(20), Report::Ending, Report::Ended(9), Report::Gone].into_iter().for_each(report);
        assert_eq!(sent.take(), [Report::Stopped(19), Report::Continued]);
        room.set(3);
        reports.send(tell);
        assert_eq!(sent.take(), [Report::Stopped(20), Report::Ending, Report::Ended(9)]);
        room.set(3);
        reports.send(tell);
        reports.send(tell);
        assert_eq!(sent.take(), [Report::Gone]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn alarm_rings_at_its_moment_and_not_before() {
        let alarm = alarm().unwrap();
        let rings_within = |millis: i64| {
            let time = Timespec { tv_sec: 0, tv_nsec: millis * 1_000_000 };
            poll(&mut [PollFd::new(&alarm, PollFlags::IN)], Some(&time)).unwrap() == 1
        };
        let hour = Duration::from_secs(3600);
        for (at, rings) in
            [(Some(now() + hour), false), (Some(now()), true), (None, false), (Some(Moment::ZERO), true)]
        {
            set_alarm(&alarm, at);
            assert_eq!(rings_within(100), rings, "{at:?}");
        }
    }
}
