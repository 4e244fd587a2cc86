//! Tests the machine against a scripted server.

mod laws;
mod sasl;
mod scripted;
mod session;
mod traffic;
mod watches;
