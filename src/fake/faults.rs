//! What a test asks to go wrong in the next calls of a client, kept until the call comes.

use std::collections::{BTreeMap, VecDeque};

use crate::client::ZkError;

/// The calls of [`ZooKeeperClient`](crate::client::ZooKeeperClient), one for one;
/// [`create_and_list`](crate::client::ZooKeeperClient::create_and_list) is a `Create` and a `GetChildren`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// `close`
    Close,
}

/// On which side of a call's effect on the server a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Before the effect: the request is lost, and the server never sees it.
    Before,
    /// After the effect: the server executes the request and the reply is lost.
    After,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) when: Effect,
    pub(super) kind: FaultKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum FaultKind {
    /// The call alone fails.
    Fail(ZkError),
    /// The connection is lost, and the call with it.
    Cut,
    /// From here on the network swallows: the call's request, or its reply.
    Swallow,
}

/// A closure of the test that runs within a call, while no lock of the simulation is held.
pub(super) type StopPoint = Box<dyn FnOnce() + Send>;

/// What will happen to one client's calls.
#[derive(Default)]
pub(super) struct Script(BTreeMap<SimOperation, Plan>);

/// What will happen to the calls of one operation.
#[derive(Default)]
pub(super) struct Plan {
    /// How many calls have asked for their fault.
    calls: u64,
    /// By the number of the call, the first being 1.
    faults: BTreeMap<u64, Fault>,
    pub(super) before: VecDeque<StopPoint>,
    pub(super) after: VecDeque<StopPoint>,
}

impl Script {
    pub(super) fn plan(&mut self, operation: SimOperation) -> &mut Plan {
        self.0.entry(operation).or_default()
    }

    /// The faults and stop points that no call has met yet.
    pub(super) fn pending(&self) -> usize {
        self.0.values().map(|plan| plan.faults.len() + plan.before.len() + plan.after.len()).sum()
    }
}

impl Plan {
    /// Sets the fault of the first coming call that has none.
    pub(super) fn fail_next(&mut self, fault: Fault) {
        let mut number = self.calls + 1;
        while self.faults.contains_key(&number) {
            number += 1;
        }
        self.faults.insert(number, fault);
    }

    /// Sets the fault of the `nth` coming call, in place of one that it has.
    pub(super) fn fail_nth(&mut self, nth: u64, fault: Fault) {
        self.faults.insert(self.calls + nth.max(1), fault);
    }

    /// Counts a call and takes its fault.
    pub(super) fn fault_of_this_call(&mut self) -> Option<Fault> {
        self.calls += 1;
        self.faults.remove(&self.calls)
    }
}
