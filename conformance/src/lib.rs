//! The contract of [`ZooKeeperClient`], as checks that run against any client.
//!
//! The library runs them against its own connection and its fake server. Run them against a client of yours before you give it to
//! [`Session::from_client`](zookeeper_recipes_lock::Session::from_client): locks rely on every rule that they check.
//!
//! # Use
//! Implement [`Fixture`], which opens sessions, and [`Subject`], which is one of them. Everything
//! but the client itself is optional: a check that needs more than the fixture has is
//! [skipped](Verdict::Skipped). A fixture should be able to [disconnect](Subject::disconnect) and
//! [expire](Subject::expire) a session, as most faults of clients show only then. A TCP relay in
//! front of a real server can do both, and [stall](Subject::stall) a connection.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use zookeeper_recipes_lock::client::port::ZooKeeperClient;
//! use zookeeper_recipes_lock_conformance::{Fixture, Subject, check};
//! use zookeeper_recipes_lock::fake::{SimulatedClient, SimulatedZooKeeper};
//!
//! struct Fake(SimulatedZooKeeper);
//!
//! impl Fixture for Fake {
//!     fn connect(&self) -> Box<dyn Subject> {
//!         Box::new(FakeSession(self.0.connect(Duration::from_secs(6))))
//!     }
//! }
//!
//! struct FakeSession(Arc<SimulatedClient>);
//!
//! impl Subject for FakeSession {
//!     fn client(&self) -> Arc<dyn ZooKeeperClient> {
//!         self.0.clone()
//!     }
//!
//!     fn disconnect(&self) -> bool {
//!         self.0.disconnect();
//!         true
//!     }
//!
//!     fn reconnect(&self) {
//!         self.0.reconnect();
//!     }
//!
//!     fn expire(&self) -> bool {
//!         self.0.expire();
//!         true
//!     }
//! }
//!
//! let report = check(&Fake(SimulatedZooKeeper::new()));
//! assert!(report.is_passed(), "{report}");
//! ```
//!
//! The checks whose names begin with `submitted_` make many calls at once, under a stall where the
//! fixture can cause one, so that none is answered before contact is lost.
//!
//! [`checks`] returns the single checks, for a test harness that lists each of them.
//!
//! # What no check can show
//! That a client reports a shorter session timeout than the server grants to it, or too short a
//! [`report_delay`](zookeeper_recipes_lock::client::port::ZooKeeperClient::report_delay): nothing fails until a server dies at the wrong
//! moment. Compare both with the configuration of the servers. And that an event never overtakes
//! the reply of the call that set its watch: a caller cannot see which of the two came first. Nor that
//! a [`CreateAndList`](zookeeper_recipes_lock::client::port::Call::CreateAndList) whose connection is lost between its two replies
//! returns the path of the new znode: no fixture can cut a connection there.

#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations, unreachable_pub, rust_2018_idioms)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod calls;
mod contact;
mod scene;
mod submit;
#[cfg(test)]
mod tests;
mod transactions;
mod watches;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use self::scene::{Problem, Scene};
use zookeeper_recipes_lock::client::port::ZooKeeperClient;

/// Opens the sessions that are checked.
pub trait Fixture {
    /// Opens a session, and returns when its client has contact. All sessions of a fixture are on
    /// one server, so that each sees at once what another has written. They may create znodes below
    /// the root.
    fn connect(&self) -> Box<dyn Subject>;

    /// As [`connect`](Fixture::connect), with a client that prefixes every path with this one, which
    /// exists. `None` if the client has no such setting.
    fn connect_below(&self, chroot: &str) -> Option<Box<dyn Subject>> {
        let _ = chroot;
        None
    }

    /// Returns the session timeout that the servers grant, if it is known.
    fn session_timeout(&self) -> Option<Duration> {
        None
    }

    /// Returns how long a check waits for something that must happen. The default is 30 s.
    fn deadline(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Returns whether the client goes on after a panic of its sink. The contract does not require
    /// it. The default is `false`.
    fn contains_panics(&self) -> bool {
        false
    }
}

/// One session and its client, to which nobody has subscribed.
pub trait Subject: Send + Sync {
    /// Returns the client; the same one each time.
    fn client(&self) -> Arc<dyn ZooKeeperClient>;

