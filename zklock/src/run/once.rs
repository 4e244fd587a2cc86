//! `zklock once`: runs a command on one of many machines.

use std::fs;
use std::time::SystemTime;

use zookeeper_recipes_lock::locks::{Repeat, RunOnce, RunOutcome};
use zookeeper_recipes_lock::{LockGuard, LockOptions, Session};

use super::others::Others;
use super::signals::Signals;
use super::supervision::{End, Ended};
use super::{
    Failed, MAX_LOOKUP, begin, code_of_signal, connect, finish, launcher, not_started, supervise, system,
};
use crate::args::OnceArgs;
use crate::connection::ConnectionArgs;
use crate::failure::{ALREADY_DONE, Failure, LOST, NOT_ACQUIRED, USAGE};
use crate::output::one_line;
use crate::placeholders::{self, Specifier};
use crate::queue::Use;
use crate::spans::show_time;
use crate::stderr::complain;

/// The longest key, in bytes.
const MAX_KEY: usize = 255;

pub(crate) fn once(connection: &ConnectionArgs, args: &OnceArgs) -> Result<u8, Failure> {
    let key = key_of(args)?;
    if let Some(specifier) = Specifier::in_key(&key, &machine_id()) {
        complain(&format!(
            "the key '{key}' has {}, which systemd puts in place of {}; in a unit, write %% for each % of --key",
            specifier.meaning, specifier.name
        ));
    }
    // A command that cannot be started must neither use up the key nor hold its lock, not even for a moment: another
    // machine that comes in that moment would not run the command either.
    if let Some(program) = args.command.command.first() {
        launcher::check_program(program).map_err(|error| not_started(program, &error))?;
    }
    let (builder, signals) = begin(connection, &args.dir, &args.command)?;
    let explained = |failed: Failed| failed.explain(connection, &args.dir);
    let session = match connect(builder, connection.wait(), &signals).map_err(explained)? {
        Ok(session) => session,
        Err(signal) => return Ok(code_of_signal(signal)),
    };
    let signals = Signals::attend(&session, signals, None).map_err(system)?;
    let outcome = run_once(&session, args, &key, &signals).map_err(explained);
    finish(&session, &signals, &format!("{}/{key}", args.dir), outcome)
}

/// Returns the key with its placeholders filled in.
fn key_of(args: &OnceArgs) -> Result<String, Failure> {
    let key = placeholders::fill(&args.key, SystemTime::now()).map_err(|error| Failure::new(USAGE, error))?;
    match key.len() {
        1..=MAX_KEY => Ok(key),
        length => {
            Err(Failure::new(USAGE, format!("a key has 1 to {MAX_KEY} bytes, and '{key}' has {length}")))
        }
    }
}

/// The id of this machine. Without systemd, there may be none.
fn machine_id() -> String {
    fs::read_to_string("/etc/machine-id").unwrap_or_default().trim().to_owned()
}

fn run_once(session: &Session, args: &OnceArgs, key: &str, signals: &Signals) -> Result<End, Failed> {
    let repeat = if args.until_success { Repeat::UntilSuccess } else { Repeat::Never };
    let mut options = LockOptions::new();
    if let Some(data) = &args.data {
        options = options.data(data.as_bytes());
    }
    let once = RunOnce::with_options(session, &args.dir, options, repeat)?;
    let others = Others::new(session, &args.dir, Use::Keys);
    let mut look = None;
    let outcome = once.run(key, |guard: &LockGuard| {
        if !signals.begin() {
            return Err(Ok(Ended::without_the_lock()));
        }
        look = Some(others.warn());
        let token = guard.fencing_token().map_err(Failed::Lock);
        let ended = token
            .and_then(|token| supervise(session, guard, Some(token), &args.command, signals.forwarded()));
        signals.settle();
        let has_begun = ended.as_ref().is_ok_and(|ended| ended.has_begun);
        if repeat == Repeat::Never && !has_begun {
            unmark(key, guard);
        }
        match ended {
            Ok(Ended { end: Ok(end), lost: false, .. }) if end.code == 0 => Ok(end),
            other => Err(other),
        }
    });
    if let Some(signal) = signals.interruption() {
        return Ok(code_of_signal(signal).into());
    }
    signals.settle();
    let end = match outcome? {
        RunOutcome::Ran(end) => end,
        RunOutcome::Failed(failed) => match failed? {
            Ended { lost: true, .. } => LOST.into(),
            Ended { end, .. } => end.map_err(system)?,
        },
        RunOutcome::AlreadyDone { by, at, .. } => {
            args.command.mention(|| format!("'{key}' was run by {} at {}", one_line(&by), show_time(at)));
            ALREADY_DONE.into()
        }
        _ => {
            args.command.mention(|| format!("'{key}' is in progress elsewhere"));
            NOT_ACQUIRED.into()
        }
    };
    // The command may have been faster than the look for others.
    let _ = look.map(|look| look.recv_timeout(MAX_LOOKUP));
    // This may take long, and who ends the command does not want to wait. The next run does it.
    if let Some(keep) = args.keep.filter(|_| !signals.is_to_end()) {
        if let Err(error) = once.reap(keep) {
            complain(&format!("old keys were not deleted: {error}"));
        }
    }
    Ok(end)
}

/// Deletes the marker of a key whose command has not begun. The lock is still held, or the deletion fails: later, the
/// marker could be that of another machine.
fn unmark(key: &str, guard: &LockGuard) {
    let dir = guard.id().rsplit_once('/').map_or("", |(dir, _)| dir);
    if let Err(error) = guard.commit(|changes| changes.delete(&format!("{dir}/done"))) {
        complain(&format!("the command has not run, but '{key}' may count as done: {error}"));
    }
}
