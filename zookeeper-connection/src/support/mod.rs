//! What this crate and the locks on top of it share: mutexes with an order, contained panics, a log that
//! never blocks, and the detection of a forked child.

pub mod lock_order;
pub mod logging;
mod outage;
pub mod panics;
pub mod process;

pub use self::outage::{Outage, Repetition};
