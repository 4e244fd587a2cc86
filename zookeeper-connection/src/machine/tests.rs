//! The machine against a scripted server.

mod laws;
mod scripted;
mod session;
mod traffic;
mod watches;
