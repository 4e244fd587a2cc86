//! The users of blocking locks: threads that wait for guards, hold them, downgrade them and release them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::application::{self, Value};
use super::baton::{Condition, Wait as Pause, pause, role};
use super::holds::Holding;
use super::locks::{SCHEME, options};
use super::scheduler::{ALL_DIRS, DIRS};
use super::seen::saw;
use super::world::World;
use super::{faults, wire};
use crate::engine::SessionEnd;
use crate::error::Result;
use crate::locks::locking::Released;
use crate::locks::locking::finish;
use crate::locks::{MultiGuard, MultiLock, ReadGuard, ReadWriteLock, ReentrantLock, WriteGuard};
use crate::time::Moment;
use crate::{BlockingWriteLock, CancelToken, ErrorReason, LockError, LockGuard, LossReason, Session, Wait};

/// Of the ways to acquire a lock, the one in which a task waits for it.
const TASK: u64 = 3;

/// Returns a condition that holds once the flag is set.
pub(super) fn is_set(flag: &Arc<AtomicBool>) -> Condition {
    let flag = Arc::clone(flag);
    Box::new(move || flag.load(Ordering::Acquire))
}

/// A call with a deadline or a token.
pub(super) struct Call {
    thread: String,
    client: usize,
    deadline: Option<Moment>,
    cancelled: Option<Moment>,
    /// How often the clock had jumped and the process had been suspended when the call began.
    disturbances: (u64, bool),
}

impl Call {
    /// Returns the deadline if it is still ahead.
    pub(super) fn next_deadline(&self, now: Moment) -> Option<Moment> {
        self.deadline.filter(|deadline| *deadline > now)
    }

    /// Returns whether a thread must return from its call now.
    pub(super) fn is_due(&self, thread: &str, now: Moment) -> bool {
        let deadline_is_over = self.deadline.is_some_and(|deadline| deadline <= now);
        self.thread == thread && (deadline_is_over || self.cancelled.is_some())
    }
}

enum Lock {
    Exclusive(BlockingWriteLock),
    Readers(ReadWriteLock),
    Writers(ReadWriteLock),
    Multi(MultiLock),
}

enum Guard {
    Exclusive(LockGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Multi(MultiGuard),
}

impl Lock {
    fn lock(&self) -> Result<Guard> {
        match self {
            Lock::Exclusive(lock) => lock.lock().map(Guard::Exclusive),
            Lock::Readers(lock) => lock.read().map(Guard::Read),
            Lock::Writers(lock) => lock.write().map(Guard::Write),
            Lock::Multi(lock) => lock.lock().map(Guard::Multi),
        }
    }

    fn try_lock(&self) -> Result<Option<Guard>> {
        Ok(match self {
            Lock::Exclusive(lock) => lock.try_lock()?.map(Guard::Exclusive),
            Lock::Readers(lock) => lock.try_read()?.map(Guard::Read),
            Lock::Writers(lock) => lock.try_write()?.map(Guard::Write),
            Lock::Multi(lock) => lock.try_lock()?.map(Guard::Multi),
        })
    }

    fn try_lock_for(&self, wait: Wait) -> Result<Option<Guard>> {
        Ok(match self {
            Lock::Exclusive(lock) => lock.try_lock_for(wait)?.map(Guard::Exclusive),
            Lock::Readers(lock) => lock.try_read_for(wait)?.map(Guard::Read),
            Lock::Writers(lock) => lock.try_write_for(wait)?.map(Guard::Write),
            Lock::Multi(lock) => lock.try_lock_for(wait)?.map(Guard::Multi),
        })
    }

    /// Returns `None` for several locks, because a task cannot wait for them.
    fn lock_async(&self) -> Option<Pin<Box<dyn Future<Output = Result<Guard>> + Send>>> {
        match self {
            Lock::Exclusive(lock) => {
                let locking = lock.lock_async();
                Some(Box::pin(async { locking.await.map(Guard::Exclusive) }))
            }
            Lock::Readers(lock) => {
                let reading = lock.read_async();
                Some(Box::pin(async { reading.await.map(Guard::Read) }))
            }
            Lock::Writers(lock) => {
                let writing = lock.write_async();
                Some(Box::pin(async { writing.await.map(Guard::Write) }))
            }
            Lock::Multi(_) => None,
        }
    }

