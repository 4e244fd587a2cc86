//! Shows who holds a lock and who waits for it: a table of a lock directory, for an operator.
//!
//! With `--watch` it is redrawn whenever a request joins or leaves the queue. The server is queried
//! only then.
//!
//! ```text
//! cargo run --example who_waits -- --watch /locks/backup
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};
use std::{env, iter};

use crossbeam_channel::{select, tick};
use env_logger::{Builder, Env};
use lexopt::prelude::*;
use zookeeper_recipes_lock::{LockDirectory, LockError, LockInfo, Session, Wait};

const USAGE: &str = "usage: who_waits [--connect C] [--watch] DIR";
const HELP: &str = "
Shows who holds the lock DIR, a ZooKeeper path such as /locks/backup, and who waits for it.

  --connect C  the servers, host:port,...[/chroot]; default: ZK_CONNECT, or 127.0.0.1:2181
  --watch      redraw whenever a request joins or leaves
  --help       print this";
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
const CLEAR_SCREEN: &str = "\x1b[2J\x1b[H";

fn main() -> ExitCode {
    Builder::from_env(Env::default().default_filter_or("error,zookeeper::=off")).init();
    let options = match Options::parse(lexopt::Parser::from_env()) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}\n{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("who_waits: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match options.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&*error);
            ExitCode::FAILURE
        }
    }
}

fn complain(error: &(dyn Error + 'static)) {
    eprintln!("who_waits: {error}");
    for cause in iter::successors(error.source(), |&cause| cause.source()) {
        eprintln!("because: {cause}");
    }
}

struct Options {
    connect: String,
    watch: bool,
    dir: String,
}

impl Options {
    /// Returns `None` if help is requested.
    fn parse(mut args: lexopt::Parser) -> Result<Option<Options>, lexopt::Error> {
        let mut connect = env::var("ZK_CONNECT").unwrap_or_else(|_| "127.0.0.1:2181".to_owned());
        let (mut watch, mut dir) = (false, None);
        while let Some(arg) = args.next()? {
            match arg {
                Long("help") | Short('h') => return Ok(None),
                Long("connect") => connect = args.value()?.string()?,
                Long("watch") => watch = true,
                Value(value) if dir.is_none() => dir = Some(value.string()?),
                _ => return Err(arg.unexpected()),
            }
        }
        Ok(Some(Options { connect, watch, dir: dir.ok_or("DIR is missing")? }))
    }

    fn run(&self) -> Result<(), Box<dyn Error>> {
        if self.watch {
            return self.watch();
        }
        let session = Session::connect(&self.connect, SESSION_TIMEOUT)?;
        let directory = LockDirectory::new(&session, &self.dir)?;
        let contenders = directory.contenders()?;
        session.close();
        Ok(draw("", &contenders)?)
    }

    /// Redraws until the process is ended. A lost session is replaced.
    fn watch(&self) -> Result<(), Box<dyn Error>> {
        let session = Session::builder(&self.connect)
            .session_timeout(SESSION_TIMEOUT)
            .replace_lost_sessions(true)
            .connect()?;
        let directory = LockDirectory::new(&session, &self.dir)?;
        let queue = directory.watch_queue(Wait::forever())?;
        let states = session.subscribe();
        // Only updates the ages.
        let clock = tick(Duration::from_secs(1));
        let (mut contenders, mut outdated) = (Vec::new(), true);
        loop {
            if outdated {
                match directory.contenders() {
                    Ok(read) => contenders = read,
                    // Regaining contact is a change of state.
                    Err(error)
                        if error.is_recoverable() || matches!(error, LockError::SessionLost { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            draw(&format!("{CLEAR_SCREEN}{} ({:?})\n", self.dir, session.state()), &contenders)?;
            outdated = select! {
                recv(queue.changes()) -> change => change.map(|()| true)?,
                recv(states) -> _ => true,
                recv(clock) -> _ => false,
            };
        }
    }
}

/// Draws in one write to avoid flicker.
fn draw(heading: &str, contenders: &[LockInfo]) -> io::Result<()> {
    let owners = LockInfo::owners(contenders).len();
    let mut table =
        format!("{heading}{:<7} {:<9} {:>8}  {:<19} {:<24} ZNODE\n", "", "KIND", "AGE", "SESSION", "DATA");
    for (position, request) in contenders.iter().enumerate() {
        let state = if position < owners { "holds" } else { "waits" };
        table += &format!(
            "{state:<7} {:<9} {:>8}  {:<19} {:<24} {}\n",
            request.kind,
            age(request),
            session_of(request),
            data_of(request),
            request.path.rsplit('/').next().unwrap_or_default()
        );
    }
    let mut out = io::stdout().lock();
    out.write_all(table.as_bytes())?;
    out.flush()
}

fn age(request: &LockInfo) -> String {
    let Some(created) = request.created else { return "?".to_owned() };
    let seconds = SystemTime::now().duration_since(created).unwrap_or_default().as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

fn session_of(request: &LockInfo) -> String {
    match request.ephemeral_owner {
        Some(session) => format!("{session:#x}"),
        None if request.is_persistent => "none (persistent)".to_owned(),
        None => "?".to_owned(),
    }
}

/// Escaped, because applications may write arbitrary bytes.
fn data_of(request: &LockInfo) -> String {
    match &request.data {
        None => "(READ denied)".to_owned(),
        Some(_) => request.data_lossy().chars().flat_map(char::escape_debug).take(24).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Option<Options>, lexopt::Error> {
        Options::parse(lexopt::Parser::from_args(args))
    }

    #[test]
    fn help_is_not_an_error() {
        assert!(parse(&["--help"]).is_ok_and(|options| options.is_none()));
        assert!(parse(&["/locks/backup", "-h"]).is_ok_and(|options| options.is_none()));
    }

    #[test]
    fn directory_is_required() {
        assert!(parse(&["--watch"]).is_err());
        let options = parse(&["--watch", "/locks/backup"]).unwrap().unwrap();
        assert!(options.watch && options.dir == "/locks/backup");
    }
}
