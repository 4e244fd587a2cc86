//! [`Mailbox`]: hands items on in order, one at a time, outside every lock, on whichever thread comes by.
//!
//! This is how foreign code (listeners) is called: an item is posted under the lock that decides its order, and handed
//! on after that lock is released. A handler that posts again, or that makes another thread post, deadlocks nobody: the
//! thread that is handing on takes the new item too.

use std::collections::VecDeque;

use parking_lot::Mutex;

#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    handing_on: bool,
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> Mailbox<T> {
        Mailbox { state: Mutex::new(State { items: VecDeque::new(), handing_on: false }) }
    }

    pub(crate) fn post(&self, item: T) {
        self.state.lock().items.push_back(item);
    }

    /// Hands on everything posted; returns at once when another thread, or a caller further up on this one, is doing so.
    ///
    /// `handle` must not panic: what it calls of others, it guards itself.
    pub(crate) fn hand_on(&self, mut handle: impl FnMut(T)) {
        let mut state = self.state.lock();
        if state.handing_on {
            return;
        }
        state.handing_on = true;
        while let Some(item) = state.items.pop_front() {
            parking_lot::MutexGuard::unlocked(&mut state, || handle(item));
        }
        state.handing_on = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_order_one_at_a_time_even_when_handing_on_posts_more() {
        let mailbox = Mailbox::new();
        let mut seen = Vec::new();
        mailbox.post(1);
        mailbox.post(2);
        mailbox.hand_on(|item| {
            if item == 1 {
                mailbox.post(3);
                mailbox.hand_on(|_| unreachable!("a second hand-on while the first is at work"));
            }
            seen.push(item);
        });
        assert_eq!(seen, [1, 2, 3]);
    }
}
