//! A cohort: the threads of one process that share a place in the queue of a lock.
//!
//! One request waits on behalf of all threads. It belongs to the cohort, not to the thread that asked first.
//! So the request stays for as long as any thread waits, whatever the deadlines of the others. Once the
//! request owns the lock, the threads hand the lock over in memory.
//!
//! - [`state`] keeps track of the waiting threads and the request, under one mutex.
//! - [`request`] defines the request and receives its events.
//! - Only this module and [`turns`] make calls that may take the session's mutex, and they hold no mutex during such a
//!   call. [`state`] makes none: events reach it under the session's mutex, so a call under the cohort's mutex could
//!   deadlock.
//!
//! Origin: "Lock Cohorting" by Dice, Marathe and Shavit (2012). Here, the queue on the servers is the global lock.
//! Cluster file systems have similar locks, which a node keeps until another node asks for them.

mod ownership;
pub(crate) mod request;
pub(crate) mod state;
#[cfg(test)]
mod tests;
mod turns;
#[cfg(test)]
pub(crate) mod view;

use std::sync::{Arc, Weak};

use self::request::{CohortObserver, CohortRequest};
use self::state::{CohortShared, Tally};
pub(crate) use self::turns::Grant;
use self::turns::{Departure, Entry, KeepTimer, Left, Turn, Work};
use crate::error::{ErrorReason, LockError, LossReason, Operation, Result};
use crate::locks::blocking_lock::retry_lasting;
use crate::locks::cohort_options::CohortOptions;
use crate::locks::locking::{self, Release, Released};
use crate::process::Process;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::path::ZNodePath;
use crate::request::{LastingRequest, Place};
use crate::session::{Core, Session, check_process};
use crate::time::Moment;
use crate::tracking::WaiterWatch;
use crate::wait::{Wait, Waited};

pub(crate) struct Cohort {
    pub(crate) shared: Arc<CohortShared>,
    dir: ZNodePath,
    process: Process,
    support: ProtocolSupport,
}

impl Cohort {
    pub(crate) fn new(support: ProtocolSupport, dir: ZNodePath, options: CohortOptions) -> Arc<Cohort> {
        let process = support.session().core().process();
        Arc::new(Cohort { shared: CohortShared::new(options), dir, process, support })
    }

    pub(crate) fn dir(&self) -> &ZNodePath {
        &self.dir
    }

    pub(crate) fn session(&self) -> &Session {
        self.support.session()
    }

    /// Returns `false` for the copy in a forked child, where a mutex may stay held forever.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    /// Returns the counters, or `None` in a forked child.
    pub(crate) fn tally(&self) -> Option<Tally> {
        self.is_of_this_process().then(|| self.shared.lock().tally)
    }

    // ---- threads

    pub(crate) fn try_lock(self: &Arc<Self>) -> Result<Option<Grant>> {
        check_process(self.process, Operation::LOCK, &self.dir)?;
        match self.enter(true) {
            Entry::Granted(grant) => Ok(Some(grant)),
            Entry::Busy => Ok(None),
            Entry::Closed => Err(self.closed()),
            Entry::Waits { number, turn } => self.find_out(&Ticket { cohort: self, number, turn }),
        }
    }

    pub(crate) fn lock(self: &Arc<Self>, wait: &Wait) -> Result<Option<Grant>> {
        retry_lasting(self.session(), || self.lock_once(wait))
    }

    fn lock_once(self: &Arc<Self>, wait: &Wait) -> Result<Option<Grant>> {
        check_process(self.process, Operation::LOCK, &self.dir)?;
        if wait.is_cancelled() {
            return Err(self.cancelled());
        }
        match self.enter(false) {
            Entry::Granted(grant) => Ok(Some(grant)),
            Entry::Busy => Ok(None),
            Entry::Closed => Err(self.closed()),
            Entry::Waits { number, turn } => self.wait(wait, &Ticket { cohort: self, number, turn }),
        }
    }

    fn enter(self: &Arc<Self>, only_tries: bool) -> Entry {
        let entry = self.shared.enter(only_tries);
        if matches!(entry, Entry::Waits { .. }) {
            self.advance();
        }
        entry
    }

