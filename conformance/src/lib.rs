//! Checks that a client keeps the contract of [`ZooKeeperClient`].
//!
//! Run these checks against your own client before you pass it to
//! [`Session::from_client`](zookeeper_recipes_lock::Session::from_client), because locks rely on every rule
//! that the checks cover. The library runs them against its own connection and its simulated server.
//!
//! # Use
//! Implement [`Fixture`], which opens sessions, and [`Subject`], which stands for one session. Then call
//! [`check`]. Only [`Fixture::connect`] and [`Subject::client`] are required. A check that needs more than
//! the fixture offers is [skipped](Verdict::Skipped).
//!
//! A fixture should be able to [disconnect](Subject::disconnect) and [expire](Subject::expire) a session, because most
//! bugs in clients show only then. A TCP relay in front of a real server can do both, and can also
//! [stall](Subject::stall) a connection.
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
//! Checks whose names begin with `submitted_calls_end_with_` make many calls at once. If the fixture can stall the
//! connection, they make the calls during a stall, so no call is answered before contact is lost. (The check that
//! closes the client does without a stall.)
//!
//! [`checks`] returns the individual checks, for a test harness that lists each of them.
//!
//! # What no check can show
//! - That the client's session timeout is the one that the server grants, unless [`Fixture::session_timeout`] returns
//!   that timeout. A timeout that is too long does no harm until the client loses contact while it owns a lock.
//! - That the client's [`report_delay`](zookeeper_recipes_lock::client::port::ZooKeeperClient::report_delay) is long
//!   enough. A delay that is too short does no harm until a server dies at the wrong moment. Compare the delay with the
//!   `tickTime` of the servers.
//! - That an event never overtakes the reply to the call that set its watch. A caller cannot see which of the
//!   two arrived first. Nor that the events of an ordered client are passed on between the replies between which the
//!   changes took effect: the suite checks only the order of the replies.
//! - That a client reports a ping as answered only if it was sent on the present connection. A wrong report can let a
//!   session believe that it is alive.
//! - That after a reconnect, only a server answers that has applied every change which the session has seen. All
//!   sessions of a fixture are on the same server.
//! - That a [`CreateAndList`](zookeeper_recipes_lock::client::port::Call::CreateAndList) returns the path of the new
//!   znode even if the connection is lost between its two replies. No fixture can cut a connection there.

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
    /// Opens a session and returns once its client has contact.
    ///
    /// All sessions of a fixture must be on the same server, so that each sees immediately what another has
    /// written. The sessions must be allowed to create znodes below the root.
    fn connect(&self) -> Box<dyn Subject>;

    /// Opens a session whose client prefixes every path with `chroot`.
    ///
    /// Apart from the prefix, the session is like one that [`connect`](Fixture::connect) opens. The znode `chroot`
    /// already exists. Returns `None`, the default, if the client cannot prefix its paths.
    fn connect_below(&self, chroot: &str) -> Option<Box<dyn Subject>> {
        let _ = chroot;
        None
    }

    /// Returns the session timeout that the servers grant, or `None` if it is unknown.
    fn session_timeout(&self) -> Option<Duration> {
        None
    }

    /// Returns how long a check waits for something that must happen.
    ///
    /// The default is 30 s.
    fn deadline(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Returns whether the client survives a panic in its sink.
    ///
    /// The contract does not require this. The default is `false`.
    fn contains_panics(&self) -> bool {
        false
    }
}

/// One session and its client, which has no subscriber yet.
pub trait Subject: Send + Sync {
    /// Returns the client, which must be the same on every call.
    fn client(&self) -> Arc<dyn ZooKeeperClient>;

    /// Returns the session's id, if it is known.
    fn session_id(&self) -> Option<i64> {
        None
    }

    /// Cuts the connection, prevents new ones until [`reconnect`](Subject::reconnect) or [`expire`](Subject::expire),
    /// and returns `true`.
    ///
    /// The session remains on the server for a while. The default does nothing and returns `false`.
    fn disconnect(&self) -> bool {
        false
    }

    /// Stalls the connection in both directions without closing it, and returns `true`.
    ///
    /// [`disconnect`](Subject::disconnect), [`reconnect`](Subject::reconnect) and [`expire`](Subject::expire)
    /// end the stall. The default does nothing and returns `false`.
    fn stall(&self) -> bool {
        false
    }

    /// Allows connections again and ends a stall.
    fn reconnect(&self) {}

    /// Ends the session on the server, allows connections again, and returns `true`.
    ///
    /// The default does nothing and returns `false`.
    fn expire(&self) -> bool {
        false
    }
}

/// A check of one rule of the contract.
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

/// A violation of a rule of the contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{check}: {what}")]
#[non_exhaustive]
pub struct Violation {
    /// The name of the check.
    pub check: &'static str,
    /// What was expected and what happened.
    pub what: String,
}

impl Check {
    /// Returns the name of the check: the rule that it checks, written like the name of a function.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the check on new sessions of the fixture, below a new znode that it deletes at the end.
    ///
    /// # Errors
    /// The violation that the check found.
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

/// Runs all checks in sequence.
pub fn check(fixture: &dyn Fixture) -> Report {
    let results = checks().into_iter().map(|check| (check.name, check.run(fixture))).collect();
    Report { results }
}

/// The outcomes of all checks. `Display` prints one per line.
#[derive(Clone, Debug)]
#[must_use]
pub struct Report {
    results: Vec<(&'static str, Result<Verdict, Violation>)>,
}

impl Report {
    /// Returns `true` if no check found a violation. A skipped check finds none.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        self.violations().next().is_none()
    }

    /// Returns the violations that the checks found.
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

/// Creates a check that is named after its function.
macro_rules! named {
    ($function:ident) => {
        crate::Check { name: stringify!($function), run: $function }
    };
}
use named;

/// Makes the calling function return a violation if the condition is false.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(crate::scene::Problem::Violated(format!($($message)+)));
        }
    };
}
use ensure;
