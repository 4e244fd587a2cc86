//! `zklock run`: a command under a lock.
//!
//! # The processes
//! **Groups.** This process stays in the process group of its job, which a shell, cron or a script has made. The
//! command is the first process of another group in the same session. So nobody but this process decides
//! when the command runs: a shell that continues the job continues this process alone, which looks at the
//! lease first.
//!
//! **Start.** This program runs itself as the launcher, in the new group. The launcher has the kernel kill it
//! when this process ends, stops, and becomes the command when it is continued. This process sees the stop,
//! looks at the lease, and gives the terminal to the group before.
//!
//! **Ends.** Signals that would end this process are forwarded to the group. The command has ended when the
//! group's first process has. A loss of the lock ends everything that descends from the command: SIGTERM
//! goes to the group, SIGKILL to the group and, on Linux, to every descendant. This process adopts those whose
//! parents have ended (a child subreaper), so one look at `/proc` finds them all, in whatever group, session
//! or namespace they are, and by whatever name. They are identified by process id and start time. If this
//! process itself is killed, the kernel kills the command, but not its children, in its group or outside, and
//! not a command that has changed its user (sudo) or has capabilities. The kernel kills a process with its
//! parent only if the process has asked for that, and its own children do not inherit the request.
//!
//! **The terminal.** Whenever this process's group has the terminal, it hands it over to the group of the
//! command: at once if it is on all three standard descriptors, otherwise (in a pipeline, whose other
//! processes may read from it) when the command is stopped for using it. It takes the terminal back when the
//! command has stopped or ended.
//!
//! | | the command has the terminal | it has not |
//! |---|---|---|
//! | Ctrl-C, Ctrl-\ | go to the command alone; if Ctrl-C ends it, this process's group gets it too | go to this process, which forwards them |
//! | Ctrl-Z | stops the command; then this process stops everything below, and itself with its group | goes to this process, which stops the command, and so on |
//! | `fg`, `bg` | continue this process: if the lease lasts, it continues the command, otherwise it kills it | the same |
//! | the command uses the terminal | | the command is stopped, as any background job is; reported, ended after `--stopped-for` |
//!
//! Where no shell could continue this process (its group is orphaned), nothing is stopped. This process
//! itself is never stopped for writing to a terminal: SIGTTOU and SIGTTIN are blocked. A separate thread
//! writes all messages, so a full pipe holds nothing up.

mod held;
mod lease;
mod once;
mod others;
#[cfg_attr(unix, path = "unix.rs")]
#[cfg_attr(not(unix), path = "other.rs")]
mod platform;
mod supervision;

use std::env;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, after, bounded, never, select};
use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::queue::{LockDirectory, LockInfo};
use zookeeper_recipes_lock::{
    CancelToken, ErrorReason, LockError, RetryPolicy, Session, SessionBuilder, SessionState, Wait,
};

use self::held::{Contended, Guard, Held};
pub(crate) use self::once::once;
use self::others::Others;
#[cfg(unix)]
pub(crate) use self::platform::{block_terminal_stops, launch};
use self::supervision::{End, Ended, Supervision};
use crate::args::{CommandArgs, RunArgs};
use crate::connection::ConnectionArgs;
use crate::failure::{
    CANNOT_CREATE, DENIED, Failure, LOST, NOT_ACQUIRED, NOT_EXECUTABLE, NOT_FOUND, SYSTEM, UNAVAILABLE,
    USAGE, code_of, describe,
};
use crate::queue;
use crate::spans::show_duration;
use crate::stderr::{self, complain};

const PATH: &str = "ZKLOCK_PATH";
const FENCING_TOKEN: &str = "ZKLOCK_FENCING_TOKEN";

/// The longest time for the end of a wait.
const MAX_WITHDRAWAL: Duration = Duration::from_secs(2);

/// The longest time for which the queue is looked at for a message.
const MAX_LOOKUP: Duration = Duration::from_secs(2);

/// The time after which a wait is mentioned.
const SILENT_WAIT: Duration = Duration::from_secs(1);

/// The servers' own znodes are below it.
const RESERVED: &str = "/zookeeper";

