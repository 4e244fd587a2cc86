//! [`Call`], and the log of all calls, with which tests count round trips.

use super::faults::SimOperation;
use crate::error::ZkResult;

/// A call in the log of [`SimulatedZooKeeper::log`](super::SimulatedZooKeeper::log).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Call {
    /// The session of the calling client.
    pub session: i64,
    /// The operation.
    pub operation: SimOperation,
    /// The path that the caller passed. A sequential create's path has no sequence number; a close's path is
    /// empty.
    pub path: String,
    /// Whether the call asked for a watch.
    pub watch: bool,
    /// Whether the server executed the call, even if it returned an error. This tells a lost request from a
    /// lost reply.
    pub executed: bool,
    /// What the caller received, or `None` while the call is in progress.
    pub outcome: Option<ZkResult<()>>,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    calls: Vec<Call>,
    /// The number of the first call in `calls`. Earlier calls were cleared, perhaps before they
    /// returned.
    first: usize,
}

impl Log {
    /// Adds a call and returns its number.
    pub(super) fn begin(&mut self, call: Call) -> usize {
        self.calls.push(call);
        self.first + self.calls.len() - 1
    }

    pub(super) fn record_execution(&mut self, number: usize) {
        if let Some(call) = self.call(number) {
            call.executed = true;
        }
    }

    pub(super) fn record_outcome(&mut self, number: usize, outcome: ZkResult<()>) {
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
