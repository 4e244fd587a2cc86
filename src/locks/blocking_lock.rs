//! [`BlockingLock`]: the common part of all blocking locks.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{ErrorReason, LockError, Operation, Result};
use crate::locks::guard_signals::{GuardSignals, WaitObserver};
use crate::locks::held_here;
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking;
use crate::logging;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::access::Access;
use crate::recipe::naming_scheme::NamingScheme;
use crate::recipe::path::ZNodePath;
use crate::request::{Claim, LastingRequest, Observer, Place, RequestSpec, in_turn};
use crate::session::Session;
use crate::time::{Latch, until};
use crate::wait::{Wait, Waited};

/// A thread that has waited for this long may be waiting for itself.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// A lock that is used through guards. Each call makes a new request.
#[derive(Clone, Debug)]
pub(crate) struct BlockingLock {
    support: Arc<ProtocolSupport>,
    dir: ZNodePath,
    access: Access,
    /// The directory of the queue in which waiting calls take turns to make their requests.
    turns: Option<ZNodePath>,
}

impl BlockingLock {
    pub(crate) fn new(support: Arc<ProtocolSupport>, dir: ZNodePath, access: Access) -> BlockingLock {
        BlockingLock { support, dir, access, turns: None }
    }

    /// Makes waiting calls take turns, in the queue of this directory. Only the first of them makes its request.
    pub(crate) fn in_turn(self, turns: ZNodePath) -> BlockingLock {
        BlockingLock { turns: Some(turns), ..self }
    }

    pub(crate) fn lock(&self) -> Result<LockGuard> {
        let acquired = self.try_lock_for(&Wait::forever())?;
        // Cannot be `None`: a wait without a deadline does not time out.
        acquired.ok_or_else(|| self.closed())
    }

    pub(crate) fn try_lock(&self) -> Result<Option<LockGuard>> {
        self.try_once(&self.signals())
    }

    /// Acquires the lock if it is free. A later loss or revocation is reported to `signals`, which several locks may
    /// share.
    pub(crate) fn try_once(&self, signals: &Arc<GuardSignals>) -> Result<Option<LockGuard>> {
        self.session().check_process(Operation::LOCK, &self.dir)?;
        let attempt = self.start_once(signals)?;
        match attempt.request.wait_until_placed(&self.ends(signals)) {
            // An error means that the request ended, perhaps after it became the owner.
            Ok(Some(Place::Owner)) | Err(_) => attempt.guard().inspect(held_here::note).map(Some),
            Ok(None) if self.support.is_closed() => Err(self.closed()),
            // Another lock of the set was lost. The caller reports that loss.
            Ok(None) => Ok(None),
            Ok(Some(_)) => {
                locking::leave(&attempt.request);
                Ok(None)
            }
        }
    }

    pub(crate) fn try_lock_for(&self, wait: &Wait) -> Result<Option<LockGuard>> {
        retry_lasting(self.session(), || self.wait(wait, &self.signals()))
    }

    /// Waits for the lock. Returns `None` on a timeout, and when another lock with the same signals is lost. Fails if the
    /// lock is lost before the call returns.
    pub(crate) fn wait(&self, wait: &Wait, signals: &Arc<GuardSignals>) -> Result<Option<LockGuard>> {
        self.session().check_process(Operation::LOCK, &self.dir)?;
        if wait.is_cancelled() {
            return Err(self.cancelled());
        }
        let attempt = self.start(signals)?;
        let mut latches = self.ends(signals);
        latches.push(&attempt.decided);
        let core = self.session().core();
        let remark = (LONG_WAIT, || self.warn_of_self(&attempt.request));
        let waited = wait.wait_for_or_remark(&**core.runtime(), &latches, remark);
        self.conclude(&attempt, waited).inspect(|acquired| acquired.iter().for_each(held_here::note))
    }

