//! A mutex with the methods of the crate's mutex, based on loom's.

use std::ops::{Deref, DerefMut};

pub(crate) mod rank {
    pub(crate) const MAILBOX: u8 = 0;
    pub(crate) const LATCH: u8 = 1;
}

#[derive(Debug)]
pub(crate) struct Mutex<const RANK: u8, T>(loom::sync::Mutex<T>);

impl<const RANK: u8, T> Mutex<RANK, T> {
    pub(crate) fn new(value: T) -> Mutex<RANK, T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, RANK, T> {
        MutexGuard { mutex: &self.0, guard: Some(self.0.lock().unwrap()) }
    }
}

pub(crate) struct MutexGuard<'a, const RANK: u8, T> {
    mutex: &'a loom::sync::Mutex<T>,
    guard: Option<loom::sync::MutexGuard<'a, T>>,
}

impl<const RANK: u8, T> MutexGuard<'_, RANK, T> {
    pub(crate) fn unlocked<R>(&mut self, code: impl FnOnce() -> R) -> R {
        self.guard = None;
        let result = code();
        self.guard = Some(self.mutex.lock().unwrap());
        result
    }
}

impl<const RANK: u8, T> Deref for MutexGuard<'_, RANK, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().unwrap()
    }
}

impl<const RANK: u8, T> DerefMut for MutexGuard<'_, RANK, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().unwrap()
    }
}
