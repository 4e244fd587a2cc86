//! `zklock run`: runs a command under a lock.
//!
//! # The processes
//! **Two processes.** This process is the holder: it has the session, the lease, and the messages. It starts this
//! program again as the guardian, which is the parent of the command, and tells it until when the lease is
//! certain. Whoever stops, freezes or kills the holder does not free the command.
//!
//! **Groups.** The holder stays in the process group of its job, which a shell, cron or a script has created. The guardian
//! has a group of its own, so that no signal to the job reaches it. The command is the first process of a third group in
//! the same session. So only the holder decides when the command runs: a shell that continues the job continues only the
//! holder, which checks the lease first.
//!
//! **Start.** The guardian runs this program once more as the launcher, in the new group. The launcher asks the kernel to
//! kill it when the guardian ends, and waits. The holder checks the lease, and tells the guardian to let the launcher
//! become the command.
//!
//! **End.** Signals that this process gets are forwarded to the group. The command counts as ended when the first process
//! of the group has ended, or with `--until-all-end`, when nothing descends from it any more. When the lock is lost,
//! everything that descends from the command is ended: SIGTERM goes to the group, SIGKILL to the group and, on Linux, to
//! every descendant, whatever its group, session, namespace or name.
//!
//! If the guardian is killed, Linux kills the command, unless it has changed its user (sudo) or has capabilities. The
//! holder then adopts the rest and ends it. A frozen guardian is killed once the holder has ended everything itself.
//!
//! **The terminal.** When the command is stopped for using the terminal, and the group of this process has the terminal,
//! this process hands it over to the group of the command, and again whenever the job gets it. Before that, the whole job
//! sees what is typed, Ctrl-C for example. It takes the terminal back when it stops the job, when somebody else has
//! stopped the command, and when the command has ended.
//!
//! While the command has the terminal:
//!
//! - **Ctrl-C and Ctrl-\\** go only to the command. If Ctrl-C ends it, the group of this process gets SIGINT as well.
//! - **Ctrl-Z** stops the command. This process then stops all other descendants, and itself with its group.
//!
//! While the command does not have the terminal:
//!
//! - **Ctrl-C and Ctrl-\\** go to the job, and so to this process, which forwards them.
//! - **Ctrl-Z** goes to this process, which stops the command, and then continues as above.
//! - **A command that uses the terminal** is stopped, as any background job is. This process reports the stop, and
//!   ends the command after `--stopped-for`.
//!
//! **`fg` and `bg`** continue this process. If the lease still lasts, this process then continues the command. Otherwise,
//! the guardian has ended the command.
//!
//! If no shell could continue this process, because its group is orphaned, nothing is stopped. Writing to a terminal
//! never stops this process: SIGTTOU and SIGTTIN are blocked. A separate thread writes all messages, so a full pipe
//! delays nothing.

#[cfg_attr(not(target_os = "linux"), path = "no_descendants.rs")]
mod descendants;
mod guardian;
mod held;
mod launcher;
mod lease;
mod leash;
mod once;
mod others;
mod signals;
mod supervision;
mod systemd;
mod terminal;
mod unix;
mod wire;

use std::env;
use std::ffi::OsString;
use std::io;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, select};
use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::locks::Released;
use zookeeper_recipes_lock::queue::{LockDirectory, LockInfo};
use zookeeper_recipes_lock::{
    CancelToken, ErrorReason, LockError, LockGuard, RetryPolicy, Session, SessionBuilder, SessionState, Wait,
};

use self::guardian::Guarded;
use self::held::{Contended, Held};
use self::lease::EndTimes;
pub(crate) use self::once::once;
use self::others::Others;
use self::signals::{MAX_WITHDRAWAL, Signals, close_unused};
use self::supervision::{End, Ended, Supervision};
pub(crate) use self::unix::block_terminal_stops;
use crate::args::{CommandArgs, RunArgs};
use crate::connection::ConnectionArgs;
use crate::failure::{
    CANNOT_CREATE, DENIED, Failure, LOST, NOT_ACQUIRED, NOT_EXECUTABLE, NOT_FOUND, SYSTEM, UNAVAILABLE,
    USAGE, code_of, describe,
};
use crate::queue::{self, Use};
use crate::spans::show_duration;
use crate::stderr::{self, complain};

/// The variables that the command gets.
const PATH: &str = "ZKLOCK_PATH";
const FENCING_TOKEN: &str = "ZKLOCK_FENCING_TOKEN";

/// How long a message may be delayed to read the queue.
const MAX_LOOKUP: Duration = Duration::from_secs(2);

