//! [`Supervision`] of a running command: forwards signals, and ends the command when the lock is lost.

use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, at, never, select};
use zookeeper_recipes_lock::{LockGuard, LossReason, Session, SessionState};

use super::lease::{EndTimes, KillTime, Settling, Verdict};
use super::platform::{self, Child};
use super::shown;
use crate::failure::LOST;
use crate::spans::show_duration;
use crate::stderr::complain;

/// The longest wait before the lease is checked again. It is short because timers stand still while the machine is
/// suspended.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The longest wait before the terminal is checked again, while the command is stopped. A shell that gives the terminal
/// to a running job does not notify the job.
const TERMINAL_WAIT: Duration = Duration::from_millis(100);

/// A change of the state of the command.
#[derive(Debug)]
#[cfg_attr(not(unix), allow(dead_code, reason = "no command can be stopped there"))]
pub(super) enum Change {
    /// This signal has stopped the command.
    Stopped(i32),
    Continued,
    /// The command cannot be watched any more, so it is not known whether it has ended.
    Unknown(io::Error),
}

/// What a stop of the command means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(unix), allow(dead_code, reason = "no command can be stopped there"))]
pub(super) enum Stop {
    /// The command should go on at once.
    Passing,
    /// The whole job should be stopped, as the shell expects.
    OfTheJob,
    /// The command waits until somebody continues it.
    Lasting,
}

/// How the command ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) code: u8,
    /// Whether Ctrl-C ended the command while the command had the terminal, so that only the command got the signal.
    pub(super) is_interrupted: bool,
}

impl From<u8> for End {
    fn from(code: u8) -> End {
        End { code, is_interrupted: false }
    }
}

/// What the command is doing.
#[derive(Clone, Copy, Debug)]
enum Activity {
    Running,
    /// The command is stopped, and is to be ended at this time, if ever.
    Stopped(Option<Instant>),
}

/// Supervises a command while the lock is held.
pub(super) struct Supervision<'a> {
    session: &'a Session,
    guard: &'a LockGuard,
    child: Child,
    activity: Activity,
    grace: Duration,
    /// How long the command may be stopped. Zero means forever.
    stopped_for: Duration,
    /// Whether the lease has its usual length.
    settling: Settling,
    kill_time: KillTime,
    /// Whether the lock is lost, or about to be.
    lost: bool,
    /// Whether the loss was reported.
    is_reported: bool,
    /// Whether it was reported that the command cannot be ended.
    is_refused: bool,
    /// Whether the command was killed. What it leaves behind is then killed, too.
    is_killed: bool,
}

/// The result of a supervision.
pub(super) struct Ended {
    pub(super) end: io::Result<End>,
    /// Whether the lock was lost, or was about to be.
    pub(super) lost: bool,
    /// Whether anything of the command may have run. Any SIGCONT, even one that somebody else sends, turns the launcher
    /// into the command.
    pub(super) has_begun: bool,
}

impl Ended {
    /// The result if the lock was lost, or about to be, before the command began.
    pub(super) fn without_the_lock() -> Ended {
        Ended { end: Ok(LOST.into()), lost: true, has_begun: false }
    }
}

