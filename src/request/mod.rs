//! One request for a lock, from the creation of its znode to its deletion, as its lock sees it.
//!
//! Every lock of this crate is a thin shell around requests. The [`engine`](crate::engine) chooses each step
//! of a request. The engine's docs follow a request from `lock()` to ownership.
//!
//! Different parts of the crate have different views of one request:
//! - The engine has a `Contender`, with a `ParticipantId`, until the request has ended.
//! - The session's driver and the lock share a [`Seat`]: the ownership, the znode and the outcome.
//! - The lock has a [`Request`]: the seat, and the core of its session.
//! - A lock that waits has a [`LastingRequest`], which outlives the session. The lasting request ends when the request
//!   is taken out for a guard or is given up.
//! - A guard has a [`Claim`], which withdraws the request when it is dropped.

mod claim;
mod commit_fence;
mod downgrade;
mod in_turn;
mod lasting;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::client::Call;
pub(crate) use crate::engine::{Ending, Place, RequestEvent, RequestSpec};
use crate::engine::{Event, ParticipantId, SessionEnd};
use crate::error::{ErrorReason, LockError, LossReason, Operation, Result, ZkResult};
use crate::recipe::path::ZNodePath;
pub(crate) use crate::session::Observer;
use crate::session::{Core, Seat, check_process};
use crate::time::{Filler, Latch, Moment};

pub(crate) use claim::Claim;
pub(crate) use commit_fence::CommitFence;
pub(crate) use downgrade::Downgrade;
pub(crate) use in_turn::in_turn;
pub(crate) use lasting::LastingRequest;

pub(crate) struct Request {
    core: Arc<Core>,
    seat: Arc<Seat>,
    commit_fence: CommitFence,
}

impl Request {
    /// Makes a request, which does nothing until it is [started](Request::start).
    pub(crate) fn new(core: Arc<Core>, spec: &RequestSpec, observer: Arc<dyn Observer>) -> Arc<Request> {
        let id = core.new_id();
        Request::on(core, id, spec.clone(), observer)
    }

    fn on(
        core: Arc<Core>,
        id: ParticipantId,
        spec: RequestSpec,
        observer: Arc<dyn Observer>,
    ) -> Arc<Request> {
        let seat = core.make_request(id, Arc::new(spec), observer);
        Arc::new(Request { core, seat, commit_fence: CommitFence::default() })
    }

    /// Starts the request. It runs by itself from then on; [`Request::withdraw`] ends it.
    pub(crate) fn start(&self) {
        self.core.start_request(&self.seat);
    }

    /// Ends the request and deletes its znode, in the background if need be. Does nothing if the request has ended.
    ///
    /// Also does nothing in a forked child, where the request belongs to the parent and a mutex may stay
    /// locked forever.
    pub(crate) fn withdraw(&self) {
        // Check for the end first: dropping a guard after its unlock then makes no system call.
        if !self.has_ended() && self.is_of_this_process() {
            self.core.withdraw(&self.seat, None);
        }
    }

    /// Waits until an end of the request that another thread has noticed was passed to the observer. The caller has
    /// checked the process.
    pub(crate) fn await_report(&self) {
        let _ = self.core.place(&self.seat);
    }

    /// Does what [`withdraw`](Request::withdraw) does, but makes the callbacks on the calling thread, which
    /// must hold no mutex. Fills `first` with the outcome of the first attempt to delete the znode, or with
    /// `ConnectionLoss` if contact is missing or lost before that. If there is nothing to delete, drops `first`. The
    /// caller must have checked the process.
    pub(crate) fn release(&self, first: Filler<ZkResult<()>>) {
        self.core.withdraw(&self.seat, Some(first));
        self.seat.observer.deliver();
    }

    /// Reports that another thread now holds the lock under this request.
    pub(crate) fn report_hand_over(&self) {
        let event = Event::Request(self.seat.id, RequestEvent::HandedOver);
        self.core.report_event(event, Some(Arc::clone(&self.seat)));
    }

