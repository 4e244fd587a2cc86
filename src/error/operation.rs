//! [`Operation`]: the operation that an error is about.

/// An operation: its name in error messages, and the permission that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    pub(crate) permission: &'static str,
}

impl Operation {
    pub(crate) const CONNECT: Operation = Operation { name: "connect to", permission: "sufficient" };
    pub(crate) const CREATE: Operation = Operation { name: "create", permission: "CREATE" };
    pub(crate) const CREATE_CHROOT: Operation =
        Operation { name: "create the chroot below", permission: "CREATE" };
    pub(crate) const DELETE: Operation = Operation { name: "delete", permission: "DELETE" };
    pub(crate) const READ: Operation = Operation { name: "read", permission: "READ" };
    pub(crate) const SET_DATA: Operation = Operation { name: "set the data of", permission: "WRITE" };
    pub(crate) const CHECK: Operation = Operation { name: "check", permission: "READ" };
    pub(crate) const COMMIT: Operation = Operation { name: "commit under", permission: "WRITE" };
    pub(crate) const REAP: Operation = Operation { name: "reap", permission: "DELETE" };
    pub(crate) const LIST: Operation = Operation { name: "list the children of", permission: "READ" };
    pub(crate) const WATCH: Operation = Operation { name: "watch", permission: "READ" };
    pub(crate) const LOCK: Operation = Operation { name: "lock", permission: "CREATE" };
    pub(crate) const UNLOCK: Operation = Operation { name: "unlock", permission: "DELETE" };
    pub(crate) const DOWNGRADE: Operation = Operation { name: "downgrade", permission: "CREATE" };
    pub(crate) const LOOK_IN_DOWNGRADE: Operation = Operation { name: "downgrade", permission: "READ" };
    pub(crate) const REVOKE: Operation = Operation { name: "revoke", permission: "READ and WRITE" };
    pub(crate) const FENCE: Operation = Operation { name: "read the fencing token of", permission: "READ" };
}