    /// Returns the id of the session, if it is known.
    fn session_id(&self) -> Option<i64> {
        None
    }

    /// Cuts the connection and prevents another one until [`reconnect`](Subject::reconnect), and
    /// returns `true`. The session lives on at the server for a while. The default returns `false`
    /// and does nothing.
    fn disconnect(&self) -> bool {
        false
    }

    /// Holds up what the client and the server send, closes nothing, and returns `true`. Ends with
    /// [`disconnect`](Subject::disconnect), [`reconnect`](Subject::reconnect) or
    /// [`expire`](Subject::expire). The default returns `false` and does nothing.
    fn stall(&self) -> bool {
        false
    }

    /// Permits connections again, and ends a stall.
    fn reconnect(&self) {}

    /// Ends the session at the server, permits connections, and returns `true`. The default returns
    /// `false` and does nothing.
    fn expire(&self) -> bool {
        false
    }
}

/// One rule of the contract, and the code that checks it.
#[derive(Clone, Copy)]
pub struct Check {
    name: &'static str,
    run: fn(&Scene<'_>) -> Result<(), Problem>,
}

/// The outcome of a check that found no violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The client obeys the rule.
    Passed,
    /// The fixture or the servers lack what the check needs.
    Skipped(
        /// What is missing.
        &'static str,
    ),
}

/// A client violates a rule of the contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{check}: {what}")]
#[non_exhaustive]
pub struct Violation {
    /// The name of the check.
    pub check: &'static str,
    /// What was expected, and what happened.
    pub what: String,
}

impl Check {
    /// Returns the name: the rule in a few words, spelled as that of a function.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the check on new sessions of the fixture, below a new znode, which it deletes at the
    /// end.
    ///
    /// # Errors
    /// What the client does wrong.
    pub fn run(&self, fixture: &dyn Fixture) -> Result<Verdict, Violation> {
        let outcome = Scene::new(fixture).and_then(|scene| (self.run)(&scene));
        match outcome {
            Ok(()) => Ok(Verdict::Passed),
            Err(Problem::Lacking(what)) => Ok(Verdict::Skipped(what)),
            Err(Problem::Violated(what)) => Err(Violation { check: self.name, what }),
        }
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Returns all checks.
#[must_use]
pub fn checks() -> Vec<Check> {
    [calls::CHECKS, transactions::CHECKS, watches::CHECKS, contact::CHECKS, submit::CHECKS].concat()
}

/// Runs all checks, one after the other.
pub fn check(fixture: &dyn Fixture) -> Report {
    let results = checks().into_iter().map(|check| (check.name, check.run(fixture))).collect();
    Report { results }
}

/// The outcome of every check. `Display` prints one a line.
#[derive(Clone, Debug)]
#[must_use]
pub struct Report {
    results: Vec<(&'static str, Result<Verdict, Violation>)>,
}

impl Report {
    /// Returns whether no check has failed.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        self.violations().next().is_none()
    }

    /// Returns what the failed checks found.
    pub fn violations(&self) -> impl Iterator<Item = &Violation> {
        self.results.iter().filter_map(|(_, result)| result.as_ref().err())
    }

    /// Returns the names of the checks that were skipped.
    pub fn skipped(&self) -> impl Iterator<Item = &'static str> {
        let is_skipped = |result: &Result<_, _>| matches!(result, Ok(Verdict::Skipped(_)));
        self.results.iter().filter(move |(_, result)| is_skipped(result)).map(|(name, _)| *name)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, result) in &self.results {
            match result {
                Ok(Verdict::Passed) => writeln!(f, "passed   {name}")?,
                Ok(Verdict::Skipped(lacking)) => writeln!(f, "skipped  {name} (lacking: {lacking})")?,
                Err(violation) => writeln!(f, "FAILED   {violation}")?,
            }
        }
        Ok(())
    }
}

/// Names a check after its function.
macro_rules! named {
    ($function:ident) => {
        crate::Check { name: stringify!($function), run: $function }
    };
}
use named;

/// Returns from a check with a violation unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(crate::scene::Problem::Violated(format!($($message)+)));
        }
    };
}
use ensure;
