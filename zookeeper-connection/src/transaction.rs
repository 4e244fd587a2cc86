//! Transactions: operations of which all take effect, or none.

use crate::error::ZkError;
use crate::{Acl, CreateMode, Stat};

/// An operation of a [transaction](crate::Call::Multi).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Creates a znode.
    Create {
        /// Its full path, without the sequence number if `mode` is sequential.
        path: String,
        /// Its data.
        data: Vec<u8>,
        /// Its ACL.
        acl: Vec<Acl>,
        /// The kind of the znode.
        mode: CreateMode,
    },
    /// Deletes a znode.
    Delete {
        /// Its full path.
        path: String,
        /// Only at this version of its data.
        version: Option<i32>,
    },
    /// Replaces the data of a znode.
    SetData {
        /// Its full path.
        path: String,
        /// The new data.
        data: Vec<u8>,
        /// Only at this version of its data.
        version: Option<i32>,
    },
    /// Changes nothing, and fails if the znode does not exist.
    Check {
        /// Its full path.
        path: String,
        /// Fails at any other version of its data, too.
        version: Option<i32>,
    },
}

impl Op {
    /// Returns the path of the znode, without the sequence number if the operation creates one.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Op::Create { path, .. }
            | Op::Delete { path, .. }
            | Op::SetData { path, .. }
            | Op::Check { path, .. } => path,
        }
    }

    /// The bytes of the path and of the data.
    pub fn bytes(&self) -> usize {
        let data = match self {
            Op::Create { data, .. } | Op::SetData { data, .. } => data.len(),
            Op::Delete { .. } | Op::Check { .. } => 0,
        };
        self.path().len() + data
    }
}

/// The outcome of an operation of a successful transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpOutcome {
    /// The full path of the new znode.
    Created(String),
    /// The znode is deleted.
    Deleted,
    /// The znode's metadata after the change of its data.
    DataSet(Stat),
    /// The check has passed.
    Checked,
}

/// The server's answer to a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Transacted {
    /// All operations took effect, with these outcomes in order.
    Committed(Vec<OpOutcome>),
    /// None took effect, because of this one.
    Failed {
        /// Its position, from zero.
        position: usize,
        /// Its error.
        error: ZkError,
    },
}
