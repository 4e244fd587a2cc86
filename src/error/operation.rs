//! [`Operation`]: the operation that an error is about, and what a client must be permitted for it.

/// An operation: its name in error messages, and the permission that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    pub(crate) permission: &'static str,
    pub(crate) checked: Checked,
}

/// The znode whose ACL the servers check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Checked {
    /// The znode that the operation is about.
    Itself,
    /// Its parent, whose list of children the operation changes.
    Parent,
    /// One of the two: the operation is the application's own.
    Either,
}

impl Operation {
    pub(crate) const CONNECT: Operation = Operation::on_itself("connect to", "sufficient");
    pub(crate) const CREATE: Operation = Operation::in_parent("create", "CREATE");
    pub(crate) const CREATE_IN: Operation = Operation::on_itself("create a znode in", "CREATE");
    pub(crate) const CREATE_CHROOT: Operation = Operation::on_itself("create the chroot below", "CREATE");
    pub(crate) const DELETE: Operation = Operation::in_parent("delete", "DELETE");
    pub(crate) const READ: Operation = Operation::on_itself("read", "READ");
    pub(crate) const SET_DATA: Operation = Operation::on_itself("set the data of", "WRITE");
    pub(crate) const CHECK: Operation = Operation::on_itself("check", "READ");
    pub(crate) const COMMIT: Operation = Operation::on_itself("commit under", "WRITE");
    pub(crate) const REAP: Operation = Operation::in_parent("reap", "DELETE");
    pub(crate) const LIST: Operation = Operation::on_itself("list the children of", "READ");
    pub(crate) const WATCH: Operation = Operation::on_itself("watch", "READ");
    /// About the directory, in which a request is created.
    pub(crate) const LOCK: Operation = Operation::on_itself("lock", "CREATE");
    pub(crate) const UNLOCK: Operation = Operation::in_parent("unlock", "DELETE");
    pub(crate) const DOWNGRADE: Operation = Operation::in_parent("downgrade", "CREATE");
    pub(crate) const LOOK_IN_DOWNGRADE: Operation = Operation::on_itself("downgrade", "READ");
    pub(crate) const REVOKE: Operation = Operation::on_itself("revoke", "READ and WRITE");
    pub(crate) const FENCE: Operation = Operation::on_itself("read the fencing token of", "READ");

    const fn on_itself(name: &'static str, permission: &'static str) -> Operation {
        Operation { name, permission, checked: Checked::Itself }
    }

    const fn in_parent(name: &'static str, permission: &'static str) -> Operation {
        Operation { name, permission, checked: Checked::Parent }
    }

    /// An operation of the application.
    pub(super) const fn of_application(name: &'static str) -> Operation {
        Operation { name, permission: "sufficient", checked: Checked::Either }
    }
}

/// Returns the path of the parent of a znode. The root is its own parent.
pub(super) fn parent_of(path: &str) -> &str {
    match path.rfind('/') {
        Some(slash) if slash > 0 => &path[..slash],
        _ => "/",
    }
}
