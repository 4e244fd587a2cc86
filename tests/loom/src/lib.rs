//! Models of the parts of the crate that several threads use without the engine's mutex, checked under every
//! interleaving, some with at most three preemptions. They compile the crate's own files; loom's atomics and mutexes
//! take the place of the real ones.

#![cfg(all(test, loom))]

#[path = "../../../src/time/latch.rs"]
mod latch;
mod lock_order;
#[path = "../../../src/session/mailbox.rs"]
mod mailbox;
#[path = "../../../src/session/ownership.rs"]
mod ownership;
mod parking;
mod process;
#[path = "../../../src/time/tasks.rs"]
mod tasks;
mod time;

mod delivery;
mod ownership_models;
mod waiting;
