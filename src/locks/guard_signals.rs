//! [`WaitObserver`], which reports a request's events to the thread that waits for it, and
//! [`GuardSignals`], which report to guards what happens to their locks later.

use std::convert::Infallible;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::LossReason;
use crate::request::{Event, Observer};
use crate::wait::CancelToken;

/// What is reported to a guard, or to several that are held together.
#[derive(Debug)]
pub(crate) struct GuardSignals {
    lost: (Sender<LossReason>, Receiver<LossReason>),
    revocation: (Sender<()>, Receiver<()>),
    /// Cancelled by the first loss.
    broken: CancelToken,
}

impl GuardSignals {
    /// Has room for all events of so many locks, so that sending never waits.
    pub(crate) fn of(locks: usize) -> Arc<GuardSignals> {
        let (lost, revocation) = (bounded(locks), bounded(locks));
        Arc::new(GuardSignals { lost, revocation, broken: CancelToken::new() })
    }

    pub(crate) fn lost(&self) -> &Receiver<LossReason> {
        &self.lost.1
    }

    pub(crate) fn revocation(&self) -> &Receiver<()> {
        &self.revocation.1
    }

    /// Disconnected once a lock is lost.
    pub(crate) fn broken(&self) -> &Receiver<Infallible> {
        self.broken.cancelled()
    }

    fn report_loss(&self, reason: LossReason) {
        let _ = self.lost.0.try_send(reason);
        self.broken.cancel();
    }
}

/// Receives a request's events for the thread that waits for it, and later for the guard.
#[derive(Debug)]
pub(crate) struct WaitObserver {
    events: Sender<Event>,
    signals: Arc<GuardSignals>,
}

impl WaitObserver {
    pub(crate) fn new(signals: &Arc<GuardSignals>) -> (Arc<WaitObserver>, Receiver<Event>) {
        // Room for the one event of a request that is waited for: acquired or dropped.
        let (events, received) = bounded(1);
        (Arc::new(WaitObserver { events, signals: Arc::clone(signals) }), received)
    }
}

impl Observer for WaitObserver {
    fn post(&self, event: Event) {
        match event {
            Event::Acquired | Event::Dropped(_) => drop(self.events.try_send(event)),
            Event::RevocationRequested => drop(self.signals.revocation.0.try_send(())),
            Event::Lost(reason) => self.signals.report_loss(reason),
            Event::Released => {}
        }
    }
}
