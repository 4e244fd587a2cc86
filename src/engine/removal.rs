//! [`Removal`]: the deletion of a znode, in the background if need be. It follows the end of a request, for example by
//! an unlock or a timeout, or the discovery of a znode that [belongs to no request](super::sweep). A session also
//! deletes what the session before it has left behind.
//!
//! An unlock during an outage must not leave a znode that blocks others while the session lives. So a
//! deletion is repeated until it is done or the session has ended: after every reconnect, and now and then
//! during contact. The session repeats even a refused deletion, because an ACL can be changed back. But a
//! reconnect does not lift a refusal, so after a refusal the next attempt waits for its delay even across a
//! reconnect.
//!
//! If the leader answers that the znode does not exist, the session looks whether its server shows the znode
//! nevertheless. If so, the deletion is repeated, because a late create may have come in between. If the leader says the
//! same again, and the server shows the same znode again on the same connection, the server has diverged from the
//! others. The leader's answer counts: it decides who owns the lock. The log names the server, because others that are
//! connected to it wait for a znode that nobody can delete.

use std::time::Duration;

use super::border::{Effect, Event, ParticipantId, Target};
use super::calls::Pending;
use super::commons::Commons;
use super::contender::Activity;
use super::lease::ConnectionNumber;
use crate::client::{Call, Stat};
use crate::error::{ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::time::Priority;

/// The delay before a failed deletion is repeated during contact. It doubles with each failure, up to [`MAX_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Removal {
    id: ParticipantId,
    pub(super) path: ZNodePath,
    /// Serializes the attempts, because a concurrent second one would report `NoNode`.
    activity: Activity,
    /// The caller has been told neither a first outcome nor that contact was lost.
    is_unreported: bool,
    /// The error of the last failed attempt, which is logged when it changes.
    failure: Option<ZkError>,
    /// The number of failed attempts. A new connection resets it, unless the server has refused an attempt.
    failures: u32,
    was_refused: bool,
    /// The id of the transaction that created the znode which the server has shown after the leader's answer that it does
    /// not exist.
    shown: Option<i64>,
}

/// What becomes of a deletion. The engine notifies the participants that wait for its znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Fate {
    GoesOn,
    /// The deletion goes on, although the server refuses it for now.
    Refused,
    /// The znode is gone. `has_deleted` is false if it was already gone.
    Done {
        has_deleted: bool,
    },
    /// The deletion has ended without success. If the server has ended the session, the znode is gone with
    /// it. Otherwise, the next session deletes the znode.
    LeftBehind,
}

impl Removal {
    pub(super) fn new(id: ParticipantId, path: ZNodePath) -> Removal {
        Removal {
            id,
            path,
            activity: Activity::Idle,
            is_unreported: true,
            failure: None,
            failures: 0,
            was_refused: false,
            shown: None,
        }
    }

    pub(super) fn start(&mut self, commons: &mut Commons) -> Fate {
        if commons.life.has_ended() {
            return self.leave_behind(commons);
        }
        if !commons.in_contact() {
            // No outcome can come soon, and the client may keep the deletion for the next connection.
            self.report(commons, Err(ZkError::ConnectionLoss));
        }
        self.wake(commons);
        Fate::GoesOn
    }

    /// Makes an attempt now or, if one is under way, another one after it.
    pub(super) fn wake(&mut self, commons: &mut Commons) {
        if self.activity != Activity::Idle {
            self.activity = Activity::Woken;
            return;
        }
        self.activity = Activity::UnderWay;
        commons.submit(Call::delete(&self.path, None), Priority::Owner, Pending::Removal(self.id));
    }

    /// Reports the first outcome.
    pub(super) fn report(&mut self, commons: &mut Commons, outcome: ZkResult<()>) {
        if std::mem::take(&mut self.is_unreported) {
            commons.effects.push_back(Effect::RemovalAnswered(self.id, outcome));
        }
    }

    // ---- inputs