    /// Like [`wait`](BlockingLock::wait), but in a task and without a time limit. Dropping the future withdraws the
    /// request, even if it has just acquired the lock.
    pub(crate) async fn wait_async(&self) -> Result<LockGuard> {
        loop {
            match self.wait_async_once().await {
                Err(error) if begins_again(self.session(), &error) => {}
                outcome => return outcome,
            }
        }
    }

    async fn wait_async_once(&self) -> Result<LockGuard> {
        self.session().check_process(Operation::LOCK, &self.dir)?;
        let attempt = self.start(&self.signals())?;
        let latches = [&attempt.decided, self.support.closed()];
        let is_one_set = || latches.iter().any(|latch| latch.is_set()).then_some(());
        until(self.session().process(), latches, is_one_set).await;
        // In a forked child the wait ends immediately.
        self.session().check_process(Operation::LOCK, &self.dir)?;
        // Cannot be `None`: one of the latches is set, and no other lock shares these signals.
        self.conclude(&attempt, Waited::Set)?.ok_or_else(|| self.closed())
    }

    /// Turns the end of a wait into a guard, or into the reason why there is none.
    fn conclude(&self, attempt: &Attempt, waited: Waited) -> Result<Option<LockGuard>> {
        match waited {
            // Checked first, because the request may acquire the lock just as the lock is closed or another
            // lock is lost.
            Waited::Set if attempt.decided.is_set() => attempt.guard().map(Some),
            Waited::Set if self.support.is_closed() => Err(self.closed()),
            // If the lock has just been acquired, dropping the attempt releases it.
            Waited::Set => Ok(None),
            // Nobody may hold the lock: a server has refused to say so, and that is what the caller can do something
            // about.
            Waited::TimedOut => attempt.refusal().map_or(Ok(None), Err),
            Waited::Cancelled => Err(self.cancelled()),
        }
    }

    /// The signals for a guard of this lock alone.
    fn signals(&self) -> Arc<GuardSignals> {
        GuardSignals::of(1, self.session().process())
    }

    fn closed(&self) -> LockError {
        LockError::of(ErrorReason::Closed, Operation::LOCK, &self.dir)
    }

    fn cancelled(&self) -> LockError {
        LockError::of(ErrorReason::Cancelled, Operation::LOCK, &self.dir)
    }

    /// The latches that end a wait for this lock. One is set when this lock is closed. If several locks share
    /// the signals, another is set when one of them is lost.
    fn ends<'a>(&'a self, signals: &'a GuardSignals) -> Vec<&'a Latch> {
        signals.broken().into_iter().chain([self.support.closed()]).collect()
    }

    /// Logs a warning if the calling thread waits for itself.
    fn warn_of_self(&self, waiting: &LastingRequest) {
        // Holding one permit of a semaphore while waiting for another is legitimate.
        if self.access.permits().is_some() {
            return;
        }
        if let Some(held) = waiting.request().and_then(|waiting| held_here::held_before(&waiting)) {
            logging::warn!(
                "this thread waits for {}, which it has acquired itself as {held}: it waits in vain unless another \
                 thread releases the lock; use a ReentrantLock, or pass the guard to the inner function",
                self.dir
            );
        }
    }

    /// Makes a request that is not made again on another session, and takes no turn. The caller has checked the process.
    fn start_once(&self, signals: &Arc<GuardSignals>) -> Result<Attempt> {
        self.check_open(false)?;
        let make = |spec, observer| (None, LastingRequest::new(self.session(), spec, false, observer));
        Ok(self.start_with(signals, make))
    }

    /// Makes a request, or a request in turn. The caller has checked the process.
    fn start(&self, signals: &Arc<GuardSignals>) -> Result<Attempt> {
        self.check_open(true)?;
        Ok(self.start_with(signals, |spec, observer| match &self.turns {
            None => (None, LastingRequest::new(self.session(), spec, true, observer)),
            Some(dir) => {
                let access = Access::Exclusive(NamingScheme::Curator);
                // `max_hold` limits how long the lock is held, not the wait for it.
                let turn = RequestSpec { max_hold: None, ..locking::spec(dir, &self.support, access) };
                let (turn, request) = in_turn(self.session(), turn, spec, observer);
                (Some(turn), request)
            }
        }))
    }

