//! [`CommitFence`]: keeps a transaction whose reply was lost from taking effect after a later one.
//!
//! Each transaction of an owner checks the data version of the owner's znode. If its reply was lost, a transaction may
//! reach the leader late, because a server that was paused passes on what it has received. So the owner raises the
//! version before its next transaction. From then on, the check of the lost transaction fails.

use std::sync::atomic::{AtomicI32, Ordering};

/// The data versions of an owner's znode, which only grow. A new znode has version 0.
#[derive(Debug, Default)]
pub(crate) struct CommitFence {
    /// The newest version that is known.
    version: AtomicI32,
    /// The lowest version that the next transaction may check. A transaction at a lower version may have been lost.
    least: AtomicI32,
}

impl CommitFence {
    /// Returns the version that the next transaction checks.
    ///
    /// # Errors
    /// The present version, if it must be raised first.
    pub(crate) fn version(&self) -> Result<i32, i32> {
        let version = self.version.load(Ordering::Acquire);
        if version < self.least.load(Ordering::Acquire) { Err(version) } else { Ok(version) }
    }

    /// Records a version that the znode has reached.
    pub(crate) fn advance_to(&self, version: i32) {
        self.version.fetch_max(version, Ordering::AcqRel);
    }

    /// Makes the next transactions require a later version, because a transaction at this version was lost.
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
