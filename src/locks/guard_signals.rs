//! [`WaitObserver`]: how the thread that waits for a lock hears of what becomes of its request, and [`GuardSignals`], what guards hear
//! of their locks later.

use std::convert::Infallible;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::LossReason;
use crate::request::{Event, Observer};
use crate::wait::CancelToken;

/// What guards are told of their locks: one guard, or several that are held together.
#[derive(Debug)]
pub(crate) struct GuardSignals {
    lost: Channel<LossReason>,
    revocation: Channel<()>,
    /// Pulled by the first loss.
    broken: CancelToken,
}

#[derive(Debug)]
struct Channel<T> {
    tell: Sender<T>,
    told: Receiver<T>,
}

impl GuardSignals {
    /// Has room for all that so many locks can bring, so that nothing ever waits.
    pub(crate) fn of(locks: usize) -> Arc<GuardSignals> {
        let (lost, revocation) = (Channel::with_room_for(locks), Channel::with_room_for(locks));
        Arc::new(GuardSignals { lost, revocation, broken: CancelToken::new() })
    }

    pub(crate) fn lost(&self) -> &Receiver<LossReason> {
        &self.lost.told
    }

    pub(crate) fn revocation(&self) -> &Receiver<()> {
        &self.revocation.told
    }

    /// Disconnected once a lock is lost.
    pub(crate) fn broken(&self) -> Receiver<Infallible> {
        self.broken.cancelled()
    }

    fn tell_of_loss(&self, reason: LossReason) {
        let _ = self.lost.tell.try_send(reason);
        self.broken.cancel();
    }
}

impl<T> Channel<T> {
    fn with_room_for(messages: usize) -> Channel<T> {
        let (tell, told) = bounded(messages);
        Channel { tell, told }
    }
}

/// Hears of a request's events for the thread that waits for it, and later for the guard.
#[derive(Debug)]
pub(crate) struct WaitObserver {
    events: Sender<Event>,
    signals: Arc<GuardSignals>,
}

impl WaitObserver {
    pub(crate) fn new(signals: &Arc<GuardSignals>) -> (Arc<WaitObserver>, Receiver<Event>) {
        // Room for all that a request can bring: acquired or dropped.
        let (events, received) = bounded(1);
        (Arc::new(WaitObserver { events, signals: Arc::clone(signals) }), received)
    }
}

impl Observer for WaitObserver {
    fn post(&self, event: Event) {
        match event {
            Event::Acquired | Event::Dropped(_) => drop(self.events.try_send(event)),
            Event::RevocationRequested => drop(self.signals.revocation.tell.try_send(())),
            Event::Lost(reason) => self.signals.tell_of_loss(reason),
            Event::Released => {}
        }
    }
}
