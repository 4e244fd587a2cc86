//! Parses the command line, which has our options and those that `cargo test` passes to every test program.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::client::Orders;
use crate::plan::Plan;

pub const USAGE: &str =
    "usage: chaos [--seconds N] [--seed N] [--keep DIR] [--continue FILE] [--no-namespaces]";

/// The options of Rust's test harness that take a value.
const HARNESS_VALUES: [&str; 8] =
    ["--skip", "--test-threads", "--format", "--color", "--logfile", "--shuffle-seed", "-Z", "--report-time"];

/// The role of this process.
#[derive(Debug)]
pub enum Role {
    Conductor(Plan),
    Client(Orders),
    List,
    /// Does nothing, because a filter or `--ignored` selects other tests.
    Nothing,
}

pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Role, String> {
    let mut arguments = arguments.peekable();
    if arguments.next_if(|argument| argument == "--client").is_some() {
        return client(arguments).map(Role::Client);
    }
    let mut plan = Plan::default();
    let (mut filtered, mut wanted) = (false, false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seconds" => plan.chaos = Duration::from_secs(value(&argument, arguments.next())?),
            "--seed" => plan.seed = value(&argument, arguments.next())?,
            "--keep" => plan.keep = Some(value::<PathBuf>(&argument, arguments.next())?),
            "--continue" => plan.totals = Some(value::<PathBuf>(&argument, arguments.next())?),
            "--no-namespaces" => plan.namespaces = false,
            "--list" => return Ok(Role::List),
            "--ignored" => return Ok(Role::Nothing),
            harness if HARNESS_VALUES.contains(&harness) => drop(arguments.next()),
            flag if flag.starts_with('-') => {} // --nocapture, --exact, …
            filter => {
                filtered = true;
                wanted |= "chaos".contains(filter);
            }
        }
    }
    Ok(if filtered && !wanted { Role::Nothing } else { Role::Conductor(plan) })
}

fn client(mut arguments: impl Iterator<Item = String>) -> Result<Orders, String> {
    Ok(Orders {
        index: value("INDEX", arguments.next())?,
        seed: value("SEED", arguments.next())?,
        history: value("HISTORY", arguments.next())?,
        socket: value("SOCKET", arguments.next())?,
        servers: value("SERVERS", arguments.next())?,
        certificates: value("CERTIFICATES", arguments.next())?,
    })
}

fn value<T: FromStr>(name: &str, text: Option<String>) -> Result<T, String> {
    let text = text.ok_or_else(|| format!("{name} needs a value"))?;
    text.parse().map_err(|_| format!("{name} cannot be {text:?}"))
}
