//! The requests of a session: what their locks ask of the engine, and what the engine reports to them.

use std::sync::{Arc, OnceLock};

use super::{Afterwards, Core, Driver, Task};
use crate::engine::{Ending, Event, Failure, ParticipantId, Place, RequestEvent, RequestSpec, SessionEnd};
use crate::error::{ZkError, ZkResult};
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::session::happened::Happened;
use crate::session::ownership::Ownership;
use crate::session::seat::{Observer, Seat};
use crate::time::{Filler, Latch, Setter};

impl Core {
    pub(crate) fn new_id(&self) -> ParticipantId {
        self.driver.lock().engine.new_id()
    }

    /// See [`Engine::pin`](crate::engine::Engine::pin).
    pub(crate) fn pin(&self, id: ParticipantId) {
        self.driver.lock().engine.pin(id);
    }

    pub(crate) fn unpin(self: &Arc<Self>, id: ParticipantId) {
        self.feed(|driver| driver.engine.unpin(id));
    }

    /// Makes every request and every tracker look. Does nothing without contact, because the reconnect makes them look.
    #[cfg(test)]
    pub(crate) fn look_routinely(self: &Arc<Self>) {
        self.feed(|driver| driver.engine.look_routinely());
    }

    /// Returns the name of the znode that the first attempt of a request creates, without the sequence number.
    pub(crate) fn znode_prefix(&self, access: Access, id: ParticipantId) -> String {
        self.driver.lock().engine.znode_prefix(access, id)
    }

    /// Notes that the creation of a request's znode failed, but may have taken effect.
    pub(crate) fn create_failed(self: &Arc<Self>, dir: &ZNodePath, error: ZkError) {
        self.feed(|driver| driver.engine.note_failed_create(dir, error));
    }

    /// Makes a request, which does nothing until it is [started](Core::start_request). The caller must start or
    /// withdraw it.
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
            limit: OnceLock::new(),
            znode: OnceLock::new(),
            fencing_token: OnceLock::new(),
            ending: OnceLock::new(),
        });
        driver.seats.insert(seat.id, Arc::clone(&seat));
        seat
    }

    /// Starts a request. After that it needs no further calls until [`Core::withdraw`] ends it.
    pub(crate) fn start_request(self: &Arc<Self>, seat: &Arc<Seat>) {
        self.feed(|driver| {
            // A withdrawn request is not started.
            if driver.seats.contains_key(&seat.id) {
                driver.engine.start(seat.id, Arc::clone(&seat.spec), seat.made);
            }
        });
    }

    /// Starts a request that takes the lock over from `owner`. Returns `false` if `owner` no longer holds the lock.
    pub(crate) fn start_as_owner(
        self: &Arc<Self>,
        seat: &Arc<Seat>,
        znode: &ZNodePath,
        owner: ParticipantId,
    ) -> bool {
        self.feed(|driver| {
            let is_held = driver.engine.start_as_owner(seat.id, Arc::clone(&seat.spec), znode.clone(), owner);
            if !is_held {
                driver.take_seat(seat.id);
            }
            is_held
        })
    }

    /// Ends a request and deletes its znode, in the background if necessary. The first outcome of the deletion fills
    /// `first`: `ConnectionLoss` if there is no contact. If no deletion begins, `first` is dropped. Does nothing if the
    /// request has already ended.
    ///
    /// If the observer has callbacks, the caller must call [`deliver`](Observer::deliver) once it holds no mutex. The
    /// observer of a dropped guard has none.
    pub(crate) fn withdraw(self: &Arc<Self>, seat: &Arc<Seat>, first: Option<Filler<ZkResult<()>>>) {
        let unstarted = self.feed(|driver| {
            if driver.engine.place(seat.id).is_none() {
                // The request has ended, or was never started.
                if seat.ending.set(Ending::Withdrawn).is_ok() {
                    self.post_event(Happened::withdrawn_before_start(seat, self.now()));
                }
                return driver.take_seat(seat.id);
            }
            let removal = driver.engine.withdraw(seat.id);
            driver.first_outcomes.extend(removal.zip(first));
            None
        });
        // Outside the mutex.
        drop(unstarted);
    }

    /// Returns the last refusal of a request by a server, unless the request has got an answer since.
    pub(crate) fn refusal(&self, seat: &Seat) -> Option<Failure> {
        self.driver.lock().engine.refusal(seat.id).cloned()
    }

    /// Returns whether znodes of a request that has ended may still exist.
    pub(crate) fn may_leave_znodes_of(&self, seat: &Seat) -> bool {
        let driver = self.driver.lock();
        match driver.engine.end_reason() {
            Some(SessionEnd::Expired) => false,
            // The znodes may exist until the server ends the session.
            Some(_) => true,
            None => driver.engine.is_removing(seat.id),
        }
    }

    /// Notes that the znode of a request is gone.
    pub(crate) fn znode_is_gone(self: &Arc<Self>, seat: &Seat) {
        self.feed(|driver| driver.engine.lose_znode(seat.id));
    }

    /// Returns the place of a request in the queue, or `None` if the request has ended.
    pub(crate) fn place(&self, seat: &Seat) -> Option<Place> {
        self.driver.lock().place(seat)
    }

    /// Like [`place`](Core::place). If the place is not known yet, the latch is set when it becomes known or the
    /// request has ended.
    pub(crate) fn await_place(&self, seat: &Seat) -> (Option<Place>, Latch) {
        let mut driver = self.driver.lock();
        let place = driver.place(seat);
        let latch = match place {
            Some(Place::Unknown) => driver.awaited.entry(seat.id).or_insert_with(Setter::new).latch().clone(),
            _ => Latch::never(),
        };
        (place, latch)
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
        self.driver.lock().awaited.contains_key(&seat.id)
    }
}

