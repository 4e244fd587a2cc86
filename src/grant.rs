//! [`Grant`]: how the thread that waits for a lock, and later the guard, hear of what happens to it.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::LossReason;
use crate::request::{Event, Observer};

/// Hears of a request's events for the thread that waits for it, and later for the guard.
#[derive(Debug)]
pub(crate) struct Grant {
    events: Sender<Event>,
    lost: Sender<LossReason>,
}

impl Grant {
    pub(crate) fn new() -> (Arc<Grant>, Receiver<Event>, Receiver<LossReason>) {
        // Room for all that a request can bring, so that nothing ever waits: acquired or dropped; lost.
        let (events, received) = bounded(1);
        let (lost, told) = bounded(1);
        (Arc::new(Grant { events, lost }), received, told)
    }
}

impl Observer for Grant {
    fn post(&self, event: Event) {
        match event {
            Event::Acquired | Event::Dropped(_) => drop(self.events.try_send(event)),
            Event::Lost(reason) => drop(self.lost.try_send(reason)),
            Event::Released => {}
        }
    }

    fn hand_on(&self) {}
}
