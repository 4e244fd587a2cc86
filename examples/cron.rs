//! A cron for a cluster: started on any number of machines, it runs a command every few minutes, on
//! one of them.
//!
//! The key of a job is its name and its minute, so the first machine to ask runs it, and the others
//! find it done. A machine that dies while it runs the command costs one run, never two: the key is
//! marked before the command. Clocks may differ by less than a day, after which keys are forgotten.
//!
//! ```text
//! cargo run --example cron -- nightly-report 5 ./report.sh --full
//! ```

use std::error::Error;
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, io, iter, thread};

use env_logger::{Builder, Env};
use zookeeper_recipes_lock::{LockError, LockGuard, RunOnce, RunOutcome, Session, Wait};

const USAGE: &str = "usage: cron NAME MINUTES COMMAND [ARGUMENT...]

Runs COMMAND whenever the minutes since 1970 are a multiple of MINUTES, on one of the machines that
run the job NAME. Never ends. The servers are in ZK_CONNECT, host:port,...[/chroot]; default:
127.0.0.1:2181";

const DIR: &str = "/cron";
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);
const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn main() -> ExitCode {
    Builder::from_env(Env::default().default_filter_or("warn")).init();
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, minutes, program, arguments @ ..] = arguments.as_slice() else {
        println!("{USAGE}");
        return ExitCode::from(2);
    };
    let Some(minutes) = minutes.parse().ok().filter(|minutes| *minutes > 0) else {
        eprintln!("cron: MINUTES is a number from 1 on, not '{minutes}'");
        return ExitCode::from(2);
    };
    let job = |guard: &LockGuard| {
        let token = guard.fencing_token().map_err(io::Error::other)?;
        Command::new(program).args(arguments).env("ZKLOCK_FENCING_TOKEN", token.to_string()).status()
    };
    match run(name, minutes, job) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cron: {error}");
            for cause in iter::successors(error.source(), |&cause| cause.source()) {
                eprintln!("because: {cause}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run<T: std::fmt::Display>(
    name: &str,
    minutes: u64,
    job: impl Fn(&LockGuard) -> io::Result<T>,
) -> Result<(), Box<dyn Error>> {
    let connect = env::var("ZK_CONNECT").unwrap_or_else(|_| "127.0.0.1:2181".to_owned());
    // Starts before its servers do, and outlives the loss of a session.
    let session = Session::builder(connect)
        .session_timeout(SESSION_TIMEOUT)
        .wait_for_server(Wait::forever())
        .replace_lost_sessions(true)
        .connect()?;
    let jobs = RunOnce::new(&session, &format!("{DIR}/{name}"))?;
    loop {
        let minute = await_next(minutes)?;
        match jobs.run(&minute.to_string(), &job) {
            Ok(RunOutcome::Ran(status)) => println!("{name}: minute {minute}: {status}"),
            Ok(RunOutcome::Failed(error)) => eprintln!("{name}: minute {minute}: {error}"),
            Ok(RunOutcome::AlreadyDone { by, .. }) => println!("{name}: minute {minute}: run by {by}"),
            Ok(_) => println!("{name}: minute {minute}: runs elsewhere"),
            Err(error @ (LockError::Closed { .. } | LockError::InvalidArgument { .. })) => Err(error)?,
            // Another machine may have more luck, or this one the next time.
            Err(error) => eprintln!("{name}: minute {minute}: {error}"),
        }
        if let Err(error) = jobs.reap(A_DAY) {
            eprintln!("{name}: keys of the past stay for now: {error}");
        }
    }
}

/// Sleeps until the next minute that is a multiple of this number. Returns it.
fn await_next(minutes: u64) -> Result<u64, Box<dyn Error>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let next = (now.as_secs() / 60 / minutes + 1) * minutes;
    thread::sleep(Duration::from_secs(60 * next).saturating_sub(now));
    Ok(next)
}
