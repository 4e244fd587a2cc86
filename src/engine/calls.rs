//! The calls that are under way, and the continuation of each: [`Pending`].

use std::sync::Arc;

use super::contender::{Look, RequestSpec};
use super::lease::{ConnectionNumber, Sending};
use super::life::Contact;
use super::listing::Listing;
use super::parents::MissingParents;
use super::{Effect, Engine, ParticipantId};
use crate::client::{Ask, Call, KEEP_ALIVE_PATH, OTHER_KEEP_ALIVE_PATH, Reply, Stat};
use crate::error::{LossReason, ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::time::Priority;

/// The number of a call on its session; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CallId(pub(super) u64);

/// A call that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct UnderWay {
    call: Call,
    priority: Priority,
    sending: Sending,
    pub(super) pending: Pending,
}

/// The continuation of a call. Those who have asked for it may have ended meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pending {
    /// The lease takes up the answer, and nobody else.
    Nothing,
    /// The first request of a proof.
    Touched,
    /// With the path that was written to.
    Wrote(AfterWrite, &'static str),
    Created(ParticipantId, Arc<RequestSpec>),
    Enqueued(ParticipantId, Arc<RequestSpec>, ConnectionNumber),
    MadeParent(ParticipantId, MissingParents),
    Swept(ParticipantId, ConnectionNumber),
    FoundAgain(ParticipantId, ZNodePath, Arc<Listing>),
    Listed {
        dir: ZNodePath,
        connection: ConnectionNumber,
        readers: Vec<ParticipantId>,
    },
    Counted(ParticipantId, ZNodePath, ConnectionNumber),
    ListedPeers(ParticipantId, ZNodePath),
    Looked(Look),
    LookedAtUnreadable(Look),
    EarlyWatchOnOwn(ParticipantId, ZNodePath, ConnectionNumber),
    EarlyWatchOnSecond(ParticipantId, ZNodePath),
    CheckedOwn(ParticipantId, ZNodePath),
    Removed(ParticipantId),
    /// With the path on which the call leaves a watch.
    ReadFor(ParticipantId, Option<ZNodePath>),
    /// The one that has asked takes up the outcome.
    Asked(ParticipantId),
}

/// The continuation of a write that changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum AfterWrite {
    /// It was the first of the two requests of a proof.
    ProofTouched,
    Proof,
    Sweep(ParticipantId, ConnectionNumber),
    Asked(ParticipantId),
}

/// A write that changes nothing.
pub(super) fn keep_alive(path: &'static str) -> Ask<Stat> {
    Call::set_data(path, [], Some(i32::MAX))
}

/// Returns whether the request was handled, even if only to refuse it.
fn was_answered<T>(result: &ZkResult<T>) -> bool {
    result.as_ref().err().is_none_or(|error| error.is_answer())
}

/// Returns whether the leader has handled the write.
fn was_answered_by_leader<T>(result: &ZkResult<T>) -> bool {
    result.as_ref().err().is_none_or(|error| error.is_leaders_answer())
}

/// Returns whether a create that has failed so may have taken effect. An unreadable reply counts as lost.
/// So does the end of the session, which may have ended for this process alone, and any error that may be
/// temporary: a search costs less than a znode that is left.
pub(super) fn may_have_created(error: ZkError) -> bool {
    error.is_transient() || matches!(error, ZkError::SessionExpired | ZkError::MarshallingError)
}

impl Engine {
    /// The outcome of a call that an effect has asked for. One that comes a second time is ignored.
    pub(crate) fn replied(&mut self, id: CallId, outcome: ZkResult<Reply>) {
        let Some(UnderWay { call, priority, sending, pending }) = self.calls.remove(&id) else { return };
        self.window.leave(&call, priority);
        self.send_waiting();
        let outcome = outcome.and_then(|reply| match call.is_answered_by(&reply) {
            true => Ok(reply),
            false => Err(ZkError::MarshallingError),
        });
        self.budget.answered(&call, &outcome);
        self.answered(call.is_write(), sending, outcome.as_ref().map(drop).map_err(|error| *error));
        let children = outcome.as_ref().ok().and_then(Reply::listed).cloned();
        self.take_up(id, pending, outcome);
        if let Some((dir, children)) = call.listed_dir().zip(children) {
            self.remove_strays(&ZNodePath::from_server(Arc::clone(dir)), &children);
        }
    }

