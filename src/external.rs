//! [`External`]: a value that comes from the application, such as a listener, a hook, a closure, a client or
//! an error.
//!
//! The code of such a value may block, panic, or call this crate, even when the value is dropped. The last handle to a
//! value may be dropped anywhere: on the I/O thread, on the timer's thread, on a thread of the client, or while another
//! panic unwinds. So no value is dropped in place. Instead, a callback thread of the runtime drops it: such a
//! thread may block, and it catches panics.

use std::ops::Deref;
use std::sync::Arc;

use crate::logging;
use crate::panics::contain;
use crate::time::{Priority, Runtime};

#[cfg(test)]
mod tests;

/// A value from the application that this crate owns.
pub(crate) struct External<T: Send + 'static> {
    /// `None` only during the drop.
    value: Option<T>,
    /// The kind of the value, for the log.
    what: &'static str,
    runtime: Arc<dyn Runtime>,
}

impl<T: Send + 'static> External<T> {
    /// Takes a value, which a callback thread of this runtime will drop.
    pub(crate) fn new(what: &'static str, value: T, runtime: &Arc<dyn Runtime>) -> External<T> {
        External { value: Some(value), what, runtime: Arc::clone(runtime) }
    }

    /// Calls the value's code, and returns the message of a panic as an error.
    pub(crate) fn call<R>(&self, code: impl FnOnce(&T) -> R) -> Result<R, String> {
        contain(|| code(self))
    }
}

impl<T: Send + 'static> Deref for External<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.value {
            Some(value) => value,
            // Proof: only `drop` takes the value.
            None => unreachable!("a value is used while it is being dropped"),
        }
    }
}

impl<T: Send + 'static> Drop for External<T> {
    fn drop(&mut self) {
        let (value, what) = (self.value.take(), self.what);
        let job = move || {
            if let Err(message) = contain(|| drop(value)) {
                logging::error!("{what} panicked when it was dropped: {message}");
            }
        };
        self.runtime.submit(Priority::Callback, Box::new(job));
    }
}
