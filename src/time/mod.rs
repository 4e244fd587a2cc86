//! Time: moments on the clock of the lease, and the [`Runtime`] that gives a session its time, its
//! threads and its waits.

mod clock;
mod outage;
mod runtime;

pub use self::clock::Moment;
pub(crate) use self::clock::{Clock, MAX_SLEEP, SystemClock};
pub(crate) use self::outage::{Outage, Repetition};
pub(crate) use self::runtime::{Job, Priority, Runtime, Signal, is_disconnected, wait_by};
#[cfg(any(test, feature = "test-util"))]
pub(crate) use self::runtime::{is_ready, select_of};
