//! [`MissingParents`]: the creation of a znode together with its missing parents.

use std::sync::Arc;

use crate::client::{Acl, Ask, Call, CreateMode, Stat};
use crate::error::{ZkError, ZkResult};
use crate::recipe::path::ZNodePath;

/// The znodes that are still to be created. If somebody deletes a parent meanwhile, one more step is needed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MissingParents {
    /// The znode itself, which is created last.
    path: ZNodePath,
    /// Its missing parents. The last one is created next.
    above: Vec<ZNodePath>,
    mode: CreateMode,
    acl: Arc<[Acl]>,
}

impl MissingParents {
    /// Begins to create a znode without data, preceded by its missing parents, which are persistent. On a server
    /// without containers, the znode becomes persistent if `mode` asks for a container.
    pub(crate) fn of(path: &ZNodePath, acl: &Arc<[Acl]>, mode: CreateMode) -> MissingParents {
        MissingParents { path: path.clone(), above: Vec::new(), mode, acl: Arc::clone(acl) }
    }

    /// Returns the next call.
    pub(crate) fn call(&self) -> Ask<(String, Option<Stat>)> {
        let mode = if self.above.is_empty() { self.mode } else { CreateMode::Persistent };
        Call::create(self.next(), [], Arc::clone(&self.acl), mode)
    }

    /// Returns the path of the znode that is created next.
    pub(crate) fn next(&self) -> &ZNodePath {
        self.above.last().unwrap_or(&self.path)
    }

    /// Handles the outcome of the call that [`call`](MissingParents::call) returned. Returns `true` if
    /// nothing is left to do.
    ///
    /// # Errors
    /// `NoNode` if not even the root exists, because the chroot is missing; otherwise the error of the call.
    pub(crate) fn answered<T>(&mut self, outcome: ZkResult<T>) -> ZkResult<bool> {
        match outcome {
            Ok(_) | Err(ZkError::NodeExists) => Ok(self.above.pop().is_none()),
            Err(ZkError::Unimplemented) if self.above.is_empty() && self.mode == CreateMode::Container => {
                self.mode = CreateMode::Persistent;
                Ok(false)
            }
            Err(ZkError::NoNode) => {
                let parent = self.next().parent().ok_or(ZkError::NoNode)?;
                self.above.push(parent);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The path and the mode of the next call.
    fn next(missing: &MissingParents) -> (String, CreateMode) {
        match missing.call().call {
            Call::Create { path, mode, .. } => (path.to_string(), mode),
            call => panic!("{call:?}"),
        }
    }

    fn missing(mode: CreateMode) -> MissingParents {
        MissingParents::of(&ZNodePath::parse("/a/b").unwrap(), &Arc::from([]), mode)
    }

    #[test]
    fn parents_are_created_first_and_persistent() {
        let mut creation = missing(CreateMode::Container);
        assert_eq!(next(&creation), ("/a/b".to_owned(), CreateMode::Container));
        assert_eq!(creation.answered::<()>(Err(ZkError::NoNode)), Ok(false));
        assert_eq!(next(&creation), ("/a".to_owned(), CreateMode::Persistent));
        assert_eq!(creation.answered::<()>(Err(ZkError::NodeExists)), Ok(false));
        assert_eq!(next(&creation), ("/a/b".to_owned(), CreateMode::Container));
        assert_eq!(creation.answered(Ok(())), Ok(true));
    }

    #[test]
    fn container_becomes_persistent_on_a_server_without_containers() {
        let refused = || Err::<(), _>(ZkError::Unimplemented);
        let mut creation = missing(CreateMode::Container);
        assert_eq!(creation.answered(refused()), Ok(false));
        assert_eq!(next(&creation), ("/a/b".to_owned(), CreateMode::Persistent));
        assert_eq!(creation.answered(refused()), Err(ZkError::Unimplemented));

        let mut creation = missing(CreateMode::Container);
        assert_eq!(creation.answered::<()>(Err(ZkError::NoNode)), Ok(false));
        assert_eq!(creation.answered(refused()), Err(ZkError::Unimplemented), "a parent is no container");
    }

    #[test]
    fn root_is_never_created() {
        let mut creation = missing(CreateMode::Persistent);
        assert_eq!(creation.answered::<()>(Err(ZkError::NoNode)), Ok(false));
        assert_eq!(next(&creation).0, "/a");
        assert_eq!(creation.answered::<()>(Err(ZkError::NoNode)), Err(ZkError::NoNode));
    }
}
