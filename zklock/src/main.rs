//! `zklock`: locks for scripts, and a view of the queues for operators.
//!
//! It uses only the public interface of `zookeeper-recipes-lock`. Each subcommand has its own module, except that
//! `completions` and `man` share one.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
// `run` and `once` refuse there, so nothing uses what is made for them.
#![cfg_attr(not(unix), allow(dead_code))]
#![warn(missing_debug_implementations, rust_2018_idioms, clippy::print_stdout, clippy::print_stderr)]

mod args;
mod connection;
mod doctor;
mod failure;
mod generated;
mod json;
mod leader;
mod output;
mod placeholders;
mod queue;
mod reap;
mod revoke;
#[cfg_attr(not(unix), path = "run/other.rs")]
mod run;
mod sasl;
mod spans;
mod stderr;
mod watching;
mod who;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;
use env_logger::{Builder, Env, Target};
use zookeeper_recipes_lock::queue::LockDirectory;

use self::args::{Cli, Command};
use self::failure::{Failure, SYSTEM, USAGE};

fn main() -> ExitCode {
    #[cfg(unix)]
    if let Some(code) = run::launch() {
        return ExitCode::from(code);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let printed = error.print().and_then(|()| io::stdout().flush());
            if error.use_stderr() {
                return ExitCode::from(USAGE);
            }
            let Err(failure) = printed.map_err(|error| Failure::output(&error)) else {
                return ExitCode::SUCCESS;
            };
            // The thread that writes to standard error has not started yet.
            if !failure.message.is_empty() {
                let _ = writeln!(io::stderr(), "zklock: {}", failure.message);
            }
            return ExitCode::from(failure.code);
        }
    };
    let level = match cli.verbose {
        0 => "error",
        1 => "info",
        _ => "debug",
    };
    if let Err(error) = start(&cli) {
        let _ = writeln!(io::stderr(), "zklock: {error}");
        return ExitCode::from(SYSTEM);
    }
    let mut log = Builder::from_env(Env::default().default_filter_or(level));
    log.target(Target::Pipe(Box::new(stderr::Log))).init();
    let code = dispatch(&cli).unwrap_or_else(|failure| {
        failure.report();
        failure.code
    });
    stderr::flush();
    ExitCode::from(code)
}

/// Prepares signals and standard error. Must run before any other thread starts.
fn start(cli: &Cli) -> io::Result<()> {
    #[cfg(unix)]
    if matches!(cli.command, Command::Run(_) | Command::Once(_)) {
        run::block_terminal_stops()?;
    }
    #[cfg(not(unix))]
    let _ = cli;
    stderr::start()
}

/// Checks the arguments and runs the subcommand. Returns its exit code.
fn dispatch(cli: &Cli) -> Result<u8, Failure> {
    let connection = &cli.connection;
    if let Some(dir) = cli.command.dir() {
        LockDirectory::check_path(dir)?;
    }
    if !matches!(cli.command, Command::Completions(_) | Command::Man(_)) {
        connection.check()?;
    }
    match &cli.command {
        Command::Run(args) => run::run(connection, args),
        Command::Once(args) => run::once(connection, args),
        Command::Who(args) => who::who(connection, args),
        Command::Leader(args) => leader::leader(connection, args),
        Command::Revoke(args) => revoke::revoke(connection, args),
        Command::Reap(args) => reap::reap(connection, args),
        Command::Doctor(args) => doctor::doctor(connection, args),
        Command::Completions(args) => generated::completions(args),
        Command::Man(args) => generated::man(args),
    }
}
