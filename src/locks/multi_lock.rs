//! [`MultiLock`]: several exclusive locks at once, all of them or none.
//!
//! Origin: Curator's `InterProcessMultiLock`, which acquires in the caller's order. Here the order
//! is the same everywhere.

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

/// Several exclusive locks that are acquired together, all or none.
///
/// They are acquired one after the other, in the order of their directories' names, so that two of
/// these never wait for each other for ever. Each one is the lock that a
/// [`BlockingWriteLock`](crate::BlockingWriteLock) on the directory is, so both contend. As with
/// any lock, do not request these while holding one of them, nor while holding another lock that
/// somebody requests while holding one of these.
///
/// The first locks are held during the wait for the others. If that takes too long for others, use
/// a [time limit](MultiLock::try_lock_for).
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
pub struct MultiLock {
    support: Arc<ProtocolSupport>,
    /// In the order in which they are acquired; at least one.
    locks: Vec<BlockingLock>,
}

impl MultiLock {
    /// Makes a lock on these directories with the default [`LockOptions`]. Sends nothing: the first
    /// request creates the directories that are missing.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument); [`InvalidArgument`](crate::ErrorReason::InvalidArgument) for
    /// no directory, or the same one twice.
    pub fn new(session: &Session, dirs: impl IntoIterator<Item = impl AsRef<str>>) -> Result<MultiLock> {
        MultiLock::with_options(session, dirs, LockOptions::new())
    }

    /// As [`new`](MultiLock::new), with other options for all locks.
    ///
    /// # Errors
    /// As [`new`](MultiLock::new); [`InvalidArgument`](crate::ErrorReason::InvalidArgument) for more than
    /// about 1 MiB of data and for a [`max_hold`](LockOptions::max_hold) of zero, too.
    pub fn with_options(
        session: &Session,
        dirs: impl IntoIterator<Item = impl AsRef<str>>,
        options: LockOptions,
    ) -> Result<MultiLock> {
        let dirs = dirs.into_iter().map(|dir| ZNodePath::parse(dir.as_ref()));
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
    /// As [`BlockingWriteLock::lock`](crate::BlockingWriteLock::lock), for any of the locks. Also
    /// when an acquired lock was lost before the last one was acquired. After an error none is
    /// held.
    pub fn lock(&self) -> Result<MultiGuard> {
        let acquired = self.try_lock_for(Wait::forever())?;
        // Proof: a wait without a deadline does not time out.
        acquired.ok_or_else(|| LockError::of(ErrorReason::Closed, Operation::LOCK, self.first()))
    }

    /// Acquires all locks if they are free, and returns `None` if somebody holds one or waits for
    /// one. Blocks only for the server's answers: during an outage, through all retries.
    ///
    /// # Errors
    /// As [`lock`](MultiLock::lock).
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.acquire(BlockingLock::try_once)
    }

    /// Blocks until all locks are acquired, or until the wait for all of them together times out:
    /// then it returns `None`, and none is held.
    ///
    /// On a session that [replaces itself](crate::SessionBuilder::replace_lost_sessions) it begins
    /// again after a loss.
    ///
    /// # Errors
    /// As [`lock`](MultiLock::lock), and [`Cancelled`](crate::ErrorReason::Cancelled).
    pub fn try_lock_for(&self, wait: impl Into<Wait>) -> Result<Option<MultiGuard>> {
        let wait = wait.into();
        retry_lasting(self.support.session(), || self.acquire(|lock, signals| lock.wait(&wait, signals)))
    }