    fn with_lock(&self, operation: impl FnOnce(&[&LockGuard])) -> Result<()> {
        match self {
            Lock::Exclusive(lock) => lock.with_lock(|guard| operation(&[guard])),
            Lock::Readers(lock) => {
                let guard = lock.read()?;
                operation(&[&guard]);
                finish((), guard.unlock())
            }
            Lock::Writers(lock) => {
                let guard = lock.write()?;
                operation(&[&guard]);
                finish((), guard.unlock())
            }
            Lock::Multi(lock) => {
                let guard = lock.lock()?;
                operation(&guard.guards().iter().collect::<Vec<_>>());
                finish((), guard.unlock())
            }
        }
    }

    fn close(&self) {
        match self {
            Lock::Exclusive(lock) => lock.close(),
            Lock::Readers(lock) | Lock::Writers(lock) => lock.close(),
            Lock::Multi(lock) => lock.close(),
        }
    }
}

impl Guard {
    fn guards(&self) -> Vec<&LockGuard> {
        match self {
            Guard::Exclusive(guard) => vec![guard],
            Guard::Read(guard) => vec![guard],
            Guard::Write(guard) => vec![guard],
            Guard::Multi(guard) => guard.guards().iter().collect(),
        }
    }

    fn unlock(self) -> Result<Released> {
        match self {
            Guard::Exclusive(guard) => guard.unlock(),
            Guard::Read(guard) => guard.unlock(),
            Guard::Write(guard) => guard.unlock(),
            Guard::Multi(guard) => guard.unlock(),
        }
    }
}

/// A thread that uses a blocking lock once.
pub(super) struct User {
    pub(super) world: Arc<World>,
    pub(super) client: usize,
    pub(super) session: Session,
    pub(super) dir: &'static str,
}

impl User {
    /// Acquires a lock in one of five ways, holds it, and releases it.
    pub(super) fn use_lock(&self) {
        if self.world.profile.makes_records {
            self.make_records();
        }
        let tag = self.new_tag();
        let lock = Arc::new(self.new_lock(&tag));
        let closed = self.close_sometimes(&lock);
        let way = self.choose_way();
        let outcome = match way {
            0 => match self.with_lock(&lock) {
                Some(outcome) => outcome.map(|()| None),
                None => return self.check_that_nothing_is_held(&tag),
            },
            1 => lock.try_lock(),
            2 => lock.lock().map(Some),
            3 => match lock.lock_async() {
                Some(locking) => {
                    let of_closer = Arc::clone(&lock);
                    self.close_while_a_task_waits(&closed, move || of_closer.close());
                    self.run_task(self.owning(locking), Some(is_set(&closed))).transpose()
                }
                None => lock.lock().map(Some),
            },
            _ => self.try_lock_for(&lock),
        };
        match outcome {
            Ok(Some(guard)) => self.keep(guard),
            Ok(None) if way == 0 => {}
            Ok(None) => self.check_that_nothing_is_held(&tag),
            Err(error) => {
                self.world.note(format!("a blocking lock fails: {error}"));
                self.check_error(&error);
                if way > 1 {
                    self.check_loss(&error);
                }
                self.check_that_nothing_is_held(&tag);
            }
        }
    }

    /// Draws one of five ways to acquire a lock, as a number below 6. The two highest numbers mean the same way.
    pub(super) fn choose_way(&self) -> u64 {
        let mut state = self.world.state();
        let way = state.random.below(6);
        // Tasks run the most code of the application.
        if self.world.profile.misbehaves && state.application.one_in(4) { TASK } else { way }
    }

    /// Holds a lock in a closure. Returns `None` if the closure panics.
    fn with_lock(&self, lock: &Lock) -> Option<Result<()>> {
        let value = Value::new(&self.world, application::CLOSURE_DROP);
        application::survive(|| {
            lock.with_lock(move |guards| {
                let _value = value;
                self.hold(guards);
                application::run(&self.world, application::CLOSURE);
            })
        })
    }

