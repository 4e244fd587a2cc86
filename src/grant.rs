//! [`Grant`]: how the thread that waits for a lock, and later the guard, hear of what happens to it.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::LossReason;
use crate::request::{Event, Observer};

/// Where guards are told that their locks are taken away: one guard, or several that are held together.
#[derive(Clone, Debug)]
pub(crate) struct Losses {
    tell: Sender<LossReason>,
    told: Receiver<LossReason>,
}

impl Losses {
    /// Has room for the losses of so many locks, so that nothing ever waits.
    pub(crate) fn of(locks: usize) -> Losses {
        let (tell, told) = bounded(locks);
        Losses { tell, told }
    }

    pub(crate) fn told(&self) -> &Receiver<LossReason> {
        &self.told
    }
}

/// Hears of a request's events for the thread that waits for it, and later for the guard.
#[derive(Debug)]
pub(crate) struct Grant {
    events: Sender<Event>,
    lost: Sender<LossReason>,
}

impl Grant {
    pub(crate) fn new(losses: &Losses) -> (Arc<Grant>, Receiver<Event>) {
        // Room for all that a request can bring: acquired or dropped.
        let (events, received) = bounded(1);
        (Arc::new(Grant { events, lost: losses.tell.clone() }), received)
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
