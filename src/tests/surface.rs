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
    assert_send_sync::<crate::locks::ReadWriteLock>();
    assert_send_sync::<crate::locks::ReadGuard>();
    assert_send_sync::<crate::locks::WriteGuard>();
    assert_send_sync::<crate::locks::DowngradeError>();
    assert_send_sync::<crate::ProtocolSupport>();
    assert_send_sync::<crate::data::RecoverableZooKeeper>();
    assert_send_sync::<crate::locks::MultiLock>();
    assert_send_sync::<crate::locks::MultiGuard>();
    assert_send_sync::<crate::locks::ReentrantLock>();
    assert_send_sync::<crate::locks::NamedLocks>();
    assert_send_sync::<crate::locks::CohortLock>();
    assert_send_sync::<crate::locks::CohortGuard>();
    assert_send_sync::<crate::locks::Semaphore>();
    assert_send_sync::<crate::locks::RunOnce>();
    assert_send_sync::<crate::locks::Permit>();
    assert_send_sync::<crate::queue::LockDirectory>();
    assert_send_sync::<crate::queue::LeaderWatch>();
    assert_send_sync::<crate::queue::QueueWatch>();
    assert_send_sync::<crate::data::NodeTracker>();
    assert_send_sync::<crate::queue::Revoker>();
    assert_send_sync::<crate::Candidate>();
    assert_send_sync::<crate::Leadership>();
    assert_send_sync::<crate::LockError>();
}
