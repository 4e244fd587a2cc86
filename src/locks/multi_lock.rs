//! [`MultiLock`]: several exclusive locks at once, all of them or none.
//!
//! Origin: Curator's `InterProcessMultiLock`, which acquires the locks in the caller's order. Here, all
//! callers acquire them in the same order.

use std::fmt;
use std::sync::Arc;

use crate::error::{ErrorReason, LockError, Operation, Result};
use crate::lock_options::LockOptions;
use crate::locks::blocking_lock::{BlockingLock, retry_lasting};
use crate::locks::guard_signals::GuardSignals;
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking::exclusive;
use crate::locks::multi_guard::MultiGuard;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::path::ZNodePath;
use crate::session::Session;
use crate::wait::Wait;

/// Several exclusive locks that are acquired together.
///
/// [`lock`](MultiLock::lock) blocks until it has acquired all of them. If one cannot be acquired, none is held. Each
/// lock is the same as a [`BlockingWriteLock`](crate::BlockingWriteLock) on its directory, so the two exclude each
/// other.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::Session;
/// use zookeeper_recipes_lock::locks::MultiLock;
///
/// # fn transfer() {}
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let accounts = MultiLock::new(&session, ["/locks/account-7", "/locks/account-3"])?;
/// if let Some(guard) = accounts.try_lock_for(Duration::from_secs(5))? {
///     if guard.is_owner() {
///         transfer();
///     }
/// } // both released, account-7 first
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
///
/// # Deadlocks
/// The locks are acquired one after the other, in the order of the names of their directories. So two `MultiLock`s
/// never deadlock with each other. As with any lock, a deadlock is possible if you request a `MultiLock`
/// while you hold one of its locks, or while you hold another lock that somebody else requests while holding
/// one of the `MultiLock`'s locks.
///
/// # How long others wait
/// The first locks are held while the call waits for the others. If that delays other users of the first locks for too
/// long, set a [time limit](MultiLock::try_lock_for).
#[doc(alias = "InterProcessMultiLock")]
pub struct MultiLock {
    support: Arc<ProtocolSupport>,
    /// In the order of acquisition; at least one.
    locks: Vec<BlockingLock>,
}

impl MultiLock {
    /// Creates a lock on these directories, with the default [`LockOptions`].
    ///
    /// Sends nothing to the servers. Each lock's first request creates the lock's directory if it is missing.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): a path is invalid or occurs twice, or no path is
    /// given.
    pub fn new(session: &Session, dirs: impl IntoIterator<Item = impl AsRef<str>>) -> Result<MultiLock> {
        MultiLock::with_options(session, dirs, LockOptions::new())
    }

    /// Creates a lock like [`new`](MultiLock::new), with other options for all locks.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): as for [`new`](MultiLock::new), or the
    /// [`max_hold`](LockOptions::max_hold) is zero.
    pub fn with_options(
        session: &Session,
        dirs: impl IntoIterator<Item = impl AsRef<str>>,
        options: LockOptions,
    ) -> Result<MultiLock> {
        let dirs = dirs.into_iter().map(|dir| session.lock_path(dir.as_ref()));
        let mut dirs = dirs.collect::<Result<Vec<_>>>()?;
        dirs.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        check_set(&dirs)?;
        let support = Arc::new(ProtocolSupport::with_options(session, options)?);
        let access = exclusive(&support);
        let lock_on = |dir| BlockingLock::new(Arc::clone(&support), dir, access);
        let locks = dirs.into_iter().map(lock_on).collect();
        Ok(MultiLock { support, locks })
    }

    /// Blocks until all locks are acquired.
    ///
    /// # Errors
    /// The same as [`BlockingWriteLock::lock`](crate::BlockingWriteLock::lock), for any of the locks. The call also
    /// fails if a lock is lost before the last one is acquired. After an error, no lock is held.
    pub fn lock(&self) -> Result<MultiGuard> {
        let acquired = self.try_lock_for(Wait::forever())?;
        // Cannot be `None`: a wait without a deadline does not time out.
        acquired.ok_or_else(|| LockError::of(ErrorReason::Closed, Operation::LOCK, self.first()))
    }

