//! [`Window`]: the bound on the calls that are under way at once.
//!
//! A connection delivers in order, so a keep-alive waits for every call that was sent before it. Without a bound,
//! a program that starts requests faster than the server answers them would lose its locks, and its memory.
//!
//! | calls | sent while |
//! |---|---|
//! | what proves the session ([`Priority::Session`]) | always |
//! | what keeps or releases a lock ([`Priority::Owner`]) | less than two windows are under way |
//! | all others, and what the application asks for ([`Priority::Other`]) | less than one window is under way |
//!
//! The others wait here, those of owners and releases first, otherwise in their order. So the second window belongs
//! to them alone, and a release never waits for the requests that are yet to join. A request that ends before
//! its create was sent takes that back: nothing is sent, and nothing is left to delete.

use std::collections::BTreeMap;

use super::border::CallId;
use super::border::ParticipantId;
use super::calls::Pending;
use crate::client::port::Call;
use crate::time::Priority;

/// The bytes in one window: more than 512 calls with long paths have. A link of 10 Mbit/s transmits them in a
/// fifth of a second. A longer call is sent when less than that is under way.
const BYTES: usize = 256 * 1024;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Window {
    /// The calls in one window.
    size: usize,
    /// The calls under way that count, and their bytes.
    calls: usize,
    bytes: usize,
    /// In the order in which they are to be sent.
    waiting: BTreeMap<(Priority, CallId), (Call, Pending)>,
    /// The waiting creates, by the request that joins with them.
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

    /// A call is sent.
    pub(super) fn enter(&mut self, call: &Call, priority: Priority) {
        if counts(priority) {
            self.calls += 1;
            self.bytes = self.bytes.saturating_add(call.bytes());
        }
    }

    /// A call is under way no longer.
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

    /// Takes back the create of a request, if it waits, and returns it.
    pub(super) fn withdraw_create(&mut self, request: ParticipantId) -> Option<Call> {
        let key = self.creates.remove(&request)?;
        self.waiting.remove(&key).map(|(create, _)| create)
    }

    /// Takes all that waits.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = (CallId, Pending)> + use<> {
        self.creates.clear();
        std::mem::take(&mut self.waiting).into_iter().map(|((_, id), (_, pending))| (id, pending))
    }
}

/// Returns whether a call counts, and waits for room.
fn counts(priority: Priority) -> bool {
    matches!(priority, Priority::Owner | Priority::Other)
}
