//! The requests of a session: what their locks ask of the engine, and what that reports to them.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, never};

use super::{Afterwards, Core, Driver, Origin};
use crate::engine::{Ending, ParticipantId, Place, Report, RequestSpec};
use crate::error::{LockError, LossReason, Operation, ZkError, ZkResult};
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::session::events::{
    self, LockAcquired, LockGivenUp, LockJoined, LockLost, LockOfEvent, LockReleased,
};
use crate::session::ownership::Ownership;
use crate::session::seat::{Observer, Outcome, RequestEvent, Seat};

/// A request on a session.
pub(super) struct Seated {
    pub(super) seat: Arc<Seat>,
    /// Dropped when the request is placed or has ended; `None` until a thread waits for that.
    awaited: Option<(Sender<Infallible>, Receiver<Infallible>)>,
}

impl Core {
    /// Gives a request its number, and names its znode up to the sequence number.
    pub(crate) fn name_request(&self, access: Access) -> (ParticipantId, String) {
        self.driver.lock().engine.name_request(access)
    }

    /// The creation of a request's znode has failed, and may have taken effect.
    pub(crate) fn create_failed(self: &Arc<Self>, dir: &ZNodePath, error: ZkError) {
        self.feed(Origin::Other, |driver| driver.engine.note_failed_create(dir, error));
    }

    /// Makes a request, which does nothing until it is [started](Core::start_request). It is to be
    /// started, or withdrawn.
    pub(crate) fn make_request(
        &self,
        id: ParticipantId,
        spec: Arc<RequestSpec>,
        observer: Arc<dyn Observer>,
    ) -> Arc<Seat> {
        let mut driver = self.driver_now();
        let seat = Arc::new(Seat {
            id,
            spec,
            observer,
            made: driver.engine.now(),
            ownership: Ownership::default(),
            znode: OnceLock::new(),
            fencing_token: OnceLock::new(),
            outcome: OnceLock::new(),
        });
        driver.seats.insert(seat.id, Seated { seat: Arc::clone(&seat), awaited: None });
        seat
    }

    /// Starts a request. It needs no further calls; [`Core::withdraw`] ends it.
    pub(crate) fn start_request(self: &Arc<Self>, seat: &Arc<Seat>) {
        self.feed(Origin::Other, |driver| {
            // Unless it was withdrawn before.
            if driver.seats.contains_key(&seat.id) {
                driver.engine.start(seat.id, Arc::clone(&seat.spec), seat.made);
            }
        });
    }

    /// Starts a request that holds the lock as its owner does; `false` if that holds it no longer.
    pub(crate) fn start_as_owner(
        self: &Arc<Self>,
        seat: &Arc<Seat>,
        znode: &ZNodePath,
        owner: ParticipantId,
    ) -> bool {
        self.feed(Origin::Other, |driver| {
            let is_held = driver.engine.start_as_owner(seat.id, Arc::clone(&seat.spec), znode.clone(), owner);
            if !is_held {
                driver.seats.remove(&seat.id);
            }
            is_held
        })
    }

    /// Ends a request and deletes its znode, in the background if need be. The first outcome of
    /// the deletion is sent to `first`. Does nothing when the request has ended.
    ///
    /// The caller makes the observer [deliver](Observer::deliver) the event, when it holds no lock.
    pub(crate) fn withdraw(self: &Arc<Self>, seat: &Arc<Seat>, first: Option<Sender<ZkResult<()>>>) {
        let unstarted = self.feed(Origin::Other, |driver| {
            if driver.engine.place(seat.id).is_none() {
                // It has ended, or was never started.
                if seat.outcome.set(Outcome::Withdrawn).is_ok() {
                    self.post_end(seat, false, &Ending::Withdrawn, self.now().since(seat.made));
                }
                return driver.seats.remove(&seat.id);
            }
            let removal = driver.engine.withdraw(seat.id);
            driver.first_outcomes.extend(removal.zip(first));
            None
        });
        // Outside the mutex.
        drop(unstarted);
    }

    /// Returns whether znodes of a request that has ended may exist.
    pub(crate) fn may_leave_znodes_of(&self, spec: &RequestSpec) -> bool {
        let driver = self.driver.lock();
        match driver.engine.end_reason() {
            Some(LossReason::SessionExpired) => false,
            // The server deletes them with the session.
            Some(_) => true,
            None => driver.engine.is_removing(spec),
        }
    }

    /// The znode of a request is gone.
    pub(crate) fn znode_is_gone(self: &Arc<Self>, seat: &Seat) {
        self.feed(Origin::Other, |driver| driver.engine.lose_znode(seat.id));
    }

    /// Returns where a request is in the queue; `None` if it has ended.
    pub(crate) fn place(&self, seat: &Seat) -> Option<Place> {
        self.driver.lock().place(seat)
    }

