//! [`Downgrade`]: replaces an owner's request with a request for less access, without letting another request
//! acquire the lock in between.
//!
//! The new znode has the same sequence number as the owner's znode, and is created before the owner's znode
//! is deleted. So the requests behind them see at least one of the two at any time. Origin: downgrading in
//! Curator's `InterProcessReadWriteLock`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Observer, Request, RequestSpec};
use crate::client::{Call, CreateMode};
use crate::engine::{ParticipantId, Place};
use crate::error::{Operation, Result, ZkError};
use crate::logging;
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;

/// An attempt to downgrade. Dropping this before the downgrade is complete undoes the attempt.
///
/// Each attempt creates a znode with a name of its own, because the create of an earlier attempt may still take effect.
pub(crate) struct Downgrade {
    owner: Arc<Request>,
    owners_znode: ZNodePath,
    spec: RequestSpec,
    znode: ZNodePath,
    /// The new znode may exist, and belongs to no request yet.
    may_be_left: AtomicBool,
    /// The id of the new request. The id is pinned: while there may be something to undo, the session must
    /// not count as idle, nor the new znode as a stray.
    id: ParticipantId,
}

impl Downgrade {
    /// Chooses a name for the new request's znode. Sends nothing.
    ///
    /// # Errors
    /// `NotOwner` if the request does not hold the lock; `SessionLost` in a forked child.
    pub(crate) fn begin(
        owner: &Arc<Request>,
        owners_znode: &ZNodePath,
        access: Access,
    ) -> Result<Arc<Downgrade>> {
        owner.check_process(Operation::DOWNGRADE)?;
        let spec = &*owner.seat.spec;
        let is_owner = owner.core.place(&owner.seat) == Some(Place::Owner);
        let number = spec.access.number_in(owners_znode.name()).filter(|_| is_owner);
        let number = number.ok_or_else(|| owner.not_owner(Operation::DOWNGRADE))?;
        let id = owner.core.new_id();
        let znode = spec.dir.child(&(owner.core.znode_prefix(access, id) + number));
        let spec = RequestSpec { access, ..spec.clone() };
        owner.core.pin(id);
        let (owner, owners_znode) = (Arc::clone(owner), owners_znode.clone());
        let may_be_left = AtomicBool::new(false);
        Ok(Arc::new(Downgrade { owner, owners_znode, spec, znode, may_be_left, id }))
    }

    pub(crate) fn znode(&self) -> &ZNodePath {
        &self.znode
    }

    /// Creates the new znode, then checks that the owner's znode still exists. If it does, no other request
    /// has acquired the lock in between. Returns the owner's fencing token.
    ///
    /// Blocks until the server has answered.
    pub(crate) fn prepare(self: &Arc<Self>) -> Result<i64> {
        match self.create_and_look() {
            Ok(Some(fencing_token)) => Ok(fencing_token),
            // The owner's znode is gone, perhaps with its directory, and the owner has not noticed yet.
            Ok(None) | Err((_, ZkError::NoNode)) => {
                self.owner.znode_is_gone();
                Err(self.owner.not_owner(Operation::DOWNGRADE))
            }
            Err((operation, error)) => Err(self.owner.core.failure(operation, &self.owners_znode, error)),
        }
    }

    fn create_and_look(self: &Arc<Self>) -> std::result::Result<Option<i64>, (Operation, ZkError)> {
        let RequestSpec { data, acl, .. } = &self.spec;
        let core = &self.owner.core;
        let connection = core.snapshot().connection;
        let create = Call::create(&self.znode, Arc::clone(data), Arc::clone(acl), CreateMode::Ephemeral);
        self.may_be_left.store(true, Ordering::Relaxed);
        // The call holds a handle to this downgrade, so the downgrade is undone only once the call's outcome
        // is known.
        if let Err(error) = core.begin_ask(create, Arc::clone(self)).wait(core) {
            core.create_failed(&self.spec.dir, error);
            return Err((Operation::DOWNGRADE, error));
        }
        let failed = |error| (Operation::LOOK_IN_DOWNGRADE, error);
        let seen = core.ask(Call::exists(&self.owners_znode, false)).map_err(failed)?;
        if core.snapshot().connection != connection {
            // Contact was lost in between, so a server that lags behind may have answered the `exists` call.
            return Err(failed(ZkError::ConnectionLoss));
        }
        Ok(seen.map(|stat| stat.czxid))
    }

    /// Makes the new request. The new request owns the lock at once, with the lease and the fencing token of
    /// the owner's request. The caller then withdraws the owner's request.
    ///
    /// # Errors
    /// `NotOwner` if the lock was lost meanwhile.
    pub(crate) fn complete(&self, fencing_token: i64, observer: Arc<dyn Observer>) -> Result<Arc<Request>> {
        let core = Arc::clone(&self.owner.core);
        let request = Request::on(core, self.id, self.spec.clone(), observer);
        // The new znode's own token would be too large: the waiters' znodes are older than the new znode, but
        // the waiters will own the lock later and must have larger tokens.
        let _ = request.seat.fencing_token.set(fencing_token);
        if !request.core.start_as_owner(&request.seat, &self.znode, self.owner.seat.id) {
            return Err(self.owner.not_owner(Operation::DOWNGRADE));
        }
        self.may_be_left.store(false, Ordering::Relaxed);
        logging::info!("downgraded {} to {}", self.owners_znode, self.znode);
        Ok(request)
    }
}

impl Drop for Downgrade {
    fn drop(&mut self) {
        if !self.owner.is_of_this_process() {
            return;
        }
        let core = &self.owner.core;
        if *self.may_be_left.get_mut() {
            core.remove(self.znode.clone());
        }
        core.unpin(self.id);
    }
}