    fn check_open(&self, is_lasting: bool) -> Result<()> {
        self.support.check_open(Operation::LOCK, &self.dir)?;
        match self.session().replacement() {
            Some(_) if is_lasting => Ok(()),
            _ => self.session().core().check_open(Operation::LOCK, &self.dir),
        }
    }

    fn start_with(
        &self,
        signals: &Arc<GuardSignals>,
        make: impl FnOnce(RequestSpec, Arc<dyn Observer>) -> (Option<Arc<LastingRequest>>, Arc<LastingRequest>),
    ) -> Attempt {
        let observer = WaitObserver::new(signals, self.session().core().runtime());
        let decided = observer.decided();
        let (turn, request) = make(locking::spec(&self.dir, &self.support, self.access), observer);
        let (session, signals) = (self.session().clone(), Arc::clone(signals));
        let attempt = Attempt { turn, request, session, decided, signals };
        attempt.turn.as_ref().unwrap_or(&attempt.request).start();
        attempt
    }

    pub(crate) fn path(&self) -> &ZNodePath {
        &self.dir
    }

    pub(crate) fn session(&self) -> &Session {
        self.support.session()
    }

    pub(crate) fn support(&self) -> &Arc<ProtocolSupport> {
        &self.support
    }
}

/// Runs an attempt to acquire one or several locks. On a session that is replaced, the attempt starts over if the session
/// or its lease is lost before the attempt is complete. It then waits for the next session.
pub(crate) fn retry_lasting<T>(session: &Session, attempt: impl Fn() -> Result<T>) -> Result<T> {
    loop {
        match attempt() {
            Err(error) if begins_again(session, &error) => {}
            outcome => return outcome,
        }
    }
}

/// Returns whether [`retry_lasting`] starts over after this error.
pub(crate) fn begins_again(session: &Session, error: &LockError) -> bool {
    let is_lost = matches!(error.reason(), ErrorReason::SessionLost | ErrorReason::LeaseExpired);
    is_lost && session.replacement().is_some()
}

/// A waiting call or future. Dropping it withdraws the request unless a guard has taken over the request.
struct Attempt {
    /// The turn in which the request is made, if the lock takes turns.
    turn: Option<Arc<LastingRequest>>,
    request: Arc<LastingRequest>,
    session: Session,
    /// Set when the request has acquired the lock or has ended.
    decided: Latch,
    signals: Arc<GuardSignals>,
}

impl Attempt {
    /// Returns a guard if the request holds the lock at this moment. Otherwise returns why it does not: a wait may learn
    /// late that it is over, and the lock may be lost by then.
    fn guard(&self) -> Result<LockGuard> {
        let Some(request) = self.request.request() else { return Err(self.unmade()) };
        let znode = request.znode().filter(|_| request.holds_lease());
        let Some(znode) = znode else { return Err(request.loss_error(Operation::LOCK)) };
        // Cannot be `None`: nobody else takes the request, and an owner's request is never made again.
        let Some(request) = self.request.take() else { return Err(self.unmade()) };
        let (session, signals) = (self.session.clone(), Arc::clone(&self.signals));
        Ok(LockGuard::new(session, Claim::on(request), znode, signals))
    }

    /// Returns the refusal by a server that keeps the wait from knowing whether the lock is free, if there is one.
    fn refusal(&self) -> Option<LockError> {
        self.request.refusal().or_else(|| self.turn.as_ref()?.refusal())
    }

    /// Returns why the request was never made.
    fn unmade(&self) -> LockError {
        self.turn.as_ref().unwrap_or(&self.request).end_error(Operation::LOCK)
    }
}

