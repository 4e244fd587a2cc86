//! [`Supervision`] of a running command: signals, and the lock.

use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, after, never, select};
use zookeeper_recipes_lock::{LockGuard, LossReason, Session, SessionState};

use super::lease::{EndTimes, Verdict};
use super::platform::Child;
use super::shown;
use crate::output::complain;

/// How long it waits at most before it looks at the lease again. Timers stand still while the
/// machine is suspended.
const MAX_WAIT: Duration = Duration::from_secs(1);

pub(super) struct Supervision<'a> {
    session: &'a Session,
    guard: &'a LockGuard,
    child: Child,
    times: EndTimes,
    grace: Duration,
    /// Whether the lease has lasted for as long as it does in contact.
    is_settled: bool,
    /// When the command is killed that was asked to end.
    kill_at: Option<Instant>,
    /// The lock is lost, or about to be.
    lost: bool,
    /// The loss was reported.
    is_reported: bool,
}

/// How a command ended.
pub(super) struct Ended {
    pub(super) code: u8,
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
        let times = EndTimes::new(grace, session.session_timeout());
        Supervision {
            session,
            guard,
            child,
            times,
            grace,
            is_settled: false,
            kill_at: None,
            lost: false,
            is_reported: false,
        }
    }

    /// Blocks until the command has ended.
    pub(super) fn until_the_end(mut self, signals: &Receiver<i32>) -> io::Result<Ended> {
        let states = self.session.subscribe();
        let ended = self.child.ended().clone();
        let mut lost = self.guard.lost().clone();
        let mut revocation = self.guard.revocation().clone();
        loop {
            let wait = self.check();
            select! {
                recv(ended) -> _ => break,
                recv(signals) -> signal => {
                    if let Ok(signal) = signal {
                        self.child.forward(signal);
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
                        complain("another client asks for the lock; ending the command");
                        self.child.terminate();
                    }
                    revocation = never();
                }
                recv(states) -> _ => {}
                recv(after(wait)) -> _ => {}
            }
        }
        if self.lost {
            // What is left of the group. Its id is in use until the exit code is read.
            self.child.kill();
        }
        Ok(Ended { code: self.child.code()?, lost: self.lost })
    }

    /// Ends the command if the time has come. Returns when to check again.
    fn check(&mut self) -> Duration {
        if let Some(reason) = self.guard.loss() {
            self.lock_lost(reason);
        }
        if let Some(kill_at) = self.kill_at {
            let left = kill_at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.child.kill();
                return MAX_WAIT;
            }
            return left.min(MAX_WAIT);
        }
        if !self.lost {
            let remaining = self.guard.lease_remaining();
            self.times = EndTimes::new(self.grace, self.session.session_timeout());
            self.is_settled |= self.times.is_settled(remaining);
            let has_contact = self.session.state() == SessionState::Connected;
            match self.times.verdict(remaining, has_contact, self.is_settled) {
                Verdict::RunsOn(left) => return left.min(MAX_WAIT),
                Verdict::MustEnd => return self.lease_ends(remaining),
            }
        }
        MAX_WAIT
    }

    /// Contact was lost, and the lease is about to end. Returns when to check again.
    fn lease_ends(&mut self, remaining: Duration) -> Duration {
        let time = self.times.until_kill(remaining);
        complain(&format!(
            "no contact with ZooKeeper, and the lock can be lost in {}; ending the command, killing it in {}",
            shown(remaining),
            shown(time)
        ));
        self.end_within(time);
        time.min(MAX_WAIT)
    }

    fn lock_lost(&mut self, reason: LossReason) {
        if std::mem::replace(&mut self.is_reported, true) {
            return;
        }
        let was_ending = std::mem::replace(&mut self.lost, true);
        complain(&format!("the lock is lost ({reason}); ending the command"));
        match reason {
            // Nobody could know before. The next client may own the lock already.
            LossReason::NodeDeleted | LossReason::Refused if !was_ending => self.end_within(self.grace),
            // The time is over.
            _ => self.child.kill(),
        }
    }

    fn end_within(&mut self, time: Duration) {
        self.lost = true;
        self.child.terminate();
        self.kill_at = Instant::now().checked_add(time);
    }
}