    // ---- queries of the lock

    pub(crate) fn is_owner(&self) -> bool {
        // Check the process first, because the request may belong to another process.
        self.is_of_this_process() && self.holds_lease()
    }

    /// Returns whether this process made the request. Returns `false` in a forked child of the process that
    /// did.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.core.process().is_current()
    }

    /// Fails in a forked child, where the session has ended.
    pub(crate) fn check_process(&self, operation: Operation) -> Result<()> {
        check_process(self.core.process(), operation, self.seat.name())
    }

    /// Like [`is_owner`](Request::is_owner), for a caller that has already checked the process.
    pub(crate) fn holds_lease(&self) -> bool {
        self.seat.ownership.covers(self.core.now())
    }

    /// Returns how long this request will own the lock if the session is not proven alive again.
    pub(crate) fn lease_remaining(&self) -> Duration {
        match self.is_of_this_process() {
            true => self.seat.ownership.remaining(self.core.now()),
            false => Duration::ZERO,
        }
    }

    /// Returns the moment when half of the longest permitted hold is over, if the hold has a limit.
    pub(crate) fn half_time(&self) -> Option<Moment> {
        let limit = self.seat.limit.get()?;
        self.seat.spec.max_hold.map(|max_hold| limit.before(max_hold / 2))
    }

    /// Returns the id of the transaction that created the znode or, after a downgrade, the owner's former znode. Reads
    /// the id from the server only if it is not known yet.
    pub(crate) fn fencing_token(&self) -> Result<i64> {
        self.check_process(Operation::FENCE)?;
        if let Some(token) = self.seat.fencing_token.get() {
            return Ok(*token);
        }
        let Some(znode) = self.znode() else { return Err(self.not_owner(Operation::FENCE)) };
        match self.core.call(Operation::FENCE, &znode, Call::exists(&znode, false))? {
            Some(stat) => Ok(*self.seat.fencing_token.get_or_init(|| stat.czxid)),
            None => {
                self.znode_is_gone();
                Err(self.not_owner(Operation::FENCE))
            }
        }
    }

    /// Returns the core of the session that the request was made on, even if that session has been replaced
    /// since.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Notes that a server has shown that the znode is gone. The event may come later.
    pub(crate) fn znode_is_gone(&self) {
        self.core.znode_is_gone(&self.seat);
    }

    pub(crate) fn commit_fence(&self) -> &CommitFence {
        &self.commit_fence
    }

    /// Returns whether both requests belong to the same session and are for the same lock.
    pub(crate) fn is_of_the_lock_of(&self, other: &Request) -> bool {
        Arc::ptr_eq(&self.core, &other.core) && self.seat.spec.dir == other.seat.spec.dir
    }

    /// Returns the znode, once it is known.
    pub(crate) fn znode(&self) -> Option<ZNodePath> {
        self.seat.znode.get().cloned()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.seat.ending().is_some()
    }

    /// Returns whether the znode of an ended request may still exist and block others. Such a znode is yet to
    /// be deleted by this process or, together with the session, by the server.
    pub(crate) fn may_leave_its_znode(&self) -> bool {
        self.znode().is_some() && self.core.may_leave_znodes_of(&self.seat)
    }

    /// Waits until the request owns the lock or is known to be behind another request, and returns its place.
    /// Returns `None` if the request was withdrawn or one of the latches was set meanwhile.
    pub(crate) fn wait_until_placed(&self, ends: &[&Latch]) -> Result<Option<Place>> {
        loop {
            let (place, placed) = self.core.await_place(&self.seat);
            match place {
                Some(Place::Unknown) => {}
                Some(place) => return Ok(Some(place)),
                None => {
                    let is_withdrawn = matches!(self.seat.ending(), Some(Ending::Withdrawn));
                    return if is_withdrawn { Ok(None) } else { Err(self.end_error(Operation::LOCK)) };
                }
            }
            if ends.iter().any(|end| end.is_set()) {
                return Ok(None);
            }
            let latches: Vec<&Latch> = ends.iter().copied().chain([&placed]).collect();
            self.core.wait(&latches, None);
        }
    }

    /// Returns why the request ended.
    pub(crate) fn end_error(&self, operation: Operation) -> LockError {
        self.core.classify(self.unclassified_end_error(operation))
    }

    /// Like [`end_error`](Request::end_error), but takes no mutex. The kind does not consider what has become of the
    /// session.
    pub(crate) fn unclassified_end_error(&self, operation: Operation) -> LockError {
        let name = self.seat.name();
        match self.seat.ending() {
            Some(Ending::Lost(reason)) => LockError::ended(operation, name, *reason),
            Some(Ending::Dropped(_, Some(failure))) => failure.clone().into(),
            Some(Ending::Dropped(reason, None)) => LockError::ended(Operation::LOCK, name, *reason),
            Some(Ending::Withdrawn) | None => LockError::of(ErrorReason::NotOwner, operation, name),
        }
    }

    /// Returns why the request does not hold the lock, even if nobody has noticed the loss yet. The caller has checked the
    /// process.
    pub(crate) fn loss_error(&self, operation: Operation) -> LockError {
        // The end of a hold is visible a moment before its reason.
        self.await_report();
        match self.loss() {
            Some(reason) => self.core.classify(LockError::ended(operation, self.seat.name(), reason)),
            None => self.end_error(operation),
        }
    }

    /// Returns the refusal by a server that keeps the request from knowing whether the lock is free, if there is one.
    pub(crate) fn refusal(&self) -> Option<LockError> {
        self.core.refusal(&self.seat).map(LockError::from)
    }

    /// The error of an operation that only the owner may do. The caller has checked the process.
    pub(crate) fn not_owner(&self, operation: Operation) -> LockError {
        self.core.classify(LockError::of(ErrorReason::NotOwner, operation, self.seat.name()))
    }

    /// Returns why the lock was lost, if it was lost while this request held it.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        match self.seat.ending() {
            Some(Ending::Lost(reason)) => return Some(*reason),
            Some(Ending::Withdrawn | Ending::Dropped(..)) => return None,
            None => {}
        }
        let ownership = &self.seat.ownership;
        if !self.is_of_this_process() {
            // A forked child owns nothing. It takes no mutex, because the thread that holds one may not exist
            // in the child.
            let ended = ownership.ended_at(Moment::from_nanos(u64::MAX));
            return ended.map(|_| LossReason::SessionLost);
        }
        // The hold may have ended before any thread noticed.
        let ended = ownership.ended_at(self.core.now())?;
        Some(match self.seat.has_reached_limit(ended) {
            true => LossReason::HeldTooLong,
            false => SessionEnd::loss_of_hold(self.core.snapshot().end_reason),
        })
    }

    /// Returns whether another client has asked for the lock that this request holds.
    pub(crate) fn is_revocation_requested(&self) -> bool {
        self.is_of_this_process() && self.core.is_revocation_requested(&self.seat)
    }

    /// Returns whether the lock was lost while this request held it.
    pub(crate) fn was_taken_away(&self) -> bool {
        matches!(self.seat.ending(), Some(Ending::Lost(_)))
    }

    /// Returns whether the request was waiting when its session was lost. If so, it may be made again on another
    /// session.
    pub(crate) fn was_dropped_with_its_session(&self) -> bool {
        matches!(self.seat.ending(), Some(Ending::Dropped(reason, _)) if *reason == LossReason::SessionLost)
    }
}

#[cfg(test)]
impl Request {
    pub(crate) fn was_withdrawn(&self) -> bool {
        matches!(self.seat.ending(), Some(Ending::Withdrawn))
    }

    pub(crate) fn max_hold(&self) -> Option<Duration> {
        self.seat.spec.max_hold
    }

    fn watched(&self) -> Option<ZNodePath> {
        self.core.watched(&self.seat)
    }

    fn is_awaited(&self) -> bool {
        self.core.is_awaited(&self.seat)
    }
}
