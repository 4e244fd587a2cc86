//! The floor of a lock's cost: its frames written by hand on a blocking socket, without any client.
//!
//! No thread stands between the caller and the socket, nothing is retried, and no ping is sent. A
//! lock with a session that survives faults cannot be faster by much.

#![allow(dead_code, reason = "each benchmark uses a part")]

mod lock;
mod wire;

pub(crate) use self::lock::FloorLock;
#[allow(unused_imports, reason = "each benchmark uses a part")]
pub(crate) use self::wire::Wire;