    /// Takes one lock after the other. Releases them, the last first, if one is not available.
    fn acquire(
        &self,
        take: impl Fn(&BlockingLock, &Arc<GuardSignals>) -> Result<Option<LockGuard>>,
    ) -> Result<Option<MultiGuard>> {
        let signals = GuardSignals::of(self.locks.len());
        let mut held = MultiGuard::empty(Arc::clone(&signals));
        for lock in &self.locks {
            let taken = take(lock, &signals);
            // Losing an earlier lock aborts this wait.
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

    /// Names the set in an error.
    fn first(&self) -> &ZNodePath {
        // Proof: a set of locks has at least one.
        self.locks[0].path()
    }

    /// Closes the lock: threads that wait for it fail with [`Closed`](crate::ErrorReason::Closed), and so
    /// does every later call. Guards and the session stay. Idempotent.
    pub fn close(&self) {
        self.support.close();
    }

    /// Returns the directories of the locks, in the order in which they are acquired.
    pub fn dirs(&self) -> impl Iterator<Item = &str> {
        self.locks.iter().map(|lock| lock.path().as_str())
    }

    /// Returns the session on which the locks make their requests.
    pub fn session(&self) -> &Session {
        self.support.session()
    }
}

/// Refuses an empty set, and one that would wait for itself.
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
    use crate::fake::{Effect, SimOperation, SimulatedClient, SimulatedZooKeeper};
    use crate::tests::{eventually, in_background, next, replacing_session};
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
            let session = Session::from_client(client.clone()).unwrap();
            Fixture { server, client, session }
        }

        /// A lock on the directories, not given in name order.
        fn lock(&self) -> MultiLock {
            MultiLock::new(&self.session, [DIRS[2], DIRS[0], DIRS[1]]).unwrap()
        }

        /// A request of another session, ahead of later ones.
        fn occupy(&self, dir: &str) -> String {
            self.server.create_sequential(dir, "x-other-lock-", Some(7))
        }

        fn requests(&self) -> [usize; 3] {
            DIRS.map(|dir| self.server.children(dir).len())
        }

        fn await_requests(&self, expected: [usize; 3]) {
            eventually(&format!("{expected:?} requests"), || self.requests() == expected);
        }

        /// The directories of the calls of this operation, in order.
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
                guard.unlock().unwrap();
            } else {
                drop(guard);
            }
            fixture.await_requests([0, 0, 0]);
            let released = fixture.dirs_of(SimOperation::Delete);
            // Several workers delete the znodes of dropped guards.
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
        assert_eq!((error.reason(), error.path()), (ErrorReason::RequestDeleted, Some(&*first)), "{error}");
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
        assert!(
            matches!(result, Err(ref error) if error.reason() == ErrorReason::RequestDeleted),
            "{result:?}"
        );
    }

    #[test]
    fn every_loss_is_reported_and_ends_the_ownership_of_all() {
        let fixture = Fixture::new();
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
        assert!(guard.guards()[0].fencing_token().is_err());
        // The lost locks take precedence over the pending deletion of the third.
        fixture.client.cut_next(SimOperation::Delete, Effect::Before);
        assert!(matches!(guard.unlock(), Err(ref error) if error.reason() == ErrorReason::RequestDeleted));
        fixture.client.reconnect();
        fixture.await_requests([0, 0, 0]);
    }

    #[test]
    fn acquisition_starts_again_after_the_lease_ends_on_a_live_session() {
        let fixture = Fixture::new();
        let client = fixture.server.connect(Duration::from_secs(1));
        // Its reads overtake a write, and no ping proves the session.
        client.set_ordered(false);
        client.set_reports_pings(false);
        let of_factory = client.clone();
        let session = Session::from_client_factory(move || Ok(of_factory.clone())).unwrap();
        let ahead = fixture.occupy(DIRS[1]);
        let lock = MultiLock::new(&session, DIRS).unwrap();
        let (release, held) = crossbeam_channel::bounded::<()>(0);
        client.before_next(SimOperation::SetData, move || {
            let _ = held.recv();
        });
        let waiting = in_background(move || lock.lock());
        fixture.await_requests([1, 2, 0]);
        // Reads are contact, but do not renew the lease.
        eventually("the lease ends", || {
            session.core().ask(crate::client::port::Call::exists("/", false)).unwrap();
            fixture.server.calls(SimOperation::Delete) > 0
        });
        drop(release);
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
