//! [`Sighting`]: the last view of a subject, for threads that read it and threads that wait for a change.

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::engine::SessionEnd;
use crate::error::ZkError;
use crate::time::{Latch, Setter};

pub(super) struct Sighting<T> {
    view: View<T>,
    /// Sets its latch on the next change of the view.
    changed: Setter,
    /// A channel with room for one message. The message stands for all changes until somebody receives it.
    /// `None` after the end.
    changes: Option<Sender<()>>,
    /// Whether a lost session is replaced. If so, the loss does not end the tracking.
    is_lasting: bool,
}

/// What is known about a subject.
#[derive(Debug, PartialEq)]
pub(super) enum View<T> {
    Unseen,
    Seen(T),
    /// The server refuses a read of the subject.
    Refused(ZkError),
    /// The session has ended. This is final.
    Ended(SessionEnd),
}

impl<T: PartialEq> Sighting<T> {
    /// Makes a sighting that has seen nothing yet, and the channel that announces its changes.
    pub(super) fn new(is_lasting: bool) -> (Sighting<T>, Receiver<()>) {
        let (changes, received) = bounded(1);
        let (view, changed) = (View::Unseen, Setter::new());
        (Sighting { view, changed, changes: Some(changes), is_lasting }, received)
    }

    pub(super) fn view(&self) -> &View<T> {
        &self.view
    }

    /// Returns the latch that is set when the view changes.
    pub(super) fn changed(&self) -> &Latch {
        self.changed.latch()
    }

    /// Sets the view. Returns the former view if it was different. The caller should drop it outside its mutex.
    pub(super) fn set(&mut self, view: View<T>) -> Option<View<T>> {
        if matches!(self.view, View::Ended(_)) || self.view == view {
            return None;
        }
        let former = std::mem::replace(&mut self.view, view);
        // Dropping the former setter sets its latch.
        self.changed = Setter::new();
        if let (Some(changes), false) = (&self.changes, matches!(former, View::Unseen)) {
            // The message in a full channel stands for this change, too.
            let _ = changes.try_send(());
        }
        Some(former)
    }

    /// Notes the end of the session. Returns the former view, as [`set`](Sighting::set) does.
    pub(super) fn end(&mut self, reason: SessionEnd) -> Option<View<T>> {
        if self.is_lasting && reason != SessionEnd::Closed {
            return None;
        }
        let former = self.set(View::Ended(reason))?;
        self.changes = None;
        Some(former)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::deadline;

    /// Returns the number of messages before the channel disconnects. Panics if it stays connected.
    fn all_until_the_end(changes: &Receiver<()>) -> usize {
        let count = changes.try_iter().count();
        assert!(changes.recv_timeout(deadline()).is_err_and(|error| error.is_disconnected()));
        count
    }

    #[test]
    fn changes_that_nobody_has_taken_are_reported_once() {
        let (mut sighting, changes) = Sighting::new(false);
        assert!(sighting.set(View::Seen(0)).is_some());
        assert!(changes.is_empty(), "the first view is not a change");
        for sight in 1..4 {
            assert!(sighting.set(View::Seen(sight)).is_some());
        }
        assert_eq!(changes.try_iter().count(), 1);
        assert!(sighting.set(View::Seen(3)).is_none());
        assert!(changes.is_empty());
        assert!(sighting.set(View::Refused(ZkError::NoAuth)).is_some());
        assert_eq!(changes.try_iter().count(), 1);
    }

    #[test]
    fn a_waiter_is_notified_of_the_next_change() {
        let (mut sighting, _changes) = Sighting::new(false);
        let changed = sighting.changed().clone();
        assert!(!changed.is_set());
        sighting.set(View::Seen(1));
        assert!(changed.is_set());
        assert_eq!(*sighting.view(), View::Seen(1));
    }

    #[test]
    fn the_end_is_final_and_disconnects() {
        let (mut sighting, changes) = Sighting::new(false);
        sighting.set(View::Seen(1));
        sighting.end(SessionEnd::Expired);
        sighting.end(SessionEnd::Closed);
        assert!(sighting.set(View::Seen(2)).is_none());
        assert_eq!(*sighting.view(), View::Ended(SessionEnd::Expired));
        assert_eq!(all_until_the_end(&changes), 1);
    }

    #[test]
    fn the_loss_of_a_session_that_is_replaced_is_no_end() {
        let (mut sighting, changes) = Sighting::new(true);
        sighting.set(View::Seen(1));
        sighting.end(SessionEnd::Silent);
        assert!(sighting.set(View::Seen(2)).is_some());
        sighting.end(SessionEnd::Closed);
        assert!(sighting.set(View::Seen(3)).is_none());
        assert_eq!(all_until_the_end(&changes), 1);
    }
}
