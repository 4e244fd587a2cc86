//! [`Attempt`]: one attempt at a call, and what it makes of an answer that an attempt before it may have caused.

use std::sync::Arc;

use zookeeper::{Acl, CreateMode, Stat, ZkError, ZkResult};

use crate::error::{LockError, Operation, Result};
use crate::recipe::path::ZNodePath;
use crate::recipe::queue::find_own;
use crate::session::Core;

/// One attempt, on a worker.
#[derive(Clone)]
pub(super) struct Attempt {
    pub(super) core: Arc<Core>,
    pub(super) operation: Operation,
    pub(super) path: ZNodePath,
    /// The reply to an attempt before this was lost, so that it may have taken effect.
    pub(super) is_repetition: bool,
}

impl Attempt {
    pub(super) fn create(&self, data: &[u8], acl: &[Acl], mode: CreateMode) -> Result<String> {
        match self.core.write(|client| client.create(self.path.as_str(), data, acl, mode)) {
            Err(ZkError::NodeExists) if self.is_repetition => self.find_created(data, mode),
            answer => self.answered(answer),
        }
    }

    /// Finds out whose znode is in the way of a create.
    fn find_created(&self, data: &[u8], mode: CreateMode) -> Result<String> {
        let (found, stat) = match self.read_after_write() {
            Ok(found) => found,
            Err(ZkError::NoNode) => return Err(self.outcome_unknown(ZkError::NodeExists)),
            Err(error) => return Err(self.not_readable(error)),
        };
        let is_of_this_kind = (stat.ephemeral_owner != 0) == (mode == CreateMode::Ephemeral);
        if found == data && is_of_this_kind {
            log::debug!("found {} again, whose creation was not confirmed", self.path);
            return Ok(self.path.to_string());
        }
        // Data that were changed tell nothing of those that it was created with.
        let is_as_created = stat.version == 0;
        if is_as_created {
            Err(self.error(ZkError::NodeExists))
        } else {
            Err(self.outcome_unknown(ZkError::NodeExists))
        }
    }

    /// Creates a znode whose name, up to the number, belongs to this call alone.
    pub(super) fn create_sequential(&self, data: &[u8], acl: &[Acl], mode: CreateMode) -> Result<String> {
        if let Some(found) = self.find_created_sequential()? {
            log::debug!("found {found} again, whose creation was not confirmed");
            return Ok(found.to_string());
        }
        self.answered(self.core.write(|client| client.create(self.path.as_str(), data, acl, mode)))
    }

    fn find_created_sequential(&self) -> Result<Option<ZNodePath>> {
        if !self.is_repetition {
            return Ok(None);
        }
        let dir = self.path.parent().unwrap_or_else(ZNodePath::root);
        let children = self.core.list_after_write(&dir);
        let children = children.map_err(|error| LockError::client(Operation::LIST, &dir, error))?;
        Ok(find_own(self.path.name(), &children).map(|name| dir.child(name)))
    }

    pub(super) fn delete(&self, version: Option<i32>) -> Result<()> {
        match self.core.write(|client| client.delete(self.path.as_str(), version)) {
            Err(ZkError::NoNode) if self.is_repetition => Ok(()),
            answer => self.answered(answer),
        }
    }

    pub(super) fn set_data(&self, data: &[u8], version: Option<i32>) -> Result<Stat> {
        let answer = self.core.write(|client| client.set_data(self.path.as_str(), data, version));
        match (answer, version) {
            (Err(ZkError::BadVersion), Some(version)) if self.is_repetition => {
                self.find_written(data, version)
            }
            (answer, _) => self.answered(answer),
        }
    }

    /// Finds out whose data have replaced those of this version.
    fn find_written(&self, data: &[u8], version: i32) -> Result<Stat> {
        let (found, stat) = self.read_after_write().map_err(|error| self.not_readable(error))?;
        let is_the_next = stat.version == version.wrapping_add(1);
        match (is_the_next, found == data) {
            (true, true) => Ok(stat),
            (true, false) => Err(self.error(ZkError::BadVersion)),
            (false, _) => Err(self.outcome_unknown(ZkError::BadVersion)),
        }
    }

    /// Reads the znode as it is after everything that this session has sent before.
    fn read_after_write(&self) -> ZkResult<(Vec<u8>, Stat)> {
        self.core.prove_life()?;
        self.core.read(|client| client.get_data(self.path.as_str(), false))
    }

    pub(super) fn answered<T>(&self, answer: ZkResult<T>) -> Result<T> {
        answer.map_err(|error| self.error(error))
    }

    fn error(&self, error: ZkError) -> LockError {
        LockError::client(self.operation, &self.path, error)
    }

    fn not_readable(&self, error: ZkError) -> LockError {
        LockError::client(Operation::READ, &self.path, error)
    }

    fn outcome_unknown(&self, source: ZkError) -> LockError {
        LockError::OutcomeUnknown { operation: self.operation.name, path: self.path.to_string(), source }
    }
}
