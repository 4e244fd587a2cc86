//! Runs a command while it holds a lock, like flock(1) for a whole cluster.
//!
//! If the lock is lost, the command gets SIGTERM, and overlaps with the next holder until it has
//! ended. So a command that writes to a shared resource should send its `ZK_LOCK_FENCING_TOKEN`
//! along. The command's background processes continue without the lock, and so does the command
//! itself if this program is killed by SIGKILL.
//!
//! ```text
//! cargo run --example run_locked -- --timeout 60 /locks/backup -- ./backup.sh --full
//! ```

use std::error::Error;
use std::io::{self, ErrorKind, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use std::{env, iter, thread};

use crossbeam_channel::{Receiver, bounded, select, unbounded};
use env_logger::{Builder, Env};
use lexopt::prelude::*;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use zookeeper_recipes_lock::{BlockingWriteLock, LockError, LockGuard, Session};

const USAGE: &str =
    "usage: run_locked [--connect C] [--timeout SECONDS | --try] DIR [--] COMMAND [ARGUMENT...]";
const HELP: &str = "
Runs COMMAND while it holds the lock DIR, a ZooKeeper path such as /locks/backup.

  --connect C         the servers, host:port,...[/chroot]; default: ZK_CONNECT, or 127.0.0.1:2181
  --timeout SECONDS   give up if the lock is not acquired in time; default: wait forever
  --try               give up immediately if the lock is held or waited for
  --help              print this

COMMAND finds ZK_LOCK_ZNODE and ZK_LOCK_FENCING_TOKEN in its environment. It runs in a separate process group, to which
SIGHUP, SIGINT, SIGQUIT and SIGTERM are forwarded, and which gets SIGTERM when the lock is lost. It cannot read from the
terminal.

Exits with the code of COMMAND, with 128+n if signal n ended COMMAND or the wait for the lock, or with
    2  wrong usage, connect string or path
   69  ZooKeeper cannot be reached, or refuses
   75  the lock was not acquired (--try, --timeout)
   76  the lock was lost while COMMAND ran
  126  COMMAND cannot be executed
  127  COMMAND is not found";

const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    Builder::from_env(Env::default().default_filter_or("warn,zookeeper::=off")).init();
    let code = match Options::from_args() {
        Ok(Some(options)) => run(options).unwrap_or_else(|error| {
            complain(&*error);
            let is_usage = matches!(
                error.downcast_ref(),
                Some(LockError::InvalidPath { .. } | LockError::InvalidArgument { .. })
            );
            if is_usage { 2 } else { 69 }
        }),
        Ok(None) => {
            println!("{USAGE}\n{HELP}");
            0
        }
        Err(error) => {
            eprintln!("run_locked: {error}\n{USAGE}");
            2
        }
    };
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

fn complain(error: &(dyn Error + 'static)) {
    eprintln!("run_locked: {error}");
    for cause in iter::successors(error.source(), |&cause| cause.source()) {
        eprintln!("because: {cause}");
    }
}

struct Options {
    connect: String,
    wait: Wait,
    dir: String,
    command: Command,
}

#[derive(Clone, Copy, PartialEq)]
enum Wait {
    Endless,
    Limited(Duration),
    None,
}

impl Options {
    /// Returns `None` if help is requested.
    fn from_args() -> Result<Option<Options>, lexopt::Error> {
        let mut connect = env::var("ZK_CONNECT").unwrap_or_else(|_| "127.0.0.1:2181".to_owned());
        let mut wait = Wait::Endless;
        let mut dir = None;
        let mut args = lexopt::Parser::from_env();
        while let Some(arg) = args.next()? {
            match (arg, &dir) {
                (Long("help") | Short('h'), _) => return Ok(None),
                (Long("connect"), _) => connect = args.value()?.string()?,
                (Long("timeout"), _) if wait == Wait::Endless => {
                    let seconds = args.value()?.parse()?;
                    wait = Wait::Limited(Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())?);
                }
                (Long("try"), _) if wait == Wait::Endless => wait = Wait::None,
                (Value(value), None) => dir = Some(value.string()?),
                (Value(program), Some(dir)) => {
                    let mut command = Command::new(program);
                    command.args(args.raw_args()?);
                    return Ok(Some(Options { connect, wait, dir: dir.clone(), command }));
                }
                (arg, _) => return Err(arg.unexpected()),
            }
        }
        Err(if dir.is_none() { "DIR is missing" } else { "COMMAND is missing" }.into())
    }
}

/// Returns the exit code.
fn run(options: Options) -> Result<i32, Box<dyn Error>> {
    let session = Session::connect(&options.connect, SESSION_TIMEOUT)?;
    let outcome = lock_and_run(&session, options);
    // In every case, no request of ours is left in the queue when the process ends.
    session.close();
    outcome
}

fn lock_and_run(session: &Session, options: Options) -> Result<i32, Box<dyn Error>> {
    let Options { wait, dir, command, .. } = options;
    let lock = BlockingWriteLock::new(session, &dir)?;
    let signals = signals()?;

    // On another thread, so that a signal can end the wait. Closing the session ends the thread.
    let (obtained, obtains) = bounded(1);
    thread::spawn(move || {
        obtained.send(match wait {
            Wait::Endless => lock.lock().map(Some),
            Wait::Limited(timeout) => lock.try_lock_for(timeout),
            Wait::None => lock.try_lock(),
        })
    });
    let guard = select! {
        recv(obtains) -> guard => guard??,
        recv(signals) -> signal => return Ok(128 + signal?),
    };
    let Some(guard) = guard else {
        eprintln!("run_locked: {dir} is held by another");
        return Ok(75);
    };

    let code = run_under(&guard, command, &signals)?;
    match guard.unlock() {
        Ok(_) => Ok(code),
        // The lock was held until now. The server deletes the znode with the session.
        Err(error @ LockError::AccessDenied { .. }) => {
            log::warn!("{error}");
            Ok(code)
        }
        Err(error) => {
            eprintln!("run_locked: the command ended with code {code}, but without the lock: {error}");
            Ok(76)
        }
    }
}

fn run_under(
    guard: &LockGuard,
    mut command: Command,
    signals: &Receiver<i32>,
) -> Result<i32, Box<dyn Error>> {
    command.env("ZK_LOCK_ZNODE", guard.id());
    command.env("ZK_LOCK_FENCING_TOKEN", guard.fencing_token()?.to_string());
    command.process_group(0);
    if io::stdin().is_terminal() {
        // Reading from the terminal would stop a background process group, and keep the lock
        // forever.
        command.stdin(Stdio::null());
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("run_locked: {}: {error}", command.get_program().to_string_lossy());
            return Ok(if error.kind() == ErrorKind::NotFound { 127 } else { 126 });
        }
    };

    // Waits without reaping: the process id is not reused while signals may be sent to it.
    let group = Pid::from_child(&child);
    let (ended, ends) = bounded(1);
    thread::spawn(move || {
        ended.send(waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).is_ok())
    });
    loop {
        let signal = select! {
            recv(ends) -> _ => break,
            recv(signals) -> signal => Signal::from_named_raw(signal?),
            recv(guard.lost()) -> reason => {
                eprintln!("run_locked: lock lost ({}), ending the command", reason?);
                Some(Signal::TERM)
            }
        };
        // It may have just ended.
        let _ = signal.map(|signal| kill_process_group(group, signal));
    }
    let status = child.wait()?;
    Ok(status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(126))
}

/// Forwards signals to a channel.
fn signals() -> io::Result<Receiver<i32>> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    let (sender, receiver) = unbounded();
    thread::spawn(move || signals.forever().try_for_each(|signal| sender.send(signal)));
    Ok(receiver)
}
