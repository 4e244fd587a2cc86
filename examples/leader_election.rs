//! Leader election: a daemon that leads while it owns the lock, steps down when it loses it, and contends again.
//!
//! Start it several times and kill the leader: another one leads about a session timeout later, or at once if the
//! leader was ended by ctrl-c or SIGTERM. Each change is one line: seconds since 1970, name, what happened.
//!
//! ```text
//! cargo run --example leader_election -- --name node-a --session-timeout 4 127.0.0.1:2181
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, iter, thread};

use crossbeam_channel::{Receiver, Sender, select, tick, unbounded};
use env_logger::{Builder, Env};
use lexopt::prelude::*;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use zookeeper_recipes_lock::{LockError, LockListener, LossReason, Session, WriteLock};

const USAGE: &str = "usage: leader_election [--name NAME] [--session-timeout SECONDS] [CONNECT]";
const WORK_EVERY: Duration = Duration::from_millis(500);
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    Builder::from_env(Env::default().default_filter_or("warn,zookeeper::=off")).init();
    let node = match Node::from_args() {
        Ok(node) => node,
        Err(error) => {
            eprintln!("leader_election: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match node.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&*error);
            ExitCode::FAILURE
        }
    }
}

fn complain(error: &(dyn Error + 'static)) {
    eprintln!("leader_election: {error}");
    for cause in iter::successors(error.source(), |&cause| cause.source()) {
        eprintln!("because: {cause}");
    }
}

/// What the listener hears, for the loop that acts on it.
enum Event {
    Acquired,
    Lost(LossReason),
}

struct Herald(Sender<Event>);

impl LockListener for Herald {
    fn lock_acquired(&self) {
        let _ = self.0.send(Event::Acquired);
    }
    fn lock_released(&self) {
        // Only the loop releases it, so there is nothing to tell.
    }
    fn lock_lost(&self, reason: LossReason) {
        let _ = self.0.send(Event::Lost(reason));
    }
    fn request_dropped(&self, reason: LossReason) {
        let _ = self.0.send(Event::Lost(reason));
    }
}

struct Node {
    name: String,
    connect: String,
    session_timeout: Duration,
}

impl Node {
    fn from_args() -> Result<Node, lexopt::Error> {
        let mut node = Node {
            name: format!("node-{}", std::process::id()),
            connect: env::var("ZK_CONNECT").unwrap_or_else(|_| "127.0.0.1:2181".to_owned()),
            session_timeout: Duration::from_secs(10),
        };
        let mut args = lexopt::Parser::from_env();
        while let Some(arg) = args.next()? {
            match arg {
                Long("name") => node.name = args.value()?.string()?,
                Long("session-timeout") => node.session_timeout = Duration::from_secs(args.value()?.parse()?),
                Value(connect) => node.connect = connect.string()?,
                _ => return Err(arg.unexpected()),
            }
        }
        Ok(node)
    }

    /// Contends until a signal comes. A session that is lost does not come back, so each candidacy has its own.
    fn run(&self) -> Result<(), Box<dyn Error>> {
        let stop = stop_signals()?;
        loop {
            match self.stand_for_election(&stop) {
                Ok(Some(reason)) => self.say(&format!("out ({reason})")),
                Ok(None) => return Ok(()),
                Err(error) if error.is_invalid_argument() || error.is_access_denied() => {
                    return Err(error.into());
                }
                Err(error) => complain(&error),
            }
            if stop.recv_timeout(RECONNECT_AFTER).is_ok() {
                return Ok(());
            }
        }
    }

    /// One candidacy, and the leadership that may come of it; returns why it ended, `None` at a signal.
    fn stand_for_election(&self, stop: &Receiver<i32>) -> Result<Option<LossReason>, LockError> {
        let session = Session::connect(&self.connect, self.session_timeout)?;
        let states = session.subscribe();
        let (herald, events) = unbounded();
        let lock = WriteLock::with_listener(&session, "/examples/leader_election", None, Herald(herald))?;
        let work = tick(WORK_EVERY);

        self.say("contending");
        lock.lock()?;
        let ended = loop {
            select! {
                recv(events) -> event => match event {
                    Ok(Event::Acquired) => self.say("leading"),
                    Ok(Event::Lost(reason)) => break Some(reason),
                    Err(_) => break None,
                },
                recv(work) -> _ => if lock.is_owner() { self.say("working") },
                recv(states) -> state => if let Ok(state) = state { self.say(&format!("session {state:?}")) },
                recv(stop) -> _ => break None,
            }
        };
        if ended.is_none() {
            self.say("stopping");
            lock.unlock().unwrap_or_else(|error| complain(&error));
        }
        session.close();
        Ok(ended)
    }

    fn say(&self, what: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        println!("{:.3} {} {what}", now.as_secs_f64(), self.name);
    }
}

/// Passes signals that ask the process to end on to a channel.
fn stop_signals() -> std::io::Result<Receiver<i32>> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let (sender, receiver) = unbounded();
    thread::spawn(move || signals.forever().try_for_each(|signal| sender.send(signal)));
    Ok(receiver)
}