pub(crate) fn run(connection: &ConnectionArgs, args: &RunArgs) -> Result<u8, Failure> {
    let limit = Limit::of(args);
    let (builder, signals) = begin(connection, &args.dir)?;
    let wait = match (limit, args.timeout) {
        (Limit::Wait(_), Some(timeout)) => Wait::timeout(timeout),
        _ => connection.wait(),
    };
    let explained = |failed: Failed| failed.explain(connection, &args.dir);
    let session = match connect(builder, wait, &signals).map_err(explained)? {
        Ok(session) => session,
        Err(signal) => return Ok(code_of_signal(signal)),
    };
    if let Some(warning) = short_timeout(connection, &session) {
        args.command.mention(&warning);
    }
    finish(&session, lock_and_run(&session, args, limit, &signals).map_err(explained))
}

/// Checks what needs no connection.
fn begin(connection: &ConnectionArgs, dir: &str) -> Result<(SessionBuilder, Receiver<i32>), Failure> {
    let is_reserved = dir.strip_prefix(RESERVED).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if is_reserved && connection.chroot().trim_matches('/').is_empty() {
        let message =
            format!("{dir} is below {RESERVED}, which belongs to the servers: use another directory");
        return Err(Failure::new(USAGE, message));
    }
    let builder = connection.builder(&connection.connect)?;
    // Before anything waits: a program that is process 1 ignores the signals that it does not take.
    Ok((builder, platform::signals().map_err(system)?))
}

/// Returns a warning of a session timeout that leaves little time for outages.
fn short_timeout(connection: &ConnectionArgs, session: &Session) -> Option<String> {
    let (timeout, tick) = (session.session_timeout(), connection.max_tick);
    (timeout < tick * 3).then(|| {
        format!(
            "a session timeout of {} is less than three ticks, so a reconnect can cost the lock: use {} or more \
             (--session-timeout), or state a shorter tick of the servers (--max-tick, now {})",
            show_duration(timeout),
            show_duration(tick * 3),
            show_duration(tick)
        )
    })
}

/// Leaves no request in the queue when the process ends. Returns the exit code.
fn finish(session: &Session, outcome: Result<End, Failure>) -> Result<u8, Failure> {
    session.close();
    let end = outcome?;
    if end.is_interrupted {
        stderr::flush();
        platform::end_as_interrupted();
    }
    Ok(end.code)
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
) -> Result<End, Failed> {
    if matches!(limit, Limit::Wait(_)) && is_held_outside(session, &args.dir) {
        let dir = &args.dir;
        let message = format!(
            "a 'zklock run' around this one holds {dir}, so it would wait for itself; unset {PATH} to wait"
        );
        return Err(Failure::new(USAGE, message).into());
    }
    let held = match acquire(session, args, limit, signals)? {
        Acquisition::Acquired(held) => held,
        Acquisition::Signal(signal) => return Ok(code_of_signal(signal).into()),
        Acquisition::Taken => {
            complain(&refusal(session, args, signals));
            return Ok(NOT_ACQUIRED.into());
        }
    };
    // The requests for permits have names of their own kind.
    let others = if args.permits.is_none() { Some(Others::new(session, &args.dir)?) } else { None };
    drop(others.as_ref().map(Others::look));
    let Ended { end, lost } = supervise(session, held.as_guard(), &args.command, signals)?;
    if !lost && session.state() == SessionState::Connected {
        // Those that have come since may have run beside the command.
        let _ = others.map(|others| others.look().recv_timeout(MAX_LOOKUP));
    }
    let unlocked = held.release();
    if lost {
        return Ok(LOST.into());
    }
    let end = end.map_err(system)?;
    match unlocked {
        Ok(_) => Ok(end),
        // The lock was held until now. The server deletes the znode with the session.
        Err(error) if is_refusal(&error) => {
            complain(&describe(&error));
            Ok(end)
        }
        Err(error) => {
            let error = describe(&error);
            let code = end.code;
            complain(&format!("the command ended with code {code}, but without the lock: {error}"));
            Ok(LOST.into())
        }
    }
}

