//! The end of a request, whatever its cause, and the removal of what the request's calls have left behind.

use super::Engine;
use super::border::{Ending, ParticipantId, RequestEvent};
use super::calls::may_have_created;
use super::commons::Commons;
use super::contender::{Asked, Contender, Loss, WatchedRead};
use crate::client::Reply;
use crate::error::{LossReason, ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::time::Moment;

impl Engine {
    /// Ends a request and deletes its znode, in the background if need be. Returns the id of the deletion, whose first
    /// outcome [`Effect::RemovalAnswered`](super::Effect::RemovalAnswered) reports. Returns `None` if there is nothing
    /// to delete, or if the request was an owner whose hold had already ended. Does nothing if the request has ended.
    pub(crate) fn withdraw(&mut self, id: ParticipantId) -> Option<ParticipantId> {
        if let Some(ended) = self.commons.lease.ended_at(id, self.commons.now) {
            // The hold ended before the withdrawal, but nobody has noticed yet.
            self.lose_hold(id, ended);
            return None;
        }
        self.end_request(id, Ending::Withdrawn)
    }

    /// Ends a request because it has lost the lock or its place in the queue.
    pub(super) fn lose(&mut self, id: ParticipantId, reason: LossReason) {
        self.end_unasked(id, Loss { reason, failure: None });
    }

    /// Ends a request because its znode is gone.
    pub(crate) fn lose_znode(&mut self, id: ParticipantId) {
        self.with_request(id, |request, commons| request.lose_znode(commons));
    }

    /// Ends a request because its hold ended at `ended`.
    pub(crate) fn lose_hold(&mut self, id: ParticipantId, ended: Moment) {
        self.with_request(id, |request, commons| request.lose_hold(commons, ended));
    }

    /// Ends the requests whose hold has ended.
    pub(super) fn check_owners(&mut self) {
        for (owner, ended) in self.commons.lease.ended_owners(self.commons.now) {
            self.lose_hold(owner, ended);
        }
    }

    pub(super) fn end_unasked(&mut self, id: ParticipantId, loss: Loss) {
        let Some(contender) = self.contenders.get(&id) else { return };
        let Loss { reason, failure } = loss;
        let how = match contender.is_owner() {
            true => Ending::Lost(reason),
            false => Ending::Dropped(reason, failure),
        };
        self.end_request(id, how);
    }

    /// Ends a request and forgets it. Returns the id of the deletion of its znode, if it has one.
    fn end_request(&mut self, id: ParticipantId, how: Ending) -> Option<ParticipantId> {
        // The release comes first, because nobody else may get the lock while this request still holds it.
        self.commons.lease.release(id);
        let contender = self.contenders.remove(&id)?;
        contender.end(&mut self.commons, how);
        // If a create is under way, its outcome will find no request, so its znode will be deleted. After a
        // lost create, the directory is swept anyway.
        let removal = contender.znode().cloned().map(|znode| self.remove(znode));
        contender.forget_all_watches(&mut self.commons);
        removal
    }
}

impl Contender {
    fn end(&self, commons: &mut Commons, how: Ending) {
        commons.alarms.clear(self.id);
        commons.calls.withdraw_create(self.id);
        commons.own_queues.end_joining(&self.spec.dir, self.id);
        commons.listings.forget(&self.spec.dir, self.id);
        let (place, time) = (self.place(), commons.now.since(self.since));
        self.report(commons, RequestEvent::Ended { place, how, time });
    }

    /// Ends the request's watches. The deletion of its own znode ends the watch on that znode.
    fn forget_all_watches(&self, commons: &mut Commons) {
        if let Some(znode) = self.znode() {
            commons.watchers.remove(znode, self.id);
        }
        for watched in self.watched.iter().chain(self.ahead.second()) {
            commons.unwatch(watched, self.id);
        }
    }
}

impl Asked {
    /// Cleans up after a call whose request has ended: removes what the call left, or may have left, on the server,
    /// except for directories. Returns the znode to delete, if there is one.
    pub(super) fn nobody_waits(
        self,
        id: ParticipantId,
        commons: &mut Commons,
        outcome: ZkResult<Reply>,
    ) -> Option<ZNodePath> {
        match self {
            Asked::Create(spec) | Asked::Enqueue(spec, _) => match created_path(outcome) {
                Ok(path) => return Some(ZNodePath::from_server(path)),
                Err(error) => {
                    commons.note_failed_create(&spec.dir, error);
                    if may_have_created(error) {
                        commons.sweep(&spec.dir);
                    }
                }
            },
            Asked::FoundAgain(znode) => return Some(znode),
            Asked::Count(path, _)
            | Asked::Data(WatchedRead { path, .. })
            | Asked::Existence(WatchedRead { path, .. })
            | Asked::WatchOwn(path, _)
            | Asked::WatchSecond(path) => commons.remove_stray_watch(&path, id),
            Asked::Peers(prefix) => _ = commons.peers_looked_for.remove(&prefix),
            Asked::Parent(_) | Asked::CheckOwn(_) => {}
        }
        None
    }
}

fn created_path(outcome: ZkResult<Reply>) -> ZkResult<String> {
    match outcome? {
        Reply::Created { path, .. } => Ok(path),
        Reply::Enqueued(enqueued) => Ok(enqueued.path),
        _ => Err(ZkError::MarshallingError),
    }
}
