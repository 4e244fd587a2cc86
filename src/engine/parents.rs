//! [`MissingParents`]: creates a znode together with its missing parents.

use std::sync::Arc;

use crate::client::{Acl, Ask, Call, CreateMode, Stat};
use crate::error::{ZkError, ZkResult};
use crate::recipe::path::ZNodePath;

/// The znodes that are still to be created. A parent that is deleted repeatedly prolongs the work by
/// one step per deletion.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MissingParents {
    /// From the znode itself up to the parent to be created next. Never empty.
    path: ZNodePath,
    above: Vec<ZNodePath>,
    mode: CreateMode,
    acl: Arc<[Acl]>,
}

impl MissingParents {
    /// A znode without data, and its parents, which persist. A server without containers creates a
    /// persistent znode in their place.
    pub(crate) fn of(path: &ZNodePath, acl: &Arc<[Acl]>, mode: CreateMode) -> MissingParents {
        MissingParents { path: path.clone(), above: Vec::new(), mode, acl: Arc::clone(acl) }
    }

    /// The next call.
    pub(crate) fn call(&self) -> Ask<(String, Option<Stat>)> {
        let (path, mode) = match self.above.last() {
            None => (&self.path, self.mode),
            Some(parent) => (parent, CreateMode::Persistent),
        };
        Call::create(path, [], Arc::clone(&self.acl), mode)
    }

    /// Takes up the outcome of that call. Returns whether nothing is left to do.
    ///
    /// # Errors
    /// `NoNode` where not even the root exists, as with a chroot that is missing; or that of the
    /// call.
    pub(crate) fn answered<T>(&mut self, outcome: ZkResult<T>) -> ZkResult<bool> {
        match outcome {
            Ok(_) | Err(ZkError::NodeExists) => Ok(self.above.pop().is_none()),
            Err(ZkError::Unimplemented) if self.above.is_empty() && self.mode == CreateMode::Container => {
                self.mode = CreateMode::Persistent;
                Ok(false)
            }
            Err(ZkError::NoNode) => {
                let parent = self.above.last().unwrap_or(&self.path).parent().ok_or(ZkError::NoNode)?;
                self.above.push(parent);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
