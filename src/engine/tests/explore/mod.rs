//! An exhaustive exploration of the engine: a model checker takes small systems through every order of steps.
//!
//! A system has up to three sessions, each with an [`Engine`](crate::engine::Engine), up to three requests in
//! all, and a [model](server) of the server. After each step, the promises must hold (see
//! [`system::Exploration::violation`]). If a promise is broken, the test prints the shortest sequence of
//! steps that leads there.
//!
//! What is modeled, and what is not:
//! - One write proves a session alive, because the session's server reports to the leader without delay. The tests of
//!   the lease cover longer delays. A session expires when the ensemble has not heard from it for a session
//!   timeout. By then, at least as much time has passed on the session's own clock, so an owner's lease must
//!   have ended.
//! - A server may hold back a write of a previous connection. It then handles the write within 100 s, perhaps
//!   after other servers have answered the session.
//! - A lost connection loses what is under way, in both directions. Calls that a session makes without
//!   contact wait for the next connection.
//! - The clock stands still while something is under way, except that as many alarms may ring as the case
//!   permits. It stops for good before the first keep-alive and the first routine look.
//! - A refused call has no effect.
//! - There are no persistent znodes, no numbers near the end of the counter, no downgrades and no observers.

// The test prints what it has explored.
#![allow(clippy::print_stdout)]

mod beside;
mod cases;
mod member;
mod server;
mod system;
mod trace;

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use self::cases::{large_cases, small_cases};
use self::system::{Case, Exploration};

/// Explores a case until about `limit` states have been seen. Returns `true` if no promise was broken, and
/// the last request owned the lock in some state.
fn explore(case: &Case, limit: usize) -> bool {
    let begun = Instant::now();
    let exploration = Exploration::new(case.clone()).checker().finish_when(HasDiscoveries::AnyFailures);
    let checker = exploration.target_state_count(limit).spawn_bfs().join();
    let failure = checker.discovery(system::ALWAYS);
    let outcome = match failure {
        Some(_) => "VIOLATED",
        None if checker.state_count() >= limit => "in part ",
        None => "explored",
    };
    println!(
        "{:<38} {outcome} {:>8} states, {:>8} unique, depth {:>3}, {:>5.1} s",
        case.name,
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        begun.elapsed().as_secs_f64(),
    );
    let is_vacuous = failure.is_none() && checker.discovery(system::SOMETIMES).is_none();
    if is_vacuous {
        println!("    never: {}", system::SOMETIMES);
    }
    if let Some(path) = &failure {
        trace::print(checker.model(), path.clone().into_vec());
    }
    failure.is_none() && !is_vacuous
}

/// Explores these cases, up to the first one that fails.
fn explore_all(cases: &[Case], limit: usize) {
    assert!(!cases.is_empty(), "no case has such a name");
    for case in cases {
        assert!(explore(case, limit), "{}", case.name);
    }
    print!("{}", system::TAKEN.report());
}

#[test]
fn default_cases() {
    crate::tests::begin_without_a_limit();
    explore_all(&small_cases(), usize::MAX);
}

/// `EXPLORE_CASES` selects cases by a part of their names; `EXPLORE_STATES` limits the states of each case.
#[test]
#[ignore = "takes minutes: scripts/explore runs it"]
fn all_cases() {
    crate::tests::begin_without_a_limit();
    let part = std::env::var("EXPLORE_CASES").unwrap_or_default();
    let limit = std::env::var("EXPLORE_STATES").map_or(usize::MAX, |limit| limit.parse().unwrap());
    let mut cases: Vec<Case> = small_cases().into_iter().chain(large_cases()).collect();
    cases.retain(|case| case.name.contains(&part));
    explore_all(&cases, limit);
}
