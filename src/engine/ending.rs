//! The end of a request: withdrawn, lost, dropped from the queue, or refused.

use super::contender::Contender;
use super::report::{Ending, Failure, Line, Report};
use super::{Engine, ParticipantId, Place};
use crate::error::LossReason;

impl Engine {
    /// Ends a request and deletes its znode, in the background if need be. Returns the number of the
    /// deletion whose first outcome is to come. Does nothing when the request has ended.
    pub(crate) fn withdraw(&mut self, id: ParticipantId) -> Option<ParticipantId> {
        let contender = self.contenders.get(&id)?;
        if self.lease.has_ended_for(id, self.now) {
            // The lease ended before the withdrawal, and nobody has noticed yet.
            self.lose_lease(id);
            return None;
        }
        let released = contender.is_owner().then(|| Line::Released(contender.name().clone()));
        let removal = self.end_contender(id, Ending::Withdrawn);
        released.into_iter().for_each(|line| self.log(line));
        removal
    }

    /// Ends a request because the lock, or the place in the queue, was taken away.
    pub(super) fn lose(&mut self, id: ParticipantId, reason: LossReason) {
        self.end_unasked(id, reason, None);
    }

    /// Ends a request because its znode is gone. The end of the session deletes it too, and its
    /// event may come before anything else that shows that end.
    pub(crate) fn lose_znode(&mut self, id: ParticipantId) {
        self.give_up_if_silent();
        match self.life.end_reason() {
            Some(reason) => self.lose(id, reason),
            None if self.lease.has_ended_for(id, self.now) => self.lose_lease(id),
            None => self.lose(id, LossReason::NodeDeleted),
        }
    }

    /// Ends a request because its lease has ended. The end of the session ends the lease too,
    /// before it is notified.
    pub(crate) fn lose_lease(&mut self, id: ParticipantId) {
        self.lose(id, self.life.end_reason().unwrap_or(LossReason::LeaseExpired));
    }

    pub(super) fn fail(&mut self, id: ParticipantId, failure: Failure) {
        self.end_unasked(id, LossReason::Refused, Some(failure));
    }

    pub(super) fn end_unasked(&mut self, id: ParticipantId, reason: LossReason, failure: Option<Failure>) {
        let Some(contender) = self.contenders.get(&id) else { return };
        let how = match contender.is_owner() {
            true => Ending::Lost(reason),
            false => Ending::Dropped(reason, failure),
        };
        // Until the request is placed, its caller waits for it and gets the error.
        let (name, was_placed) = (contender.name().clone(), self.place(id) != Some(Place::Unknown));
        let line = Line::Ended { name, was_placed, how: how.clone() };
        self.end_contender(id, how);
        self.log(line);
    }

    /// Forgets a request. Returns the number of the deletion of what it leaves, if there is
    /// something.
    fn end_contender(&mut self, id: ParticipantId, how: Ending) -> Option<ParticipantId> {
        // First of all: nobody else may get the lock before.
        self.lease.release(id);
        let contender = self.contenders.remove(&id)?;
        self.alarms.clear(id);
        if let Some(create) = self.window.withdraw_create(id) {
            self.budget.give_back(&create);
        }
        self.listings.forget(&contender.spec.dir, id);
        let (was_owner, time) = (contender.is_owner(), self.now.since(contender.since));
        self.report(id, Report::Ended { was_owner, how, time });
        // The outcome of a create that is under way finds nobody, and its znode is deleted. After a lost
        // create the directory is swept anyway.
        let removal = contender.znode().cloned().map(|znode| self.remove(znode));
        self.forget_watches(id, &contender);
        removal
    }

    /// Ends the watches of a request. Deleting its own znode uses up the one there.
    fn forget_watches(&mut self, id: ParticipantId, contender: &Contender) {
        if let Some(znode) = contender.znode() {
            self.watchers.remove(znode, id);
        }
        for watched in contender.watched.iter().chain(contender.ahead.second()) {
            self.unwatch(watched, id);
        }
    }
}
