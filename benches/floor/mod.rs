//! The floor of a lock's cost: its frames written by hand to a blocking socket, without any client.
//!
//! No thread stands between the caller and the socket, nothing is retried, and no ping is sent. An uncontended lock
//! whose session survives faults cannot be much faster. A hand-over can: this lock lists the queue only when its
//! predecessor has left.

#![allow(dead_code, reason = "each benchmark uses a part")]

mod lock;
mod wire;

pub(crate) use self::lock::FloorLock;
#[allow(unused_imports, reason = "each benchmark uses a part")]
pub(crate) use self::lock::FloorLocks;
#[allow(unused_imports, reason = "each benchmark uses a part")]
pub(crate) use self::wire::Wire;