    fn wait(self: &Arc<Self>, wait: &Wait, ticket: &Ticket<'_>) -> Result<Option<Grant>> {
        let core = self.session().core();
        ticket.turn.await_hand_over();
        match wait.wait_for(&**core.runtime(), &[ticket.turn.outcome.latch()]) {
            Waited::Set => self.outcome(ticket),
            // If the lock has just been granted, dropping the ticket releases it.
            Waited::Cancelled => Err(self.cancelled()),
            Waited::TimedOut => {
                let refusal = self.shared.joining().and_then(|request| request.refusal());
                match ticket.give_up() {
                    Some(grant) => self.owned(grant).map(Some),
                    None => refusal.map_or(Ok(None), Err),
                }
            }
        }
    }

    /// Waits until a `try_lock`'s request knows its place in the queue, and gives up unless it is the owner.
    fn find_out(self: &Arc<Self>, ticket: &Ticket<'_>) -> Result<Option<Grant>> {
        let Turn { started, outcome } = &ticket.turn;
        let core = self.session().core();
        core.wait(&[started.latch(), outcome.latch()], None);
        let Some(request) = started.take() else { return self.outcome(ticket) };
        match request?.wait_until_placed(&[self.support.closed()]) {
            Ok(Some(Place::Owner)) => {
                core.wait(&[outcome.latch()], None);
                self.outcome(ticket)
            }
            Ok(Some(_)) => ticket.leave(locking::leave).map(|grant| self.owned(grant)).transpose(),
            Ok(None) => Err(self.closed()),
            // The outcome is the lock, which was granted before the request ended, or the error that ended the request.
            Err(_) if outcome.latch().is_set() => self.outcome(ticket),
            Err(error) => Err(error),
        }
    }

    fn outcome(self: &Arc<Self>, ticket: &Ticket<'_>) -> Result<Option<Grant>> {
        // Cannot be `None`: a waiter is dropped without an outcome only if its thread has left.
        let outcome = ticket.turn.outcome.take().unwrap_or_else(|| Err(self.closed()));
        let grant = outcome.map_err(|error| self.session().core().classify(error))?;
        self.owned(grant).map(Some)
    }

    /// Returns the grant if it holds the lock at this moment. A thread may learn late of its grant, and the lock may be
    /// lost by then.
    fn owned(self: &Arc<Self>, grant: Grant) -> Result<Grant> {
        if grant.request.holds_lease() {
            return Ok(grant);
        }
        let error = grant.request.loss_error(Operation::LOCK);
        self.release(&grant);
        Err(error)
    }

    /// Hands the lock over, keeps it, or releases it to other processes. In the last case, waits until the
    /// deletion has had a first outcome or contact is lost.
    pub(crate) fn unlock(self: &Arc<Self>, grant: &Grant) -> Result<Released> {
        check_process(self.process, Operation::UNLOCK, &self.dir)?;
        match self.shared.release(grant) {
            Departure::Stays(timer) => {
                self.start_timer(grant, timer);
                Ok(Released::Kept)
            }
            Departure::Goes(retired) => {
                drop(retired.into_request());
                let release = Release::begin(&grant.request);
                // The waiting threads join the queue again, at its end.
                self.advance();
                let released = release.wait();
                if grant.request.was_taken_away() { Err(lost(grant)) } else { released }
            }
            Departure::Lost => {
                self.advance();
                Err(lost(grant))
            }
        }
    }

    /// Like [`unlock`](Cohort::unlock), but without waiting. Does nothing in a forked child.
    pub(crate) fn release(self: &Arc<Self>, grant: &Grant) {
        if !self.is_of_this_process() {
            return;
        }
        match self.shared.release(grant) {
            Departure::Stays(timer) => self.start_timer(grant, timer),
            Departure::Goes(retired) => {
                retired.end();
                self.advance();
            }
            Departure::Lost => self.advance(),
        }
    }

    /// Closes the lock. A thread that holds it is not disturbed. Does nothing in a forked child, where the lock belongs
    /// to the parent.
    pub(crate) fn close(self: &Arc<Self>) {
        if !self.is_of_this_process() {
            return;
        }
        self.support.close();
        self.shared.close(&self.closed());
        self.advance();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.support.is_closed()
    }