    /// Handles the outcome of an attempt.
    pub(super) fn on_reply(&mut self, commons: &mut Commons, outcome: ZkResult<()>) -> Fate {
        self.report(commons, outcome);
        match outcome {
            Ok(()) => self.done(commons, true),
            Err(ZkError::NoNode) => {
                (self.activity, self.failure) = (Activity::UnderWay, None);
                let look = Call::exists(&self.path, false);
                let pending = Pending::LookAfterRemoval(self.id, commons.lease.connection());
                commons.submit(look, Priority::Owner, pending);
                Fate::GoesOn
            }
            // The session may have ended in this process alone, so the znode may be left on the server.
            Err(ZkError::SessionExpired) => self.leave_behind(commons),
            Err(error) => self.fail(commons, error),
        }
    }

    /// Handles the outcome of the look that follows the leader's answer that the znode does not exist. That answer came
    /// on the connection `answered_on`.
    pub(super) fn on_look(
        &mut self,
        commons: &mut Commons,
        answered_on: ConnectionNumber,
        outcome: ZkResult<Option<Stat>>,
    ) -> Fate {
        // Nothing is shown, or nothing can be seen.
        let Ok(Some(stat)) = outcome else { return self.done(commons, false) };
        let is_same = self.shown.replace(stat.czxid) == Some(stat.czxid);
        if !is_same || commons.lease.connection() != answered_on {
            self.activity = Activity::Idle;
            self.wake(commons);
            return Fate::GoesOn;
        }
        commons.effects.push_back(Effect::Diverged(self.path.clone()));
        self.done(commons, false)
    }

    /// Prepares for a new connection, and tries again on it at once, unless the server has refused the last
    /// attempt.
    pub(super) fn on_reconnect(&mut self, commons: &mut Commons) {
        if !self.was_refused {
            self.failures = 0;
        }
        if self.failure.is_none_or(ZkError::is_reply_lost) {
            self.wake(commons);
        }
    }

    fn done(&mut self, commons: &mut Commons, has_deleted: bool) -> Fate {
        commons.alarms.clear(self.id);
        commons.report(Event::Removed { path: self.path.clone(), was_refused: self.was_refused });
        Fate::Done { has_deleted }
    }

    fn fail(&mut self, commons: &mut Commons, error: ZkError) -> Fate {
        let is_refused = !error.is_reply_lost();
        let is_news = self.failure.replace(error) != Some(error);
        self.was_refused |= is_refused;
        if std::mem::take(&mut self.activity) == Activity::Woken {
            self.wake(commons);
        } else {
            let delay = self.next_delay();
            // Without contact there is nothing to try: the reconnect wakes everybody.
            if commons.in_contact() || is_refused {
                commons.alarms.set(self.id, commons.now.after(delay));
            }
        }
        if is_news {
            commons.report(Event::CannotRemove { path: self.path.clone(), error });
        }
        if is_refused { Fate::Refused } else { Fate::GoesOn }
    }

    /// Counts an attempt that has failed, and returns the delay before the next one.
    fn next_delay(&mut self) -> Duration {
        let delay = FIRST_RETRY.saturating_mul(2_u32.saturating_pow(self.failures)).min(MAX_RETRY);
        self.failures = self.failures.saturating_add(1);
        delay
    }

    /// Ends the deletion because the session has ended.
    pub(super) fn leave_behind(&mut self, commons: &mut Commons) -> Fate {
        self.report(commons, Err(ZkError::SessionExpired));
        commons.alarms.clear(self.id);
        if self.was_refused {
            commons.report(Event::RemovedWithSession(self.path.clone()));
        }
        commons.effects.push_back(Effect::LeftBehind(self.id, Target::ZNode(self.path.clone())));
        Fate::LeftBehind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_with_each_failure_up_to_half_a_minute() {
        let mut removal = Removal::new(ParticipantId(1), ZNodePath::parse("/a").unwrap());
        let delays: Vec<Duration> = (0..9).map(|_| removal.next_delay()).collect();
        let millis = [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000];
        assert_eq!(delays, millis.map(Duration::from_millis));
    }
}
