//! [`Calls`]: the calls that are under way, and for whom each was made ([`Pending`]).

use std::collections::{BTreeMap, VecDeque};

use super::border::{CallId, Effect, ParticipantId, Settings};
use super::budget::Budget;
use super::commons::Commons;
use super::contender::Asked;
use super::lease::{ConnectionNumber, Sending};
use super::proof::ProofCall;
use super::sweep::SweepCall;
use super::window::Window;
use crate::client::{Ask, Call, KEEP_ALIVE_PATH, OTHER_KEEP_ALIVE_PATH, Reply, Stat};
use crate::error::{ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::time::Priority;

/// The calls of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Calls {
    under_way: BTreeMap<CallId, UnderWay>,
    /// Holds the calls that wait until others are answered.
    pub(super) window: Window,
    pub(super) budget: Budget,
    /// The calls that will never be sent, because the session has ended or has too many znodes.
    refused: VecDeque<(CallId, Pending, ZkError)>,
}

/// A call that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct UnderWay {
    pub(super) call: Call,
    pub(super) priority: Priority,
    pub(super) sending: Sending,
    pub(super) pending: Pending,
}

/// For whom a call was made. A participant may have ended meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pending {
    /// Only the lease uses the answer.
    Nobody,
    Proof(ProofCall),
    Request(ParticipantId, Asked),
    Removal(ParticipantId),
    /// The look after an answer, on this connection, that the znode to delete does not exist.
    LookAfterRemoval(ParticipantId, ConnectionNumber),
    Sweep(ParticipantId, SweepCall),
    /// A listing of this directory for these requests.
    Listing {
        dir: ZNodePath,
        connection: ConnectionNumber,
        readers: Vec<ParticipantId>,
    },
    /// A tracker, with the path on which the call leaves a watch, if it leaves one.
    Tracked(ParticipantId, Option<ZNodePath>),
    /// Code outside the engine.
    Other(ParticipantId),
}

impl Pending {
    /// Returns the request whose znode the call creates.
    pub(super) fn creates_for(&self) -> Option<ParticipantId> {
        match self {
            Pending::Request(id, asked) => asked.creates().then_some(*id),
            _ => None,
        }
    }
}

/// Returns a write that changes nothing.
fn keep_alive(path: &'static str) -> Ask<Stat> {
    Call::set_data(path, [], Some(i32::MAX))
}

/// Returns whether a call is a write that changes nothing.
pub(super) fn is_keep_alive(call: &Call) -> bool {
    let is_path = |path: &str| path == KEEP_ALIVE_PATH || path == OTHER_KEEP_ALIVE_PATH;
    matches!(call, Call::SetData { path, .. } if is_path(path))
}

/// Returns whether a server has handled the call, even if only to refuse it.
pub(super) fn was_answered<T>(result: &ZkResult<T>) -> bool {
    result.as_ref().err().is_none_or(|error| error.is_answer())
}

/// Returns whether the leader has handled the write, even if only to refuse it.
pub(super) fn was_answered_by_leader<T>(result: &ZkResult<T>) -> bool {
    result.as_ref().err().is_none_or(|error| error.is_leaders_answer())
}

/// Returns whether a create that has failed with this error may have taken effect. An unreadable reply counts
/// as a lost one. So does the end of the session, because the session may have ended in this process alone.
/// Any error that may be temporary counts, too, because a search costs less than a leftover znode.
pub(super) fn may_have_created(error: ZkError) -> bool {
    error.is_transient() || matches!(error, ZkError::SessionExpired | ZkError::MarshallingError)
}

impl Calls {
    pub(super) fn new(settings: &Settings) -> Calls {
        Calls {
            under_way: BTreeMap::new(),
            window: Window::new(settings.window),
            budget: Budget::new(settings.jute_max_buffer, settings.chroot.as_ref().map_or(0, String::len)),
            refused: VecDeque::new(),
        }
    }

    /// Takes back the create of a request that has ended, if the create was not sent yet.
    pub(super) fn withdraw_create(&mut self, request: ParticipantId) {
        if let Some(create) = self.window.withdraw_create(request) {
            self.budget.give_back(&create);
        }
    }

    /// Refuses the calls that wait to be sent, because the session has ended. The create of a request needs no
    /// outcome: the end of the session ends the request, and a create that was never sent leaves nothing.
    pub(super) fn refuse_waiting(&mut self) {
        let refused = self.window.take_all().filter(|(_, pending)| pending.creates_for().is_none());
        self.refused.extend(refused.map(|(id, pending)| (id, pending, ZkError::SessionExpired)));
    }

    /// Takes the next call that will never be sent, with its error.
    pub(super) fn take_refused(&mut self) -> Option<(CallId, Pending, ZkError)> {
        self.refused.pop_front()
    }

    pub(super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }
}

impl Commons {
    /// Makes a call as soon as the [window](super::window) has room. Refuses the call if the [budget](super::budget)
    /// has no room for its znodes, or if the session has ended.
    pub(super) fn submit<T>(&mut self, ask: Ask<T>, priority: Priority, pending: Pending) -> CallId {
        let id = CallId(self.next_number());
        if self.life.has_ended() {
            self.calls.refused.push_back((id, pending, ZkError::SessionExpired));
        } else if let Err(error) = self.calls.budget.take(&ask.call) {
            self.calls.refused.push_back((id, pending, error));
        } else if self.calls.window.has_room(priority) {
            self.send(id, ask.call, priority, pending);
        } else {
            self.calls.window.keep(id, ask.call, priority, pending);
        }
        id
    }

    /// Makes a write that changes nothing. Its reply is `Done` if the leader has answered.
    pub(super) fn write_nothing(&mut self, priority: Priority, pending: Pending) {
        self.submit(keep_alive(KEEP_ALIVE_PATH), priority, pending);
    }

    /// Handles the outcome of a write that changes nothing, and returns what to pass on. If the write was denied, a
    /// server other than the leader may have denied it. If somebody waits for the outcome, the write is then made once
    /// more, on the other path, and nothing is passed on yet.
    pub(super) fn on_keep_alive_reply(
        &mut self,
        answered: UnderWay,
        outcome: ZkResult<Reply>,
    ) -> Option<(Pending, ZkResult<Reply>)> {
        let UnderWay { call, priority, pending, .. } = answered;
        if was_answered_by_leader(&outcome) {
            return Some((pending, Ok(Reply::Done)));
        }
        let is_denied = was_answered(&outcome) && call.path() == Some(KEEP_ALIVE_PATH);
        if is_denied && pending != Pending::Nobody {
            self.submit(keep_alive(OTHER_KEEP_ALIVE_PATH), priority, pending);
            return None;
        }
        Some((pending, outcome))
    }

    /// Removes a call that was answered, and sends the waiting calls for which there is now room.
    pub(super) fn take_answered(&mut self, id: CallId) -> Option<UnderWay> {
        let answered = self.calls.under_way.remove(&id)?;
        self.calls.window.leave(&answered.call, answered.priority);
        while let Some((id, call, priority, pending)) = self.calls.window.take_next() {
            self.send(id, call, priority, pending);
        }
        Some(answered)
    }

    fn send(&mut self, id: CallId, call: Call, priority: Priority, pending: Pending) {
        let sending = self.lease.sending(self.now);
        self.calls.window.enter(&call, priority);
        self.calls.under_way.insert(id, UnderWay { call: call.clone(), priority, sending, pending });
        self.effects.push_back(Effect::Submit(id, call, priority));
    }
}
