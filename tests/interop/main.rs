//! Shares locks with other libraries on a real server. For each class of another library, three contenders of
//! ours and three of theirs want the lock of one directory, while their processes are killed. A referee outside
//! ZooKeeper sees who holds what.
//!
//! ```text
//! scripts/interop [ROUNDS] [--pairs NAME,…]     installs the other libraries and runs this
//! ```
//!
//! - [`pairs`]: which classes share a directory, under which names, and the expected outcome
//! - [`conductor`]: starts the server and the processes, kills and restarts them
//! - [`referee`]: starts the contenders' rounds and checks that holders exclude each other
//! - [`contender`]: our contenders, which are this program started again
//! - `peers/`: the contenders of other libraries
//! - [`report`]: the table and the verdict
//! - [`revocation`]: revocations each way with Curator, before the contenders start

#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test program, which prints its report, and whose panics are failure reports"
)]

mod conductor;
mod contender;
mod pairs;
mod referee;
mod report;
mod revocation;

#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use lexopt::prelude::*;

use self::conductor::Plan;

const DEFAULT_ROUNDS: usize = 200;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, rest)) = arguments.split_first() {
        if first == "--contender" {
            contender::run(rest);
            return ExitCode::SUCCESS;
        }
    }
    if !arguments.iter().any(|argument| argument == "--class-path" || argument == "--python") {
        // This is an ordinary test run, without the other libraries.
        println!("interop: skipped; scripts/interop runs it");
        return ExitCode::SUCCESS;
    }
    match parse(lexopt::Parser::from_args(arguments)) {
        Ok(plan) => conductor::run(&plan),
        Err(error) => {
            eprintln!("interop: {error}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut parser: lexopt::Parser) -> Result<Plan, lexopt::Error> {
    let mut plan = Plan {
        rounds: DEFAULT_ROUNDS,
        pairs: Vec::new(),
        class_path: None,
        python: None,
        releases: Vec::new(),
    };
    let mut wanted: Option<String> = None;
    while let Some(argument) = parser.next()? {
        match argument {
            Long("class-path") => plan.class_path = Some(parser.value()?.string()?),
            Long("python") => plan.python = Some(parser.value()?.string()?),
            Long("release") => plan.releases.push(parser.value()?.string()?),
            Long("pairs") => wanted = Some(parser.value()?.string()?),
            Value(rounds) => plan.rounds = rounds.parse()?,
            _ => return Err(argument.unexpected()),
        }
    }
    let is_wanted = |name: &str| wanted.as_deref().is_none_or(|list| list.split(',').any(|one| one == name));
    plan.pairs = pairs::PAIRS.iter().filter(|pair| is_wanted(pair.name)).collect();
    if plan.pairs.is_empty() {
        let names: Vec<&str> = pairs::PAIRS.iter().map(|pair| pair.name).collect();
        return Err(format!("--pairs takes some of {}", names.join(",")).into());
    }
    Ok(plan)
}
