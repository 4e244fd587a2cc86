//! Time and waiting: moments on the clock of the lease, the [`Runtime`] that gives a session its time, its threads and
//! its waits, and the [`Latch`] and the [`Slot`] that threads and tasks wait for.

mod latch;
mod runtime;
mod slot;
mod tasks;

pub(crate) use zookeeper_connection::Moment;
pub(crate) use zookeeper_connection::support::{Outage, Repetition};
pub(crate) use zookeeper_connection::{Clock, MAX_SLEEP, SystemClock};

pub(crate) use self::latch::{Latch, Setter};
pub(crate) use self::runtime::{Job, Priority, Runtime, submit_wake_up, wait_by, wake, wake_tasks};
pub(crate) use self::slot::{Filler, Slot};
pub(crate) use self::tasks::until;