    /// Acquires all locks if they are free; returns `None` otherwise.
    ///
    /// A lock is not free if somebody holds it or waits for it.
    /// Blocks only until the server has answered or, during an outage, until the retries are used up or the session is
    /// lost.
    ///
    /// # Errors
    /// The same as [`lock`](MultiLock::lock).
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.acquire(BlockingLock::try_once)
    }

    /// Blocks until all locks are acquired or the wait times out; returns `None` on a timeout.
    ///
    /// The time limit is for all locks together. After a timeout, no lock is held. On a session that [replaces
    /// itself](crate::SessionBuilder::replace_lost_sessions), the call starts over when the session or its lease is
    /// lost.
    ///
    /// # Errors
    /// The same as [`lock`](MultiLock::lock), and [`Cancelled`](crate::ErrorReason::Cancelled).
    pub fn try_lock_for(&self, wait: impl Into<Wait>) -> Result<Option<MultiGuard>> {
        let wait = wait.into();
        retry_lasting(self.support.session(), || self.acquire(|lock, signals| lock.wait(&wait, signals)))
    }

    /// Acquires one lock after the other. If one is not available, releases the others in reverse order.
    fn acquire(
        &self,
        take: impl Fn(&BlockingLock, &Arc<GuardSignals>) -> Result<Option<LockGuard>>,
    ) -> Result<Option<MultiGuard>> {
        let signals = GuardSignals::of(self.locks.len(), self.session().process());
        let mut held = MultiGuard::empty(Arc::clone(&signals));
        for lock in &self.locks {
            let taken = take(lock, &signals);
            // The loss of a lock that is already held ends this wait.
            if let Some(error) = held.take_loss() {
                return Err(error);
            }
            match taken? {
                Some(guard) => held.add(guard),
                None => return Ok(None),
            }
        }
        Ok(Some(held))
    }

    /// The path that stands for all locks in an error.
    fn first(&self) -> &ZNodePath {
        // Cannot panic: `check_set` refuses an empty set.
        self.locks[0].path()
    }

    /// Closes the lock.
    ///
    /// Threads that wait for it, and all later calls, fail with [`Closed`](crate::ErrorReason::Closed). Existing guards
    /// stay valid, and the session stays open. Idempotent.
    pub fn close(&self) {
        self.support.close();
    }

    /// Returns the directories of the locks, in the order of acquisition.
    pub fn dirs(&self) -> impl Iterator<Item = &str> {
        self.locks.iter().map(|lock| lock.path().as_str())
    }

    /// Returns the session on which the locks make their requests.
    pub fn session(&self) -> &Session {
        self.support.session()
    }
}