    fn closed(&self) -> LockError {
        LockError::of(ErrorReason::Closed, Operation::LOCK, &self.dir)
    }

    fn cancelled(&self) -> LockError {
        LockError::of(ErrorReason::Cancelled, Operation::LOCK, &self.dir)
    }

    // ---- the request

    /// Does the pending work on the calling thread, which must hold no mutex.
    pub(super) fn advance(self: &Arc<Self>) {
        while let Some(work) = self.shared.next_work() {
            match work {
                Work::Retire(retired) => retired.end(),
                Work::Start(number) => self.start(number),
                Work::Watch(request) => self.watch(&request),
            }
        }
    }

    fn start(self: &Arc<Self>, number: u64) {
        let observer = CohortObserver::new(number, self);
        let spec = locking::spec(&self.dir, &self.support, locking::exclusive(&self.support));
        let request = LastingRequest::new(self.session(), spec, true, observer);
        let made = request.request().ok_or_else(|| self.no_session());
        if self.shared.install(number, &request, made) {
            request.start();
        } else {
            request.withdraw();
        }
    }

    /// Returns the error of a `try_lock` that is called after the session was closed, or after a session was lost and
    /// before the next is connected.
    fn no_session(&self) -> LockError {
        let core = self.session().core();
        let reason = core.snapshot().end_reason.map_or(LossReason::SessionLost, LossReason::from);
        core.classify(LockError::ended(Operation::LOCK, &self.dir, reason))
    }

    /// Watches for requests behind this one.
    fn watch(self: &Arc<Self>, request: &Arc<CohortRequest>) {
        let (number, cohort) = (request.number, Arc::downgrade(self));
        let report = move || {
            if let Some(cohort) = cohort.upgrade() {
                cohort.shared.note_waiter(number);
                cohort.advance();
            }
        };
        let watch = WaiterWatch::begin(request.core(), &self.dir, request.path(), report);
        let useless = self.shared.keep_watch(number, watch);
        drop(useless);
    }

    /// Starts the timer that limits how long an idle lock is kept.
    fn start_timer(self: &Arc<Self>, grant: &Grant, timer: Option<Moment>) {
        if let Some(at) = timer {
            let (core, number) = (grant.request.core(), grant.request.number);
            ring_at(core, at, Arc::downgrade(&self.shared), Arc::downgrade(self), number);
        }
    }
}

/// Sets a kept lock's timer to ring at `at`. The timer's thread must neither block nor drop the last handle of a
/// session, so it leaves the work to a job.
fn ring_at(core: &Arc<Core>, at: Moment, shared: Weak<CohortShared>, cohort: Weak<Cohort>, number: u64) {
    core.at(at, move |core| {
        let Some(state) = shared.upgrade() else { return };
        match state.ring(number) {
            KeepTimer::Rearm(at) => ring_at(core, at, shared, cohort, number),
            KeepTimer::Expired => core.run_job(move |_| {
                if let Some(cohort) = cohort.upgrade() {
                    cohort.advance();
                }
            }),
            KeepTimer::Cancelled => {}
        }
    });
}

fn lost(grant: &Grant) -> LockError {
    grant.request.end_error(Operation::UNLOCK)
}

/// A waiting thread's place in the cohort. Dropping the ticket gives up the place, and releases the lock if it was
/// granted but not taken by the thread.
struct Ticket<'a> {
    cohort: &'a Arc<Cohort>,
    number: u64,
    turn: Turn,
}

impl Ticket<'_> {
    /// Gives up the place. Returns the lock if it has just been granted.
    fn give_up(&self) -> Option<Grant> {
        self.leave(LastingRequest::withdraw)
    }

    /// Like [`give_up`](Ticket::give_up), but ends the request in the given way if nobody else needs it.
    fn leave(&self, end: impl FnOnce(&LastingRequest)) -> Option<Grant> {
        match self.cohort.shared.leave(self.number) {
            Left::Granted => return self.turn.outcome.take().and_then(Result::ok),
            Left::Last(request) => end(&request),
            Left::Others => {}
        }
        self.cohort.advance();
        None
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if let Some(grant) = self.give_up() {
            self.cohort.release(&grant);
        }
    }
}