    /// Acquires a lock on behalf of other code.
    pub(super) fn acquire_briefly(&self) {
        let lock = BlockingWriteLock::with_options(&self.session, self.dir, options(&self.world));
        let lock = lock.expect("a good path");
        match self.wait_limited(|wait| lock.try_lock_for(wait)) {
            Ok(Some(guard)) => {
                let _holding = Holding::of(&self.world, [guard.request()]);
                self.check_guards(&[&guard]);
                drop(guard);
            }
            Ok(None) => {}
            Err(error) => self.check_error(&error),
        }
    }

    /// Starts more requests than a narrow link can transmit in a session timeout, and gives up each at once.
    /// No owner on the same session may be harmed.
    pub(super) fn start_too_much(&self) {
        const REQUESTS: usize = 120;
        let lock = BlockingWriteLock::with_options(&self.session, self.dir, options(&self.world));
        let lock = lock.expect("a good path");
        self.world.note(format!("starts {REQUESTS} requests on {}", self.dir));
        for _ in 0..REQUESTS {
            match lock.try_lock_for(Wait::until_moment(self.world.now())) {
                Ok(guard) => drop(guard),
                Err(error) => return self.check_error(&error),
            }
        }
    }

    pub(super) fn new_tag(&self) -> String {
        let mut state = self.world.state();
        state.tags += 1;
        format!("user {}", state.tags)
    }

    fn new_lock(&self, tag: &str) -> Lock {
        let options = options(&self.world).data(tag).naming(SCHEME);
        let kind = {
            let profile = &self.world.profile;
            let (shares, several) = (profile.shares, profile.dirs > 1);
            let mut state = self.world.state();
            match state.random.below(6) {
                0 | 1 if several => 'm',
                2 | 3 if shares => 'r',
                4 | 5 if shares => 'w',
                _ => 'x',
            }
        };
        self.world.note(format!("uses a blocking lock ('{kind}') on {}", self.dir));
        match kind {
            'm' => {
                let dirs = if self.world.state().random.one_in(2) { DIRS } else { [DIRS[1], DIRS[0]] };
                Lock::Multi(MultiLock::with_options(&self.session, dirs, options).expect("good dirs"))
            }
            'x' => Lock::Exclusive(
                BlockingWriteLock::with_options(&self.session, self.dir, options).expect("a good path"),
            ),
            shared => {
                let lock =
                    ReadWriteLock::with_options(&self.session, self.dir, options).expect("a good path");
                if shared == 'r' { Lock::Readers(lock) } else { Lock::Writers(lock) }
            }
        }
    }

    /// Sometimes makes another thread close the lock.
    fn close_sometimes(&self, lock: &Arc<Lock>) -> Arc<AtomicBool> {
        let lock = Arc::clone(lock);
        self.sometimes_close(move || lock.close())
    }

    /// Like `close_sometimes`, for any lock.
    ///
    /// Returns a flag that is set when the lock is closed.
    pub(super) fn sometimes_close(&self, close: impl FnOnce() + Send + 'static) -> Arc<AtomicBool> {
        let closed = Arc::new(AtomicBool::new(false));
        if self.world.in_trouble() && self.world.state().random.one_in(16) {
            self.close_later(&closed, close);
        }
        closed
    }

    fn close_later(&self, closed: &Arc<AtomicBool>, close: impl FnOnce() + Send + 'static) {
        let (world, closed) = (Arc::clone(&self.world), Arc::clone(closed));
        let at = self.some_time_from_now();
        self.spawn("closer", move || {
            if world.in_trouble() {
                pause(Pause::Time(at));
            }
            world.note("closes a blocking lock");
            saw("lock-closed-by-another-thread");
            close();
            closed.store(true, Ordering::Release);
        });
    }

