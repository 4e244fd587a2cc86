//! Wraps the published [`Relay`](test_server::Relay) so that errors panic.

use std::net::ToSocketAddrs;
use std::ops::Deref;
use std::time::Duration;

use super::test_server::{self, RelayTrap};

/// A relay. Any error from it fails the test.
#[derive(Debug)]
pub struct Relay(test_server::Relay);

/// A client's request: the number of its operation in the protocol, and a part of its path.
#[derive(Debug, Clone)]
pub struct Request {
    pub operation: i32,
    pub path: String,
}

impl Relay {
    pub fn to(target: impl ToSocketAddrs) -> Self {
        Self(test_server::Relay::to(target).expect("a relay"))
    }

    pub fn with_delay(target: impl ToSocketAddrs, delay: Duration) -> Self {
        Self(test_server::Relay::with_delay(target, delay).expect("a relay"))
    }

    pub fn connect_string(&self) -> String {
        self.0.connect_string()
    }

    pub fn cut(&self) {
        self.0.cut().expect("the relay cuts");
    }

    pub fn black_out(&self) {
        self.0.black_out().expect("the relay blacks out");
    }

    pub fn refuse(&self) {
        self.0.refuse().expect("the relay refuses");
    }

    pub fn swallow(&self) {
        self.0.swallow().expect("the relay swallows");
    }

    pub fn hold_replies(&self) {
        self.0.hold_replies().expect("the relay holds replies");
    }

    pub fn restore(&self) {
        self.0.restore().expect("the relay restores");
    }

    pub fn swallow_from(&self, Request { operation, path }: Request) {
        self.0.swallow_from(RelayTrap::new(operation, path));
    }

    pub fn hold_replies_from(&self, Request { operation, path }: Request) {
        self.0.hold_replies_from(RelayTrap::new(operation, path));
    }
}

impl Deref for Relay {
    type Target = test_server::Relay;

    fn deref(&self) -> &test_server::Relay {
        &self.0
    }
}