/// Runs the command while the lock is held.
fn supervise(
    session: &Session,
    guard: Guard<'_>,
    args: &CommandArgs,
    signals: &Receiver<i32>,
) -> Result<Ended, Failed> {
    let mut variables = vec![(PATH, guard.id().to_owned())];
    variables.extend(guard.fencing_token()?.map(|token| (FENCING_TOKEN, token.to_string())));
    if !Supervision::may_start(session, guard, args.grace) {
        complain("the lock is lost, or about to be; the command is not started");
        return Ok(Ended { end: Ok(LOST.into()), lost: true });
    }
    // The arguments have at least one.
    let (program, arguments) = args.command.split_first().ok_or_else(failed_thread)?;
    let child = match platform::Child::spawn(program, arguments, &variables) {
        Ok(child) => child,
        Err(error) => {
            complain(&format!("{}: {error}", program.to_string_lossy()));
            let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
            return Ok(Ended { end: Ok(code.into()), lost: false });
        }
    };
    let supervision = Supervision::new(session, guard, child, args.grace, args.stopped_for);
    Ok(supervision.until_the_end(signals))
}

/// The reason why the command has not run, or why its result is not known.
enum Failed {
    Lock(LockError),
    Other(Failure),
}

impl Failed {
    /// Returns what it means for a command that has not run.
    fn explain(self, connection: &ConnectionArgs, dir: &str) -> Failure {
        let error = match self {
            Failed::Lock(error) => error,
            Failed::Other(failure) => return failure,
        };
        match error.reason() {
            ErrorReason::NoChroot => {
                let chroot = connection.chroot();
                Failure::new(
                    CANNOT_CREATE,
                    format!("the chroot {chroot} does not exist; run with --create-chroot"),
                )
            }
            ErrorReason::SessionLost(reason) => Failure::new(
                UNAVAILABLE,
                format!("the wait for {dir} ended with its session ({reason}); run it again"),
            ),
            _ => error.into(),
        }
    }
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
    Acquired(Held),
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
    let lock = Arc::new(Contended::new(session, args)?);
    let waited = Arc::clone(&lock);
    let token = CancelToken::new();
    let wait = match limit {
        Limit::Attempt => None,
        Limit::Wait(end) => Some(end.map_or_else(Wait::forever, Wait::from).cancelled_by(&token)),
    };
    let (sender, outcome) = bounded(1);
    let waiting = thread::Builder::new().name("wait".to_owned()).spawn(move || {
        let outcome: Result<Option<Held>, LockError> = waited.acquire(wait);
        // Somebody receives it, unless the process ends.
        drop(sender.send(outcome));
    });
    waiting.map_err(system)?;
    let mention = Mention::new();
    let mut silent = if args.command.quiet { never() } else { after(SILENT_WAIT) };
    loop {
        select! {
            recv(outcome) -> outcome => return Ok(match outcome.map_err(|_| failed_thread())?? {
                Some(held) => Acquisition::Acquired(held),
                None => Acquisition::Taken,
            }),
            recv(silent) -> _ => {
                mention.of_wait(session, &args.dir, &args.queue());
                silent = never();
            }
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

/// Says whom a wait is for, while it lasts.
struct Mention {
    is_waiting: Arc<AtomicBool>,
}

impl Mention {
    fn new() -> Mention {
        Mention { is_waiting: Arc::new(AtomicBool::new(true)) }
    }

    /// Looks the holder up on another thread.
    fn of_wait(&self, session: &Session, dir: &str, queue: &str) {
        let Ok(directory) = LockDirectory::new(session, queue) else { return };
        let (dir, is_waiting) = (dir.to_owned(), Arc::clone(&self.is_waiting));
        let look = move || {
            let holder = directory.current_owner().ok().flatten();
            if is_waiting.load(Ordering::SeqCst) {
                complain(&match holder {
                    Some(holder) => format!("waiting for {dir}, which is held: {}", queue::line(&holder)),
                    None => format!("waiting for {dir}"),
                });
            }
        };
        // Without a thread the wait is silent.
        drop(thread::Builder::new().name("mention".to_owned()).spawn(look));
    }
}

impl Drop for Mention {
    fn drop(&mut self) {
        self.is_waiting.store(false, Ordering::SeqCst);
    }
}

/// Returns why the lock was not acquired: who holds it.
fn refusal(session: &Session, args: &RunArgs, signals: &Receiver<i32>) -> String {
    let dir = &args.dir;
    let time = match args.timeout {
        Some(timeout) => format!(" after {}", show_duration(timeout)),
        None => String::new(),
    };
    match holder(session, &args.queue(), signals) {
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

/// Returns whether the server refused the deletion of the znode of a lock that was held.
fn is_refusal(error: &LockError) -> bool {
    code_of(error) == DENIED || matches!(error.reason(), ErrorReason::Refused | ErrorReason::Server(_))
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