    /// Sometimes closes a lock for which a task waits, or closes the lock's session while the session is being
    /// replaced.
    pub(super) fn close_while_a_task_waits(
        &self,
        closed: &Arc<AtomicBool>,
        close: impl FnOnce() + Send + 'static,
    ) {
        if !self.world.profile.misbehaves || !self.world.in_trouble() {
            return;
        }
        let choice = self.world.state().application.below(16);
        match choice {
            0..4 => self.close_later(closed, close),
            4..6 if self.session.replacement().is_some() => self.close_between_sessions(),
            _ => {}
        }
    }

    /// Closes the session when it has been lost, before another replaces it.
    fn close_between_sessions(&self) {
        let (world, session, client) = (Arc::clone(&self.world), self.session.clone(), self.client);
        self.spawn("closer", move || {
            let (of_wait, core) = (Arc::clone(&world), session.core());
            let is_lost = move || !of_wait.in_trouble() || core.snapshot().end_reason.is_some();
            pause(Pause::Until(Box::new(is_lost)));
            if world.in_trouble() {
                world.note("closes a session that is replaced");
                saw("session-closed-while-replaced");
                let own = world.state().clients[client].session.take();
                drop(own);
                session.close();
            }
        });
    }

    /// Checks that the outcome of a future is an owner when the future completes, however late that is.
    fn owning(
        &self,
        locking: Pin<Box<dyn Future<Output = Result<Guard>> + Send>>,
    ) -> impl Future<Output = Result<Guard>> + Send + 'static {
        let world = Arc::clone(&self.world);
        async move {
            let outcome = locking.await;
            let is_owner = |guard: &Guard| guard.guards().iter().all(|guard| guard.is_owner());
            if !outcome.as_ref().map_or(true, is_owner) {
                world.fail("a future returns a guard that is not the owner");
            }
            outcome
        }
    }

    fn spawn(&self, name: &'static str, body: impl FnOnce() + Send + 'static) {
        self.world.state().clients[self.client].to_spawn.push_back((name, Box::new(body)));
    }

    /// Waits with a deadline, a token, or both. Checks that the call returns neither late nor early.
    fn try_lock_for(&self, lock: &Lock) -> Result<Option<Guard>> {
        self.wait_limited(|wait| lock.try_lock_for(wait))
    }

    /// Like [`try_lock_for`](User::try_lock_for), for any call.
    pub(super) fn wait_limited<G>(&self, call: impl FnOnce(Wait) -> Result<Option<G>>) -> Result<Option<G>> {
        let chosen = self.world.state().random.below(3);
        let deadline = (chosen != 0).then(|| self.some_time_from_now());
        let token = (chosen != 1).then(CancelToken::new);
        let mut wait = deadline.map_or_else(Wait::forever, Wait::until_moment);
        if let Some(token) = &token {
            wait = wait.cancelled_by(token);
        }
        let number = self.begin_call(deadline);
        if let Some(token) = token {
            let (world, at) = (Arc::clone(&self.world), self.some_time_from_now());
            self.spawn("canceller", move || {
                if world.in_trouble() {
                    pause(Pause::Time(at));
                }
                let now = world.now();
                if let Some(call) = world.state().calls.get_mut(&number) {
                    call.cancelled = Some(now);
                }
                saw("call-cancelled");
                world.note("cancels a call");
                token.cancel();
            });
        }
        let outcome = call(wait);
        self.end_call(number, &outcome);
        outcome
    }

    fn begin_call(&self, deadline: Option<Moment>) -> usize {
        let thread = role().map(|role| role.name).unwrap_or_default();
        let mut state = self.world.state();
        let disturbances = state.disturbances(self.client, self.world.now());
        state.tags += 1;
        let number = state.tags;
        let call = Call { thread, client: self.client, deadline, cancelled: None, disturbances };
        state.calls.insert(number, call);
        number
    }