/// How long to look for others once the lock is acquired, even if the time for acquiring it is over.
const MIN_LOOKUP: Duration = Duration::from_millis(200);

/// The time after which a wait is reported.
const SILENT_WAIT: Duration = Duration::from_secs(1);

/// Becomes the guardian or the command, if this process was started for that. Returns the exit code if that fails.
pub(crate) fn launch() -> Option<u8> {
    guardian::guard().or_else(launcher::launch)
}

pub(crate) fn run(connection: &ConnectionArgs, args: &RunArgs) -> Result<u8, Failure> {
    let limit = Limit::of(args);
    let (builder, signals) = begin(connection, &args.dir, &args.command)?;
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
        args.command.mention(|| warning);
    }
    let signals = Signals::attend(&session, signals, limit.moment()).map_err(system)?;
    let outcome = match lock_and_run(&session, args, limit, &signals) {
        Err(Failed::Lock(error)) if error.reason() == ErrorReason::Closed && signals.has_expired() => {
            args.command.mention(|| refusal(&session, args, &signals));
            Ok(NOT_ACQUIRED.into())
        }
        outcome => outcome,
    };
    finish(&session, &signals, &args.queue(), outcome.map_err(explained))
}

/// Checks the arguments and takes over the signals, before connecting.
fn begin(
    connection: &ConnectionArgs,
    dir: &str,
    args: &CommandArgs,
) -> Result<(SessionBuilder, Receiver<i32>), Failure> {
    let builder = connection.builder(&connection.connect)?;
    builder.check_lock_path(dir)?;
    if args.until_all_end && !unix::shows_children() {
        return Err(Failure::new(
            SYSTEM,
            "--until-all-end needs a system that shows the children of a process in /proc",
        ));
    }
    // Signals are handled before anything waits, because the kernel drops a signal to process 1 that has no handler.
    Ok((builder, unix::signals().map_err(system)?))
}

/// Returns a warning if the session timeout is so short that a reconnect can cost the lock.
fn short_timeout(connection: &ConnectionArgs, session: &Session) -> Option<String> {
    let (timeout, tick) = (session.session_timeout(), connection.shortest_tick());
    (timeout < tick.saturating_mul(3)).then(|| {
        format!(
            "a session timeout of {} is less than three ticks, so a reconnect can cost the lock: use {} or more \
             (--session-timeout), or state a shorter tick of the servers (--tick, now {})",
            show_duration(timeout),
            show_duration(tick.saturating_mul(3)),
            show_duration(tick)
        )
    })
}

/// Closes the session, so no request is left in the queue. Returns the exit code.
fn finish(
    session: &Session,
    signals: &Signals,
    dir: &str,
    outcome: Result<End, Failure>,
) -> Result<u8, Failure> {
    let interruption = signals.interruption();
    if signals.close(session) {
        let time = show_duration(session.session_timeout());
        complain(&format!(
            "no server has answered in time, so the request may stay in {dir} until the servers end the session, in \
             about {time}"
        ));
    }
    let end = match (outcome, interruption) {
        // The signal has closed the session, which is no failure.
        (Err(_), Some(signal)) => return Ok(code_of_signal(signal)),
        (outcome, _) => outcome?,
    };
    if let Some(interrupt) = end.interrupt {
        stderr::flush();
        unix::end_as_interrupted(interrupt);
    }
    Ok(end.code)
}

/// How long to wait for the lock.
#[derive(Clone, Copy)]
enum Limit {
    /// Not at all: if the lock is not free, it is not acquired.
    Attempt,
    /// Until this moment. It is fixed before connecting, so the limit includes connecting. `None` means forever.
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

    fn moment(self) -> Option<Instant> {
        match self {
            Limit::Attempt => None,
            Limit::Wait(end) => end,
        }
    }

    /// The time that is left, if it is limited. An attempt takes as long as the servers take.
    fn left(self) -> Duration {
        self.moment().map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }
}

/// Returns whether a `zklock run` around this one holds the lock, so that this one would wait for itself.
fn is_held_outside(session: &Session, dir: &str) -> bool {
    let Ok(outer) = env::var(PATH) else { return false };
    let retry = RetryPolicy::constant(Duration::from_millis(100)).with_attempts(3);
    let is_here =
        || RecoverableZooKeeper::new(session, retry).exists(&outer).is_ok_and(|stat| stat.is_some());
    // The name of a request has a GUID, so a znode of that name on these servers is the request.
    outer.rsplit_once('/').is_some_and(|(outer_dir, _)| outer_dir == dir) && is_here()
}

