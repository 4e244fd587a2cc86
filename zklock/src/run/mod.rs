//! `zklock run`: a command under a lock.

mod lease;
mod others;
#[cfg_attr(unix, path = "unix.rs")]
#[cfg_attr(not(unix), path = "other.rs")]
mod platform;
mod supervision;

use std::env;
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, after, bounded, select};
use zookeeper_recipes_lock::{
    BlockingWriteLock, CancelToken, LockDirectory, LockError, LockGuard, LockInfo, LockOptions, LockResult,
    RecoverableZooKeeper, RetryPolicy, Session, SessionBuilder, SessionState, Wait,
};

use self::others::Others;
use self::supervision::{Ended, Supervision};
use crate::args::RunArgs;
use crate::connection::ConnectionArgs;
use crate::failure::{
    CANNOT_CREATE, DENIED, Failure, LOST, NOT_ACQUIRED, NOT_EXECUTABLE, NOT_FOUND, SYSTEM, UNAVAILABLE,
    USAGE, code_of, describe,
};
use crate::queue;
use crate::spans::show_duration;
use crate::stderr::complain;

const PATH: &str = "ZKLOCK_PATH";
const FENCING_TOKEN: &str = "ZKLOCK_FENCING_TOKEN";

/// The longest time for the end of a wait.
const MAX_WITHDRAWAL: Duration = Duration::from_secs(2);

/// The longest time for which the queue is looked at for a message.
const MAX_LOOKUP: Duration = Duration::from_secs(2);

pub(crate) fn run(connection: &ConnectionArgs, args: &RunArgs) -> Result<u8, Failure> {
    let limit = Limit::of(args);
    let builder = connection.builder(&connection.connect)?;
    // Before anything waits: a program that is process 1 ignores the signals that it does not take.
    let signals = platform::signals().map_err(system)?;
    let wait = match (limit, args.timeout) {
        (Limit::Wait(_), Some(timeout)) => Wait::timeout(timeout),
        _ => connection.wait(),
    };
    let connected = connect(builder, wait, &signals).map_err(|error| explain(error, connection, args))?;
    let session = match connected {
        Ok(session) => session,
        Err(signal) => return Ok(code_of_signal(signal)),
    };
    let outcome =
        lock_and_run(&session, args, limit, &signals).map_err(|error| explain(error, connection, args));
    // In every case, no request is left in the queue when the process ends.
    session.close();
    outcome
}

/// The length of the wait for the lock.
#[derive(Clone, Copy)]
enum Limit {
    /// Not at all: it is acquired at once, or not.
    Attempt,
    /// Until this moment, the connection included.
    Wait(Option<Instant>),
}

impl Limit {
    fn of(args: &RunArgs) -> Limit {
        match args.timeout {
            _ if args.attempt => Limit::Attempt,
            Some(Duration::ZERO) => Limit::Attempt,
            timeout => Limit::Wait(timeout.and_then(|timeout| Instant::now().checked_add(timeout))),
        }
    }
}

/// Returns what an error means for a command that has not run.
fn explain(failed: Failed, connection: &ConnectionArgs, args: &RunArgs) -> Failure {
    match failed {
        Failed::Lock(LockError::NoChroot { .. }) => {
            let chroot = connection.chroot();
            Failure::new(
                CANNOT_CREATE,
                format!("the chroot {chroot} does not exist; run with --create-chroot"),
            )
        }
        Failed::Lock(LockError::SessionLost { reason, .. }) => {
            let dir = &args.dir;
            Failure::new(
                UNAVAILABLE,
                format!("the wait for {dir} ended with its session ({reason}); run it again"),
            )
        }
        Failed::Lock(error) => error.into(),
        Failed::Other(failure) => failure,
    }
}

/// Returns whether the command that runs this program holds the lock, and thus waits for itself.
fn is_held_outside(session: &Session, dir: &str) -> bool {
    let Ok(outer) = env::var(PATH) else { return false };
    let retry = RetryPolicy::constant(Duration::from_millis(100)).with_attempts(3);
    let is_here =
        || RecoverableZooKeeper::new(session, retry).exists(&outer).is_ok_and(|stat| stat.is_some());
    // The name of a request has a GUID: no other servers have it.
    outer.rsplit_once('/').is_some_and(|(outer_dir, _)| outer_dir == dir) && is_here()
}

/// Connects, or returns the signal that has ended the wait for the servers.
fn connect(
    builder: SessionBuilder,
    wait: Wait,
    signals: &Receiver<i32>,
) -> Result<Result<Session, i32>, Failed> {
    let token = CancelToken::new();
    let builder = builder.wait_for_server(wait.cancelled_by(&token));
    let (sender, outcome) = bounded(1);
    let connecting = thread::Builder::new().name("connect".to_owned());
    // Somebody receives it, unless the process ends.
    connecting.spawn(move || drop(sender.send(builder.connect()))).map_err(system)?;
    loop {
        select! {
            recv(outcome) -> session => return Ok(Ok(session.map_err(|_| failed_thread())??)),
            recv(signals) -> signal => if let Some(signal) = signal.ok().filter(|signal| platform::ends_wait(*signal)) {
                token.cancel();
                // It may have been opened just before.
                if let Ok(Ok(session)) = outcome.recv_timeout(MAX_WITHDRAWAL) {
                    session.close();
                }
                return Ok(Err(signal));
            },
        }
    }
}

