//! [`Supervision`] of a running command: signals, and the lock.

use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, after, never, select};
use zookeeper_recipes_lock::{LockGuard, LossReason, Session, SessionState};

use super::lease::{EndTimes, Verdict};
use super::platform::Child;
use super::shown;
use crate::stderr::complain;

/// The longest wait before the next look at the lease. Timers stand still while the machine is
/// suspended.
const MAX_WAIT: Duration = Duration::from_secs(1);

pub(super) struct Supervision<'a> {
    session: &'a Session,
    guard: &'a LockGuard,
    child: Child,
    grace: Duration,
    /// The lease has lasted for as long as it does in contact.
    is_settled: bool,
    /// The time at which a command that was asked to end is killed.
    kill_at: Option<Instant>,
    /// The lock is lost, or about to be.
    lost: bool,
    /// The loss was reported.
    is_reported: bool,
    /// It was reported that the command cannot be ended.
    is_refused: bool,
}

/// The end of a command.
pub(super) struct Ended {
    pub(super) code: io::Result<u8>,
    /// The lock was lost, or was about to be.
    pub(super) lost: bool,
}

impl<'a> Supervision<'a> {
    pub(super) fn new(
        session: &'a Session,
        guard: &'a LockGuard,
        child: Child,
        grace: Duration,
    ) -> Supervision<'a> {
        Supervision {
            session,
            guard,
            child,
            grace,
            is_settled: false,
            kill_at: None,
            lost: false,
            is_reported: false,
            is_refused: false,
        }
    }

    /// Returns whether a command may start: the lock is held, and not about to be lost.
    pub(super) fn may_start(session: &Session, guard: &LockGuard, grace: Duration) -> bool {
        let times = EndTimes::new(grace, session.session_timeout());
        let has_contact = session.state() == SessionState::Connected;
        guard.is_owner() && times.verdict(guard.lease_remaining(), has_contact, false) != Verdict::MustEnd
    }

    /// Blocks until the command has ended.
    ///
    /// Nothing else here blocks or writes. Signals come before messages.
    pub(super) fn until_the_end(mut self, signals: &Receiver<i32>) -> Ended {
        let states = self.session.subscribe();
        let ended = self.child.ended().clone();
        let mut lost = self.guard.lost().clone();
        let mut revocation = self.guard.revocation().clone();
        let failure = loop {
            self.child.reap();
            let wait = self.check();
            select! {
                recv(ended) -> failure => break failure.ok(),
                recv(signals) -> signal => {
                    if let Ok(signal) = signal {
                        if let Err(error) = self.child.forward(signal) {
                            complain(&format!("cannot forward signal {signal} to the command: {error}"));
                        }
                    }
                }
                recv(lost) -> reason => {
                    if let Ok(reason) = reason {
                        self.lock_lost(reason);
                    }
                    lost = never();
                }
                recv(revocation) -> request => {
                    if request.is_ok() && self.kill_at.is_none() {
                        self.terminate();
                        complain("another client asks for the lock; ending the command");
                    }
                    revocation = never();
                }
                recv(states) -> _ => {}
                recv(after(wait)) -> _ => {}
            }
        };
        // The command may have ended because of a loss that nobody has looked at.
        if let Some(reason) = self.guard.loss() {
            self.lock_lost(reason);
        }
        if self.lost || failure.is_some() {
            let rest = self.child.kill_rest();
            self.report(rest);
        }
        Ended { code: failure.map_or_else(|| self.child.code(), Err), lost: self.lost }
    }

    /// Ends the command if the time has come. Returns when to check again.
    fn check(&mut self) -> Duration {
        if let Some(reason) = self.guard.loss() {
            self.lock_lost(reason);
        }
        if let Some(kill_at) = self.kill_at {
            let left = kill_at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.kill();
                return MAX_WAIT;
            }
            return left.min(MAX_WAIT);
        }
        if !self.lost {
            let remaining = self.guard.lease_remaining();
            let times = EndTimes::new(self.grace, self.session.session_timeout());
            self.is_settled |= times.is_settled(remaining);
            let has_contact = self.session.state() == SessionState::Connected;
            match times.verdict(remaining, has_contact, self.is_settled) {
                Verdict::RunsOn(left) => return left.min(MAX_WAIT),
                Verdict::MustEnd => return self.lease_ends(remaining, times.until_kill(remaining)),
            }
        }
        MAX_WAIT
    }

    /// Contact was lost, and the lease is about to end: the command has this time. Returns when to check
    /// again.
    fn lease_ends(&mut self, remaining: Duration, time: Duration) -> Duration {
        self.end_within(time);
        complain(&format!(
            "no contact with ZooKeeper, and the lock can be lost in {}; ending the command, killing it in {}",
            shown(remaining),
            shown(time)
        ));
        time.min(MAX_WAIT)
    }

    fn lock_lost(&mut self, reason: LossReason) {
        if std::mem::replace(&mut self.is_reported, true) {
            return;
        }
        let was_ending = std::mem::replace(&mut self.lost, true);
        match reason {
            // Nobody could know before. The next client may own the lock already.
            LossReason::NodeDeleted | LossReason::Refused if !was_ending => self.end_within(self.grace),
            // The time is over.
            _ => {
                self.kill_at = Some(Instant::now());
                self.kill();
            }
        }
        complain(&format!("the lock is lost ({reason}); ending the command"));
    }

    fn end_within(&mut self, time: Duration) {
        self.lost = true;
        self.kill_at = Instant::now().checked_add(time);
        self.terminate();
    }

    fn terminate(&mut self) {
        let signalled = self.child.terminate();
        self.report(signalled);
    }

    fn kill(&mut self) {
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