impl<'a> Supervision<'a> {
    pub(super) fn new(
        session: &'a Session,
        guard: &'a LockGuard,
        child: Child,
        grace: Duration,
        stopped_for: Duration,
    ) -> Supervision<'a> {
        Supervision {
            session,
            guard,
            child,
            activity: Activity::Running,
            grace,
            stopped_for,
            settling: Settling::new(session.session_timeout(), Instant::now()),
            kill_time: KillTime::default(),
            lost: false,
            is_reported: false,
            is_refused: false,
            is_killed: false,
        }
    }

    /// Returns whether a command may start: the lock is held and not about to be lost.
    pub(super) fn may_start(session: &Session, guard: &LockGuard, grace: Duration) -> bool {
        let times = EndTimes::new(grace, session.session_timeout());
        let has_contact = session.state() == SessionState::Connected;
        guard.is_owner() && times.verdict(guard.lease_remaining(), has_contact, false) != Verdict::MustEnd
    }

    /// Blocks until the command has ended, or cannot be watched any more. In the latter case, or if the lock is lost or
    /// the command was killed, also blocks until nothing is left of the command.
    ///
    /// The loop waits only in `select!`, while it stops the whole job, and while the job is stopped. Signals that end
    /// the command are sent before anything is reported.
    pub(super) fn until_the_end(mut self, signals: &Receiver<i32>) -> Ended {
        let states = self.session.subscribe();
        let changes = self.child.changes().clone();
        let mut lost = self.guard.lost().clone();
        let mut revocation = self.guard.revocation().clone();
        let failure = loop {
            let next_check = Instant::now() + self.check();
            // This may take a while, and must not delay the next check.
            self.child.reap();
            select! {
                recv(changes) -> change => match change {
                    Ok(Change::Stopped(signal)) => self.handle_stop(signal),
                    Ok(Change::Continued) => self.activity = Activity::Running,
                    Ok(Change::Unknown(error)) => break Some(error),
                    Err(_) => break None,
                },
                recv(signals) -> signal => {
                    if let Ok(signal) = signal {
                        self.handle_signal(signal);
                    }
                }
                recv(lost) -> reason => {
                    if let Ok(reason) = reason {
                        self.handle_lost_lock(reason);
                    }
                    lost = never();
                }
                recv(revocation) -> request => {
                    if request.is_ok() && !self.kill_time.is_set() {
                        self.terminate();
                        complain("another client asks for the release of the lock; ending the command");
                    }
                    revocation = never();
                }
                // The state may have changed again since, so it is ignored: after any change, the lease begins to
                // settle again.
                recv(states) -> _ => self.settling.begin_again(Instant::now()),
                recv(at(next_check)) -> _ => {}
            }
        };
        // The lock may have been lost before the command ended, without the loop noticing.
        if let Some(reason) = self.guard.loss() {
            self.handle_lost_lock(reason);
        }
        if self.lost || self.is_killed || failure.is_some() {
            let rest = self.child.kill_rest();
            self.report(rest);
        }
        Ended { end: failure.map_or_else(|| self.child.end(), Err), lost: self.lost, has_begun: true }
    }

    fn handle_signal(&mut self, signal: i32) {
        if platform::is_continuing(signal) {
            if let Activity::Stopped(_) = self.activity {
                self.go_on();
            }
        } else if let Err(error) = self.child.forward(signal) {
            complain(&format!("cannot forward signal {signal} to the command: {error}"));
        }
    }

    fn handle_stop(&mut self, signal: i32) {
        match self.child.handle_stop(signal) {
            Stop::Passing => return self.go_on(),
            // If the command is about to be killed, this process must not be stopped.
            Stop::OfTheJob if !self.is_ending() => {
                self.activity = Activity::Stopped(None);
                // Nothing may run while this process is stopped.
                if !self.child.stop() {
                    self.go_on();
                    return complain("not stopped: a process of the command cannot be stopped");
                }
                let lease = shown(self.guard.lease_remaining());
                complain(&format!("stopped; the lock is lost unless this goes on within {lease}"));
                // When this returns, this process is running again. It is about to handle its SIGCONT, and maybe a
                // signal that was sent before: `kill %1` in bash sends SIGTERM, then SIGCONT.
                return self.child.stop_with_the_job();
            }
            _ => {}
        }
        if self.is_ending() {
            // This was reported, and the command is killed in time, stopped or not.
            self.activity = Activity::Stopped(None);
            return;
        }
        let cause = platform::cause_of_stop(signal);
        let end_at = Instant::now().checked_add(self.stopped_for).filter(|_| !self.stopped_for.is_zero());
        self.activity = Activity::Stopped(end_at);
        let consequence = match end_at {
            Some(_) => format!("it is ended in {} (--stopped-for)", show_duration(self.stopped_for)),
            None => "nothing ends it".to_owned(),
        };
        complain(&format!("the command is stopped while it holds the lock, because {cause}; {consequence}"));
    }

    /// Returns whether the command has only a limited time left, because of the lock or of `--stopped-for`.
    fn is_ending(&self) -> bool {
        self.lost || self.kill_time.is_set()
    }

    /// Continues the command, unless the lock was lost in the meantime.
    fn go_on(&mut self) {
        self.check_lease();
        if self.lost {
            return;
        }
        self.activity = Activity::Running;
        if let Err(error) = self.child.go_on() {
            complain(&format!("cannot continue the command: {error}"));
        }
    }

    /// Checks the lease and a stopped command. Returns how long to wait before the next check.
    fn check(&mut self) -> Duration {
        let until_lease = self.check_lease();
        let Activity::Stopped(end_at) = self.activity else {
            if !self.is_ending() {
                // A failure was reported when the command was continued, and may be temporary.
                let _ = self.child.continue_rest();
            }
            return until_lease;
        };
        if self.child.may_go_on() {
            self.go_on();
        } else if end_at.is_some_and(|end_at| end_at <= Instant::now()) && !self.is_ending() {
            self.kill_time.kill_within(self.grace, Instant::now());
            self.terminate();
            complain("the command was stopped for too long; ending it");
        }
        until_lease.min(TERMINAL_WAIT)
    }

    /// Ends the command if the lock is lost, or about to be, and kills it if its time to end is over. Returns how long
    /// to wait before the next check.
    fn check_lease(&mut self) -> Duration {
        // The lease is read first: a lock that is lost between the two calls must not look like a lock whose lease is
        // about to end.
        let remaining = self.guard.lease_remaining();
        let until_ending = match self.guard.loss() {
            Some(reason) => {
                self.handle_lost_lock(reason);
                MAX_WAIT
            }
            None => self.check_remaining(remaining),
        };
        match self.kill_time.left(Instant::now()) {
            Some(Duration::ZERO) => {
                self.kill();
                MAX_WAIT
            }
            left => left.unwrap_or(MAX_WAIT).min(until_ending).min(MAX_WAIT),
        }
    }

    /// Checks how long the lease of a held lock lasts, even if the command was already asked to end: the time that it
    /// was given may be longer than the lease. Returns how long to wait before the next check.
    fn check_remaining(&mut self, remaining: Duration) -> Duration {
        let times = EndTimes::new(self.grace, self.session.session_timeout());
        if self.lost {
            // While the machine was suspended, the lease ran on, but the clock of the kill time stood still.
            self.kill_time.kill_within(times.until_kill(remaining), Instant::now());
            return MAX_WAIT;
        }
        let has_contact = self.session.state() == SessionState::Connected;
        let is_settled = self.settling.is_settled(remaining, Instant::now());
        match times.verdict(remaining, has_contact, is_settled) {
            Verdict::RunsOn(left) => left,
            Verdict::MustEnd => {
                self.handle_ending_lease(remaining, times.until_kill(remaining));
                MAX_WAIT
            }
        }
    }

    /// Ends the command because the lease is about to end: contact is lost, or the server has gone silent. The command
    /// has at most `time` to end.
    fn handle_ending_lease(&mut self, remaining: Duration, time: Duration) {
        self.lost = true;
        let time = self.kill_time.kill_within(time, Instant::now()).unwrap_or(time);
        if time.is_zero() {
            // Nothing may run on, not even to handle SIGTERM: this process may have been suspended until now, or
            // `--grace` may be 0.
            self.kill();
        } else {
            self.terminate();
        }
        complain(&format!(
            "no contact with ZooKeeper, and the lock can be lost in {}; ending the command, killing it in {}",
            shown(remaining),
            shown(time)
        ));
    }

    fn handle_lost_lock(&mut self, reason: LossReason) {
        if std::mem::replace(&mut self.is_reported, true) {
            return;
        }
        let was_ending = self.is_ending();
        self.lost = true;
        match reason {
            // Such a loss cannot be foreseen, and the next client may already own the lock.
            LossReason::NodeDeleted | LossReason::Failed if !was_ending => {
                self.kill_time.kill_within(self.grace, Instant::now());
                self.terminate();
            }
            // The command had already been asked to end, or its time to end passed while this process was suspended.
            _ => {
                self.kill_time.kill_within(Duration::ZERO, Instant::now());
                self.kill();
            }
        }
        complain(&format!("the lock is lost ({reason}); ending the command"));
    }

    fn terminate(&mut self) {
        let signalled = self.child.terminate();
        self.report(signalled);
    }

    fn kill(&mut self) {
        self.is_killed = true;
        let signalled = self.child.kill();
        self.report(signalled);
    }

    /// Reports, once, that the command cannot be ended.
    fn report(&mut self, signalled: io::Result<()>) {
        if let Err(error) = signalled {
            if !std::mem::replace(&mut self.is_refused, true) {
                complain(&format!("cannot end the command: {error}"));
            }
        }
    }
}
