//! Leader election: a daemon that leads when it is elected, steps down when it loses the leadership, and contends again.
//!
//! Start it several times and kill the leader. Another process becomes the leader about one session timeout
//! later, or at once if ctrl-c or SIGTERM ended the leader. Each event is printed on one line: seconds since
//! 1970, name, event.
//!
//! ```text
//! cargo run --example leader_election -- --name node-a --session-timeout 4 127.0.0.1:2181
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, iter, thread};

use crossbeam_channel::{Receiver, select, unbounded};
use env_logger::{Builder, Env};
use lexopt::prelude::*;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use zookeeper_recipes_lock::{BlockingWriteLock, Candidate, Leadership, LockOptions, Session, Wait};

const USAGE: &str = "usage: leader_election [--name NAME] [--session-timeout SECONDS] [CONNECT]";
const HELP: &str = "
Leads when elected, and contends again after losing the leadership.

  --name NAME                the name that other nodes see; default: node-<process id>
  --session-timeout SECONDS  the time until another node leads after a crash; default: 10
  --help                     print this

CONNECT names the servers: host:port,...[/chroot]; default: ZK_CONNECT, or 127.0.0.1:2181";
const WORK_EVERY: Duration = Duration::from_millis(500);
const GOODBYE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    Builder::from_env(Env::default().default_filter_or("warn")).init();
    let node = match Node::parse(lexopt::Parser::from_env()) {
        Ok(Some(node)) => node,
        Ok(None) => {
            println!("{USAGE}\n{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("leader_election: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    node.run().unwrap_or_else(|error| {
        complain(&*error);
        ExitCode::FAILURE
    })
}

fn complain(error: &(dyn Error + 'static)) {
    eprintln!("leader_election: {error}");
    for cause in iter::successors(error.source(), |&cause| cause.source()) {
        eprintln!("because: {cause}");
    }
}

#[derive(Clone)]
struct Node {
    name: String,
    connect: String,
    session_timeout: Duration,
}

impl Node {
    /// Parses the arguments. Returns `None` if they ask for help.
    fn parse(mut args: lexopt::Parser) -> Result<Option<Node>, lexopt::Error> {
        let mut node = Node {
            name: format!("node-{}", std::process::id()),
            connect: env::var("ZK_CONNECT").unwrap_or_else(|_| "127.0.0.1:2181".to_owned()),
            session_timeout: Duration::from_secs(10),
        };
        while let Some(arg) = args.next()? {
            match arg {
                Long("help") | Short('h') => return Ok(None),
                Long("name") => node.name = args.value()?.string()?,
                Long("session-timeout") => node.session_timeout = Duration::from_secs(args.value()?.parse()?),
                Value(connect) => node.connect = connect.string()?,
                _ => return Err(arg.unexpected()),
            }
        }
        Ok(Some(node))
    }

    /// Contends for the leadership until a signal arrives. A lost session is replaced.
    fn run(self) -> Result<ExitCode, Box<dyn Error>> {
        let stop = stop_signals()?;
        let session = Session::builder(&self.connect)
            .session_timeout(self.session_timeout)
            .replace_lost_sessions(true)
            .connect()?;
        let states = session.subscribe();
        let options = LockOptions::new().data(self.name.as_bytes());
        let election = BlockingWriteLock::with_options(&session, "/examples/leader_election", options)?;

        self.say("contending");
        let node = self.clone();
        let candidate = Candidate::start(election, move |leadership| {
            node.lead(leadership);
            Ok(())
        })?;
        loop {
            select! {
                recv(states) -> state => if let Ok(state) = state { self.say(&format!("session {state:?}")) },
                recv(candidate.ended()) -> _ => break,
                recv(stop) -> _ => break,
            }
        }
        self.say("stopping");
        candidate.stop();
        if !candidate.wait(Wait::timeout(GOODBYE)) {
            // To close the session now would let another node lead beside the closure. The closure ends with this process.
            return Err(
                "the leader did not end in time; another node leads when the session has timed out".into()
            );
        }
        session.close();
        let Some(error) = candidate.error() else { return Ok(ExitCode::SUCCESS) };
        complain(error);
        Ok(ExitCode::FAILURE)
    }

    fn lead(&self, leadership: &Leadership) {
        self.say("leading");
        while leadership.wait(WORK_EVERY) {
            self.say("working");
        }
        if let Ok(reason) = leadership.lost().try_recv() {
            self.say(&format!("out ({reason})"));
        }
    }

    fn say(&self, what: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        println!("{:.3} {} {what}", now.as_secs_f64(), self.name);
    }
}

/// Forwards termination signals to a channel.
fn stop_signals() -> std::io::Result<Receiver<i32>> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let (sender, receiver) = unbounded();
    thread::spawn(move || signals.forever().try_for_each(|signal| sender.send(signal)));
    Ok(receiver)
}
