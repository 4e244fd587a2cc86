//! [`Slot`]: a single value that a thread waits for.

use std::sync::Arc;

use super::latch::{Latch, Setter};
use crate::lock_order::{Mutex, rank::LATCH};

/// The waiting side of a slot.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    value: Arc<Mutex<LATCH, Option<T>>>,
    latch: Latch,
}

/// The side that fills a slot, or leaves it empty when it is dropped.
#[derive(Debug)]
pub(crate) struct Filler<T> {
    value: Arc<Mutex<LATCH, Option<T>>>,
    setter: Setter,
}

impl<T> Slot<T> {
    /// Makes an empty slot.
    pub(crate) fn new() -> (Filler<T>, Slot<T>) {
        let (value, setter) = (Arc::default(), Setter::new());
        let slot = Slot { value: Arc::clone(&value), latch: setter.latch().clone() };
        (Filler { value, setter }, slot)
    }

    /// Takes the value, if it is there and was not taken before.
    pub(crate) fn take(&self) -> Option<T> {
        self.value.lock().take()
    }

    /// Returns the latch that is set when the value is there, or can no longer come.
    pub(crate) fn latch(&self) -> &Latch {
        &self.latch
    }
}

impl<T> Filler<T> {
    /// Fills the slot. Does not block.
    pub(crate) fn fill(self, value: T) {
        *self.value.lock() = Some(value);
        self.setter.set();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_can_be_taken_once() {
        let (filler, slot) = Slot::new();
        assert!(!slot.latch().is_set() && slot.take().is_none());
        filler.fill(1);
        assert!(slot.latch().is_set());
        assert_eq!((slot.take(), slot.take()), (Some(1), None));
        assert!(slot.latch().is_set());
    }

    #[test]
    fn slot_whose_filler_is_dropped_stays_empty() {
        let (filler, slot) = Slot::<u8>::new();
        drop(filler);
        assert!(slot.latch().is_set() && slot.take().is_none());
    }

    #[test]
    fn value_is_there_before_those_who_wait_are_woken() {
        let (filler, slot) = Slot::new();
        let latch = slot.latch().clone();
        let seen = crate::tests::in_background(move || {
            while !latch.is_set() {
                std::thread::yield_now();
            }
            slot.take()
        });
        filler.fill(1);
        assert_eq!(crate::tests::next(&seen), Some(1));
    }
}