/// Refuses an empty set, and a set with a duplicate, which would wait for itself.
fn check_set(sorted: &[ZNodePath]) -> Result<()> {
    let twice = sorted.windows(2).find(|pair| pair[0] == pair[1]);
    let rule = match (sorted, twice) {
        ([], _) => "it has no directory".to_owned(),
        (_, Some(pair)) => format!("'{}' occurs twice, and would wait for itself", pair[0]),
        (_, None) => return Ok(()),
    };
    Err(LockError::invalid_argument("set of locks", rule))
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLock").field("dirs", &self.dirs().collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::{Acl, Permissions};
    use crate::error::ZkError;
    use crate::fake::{Effect, SimOperation, SimulatedClient, SimulatedZooKeeper};
    use crate::locks::locking::Released;
    use crate::tests::{eventually, in_background, next, replacing_session, session_by_factory};
    use crate::{CancelToken, LossReason};

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_millis(50);
    const DIRS: [&str; 3] = ["/locks/a", "/locks/b", "/locks/c"];

    struct Fixture {
        server: SimulatedZooKeeper,
        client: Arc<SimulatedClient>,
        session: Session,
    }

    impl Fixture {
        fn new() -> Fixture {
            let server = SimulatedZooKeeper::new();
            DIRS.iter().for_each(|dir| server.create(dir, b""));
            let client = server.connect(LONG);
            let session = client.open_session().unwrap();
            Fixture { server, client, session }
        }

        /// Returns a lock on all directories, which are not passed in the order of their names.
        fn lock(&self) -> MultiLock {
            MultiLock::new(&self.session, [DIRS[2], DIRS[0], DIRS[1]]).unwrap()
        }

        /// Creates a request of another session, which is ahead of all later requests.
        fn occupy(&self, dir: &str) -> String {
            self.server.create_sequential(dir, "x-other-lock-", Some(7))
        }

        fn requests(&self) -> [usize; 3] {
            DIRS.map(|dir| self.server.children(dir).len())
        }

        fn await_requests(&self, expected: [usize; 3]) {
            eventually(&format!("{expected:?} requests"), || self.requests() == expected);
        }

        /// Returns the directory of each call of this operation, in the order of the calls.
        fn dirs_of(&self, operation: SimOperation) -> Vec<String> {
            let calls = self.server.log().into_iter().filter(|call| call.operation == operation);
            calls.map(|call| call.path.rsplit_once('/').unwrap().0.to_owned()).collect()
        }
    }

    #[test]
    fn locks_are_acquired_in_name_order_and_released_in_reverse() {
        let fixture = Fixture::new();
        for unlocked in [false, true] {
            fixture.server.clear_log();
            let guard = fixture.lock().lock().unwrap();
            assert!(guard.is_owner());
            assert_eq!(fixture.requests(), [1, 1, 1]);
            assert_eq!(fixture.dirs_of(SimOperation::Create), DIRS);
            if unlocked {
                assert_eq!(guard.unlock().unwrap(), Released::Deleted);
            } else {
                drop(guard);
            }
            fixture.await_requests([0, 0, 0]);
            let released = fixture.dirs_of(SimOperation::Delete);
            // Several workers delete the znodes of dropped guards, in any order.
            assert!(!unlocked || released.iter().rev().eq(DIRS.iter()), "{released:?}");
        }
    }

    #[test]
    fn empty_set_or_duplicate_lock_is_refused() {
        let fixture = Fixture::new();
        let none: [&str; 0] = [];
        let error = MultiLock::new(&fixture.session, none).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains("no directory"), "{error}");
        let error = MultiLock::new(&fixture.session, ["/b", "/a", "/b"]).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains("'/b' occurs twice"), "{error}");
        let error = MultiLock::new(&fixture.session, ["/a", "b"]).unwrap_err();
        assert_eq!(error.reason(), ErrorReason::InvalidArgument, "{error}");
    }

    #[test]
    fn no_lock_is_held_when_one_is_unavailable() {
        for dir in DIRS {
            let fixture = Fixture::new();
            let ahead = fixture.occupy(dir);
            let before = fixture.requests();
            assert!(fixture.lock().try_lock().unwrap().is_none(), "{dir}");
            fixture.await_requests(before);
            assert!(fixture.lock().try_lock_for(SHORT).unwrap().is_none(), "{dir}");
            fixture.await_requests(before);
            fixture.server.delete(&ahead);
            assert!(fixture.lock().try_lock_for(LONG).unwrap().is_some(), "{dir}");
        }
    }

    #[test]
    fn no_lock_is_held_when_one_is_refused() {
        let fixture = Fixture::new();
        let acl = [Acl::new(Permissions::READ, "world", "anyone")];
        fixture.server.create_with_acl("/locks/b2", b"", &acl);
        let lock =
            MultiLock::new(&fixture.session, ["/locks/a", "/locks/b", "/locks/b2", "/locks/c"]).unwrap();
        assert!(lock.lock().unwrap_err().is_access_denied());
        fixture.await_requests([0, 0, 0]);
        assert_eq!(fixture.dirs_of(SimOperation::Create), ["/locks/a", "/locks/b", "/locks/b2"]);
    }

    #[test]
    fn cancelled_call_holds_nothing() {
        let fixture = Fixture::new();
        fixture.occupy(DIRS[1]);
        let cancel = CancelToken::new();
        let wait = Wait::forever().cancelled_by(&cancel);
        let lock = fixture.lock();
        let waiting = in_background(move || lock.try_lock_for(&wait).map(drop));
        fixture.await_requests([1, 2, 0]);
        cancel.cancel();
        assert!(matches!(next(&waiting), Err(ref error) if error.reason() == ErrorReason::Cancelled));
        fixture.await_requests([0, 1, 0]);
    }

    #[test]
    fn losing_an_earlier_lock_aborts_the_wait() {
        let fixture = Fixture::new();
        fixture.occupy(DIRS[1]);
        let lock = fixture.lock();
        let waiting = in_background(move || lock.lock().map(drop));
        fixture.await_requests([1, 2, 0]);
        let first = format!("{}/{}", DIRS[0], fixture.server.children(DIRS[0])[0]);
        eventually("the owner watches its znode", || fixture.server.watch_count() == 2);
        fixture.server.delete(&first);
        let error = next(&waiting).unwrap_err();
        assert_eq!((error.reason(), error.path()), (ErrorReason::NodeDeleted, Some(&*first)), "{error}");
        fixture.await_requests([0, 1, 0]);
    }

    #[test]
    fn unlock_reports_a_loss_beside_a_refused_deletion() {
        let fixture = Fixture::new();
        let guard = fixture.lock().lock().unwrap();
        fixture.server.delete(guard.guards()[0].id());
        eventually("the loss is noticed", || !guard.is_owner());
        let acl = [Acl::new(Permissions::READ, "world", "anyone")];
        fixture.server.set_acl(DIRS[2], &acl);
        let result = guard.unlock();
        assert!(matches!(result, Err(ref error) if error.reason() == ErrorReason::NodeDeleted), "{result:?}");
    }

    #[test]
    fn unlock_is_pending_during_an_outage() {
        let fixture = Fixture::new();
        let guard = fixture.lock().lock().unwrap();
        fixture.client.disconnect();
        assert_eq!(guard.unlock().unwrap(), Released::Pending);
        fixture.client.reconnect();
        fixture.await_requests([0, 0, 0]);
    }

    #[test]
    fn every_loss_is_reported_and_ends_the_ownership_of_all() {
        let fixture = Fixture::new();
        fixture.client.hide_stats();
        let guard = fixture.lock().lock().unwrap();
        assert!(!guard.lease_remaining().is_zero());
        for lost in [&guard.guards()[1], &guard.guards()[0]] {
            fixture.server.delete(lost.id());
            eventually("the loss is noticed", || !lost.is_owner());
            assert!(!guard.is_owner() && guard.guards()[2].is_owner());
            assert!(guard.lease_remaining().is_zero() && !guard.guards()[2].lease_remaining().is_zero());
        }
        for _ in 0..2 {
            assert_eq!(next(guard.lost()), LossReason::NodeDeleted);
        }
        assert!(guard.guards()[0].fencing_token().is_err(), "the server has not returned it yet");
        // The lost locks take precedence over the pending deletion of the third.
        fixture.client.cut_next(SimOperation::Delete, Effect::Before);
        assert!(matches!(guard.unlock(), Err(ref error) if error.reason() == ErrorReason::NodeDeleted));
        fixture.client.reconnect();
        fixture.await_requests([0, 0, 0]);
    }

    #[test]
    fn acquisition_starts_again_after_the_lease_ends_on_a_live_session() {
        let fixture = Fixture::new();
        let client = fixture.server.connect(Duration::from_secs(1));
        let of_factory = client.clone();
        let session = session_by_factory(move || Ok(of_factory.clone())).unwrap();
        let ahead = fixture.occupy(DIRS[1]);
        let lock = MultiLock::new(&session, DIRS).unwrap();
        // Pings keep the session in contact, but do not extend the lease. Each write that fails is repeated after a tenth
        // of a second.
        for _ in 0..15 {
            client.fail_next(SimOperation::SetData, Effect::Before, ZkError::ConnectionLoss);
        }
        let waiting = in_background(move || lock.lock());
        fixture.await_requests([1, 2, 0]);
        eventually("the lease ends", || fixture.server.calls(SimOperation::Delete) > 0);
        fixture.server.delete(&ahead);
        fixture.await_requests([1, 1, 1]);
        assert!(next(&waiting).is_ok());
    }

    #[test]
    fn acquisition_starts_again_on_each_replaced_session() {
        let fixture = Fixture::new();
        let (session, clients) = replacing_session(&fixture.server, LONG);
        let ahead = fixture.occupy(DIRS[1]);
        let lock = MultiLock::new(&session, DIRS).unwrap();
        let waiting = in_background(move || lock.lock());
        for _ in 0..2 {
            fixture.await_requests([1, 2, 0]);
            next(&clients).expire();
        }
        fixture.await_requests([1, 2, 0]);
        fixture.server.delete(&ahead);
        assert!(next(&waiting).unwrap().is_owner());
    }
}
