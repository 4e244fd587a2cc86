//! The faults that a test has scheduled for later calls of a client.

use std::collections::{BTreeMap, VecDeque};

use crate::error::ZkError;

/// The kind of a call.
///
/// A [`CreateAndList`](crate::client::Call::CreateAndList) counts as a `Create` and a `GetChildren`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SimOperation {
    /// `create`
    Create,
    /// `delete`
    Delete,
    /// `exists`
    Exists,
    /// `get_children`
    GetChildren,
    /// `get_data`
    GetData,
    /// `set_data`
    SetData,
    /// `multi`, logged with the path of its first operation.
    Transact,
    /// `close`
    Close,
}

impl SimOperation {
    /// Returns whether the operation changes znodes, and is therefore executed by the leader. `Close`, after which a
    /// client reads nothing, does not count.
    pub(super) fn is_write(self) -> bool {
        use SimOperation::{Create, Delete, SetData, Transact};
        matches!(self, Create | Delete | SetData | Transact)
    }
}

/// Whether a fault hits a call before or after the call's effect on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Effect {
    /// Before the effect: the call fails without an effect. A swallowed request reaches the server later, if the
    /// network [releases](super::SimulatedClient::release) it.
    Before,
    /// After the effect: the server executes the request, and the reply is lost. A swallowed reply arrives later, if
    /// the network [releases](super::SimulatedClient::release) it.
    After,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) when: Effect,
    pub(super) kind: FaultKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum FaultKind {
    /// Only the call fails.
    Fail(ZkError),
    /// The connection is lost, and the call fails.
    Cut,
    /// The network starts to swallow packets, beginning with this call's request or its reply.
    Swallow,
    /// The call fails, and a server holds its request back.
    HoldBack,
}

/// A closure of the test that runs within a call, while the simulation's mutex is not held.
pub(super) type StopPoint = Box<dyn FnOnce() + Send>;

/// The scheduled faults of one client.
#[derive(Default)]
pub(super) struct Script(BTreeMap<SimOperation, Plan>);

/// The scheduled faults of one operation.
#[derive(Default)]
pub(super) struct Plan {
    /// The number of calls that have reached the server so far, with or without a fault.
    calls: u64,
    /// Keyed by the number of the call, starting at 1.
    faults: BTreeMap<u64, Fault>,
    pub(super) before: VecDeque<StopPoint>,
    pub(super) after: VecDeque<StopPoint>,
}

impl Script {
    pub(super) fn plan(&mut self, operation: SimOperation) -> &mut Plan {
        self.0.entry(operation).or_default()
    }

    /// The number of faults and closures that no call has used yet.
    pub(super) fn pending(&self) -> usize {
        self.0.values().map(|plan| plan.faults.len() + plan.before.len() + plan.after.len()).sum()
    }
}

impl Plan {
    /// Schedules the fault for the first future call that has none yet.
    pub(super) fn fail_next(&mut self, fault: Fault) {
        let mut number = self.calls + 1;
        while self.faults.contains_key(&number) {
            number += 1;
        }
        self.faults.insert(number, fault);
    }

    /// Schedules the fault for the `nth` future call, in place of an earlier fault for that call.
    pub(super) fn fail_nth(&mut self, nth: u64, fault: Fault) {
        self.faults.insert(self.calls + nth.max(1), fault);
    }

    /// Counts a call and returns the fault scheduled for it.
    pub(super) fn fault_of_this_call(&mut self) -> Option<Fault> {
        self.calls += 1;
        self.faults.remove(&self.calls)
    }
}