    /// Makes a call for somebody else. [`Effect::Answered`] follows.
    pub(crate) fn ask(&mut self, id: ParticipantId, call: Call) {
        if self.life.has_ended() {
            return self.effects.push_back(Effect::Answered(id, Err(ZkError::SessionExpired)));
        }
        self.submit(Ask { call, read: Ok }, Priority::Other, Pending::Asked(id));
    }

    /// As [`ask`](Engine::ask), a write that changes nothing. A read that follows on the same connection shows
    /// every write that was answered before, to any client: a read alone may be answered by a server that lags
    /// behind. A write whose reply was lost may still [take effect](super::sweep) after both.
    pub(crate) fn ask_to_write_nothing(&mut self, id: ParticipantId) {
        if self.life.has_ended() {
            return self.effects.push_back(Effect::Answered(id, Err(ZkError::SessionExpired)));
        }
        self.write_nothing(AfterWrite::Asked(id));
    }

    /// Makes a call, as soon as the [window](super::window) has room. On a session that has ended, the only
    /// calls left are deletions of znodes that outlive it here.
    pub(super) fn submit<T>(&mut self, ask: Ask<T>, priority: Priority, pending: Pending) -> CallId {
        let id = CallId(self.next_number());
        if self.life.has_ended() && !self.server_may_keep_session() {
            self.refused.push_back((id, pending, ZkError::SessionExpired));
        } else if let Err(error) = self.budget.take(&ask.call) {
            self.refused.push_back((id, pending, error));
        } else if self.window.has_room(priority) {
            self.send(id, ask.call, priority, pending);
        } else {
            self.window.keep(id, ask.call, priority, pending);
        }
        id
    }

    fn send(&mut self, id: CallId, call: Call, priority: Priority, pending: Pending) {
        let sending = self.lease.sending(self.now);
        self.window.enter(&call, priority);
        self.calls.insert(id, UnderWay { call: call.clone(), priority, sending, pending });
        self.effects.push_back(Effect::Submit(id, call, priority));
    }

    fn send_waiting(&mut self) {
        while let Some((id, call, priority, pending)) = self.window.take_next() {
            self.send(id, call, priority, pending);
        }
    }

    /// Ends the calls that wait to be sent, with the session. A create needs no outcome: the end of the session
    /// ends its request, which has left nothing.
    pub(super) fn refuse_waiting(&mut self) {
        let refused = self.window.take_all().filter(|(_, pending)| pending.creates_for().is_none());
        self.refused.extend(refused.map(|(id, pending)| (id, pending, ZkError::SessionExpired)));
    }

    /// Writes what changes nothing.
    pub(super) fn write_nothing(&mut self, after: AfterWrite) {
        self.write_to(after, KEEP_ALIVE_PATH);
    }

    fn write_to(&mut self, after: AfterWrite, path: &'static str) {
        let priority = match after {
            AfterWrite::ProofTouched | AfterWrite::Proof => Priority::Session,
            AfterWrite::Sweep(..) => Priority::Owner,
            AfterWrite::Asked(_) => Priority::Other,
        };
        self.submit(keep_alive(path), priority, Pending::Wrote(after, path));
    }

    /// Takes up the outcome of a call. An answer to a read helps to extend the lease, one to a write
    /// extends it.
    fn answered(&mut self, is_write: bool, sending: Sending, result: ZkResult<()>) {
        // A denial of a write counts as a read, since any server may have given it.
        if is_write && was_answered_by_leader(&result) {
            let is_of_this_contact = self.lease.counts(sending);
            if self.lease.write_answered(sending, self.now) {
                self.check_owners();
            }
            if is_of_this_contact && self.contact == Contact::Regained {
                self.contact = Contact::Present;
                self.everybody_looks_again();
            }
        } else if was_answered(&result) {
            self.lease.read_answered(sending, self.now);
        }
        if result == Err(ZkError::SessionExpired) {
            self.end(LossReason::SessionExpired);
        }
    }