    /// Checks when a call returned. Time does not pass while a thread could return, so a wait must end
    /// exactly at its deadline or at the moment of its cancellation.
    fn end_call<G>(&self, number: usize, outcome: &Result<Option<G>>) {
        let now = self.world.now();
        let mut state = self.world.state();
        let Some(call) = state.calls.remove(&number) else { return };
        if call.disturbances != state.disturbances(call.client, now) {
            return;
        }
        drop(state);
        let Call { deadline, cancelled, .. } = call;
        let broken = match outcome {
            _ if deadline.is_some_and(|deadline| now > deadline) => "returned after its deadline",
            _ if cancelled.is_some_and(|cancelled| now > cancelled) => "returned late after it was cancelled",
            Ok(None) if deadline != Some(now) => "timed out before its deadline",
            Err(error) if error.reason() == ErrorReason::Cancelled && cancelled.is_none() => {
                "was cancelled by nobody"
            }
            _ => return,
        };
        self.world.fail(format!("a call {broken} ({deadline:?}, {cancelled:?}, {now:?})"));
    }

    pub(super) fn some_time_from_now(&self) -> Moment {
        let now = self.world.now();
        let mut state = self.world.state();
        // A longer hold would outlast the end of the run.
        let longest = state.clients[self.client].session_timeout.min(Duration::from_secs(10));
        let longest = longest.as_nanos() as u64;
        let longest = state.random.of(&[1, longest / 20, longest / 2, 2 * longest]);
        now.after(Duration::from_nanos(state.random.below(longest)))
    }

    /// Acts under a guard, perhaps downgrades it, and releases it.
    fn keep(&self, guard: Guard) {
        if matches!(&guard, Guard::Multi(guard) if guard.guards().len() != DIRS.len()) {
            self.world.fail("a guard of several locks does not hold all of them");
        }
        let mut holding = Holding::of(&self.world, guard.guards().into_iter().map(LockGuard::request));
        self.hold(&guard.guards());
        match &guard {
            Guard::Exclusive(guard) => self.commit(guard),
            Guard::Write(guard) => self.commit(guard),
            Guard::Read(_) | Guard::Multi(_) => {}
        }
        let guard = match guard {
            Guard::Write(guard) if !self.world.state().random.one_in(3) => {
                let guard = self.downgrade(guard);
                holding = holding.downgraded(guard.guards().into_iter().map(LockGuard::request));
                let guards = guard.guards();
                if !self.world.profile.mixes || !self.hold_beyond_the_limit(&guards) {
                    self.hold(&guards);
                }
                guard
            }
            guard => guard,
        };
        let drops = self.world.state().random.one_in(3);
        let Some((guard, holding)) = self.world.leave((guard, holding)) else { return };
        if drops {
            drop(guard);
        } else {
            let held = guard.guards().iter().all(|guard| guard.loss().is_none());
            let released = guard.unlock();
            self.world.note(format!("releases a blocking lock: {released:?}"));
            let must_succeed = held && self.world.profile.is_calm();
            if let Err(error) = released {
                // The hold may have reached its limit in the meantime.
                let is_expected = error.is_closed() || error.reason() == ErrorReason::HeldTooLong;
                if must_succeed && !is_expected {
                    self.world.fail(format!("a lock was held, but its release failed: {error}"));
                }
            }
        }
        drop(holding);
    }

    fn downgrade(&self, guard: WriteGuard) -> Guard {
        faults::delete_owners_znode(&self.world, self.dir, &guard.request());
        match guard.downgrade() {
            Ok(guard) => {
                self.world.note("has downgraded a blocking lock");
                self.world.state().tentative.remove(guard.id());
                Guard::Read(guard)
            }
            Err(failed) => {
                self.world.note(format!("fails to downgrade a blocking lock: {failed}"));
                Guard::Write(*failed.guard)
            }
        }
    }