impl Drop for Attempt {
    /// Withdraws the request while the session handle still exists: dropping the handle may close the session.
    fn drop(&mut self) {
        // In a forked child the future belongs to the parent, and a mutex may stay held forever.
        if self.session.process().is_current() {
            self.request.withdraw();
            // The turn ends last: by now, the request has acquired the lock, or the deletion of its znode has begun.
            self.turn.iter().for_each(|turn| turn.withdraw());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    use crate::error::ZkError;
    use crate::fake::SimulatedZooKeeper;
    use crate::queue::{Revocation, Revoker};
    use crate::tests::{ManualRuntime, logged_down_to, open_on_manual_runtime};
    use crate::time::Runtime;
    use crate::{BlockingWriteLock, CancelToken};

    const TIMEOUT: Duration = Duration::from_secs(30);
    const LONG: Duration = Duration::from_secs(3600);

    /// A lock on a manual runtime, with another client's request in its queue.
    struct Fixture {
        server: SimulatedZooKeeper,
        runtime: Arc<ManualRuntime>,
        session: Session,
        lock: BlockingWriteLock,
        ahead: String,
    }

    impl Fixture {
        fn new() -> Fixture {
            let server = SimulatedZooKeeper::new();
            server.create("/lock", b"");
            let ahead = server.create_sequential("/lock", "x-other-lock-", Some(7));
            let (_client, runtime, session) = open_on_manual_runtime(&server, TIMEOUT);
            let lock = BlockingWriteLock::new(&session, "/lock").unwrap();
            Fixture { server, runtime, session, lock, ahead }
        }

        fn requests(&self) -> usize {
            self.server.children("/lock").len()
        }
    }

    #[test]
    fn a_call_times_out_at_its_deadline_and_leaves_no_znode() {
        let fixture = Fixture::new();
        let deadline = fixture.runtime.now().after(LONG);
        assert!(fixture.lock.try_lock_for(Wait::until_moment(deadline)).unwrap().is_none());
        assert_eq!(fixture.runtime.now(), deadline);
        assert_eq!(fixture.requests(), 1);
    }

    #[test]
    fn a_call_returns_when_the_lock_is_free() {
        let fixture = Fixture::new();
        let (server, ahead) = (fixture.server.clone(), fixture.ahead.clone());
        let free = fixture.runtime.now().after(LONG);
        fixture.runtime.at(free, Box::new(move || server.delete(&ahead)));
        let guard = fixture.lock.lock().unwrap();
        assert!(guard.is_owner());
        assert_eq!(fixture.runtime.now(), free);
        guard.unlock().unwrap();
        assert_eq!((fixture.runtime.now(), fixture.requests()), (free, 0));
    }

    #[test]
    fn a_cancelled_call_returns_at_that_moment() {
        let fixture = Fixture::new();
        let token = CancelToken::new();
        let wait = Wait::until_moment(fixture.runtime.now().after(2 * LONG)).cancelled_by(&token);
        let cancelled = fixture.runtime.now().after(LONG);
        fixture.runtime.at(cancelled, Box::new(move || token.cancel()));
        let error = fixture.lock.try_lock_for(wait).unwrap_err();
        assert_eq!(error.reason(), ErrorReason::Cancelled, "{error}");
        assert_eq!((fixture.runtime.now(), fixture.requests()), (cancelled, 1));
    }

    #[test]
    fn a_refused_try_lock_takes_no_time() {
        let fixture = Fixture::new();
        assert!(fixture.lock.try_lock().unwrap().is_none());
        assert_eq!((fixture.runtime.elapsed(), fixture.requests()), (Duration::ZERO, 1));
    }

    #[test]
    fn a_revoker_waits_for_the_grace_and_no_longer() {
        let fixture = Fixture::new();
        let revoker = Revoker::new(&fixture.session);
        let revoked = revoker.force_revocation_after(&fixture.ahead, LONG).unwrap();
        assert_eq!((revoked, fixture.runtime.elapsed()), (Revocation::Forced, LONG));

        let fixture = Fixture::new();
        let revoker = Revoker::new(&fixture.session);
        let (server, ahead) = (fixture.server.clone(), fixture.ahead.clone());
        fixture.runtime.at(fixture.runtime.now().after(TIMEOUT), Box::new(move || server.delete(&ahead)));
        let revoked = revoker.force_revocation_after(&fixture.ahead, LONG).unwrap();
        assert_eq!((revoked, fixture.runtime.elapsed()), (Revocation::Complied, TIMEOUT));
    }

    #[test]
    fn an_operation_is_retried_after_the_delays_of_its_policy() {
        let fixture = Fixture::new();
        let support = ProtocolSupport::new(&fixture.session);
        let (runtime, mut attempts) = (Arc::clone(&fixture.runtime), Vec::new());
        let outcome = support.retry_operation(|| {
            attempts.push(runtime.elapsed().as_millis());
            match attempts.len() {
                4 => Ok(()),
                _ => Err(LockError::client(Operation::READ, "/lock", ZkError::ConnectionLoss)),
            }
        });
        outcome.unwrap();
        assert_eq!(attempts, [0, 0, 500, 1500]);
    }

    #[test]
    fn an_operation_on_another_session_is_retried_after_delays_when_this_one_has_ended() {
        let fixture = Fixture::new();
        let support = ProtocolSupport::new(&fixture.session);
        fixture.session.close();
        let closed = fixture.runtime.elapsed();
        let outcome = support.retry_operation(|| -> Result<()> {
            Err(LockError::client(Operation::READ, "/lock", ZkError::ConnectionLoss))
        });
        assert!(outcome.is_err());
        assert_eq!(fixture.runtime.elapsed() - closed, Duration::from_millis(18_000));
    }

    // ---- a thread that waits for itself

    const SECOND: Duration = Duration::from_secs(1);

    /// Acquires the first lock, waits for the second for `time`, and returns what was logged at `warn` during
    /// the wait.
    fn logged_in_a_wait(
        fixture: &Fixture,
        first: BlockingLock,
        second: &BlockingLock,
        time: Duration,
    ) -> String {
        fixture.server.delete(&fixture.ahead);
        let guard = first.lock().unwrap();
        logged_in_a_wait_with(fixture, &guard, second, time)
    }

    fn logged_in_a_wait_with(
        fixture: &Fixture,
        _held: &LockGuard,
        second: &BlockingLock,
        time: Duration,
    ) -> String {
        let wait = Wait::until_moment(fixture.runtime.now().after(time));
        logged_down_to(log::Level::Warn, || assert!(second.try_lock_for(&wait).unwrap().is_none())).join("\n")
    }

    fn lock(fixture: &Fixture, dir: &str, access: fn(&ProtocolSupport) -> Access) -> BlockingLock {
        let support = Arc::new(ProtocolSupport::new(&fixture.session));
        let access = access(&support);
        BlockingLock::new(support, ZNodePath::parse(dir).unwrap(), access)
    }

    #[test]
    fn a_thread_that_waits_for_itself_is_named_in_the_log() {
        let fixture = Fixture::new();
        let [first, second] = [(); 2].map(|()| lock(&fixture, "/lock", locking::exclusive));
        let line = logged_in_a_wait(&fixture, first, &second, LONG);
        assert!(
            line.starts_with("this thread waits for /lock, which it has acquired itself as /lock/x-"),
            "{line}"
        );
        assert!(line.contains("ReentrantLock") && !line.contains('\n'), "{line}");
    }

    #[test]
    fn a_thread_that_waits_for_itself_is_named_however_many_locks_it_holds() {
        let fixture = Fixture::new();
        fixture.server.delete(&fixture.ahead);
        let [first, second] = [(); 2].map(|()| lock(&fixture, "/lock", locking::exclusive));
        let guard = first.lock().unwrap();
        let other = |number| lock(&fixture, &format!("/other/{number}"), locking::exclusive).lock().unwrap();
        let _others: Vec<LockGuard> = (0..20).map(other).collect();
        let line = logged_in_a_wait_with(&fixture, &guard, &second, LONG);
        assert!(line.starts_with("this thread waits for /lock, which it has acquired itself"), "{line}");
    }

    #[test]
    fn a_thread_soon_forgets_the_locks_that_it_has_released() {
        let fixture = Fixture::new();
        fixture.server.delete(&fixture.ahead);
        let lock = lock(&fixture, "/lock", locking::exclusive);
        for _ in 0..100 {
            lock.lock().unwrap().unlock().unwrap();
        }
        assert!(held_here::noted() < 10, "{}", held_here::noted());
    }

    #[test]
    fn a_thread_that_has_polled_the_future_of_the_holder_is_not_named_in_the_log() {
        let fixture = Fixture::new();
        fixture.server.delete(&fixture.ahead);
        let second = lock(&fixture, "/lock", locking::exclusive);
        let guard = polled(lock(&fixture, "/lock", locking::exclusive).wait_async()).unwrap();
        assert_eq!(logged_in_a_wait_with(&fixture, &guard, &second, LONG), "");
        // There is no warning after the task has downgraded the lock, either.
        let reading = Access::Read(second.support().options().naming_scheme());
        let guard = guard.downgrade(reading, second.support()).unwrap();
        assert_eq!(logged_in_a_wait_with(&fixture, &guard, &second, LONG), "");
    }

    #[test]
    fn a_thread_that_waits_for_the_lock_that_it_has_tried_or_downgraded_is_named_in_the_log() {
        let fixture = Fixture::new();
        fixture.server.delete(&fixture.ahead);
        let second = lock(&fixture, "/lock", locking::exclusive);
        let guard = lock(&fixture, "/lock", locking::exclusive).try_lock().unwrap().unwrap();
        let before = logged_in_a_wait_with(&fixture, &guard, &second, LONG);
        let reading = Access::Read(second.support().options().naming_scheme());
        let guard = guard.downgrade(reading, second.support()).unwrap();
        let after = logged_in_a_wait_with(&fixture, &guard, &second, LONG);
        for line in [before, after] {
            assert!(line.starts_with("this thread waits for /lock"), "{line}");
        }
    }

    /// Polls a future once. On the manual runtime, one poll must be enough.
    fn polled<T>(future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        let mut poll = || future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        match poll() {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => panic!("the future is pending"),
        }
    }

    #[test]
    fn a_short_wait_is_not_named_in_the_log() {
        let fixture = Fixture::new();
        let [first, second] = [(); 2].map(|()| lock(&fixture, "/lock", locking::exclusive));
        assert_eq!(logged_in_a_wait(&fixture, first, &second, SECOND), "");
    }

    #[test]
    fn a_thread_that_waits_for_another_permit_is_not_named_in_the_log() {
        let fixture = Fixture::new();
        let one = |_: &ProtocolSupport| Access::Permit(std::num::NonZeroU32::MIN);
        let [first, second] = [(); 2].map(|()| lock(&fixture, "/leases", one));
        assert_eq!(logged_in_a_wait(&fixture, first, &second, LONG), "");
    }

    #[test]
    fn a_thread_that_waits_for_others_is_not_named_in_the_log() {
        let fixture = Fixture::new();
        let other = lock(&fixture, "/other", locking::exclusive);
        drop(lock(&fixture, "/lock", locking::exclusive));
        let _guard = other.lock().unwrap();
        let waiting = lock(&fixture, "/lock", locking::exclusive);
        let wait = Wait::until_moment(fixture.runtime.now().after(LONG));
        let lines = logged_down_to(log::Level::Warn, || {
            assert!(waiting.try_lock_for(&wait).unwrap().is_none());
        });
        assert!(lines.is_empty(), "{lines:?}");
    }
}