    /// Continues with what waits for the outcome of a call.
    pub(super) fn take_up(&mut self, call: CallId, pending: Pending, outcome: ZkResult<Reply>) {
        match pending {
            Pending::Nothing => {}
            // Any answer shows a server; the ACL of the znode is no concern of this.
            Pending::Touched if was_answered(&outcome) => self.touched(Ok(())),
            Pending::Touched => self.touched(outcome.map(drop)),
            Pending::Wrote(after, path) => self.wrote(after, path, outcome.map(drop)),
            Pending::Created(id, spec) => {
                let created = outcome.and_then(Reply::created);
                self.go_on_with(id, |engine| engine.created(id, &spec, created));
            }
            Pending::Enqueued(id, spec, connection) => {
                let enqueued = outcome.and_then(Reply::enqueued);
                self.go_on_with(id, |engine| engine.enqueued(id, &spec, connection, enqueued));
            }
            Pending::MadeParent(id, missing) => {
                self.go_on_with(id, |engine| engine.made_parent(id, missing, outcome));
            }
            Pending::Swept(id, connection) => self.swept(id, connection, outcome.and_then(Reply::children)),
            Pending::FoundAgain(id, znode, listing) => {
                let found = outcome.and_then(Reply::found);
                self.go_on_with(id, |engine| engine.found_again(id, znode, &listing, found));
            }
            Pending::Listed { dir, connection, readers } => {
                let listing = Listing::new(connection, outcome.and_then(Reply::children));
                self.listed(&dir, listing, &readers);
            }
            Pending::Counted(id, dir, connection) => {
                let listing = Listing::new(connection, outcome.and_then(Reply::children));
                self.go_on_with(id, |engine| engine.counted(id, &dir, &listing));
            }
            Pending::ListedPeers(id, _) => {
                let children = outcome.and_then(Reply::children).unwrap_or_default();
                self.warn_of_peers(id, &children);
            }
            Pending::Looked(look) => {
                let outcome = outcome.and_then(Reply::data);
                self.go_on_with(look.id, |engine| engine.looked(look, outcome));
            }
            Pending::LookedAtUnreadable(look) => {
                let sight = super::Sight::of_exists(outcome.and_then(Reply::found));
                self.go_on_with(look.id, |engine| engine.watched(&look, sight));
            }
            Pending::EarlyWatchOnOwn(id, path, connection) => {
                self.early_watch_on_own_set(id, &path, call, connection, outcome.and_then(Reply::data));
            }
            Pending::EarlyWatchOnSecond(id, path) => {
                self.early_watch_on_second_set(id, &path, outcome.and_then(Reply::data));
            }
            Pending::CheckedOwn(id, path) => {
                self.checked_own(id, &path, &outcome.and_then(Reply::found));
            }
            Pending::Removed(id) => self.removal_attempted(id, outcome.and_then(Reply::done)),
            Pending::ReadFor(id, watched) => self.read_for_tracked(id, watched, outcome),
            Pending::Asked(id) => self.effects.push_back(Effect::Answered(id, outcome)),
        }
    }

    fn wrote(&mut self, after: AfterWrite, path: &'static str, result: ZkResult<()>) {
        let is_leaders = was_answered_by_leader(&result);
        // It was denied, perhaps by another server than the leader.
        if !is_leaders && was_answered(&result) && path == KEEP_ALIVE_PATH {
            return self.write_to(after, OTHER_KEEP_ALIVE_PATH);
        }
        let result = if is_leaders { Ok(()) } else { result };
        match after {
            AfterWrite::ProofTouched => self.touched(result),
            AfterWrite::Proof => self.end_proof(result),
            AfterWrite::Sweep(id, connection) => self.list_for_sweep(id, connection, result),
            AfterWrite::Asked(id) => {
                self.effects.push_back(Effect::Answered(id, result.map(|()| Reply::Done)));
            }
        }
    }
}

impl Pending {
    /// The request that joins with the call.
    pub(super) fn creates_for(&self) -> Option<ParticipantId> {
        match self {
            Pending::Created(id, _) | Pending::Enqueued(id, ..) => Some(*id),
            _ => None,
        }
    }
}
