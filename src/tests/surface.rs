//! Tests of what must hold for everything that the crate exports.

use std::panic::{RefUnwindSafe, UnwindSafe};

use super::deadline;
use crate::fake::SimulatedZooKeeper;
use crate::locks::{CohortLock, MultiLock, NamedLocks, ReadWriteLock, Semaphore};
use crate::{BlockingWriteLock, Candidate, WriteLock};

#[test]
fn glob_import_shadows_no_name_of_the_prelude() {
    #[allow(unused_imports, reason = "that this compiles is the test")]
    use crate::*;
    let parsed: Result<u8, std::num::ParseIntError> = "1".parse();
    assert_eq!(parsed, Ok(1));
}

/// Fails to compile if a type is not shareable between threads and across a caught panic.
macro_rules! assert_shared {
    ($($type:ty),+ $(,)?) => {{
        fn is_shared<T: Send + Sync + UnwindSafe + RefUnwindSafe>() {}
        $(is_shared::<$type>();)+
    }};
}

#[test]
fn shared_types_are_send_and_sync_and_unwind_safe() {
    use crate::{client, data, events, locks, queue, recipe};
    assert_shared!(
        crate::BlockingWriteLock,
        crate::CancelToken,
        crate::Candidate,
        crate::ErrorKind,
        crate::ErrorReason,
        crate::Leadership,
        crate::LockError,
        crate::LockGuard,
        crate::LockOptions,
        crate::LossReason,
        crate::ProtocolSupport,
        crate::RetryPolicy,
        crate::Session,
        crate::SessionBuilder,
        crate::SessionState,
        crate::Wait,
        crate::WriteLock,
        crate::ZNodeName,
        client::Acl,
        client::CreateMode,
        client::Stat,
        client::ZkError,
        data::NodeTracker,
        data::RecoverableZooKeeper,
        data::Transaction,
        events::RequestStatus,
        events::SessionEvent,
        locks::CohortGuard,
        locks::CohortLock,
        locks::CohortOptions,
        locks::DowngradeError,
        locks::MultiGuard,
        locks::MultiLock,
        locks::NamedLocks,
        locks::Permit,
        locks::ReadGuard,
        locks::ReadWriteLock,
        locks::ReentrantLock,
        locks::RunOnce,
        locks::Semaphore,
        locks::WriteGuard,
        queue::LeaderWatch,
        queue::LockDirectory,
        queue::LockInfo,
        queue::QueueWatch,
        queue::Revoker,
        recipe::LockKind,
        recipe::NamingScheme,
    );
    #[cfg(feature = "tls")]
    assert_shared!(client::TlsConfig);
    #[cfg(feature = "kerberos")]
    assert_shared!(client::KerberosConfig);
}

/// A reentrant guard stays on its thread, so it is not `Send`.
#[test]
fn reentrant_guard_is_sync_and_unwind_safe() {
    fn is_shared<T: Sync + UnwindSafe + RefUnwindSafe>() {}
    is_shared::<crate::locks::ReentrantGuard<'_>>();
}

#[test]
fn every_lock_and_election_names_its_directory() {
    let server = SimulatedZooKeeper::new();
    let session = server.connect(deadline()).open_session().unwrap();
    let election = BlockingWriteLock::new(&session, "/locks/election").unwrap();
    assert_eq!(election.dir(), "/locks/election");
    assert_eq!(Candidate::keep_leading(election).unwrap().dir(), "/locks/election");
    assert_eq!(WriteLock::new(&session, "/locks/a").unwrap().dir(), "/locks/a");
    assert_eq!(CohortLock::new(&session, "/locks/b").unwrap().dir(), "/locks/b");
    assert_eq!(ReadWriteLock::new(&session, "/locks/c").unwrap().dir(), "/locks/c");
    assert_eq!(Semaphore::new(&session, "/locks/d", 1).unwrap().dir(), "/locks/d");
    assert_eq!(NamedLocks::new(&session, "/locks").unwrap().dir("e").unwrap(), "/locks/e");
    let several = MultiLock::new(&session, ["/locks/g", "/locks/f"]).unwrap();
    assert_eq!(several.dirs().collect::<Vec<_>>(), ["/locks/f", "/locks/g"]);
}
