//! [`WatchCell`]: the value that was seen last, for those who ask and those who wait.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::{LossReason, ZkError};
use crate::lock_order::{Mutex, rank::WATCH_CELL};
use crate::time::{Latch, Setter};

pub(super) struct WatchCell<T> {
    state: Mutex<WATCH_CELL, Sighting<T>>,
    /// A lost session is replaced, so its loss ends nothing.
    is_replaced: bool,
}

struct Sighting<T> {
    view: View<T>,
    /// The author that was made last.
    author: Author,
    /// Set at the next change of the view.
    changed: Setter,
    /// Has room for one message, which covers all changes until it is taken. Dropped at the
    /// end.
    changes: Option<Sender<()>>,
}

/// An author of what a cell shows. One that was made later has seen more: the others have no say any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Author(u64);

/// A subject, as far as it is known.
#[derive(Debug, PartialEq)]
pub(super) enum View<T> {
    Unseen,
    Seen(T),
    /// The server refuses the look.
    Refused(ZkError),
    /// Final.
    Ended(LossReason),
}

impl<T: PartialEq> WatchCell<T> {
    /// Returns the channel of its changes, too.
    pub(super) fn new(is_replaced: bool) -> (Arc<WatchCell<T>>, Receiver<()>) {
        let (changes, received) = bounded(1);
        let (view, author) = (View::Unseen, Author(0));
        let state = Sighting { view, author, changed: Setter::new(), changes: Some(changes) };
        (Arc::new(WatchCell { state: Mutex::new(state), is_replaced }), received)
    }

    /// Looks at the view, with the latch that is set when it changes.
    pub(super) fn read<R>(&self, read: impl FnOnce(&View<T>, &Latch) -> R) -> R {
        let state = self.state.lock();
        read(&state.view, state.changed.latch())
    }

    pub(super) fn next_author(&self) -> Author {
        let mut state = self.state.lock();
        state.author.0 += 1;
        state.author
    }

    /// Sets the view, unless there is another author by now; returns whether it has changed.
    pub(super) fn set(&self, author: Author, view: View<T>) -> bool {
        let former = {
            let mut state = self.state.lock();
            if state.author == author { state.set(view) } else { None }
        };
        // Dropped outside the lock: it may be long.
        former.is_some()
    }

    pub(super) fn end(&self, reason: LossReason) {
        if self.is_replaced && reason.is_session_loss() {
            return;
        }
        let mut state = self.state.lock();
        if state.set(View::Ended(reason)).is_some() {
            state.changes = None;
        }
    }
}

impl<T: PartialEq> Sighting<T> {
    /// Returns the former view if it is another one.
    fn set(&mut self, view: View<T>) -> Option<View<T>> {
        if matches!(self.view, View::Ended(_)) || self.view == view {
            return None;
        }
        let former = std::mem::replace(&mut self.view, view);
        // Dropping the former one sets it.
        self.changed = Setter::new();
        if let (Some(changes), false) = (&self.changes, matches!(former, View::Unseen)) {
            // The message in a full channel covers this change, too.
            let _ = changes.try_send(());
        }
        Some(former)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::deadline;

    /// Returns how many messages there are up to the disconnect, which must have come.
    fn all_until_the_end(changes: &Receiver<()>) -> usize {
        let count = changes.try_iter().count();
        assert!(changes.recv_timeout(deadline()).is_err_and(|error| error.is_disconnected()));
        count
    }

    #[test]
    fn changes_that_nobody_has_taken_are_reported_once() {
        let (cell, changes) = WatchCell::new(false);
        let author = cell.next_author();
        assert!(cell.set(author, View::Seen(0)));
        assert!(changes.is_empty(), "the first sight is no change");
        for sight in 1..4 {
            assert!(cell.set(author, View::Seen(sight)));
        }
        assert_eq!(changes.try_iter().count(), 1);
        assert!(!cell.set(author, View::Seen(3)));
        assert!(changes.is_empty());
        assert!(cell.set(author, View::Refused(ZkError::NoAuth)));
        assert_eq!(changes.try_iter().count(), 1);
    }

    #[test]
    fn a_waiter_is_notified_of_the_next_change() {
        let (cell, _changes) = WatchCell::new(false);
        let author = cell.next_author();
        let changed = cell.read(|_, changed| changed.clone());
        assert!(!changed.is_set());
        cell.set(author, View::Seen(1));
        assert!(changed.is_set());
        assert!(cell.read(|view, _| *view == View::Seen(1)));
    }

    #[test]
    fn the_end_is_final_and_disconnects() {
        let (cell, changes) = WatchCell::new(false);
        let author = cell.next_author();
        cell.set(author, View::Seen(1));
        cell.end(LossReason::SessionExpired);
        cell.end(LossReason::SessionClosed);
        assert!(!cell.set(author, View::Seen(2)));
        assert!(cell.read(|view, _| *view == View::Ended(LossReason::SessionExpired)));
        assert_eq!(all_until_the_end(&changes), 1);
    }

    #[test]
    fn the_loss_of_a_session_that_is_replaced_is_no_end() {
        let (cell, changes) = WatchCell::new(true);
        let author = cell.next_author();
        cell.set(author, View::Seen(1));
        cell.end(LossReason::LeaseExpired);
        assert!(cell.set(author, View::Seen(2)));
        cell.end(LossReason::SessionClosed);
        assert!(!cell.set(author, View::Seen(3)));
        assert_eq!(all_until_the_end(&changes), 1);
    }
}
