//! [`Mailbox`]: delivers items in order, one at a time, outside every lock.
//!
//! Listeners are called this way: an item is posted under the lock that decides its order, and
//! delivered after that lock is released. A hook may post again, or make another thread post,
//! without a deadlock: the delivering thread takes the new item, too.

use crate::lock_order::{Mutex, MutexGuard, rank::MAILBOX};
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    state: Mutex<MAILBOX, State<T>>,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    is_delivering: bool,
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> Mailbox<T> {
        Mailbox { state: Mutex::new(State { items: VecDeque::new(), is_delivering: false }) }
    }

    pub(crate) fn post(&self, item: T) {
        self.state.lock().items.push_back(item);
    }

    /// Whether an item was posted that no thread is about to deliver.
    pub(crate) fn is_waiting(&self) -> bool {
        let state = self.state.lock();
        !state.is_delivering && !state.items.is_empty()
    }

    /// Delivers everything posted; returns at once when another thread, or a caller further up on
    /// this one, is doing so.
    ///
    /// After a panic of `handle`, the items that are left wait for the next call.
    pub(crate) fn deliver(&self, mut handle: impl FnMut(T)) {
        let mut state = self.state.lock();
        if state.is_delivering {
            return;
        }
        state.is_delivering = true;
        let mut turn = Turn(state);
        while let Some(item) = turn.0.items.pop_front() {
            turn.0.unlocked(|| handle(item));
        }
    }
}

/// A delivery by one thread. Ends when it is dropped, also by a panic.
struct Turn<'a, T>(MutexGuard<'a, MAILBOX, State<T>>);

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        self.0.is_delivering = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    #[test]
    fn items_come_in_order_one_at_a_time_even_when_a_delivery_posts_more() {
        let mailbox = Mailbox::new();
        let mut seen = Vec::new();
        mailbox.post(1);
        mailbox.post(2);
        mailbox.deliver(|item| {
            if item == 1 {
                mailbox.post(3);
                mailbox.deliver(|_| unreachable!("a second delivery during the first"));
            }
            seen.push(item);
        });
        assert_eq!(seen, [1, 2, 3]);
    }

    #[test]
    fn items_are_delivered_after_a_panic() {
        let mailbox = Mailbox::new();
        let mut seen = Vec::new();
        mailbox.post(1);
        mailbox.post(2);
        let panicking = || mailbox.deliver(|_| resume_unwind(Box::new("on purpose")));
        catch_unwind(AssertUnwindSafe(panicking)).unwrap_err();
        mailbox.deliver(|item| seen.push(item));
        assert_eq!(seen, [2]);
    }
}
