//! [`CommitFence`]: keeps a transaction whose reply was lost from taking effect after a later one.
//!
//! Each transaction of an owner checks the version of the data of the own znode. A transaction whose reply
//! was lost may reach the leader late, because a server that was paused passes on what it has received. So the
//! owner raises the version before its next transaction: from then on the check of the lost one fails.

use std::sync::atomic::{AtomicI32, Ordering};

/// The versions of the data of an owner's znode, which only grow. Zero is that of a new znode.
#[derive(Debug, Default)]
pub(crate) struct CommitFence {
    /// The newest version known.
    version: AtomicI32,
    /// The versions below it are those at which the outcome of a transaction is unknown.
    least: AtomicI32,
}

impl CommitFence {
    /// Returns the version that the next transaction checks. `Err` with the present version if that must be
    /// raised first.
    pub(crate) fn version(&self) -> Result<i32, i32> {
        let version = self.version.load(Ordering::Acquire);
        if version < self.least.load(Ordering::Acquire) { Err(version) } else { Ok(version) }
    }

    /// Records a version that the znode has reached.
    pub(crate) fn advance_to(&self, version: i32) {
        self.version.fetch_max(version, Ordering::AcqRel);
    }

    /// Requires a later version from the next transaction on, because one at this version was lost.
    pub(crate) fn close(&self, version: i32) {
        self.least.fetch_max(version.saturating_add(1), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_must_be_raised_after_a_loss_and_never_falls() {
        let fence = CommitFence::default();
        assert_eq!(fence.version(), Ok(0));
        fence.close(0);
        assert_eq!(fence.version(), Err(0));
        fence.advance_to(2);
        assert_eq!(fence.version(), Ok(2));
        fence.advance_to(1);
        fence.close(0);
        assert_eq!(fence.version(), Ok(2), "an older one was lost");
        fence.close(2);
        assert_eq!(fence.version(), Err(2));
    }
}
