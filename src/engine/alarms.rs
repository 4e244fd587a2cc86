//! [`Alarms`]: the times at which the clock wakes participants.

use std::collections::{BTreeMap, BTreeSet};

use super::border::ParticipantId;
use crate::time::Moment;

/// At most one alarm for each participant. Setting an earlier alarm replaces it; setting a later one does nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Alarms {
    by_id: BTreeMap<ParticipantId, Moment>,
    by_time: BTreeSet<(Moment, ParticipantId)>,
}

impl Alarms {
    pub(super) fn set(&mut self, id: ParticipantId, at: Moment) {
        if self.by_id.get(&id).is_some_and(|set| *set <= at) {
            return;
        }
        self.clear(id);
        self.by_id.insert(id, at);
        self.by_time.insert((at, id));
    }

    pub(super) fn clear(&mut self, id: ParticipantId) {
        if let Some(at) = self.by_id.remove(&id) {
            self.by_time.remove(&(at, id));
        }
    }

    /// Removes the first alarm that is due, and returns its participant.
    pub(super) fn take_due(&mut self, now: Moment) -> Option<ParticipantId> {
        let (_, id) = self.by_time.first().copied().filter(|(at, _)| *at <= now)?;
        self.clear(id);
        Some(id)
    }

    pub(super) fn next(&self) -> Option<Moment> {
        self.by_time.first().map(|(at, _)| *at)
    }
}
