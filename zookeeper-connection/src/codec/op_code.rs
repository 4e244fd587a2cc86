//! [`OpCode`]: the operations of the protocol, and their numbers.

use crate::{Call, CreateMode, Op};

/// An operation that a client requests, with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpCode {
    /// Replaces `Create2` for servers before 3.5, which do not know `Create2`. The reply has no `Stat`. Later servers
    /// use this number in the reply to a `Create2` within a multi.
    Create = 1,
    Delete = 2,
    Exists = 3,
    GetData = 4,
    SetData = 5,
    GetChildren = 8,
    Ping = 11,
    /// Occurs only within a multi.
    Check = 13,
    Multi = 14,
    Create2 = 15,
    RemoveWatches = 18,
    CreateContainer = 19,
    Auth = 100,
    SetWatches = 101,
    Sasl = 102,
    Close = -11,
}

impl OpCode {
    pub const ALL: [OpCode; 16] = [
        OpCode::Create,
        OpCode::Delete,
        OpCode::Exists,
        OpCode::GetData,
        OpCode::SetData,
        OpCode::GetChildren,
        OpCode::Ping,
        OpCode::Check,
        OpCode::Multi,
        OpCode::Create2,
        OpCode::RemoveWatches,
        OpCode::CreateContainer,
        OpCode::Auth,
        OpCode::SetWatches,
        OpCode::Sasl,
        OpCode::Close,
    ];

    /// Returns the operation of a call, for servers from 3.5 on. For a `CreateAndList`, that is its create.
    pub fn of_call(call: &Call) -> OpCode {
        match call {
            Call::Create { mode, .. } => OpCode::of_create(*mode),
            Call::CreateAndList { .. } => OpCode::of_create(CreateMode::EphemeralSequential),
            Call::Delete { .. } => OpCode::Delete,
            Call::Exists { .. } => OpCode::Exists,
            Call::GetData { .. } => OpCode::GetData,
            Call::GetChildren { .. } => OpCode::GetChildren,
            Call::SetData { .. } => OpCode::SetData,
            Call::Multi(_) => OpCode::Multi,
        }
    }

    pub(super) fn of_step(step: &Op) -> OpCode {
        match step {
            Op::Create { mode, .. } => OpCode::of_create(*mode),
            Op::Delete { .. } => OpCode::Delete,
            Op::SetData { .. } => OpCode::SetData,
            Op::Check { .. } => OpCode::Check,
        }
    }

    fn of_create(mode: CreateMode) -> OpCode {
        if mode == CreateMode::Container { OpCode::CreateContainer } else { OpCode::Create2 }
    }

    pub const fn number(self) -> i32 {
        self as i32
    }

    pub fn from_number(number: i32) -> Option<OpCode> {
        OpCode::ALL.into_iter().find(|operation| operation.number() == number)
    }
}