    /// Acts under guards for a while.
    pub(super) fn hold(&self, guards: &[&LockGuard]) {
        let _holding = Holding::of(&self.world, guards.iter().map(|guard| guard.request()));
        self.world.state().acquisitions += 1;
        self.world.note(format!("holds {} blocking locks", guards.len()));
        self.check_guards(guards);
        if let Some(guard) = guards.first() {
            faults::perhaps_change_leader_of_owner(&self.world, self.client, &guard.request());
            faults::perhaps_hold_through_stalls(&self.world, &guard.request());
        }
        let holds_on = self.world.in_trouble() && self.world.state().application.one_in(3);
        if holds_on && self.hold_beyond_the_limit(guards) {
            return;
        }
        let awaits_loss = self.world.state().holds_so_far % 2 == 0;
        let uses_register = self.world.state().random.one_in(2);
        if let Some(guard) = guards.first().filter(|_| uses_register && self.world.in_trouble()) {
            wire::faults::perhaps_strike_at_hand_over(&self.world, self.client);
            self.use_register(guard);
        }
        if !self.world.in_trouble() {
            pause(Pause::Turn);
        } else if self.world.state().random.one_in(2) {
            pause(Pause::Time(self.some_time_from_now()));
        } else if let (&[guard], true) = (guards, awaits_loss) {
            let until = self.some_time_from_now();
            if self.world.profile.misbehaves && self.world.state().application.one_in(2) {
                self.await_loss_twice(guard, until);
            } else {
                self.await_loss(guard, until);
            }
        } else if let Some(guard) = guards.first() {
            let until = self.some_time_from_now();
            let lost = guard.lost().clone();
            pause(Pause::Signals(vec![Box::new(move || !lost.is_empty())], Some(until)));
            if !guard.lost().is_empty() && guards.iter().all(|it| it.loss().is_none()) {
                self.world.fail("a loss was reported without cause");
            }
        }
        self.check_guards(guards);
    }

    /// Holds until the very moment at which the hold ends, perhaps before the library has noticed. Returns `false` at
    /// once if the hold has no limit, or if the run has calmed down.
    fn hold_beyond_the_limit(&self, guards: &[&LockGuard]) -> bool {
        let is_limited = |guard: &&&LockGuard| guard.request().max_hold().is_some();
        let in_trouble = self.world.in_trouble();
        let Some(guard) = guards.first().filter(|guard| in_trouble && is_limited(guard)) else {
            return false;
        };
        saw("held-beyond-the-limit");
        let (world, request) = (Arc::clone(&self.world), guard.request());
        pause(Pause::Until(Box::new(move || !request.is_owner() || !world.in_trouble())));
        let before = guard.loss();
        pause(Pause::Turn);
        if (before, guard.loss()) == (Some(LossReason::LeaseExpired), Some(LossReason::HeldTooLong)) {
            self.world.fail("the end of a lease was reported for a hold that reached its limit");
        }
        self.check_guards(guards);
        true
    }

    pub(super) fn await_loss(&self, guard: &LockGuard, until: Moment) {
        let request = guard.request();
        let is_lost: Condition = Box::new(move || request.loss().is_some());
        let lost = self.run_task_until(guard.lost_async(), Some(until), Some(is_lost));
        if lost.is_some() && guard.loss().is_none() {
            self.world.fail("a loss completed a task's future without cause");
        }
    }

    /// Checks that a guard owns the lock or says why it does not.
    fn check_guards(&self, guards: &[&LockGuard]) {
        if guards.iter().any(|guard| !guard.is_owner() && guard.loss().is_none()) {
            self.world.fail("a guard does not own and reports no loss");
        }
        let is_unlimited = |guard: &&LockGuard| guard.request().max_hold().is_none();
        let is_over = |guard: &&LockGuard| guard.loss() == Some(LossReason::HeldTooLong);
        if guards.iter().any(|guard| is_over(guard) && is_unlimited(guard)) {
            self.world.fail("a hold without a limit reached a limit");
        }
        let has_no_lease = |guard: &&LockGuard| guard.loss() == Some(LossReason::LeaseExpired);
        if self.world.profile.is_calm() && guards.iter().any(has_no_lease) {
            self.world.fail("an owner lost its lock although its link works");
        }
    }

