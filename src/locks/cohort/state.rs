//! The state of a cohort: the waiting threads, and the request of the process.
//!
//! The phases:
//! - `Idle`: there is no request. When a thread waits, `Starting` follows.
//! - `Starting`: a thread is making a request. `Joining` follows, or `Idle` if nobody waits any more.
//! - `Joining`: the request waits, in the queue or for the next session. `Owned` follows when it acquires the lock, or
//!   `Idle` when it ends or the last thread gives up.
//! - `Owned`: a thread holds the lock, or the lock is kept. `Idle` follows when the lock is lost, or when the
//!   process releases it.
//!
//! A request reports its events under the mutex of its session. So nothing here may call the session. Instead, such
//! calls become [`Work`], which a thread does later while it holds no mutex.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use crossbeam_channel::Sender;

use super::ownership::{Behind, CohortOwnership, Usage};
use super::request::CohortRequest;
use super::turns::{Departure, Entry, Grant, KeepTimer, Left, Retired, Turn, Work};
use crate::error::{LockError, LossReason, Operation, Result};
use crate::lock_order::{Mutex, MutexGuard, rank::COHORT};
use crate::locks::cohort_options::CohortOptions;
use crate::request::{Ending, LastingRequest, Request, RequestEvent};
use crate::time::{Filler, Slot};
use crate::tracking::WaiterWatch;

pub(crate) struct CohortShared {
    options: CohortOptions,
    state: Mutex<COHORT, CohortState>,
}

pub(super) struct CohortState {
    pub(super) phase: CohortPhase,
    /// The waiting threads, in order of arrival. Empty while the lock is kept.
    pub(super) waiters: VecDeque<Waiter>,
    /// The last number given to a request or a waiter.
    last_number: u64,
    /// Whether the lock was closed, or its last handle was dropped.
    is_closed: bool,
    /// Requests to withdraw and watches to drop once the mutex is free.
    retired: Vec<Retired>,
    pub(super) tally: Tally,
}

/// Counters for `Debug`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// How often a thread was granted the lock.
    pub(crate) grants: u64,
    /// How often a thread handed the lock over to another.
    pub(crate) handovers: u64,
    /// The number of the last waiter that was granted the lock.
    pub(crate) last_granted: u64,
}

pub(super) enum CohortPhase {
    Idle,
    Starting,
    Joining {
        /// Distinguishes the requests of one cohort.
        number: u64,
        request: Arc<LastingRequest>,
    },
    Owned(CohortOwnership),
}

/// A waiting thread.
pub(super) struct Waiter {
    number: u64,
    started: Option<Filler<Result<Arc<Request>>>>,
    outcome: Filler<Result<Grant>>,
}

