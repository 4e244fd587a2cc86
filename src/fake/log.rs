//! [`Call`] and the log of all calls. Tests count round trips in it.

use super::faults::SimOperation;
use crate::error::ZkResult;

/// A client's call, as returned by [`SimulatedZooKeeper::log`](super::SimulatedZooKeeper::log).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Call {
    /// The calling client's session.
    pub session: i64,
    /// The operation.
    pub operation: SimOperation,
    /// The path as given by the caller: without the number for a sequential create, empty for a
    /// close.
    pub path: String,
    /// Whether the call asked for a watch.
    pub watch: bool,
    /// Whether the server executed it, even if with an error. Distinguishes a lost request from a
    /// lost reply.
    pub executed: bool,
    /// What the caller received, or `None` while the call is running.
    pub outcome: Option<ZkResult<()>>,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    calls: Vec<Call>,
    /// The number of the first call in `calls`. Earlier ones were cleared, perhaps before they
    /// returned.
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