    /// Checks an error. Without faults, a request fails only because of a closed lock or session, a cancellation, the
    /// limit of a hold, or the end of the counter.
    pub(super) fn check_error(&self, error: &LockError) {
        // A closed session has lost its locks. A commit under such a lock changes nothing, which is what this
        // error says.
        let was_closed = error.reason() == ErrorReason::NotOwner
            && self.session.core().snapshot().end_reason == Some(SessionEnd::Closed);
        let is_of_limit = matches!(error.reason(), ErrorReason::NotOwner | ErrorReason::HeldTooLong)
            && self.world.profile.limits_holds;
        // A transaction checks the owner's znode, which needs READ.
        let is_unreadable = self.world.profile.unreadable && error.reason() == ErrorReason::AccessDenied;
        let is_expected = error.is_closed()
            || was_closed
            || is_of_limit
            || is_unreadable
            || matches!(error.reason(), ErrorReason::SequenceExhausted | ErrorReason::Cancelled);
        if self.world.profile.is_calm() && !is_expected {
            self.world.fail(format!("a blocking lock failed without cause: {error}"));
        }
    }

    /// Checks that a waiting call survives the loss of a session that is replaced.
    pub(super) fn check_loss(&self, error: &LockError) {
        let is_replaced = self.session.replacement().is_some_and(|replacement| !replacement.is_closed());
        let is_lost = error.is_session_lost() || error.reason() == ErrorReason::LeaseExpired;
        if is_replaced && is_lost {
            self.world.fail(format!("a call ended with a session that is replaced: {error}"));
        }
    }

    /// Checks that whatever was left by a call that returned no guard is deleted before time passes, unless something
    /// delays the deletion.
    pub(super) fn check_that_nothing_is_held(&self, tag: &str) {
        let profile = &self.world.profile;
        if !profile.is_prompt() {
            return;
        }
        let soon = self.world.now().after(Duration::from_nanos(1));
        let is_free = {
            let (world, tag) = (Arc::clone(&self.world), tag.to_owned());
            move || !world.is_requested_with(&tag)
        };
        pause(Pause::Signals(vec![Box::new(is_free)], Some(soon)));
        if self.world.is_requested_with(tag) {
            self.world.fail(format!("a call that returned no guard left the request of {tag}"));
        }
    }

    /// Acquires a lock several times on one thread.
    pub(super) fn use_reentrant_lock(&self) {
        let tag = self.new_tag();
        let options = options(&self.world).data(&*tag);
        let lock = BlockingWriteLock::with_options(&self.session, self.dir, options).expect("a good path");
        let lock = ReentrantLock::new(lock);
        self.world.note(format!("uses a reentrant lock on {}", self.dir));
        let outer = match lock.lock() {
            Ok(guard) => guard,
            Err(error) => return self.check_error(&error),
        };
        let _holding = Holding::of(&self.world, [outer.request()]);
        self.hold(&[&outer]);
        let (begun, requests) = (self.world.now(), self.world.created_with(&tag));
        let inner = match self.world.state().random.below(3) {
            0 => lock.lock().map(Some),
            1 => lock.try_lock(),
            _ => lock.try_lock_for(Wait::forever()),
        };
        if self.world.now() != begun || self.world.created_with(&tag) != requests {
            self.world.fail("a thread that held a reentrant lock made another request");
        }
        match inner {
            Ok(Some(inner)) => {
                self.hold(&[&inner]);
                drop(outer);
                self.hold(&[&inner]);
                self.world.note(format!("releases a reentrant lock: {:?}", inner.unlock()));
            }
            Ok(None) => self.world.fail("a thread that held a reentrant lock was refused"),
            Err(error) if outer.is_owner() => self.world.fail(format!("an owner was refused: {error}")),
            Err(_) => {}
        }
        if lock.hold_count() > 1 {
            self.world.fail("a reentrant lock counts a hold that has ended");
        }
    }
}

impl World {
    /// Returns whether a request with these data is in a queue.
    fn is_requested_with(&self, tag: &str) -> bool {
        ALL_DIRS.iter().any(|dir| {
            let children = self.requests_in(dir);
            let data = |name: &String| self.zookeeper.data(&format!("{dir}/{name}"));
            children.iter().any(|name| data(name).is_some_and(|data| data == tag.as_bytes()))
        })
    }

    /// Returns how often a znode with these data was created.
    fn created_with(&self, tag: &str) -> usize {
        self.state().created.get(tag.as_bytes()).copied().unwrap_or(0)
    }
}