/// Connects, or returns the signal that ended the wait for the servers.
fn connect(
    builder: SessionBuilder,
    wait: Wait,
    signals: &Receiver<i32>,
) -> Result<Result<Session, i32>, Failed> {
    let token = CancelToken::new();
    let builder = builder.wait_for_server(wait.cancelled_by(&token));
    let (sender, outcome) = bounded(1);
    let connecting = thread::Builder::new().name("connect".to_owned());
    // Sending fails only if this process is ending.
    connecting.spawn(move || drop(sender.send(builder.connect()))).map_err(system)?;
    loop {
        select! {
            recv(outcome) -> session => return Ok(Ok(session.map_err(|_| failed_thread())??)),
            recv(signals) -> signal => if let Some(signal) = signal.ok().filter(|signal| unix::ends_wait(*signal)) {
                token.cancel();
                // The session may have been opened just before.
                if let Ok(Ok(session)) = outcome.recv_timeout(MAX_WITHDRAWAL) {
                    close_unused(&session);
                }
                return Ok(Err(signal));
            },
        }
    }
}

fn lock_and_run(session: &Session, args: &RunArgs, limit: Limit, signals: &Signals) -> Result<End, Failed> {
    if matches!(limit, Limit::Wait(_)) && is_held_outside(session, &args.dir) {
        let dir = &args.dir;
        let message = format!(
            "a 'zklock run' around this one holds {dir}, so it would wait for itself; unset {PATH} to wait anyway"
        );
        return Err(Failure::new(USAGE, message).into());
    }
    let own_use = if args.permits.is_some() { Use::Semaphore } else { Use::Lock };
    let others = Others::new(session, &args.dir, own_use);
    others.refuse(limit.left())?;
    let Some(held) = acquire(session, args, limit)? else {
        args.command.mention(|| refusal(session, args, signals));
        return Ok(NOT_ACQUIRED.into());
    };
    others.refuse(limit.left().max(MIN_LOOKUP))?;
    drop(others.warn());
    let fencing_token = held.fencing_token()?;
    if !signals.begin() {
        return Err(Failed::not_begun(&args.dir));
    }
    let ended = supervise(session, held.guard(), fencing_token, &args.command, signals.forwarded());
    signals.settle();
    let Ended { end, lost, .. } = ended?;
    if !lost && session.state() == SessionState::Connected {
        // Requests that joined while the command ran may have held the lock at the same time.
        let _ = others.warn().recv_timeout(MAX_LOOKUP);
    }
    let unlocked = held.release();
    if lost {
        return Ok(LOST.into());
    }
    let end = end.map_err(system)?;
    let is_unanswered = match &unlocked {
        Ok(released) => *released == Released::Pending,
        // A signal has ended the wait.
        Err(error) => error.reason() == ErrorReason::Closed,
    };
    if is_unanswered {
        signals.leave_request();
        return Ok(end);
    }
    match unlocked {
        Ok(_) => Ok(end),
        // The lock was held until now. The server will delete the znode with the session.
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

/// The failure of a command that could not be started.
fn not_started(program: &OsString, error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        io::ErrorKind::Unsupported => SYSTEM,
        _ if unix::is_shortage(error) => SYSTEM,
        _ => NOT_EXECUTABLE,
    };
    if error.kind() == io::ErrorKind::Unsupported {
        // It is about this program, not about the command.
        return Failure::new(code, error.to_string());
    }
    Failure::new(code, format!("{}: {error}", program.to_string_lossy()))
}

/// Runs the command while the lock is held.
fn supervise(
    session: &Session,
    guard: &LockGuard,
    fencing_token: Option<i64>,
    args: &CommandArgs,
    signals: &Receiver<i32>,
) -> Result<Ended, Failed> {
    let Some(term) = Supervision::first_term(session, guard, args.grace) else {
        complain("the lock is lost, or about to be; the command is not started");
        return Ok(Ended::without_the_lock());
    };
    // clap requires at least one argument.
    let (program, arguments) = args.command.split_first().ok_or_else(failed_thread)?;
    let set_variables = |command: &mut process::Command| {
        command.env(PATH, guard.id());
        match fencing_token {
            Some(token) => command.env(FENCING_TOKEN, token.to_string()),
            // A 'zklock run' around this one may have set it.
            None => command.env_remove(FENCING_TOKEN),
        };
        systemd::name_the_launcher(command);
    };
    let grace = EndTimes::new(args.grace, session.session_timeout()).grace();
    let guarded = Guarded { program, arguments, term, grace, waits_for_all: args.until_all_end };
    let child = match unix::Child::spawn(&guarded, set_variables) {
        Ok(child) => child,
        Err(error) => {
            let failure = not_started(program, &error);
            failure.report();
            return Ok(Ended { end: Ok(failure.code.into()), lost: false, has_begun: false });
        }
    };
    Ok(Supervision::new(session, guard, child, args).until_the_end(signals))
}

/// Why the command has not run, or why its result is unknown.
enum Failed {
    Lock(LockError),
    Other(Failure),
}

impl Failed {
    /// The command has not begun, because the program was already ending when the lock was acquired.
    fn not_begun(dir: &str) -> Failed {
        Failure::new(NOT_ACQUIRED, format!("{dir} was acquired too late")).into()
    }

    /// Explains the error to a user whose command has not run.
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
            ErrorReason::SessionLost => {
                let message = format!("the wait for {dir} ended with its session; run the command again");
                Failure::new(UNAVAILABLE, message)
            }
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

/// Waits for the lock. Returns `None` if it was not acquired in time.
fn acquire(session: &Session, args: &RunArgs, limit: Limit) -> Result<Option<Held>, Failed> {
    let lock = Contended::new(session, args)?;
    let wait = match limit {
        Limit::Attempt => None,
        Limit::Wait(end) => Some(end.map_or_else(Wait::forever, Wait::from)),
    };
    let mention = (!args.command.quiet).then(|| Mention::of_wait(session, args));
    let held = lock.acquire(wait);
    drop(mention);
    Ok(held?)
}

/// Reports who holds the lock during a long wait. Dropping it at the end of the wait suppresses a late report.
struct Mention {
    _is_waiting: Sender<()>,
}

impl Mention {
    /// Looks up the holder and reports it, on another thread.
    fn of_wait(session: &Session, args: &RunArgs) -> Mention {
        let (is_waiting, end) = bounded(0);
        let (directory, dir) = (LockDirectory::new(session, &args.queue()), args.dir.clone());
        let look = move || {
            let Ok(directory) = directory else { return };
            if end.recv_timeout(SILENT_WAIT) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let holder = directory.current_owner().ok().flatten();
            if end.try_recv() == Err(TryRecvError::Empty) {
                complain(&match holder {
                    Some(holder) => format!("waiting for {dir}, which is held: {}", queue::line(&holder)),
                    None => format!("waiting for {dir}"),
                });
            }
        };
        // Without a thread, the wait is not reported.
        drop(thread::Builder::new().name("mention".to_owned()).spawn(look));
        Mention { _is_waiting: is_waiting }
    }
}

/// Returns a message that says that the lock was not acquired, and who holds it.
fn refusal(session: &Session, args: &RunArgs, signals: &Signals) -> String {
    let dir = &args.dir;
    let (still, time) = match args.timeout {
        Some(timeout) if !timeout.is_zero() => ("still ", format!(" after {}", show_duration(timeout))),
        _ => ("", String::new()),
    };
    let not_acquired = format!("{dir} was not acquired{time}");
    match holder(session, &args.queue()) {
        Some(Ok(Some(holder))) => format!("{dir} is {still}held{time}: {}", queue::line(&holder)),
        // The lock was released a moment ago, or the holder may not be looked up.
        Some(Ok(None) | Err(_)) => not_acquired,
        None => {
            signals.leave_request();
            not_acquired
        }
    }
}

/// Looks up the holder. Returns `None` if no server answers for [`MAX_LOOKUP`], or until the session is closed.
fn holder(session: &Session, dir: &str) -> Option<Result<Option<LockInfo>, LockError>> {
    let directory = LockDirectory::new(session, dir).ok()?;
    let (sender, holder) = bounded(1);
    let looking = thread::Builder::new().name("holder".to_owned());
    looking.spawn(move || sender.send(directory.current_owner())).ok()?;
    let holder = holder.recv_timeout(MAX_LOOKUP).ok()?;
    Some(holder).filter(|holder| !holder.as_ref().is_err_and(is_without_answer))
}

/// Returns whether a call has failed because no server has answered it.
fn is_without_answer(error: &LockError) -> bool {
    use ErrorReason::{Closed, ConnectionLoss, NoServer, SessionLost};
    matches!(error.reason(), Closed | ConnectionLoss | NoServer | SessionLost)
}

/// Returns whether the server refused to delete the znode of a lock that was held until then.
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

/// A duration for messages, in milliseconds at the finest.
fn shown(time: Duration) -> String {
    show_duration(Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
}
