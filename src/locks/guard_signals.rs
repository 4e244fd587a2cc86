//! [`WaitObserver`] reports a request's events to the thread or task that waits for the lock. [`GuardSignals`] report
//! losses and revocations to guards afterwards.

use std::sync::{Arc, OnceLock};

use crossbeam_channel::{Receiver, Sender, bounded, never};

use crate::error::LossReason;
use crate::process::Process;
use crate::request::{Ending, Observer, RequestEvent};
use crate::time::{Latch, Runtime, Setter, submit_wake_up, wake_tasks};

type Channel<T> = (Sender<T>, Receiver<T>);

/// The signals of one guard, or of several guards that are held together.
#[derive(Debug)]
pub(crate) struct GuardSignals {
    /// The number of guards. Each channel has room for one message from each guard, so sending never waits.
    locks: usize,
    /// Created on first use, like `revocation`, because most locks need neither.
    lost: OnceLock<Channel<LossReason>>,
    revocation: OnceLock<Channel<()>>,
    /// Set by the first loss. Created on first use.
    first_loss: OnceLock<Setter>,
    /// Set by the first loss or revocation. Created on first use.
    reported: OnceLock<Setter>,
    process: Process,
    of_child: ChannelsOfChild,
}

impl GuardSignals {
    /// Creates the signals for this many locks of this process.
    pub(crate) fn of(locks: usize, process: Process) -> Arc<GuardSignals> {
        let (lost, revocation) = (OnceLock::new(), OnceLock::new());
        let (first_loss, reported) = (OnceLock::new(), OnceLock::new());
        let of_child = ChannelsOfChild::new();
        Arc::new(GuardSignals { locks, lost, revocation, first_loss, reported, process, of_child })
    }

    pub(crate) fn lost(&self) -> &Receiver<LossReason> {
        if self.process.is_current() { &self.losses().1 } else { self.of_child.lost() }
    }

    pub(crate) fn revocation(&self) -> &Receiver<()> {
        if self.process.is_current() { &self.revocations().1 } else { self.of_child.revocation() }
    }

    fn losses(&self) -> &Channel<LossReason> {
        self.lost.get_or_init(|| bounded(self.locks))
    }

    fn revocations(&self) -> &Channel<()> {
        self.revocation.get_or_init(|| bounded(self.locks))
    }

    /// The latch that is set once one of several locks is lost; `None` for a single lock.
    pub(crate) fn broken(&self) -> Option<&Latch> {
        (self.locks > 1).then(|| self.first_loss())
    }

    /// The latch that is set once a lock is lost.
    pub(crate) fn first_loss(&self) -> &Latch {
        self.first_loss.get_or_init(Setter::new).latch()
    }

    /// The latch that is set once a lock is lost or another client asks for its release.
    pub(crate) fn reported(&self) -> &Latch {
        self.reported.get_or_init(Setter::new).latch()
    }

    fn report_loss(&self, reason: LossReason) {
        let _ = self.losses().0.try_send(reason);
        self.first_loss.get_or_init(Setter::new).set();
        self.reported.get_or_init(Setter::new).set();
    }

    fn report_revocation(&self) {
        let _ = self.revocations().0.try_send(());
        self.reported.get_or_init(Setter::new).set();
    }
}

/// The channels of a guard in a forked child, where the lock counts as lost. The child does not use the channels of its
/// parent: a thread of the parent may have been creating them at the moment of the fork.
#[derive(Debug)]
pub(crate) struct ChannelsOfChild {
    lost: OnceLock<Receiver<LossReason>>,
    revocation: Receiver<()>,
}

impl ChannelsOfChild {
    pub(crate) fn new() -> ChannelsOfChild {
        ChannelsOfChild { lost: OnceLock::new(), revocation: never() }
    }

    /// Returns a channel that contains the loss.
    pub(crate) fn lost(&self) -> &Receiver<LossReason> {
        self.lost.get_or_init(|| {
            let (sender, lost) = bounded(1);
            let _ = sender.try_send(LossReason::SessionLost);
            lost
        })
    }

    /// Returns a channel on which nothing arrives.
    pub(crate) fn revocation(&self) -> &Receiver<()> {
        &self.revocation
    }
}

/// Receives a request's events for the thread or task that waits for the lock, and later for the guard.
#[derive(Debug)]
pub(crate) struct WaitObserver {
    /// Set when the request has acquired the lock or has ended.
    decided: Setter,
    signals: Arc<GuardSignals>,
    runtime: Arc<dyn Runtime>,
}

impl WaitObserver {
    /// Creates an observer that wakes tasks on threads of this runtime.
    pub(crate) fn new(signals: &Arc<GuardSignals>, runtime: &Arc<dyn Runtime>) -> Arc<WaitObserver> {
        let (signals, runtime) = (Arc::clone(signals), Arc::clone(runtime));
        Arc::new(WaitObserver { decided: Setter::new(), signals, runtime })
    }

    /// The latches on which tasks may wait.
    fn of_tasks(&self) -> impl Iterator<Item = &Latch> {
        [Some(&self.decided), self.signals.first_loss.get()].into_iter().flatten().map(Setter::latch)
    }

    pub(crate) fn decided(&self) -> Latch {
        self.decided.latch().clone()
    }
}

impl Observer for WaitObserver {
    fn post(&self, event: &RequestEvent) {
        match event {
            RequestEvent::Acquired { .. } | RequestEvent::Ended { how: Ending::Dropped(..), .. } => {
                self.decided.set();
            }
            RequestEvent::RevocationRequested => self.signals.report_revocation(),
            RequestEvent::Ended { how: Ending::Lost(reason), .. } => self.signals.report_loss(*reason),
            _ => {}
        }
    }

    /// Returns whether tasks must be woken.
    fn has_callbacks(&self) -> bool {
        self.of_tasks().any(Latch::has_tasks_to_wake)
    }

    fn deliver(&self) {
        wake_tasks(&*self.runtime, [self.decided.latch()]);
        // If a release finds the lock lost, this runs on the application's thread, which a waker must not
        // hold up. So a job wakes the tasks.
        if let Some(lost) = self.signals.first_loss.get() {
            submit_wake_up(&self.runtime, lost.latch());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Wake, Waker};
    use std::time::Duration;

    use super::*;
    use crate::request::Place;
    use crate::tests::ManualRuntime;
    use crate::time::{Priority, until};

    #[derive(Default)]
    struct IsWoken(AtomicBool);

    impl Wake for IsWoken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn waker_of_a_loss_that_a_release_reports_runs_on_a_callback_thread() {
        let runtime: Arc<dyn Runtime> = Arc::new(ManualRuntime::default());
        let signals = GuardSignals::of(1, Process::current());
        let observer = WaitObserver::new(&signals, &runtime);
        let is_woken = Arc::new(IsWoken::default());
        let mut lost = pin!(until(Process::current(), [signals.first_loss()], || None::<()>));
        let waker = Waker::from(Arc::clone(&is_woken));
        assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let on_this_thread = Arc::clone(&is_woken);
        // Jobs that this job submits run only after it.
        let release = move || {
            let how = Ending::Lost(LossReason::LeaseExpired);
            observer.post(&RequestEvent::Ended { place: Place::Owner, how, time: Duration::ZERO });
            observer.deliver();
            assert!(!on_this_thread.0.load(Ordering::SeqCst));
        };
        runtime.submit(Priority::Other, Box::new(release));
        assert!(is_woken.0.load(Ordering::SeqCst));
    }
}
