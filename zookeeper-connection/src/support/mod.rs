//! What this crate shares with the locks built on it: mutexes with an order, containment of panics, logging to a logger
//! that may panic or block, limits for repeated log lines, and the detection of a forked child.

pub mod lock_order;
pub mod logging;
mod outage;
pub mod panics;
pub mod process;

pub use self::outage::{Outage, Repetition};
