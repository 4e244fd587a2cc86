//! [`Window`]: the bound on the calls that are under way at once.
//!
//! A connection delivers in order, so a keep-alive waits for every call that was sent before it. Without a bound,
//! a program that starts requests faster than the server answers them would lose its locks and run out of memory.
//!
//! | calls | sent while |
//! |---|---|
//! | what proves the session ([`Priority::Session`]) | always |
//! | what keeps or releases a lock, and sweeps ([`Priority::Owner`]) | the calls under way fill less than two windows |
//! | all others, and what the application asks for ([`Priority::Other`]) | they fill less than one window |
//!
//! A call that may not be sent yet waits here. Calls that keep or release a lock go first; calls of equal priority go
//! in the order in which they were made. The second window is reserved for calls that keep or release a lock, so a
//! release never waits for requests that are yet to join. If a request ends before its create was sent, the
//! create is withdrawn: nothing is sent, and nothing is left to delete.

use std::collections::BTreeMap;

use super::border::CallId;
use super::border::ParticipantId;
use super::calls::Pending;
use crate::client::Call;
use crate::time::Priority;

/// The bytes in one window. 512 calls with long paths need less, and a link of 10 Mbit/s transmits this much in a fifth
/// of a second. A single call may be longer than a window: it is sent as soon as the calls under way leave
/// any room.
const BYTES: usize = 256 * 1024;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Window {
    /// The number of calls in one window.
    size: usize,
    /// The number of calls under way, except those that prove the session.
    calls: usize,
    /// The bytes of these calls.
    bytes: usize,
    /// The waiting calls, in the order in which they must be sent.
    waiting: BTreeMap<(Priority, CallId), (Call, Pending)>,
    /// The waiting creates, each by the request whose znode it creates.
    creates: BTreeMap<ParticipantId, (Priority, CallId)>,
}

impl Window {
    pub(super) fn new(size: usize) -> Window {
        Window { size, calls: 0, bytes: 0, waiting: BTreeMap::new(), creates: BTreeMap::new() }
    }

    /// Returns whether a call may be sent now.
    pub(super) fn has_room(&self, priority: Priority) -> bool {
        let windows = if priority == Priority::Owner { 2 } else { 1 };
        !counts(priority) || (self.calls < windows * self.size && self.bytes < windows * BYTES)
    }

    /// Notes that a call is sent.
    pub(super) fn enter(&mut self, call: &Call, priority: Priority) {
        if counts(priority) {
            self.calls += 1;
            self.bytes = self.bytes.saturating_add(call.bytes());
        }
    }

    /// Notes that a call is no longer under way.
    pub(super) fn leave(&mut self, call: &Call, priority: Priority) {
        if counts(priority) {
            self.calls = self.calls.saturating_sub(1);
            self.bytes = self.bytes.saturating_sub(call.bytes());
        }
    }

    pub(super) fn keep(&mut self, id: CallId, call: Call, priority: Priority, pending: Pending) {
        if let Some(request) = pending.creates_for() {
            self.creates.insert(request, (priority, id));
        }
        self.waiting.insert((priority, id), (call, pending));
    }

    /// Takes the next waiting call that may be sent now.
    pub(super) fn take_next(&mut self) -> Option<(CallId, Call, Priority, Pending)> {
        let (&(priority, id), _) = self.waiting.first_key_value()?;
        if !self.has_room(priority) {
            return None;
        }
        let (call, pending) = self.waiting.remove(&(priority, id))?;
        if let Some(request) = pending.creates_for() {
            self.creates.remove(&request);
        }
        Some((id, call, priority, pending))
    }

    /// Removes the waiting create of a request, if there is one, and returns it.
    pub(super) fn withdraw_create(&mut self, request: ParticipantId) -> Option<Call> {
        let key = self.creates.remove(&request)?;
        self.waiting.remove(&key).map(|(create, _)| create)
    }

    /// Removes all waiting calls, and returns them.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = (CallId, Pending)> + use<> {
        self.creates.clear();
        std::mem::take(&mut self.waiting).into_iter().map(|((_, id), (_, pending))| (id, pending))
    }
}

/// Returns whether calls of this priority take up room in the window, and have to wait for it.
fn counts(priority: Priority) -> bool {
    matches!(priority, Priority::Owner | Priority::Other)
}