    /// As [`place`](Core::place); for one that is not known to be anywhere yet, with a channel that is
    /// disconnected when it is, or has ended.
    pub(crate) fn await_place(&self, seat: &Seat) -> (Option<Place>, Receiver<Infallible>) {
        let mut driver = self.driver.lock();
        let place = driver.place(seat);
        let awaited = match driver.seats.get_mut(&seat.id).filter(|_| place == Some(Place::Unknown)) {
            Some(seated) => seated.awaited.get_or_insert_with(|| bounded(0)).1.clone(),
            None => never(),
        };
        (place, awaited)
    }

    pub(crate) fn is_revocation_requested(&self, seat: &Seat) -> bool {
        self.driver.lock().engine.is_revocation_requested(seat.id)
    }

    /// The znode whose watch wakes a request.
    #[cfg(test)]
    pub(crate) fn watched(&self, seat: &Seat) -> Option<ZNodePath> {
        self.driver.lock().engine.watched_by(seat.id)
    }

    /// Returns whether a thread waits for the place of a request.
    #[cfg(test)]
    pub(crate) fn is_awaited(&self, seat: &Seat) -> bool {
        self.driver.lock().seats.get(&seat.id).is_some_and(|seated| seated.awaited.is_some())
    }

    fn post_end(&self, seat: &Seat, was_owner: bool, how: &Ending, time: Duration) {
        self.post_event(|| {
            let lock = seat.lock_of_event();
            match how.reason() {
                Some(reason) if was_owner => events::Event::Lost(LockLost { lock, reason, held: time }),
                None if was_owner => events::Event::Released(LockReleased { lock, held: time }),
                reason => events::Event::GaveUp(LockGivenUp { lock, reason, waited: time }),
            }
        });
    }
}

impl Driver {
    fn place(&self, seat: &Seat) -> Option<Place> {
        // One that is yet to be started is nowhere.
        let is_live = self.seats.contains_key(&seat.id);
        self.engine.place(seat.id).or(is_live.then_some(Place::Unknown))
    }

    /// Passes on what has happened to a request.
    pub(super) fn take_report(
        &mut self,
        core: &Arc<Core>,
        id: ParticipantId,
        report: Report,
        afterwards: &mut Afterwards,
    ) {
        let Some(seated) = self.seats.get_mut(&id) else { return };
        let seat = Arc::clone(&seated.seat);
        let event = match report {
            Report::Joined { znode, token } => {
                let _ = seat.znode.set(znode);
                if let Some(token) = token {
                    let _ = seat.fencing_token.set(token);
                }
                None
            }
            Report::Placed { ahead, number_ahead } => {
                seated.awaited = None;
                core.post_event(|| {
                    let (lock, waits_for) = (seat.lock_of_event(), ahead.to_string());
                    events::Event::Joined(LockJoined { lock, waits_for, ahead: number_ahead })
                });
                None
            }
            Report::Acquired { waited } => {
                seated.awaited = None;
                core.post_event(|| {
                    events::Event::Acquired(LockAcquired { lock: seat.lock_of_event(), waited })
                });
                Some(RequestEvent::Acquired)
            }
            Report::RevocationRequested => Some(RequestEvent::RevocationRequested),
            Report::Ended { was_owner, how, time } => {
                core.post_end(&seat, was_owner, &how, time);
                seated.awaited = None;
                afterwards.dropped.extend(self.seats.remove(&id));
                let outcome = seat.outcome_of(how);
                let event = match outcome.clone() {
                    Outcome::Withdrawn => was_owner.then_some(RequestEvent::Released),
                    Outcome::Lost(reason) => Some(RequestEvent::Lost(reason)),
                    Outcome::Dropped(reason, error) => Some(RequestEvent::Dropped(reason, *error)),
                };
                let _ = seat.outcome.set(outcome);
                event
            }
        };
        let Some(event) = event else { return };
        // The thread that withdraws a request has its event delivered.
        let is_delivered = matches!(event, RequestEvent::Released);
        seat.observer.post(event);
        if !is_delivered && seat.observer.has_callbacks() {
            afterwards.callbacks.push(seat);
        }
    }
}

impl Seat {
    /// The lock, for an event.
    pub(crate) fn lock_of_event(&self) -> LockOfEvent {
        let (dir, id) = (self.spec.dir.to_string(), self.znode.get().map(ZNodePath::to_string));
        LockOfEvent { dir, id, kind: self.spec.access.kind() }
    }

    fn outcome_of(&self, how: Ending) -> Outcome {
        match how {
            Ending::Withdrawn => Outcome::Withdrawn,
            Ending::Lost(reason) => Outcome::Lost(reason),
            Ending::Dropped(reason, Some(failure)) => Outcome::Dropped(reason, Box::new(failure.into())),
            Ending::Dropped(reason, None) => {
                Outcome::Dropped(reason, Box::new(LockError::ended(Operation::LOCK, self.name(), reason)))
            }
        }
    }
}
