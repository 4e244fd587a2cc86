//! What this crate shares with the locks built on it: mutexes with an order, containment of panics, logging to a logger
//! that may panic or block, limits for repeated log lines, waits on channels that leave a thread its unpark token, text of
//! others as one line, the detection of a forked child, and GUIDs.

mod guid;
pub mod lock_order;
pub mod logging;
mod outage;
pub mod panics;
mod parking;
pub mod process;
pub mod text;

pub use self::guid::new_guid;
pub use self::outage::{Outage, Repetition};
pub use self::parking::keeping_unpark_token;
