//! [`Supervision`] of a running command: forwards signals, and ends the command when the lock is lost.

use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, at, never, select};
use zookeeper_recipes_lock::{LockGuard, LossReason, Session, SessionState};

use super::lease::{EndTimes, KillTime, Settling, Verdict};
use super::leash::{Moment, Term};
use super::shown;
use super::unix::{self, Child};
use super::wire::Report;
use crate::args::CommandArgs;
use crate::failure::LOST;
use crate::spans::show_duration;
use crate::stderr::complain;

/// The longest wait before the lease is checked again. It is short because timers stand still while the machine is
/// suspended.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// How soon a command that was killed, but has not ended, is killed again.
const KILL_PAUSE: Duration = Duration::from_millis(100);

/// The longest wait before the terminal is checked again, while the command is stopped. A shell that gives the terminal
/// to a running job does not notify the job.
const TERMINAL_WAIT: Duration = Duration::from_millis(100);

/// What a stop of the command means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Whether Ctrl-C has ended the command.
    pub(super) interrupt: Option<Interrupt>,
}

/// What got a SIGINT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupt {
    /// Only the command, which had the terminal.
    OfTheCommand,
    /// The whole job, so the signal was forwarded to the command.
    OfTheJob,
}

impl From<u8> for End {
    fn from(code: u8) -> End {
        End { code, interrupt: None }
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
    /// Whether the command was asked to end.
    is_asked: bool,
    /// Whether the program of the command was executed.
    has_begun: bool,
    /// Whether the lock is held until everything that descends from the command has ended.
    waits_for_all: bool,
    end: Option<End>,
}

/// The result of a supervision.
pub(super) struct Ended {
    pub(super) end: io::Result<End>,
    /// Whether the lock was lost, or was about to be.
    pub(super) lost: bool,
    /// Whether anything of the command may have run.
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
        args: &CommandArgs,
    ) -> Supervision<'a> {
        Supervision {
            session,
            guard,
            child,
            activity: Activity::Running,
            grace: args.grace,
            stopped_for: args.stopped_for,
            settling: Settling::new(session.session_timeout(), Instant::now()),
            kill_time: KillTime::default(),
            lost: false,
            is_reported: false,
            is_refused: false,
            is_killed: false,
            is_asked: false,
            has_begun: false,
            waits_for_all: args.until_all_end,
            end: None,
        }
    }

    /// Returns how long a command may run at first, or `None` if it must not start, because the lock is lost or about to
    /// be.
    pub(super) fn first_term(session: &Session, guard: &LockGuard, grace: Duration) -> Option<Term> {
        let times = EndTimes::new(grace, session.session_timeout());
        let has_contact = session.state() == SessionState::Connected;
        let (read_at, remaining) = (unix::now(), guard.lease_remaining());
        match times.verdict(remaining, has_contact, false) {
            Verdict::RunsOn(left) if guard.is_owner() => Some(times.term(read_at, remaining, left)),
            _ => None,
        }
    }

    /// Runs the command. Blocks until it has ended, or has no guardian any more. In the latter case, or if the lock is
    /// lost or the command was killed, also blocks until nothing is left of the command.
    ///
    /// The loop waits only in `select!`, while it stops the whole job, and while the job is stopped. Signals that end
    /// the command are sent before anything is reported.
    pub(super) fn until_the_end(mut self, signals: &Receiver<i32>) -> Ended {
        let states = self.session.subscribe();
        let reports = self.child.reports().clone();
        let mut lost = self.guard.lost().clone();
        let mut revocation = self.guard.revocation().clone();
        self.go_on();
        let failure = loop {
            let next_check = Instant::now() + self.check();
            if self.child.is_guardian_frozen() {
                break Some("the guardian of the command is frozen, and was killed");
            }
            // This may take a while, and must not delay the next check.
            self.child.reap();
            select! {
                recv(reports) -> report => match report {
                    Ok(Report::Started(_)) => {}
                    Ok(Report::Failed(_)) => self.has_begun = false,
                    Ok(Report::Stopped(signal)) => self.handle_stop(signal),
                    Ok(Report::Continued) => self.activity = Activity::Running,
                    Ok(Report::Ending) => self.handle_ending_by_the_guardian(),
                    Ok(Report::Ended(status)) => {
                        self.end = Some(self.child.handle_end(status));
                        self.activity = Activity::Running;
                        if !self.waits_for_all {
                            break None;
                        }
                    }
                    Ok(Report::Gone | Report::Unsure) if self.end.is_some() => break None,
                    Ok(Report::Gone | Report::Unsure) => {}
                    Err(_) => break Some("the guardian of the command has ended"),
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
        if let Some(failure) = failure.filter(|_| self.lost) {
            complain(failure);
        }
        let end = self.end.filter(|_| failure.is_none());
        Ended {
            end: end.ok_or_else(|| io::Error::other(failure.unwrap_or_default())),
            lost: self.lost,
            has_begun: self.has_begun,
        }
    }

    fn handle_signal(&mut self, signal: i32) {
        let is_stopped = matches!(self.activity, Activity::Stopped(_));
        if unix::is_continuing(signal) {
            if is_stopped {
                self.go_on();
            }
        } else if is_stopped && self.child.stops_with_the_job(signal) && !self.is_ending() {
            self.stop_the_job();
        } else if let Err(error) = self.child.forward(signal) {
            complain(&format!("cannot forward signal {signal} to the command: {error}"));
        }
    }

    fn handle_stop(&mut self, signal: i32) {
        match self.child.handle_stop(signal) {
            Stop::Passing => return self.go_on(),
            // If the command is about to be killed, this process must not be stopped.
            Stop::OfTheJob if !self.is_ending() => return self.stop_the_job(),
            _ => {}
        }
        if self.is_ending() {
            // This was reported, and the command is killed in time, stopped or not.
            self.activity = Activity::Stopped(None);
            return;
        }
        let cause = unix::cause_of_stop(signal);
        let end_at = Instant::now().checked_add(self.stopped_for).filter(|_| !self.stopped_for.is_zero());
        self.activity = Activity::Stopped(end_at);
        let consequence = match end_at {
            Some(_) => format!("it is ended in {} (--stopped-for)", show_duration(self.stopped_for)),
            None => "nothing ends it".to_owned(),
        };
        complain(&format!("the command is stopped while it holds the lock, because {cause}; {consequence}"));
    }

    /// Stops everything until the shell continues this process. The guardian's leash holds meanwhile.
    fn stop_the_job(&mut self) {
        self.check_lease();
        if self.is_ending() {
            return;
        }
        self.activity = Activity::Stopped(None);
        // Nothing of the command may run on while the shell shows the job as stopped.
        if !self.child.stop() {
            self.go_on();
            return complain("not stopped: a process of the command cannot be stopped");
        }
        let times = EndTimes::new(self.grace, self.session.session_timeout());
        if let Verdict::RunsOn(left) = times.verdict(self.guard.lease_remaining(), true, true) {
            complain(&format!("stopped; the command is ended unless this goes on within {}", shown(left)));
        }
        // When this returns, this process is running again. It is about to handle its SIGCONT, and maybe a signal that
        // was sent before: `kill %1` in bash sends SIGTERM, then SIGCONT.
        self.child.stop_with_the_job();
    }

    /// Returns whether the command has only a limited time left, because of the lock or of `--stopped-for`.
    fn is_ending(&self) -> bool {
        self.lost || self.kill_time.is_set()
    }

    /// Starts or continues the command, unless the lock was lost in the meantime.
    fn go_on(&mut self) {
        self.check_lease();
        if self.lost {
            return;
        }
        self.activity = Activity::Running;
        self.has_begun = true;
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
            // Tells the guardian when to kill the command.
            self.check_lease();
            complain("the command was stopped for too long; ending it");
        }
        until_lease.min(TERMINAL_WAIT)
    }

    /// Ends the command if the lock is lost, or about to be, and kills it if its time to end is over. Returns how long
    /// to wait before the next check.
    fn check_lease(&mut self) -> Duration {
        let read_at = unix::now();
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
        let left = self.kill_time.left(Instant::now());
        if left == Some(Duration::ZERO) {
            self.kill();
            // Somebody may stop the guardian before it has done this.
            return KILL_PAUSE;
        }
        let term = self.term(read_at, remaining, until_ending, left);
        self.child.hold(term);
        // The next term must come in time.
        let until_asked = term.ask_at.map_or(MAX_WAIT, |ask_at| ask_at.saturating_sub(read_at) / 2);
        left.unwrap_or(MAX_WAIT).min(until_ending).min(until_asked).min(MAX_WAIT)
    }

    /// Returns how long the command may run if this process does nothing any more.
    fn term(
        &self,
        read_at: Moment,
        remaining: Duration,
        until_ending: Duration,
        until_kill: Option<Duration>,
    ) -> Term {
        let times = EndTimes::new(self.grace, self.session.session_timeout());
        let term = times.term(read_at, remaining, until_ending);
        let kill_at = until_kill.map(|left| read_at.saturating_add(left));
        // The grace after a sudden loss does not depend on a lease, which has ended.
        let lease = (!self.lost || kill_at.is_none()).then_some(term.kill_at);
        Term {
            ask_at: term.ask_at.filter(|_| !self.is_asked),
            kill_at: kill_at.into_iter().chain(lease).min().unwrap_or_default(),
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

    /// The guardian knows nothing of the lease but what this process has said.
    fn handle_ending_by_the_guardian(&mut self) {
        if self.is_ending() {
            // What the command leaves behind is being killed, too.
            self.is_killed = true;
            return;
        }
        (self.lost, self.is_asked) = (true, true);
        complain(
            "zklock did not run for so long that the lock can be lost; its guardian is ending the command",
        );
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
        self.is_asked = true;
        let signalled = self.child.terminate();
        self.report(signalled);
    }

    fn kill(&mut self) {
        let signalled = self.child.kill(std::mem::replace(&mut self.is_killed, true));
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
