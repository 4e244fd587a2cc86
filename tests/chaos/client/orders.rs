//! The orders to a client: at its start as arguments, later over the conductor's socket.

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
    /// The directory with the certificates of the run.
    pub certificates: PathBuf,
}

/// The stage that the conductor orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Threads contend at random.
    Contend,
    /// Each thread acquires each lock once, reports that, and waits.
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

/// Whether a thread is to prolong its hold, because this client is about to meet a fault that should hit an
/// owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prolong {
    No,
    /// A request is pending: the next thread that holds a lock prolongs its hold.
    Requested,
    By {
        thread: usize,
    },
}

/// The connection to the conductor.
#[derive(Debug)]
pub struct Conductor {
    stage: Mutex<Stage>,
    changed: Condvar,
    prolong: Mutex<Prolong>,
    line: Mutex<UnixStream>,
}

impl Conductor {
    /// Connects to the conductor. Also returns how often this client has been started, including this time.
    pub fn call(orders: &Orders) -> (Arc<Conductor>, u64) {
        let mut line = UnixStream::connect(&orders.socket).expect("the conductor listens");
        writeln!(line, "client {} {}", orders.index, std::process::id()).expect("the conductor listens");
        let mut lines = BufReader::new(line.try_clone().expect("a second handle")).lines();
        let mut next = move || lines.next().and_then(Result::ok);
        let incarnation = next().and_then(|answer| answer.parse().ok()).expect("the conductor answers");
        let stage = next().as_deref().and_then(Stage::parse).expect("the conductor sends a stage");
        let conductor = Arc::new(Conductor {
            stage: Mutex::new(stage),
            changed: Condvar::new(),
            prolong: Mutex::new(Prolong::No),
            line: Mutex::new(line),
        });
        let listener = Arc::clone(&conductor);
        thread::spawn(move || {
            while let Some(order) = next() {
                listener.take(&order);
            }
            // The conductor has ended.
            std::process::exit(3);
        });
        (conductor, incarnation)
    }

    fn take(&self, order: &str) {
        match order {
            "prolong" => *self.prolong.lock() = Prolong::Requested,
            "end_prolonging" => *self.prolong.lock() = Prolong::No,
            _ => {
                *self.stage.lock() = Stage::parse(order).expect("the conductor sends a stage");
                self.changed.notify_all();
            }
        }
    }

    /// Returns whether this thread, which holds a lock, is to prolong its hold.
    pub fn prolongs(&self, thread: usize) -> bool {
        let mut prolong = self.prolong.lock();
        if *prolong == Prolong::Requested {
            *prolong = Prolong::By { thread };
            self.report("prolongs");
        }
        *prolong == Prolong::By { thread }
    }

    /// Records that this thread no longer holds a lock that it could prolong.
    pub fn stop_prolonging(&self, thread: usize) {
        let mut prolong = self.prolong.lock();
        if *prolong == (Prolong::By { thread }) {
            *prolong = Prolong::No;
        }
    }

    pub fn stage(&self) -> Stage {
        *self.stage.lock()
    }

    /// Blocks while this stage lasts.
    pub fn wait_while(&self, stage: Stage) {
        self.changed.wait_while(&mut self.stage.lock(), |now| *now == stage);
    }

    /// Sleeps, but not beyond the end of the stage.
    pub fn pause(&self, time: Duration) {
        let mut stage = self.stage.lock();
        let before = *stage;
        self.changed.wait_while_for(&mut stage, |now| *now == before, time);
    }

    pub fn report(&self, what: &str) {
        let said = writeln!(self.line.lock(), "{what}");
        said.expect("the conductor listens");
    }
}
