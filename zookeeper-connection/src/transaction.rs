//! Transactions: operations that take effect either all together or not at all.

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
        /// The version that its data must have; `None` for any.
        version: Option<i32>,
    },
    /// Replaces the data of a znode.
    SetData {
        /// Its full path.
        path: String,
        /// The new data.
        data: Vec<u8>,
        /// The version that its data must have; `None` for any.
        version: Option<i32>,
    },
    /// Checks that a znode exists and has this version. Changes nothing.
    Check {
        /// Its full path.
        path: String,
        /// The version that its data must have; `None` for any.
        version: Option<i32>,
    },
}

impl Op {
    /// Returns the path of the znode.
    ///
    /// If the operation creates a sequential znode, the path lacks the sequence number.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Op::Create { path, .. }
            | Op::Delete { path, .. }
            | Op::SetData { path, .. }
            | Op::Check { path, .. } => path,
        }
    }

    /// Returns the length of the path and the data in bytes.
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
    /// The znode at this full path was created.
    Created(String),
    /// The znode was deleted.
    Deleted,
    /// The data was replaced. This is the znode's new metadata.
    DataSet(Stat),
    /// The check passed.
    Checked,
}

/// The server's answer to a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Transacted {
    /// All operations took effect, with these outcomes in order.
    Committed(Vec<OpOutcome>),
    /// No operation took effect, because one failed.
    Failed {
        /// The position of the failed operation, counted from zero.
        position: usize,
        /// The error of the failed operation.
        error: ZkError,
    },
}
