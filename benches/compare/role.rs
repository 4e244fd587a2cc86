//! The roles of this program: our locks and the bare socket, as processes that obey commands.

use std::io::stdin;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use zookeeper_recipes_lock::locks::CohortLock;
use zookeeper_recipes_lock::{BlockingWriteLock, Session};

use crate::SESSION_TIMEOUT;
use crate::floor::FloorLock;
use crate::peer::{ASYNC, COHORT, DROPPED, FLOOR, OURS};
use crate::rows::Layout;
use crate::tasks;

/// The data of the bare socket's requests.
const DATA: &[u8] = b"benchmark/12345";

/// The work that one thread repeats.
type Cycle = Box<dyn FnMut() + Send>;

/// What contends in this process.
enum Contenders {
    Threads(Vec<Cycle>),
    /// Tasks that await the futures of these locks.
    Tasks(Runtime, Vec<Arc<BlockingWriteLock>>),
}

/// Obeys commands until the input ends.
pub(crate) fn obey(name: &str) {
    let mut contenders = None;
    for line in stdin().lines() {
        let line = line.expect("the pipe works");
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["prepare", layout, count, connect_string, dir] => {
                let layout = Layout::named(layout).expect("a layout");
                let count = count.parse().expect("a number");
                contenders = Some(prepare(name, layout, count, connect_string, dir));
                println!("ready");
            }
            ["run", seconds] => {
                let length = Duration::from_secs_f64(seconds.parse().expect("a number"));
                let (done, took) = contenders.as_mut().expect("it is prepared").run(length);
                println!("{done} {} 0", took.as_secs_f64());
            }
            ["end"] => {
                contenders = None;
                println!("ended");
            }
            _ => panic!("no such command: {line}"),
        }
    }
}

fn prepare(name: &str, layout: Layout, count: usize, connect_string: &str, dir: &str) -> Contenders {
    let plain = |session: &Session, dir: &str| {
        Arc::new(BlockingWriteLock::new(session, dir).expect("the path is valid"))
    };
    let cohort = |session: &Session, dir: &str| CohortLock::new(session, dir).expect("the path is valid");
    let locks = || locks(layout, count, connect_string, dir, plain);
    match name {
        OURS => threads(locks(), |lock| {
            lock.lock().expect("its turn comes").unlock().expect("the lock was held");
        }),
        // The deletion of the znode is left to the background.
        DROPPED => threads(locks(), |lock| drop(lock.lock().expect("its turn comes"))),
        ASYNC => Contenders::Tasks(Runtime::new().expect("threads can be started"), locks()),
        COHORT => threads(self::locks(layout, count, connect_string, dir, cohort), |lock| {
            drop(lock.lock().expect("its turn comes"));
        }),
        FLOOR => {
            let lock =
                |number| FloorLock::new(connect_string, SESSION_TIMEOUT, &dir_of(layout, dir, number), DATA);
            threads((0..count).map(lock).collect(), FloorLock::cycle)
        }
        _ => panic!("no such role: {name}"),
    }
}

fn dir_of(layout: Layout, dir: &str, number: usize) -> String {
    match layout {
        Layout::Directories => format!("{dir}-{number}"),
        Layout::Sessions | Layout::Threads => dir.to_owned(),
    }
}

/// Returns the lock of each contender.
fn locks<L: Clone>(
    layout: Layout,
    count: usize,
    connect_string: &str,
    dir: &str,
    new: impl Fn(&Session, &str) -> L,
) -> Vec<L> {
    let connect = || Session::connect(connect_string, SESSION_TIMEOUT).expect("the server is up");
    let lock = |session: &Session, number| new(session, &dir_of(layout, dir, number));
    match layout {
        Layout::Sessions => (0..count).map(|number| lock(&connect(), number)).collect(),
        Layout::Directories => {
            let session = connect();
            (0..count).map(|number| lock(&session, number)).collect()
        }
        Layout::Threads => vec![lock(&connect(), 0); count],
    }
}

fn threads<L: Send + 'static>(locks: Vec<L>, cycle: fn(&mut L)) -> Contenders {
    let cycles = locks.into_iter().map(|mut lock| -> Cycle { Box::new(move || cycle(&mut lock)) });
    Contenders::Threads(cycles.collect())
}

/// A cycle of a task. It leaves the deletion of the znode to the background, because `unlock` blocks.
async fn cycle(lock: Arc<BlockingWriteLock>) {
    drop(lock.lock_async().await.expect("its turn comes"));
}

impl Contenders {
    fn run(&mut self, length: Duration) -> (u32, Duration) {
        match self {
            Contenders::Threads(cycles) => run(cycles, length),
            Contenders::Tasks(runtime, locks) => {
                let cycles = locks.clone().into_iter().map(|lock| move || cycle(Arc::clone(&lock)));
                runtime.block_on(tasks::run(cycles, length))
            }
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