fn lock_and_run(
    session: &Session,
    args: &RunArgs,
    limit: Limit,
    signals: &Receiver<i32>,
) -> Result<u8, Failed> {
    if matches!(limit, Limit::Wait(_)) && is_held_outside(session, &args.dir) {
        let dir = &args.dir;
        let message = format!(
            "a 'zklock run' around this one holds {dir}, so it would wait for itself; unset {PATH} to wait"
        );
        return Err(Failure::new(USAGE, message).into());
    }
    let guard = match acquire(session, args, limit, signals)? {
        Acquisition::Acquired(guard) => guard,
        Acquisition::Signal(signal) => return Ok(code_of_signal(signal)),
        Acquisition::Taken => {
            complain(&refusal(session, args, signals));
            return Ok(NOT_ACQUIRED);
        }
    };
    let others = Others::new(session, &args.dir)?;
    drop(others.look());
    let mut command = command(&guard, args)?;
    if !Supervision::may_start(session, &guard, args.grace) {
        complain("the lock is lost, or about to be; the command is not started");
        return Ok(LOST);
    }
    let child = match platform::Child::spawn(&mut command) {
        Ok(child) => child,
        Err(error) => {
            complain(&format!("{}: {error}", command.get_program().to_string_lossy()));
            return Ok(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE });
        }
    };
    let supervision = Supervision::new(session, &guard, child, args.grace);
    let Ended { code, lost } = supervision.until_the_end(signals);
    if !lost && session.state() == SessionState::Connected {
        // Those that have come since may have run beside the command.
        let _ = others.look().recv_timeout(MAX_LOOKUP);
    }
    let unlocked = guard.unlock();
    if lost {
        return Ok(LOST);
    }
    let code = code.map_err(system)?;
    match unlocked {
        Ok(_) => Ok(code),
        // The lock was held until now. The server deletes the znode with the session.
        Err(error) if is_refusal(&error) => {
            complain(&describe(&error));
            Ok(code)
        }
        Err(error) => {
            let error = describe(&error);
            complain(&format!("the command ended with code {code}, but without the lock: {error}"));
            Ok(LOST)
        }
    }
}

/// The reason why the command has not run, or why its result is not known.
enum Failed {
    Lock(LockError),
    Other(Failure),
}

impl From<LockError> for Failed {
    fn from(error: LockError) -> Failed {
        Failed::Lock(error)
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Failed {
        Failed::Other(failure)
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
    limit: Limit,
    signals: &Receiver<i32>,
) -> Result<Acquisition, Failed> {
    let options = LockOptions::new().naming(args.naming.scheme());
    let lock = Arc::new(BlockingWriteLock::with_options(session, &args.dir, options)?);
    let waited = Arc::clone(&lock);
    let token = CancelToken::new();
    let wait = match limit {
        Limit::Attempt => None,
        Limit::Wait(end) => Some(end.map_or_else(Wait::forever, Wait::until).cancelled_by(&token)),
    };
    let (sender, outcome) = bounded(1);
    let waiting = thread::Builder::new().name("wait".to_owned()).spawn(move || {
        let outcome: LockResult<Option<LockGuard>> = match wait {
            None => waited.try_lock(),
            Some(wait) => waited.try_lock_for(wait),
        };
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
                // An attempt has no token.
                token.cancel();
                lock.close();
                // It withdraws its request, or drops the lock that it has just acquired. During an
                // outage the session's end does.
                drop(outcome.recv_timeout(MAX_WITHDRAWAL));
                return Ok(Acquisition::Signal(signal));
            },
        }
    }
}

/// Returns why the lock was not acquired: who holds it.
fn refusal(session: &Session, args: &RunArgs, signals: &Receiver<i32>) -> String {
    let dir = &args.dir;
    let time = match args.timeout {
        Some(timeout) => format!(" after {}", show_duration(timeout)),
        None => String::new(),
    };
    match holder(session, dir, signals) {
        Some(holder) => format!("{dir} is held{time}: {}", queue::line(&holder)),
        // It was released a moment ago, or there is no contact.
        None => format!("{dir} is not acquired{time}"),
    }
}

/// Looks the holder up, but not for long, and not after a signal.
fn holder(session: &Session, dir: &str, signals: &Receiver<i32>) -> Option<LockInfo> {
    let directory = LockDirectory::new(session, dir).ok()?;
    let (sender, holder) = bounded(1);
    let looking = thread::Builder::new().name("holder".to_owned());
    looking.spawn(move || sender.send(directory.current_owner())).ok()?;
    select! {
        recv(holder) -> holder => holder.ok()?.ok()?,
        recv(signals) -> _ => None,
        recv(after(MAX_LOOKUP)) -> _ => None,
    }
}

fn command(guard: &LockGuard, args: &RunArgs) -> Result<Command, Failure> {
    // The arguments have at least one.
    let (program, arguments) = args.command.split_first().ok_or_else(failed_thread)?;
    let mut command = Command::new(program);
    command.args(arguments);
    command.env(PATH, guard.id());
    command.env(FENCING_TOKEN, guard.fencing_token()?.to_string());
    Ok(command)
}

/// Returns whether the server refused the deletion of the znode of a lock that was held.
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
