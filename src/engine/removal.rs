//! [`Removal`]: deletes a znode, in the background if need be: after an unlock, a timeout, or where no
//! request [has](super::sweep) it.
//!
//! An unlock during an outage must not leave a znode that blocks others while the session lives,
//! so a deletion is repeated until it is done or the session has ended: after every reconnect, and
//! now and then in contact. This holds even if the server refuses it, as an ACL can be changed back.
//! A reconnect changes nothing of a refusal, so the next attempt after one comes in its time.

use std::collections::BTreeSet;
use std::time::Duration;

use super::ahead::ZNodeChange;
use super::calls::Pending;
use super::contender::{Activity, RequestSpec};
use super::life::Life;
use super::report::Line;
use super::{Effect, Engine, ParticipantId};
use crate::client::Call;
use crate::error::{ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::recipe::session_tag::SessionTag;
use crate::time::Priority;

/// The delay before a failed deletion is repeated in contact. It doubles with each failure, up to
/// the second.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(30);

/// What a session leaves at its end, for the one that follows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// The znode at this path.
    ZNode(ZNodePath),
    /// Whatever sessions with these tags have in this directory: the reply to a create was lost.
    Strays { dir: ZNodePath, tags: BTreeSet<SessionTag> },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Removal {
    path: ZNodePath,
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

impl Removal {
    fn new(path: ZNodePath) -> Removal {
        Removal {
            path,
            activity: Activity::Idle,
            is_unreported: true,
            failure: None,
            failures: 0,
            was_refused: false,
        }
    }

    /// Counts an attempt that has failed, and returns when to make the next one.
    fn next_delay(&mut self) -> Duration {
        let delay = FIRST_RETRY.saturating_mul(2_u32.saturating_pow(self.failures)).min(MAX_RETRY);
        self.failures = self.failures.saturating_add(1);
        delay
    }
}

impl Engine {
    /// Deletes a znode of this session, trying again until it is gone or the session has ended.
    pub(crate) fn remove(&mut self, path: ZNodePath) -> ParticipantId {
        let id = self.new_id();
        self.own_queues.leaves(&path);
        self.removed_paths.insert(path.clone());
        self.removals.insert(id, Removal::new(path));
        if self.life.has_ended() {
            self.removal_at_end(id);
            return id;
        }
        if !self.in_contact() {
            // None can come soon, and the client may keep the deletion for the next connection.
            self.report_removal(id, Err(ZkError::ConnectionLoss));
        }
        self.wake_removal(id);
        id
    }

    /// Returns whether a znode of this request is still to be deleted.
    pub(crate) fn is_removing(&self, spec: &RequestSpec) -> bool {
        let is_of_request =
            |path: &ZNodePath| path.dir() == Some(spec.dir.as_str()) && path.name().starts_with(&spec.prefix);
        self.removals.values().any(|removal| is_of_request(&removal.path))
    }

    /// Reports the first outcome.
    pub(super) fn report_removal(&mut self, id: ParticipantId, outcome: ZkResult<()>) {
        let Some(removal) = self.removals.get_mut(&id) else { return };
        if std::mem::take(&mut removal.is_unreported) {
            self.effects.push_back(Effect::Removed(id, outcome));
        }
    }

    pub(super) fn wake_removal(&mut self, id: ParticipantId) {
        let Some(removal) = self.removals.get_mut(&id) else { return };
        if removal.activity != Activity::Idle {
            removal.activity = Activity::Woken;
            return;
        }
        removal.activity = Activity::UnderWay;
        let delete = Call::delete(&removal.path, None);
        self.submit(delete, Priority::Owner, Pending::Removed(id));
    }

    /// Takes up the outcome of an attempt.
    pub(super) fn removal_attempted(&mut self, id: ParticipantId, outcome: ZkResult<()>) {
        self.report_removal(id, outcome);
        match outcome {
            Ok(()) | Err(ZkError::NoNode) => {
                let Some(Removal { path, was_refused, .. }) = self.end_removal(id) else { return };
                self.log(Line::Removed { path: path.clone(), was_refused });
                let has_owned = self.own_queues.remove(&path);
                for waiter in self.watchers.take(&path) {
                    self.notice(waiter, &path, ZNodeChange::Removed { has_owned });
                }
            }
            // The session may have ended for this process alone, with the znode left on the server.
            Err(ZkError::SessionExpired) => self.leave_behind(id),
            Err(error) => self.removal_failed(id, error),
        }
    }

    fn removal_failed(&mut self, id: ParticipantId, error: ZkError) {
        let in_contact = self.in_contact();
        let Some(removal) = self.removals.get_mut(&id) else { return };
        let is_news = removal.failure.replace(error) != Some(error);
        removal.was_refused |= !error.is_reply_lost();
        let again = std::mem::replace(&mut removal.activity, Activity::Idle) == Activity::Woken;
        let path = removal.path.clone();
        if again {
            self.wake_removal(id);
        } else {
            let delay = removal.next_delay();
            // Without contact there is nothing to try: the reconnect wakes everybody.
            if in_contact || !error.is_reply_lost() {
                self.alarms.set(id, self.now.after(delay));
            }
        }
        if is_news {
            self.log(Line::CannotRemove { path: path.clone(), error });
        }
        if !error.is_reply_lost() && self.own_queues.refuse(&path) {
            // Those who wait for the deletion look again, and set a watch: another client may delete it.
            for waiter in self.watchers.take(&path) {
                self.notice(waiter, &path, ZNodeChange::Unknown);
            }
        }
    }

    /// Prepares for a new connection, and tries again on it at once unless the server has refused.
    pub(super) fn removal_reconnected(&mut self, id: ParticipantId) {
        let Some(removal) = self.removals.get_mut(&id) else { return };
        if !removal.was_refused {
            removal.failures = 0;
        }
        if removal.failure.is_none_or(ZkError::is_reply_lost) {
            self.wake_removal(id);
        }
    }

    /// The session has ended. It may live on at the server without us.
    pub(super) fn removal_at_end(&mut self, id: ParticipantId) {
        match self.server_may_keep_session() && !matches!(self.life, Life::Finished(..)) {
            true => self.wake_removal(id),
            false => self.leave_behind(id),
        }
    }

    /// Ends: the server deletes the znode with the session. If that lives on there, the session that
    /// follows does.
    fn leave_behind(&mut self, id: ParticipantId) {
        self.report_removal(id, Err(ZkError::SessionExpired));
        if let Some(removal) = self.end_removal(id) {
            if removal.was_refused {
                self.log(Line::RemovedWithSession(removal.path.clone()));
            }
            self.effects.push_back(Effect::LeftBehind(id, Target::ZNode(removal.path)));
        }
    }

    fn end_removal(&mut self, id: ParticipantId) -> Option<Removal> {
        self.alarms.clear(id);
        let removal = self.removals.remove(&id)?;
        self.removed_paths.remove(&removal.path);
        Some(removal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_with_each_failure_up_to_half_a_minute() {
        let mut removal = Removal::new(ZNodePath::parse("/a").unwrap());
        let delays: Vec<Duration> = (0..9).map(|_| removal.next_delay()).collect();
        let millis = [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000];
        assert_eq!(delays, millis.map(Duration::from_millis));
    }
}
