//! [`Removal`]: deletes a znode, in the background if need be: after an unlock, a timeout, or where no
//! request [has](super::sweep) it.
//!
//! An unlock during an outage must not leave a znode that blocks others while the session lives,
//! so a deletion is repeated until it is done or the session has ended: after every reconnect, and
//! now and then in contact. This holds even if the server refuses it, as an ACL can be changed back.
//! A reconnect changes nothing of a refusal, so the next attempt after one comes in its time.

use std::time::Duration;

use super::border::{Effect, Event, ParticipantId, Target};
use super::calls::Pending;
use super::commons::Commons;
use super::contender::Activity;
use crate::client::port::Call;
use crate::error::{ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::time::Priority;

/// The delay before a failed deletion is repeated in contact. It doubles with each failure, up to
/// the other one.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Removal {
    id: ParticipantId,
    pub(super) path: ZNodePath,
    /// Serializes the attempts: a concurrent second one would report `NoNode`.
    activity: Activity,
    /// Nobody has heard of the outcome of the first, nor of the loss of contact.
    is_unreported: bool,
    /// The error of the last failed attempt; logged when it changes.
    failure: Option<ZkError>,
    /// The number of failed attempts: on this connection, or in all once the server has refused one.
    failures: u32,
    was_refused: bool,
}

/// What becomes of a deletion. The engine notifies those who wait for its znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Fate {
    GoesOn,
    /// It goes on; the server refuses it for now.
    Refused,
    Done,
    /// It has ended: the server deletes the znode with the session. If that lives on there, the session that
    /// follows does.
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
        }
    }

    pub(super) fn start(&mut self, commons: &mut Commons) -> Fate {
        if commons.life.has_ended() {
            return self.on_end(commons);
        }
        if !commons.in_contact() {
            // No outcome can come soon, and the client may keep the deletion for the next connection.
            self.report(commons, Err(ZkError::ConnectionLoss));
        }
        self.wake(commons);
        Fate::GoesOn
    }

    /// Makes an attempt, or one more after that which is under way.
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

    /// Takes up the outcome of an attempt.
    pub(super) fn on_reply(&mut self, commons: &mut Commons, outcome: ZkResult<()>) -> Fate {
        self.report(commons, outcome);
        match outcome {
            Ok(()) | Err(ZkError::NoNode) => {
                commons.alarms.clear(self.id);
                commons.report(Event::Removed { path: self.path.clone(), was_refused: self.was_refused });
                Fate::Done
            }
            // The session may have ended for this process alone, with the znode left on the server.
            Err(ZkError::SessionExpired) => self.leave_behind(commons),
            Err(error) => self.fail(commons, error),
        }
    }

    /// Prepares for a new connection, and tries again on it at once unless the server has refused.
    pub(super) fn on_reconnect(&mut self, commons: &mut Commons) {
        if !self.was_refused {
            self.failures = 0;
        }
        if self.failure.is_none_or(ZkError::is_reply_lost) {
            self.wake(commons);
        }
    }

    /// The session has ended. It may live on at the server without us.
    pub(super) fn on_end(&mut self, commons: &mut Commons) -> Fate {
        if commons.is_over() {
            return self.leave_behind(commons);
        }
        self.wake(commons);
        Fate::GoesOn
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

    /// Counts an attempt that has failed, and returns when to make the next one.
    fn next_delay(&mut self) -> Duration {
        let delay = FIRST_RETRY.saturating_mul(2_u32.saturating_pow(self.failures)).min(MAX_RETRY);
        self.failures = self.failures.saturating_add(1);
        delay
    }

    fn leave_behind(&mut self, commons: &mut Commons) -> Fate {
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
