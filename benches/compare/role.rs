//! The roles of this program: our lock and the bare socket, as processes that obey commands.

use std::io::stdin;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::locks::CohortLock;
use zookeeper_recipes_lock::{BlockingWriteLock, Session};

use crate::SESSION_TIMEOUT;
use crate::floor::FloorLock;
use crate::peer::{COHORT, DROPPED, FLOOR, OURS};
use crate::rows::Layout;

/// The data of the bare socket's requests.
const DATA: &[u8] = b"benchmark/12345";

/// The work that one thread repeats.
type Cycle = Box<dyn FnMut() + Send>;

/// Obeys commands until the input ends.
pub(crate) fn obey(name: &str) {
    let mut cycles: Vec<Cycle> = Vec::new();
    for line in stdin().lines() {
        let line = line.expect("the pipe works");
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["prepare", layout, count, connect_string, dir] => {
                let layout = Layout::named(layout).expect("a layout");
                cycles = prepare(name, layout, count.parse().expect("a number"), connect_string, dir);
                println!("ready");
            }
            ["run", seconds] => {
                let length = Duration::from_secs_f64(seconds.parse().expect("a number"));
                let (done, took) = run(&mut cycles, length);
                println!("{done} {} 0", took.as_secs_f64());
            }
            ["end"] => {
                cycles.clear();
                println!("ended");
            }
            _ => panic!("no such command: {line}"),
        }
    }
}

fn prepare(name: &str, layout: Layout, count: usize, connect_string: &str, dir: &str) -> Vec<Cycle> {
    let dir = |number: usize| match layout {
        Layout::Directories => format!("{dir}-{number}"),
        Layout::Sessions | Layout::Threads => dir.to_owned(),
    };
    let connect = || Session::connect(connect_string, SESSION_TIMEOUT).expect("the server is up");
    if name == FLOOR {
        let lock = |number| FloorLock::new(connect_string, SESSION_TIMEOUT, &dir(number), DATA);
        return (0..count).map(lock).map(|mut lock| -> Cycle { Box::new(move || lock.cycle()) }).collect();
    }
    let lock = |session: &Session, number| Lock::new(name, session, &dir(number));
    let locks: Vec<_> = match layout {
        Layout::Sessions => (0..count).map(|number| lock(&connect(), number)).collect(),
        Layout::Directories => {
            let session = connect();
            (0..count).map(|number| lock(&session, number)).collect()
        }
        Layout::Threads => vec![lock(&connect(), 0); count],
    };
    locks.into_iter().map(Lock::into_cycle).collect()
}

/// One of our locks, as the threads of a process share it.
#[derive(Clone)]
enum Lock {
    Plain(Arc<BlockingWriteLock>),
    /// The deletion of the znode is left to the background.
    Dropped(Arc<BlockingWriteLock>),
    Cohort(CohortLock),
}

impl Lock {
    fn new(name: &str, session: &Session, dir: &str) -> Lock {
        let plain = || Arc::new(BlockingWriteLock::new(session, dir).expect("the path is valid"));
        match name {
            OURS => Lock::Plain(plain()),
            DROPPED => Lock::Dropped(plain()),
            COHORT => Lock::Cohort(CohortLock::new(session, dir).expect("the path is valid")),
            _ => panic!("no such role: {name}"),
        }
    }

    fn into_cycle(self) -> Cycle {
        match self {
            Lock::Plain(lock) => Box::new(move || {
                lock.lock().expect("its turn comes").unlock().expect("the lock was held");
            }),
            Lock::Dropped(lock) => Box::new(move || drop(lock.lock().expect("its turn comes"))),
            Lock::Cohort(lock) => Box::new(move || drop(lock.lock().expect("its turn comes"))),
        }
    }
}

/// Makes all threads work for this long. Returns the number of cycles, and the time from the first start to the
/// last end.
fn run(cycles: &mut [Cycle], length: Duration) -> (u32, Duration) {
    let gate = Barrier::new(cycles.len());
    let work = |cycle: &mut Cycle| {
        gate.wait();
        let (start, mut done) = (Instant::now(), 0);
        while start.elapsed() < length {
            cycle();
            done += 1;
        }
        (start, Instant::now(), done)
    };
    let runs: Vec<(Instant, Instant, u32)> = thread::scope(|scope| {
        let running: Vec<_> = cycles.iter_mut().map(|cycle| scope.spawn(|| work(cycle))).collect();
        running.into_iter().map(|thread| thread.join().expect("no cycle panics")).collect()
    });
    let start = runs.iter().map(|(start, ..)| *start).min().expect("at least one thread runs");
    let end = runs.iter().map(|(_, end, _)| *end).max().expect("at least one thread runs");
    (runs.iter().map(|(.., done)| done).sum(), end - start)
}