impl Driver {
    /// Removes a request, and wakes the threads that wait for its place. The caller drops the seat outside the mutex.
    fn take_seat(&mut self, id: ParticipantId) -> Option<Arc<Seat>> {
        self.awaited.remove(&id);
        self.seats.remove(&id)
    }

    fn place(&self, seat: &Seat) -> Option<Place> {
        // A request that has not been started has no place in the engine.
        let is_live = self.seats.contains_key(&seat.id);
        self.engine.place(seat.id).or(is_live.then_some(Place::Unknown))
    }

    /// Handles an event of the engine: updates the seat, and passes the event on to the observer, the hook and the log.
    pub(super) fn take_event(&mut self, core: &Arc<Core>, event: Event, afterwards: &mut Afterwards) {
        let seat = match &event {
            Event::Request(id, event) => match self.take_event_of_request(core, *id, event, afterwards) {
                Some(seat) => Some(seat),
                None => return,
            },
            _ => None,
        };
        let contact = (event == Event::Connected).then(|| self.contact());
        let happened = Happened { event, seat, contact };
        happened.log();
        core.post_event(happened);
    }

    fn take_event_of_request(
        &mut self,
        core: &Core,
        id: ParticipantId,
        event: &RequestEvent,
        afterwards: &mut Afterwards,
    ) -> Option<Arc<Seat>> {
        let seat = Arc::clone(self.seats.get(&id)?);
        match event {
            RequestEvent::Joined { znode, token } => {
                let _ = seat.znode.set(znode.clone());
                if let Some(token) = token {
                    let _ = seat.fencing_token.set(*token);
                }
            }
            RequestEvent::Placed { .. } | RequestEvent::Acquired { .. } => drop(self.awaited.remove(&id)),
            RequestEvent::Ended { how, .. } => {
                let _ = seat.ending.set(how.clone());
                afterwards.dropped.extend(self.take_seat(id));
            }
            _ => {}
        }
        if !event.is_for_lock() {
            return Some(seat);
        }
        seat.observer.post(event);
        if seat.observer.has_steps() {
            core.steps.post(Arc::clone(&seat));
        }
        // The thread that withdraws a request calls the callbacks itself.
        let is_withdrawn = matches!(event, RequestEvent::Ended { how: Ending::Withdrawn, .. });
        if !is_withdrawn && seat.observer.has_callbacks() {
            afterwards.tasks.push(Task::CallBack(Arc::clone(&seat)));
        }
        Some(seat)
    }
}
