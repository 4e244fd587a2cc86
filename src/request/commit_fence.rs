//! [`CommitFence`]: keeps a transaction whose reply was lost from taking effect after a later transaction.
//!
//! Every transaction of an owner checks the data version of the owner's znode. A transaction whose reply
//! was lost may still reach the leader late: a paused server forwards it once it resumes. So the owner raises
//! the version before its next transaction. From then on, the check in the lost transaction fails.

use std::sync::atomic::{AtomicI32, Ordering};

/// The data version of an owner's znode. The version only grows; a new znode has version 0.
#[derive(Debug, Default)]
pub(crate) struct CommitFence {
    /// The newest known version.
    version: AtomicI32,
    /// The lowest version that the next transaction may check. A transaction at a lower version may have been lost.
    least: AtomicI32,
}

impl CommitFence {
    /// Returns the version that the next transaction checks.
    ///
    /// # Errors
    /// The current version, if it must be raised first.
    pub(crate) fn version(&self) -> Result<i32, i32> {
        let version = self.version.load(Ordering::Acquire);
        if version < self.least.load(Ordering::Acquire) { Err(version) } else { Ok(version) }
    }

    /// Records a version that the znode has reached.
    pub(crate) fn advance_to(&self, version: i32) {
        self.version.fetch_max(version, Ordering::AcqRel);
    }

    /// Requires a higher version for later transactions, because a transaction at this version was lost.
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
        assert_eq!(fence.version(), Ok(2), "only an older transaction was lost");
        fence.close(2);
        assert_eq!(fence.version(), Err(2));
    }
}
