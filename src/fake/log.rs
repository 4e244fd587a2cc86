//! [`Call`] and the log of all calls, from which tests count round trips.

use super::faults::SimOperation;
use crate::client::ZkResult;

/// One call that a client made, as [`SimulatedZooKeeper::log`](super::SimulatedZooKeeper::log) returns it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Call {
    /// The calling client's session.
    pub session: i64,
    /// What was called.
    pub operation: SimOperation,
    /// The path as the caller gave it: of a sequential create without the number, of a close empty.
    pub path: String,
    /// Whether the call asked for a watch.
    pub watch: bool,
    /// Whether the server executed it, be it with an error for an answer. Of a call that failed it tells a lost request
    /// from a lost reply.
    pub executed: bool,
    /// What the caller got, or `None` while the call has not returned.
    pub outcome: Option<ZkResult<()>>,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    calls: Vec<Call>,
    /// The number of the first call in `calls`: those before it were cleared away, perhaps before they returned.
    first: usize,
}

impl Log {
    /// Adds a call and returns its number.
    pub(super) fn begin(&mut self, call: Call) -> usize {
        self.calls.push(call);
        self.first + self.calls.len() - 1
    }

    pub(super) fn executed(&mut self, number: usize) {
        if let Some(call) = self.call(number) {
            call.executed = true;
        }
    }

    pub(super) fn returned(&mut self, number: usize, outcome: ZkResult<()>) {
        if let Some(call) = self.call(number) {
            call.outcome = Some(outcome);
        }
    }

    pub(super) fn calls(&self) -> &[Call] {
        &self.calls
    }

    pub(super) fn clear(&mut self) {
        self.first += self.calls.len();
        self.calls.clear();
    }

    fn call(&mut self, number: usize) -> Option<&mut Call> {
        self.calls.get_mut(number.checked_sub(self.first)?)
    }
}