impl CohortShared {
    pub(super) fn new(options: CohortOptions) -> Arc<CohortShared> {
        let state = CohortState {
            phase: CohortPhase::Idle,
            waiters: VecDeque::new(),
            last_number: 0,
            is_closed: false,
            retired: Vec::new(),
            tally: Tally::default(),
        };
        Arc::new(CohortShared { options, state: Mutex::new(state) })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, COHORT, CohortState> {
        self.state.lock()
    }

    // ---- threads

    /// Lets a thread enter the queue of the cohort, or gives it a kept lock.
    pub(super) fn enter(&self, only_tries: bool) -> Entry {
        let mut state = self.lock();
        if state.is_closed {
            return Entry::Closed;
        }
        if let CohortPhase::Owned(ownership) = &mut state.phase {
            if matches!(ownership.usage, Usage::Kept { .. }) {
                if ownership.request.holds_lease() && ownership.has_time() {
                    let grant = ownership.begin_tenure();
                    state.tally.grants += 1;
                    return Entry::Granted(grant);
                }
                // Nobody has noticed yet that the lock was lost or that its time is up.
                state.retire();
            }
        }
        // Even without a request, other threads may be waiting for one to be made. A `try_lock` behind them would have
        // to wait for its turn.
        if only_tries && !(matches!(state.phase, CohortPhase::Idle) && state.waiters.is_empty()) {
            return Entry::Busy;
        }
        let number = state.new_number();
        let ((to_start, started), (filler, outcome)) = (Slot::new(), Slot::new());
        let started_for = only_tries.then_some(to_start);
        state.waiters.push_back(Waiter { number, started: started_for, outcome: filler });
        Entry::Waits { number, turn: Turn { started, outcome } }
    }

    /// Returns the request that waits on behalf of the threads, if there is one.
    pub(super) fn joining(&self) -> Option<Arc<LastingRequest>> {
        match &self.lock().phase {
            CohortPhase::Joining { request, .. } => Some(Arc::clone(request)),
            _ => None,
        }
    }

    /// Removes a thread that gives up.
    pub(super) fn leave(&self, number: u64) -> Left {
        let mut state = self.lock();
        let Some(position) = state.waiters.iter().position(|waiter| waiter.number == number) else {
            return Left::Granted;
        };
        state.waiters.remove(position);
        if !state.waiters.is_empty() {
            return Left::Others;
        }
        match mem::replace(&mut state.phase, CohortPhase::Idle) {
            CohortPhase::Joining { request, .. } => Left::Last(request),
            // In the other phases, the thread that takes the next step finds that nobody waits.
            other => {
                state.phase = other;
                Left::Others
            }
        }
    }

    /// Ends the hold of a thread: hands the lock over, keeps it, or gives it up.
    pub(super) fn release(&self, grant: &Grant) -> Departure {
        let mut state = self.lock();
        let CohortState { phase, waiters, is_closed, .. } = &mut *state;
        let Some(ownership) = phase.owned_by(grant) else { return Departure::Lost };
        if !grant.request.holds_lease() {
            return state.take_ownership().map_or(Departure::Lost, Departure::Goes);
        }
        let now = grant.request.core().now();
        // A commit whose reply was lost may take effect as long as the znode exists, even during the next thread's turn.
        let may_stay = ownership.has_time() && grant.request.commit_fence().version().is_ok();
        let may_hand_over = may_stay
            && ownership.behind.as_ref().is_none_or(|behind| {
                behind.handovers < self.options.max_handovers
                    && now.since(behind.since) < self.options.hand_over_for
            });
        let may_keep =
            may_stay && ownership.behind.is_none() && !*is_closed && !self.options.keep_for.is_zero();
        match waiters.pop_front() {
            Some(next) if may_hand_over => {
                if let Some(behind) = &mut ownership.behind {
                    behind.handovers += 1;
                }
                state.tally.handovers += 1;
                state.grant(next);
                Departure::Stays(None)
            }
            Some(next) => {
                waiters.push_front(next);
                state.take_ownership().map_or(Departure::Lost, Departure::Goes)
            }
            None if may_keep => {
                let until = now.after(self.options.keep_for);
                let until = ownership.request.half_time().map_or(until, |half| until.min(half));
                ownership.usage = Usage::Kept { until };
                // From now on, no earlier guard owns the lock.
                ownership.request.next_tenure();
                let starts_timer = !mem::replace(&mut ownership.has_timer, true);
                Departure::Stays(starts_timer.then_some(until))
            }
            None => state.take_ownership().map_or(Departure::Lost, Departure::Goes),
        }
    }

    /// Sends the reason to this channel when the lock is lost. Returns `false` if the lock is already lost.
    pub(crate) fn report_loss_to(&self, grant: &Grant, sender: &Sender<LossReason>) -> bool {
        match self.lock().phase.owned_by(grant) {
            Some(CohortOwnership { usage: Usage::Held { lost, .. }, .. }) => {
                *lost = Some(sender.clone());
                true
            }
            _ => false,
        }
    }

    /// Sends a message to this channel when another client asks for the release of the lock.
    pub(crate) fn report_revocation_to(&self, grant: &Grant, sender: &Sender<()>) {
        let mut state = self.lock();
        let ownership = state.phase.owned_by(grant);
        if let Some(CohortOwnership { usage: Usage::Held { revocation, .. }, .. }) = ownership {
            *revocation = Some(sender.clone());
        }
    }

    /// Closes the cohort: waiting threads and later calls fail, and the lock is no longer kept.
    pub(super) fn close(&self, error: &LockError) {
        let mut state = self.lock();
        state.is_closed = true;
        // Each waiter is woken individually, because a latch shared by all waiters would slow down every wait.
        state.fail(error);
        match mem::replace(&mut state.phase, CohortPhase::Idle) {
            CohortPhase::Joining { request, .. } => state.retire_joining(request),
            other => state.phase = other,
        }
        if state.is_kept() {
            state.retire();
        }
    }

    // ---- the request

    /// Installs a new request, which waits on behalf of the threads. Returns `false` if no thread waits. If
    /// the first waiter is a `try_lock`, it receives `made`.
    pub(super) fn install(
        &self,
        number: u64,
        request: &Arc<LastingRequest>,
        made: Result<Arc<Request>>,
    ) -> bool {
        let mut state = self.lock();
        let Some(first) = state.waiters.front_mut() else {
            state.phase = CohortPhase::Idle;
            return false;
        };
        if let Some(started) = first.started.take() {
            started.fill(made);
        }
        state.phase = CohortPhase::Joining { number, request: Arc::clone(request) };
        true
    }

    /// Handles an event of the request with this number.
    pub(super) fn take_event(&self, number: u64, event: &RequestEvent) {
        let mut state = self.lock();
        match (&mut state.phase, event) {
            (CohortPhase::Joining { number: joining, request }, RequestEvent::Acquired { .. })
                if *joining == number =>
            {
                // Cannot be `None`: whoever takes or withdraws the request ends this phase first.
                let Some(request) = request.take() else { return };
                state.acquired(CohortRequest::new(number, request));
            }
            (
                CohortPhase::Joining { number: joining, request },
                RequestEvent::Ended { how: Ending::Dropped(..), .. },
            ) if *joining == number => {
                let request = Arc::clone(request);
                state.dropped(request);
            }
            (CohortPhase::Owned(ownership), RequestEvent::Ended { how: Ending::Lost(reason), .. })
                if ownership.request.number == number =>
            {
                if let Usage::Held { lost: Some(lost), .. } = &ownership.usage {
                    let _ = lost.try_send(*reason);
                }
                state.retire();
            }
            (CohortPhase::Owned(ownership), RequestEvent::RevocationRequested)
                if ownership.request.number == number =>
            {
                if let Usage::Held { revocation: Some(revocation), .. } = &ownership.usage {
                    let _ = revocation.try_send(());
                }
                // No other thread of this process gets the lock through this request: the next release frees it.
                let since = ownership.request.core().now();
                ownership.behind = Some(Behind { since, handovers: u32::MAX });
                if state.is_kept() {
                    state.retire();
                }
            }
            // An event of an earlier request.
            _ => {}
        }
    }

    /// Notes that a request waits behind this one.
    pub(super) fn note_waiter(&self, number: u64) {
        let mut state = self.lock();
        let Some(ownership) = state.phase.owned_as(number) else { return };
        let since = ownership.request.core().now();
        ownership.behind.get_or_insert(Behind { since, handovers: 0 });
        let watch = ownership.watch.take();
        state.retired.push(Retired { watch, ..Retired::default() });
        if state.is_kept() {
            state.retire();
        }
    }

    /// Keeps the watch for requests behind this one. If a watch is no longer needed, returns it.
    pub(super) fn keep_watch(&self, number: u64, watch: WaiterWatch) -> Option<WaiterWatch> {
        match self.lock().phase.owned_as(number) {
            Some(ownership) if ownership.behind.is_none() => ownership.watch.replace(watch),
            _ => Some(watch),
        }
    }

    /// Handles the timer of a kept lock, and returns what happens to the timer.
    pub(super) fn ring(&self, number: u64) -> KeepTimer {
        let mut state = self.lock();
        let Some(ownership) = state.phase.owned_as(number) else { return KeepTimer::Cancelled };
        let now = ownership.request.core().now();
        match ownership.usage {
            Usage::Kept { until } if now < until => KeepTimer::Rearm(until),
            Usage::Kept { .. } => {
                state.retire();
                KeepTimer::Expired
            }
            Usage::Held { .. } => {
                ownership.has_timer = false;
                KeepTimer::Cancelled
            }
        }
    }

    /// Returns the next piece of work, which the caller must do without holding a mutex.
    pub(super) fn next_work(&self) -> Option<Work> {
        let mut state = self.lock();
        if let Some(retired) = state.retired.pop() {
            return Some(Work::Retire(retired));
        }
        let CohortState { phase, waiters, .. } = &mut *state;
        match phase {
            CohortPhase::Idle if !waiters.is_empty() => {
                *phase = CohortPhase::Starting;
                Some(Work::Start(state.new_number()))
            }
            CohortPhase::Owned(ownership) if ownership.behind.is_none() => {
                let has_begun = mem::replace(&mut ownership.watch_has_begun, true);
                (!has_begun).then(|| Work::Watch(Arc::clone(&ownership.request)))
            }
            _ => None,
        }
    }
}

impl CohortState {
    fn new_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn acquired(&mut self, request: Arc<CohortRequest>) {
        let (behind, watch) = (None, None);
        let ownership = CohortOwnership {
            request,
            usage: Usage::HELD,
            behind,
            watch,
            watch_has_begun: false,
            has_timer: false,
        };
        self.phase = CohortPhase::Owned(ownership);
        match self.waiters.pop_front() {
            Some(first) => self.grant(first),
            // Cannot happen: the last thread to give up also ends the request.
            None => self.retire(),
        }
    }

