//! [`Snapshot`]: the state of a session at one moment. Also the getters of values that never change.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::{Core, Driver};
use crate::client::{Identity, ZooKeeperClient};
use crate::engine::lease::ConnectionNumber;
use crate::engine::{Event, Place, SessionEnd};
use crate::lock_order;
use crate::process::Process;
use crate::recipe::path::ZNodePath;
use crate::session::SessionState;
use crate::session::events::{Events, RequestStatus, SessionConnected};
use crate::session::happened::Happened;
use crate::session::seat::Seat;
use crate::time::{Latch, Moment, Runtime};

/// A session at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot {
    pub(crate) state: SessionState,
    pub(crate) end_reason: Option<SessionEnd>,
    pub(crate) in_contact: bool,
    /// The time of the last contact with the server.
    pub(crate) last_contact: Moment,
    pub(crate) session_timeout: Duration,
    pub(crate) connection: ConnectionNumber,
}

impl Core {
    pub(crate) fn snapshot(&self) -> Snapshot {
        let driver = self.driver_now();
        let engine = &driver.engine;
        Snapshot {
            state: driver.state(),
            end_reason: engine.end_reason(),
            in_contact: engine.in_contact(),
            last_contact: engine.lease().last_contact(),
            session_timeout: engine.lease().session_timeout(),
            connection: engine.lease().connection(),
        }
    }

    /// Returns the requests that have not ended, in the order of their numbers.
    pub(crate) fn requests(&self) -> Vec<RequestStatus> {
        let mut live = Vec::new();
        {
            let driver = self.driver_now();
            let (engine, now) = (&driver.engine, driver.engine.now());
            for seat in driver.seats.values() {
                let is_owner = engine.place(seat.id) == Some(Place::Owner);
                // A request that owned the lock until its lease ended is about to end, too.
                if is_owner && !seat.ownership.covers(now) {
                    continue;
                }
                let since = engine.since(seat.id).unwrap_or(seat.made);
                let ahead = engine.predecessor(seat.id).cloned();
                live.push((Arc::clone(seat), is_owner, now.since(since), ahead));
            }
        }
        // Outside the mutex, because there may be thousands of requests, and this may be the last handle to a seat.
        let status = |(seat, is_owner, age, ahead): (Arc<Seat>, _, _, Option<ZNodePath>)| {
            RequestStatus::new(&seat, is_owner, age, ahead.as_ref())
        };
        live.into_iter().map(status).collect()
    }

    /// Returns the number of participants, and the number of paths with registrations.
    pub(crate) fn census(&self) -> (usize, usize) {
        self.driver.lock().engine.census()
    }

    pub(crate) fn events(&self) -> Option<&Arc<Events>> {
        self.events.get()
    }

    /// Sets the events of the session, unless they are already set. Returns whether it did.
    pub(crate) fn keep_events(&self, events: Arc<Events>) -> bool {
        self.driver.lock().engine.count_ahead();
        self.events.set(events).is_ok()
    }

    pub(crate) fn report_present_contact(&self) {
        {
            let driver = self.driver_now();
            if !driver.engine.in_contact() {
                return;
            }
            let contact = Some(driver.contact());
            self.post_event(Happened { event: Event::Connected, seat: None, contact });
        }
        self.deliver_events();
    }

    /// The contact that a session has when it replaces another.
    pub(crate) fn contact(&self) -> SessionConnected {
        self.driver.lock().contact()
    }

    pub(crate) fn client(&self) -> &dyn ZooKeeperClient {
        &**self.client
    }

    /// The process that opened the session.
    pub(crate) fn process(&self) -> Process {
        self.process
    }

    pub(crate) fn now(&self) -> Moment {
        self.runtime.now()
    }

    pub(crate) fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    /// Blocks until one of the latches is set or the deadline has passed. Returns `false` if none is set.
    pub(crate) fn wait(&self, latches: &[&Latch], deadline: Option<Moment>) -> bool {
        lock_order::assert_none_held();
        self.runtime.wait(latches, deadline)
    }

    pub(crate) fn new_guid(&self) -> Uuid {
        self.runtime.new_guid()
    }

    /// Returns a random number between 0 and 1.
    pub(crate) fn random_unit(&self) -> f64 {
        // The first 32 bits of a GUID are random and do not depend on its version.
        let (drawn, ..) = self.new_guid().as_fields();
        f64::from(drawn) / f64::from(u32::MAX)
    }

    pub(crate) fn ended(&self) -> &Latch {
        &self.ended
    }

    pub(crate) fn finished(&self) -> &Latch {
        &self.finished
    }
}

impl Driver {
    /// The contact of the session, now or when it last had contact.
    pub(super) fn contact(&self) -> SessionConnected {
        let Identity { session_id, server, .. } = self.identity.clone();
        SessionConnected { session_id, server, session_timeout: self.engine.lease().session_timeout() }
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("snapshot", &self.snapshot())
            .field("census", &self.census())
            .field("runtime", &self.runtime)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Core {
    /// Returns when the current epoch of the lease ends.
    pub(crate) fn lease_end(&self) -> Moment {
        self.driver.lock().engine.lease().end()
    }

    /// Returns how many readers wait for the next listing of a directory.
    pub(crate) fn readers(&self, dir: &crate::recipe::path::ZNodePath) -> usize {
        self.driver.lock().engine.readers(dir)
    }

    pub(crate) fn bytes_of_znodes(&self) -> usize {
        self.driver.lock().engine.bytes_of_znodes()
    }

    pub(crate) fn admits_owners(&self) -> bool {
        self.driver_now().engine.admits_owners()
    }

    pub(crate) fn mentions_first(&self, path: &crate::recipe::path::ZNodePath) -> bool {
        self.driver.lock().engine.mentions_first(path)
    }
}
