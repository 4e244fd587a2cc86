//! [`WaitObserver`], which reports a request's events to the thread that waits for it, and
//! [`GuardSignals`], which report to guards what happens to their locks later.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};

use crossbeam_channel::{Receiver, Sender, bounded, never};

use crate::error::LossReason;
use crate::request::{Ending, Observer, RequestEvent};
use crate::wait::CancelToken;

type Channel<T> = (Sender<T>, Receiver<T>);

/// The reports to a guard, or to several that are held together.
#[derive(Debug)]
pub(crate) struct GuardSignals {
    /// The number of the guards. The channels have room for all events, so that sending never waits.
    locks: usize,
    /// Each channel is made when it is first used, since most locks need neither.
    lost: OnceLock<Channel<LossReason>>,
    revocation: OnceLock<Channel<()>>,
    /// Cancelled by the first loss, for those who then wait for another lock.
    broken: Option<CancelToken>,
}

impl GuardSignals {
    /// Makes the signals of so many locks.
    pub(crate) fn of(locks: usize) -> Arc<GuardSignals> {
        let (lost, revocation) = (OnceLock::new(), OnceLock::new());
        let broken = (locks > 1).then(CancelToken::new);
        Arc::new(GuardSignals { locks, lost, revocation, broken })
    }

    pub(crate) fn lost(&self) -> &Receiver<LossReason> {
        &self.losses().1
    }

    pub(crate) fn revocation(&self) -> &Receiver<()> {
        &self.revocations().1
    }

    fn losses(&self) -> &Channel<LossReason> {
        self.lost.get_or_init(|| bounded(self.locks))
    }

    fn revocations(&self) -> &Channel<()> {
        self.revocation.get_or_init(|| bounded(self.locks))
    }

    /// Disconnected once one of several locks is lost.
    pub(crate) fn broken(&self) -> Receiver<Infallible> {
        self.broken.as_ref().map_or_else(never, |broken| broken.cancelled().clone())
    }

    fn report_loss(&self, reason: LossReason) {
        let _ = self.losses().0.try_send(reason);
        if let Some(broken) = &self.broken {
            broken.cancel();
        }
    }
}

/// Receives a request's events for the thread that waits for it, and later for the guard.
#[derive(Debug)]
pub(crate) struct WaitObserver {
    events: Sender<RequestEvent>,
    signals: Arc<GuardSignals>,
}

impl WaitObserver {
    pub(crate) fn new(signals: &Arc<GuardSignals>) -> (Arc<WaitObserver>, Receiver<RequestEvent>) {
        // Room for the one event of a request that is waited for: acquired or dropped.
        let (events, received) = bounded(1);
        (Arc::new(WaitObserver { events, signals: Arc::clone(signals) }), received)
    }
}

impl Observer for WaitObserver {
    fn post(&self, event: &RequestEvent) {
        match event {
            RequestEvent::Acquired { .. } | RequestEvent::Ended { how: Ending::Dropped(..), .. } => {
                drop(self.events.try_send(event.clone()));
            }
            RequestEvent::RevocationRequested => drop(self.signals.revocations().0.try_send(())),
            RequestEvent::Ended { how: Ending::Lost(reason), .. } => self.signals.report_loss(*reason),
            _ => {}
        }
    }
}
