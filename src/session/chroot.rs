//! Creates the chroot of a connect string before the session is used.

use std::sync::Arc;

use crate::client::{Acl, Call, CreateMode, Reply};
use crate::engine::MissingParents;
use crate::error::{LockError, Operation, Result, ZkError, ZkResult};
use crate::recipe::path::ZNodePath;

/// Creates the chroot and its missing parents as persistent znodes. `call` makes calls whose paths start at the
/// servers' root.
///
/// Other clients may create and delete the same znodes at the same time.
///
/// # Errors
/// `AccessDenied` with the path of the parent, or the error of the call that failed.
pub(super) fn create(chroot: &ZNodePath, call: impl Fn(Call) -> ZkResult<Reply>) -> Result<()> {
    let exists = |path: &str| {
        let found = Call::exists(path, false);
        call(found.call).and_then(found.read).map(|stat| stat.is_some())
    };
    let failed = |path: &str, error| {
        let parent = ZNodePath::from_server(path).parent().unwrap_or_else(ZNodePath::root);
        LockError::client(Operation::CREATE_CHROOT, parent, error)
    };
    // Checked first because a server checks the permission to create before it checks whether the znode exists.
    if exists(chroot.as_str()).map_err(|error| failed(chroot.as_str(), error))? {
        return Ok(());
    }
    let acl: Arc<[Acl]> = Acl::open_unsafe().into();
    let mut missing = MissingParents::of(chroot, &acl, CreateMode::Persistent);
    loop {
        let create = missing.call();
        let path: Arc<str> = create.call.path().unwrap_or(chroot.as_str()).into();
        let created = match call(create.call).and_then(create.read) {
            // Another client may have created the znode in the meantime.
            Err(ZkError::NoAuth) if exists(&path).unwrap_or(false) => Err(ZkError::NodeExists),
            created => created,
        };
        if missing.answered(created).map_err(|error| failed(&path, error))? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::time::Duration;

    use crate::client::Verbs;
    use crate::fake::{SimOperation, SimulatedZooKeeper};

    const LONG: Duration = Duration::from_secs(30);

    fn chroot() -> ZNodePath {
        ZNodePath::parse("/prod/app/a").unwrap()
    }

    #[test]
    fn chroot_is_created_with_its_parents_and_persists() {
        let server = SimulatedZooKeeper::new();
        let client = server.connect(LONG);
        create(&chroot(), |call| client.make(call)).unwrap();
        client.expire();
        assert!(server.exists("/prod/app/a"));
    }

    #[test]
    fn chroot_that_exists_costs_no_write() {
        let server = SimulatedZooKeeper::new();
        server.create("/prod", b"");
        server.create("/prod/app", b"");
        server.create("/prod/app/a", b"data of others");
        let client = server.connect(LONG);
        create(&chroot(), |call| client.make(call)).unwrap();
        assert_eq!(server.calls(SimOperation::Create), 0);
    }

    #[test]
    fn parent_below_which_nothing_may_be_created_is_named_in_the_error() {
        let denied = |call: Call| match call {
            Call::Exists { .. } => Ok(Reply::Found(None)),
            Call::Create { path, .. } if &*path == "/prod/app/a" => Err(ZkError::NoNode),
            _ => Err(ZkError::NoAuth),
        };
        let error = create(&chroot(), denied).unwrap_err();
        assert!(error.is_access_denied(), "{error:?}");
        assert_eq!(error.path(), Some("/prod"));
        assert!(error.to_string().starts_with("create the chroot below '/prod': access denied"), "{error}");
    }

    /// The client has no CREATE permission above the chroot.
    #[test]
    fn chroot_that_another_client_creates_meanwhile_is_used() {
        let is_created = Cell::new(false);
        let call = |call: Call| match call {
            Call::Exists { .. } => Ok(Reply::Found(is_created.get().then(Default::default))),
            _ => {
                is_created.set(true);
                Err(ZkError::NoAuth)
            }
        };
        create(&chroot(), call).unwrap();
    }

    #[test]
    fn parents_that_another_client_deletes_meanwhile_are_created_again() {
        let server = SimulatedZooKeeper::new();
        let client = server.connect(LONG);
        let deletions = RefCell::new(vec!["/prod/app", "/prod"]);
        let call = |call: Call| {
            let is_of = call.path().map(str::to_owned);
            let reply = client.make(call);
            let next = deletions.borrow().last().copied();
            if next.is_some() && is_of.as_deref() == next && reply.is_ok() {
                server.delete(deletions.borrow_mut().pop().unwrap_or_default());
            }
            reply
        };
        create(&chroot(), call).unwrap();
        assert!(server.exists("/prod/app/a"));
        assert!(deletions.borrow().is_empty());
    }

    #[test]
    fn lost_reply_is_reported() {
        let error = create(&chroot(), |_| Err(ZkError::ConnectionLoss)).unwrap_err();
        assert!(error.is_connection_loss(), "{error:?}");
    }
}
