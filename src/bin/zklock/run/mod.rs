//! `zklock run`: a command under a lock.

mod lease;
#[cfg_attr(unix, path = "unix.rs")]
#[cfg_attr(not(unix), path = "other.rs")]
mod platform;
mod supervision;

use std::io;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded, select};
use zookeeper_recipes_lock::{
    BlockingWriteLock, CancelToken, LockDirectory, LockError, LockGuard, Result, Session, Wait,
};

use self::supervision::{Ended, Supervision};
use crate::args::RunArgs;
use crate::connection::ConnectionArgs;
use crate::failure::{
    DENIED, Failure, LOST, NOT_ACQUIRED, NOT_EXECUTABLE, NOT_FOUND, SYSTEM, code_of, describe,
};
use crate::output::complain;
use crate::queue;
use crate::spans::show_duration;

const PATH: &str = "ZKLOCK_PATH";
const FENCING_TOKEN: &str = "ZKLOCK_FENCING_TOKEN";

pub(crate) fn run(connection: &ConnectionArgs, args: &RunArgs) -> std::result::Result<u8, Failure> {
    let session = connect(connection, args)?;
    let outcome = lock_and_run(&session, args);
    // In every case, no request is left in the queue when the process ends.
    session.close();
    outcome
}

/// Connects, within the time for the lock.
fn connect(connection: &ConnectionArgs, args: &RunArgs) -> std::result::Result<Session, Failure> {
    let builder = connection.builder(&connection.connect)?;
    Ok(match args.timeout.filter(|timeout| *timeout < connection.connect_wait()) {
        Some(timeout) => builder.wait_for_server(Wait::timeout(timeout)).connect()?,
        None => builder.connect()?,
    })
}

fn lock_and_run(session: &Session, args: &RunArgs) -> std::result::Result<u8, Failure> {
    let signals = platform::signals().map_err(system)?;
    let guard = match acquire(session, args, &signals)? {
        Acquisition::Acquired(guard) => guard,
        Acquisition::Signal(signal) => return Ok(code_of_signal(signal)),
        Acquisition::Taken => {
            complain(&refusal(session, args));
            return Ok(NOT_ACQUIRED);
        }
    };
    let mut command = command(&guard, args)?;
    let child = match platform::Child::spawn(&mut command) {
        Ok(child) => child,
        Err(error) => {
            complain(&format!("{}: {error}", command.get_program().to_string_lossy()));
            return Ok(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE });
        }
    };
    let supervision = Supervision::new(session, &guard, child, args.grace);
    let Ended { code, lost } = supervision.until_the_end(&signals).map_err(system)?;
    match (guard.unlock(), lost) {
        (Ok(_), false) => Ok(code),
        (Ok(_), true) => Ok(LOST),
        // The lock was held until now. The server deletes the znode with the session.
        (Err(error), false) if is_refusal(&error) => {
            complain(&describe(&error));
            Ok(code)
        }
        (Err(error), false) => {
            complain(&format!(
                "the command ended with code {code}, but without the lock: {}",
                describe(&error)
            ));
            Ok(LOST)
        }
        (Err(_), true) => Ok(LOST),
    }
}

enum Acquisition {
    Acquired(LockGuard),
    /// This signal ended the wait.
    Signal(i32),
    Taken,
}

/// Waits for the lock, or for a signal that ends the wait.
fn acquire(
    session: &Session,
    args: &RunArgs,
    signals: &Receiver<i32>,
) -> std::result::Result<Acquisition, Failure> {
    let lock = BlockingWriteLock::new(session, &args.dir)?;
    let token = CancelToken::new();
    let wait = args.timeout.map_or_else(Wait::forever, Wait::timeout).cancelled_by(&token);
    let is_attempt = args.attempt;
    let (sender, outcome) = bounded(1);
    let waiting = thread::Builder::new().name("wait".to_owned()).spawn(move || {
        let outcome: Result<Option<LockGuard>> =
            if is_attempt { lock.try_lock() } else { lock.try_lock_for(wait) };
        // Somebody receives it, unless the process ends.
        drop(sender.send(outcome));
    });
    waiting.map_err(system)?;
    loop {
        select! {
            recv(outcome) -> outcome => return Ok(match outcome.map_err(|_| failed_thread())?? {
                Some(guard) => Acquisition::Acquired(guard),
                None => Acquisition::Taken,
            }),
            recv(signals) -> signal => if let Some(signal) = signal.ok().filter(|signal| platform::ends_wait(*signal)) {
                token.cancel();
                // It withdraws its request, or drops the lock that it has just acquired.
                drop(outcome.recv());
                return Ok(Acquisition::Signal(signal));
            },
        }
    }
}

/// Why the lock was not acquired: who holds it.
fn refusal(session: &Session, args: &RunArgs) -> String {
    let dir = &args.dir;
    let after = match args.timeout {
        Some(timeout) => format!(" after {}", show_duration(timeout)),
        None => String::new(),
    };
    match LockDirectory::new(session, dir).and_then(|directory| directory.current_owner()) {
        Ok(Some(owner)) => format!("{dir} is held{after}: {}", queue::line(&owner)),
        // It was released a moment ago.
        _ => format!("{dir} is not acquired{after}"),
    }
}

fn command(guard: &LockGuard, args: &RunArgs) -> std::result::Result<Command, Failure> {
    // The arguments have at least one.
    let (program, arguments) = args.command.split_first().ok_or_else(failed_thread)?;
    let mut command = Command::new(program);
    command.args(arguments);
    command.env(PATH, guard.id());
    command.env(FENCING_TOKEN, guard.fencing_token()?.to_string());
    Ok(command)
}

/// Whether the server refused the deletion of the znode of a lock that was held.
fn is_refusal(error: &LockError) -> bool {
    code_of(error) == DENIED || matches!(error, LockError::Refused { .. } | LockError::Server { .. })
}

fn code_of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

fn system(error: io::Error) -> Failure {
    Failure::new(SYSTEM, error.to_string())
}

fn failed_thread() -> Failure {
    Failure::new(SYSTEM, "a thread has failed")
}

/// A short time, for messages.
fn shown(time: Duration) -> String {
    show_duration(Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
}
