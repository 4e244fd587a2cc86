//! Checks that a client keeps the contract of [`client::seam`](zookeeper_recipes_lock::client::seam), as far as a caller
//! can see from outside.
//!
//! What no check can show:
//! - That the client's report delay is long enough.
//! - That an event never overtakes the reply to the call that set its watch: a caller cannot see which of the two arrived
//!   first. The checks see the order of the replies, and of the events.
//! - That an answered ping was sent on the present connection.
//! - That after a reconnect, only a server answers that has applied every change which the session has seen. All
//!   sessions of a fixture are on the same server.

mod calls;
mod contact;
mod scene;
mod submit;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use zookeeper_recipes_lock::client::seam::ZooKeeperClient;

pub(crate) use self::scene::Problem;
use self::scene::Scene;

/// Opens the sessions that are checked.
pub(crate) trait Fixture {
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
pub(crate) trait Subject: Send + Sync {
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
pub(crate) struct Check {
    /// The rule that the check checks, written like the name of a function.
    pub(crate) name: &'static str,
    run: fn(&Scene<'_>) -> Result<(), Problem>,
}

impl Check {
    /// Runs the check on new sessions of the fixture, below a new znode that it deletes at the end.
    pub(crate) fn run(&self, fixture: &dyn Fixture) -> Result<(), Problem> {
        Scene::new(fixture).and_then(|scene| (self.run)(&scene))
    }
}

/// Returns all checks.
pub(crate) fn checks() -> Vec<Check> {
    [calls::CHECKS, watches::CHECKS, contact::CHECKS, submit::CHECKS].concat()
}

/// Asserts that the checks with these outcomes passed, except that those in `skipped` lacked something.
#[track_caller]
pub(crate) fn assert_passed(outcomes: &[(&'static str, Result<(), Problem>)], skipped: &[&str]) {
    let violated = |outcome: &&(_, _)| matches!(outcome, (_, Err(Problem::Violated(_))));
    let violations: Vec<_> = outcomes.iter().filter(violated).collect();
    assert!(violations.is_empty(), "{violations:#?}");
    let lacking = outcomes.iter().filter(|(_, outcome)| outcome.is_err()).map(|(name, _)| *name);
    assert_eq!(lacking.collect::<Vec<_>>(), skipped);
}

/// Creates a check that is named after its function.
macro_rules! named {
    ($function:ident) => {
        super::Check { name: stringify!($function), run: $function }
    };
}
use named;

/// Makes the calling function return a violation if the condition is false.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(super::scene::Problem::Violated(format!($($message)+)));
        }
    };
}
use ensure;
