//! What must hold for everything that the crate exports.

#[test]
fn glob_import_shadows_no_name_of_the_prelude() {
    #[allow(unused_imports, reason = "that this compiles is the test")]
    use crate::*;
    let parsed: Result<u8, std::num::ParseIntError> = "1".parse();
    assert_eq!(parsed, Ok(1));
}

#[test]
fn shared_types_are_send_and_sync() {
    fn assert_send_sync<T: Send + Sync>() {}
    assert_send_sync::<crate::Session>();
    assert_send_sync::<crate::WriteLock>();
    assert_send_sync::<crate::BlockingWriteLock>();
    assert_send_sync::<crate::LockGuard>();
    assert_send_sync::<crate::ReadWriteLock>();
    assert_send_sync::<crate::ReadGuard>();
    assert_send_sync::<crate::WriteGuard>();
    assert_send_sync::<crate::DowngradeError>();
    assert_send_sync::<crate::ProtocolSupport>();
    assert_send_sync::<crate::RecoverableZooKeeper>();
    assert_send_sync::<crate::MultiLock>();
    assert_send_sync::<crate::MultiGuard>();
    assert_send_sync::<crate::ReentrantLock>();
    assert_send_sync::<crate::NamedLocks>();
    assert_send_sync::<crate::CohortLock>();
    assert_send_sync::<crate::CohortGuard>();
    assert_send_sync::<crate::Semaphore>();
    assert_send_sync::<crate::RunOnce>();
    assert_send_sync::<crate::Permit>();
    assert_send_sync::<crate::LockDirectory>();
    assert_send_sync::<crate::LeaderWatch>();
    assert_send_sync::<crate::QueueWatch>();
    assert_send_sync::<crate::NodeTracker>();
    assert_send_sync::<crate::Revoker>();
    assert_send_sync::<crate::Candidate>();
    assert_send_sync::<crate::Leadership>();
    assert_send_sync::<crate::LockError>();
}