    fn grant(&mut self, waiter: Waiter) {
        let CohortPhase::Owned(ownership) = &mut self.phase else { return };
        self.tally.last_granted = waiter.number;
        self.tally.grants += 1;
        waiter.outcome.fill(Ok(ownership.begin_tenure()));
    }

    pub(super) fn is_kept(&self) -> bool {
        matches!(&self.phase, CohortPhase::Owned(CohortOwnership { usage: Usage::Kept { .. }, .. }))
    }

    /// Ends the ownership of the process, and returns whatever must be ended outside the mutex.
    fn take_ownership(&mut self) -> Option<Retired> {
        match mem::replace(&mut self.phase, CohortPhase::Idle) {
            CohortPhase::Owned(CohortOwnership { request, watch, .. }) => {
                Some(Retired { request: Some(request), watch, joining: None })
            }
            other => {
                self.phase = other;
                None
            }
        }
    }

    /// Ends the ownership of the process. The next thread that holds no mutex does the rest.
    fn retire(&mut self) {
        let retired = self.take_ownership();
        self.retired.extend(retired);
    }

    fn retire_joining(&mut self, request: Arc<LastingRequest>) {
        self.retired.push(Retired { joining: Some(request), ..Retired::default() });
    }

    /// Handles the end of a request that never owned the lock.
    fn dropped(&mut self, request: Arc<LastingRequest>) {
        self.fail(&request.unclassified_end_error(Operation::LOCK));
        self.phase = CohortPhase::Idle;
        self.retire_joining(request);
    }

    /// Fails all waiting threads.
    fn fail(&mut self, error: &LockError) {
        for waiter in mem::take(&mut self.waiters) {
            waiter.outcome.fill(Err(error.clone()));
        }
    }
}

impl CohortPhase {
    fn owned_as(&mut self, number: u64) -> Option<&mut CohortOwnership> {
        match self {
            CohortPhase::Owned(ownership) if ownership.request.number == number => Some(ownership),
            _ => None,
        }
    }

    /// Returns the ownership if this grant still holds the lock.
    fn owned_by(&mut self, grant: &Grant) -> Option<&mut CohortOwnership> {
        let ownership = self.owned_as(grant.request.number)?;
        let is_held = matches!(ownership.usage, Usage::Held { .. });
        (is_held && ownership.request.tenure() == grant.tenure).then_some(ownership)
    }
}
