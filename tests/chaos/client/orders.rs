//! What a client is told: at its start by its arguments, later by the conductor's socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The arguments of a client process.
#[derive(Clone, Debug)]
pub struct Orders {
    pub index: usize,
    pub seed: u64,
    pub history: PathBuf,
    pub socket: PathBuf,
    /// The connect string.
    pub servers: String,
}

/// What the conductor wants of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Contend at random.
    Contend,
    /// Acquire each lock once, say so, and wait.
    Settle(u64),
    End,
}

impl Stage {
    pub fn parse(line: &str) -> Option<Stage> {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("contend", _) => Some(Stage::Contend),
            ("settle", round) => round.parse().ok().map(Stage::Settle),
            ("end", _) => Some(Stage::End),
            _ => None,
        }
    }
}

/// Whether a thread is to hold on to its lock, as something is about to befall this client that should befall an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cling {
    No,
    /// The next to hold a lock does.
    Wanted,
    By {
        thread: usize,
    },
}

/// The line to the conductor.
#[derive(Debug)]
pub struct Conductor {
    stage: Mutex<Stage>,
    changed: Condvar,
    cling: Mutex<Cling>,
    line: Mutex<UnixStream>,
}

impl Conductor {
    /// Reports for duty, and returns also which start of this client it is.
    pub fn call(orders: &Orders) -> (Arc<Conductor>, u64) {
        let mut line = UnixStream::connect(&orders.socket).expect("the conductor listens");
        writeln!(line, "client {} {}", orders.index, std::process::id()).expect("the conductor listens");
        let mut heard = BufReader::new(line.try_clone().expect("a second handle")).lines();
        let mut next = move || heard.next().and_then(Result::ok);
        let incarnation = next().and_then(|answer| answer.parse().ok()).expect("the conductor answers");
        let stage = next().as_deref().and_then(Stage::parse).expect("the conductor says what to do");
        let conductor = Arc::new(Conductor {
            stage: Mutex::new(stage),
            changed: Condvar::new(),
            cling: Mutex::new(Cling::No),
            line: Mutex::new(line),
        });
        let listener = Arc::clone(&conductor);
        thread::spawn(move || {
            while let Some(order) = next() {
                listener.take(&order);
            }
            // The conductor is gone.
            std::process::exit(3);
        });
        (conductor, incarnation)
    }

    fn take(&self, order: &str) {
        match order {
            "cling" => *self.cling.lock() = Cling::Wanted,
            "ease" => *self.cling.lock() = Cling::No,
            _ => {
                *self.stage.lock() = Stage::parse(order).expect("the conductor says what to do");
                self.changed.notify_all();
            }
        }
    }

    /// Whether this thread, which holds a lock, is to hold on to it.
    pub fn clings(&self, thread: usize) -> bool {
        let mut cling = self.cling.lock();
        if *cling == Cling::Wanted {
            *cling = Cling::By { thread };
            self.say("clings");
        }
        *cling == Cling::By { thread }
    }

    /// This thread has no lock to hold on to any more.
    pub fn lets_go(&self, thread: usize) {
        let mut cling = self.cling.lock();
        if *cling == (Cling::By { thread }) {
            *cling = Cling::No;
        }
    }

    pub fn stage(&self) -> Stage {
        *self.stage.lock()
    }

    /// Blocks while this is the stage.
    pub fn wait_while(&self, stage: Stage) {
        self.changed.wait_while(&mut self.stage.lock(), |now| *now == stage);
    }

    /// Sleeps, but not beyond the stage.
    pub fn pause(&self, time: Duration) {
        let mut stage = self.stage.lock();
        let before = *stage;
        self.changed.wait_while_for(&mut stage, |now| *now == before, time);
    }

    pub fn say(&self, what: &str) {
        let said = writeln!(self.line.lock(), "{what}");
        said.expect("the conductor listens");
    }
}
