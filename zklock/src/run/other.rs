//! `zklock run` and `zklock once` where they cannot keep their promise.
//!
//! A command must have ended before another client owns the lock. That takes what only Unix offers here: signals, and a
//! way to find and end everything that descends from the command.

use crate::args::{OnceArgs, RunArgs};
use crate::connection::ConnectionArgs;
use crate::failure::{Failure, SYSTEM};

pub(crate) fn run(_: &ConnectionArgs, _: &RunArgs) -> Result<u8, Failure> {
    Err(refusal("run"))
}

pub(crate) fn once(_: &ConnectionArgs, _: &OnceArgs) -> Result<u8, Failure> {
    Err(refusal("once"))
}

fn refusal(subcommand: &str) -> Failure {
    let message = format!(
        "'zklock {subcommand}' needs a Unix system: on this one, it could not end the command before another client gets \
         the lock"
    );
    Failure::new(SYSTEM, message)
}
